"""The end of a tuning: the best few configs of each task, measured alternately, so that luck decides nothing.

Nor does a warm cache: a trial runs one kernel repeatedly, with its weights in the caches. In a network other
kernels run in between, and operators are fused into the kernel: there the best configs are measured again.
"""

import logging
import math
import random
import time as clock

import numpy as np
import tvm

from ..compiler import records
from ..compiler.build import build
from ..compiler.records import Record
from ..compiler.schedule.workloads.workload import Workload
from ..core import machine
from ..core.dims import dims_of
from ..core.protocols import Runner
from ..runtime.compiled import Compiled
from ..runtime.stopwatch import Stopwatch, of_kernels
from .task import Task

_MOST = 6  # configs of a task, including the default one
_NEAR = 1.4  # factor of the best trial's time
_ROUNDS = 16
_RUNS, _SECONDS = 12, 0.15  # limits of a network's round: runs, seconds
_log = logging.getLogger(__name__)


def best_configs(tasks: list[Task], measured: list[Record]) -> dict[Task, list[dict]]:
    """Choose the configs of each task to re-measure.

    The default config, the winner of earlier re-measurements, and then the best by their trials. The best
    config of each kind (of the same knobs) that is nearly as fast as the fastest precedes a second config of
    any kind: dissimilar configs differ most between a trial and a network.
    """
    winners = records.best(measured)
    best = {}
    for task in tasks:
        trials: dict[str, Record] = {}
        for record in measured:
            if record.workload == task.workload and record.seconds and not record.final:
                key = records.key(record.config)
                before = trials.setdefault(key, record)
                if record.call_seconds < before.call_seconds:
                    trials[key] = record
        ordered = sorted(trials.values(), key=lambda r: r.call_seconds)
        ranked = [record.config for record in ordered]
        near = [record.config for record in ordered if record.call_seconds < _NEAR * ordered[0].call_seconds]
        winner = winners.get((task.workload, task.target))
        best_of_kind = {_kind(config): config for config in reversed(near)}
        first = [config for config in near if config in best_of_kind.values()]
        won = [winner.config] if winner else []
        distinct = {records.key(config): config for config in (task.default, *won, *first, *ranked)}
        best[task] = list(distinct.values())[: machine.cap_if_quick(_MOST, 3)]
        _log.debug("%s: measured again are %s", task, best[task])
    return best


def _kind(config: dict) -> tuple:
    return config.get("family"), config.get("loop_order"), *sorted(config)


def build_rank(
    best: dict[Task, list[dict]], rank: int, mod: tvm.IRModule, params: dict, target: tvm.target.Target
) -> Compiled:
    """Build the network with each task's config at `rank`, or its last one."""
    chosen = [(task, configs[min(rank, len(configs) - 1)]) for task, configs in best.items()]
    described = machine.target_json(target)
    unmeasured = [records.new_record(task.workload, described, config) for task, config in chosen]
    return build(mod, params, target, records=unmeasured)


def in_network(
    best: dict[Task, list[dict]],
    untuned: Compiled,
    mod: tvm.IRModule,
    params: dict,
    target: tvm.target.Target,
    moment: str,
) -> list[Record]:
    """Time each kernel in builds of the network: with each task's second config, its third, and so on.

    `untuned` is the build with each task's first config, the default one; `moment` becomes the records'
    `final`. Returns records of the configs that ran in every round.
    """
    others = range(1, max(map(len, best.values())))
    builds = [untuned, *(build_rank(best, rank, mod, params, target) for rank in others)]
    inputs = random_inputs(untuned)
    watches = [Stopwatch(lib, lambda lib=lib: lib.run(inputs)) for lib in builds]
    rounds = []
    for _ in range(machine.cap_if_quick(_ROUNDS, 2)):
        # In another order each round, so that periodic noise does not always hit the same build.
        order = random.sample(range(len(builds)), len(builds))
        spent = {rank: _round(builds[rank], watches[rank]) for rank in order}
        rounds.append([spent[rank] for rank in range(len(builds))])
    measured, described = [], machine.target_json(target)
    for task, configs in best.items():
        for rank in range(len(configs)):
            seconds = [each[rank].get(task.workload, math.inf) / task.count for each in rounds]
            if max(seconds) < math.inf:
                record = records.new_record(task.workload, described, configs[rank], seconds, final=moment)
                measured.append(record)
    return measured


def _round(lib: Compiled, watch: Stopwatch) -> dict[Workload, float]:
    """Return the seconds per run that each workload takes: per kernel the minimum of some runs."""
    end = clock.perf_counter() + _SECONDS
    for run in range(machine.cap_if_quick(_RUNS, 2)):
        if run and clock.perf_counter() > end:
            break
        watch()
    spent: dict[Workload, float] = {}
    described = lib.graph["workloads"]
    workloads = {kernel: Workload.from_dict(workload) for kernel, workload in described.items()}
    for calls in zip(*(of_kernels(run, lib) for run in watch.take()), strict=True):
        if workload := workloads.get(calls[0].name):
            spent[workload] = spent.get(workload, 0.0) + min(call.end - call.begin for call in calls)
    return spent


def by_kernel(best: dict[Task, list[dict]], runner: Runner, moment: str) -> list[Record]:
    """Measure the kernels one by one, in two rounds, if the network cannot run here."""
    measured = []
    for task, configs in best.items():
        candidates = [task.candidate(config) for config in configs]
        rounds = [runner.measure(candidates) for _ in range(2)]
        for config, *trials in zip(configs, *rounds, strict=True):
            if not any(trial.error for trial in trials):
                seconds = [s for trial in trials for s in trial.seconds]
                about = {"final": moment, "machine": runner.machine}
                measured.append(records.new_record(task.workload, task.target, config, seconds, **about))
    return measured


def random_inputs(lib: Compiled) -> list[np.ndarray]:
    """Make random inputs for a network, with its least dynamic dims; zeros if they are not floating-point."""
    generator = np.random.default_rng()
    inputs = []
    lowest = {name: dim.lower for name, dim in dims_of(spec.shape for spec in lib.inputs).items()}
    for spec in (each.at(lowest) for each in lib.inputs):
        if "float" in spec.dtype:
            inputs.append(generator.standard_normal(spec.shape).astype(spec.dtype))
        else:
            inputs.append(np.zeros(spec.shape, spec.dtype))
    return inputs
