"""What the notebooks claim, asserted: the lessons show numbers, this file holds them.

Float32 results are held to 1e-5 of the output's largest magnitude, as the lessons say.
"""

import re
from pathlib import Path

import nbformat
import numpy as np
import onnxruntime
import pytest
import torch
import tvm
from tvm import relax, te
from tvm.relax.frontend.torch import from_exported_program

import tvmnotes as tn
from tvmnotes import digits


def agree(result, reference, tolerance=1e-5):
    return np.abs(result - reference).max() <= tolerance * np.abs(reference).max()


@pytest.fixture(scope="module")
def pictures():
    images, labels = digits.load_test_set()
    return digits.preprocess(images), labels


# ---------------------------------------------------------------- 00: TVM's three calls, and what makes them fast


NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def cells_of(name):
    return {cell.id: cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells}


def stored_medians(cell):
    """The medians, in ms and by name, of the comparison that is a cell's stored output."""
    text = cell.outputs[0].data["text/plain"]
    return {name: float(median) for name, median in re.findall(r"^(\S.*?) {2,}([\d.]+) ", text, re.M)}


@pytest.fixture(scope="module")
def digit(pictures):
    """One digit, PyTorch's output for it, and the network as TVM's own importer gives it."""
    net, x = tn.models.load("digits"), torch.from_numpy(pictures[0][:1])
    with torch.inference_mode():
        return x.numpy(), net(x).numpy(), from_exported_program(torch.export.export(net, (x,)))


def test_00_tvms_three_calls_give_pytorchs_numbers(digit):
    x, reference, mod = digit
    target = tn.env.host_target()
    for pipeline in ("default", relax.get_default_pipeline(target)):
        vm = relax.VirtualMachine(tvm.compile(mod, target=target, relax_pipeline=pipeline), tvm.cpu())
        (output,) = vm["main"](tvm.runtime.tensor(x))
        assert agree(output.numpy(), reference)


def test_00_tvms_own_kernels_are_plain_loops(digit):
    kernels = relax.transform.LegalizeOps()(digit[2])
    texts = {name.name_hint: kernels[name].script() for name in kernels.functions if name.name_hint != "main"}
    assert "nn, ff, yy, xx, rc, ry, rx in T.grid(" in texts["conv2d"]
    assert not [name for name, text in texts.items() if re.search(r"T\.(parallel|vectorized|unroll)\(", text)]


def test_00_five_lines_of_schedule_keep_the_numbers():
    cells = cells_of("00_start_here")
    names = {"tvm": tvm, "te": te, "np": np, "target": tn.env.host_target()}
    exec(cells["what"].source, names)
    assert not re.search(r"T\.(parallel|vectorized)\(", names["schedule"].mod.script())
    exec(cells["how"].source, names)
    assert all(f"T.{loop}(" in names["schedule"].mod.script() for loop in ("parallel", "vectorized"))
    exec(cells["matrices"].source.partition("\nplain(")[0], names)
    for kernel in (names["plain"], names["scheduled"]):
        kernel(names["a"], names["b"], names["c"])
        assert agree(names["c"].numpy(), names["a_numpy"] @ names["b_numpy"])


def test_00_efficientnet_lite0_gives_pytorchs_numbers_and_classes():
    net = tn.models.load("efficientnet_lite0")
    lib = tn.build(*tn.from_pytorch(net, {"input0": net.input_shape}))
    for picture in ("coffee", "grace_hopper"):
        x = tn.vision.preprocess(tn.vision.open_picture(tn.vision.sample_picture(picture)), **net.preprocessing)
        with torch.inference_mode():
            reference = net(torch.from_numpy(x)).numpy()
        assert agree(lib(x), reference)
        tables = [tn.vision.top_k(y, 3, net.classes)["class"].tolist() for y in (lib(x), reference)]
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
    assert list(gains) == sorted(gains, reverse=True)
    plain, fused, built = stored_medians(answers["network-times"]).values()
    assert fused > 0.9 * plain and built < fused / 10


# ---------------------------------------------------------------- 02: networks of others


@pytest.mark.parametrize("batch_size", [1, 36])
def test_02_digits_are_read_as_onnxruntime_reads_them(pictures, batch_size):
    batch = pictures[0][:batch_size]
    file, kind = tn.models.onnx_file("digits")
    lib = tn.build(*tn.from_onnx(file, {"image": batch.shape}))
    reference = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"image": batch})[0]
    assert kind == "pretrained"
    assert agree(lib(batch), reference)
    assert (lib(batch).argmax(axis=1) == reference.argmax(axis=1)).all()


def test_02_resnet50_v2_gives_onnxruntime_numbers_and_classes_on_the_picture():
    resnet50_v2, _ = tn.models.onnx_file("resnet50_v2")
    x = tn.vision.preprocess(tn.vision.open_picture())
    result = tn.build(*tn.from_onnx(resnet50_v2, {"data": x.shape}))(data=x)
    session = onnxruntime.InferenceSession(resnet50_v2, providers=["CPUExecutionProvider"])
    reference = session.run(None, {"data": x})[0]
    assert agree(result, reference)
    assert (np.argsort(result[0])[::-1][:5] == np.argsort(reference[0])[::-1][:5]).all()
