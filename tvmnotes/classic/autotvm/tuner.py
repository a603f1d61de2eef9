"""Measuring, tuners, and what they tell while they run."""

import functools
import random
import sys
import time
import warnings

from ...tuning import trial
from .record import MeasureErrorNo, MeasureInput, MeasureResult, flops, pick_best
from .task import ConfigEntity, Task


class LocalBuilder:
    """Builds in the process that measures. `timeout` is in seconds."""

    def __init__(
        self, timeout=10, n_parallel=None, build_kwargs=None, build_func="default", do_fork=False, runtime=None
    ):
        self.timeout = timeout


class LocalRunner:
    """Measures in a process on this machine, `repeat` times the mean of `number` calls. `timeout` is in seconds."""

    def __init__(self, timeout=10, number=4, repeat=3, min_repeat_ms=0, cooldown_interval=0.1,
                 enable_cpu_cache_flush=False, module_loader=None):  # fmt: skip
        self.timeout, self.number, self.repeat = timeout, number, repeat
        self.min_repeat_ms, self.cooldown_interval = min_repeat_ms, cooldown_interval


def rpc_runner(*_args, **_kwargs):
    raise NotImplementedError("autotvm.RPCRunner: measuring over RPC is not served; autotvm.LocalRunner measures here")


def measure_option(builder="local", runner="local") -> dict:
    """How tuners measure."""
    return {
        "builder": LocalBuilder() if builder == "local" else builder,
        "runner": LocalRunner() if runner == "local" else runner,
    }


@functools.cache
def _worker(timeout: float) -> trial.Worker:
    """The process that measures, for all tasks."""
    return trial.Worker(timeout)


def _measured(worker: trial.Worker, inp: MeasureInput, runner: LocalRunner) -> MeasureResult:
    start = time.time()
    got = worker.measure(
        inp.task._workload, inp.config.values, inp.target, runner.number, runner.repeat, runner.min_repeat_ms
    )
    time.sleep(runner.cooldown_interval)
    error = MeasureErrorNo.UNKNOWN_ERROR if got.error else MeasureErrorNo.NO_ERROR
    costs = (RuntimeError(got.error),) if got.error else tuple(got.seconds)
    return MeasureResult(costs, error, time.time() - start, time.time())


class Tuner:
    """Measures configs of a task, the default one first, and remembers the best: `best_config`, `best_flops`."""

    def __init__(self, task: Task, **_options):
        self.task = task
        self.reset()

    def reset(self) -> None:
        self.best_config, self.best_flops, self.best_measure_pair, self.best_iter = None, 0.0, None, 0
        self._left = list(range(1, len(self.task.config_space)))
        self._scores: dict[int, float] = {}

    def propose(self) -> int:
        """The next config's number, out of `_left`."""
        raise NotImplementedError

    def has_next(self) -> bool:
        return len(self._scores) < len(self.task.config_space)

    def next_batch(self, batch_size: int) -> list[ConfigEntity]:
        batch = []
        while len(batch) < batch_size and (self._left or 0 not in self._scores):
            index = 0 if not self._scores and not batch else self.propose()
            if index in self._left:
                self._left.remove(index)
            batch.append(self.task.config_space.get(index))
        return batch

    def update(self, inputs, results) -> None:
        for inp, result in zip(inputs, results, strict=True):
            self._scores[inp.config.index] = flops(inp, result)

    def load_history(self, data_set, min_seed_records=500) -> None:
        """Take over what was measured of this very task, so that it is not measured again."""
        for inp, result in data_set:
            index = self.task.config_space.index(inp.config.values) if inp.task.workload == self.task.workload else None
            if index is not None and not result.error_no:
                self.update([inp._replace(config=self.task.config_space.get(index))], [result])
                if index in self._left:
                    self._left.remove(index)

    def tune(self, n_trial, measure_option, early_stopping=None, callbacks=(), si_prefix="G") -> None:
        """Measure up to `n_trial` configs, or until `early_stopping` of them in a row were no better."""
        runner = measure_option["runner"]
        worker = _worker(runner.timeout + measure_option["builder"].timeout)
        for done in range(1, n_trial + 1):
            if not (batch := self.next_batch(1)):
                return
            inputs = [MeasureInput(self.task.target, self.task, config) for config in batch]
            results = [_measured(worker, inp, runner) for inp in inputs]
            reached = flops(inputs[0], results[0])
            if reached > self.best_flops:
                self.best_flops, self.best_config, self.best_iter = reached, inputs[0].config, done
                self.best_measure_pair = inputs[0], results[0]
            self.update(inputs, results)
            for callback in callbacks:
                callback(self, inputs, results)
            if early_stopping and done >= self.best_iter + early_stopping:
                return


class GridSearchTuner(Tuner):
    """The configs one after the other."""

    def propose(self) -> int:
        return self._left[0]


class RandomTuner(Tuner):
    """The configs in random order."""

    def propose(self) -> int:
        return random.choice(self._left)


class GATuner(Tuner):
    """A genetic search: each proposal takes its knobs from two of the best so far, now and then one at random."""

    def __init__(self, task, pop_size=100, elite_num=3, mutation_prob=0.1, **_options):
        self._population, self._mutation = pop_size, mutation_prob
        super().__init__(task)

    def propose(self) -> int:
        space, best = self.task.config_space, sorted(self._scores, key=self._scores.get, reverse=True)
        parents = best[: max(2, min(self._population, len(best) // 3))]
        for _ in range(50 if len(parents) >= 2 else 0):
            first, second = (space.get(index).values for index in random.sample(parents, 2))
            child = {name: random.choice([value, second.get(name, value)]) for name, value in first.items()}
            child = {name: random.choice(space.space_map[name]) if random.random() < self._mutation else value
                     for name, value in child.items()}  # fmt: skip
            index = space.index(child)
            if index in self._left:
                return index
        return random.choice(self._left)


class XGBTuner(GATuner):
    """Searches as GATuner does: the XGBoost cost model is not there yet, which is said once."""

    def __init__(self, task, plan_size=64, feature_type="itervar", loss_type="rank", num_threads=None, **_options):
        _say_once("autotvm.XGBTuner searches genetically for now, without a cost model")
        super().__init__(task)


_said: set[str] = set()


def _say_once(sentence: str) -> None:
    if sentence not in _said:
        _said.add(sentence)
        warnings.warn(sentence, stacklevel=4)


def progress_bar(total, prefix="", si_prefix="G"):
    """A callback that writes the line `[Task  1/25]  Current/Best: … GFLOPS | Progress: (4/20) | 6.23 s`."""
    state = {"done": 0, "best": 0.0, "start": time.time()}
    _progress(prefix, 0.0, 0.0, 0, total, 0.0)

    def callback(tuner, inputs, results):
        current = 0.0
        for inp, result in zip(inputs, results, strict=True):
            state["done"] += 1
            current = flops(inp, result) / 1e9
            state["best"] = max(state["best"], current)
        _progress(prefix, current, state["best"], state["done"], total, time.time() - state["start"])

    return callback


def _progress(prefix, current, best, done, total, seconds) -> None:
    end = " Done.\n" if done >= total else ""
    sys.stdout.write(f"\r{prefix} Current/Best: {current:7.2f}/{best:7.2f} GFLOPS | Progress: ({done}/{total}) "
                     f"| {seconds:.2f} s{end}")  # fmt: skip
    sys.stdout.flush()


class GraphTuner:
    """DPTuner and PBQPTuner: the layouts of a build are uniform here, so the best records are all there is to write."""

    def __init__(self, graph, input_shapes, records, target_ops, target, max_sch_num=20, dtype="float32", **_options):
        _say_once("autotvm's graph tuners write the best records: layouts are uniform, there are none to choose")
        self._records = records

    def benchmark_layout_transform(self, **_options) -> None:
        """Nothing to measure."""

    def run(self, **_options) -> None:
        """Nothing to choose."""

    def write_opt_sch2record_file(self, record_file="graph_opt_schedule.log") -> None:
        pick_best(self._records, record_file)
