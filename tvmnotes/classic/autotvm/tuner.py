"""Measuring, tuners, and what they tell while they run: AutoTVM's loop around what `tvmnotes.tuning` searches with."""

import atexit
import functools
import sys
import time
import warnings

from ... import tuning
from ...base import env
from ...compiler.schedules.vector import simd_of
from ...tuning import tuners
from ...tuning.features import features
from .record import MeasureErrorNo, MeasureInput, MeasureResult, pick_best, seconds
from .task import ConfigEntity, Task

_PLAN = 8  # configs that a search proposes at once


# ---------------------------------------------------------------- measuring


class LocalBuilder:
    """Builds, `n_parallel` candidates at once; None: one for each core. `timeout` is in seconds."""

    def __init__(self, timeout=10, n_parallel=None, build_kwargs=None, build_func="default", do_fork=False,
                 runtime=None):  # fmt: skip
        self.timeout, self.n_parallel = timeout, n_parallel or env.usable_cores()


class LocalRunner:
    """Measures on this machine: `repeat` times the mean of `number` calls, with caches swept before.

    `timeout` is in seconds; the longer one of builder and runner is that of both.
    """

    n_parallel: int | None = 1
    _where: tuple = ()

    def __init__(self, timeout=10, number=4, repeat=3, min_repeat_ms=0, cooldown_interval=0.1,
                 enable_cpu_cache_flush=False, module_loader=None):  # fmt: skip
        self.timeout, self.cooldown_interval = timeout, cooldown_interval
        self._options = {"number": number, "repeat": repeat, "min_repeat_ms": min_repeat_ms}

    def open(self, timeout: float) -> tuning.LocalRunner:
        """What measures. Raises ConnectionError where there is no tracker, or no server."""
        return _opened(*self._where, timeout=max(timeout, self.timeout), **self._options)


class RPCRunner(LocalRunner):
    """Measures on all servers of `key` that are known to the tracker at `host` and `port`."""

    def __init__(self, key, host, port, priority=1, timeout=10, n_parallel=None, number=4, repeat=3, min_repeat_ms=0,
                 cooldown_interval=0.1, enable_cpu_cache_flush=False, module_loader=None):  # fmt: skip
        super().__init__(timeout, number, repeat, min_repeat_ms, cooldown_interval)
        self._where, self.n_parallel = (f"{host}:{port}", key), n_parallel


@functools.cache
def _opened(*where, **options) -> tuning.LocalRunner:
    """One for all tasks, as its worker processes take seconds to start."""
    made = tuning.RpcRunner(*where, **options) if where else tuning.LocalRunner(**options)
    atexit.register(made.close)
    return made


def measure_option(builder="local", runner="local") -> dict:
    """How tuners measure."""
    return {
        "builder": LocalBuilder() if builder == "local" else builder,
        "runner": LocalRunner() if runner == "local" else runner,
    }


def _measure(
    opened: tuning.LocalRunner, inputs: list[MeasureInput], cooldown: float
) -> list[MeasureResult | None]:
    """What came of each; None where its processes were killed from outside, which says nothing of it."""
    start = time.time()
    tasks = [inp.task.today for inp in inputs]
    trials = opened.measure([
        tuning.Candidate(task.workload, inp.config.values, task.target)
        for task, inp in zip(tasks, inputs, strict=True)
    ])  # fmt: skip
    time.sleep(cooldown)
    spent = (time.time() - start) / len(trials)
    return [
        None if trial.lost else
        MeasureResult((RuntimeError(trial.error),), MeasureErrorNo.UNKNOWN_ERROR, spent, time.time()) if trial.error
        else MeasureResult(trial.seconds, MeasureErrorNo.NO_ERROR, spent, time.time())
        for trial in trials
    ]  # fmt: skip


# ---------------------------------------------------------------- tuners


class Tuner:
    """Measures configs of a task, the default one first, and remembers the best: `best_config`, `best_flops`."""

    def __init__(self, task: Task, **_options):
        self.task = task
        self.reset()

    def reset(self) -> None:
        self.best_config, self.best_flops, self.best_measure_pair, self.best_iter = None, 0.0, None, 0
        self._search, self._plan = self._begin(self.task.today.space), []

    def _begin(self, space: list[dict]) -> tuners.Tuner:
        return tuners.Grid(space)

    def has_next(self) -> bool:
        return bool(self._plan or self._search.left)

    def next_batch(self, batch_size: int) -> list[ConfigEntity]:
        batch = []
        while len(batch) < batch_size and self.has_next():
            self._plan = self._plan or self._search.propose(_PLAN)
            batch.append(self.task.config_space.get(self._plan.pop(0)))
        return batch

    def update(self, inputs, results) -> None:
        for inp, result in zip(inputs, results, strict=True):
            self._search.update(inp.config.index, seconds(result))

    def load_history(self, data_set, min_seed_records=500) -> None:
        """Take over what was measured for the same target: of this very task, so that it is not measured again."""
        for inp, result in data_set:
            if inp.task.today.target == self.task.today.target:
                self._take_over(inp.task.today.workload, inp.config.values, seconds(result))

    def _take_over(self, workload, config: dict, spent: float) -> None:
        number = self.task.config_space.index(config) if workload == self.task.today.workload else None
        if number is not None:
            self._search.update(number, spent)

    def tune(self, n_trial, measure_option, early_stopping=None, callbacks=(), si_prefix="G") -> None:
        """Measure up to `n_trial` configs, or until `early_stopping` of them in a row were no better."""
        builder, runner, done = measure_option["builder"], measure_option["runner"], 0
        opened = runner.open(builder.timeout)
        while done < n_trial and self.has_next():
            size = max(builder.n_parallel, runner.n_parallel or opened.servers())
            inputs = [MeasureInput(self.task.target, self.task, config)
                      for config in self.next_batch(min(size, n_trial - done))]  # fmt: skip
            results = _measure(opened, inputs, runner.cooldown_interval)
            done += results.count(None)
            inputs = [inp for inp, result in zip(inputs, results, strict=True) if result]
            results = [result for result in results if result]
            for inp, result in zip(inputs, results, strict=True):
                done += 1
                reached = self.task.flop / seconds(result)
                if reached > self.best_flops:
                    self.best_flops, self.best_config, self.best_iter = reached, inp.config, done
                    self.best_measure_pair = inp, result
            self.update(inputs, results)
            for callback in callbacks:
                callback(self, inputs, results)
            if early_stopping and done >= self.best_iter + early_stopping:
                return


class GridSearchTuner(Tuner):
    """The configs one after the other."""


class RandomTuner(Tuner):
    """The configs in random order."""

    def _begin(self, space):
        return tuners.Random(space)


class GATuner(Tuner):
    """A genetic search, whose parents are the `pop_size` best so far."""

    def __init__(self, task, pop_size=100, elite_num=3, mutation_prob=0.1, **_options):
        self._options = {"parents": pop_size, "mutation": mutation_prob}
        super().__init__(task)

    def _begin(self, space):
        return tuners.GA(space, **self._options)


class XGBTuner(Tuner):
    """A cost model proposes; it learns from each batch, and from other tasks with `load_history`."""

    def __init__(
        self, task, plan_size=64, feature_type="itervar", loss_type="rank", num_threads=None, **_options
    ):
        super().__init__(task)

    def _begin(self, space):
        of_own = functools.partial(self._features, self.task.today.workload)
        return tuners.XGB(space, workload=self.task.today.workload, features=of_own, model=tuners.CostModel())

    def _features(self, workload, config: dict) -> list[float]:
        return features(workload, config, simd_of(self.task.target), env.threads())

    def _take_over(self, workload, config, spent):
        super()._take_over(workload, config, spent)
        if workload != self.task.today.workload:
            self._search.model.add(workload, self._features(workload, config), spent)


def progress_bar(total, prefix="", si_prefix="G"):
    """A callback that writes the line `[Task  1/25]  Current/Best: … GFLOPS | Progress: (4/20) | 6.23 s`."""
    start, reached = time.time(), [0.0]

    def write():
        done, spent = len(reached) - 1, time.time() - start
        sys.stdout.write(f"\r{prefix} Current/Best: {reached[-1]:7.2f}/{max(reached):7.2f} GFLOPS | Progress: "
                         f"({done}/{total}) | {spent:.2f} s{' Done.' * (done >= total)}")  # fmt: skip
        sys.stdout.write("\n" * (done >= total))
        sys.stdout.flush()

    def callback(_tuner, inputs, results):
        reached.extend(i.task.flop / seconds(r) / 1e9 for i, r in zip(inputs, results, strict=True))
        write()

    write()
    return callback


class GraphTuner:
    """DPTuner and PBQPTuner: the layouts of a build are uniform here, so the best records are all there is to write."""

    def __init__(
        self, graph, input_shapes, records, target_ops, target, max_sch_num=20, dtype="float32", **_options
    ):
        warnings.warn("autotvm's graph tuners write the best records: layouts are uniform, there are none to choose",
                      stacklevel=2)  # fmt: skip
        self._records = records

    def benchmark_layout_transform(self, **_options) -> None:
        """Nothing to measure."""

    def run(self, **_options) -> None:
        """Nothing to choose."""

    def write_opt_sch2record_file(self, record_file="graph_opt_schedule.log") -> None:
        pick_best(self._records, record_file)
