"""MetaSchedule's search, for the kernels that tvmfast has no schedule of: its records, a build with them, going on."""

from functools import partial

import pytest
import torch
from agreement import close, reference
from testing import SEED, Function, Upward
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

import tvmfast
from tvmfast.compiler import records
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.profiling import networks
from tvmfast.tuning import metaschedule, session, tasks

TRIALS = 4
UNFIT = {"family": "metaschedule", "trace": [[["GetSBlock", [], ["no such block", "main"], ["b0"]]], []]}


@pytest.fixture(scope="module")
def net():
    return networks.seeded(Upward, 6)


@pytest.fixture(scope="module")
def imported(net):
    return tvmfast.from_pytorch(net, {"x": (1, 4, 6, 6)})


@pytest.fixture(scope="module", autouse=True)
def few():
    """A search of few traces, which has the same steps, and short finals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMNOTES_QUICK", "1")
        patch.setattr(metaschedule, "_POPULATION", 8)
        short = partial(EvolutionarySearch, init_min_unmeasured=8, genetic_num_iters=1)
        patch.setattr(metaschedule.ms.search_strategy, "EvolutionarySearch", short)
        yield


@pytest.fixture(scope="module")
def tuned(imported, tmp_path_factory):
    """The file of records, what `tvmfast.tune` gave, and how many records each of its writes had."""
    path = tmp_path_factory.mktemp("metaschedule") / "tuning.jsonl"
    written = []
    with pytest.MonkeyPatch.context() as patch:
        append = session.Log.append

        def telling(self, found):
            append(self, found)
            written.append(len(found))

        patch.setattr(session.Log, "append", telling)
        summary = tvmfast.tune(*imported, tuner="metaschedule", trials=TRIALS, records=path, seed=SEED)
    return path, summary, written


def assert_equals_pytorch(lib, net):
    x = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    close(lib(x), reference(net, x))


def test_its_tasks_are_the_kernels_that_sum_and_have_no_schedule_of_ours(imported):
    mod, params = imported
    (found,) = metaschedule.tasks(mod, params)
    assert isinstance(found.workload, Kernel) and found.workload.name.startswith("fused_conv2d_transpose")
    assert found.count == 1
    assert all(not isinstance(task.workload, Kernel) for task in tasks(mod, params))


def test_what_it_measures_is_written_down(tuned):
    path, summary, written = tuned
    found = records.read(path)
    trials, finals = ([each for each in found if bool(each.final) == last] for last in (False, True))
    assert written == [len(trials), len(finals)] and len(trials) == TRIALS
    assert all(each.config["family"] == "metaschedule" and each.config["trace"] for each in trials)
    assert finals[0].config["family"] == "default" and len(finals) > 1
    (row,) = summary.rows
    assert row[1:3] == (TRIALS, finals[0].call_seconds) and row[3] in finals and not summary.interrupted
    assert set(summary.network) == {"before", "after"}
    assert "fused_conv2d_transpose" in str(summary)


def test_a_build_uses_it(tuned, imported, net):
    path, _, _ = tuned
    searched = [each for each in records.read(path) if each.config["family"] == "metaschedule" and not each.error]
    assert searched
    for each in searched[:2]:
        lib = tvmfast.build(*imported, records=[each])
        assert lib.tuned.startswith("records: 1 of this target")
        assert "metaschedule" in set(lib.kernels.family)
        assert_equals_pytorch(lib, net)
    lib = tvmfast.build(*imported, records=path)
    assert lib.tuned.startswith(f"{path}: 1 of this target")
    assert_equals_pytorch(lib, net)
    plain = tvmfast.build(*imported, records=False)
    assert "metaschedule" not in set(plain.kernels.family)


def test_the_seed_decides_which_traces_it_tries(tuned, imported, tmp_path, monkeypatch):
    monkeypatch.setattr(session.Session, "finish", lambda *_: None)  # what follows the search
    path = tmp_path / "again.jsonl"
    tvmfast.tune(*imported, tuner="metaschedule", trials=TRIALS, records=path, seed=SEED)
    first, again = ([each.config for each in records.read(p) if not each.final] for p in (tuned[0], path))
    assert again == first


def test_the_same_call_goes_on(tuned, imported, tmp_path, monkeypatch):
    monkeypatch.setattr(session.Session, "finish", lambda *_: None)  # what follows the search
    path = tmp_path / "again.jsonl"
    (task,) = metaschedule.tasks(*imported)
    unfit = records.new_record(task.workload, task.target, UNFIT, (1e-6,))
    path.write_text(f"{tuned[0].read_text()}{unfit}\n")
    before = records.read(path)
    tvmfast.tune(*imported, tuner="metaschedule", trials=TRIALS, records=path, seed=SEED)
    assert records.read(path) == before, "nothing was left to measure"
    summary = tvmfast.tune(*imported, tuner="metaschedule", trials=TRIALS + 2, records=path, seed=SEED)
    found = records.read(path)
    assert found[: len(before)] == before
    trials = [each for each in found if not each.final]
    assert summary.rows[0][1] == TRIALS + 2 == len(trials)
    assert len({records.key(each.config) for each in trials}) == len(trials), "a trace was measured twice"


def test_it_stops_early(tuned, imported, tmp_path, monkeypatch):
    monkeypatch.setattr(session.Session, "finish", lambda *_: None)  # what follows the search
    monkeypatch.setattr(metaschedule, "_BATCH", 2)
    path = tmp_path / "stopped.jsonl"
    (task,) = metaschedule.tasks(*imported)
    first = next(each for each in records.read(tuned[0]) if each.config["family"] == "metaschedule" and not each.error)
    unbeaten = records.new_record(task.workload, task.target, first.config, (1e-12,))
    path.write_text(f"{tuned[0].read_text()}{unbeaten}\n")
    options = {"tuner": "metaschedule", "records": path, "seed": SEED, "early_stopping": 1}
    summary = tvmfast.tune(*imported, trials=TRIALS + 40, **options)
    assert TRIALS + 1 < summary.rows[0][1] <= TRIALS + 3, "it measures a batch, and no second one"


def test_a_choice_that_is_known_adds_no_trials(tuned, imported, tmp_path, monkeypatch):
    monkeypatch.setattr(session.Session, "finish", lambda *_: None)  # what follows the search
    (task,) = metaschedule.tasks(*imported)

    def chosen(config):
        """Return the trace that the seed chooses after those of `tuned` and a failure of `config`."""
        path = tmp_path / "chosen.jsonl"
        failed = records.new_record(task.workload, task.target, config, error="it failed")
        path.write_text(f"{tuned[0].read_text()}{failed}\n")
        tvmfast.tune(*imported, tuner="metaschedule", trials=TRIALS + 2, records=path, seed=SEED)
        trials = [each for each in records.read(path) if not each.final]
        assert len(trials) == TRIALS + 2
        return trials[-1].config

    first = chosen(UNFIT)
    assert chosen(first) != first


def test_a_trace_that_does_not_fit_leaves_the_kernel_as_it_is_without(imported, net):
    (task,) = metaschedule.tasks(*imported)
    for trace in ([[["GetSBlock", [], ["no such block", "main"], ["b0"]]], []], "no trace"):
        config = {"family": "metaschedule", "trace": trace}
        found = [records.new_record(task.workload, task.target, config, (1e-6,))]
        lib = tvmfast.build(*imported, records=found)
        assert "metaschedule" not in set(lib.kernels.family)
        assert_equals_pytorch(lib, net)


def test_a_network_without_such_kernels_is_refused(tmp_path):
    mod, params = tvmfast.from_pytorch(Function(torch.relu).eval(), {"x": (1, 3)})
    with pytest.raises(ValueError, match="nothing to tune: the network has no kernels for this tuner"):
        tvmfast.tune(mod, params, tuner="metaschedule", records=tmp_path / "tuning.jsonl")
