"""Linear and cubic resampling along an axis: each element is a sum of a few weighted neighbours.

The weights follow from sizes alone, so `matrix` computes them at import; `combined` applies them in Relax.
"""

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...core.relax import static_shape

_MOST_TAPS = 4  # per element; with more, as for antialiasing, a matrix product is used


def matrix(
    positions: np.ndarray, before: int, mode: str, narrow: float = 1.0, a: float = -0.75, inside: bool = False
):
    """Return the weight of each of `before` elements in each element of the result: float64 (result, before).

    `positions` are those of the result's elements among those before; `mode` is "linear" or "cubic",
    the latter with the coefficient `a` (Keys, 1981). Antialiasing widens the filter by 1 / `narrow`. Elements
    past the edge repeat the edge or, with `inside`, have no weight.
    """
    reach = int(np.ceil((1 if mode == "linear" else 2) / narrow)) + 1
    neighbours = np.floor(positions)[:, None].astype(int) + np.arange(-reach, reach + 1)
    distance = abs(neighbours - positions[:, None]) * narrow
    if mode == "linear":
        weights = np.clip(1 - distance, 0, None)
    else:
        inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        outer = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0))
    if inside:
        weights = np.where((neighbours >= 0) & (neighbours < before), weights, 0)
    weights /= weights.sum(1, keepdims=True)
    result = np.zeros((len(positions), before))
    np.add.at(result, (np.arange(len(positions))[:, None], np.clip(neighbours, 0, before - 1)), weights)
    return result


def combined(bb, x: relax.Expr, axis: int, weights: np.ndarray) -> relax.Expr:
    """Return `x` resampled along an axis with the `weights` of `matrix`; halves are summed in float32."""
    own = x.ty.dtype.dtype
    if own in ("float16", "bfloat16"):
        wide = bb.normalize(R.astype(x, "float32"))
        return bb.normalize(R.astype(combined(bb, wide, axis, weights), own))
    dtype, rank = x.ty.dtype.dtype, len(static_shape(x.ty))
    taps = int((weights != 0).sum(1).max())
    if taps > _MOST_TAPS:
        order = [i for i in range(rank) if i != axis] + [axis]
        product = R.matmul(R.permute_dims(x, order), relax.const(weights.T.astype(dtype), dtype))
        return bb.normalize(R.permute_dims(product, [order.index(i) for i in range(rank)]))
    indices = np.argsort(weights == 0, 1, kind="stable")[:, :taps]
    shape = [-1 if i == axis else 1 for i in range(rank)]
    total = None
    for tap, weight in enumerate(np.take_along_axis(weights, indices, 1).T):
        weight = relax.const(weight.reshape(shape).astype(dtype), dtype)
        neighbours = R.take(x, relax.const(indices[:, tap], "int64"), axis, mode="clip")
        part = bb.normalize(R.multiply(neighbours, weight))
        total = part if total is None else bb.normalize(R.add(total, part))
    return total
