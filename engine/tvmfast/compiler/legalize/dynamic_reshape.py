"""Reshapes of dynamic shapes whose indices depend on no dynamic dim.

TVM computes the index of an element from its flat index in the whole array. An index that depends on a
dynamic dim makes the kernel opaque to FuseOps. Here the axes are divided into groups that hold the same
elements before and after, such as (n, 768) and (n, 12, 64) into n and n, 768 and 12 x 64; if only the first
axis of a group is dynamic, its indices are floor divisions and remainders by constants.
"""

import itertools
from operator import mul

from tvm import relax, te

from ...core.relax import dim_to_str, known_shape, of_one_type
from .ieee754 import default


def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower a reshape; as TVM does if the shapes are static, or an index depends on a dynamic dim."""
    before, after = known_shape(call.args[0].ty), known_shape(call.ty)
    if before is None or after is None or all(isinstance(dim, int) for dim in (*before, *after)):
        return default(builder, call)
    groups = _groups(before, after)
    if groups is None:
        return default(builder, call)

    def compute(x):
        return te.compute(
            of_one_type(*after), lambda *at: x(*_source(at, groups, before, after)), name="T_reshape"
        )

    return builder.call_te(compute, call.args[0], primfunc_name_hint="reshape")


def _groups(before: tuple, after: tuple) -> list[tuple[list[int], list[int]]] | None:
    """Return axes before and after that hold the same elements; None if an index depends on a dynamic dim.

    Axes of one element are left out.
    """
    axes = [[axis for axis, dim in enumerate(shape) if not _is(dim, 1)] for shape in (before, after)]
    shapes = [[shape[axis] for axis in own] for shape, own in zip((before, after), axes, strict=True)]
    products = [[dim_to_str(dim) for dim in itertools.accumulate(shape, mul)] for shape in shapes]
    if None in products[0] or None in products[1] or 0 in products[0] or products[0][-1:] != products[1][-1:]:
        return None
    groups, first = [], [0, 0]
    for number, product in enumerate(products[0], start=1):
        if product not in products[1]:
            continue
        last = [number, products[1].index(product) + 1]
        group = [slice(*ends) for ends in zip(first, last, strict=True)]
        if not all(
            isinstance(dim, int) for shape, own in zip(shapes, group, strict=True) for dim in shape[own][1:]
        ):
            return None
        groups.append(tuple(own[part] for own, part in zip(axes, group, strict=True)))
        first = last
    return groups


def _is(dim, number: int) -> bool:
    return isinstance(dim, int) and dim == number


def _source(at: tuple, groups: list, before: tuple, after: tuple) -> list:
    """Return the index before the reshape of the element at index `at` after it."""
    index = [0] * len(before)
    for source, target in groups:
        number = 0
        for axis in target:
            number = number * after[axis] + at[axis]
        for axis in reversed(source[1:]):
            index[axis] = number % before[axis]
            number = number // before[axis]
        index[source[0]] = number
    return index
