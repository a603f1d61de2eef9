"""What notebook 10 claims, asserted: its space and traces, a database applied, a trial of tvmnotes."""

import itertools
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import tvm
from agreement import close
from torch import nn
from tvm import relax, te, topi
from tvm.ir.utils import derived_object
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvmnotes as tn
from tools import tune_resnet18
from tvmfast.core.compat import fast_tvmscript_parser
from tvmfast.tuning import trial

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "10_tuning.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"}
FACTORS = [1, 2, 4, 7, 8, 14, 28]
TILES = list(itertools.product([1, 2, 4], [1, 2, 4], FACTORS, range(3)))


def run(*cells, instead=("", "")):
    """The names that some cells of the lesson define, with one text in place of another."""
    names = {"te": te, "topi": topi, "tvm": tvm, "Schedule": Schedule, "np": np}
    for cell in cells:
        exec(CELLS[cell].replace(*instead) if instead[0] else CELLS[cell], names)
    return names


@pytest.fixture(scope="module")
def lesson():
    return run("convolution", "space", "trace", "replay")


def decisions(rows, blocks, row, vector, pixel, step):
    """Those of the lesson's space, for a convolution of `rows` by `rows` pixels."""
    return [rows // row, row], [blocks // vector, vector], [rows // pixel, pixel], step


# ---------------------------------------------------------------- a space, and its traces


def test_the_space_has_189_schedules_and_each_trace_replays_as_any_of_them(lesson):
    trace = lesson["sch"].trace
    assert len(TILES) == 189
    found = set()
    for tile in TILES:
        sch = lesson["replay"](trace, lesson["conv"], *decisions(56, 4, *tile))
        assert lesson["choices"](sch.trace) == list(decisions(56, 4, *tile))
        found.add(sch.mod.script())
    assert len(found) == 189


def test_draws_stay_within_the_space(lesson):
    for seed in range(50):
        sch = Schedule(lesson["conv"], seed=1 + 7919 * seed)
        lesson["space"](sch)
        (_, row), (_, vector), (_, pixel), step = lesson["choices"](sch.trace)
        assert (row, vector, pixel, step) in TILES


@pytest.mark.parametrize("tile", [(1, 1, 1, 0), (2, 2, 7, 1), (4, 1, 14, 2)])
def test_any_of_its_schedules_computes_the_convolution(lesson, tile, rng):
    size, blocks = 14, 2
    kernel = lesson["convolution"](16 * blocks, size)
    row = tile[0] if size % tile[0] == 0 else 2
    sch = lesson["replay"](lesson["sch"].trace, kernel, *decisions(size, blocks, row, *tile[1:]))
    shapes = (1, blocks, size, size, 16), (blocks, blocks, 3, 3, 16, 16), (blocks, 16)
    data, weight, bias = (rng.standard_normal(shape, dtype="float32") for shape in shapes)
    tensors = [tvm.runtime.tensor(array) for array in (data, weight, bias, np.zeros(shapes[0], "float32"))]
    tvm.compile(sch.mod, target=tn.env.host_target())(*tensors)
    plain = [torch.from_numpy(array).double() for array in (data, weight, bias)]
    wanted = nn.functional.conv2d(
        plain[0].permute(0, 1, 4, 2, 3).reshape(1, -1, size, size),
        plain[1].permute(0, 5, 1, 4, 2, 3).reshape(16 * blocks, 16 * blocks, 3, 3),
        plain[2].reshape(-1),
        padding=1,
    ).relu()
    close(tensors[-1].numpy().transpose(0, 1, 4, 2, 3).reshape(wanted.shape), wanted.numpy(), 9 * 16 * blocks)


def test_an_inner_factor_that_does_not_divide_becomes_the_whole_loop(lesson):
    trace = lesson["replay"](lesson["sch"].trace, lesson["conv"], *decisions(56, 4, 2, 2, 14, 0)).trace
    smaller = lesson["replay"](trace, lesson["convolution"](32, 30)).trace
    assert lesson["choices"](smaller) == [[15, 2], [1, 2], [1, 30], 0]


def test_without_unit_loops_a_trace_fails_with_other_decisions():
    names = run("convolution", "space", "trace", "replay", instead=(", preserve_unit_loops=True", ""))
    trace = names["sch"].trace
    with pytest.raises(Exception, match=r"old_outputs|new_outputs|size|outputs"):
        for tile in ((1, 1, 1, 0), (1, 2, 4, 0)):
            names["replay"](trace, names["conv"], *decisions(56, 4, *tile))


def test_the_default_model_knows_nothing_before_100_trials():
    assert ms.cost_model.XGBModel().num_warmup_samples == 100


def test_the_lessons_builder_makes_a_library_or_tells_why_not(tmp_path):
    names = {"Path": Path, "tempfile": tempfile, "folder": tmp_path, "tvm": tvm, "ms": ms, "tn": tn}
    names |= {"derived_object": derived_object, "ThreadPoolExecutor": ThreadPoolExecutor}
    exec(CELLS["parts"].partition("\n\n\ndef quiet")[0], names)
    A = te.placeholder((8,), name="A")
    mod = tvm.IRModule({"main": te.create_prim_func([A, te.compute(A.shape, lambda i: A[i] + 1.0)])})
    (made,) = names["ThreadBuilder"]().build([ms.builder.BuilderInput(mod, tn.env.host_target())])
    failed = names["built"](None)
    assert made.error_msg is None and Path(made.artifact_path).exists()
    assert failed.artifact_path is None and failed.error_msg


# ---------------------------------------------------------------- a network, and its database


@pytest.fixture(scope="module")
def fused():
    """A small network before and after fusing, with the name of its kernel."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    mod = from_exported_program(torch.export.export(net, (torch.ones(1, 4, 9, 9),)), unwrap_unit_return_tuple=True)
    with tn.env.host_target():
        return net, mod, relax.get_pipeline("zero")(mod)


def test_tasks_are_those_of_a_fused_module(fused):
    _, mod, after = fused
    assert list(ms.relax_integration.extract_tasks(mod, tn.env.host_target())) == []
    (task,) = ms.relax_integration.extract_tasks(after, tn.env.host_target())
    assert task.task_name == "fused_conv2d_add_relu" and task.weight == 1


def test_a_record_is_applied_to_the_kernel_with_its_loops(fused, rng, tmp_path):
    net, mod, after = fused
    target = tn.env.host_target()
    (task,) = ms.relax_integration.extract_tasks(after, target)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    kernel = task.dispatched[0]
    sch = Schedule(kernel)
    sch.parallel(sch.get_loops("conv2d_nchw")[1])
    workload = database.commit_workload(kernel)
    for seconds in (1e10, 1e-3):
        database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [seconds], target, []))
    assert [float(record.run_secs[0]) for record in database.get_all_tuning_records()] == [1e-3, 1e10]
    with target, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(after)
    (found,) = [f for _, f in applied.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert found.attrs["tirx.is_scheduled"] and "T.parallel" in found.script()
    with fast_tvmscript_parser():
        executable = ms.relax_integration.compile_relax(database, mod, target, None)
    x = rng.standard_normal((1, 4, 9, 9), dtype="float32")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    close(result, net.double()(torch.from_numpy(x).double()).detach().numpy(), 4 * 9 + 1)


@pytest.mark.parametrize("isa, processor", [("avx512", "skylake-avx512"), ("avx2", "core-avx2")])
def test_the_shipped_records_are_of_the_kernels_that_resnet18_has(isa, processor, tmp_path):
    shutil.unpack_archive(tn.data.path(f"metaschedule/resnet18_{isa}.tar.xz"), tmp_path)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    tasks = tune_resnet18.kernels(tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": 2}))
    assert tasks and all(database.has_workload(task.dispatched[0]) for task in tasks)
    assert len(database) == len(tasks)


def test_tvm_alone_is_at_most_20_lines_without_our_packages():
    lines = [line for line in CELLS["alone"].splitlines() if line.strip()]
    assert len(lines) <= 20
    assert not re.search(r"\btn\b|tvmnotes|tvmfast", CELLS["alone"])


# ---------------------------------------------------------------- a trial of tvmnotes


def test_tvms_own_calls_compile_and_time_a_candidate(small):
    task = tn.tuning.tasks(small.mod, small.params)[1]
    candidate = task.candidate(task.default)
    library = tvm.compile(trial.kernel(candidate), target=tvm.target.Target(task.target)).jit()
    (tensors,) = trial.arguments(candidate, tvm.cpu())
    assert len(library.time_evaluator("main", tvm.cpu(), number=1, repeat=2)(*tensors).results) == 2
    output = task.workload.unpack_output(tensors[-1].numpy(), candidate.lanes)
    data, weight, _ = trial._inputs(task.workload)
    wanted = task.workload.reference(data.astype("float64"), weight.astype("float64"))
    close(output, wanted, task.workload.macs // wanted.size)


def test_a_trial_is_ten_repeats_or_an_error_in_a_sentence(small):
    task = tn.tuning.tasks(small.mod, small.params)[1]
    broken = task.default | {"family": "conv2d", "tile_ow": 0, "tile_oc": 1, "loop_order": "rows"}
    with tn.tuning.LocalRunner(timeout=60) as runner:
        good, bad = runner.measure([tn.tuning.Candidate(task.workload, c, task.target) for c in (task.default, broken)])
    assert good.error is None and len(good.seconds) == 10 and min(good.seconds) > 0
    assert not bad.seconds and "build failed" in bad.error and "\n" not in bad.error


def test_the_figure_of_a_tuning_run_shows_ratios():
    bars = tn.plots.before_and_after({"short": (1e-3, 2e-3), "long": (4e-3, 1e-3)}).axes[0]
    assert [text.get_text() for text in bars.texts] == [" 0.25x", " 2.00x"]
