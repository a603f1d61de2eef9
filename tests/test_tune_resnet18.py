"""The script behind lesson 10's database: what a kill leaves, what is measured next, what is packed."""

import shutil

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tools import tune_resnet18 as script


def kernel(size):
    A = te.placeholder((size,), name="A")
    return tvm.IRModule({"main": te.create_prim_func([A, te.compute(A.shape, lambda i: A[i] + 1.0, name="B")])})


def commit(database, mod, seconds, parts):
    """Add a record whose trace splits the loop."""
    sch = Schedule(mod)
    sch.split(sch.get_loops("B")[0], [None, parts])
    workload = database.commit_workload(mod)
    target = tvm.target.Target("llvm")
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [seconds], target, []))


@pytest.fixture
def folder(tmp_path):
    """A database of two kernels, with two records each."""
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    for mod in (kernel(8), kernel(12)):
        for seconds, parts in ((2e-3, 2), (1e-3, 4)):
            commit(database, mod, seconds, parts)
    return tmp_path


@pytest.mark.parametrize("file, kept", zip(script.FILES, (2, 3), strict=True))
def test_a_line_that_a_kill_left_unfinished_is_dropped_with_its_records(folder, file, kept):
    (folder / file).write_bytes((folder / file).read_bytes()[:-20])
    script.drop_torn_lines(folder)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    assert len(database) == kept
    commit(database, kernel(12), 5e-4, 3)
    assert len(ms.database.JSONDatabase(work_dir=str(folder))) == kept + 1


def test_nothing_is_dropped_from_whole_files_and_nothing_is_needed(folder, tmp_path_factory):
    before = [(folder / name).read_bytes() for name in script.FILES]
    script.drop_torn_lines(folder)
    assert [(folder / name).read_bytes() for name in script.FILES] == before
    script.drop_torn_lines(tmp_path_factory.mktemp("empty"))


def test_the_archive_has_the_fastest_record_of_each_kernel(folder, tmp_path):
    archive = tmp_path / "data" / "resnet18_avx2.tar.xz"
    script.pack(ms.database.JSONDatabase(work_dir=str(folder)), archive)
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    packed = ms.database.JSONDatabase(work_dir=str(tmp_path / "unpacked"))
    assert [float(record.run_secs[0]) for record in packed.get_all_tuning_records()] == [1e-3, 1e-3]
    assert packed.has_workload(kernel(8)) and not packed.has_workload(kernel(16))


def test_a_trace_that_was_measured_is_not_proposed_again(folder):
    records = ms.database.JSONDatabase(work_dir=str(folder)).get_all_tuning_records()
    candidates = [record.as_measure_candidate() for record in records]
    search = script.Unmeasured({script.key(records[0].trace)})
    search.evolution = type("Fixed", (), {"generate_measure_candidates": lambda self: candidates})()
    assert script.key(records[0].trace) != script.key(records[2].trace)
    left = search.generate_measure_candidates()
    assert left and all(script.key(each.sch.trace) != script.key(records[0].trace) for each in left)
    search.evolution = type("Ended", (), {"generate_measure_candidates": lambda self: None})()
    assert search.generate_measure_candidates() is None


def test_the_next_batch_goes_to_new_tasks_then_where_most_time_is_left():
    search = object.__new__(script.Search)
    search.tasks = [type("Task", (), {"weight": weight})() for weight in (1, 4, 1)]
    times = [3e-3, 1e-3, None]
    search.seconds = times.__getitem__
    search.batches = [1, 1, 0]
    assert search.next() == 2
    search.batches = [1, 1, 1]
    assert search.next() == 1
    search.batches = [1, 2, 1]
    assert search.next() == 0


def test_another_name_is_refused():
    with pytest.raises(SystemExit, match="expected avx512 or avx2, got 'sse'"):
        script.main("sse")
