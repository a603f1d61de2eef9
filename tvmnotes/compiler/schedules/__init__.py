"""Schedules for CPUs, one file per family of operators, and the pass that schedules each kernel of a module.

family         what a family and a workload must provide, and the registry of families
annotations    the annotation of a kernel: its schedule (family and config) and its workload
convolution    the workload of a convolution; its families: conv2d, pointwise, depthwise, winograd
matmul         products with a weight known at compile time; batch_matmul: of two activations
row_reduction  softmax and layer norm; elementwise: exp, tanh and others in vectorizable arithmetic
default        every other kernel; metaschedule: tuned by TVM's search; trace: what its traces may do
vector         registers and register tiles; epilogue: fused operators, vector loops; prefetch: of weights
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
    """Make the pass that schedules every kernel and annotates it; see `annotations.of_function`.

    Args:
        simd: the vector registers of the target.
        lookup: `lookup(kernel) -> dict | None` gives the config of a `Kernel`, the workload of a kernel
            without a family; without a config, such a kernel gets the default schedule.

    Returns:
        The module pass "ScheduleKernels".
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
    """Schedule a kernel by its annotation or by `lookup`; by the default family if neither exists or fits."""
    main = func.with_attr("global_symbol", "main")  # a reference, or TVM modifies `func`
    found = annotations.of_blocks(_begin(main)) or _looked_up(func, name, lookup)
    fallback = annotations.attribute({"family": "default", "lanes": simd.lanes})
    for annotation in (*found, *fallback.values()):
        sch = _begin(main)
        config = annotations.parse(annotation)["schedule"]
        try:
            FAMILIES[config["family"]].schedule(sch, config)
        except ScheduleError:
            continue
        scheduled = prefetch.insert(sch.mod["main"]) if config.get("prefetch") else sch.mod["main"]
        scheduled = scheduled.without_attr("global_symbol")  # "main", set above
        for key, value in func.attrs.items():
            scheduled = scheduled.with_attr(key, value)
        return scheduled.with_attr(annotations.NAME, annotation)
    return func


def _looked_up(func, name, lookup) -> list[str]:
    """Return the annotation for a kernel without a family, if `lookup` has a config for it."""
    if lookup is None:
        return []
    kernel = Kernel.of(func, name)
    config = lookup(kernel)
    return [*annotations.attribute(config, kernel).values()] if config else []


def _begin(main) -> Schedule:
    return Schedule(tvm.IRModule({"main": main}), error_render_level="fast")
