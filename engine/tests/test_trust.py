"""Records from others: a trace of MetaSchedule's schedules a kernel and does nothing else, however it is written."""

import copy
import json

import pytest
import torch
from fake_runner import TARGET
from torch import nn
from tvm import te
from tvm.s_tir import Schedule, ScheduleError

import tvmfast
from tvmfast import tuning
from tvmfast.compiler import records
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.schedule import trace
from tvmfast.compiler.schedule.rules import RULES
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core.errors import Forbidden

# ---------------------------------------------------------------- a command in an annotation


@pytest.fixture(scope="module")
def upward():
    """A network with a kernel that tvmfast has no schedule of: its module and params, and that kernel's task."""
    net = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, 2, groups=2), nn.Conv2d(4, 4, 3)).eval()
    mod, params = tvmfast.from_pytorch(net, {"x": (1, 4, 3, 3)})
    (task,) = tuning.metaschedule.tasks(mod, params)
    return mod, params, task


def assembly(command: str) -> str:
    """LLVM's text for a module that runs a shell command when it is loaded, on x86."""
    lines = (
        ".text",
        "tvmnotes_run: leaq tvmnotes_command(%rip), %rdi; jmp system@PLT",
        rf"tvmnotes_command: .asciz \22{command}\22",
        r".section .init_array,\22aw\22",
        ".quad tvmnotes_run",
        ".text",
    )
    return " ".join(f'module asm "{line}"' for line in lines)


def traced(*steps) -> dict:
    """A config with a trace of these steps, without decisions."""
    return {"family": "metaschedule", "trace": [list(steps), []]}


def test_a_trace_runs_no_command(upward, tmp_path):
    mod, params, task = upward
    sch, ran = Schedule(task.workload.func), tmp_path / "ran"
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    loops = [f"l{number}" for number in range(len(sch.get_loops(block)))]
    config = traced(
        ["GetSBlock", [], [sch.get(block).name_hint, "main"], ["b0"]],
        ["GetLoops", ["b0"], [], loops],
        ["Annotate", ["l0", f'"{assembly(f"touch {ran}")}"'], ["pragma_import_llvm"], []],
    )
    good = records.new_record(task.workload, task.target, task.default, (1.0,))
    bad = records.new_record(task.workload, task.target, config, (1e-9,))
    path = tmp_path / "records.jsonl"
    path.write_text(f"{good}\n{bad}\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: refused.*step 2.*pragma_import_llvm.*not allowed"):
        tvmfast.build(mod, params, records=path)
    with pytest.raises(ValueError, match="line 2: refused"):
        tvmfast.tune(mod, params, tuner="metaschedule", trials=1, records=path)
    # Nor does a record that a program makes, which was never in a file.
    lib = tvmfast.build(mod, params, records=[bad])
    lib(torch.zeros(1, 4, 3, 3))
    assert not ran.exists() and "metaschedule" not in set(lib.kernels.family)


def test_a_refused_line_has_its_number_in_a_file_that_grew(tmp_path):
    line = str(records.new_record(Kernel("0" * 16, "sum"), TARGET, traced(), (1.0,)))
    path = tmp_path / "records.jsonl"
    path.write_text(f"{line}\n\n{line[:30]}")  # a kill has torn the third line
    with path.open("rb", buffering=0) as file:
        with pytest.warns(UserWarning, match="left out 1 line"):
            _, position = records.read_from(file, 0)
        bad = str(records.new_record(Kernel("0" * 16, "sum"), TARGET, traced(["Tensorize", [], [], []]), (1.0,)))
        with path.open("a") as more:
            more.write(f"\n{line}\n{bad}\n")
        with pytest.raises(ValueError, match="line 5: refused.*Tensorize"):
            records.read_from(file, position)


# ---------------------------------------------------------------- what a trace may hold

STEPS = [
    ["GetSBlock", [], ["sum", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2"]],
    ["Split", ["l1", "None", 16], [True, False], ["l3", "l4"]],
    ["Annotate", ["l3", 64], ["pragma_auto_unroll_max_step"], []],
    ["CacheWrite", ["b0", []], [0, "global"], ["b5"]],
    ["SamplePerfectTile", ["l2"], [2, 64], ["v6", "v7"]],
]
NAME, INPUTS, ATTRIBUTES, OUTPUTS = range(4)


def changed(number: int, part: int, value) -> list:
    """The trace of STEPS with another value for a part of one of them."""
    steps = copy.deepcopy(STEPS)
    steps[number][part] = value
    return [steps, [[5, [4, 8]]]]


@pytest.mark.parametrize("good", [[STEPS, [[5, [4, 8]]]], [[], []]])
def test_what_the_search_does_is_allowed(good):
    trace.check(good)


@pytest.mark.parametrize(
    "bad",
    [
        changed(3, ATTRIBUTES, ["pragma_import_c"]),
        changed(3, ATTRIBUTES, ["pragma_import_llvm"]),
        changed(3, ATTRIBUTES, ["tirx.noalias"]),
        changed(3, ATTRIBUTES, [["pragma_unroll_explicit"]]),
        changed(3, ATTRIBUTES, []),
        changed(3, INPUTS, ["l3", 1 << 40]),
        changed(3, INPUTS, ["l3", '"declare void @f()"']),
        changed(3, INPUTS, ["l3", {"type": "tirx.Call"}]),
        changed(3, INPUTS, ["l3"]),
        changed(3, NAME, "Unannotate"),
        changed(2, ATTRIBUTES, [True, True]),  # no check at the loop's end
        changed(2, INPUTS, ["l1", "None", 1 << 40]),
        changed(2, INPUTS, ["l1", '"text"']),
        changed(2, INPUTS, ["l1", 1.5]),
        changed(2, INPUTS, "l1"),
        changed(2, OUTPUTS, ["l3; l4"]),
        changed(4, ATTRIBUTES, [0, "shared"]),
        changed(4, NAME, "Tensorize"),
        changed(4, NAME, "UnsafeSetDType"),
        changed(4, NAME, "TransformLayout"),
        changed(4, NAME, None),
        changed(0, ATTRIBUTES, ["sum", "main" * 200]),
        changed(5, ATTRIBUTES, [2, 1 << 40]),
        [STEPS * 500, []],
        [STEPS, [[5, ["text"]]]],
        [STEPS, [[5, [1 << 40]]]],
        [STEPS, {}],
        [[["GetSBlock"]], []],
        ["GetSBlock", []],
        "[]",
        None,
    ],
)
def test_what_a_trace_may_not_hold(bad):
    with pytest.raises(Forbidden):
        trace.check(bad)
    config = {"family": "metaschedule", "trace": bad}
    with pytest.raises(Forbidden):
        records.parse(str(records.new_record(Kernel("0" * 16, "sum"), TARGET, config, (1.0,))))


@pytest.mark.parametrize(
    ("loops", "steps", "told"),
    [
        (["l1", "l9"], [["Split", ["l1", "None", 1 << 30], [True, False], ["l2", "l3"]]], "iterations into"),
        (
            ["l1", "l9"],
            [["Split", ["l1", "None", 512], [True, False], ["l2", "l3"]], ["Vectorize", ["l3"], [], []]],
            "vector loop of 512",
        ),
        (
            ["l9", "l1"],
            [["Split", ["l1", "None", 1 << 19], [True, False], ["l2", "l3"]], ["RFactor", ["l3"], [0], ["b4"]]],
            "buffers of",
        ),
    ],
)
def test_a_trace_that_makes_too_much_of_a_kernel_does_not_fit(loops, steps, told):
    a, k = te.placeholder((1 << 11, 1 << 13), name="a"), te.reduce_axis((0, 1 << 13), "k")
    func = te.create_prim_func([a, te.compute((1 << 11,), lambda i: te.sum(a[i, k], axis=[k]), name="sum")])
    config = traced(["GetSBlock", [], ["sum", "main"], ["b0"]], ["GetLoops", ["b0"], [], loops], *steps)
    rule = RULES["metaschedule"]
    with pytest.raises(ScheduleError, match=told):
        rule.schedule(Schedule(func), rule.config(config))


@pytest.mark.parametrize(
    "config",
    [{"family": "metaschedule"}, *({"family": "default", "lanes": lanes} for lanes in (0, 3, 1 << 20, "8", None))],
    ids=json.dumps,
)
def test_a_kernel_has_the_default_config_of_its_target_or_a_trace(config):
    line = str(records.new_record(Kernel("0" * 16, "sum"), TARGET, config, (1.0,)))
    assert records.parse(line) == "of configs that no longer exist"


# ---------------------------------------------------------------- the other entries of a record


def line_with(**entries) -> str:
    """A line of a record of a small dense layer, with other entries."""
    return json.dumps(json.loads(str(records.new_record(Dense(1, 8, 8), TARGET, {}, (1.0,)))) | entries)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ({"kind": "llvm", "cl-opt": ["-info-output-file:string=/tmp/file"]}, "'cl-opt' is not taken"),
        ({"kind": "llvm", "host": {"kind": "llvm", "cl-opt": ["-stats"]}}, "'cl-opt' is not taken"),
        ({"kind": "llvm", "mtriple": "bogus"}, "no processor of the triple 'bogus'"),  # LLVM would crash
        ({"kind": "llvm", "mtriple": "armfoo-linux-gnu"}, "no processor of the triple"),
        ({"kind": "llvm", "host": {"kind": "llvm", "mtriple": "bogus"}}, "no processor of the triple"),
    ],
)
def test_targets_that_do_more_than_name_a_machine_are_refused(target, told):
    with pytest.raises(Forbidden, match=told):
        records.parse(line_with(target=target))
    with pytest.raises(ValueError, match=told):
        resolve_target(target)


@pytest.mark.parametrize(
    "options", [{"mcpu": "bogus"}, {"mattr": ["avx2"]}, {"mattr": ["+avx2,+bogus"]}, {"mabi": "a b"}, {"num-cores": -5}]
)
def test_a_target_that_llvm_does_not_know_is_not_taken(options):
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", **options}
    unknown = "mcpu" in options or "mattr" in options
    told = "of CPUs that LLVM does not know here" if unknown else "of another format"
    assert records.parse(line_with(target=target)) == told
    with pytest.raises(ValueError, match="unknown target"):
        resolve_target(target)


PICTURE = {"op": "conv2d", "data": [1, 64, 8, 8], "weight": [64, 64, 3, 3], "strides": [1, 1], "padding": [1] * 4,
           "dilation": [1, 1], "groups": 1, "blocked": True}  # fmt: skip


@pytest.mark.parametrize(
    "workload",
    [
        PICTURE | {"data": [1, 64, 1 << 40, 1 << 40]},
        PICTURE | {"data": [1, 64, 8, 8, 8]},
        PICTURE | {"data": [1.0, 64, 8, 8]},
        PICTURE | {"groups": True},
        PICTURE | {"blocked": 1},
        {"op": "dense", "rows": 1.0, "depth": 8, "columns": 8},
        {"op": "kernel", "hash": 3, "name": "sum"},
    ],
)
def test_a_workload_that_is_none_is_of_another_format(workload):
    config = {"family": "default", "lanes": 8}
    assert records.parse(line_with(workload=workload, config=config)) == "of another format"


@pytest.mark.parametrize("groups", [1, 64])
def test_the_largest_picture_keeps_nobody_waiting(groups):
    """Its configs are listed, to see whether the line's is one of them; before, that did not end."""
    side = (1 << 24) - 1
    large = PICTURE | {"data": [1, 64, side, side], "weight": [64, 64 // groups, 3, 3], "groups": groups}
    assert records.parse(line_with(workload=large)) == "of configs that no longer exist"
