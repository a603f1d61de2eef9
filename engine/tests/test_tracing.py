"""profiling/trace.py: the tree, the times and the changes of a build, held against modules whose passes are known.

And flowchart.py: rows by the longest path, edges that pass other rows, and text that XML can hold.
"""

import base64
import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import tvm
from torch import nn

from tvmfast import build, from_pytorch
from tvmfast.profiling import flowchart, networks
from tvmfast.profiling import trace as tracing
from tvmfast.profiling.trace import Graph, Operation, PassRun, Trace


@pytest.fixture(scope="module")
def traces(small):
    """The trace of a build of the small network, by opt level."""
    traces = {}
    for level in range(4):
        traces[level] = Trace()
        with tvm.transform.PassContext(opt_level=level, instruments=[traces[level]]):
            build(small.mod, small.params, opt_level=level)
    return traces


def names(trace):
    return [step.name for _, step in trace.walk()]


class Clock:
    """It stands still but for what a test adds to `now`."""

    now = 0

    def perf_counter(self):
        return self.now

    def go_on(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tracing, "time", clock)
    return clock


def calling(name, *functions):
    """A pass that calls functions of a module one after the other, other passes among them."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def run(mod, _context):
        for function in functions:
            function(mod)
        return mod

    return run


def test_every_pass_of_an_opt_level_is_there_in_order(traces):
    assert "FuseOps" not in names(traces[0])
    order = [name for name in names(traces[3]) if name in ("FoldWithNumPy", "BlockLayouts", "FuseOps", "FuseTIR")]
    assert order == ["FoldWithNumPy", "BlockLayouts", "FuseOps", "FuseTIR"]
    assert "tirx.MakePackedAPI" in names(traces[3]), "the kernels are compiled where the instrument sees it"


def test_a_pass_that_another_runs_stands_below_it(clock):
    trace, mod = Trace(), tvm.IRModule({})
    with tvm.transform.PassContext(instruments=[trace]):
        calling("outer", lambda _: clock.go_on(2), calling("inner", lambda _: clock.go_on(5)))(mod)
        clock.go_on(3)
        calling("next")(mod)
    assert [(depth, step.name) for depth, step in trace.walk()] == [(0, "outer"), (1, "inner"), (0, "next")]
    assert [step.seconds for _, step in trace.walk()] == [7, 5, 0]
    assert [step.begin for _, step in trace.walk()] == [0, 2, 10]
    assert trace.seconds == 10


def test_its_own_work_is_not_counted(clock, monkeypatch):
    trace, look = Trace(), tracing.graph
    monkeypatch.setattr(tracing, "graph", lambda mod: clock.go_on(3) or look(mod))
    with tvm.transform.PassContext(instruments=[trace]):
        calling("outer", calling("inner", lambda _: clock.go_on(2)))(tvm.IRModule({}))
    assert clock.now > 2 and trace.steps[0].seconds == trace.seconds == 2


def test_a_context_begins_anew_and_an_error_ends_the_steps():
    @tvm.transform.module_pass(opt_level=0, name="broken")
    def broken(mod, _context):
        raise ValueError("broken")

    trace = Trace()
    with tvm.transform.PassContext(instruments=[trace]):
        calling("first")(tvm.IRModule({}))
    with pytest.raises(ValueError, match="broken"), tvm.transform.PassContext(instruments=[trace]):
        calling("outer", broken)(tvm.IRModule({}))
    assert names(trace) == ["outer", "broken"]
    assert [step.changed for _, step in trace.walk()] == ["failed", "failed"]
    assert all(0 <= step.seconds <= trace.seconds for _, step in trace.walk())
    assert "broken" in str(trace)


def test_what_a_pass_changed_in_short(traces):
    assert traces[3]["BindParams"].changed.endswith(" params")
    assert "-2 nn.batch_norm" in traces[3]["FoldBatchNorm"].changed
    assert "-2 nn.batch_norm" in traces[2]["DecomposeOps"].changed
    assert "+2 conv2d" in traces[0]["LegalizeOps"].changed, "a kernel counts without the number of its shape"
    fused = len(traces[1]["FuseTIRInner"].after.kernels) - len(traces[1]["FuseTIRInner"].before.kernels)
    assert traces[1]["FuseTIRInner"].changed == f"+{fused} kernels"
    assert traces[3]["ScheduleKernels"].changed.endswith("kernels rewritten")
    assert traces[3]["EliminateCommonSubexpr"].changed == ""


def test_operators_keep_the_numbers_of_their_names():
    before = Graph({"main": [Operation("log2", "", ()), Operation("add1", "", ())]}, {"add": 1, "add1": 2}, [])
    assert PassRun("s", before, Graph({"main": []}, {}, [])).changed == "-1 log2, -1 add, -2 kernels"


def test_a_diff_has_the_operations_that_came_and_went(traces):
    lines = traces[1]["FuseOps"].diff().splitlines()
    assert {line[:2] for line in lines} == {"- ", "+ "}
    assert any(line.startswith("- conv2d ") and line.endswith("(1, 8, 8, 8) float32") for line in lines)
    assert any(line.startswith("+ fused_conv2d") for line in lines)
    assert traces[3]["EliminateCommonSubexpr"].diff() == ""


def test_a_graph_knows_what_reads_what():
    class Net(nn.Module):
        def forward(self, x, y, z):
            left, right = (x * y).split(2)
            return left + right + z

    mod, _ = from_pytorch(Net().eval(), {"x": (4,), "y": (4,), "z": (2,)})
    found = tracing.graph(mod)
    assert found.params == ["x", "y", "z"]
    assert [(o.name, o.reads) for o in found.operations] == [
        ("multiply", ("x", "y")),
        ("split", (0,)),
        ("add", (1, 1)),
        ("add", (2, "z")),
    ]
    assert found.operations[1].makes == "(2,) float32, (2,) float32"


def test_a_mermaid_drawing_has_a_box_for_each_fused_group(traces):
    drawing = traces[1]["FuseOps"].after.mermaid()
    fused = [o.name for o in traces[1]["FuseOps"].after.operations if o.name.startswith("fused_")]
    assert drawing.splitlines()[0] == "flowchart TD"
    assert drawing.count("subgraph") == drawing.count("    end") == len(fused) > 0
    assert '(["image"])' in drawing and "weight" not in drawing
    assert drawing._repr_svg_() == drawing.svg and drawing.svg.count("<rect x=") >= len(fused)
    encoded = drawing._repr_html_().partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded).decode() == drawing.svg
    text = tracing.graph(from_pytorch(networks.seeded(lambda: nn.ReLU(), 8), {"x": (4,)})[0]).mermaid()
    assert text == 'flowchart TD\n    i0(["x"])\n    n0["nn.relu"]\n    i0 --> n0'


def test_a_pass_is_found_by_name(traces):
    first = next(step for _, step in traces[3].walk() if step.name == "FoldConstant")
    assert traces[3]["FoldConstant"].name == first.name
    assert traces[3]["DeadCodeElimination"].changed, "the run that changed something, not the first"
    with pytest.raises(KeyError, match=r"no pass 'FuseOp' ran.*FuseOps"):
        traces[3]["FuseOp"]


def test_the_table_has_the_passes_that_changed_something_once(traces):
    frame = traces[3].frame()
    assert list(frame.columns) == ["pass", "ms", "operations", "kernels", "changed"]
    assert (frame["changed"] != "").all() and (frame["ms"] >= 0).all()
    assert "sequential" not in set(frame["pass"]) and "FuseTIR" not in set(frame["pass"])
    assert frame["kernels"].iloc[-1] == len(traces[3]["ScheduleKernels"].after.kernels)
    assert "<table" in traces[3]._repr_html_()


def test_the_tree_adds_up_and_joins_what_is_done_to_each_part(traces):
    lines = str(traces[3]).splitlines()
    assert lines[0].startswith("the whole context") and lines[-1].startswith("└─ (outside of passes)")
    top = [float(line.split()[-1]) for line in lines if line[0] in "├└"]
    assert sum(top) == pytest.approx(traces[3].seconds * 1e3, abs=0.05 * len(top) + 0.1)
    assert sum("tirx.MakePackedAPI" in line for line in lines) == 1 < names(traces[3]).count("tirx.MakePackedAPI")
    assert sum("├─ CanonicalizeBindings" in line for line in lines) > 1, "passes over the graph stay apart"


def test_a_trace_for_perfetto_has_each_pass_within_the_one_that_ran_it(traces, tmp_path):
    path = traces[3].to_chrome_trace(tmp_path / "build.json")
    whole, *events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events] == names(traces[3])
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    open_ = [whole]
    for (depth, step), event in zip(traces[3].walk(), events, strict=True):
        del open_[depth + 1 :]
        around = open_[-1]
        assert around["ts"] <= event["ts"], step.name
        assert event["ts"] + event["dur"] <= around["ts"] + around["dur"] + 2e-3
        assert event["args"] == {"changed": step.changed}
        open_.append(event)
    assert [file.name for file in tmp_path.iterdir()] == ["build.json"]


def test_a_build_is_traced_with_its_own_arguments(small):
    lib, trace = tracing.trace_build(small.mod, small.params, opt_level=1)
    assert lib.opt_level == 1 and lib(small.x).shape == small.wanted.shape
    assert "FuseOps" in names(trace) and "ScheduleKernels" not in names(trace)


# ---------------------------------------------------------------- drawings

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_an_edge_over_rows_passes_beside_the_boxes_between():
    nodes = {"x": ["x"], 0: ["conv2d"], 1: ["relu"], 2: ["add<1>", "a", "b"]}
    drawing = ElementTree.fromstring(flowchart.svg(nodes, [("x", 0), (0, 1), (1, 2), ("x", 2)]))
    boxes = [
        {side: float(box.get(side)) for side in ("x", "y", "width", "height")}
        for box in drawing.iter(f"{NAMESPACE}rect")
        if box.get("x")
    ]
    assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})  # a row for each
    passing = [path.get("d") for path in drawing.iter(f"{NAMESPACE}path") if "V" in path.get("d")]
    assert len(passing) == 2  # beside conv2d, and beside relu
    for line, box in zip(passing, boxes[1:3], strict=True):
        across = float(line[1:].split()[0])
        assert not box["x"] <= across <= box["x"] + box["width"]
    assert [text.text for text in drawing.iter(f"{NAMESPACE}text")] == ["x", "conv2d", "relu", "add<1>", "a", "b"]


def test_onnx_nodes_are_drawn_by_their_operators():
    nodes = [SimpleNamespace(op_type=op, input=[a], output=[b]) for op, a, b in (("Relu", "x", "y"), ("Exp", "y", "z"))]
    drawing = ElementTree.fromstring(flowchart.of_onnx(nodes)._repr_svg_())
    assert [text.text for text in drawing.iter(f"{NAMESPACE}text")] == ["Relu", "Exp"]


def test_nothing_is_an_empty_drawing():
    assert ElementTree.fromstring(flowchart.svg({}, [])).tag == f"{NAMESPACE}svg"
