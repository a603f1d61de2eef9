"""Software prefetch of weights: while one panel is multiplied, the next one is loaded from memory.

The hardware prefetcher follows the loads, so a panel that is used in several passes arrives at memory speed
in the first pass, and the memory idles in the others. TVM has no schedule primitive for it: the schedule
annotates a loop, and a post-schedule rewrite inserts the prefetches.
"""

import operator

from tvm import tirx
from tvm.s_tir import Schedule

from ...core.simd import prefetch
from . import post_rewrite

_NOTE = "tvmfast.prefetch"


def annotate(sch: Schedule, loop, blocks: int) -> None:
    """Have each iteration of `loop` prefetch the weights that are one index further along the third axis.

    The weight has 6 axes: blocks of output channels, of which an iteration reads `blocks`; three that are
    constant inside the loop; a row for each input channel of a block; lanes. Beyond the end of the weight
    nothing is fetched.
    """
    sch.annotate(loop, _NOTE, blocks)


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert prefetches into the annotated loops of a kernel."""
    return post_rewrite.rewrite(
        func, _NOTE, lambda body, blocks: tirx.SeqStmt([*_prefetches(body, int(blocks)), body])
    )


def _prefetches(body, blocks: int) -> list:
    realize, inner = post_rewrite.innermost(body)
    (weight,) = (region for region in realize.block.reads if len(region.source.shape) == 6)
    values = {var.var: value for var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    first, p, q, i = (values[dim.min] for dim in weight.region[:4])
    prefetches = []
    for block in range(blocks):
        for row in range(int(weight.source.shape[4])):
            indices = [_at_start(first, inner) + block, p, q + 1, i, row, 0]
            next_panel = tirx.BufferLoad(weight.source, indices)
            prefetches.append(tirx.Evaluate(prefetch(next_panel, level=2)))
    return prefetches


def _at_start(expr, loops: list):
    """Return the index with the variables of `loops` set to 0."""
    if isinstance(expr, tirx.Var):
        return tirx.const(0, "int32") if any(expr.same_as(var) for var in loops) else expr
    operators = {
        tirx.Add: operator.add,
        tirx.Mul: operator.mul,
        tirx.FloorDiv: tirx.floordiv,
        tirx.FloorMod: tirx.floormod,
    }
    for kind, apply in operators.items():
        if isinstance(expr, kind):
            return apply(_at_start(expr.a, loops), _at_start(expr.b, loops))
    return expr
