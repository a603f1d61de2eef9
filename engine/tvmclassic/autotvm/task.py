"""Tasks: a network's convolutions and dense layers under AutoTVM's names and arguments; and their configs."""

import dataclasses
import functools
import json

import numpy as np
import tvm

from tvmfast import tuning
from tvmfast.compiler import build as compiler
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.core.machine import target_json

from .. import targets
from ..context import without_instruments
from ..relay import ir
from ..relay.build import relax_of
from . import gpu, template

_KINDS = ("conv2d_NCHWc", "conv2d_NCHW", "depthwise_conv2d_NCHWc", "group_conv2d_NCHWc", "dense_pack")
_NAMES = {"nn.conv2d": ("conv2d", "depthwise_conv2d", "group_conv2d"), "nn.dense": ("dense",)}


class Task:
    """A task of `tvmfast.tuning`, or one of a GPU, `today`, under AutoTVM's name and arguments.

    `config_space` holds its configs; `flop` is the number of operations of one call.
    """

    def __init__(self, today: tuning.Task | gpu.TileTask):
        self.today, self.target = today, tvm.target.Target(json.loads(today.target))
        describe = gpu.described if isinstance(today, gpu.TileTask) else _described
        self.name, self.args = describe(today.workload)
        self.kwargs, self.target_host = {}, None
        self.flop, self.config_space = today.operations, ConfigSpace(today.space)
        self.key, self.target_key = today.workload, today.target
        self.numbers = range(len(self.config_space))

    def measure(self, opened: tuning.LocalRunner, configs: list["ConfigEntity"]) -> list[tuning.Trial]:
        """Measure configs with a runner of `tvmfast.tuning`; on a GPU, as `TileTask.measure` does."""
        if isinstance(self.today, gpu.TileTask) and isinstance(opened, tuning.LocalRunner):
            return self.today.measure(opened, [config.values for config in configs])
        return opened.measure([self.today.candidate(config.values) for config in configs])

    def features(self, values: dict) -> list[float]:
        """Return what a cost model sees of a config's values."""
        return self.today.features(values)

    @property
    def workload(self) -> tuple:
        """The name, followed by the arguments."""
        return (self.name, *self.args)

    def instantiate(self, config):
        """Raise NotImplementedError: there is no TE schedule to instantiate."""
        raise NotImplementedError(
            "task.instantiate: TE schedules are gone; relay.build makes the kernel, under "
            "autotvm.apply_history_best"
        )

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, args={self.args}, kwargs={{}}, workload={self.workload})"


class ConfigSpace:
    """The configs of a task: `len(space)`, `space.get(7)`, `space[7]`; the first is the untuned default."""

    def __init__(self, configs: list[dict]):
        self._configs = configs

    def __len__(self) -> int:
        return len(self._configs)

    def get(self, index: int) -> "ConfigEntity":
        """Return the config at `index`. Raises IndexError outside the space."""
        if not 0 <= index < len(self):
            raise IndexError(f"Index out of range: size {len(self)}, got index {index}")
        return ConfigEntity(index, self._configs[index])

    __getitem__ = get

    def index(self, config: dict) -> int | None:
        """Return the index of a config given as knob values, or None."""
        return self._configs.index(config) if config in self._configs else None

    @functools.cached_property
    def space_map(self) -> dict[str, list]:
        """The values of each knob, by its name."""
        knobs: dict = {}
        for config in self._configs:
            for name, value in config.items():
                knobs.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in knobs.items()}

    def __repr__(self) -> str:
        rows = [
            f"{i:4d} {name}: OtherOption({values}) len={len(values)}"
            for i, (name, values) in enumerate(self.space_map.items())
        ]
        return "\n".join([f"ConfigSpace (len={len(self)}, space_map=", *rows, ")"])


class ConfigEntity:
    """One config: its `index` in the space, and its knobs' `values` by name."""

    def __init__(self, index: int, values: dict):
        self.index, self.values = index, values

    def to_json_dict(self) -> dict:
        """Return the config in the format of AutoTVM's log."""
        knobs = [[name, "ot", value] for name, value in self.values.items()]
        return {"index": self.index, "code_hash": None, "entity": knobs}

    @staticmethod
    def from_json_dict(given: dict) -> "ConfigEntity":
        """Build a config from the format of `to_json_dict`."""
        return ConfigEntity(given["index"], {name: value for name, _, value in given["entity"]})

    def __eq__(self, other) -> bool:
        return isinstance(other, ConfigEntity) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __repr__(self) -> str:
        return f"{list(self.values.items())},None,{self.index}"


def _described(workload) -> tuple[str, tuple]:
    """Return the name and arguments of a workload in TVM's x86 templates."""
    if isinstance(workload, Dense):
        tensors = (workload.rows, workload.depth), (workload.columns, workload.depth)
        return "dense_pack.x86", (*(("TENSOR", t, "float32") for t in tensors), None, "float32")
    kind = (
        "depthwise_conv2d" if workload.is_depthwise else "group_conv2d" if workload.groups > 1 else "conv2d"
    )
    layout = "NCHWc" if workload.blocked else "NCHW"
    tensors = (("TENSOR", t, "float32") for t in (workload.data, workload.weight))
    window = workload.strides, workload.padding, workload.dilation
    groups = (workload.groups,) if kind == "group_conv2d" else ()
    return f"{kind}_{layout}.x86", (*tensors, *window, *groups, "NCHW", "NCHW", "float32")


def workload_of(name: str, args):
    """Return the workload for a name and arguments of `_described`; raises ValueError for others."""
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


def task_of(name: str, args, target: tvm.target.Target) -> Task:
    """Return the task of an extracted one's name and arguments; raises ValueError and others for others."""
    if target.kind.name != "cuda":
        return Task(tuning.Task(workload_of(name, args), 1, target_json(target)))
    workload = dataclasses.replace(workload_of(gpu.NAMES.get(name, ""), args), dtype=str(args[0][2]))
    return Task(gpu.TileTask(workload, str(target.attrs["arch"])))


def create(task_name, args, target, target_host=None, template_key=None) -> Task:
    """`autotvm.task.create`: build a task from the name and arguments of an extracted one.

    A convolution's space holds the configs of both template keys of 2019, "direct" and "winograd"; for target
    "cuda", tiles. For a template of the script, give its name or the template itself, and its arguments; for
    target "cuda" it has configs and schedules, but no measuring.

    Raises:
        ValueError: No task has this name and these arguments.
    """
    task_name = getattr(task_name, "template_name", task_name)
    resolved = _resolved(target)
    if task_name in template.TEMPLATES:
        return template.TemplateTask(task_name, args, resolved)
    try:
        return task_of(str(task_name), args, resolved)
    except (ValueError, TypeError, IndexError):
        names = gpu.NAMES if resolved.kind.name == "cuda" else [f"{kind}.x86" for kind in _KINDS]
        raise ValueError(
            f"autotvm.task.create: no template {task_name!r} for {args!r}; there are "
            f"{', '.join([*template.TEMPLATES, *names])}, with the arguments of extracted tasks"
        ) from None


def _resolved(target) -> tvm.target.Target:
    return compiler.resolve_target(targets.for_build(target), kinds=("llvm", "cuda"))


@without_instruments()
def extract_from_program(mod, params=None, target=None, target_host=None, ops=None) -> list[Task]:
    """Return a task for each distinct convolution and dense layer with known weights.

    For target "cuda", for those that have tiles: convolutions of one group, and dense layers of two rows or
    more.

    Args:
        mod: Relay module or function, or a Relax module.
        params: Weights by name. If empty, all parameters of a Relay function but the first are weights.
        target: As `relay.build` takes it.
        target_host: Not used.
        ops: Operators, or names of them, to restrict the tasks to.
    """
    if not params and isinstance(mod, ir.IRModule | ir.Function):
        main = mod["main"] if isinstance(mod, ir.IRModule) else mod
        main.infer()
        params = {p.name_hint: np.zeros(p.known_type.shape, p.known_type.dtype) for p in main.params[1:]}
    resolved = _resolved(target)
    if resolved.kind.name == "cuda":
        tasks = gpu.extract(*relax_of(mod, params), resolved)
    else:
        tasks = tuning.tasks(*relax_of(mod, params), resolved)
        tasks = [task for task in tasks if isinstance(task.workload, Convolution | Dense)]
        tasks = [task for task in tasks if task.workload.dtype == "float32"]
    extracted = [Task(task) for task in tasks]
    if ops is None:
        return extracted
    wanted = tuple(kind for op in ops for kind in _NAMES.get(getattr(op, "name", str(op)), ()))
    return [task for task in extracted if task.name.startswith(wanted)] if wanted else []


def extract_from_multiple_program(mods, params, target=None, target_host=None, ops=None) -> list[Task]:
    """Return the tasks of several programs, each workload once."""
    by_workload = {}
    for mod, weights in zip(mods, params, strict=True):
        for task in extract_from_program(mod, weights, target, target_host, ops):
            by_workload.setdefault(task.workload, task)
    return list(by_workload.values())


def target_of(target, whose: str) -> tvm.target.Target:
    """Return the target of a task, for a CPU; `whose` is the module's name, for the error."""
    resolved = targets.for_build(target)
    if getattr(resolved, "kind", None) and resolved.kind.name == "cuda":
        raise NotImplementedError(
            f"{whose} for target 'cuda': it searches schedules of CPUs; tune a GPU's tiles with autotvm, or "
            "its kernels with tvm.s_tir.meta_schedule, and build inside `with database:`"
        )
    return compiler.resolve_target(resolved)
