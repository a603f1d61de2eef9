"""Tuning: what there is to tune, the tuners and their cost model, the loop over the tasks, the command line."""

import functools
import itertools
import json
import math
import os
import random
import socket

import fake_runner
import forked
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close
from fake_runner import AVX512, TARGET, WORKLOADS, FakeRunner, seconds_of
from testing import SmallNet, sampled
from torch import nn
from tvm import te

import tvmfast
from tvmfast.compiler import records
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.schedule.rules import RULES
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.core import machine
from tvmfast.core.simd import simd_of
from tvmfast.profiling import networks
from tvmfast.tuning import Candidate, LocalRunner, Task, tasks, trial
from tvmfast.tuning.features import features
from tvmfast.tuning.task import Progress, expected_gain
from tvmfast.tuning.tuners import GA, TUNERS, XGB, CostModel

HERE = simd_of(machine.host_target())
LANES = HERE.lanes

# What runs no kernels is for one CPU, whose spaces are the same on every machine.
VECTORS = records.simd_of_key(AVX512)
task = functools.partial(fake_runner.task, target=AVX512)
fake_tasks = functools.partial(fake_runner.tasks, AVX512)


# ---------------------------------------------------------------- a convolution as a workload


def convolution(channels, out, size, kernel, stride=1, padding=0, dilation=1, groups=1, batch=1, blocked=True):
    height, width = size
    top, left, bottom, right = (padding,) * 4 if isinstance(padding, int) else padding
    return Convolution(
        (batch, channels, height, width),
        (out, channels // groups, *kernel),
        (stride, stride),
        (top, left, bottom, right),
        (dilation, dilation),
        groups,
        blocked,
    )


CONVOLUTIONS = {
    "3x3": convolution(32, 48, (9, 11), (3, 3), padding=1),
    "of few channels": convolution(5, 20, (9, 7), (3, 3), padding=1),
    "of an image": convolution(3, 20, (17, 15), (5, 5), stride=2, padding=2, blocked=False),
    "strided": convolution(20, 40, (10, 9), (3, 3), stride=2, padding=1),
    "dilated": convolution(16, 16, (12, 12), (3, 3), padding=2, dilation=2),
    "padded on two sides": convolution(16, 24, (8, 8), (2, 3), padding=(1, 0, 0, 2)),
    "pointwise": convolution(24, 40, (7, 9), (1, 1)),
    "pointwise and strided": convolution(24, 40, (7, 9), (1, 1), stride=2),
    "of images": convolution(16, 16, (6, 6), (3, 3), padding=1, batch=3),
    "depthwise": convolution(20, 20, (9, 9), (3, 3), padding=1, groups=20),
    "depthwise and strided": convolution(32, 32, (9, 9), (5, 5), stride=2, padding=2, groups=32),
    "of groups of whole blocks": convolution(2 * LANES, 4 * LANES, (6, 7), (3, 3), padding=1, groups=2),
    "of small groups": convolution(24, 48, (6, 7), (3, 3), padding=1, groups=6),
    "of odd groups": convolution(15, 33, (6, 7), (3, 3), padding=1, groups=3),
}


def run(workload, config, data, weight) -> np.ndarray:
    """Run the kernel of a config, built as for a trial, and compare the shapes of its tensors with those declared."""
    shapes = workload.packed_input_shape(LANES), workload.packed_shape(config, LANES)
    source, packed = workload.pack_input(data, LANES), workload.pack(weight, config, LANES)
    assert (source.shape, packed.shape) == shapes
    inputs = [te.placeholder(shape, name=name) for shape, name in zip(shapes, ("data", "weight"), strict=True)]
    output_shape = workload.output_shape(config, LANES)
    assert tuple(map(int, workload.compute(*inputs, config).shape)) == output_shape
    candidate = Candidate(workload, config, TARGET)
    library = trial.build(candidate)
    tensors = [tvm.runtime.tensor(array) for array in (source, packed, np.full(output_shape, np.nan, "float32"))]
    assert library.implements_function("main")
    library["main"](*tensors)
    return workload.unpack_output(tensors[-1].numpy(), LANES)


SAMPLE = (
    "3x3",
    "of an image",
    "strided",
    "padded on two sides",
    "pointwise and strided",
    "of images",
    "depthwise",
    "of groups of whole blocks",
    "of odd groups",
)


@pytest.mark.parametrize("name", sampled(CONVOLUTIONS, SAMPLE))
def test_every_config_makes_pytorchs_convolution(name):
    workload, choose = CONVOLUTIONS[name], random.Random(0)
    generator = np.random.default_rng(0)
    data, weight = (generator.standard_normal(s, dtype="float32") for s in (workload.data, workload.weight))
    top, left, bottom, right = workload.padding
    padded, weights = (
        F.pad(torch.from_numpy(data), (left, right, top, bottom)).double(),
        torch.from_numpy(weight).double(),
    )
    wanted = F.conv2d(padded, weights, None, workload.strides, 0, workload.dilation, workload.groups)
    terms = weight[0].size
    close(workload.reference(data, weight), wanted, terms)
    space = workload.configs(HERE)
    by_family = {}
    for config in choose.sample(space, len(space)):
        by_family.setdefault((config["family"], config.get("tile_oh", 1) > 1), config)
    for config in [workload.default_config(HERE), *by_family.values()]:
        close(run(workload, config, data, weight), wanted, terms)


def test_every_config_makes_numpys_product():
    workload, choose = Dense(3, 17, 2 * LANES + 3), random.Random(0)
    generator = np.random.default_rng(0)
    data, weight = (generator.standard_normal(s, dtype="float32") for s in (workload.data, workload.weight))
    wanted = data.astype("float64") @ weight
    close(workload.reference(data, weight), wanted, len(weight))
    for config in [workload.default_config(HERE), *choose.sample(workload.configs(HERE), 4)]:
        close(run(workload, config, data, weight), wanted, len(weight))


def test_a_convolution_counts_its_multiplications():
    assert CONVOLUTIONS["3x3"].macs == 9 * 11 * 48 * 32 * 9
    assert CONVOLUTIONS["of odd groups"].macs == 6 * 7 * 33 * 5 * 9
    assert CONVOLUTIONS["of images"].macs == 3 * 6 * 6 * 16 * 16 * 9


# ---------------------------------------------------------------- tasks


def test_the_tasks_of_a_network_are_its_distinct_kernels_in_order(small):
    found = tasks(small.mod, small.params)
    assert [str(task) for task in found] == ["conv2d 3x3, 3 to 8, 8x8", "conv2d 3x3, 8 to 8, 8x8", "dense 128 to 5"]
    assert [task.count for task in found] == [1, 1, 1]
    assert {task.target for task in found} == {TARGET}
    assert found[1].operations == 2 * 8 * 8 * 8 * 8 * 9


def test_equal_layers_are_one_task():
    net = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.Conv2d(16, 16, 3, 2, padding=1),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(16, 32, 3, groups=4),
    ).eval()
    found = tasks(*tvmfast.from_pytorch(net, {"x": (2, 16, 12, 12)}))
    assert [(str(task), task.count) for task in found] == [
        ("conv2d 3x3, 16 to 16, 12x12, batch 2", 2),
        ("conv2d 1x1, 16 to 16, 12x12, batch 2", 1),
        ("conv2d 3x3/2, 16 to 16, 12x12, batch 2", 1),
        ("depthwise 3x3, 16, 6x6, batch 2", 1),
        ("conv2d of 4 groups 3x3, 16 to 32, 4x4, batch 2", 1),
    ]


def test_the_tasks_are_those_that_a_build_makes(small):
    lib = tvmfast.build(small.mod, small.params, records=False)
    built = list(lib.graph["workloads"].values())
    for each in tasks(small.mod, small.params):
        assert json.loads(str(records.new_record(each.workload, TARGET, each.default)))["workload"] in built


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_space_has_each_config_once_and_the_default_one_first(name):
    each = task(name)
    keys = [records.key(config) for config in each.space]
    assert len(set(keys)) == len(keys) > 4
    assert each.space[0] == each.default == WORKLOADS[name].default_config(VECTORS)
    assert keys == [records.key(config) for config in WORKLOADS[name].configs(VECTORS)]


def test_tasks_for_another_cpu(small):
    found = tasks(small.mod, small.params, {"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert len(found) == 3 and "aarch64" in found[0].target


# ---------------------------------------------------------------- which task is next


def progress(name, *batches, count=1) -> Progress:
    state = Progress(task(name, count))
    for seconds in batches:
        state.update(list(seconds))
    return state


def test_progress_keeps_the_best_after_each_batch():
    improved = progress("conv", [3.0, 2.0], [2.5, math.inf], [1.0, 1.5])
    assert (improved.best, improved.trials, improved.last, improved.last_gain) == ([2.0, 2.0, 1.0], 6, 1.5, 5)
    failed = progress("conv", [math.inf])
    assert (failed.best, failed.trials, failed.last_gain) == ([math.inf], 1, 0)


def gain(which, *others) -> float:
    return expected_gain(which, [which, *others])


def test_more_is_gained_where_the_kernel_is_there_more_often():
    assert gain(progress("conv", [1.0], count=3)) == pytest.approx(3 * gain(progress("conv", [1.0])))


def test_more_is_gained_where_the_last_batches_gained():
    still = progress("conv", [9.0], [9.0], [9.0], [9.0], [9.0])
    falling = progress("conv", [9.0], [9.0], [12.0], [10.0], [9.0])
    assert gain(falling) == pytest.approx(gain(still)), "only the best counts"
    falling = progress("conv", [13.0], [12.0], [11.0], [10.0], [9.0])
    assert gain(falling) > gain(still)


def test_more_is_gained_by_who_is_slower_than_its_kind():
    fast = progress("conv", [1e-3], [1e-3], [1e-3])
    share = task("strided").operations / task("conv").operations
    as_fast = progress("strided", *[[1e-3 * share]] * 3)
    slower = progress("strided", *[[3e-3 * share]] * 3)
    assert gain(slower, fast) > 3 * gain(as_fast, fast)
    dense = progress("dense", *[[1e-9]] * 3)
    assert gain(as_fast, fast, dense) == gain(as_fast, fast), "another kind says nothing"


def test_more_is_gained_in_the_first_batches():
    batches = [gain(progress("conv", *[[1.0]] * n), progress("conv", [0.1])) for n in (1, 2, 4, 8)]
    assert batches == sorted(batches, reverse=True) and batches[0] > batches[-1] > 0


def test_a_task_whose_configs_all_fail_is_given_up_after_some_batches():
    assert gain(progress("conv", [math.inf])) == math.inf
    assert gain(progress("conv", *[[math.inf]] * 3)) == 0
    working = progress("conv", [1.0])
    assert gain(working, progress("strided", *[[math.inf]] * 3)) > 0


# ---------------------------------------------------------------- features


def test_features_are_finite_and_as_many_for_every_workload():
    lengths = set()
    of_bytes = [workload for name in ("dot_conv", "dot_matmul") for workload in RULES[name].EXAMPLES]
    for workload in [*WORKLOADS.values(), *CONVOLUTIONS.values(), Dense(7, 33, 5), *of_bytes]:
        space = workload.configs(VECTORS)
        for config in [space[0], *random.Random(0).sample(space, min(8, len(space)))]:
            values = features(workload, config, VECTORS, 2)
            assert np.isfinite(np.array(values, "float64")).all(), (workload, config, values)
            lengths.add(len(values))
    assert len(lengths) == 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_features_tell_configs_apart(name):
    seen = {}
    for config in task(name).space:
        seen.setdefault(tuple(features(WORKLOADS[name], config, VECTORS, 2)), []).append(config)
    assert len(seen) > 0.9 * len(task(name).space), [same for same in seen.values() if len(same) > 1][:3]


# ---------------------------------------------------------------- tuners


def tuner(kind: str, each: Task, seed=0, model=None):
    more = {}
    if TUNERS[kind] is XGB:
        more = {
            "workload": each.workload,
            "model": model or CostModel(),
            "features": lambda config: features(each.workload, config, VECTORS, 2),
        }
    return TUNERS[kind](each.space, seed, **more)


def ask(searcher, trials: int, batch=8, seconds=seconds_of) -> list[int]:
    """Tune; give the indices of the configs that were measured, in their order."""
    order = []
    while len(order) < trials and (chosen := searcher.propose(min(batch, trials - len(order)))):
        order += chosen
        for number in chosen:
            searcher.update(number, seconds(searcher.space[number]))
    return order


@pytest.mark.parametrize("kind", TUNERS)
@pytest.mark.parametrize("name", ["dense", "depthwise"])
def test_a_tuner_begins_with_the_default_config_and_measures_each_once_to_the_end(kind, name):
    each = task(name)
    some = Task(each.workload, 1, AVX512)
    some.__dict__["space"] = each.space[:60]
    order = ask(tuner(kind, some), 1000)
    assert order[0] == 0
    assert sorted(order) == list(range(len(some.space)))


@pytest.mark.parametrize("kind", TUNERS)
def test_a_tuner_takes_in_what_others_measured(kind):
    each = task("dense")
    searcher = tuner(kind, each)
    for number in (0, 3, 5):
        searcher.update(number, 1.0)
    order = ask(searcher, 1000)
    assert sorted([*order, 0, 3, 5]) == list(range(len(each.space)))


@pytest.mark.parametrize("kind", TUNERS)
def test_a_tuner_lives_with_configs_that_fail(kind):
    each = task("pointwise")
    assert len(ask(tuner(kind, each), 40, seconds=lambda config: math.inf)) == 40
    fails = lambda config: math.inf if config["tile_oc"] > 1 else seconds_of(config)  # noqa: E731
    assert len(ask(tuner(kind, each), 64, seconds=fails)) == 64


@pytest.mark.parametrize("kind", ["random", "ga", "xgb"])
def test_the_seed_decides_a_tuners_choices(kind):
    orders = [ask(tuner(kind, task("conv"), seed), 32) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_the_grid_is_searched_in_its_order():
    assert ask(tuner("grid", task("conv")), 20) == list(range(20))


def best_after(kind, name, trials, seed) -> float:
    """How far the best of so many trials is from the best of all."""
    each = task(name)
    times = [seconds_of(config) for config in each.space]
    return min(times[number] for number in ask(tuner(kind, each, seed), trials)) / min(times)


@pytest.mark.parametrize("name", ["conv", "pointwise"])
def test_tuners_that_learn_are_nearer_the_best_than_chance(name):
    trials, seeds = 48, range(5)
    chance, genes, trees = (
        np.mean([best_after(kind, name, trials, seed) for seed in seeds]) for kind in ("random", "ga", "xgb")
    )
    assert trees < chance and genes < chance and trees < 1.1, (chance, genes, trees)


def test_a_child_has_its_parents_knobs():
    space = task("conv").space
    genetic = GA(space, seed=0, mutation=0.0)
    pairs = [(a, b) for a, b in itertools.permutations(range(0, len(space), 17), 2)]
    seen = 0
    for first, second in random.Random(0).sample(pairs, 200):
        number = genetic._child(first, second)
        if number is not None:
            seen += 1
            child = space[number]
            assert all(value in (space[first].get(knob), space[second].get(knob)) for knob, value in child.items())
    assert seen > 20


# ---------------------------------------------------------------- the cost model


def agreement(scores, seconds) -> float:
    """Of pairs of configs, the share that the scores order as the times do."""
    pairs = [(i, j) for i, j in itertools.combinations(range(len(seconds)), 2) if seconds[i] != seconds[j]]
    return float(np.mean([(scores[i] > scores[j]) == (seconds[i] < seconds[j]) for i, j in pairs]))


def seen(name, config) -> list[float]:
    return features(WORKLOADS[name], config, VECTORS, 2)


def test_a_cost_model_ranks_configs_that_it_has_not_seen():
    space = random.Random(0).sample(task("conv").space, 200)
    model = CostModel()
    for config in space[:120]:
        model.add(WORKLOADS["conv"], seen("conv", config), seconds_of(config))
    assert len(model) == 120
    others = space[120:]
    scores = model.predict([seen("conv", config) for config in others])
    assert agreement(scores, [seconds_of(config) for config in others]) > 0.8


def test_a_cost_model_ranks_configs_of_a_workload_by_what_others_have_taught_it():
    model = CostModel()
    for config in random.Random(0).sample(task("conv").space, 200):
        model.add(WORKLOADS["conv"], seen("conv", config), 1000 * seconds_of(config))  # its scale does not matter
    others = random.Random(1).sample(task("strided").space, 80)
    scores = model.predict([seen("strided", config) for config in others])
    assert agreement(scores, [seconds_of(config) for config in others]) > 0.5


def test_a_cost_model_learns_which_configs_fail():
    model = CostModel()
    seconds = {
        n: math.inf if config["loop_order"] == "rows" else 1.0 for n, config in enumerate(task("pointwise").space)
    }
    for number in random.Random(0).sample(list(seconds), 60):
        model.add(WORKLOADS["pointwise"], seen("pointwise", task("pointwise").space[number]), seconds[number])
    scores = model.predict([seen("pointwise", config) for config in task("pointwise").space])
    assert agreement(scores, list(seconds.values())) > 0.9


# ---------------------------------------------------------------- the session


def tune(path, runner=None, **options):
    """`tvmfast.tune` on tasks by themselves, with a runner that answers at once."""
    given = {"tasks": fake_tasks(), "runner": runner or FakeRunner(), "seed": 0, "trials": 48} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "threads", lambda: 2)  # the cost model sees them
        return tvmfast.tune(None, {}, json.loads(AVX512), records=path, **given)


def trials_of(path) -> list[records.Record]:
    return [each for each in records.read(path) if not each.final]


@pytest.mark.parametrize("kind", TUNERS)
def test_a_tuning_measures_its_trials_each_config_once_and_writes_all_down(kind, tmp_path):
    path = tmp_path / "tuning.jsonl"
    summary = tune(path, tuner=kind)
    found = trials_of(path)
    assert len(found) == 48 == sum(trials for _, trials, _, _ in summary.rows)
    assert len({(each.workload, records.key(each.config)) for each in found}) == 48
    for each, trials, before, best in summary.rows:
        theirs = [r for r in found if r.workload == each.workload]
        assert len(theirs) == trials >= 1
        assert theirs[0].config == each.default, "it begins with the config that needs no tuning"
        assert before == pytest.approx(seconds_of(each.default), rel=1e-3)
        assert best.final and best.call_seconds == pytest.approx(min(r.call_seconds for r in theirs))
    assert all(each.machine == FakeRunner.machine and each.error is None for each in found)


def test_trials_go_to_every_task_and_most_to_where_they_save_most(tmp_path):
    each = [Task(workload, 20 if name == "strided" else 1, AVX512) for name, workload in WORKLOADS.items()]
    summary = tune(tmp_path / "tuning.jsonl", tasks=each, trials=150)
    trials = {task.workload: count for task, count, _, _ in summary.rows}
    assert min(trials.values()) >= 8
    assert trials[WORKLOADS["strided"]] == max(trials.values()) > 50


def test_a_few_trials_reach_every_task(tmp_path):
    summary = tune(tmp_path / "tuning.jsonl", trials=12)
    trials = [trials for _, trials, _, _ in summary.rows]
    assert sum(trials) == 12 and min(trials) >= 1


def test_the_same_call_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "tuning.jsonl"
    tune(path, trials=20)
    before = path.read_bytes()
    again = FakeRunner()
    summary = tune(path, again, trials=20)
    assert again.asked == [], "nothing is left to measure, not even finals"
    assert path.read_bytes() == before
    assert sum(trials for _, trials, _, _ in summary.rows) == 20

    more = FakeRunner()
    summary = tune(path, more, trials=44)
    assert path.read_bytes().startswith(before)
    found = trials_of(path)
    assert len(found) == 44 == sum(trials for _, trials, _, _ in summary.rows)
    assert len({(each.workload, records.key(each.config)) for each in found}) == 44


def test_records_of_another_target_do_not_count(tmp_path):
    path = tmp_path / "tuning.jsonl"
    other = str(tvm.target.Target({**json.loads(AVX512), "num-cores": machine.usable_cores() + 7}))
    path.write_text(f"{records.new_record(WORKLOADS['conv'], other, task('conv').default, (1e-9,))}\n")
    summary = tune(path, tasks=[task("conv")], trials=8)
    assert len(trials_of(path)) == 9
    assert summary.rows[0][1] == 8 and summary.rows[0][3].call_seconds > 1e-6


def test_a_task_ends_after_so_many_trials_that_were_no_better(tmp_path):
    summary = tune(
        tmp_path / "all.jsonl", FakeRunner(lambda config: 1.0), tasks=[task("conv")], trials=500, early_stopping=11
    )
    assert summary.rows[0][1] == 1 + 11
    summary = tune(
        tmp_path / "all.jsonl", FakeRunner(lambda config: 1.0), tasks=[task("conv")], trials=500, early_stopping=13
    )
    assert summary.rows[0][1] == 1 + 13, "those of before count"
    path = tmp_path / "one.jsonl"
    order = []

    def falling(config):
        order.append(config)
        return 1.0 / min(len(order), 20)

    summary = tune(path, FakeRunner(falling), tuner="random", tasks=[task("conv")], trials=500, early_stopping=5)
    assert summary.rows[0][1] == 25


def test_a_small_space_is_searched_to_its_end(tmp_path):
    path = tmp_path / "tuning.jsonl"
    summary = tune(path, tasks=[task("dense")], trials=100_000)
    assert summary.rows[0][1] == len(task("dense").space)
    best = min(seconds_of(config) for config in task("dense").space)
    assert summary.rows[0][3].call_seconds == pytest.approx(best)


def test_trials_that_fail_are_written_down_with_their_error(tmp_path):
    path = tmp_path / "tuning.jsonl"
    runner = FakeRunner(lambda config: "its process ended" if config["tile_oc"] == 2 else seconds_of(config))
    summary = tune(path, runner, tasks=[task("pointwise")], trials=40)
    failed = [each for each in trials_of(path) if each.error]
    assert failed and all(each.error == "its process ended" and each.seconds == () for each in failed)
    assert all((each.config["tile_oc"] == 2) == bool(each.error) for each in trials_of(path))
    assert summary.rows[0][3].config["tile_oc"] != 2


def test_a_network_of_which_every_trial_fails_has_no_best(tmp_path):
    summary = tune(tmp_path / "tuning.jsonl", FakeRunner(lambda config: "it crashed"), tasks=[task("conv")], trials=20)
    assert summary.rows[0][1:] == (20, None, None)
    assert "conv2d 3x3, 32 to 64, 28x28" in str(summary)


def test_earlier_records_of_other_tasks_teach_the_cost_model_first(tmp_path):
    """With them a first batch is already chosen by the model, without them at random."""
    path = tmp_path / "tuning.jsonl"
    tune(path, tuner="random", tasks=[task("conv")], trials=200)
    earlier, found = path.read_text(), {}
    for transfer in (True, False):
        path.write_text(earlier)
        runner = FakeRunner()
        tune(path, runner, tasks=[task("strided")], trials=16, transfer=transfer)
        first = [seconds_of(candidate.config) for candidate in runner.asked[0]]
        found[transfer] = np.median(first[1:])
    assert found[True] < found[False]


def test_the_best_few_run_again_and_the_finals_decide(tmp_path):
    path, turn = tmp_path / "tuning.jsonl", []

    def lucky(config):
        """Faster than ever in its trial, and slower than all in the finals."""
        turn.append(config)
        return seconds_of(config) if config != unlucky else 1e-6 if turn.count(config) == 1 else 1.0

    unlucky = task("conv").space[5]
    summary = tune(path, FakeRunner(lucky), tuner="grid", tasks=[task("conv")], trials=24)
    finals = [each for each in records.read(path) if each.final]
    assert len(finals) == 6 and len({each.final for each in finals}) == 1
    assert {records.key(task("conv").default), records.key(unlucky)} <= {records.key(r.config) for r in finals}
    best = summary.rows[0][3]
    assert best in finals and best.config != unlucky
    assert best.call_seconds == min(each.call_seconds for each in finals)


def test_ctrl_c_ends_with_the_best_so_far_and_the_same_call_goes_on(tmp_path):
    path = tmp_path / "tuning.jsonl"

    class Stopped(FakeRunner):
        def measure(self, candidates):
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().measure(candidates)

    summary = tune(path, Stopped(), tuner="grid", tasks=[task("conv")], trials=64)
    assert summary.interrupted and summary.rows[0][1] == 16 == len(records.read(path))
    best = min(seconds_of(config) for config in task("conv").space[:16])
    assert summary.rows[0][3].call_seconds == pytest.approx(best)
    assert "16 trials" in str(summary) and "interrupted: the same call goes on from here" in str(summary)
    summary = tune(path, tuner="grid", tasks=[task("conv")], trials=64)
    assert not summary.interrupted and summary.rows[0][1] == 64 == len(trials_of(path))


def test_a_tuning_shows_itself(tmp_path):
    summary = tune(tmp_path / "tuning.jsonl")
    frame = summary.frame()
    assert list(frame.columns) == ["kernels", "trials", "before (ms)", "after (ms)", "ratio", "config"]
    assert list(frame.index) == [str(each) for each in fake_tasks()]
    assert (frame["ratio"] <= 1.001).all() and (frame["ratio"] < 0.95).any()
    pd.testing.assert_series_equal(frame["ratio"], frame["after (ms)"] / frame["before (ms)"], check_names=False)
    text = str(summary)
    assert "conv2d 3x3/2, 32 to 64, 28x28" in text and "48 trials in" in text
    assert "<table" in summary._repr_html_() and "48 trials" in summary._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuner": "annealing"}, "tuner: expected one of grid, random, ga, xgb, metaschedule; got 'annealing'"),
        ({"trials": 0}, "trials: expected 1 or more, or None; got 0"),
        ({"trials": -3}, "trials: expected 1 or more, or None; got -3"),
        ({"early_stopping": 0}, "early_stopping: expected 1 or more, or None; got 0"),
        ({"target": "cuda"}, "is of kind 'cuda'"),
        ({"tasks": []}, "nothing to tune: the network has no kernels for this tuner"),
        ({"target": {"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, "runner": None}, "this machine cannot measure"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tvmfast.tune(
            None, {}, records=tmp_path / "tuning.jsonl", **{"tasks": [task("conv")], "runner": FakeRunner()} | options
        )


def test_tuning_needs_a_compiler_and_says_so(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"with a C\+\+ compiler: install g\+\+ or clang\+\+"):
        tvmfast.tune(small.mod, small.params, records=tmp_path / "tuning.jsonl")
    assert not (tmp_path / "tuning.jsonl").exists()


def test_a_network_without_tasks_is_refused(compile_function, tmp_path):
    from testing import Function

    mod, params = tvmfast.from_pytorch(Function(torch.relu).eval(), {"x": (1, 3)})
    with pytest.raises(ValueError, match="nothing to tune"):
        tvmfast.tune(mod, params, records=tmp_path / "tuning.jsonl", runner=FakeRunner())


# ---------------------------------------------------------------- all of it, on this machine


def test_a_network_is_tuned_and_built_with_what_was_found(small, tmp_path, monkeypatch, quick):
    if quick:  # fewer finals, and short ones
        monkeypatch.setenv("TVMNOTES_QUICK", "1")
    path = tmp_path / "small.jsonl"
    with LocalRunner(timeout=60) as runner:
        summary = tvmfast.tune(small.mod, small.params, records=path, trials=12, seed=0, runner=runner)
    assert not summary.interrupted
    found = records.read(path)
    trials, finals = ([r for r in found if bool(r.final) == last] for last in (False, True))
    assert len(trials) == 12 and {r.error for r in trials} == {None}
    assert all(len(r.seconds) == (2 if quick else 10) and min(r.seconds) > 0 for r in trials)
    assert {r.workload for r in finals} == {each.workload for each in tasks(small.mod, small.params)}
    assert set(summary.network) == {"before", "after"}
    assert "the network takes" in str(summary)
    lib = tvmfast.build(small.mod, small.params, records=path)
    assert lib.tuned == f"{path}: 3 of this target"
    close(lib(small.x), small.exact)
    best = records.best(found)
    for each, _, before, winner in summary.rows:
        assert winner == best[each.workload, TARGET] and winner.final and before > 0
    before = path.read_bytes()
    again = tvmfast.tune(small.mod, small.params, records=path, trials=12, seed=0)
    assert path.read_bytes() == before, "nothing is left to measure, not even finals"
    assert [row[1] for row in again.rows] == [row[1] for row in summary.rows]
    assert set(again.network) == set(summary.network)
    picked = records.pick_best(path, tmp_path / "best.jsonl")
    assert len(picked) == len(summary.rows) and all(record.final for record in picked), "the finals decide"
    for more in (path, False):
        batch = tvmfast.from_pytorch(networks.seeded(SmallNet, 8), {"image": (2, 3, 8, 8)})
        assert tvmfast.build(*batch, records=more).tuned == (
            f"{path}: none for this network and target" if more else ""
        )


def network_of_bytes() -> tuple:
    """A convolution of an image, one of bytes, one pointwise, and a product, in int8; and samples."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 24, 3), nn.ReLU(), nn.Conv2d(24, 40, 1), nn.Flatten(),
        nn.Linear(40 * 25, 40),
    )  # fmt: skip
    samples = [np.random.default_rng(n).standard_normal((1, 3, 14, 14), dtype="float32") for n in range(2)]
    return tvmfast.quantize(*tvmfast.from_pytorch(net.eval(), {"x": (1, 3, 14, 14)}), samples), samples


@pytest.mark.alone
def test_kernels_of_bytes_are_tuned_and_compute_the_same_bits(tmp_path):
    (mod, params), (x, _) = network_of_bytes()
    found = tasks(mod, params)
    assert {each.workload.dtype for each in found} == {"uint8"} and len(found) == 4
    assert all(len(each.space) > 1 for each in found)
    path = tmp_path / "tuning.jsonl"
    with LocalRunner(timeout=60) as runner:
        tvmfast.tune(mod, params, records=path, trials=12, seed=0, runner=runner)
    assert {each.error for each in trials_of(path)} == {None}, "each result was exactly NumPy's"
    lib = tvmfast.build(mod, params, records=path)
    assert lib.tuned == f"{path}: 4 of this target"
    best = records.best(records.read(path))
    used = {records.key(each) for each in lib.graph["kernels"].values()}
    assert {records.key(each.config) for each in best.values()} <= used
    np.testing.assert_array_equal(lib(x), tvmfast.build(mod, params, records=False)(x))


def test_other_configs_of_bytes_compute_the_same_bits():
    """Whatever a tuning chooses: the last config of each space."""
    (mod, params), (x, _) = network_of_bytes()
    chosen = [records.new_record(each.workload, TARGET, each.space[-1], (1e-3,)) for each in tasks(mod, params)]
    assert [records.parse(str(each)) for each in chosen] == chosen
    lib = tvmfast.build(mod, params, records=chosen)
    assert lib.tuned == f"records: {len(chosen)} of this target"
    np.testing.assert_array_equal(lib(x), tvmfast.build(mod, params, records=False)(x))


def test_records_by_another_instruction_are_not_used():
    """Cascade Lake has the registers of Skylake, and vpdpbusd besides."""
    (mod, params), _ = network_of_bytes()
    target, other = (
        str(resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu}))
        for mcpu in ("skylake-avx512", "cascadelake")
    )
    for measured_for, used in ((other, False), (target, True)):
        of_each = tasks(mod, params, json.loads(measured_for))
        dot = simd_of(tvm.target.Target(json.loads(measured_for))).dot
        last = [[config for config in each.space if config["instruction"] == dot][-1] for each in of_each]
        found = [
            records.new_record(each.workload, measured_for, config, (1e-3,))
            for each, config in zip(of_each, last, strict=True)
        ]
        lib = tvmfast.build(mod, params, json.loads(target), records=found)
        assert ("none for this network" in lib.tuned) != used
        assert {config.get("instruction") for config in lib.kernels.config} - {None} == {"vpmaddwd 512"}


# ---------------------------------------------------------------- the command line


def command(*args, **options):
    return forked.run("-m", "tvmfast", "tune", *args, **options)


@pytest.mark.alone
def test_the_command_tunes_goes_on_and_tells(tmp_path):
    networks.export_onnx(networks.seeded(SmallNet, 8), tmp_path / "small.onnx", (1, 3, 8, 8))
    for trials in (4, 5):
        done = command("small.onnx", "--trials", trials, "--tuner", "random", "--seed", 0, cwd=tmp_path,
                       env={**os.environ, "TQDM_DISABLE": "1", "COLUMNS": "200", "TVMNOTES_QUICK": "1"})  # fmt: skip
        assert done.returncode == 0, done.stderr
        path = tmp_path / "small.jsonl"
        assert len(trials_of(path)) == trials
        assert f"{trials} trials in small.jsonl" in done.stdout and "the network takes" in done.stdout
        assert "conv2d 3x3, 8 to 8, 8x8" in done.stdout
    lib = tvmfast.build(*tvmfast.from_onnx(tmp_path / "small.onnx", {"data": (1, 3, 8, 8)}), records=path)
    assert lib.tuned == f"{path}: 3 of this target"


def test_the_command_refuses_what_it_cannot_do(tmp_path, tmp_path_factory, capsys, monkeypatch):
    from typer.testing import CliRunner

    from tvmfast import commands

    file = tmp_path_factory.mktemp("network") / "small.onnx"
    networks.export_onnx(networks.seeded(SmallNet, 8), file, (1, 3, 8, 8))
    network = str(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_imported", functools.cache(commands._imported))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for args, message in [
        ([network, "--tuner", "annealing"], "tuner: expected one of grid, random, ga, xgb, metaschedule"),
        ([network, "--trials", "0"], "trials: expected 1 or more"),
        ([network, "--early-stopping", "0"], "early_stopping: expected 1 or more"),
        ([network, "--target", "skylak"], "LLVM knows no CPU 'skylak'"),
        ([network, "--records", str(tmp_path)], "is a directory"),
        ([network, "--batch", "0"], "expected 1 or more, got 0"),
        (["no-such-network"], "no-such-network"),
        (["missing.onnx"], "missing.onnx"),
        ([network, "--tracker", f"127.0.0.1:{port}"], f"no RPC tracker answers at 127.0.0.1:{port}"),
        ([network, "--tracker", "here"], "tracker: expected HOST:PORT"),
    ]:
        result = CliRunner(env={"COLUMNS": "300"}).invoke(commands.app, ["tune", *args])
        assert result.exit_code == 2, (args, result.output)
        assert message in " ".join(result.output.replace("│", " ").split()), (args, result.output)
    assert list(tmp_path.iterdir()) == []
