"""TOPI's schedules for CPUs, `topi.generic` and `topi.x86`, which TVM dropped: by tvmfast's default rule.

    s = topi.x86.schedule_injective([c])    # then as ever: tvm.lower(s, [a, c]), tvm.build(s, [a, c], target)

It inlines what costs nothing to compute again, shares outer loops out to threads, and makes rows vectors.
"""

import tvm
from tvm import te

from tvmfast.compiler.schedule.apply import schedule_kernels
from tvmfast.core import annotations, machine
from tvmfast.core.simd import simd_of

from .targets import for_build
from .te.stage import Unsupported

_NAMES = (
    "adaptive_pool batch_matmul broadcast concatenate conv2d_nchw conv2d_nhwc conv2d_transpose_nchw dense "
    "depthwise_conv2d_nchw depthwise_conv2d_nhwc elemwise extern injective lrn pool reduce softmax"
)


class Scheduled:
    """Results of a computation and what it reads, scheduled by a rule: what `tvm.lower`, `tvm.build` take."""

    def __init__(self, outputs: list, target: tvm.target.Target):
        self.outputs, self._simd = outputs, simd_of(target)

    def lowered(self, args) -> tvm.IRModule:
        """Return the module with the function "main" of these arguments, inputs and results."""
        func = te.create_prim_func(list(args)).with_attr("global_symbol", "main")
        func = schedule_kernels(self._simd)(tvm.IRModule({"main": func}))["main"]
        return tvm.IRModule({"main": func.without_attr(annotations.NAME)})

    def __getitem__(self, of):
        raise Unsupported(
            f"topi: the stage of {getattr(of, 'name', of)!r}: a rule of tvmfast's schedules the whole; "
            "to change stages, begin with te.create_schedule"
        )


def schedule(outs, *_layout) -> Scheduled:
    """`topi.generic.schedule_injective` and the others: a schedule of tensors for the current target's CPU.

    Args:
        outs: The results, tensors of `te` or one.

    Raises:
        TypeError: `outs` are something else.
        NotImplementedError: The current target is none of kind "llvm".
    """
    outputs = list(outs) if isinstance(outs, list | tuple | tvm.ir.Array) else [outs]
    if not outputs or not all(isinstance(output, te.Tensor) for output in outputs):
        raise TypeError(f"topi: a schedule: expected tensors of te or topi; got {outs!r:.200}")
    target = for_build(tvm.target.Target.current(allow_none=True)) or machine.host_target()
    if target.kind.name != "llvm":
        raise NotImplementedError(
            "topi: schedules for GPUs were dropped; tvm.s_tir.dlight schedules a function of "
            "tvm.te.create_prim_func"
        )
    return Scheduled(outputs, target)


NAMES = {f"schedule_{name}": schedule for name in _NAMES.split()}
NAMESPACES = {f"{root}topi.{part}": NAMES for root in ("tvm.", "") for part in ("generic", "x86")}
