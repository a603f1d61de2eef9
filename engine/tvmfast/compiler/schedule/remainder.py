"""Remainder tiles: where the number of rows is dynamic, the last tile computes only the rows that are left.

The loops over a register tile's rows are unrolled, so their lengths are static. An annotated loop over tiles
gets, beside the whole tile, remainder tiles of 1, 2, 4, … rows, and computes the smallest that has all rows
left. TVM has no schedule primitive for it: the schedule annotates a loop, which is rewritten afterwards.
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.transform import ConvertSSA

from . import post_rewrite

_NOTE = "tvmfast.rows"


def annotate(sch: Schedule, loop, rows: int) -> None:
    """Have `shorten` rewrite `loop`, whose iterations compute tiles of `rows` rows.

    Its body starts with two nests of loops: one initializes the tile, its outermost loop is over rows; one
    sums up products of two tensors, and has the loop over rows inside of that of the reduction. The rows are
    the last axis but one of the first tensor and of the result.
    """
    sch.annotate(loop, _NOTE, rows)


def shorten(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add remainder tiles to the annotated loops of a kernel."""
    rewritten = post_rewrite.rewrite(func, _NOTE, lambda body, rows: _shortened(body, int(rows)))
    if rewritten.body.same_as(func.body):
        return func
    return ConvertSSA()(tvm.IRModule({"main": rewritten}))["main"]  # the parts have loops of their own


def _shortened(body, rows: int):
    start, reduction, *epilogue = body.seq
    loop = reduction.body
    realize, _ = post_rewrite.innermost(loop)
    *_, row, _, _ = realize.iter_values
    _, data, _ = realize.block.reads
    product = tirx.SeqStmt([start, reduction])
    for power in reversed(range((rows - 1).bit_length())):
        count = tirx.IntImm(loop.extent.ty.dtype, 1 << power)
        at_end = {loop.loop_var: count}
        end = tvm_ffi.structural_map(row, (tirx.Var, lambda var, at_end=at_end: at_end.get(var, var)))
        few = _changed(reduction, reduction.extent, _changed(loop, count, loop.body))
        part = tirx.SeqStmt([_changed(start, count, start.body), few])
        product = tirx.IfThenElse(data.source.shape[-2] <= end, part, product)
    return tirx.SeqStmt([product, *epilogue])


def _changed(loop, extent, body):
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, loop.thread_binding, loop.annotations)
