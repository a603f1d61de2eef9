"""`tvm.auto_scheduler` on MetaSchedule: tasks, searches, files of records, and builds with the best of them."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from old_api import enabled  # noqa: F401 (a fixture)
from rpc_cluster import Cluster
from testing import SEED, Upward
from tvm import te
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from tvmclassic.auto_scheduler import workload
from tvmfast.compiler import records
from tvmfast.profiling import networks
from tvmfast.tuning import metaschedule

N, L, M = 16, 24, 32
ANSOR = (
    '{"i": [["[\\"matmul_add\\", 16, 24, 32, \\"float32\\"]", "llvm -keys=cpu -link-params=0", [4, 64, 64], "", 1], '
    '[[], [["SP", 2, 0, 16, [4, 1, 4], 1]]]], "r": [[0.0004], 0, 0.4, 1609459200], "v": "v0.6"}'
)
SHELL = '[[["Annotate", ["b0", "import"], ["pragma_import_llvm"], []]], []]'


def matmul_add(n, l, m, dtype):  # noqa: E741
    a = te.placeholder((n, l), name="A", dtype=dtype)
    b = te.placeholder((l, m), name="B", dtype=dtype)
    c = te.placeholder((n, m), name="C", dtype=dtype)
    k = te.reduce_axis((0, l), name="k")
    product = te.compute(
        (n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul", attrs={"layout_free_placeholders": [b]}
    )
    return [a, b, c, te.compute((n, m), lambda i, j: product[i, j] + c[i, j], name="out")]


@pytest.fixture(autouse=True, scope="module")
def few(enabled):  # noqa: F811 (the fixture)
    """A search of few traces, which has the same steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metaschedule, "_POPULATION", 8)
        short = partial(EvolutionarySearch, init_min_unmeasured=8, genetic_num_iters=1)
        patch.setattr(metaschedule.ms.search_strategy, "EvolutionarySearch", short)
        patch.setattr(workload, "_FUNCTIONS", {})
        yield


@pytest.fixture(scope="module")
def runner():
    from tvm import auto_scheduler

    return auto_scheduler.LocalRunner(timeout=60, number=1, repeat=2, min_repeat_ms=0)


@pytest.fixture(scope="module")
def task(few):
    from tvm import auto_scheduler

    auto_scheduler.register_workload(matmul_add)
    return auto_scheduler.SearchTask(func=matmul_add, args=(N, L, M, "float32"), target=tvm.target.Target("llvm"))


def options(trials, log, runner, **others):
    from tvm import auto_scheduler

    callbacks = [auto_scheduler.RecordToFile(str(log))]
    builder = auto_scheduler.LocalBuilder(timeout=60)
    return auto_scheduler.TuningOptions(trials, builder=builder, runner=runner, measure_callbacks=callbacks, **others)


@pytest.fixture(scope="module")
def tuned(task, runner, tmp_path_factory):
    """A file with four records of the task."""
    from tvm import auto_scheduler

    log = tmp_path_factory.mktemp("ansor") / "matmul.json"
    task.tune(options(4, log, runner), auto_scheduler.SketchPolicy(task, auto_scheduler.XGBModel(), seed=SEED + 1))
    return log


# ---------------------------------------------------------------- tasks


def test_a_task_is_a_workload_with_its_arguments(task):
    from tvm import auto_scheduler

    key = '["matmul_add", 16, 24, 32, "float32"]'
    assert task.workload_key == key == auto_scheduler.make_workload_key("matmul_add", (N, L, M, "float32"))
    assert key == auto_scheduler.make_workload_key(matmul_add, (np.int64(N), L, M, "float32"))
    by_key = auto_scheduler.SearchTask(workload_key=key, target="llvm")
    by_dag = auto_scheduler.SearchTask(compute_dag=auto_scheduler.ComputeDAG(matmul_add(N, L, M, "float32")))
    assert by_key.today == by_dag.today == task.today
    assert task.compute_dag.flop_ct == 2 * N * L * M + N * M
    tvm.ir.assert_structural_equal(tvm.script.from_source(str(task.compute_dag)), task.compute_dag.func)


def test_the_names_of_2020(task, tuned, runner, tmp_path, rng):
    from tvm import auto_scheduler

    again = auto_scheduler.create_task(matmul_add, (N, L, M, "float32"), tvm.target.Target("llvm"))
    assert again.workload_key == task.workload_key and again.today == task.today
    _, result = auto_scheduler.load_best(str(tuned), task.workload_key)
    ran = [min(r.costs) for _, r in auto_scheduler.load_from_file(str(tuned)) if not r.error_no]
    assert min(result.costs) == min(ran)
    log = tmp_path / "copy.json"
    log.write_bytes(tuned.read_bytes())
    policy = auto_scheduler.SketchPolicy(again, auto_scheduler.XGBModel(), seed=SEED + 2)
    sch, args = auto_scheduler.auto_schedule(again, policy, tuning_options=options(1, log, runner))
    assert len(records.read(log)) == len(records.read(tuned)) + 1
    a, b, c = (rng.standard_normal(shape).astype("float32") for shape in ((N, L), (L, M), (N, M)))
    out = tvm.nd.empty((N, M))
    tvm.build(sch, args)(*map(tvm.nd.array, (a, b, c)), out)
    close(out.numpy(), a.astype("float64") @ b + c, L + 1, scale=np.abs(a) @ np.abs(b) + np.abs(c))
    with pytest.raises(ValueError, match="num_measure_trials: expected 1 or more; got 0"):
        auto_scheduler.auto_schedule(again)


def test_a_target_may_name_a_cpu_alone(task, runner, tmp_path):
    from tvm import auto_scheduler

    lacking = task.target.attrs.get("mattr", [])  # of what the CPU's name implies
    cpu = tvm.target.Target(f"llvm -mcpu={task.target.attrs['mcpu']}" + f" -mattr={','.join(lacking)}" * bool(lacking))
    assert "num-cores" not in cpu.attrs
    here = auto_scheduler.SearchTask(func=matmul_add, args=(N, L, M, "float32"), target=cpu)
    here.tune(options(1, tmp_path / "cpu.json", runner))
    (record,) = records.read(tmp_path / "cpu.json")
    assert record.error is None and record.target == here.today.target


def test_names_are_registered_once(task):
    from tvm import auto_scheduler

    def other():
        return [te.placeholder((2,), name="a")]

    assert auto_scheduler.register_workload(matmul_add) is matmul_add, "a cell may run again"
    with pytest.raises(RuntimeError, match="has a workload 'matmul_add' already"):
        auto_scheduler.register_workload("matmul_add", other)
    auto_scheduler.register_workload("mine")(other)
    auto_scheduler.register_workload("mine", matmul_add, override=True)
    with pytest.raises(ValueError, match="no workload 'yours'"):
        auto_scheduler.SearchTask(workload_key='["yours", 1]', target="llvm")
    with pytest.raises(ValueError, match="expected what auto_scheduler.make_workload_key returns; got 'matmul_add'"):
        auto_scheduler.SearchTask(workload_key="matmul_add", target="llvm")
    with pytest.raises(TypeError, match="expected the tensors of a computation"):
        auto_scheduler.ComputeDAG([1, 2])


@pytest.mark.parametrize(
    "name, words",
    [
        ("PreloadCustomSketchRule", "sketches of its own; give it one with .*PyScheduleRule"),
        ("PythonBasedModel", "PyCostModel"),
        ("PythonBasedMeasureCallback", "read records with auto_scheduler.load_records"),
        ("EmptyPolicy", "the only policy is auto_scheduler.SketchPolicy"),
    ],
)
def test_what_is_not_served_says_so_by_name(name, words):
    from tvm import auto_scheduler

    with pytest.raises(AttributeError, match=f"auto_scheduler.{name}: .*{words}"):
        getattr(auto_scheduler, name)


def test_options_are_checked_before_anything_is_measured(task, tmp_path, runner):
    from tvm import auto_scheduler

    with pytest.raises(ValueError, match="num_measure_trials: expected 1 or more; got 0"):
        auto_scheduler.TuningOptions()
    with pytest.raises(NotImplementedError, match="measure_callbacks: expected one RecordToFile"):
        auto_scheduler.TuningOptions(1, measure_callbacks=[print])
    with pytest.raises(NotImplementedError, match="init_search_callbacks"):
        auto_scheduler.SketchPolicy(task, init_search_callbacks=[print])
    with pytest.raises(NotImplementedError, match="target 'cuda'"):
        auto_scheduler.SearchTask(func=matmul_add, args=(N, L, M, "float32"), target="cuda")
    with pytest.raises(NotImplementedError, match="task_inputs"):
        auto_scheduler.SearchTask(func=matmul_add, args=(N, L, M, "float32"), task_inputs={"A": 1})
    with pytest.raises(NotImplementedError, match="objective_func"):
        auto_scheduler.TaskScheduler([task], objective_func=sum)
    with pytest.raises(NotImplementedError, match="load_model_file: a cost model learns from records: .*load_log_file"):
        auto_scheduler.TaskScheduler([task], load_model_file="model.json")
    absent = auto_scheduler.TaskScheduler([task], None, None, "gradient", "", str(tmp_path / "absent.json"))
    with pytest.raises(FileNotFoundError, match="cannot read the records"):
        absent.tune(options(1, tmp_path / "none.json", runner))
    with pytest.raises(ValueError, match="expected tasks, all for one target"):
        auto_scheduler.TaskScheduler([]).tune(options(1, tmp_path / "none.json", runner))
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- the search, and its schedules


def test_the_file_says_what_it_holds(tuned, task):
    found = [json.loads(line) for line in tuned.read_text().splitlines()]
    assert len(found) == 4 and all(next(iter(line)) == "format" for line in found)
    assert {line["workload"]["name"] for line in found} == {task.workload_key}
    assert {line["config"]["family"] for line in found} == {"metaschedule"}
    assert all(bool(line["seconds"]) != bool(line["error"]) for line in found)


def test_the_best_schedule_computes_the_same(tuned, task, rng):
    sch, args = task.apply_best(str(tuned))
    func = tvm.tirx.build(sch.lowered(args), "llvm")
    a, b, c = (rng.standard_normal(shape).astype("float32") for shape in ((N, L), (L, M), (N, M)))
    arrays = [tvm.runtime.tensor(x) for x in (a, b, c, np.empty((N, M), "float32"))]
    func["main"](*arrays)
    close(arrays[-1].numpy(), a.astype("float64") @ b + c, L + 1, scale=np.abs(a) @ np.abs(b) + np.abs(c))
    for others in (args[:2], [args[1], args[0], *args[2:]], [*args[:3], 3]):
        with pytest.raises(ValueError, match="expected the 4 tensors that came with the schedule, as they came"):
            tvm.lower(sch, others)
    with pytest.raises(TypeError, match="expected the arguments of the function"):
        tvm.lower(sch)
    assert tvm.build(sch, args, "llvm", name="product").entry_name == "product"


def test_lower_and_build_take_the_schedule(tuned, task, rng):
    sch, args = task.apply_best(str(tuned))
    loops = str(tvm.lower(sch, args, simple_mode=True))
    assert "for " in loops and "T.sblock" not in loops
    func = tvm.build(sch, args, tvm.target.Target("llvm"))
    a, b, c = (rng.standard_normal(shape).astype("float32") for shape in ((N, L), (L, M), (N, M)))
    arrays = [tvm.nd.array(x) for x in (a, b, c, np.empty((N, M), "float32"))]
    func(*arrays)
    close(arrays[-1].asnumpy(), a.astype("float64") @ b + c, L + 1, scale=np.abs(a) @ np.abs(b) + np.abs(c))
    assert func.time_evaluator(func.entry_name, tvm.cpu(), min_repeat_ms=1)(*arrays).mean > 0


def test_the_best_is_the_fastest_and_prints_as_python(tuned, task):
    from tvm import auto_scheduler

    pairs = list(auto_scheduler.measure_record.load_records(str(tuned)))
    fastest = min((pair for pair in pairs if not pair[1].error_no), key=lambda pair: min(pair[1].costs))
    inp, result = auto_scheduler.load_best_record(str(tuned), task.workload_key, task.target)
    assert (inp.record, result) == (fastest[0].record, fastest[1]) and inp.task.workload_key == task.workload_key
    printed = task.print_best(str(tuned))
    assert printed == task.compute_dag.print_python_code_from_state(inp.state)
    assert "sch.get_sblock(" in printed and "sch.split(" in printed
    assert auto_scheduler.load_best_record(str(tuned), "[]") == (None, None)


def test_a_search_goes_on_and_measures_nothing_twice(tuned, task, runner, tmp_path):
    from tvm import auto_scheduler

    log = tmp_path / "on.json"
    lines = tuned.read_text()
    log.write_text(lines + lines.splitlines()[0][:50])  # as a kill leaves it
    model = auto_scheduler.XGBModel()
    with pytest.warns(UserWarning, match=r"on\.json: left out 1 line \(1 torn\)"):
        model.update_from_file(str(log))
        policy = auto_scheduler.SketchPolicy(
            task, model, init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(str(log))]
        )
        task.tune(options(2, log, runner), search_policy=policy)
        found = list(auto_scheduler.load_records(str(log)))
    assert log.read_text().startswith(lines) and len(found) == 6
    assert len({records.key(inp.state) for inp, _ in found}) == 6

    other = tmp_path / "other.json"
    policy = auto_scheduler.SketchPolicy(task, init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(str(tuned))])
    task.tune(options(1, other, runner), search_policy=policy)
    ((inp, _),) = auto_scheduler.load_records(str(other))
    assert records.key(inp.state) not in {records.key(inp.state) for inp, _ in auto_scheduler.load_records(str(tuned))}


def test_each_task_may_stop_early(task, runner, tmp_path, monkeypatch):
    from tvm import auto_scheduler

    limits = []
    monkeypatch.setattr(metaschedule, "search", lambda session, *_: limits.append(session.early_stopping))
    scheduler = auto_scheduler.TaskScheduler([task])
    scheduler.tune(options(4, tmp_path / "log.json", runner, early_stopping=7))
    scheduler.tune(options(4, tmp_path / "log.json", runner, early_stopping=7), per_task_early_stopping=3)
    assert limits == [7, 3]


def test_records_from_before_count_in_what_callbacks_find(task, tuned, runner, tmp_path, capsys):
    from tvm import auto_scheduler

    ran = [result.costs for _, result in auto_scheduler.load_records(str(tuned)) if not result.error_no]
    printed = auto_scheduler.task_scheduler.PrintTableInfo()
    again = auto_scheduler.TaskScheduler([task], load_log_file=str(tuned), callbacks=[printed])
    assert again.best_costs == [1e10] and again.task_cts == [0]
    again.tune(options(1, tmp_path / "one.json", runner))
    seconds = min(map(min, ran))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "matmul_add" in line)
    rate = task.compute_dag.flop_ct / seconds / 1e9
    assert [text.strip() for text in line.split("|")[3:6]] == [f"{seconds * 1e3:.3f}", f"{rate:.2f}", "4"]
    assert again.task_cts == [5] and again.best_costs[0] <= seconds


@pytest.mark.alone
def test_an_rpc_runner_measures_on_the_servers_of_its_key(task, tmp_path):
    from tvm import auto_scheduler

    with Cluster(tmp_path) as cluster:
        cluster.serve("one", key="shelf")
        runner = auto_scheduler.RPCRunner("shelf", "127.0.0.1", cluster.port, timeout=60, repeat=2, min_repeat_ms=0)
        task.tune(options(2, tmp_path / "rpc.json", runner))
        found = [result for _, result in auto_scheduler.load_records(str(tmp_path / "rpc.json"))]
        assert [(len(result.costs), result.error_no) for result in found] == [(2, 0)] * 2
        absent = auto_scheduler.RPCRunner("attic", "127.0.0.1", cluster.port)
        with pytest.raises(ConnectionError, match="knows no server of key 'attic'"):
            task.tune(options(1, tmp_path / "none.json", absent))


@pytest.mark.parametrize(
    "line, words",
    [
        (ANSOR, "expected a record of auto_scheduler.RecordToFile.*tune again, into another file"),
        ("not json", "expected a record of auto_scheduler.RecordToFile"),
        ("[1, 2]", "expected a record of auto_scheduler.RecordToFile"),
    ],
)
def test_a_bad_file_is_one_error_with_its_line(tuned, task, runner, tmp_path, line, words):
    from tvm import auto_scheduler

    log = tmp_path / "bad.json"
    text = f"{tuned.read_text()}{line}\n"
    log.write_text(text)
    for use in (
        task.apply_best,
        auto_scheduler.ApplyHistoryBest,
        lambda file: list(auto_scheduler.load_records(file)),
        lambda file: task.tune(options(1, file, runner)),
    ):
        with pytest.raises(ValueError, match=rf"bad\.json, line 5: {words}"):
            use(str(log))
    assert log.read_text() == text


def test_a_trace_that_does_more_than_schedule_is_refused(tuned, task, tmp_path):
    given = json.loads(tuned.read_text().splitlines()[0])
    given["config"]["trace"] = json.loads(SHELL)
    log = tmp_path / "evil.json"
    log.write_text(json.dumps(given) + "\n")
    with pytest.raises(ValueError, match=r"evil\.json, line 1: refused, as a record may only .*: step 0 of a trace"):
        task.apply_best(str(log))


def test_a_file_without_the_task_says_so(tuned):
    from tvm import auto_scheduler

    other = auto_scheduler.SearchTask(func=matmul_add, args=(4, 4, 4, "float32"), target="llvm")
    with pytest.raises(RuntimeError, match=r'no schedule of \["matmul_add", 4, 4, 4, "float32"\] that ran'):
        other.apply_best(str(tuned))


# ---------------------------------------------------------------- networks


class Heard:
    """A callback that notes what it is called for, and the trials by then."""

    def __init__(self):
        self.events = []

    def pre_tune(self, scheduler, task_id):
        self.events.append(("pre", task_id, sum(scheduler.task_cts)))

    def post_tune(self, scheduler, task_id):
        self.events.append(("post", task_id, sum(scheduler.task_cts)))


def assert_heard(events, scheduler, found):
    """Events of two tasks in turn, a batch between each pair, and what the scheduler knows in the end."""
    before, after = events[::2], events[1::2]
    assert {event for event, *_ in before} == {"pre"} and {event for event, *_ in after} == {"post"}
    assert [number for _, number, _ in before] == [number for _, number, _ in after]
    assert {number for _, number, _ in before} == {0, 1}
    trials = [count for *_, count in after]
    assert [count for *_, count in before] == [0, *trials[:-1]] and trials == sorted(set(trials)) and trials[-1] == 4
    for number, task in enumerate(scheduler.tasks):
        costs = [min(result.costs) for inp, result in found if inp.task.workload_key == task.workload_key]
        assert scheduler.task_cts[number] == len(costs) == 2
        assert scheduler.best_costs[number] == pytest.approx(min(costs), rel=1e-3), "a file has four digits"


def test_a_network_is_tuned_and_built_with_its_records(runner, tmp_path, rng, capsys):
    from tvm import auto_scheduler, relay
    from tvm.contrib import graph_executor

    net = networks.seeded(Upward, 6)
    traced = torch.jit.trace(net, torch.zeros(1, 4, 6, 6))
    mod, params = relay.frontend.from_pytorch(traced, [("data", (1, 4, 6, 6))])
    tasks, weights = auto_scheduler.extract_tasks(mod["main"], params, "llvm")
    assert [task.today.workload.by_metaschedule for task in tasks] == [False, True] and weights == [1, 1]
    assert "T.sblock" in str(tasks[1].compute_dag) and tasks[0].desc in str(tasks[0].compute_dag)
    everything, _ = auto_scheduler.extract_tasks(mod["main"], params, "llvm", include_simple_tasks=True)
    assert len(everything) >= len(tasks)
    with pytest.raises(NotImplementedError, match="relay.build takes it under auto_scheduler.ApplyHistoryBest"):
        tasks[1].apply_best(str(tmp_path / "none.json"))

    log = tmp_path / "network.json"
    heard, latency = Heard(), tmp_path / "total_latency.tsv"
    latency.write_text("of an earlier search\n")
    told = auto_scheduler.task_scheduler
    callbacks = [heard, told.PrintTableInfo(), told.LogEstimatedLatency(str(latency))]
    scheduler = auto_scheduler.TaskScheduler(tasks, [1, 3], callbacks=callbacks)
    scheduler.tune(options(4, log, runner))
    found = list(auto_scheduler.load_records(str(log)))
    assert_heard(heard.events, scheduler, found)
    total = scheduler.best_costs[0] + 3 * scheduler.best_costs[1]
    lines = latency.read_text().splitlines()
    assert len(lines) == len(heard.events) / 2 and "EstimatedLatency(ms)\tN/A\tTrials\t1" in lines[0]
    assert lines[-1].endswith(f"\tEstimatedLatency(ms)\t{total * 1e3:.3f}\tTrials\t4")
    tables = capsys.readouterr().out
    assert tables.count("Latency (ms)") == len(lines) and f" {scheduler.best_costs[0] * 1e3:.3f} " in tables
    assert [inp.task.workload_key for inp, _ in found].count(tasks[1].workload_key) == 2 and len(found) == 4
    assert "metaschedule" in tasks[1].print_best(str(log))

    of_ansor = tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True})
    with auto_scheduler.ApplyHistoryBest(str(log)), of_ansor:
        lib = relay.build(mod, target="llvm", params=params)
    assert lib.compiled.tuned.startswith("auto_scheduler.ApplyHistoryBest: 2 of this target")
    assert "metaschedule" in set(lib.compiled.kernels.family)
    assert "metaschedule" not in set(relay.build(mod, target="llvm", params=params).compiled.kernels.family)
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    x = rng.standard_normal((1, 4, 6, 6), dtype="float32")
    module.run(data=x)
    close(module.get_output(0).numpy(), reference(net, x))
    with auto_scheduler.ApplyHistoryBest(found):
        assert relay.build(mod, target="llvm", params=params).compiled.tuned.endswith("2 of this target")

    copy = tmp_path / "copy.json"
    copy.write_bytes(log.read_bytes())
    again = auto_scheduler.TaskScheduler(tasks, load_log_file=[str(copy)])
    again.tune(options(2, log, runner))
    measured = [(inp.task.workload_key, records.key(inp.state)) for inp, _ in auto_scheduler.load_records(str(log))]
    assert len(measured) == len(set(measured)) == 6, "a schedule was measured twice"
    assert again.task_cts == [3, 3]
