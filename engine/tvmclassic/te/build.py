"""`tvm.lower` and `tvm.build` of TE schedules, modules and functions."""

import contextlib

import tvm
from tvm import s_tir, te
from tvm.runtime import Module

from tvmfast.compiler.cuda import codegen
from tvmfast.core import machine

from .. import context, targets
from .ops import key, outputs_of
from .replay import replay
from .schedule import Schedule

# What makes loops of blocks; from here on TVM rewrites the loops themselves.
_LOOPS = (
    s_tir.transform.LowerCrossThreadReduction,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.UnifyThreadBinding,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
    s_tir.transform.StmtSimplify,
)


def lower(inp, args=None, name: str = "main", binds=None, simple_mode: bool = False) -> tvm.IRModule:
    """`tvm.lower`: a TE schedule as a module with one function.

    Args:
        inp: A TE schedule; or a module or function of TensorIR.
        args: Its arguments: tensors of `te`, and variables; only for a schedule.
        name: The function's name.
        binds: Not supported: buffers of arguments; None.
        simple_mode: Whether to return loops without blocks, for printing: then results may be missing among
            the arguments, and follow these. Else the module has the blocks of TensorIR, on which a
            `tvm.s_tir.Schedule` can go on. `build` takes both.

    Raises:
        TypeError: `inp` is something else, or a schedule without `args`.
        ScheduleError: What `replay` raises.
    """
    if binds:
        raise NotImplementedError(
            "tvm.lower: binds are gone; strides of arguments come from the arrays in a call"
        )
    if _is_scheduled(inp) and not isinstance(args, list | tuple):
        raise TypeError("tvm.lower: expected the arguments of the function, such as [A, B, C]")
    if isinstance(inp, Schedule):
        if simple_mode:  # what prints a schedule may leave the results out
            given = {key(arg.op) for arg in args if isinstance(arg, te.Tensor)}
            args = [*args, *(t for op in inp.outputs if key(op) not in given for t in outputs_of(op))]
        mod = replay(inp, args, name).mod
    elif _is_scheduled(inp):
        mod = tvm.IRModule({name: inp.lowered(args)["main"].with_attr("global_symbol", name)})
    elif isinstance(inp, tvm.tirx.PrimFunc):
        mod = tvm.IRModule({name: inp.with_attr("global_symbol", name)})
    elif isinstance(inp, tvm.IRModule):
        mod = inp
    else:
        raise TypeError(
            "tvm.lower: expected a schedule of te.create_schedule, a module or a function; "
            f"got {type(inp).__name__}"
        )
    passes = context.lower_passes()
    loops = [make() for make in _LOOPS] if simple_mode or passes else []
    return tvm.transform.Sequential([*loops, *passes])(mod)


def _is_scheduled(given) -> bool:
    return isinstance(given, Schedule) or hasattr(given, "lowered")  # the latter of auto_scheduler


def build(
    inputs,
    args=None,
    target=None,
    target_host=None,
    runtime=None,
    name: str = "default_function",
    binds=None,
    pipeline="default",
) -> Module:
    """`tvm.build`: compile a TE schedule, or a module or function of TensorIR.

    Args:
        inputs: A TE schedule with its arguments in `args`, or what `lower` returns.
        args: The arguments of a schedule; for a module the target, as today.
        target: A target, or what `tvm.target.Target` takes; by default that of the context, else "llvm".
            Without options, "llvm" means this machine, as for `relay.build`.
        target_host: The target of a GPU's host.
        runtime: Ignored, as there is one runtime.
        name: The name of a schedule's function.
        binds: Not supported; None.
        pipeline: TVM's passes, as of today's `tvm.build`.

    Returns:
        A module that is called, with the methods of TVM 0.8's.

    Raises:
        TypeError, ScheduleError: What `lower` raises.
        ValueError: A kernel takes more shared memory than a GPU gives a block.
    """
    if isinstance(inputs, list | tuple | dict):
        raise TypeError(
            f"tvm.build: expected one schedule, module or function; got a {type(inputs).__name__}"
        )
    if not _is_scheduled(inputs) and target is None:
        target = args
    if isinstance(inputs, tvm.tirx.PrimFunc):
        name = str((inputs.attrs or {}).get("global_symbol", name))
    if not isinstance(inputs, tvm.IRModule):
        inputs = lower(inputs, args, name, binds)
    target = tvm.target.Target.current() if target is None else target
    if target is None and all((f.attrs or {}).get("target") is None for f in inputs.functions.values()):
        target = "llvm"
    if target is not None:
        target = tvm.target.Target(target)
        if target.kind.name == "llvm" and targets.for_build(target) is None:
            target = machine.host_target()  # as for relay.build: what tuners measure is what runs
        target = target.with_host(tvm.target.Target(target_host)) if target_host is not None else target
    for_gpu = target is not None and target.kind.name == "cuda"
    with codegen.compiler() if for_gpu and tvm.cuda().exist else contextlib.nullcontext():
        module = tvm.tirx.build(inputs, target, pipeline=pipeline)  # without a GPU the kernels stay source
    for part in module.imports if for_gpu else ():
        codegen.check_shared_memory(part.inspect_source("cuda") if part.kind == "cuda" else "")
    names = [variable.name_hint for variable in inputs.get_global_vars()]
    if len(names) == 1:
        module.__dict__["entry_name"] = names[0]
    return module
