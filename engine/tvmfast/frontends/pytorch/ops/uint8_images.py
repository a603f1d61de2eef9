"""Images of uint8, resized bit by bit as PyTorch resizes them on a CPU.

PyTorch computes the weights of an axis in float64 and rounds them to fixed point, with as many bits behind
the point as the largest weight leaves of 16. The last axis first, it sums the products in int32, and rounds
and clips the sums to uint8 (aten/src/ATen/native/cpu/UpSampleKernel.cpp, after Pillow). Its kernel for more
than four channels, and for CPUs without AVX2, is wrong where the result has a width of 1.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor
from tvm import relax
from tvm.relax import op as R

from .call import Call

aten = torch.ops.aten
_BITS = 22  # behind the point, at most; weights with fewer are multiplied
RESIZES = {  # whether it is cubic, and whether it antialiases
    aten.upsample_bilinear2d.vec: (False, False),
    aten.upsample_bicubic2d.vec: (True, False),
    **dict.fromkeys((aten._upsample_bilinear2d_aa.vec, aten._upsample_bilinear2d_aa.default), (False, True)),
    **dict.fromkeys((aten._upsample_bicubic2d_aa.vec, aten._upsample_bicubic2d_aa.default), (True, True)),
}


def convert(c: Call) -> relax.Expr:
    """Convert an upsample of uint8 to fixed sizes."""
    x, before, after = c.x, c.shape, c.result_shape
    corners, *scales = (*c.node.args[2:], *c.node.kwargs.values())
    scales = (scales[0] if len(scales) == 1 else scales) or (None, None)  # .vec has a list of them
    for axis in (3, 2):
        total = relax.const(1 << _BITS - 1, "int32")
        how = scales[axis - 2], corners, *RESIZES[c.node.target]
        for index, weight in _taps(before[axis], after[axis], *how):
            weight = relax.const(weight.numpy().reshape([-1 if each == axis else 1 for each in range(4)]))
            neighbours = R.take(x, relax.const(index.numpy()), axis, mode="clip")
            total = c.emit(R.add(total, c.emit(R.multiply(R.astype(neighbours, "int32"), weight))))
        shifted = R.right_shift(total, relax.const(_BITS, "int32"))
        x = c.emit(R.astype(c.emit(R.clip(c.emit(shifted), 0, 255)), "uint8"))
    return x


def resize_dynamic(
    x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, *, cubic: bool
) -> Tensor:
    """Resize between sizes that may be dynamic, without antialiasing."""
    scales = scale_factors or (None, None)
    size = output_size or [int(n * scale) for n, scale in zip(x.shape[2:], scales, strict=True)]
    for axis in (3, 2):
        total = torch.full((), 1 << _BITS - 1, dtype=torch.int32)
        how = x.shape[axis], size[axis - 2], scales[axis - 2], align_corners, cubic
        for index, weight in _taps(*how, antialias=False):
            weight = weight.reshape([-1 if each == axis else 1 for each in range(4)])
            total = total + x.index_select(axis, index).int() * weight
        x = torch.clamp(total >> _BITS, 0, 255).to(torch.uint8)
    return x


def _taps(before: int, after: int, scale: float | None, corners: bool, cubic: bool, antialias: bool) -> list:
    """Return the neighbours of each element of the result: indices of int64, and weights of int32.

    Sizes are tensors where they may be dynamic.
    """
    if antialias:
        indices, sums = _wide_taps(before, after, scale, corners, cubic)
    else:
        indices, sums = _near_taps(before, after, scale, corners, cubic)
    largest = functools.reduce(torch.maximum, sums).amax(0)
    one = torch.full_like(largest, 2.0**14)
    for bits in range(14, _BITS if antialias else 15):  # of others, the largest is 0.5 or more
        one = torch.where(largest * 2.0 ** (bits + 1) + 0.5 < 1 << 15, 2.0 ** (bits + 1), one)
    taps = []
    for index, weight, following in zip(indices, sums, [*indices[1:], None], strict=True):
        weight = weight * one if following is None else torch.where(index == following, 0.0, weight * one)
        rounded = torch.trunc(weight + torch.where(weight < 0, -0.5, 0.5))
        taps.append((index.long(), (rounded * (2.0**_BITS / one)).int()))
    return taps


def _filter(distance: Tensor, cubic: bool, a: float) -> Tensor:
    """Return a tent, or the cubic of Keys (1981)."""
    if not cubic:
        return torch.clamp(1 - distance, min=0.0)
    inner = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    outer = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance < 1, inner, torch.where(distance < 2, outer, 0.0))


def _near_taps(before: int, after: int, scale: float | None, corners: bool, cubic: bool) -> tuple[list, list]:
    """Return the neighbours of each element, and their weights.

    Neighbours past an edge are the edge's element: its weights are summed, and the last of the sums counts.
    """
    size, length = (torch.full((), n, dtype=torch.float64) for n in (before, after))
    position = torch.arange(after, dtype=torch.float64)
    if corners:
        position = position * torch.where(length > 1, (size - 1) / (length - 1), 0.0)
    else:
        ratio = size / length
        if scale is not None:
            ratio = torch.where(size == length, ratio, torch.full_like(ratio, 1 / scale))
        position = (position + 0.5) * ratio - 0.5
    position = position if cubic else torch.clamp(position, min=0.0)
    low = torch.minimum(torch.floor(position), size - 1)
    rest = torch.clamp(position - low, 0.0, 1.0)
    reach, indices, sums = 2 if cubic else 1, [], []
    for step in range(1 - reach, reach + 1):
        index = torch.minimum(torch.clamp(low + step, min=0.0), size - 1)
        weight = _filter((step - rest).abs(), cubic, -0.75)
        sums.append(weight + torch.where(index == indices[-1], sums[-1], 0.0) if indices else weight)
        indices.append(index)
    return indices, sums


def _wide_taps(before: int, after: int, scale: float | None, corners: bool, cubic: bool) -> tuple[list, list]:
    """Return the neighbours of each element, and their weights in a filter as wide as the ratio of sizes."""
    if corners:
        ratio = (before - 1) / (after - 1) if after > 1 else 0.0
    else:
        ratio = before / after if scale is None or before == after else 1 / scale
    wide, reach = max(ratio, 1.0), 2 if cubic else 1
    position = (torch.arange(after, dtype=torch.float64) + 0.5) * ratio - 0.5
    first = torch.floor(torch.clamp(position + 1 - reach * wide, min=0.0))
    indices = [first + step for step in range(2 * math.ceil(reach * wide) + 1)]
    weights = [_filter((at - position).abs() / wide, cubic, -0.5) for at in indices]
    weights = [torch.where(at < before, weight, 0.0) for at, weight in zip(indices, weights, strict=True)]
    total = functools.reduce(torch.add, weights)
    return indices, [weight / total for weight in weights]
