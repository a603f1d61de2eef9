"""AutoTVM: tasks, tuners, measuring, callbacks and logs, over the workloads and configs of tvmnotes's schedules.

A task is a convolution or a dense layer of a network. Its configs are those of `compiler.schedules`, so a log names
tile sizes of other schedules than TVM's old templates had; lines of such old logs are left out, with a warning.
"""

import contextlib
import functools
import json
import os
import random
import sys
import time
import warnings
from collections import namedtuple
from pathlib import Path

import numpy as np
import tvm

from .. import compiler
from ..compiler.schedules import choose
from ..compiler.schedules.convolution import Convolution
from ..compiler.schedules.matmul import Dense
from ..compiler.schedules.vector import vectors
from ..tuning import tasks, trial
from . import ir, targets
from .build import relax_of

MeasureInput = namedtuple("MeasureInput", ["target", "task", "config"])
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "all_cost", "timestamp"])
_VERSION = 0.2  # of the log's lines


class MeasureErrorNo:
    NO_ERROR, UNKNOWN_ERROR = 0, 6


# ---------------------------------------------------------------- tasks and their configs

_NAMES = {"nn.conv2d": ("conv2d", "depthwise_conv2d", "group_conv2d"), "nn.dense": ("dense",)}


class Task:
    """A workload under its name and arguments of old, with `config_space` and `flop`."""

    def __init__(self, workload, target: tvm.target.Target, times: int = 1):
        self._workload, self.target, self.times = workload, target, times
        self.name, self.args = _described(workload)
        self.kwargs, self.target_host = {}, None
        self.flop = 2 * workload.multiplications
        self.config_space = ConfigSpace(workload.space(vectors(target)))

    @property
    def workload(self) -> tuple:
        return (self.name, *self.args)

    def instantiate(self, config):
        raise NotImplementedError(
            "task.instantiate: TE schedules are gone; relay.build makes the kernel, under autotvm.apply_history_best"
        )

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, args={self.args}, kwargs={{}}, workload={self.workload})"


class ConfigSpace:
    """The configs of a task: `len(space)`, `space.get(7)`, `space[7]`; the first is the one that needs no tuning."""

    def __init__(self, configs: list[dict]):
        self._configs = configs

    def __len__(self) -> int:
        return len(self._configs)

    def get(self, index: int) -> "ConfigEntity":
        if not 0 <= index < len(self):
            raise IndexError(f"Index out of range: size {len(self)}, got index {index}")
        return ConfigEntity(index, self._configs[index])

    __getitem__ = get

    def index(self, config: dict) -> int | None:
        return self._configs.index(config) if config in self._configs else None

    @property
    def space_map(self) -> dict[str, list]:
        """By knob, its values."""
        knobs: dict = {}
        for config in self._configs:
            for name, value in config.items():
                knobs.setdefault(name, dict.fromkeys([]))[value] = None
        return {name: list(values) for name, values in knobs.items()}

    def __repr__(self) -> str:
        rows = [f"{i:4d} {name}: OtherOption({values}) len={len(values)}"
                for i, (name, values) in enumerate(self.space_map.items())]  # fmt: skip
        return "\n".join([f"ConfigSpace (len={len(self)}, space_map=", *rows, ")"])


class ConfigEntity:
    """One config, by its number in the space."""

    def __init__(self, index: int, values: dict):
        self.index, self.values = index, values

    def to_json_dict(self) -> dict:
        return {"index": self.index, "code_hash": None, "entity": [[k, "ot", v] for k, v in self.values.items()]}

    @staticmethod
    def from_json_dict(given: dict) -> "ConfigEntity":
        return ConfigEntity(given["index"], {name: value for name, _, value in given["entity"]})

    def __eq__(self, other) -> bool:
        return isinstance(other, ConfigEntity) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __repr__(self) -> str:
        return f"{list(self.values.items())},None,{self.index}"


def _described(workload) -> tuple[str, tuple]:
    """The name and the arguments of a workload, as TVM's x86 templates had them."""
    if isinstance(workload, Dense):
        tensors = (workload.rows, workload.depth), (workload.columns, workload.depth)
        return "dense_pack.x86", (*(("TENSOR", t, "float32") for t in tensors), None, "float32")
    kind = "depthwise_conv2d" if workload.is_depthwise else "group_conv2d" if workload.groups > 1 else "conv2d"
    layout = "NCHWc" if workload.blocked else "NCHW"
    tensors = (("TENSOR", t, "float32") for t in (workload.data, workload.weight))
    rest = workload.strides, workload.padding, workload.dilation
    groups = (workload.groups,) if kind == "group_conv2d" else ()
    return f"{kind}_{layout}.x86", (*tensors, *rest, *groups, "NCHW", "NCHW", "float32")


def _workload(name: str, args):
    """The workload of a name and arguments; ValueError for others than `_described` gives."""
    shapes = [tuple(int(n) for n in arg[1]) for arg in args[:2]]
    if name == "dense_pack.x86":
        return Dense(*shapes[0], shapes[1][0])
    kind, _, layout = name.removesuffix(".x86").rpartition("_")
    if kind not in _NAMES["nn.conv2d"] or layout not in ("NCHWc", "NCHW"):
        raise ValueError(f"no template {name!r}")
    strides, padding, dilation = (_tuple(arg) for arg in args[2:5])
    padding = padding * 2 if len(padding) == 2 else padding
    groups = {"conv2d": 1, "depthwise_conv2d": shapes[0][1]}.get(kind) or int(args[5])
    return Convolution(*shapes, strides, padding, dilation, groups, layout == "NCHWc")


def _tuple(value) -> tuple[int, ...]:
    return (int(value),) * 2 if isinstance(value, int) else tuple(int(n) for n in value)


def create(task_name, args, target, target_host=None) -> Task:
    """`autotvm.task.create`: a task by its name and arguments, as tasks that were extracted have them."""
    try:
        return Task(_workload(str(task_name), args), _target(target))
    except (ValueError, TypeError, IndexError):
        raise ValueError(
            f"autotvm.task.create: no template {task_name!r} for {args!r}; there are conv2d_NCHWc.x86, "
            "conv2d_NCHW.x86, depthwise_conv2d_NCHWc.x86, group_conv2d_NCHWc.x86 and dense_pack.x86, with the "
            "arguments of extracted tasks"
        ) from None


def extract_from_program(mod, params=None, target=None, target_host=None, ops=None) -> list[Task]:
    """A task for each distinct convolution and dense layer with known weights; `ops` leaves only those of operators.

    Without `params`, all parameters of the function but the first count as weights.
    """
    if not params and isinstance(mod, ir.IRModule | ir.Function):
        main = mod["main"] if isinstance(mod, ir.IRModule) else mod
        params = _zeros(main)
    target = _target(target)
    found = tasks.workloads(*relax_of(mod, params), target)
    made = [Task(workload, target, times) for workload, times in found.items()]
    if ops is None:
        return made
    wanted = tuple(kind for op in ops for kind in _NAMES.get(getattr(op, "name", str(op)), ()))
    return [task for task in made if task.name.startswith(wanted)] if wanted else []


def extract_from_multiple_program(mods, params, target=None, target_host=None, ops=None) -> list[Task]:
    """The tasks of several programs, each workload once."""
    made = {}
    for mod, weights in zip(mods, params, strict=True):
        for task in extract_from_program(mod, weights, target, target_host, ops):
            made.setdefault(task.workload, task)
    return list(made.values())


def _zeros(function: ir.Function) -> dict:
    from .lower import infer

    infer(function)
    return {p.name_hint: np.zeros(p._type.shape, p._type.dtype) for p in function.params[1:]}


def _target(target) -> tvm.target.Target:
    return compiler.resolve_target(targets.for_build(target))


# ---------------------------------------------------------------- measuring


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


def _flops(inp: MeasureInput, result: MeasureResult) -> float:
    """Operations in a second; 0 for a config that failed."""
    return 0.0 if result.error_no else inp.task.flop / float(np.mean(result.costs))


def _measured(worker: trial.Worker, inp: MeasureInput, runner: LocalRunner) -> MeasureResult:
    start = time.time()
    got = worker.measure(
        inp.task._workload, inp.config.values, inp.target, runner.number, runner.repeat, runner.min_repeat_ms
    )
    time.sleep(runner.cooldown_interval)
    error = MeasureErrorNo.UNKNOWN_ERROR if got.error else MeasureErrorNo.NO_ERROR
    costs = (RuntimeError(got.error),) if got.error else tuple(got.seconds)
    return MeasureResult(costs, error, time.time() - start, time.time())


# ---------------------------------------------------------------- tuners


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
            self._scores[inp.config.index] = _flops(inp, result)

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
            flops = _flops(inputs[0], results[0])
            if flops > self.best_flops:
                self.best_flops, self.best_config, self.best_iter = flops, inputs[0].config, done
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


# ---------------------------------------------------------------- callbacks


def progress_bar(total, prefix="", si_prefix="G"):
    """A callback that writes the line `[Task  1/25]  Current/Best: … GFLOPS | Progress: (4/20) | 6.23 s`."""
    state = {"done": 0, "best": 0.0, "start": time.time()}
    _progress(prefix, 0.0, 0.0, 0, total, 0.0)

    def callback(tuner, inputs, results):
        current = 0.0
        for inp, result in zip(inputs, results, strict=True):
            state["done"] += 1
            current = _flops(inp, result) / 1e9
            state["best"] = max(state["best"], current)
        _progress(prefix, current, state["best"], state["done"], total, time.time() - state["start"])

    return callback


def _progress(prefix, current, best, done, total, seconds) -> None:
    end = " Done.\n" if done >= total else ""
    sys.stdout.write(f"\r{prefix} Current/Best: {current:7.2f}/{best:7.2f} GFLOPS | Progress: ({done}/{total}) "
                     f"| {seconds:.2f} s{end}")  # fmt: skip
    sys.stdout.flush()


def log_to_file(file_out, protocol="json"):
    """A callback that appends each measurement to a file, or a file object, at once."""

    def callback(_tuner, inputs, results):
        lines = "".join(encode(*pair) + "\n" for pair in zip(inputs, results, strict=True))
        if hasattr(file_out, "write"):
            file_out.write(lines)
            return
        with open(file_out, "a") as file:
            file.write(lines)

    return callback


# ---------------------------------------------------------------- records


def encode(inp: MeasureInput, result: MeasureResult, protocol="json") -> str:
    """A measurement as a line of JSON."""
    costs = [str(cost) for cost in result.costs] if result.error_no else list(result.costs)
    return json.dumps({
        "input": [str(inp.target), inp.task.name, inp.task.args, {}],
        "config": inp.config.to_json_dict(),
        "result": [costs, result.error_no, result.all_cost, result.timestamp],
        "version": _VERSION,
        "tvm_version": tvm.__version__,
    })  # fmt: skip


def decode(row: str, protocol="json") -> tuple[MeasureInput, MeasureResult] | None:
    """What `encode` wrote; None for a line of another TVM's templates. ValueError for what is no record."""
    try:
        given = json.loads(row)
        target, name, args, _ = given["input"]
        costs, error, seconds, timestamp = given["result"]
        config = ConfigEntity.from_json_dict(given["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no record of AutoTVM: {row[:80]!r}") from error
    try:
        workload = _workload(name, args)
    except (ValueError, TypeError, IndexError):
        return None
    task = _task(workload, target)
    if task.config_space.index(config.values) is None:
        return None
    costs = tuple(RuntimeError(c) for c in costs) if error else tuple(costs)
    return MeasureInput(task.target, task, config), MeasureResult(costs, error, seconds, timestamp)


@functools.lru_cache(maxsize=1024)
def _task(workload, target: str) -> Task:
    return Task(workload, tvm.target.Target(json.loads(target) if target.startswith("{") else targets.parse(target)))


def load_from_file(filepath):
    """The measurements of a log. Torn lines, and those of other templates, are left out with a warning."""
    left_out = 0
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(filepath)) if isinstance(filepath, str | os.PathLike) else filepath
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            try:
                found = decode(line)
            except ValueError:
                found = None
            if found is None:
                left_out += 1
            else:
                yield found
    if left_out:
        warnings.warn(f"{filepath}: {left_out} lines are torn, or of schedules that are not here, and left out",
                      stacklevel=2)  # fmt: skip


def _best(records) -> dict:
    """By target and workload, the measurement of the least mean time."""
    best: dict = {}
    for inp, result in records:
        key = str(inp.target), inp.task.workload
        if not result.error_no and (key not in best or np.mean(result.costs) < np.mean(best[key][1].costs)):
            best[key] = inp, result
    return best


def pick_best(in_file, out_file) -> None:
    """Write the best measurement of each task in `in_file` to `out_file`."""
    lines = [encode(*pair) for pair in _best(load_from_file(in_file)).values()]
    if hasattr(out_file, "write"):
        out_file.write("".join(line + "\n" for line in lines))
        return
    out_file = Path(out_file)
    part = out_file.with_name(f".{out_file.name}-{os.getpid()}")
    part.write_text("".join(line + "\n" for line in lines))
    part.replace(out_file)


class ApplyHistoryBest:
    """Within it, builds use the best configs of a log, of several, or of measurements."""

    def __init__(self, records, n_lines=None):
        self._best: dict = {}
        self.load(records)

    def load(self, records) -> None:
        if records is None:
            return
        if isinstance(records, str | os.PathLike):
            records = load_from_file(records)
        elif isinstance(records, list | tuple) and records and isinstance(records[0], str | os.PathLike):
            records = (pair for file in records for pair in load_from_file(file))
        for inp, result in _best(records).values():
            self._best[inp.task._workload] = inp.config.values, result

    def __enter__(self):
        self._context = choose(lambda workload: self._best[workload][0] if workload in self._best else None)
        self._context.__enter__()
        return self

    def __exit__(self, *error):
        self._context.__exit__(*error)


# ---------------------------------------------------------------- graph tuners


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


def _templates_are_gone(*_args, **_kwargs):
    raise NotImplementedError(
        "autotvm.template: templates were TE schedules, which TVM 0.20 dropped; write the kernel in TensorIR and tune "
        "it with tvm.s_tir.meta_schedule, or tune a network's convolutions with autotvm.task.extract_from_program"
    )


_TUNERS = {"XGBTuner": XGBTuner, "GATuner": GATuner, "RandomTuner": RandomTuner, "GridSearchTuner": GridSearchTuner,
           "Tuner": Tuner}  # fmt: skip
_MEASURE = {"measure_option": measure_option, "LocalBuilder": LocalBuilder, "LocalRunner": LocalRunner,
            "RPCRunner": rpc_runner, "MeasureInput": MeasureInput, "MeasureResult": MeasureResult,
            "MeasureErrorNo": MeasureErrorNo}  # fmt: skip
_TASK = {"extract_from_program": extract_from_program, "create": create, "Task": Task,
         "extract_from_multiple_program": extract_from_multiple_program}  # fmt: skip
_SPACE = {"ConfigSpace": ConfigSpace, "ConfigEntity": ConfigEntity}
_CALLBACKS = {"progress_bar": progress_bar, "log_to_file": log_to_file}
_RECORD = {"encode": encode, "decode": decode, "load_from_file": load_from_file, "pick_best": pick_best}
_GRAPH = {"DPTuner": GraphTuner, "PBQPTuner": GraphTuner}
_APPLY = {"apply_history_best": ApplyHistoryBest, "ApplyHistoryBest": ApplyHistoryBest,
          "apply_graph_best": ApplyHistoryBest, "ApplyGraphBest": ApplyHistoryBest}  # fmt: skip
_NOT_SERVED = dict.fromkeys(["template", "get_config", "register_topi_compute", "register_topi_schedule"],
                            _templates_are_gone)  # fmt: skip

SPACES = {
    "tvm.autotvm": {**_MEASURE, **_APPLY, **_NOT_SERVED, **_RECORD, "create": create, "Task": Task},
    "tvm.autotvm.task": {**_TASK, **_SPACE, **_APPLY, "template": _templates_are_gone},
    "tvm.autotvm.task.space": _SPACE,
    "tvm.autotvm.task.dispatcher": _APPLY,
    "tvm.autotvm.tuner": _TUNERS,
    "tvm.autotvm.tuner.callback": _CALLBACKS,
    "tvm.autotvm.callback": _CALLBACKS,
    "tvm.autotvm.measure": _MEASURE,
    "tvm.autotvm.record": _RECORD,
    "tvm.autotvm.graph_tuner": _GRAPH,
    "tvm.autotvm.tophub": {"context": lambda *_args, **_kwargs: contextlib.nullcontext()},
}
