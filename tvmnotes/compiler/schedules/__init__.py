"""Schedules for CPUs, one file per family of operators, and the pass that gives each kernel of a module its own.

A family's kernels carry its name, their config (a plain dictionary: tile sizes and such) and their workload as an
annotation of their main block; whatever was fused behind them is scheduled along. See family.py for what a family is.
"""

import importlib
import pkgutil
from collections.abc import Callable

import tvm
from tvm.s_tir import Schedule, ScheduleError

from . import annotations, prefetch
from .default import Kernel
from .family import FAMILIES, Workload
from .vector import Simd

__all__ = ["FAMILIES", "Kernel", "Simd", "Workload", "schedule_kernels"]

for _file in pkgutil.iter_modules(__path__):  # the families register themselves
    importlib.import_module(f"{__name__}.{_file.name}")


def schedule_kernels(simd: Simd, lookup: Callable | None = None) -> tvm.transform.Pass:
    """The pass, for all kernels. Each becomes the annotation of what it got; see `annotations.of_function`.

    A kernel of no family gets the config that `lookup(kernel)` gives, if any.
    """

    @tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
    def run(mod, _context):
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tvm.tirx.PrimFunc):
                mod.update_func(var, _scheduled(func, var.name_hint, simd, lookup))
        return mod

    return run


def _scheduled(func, name, simd, lookup):
    """The kernel with the schedule of its family; by default where that does not fit, as it is where nothing does."""
    main = func.with_attr("global_symbol", "main")  # held here, or TVM's Schedule would change `func` itself
    found = annotations.of_blocks(_begin(main)) or _looked_up(func, name, lookup)
    for annotation in (*found, *annotations.attribute({"family": "default", "lanes": simd.lanes}).values()):
        sch, config = _begin(main), annotations.parse(annotation)["schedule"]
        try:
            FAMILIES[config["family"]].schedule(sch, config)
        except ScheduleError:
            continue
        scheduled = prefetch.insert(sch.mod["main"]) if config.get("prefetch") else sch.mod["main"]
        scheduled = scheduled.without_attr("global_symbol")  # "main", of the Schedule
        for key, value in func.attrs.items():
            scheduled = scheduled.with_attr(key, value)
        return scheduled.with_attr(annotations.NAME, annotation)
    return func


def _looked_up(func, name, lookup) -> list[str]:
    """The annotation for a kernel of no family, where there is a config for it."""
    if lookup is None:
        return []
    kernel = Kernel.of(func, name)
    config = lookup(kernel)
    return [*annotations.attribute(config, kernel).values()] if config else []


def _begin(main) -> Schedule:
    return Schedule(tvm.IRModule({"main": main}), error_render_level="fast")
