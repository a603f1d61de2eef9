"""`@autotvm.template`: functions that return a TE schedule and its tensors, for any config of a space.

The tuners measure such tasks as those of networks, in worker processes. The schedule is made here, by the
script's own function; a config that this refuses, or whose build or run fails, costs its trial only.
"""

import atexit
import contextvars
import functools
import json
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from tvmfast import tuning
from tvmfast.compiler import build as compiler
from tvmfast.core import errors, machine
from tvmfast.tuning import trial, workers

from .. import context, targets
from ..te.build import lower
from .space import TemplateConfig, TemplateSpace

TEMPLATES: dict = {}  # the script's functions, by name
_MOST_SEARCHED = 1 << 14  # configs of a space; of a larger one, so many at random
REFUSED = "the template refused it"
_config: contextvars.ContextVar = contextvars.ContextVar("config", default=None)  # of the template that runs


def template(task_name, func=None):
    """Register a function as a template, under a name or its own; a decorator.

    Called by the script, the template takes its config from `autotvm.apply_history_best`, or, with a warning,
    the first option of each knob. Its arguments are numbers, strings and tuples, by position.
    """
    if callable(task_name):
        task_name, func = task_name.__name__, task_name

    def register(function):
        TEMPLATES[task_name] = function

        @functools.wraps(function)
        def call(*args, **kwargs):
            if kwargs:
                raise TypeError(
                    f"template {task_name}: expected arguments by position; got {', '.join(kwargs)}"
                )
            if _config.get() is not None:  # within another template
                return function(*args)
            return _with(_found(task_name, args), function, args)

        call.template_name = task_name
        return call

    return register if func is None else register(func)


def get_config():
    """Return the config of the template that runs, or the space, while that is being defined."""
    config = _config.get()
    return TemplateSpace(is_fallback=True) if config is None else config


def _with(config, function, args):
    token = _config.set(config)
    try:
        return function(*args)
    finally:
        _config.reset(token)


def _found(name: str, args):
    """Return the best config of the records that are applied; a space that falls back without one."""
    target = compiler.resolve_target(targets.for_build(), kinds=("llvm", "cuda"))  # of the context
    applied = context.apply_best.get()
    config = applied.config_of(key_of(name, args), machine.target_json(target)) if applied else None
    if config is None:
        where = "in the records" if applied else "without autotvm.apply_history_best"
        warnings.warn(
            f"template {name}{tuple(args)}: no config {where}; each knob has its first option, which is slow",
            stacklevel=4,
        )
        return TemplateSpace(is_fallback=True)
    return config


def key_of(name: str, args) -> tuple[str, str]:
    """Return the key of a template's task. Raises TypeError for arguments that JSON does not have."""
    try:
        return name, json.dumps(as_tuple(args))
    except TypeError as error:
        raise TypeError(
            f"template {name}: expected numbers, strings and tuples as arguments; {error}"
        ) from None


def as_tuple(value):
    """Return a value with tuples for lists, and Python's numbers for NumPy's."""
    if isinstance(value, list | tuple):
        return tuple(map(as_tuple, value))
    return value.item() if isinstance(value, np.generic) else value


class TemplateTask:
    """A template with its arguments.

    Attributes:
        name: The template's.
        args: The arguments.
        config_space: The configs that the template defines.
        flop: The operations of a call, which it says by `add_flop`, or TVM counts.
        numbers: The configs that tuners choose from: all, or 16,384 at random of a larger space.
    """

    def __init__(self, name: str, args, target: tvm.target.Target):
        self.name, self.args, self.target = name, as_tuple(tuple(args)), target
        self.kwargs, self.target_host = {}, None
        self.key, self.target_key = key_of(name, self.args), machine.target_json(target)
        self.config_space = TemplateSpace()
        tensors = self._run(self.config_space)[1]
        self.flop = self.config_space.flop or _operations(name, tensors)
        size = len(self.config_space)
        others = range(1, size)
        if size > _MOST_SEARCHED:
            others = sorted(random.Random(0).sample(others, _MOST_SEARCHED - 1))
        self.numbers = [0, *others]

    @property
    def workload(self) -> tuple:
        """The name, followed by the arguments."""
        return (self.name, *self.args)

    def instantiate(self, config: TemplateConfig) -> tuple:
        """Return the schedule and the tensors for a config: what `tvm.lower` and `tvm.build` take."""
        return self._run(config)

    def _run(self, config) -> tuple:
        with self.target:
            made = _with(config, TEMPLATES[self.name], self.args)
        if not (isinstance(made, tuple | list) and len(made) == 2):
            raise TypeError(
                f"template {self.name}: expected a schedule and a list of tensors from it; got {made!r}"
            )
        return tuple(made)

    def features(self, values: dict) -> list[float]:
        """Return what a cost model sees of a config's values."""
        return self.config_space.features(values)

    def measure(self, opened: tuning.LocalRunner, configs: list[TemplateConfig]) -> list[tuning.Trial]:
        """Build and time configs with a runner of `tvmfast.tuning`, on random arrays; checks no results.

        Raises NotImplementedError for a GPU, whose schedules `instantiate` makes for `tvm.build`.
        """
        if self.target.kind.name != "llvm":
            raise NotImplementedError(
                f"template {self.name}: configs for {self.target.kind.name!r} are not measured here; build "
                "one by tvm.build(*task.instantiate(config), target) and time it, or tune with "
                "tvm.s_tir.meta_schedule"
            )
        trials: dict[int, tuning.Trial] = {}
        modules: dict[int, tvm.IRModule] = {}
        for number, config in enumerate(configs):
            try:
                modules[number] = lower(*self.instantiate(config))
            except Exception as error:  # the script's, or what TVM raises for a schedule that cannot be
                trials[number] = tuning.Trial((), f"{REFUSED}: {errors.one_line(error)[:500]}")
        builder, runner = _workers(opened)
        built = builder.build(trial.build_module, [(module, self.target) for module in modules.values()])
        try:
            inputs, measured = [], []
            for (number, module), (path, error) in zip(modules.items(), built, strict=True):
                if path is None:
                    trials[number] = tuning.Trial((), error)
                else:
                    measured.append(number)
                    arguments = ms.arg_info.ArgInfo.from_entry_func(module)
                    inputs.append(ms.runner.RunnerInput(path, "cpu", arguments))
            for number, future in zip(measured, runner.run(inputs), strict=True):
                trials[number] = _trial(future.result(), opened.timeout)
        finally:
            for path, _ in built:
                if path:
                    shutil.rmtree(Path(path).parent, ignore_errors=True)
        return [trials[number] for number in range(len(configs))]

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, args={self.args}, kwargs={{}}, workload={self.workload})"


def _trial(result: ms.runner.RunnerResult, timeout: float) -> tuning.Trial:
    if result.error_msg is None:
        return tuning.Trial(tuple(map(float, result.run_secs)))
    late = "Timeout" in result.error_msg
    return tuning.Trial(
        (), f"it took longer than {timeout:g} s" if late else errors.lines(result.error_msg)[-1]
    )


@functools.lru_cache(maxsize=256)
def _task_of(function, name: str, args: str, target: str) -> TemplateTask:
    return TemplateTask(name, json.loads(args), tvm.target.Target(json.loads(target)))


def task_of(name: str, args: str, target: str) -> TemplateTask:
    """Return the task of a template for arguments in JSON and a target as `machine.target_json` gives it."""
    return _task_of(TEMPLATES[name], name, args, target)  # a template that is defined again has another space


def _operations(name: str, tensors) -> int:
    try:
        module = tvm.IRModule({"main": te.create_prim_func(list(tensors))})
        counted, why = int(tvm.s_tir.analysis.estimate_tir_flops(module)), "there are none"
    except Exception as error:  # TVM's, of what it cannot count
        counted, why = 0, errors.one_line(error)[:200]
    if counted < 1:  # tuners compare rates
        raise ValueError(f"template {name}: cannot count its operations ({why}); say them by cfg.add_flop")
    return counted


@functools.cache
def _workers(opened: tuning.LocalRunner) -> tuple:
    """Return a builder and a runner of MetaSchedule's that belong to a runner, for this process's life."""
    builder, runner = workers.Builder(opened.timeout), opened.for_metaschedule()
    atexit.register(builder.close)
    atexit.register(runner.pool.shutdown, wait=False)
    return builder, runner
