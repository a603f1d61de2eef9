"""Post-schedule rewrites: a schedule annotates a loop, which is rewritten as no primitive of TVM's does.

Three rules need one: windows over an image whose padding is not in memory, prefetches of weights, and
remainder tiles.
"""

import operator
from collections.abc import Callable
from functools import reduce

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.transform import ConvertSSA

from ...core.simd import prefetch

_PREFETCH, _ROWS, _WINDOW = "tvmfast.prefetch", "tvmfast.rows", "tvmfast.window"


def _rewrite(func: tirx.PrimFunc, note: str, body_of: Callable) -> tirx.PrimFunc:
    """Replace the body of each loop annotated `note` by `body_of(body, value of the annotation)`."""

    def rewritten(loop):
        notes = dict(loop.annotations)
        if note not in notes:
            return loop
        body = body_of(loop.body, notes.pop(note))
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, notes)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, rewritten)))


def _innermost(stmt) -> tuple:
    """Return the block inside nested loops, and the variables of these loops."""
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt.loop_var)
        stmt = stmt.body
    return stmt, loops


# ---------------------------------------------------------------- padding that is not in memory


def annotate_window(sch: Schedule, loop, columns: tuple[int, ...], axis: int) -> None:
    """Have `skip_padding` leave out what the window finds outside of the image; `loop` is over its rows.

    A schedule inlines the padding into the reduction, where each element is tested. The tests of rows are
    then moved out of the loops over columns, and those of columns select, without a branch, whether a
    product is added, whose index stays inside the image; after unrolling, only the first and last pixels of
    a row have one.

    Args:
        sch: The schedule of the kernel.
        loop: A loop around the reduction, a sum of products `if_then_else(inside, data[…], 0) * weight`; the
            element may be converted.
        columns: The indices of the block's axes on which the column depends.
        axis: The axis of the data along which the columns lie.
    """
    sch.annotate(loop, _WINDOW, [axis, *columns])


def skip_padding(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the annotated loops of a kernel."""
    return _rewrite(func, _WINDOW, _skipped)


def _skipped(body, note):
    axis, *columns = map(int, note)
    realize, _ = _innermost(body)
    store, axes = realize.block.body, realize.block.iter_vars
    total, product = store.value.a, store.value.b
    if not isinstance(product.a, tvm.ir.Call):  # converted, without padding
        return body
    inside, element, _ = product.a.args
    loads = []
    tvm_ffi.structural_walk(element, (tvm.ir.TensorLoad, loads.append))
    (load,) = loads
    of_columns = {axes[column].var for column in columns}
    tests = {True: [], False: []}
    for test in _tests(inside):
        tests[not of_columns.isdisjoint(tirx.analysis.undefined_vars(test))].append(test)
    value = total + element * product.b
    if tests[True]:
        index, column = list(load.indices), load.indices[axis]
        index[axis] = tirx.max(tirx.min(column, load.source.shape[axis] - 1), 0)
        near = tirx.BufferLoad(load.source, index)
        added = total + tvm_ffi.structural_map(element, (tvm.ir.TensorLoad, lambda _: near)) * product.b
        # Under the tests themselves, TVM would simplify the index to `column`, and read outside of the image.
        value = tirx.Select(tirx.EQ(index[axis], column), added, total)
    changed = tirx.BufferStore(store.buffer, value, store.indices)
    body = tvm_ffi.structural_map(body, (tirx.BufferStore, lambda _: changed))
    if tests[False]:
        values = dict(zip((each.var for each in axes), realize.iter_values, strict=True))
        test = reduce(tirx.And, tests[False])
        test = tvm_ffi.structural_map(test, (tirx.Var, lambda var: values.get(var, var)))
        return tirx.IfThenElse(test, body, None)
    return body


def _tests(condition) -> list:
    """List the conditions of which one is the conjunction."""
    if isinstance(condition, tirx.And):
        return [*_tests(condition.a), *_tests(condition.b)]
    return [condition]


# ---------------------------------------------------------------- prefetches of weights


def annotate_prefetch(sch: Schedule, loop, blocks: int) -> None:
    """Have each iteration of `loop` prefetch the weights that are one index further along the third axis.

    While one panel is multiplied, the next one is loaded from memory. The hardware prefetcher follows the
    loads, so a panel that is used in several passes arrives at memory speed in the first pass, and the
    memory idles in the others.

    The weight has 6 axes: blocks of output channels, of which an iteration reads `blocks`; three that are
    constant inside the loop; a row for each input channel of a block; lanes. Beyond the end of the weight
    nothing is fetched.
    """
    sch.annotate(loop, _PREFETCH, blocks)


def insert_prefetches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert prefetches into the annotated loops of a kernel."""
    return _rewrite(
        func, _PREFETCH, lambda body, blocks: tirx.SeqStmt([*_prefetches(body, int(blocks)), body])
    )


def _prefetches(body, blocks: int) -> list:
    realize, inner = _innermost(body)
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


# ---------------------------------------------------------------- remainder tiles


def annotate_rows(sch: Schedule, loop, rows: int) -> None:
    """Have `add_remainder_tiles` rewrite `loop`, whose iterations compute tiles of `rows` rows.

    Where the number of rows is dynamic, the last tile computes only the rows that are left. The loops over a
    register tile's rows are unrolled, so their lengths are static: beside the whole tile there are remainder
    tiles of 1, 2, 4, … rows, and the smallest that has all rows left is computed.

    The loop's body starts with two nests of loops: one initializes the tile, its outermost loop is over rows;
    one sums up products of two tensors, and has the loop over rows inside of that of the reduction. The rows
    are the last axis but one of the first tensor and of the result.
    """
    sch.annotate(loop, _ROWS, rows)


def add_remainder_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add remainder tiles to the annotated loops of a kernel."""
    rewritten = _rewrite(func, _ROWS, lambda body, rows: _shortened(body, int(rows)))
    if rewritten.body.same_as(func.body):
        return func
    return ConvertSSA()(tvm.IRModule({"main": rewritten}))["main"]  # the parts have loops of their own


def _shortened(body, rows: int):
    start, reduction, *epilogue = body.seq
    loop = reduction.body
    realize, _ = _innermost(loop)
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
