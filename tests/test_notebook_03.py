"""What notebook 03 claims, asserted; see test_notebooks_00_to_04.py."""

import json
import mmap
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import tvm

import tvmnotes as tn
from tvmnotes import classic, digits, tracing

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "03_relay_builds.ipynb"
LIBRARIES = Path(tvm.__file__).parent / "lib"


@pytest.fixture(scope="module")
def relay():
    """Relay, in place for these tests."""
    classic.enable()
    from tvm import relay

    yield relay
    classic.disable()


@pytest.fixture(scope="module")
def built(relay):
    """By opt level, `relay.build` of the digits network, its trace, and PyTorch's result beside its own."""
    net = tn.models.load("digits")
    image = digits.preprocess(digits.load_test_set()[0][:1])
    mod, params = relay.frontend.from_pytorch(net, [("image", image.shape)])
    with torch.inference_mode():
        reference = net(torch.from_numpy(image)).numpy()
    made = {}
    for level in range(4):
        trace = tracing.Trace()
        with tvm.transform.PassContext(opt_level=level, instruments=[trace]):
            lib = relay.build(mod, target="llvm", params=params)
        made[level] = lib, trace, lib.compiled(image), reference
    return made


@pytest.fixture(scope="module")
def tiny(relay):
    """By opt level, the build of relu(x + 1) for 4096 numbers."""
    x = relay.var("x", shape=(4096,))
    function = relay.Function([x], relay.nn.relu(x + relay.const(1.0)))
    made = {}
    for level in (1, 3):
        with tvm.transform.PassContext(opt_level=level):
            made[level] = relay.build(function, target="llvm")
    return made


def kernel_calls(lib):
    return [n["attrs"]["func_name"] for n in json.loads(lib.get_graph_json())["nodes"] if n["op"] == "tvm_op"]


def test_every_opt_level_gives_pytorchs_numbers(built):
    for level, (_, _, result, reference) in built.items():
        assert np.abs(result - reference).max() < 1e-5 * np.abs(reference).max(), level
        assert result.argmax() == reference.argmax()


def test_fusing_takes_most_calls_away_and_folding_many_of_the_rest(built):
    none, fused, folded, scheduled = (len(kernel_calls(built[level][0])) for level in range(4))
    assert fused < none / 2 and folded < fused * 0.6
    assert abs(scheduled - folded) <= 2


def test_only_level_3_schedules_its_kernels(built):
    for level in range(3):
        assert set(built[level][0].compiled.kernels.family) == {"none"}
    assert set(built[3][0].compiled.kernels.family) & {"conv2d", "winograd"}


def test_the_passes_do_what_the_lesson_says_of_them(built):
    steps = {level: trace for level, (_, trace, _, _) in built.items()}
    assert steps[3]["BindParams"].changed == "-107 params"
    assert "-21 nn.batch_norm" in steps[3]["FoldBatchNorm"].changed
    assert "-21 nn.batch_norm" in steps[2]["DecomposeOps"].changed
    folded = steps[3]["FoldWithNumPy"].after.operations
    assert {o.name for o in folded} == {"nn.conv2d", "add", "nn.relu", "mean", "reshape", "matmul"}
    assert "-21 nn.conv2d" in steps[3]["BlockLayouts"].changed
    assert "kernels" in steps[0]["LegalizeOps"].changed
    assert "fused_conv2d" in steps[1]["FuseOps"].changed
    ran = [{step.name for _, step in steps[level].walk()} for level in range(4)]
    assert "FuseOps" in ran[1] - ran[0] and "FoldWithNumPy" in ran[2] - ran[1]
    assert {"FoldBatchNorm", "BlockLayouts", "ScheduleKernels"} <= ran[3] - ran[2]


def computing(lib) -> str:
    """The function that computes, in LLVM's text."""
    return re.search(r"^define[^\n]*@fused_add_relu_compute_.*?^}", lib.get_source("ll"), re.M | re.S)[0]


def test_at_level_1_fused_loops_follow_one_another_with_a_buffer_between(tiny):
    kernels = {level: computing(lib) for level, lib in tiny.items()}
    assert "TVMBackendAllocWorkspace" in kernels[1] and "TVMBackendAllocWorkspace" not in kernels[3]


def test_at_level_3_the_kernel_computes_whole_vectors(tiny):
    lanes = tiny[3].compiled.kernels.config["fused_add_relu"]["lanes"]
    kernel = computing(tiny[3])
    assert f"load <{lanes} x float>" in kernel and f"fadd <{lanes} x float>" in kernel
    assert re.search(r"^_?fused_add_relu_compute_:.*?func_end", tiny[3].get_source("asm"), re.M | re.S)


def table(heading: str) -> list[list[str]]:
    """The rows of the table of notebook 03 that begins with `heading`."""
    text = "\n".join(c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "markdown")
    rows = text.split(heading)[1].split("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_name_of_cpp_stands_in_the_library():
    binaries = []
    for name in ("compiler", "runtime"):
        with next(LIBRARIES.glob(f"libtvm_{name}.*")).open("rb") as file:
            binaries.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def known(text):
        return any(binary.find(text.encode()) >= 0 for binary in binaries)

    names = re.findall(r"`([^`]+)`", " ".join(row[3] for row in table("| stage | ")))
    assert len(names) >= 15
    for name in names:
        parts = name.split("::")
        mangled = "N" + "".join(f"{len(part)}{part}" for part in parts) + "E"
        assert known(f"src/{name}" if name.endswith(".cc") else mangled), name
    assert known("_ZN3tvm5relax9transform7FuseOpsEi"), "what the lesson gives gdb to break at"
    assert known("_ZNK3tvm9transform11PassContext20InstrumentBeforePass"), "what the lesson's traceback shows"


def test_every_name_of_python_is_there():
    places = {"tvm": tvm, "tvm.transform": tvm.transform, "tvm.relax": tvm.relax, "relax": tvm.relax,
              "tvmnotes.compiler.build": tn.compiler.build, "": tvm.relax.transform}  # fmt: skip
    names = re.findall(r"`([^`]+)`", " ".join(row[2] for row in table("| stage | ")))
    assert {"FuseOps", "tvm.relax.build", "target.build.llvm"} <= set(names)
    for name in names:
        if name != "main" and tvm.get_global_func(name, allow_missing=True) is None:
            place, _, short = name.rpartition(".")
            assert hasattr(places[place], short), name


def test_tvms_own_pipeline_neither_folds_nor_fuses_nor_schedules(small):
    trace = tracing.Trace()
    with tvm.transform.PassContext(opt_level=3, instruments=[trace]):
        tvm.compile(small.mod, target=tn.env.host_target())
    ran = {step.name for _, step in trace.walk()}
    assert "LegalizeOps" in ran and not ran & {"FoldBatchNorm", "FuseOps", "FuseTIR", "ConvertLayout"}
