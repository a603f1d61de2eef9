"""The end of a tuning: the best few configs of each task run in turns, so that luck, or a warm cache, decides nothing.

A trial runs one kernel again and again, with its weights in the caches. In a network other kernels have been there in
between, and operators are fused behind it: there they are measured again.
"""

import math
import random
import time as clock

import numpy as np

from ..base import env
from ..compiler import records
from ..compiler.build import build
from ..compiler.records import Record
from ..compiler.schedules import Workload
from ..runtime.stopwatch import Stopwatch, of_kernels
from .task import Task

_MOST = 6  # configs of a task, the default config one of them
_NEAR = 1.4  # times the best trial
_TURNS = 16
_RUNS, _SECONDS = 12, 0.15  # of a network's turn: so many runs, or seconds


def best_configs(tasks: list[Task], measured: list[Record]) -> dict[Task, list[dict]]:
    """For each task, the default config, the winner of earlier re-measurements, and then the best by their trials.

    Before a second config of a kind, with the same knobs, comes the best one of each other kind that is not far behind:
    what differs much differs most between a trial and a network.
    """
    winners = records.best(measured)
    best = {}
    for task in tasks:
        trials: dict[str, Record] = {}
        for record in measured:
            if record.workload == task.workload and record.seconds and not record.final:
                before = trials.setdefault(records.key(record.config), record)
                if record.call_seconds < before.call_seconds:
                    trials[records.key(record.config)] = record
        ordered = sorted(trials.values(), key=lambda r: r.call_seconds)
        ranked = [record.config for record in ordered]
        near = [record.config for record in ordered if record.call_seconds < _NEAR * ordered[0].call_seconds]
        winner = winners.get((task.workload, task.target))
        kinds = {
            (config.get("family"), config.get("outer"), *sorted(config)): config for config in reversed(near)
        }
        first = [config for config in near if config in kinds.values()]
        configs = [task.default, *([winner.config] if winner else []), *first, *ranked]
        distinct = {records.key(config): config for config in configs}
        best[task] = list(distinct.values())[: env.cap_if_quick(_MOST, 3)]
    return best


def variant(best: dict[Task, list[dict]], place: int, mod, params, target):
    """The network with everyone's config of that place, or the last one."""
    placed = [(task, configs[min(place, len(configs) - 1)]) for task, configs in best.items()]
    unmeasured = [
        records.new_record(task.workload, env.target_json(target), config) for task, config in placed
    ]
    return build(mod, params, target, records=unmeasured)


def in_network(best: dict[Task, list[dict]], untuned, mod, params, target, moment: str) -> list[Record]:
    """Build the network with everyone's second config, with everyone's third, and so on; time each kernel in each.

    `untuned` is its variant with everyone's first, which is the default one.
    """
    places = range(1, max(map(len, best.values())))
    variants = [untuned, *(variant(best, place, mod, params, target) for place in places)]
    inputs = random_inputs(untuned)
    watches = [Stopwatch(lib, lambda lib=lib: lib.run(inputs)) for lib in variants]
    turns = []
    for _ in range(
        env.cap_if_quick(_TURNS, 2)
    ):  # each in its order, lest a rhythm of the machine hit always the same
        order = random.sample(range(len(variants)), len(variants))
        spent = {place: _round(variants[place], watches[place]) for place in order}
        turns.append([spent[place] for place in range(len(variants))])
    measured, described = [], env.target_json(target)
    for task, configs in best.items():
        for place in range(len(configs)):
            seconds = [turn[place].get(task.workload, math.inf) / task.count for turn in turns]
            if max(seconds) < math.inf:
                record = records.new_record(task.workload, described, configs[place], seconds, final=moment)
                measured.append(record)
    return measured


def _round(lib, watch: Stopwatch) -> dict[Workload, float]:
    """The seconds that a run spends on each workload: of each kernel the least of some runs."""
    end = clock.perf_counter() + _SECONDS
    for run in range(env.cap_if_quick(_RUNS, 2)):
        if run and clock.perf_counter() > end:
            break
        watch()
    spent: dict[Workload, float] = {}
    workloads = {
        kernel: Workload.from_dict(described) for kernel, described in lib.graph["workloads"].items()
    }
    for calls in zip(*(of_kernels(run, lib) for run in watch.take()), strict=True):
        if workload := workloads.get(calls[0].name):
            spent[workload] = spent.get(workload, 0.0) + min(call.end - call.begin for call in calls)
    return spent


def by_kernel(best: dict[Task, list[dict]], runner, moment: str) -> list[Record]:
    """Measure the kernels by themselves, in turns, where the network cannot run here."""
    measured = []
    for task, configs in best.items():
        candidates = [task.candidate(config) for config in configs]
        turns = [runner.measure(candidates) for _ in range(2)]
        for number, config in enumerate(configs):
            trials = [turn[number] for turn in turns]
            if not any(trial.error for trial in trials):
                seconds, where = [s for trial in trials for s in trial.seconds], {"machine": runner.machine}
                measured.append(
                    records.new_record(task.workload, task.target, config, seconds, final=moment, **where)
                )
    return measured


def random_inputs(lib) -> list[np.ndarray]:
    """Random inputs for a network; zeros where they are not of floats."""
    generator = np.random.default_rng()
    return [
        generator.standard_normal(spec.shape).astype(spec.dtype) if "float" in spec.dtype
        else np.zeros(spec.shape, spec.dtype)
        for spec in lib.inputs
    ]  # fmt: skip
