"""Decompositions of sorting, indexing, convolution and pooling that TVM 0.27 lacks: INDEXING."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ....core.relax import ceildiv

aten = torch.ops.aten
_Numbers = Tensor | float

# ---------------------------------------------------------------- sorting


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Sort if the order is free or k is 0; TVM has the other cases.

    Of a tensor of rank 0, PyTorch returns the element even if k is 0.
    """
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    if sorted and k:
        return NotImplemented
    return tuple(part.narrow(dim, 0, k) for part in torch.sort(x, dim=dim, descending=largest))


def _kth(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    parts = (part.narrow(dim, k - 1, 1) for part in torch.sort(x, dim=dim, stable=True))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _median(x: Tensor, dim: int, keepdim: bool = False, ignore_nan: bool = False) -> Any:
    """Return the median and its index; NaN sorts last, and is the median unless ignored."""
    values, indices = torch.sort(x, dim=dim, stable=True)
    counts = (~torch.isnan(x)).sum(dim, keepdim=True)
    half = (counts - 1).clamp(min=0) // 2
    if not ignore_nan:
        half = torch.where(counts < x.shape[dim], counts, half)
    parts = (torch.gather(part, dim, half) for part in (values, indices))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least of the most frequent elements, and the last index that has it; a NaN equals none."""
    values, indices = torch.sort(x, dim=dim, stable=True)
    places = torch.arange(x.shape[dim]).reshape([-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)])
    begins = torch.cummax(torch.where(values != values.roll(1, dim), places, 0), dim)[0]
    last = (places - begins).argmax(dim, keepdim=True)  # of the first of the longest runs
    parts = (torch.gather(part, dim, last) for part in (values, indices))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


def _promoted(*given: _Numbers) -> list[Tensor]:
    """Return tensors of the dtype to which two promote: a scalar's value is not rounded beyond that."""
    dtype = torch.result_type(*given)
    return [n.to(dtype) if isinstance(n, Tensor) else torch.full((), n, dtype=dtype) for n in given]


def _searchsorted(
    ordered: Tensor, x: _Numbers, *, out_int32: bool = False, right: bool = False, side=None, sorter=None
) -> Tensor:
    """Compare all pairs, which is fast for a short `ordered`, such as the bounds of buckets."""
    ordered = ordered if sorter is None else torch.gather(ordered, -1, sorter)
    ordered, x = _promoted(ordered, x)
    pairs = ordered.reshape([1] * x.ndim + [-1]) if ordered.ndim == 1 else ordered.unsqueeze(-2)
    x = x.unsqueeze(-1)
    passed = pairs <= x if right or side == "right" else pairs < x
    if x.is_floating_point():
        passed = passed | torch.isnan(x)
    return passed.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _isin(x: _Numbers, among: _Numbers, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    x, among = _promoted(x, among)
    found = (x.unsqueeze(-1) == among.reshape(-1)).any(-1)
    return ~found if invert else found


# ---------------------------------------------------------------- indices


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    flat = mask.reshape(-1)
    index = torch.where(flat, torch.cumsum(flat.to(torch.int64), 0) - 1, 0)
    return torch.where(mask, source.reshape(-1)[index].reshape(x.shape), x)


def _index_put(x: Tensor, indices: list, values: Tensor, accumulate: bool = False) -> Any:
    """Convert x[:, mask] = values: each element under the mask takes the next of several values."""
    masks = [axis for axis, index in enumerate(indices) if index is not None]
    if len(masks) != 1 or indices[masks[0]].dtype != torch.bool:
        return NotImplemented
    if free_unbacked_symbols(values.shape):
        raise NotImplementedError(
            "x[mask] = f(x[mask]): how many elements a mask picks is known in a run alone; "
            "write x = torch.where(mask, f(x), x)"
        )
    mask = indices[masks[0]]
    before, after = x.shape[: masks[0]], x.shape[masks[0] + mask.ndim :]
    mask, flat = mask.reshape(-1), x.reshape(*before, -1, *after)
    axis = -1 - len(after)
    if values.ndim >= -axis and values.shape[axis] != 1:
        index = torch.cumsum(mask.to(torch.int64), 0)
        count = values.shape[axis]
        wanted = f"index_put: expected a mask that picks {count}, one for each value; the difference is "
        index = index - 1 + torch.ops.tvmfast.required(index[-1:] - count, wanted)
        values = torch.index_select(values, axis, index.clamp(min=0))
    values = flat + values if accumulate else values
    return torch.where(mask.reshape([-1] + [1] * len(after)), values, flat).reshape(x.shape)


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    index, source = index.reshape(-1), source.reshape(-1)
    return aten.index_put.default(x.reshape(-1), [index], source, accumulate).reshape(x.shape)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """Return the initial value of an element that does not itself take part in the reduction."""
    if reduce in ("amin", "amax"):
        info = torch.iinfo(dtype) if not dtype.is_floating_point else None
        least, most = (info.min, info.max) if info else (-math.inf, math.inf)
        return most if reduce == "amin" else least
    return 1 if reduce == "prod" else 0


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if x.ndim == 0 or x.dtype == torch.bool:
        return NotImplemented
    if reduce not in ("sum", "mean") and include_self:
        return NotImplemented
    start = x if include_self else x.scatter(dim, index, _neutral(reduce, x.dtype))
    if reduce not in ("sum", "mean"):
        return aten.scatter_reduce.two(start, dim, index, source, reduce, include_self=True)
    total = start.scatter_add(dim, index, source)
    if reduce == "sum":
        return total
    ones = torch.ones_like(x)
    counts = ones if include_self else ones.scatter(dim, index, 0)
    counts = counts.scatter_add(dim, index, torch.ones_like(source)).clamp(min=1)
    return total / counts if x.is_floating_point() else torch.div(total, counts, rounding_mode="floor")


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    shape = [-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
    index = index.reshape(shape).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, index, source, reduce, include_self=include_self)


def _scatter_with_reduce(x: Tensor, dim: int, index: Tensor, source: _Numbers, *, reduce: str) -> Tensor:
    source = source if isinstance(source, Tensor) else torch.full(index.shape, source, dtype=x.dtype)
    return aten.scatter_reduce.two(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def _diagonal_scatter(x: Tensor, part: Tensor, offset: int = 0, a: int = 0, b: int = 1) -> Tensor:
    last = x.movedim((a, b), (-2, -1))
    steps = torch.arange(part.shape[-1])
    indices = [None] * (x.ndim - 2) + [steps + max(0, -offset), steps + max(0, offset)]
    return aten.index_put.default(last, indices, part).movedim((-2, -1), (a, b))


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Return windows along an axis, which may overlap, along a new last one."""
    if x.ndim == 0:
        return x.expand(size)
    dim, count = dim % x.ndim, (x.shape[dim] - size) // step + 1
    indices = (torch.arange(count) * step).unsqueeze(-1) + torch.arange(size)
    return torch.index_select(x, dim, indices.reshape(-1)).unflatten(dim, (count, size)).movedim(dim + 1, -1)


def _embedding_bag(
    weight, index, offsets, _scale=False, mode=0, _sparse=False, per_sample=None, has_end=False, padding=-1
) -> Any:
    """Reduce bags of rows; networks use the first result only. A bag without rows is zero."""
    offsets = offsets[:-1] if has_end else offsets
    bags, rows = len(offsets), weight[index]
    bag = _searchsorted(offsets, torch.arange(len(index)), right=True) - 1
    counted = (index != (padding % len(weight) if padding < -1 else padding)).to(rows.dtype).unsqueeze(-1)
    none = torch.zeros((bags, rows.shape[1]), dtype=rows.dtype)
    counts = none[:, :1].index_add(0, bag, counted)
    if mode == 2:
        rows = torch.where(counted == 0, -math.inf, rows)
        is_empty = counts == 0
        largest = aten.index_reduce.default(none - math.inf, 0, bag, rows, "amax")
        result = torch.where(is_empty, 0.0, largest)
    else:
        rows = torch.where(counted == 0, 0.0, rows if per_sample is None else rows * per_sample.unsqueeze(-1))
        result = none.index_add(0, bag, rows)
        result = result / counts.clamp(min=1) if mode == 1 else result
    return result, bag, counts.squeeze(-1).to(index.dtype), bag


# ---------------------------------------------------------------- convolution and pooling


def _convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> Any:
    """Expand a transposed convolution that TVM lacks: of 3 axes, or with a whole stride of output padding."""
    rank = x.ndim - 2
    if not transposed or (rank < 3 and all(p < s for p, s in zip(output_padding, stride, strict=True))):
        return NotImplemented
    axes, pads = range(-rank, 0), []
    for axis, s, p, d, q in zip(axes, stride, padding, dilation, output_padding, strict=True):
        dilated = torch.constant_pad_nd(x.unsqueeze(axis + x.ndim + 1), [0, 0] * (-axis - 1) + [0, s - 1])
        x = dilated.flatten(axis - 1, axis).narrow(axis, 0, (x.shape[axis] - 1) * s + 1)
        pads[:0] = [d * (weight.shape[axis] - 1) - p, d * (weight.shape[axis] - 1) - p + q]
    weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(*axes)
    none = [0] * rank
    x = torch.constant_pad_nd(x, pads)
    return aten.convolution.default(x, weight, bias, [1] * rank, none, dilation, False, none, groups)


def _average(operator: Any, rank: int) -> Callable:
    """Apply divisor_override, which TVM ignores."""

    def convert(x, kernel, stride=(), padding=(0,), ceil_mode=False, _padded=True, divisor_override=None):
        if divisor_override is None:
            return NotImplemented
        kernel, padding = ([*each] * (rank if len(each) == 1 else 1) for each in (kernel, padding))
        stride = [*stride] * (rank if len(stride) == 1 else 1) or kernel
        wanted = operator(x, kernel, stride, padding, ceil_mode).shape[-rank:]
        axes = zip(wanted, stride, kernel, padding, x.shape[-rank:], strict=True)
        excess = [(n - 1) * s + k - p - size for n, s, k, p, size in axes]
        pads = [each for p, q in zip(padding[::-1], excess[::-1], strict=True) for each in (p, q)]
        x = torch.constant_pad_nd(x, pads)
        return operator(x, kernel, stride) * (math.prod(kernel) / divisor_override)

    return convert


def _with_stride(operator: Any) -> Callable:
    """Give a max pool that has no stride its kernel's size; TVM needs one."""

    def convert(x: Tensor, kernel: list[int], stride: Any = (), *how: Any) -> Any:
        return NotImplemented if stride else operator(x, kernel, kernel, *how)

    return convert


def _largest(x: Tensor, axes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return each window's maximum, and its flat index: the first of equals, or the last NaN's.

    `axes` holds for each axis the indices in each window, int64 (windows, taps); one may occur twice.
    """
    rank = len(axes)
    indices = torch.zeros([1] * 2 * rank, dtype=torch.int64)
    for axis, (along, size) in enumerate(zip(axes, x.shape[-rank:], strict=True)):
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = along.shape
        indices = indices * size + along.reshape(shape)
    indices = indices.flatten(rank)
    windows = torch.index_select(x.flatten(-rank), -1, indices.flatten()).unflatten(-1, indices.shape)
    last = windows.shape[-1] - 1 - torch.isnan(windows).flip(-1).long().argmax(-1, keepdim=True)
    value = windows.amax(-1, keepdim=True)
    tap = torch.where(torch.isnan(value), last, windows.argmax(-1, keepdim=True))
    return value.squeeze(-1), torch.gather(indices.expand(windows.shape), -1, tap).squeeze(-1)


def _adaptive_max_pool(x: Tensor, size: list[int]) -> tuple[Tensor, Tensor]:
    """Pool windows whose lengths along an axis differ by 1: the shorter ones repeat their last element."""
    axes = []
    for count, before in zip(size, x.shape[-len(size) :], strict=True):
        cell = torch.arange(count).unsqueeze(1)
        longest = max(ceildiv((n + 1) * before, count) - n * before // count for n in range(count))
        last = ((cell + 1) * before + count - 1) // count - 1
        axes.append(torch.minimum(cell * before // count + torch.arange(longest), last))
    return _largest(x, axes)


def max_pool_with_indices(
    x: Tensor, kernel, stride=(), padding=(0,), dilation=(1,), ceil_mode=False
) -> tuple[Tensor, Tensor]:
    """Max pool 2 or 3 axes and return the indices, too; a tap outside repeats the nearest one inside."""
    rank, axes = len(kernel), []
    stride, padding, dilation = (
        [*(each or kernel)] * (rank if len(each) == 1 else 1) for each in (stride, padding, dilation)
    )
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


def _max_pool1d(
    x: Tensor, kernel, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
) -> Any:
    """Pool along the second of two axes, as PyTorch does after a check that makes the length static."""
    if return_indices:
        return NotImplemented
    along = ((1, kernel), (1, stride or kernel), (0, padding), (1, dilation))
    how = [(n, *(each if isinstance(each, list | tuple) else [each])) for n, each in along]
    return F.max_pool2d(x.unsqueeze(-2), *how, bool(ceil_mode)).squeeze(-2)  # an int in a trace


def _unsafe_masked_index(x: Tensor, mask: Tensor, indices: list[Tensor | None], fill: float) -> Tensor:
    """Index where the mask allows, all indices clipped; PyTorch's decomposition makes negative ones 0."""
    sizes = zip(indices, x.shape, strict=False)
    inside = [None if index is None else torch.clamp(index, -size, size - 1) for index, size in sizes]
    return aten.index.Tensor(x, inside).masked_fill(~mask, fill)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Take elements of x in order; PyTorch's decomposition reads an index of rank 0."""
    return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)


_OF_PYTORCH = (
    *(aten.narrow_copy.default, aten.view_copy.default, aten.permute_copy.default, aten.unbind_copy.int),
    aten.aminmax.default,
)
# Called in place of functions of PyTorch while it exports.
CALLED = dict.fromkeys((F.max_pool1d, torch.max_pool1d, aten.max_pool1d.default), _max_pool1d)
INDEXING: dict[Any, Callable] = {
    **{each: decomposition_table[each] for each in _OF_PYTORCH},
    aten.take.default: _take,
    aten._unsafe_masked_index.default: _unsafe_masked_index,
    aten.min.dim: lambda x, dim, keepdim=False: (x.amin(dim, keepdim), x.argmin(dim, keepdim)),
    aten.sort.stable: lambda x, *, stable=None, **how: aten.sort.default(x, **how),  # as TVM's sort is
    aten.topk.default: _topk,
    aten.kthvalue.default: _kth,
    aten.mode.default: _mode,
    aten.median.dim: _median,
    aten.nanmedian.dim: partial(_median, ignore_nan=True),
    aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
    aten.nanmedian.default: lambda x: _median(x.reshape(-1), 0, ignore_nan=True)[0],
    **dict.fromkeys((aten.searchsorted.Tensor, aten.searchsorted.Scalar), _searchsorted),
    **dict.fromkeys(
        (aten.bucketize.Tensor, aten.bucketize.Scalar),
        lambda x, bounds, **how: _searchsorted(bounds, x, **how),
    ),
    **dict.fromkeys((aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor), _isin),
    aten.masked_scatter.default: _masked_scatter,
    aten.index_put.default: _index_put,
    aten.put.default: _put,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_reduce.default: _index_reduce,
    **dict.fromkeys((aten.scatter.reduce, aten.scatter.value_reduce), _scatter_with_reduce),
    aten.diagonal_scatter.default: _diagonal_scatter,
    **dict.fromkeys((aten.unfold.default, aten.unfold_copy.default), _unfold),
    **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), _embedding_bag),
    aten.avg_pool2d.default: _average(aten.avg_pool2d.default, 2),
    aten.avg_pool3d.default: _average(aten.avg_pool3d.default, 3),
    **{
        each: _with_stride(each)
        for each in (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
    },
    **dict.fromkeys((aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default), _adaptive_max_pool),
    aten.convolution.default: _convolution,
}
