"""AutoTVM in the old API: tasks, tuners, measuring here and over RPC, logs, and builds with what was found."""

import json
import random
import re
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from fake_runner import FakeRunner
from old_api import enabled  # noqa: F401 (a fixture)
from rpc_cluster import Cluster
from testing import sampled
from torch import nn

from tvmfast.compiler import records
from tvmfast.core import machine
from tvmfast.tuning import tuners


@pytest.fixture(autouse=True)
def same_choices(monkeypatch):
    """The old API gives its tuners no seed, and their model sees this machine's threads."""
    monkeypatch.setattr(tuners, "random", SimpleNamespace(Random=lambda _seed: random.Random(0)))
    monkeypatch.setattr(machine, "threads", lambda: 2)


class Network(nn.Sequential):
    """Each kind of task: float32 (1, 3, 16, 16) to (1, 11), none of them with a record that the package ships."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 2, 1, groups=64), nn.ReLU(),
            nn.Conv2d(64, 96, 3, padding=1, groups=2), nn.ReLU(),
            nn.Conv2d(96, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 11),
        )  # fmt: skip


@pytest.fixture(scope="module")
def network():
    return Network().eval()


@pytest.fixture(scope="module")
def program(network, enabled):  # noqa: F811 (the fixture)
    from tvm import relay

    traced = torch.jit.trace(network, torch.zeros(1, 3, 16, 16))
    return relay.frontend.from_pytorch(traced, [("data", (1, 3, 16, 16))])


@pytest.fixture(scope="module")
def tasks(program):
    from tvm import autotvm

    mod, params = program
    return autotvm.task.extract_from_program(mod["main"], target="llvm", params=params)


@pytest.fixture(scope="module")
def option(enabled):  # noqa: F811 (the fixture)
    from tvm import autotvm

    runner = autotvm.LocalRunner(number=2, repeat=1, timeout=60, cooldown_interval=0)
    return autotvm.measure_option(builder=autotvm.LocalBuilder(timeout=60), runner=runner)


# ---------------------------------------------------------------- tasks


def test_a_task_for_each_convolution_and_dense_layer(tasks):
    assert [task.name for task in tasks] == [
        "conv2d_NCHW.x86",
        "conv2d_NCHWc.x86",
        "conv2d_NCHWc.x86",
        "depthwise_conv2d_NCHWc.x86",
        "group_conv2d_NCHWc.x86",
        "conv2d_NCHWc.x86",
        "dense_pack.x86",
    ]
    first = tasks[0]
    tensors = ("TENSOR", (1, 3, 16, 16), "float32"), ("TENSOR", (32, 3, 3, 3), "float32")
    assert first.args == (*tensors, (1, 1), (1, 1, 1, 1), (1, 1), "NCHW", "NCHW", "float32")
    assert first.flop == 2 * 32 * 3 * 9 * 16 * 16
    assert tasks[4].flop == 2 * 96 * 32 * 9 * 8 * 8
    assert tasks[-1].flop == 2 * 64 * 11
    assert first.workload == (first.name, *first.args)


def test_ops_choose_among_the_tasks(program):
    from tvm import autotvm, relay

    mod, params = program
    (dense,) = autotvm.task.extract_from_program(mod["main"], target="llvm", params=params, ops=(relay.op.nn.dense,))
    assert dense.name == "dense_pack.x86"
    convs = autotvm.task.extract_from_program(mod, target="llvm", params=params, ops=(relay.op.get("nn.conv2d"),))
    assert len(convs) == 6


def test_without_params_all_but_the_first_input_are_weights():
    from tvm import autotvm, relay

    data, weight = relay.var("data", shape=(1, 16, 8, 8)), relay.var("weight")
    conv = relay.nn.conv2d(data, weight, channels=32, kernel_size=(3, 3), padding=(1, 1))
    (task,) = autotvm.task.extract_from_program(relay.Function([data, weight], conv), target="llvm")
    assert task.args[1] == ("TENSOR", (32, 16, 3, 3), "float32")


def test_a_space_is_indexed_and_prints(tasks):
    space = tasks[0].config_space
    assert len(space) > 10
    entity = space.get(3)
    assert entity == space[3] and entity.index == 3
    assert re.fullmatch(r"\[\('family', 'conv2d'\), \('tile_ow', \d+\), .*\],None,3", str(entity))
    assert str(space).startswith(f"ConfigSpace (len={len(space)}, space_map=\n   0 family: OtherOption(")
    with pytest.raises(IndexError):
        space.get(len(space))


def test_a_task_is_made_of_name_and_arguments(tasks):
    from tvm import autotvm

    for task in tasks:
        again = autotvm.task.create(task.name, args=task.args, target="llvm")
        assert again.workload == task.workload and len(again.config_space) == len(task.config_space)
    with pytest.raises(ValueError, match="no template 'tutorial/conv2d_no_batching'"):
        autotvm.task.create("tutorial/conv2d_no_batching", args=(1, 7, 7), target="llvm")


# ---------------------------------------------------------------- tuning


def test_the_four_tuners_measure_write_and_count(tasks, option, tmp_path, capsys):
    from tvm import autotvm
    from tvm.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner

    log = tmp_path / "conv.log"
    tuners = [
        XGBTuner(tasks[0], plan_size=64, loss_type="rank", feature_type="knob"),
        GATuner(tasks[1], pop_size=50),
        RandomTuner(tasks[2]),
        GridSearchTuner(tasks[3]),
    ]
    for number, tuner in enumerate(tuners, 1):
        progress = autotvm.callback.progress_bar(4, prefix=f"[Task {number:2d}/ 4] ")
        tuner.tune(
            n_trial=4,
            measure_option=option,
            early_stopping=None,
            callbacks=[progress, autotvm.callback.log_to_file(str(log))],
        )
        assert tuner.best_flops > 0
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    pattern = r"\[Task  4/ 4\]  Current/Best: +\d+\.\d\d/ +\d+\.\d\d GFLOPS \| Progress: \(4/4\) \| \d+\.\d\d s Done\."
    assert re.fullmatch(pattern, lines[-1]), lines[-1]
    measured = list(autotvm.record.load_from_file(str(log)))
    assert len(measured) == 16 and all(result.error_no == 0 for _, result in measured)
    assert len({(inp.task.workload, inp.config.index) for inp, _ in measured}) == 16, "a config was measured twice"
    for row in log.read_text().splitlines():
        assert json.loads(row).keys() == {"input", "config", "result", "version", "tvm_version"}

    best = tmp_path / "best.log"
    autotvm.record.pick_best(str(log), str(best))
    picked = {inp.task.workload: result.costs[0] for inp, result in autotvm.record.load_from_file(str(best))}
    assert picked == {
        workload: min(result.costs[0] for inp, result in measured if inp.task.workload == workload)
        for workload in {inp.task.workload for inp, _ in measured}
    }


def test_the_runner_is_obeyed_and_kept_for_all_tasks(tasks):
    from tvm import autotvm

    runners = [autotvm.LocalRunner(number=1, repeat=5, timeout=60, cooldown_interval=0) for _ in range(2)]
    seen = []
    for runner, task in zip(runners, tasks[2:4], strict=True):
        option = autotvm.measure_option(builder="local", runner=runner)
        autotvm.tuner.GridSearchTuner(task).tune(1, option, callbacks=[lambda *args: seen.append(args)])
    assert [len(results[0].costs) for _, _, results in seen] == [5, 5]
    assert runners[0].open(10) is runners[1].open(10)
    assert runners[0].open(90).timeout == 90, "the builder's, where that is longer"


class Quick:
    """A runner for `measure_option` that measures nothing: it answers with `seconds(config)`, see `FakeRunner`."""

    n_parallel, cooldown_interval = 1, 0

    def __init__(self, seconds):
        self.opened = FakeRunner(seconds)

    def open(self, _timeout):
        return self.opened


def quick_option(seconds, n_parallel=1):
    from tvm import autotvm

    return autotvm.measure_option(builder=autotvm.LocalBuilder(n_parallel=n_parallel), runner=Quick(seconds))


@pytest.mark.parametrize("kind", ["GridSearchTuner", "RandomTuner", "GATuner", "XGBTuner"])
def test_a_space_is_exhausted_each_config_once_the_default_first(kind):
    from tvm import autotvm

    dense, seen = autotvm.task.create("dense_pack.x86", args=DENSE, target="llvm"), []
    tuner = getattr(autotvm.tuner, kind)(dense)
    option = quick_option(lambda config: config["tile_m"] * 1e-6, n_parallel=3)
    tuner.tune(n_trial=1000, measure_option=option, callbacks=[lambda _, inputs, results: seen.append(inputs)])
    measured = [inp.config.index for inputs in seen for inp in inputs]
    assert sorted(measured) == list(range(len(dense.config_space))) and measured[0] == 0
    assert {len(inputs) for inputs in seen[:-1]} == {3}, "a batch holds as many as the builder builds at once"
    assert not tuner.has_next() and tuner.next_batch(1) == []
    tuner.reset()
    assert tuner.has_next() and tuner.best_config is None


def test_a_search_stops_early():
    from tvm import autotvm

    task = autotvm.task.create("dense_pack.x86", args=DENSE, target="llvm")
    best = task.config_space[3].values
    tuner = autotvm.tuner.GridSearchTuner(task)
    option, seen = quick_option(lambda config: 1e-6 if config == best else 1e-3), []
    tuner.tune(n_trial=1000, measure_option=option, early_stopping=4, callbacks=[lambda *args: seen.append(args)])
    assert len(seen) == 4 + 4
    assert tuner.best_config.values == best and tuner.best_flops == pytest.approx(task.flop / 1e-6)


AVX512 = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"
DENSE = (("TENSOR", (4, 512), "float32"), ("TENSOR", (64, 512), "float32"), None, "float32")


def convolution(channels: int, size: int):
    from tvm import autotvm

    tensors = ("TENSOR", (1, channels, size, size), "float32"), ("TENSOR", (64, channels, 3, 3), "float32")
    args = (*tensors, (2, 2), (1, 1, 1, 1), (1, 1), "NCHW", "NCHW", "float32")
    return autotvm.task.create("conv2d_NCHWc.x86", args=args, target=AVX512)


def model_time(config: dict) -> float:
    """Seconds that a machine might take: the more of its registers hold sums, the fewer."""
    tile = config["tile_ow"] * config.get("tile_oh", 1), config["tile_oc"]
    return 1e-4 * (sum(tile) / np.prod(tile) + 0.1 * (config["loop_order"] == "rows"))


def ranks(task, entities) -> list[float]:
    """Where configs stand among all of the task's, from 0, the fastest, to 1."""
    times = sorted(model_time(config) for config in task.today.space)
    return [times.index(model_time(entity.values)) / len(times) for entity in entities]


def test_xgb_proposes_what_its_model_finds_fast():
    from tvm import autotvm

    task = convolution(64, 28)
    tuner = autotvm.tuner.XGBTuner(task)
    tuner.tune(24, quick_option(model_time))
    assert sorted(ranks(task, tuner.next_batch(8)))[5] < 0.25, "six of eight in the best quarter"


def test_xgb_learns_from_the_records_of_other_tasks(tmp_path):
    from tvm import autotvm

    log, other = tmp_path / "other.log", convolution(32, 56)
    task = convolution(64, 28)
    autotvm.tuner.RandomTuner(other).tune(
        64, quick_option(model_time), callbacks=[autotvm.callback.log_to_file(str(log))]
    )
    tuner = autotvm.tuner.XGBTuner(task)
    tuner.load_history(autotvm.record.load_from_file(str(log)), min_seed_records=10)
    default, *guided = tuner.next_batch(8)
    assert default.index == 0 and sorted(ranks(task, guided))[4] < 0.2, "five of seven in the best fifth"


def test_history_is_not_measured_again(tasks, tmp_path):
    from tvm import autotvm

    log, option = tmp_path / "conv.log", quick_option(lambda config: 1e-3)
    first = autotvm.tuner.GridSearchTuner(tasks[0])
    first.tune(3, option, callbacks=[autotvm.callback.log_to_file(str(log))])
    second = autotvm.tuner.GridSearchTuner(tasks[0])
    second.load_history(autotvm.record.load_from_file(str(log)))
    second.tune(2, option, callbacks=[autotvm.callback.log_to_file(str(log))])
    indices = [inp.config.index for inp, _ in autotvm.record.load_from_file(str(log))]
    assert len(indices) == len(set(indices)) == 5


# ---------------------------------------------------------------- logs


def record_of(task, index: int, cost: float):
    from tvm import autotvm

    return (
        autotvm.MeasureInput(task.target, task, task.config_space.get(index)),
        autotvm.MeasureResult((cost,), 0, 0.1, time.time()),
    )


OLD = (
    '{"input": ["llvm -keys=cpu -mcpu=core-avx2", "conv2d_NCHWc.x86", [["TENSOR", [1, 3, 224, 224], "float32"], '
    '["TENSOR", [64, 3, 7, 7], "float32"], [2, 2], [3, 3, 3, 3], [1, 1], "NCHW", "NCHW", "float32"], {}], "config": '
    '{"index": 42, "code_hash": null, "entity": [["tile_ic", "sp", [-1, 3]], ["tile_oc", "sp", [-1, 32]]]}, '
    '"result": [[0.0013], 0, 1.9, 1611111111.1], "version": 0.2, "tvm_version": "0.8.dev0"}\n'
)


def test_torn_and_foreign_lines_are_left_out_with_a_warning(tasks, tmp_path):
    from tvm import autotvm

    log = tmp_path / "mixed.log"
    good = autotvm.record.encode(*record_of(tasks[0], 2, 0.5))
    log.write_text(f"# a comment\n{good}\n{OLD}{good[:40]}")
    with pytest.warns(UserWarning, match="2 lines are torn, or of schedules that are not here"):
        ((inp, result),) = autotvm.record.load_from_file(str(log))
    assert inp.config == tasks[0].config_space.get(2) and result.costs == (0.5,)


def test_a_log_with_the_old_names_of_a_config_is_read(tasks):
    from tvm import autotvm

    row = autotvm.record.encode(*record_of(tasks[0], 2, 0.5))
    for name, old in {"tile_oh": "lines", "tile_ow": "pixels", "tile_oc": "blocks", "loop_order": "outer"}.items():
        row = row.replace(f'"{name}"', f'"{old}"')
    assert "pixels" in row
    assert autotvm.record.decode(row)[0].config == tasks[0].config_space.get(2)


def test_a_build_takes_the_best_of_a_log_within_its_context_only(network, program, tasks, tmp_path, rng):
    from tvm import autotvm, relay
    from tvm.contrib import graph_executor

    mod, params = program
    log = tmp_path / "best.log"
    chosen = {task: len(task.config_space) - 1 for task in tasks}
    pairs = [record_of(task, index, 1e-3) for task, index in chosen.items()]
    pairs += [record_of(task, 0, 2e-3) for task in tasks]
    log.write_text("".join(autotvm.record.encode(*pair) + "\n" for pair in pairs))
    with autotvm.apply_history_best(str(log)), tvm.transform.PassContext(opt_level=3):
        lib = relay.build(mod, target="llvm", params=params)
    untuned = relay.build(mod, target="llvm", params=params)
    for task, index in chosen.items():
        config = {k: v for k, v in task.config_space.get(index).values.items() if k != "family"}
        assert config in list(lib.compiled.kernels.config), config
        assert config not in list(untuned.compiled.kernels.config), config

    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    x = rng.standard_normal((1, 3, 16, 16), dtype="float32")
    module.run(data=x)
    close(module.get_output(0).numpy(), reference(network, x))


def test_a_build_takes_the_records_of_today_within_the_same_context(program, tasks, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    task, log = tasks[1], tmp_path / "old.log"
    jsonl = tmp_path / "new.jsonl"
    chosen = [task.config_space[len(task.config_space) - n].values for n in (1, 2)]
    trials = zip(chosen, [(1e-3,), (2e-3,)], [None, None], ["", "2026-01-01"], strict=True)
    jsonl.write_text("".join(f"{records.new_record(task.today.workload, task.today.target, *t)}\n" for t in trials))
    log.write_text(autotvm.record.encode(*record_of(tasks[0], 3, 1e-3)) + "\n")
    with autotvm.apply_history_best([str(log), str(jsonl)]):
        lib = relay.build(mod, target="llvm", params=params)
    for config in (chosen[1], tasks[0].config_space[3].values):
        values = {k: v for k, v in config.items() if k != "family"}
        assert values in list(lib.compiled.kernels.config), config
    assert lib.compiled.tuned.startswith("autotvm.apply_history_best: 2 of this target, 5 workloads")
    untuned = relay.build(mod, target="llvm", params=params)
    assert "apply_history_best" not in untuned.compiled.tuned


def test_tophub_gives_the_shipped_records_and_those_of_more_files(program, tasks, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    log = tmp_path / "mine.log"
    log.write_text(autotvm.record.encode(*record_of(tasks[0], 3, 1e-9)) + "\n")
    with autotvm.tophub.context("llvm", extra_files=[str(log)]):
        lib = relay.build(mod, target="llvm", params=params)
    config = {k: v for k, v in tasks[0].config_space[3].values.items() if k != "family"}
    assert config in list(lib.compiled.kernels.config)


def test_graph_tuners_write_the_best_records(tasks, tmp_path):
    from tvm import autotvm
    from tvm.autotvm.graph_tuner import DPTuner, PBQPTuner

    log, out = tmp_path / "all.log", tmp_path / "graph.log"
    log.write_text("".join(autotvm.record.encode(*record_of(tasks[0], i, 1.0 + i)) + "\n" for i in range(3)))
    for kind in (DPTuner, PBQPTuner):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is nothing to choose
            tuner = kind(None, {"data": (1, 3, 16, 16)}, str(log), [], "llvm")
        tuner.benchmark_layout_transform(min_exec_num=2000)
        tuner.run()
        tuner.write_opt_sch2record_file(str(out))
        ((inp, result),) = autotvm.record.load_from_file(str(out))
        assert inp.config.index == 0 and result.costs == (1.0,)
        with autotvm.apply_graph_best(str(out)):
            pass


def test_what_is_not_served_says_so(tasks):
    from tvm import autotvm

    with pytest.raises(NotImplementedError, match="TOPI has no schedules of its own since TVM 0.20"):
        autotvm.register_topi_compute("mine")
    with pytest.raises(NotImplementedError, match="relay.build makes the kernel"):
        tasks[0].instantiate(tasks[0].config_space.get(0))


# ---------------------------------------------------------------- candidates that fail, and other machines


def test_a_candidate_that_fails_costs_its_trial_only(tmp_path):
    from tvm import autotvm

    log = tmp_path / "dense.log"
    task = autotvm.task.create("dense_pack.x86", args=DENSE, target="llvm")
    bad = [task.config_space[n].values for n in (1, 4, 5)]
    option = quick_option(lambda config: "its process ended" if config in bad else 1e-3)
    callbacks = [autotvm.callback.log_to_file(str(log))]
    autotvm.tuner.GridSearchTuner(task).tune(8, option, callbacks=callbacks)
    measured = list(autotvm.record.load_from_file(str(log)))
    assert [inp.config.index for inp, result in measured if result.error_no] == [1, 4, 5]
    assert {str(result.costs[0]) for _, result in measured if result.error_no} == {"its process ended"}

    tuner = autotvm.tuner.GridSearchTuner(task)
    tuner.load_history(measured)
    tuner.tune(2, option, callbacks=callbacks)
    indices = [inp.config.index for inp, _ in autotvm.record.load_from_file(str(log))]
    assert indices == list(range(10)), "failed configs are not measured again either"
    with autotvm.apply_history_best(measured) as best:
        assert best.lookup(task.target)(task.today.workload) == task.config_space[0].values


@pytest.mark.alone
@pytest.mark.parametrize("whose", sampled(["tvm.exec.rpc_server", "tvmfast"], ["tvm.exec.rpc_server"]))
def test_an_rpc_runner_measures_on_the_servers_of_its_key(tmp_path, whose):
    """Unchanged scripts: those whose tracker and servers are TVM's, and those that find ours, and its secret."""
    from tvm import autotvm

    with Cluster(tmp_path, tvms_own=whose != "tvmfast") as cluster:
        cluster.serve("one", key="shelf", module=whose)
        measure_over_rpc(autotvm, cluster.port, tmp_path / "dense.log")


def measure_over_rpc(autotvm, port, log):
    runner = autotvm.RPCRunner("shelf", "127.0.0.1", port, number=2, repeat=3, timeout=60, cooldown_interval=0)
    option = autotvm.measure_option(builder=autotvm.LocalBuilder(), runner=runner)
    tuner = autotvm.tuner.RandomTuner(autotvm.task.create("dense_pack.x86", args=DENSE, target="llvm"))
    tuner.tune(3, option, callbacks=[autotvm.callback.log_to_file(str(log))])
    measured = list(autotvm.record.load_from_file(str(log)))
    assert [len(result.costs) for _, result in measured] == [3, 3, 3]
    assert tuner.best_flops > 0

    absent = autotvm.measure_option(runner=autotvm.RPCRunner("attic", "127.0.0.1", port))
    with pytest.raises(ConnectionError, match="knows no server of key 'attic'"):
        tuner.tune(1, absent)
