"""Schedules for CPUs, one file per family of operators, and the pass that gives each kernel of a module its own.

A family's kernels carry its name and their config (a plain dictionary: tile sizes and such) as annotations of their
main block; whatever was fused behind them is scheduled along.
"""

import contextlib
import contextvars
import json
from collections.abc import Callable

import tvm
from tvm.s_tir import Schedule, ScheduleError

from . import conv2d, default, depthwise, matmul, pointwise, rows, winograd
from .vector import Vectors

OUT_EWISE_FUSABLE = 4  # TVM's pattern of a kernel that elementwise operators may be fused behind

_FAMILIES = {
    "conv2d": conv2d,
    "pointwise": pointwise,
    "winograd": winograd,
    "depthwise": depthwise,
    "matmul": matmul,
    "rows": rows,
    "default": default,
}


_chosen = contextvars.ContextVar("chosen", default=None)


@contextlib.contextmanager
def choose(config: Callable):
    """Within it, a workload gets `config(workload)`, where that is not None, instead of its default config."""
    token = _chosen.set(config)
    try:
        yield
    finally:
        _chosen.reset(token)


def config_for(workload, vectors: Vectors) -> dict:
    """The config that was chosen for a workload, or its default one."""
    chosen = _chosen.get()
    config = chosen(workload) if chosen else None
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
                mod.update_func(var, _schedule(func, vectors.lanes))
        return mod

    return run


def _schedule(func, lanes):
    """The kernel with the schedule of its family; by default where that does not fit, as it is where nothing does."""
    for family, config in (*_annotated(func), ("default", {"lanes": lanes})):
        sch = _begin(func)
        try:
            _FAMILIES[family].schedule(sch, config)
        except ScheduleError:
            continue
        made = sch.mod["main"]
        for key, value in func.attrs.items():
            made = made.with_attr(key, value)
        return made.with_attr("schedule", f"{family} {json.dumps(config)}")
    return func.with_attr("schedule", "none")


def _annotated(func) -> list[tuple[str, dict]]:
    """Family and config in the annotations of a kernel's blocks, if any."""
    sch = _begin(func)
    try:
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
    except ScheduleError:  # a kernel that is no nest of blocks: a sort, for example
        return []
    marked = [notes for block in blocks if "tvmnotes.family" in (notes := sch.get(block).annotations)]
    return [(str(notes["tvmnotes.family"]), json.loads(notes["tvmnotes.config"])) for notes in marked]


def _begin(func) -> Schedule:
    return Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), error_render_level="fast")
