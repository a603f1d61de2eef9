"""Windows over an image whose padding is not in memory: what lies outside is not read.

A schedule inlines the padding into the reduction, where each element is tested. The tests of rows are then
moved out of the loops over columns, and those of columns select, without a branch, whether a product is
added, whose index stays inside the image; after unrolling, only the first and last pixels of a row have one.
TVM has no schedule primitive for it: the schedule annotates a loop, and a post-schedule rewrite changes it.
"""

from functools import reduce

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from . import post_rewrite

_NOTE = "tvmfast.window"


def annotate(sch: Schedule, loop, columns: tuple[int, ...], axis: int) -> None:
    """Have `skip` leave out the rows of the window that `loop`, over these rows, finds outside of the image.

    Args:
        sch: The schedule of the kernel.
        loop: A loop around the reduction, a sum of products `if_then_else(inside, data[…], 0) * weight`.
        columns: The indices of the block's axes on which the column depends.
        axis: The axis of the data along which the columns lie.
    """
    sch.annotate(loop, _NOTE, [axis, *columns])


def skip(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the annotated loops of a kernel."""
    return post_rewrite.rewrite(func, _NOTE, _skipped)


def _skipped(body, note):
    axis, *columns = map(int, note)
    realize, _ = post_rewrite.innermost(body)
    store, axes = realize.block.body, realize.block.iter_vars
    total, product = store.value.a, store.value.b
    inside, load, _ = product.a.args
    of_columns = {axes[column].var for column in columns}
    tests = {True: [], False: []}
    for test in _tests(inside):
        tests[not of_columns.isdisjoint(tirx.analysis.undefined_vars(test))].append(test)
    value = total + load * product.b
    if tests[True]:
        index, column = list(load.indices), load.indices[axis]
        index[axis] = tirx.max(tirx.min(column, load.source.shape[axis] - 1), 0)
        added = total + tirx.BufferLoad(load.source, index) * product.b
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
