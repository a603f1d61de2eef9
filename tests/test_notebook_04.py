"""What notebook 04 claims, asserted; see test_notebook_00.py."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from torch import nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
from tvm.relax.transform import (
    AnnotateTIROpPattern,
    ConvertLayout,
    EliminateCommonSubexpr,
    FoldBatchnormToConv2D,
    FoldConstant,
    FuseOps,
    FuseTIR,
    LegalizeOps,
)

import tvmclassic
import tvmnotes as tn
from tvmnotes import digits, tracing

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
ELEMENTWISE = 0
INJECTIVE = 2
OUT_ELEMENTWISE_FUSABLE = 4
FUSING = [LegalizeOps(), AnnotateTIROpPattern(), FuseOps(), FuseTIR()]


class Block(nn.Module):
    """The block of the lesson; `activation` is its second ReLU."""

    def __init__(self, activation=torch.relu):
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.classify = nn.Linear(16, 10)
        self.activation = activation

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.activation(self.norm2(self.conv2(y)) + x)
        y = y.mean((2, 3), keepdim=True).flatten(1)
        return torch.softmax(self.classify(y), 1)


def imported(net):
    net(torch.randn(32, 16, 8, 8))
    x = torch.randn(1, 16, 8, 8)
    wanted = reference(net.eval(), x)
    return x.numpy(), wanted, from_exported_program(torch.export.export(net, (x,)))


@pytest.fixture(scope="module")
def steps():
    """The module behind each pass of sections 1 to 3, by the name of the pass."""
    x, wanted, mod = imported(Block())
    modules = {"x": x, "wanted": wanted, "imported": mod}
    for step in (FoldBatchnormToConv2D(), FoldConstant(), *FUSING):
        mod = modules[step.info.name] = step(mod)
    return modules


def calls(mod) -> list[str]:
    return [operation.name for operation in tracing.graph(mod).operations]


def run(mod, x):
    vm = relax.VirtualMachine(tvm.compile(mod, target=tn.env.host_target()), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy()


def test_folding_writes_arithmetic_down_and_then_computes_it(steps):
    before, rewritten, folded = (calls(steps[name]) for name in ("imported", "FoldBatchnormToConv2D", "FoldConstant"))
    assert before.count("nn.batch_norm") == 2 and "nn.batch_norm" not in rewritten
    assert len(rewritten) > len(before) > len(folded)
    assert folded == ["nn.conv2d", "add", "nn.relu", "nn.conv2d", "add", "add", "nn.relu", "mean", "reshape", "matmul",
                      "add", "nn.softmax"]  # fmt: skip


def test_each_operator_becomes_a_kernel_of_the_kind_that_the_lesson_says(steps):
    mod = steps["AnnotateTIROpPattern"]
    assert len(calls(mod)) == len(calls(steps["FoldConstant"]))
    kinds = {name: int(mod[name].attrs["op_pattern"]) for name in calls(mod)}
    assert kinds == {
        "conv2d": OUT_ELEMENTWISE_FUSABLE,
        "add": ELEMENTWISE,
        "relu": ELEMENTWISE,
        "add1": ELEMENTWISE,
        "mean": OUT_ELEMENTWISE_FUSABLE,
        "reshape": INJECTIVE,
        "matmul": OUT_ELEMENTWISE_FUSABLE,
        "add2": ELEMENTWISE,
        "softmax": OUT_ELEMENTWISE_FUSABLE,
    }


def test_kinds_decide_what_fuses(steps):
    groups = ["fused_conv2d_add_relu", "fused_conv2d_add_add1_relu", "mean", "reshape", "fused_matmul_add2", "softmax"]
    assert calls(steps["FuseOps"]) == calls(steps["FuseTIR"]) == groups
    kernel = steps["FuseTIR"]["fused_conv2d_add_relu"].script()
    assert len(re.findall(r"^ +with T\.sblock\(", kernel, re.M)) == 4 and kernel.count("T.sblock_alloc_buffer(") == 3


def test_the_picture_shows_these_kernels_and_groups(steps):
    root = ElementTree.parse(NOTEBOOKS / "pictures" / "fusing.svg").getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    boxes = [text for text in texts if text in {*calls(steps["LegalizeOps"])}]
    assert boxes == calls(steps["LegalizeOps"])
    assert {text for text in texts if text.startswith("fused_")} == {
        name for name in calls(steps["FuseTIR"]) if name.startswith("fused_")
    }


class Rules(nn.Module):
    """An elementwise operator that a reduction reads, two injective ones in a row, and a convolution that two read."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 1, bias=False)

    def forward(self, x):
        y = self.conv(x)
        return torch.exp(x).sum(1), x.transpose(1, 2).flatten(1), torch.relu(y), y


def test_rules_that_the_block_does_not_show():
    fused = calls(tvm.transform.Sequential(FUSING)(imported_rules()))
    assert "fused_tir_exp_sum" in fused
    assert any(name.startswith("fused_transpose") for name in fused)
    assert {"conv2d", "relu"} <= set(fused), "the convolution's result is an output, too"


def imported_rules():
    return from_exported_program(torch.export.export(Rules().eval(), (torch.randn(1, 16, 8, 8),)))


def test_a_sequential_is_its_passes_and_all_agree_with_pytorch(steps):
    whole = tvm.transform.Sequential([FoldBatchnormToConv2D(), FoldConstant(), *FUSING])(steps["imported"])
    assert tvm_ffi.structural_equal(whole, steps["FuseTIR"])
    for name in ("imported", "FoldConstant", "FuseTIR"):
        close(run(steps[name], steps["x"]), steps["wanted"])


def test_the_input_is_converted_twice_and_merging_mends_it(steps):
    blocked = ConvertLayout({"relax.nn.conv2d": ["NCHW8c", "OIHW8i8o"]})(steps["FoldConstant"])
    packed = FoldConstant()(blocked)
    merged = EliminateCommonSubexpr()(packed)
    assert [calls(mod).count("layout_transform") for mod in (packed, merged)] == [3, 2]
    assert calls(EliminateCommonSubexpr()(steps["FoldConstant"])) == calls(steps["FoldConstant"]), "nothing to merge"
    left = [name for name in calls(tvm.transform.Sequential(FUSING)(merged)) if name.startswith("nn.")]
    assert left == ["nn.conv2d"] * 2, "LegalizeOps has no loops for blocks of channels"


def test_a_hard_swish_joins_the_convolution_whole():
    x, wanted, mod = imported(Block(nn.functional.hardswish))
    fused = tvm.transform.Sequential([FoldBatchnormToConv2D(), FoldConstant(), *FUSING])(mod)
    assert len(calls(fused)) == 6
    close(run(fused, x), wanted)


def test_tvms_own_pipeline_neither_folds_nor_fuses_nor_schedules(small):
    trace = tracing.Trace()
    with tvm.transform.PassContext(opt_level=3, instruments=[trace]):
        tvm.compile(small.mod, target=tn.env.host_target())
    ran = {step.name for _, step in trace.walk()}
    assert "LegalizeOps" in ran and not ran & {"FoldBatchNorm", "FuseOps", "FuseTIR", "ConvertLayout"}


# ---------------------------------------------------------------- opt levels


@pytest.fixture(scope="module")
def built():
    """By opt level, the digits network built, its trace, and its result; PyTorch's under None."""
    net = tn.models.load("digits")
    image = digits.preprocess(digits.load_test_set()[0][:1])
    mod, params = tn.from_pytorch(net, {"image": image.shape})
    results = {None: reference(net, image)}
    for level in range(4):
        lib, trace = tn.trace_build(mod, params, opt_level=level, records=False)
        results[level] = lib, trace, lib(image)
    return results


def test_every_opt_level_gives_pytorchs_results(built):
    for level in range(4):
        close(built[level][2], built[None])
        assert built[level][2].argmax() == built[None].values[0].argmax()


def test_fusing_takes_most_calls_away_and_folding_many_of_the_rest(built):
    none, fused, folded, scheduled = (int(built[level][0].kernels["calls"].sum()) for level in range(4))
    assert fused < none / 2 and folded < fused * 0.6
    assert abs(scheduled - folded) <= 2


def test_only_level_3_schedules_its_kernels(built):
    for level in range(3):
        assert set(built[level][0].kernels["family"]) == {"none"}
    assert {*built[3][0].kernels["family"]} & {"conv2d", "winograd"}


def test_the_passes_do_what_the_lesson_says_of_them(built):
    steps = {level: built[level][1] for level in range(4)}
    assert "-21 nn.batch_norm" in steps[3]["FoldBatchNorm"].changed
    assert "-21 nn.batch_norm" in steps[2]["DecomposeOps"].changed
    folded = steps[3]["FoldWithNumPy"].after.operations
    assert {o.name for o in folded} == {"nn.conv2d", "add", "nn.relu", "mean", "reshape", "matmul"}
    assert "-21 nn.conv2d" in steps[3]["BlockLayouts"].changed
    assert "sqrt" in steps[1]["FuseOps"].after.operations[0].name
    names = steps[2]["FuseOps"].after.operations[0].name
    assert names == "fused_conv2d_subtract_divide_multiply_add_relu"


def test_passes_start_at_the_level_of_the_table(built):
    ran = {level: {step.name for _, step in built[level][1].walk()} for level in range(4)} | {-1: set()}
    for level, _, ours in table("| level | "):
        for name in re.findall(r"`(\w+)`", ours):
            name = name.removesuffix("ForInference")
            assert name in ran[int(level)] and name not in ran[int(level) - 1], name


def test_the_first_level_of_a_trace_is_what_the_lesson_names(built):
    trace = built[3][1]
    assert {"sequential", "lowering"} <= {step.name for step in trace.steps}
    assert sum(step.seconds for step in trace.steps) < trace.seconds


def test_the_figure_has_a_bar_for_each_level(built):
    libs = {f"level {level}": built[level][0] for level in (2, 3)}
    times = tn.compare(libs, np.zeros((1, 1, 32, 32), "float32"), calls=1)
    above, below = tn.plots.by_level({"level 2": 24, "level 3": 23}, times).axes
    assert [bar.get_height() for bar in above.patches] == [24, 23]
    assert [bar.get_height() for bar in below.patches] == [time.median * 1e3 for time in times.values()]


# ---------------------------------------------------------------- Relay


@pytest.fixture(scope="module")
def relay():
    """Relay, in place for these tests."""
    tvmclassic.enable()
    from tvm import relay

    yield relay
    tvmclassic.disable()


def table(heading: str) -> list[list[str]]:
    """The rows of the table of notebook 04 that begins with `heading`."""
    cells = nbformat.read(NOTEBOOKS / "04_relay_builds.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    rows = text.split(heading)[1].split("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_tables_name_passes_that_are_there(relay):
    old = {name for row in table("| level | ")[:4] for name in re.findall(r"`(\w+)`", row[1])}
    assert {"SimplifyInference", "AlterOpLayout"} <= old
    assert all(hasattr(relay.transform, name) for name in old)
    new = {name for row in table("| Relay | Relax |") for name in re.findall(r"`([A-Z]\w+)`", row[1])}
    assert {"LegalizeOps", "FoldBatchnormToConv2D"} <= new
    assert all(hasattr(relax.transform, name) for name in new)


def test_a_node_of_the_graph_is_what_the_lesson_says(relay, rng):
    data, weight = relay.var("x", shape=(1, 16, 8, 8)), relay.var("weight", shape=(16, 16, 3, 3))
    conv = relay.nn.conv2d(data, weight, channels=16, kernel_size=(3, 3), padding=(1, 1))
    function = relay.Function([data, weight], relay.nn.relu(conv))
    with tvm.transform.PassContext(opt_level=3):
        graph, lib, weights = relay.build(
            function, target="llvm", params={"weight": rng.random((16, 16, 3, 3), "float32")}
        )
    nodes = json.loads(graph)["nodes"]
    assert {node["op"] for node in nodes} == {"tvm_op", "null"}
    kernels = [node for node in nodes if node["op"] == "tvm_op"]
    for node in kernels:
        assert node["attrs"]["func_name"] in lib.compiled.kernels.index and node["attrs"]["flatten_data"] == "0"
        assert all(number < len(nodes) and (output, version) == (0, 0) for number, output, version in node["inputs"])
    assert list(weights) == ["const0"], "the weight is packed, and has lost its name"
