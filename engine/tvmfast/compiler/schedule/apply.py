"""The pass that schedules each kernel of a module by its rule."""

import logging
from collections.abc import Callable

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.transform import ConvertSSA

from ...core import annotations, errors
from ...core.protocols import Lookup
from ...core.simd import Simd
from .rules import RULES
from .workloads.kernel import Kernel

_LOG = logging.getLogger(__name__)


def schedule_kernels(simd: Simd, lookup: Lookup | None = None) -> tvm.transform.Pass:
    """Make the pass that schedules every kernel and annotates it; see `annotations.of_function`.

    Args:
        simd: the vector registers of the target.
        lookup: gives the config of a `Kernel`, the workload of a kernel that has no annotation; without a
            config, such a kernel gets the default schedule.

    Returns:
        The module pass "ScheduleKernels".
    """
    return _on_each_kernel("ScheduleKernels", lambda func, name: _scheduled(func, name, simd, lookup))


def begin_reductions() -> tvm.transform.Pass:
    """Make the pass that initializes reductions over dynamic axes before their loops.

    TVM initializes a reduction in its first iteration, which an empty axis does not have.
    """
    return _on_each_kernel("BeginReductions", _begun)


def _on_each_kernel(pass_name: str, rewrite: Callable) -> tvm.transform.Pass:
    """Make the pass that replaces each kernel by `rewrite(kernel, its name)`."""

    @tvm.transform.module_pass(opt_level=0, name=pass_name)
    def run(mod, _context):
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tvm.tirx.PrimFunc):
                mod.update_func(var, rewrite(func, var.name_hint))
        return mod

    return run


def _begun(func, _name):
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    main = ConvertSSA()(mod)["main"]  # inlining repeats an expression's `Let`
    sch, changed = _begin(main), False
    try:
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
    except ScheduleError:  # a kernel that is not a nest of blocks
        return func
    for block in blocks:
        node, loops = sch.get(block), sch.get_loops(block)
        if node.init is None or len(loops) != len(node.iter_vars):  # scheduled by a rule
            continue
        axes = zip(loops, node.iter_vars, strict=True)
        reduced = [loop for loop, axis in axes if int(axis.iter_type) != tvm.tirx.IterVar.DataPar]
        if not all(isinstance(sch.get(loop).extent, tvm.tirx.IntImm) for loop in reduced):
            sch.decompose_reduction(block, reduced[0])
            changed = True
    return sch.mod["main"].without_attr("global_symbol") if changed else func


def _scheduled(func, name, simd, lookup):
    """Schedule a kernel by its annotation or by `lookup`; by the default rule if neither exists or fits."""
    main = func.with_attr("global_symbol", "main")  # a reference, or TVM modifies `func`
    found = annotations.of_blocks(_begin(main)) or _looked_up(func, name, lookup)
    fallback = annotations.attribute({"family": "default", "lanes": simd.lanes})
    for annotation in (*found, *fallback.values()):
        sch = _begin(main)
        given = annotations.parse(annotation)["schedule"]
        rule = RULES[given["family"]]
        try:
            config = rule.config(given)
            rule.schedule(sch, config)
        except (ScheduleError, tvm.error.InternalError) as error:  # the latter where it fuses dynamic axes
            if _LOG.isEnabledFor(logging.DEBUG):
                _LOG.debug("%s: rule %s declines: %s", name, rule.name, errors.one_line(error))
            continue
        _LOG.debug("%s: rule %s takes it, with %s", name, rule.name, config)
        scheduled = rule.finish(sch.mod["main"], config)
        scheduled = scheduled.without_attr("global_symbol")  # "main", set above
        for key, value in func.attrs.items():
            scheduled = scheduled.with_attr(key, value)
        return scheduled.with_attr(annotations.NAME, annotation)
    _LOG.debug("%s: no rule takes it", name)
    return func


def _looked_up(func, name, lookup) -> list[str]:
    """Return the annotation for a kernel that has none, if `lookup` has a config for it."""
    if lookup is None:
        return []
    kernel = Kernel.of(func, name)
    config = lookup(kernel)
    return [*annotations.attribute(config, kernel).values()] if config else []


def _begin(main) -> Schedule:
    return Schedule(tvm.IRModule({"main": main}), error_render_level="fast")
