"""Operators of PyTorch that TVM 0.27's importer lacks and that go by order or by place, said with others of PyTorch:
what is largest, or in the middle, sorted lists, indices, windows of an image. pytorch_composites.py has the others.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table

from ..base.integers import ceildiv

aten = torch.ops.aten
_Numbers = torch.Tensor | float

# ---------------------------------------------------------------- of whatever is largest, or comes first


def _min_along(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


def _aminmax(x: torch.Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = list(range(x.ndim)) if dim is None else [dim]
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


def _sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """TVM's sort is stable."""
    return aten.sort.default(x, dim, descending)


def _kth(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    parts = (part.narrow(dim, k - 1, 1) for part in torch.sort(x, dim=dim, stable=True))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _median(x: torch.Tensor, dim: int, keepdim: bool = False, ignore_nan: bool = False) -> Any:
    """NaN sorts behind all others, and is the median, unless ignored."""
    values, places = torch.sort(x, dim=dim, stable=True)
    numbers = (~torch.isnan(x)).sum(dim, keepdim=True)
    half = (numbers - 1).clamp(min=0) // 2
    if not ignore_nan:
        half = torch.where(numbers < x.shape[dim], numbers, half)
    parts = (torch.gather(part, dim, half) for part in (values, places))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _tensor(x: _Numbers) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.full((), x)


def _searchsorted(ordered: torch.Tensor, x: _Numbers, *, out_int32: bool = False, right: bool = False,
                  side: str | None = None, sorter: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """Each is compared with each: that is short where few are ordered, as the bounds of buckets are."""
    ordered = ordered if sorter is None else torch.gather(ordered, -1, sorter)
    x = _tensor(x)
    pairs = ordered.reshape([1] * x.ndim + [-1]) if ordered.ndim == 1 else ordered.unsqueeze(-2)
    x = x.unsqueeze(-1)
    behind = pairs <= x if right or side == "right" else pairs < x
    if x.is_floating_point():
        behind = behind | torch.isnan(x)
    return behind.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _isin(x: _Numbers, among: _Numbers, *, assume_unique: bool = False, invert: bool = False) -> torch.Tensor:
    found = (_tensor(x).unsqueeze(-1) == _tensor(among).reshape(-1)).any(-1)
    return ~found if invert else found


# ---------------------------------------------------------------- by indices


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    flat = mask.reshape(-1)
    number = torch.where(flat, torch.cumsum(flat.to(torch.int64), 0) - 1, 0)
    return torch.where(mask, source.reshape(-1)[number].reshape(x.shape), x)


def _index_put(x: torch.Tensor, indices: list, values: torch.Tensor, accumulate: bool = False) -> Any:
    """x[:, mask] = values: each number that the mask picks takes the next value, if there is more than one."""
    masks = [place for place, index in enumerate(indices) if index is not None]
    if len(masks) != 1 or indices[masks[0]].dtype != torch.bool:
        return NotImplemented
    mask, before, after = indices[masks[0]], x.shape[: masks[0]], x.shape[masks[0] + indices[masks[0]].ndim :]
    mask, flat, axis = mask.reshape(-1), x.reshape(*before, -1, *after), -1 - len(after)
    if values.ndim >= -axis and values.shape[axis] != 1:
        number = torch.cumsum(mask.to(torch.int64), 0)
        count = values.shape[axis]
        wanted = f"index_put: expected a mask that picks {count}, one for each value; the difference is "
        number = number - 1 + torch.ops.tvmnotes.required(number[-1:] - count, wanted)
        values = torch.index_select(values, axis, number.clamp(min=0))
    values = flat + values if accumulate else values
    return torch.where(mask.reshape([-1] + [1] * len(after)), values, flat).reshape(x.shape)


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return aten.index.Tensor(x.reshape(-1), [index])


def _put(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    index, source = index.reshape(-1), source.reshape(-1)
    return aten.index_put.default(x.reshape(-1), [index], source, accumulate).reshape(x.shape)


# What a number is before the first one is reduced into its place, where it does not itself count.
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "mean": 0.0, "amin": math.inf, "amax": -math.inf}


def _scatter_reduce(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *,
                    include_self: bool = True) -> Any:  # fmt: skip
    if not x.is_floating_point() or x.ndim == 0:
        return NotImplemented
    if reduce not in ("sum", "mean") and include_self:
        return NotImplemented
    start = x if include_self else x.scatter(dim, index, _NEUTRAL[reduce])
    if reduce not in ("sum", "mean"):
        return aten.scatter_reduce.two(start, dim, index, source, reduce, include_self=True)
    total = start.scatter_add(dim, index, source)
    if reduce == "sum":
        return total
    ones = torch.ones_like(x)
    counts = ones if include_self else ones.scatter(dim, index, 0.0)
    return total / counts.scatter_add(dim, index, torch.ones_like(source)).clamp(min=1)


def _index_reduce(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *,
                  include_self: bool = True) -> Any:  # fmt: skip
    shape = [-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
    index = index.reshape(shape).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, index, source, reduce, include_self=include_self)


def _scatter_of_old(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: _Numbers, *, reduce: str
) -> torch.Tensor:
    source = source if isinstance(source, torch.Tensor) else torch.full(index.shape, source, dtype=x.dtype)
    return aten.scatter_reduce.two(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def _diagonal_scatter(
    x: torch.Tensor, part: torch.Tensor, offset: int = 0, a: int = 0, b: int = 1
) -> torch.Tensor:
    last = x.movedim((a, b), (-2, -1))
    numbers = torch.arange(part.shape[-1])
    places = [None] * (x.ndim - 2) + [numbers + max(0, -offset), numbers + max(0, offset)]
    return aten.index_put.default(last, places, part).movedim((-2, -1), (a, b))


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    """Windows along an axis, which may overlap, along a new last one."""
    if x.ndim == 0:
        return x.expand(size)
    dim, count = dim % x.ndim, (x.shape[dim] - size) // step + 1
    places = (torch.arange(count) * step).unsqueeze(-1) + torch.arange(size)
    return torch.index_select(x, dim, places.reshape(-1)).unflatten(dim, (count, size)).movedim(dim + 1, -1)


def _embedding_bag(weight, index, offsets, _scale_grad=False, mode=0, _sparse=False, per_sample=None,
                   include_last=False, padding=-1) -> Any:  # fmt: skip
    """Only its first result is what a network is interested in; a bag without rows is zero."""
    offsets = offsets[:-1] if include_last else offsets
    bags, rows = len(offsets), weight[index]
    bag = _searchsorted(offsets, torch.arange(len(index)), right=True) - 1
    counted = (index != (padding % len(weight) if padding < -1 else padding)).to(rows.dtype).unsqueeze(-1)
    none = torch.zeros((bags, rows.shape[1]), dtype=rows.dtype)
    counts = none[:, :1].index_add(0, bag, counted)
    if mode == 2:
        rows = torch.where(counted == 0, -math.inf, rows)
        result = torch.where(
            counts == 0, 0.0, aten.index_reduce.default(none - math.inf, 0, bag, rows, "amax")
        )
    else:
        rows = torch.where(counted == 0, 0.0, rows if per_sample is None else rows * per_sample.unsqueeze(-1))
        result = none.index_add(0, bag, rows)
        result = result / counts.clamp(min=1) if mode == 1 else result
    return result, bag, counts.squeeze(-1).to(index.dtype), bag


# ---------------------------------------------------------------- windows of an image


def _convolution(x, weight, bias, stride, padding, dilation, transposed, past, groups) -> Any:
    """TVM's importer has no transposed convolution of 3 axes, and none that adds a whole stride at the end."""
    rank = x.ndim - 2
    if not transposed or (rank < 3 and all(p < s for p, s in zip(past, stride, strict=True))):
        return NotImplemented
    axes, pads = range(-rank, 0), []
    for axis, s, p, d, q in zip(axes, stride, padding, dilation, past, strict=True):
        apart = torch.constant_pad_nd(x.unsqueeze(axis + x.ndim + 1), [0, 0] * (-axis - 1) + [0, s - 1])
        x = apart.flatten(axis - 1, axis).narrow(axis, 0, (x.shape[axis] - 1) * s + 1)
        pads[:0] = [d * (weight.shape[axis] - 1) - p, d * (weight.shape[axis] - 1) - p + q]
    weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(*axes)
    none = [0] * rank
    return aten.convolution.default(
        torch.constant_pad_nd(x, pads), weight, bias, [1] * rank, none, dilation, False, none, groups
    )


def _average(operator: Any, rank: int) -> Callable:
    """TVM reads no divisor_override."""

    def convert(x: torch.Tensor, kernel: list[int], stride: list[int] = (), padding: list[int] = (0,),
                ceil_mode: bool = False, _padded: bool = True, divisor_override: int | None = None) -> Any:  # fmt: skip
        if divisor_override is None:
            return NotImplemented
        kernel, padding = ([*each] * (rank if len(each) == 1 else 1) for each in (kernel, padding))
        stride = [*stride] * (rank if len(stride) == 1 else 1) or kernel
        wanted = operator(x, kernel, stride, padding, ceil_mode).shape[-rank:]
        past = [(n - 1) * s + k - p - size
                for n, s, k, p, size in zip(wanted, stride, kernel, padding, x.shape[-rank:], strict=True)]  # fmt: skip
        x = torch.constant_pad_nd(
            x, [each for p, q in zip(padding[::-1], past[::-1], strict=True) for each in (p, q)]
        )
        return operator(x, kernel, stride) * (math.prod(kernel) / divisor_override)

    return convert


def _largest(x: torch.Tensor, axes: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest number of each window of an image, and its place: the first of equals, or the last NaN's.

    `axes` has for each axis the places, int64 (windows, taps), of which one may come twice.
    """
    rank, numbers = len(axes), torch.zeros([1] * 2 * len(axes), dtype=torch.int64)
    for axis, (places, size) in enumerate(zip(axes, x.shape[-rank:], strict=True)):
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = places.shape
        numbers = numbers * size + places.reshape(shape)
    numbers = numbers.flatten(rank)
    windows = torch.index_select(x.flatten(-rank), -1, numbers.flatten()).unflatten(-1, numbers.shape)
    last = windows.shape[-1] - 1 - torch.isnan(windows).flip(-1).long().argmax(-1, keepdim=True)
    value = windows.amax(-1, keepdim=True)
    place = torch.where(torch.isnan(value), last, windows.argmax(-1, keepdim=True))
    return value.squeeze(-1), torch.gather(numbers.expand(windows.shape), -1, place).squeeze(-1)


def _adaptive_max_pool(x: torch.Tensor, size: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of an axis differ in length by 1: the shorter ones repeat their last number."""
    axes = []
    for count, before in zip(size, x.shape[-len(size) :], strict=True):
        cell = torch.arange(count).unsqueeze(1)
        longest = max(ceildiv((n + 1) * before, count) - n * before // count for n in range(count))
        last = ((cell + 1) * before + count - 1) // count - 1
        axes.append(torch.minimum(cell * before // count + torch.arange(longest), last))
    return _largest(x, axes)


def pooled_with_places(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Max pooling of 2 or 3 axes with the places of the largest; a tap outside repeats the nearest one inside."""
    rank, axes = len(kernel), []
    stride, padding, dilation = ([*(each or kernel)] * (rank if len(each) == 1 else 1) for each in
                                 (stride, padding, dilation))  # fmt: skip
    for k, s, p, d, size in zip(kernel, stride, padding, dilation, x.shape[-rank:], strict=True):
        reach = d * (k - 1)
        count = (size + 2 * p - reach - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        count -= ceil_mode and (count - 1) * s >= size + p
        start = (torch.arange(count) * s - p).unsqueeze(1)
        end = start + reach
        first = torch.where(start < 0, start % d, start)
        last = torch.where(end < size, end, size - 1 - (size - 1 - start) % d)
        axes.append(torch.minimum(torch.maximum(start + torch.arange(k) * d, first), last))
    return _largest(x, axes)


PLACES: dict[Any, Callable] = {
    **{each: decomposition_table[each] for each in (
        aten.narrow_copy.default, aten.view_copy.default, aten.permute_copy.default, aten.unbind_copy.int)},
    aten.min.dim: _min_along,
    aten.aminmax.default: _aminmax,
    aten.sort.stable: _sort_stable,
    aten.kthvalue.default: _kth,
    aten.median.dim: _median,
    aten.nanmedian.dim: partial(_median, ignore_nan=True),
    aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
    aten.nanmedian.default: lambda x: _median(x.reshape(-1), 0, ignore_nan=True)[0],
    **dict.fromkeys((aten.searchsorted.Tensor, aten.searchsorted.Scalar), _searchsorted),
    aten.bucketize.Tensor: lambda x, bounds, **how: _searchsorted(bounds, x, **how),
    **dict.fromkeys((aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor), _isin),
    aten.masked_scatter.default: _masked_scatter,
    aten.index_put.default: _index_put,
    aten.take.default: _take,
    aten.put.default: _put,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_reduce.default: _index_reduce,
    **dict.fromkeys((aten.scatter.reduce, aten.scatter.value_reduce), _scatter_of_old),
    aten.diagonal_scatter.default: _diagonal_scatter,
    **dict.fromkeys((aten.unfold.default, aten.unfold_copy.default), _unfold),
    **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), _embedding_bag),
    aten.avg_pool2d.default: _average(aten.avg_pool2d.default, 2),
    aten.avg_pool3d.default: _average(aten.avg_pool3d.default, 3),
    **dict.fromkeys((aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default), _adaptive_max_pool),
    aten.convolution.default: _convolution,
}  # fmt: skip
