"""Schedules for CPUs, one file per family of operators, and the pass that gives each kernel of a module its own.

A family's kernels carry its name and their config (a plain dictionary: tile sizes and such) as annotations of their
main block; whatever was fused behind them is scheduled along.
"""

import contextlib
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import tvm
import tvm_ffi
from tvm.s_tir import Schedule, ScheduleError

from . import conv2d, default, depthwise, matmul, metaschedule, pointwise, prefetch, row_reduction, winograd
from .annotations import described, marked
from .vector import Vectors

_FAMILIES = {
    "conv2d": conv2d,
    "pointwise": pointwise,
    "winograd": winograd,
    "depthwise": depthwise,
    "matmul": matmul,
    "rows": row_reduction,
    "metaschedule": metaschedule,
    "default": default,
}


@dataclass(frozen=True)
class Kernel:
    """A kernel that has no schedule of a family as a workload: one of a structure, by TVM's hash of it."""

    op: ClassVar[str] = "kernel"

    hash: str
    name: str = field(compare=False)
    func: tvm.tirx.PrimFunc | None = field(compare=False, repr=False, default=None)

    @staticmethod
    def of(func, name: str) -> "Kernel":
        plain = func.with_attr("global_symbol", "main").without_attr("op_pattern")
        return Kernel(f"{tvm_ffi.structural_hash(plain) % 2**64:016x}", name, plain)

    def default_config(self, vectors: Vectors) -> dict:
        return {"family": "default", "lanes": vectors.lanes}


_chosen = contextvars.ContextVar("chosen", default=None)


@contextlib.contextmanager
def choose(config: Callable):
    """Within it, a workload gets `config(workload)`, where that is not None, instead of its default config."""
    token = _chosen.set(config)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen() -> Callable | None:
    """What `choose` was given, within it."""
    return _chosen.get()


def config_for(workload, vectors: Vectors) -> dict:
    """The config that was chosen for a workload, or its default one."""
    config = _chosen.get()(workload) if _chosen.get() else None
    return workload.default_config(vectors) if config is None else config


def configs(workload, vectors: Vectors) -> list[dict]:
    """The configs of a workload to search, in an order that does not change, the default one first."""
    default = workload.default_config(vectors)
    return [default, *(config for config in workload.space(vectors) if config != default)]


def schedule_kernels(vectors: Vectors) -> tvm.transform.Pass:
    """The pass, for all kernels. The name and config of its schedule become a kernel's attribute "schedule"."""

    @tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
    def run(mod, _context):
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tvm.tirx.PrimFunc):
                mod.update_func(var, _schedule(func, var.name_hint, vectors.lanes))
        return mod

    return run


def _schedule(func, name, lanes):
    """The kernel with the schedule of its family; by default where that does not fit, as it is where nothing does.

    Where its family's fits, the workload that it serves becomes its attribute "workload".
    """
    main = func.with_attr("global_symbol", "main")  # held here, or TVM's Schedule would change `func` itself
    found = marked(_begin(main)) or _searched(func, name)
    for family, config, workload in (*found, ("default", {"lanes": lanes}, None)):
        sch = _begin(main)
        try:
            _FAMILIES[family].schedule(sch, config)
        except ScheduleError:
            continue
        made = prefetch.insert(sch.mod["main"]) if config.get("prefetch") else sch.mod["main"]
        for key, value in func.attrs.items():
            made = made.with_attr(key, value)
        if workload:
            made = made.with_attr("workload", workload)
        return made.with_attr("schedule", f"{family} {json.dumps(config)}")
    return func.with_attr("schedule", "none")


def _searched(func, name) -> list[tuple[str, dict, str | None]]:
    """The schedule that was chosen for a kernel of no family, if any was."""
    kernel = Kernel.of(func, name)
    config = _chosen.get()(kernel) if _chosen.get() else None
    return [(config["family"], config, json.dumps(described(kernel)))] if config else []


def _begin(main) -> Schedule:
    return Schedule(tvm.IRModule({"main": main}), error_render_level="fast")
