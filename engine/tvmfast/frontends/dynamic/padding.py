"""Pads with dynamic widths, as in a U-Net, which pads feature maps to the shapes of others."""

import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ...core.dims import Dim, evaluate
from ...core.relax import dim_to_str, op_name
from .dim_inference import UnsupportedDynamism

_FLOOR_DIV = re.compile(r"// \((\d+)\)")
_OTHERS = ("//", "%", "max(", "min(")
_PERIOD = 1 << 16  # the longest period of a dim's floor divisions
_PERIODS = 6  # compared: products of few dims would differ between them


def differ(calls: list) -> bool:
    """Return whether calls are pads with different widths."""
    if any(op_name(call) != "nn.pad" for call in calls):
        return False
    return len({tuple(map(int, call.attrs.pad_width)) for call in calls}) > 1


def fill(calls: list) -> float:
    """Return the value of constant pads; raise for other modes."""
    first, *others = ((str(call.attrs.pad_mode), str(call.attrs.pad_value)) for call in calls)
    if first[0] != "constant":
        raise UnsupportedDynamism(f"the widths of a pad of mode {first[0]!r} depend on it")
    if any(other != first for other in others):
        raise UnsupportedDynamism("the number that a pad fills in depends on it")
    return float(calls[0].attrs.pad_value)


def split(before: tuple, after: tuple, total, is_natural: Callable) -> tuple:
    """Return the widths of a pad of an axis, before and after it, as expressions.

    A width that is the same at all probes is taken to be static, else each is a half of their sum. Where the
    probes allow both, both have to be the same for all dims.

    Args:
        before: The first width's values at the probes.
        after: Those of the second one.
        total: Their sum, an expression of dynamic dims.
        is_natural: Returns whether such an expression is known to be 0 or more for all dims.
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
        raise UnsupportedDynamism(
            f"a pad of {dim_to_str(total)} elements is split between both ends in an unknown way"
        )
    for width in natural:
        if not is_natural(width):
            raise UnsupportedDynamism(
                f"a pad is {dim_to_str(width)}, which may be below 0 as far as is known"
            )
    return found[0]


def is_natural(width, dims: dict[str, Dim], analyzer: tvm.sym.Analyzer) -> bool:
    """Return whether a width is known to be 0 or more for all dims.

    A sum of multiples of a dynamic dim, and of floor divisions of it, is periodic up to a slope: from one
    period to the next it grows by the same number.

    Args:
        width: An integer, or an expression of dynamic dims.
        dims: The dynamic dims, by name.
        analyzer: Knows their bounds.
    """
    if isinstance(width, int):
        return width >= 0
    if analyzer.can_prove(width >= 0):
        return True
    text, variables = dim_to_str(width), tirx.analysis.undefined_vars(width)
    if isinstance(text, int):
        return text >= 0
    if text is None or len(variables) != 1 or any(other in _FLOOR_DIV.sub("", text) for other in _OTHERS):
        return False
    period = math.prod(map(int, _FLOOR_DIV.findall(text)))
    if period > _PERIOD:
        return False
    dim = dims[variables[0].name]
    values = evaluate(text, {dim.name: dim.lower + np.arange(_PERIODS * period)}).reshape(_PERIODS, period)
    grown = np.diff(values, axis=0)
    return bool(np.all(values[0] >= 0) and np.all(grown == grown[0, 0]) and grown[0, 0] >= 0)


def padded(builder: relax.BlockBuilder, x: relax.Expr, widths: list[tuple], value: float) -> relax.Expr:
    """Return a tensor padded by a value, with `widths` before and after each axis."""
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
