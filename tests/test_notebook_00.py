"""What the notebooks claim, asserted: the lessons show results, this file checks them."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference, terms_of
from testing import QUICK, SmallNet
from torch import nn
from tvm import relax, te
from tvm.relax.frontend.torch import from_exported_program

import tvmnotes as tn
from tvmnotes import digits

# ---------------------------------------------------------------- 00: TVM's three calls, and what makes them fast


NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def cells_of(name):
    return {cell.id: cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells}


def stored_medians(cell):
    """The medians, in ms and by name, of the comparison that is a cell's stored output."""
    text = cell.outputs[0].data["text/plain"]
    return {name: float(median) for name, median in re.findall(r"^(\S.*?) {2,}([\d.]+) ", text, re.M)}


@pytest.fixture(scope="module")
def exported():
    """An input, PyTorch's exact output, and the network of the digits, or a smaller one, as TVM's importer has it."""
    if QUICK:
        net, x = tn.models.seeded(SmallNet, 8), torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    else:
        net, x = tn.models.load("digits"), torch.from_numpy(digits.preprocess(digits.load_test_set()[0][:1]))
    with torch.inference_mode():
        return x.numpy(), reference(net, x), from_exported_program(torch.export.export(net, (x,)))


def test_00_tvms_three_calls_give_pytorchs_results(exported):
    x, wanted, mod = exported
    target = tn.env.host_target()
    for pipeline in ("default", relax.get_default_pipeline(target)):
        vm = relax.VirtualMachine(tvm.compile(mod, target=target, relax_pipeline=pipeline), tvm.cpu())
        (output,) = vm["main"](tvm.runtime.tensor(x))
        close(output.numpy(), wanted)


def test_00_tvms_own_kernels_are_plain_loops(exported):
    kernels = relax.transform.LegalizeOps()(exported[2])
    texts = {name.name_hint: kernels[name].script() for name in kernels.functions if name.name_hint != "main"}
    assert "nn, ff, yy, xx, rc, ry, rx in T.grid(" in texts["conv2d"]
    assert not [name for name, text in texts.items() if re.search(r"T\.(parallel|vectorized|unroll)\(", text)]


def test_00_five_lines_of_schedule_keep_the_results():
    cells = cells_of("00_start_here")
    names = {"tvm": tvm, "te": te, "np": np, "target": tn.env.host_target()}
    exec(cells["what"].source, names)
    assert not re.search(r"T\.(parallel|vectorized)\(", names["schedule"].mod.script())
    exec(cells["how"].source, names)
    assert all(f"T.{loop}(" in names["schedule"].mod.script() for loop in ("parallel", "vectorized"))
    exec(cells["matrices"].source.partition("\nplain(")[0], names)
    wanted = names["a_numpy"].astype("float64") @ names["b_numpy"]
    for kernel in (names["plain"], names["scheduled"]):
        kernel(names["a"], names["b"], names["c"])
        close(names["c"].numpy(), wanted, names["n"])


def test_00_efficientnet_lite0_gives_pytorchs_results_and_classes(quick):
    """Of the whole network, or of one block of each stage: what its classes are is then by chance, but the same."""
    net = tn.models.load("efficientnet_lite0")
    if quick:
        widening = [each for each in net._blocks if each._block_args.input_filters != each._block_args.output_filters]
        assert len(widening) == 7
        net._blocks = nn.ModuleList(widening).eval()
    lib = tn.build(*tn.from_pytorch(net, {"input0": net.input_shape}))
    for picture in ("coffee", "grace_hopper"):
        x = tn.vision.preprocess(tn.vision.open_picture(tn.vision.sample_picture(picture)), **net.preprocessing)
        with torch.inference_mode():
            wanted = net(torch.from_numpy(x)).numpy()
        close(lib(x), wanted, terms_of(net.state_dict()), rounded=True)
        tables = [tn.vision.top_k(y, 3, net.classes)["class"].tolist() for y in (lib(x), wanted)]
        assert tables[0] == tables[1]


def test_00_the_stored_times_are_what_the_text_says():
    cells, answers = cells_of("00_start_here"), cells_of("solutions/00_start_here")
    first, matrices, times = (stored_medians(cells[name]) for name in ("first-times", "matrix-times", "times"))
    assert first["tvm.compile"] > 5 * first["PyTorch eager"]
    assert matrices["scheduled"] < matrices["plain loops"] / 5
    pytorch, plain, untuned, recorded = times.values()
    assert plain > 5 * pytorch and untuned < pytorch / 2
    assert untuned / 1.5 < recorded < untuned * 1.5  # these differ by little more than chance
    order = stored_medians(answers["matrix-times"])
    gains = (
        order["plain loops"] / order["order"],
        *(order["order"] / order[f"order, {n}"] for n in ("vectorize", "parallel")),
    )
    assert gains[2] == min(gains) > 1
