"""The registry of workloads, functions that return tensors; their computations, and schedules of these."""

import functools
import json
import operator

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmfast.tuning import metaschedule

from ..autotvm.template import as_tuple
from ..te.ops import key

_FUNCTIONS: dict = {}
_place = operator.attrgetter("__module__", "__qualname__")


def register_workload(func_name, f=None, override=False):
    """Register a function that returns tensors, inputs first, under its name or another one; a decorator.

    Raises RuntimeError if another function has the name, unless `override` is true.
    """
    if callable(func_name):
        func_name, f = func_name.__name__, func_name
    if f is None:
        return functools.partial(register_workload, func_name, override=override)
    before = _FUNCTIONS.get(func_name, f)
    if not override and _place(before) != _place(f):  # a notebook's cell may run again
        raise RuntimeError(
            f"register_workload: {before.__module__} has a workload {func_name!r} already; choose another "
            "name, or say override=True"
        )
    _FUNCTIONS[func_name] = f
    return f


def make_workload_key(func, args) -> str:
    """Return the JSON of a workload's name and its arguments: numbers, strings and tuples."""
    return json.dumps(as_tuple([func if isinstance(func, str) else func.__name__, *args]))


def _tensors_of(workload_key: str):
    try:
        name, *args = json.loads(workload_key)
    except (ValueError, TypeError):
        raise ValueError(
            f"workload_key: expected what auto_scheduler.make_workload_key returns; got {workload_key!r:.200}"
        ) from None
    if name not in _FUNCTIONS:
        raise ValueError(f"auto_scheduler: no workload {name!r}; put @auto_scheduler.register_workload on it")
    return _FUNCTIONS[name](*map(as_tuple, args))


class ComputeDAG:
    """The computation of tensors, inputs first, or of a workload's key: in TensorIR, `func`, as it prints.

    The attribute "layout_free_placeholders" of a computation has no effect: weights stay as they are.
    """

    def __init__(self, compute):
        tensors = _tensors_of(compute) if isinstance(compute, str) else compute
        if not isinstance(tensors, list | tuple) or not all(isinstance(t, te.Tensor) for t in tensors):
            raise TypeError(f"expected the tensors of a computation, in and out; got {tensors!r:.200}")
        self.tensors = list(tensors)
        self.func = te.create_prim_func(self.tensors).without_attr("layout_free_buffers")

    @property
    def flop_ct(self) -> float:
        """The number of operations of a call, as MetaSchedule counts them."""
        return float(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": self.func})))

    def apply_steps_from_state(self, state: dict, layout_rewrite=None) -> tuple:
        """Return a schedule of the computation and the tensors, which `tvm.lower` and `tvm.build` take.

        Raises ScheduleError if the state, of a record, is that of another computation.
        """
        sch = metaschedule.scheduled(tvm.IRModule({"main": self.func}), state)
        return Scheduled(sch, self.tensors), self.tensors

    def print_python_code_from_state(self, state: dict) -> str:
        """Return the steps of a record's state in Python, on a `tvm.s_tir.Schedule`."""
        return str(self.apply_steps_from_state(state)[0].schedule.trace)

    def __repr__(self) -> str:
        return self.func.script()


class Scheduled:
    """A scheduled computation for `tvm.lower` and `tvm.build`; `schedule` is the `tvm.s_tir.Schedule`."""

    def __init__(self, schedule: Schedule, tensors: list):
        self.schedule, self._tensors = schedule, tensors

    def lowered(self, args) -> tvm.IRModule:
        """Return the module with the function "main", of `args`: the tensors that came with the schedule."""
        if list(map(key, args)) != list(map(key, self._tensors)):
            raise ValueError(
                f"args: expected the {len(self._tensors)} tensors that came with the schedule, as they came; "
                f"got {len(args)}: {args!r:.200}"
            )
        return self.schedule.mod
