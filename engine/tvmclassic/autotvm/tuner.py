"""Measuring, tuners and the progress line: AutoTVM's loop around the search of `tvmfast.tuning`."""

import atexit
import functools
import logging
import sys
import time
import warnings

from tvmfast import tuning
from tvmfast.core import machine
from tvmfast.tuning import tuners

from .record import MeasureErrorNo, MeasureInput, MeasureResult, pick_best, seconds
from .task import ConfigEntity, Task
from .template import REFUSED

_PLAN = 8  # configs proposed at once
_LOG = logging.getLogger("autotvm")  # as scripts know it


# ---------------------------------------------------------------- measuring


class LocalBuilder:
    """Builder of `n_parallel` candidates at once, None for one per core. `timeout` is in seconds."""

    def __init__(
        self,
        timeout=10,
        n_parallel=None,
        build_kwargs=None,
        build_func="default",
        do_fork=False,
        runtime=None,
    ):
        self.timeout, self.n_parallel = timeout, n_parallel or machine.usable_cores()


class LocalRunner:
    """Runner on this machine: `repeat` means of `number` calls each, with caches flushed before.

    `timeout` is in seconds; the longer one of builder and runner applies to both.
    """

    n_parallel: int | None = 1
    _where: tuple = ()

    def __init__(
        self,
        timeout=10,
        number=4,
        repeat=3,
        min_repeat_ms=0,
        cooldown_interval=0.1,
        enable_cpu_cache_flush=False,
        module_loader=None,
    ):
        self.timeout, self.cooldown_interval = timeout, cooldown_interval
        self._options = {"number": number, "repeat": repeat, "min_repeat_ms": min_repeat_ms}

    def open(self, timeout: float) -> tuning.LocalRunner:
        """Return the runner of `tvmfast.tuning`. Raises ConnectionError without a tracker or server."""
        return _opened(*self._where, timeout=max(timeout, self.timeout), **self._options)


class RPCRunner(LocalRunner):
    """Runner on all servers that the tracker at `host`:`port` lists under `key`; see LocalRunner."""

    def __init__(self, key, host, port, priority=1, timeout=10, n_parallel=None, *of_local, **options):
        super().__init__(timeout, *of_local, **options)
        self._where, self.n_parallel = (f"{host}:{port}", key), n_parallel


@functools.cache
def _opened(*where, **options) -> tuning.LocalRunner:
    """Open a runner, shared by all tasks because its worker processes take seconds to start."""
    runner = tuning.RpcRunner(*where, **options) if where else tuning.LocalRunner(**options)
    atexit.register(runner.close)
    return runner


def measure_option(builder="local", runner="local") -> dict:
    """Return the builder and the runner for `Tuner.tune`; "local" stands for the default ones."""
    return {
        "builder": LocalBuilder() if builder == "local" else builder,
        "runner": LocalRunner() if runner == "local" else runner,
    }


def _measure(
    opened: tuning.LocalRunner, inputs: list[MeasureInput], cooldown: float
) -> list[MeasureResult | None]:
    """Measure each input; None if its processes were killed from outside, which says nothing about it."""
    start = time.time()
    trials = inputs[0].task.measure(opened, [inp.config for inp in inputs])
    time.sleep(cooldown)
    spent = (time.time() - start) / len(trials)
    return [_result(trial, spent) for trial in trials]


def _result(trial: tuning.Trial, spent: float) -> MeasureResult | None:
    if trial.lost:
        return None
    if trial.error:
        refused = trial.error.startswith(REFUSED)
        code = MeasureErrorNo.INSTANTIATION_ERROR if refused else MeasureErrorNo.UNKNOWN_ERROR
        return MeasureResult((RuntimeError(trial.error),), code, spent, time.time())
    return MeasureResult(trial.seconds, MeasureErrorNo.NO_ERROR, spent, time.time())


# ---------------------------------------------------------------- tuners


class Tuner:
    """Search over a task's configs, starting with the default, that keeps the best in `best_config`.

    `best_flops` is its rate in FLOP/s, `best_iter` the number of the trial that found it.
    """

    def __init__(self, task: Task, **_options):
        self.task = task
        self.reset()

    def reset(self) -> None:
        """Forget all results and start the search again."""
        self.best_config = self.best_measure_pair = None
        self.best_flops, self.best_iter = 0.0, 0
        space = [self.task.config_space.get(number).values for number in self.task.numbers]
        self._search, self._plan = self._begin(space), []

    def _begin(self, space: list[dict]) -> tuners.Tuner:
        return tuners.Grid(space)

    def has_next(self) -> bool:
        """Return whether configs are left to propose."""
        return bool(self._plan or self._search.left)

    def next_batch(self, batch_size: int) -> list[ConfigEntity]:
        """Propose the next configs, fewer than `batch_size` if no more are left."""
        batch = []
        while len(batch) < batch_size and self.has_next():
            self._plan = self._plan or self._search.propose(_PLAN)
            batch.append(self.task.config_space.get(self.task.numbers[self._plan.pop(0)]))
        return batch

    def update(self, inputs, results) -> None:
        """Pass measured results to the search."""
        for inp, result in zip(inputs, results, strict=True):
            self._take_over(self.task, inp.config.values, seconds(result))

    def load_history(self, data_set, min_seed_records=500) -> None:
        """Reuse earlier measurements for the same target; configs of this task are not measured again."""
        for inp, result in data_set:
            if inp.task.target_key == self.task.target_key:
                self._take_over(inp.task, inp.config.values, seconds(result))

    def _take_over(self, task, values: dict, spent: float) -> None:
        number = self._search.number(values) if task.key == self.task.key else None
        if number is not None:
            self._search.update(number, spent)

    def tune(self, n_trial, measure_option, early_stopping=None, callbacks=(), si_prefix="G") -> None:
        """Measure configs.

        Args:
            n_trial: Number of configs to measure, at most.
            measure_option: The dictionary of the function of that name.
            early_stopping: Stop after this many trials without an improvement.
            callbacks: Each is called with this tuner, the inputs and the results of a batch.
            si_prefix: Not used.

        Raises:
            ConnectionError: The runner finds no tracker or no server.
        """
        builder, runner = measure_option["builder"], measure_option["runner"]
        done = 0
        opened = runner.open(builder.timeout)
        while done < n_trial and self.has_next():
            size = max(builder.n_parallel, runner.n_parallel or opened.servers())
            batch = self.next_batch(min(size, n_trial - done))
            inputs = [MeasureInput(self.task.target, self.task, config) for config in batch]
            results = _measure(opened, inputs, runner.cooldown_interval)
            done += results.count(None)
            inputs = [inp for inp, result in zip(inputs, results, strict=True) if result]
            results = [result for result in results if result]
            for inp, result in zip(inputs, results, strict=True):
                done += 1
                reached = self.task.flop / seconds(result)
                if reached > self.best_flops:
                    self.best_flops, self.best_config = reached, inp.config
                    self.best_iter = done
                    self.best_measure_pair = inp, result
                rates = reached / 1e9, self.best_flops / 1e9
                _LOG.debug("No: %d\tGFLOPS: %.2f/%.2f\tresult: %s\t%s", done, *rates, result, inp.config)
            self.update(inputs, results)
            for callback in callbacks:
                callback(self, inputs, results)
            if early_stopping and done >= self.best_iter + early_stopping:
                break
        if self.best_config is None and done and results:
            warnings.warn(
                f"autotvm: no config of {self.task.name} ran, so builds take none; the last error: "
                f"{results[-1].costs[0]}",
                stacklevel=2,
            )


class GridSearchTuner(Tuner):
    """Tuner that tries the configs in order."""


class RandomTuner(Tuner):
    """Tuner that tries the configs in random order."""

    def _begin(self, space):
        return tuners.Random(space)


class GATuner(Tuner):
    """Genetic search whose parents are the `pop_size` best configs so far."""

    def __init__(self, task, pop_size=100, elite_num=3, mutation_prob=0.1, **_options):
        self._options = {"parents": pop_size, "mutation": mutation_prob}
        super().__init__(task)

    def _begin(self, space):
        return tuners.GA(space, **self._options)


class XGBTuner(Tuner):
    """Search guided by a cost model, trained on each batch and, by `load_history`, on other tasks."""

    def __init__(
        self, task, plan_size=64, feature_type="itervar", loss_type="rank", num_threads=None, **_options
    ):
        super().__init__(task)

    def _begin(self, space):
        own = {"workload": self.task.key, "features": self.task.features}
        return tuners.XGB(space, **own, model=tuners.CostModel())

    def _take_over(self, task, values, spent):
        super()._take_over(task, values, spent)
        alike = isinstance(task, Task) and isinstance(self.task, Task)  # templates have features of their own
        if alike and task.key != self.task.key:
            self._search.model.add(task.key, task.features(values), spent)


def progress_bar(total, prefix="", si_prefix="G"):
    """Return a callback that writes `[Task  1/25]  Current/Best: … GFLOPS | Progress: (4/20) | 6.23 s`."""
    start = time.time()
    reached = [0.0]  # GFLOPS of each trial

    def write():
        done, spent = len(reached) - 1, time.time() - start
        rates = f"{reached[-1]:7.2f}/{max(reached):7.2f} GFLOPS"
        end = " Done." if done >= total else ""
        sys.stdout.write(
            f"\r{prefix} Current/Best: {rates} | Progress: ({done}/{total}) | {spent:.2f} s{end}"
        )
        sys.stdout.write("\n" if done >= total else "")
        sys.stdout.flush()

    def callback(_tuner, inputs, results):
        reached.extend(i.task.flop / seconds(r) / 1e9 for i, r in zip(inputs, results, strict=True))
        write()

    write()
    return callback


class GraphTuner:
    """DPTuner and PBQPTuner: layouts are uniform here, so only the best records are written."""

    def __init__(
        self, graph, input_shapes, records, target_ops, target, max_sch_num=20, dtype="float32", **_options
    ):
        warnings.warn(
            "autotvm's graph tuners write the best records: layouts are uniform, there are none to choose",
            stacklevel=2,
        )
        self._records = records

    def benchmark_layout_transform(self, **_options) -> None:
        """Do nothing: there are no layout transforms to measure."""

    def run(self, **_options) -> None:
        """Do nothing: there are no layouts to choose."""

    def write_opt_sch2record_file(self, record_file="graph_opt_schedule.log") -> None:
        """Write the best record of each task."""
        pick_best(self._records, record_file)
