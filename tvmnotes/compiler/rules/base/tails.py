"""Tiles of rows whose number is open: a tile with few rows left computes few.

The loops over the rows of a register tile are unrolled, so their lengths are fixed. A marked loop over tiles
computes 1, 2, 4, … rows in place of a whole tile if no more are left. TVM has no schedule primitive for it: a
loop is marked while scheduling, and rewritten afterwards.
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.transform import ConvertSSA

from . import marked

_NOTE = "tvmnotes.rows"


def mark(sch: Schedule, loop, rows: int) -> None:
    """Have `shorten` rewrite `loop`, over tiles of some rows.

    Its body starts with the loops that initialize a tile, first that over its rows, and with those of the
    reduction, where it is the second.
    """
    sch.annotate(loop, _NOTE, rows)


def shorten(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel with its marked loops rewritten."""
    short = marked.rewrite(func, _NOTE, lambda body, rows: _shortened(body, int(rows)))
    return ConvertSSA()(tvm.IRModule({"main": short}))["main"]


def _shortened(body, rows: int):
    start, reduction, *rest = body.seq
    loop = reduction.body
    realize, _ = marked.innermost(loop)
    *_, row, _, _ = realize.iter_values
    _, data, _ = realize.block.reads
    product = tirx.SeqStmt([start, reduction])
    for power in reversed(range((rows - 1).bit_length())):
        count = tirx.IntImm(loop.extent.ty.dtype, 1 << power)
        end = tvm_ffi.structural_map(row, (tirx.Var, lambda var, n=count: n if var.same_as(loop.loop_var) else var))
        few = tirx.SeqStmt([_resized(start, count), _resized(reduction, reduction.extent, _resized(loop, count))])
        product = tirx.IfThenElse(data.source.shape[-2] <= end, few, product)
    return tirx.SeqStmt([product, *rest])


def _resized(loop, extent, body=None):
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body or loop.body, loop.thread_binding, loop.annotations)
