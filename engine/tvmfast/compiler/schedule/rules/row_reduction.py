"""Softmax, norms, extremes over the last axis: a thread runs all stages of a row while it is in its cache.

A sum over a row is first one accumulator per lane of a register, over every x-th element, then the sum of the
lanes and the remaining elements: compilers may not reorder a floating-point sum, so the rule does.
Its configs are empty.
"""

import math

from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.annotations import attribute
from ....core.relax import unwrap_ints
from ....kernels import elementwise
from ..epilogue import block_names, parallel
from ..rule import ScheduleRule

_NAME = "row_reduction"
_ANNOTATION = attribute({"family": _NAME})
_STAGES = ("origin", "lanes0", "reduced0", "lanes1", "reduced1", "exp")

# One instruction: a NaN need not propagate here, as the exponential function propagates it.
_LARGER = te.comm_reducer(lambda a, b: tirx.Select(a > b, a, b), te.min_value)


def softmax(x, lanes: int):
    """Compute exp(x - max) / sum(exp(x - max)) along the last axis of a float32 tensor of any shape."""
    largest = _reduce(x, lambda *at: x[at], _LARGER, lanes, 0)
    exp = te.compute(x.shape, lambda *at: elementwise.exp(x[at] - largest[at[:-1]]), name="exp")
    total = _reduce(exp, lambda *at: exp[at], te.sum, lanes, 1)

    def normal(*at):
        return exp[at] * (1.0 / total[at[:-1]])

    return te.compute(x.shape, normal, name="softmax", attrs=_ANNOTATION)


def layer_norm(x, gamma, beta, epsilon: float, lanes: int):
    """Compute (x - mean) / sqrt(variance + epsilon) * gamma + beta along the last axis, of float32.

    Both gamma and beta, or neither, may be None.
    """
    *rows, size = unwrap_ints(x.shape)
    count, factor = float(size), headroom(size)
    origins = te.compute(rows, lambda *row: origin(x[(*row, 0)]), name="origin")

    def moved(*at):
        return x[at] - origins[at[:-1]]

    total = _reduce(x, lambda *at: moved(*at) * factor, te.sum, lanes, 0)

    def mean(row):
        return total[row] / (count * factor)

    def squared(*at):
        difference = moved(*at) - mean(at[:-1])
        return difference * difference

    squares = _reduce(x, squared, te.sum, lanes, 1)

    def normal(*at):
        variance = squares[at[:-1]] / count
        scale = 1.0 / te.sqrt(variance + epsilon)
        centred = (moved(*at) - centre(mean(at[:-1]), variance)) * scale
        return centred if gamma is None else centred * gamma[at[-1]] + beta[at[-1]]

    return te.compute(x.shape, normal, name="layer_norm", attrs=_ANNOTATION)


def rms_norm(x, epsilon: float, lanes: int):
    """Compute x / sqrt(mean(x * x) + epsilon) along the last axis of a float32 tensor."""
    count = float(int(x.shape[-1]))
    squares = _reduce(x, lambda *at: x[at] * x[at], te.sum, lanes, 0)

    def normal(*at):
        return x[at] * (1.0 / te.sqrt(squares[at[:-1]] / count + epsilon))

    return te.compute(x.shape, normal, name="rms_norm", attrs=_ANNOTATION)


def headroom(count) -> float:
    """Return the power of two that keeps a sum of `count` numbers finite if each is multiplied by it.

    It is 1 for a count that is not known.
    """
    return 0.5 ** (count - 1).bit_length() if isinstance(count, int) else 1.0


def origin(first):
    """Return from where a norm measures a row: its first element, which numbers far from 0 are close to.

    Differences to it are exact there, and 0 in a row of one value. It is 0 where differences might overflow.
    """
    return tirx.Select(te.abs(first) < 2.0**63, first, tirx.const(0, "float32"))


def centre(mean, variance):
    """Return what a norm subtracts then: the mean; 0 where the variance overflows, as differences may, too.

    A quotient is 0 there, and that of an infinite difference would be NaN.
    """
    return tirx.Select(variance < tirx.infinity("float32"), mean, tirx.const(0, "float32"))


EXTREMES = {
    "relax.max": te.comm_reducer(lambda a, b: te.max(a, b), lambda dtype: tirx.const(-math.inf, dtype)),
    "relax.min": te.comm_reducer(lambda a, b: te.min(a, b), lambda dtype: tirx.const(math.inf, dtype)),
}


def extreme(x, name: str, lanes: int):
    """Return the extreme of each row of a float32 tensor, by one of EXTREMES; the last axis is then 1."""
    found = _reduce(x, lambda *at: x[at], EXTREMES[name], lanes, 0)
    shape = (*unwrap_ints(x.shape)[:-1], 1)
    return te.compute(shape, lambda *at: found[at[:-1]], name="extreme", attrs=_ANNOTATION)


def _reduce(x, element, combine, lanes, number):
    """Reduce `element(*index)`, of the shape of x, by `combine` over the last axis."""
    *rows, depth = unwrap_ints(x.shape)
    whole = depth // lanes
    if whole < 2:
        r = te.reduce_axis((0, depth), "r")
        return te.compute(rows, lambda *at: combine(element(*at, r), axis=[r]), name=f"reduced{number}")
    k = te.reduce_axis((0, whole), "k")

    def of_lane(*at):
        return combine(element(*at[:-1], k * lanes + at[-1]), axis=[k])

    by_lane = te.compute((*rows, lanes), of_lane, name=f"lanes{number}")
    r = te.reduce_axis((0, lanes + depth % lanes), "r")

    def either(*at):
        if depth % lanes == 0:
            return by_lane[(*at, r)]
        return te.if_then_else(r < lanes, by_lane[(*at, r)], element(*at, (whole - 1) * lanes + r))

    return te.compute(rows, lambda *at: combine(either(*at), axis=[r]), name=f"reduced{number}")


class RowReduction(ScheduleRule):
    """All stages of a row by one thread."""

    name = _NAME

    def schedule(self, sch: Schedule, config) -> None:
        names = block_names(sch)
        for name in names[:-1]:
            if name not in _STAGES:
                sch.compute_inline(name)
        loops = sch.get_loops(names[-1])
        if len(loops) > 1:
            row = parallel(sch, loops[:-1])
        else:
            row = sch.add_unit_loop(loops[0] if loops else sch.get_sblock(names[-1]))
        for name in reversed([n for n in names[:-1] if n in _STAGES]):
            sch.compute_at(name, row)
            if name.startswith("lanes"):
                inner = sch.get_loops(name)
                lane, k = inner[-2:]
                sch.reorder(k, lane)
                sch.vectorize(lane)
                sch.decompose_reduction(name, k)
