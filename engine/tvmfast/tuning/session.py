"""`tn.tune`: the loop over a network's tasks, from the records to the best configs that the trials allow."""

import contextlib
import functools
import json
import logging
import math
import os
import random
import time as clock
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ..compiler import records
from ..compiler.build import build, resolve_target
from ..compiler.records import Record, locked, open_records, read_from
from ..compiler.schedule.workloads.workload import Workload
from ..compiler.shape_variants import specialize
from ..core import machine
from ..core.dims import dims_of
from ..core.protocols import Runner
from ..core.table import Table, draw
from ..profiling import measure
from ..profiling.profiler import schedule_text
from ..runtime.compiled import Compiled, cannot_run
from ..runtime.stopwatch import Stopwatch, of_kernels
from . import metaschedule
from .runner import LocalRunner
from .task import Bars, Progress, Task, expected_gain
from .task import tasks as tasks_of
from .tuners import TUNERS, CostModel, Tuner
from .tuners import tuner as make_tuner

_BATCH = 8
_TRIALS = 32  # per task, unless the user says otherwise
_MOST = 6  # configs of a task, including the default one
_NEAR = 1.4  # factor of the best trial's time
_ROUNDS = 16
_RUNS, _SECONDS = 12, 0.15  # limits of a network's round: runs, seconds
_log = logging.getLogger(__name__)


def tune(
    mod: tvm.IRModule,
    params: dict,
    target: Any = None,
    tuner: str = "xgb",
    trials: int | None = None,
    early_stopping: int | None = None,
    records: str | os.PathLike = "tuning.jsonl",
    runner: Runner | None = None,
    transfer: bool = True,
    tasks: list[Task] | None = None,
    seed: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> "Tuning":
    """Search for faster configs of a network's kernels by measuring; `tn.build(…, records=…)` then uses them.

    Each task starts with its default config, and the trials go to the tasks that promise the largest gain
    (see `task.expected_gain`). At the end the best few configs of each task are measured alternately, inside
    the network if this machine can run it. If the process is killed, the batch that was being measured is
    lost; the same call continues from there. Ctrl-C ends the search and returns what was found.

    Args:
        mod: the network; mod, params and target are as for `tn.build`.
        params: its parameters.
        target: the target; None means this machine.
        tuner: grid, random, ga, xgb, or metaschedule, which is for the kernels that tvmfast has no schedule
            for.
        trials: configs to measure in total, including those in the records; None means 32 per task.
        early_stopping: ends a task after this many trials in a row without improvement.
        records: the file to continue from, and to append to after each batch.
        runner: where to measure, such as `tn.tuning.RpcRunner(…)`; None means this machine.
        transfer: whether each task's cost model learns from the other tasks, those in the records included.
        tasks: some of `tn.tuning.tasks(mod, params, target)`; None means all.
        seed: for the tuner's choices, which metaschedule then makes on one core.
        sizes: values of dynamic dims, by name, for which kernels are measured. The records serve every build
            of the network for these dims, that of `tn.build(…, sizes=[…])` too, and those kernels with
            dynamic dims whose workload is the same.

    Returns:
        The result as a table: seconds of each task's kernel before and after, and of the network.

    Raises:
        ValueError: for an unknown tuner, no tasks, or numbers below 1; and what `tn.build` raises.
        OSError: if the records cannot be written.
        ConnectionError: if all servers are gone.
        RuntimeError: without a C++ compiler, or if all measuring processes are killed from outside, as a
            system does that is out of memory.
    """
    if tuner not in (*TUNERS, "metaschedule"):
        raise ValueError(f"tuner: expected one of {', '.join(TUNERS)}, metaschedule; got {tuner!r}")
    for name, value in (("trials", trials), ("early_stopping", early_stopping)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected 1 or more, or None; got {value}")
    target = resolve_target(target)
    mod = mod if sizes is None else specialize(mod, sizes)
    if runner is None and (reason := cannot_run(target)):
        raise ValueError(
            f"this machine cannot measure for {target}: {reason}; give runner=tn.tuning.RpcRunner(…)"
        )
    with contextlib.ExitStack() as stack:
        if runner is None:
            runner = stack.enter_context(LocalRunner())
        log = stack.enter_context(contextlib.closing(Log(records)))
        find = metaschedule.tasks if tuner == "metaschedule" else tasks_of
        tasks = list(find(mod, params, target) if tasks is None else tasks)
        if not tasks:
            raise ValueError("nothing to tune: the network has no kernels for this tuner")
        trials = machine.cap_if_quick(trials or _TRIALS * len(tasks), 64)
        session = Session(tasks, target, log, trials, early_stopping)
        try:
            session.run(tuner, runner, transfer, seed)
            session.finish(mod, params, runner)
        except KeyboardInterrupt:
            session.interrupted = True
    return session.result()


class Log:
    """The records that a tuning goes on from and appends to, as other processes may at the same time.

    Raises OSError if the file at `path` cannot be written; it is created if it does not exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path, self._read = Path(path), 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_records(self.path, "a+b", "write")

    def read_new(self) -> list[Record]:
        """Return the records that any process added since the last call.

        Raises and warns as `records.read` does.
        """
        records, self._read = read_from(self._file, self._read)
        return records

    def append(self, records: Iterable[Record]) -> None:
        """Append records, all or none, and flush them to disk before returning.

        Raises OSError if they cannot be written, on a full disk for example; the file's content stays as it
        was.
        """
        text = "".join(f"{record}\n" for record in records).encode()
        with locked(self._file):
            size = self._file.seek(0, os.SEEK_END)
            # A process that was killed may have left an incomplete line.
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
                text = b"\n" + text
            try:
                written = 0
                while written < len(text):
                    written += self._file.write(text[written:])
                os.fsync(self._file.fileno())
            except OSError as error:
                os.ftruncate(self._file.fileno(), size)
                message = f"cannot write the records ({error.strerror}); those of before are all there"
                raise type(error)(error.errno, message, str(self.path)) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Session:
    """A tuning in progress: its tasks, the state of each, and the file of records."""

    tasks: list[Task]
    target: tvm.target.Target
    log: Log
    trials: int
    early_stopping: int | None = None
    interrupted: bool = False
    network: measure.Comparison | None = None
    states: list[Progress] = field(init=False)
    tuners: dict[Workload, Tuner] = field(default_factory=dict, init=False)  # of the search, by workload
    started: float = field(default_factory=clock.monotonic)
    known: list[Record] = field(default_factory=list)  # of the target, in the file and new
    # Called around each batch, with whether it was measured, and its task's number.
    tell: Callable[[bool, int], None] = field(default=lambda is_measured, number: None)
    _lost: int = field(default=0, init=False)  # trials in a row that were killed from outside

    def __post_init__(self) -> None:
        self.states = [Progress(task) for task in self.tasks]
        self._target_key = machine.target_json(self.target)  # as records have it
        self._read(self.log.read_new())
        self.earlier = len(self.known)  # records from before this session
        _log.debug("%s: %d records of this target", self.log.path, self.earlier)

    def _read(self, fresh: list[Record]) -> list[Record]:
        fresh = [record for record in fresh if record.target == self._target_key]
        self.known += fresh
        return fresh

    @property
    def done(self) -> int:
        """Trials measured so far, of all tasks."""
        return sum(state.trials for state in self.states)

    # ------------------------------------------------------------ the search

    def run(self, tuner: str, runner: Runner, transfer: bool, seed: int | None) -> None:
        """Search with one of `TUNERS`; with "metaschedule", in which `transfer` changes nothing."""
        if tuner == "metaschedule":
            metaschedule.search(self, runner, seed)
        else:
            self.search(tuner, runner, transfer, seed)

    def go_beyond(self, trials: int, others: Iterable[Record] = ()) -> None:
        """Have the search measure so many trials beyond those known, `others` too, and seed it anew."""
        distinct: dict[tuple, Record] = {}
        for record in (*self.known, *others):
            if record.target == self._target_key:
                distinct.setdefault((record.workload, records.key(record.config), record.final), record)
        self.known = list(distinct.values())
        workloads = {task.workload for task in self.tasks}
        self.earlier = sum(record.workload in workloads and not record.final for record in self.known)
        self.trials = self.earlier + trials

    def search(self, tuner: str, runner: Runner, transfer: bool, seed: int | None) -> None:
        """Measure until the trials are used up, or nothing is left to try.

        With `transfer`, the tasks share a cost model, which also learns from other workloads in the records.
        """
        shared = CostModel() if transfer and tuner == "xgb" else None
        self.tuners = {task.workload: make_tuner(tuner, task, seed, model=shared) for task in self.tasks}
        others: dict[Workload, Task] = {}
        for record in self.known:
            elsewhere = record.workload not in self.tuners and not record.workload.by_metaschedule
            if shared is not None and elsewhere and not record.final:
                other = others.setdefault(record.workload, Task(record.workload, 1, record.target))
                shared.add(record.workload, other.features(record.config), record.call_seconds)
        _log.debug("%s: %d tasks, the model knows %d others", tuner, len(self.tasks), len(others))
        self._take_in(self.known)
        with Bars(self.states, self.trials) as bars:
            while (number := self._next()) is not None:
                self.tell(False, number)
                self._take_in(self._batch(number, runner))
                bars.update(number, self.states[number])
                self.tell(True, number)

    def _next(self) -> int | None:
        """Return the number of the task that gets the next batch."""
        if self.done >= self.trials:
            return None
        open_tasks = [n for n, state in enumerate(self.states) if self._is_open(state)]
        fresh = [n for n in open_tasks if not self.states[n].best]
        if fresh:
            return fresh[0]
        gains = {n: expected_gain(self.states[n], self.states) for n in open_tasks}
        chosen = max(gains, key=lambda n: gains[n], default=None)
        if chosen is not None:
            _log.debug("next: %s, which may save %.3g ms a run", self.tasks[chosen], gains[chosen] * 1e3)
        return chosen

    def _is_open(self, state: Progress) -> bool:
        return bool(self.tuners[state.task.workload].left) and not self.has_stopped(state)

    def has_stopped(self, state: Progress) -> bool:
        """Tell whether the last `early_stopping` trials of a task brought no improvement."""
        limit = self.early_stopping
        return limit is not None and state.trials - state.last_gain >= limit

    def write(self, measured: list[Record]) -> list[Record]:
        """Write records; return what is new in the file, including records of other processes."""
        self.log.append(measured)
        return self._read(self.log.read_new())

    def _batch(self, number: int, runner: Runner) -> list[Record]:
        """Measure a batch of a task's configs and write it; see `write`."""
        state = self.states[number]
        # At most half of the trials go to the tasks' first batches.
        first = max(1, self.trials // (2 * len(self.tasks)))
        size = min(_BATCH if state.best else min(_BATCH, first), self.trials - self.done)
        if self.early_stopping:
            size = min(size, self.early_stopping - (state.trials - state.last_gain))
        chosen = self.tuners[state.task.workload].propose(size)
        candidates = [state.task.candidate(state.task.space[n]) for n in chosen]
        trials = runner.measure(candidates)
        self._lost = self._lost + len(trials) if all(trial.lost for trial in trials) else 0
        if self._lost >= _BATCH:
            raise RuntimeError(
                f"the processes of {self._lost} trials in a row were killed from outside, twice each, as a "
                "system does that is out of memory; what was measured is kept. Free memory, and tune again"
            )
        measured = []
        for c, trial in zip(candidates, trials, strict=True):
            _log.debug("%s, %s: %s", state.task, c.config, trial.error or trial.seconds)
            if not trial.lost:
                result = trial.seconds, trial.error
                machine = trial.machine or runner.machine
                measured.append(records.new_record(c.workload, c.target, c.config, *result, machine=machine))
        return self.write(measured)

    def _take_in(self, fresh: list[Record]) -> None:
        """Update tuners and states with measurements of this session, an earlier one, or another process."""
        by_task: dict[Workload, list[float]] = {}
        for record in fresh:
            tuner = self.tuners.get(record.workload)
            if tuner is None or record.final:
                continue
            number = tuner.number(record.config)
            if number is not None and number not in tuner.seconds:
                tuner.update(number, record.call_seconds)
                by_task.setdefault(record.workload, []).append(record.call_seconds)
        for state in self.states:
            if state.task.workload in by_task:
                state.update(by_task[state.task.workload])

    # ------------------------------------------------------------ the end

    def finish(self, mod: tvm.IRModule, params: dict, runner: Runner) -> None:
        """Measure the best few configs of each task alternately, write the records, and time the network."""
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        best = best_configs(self.tasks, self.known)
        elsewhere = runner.machine is not None
        libs = {} if elsewhere else {"before": build_rank(best, 0, mod, params, self.target)}
        if len(self.known) > self.earlier or not any(record.final for record in self.known):
            if elsewhere:
                self.write(by_kernel(best, runner, now))
            else:
                self.write(in_network(best, libs["before"], mod, params, self.target, now))
        if not elsewhere:
            libs["after"] = build(mod, params, self.target, records=self.known)
            self.network = measure.compare(libs, *random_inputs(libs["before"]))

    def result(self) -> "Tuning":
        """Return the result of the tuning so far."""
        fastest, rows = records.best(self.known), []
        for task, state in zip(self.tasks, self.states, strict=True):
            best = fastest.get((task.workload, self._target_key))
            same = [r for r in self.known if best and r.workload == task.workload and r.final == best.final]
            default = [r.call_seconds for r in same if r.config == task.default]
            rows.append((task, state.trials, min(default, default=None), best))
        seconds = clock.monotonic() - self.started
        return Tuning(rows, self.network, str(self.log.path), self.interrupted, seconds)


def search_beyond(
    tasks: list[Task],
    path: str | os.PathLike,
    others: Iterable[Record],
    trials: int,
    early_stopping: int | None,
    runner: Runner,
    seed: int | None,
    tell: Callable[[bool, int, dict[int, Progress]], None],
) -> None:
    """Measure configs beyond those that are known, of tasks with and without a rule, all for one target.

    The trials are shared out by the numbers of tasks with a rule, which the tuner xgb searches for, and of
    those without one, which MetaSchedule searches for.

    Args:
        tasks: one or more.
        path: the file of records to go on from, and to append each batch to.
        others: records from elsewhere that the search begins with.
        trials: new ones, of all tasks.
        early_stopping: ends a task after this many trials in a row without improvement.
        runner: where to measure.
        seed: as of `tune`.
        tell: called around each batch, with whether it was measured, its task's number, and the progress of
            all tasks of its kind by number.

    Raises:
        ValueError: for no tasks, tasks for several targets, or a target that `runner` cannot measure for.
    """
    targets = {task.target for task in tasks}
    if len(targets) != 1:
        raise ValueError(f"expected tasks, all for one target; got {len(tasks)} for {len(targets)}")
    target = tvm.target.Target(json.loads(targets.pop()))
    if runner.machine is None and (reason := cannot_run(target)):
        raise ValueError(f"this machine cannot measure for {target}: {reason}; measure on another by RPC")
    by_search = [number for number, task in enumerate(tasks) if task.workload.by_metaschedule]
    by_rule = [number for number in range(len(tasks)) if number not in by_search]
    share = trials * len(by_search) // len(tasks)
    for tuner, numbers, count in (("xgb", by_rule, trials - share), ("metaschedule", by_search, share)):
        if numbers and count:
            with contextlib.closing(Log(path)) as log:  # another one, which reads all lines again
                session = Session([tasks[number] for number in numbers], target, log, count, early_stopping)
                states = dict(zip(numbers, session.states, strict=True))
                session.tell = functools.partial(_tell_of, tell, numbers, states)
                session.go_beyond(count, others)
                session.run(tuner, runner, True, seed)


def _tell_of(tell: Callable, numbers: list[int], states: dict, is_measured: bool, place: int) -> None:
    tell(is_measured, numbers[place], states)


# ---------------------------------------------------------------- the best few configs, measured again

# A trial runs one kernel repeatedly, with its weights in the caches. In a network other kernels run in
# between, and operators are fused into the kernel: there the best configs of each task are measured once
# more, alternately, so that luck decides nothing.


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
    best: dict[Task, list[dict]], untuned: Compiled, mod: tvm.IRModule, params: dict, target: Any, moment: str
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


@dataclass(repr=False)
class Tuning(Table):
    """The result of a tuning, shown as a table.

    Attributes:
        rows: for each task its trials, the seconds of the default config if measured, and the best record, if
            any.
        network: times of the whole network before and after, if this machine can run it.
        records: the file of records.
        interrupted: whether Ctrl-C ended the search.
        seconds: the duration of the tuning.
    """

    rows: list[tuple[Task, int, float | None, Record | None]]
    network: measure.Comparison | None
    records: str
    interrupted: bool
    seconds: float

    decimals = 3

    def frame(self) -> Any:
        """Return a pandas DataFrame with a row per task."""
        import pandas as pd  # for speed: only where a table is shown

        rows = [
            {
                "kernels": task.count,
                "trials": trials,
                "before (ms)": None if before is None else before * 1e3,
                "after (ms)": None if best is None else best.call_seconds * 1e3,
                "ratio": None if best is None or not before else best.call_seconds / before,
                "config": None if best is None else schedule_text(best.config),
            }
            for task, trials, before, best in self.rows
        ]
        return pd.DataFrame(rows, index=[str(task) for task, *_ in self.rows])

    @property
    def summary(self) -> str:  # type: ignore[override]
        """The totals in one sentence."""
        trials = sum(trials for _, trials, _, _ in self.rows)
        told = f"{trials} trials in {self.records}, {self.seconds:.0f} s"
        if self.interrupted:
            return f"{told}; interrupted: the same call goes on from here"
        if self.network is None:
            return told
        before, after = (self.network[name].median * 1e3 for name in ("before", "after"))
        ratio = f"ratio {after / before:.2f}"
        return f"{told}; the network takes {before:.2f} ms before, {after:.2f} ms after: {ratio}"

    def _styled(self) -> Any:
        return super()._styled().set_table_styles([{"selector": "th", "props": "white-space: nowrap"}])

    def plot(self) -> Any:
        """Plot each task's time in a run of the network, before and after; see `plots.before_and_after`."""
        times = {
            str(t): (t.count * before, t.count * best.call_seconds)
            for t, _, before, best in self.rows
            if before and best
        }
        return draw("before_and_after", times)
