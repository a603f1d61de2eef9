"""Pads whose widths depend on open sizes, as in a U-Net, which pads maps to the sizes of others."""

import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ...core.dims import Dim, evaluate
from ...core.relax import op_name, written
from .graphs import Refused

_QUOTIENT = re.compile(r"// \((\d+)\)")
_OTHERS = ("//", "%", "max(", "min(")
_PERIOD = 1 << 16  # the most values of a size that quotients of it take to repeat
_PERIODS = 6  # compared: products of few sizes would differ between them


def differ(calls: list) -> bool:
    """Return whether calls are pads, and their widths differ."""
    if any(op_name(call) != "nn.pad" for call in calls):
        return False
    return len({tuple(map(int, call.attrs.pad_width)) for call in calls}) > 1


def fill(calls: list) -> float:
    """Return the number that pads fill in; refuse other kinds of pads."""
    first, *others = ((str(call.attrs.pad_mode), str(call.attrs.pad_value)) for call in calls)
    if first[0] != "constant":
        raise Refused(f"the widths of a pad of mode {first[0]!r} depend on it")
    if any(other != first for other in others):
        raise Refused("the number that a pad fills in depends on it")
    return float(calls[0].attrs.pad_value)


def split(before: tuple, after: tuple, total, is_natural: Callable) -> tuple:
    """Return the widths of a pad of an axis, before and after it.

    A width that is the same in all samples is taken to be fixed, else each is a half of their sum. Where the
    samples allow both, both have to be the same at all sizes.

    Args:
        before: The first width's values in the samples.
        after: Those of the second one.
        total: Their sum at all sizes, an expression of open ones.
        is_natural: Returns whether such an expression is known to be 0 or more at all sizes.
    """
    if len(set(before)) == len(set(after)) == 1:
        return before[0], after[0]
    halves = tuple((a + b) // 2 for a, b in zip(before, after, strict=True))
    found = [(before[0], total - before[0])] if len(set(before)) == 1 else []
    found += [(total - after[0], after[0])] if len(set(after)) == 1 else []
    natural = list(itertools.chain(*found)) or [total]  # which makes its halves natural, too
    found += [(total // 2, total - total // 2)] if before == halves else []
    found += [(total - total // 2, total // 2)] if after == halves else []
    same = [is_natural(a - b) and is_natural(b - a) for (a, _), (b, _) in itertools.pairwise(found)]
    if not found or not all(same):
        raise Refused(f"a pad of {written(total)} elements is split between both ends in an unknown way")
    for width in natural:
        if not is_natural(width):
            raise Refused(f"a pad is {written(width)}, which may be below 0 as far as is known")
    return found[0]


def is_natural(width, sizes: dict[str, Dim], analyzer: tvm.sym.Analyzer) -> bool:
    """Return whether a number is known to be 0 or more at all sizes.

    A sum of multiples of an open size, and of quotients of it, repeats itself: from one period to the next it
    grows by the same number.

    Args:
        width: A whole number, or an expression of open sizes.
        sizes: The open sizes, by name.
        analyzer: Knows their bounds.
    """
    if isinstance(width, int):
        return width >= 0
    if analyzer.can_prove(width >= 0):
        return True
    text, variables = written(width), tirx.analysis.undefined_vars(width)
    if isinstance(text, int):
        return text >= 0
    if text is None or len(variables) != 1 or any(other in _QUOTIENT.sub("", text) for other in _OTHERS):
        return False
    period = math.prod(map(int, _QUOTIENT.findall(text)))
    if period > _PERIOD:
        return False
    size = sizes[variables[0].name]
    values = evaluate(text, {size.name: size.lower + np.arange(_PERIODS * period)}).reshape(_PERIODS, period)
    grown = np.diff(values, axis=0)
    return bool(np.all(values[0] >= 0) and np.all(grown == grown[0, 0]) and grown[0, 0] >= 0)


def padded(builder: relax.BlockBuilder, x: relax.Expr, widths: list[tuple], value: float) -> relax.Expr:
    """Return a tensor with as many elements of a value before and after each axis as `widths` has."""
    filler = relax.const(value, str(x.ty.dtype))
    for axis, pair in enumerate(widths):
        shape = list(x.ty.shape)
        before, after = ([] if isinstance(width, int) and width == 0 else [width] for width in pair)
        first, last = (
            [builder.emit(R.full([*shape[:axis], width, *shape[axis + 1 :]], filler)) for width in ends]
            for ends in (before, after)
        )
        x = builder.emit(R.concat([*first, x, *last], axis)) if first or last else x
    return x
