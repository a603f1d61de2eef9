"""Decompositions of PyTorch operators that TVM 0.27 gets wrong or lacks into others: DECOMPOSITIONS.

They are applied before TVM's importer. A function returns NotImplemented where the operator need not be
decomposed. tests/test_import_pytorch.py compares each one with PyTorch.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

from ..partial_update import select_scatter
from ..type_promotion import OF_MIXED_TYPES, of_nothing, with_exact_scalars
from .halves import HALVES, ROUNDED_ONCE, STEPWISE, as_half, rounded_once, wide
from .indexing import INDEXING
from .linalg import LINALG
from .recurrent import RECURRENT
from .special import SPECIAL

aten = torch.ops.aten
_Weight = Tensor | None  # of a norm, or its bias


# ---------------------------------------------------------------- elementwise


def _unless_nan(extreme: Callable) -> Callable:
    return lambda a, b: torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, extreme(a, b)))


def _clamp(x: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Tensor:
    x = x if least is None else torch.maximum(x, least)
    return x if most is None else torch.minimum(x, most)


def _clamp_to_scalars(x: Tensor, least: float | None = None, most: float | None = None) -> Any:
    """Clamp integers, for which TVM takes an infinity for a missing bound; and by bounds that cross."""
    crossed = None not in (least, most) and least > most  # where TVM returns `least`
    if x.is_floating_point() and not crossed:
        return NotImplemented
    given = [each for each in (least, most) if each is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(x, each) for each in given))
    bounds = (None if each is None else torch.full((), each, dtype=dtype) for each in (least, most))
    return _clamp(x.to(dtype), *bounds)


def _hypot(a: Tensor, b: Tensor) -> Tensor:
    """Compute without squares, which would overflow; an infinity outweighs NaN."""
    a, b = (each.to(torch.result_type(a, b)).abs() for each in (a, b))
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    none = torch.zeros_like(large)
    ratio = small / torch.where(large == 0, none + 1, large)
    infinite = (a == math.inf) | (b == math.inf)
    return torch.where(infinite, none + math.inf, large * torch.sqrt(1 + ratio * ratio))


def _angle(x: Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    floats = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x < 0, math.pi, torch.where(torch.isnan(floats), floats, 0.0))


def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training=False, generator=None
) -> Any:
    """Draw nothing in eval mode: the slope is the mean of both. The noise is the second result."""
    return NotImplemented if training else (F.leaky_relu(x, (lower + upper) / 2), noise)


# ---------------------------------------------------------------- what TVM computes differently


def _with_alpha(operator: Callable) -> Callable:
    """Apply alpha, which TVM ignores; for halves it is one, too, as is a scalar."""

    def decomposed(a: Any, b: Any, *, alpha: float = 1) -> Any:
        if alpha == 1:
            return NotImplemented
        dtype = torch.result_type(a, b)
        if dtype not in HALVES:
            return operator(a, b * alpha).to(dtype)
        a, b = (n.to(dtype).float() if isinstance(n, Tensor) else as_half(n, dtype) for n in (a, b))
        return operator(a, b * as_half(alpha, dtype)).to(dtype)

    return decomposed


def _div(a: Any, b: Any) -> Any:
    """Divide integers as floats; TVM divides them as integers."""
    dtype = torch.result_type(a, b)
    if dtype.is_floating_point or dtype.is_complex:
        return NotImplemented
    dtype = torch.get_default_dtype()
    return aten.div.Tensor(*(n.to(dtype) if isinstance(n, Tensor) else float(n) for n in (a, b)))


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """Apply the scales, which TVM ignores and selu needs."""
    is_positive, positive = x > 0, scale * x
    negative = scale * alpha * _expm1_of_negatives(input_scale * torch.clamp(x, max=0.0))
    return torch.where(is_positive, positive, negative)


def _expm1_of_negatives(x: Tensor) -> Tensor:
    half = torch.tanh(x * 0.5)
    return 2 * half / (1 - half)


def _expm1(x: Tensor) -> Any:
    """Compute exp(x) - 1 without TVM's subtraction, which loses a small x."""
    if not x.is_floating_point():
        return NotImplemented
    return torch.where(x > 0.5, torch.exp(x) - 1, _expm1_of_negatives(torch.clamp(x, max=0.5)))


def _log1p(x: Tensor) -> Any:
    """Compute log(1 + x) accurately for a small x, which TVM's sum 1 + x rounds away.

    Kahan's method: Higham, Accuracy and Stability of Numerical Algorithms, section 1.14.1.
    """
    if not x.is_floating_point():
        return NotImplemented
    above = 1 + x
    exact = (above == 1) | (above == math.inf)
    return torch.where(exact, x, torch.log(above) * (x / (above - 1)))


def _pow(x: Tensor, exponent: float) -> Any:
    """Multiply for small integer exponents, and use square roots for 0.5 and -0.5, as PyTorch does.

    TVM's (C's) power is slow, its square root differs for -0 and -infinity, and it lacks bfloat16. PyTorch
    has C's power for float16, rounds the exponents of halves, and bfloat16's squares in the powers 3 and -2.
    """
    if isinstance(exponent, bool):
        return x.clone() if exponent else torch.ones_like(x)
    if not x.is_floating_point() and isinstance(exponent, int) and exponent >= 0:
        result, power = None, x.to(torch.result_type(x, exponent))
        while exponent:
            if exponent & 1:
                result = power if result is None else result * power
            exponent >>= 1
            power = power * power if exponent else power
        return torch.ones_like(power) if result is None else result.clone()
    base = wide(x)
    if not x.is_floating_point() or (base is x and exponent not in (-0.5, 0.5, 2, 3, 4)):
        return NotImplemented
    if x.dtype == torch.bfloat16 and exponent in (-2, 3):
        square = x * x
        result = square * x if exponent == 3 else 1 / square
    elif x.dtype == torch.float16 and abs(exponent) == 0.5:
        root = torch.where(base == -math.inf, math.inf, torch.sqrt(base).abs())
        result = root if exponent == 0.5 else 1 / root
    elif exponent in (2, 3, 4):
        square = base * base
        result = square if exponent == 2 else square * (base if exponent == 3 else square)
    elif exponent == -0.5:
        result = torch.rsqrt(base)
    else:
        result = torch.sqrt(base) if exponent == 0.5 else torch.pow(base, as_half(exponent, x.dtype))
    return result.to(x.dtype)


def _isfinite(x: Tensor) -> Tensor:
    """Avoid PyTorch's own decomposition, which multiplies bools, which TVM does not compile."""
    if not x.is_floating_point():
        return torch.ones_like(x, dtype=torch.bool)
    x = wide(x)
    return torch.logical_and(x == x, x.abs() != math.inf)


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    """Count a negative index from the end; TVM uses it as it is, and reads outside the array."""
    start = index % x.shape[dim]
    return aten.squeeze.dim(aten.slice.Tensor(x, dim, start, start + 1), dim)


def _slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Begin an empty slice at 0: TVM fails on one that ends before it begins."""
    if not all(each is None or isinstance(each, int) for each in (start, end, x.shape[dim])):
        return NotImplemented
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return NotImplemented if first <= last else aten.slice.Tensor(x, dim, 0, 0)


def _split(x: Tensor, sizes: list[int], dim: int = 0) -> Any:
    """Slice, where a part is empty, which TVM allows of the last one alone."""
    if not all(isinstance(size, int) for size in sizes) or all(sizes):
        return NotImplemented
    ends = itertools.accumulate(sizes)
    return [aten.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _view(x: Tensor, shape: list[int]) -> Any:
    """Copy first what PyTorch cannot view, as strides may differ in a decomposition, as in attention's."""
    return NotImplemented if x.is_contiguous() else aten.view.default(x.contiguous(), shape)


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_options: Any) -> Tensor:
    """Compare indices of int64; those of PyTorch's decomposition have a dtype that depends on the dim."""
    columns = torch.arange(n if m is None else m)
    return (torch.arange(n)[:, None] == columns).to(dtype or torch.get_default_dtype())


def _arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **_options: Any) -> Any:
    """Count down; TVM, which rounds the number of steps as if it were up, has one too many."""
    if not all(isinstance(n, int | float) for n in (start, end, step)) or step > 0:
        return NotImplemented
    is_whole = all(isinstance(n, int) for n in (start, end, step))
    dtype = dtype or (torch.int64 if is_whole else torch.get_default_dtype())
    wide = torch.int64 if is_whole else torch.float64
    return (torch.arange(math.ceil((end - start) / step)).to(wide) * step + start).to(dtype)


def _cat(parts: list[Tensor], dim: int = 0) -> Any:
    """Leave out tensors of shape (0,), which PyTorch joins with any other."""
    nonempty = [part for part in parts if part.shape != (0,)]
    if len(nonempty) in (0, len(parts)):
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.cat([part.to(dtype) for part in nonempty], dim)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Fill; unlike those of index_copy, the indices may count from the end."""
    value = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype)
    return aten.index_put(x, [None] * (dim % x.ndim) + [index], value)


def _preserve(*_: Any, **__: Any) -> Any:
    return NotImplemented


# ---------------------------------------------------------------- sums, products and norms


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = [*range(x.ndim)] if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    none = of_nothing(x, dims, keepdim, math.nan, dtype or x.dtype)
    if none is None and dim == [] and x.ndim:  # of all dims, of which TVM makes none
        return torch.mean(x, dims, keepdim, dtype=dtype)
    return NotImplemented if none is None else none


def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = alpha * torch.bmm(a, b).sum(0)
    return product if beta == 0 else beta * x + product


def grouped_product(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Multiply the rows of group g, which end before offs[g], by weight[g], as layers of experts do.

    It is one product, in which rows are zero for the weights of other groups.
    """
    row = torch.arange(len(x)).unsqueeze(1)
    starts = torch.cat([torch.zeros_like(offs[:1]), offs[:-1]])
    inside = (row >= starts) & (row < offs)
    spread = torch.where(inside.unsqueeze(2), x.unsqueeze(1), torch.zeros((), dtype=x.dtype))
    return spread.flatten(1) @ weight.flatten(0, 1)


def _sum_with_product(product: Callable) -> Callable:
    """Decompose addmm and the like of dtypes that TVM's importer takes for float32."""

    def decomposed(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        if wide(x).dtype == torch.float32:
            return NotImplemented
        result = product(a, b) if alpha == 1 else product(a, b) * alpha
        return result if beta == 0 else (x if beta == 1 else x * beta) + result

    return decomposed


def _grouped_mm(x: Tensor, weight: Tensor, offs: Tensor | None = None, bias: Any = None, dtype: Any = None):
    if x.ndim != 2 or weight.ndim != 3 or bias is not None:
        return NotImplemented
    return grouped_product(x, weight, offs).to(dtype or x.dtype)


def _histc(x: Tensor, bins: int = 100, least: float = 0, most: float = 0) -> Any:
    if least == most:  # the bounds are x's own
        return NotImplemented
    x = x.reshape(-1, 1)
    bin_ = torch.where(x == most, bins - 1, torch.floor((x - least) * bins / (most - least)))
    return ((bin_ == torch.arange(bins)) & (x >= least) & (x <= most)).sum(0).to(x.dtype)


def _trilinear(a: Tensor, b: Tensor, c: Tensor, *axes: Any) -> Tensor:
    """Convert what torch.nn.Bilinear calls, with these axes only."""
    if tuple(map(tuple, axes[:4])) != ((1, 3), (0,), (1, 2), (2, 3)):
        return NotImplemented
    (outputs, width, _), rows = b.shape, a.shape[0]
    half = torch.matmul(a, b.permute(1, 0, 2).reshape(width, -1)).reshape(rows, outputs, -1)
    return torch.matmul(half, c.unsqueeze(-1)).squeeze(-1)


def _vector_norm(x: Tensor, order: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None):
    """Avoid TVM's powers of order and 1 / order, the latter of which does not exist for 0."""
    if order not in (0, 1, 2, math.inf, -math.inf) and x.ndim:
        if wide(x) is x:
            return NotImplemented
        norm = aten.linalg_vector_norm.default(wide(x), order, dims, keepdim)  # powers are beyond halves
        return norm.to(dtype or x.dtype)
    x = (x if dtype is None else x.to(dtype)).abs()
    dtype = x.dtype
    if x.ndim == 0:
        return (x != 0).to(dtype) if order == 0 else x
    dims = list(range(x.ndim)) if dims in (None, []) else dims
    if abs(order) == math.inf:
        return (torch.amax if order > 0 else torch.amin)(x, dims, keepdim)
    x = wide(x)
    if order == 2:
        return torch.sqrt((x * x).sum(dims, keepdim)).to(dtype)
    return ((x != 0).to(x.dtype) if order == 0 else x).sum(dims, keepdim).to(dtype)


def _cdist(a: Tensor, b: Tensor, p: float, _mode: int | None) -> Any:
    return _length(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def _pdist(x: Tensor, p: float = 2) -> Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1)
    return _length(x[first] - x[second], p)


def _length(differences: Tensor, p: float) -> Tensor:
    """Return norms of which, unlike vector_norm's, also that of p = 0 is NaN beside a NaN."""
    if p == 0:
        return torch.clamp(differences.abs().ceil(), max=1).sum(-1)
    return torch.linalg.vector_norm(differences, p, -1)


def _spread(finish: Callable, of_means: bool = False) -> Callable:
    """Compute variances in float64, as PyTorch does: squares of 1e20 are no float32.

    `finish` takes the variances and the means, in float64; `of_means` says whether it returns the latter.
    """

    def decomposed(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False):
        if x.is_complex():
            return NotImplemented
        dims = list(range(x.ndim)) if dim in (None, []) else dim
        # a tensor, as it may be dynamic
        count = torch.full((), math.prod(x.shape[axis] for axis in dims), dtype=torch.float64)
        # A cast of its own becomes a part of the sum's kernel; one that two kernels read would be stored.
        total = _running_total(x, dims) if of_means else (x * 1).double().sum(dims, True)
        mean = total / count
        centred = x.double() - mean
        degrees = torch.clamp(count - (1 if correction is None else correction), min=0.0)
        variance = (centred * centred).sum(dims, keepdim) / degrees
        results = finish(variance, mean.reshape(variance.shape))
        return pytree.tree_map(lambda each: each.to(x.dtype), results)

    return decomposed


def _running_total(x: Tensor, dims: list[int]) -> Tensor:
    """Sum in float64, to NaN after an infinity.

    In PyTorch's running mean (Welford, 1962) the next element's distance from it is infinite, too: the mean
    is infinite only where the last element alone is.
    """
    last, ends = x, []
    for axis in {axis % x.ndim for axis in dims}:
        size = x.shape[axis]
        if size == 0:
            return x.double().sum(dims, True)
        shape = [-1 if each == axis else 1 for each in range(x.ndim)]
        # a tensor, as it may be dynamic
        ends.append((torch.arange(size) == torch.full((), size - 1)).reshape(shape))
        last = aten.slice.Tensor(last, axis, -1, sys.maxsize)
    total = torch.where(functools.reduce(torch.logical_and, ends), 0.0, x).double().sum(dims, True)
    return torch.where(total.abs() == math.inf, math.nan, total) + last.double()


def _scan(parts: list[Tensor], dim: int, joined: Callable) -> list[Tensor]:
    """Combine each element with those at doubling distances before it (Hillis and Steele, 1986)."""
    size, distance = parts[0].shape[dim], 1
    while distance < size:
        before, current = ([each.narrow(dim, at, size - distance) for each in parts] for at in (0, distance))
        pairs = zip(parts, joined(before, current), strict=True)
        parts = [torch.cat([part.narrow(dim, 0, distance), tail], dim) for part, tail in pairs]
        distance *= 2
    return parts


def _running(better: Callable) -> Callable:
    """Return a running extreme and its index: of equal elements the last counts, and NaN beats all."""

    def joined(before: list[Tensor], current: list[Tensor]) -> list[Tensor]:
        wins = (torch.isnan(before[0]) | better(before[0], current[0])) & ~torch.isnan(current[0])
        return [torch.where(wins, a, b) for a, b in zip(before, current, strict=True)]

    def decomposed(x: Tensor, dim: int) -> tuple[Tensor, ...]:
        shape = [-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
        indices = torch.arange(x.shape[dim]).reshape(shape)
        return tuple(_scan([x, indices.expand(x.shape)], dim, joined))

    return decomposed


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return _scan([x], dim, lambda before, here: [torch.logaddexp(before[0], here[0])])[0]


def _instance_norm(x, weight, bias, mean, var, use_input_stats, _momentum, eps, _cudnn) -> Tensor:
    """Normalize; its update of the running statistics is lost, as is everything written into buffers."""
    if use_input_stats:
        return _by_groups(x, x.shape[1], weight, bias, eps)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    result = (wide(x) - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + eps)
    result = result if weight is None else result * weight.reshape(shape)
    return (result if bias is None else result + bias.reshape(shape)).to(x.dtype)


def _in_dtype(operator: Any) -> Callable:
    """Convert to `dtype` first; TVM's softmax keeps the dtype of its input."""

    def convert(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        return NotImplemented if dtype in (None, x.dtype) else operator(x.to(dtype), dim)

    return convert


def _group_norm(
    x: Tensor, groups: int, weight: _Weight = None, bias: _Weight = None, eps=1e-5, cudnn_enabled=True
) -> Any:
    """Normalize halves in float32, and without weight or bias: TVM lacks bfloat16, and needs both."""
    if weight is not None and bias is not None and wide(x) is x:
        return NotImplemented
    return _by_groups(x, groups, weight, bias, eps)


def _by_groups(x: Tensor, groups: int, weight: _Weight, bias: _Weight, eps: float) -> Tensor:
    """Normalize; without weights each group is an image of one channel, as the channels may be dynamic."""
    shape, own = x.shape, x.dtype
    x = wide(x)
    if weight is None and bias is None:
        x, groups = x.reshape(shape[0] * groups, 1, shape[1] // groups, *shape[2:]), 1
    channels, count = x.shape[1], math.prod(x.shape[2:])
    weight = torch.ones(channels, dtype=x.dtype) if weight is None else wide(weight)
    bias = torch.zeros(channels, dtype=x.dtype) if bias is None else wide(bias)
    normal = aten.native_group_norm(x, weight, bias, x.shape[0], channels, count, groups, eps)[0]
    return normal.reshape(shape).to(own)


def _layer_norm(
    x: Tensor, shape: list[int], weight: _Weight = None, bias: _Weight = None, eps=1e-5, cudnn_enable=True
) -> Any:
    """Compute bfloat16 in float32; TVM does not support it here."""
    if x.dtype != torch.bfloat16:
        return aten.native_layer_norm(x, shape, weight, bias, eps)[0]
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    return aten.native_layer_norm(x.float(), shape, weight, bias, eps)[0].to(x.dtype)


def layer_norm_with_statistics(x: Tensor, shape: list[int], weight: _Weight, bias: _Weight, eps: float):
    """Return the norm, and the mean and 1 / deviation of each row."""
    dims = list(range(x.ndim - len(shape), x.ndim))
    return _layer_norm(x, shape, weight, bias, eps), *_statistics(x, dims, eps, True)


def group_norm_with_statistics(x: Tensor, weight: _Weight, bias: _Weight, batch, _c, _hw, groups, eps):
    """Return the norm, and the mean and 1 / deviation of each group, (N, groups)."""
    return _by_groups(x, groups, weight, bias, eps), *_statistics(x.reshape(batch, groups, -1), [2], eps)


def _statistics(x: Tensor, dims: list[int], eps: float, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x.double(), dims, correction=0, keepdim=keepdim)
    return mean.to(x.dtype), torch.rsqrt(variance + eps).to(x.dtype)


# ---------------------------------------------------------------- attention
# nn.TransformerEncoderLayer and nn.MultiheadAttention call these in eval mode where no gradient is wanted.

_OF_KEYS = 1  # the type of a mask of (batch, key); others are of (query, key) or (batch, head, query, key)


def _attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
    mask=None, need_weights=True, average_attn_weights=True, mask_type=None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attend from each query to all keys, except where a mask is not zero."""
    inputs = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in inputs)
    scores = q @ k.transpose(-2, -1) / math.sqrt(embed_dim // num_head)
    if mask is not None:
        mask = mask[:, None, None] if mask_type == _OF_KEYS else mask
        scores = scores.masked_fill(mask.to(torch.bool), -math.inf)
    weights = scores.softmax(-1)
    result = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
    norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2,
    ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
) -> Tensor:  # fmt: skip
    def attend(x):
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, False, mask_type)[0]

    def norm(x, weight, bias):
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def feed_forward(x):
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute a softmax that is 0 where all of a row is -infinity: its largest element is, too."""
    empty = x.amax(dim, keepdim=True) == -math.inf
    return torch.where(empty, torch.zeros((), dtype=dtype or x.dtype), x.softmax(dim, dtype))


# ---------------------------------------------------------------- the table


def _with_an_axis(operator: Any, decomposition: Callable = _preserve) -> Callable:
    """Give a tensor of rank 0 an axis, as PyTorch does; TVM's operators along an axis need one."""

    def decomposed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.ndim:
            return decomposition(x, *args, **kwargs)
        given = [each.reshape(1) if isinstance(each, Tensor) and each.ndim == 0 else each for each in args]
        shape = given[1].shape if operator is aten.gather.default and args[1].ndim else []
        return pytree.tree_map(lambda each: each.reshape(shape), operator(x.reshape(1), *given, **kwargs))

    return decomposed


_NEED_AN_AXIS = (
    aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.cummin.default,
    aten.logcumsumexp.default, aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int, aten.amax.default,
    aten.amin.default, aten.argmax.default, aten.argmin.default, aten.any.default, aten.any.dim,
    aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims, aten.max.dim, aten.min.dim,
    aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.mode.default, aten.median.dim,
    aten.nanmedian.dim, aten.var.correction, aten.std.correction, aten.var_mean.correction,
    aten.std_mean.correction, aten.softmax.int, aten.log_softmax.int, aten.gather.default,
    aten.index_select.default, aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor, aten.index_reduce.default, aten.scatter.src, aten.scatter.value,
    aten.scatter_add.default, aten.scatter_reduce.two, aten.flip.default,
)  # fmt: skip

# PyTorch decomposes the first into assertions, the next two into indices that may count from the end, and
# rolls and resampling into gathers of single elements.
_PRESERVED = (
    *(aten.one_hot.default, aten.index_add.default, aten.index_copy.default, aten.roll.default),
    *(aten.upsample_nearest1d.vec, aten.upsample_nearest3d.vec, aten.upsample_linear1d.vec),
    *(aten.upsample_trilinear3d.vec, aten.upsample_bicubic2d.vec),
    *(aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec),
)

# PyTorch has decompositions of these, but not among those that it exports by.
_AS_PYTORCH = (
    *(aten.addmv.default, aten.dist.default, aten.ldexp.Tensor),
    *(aten.tril_indices.default, aten.triu_indices.default),
)

DECOMPOSITIONS: dict[Any, Callable] = {
    **dict.fromkeys((aten.eye.default, aten.eye.m), _eye),
    aten.arange.start_step: _arange,
    aten._safe_softmax.default: _safe_softmax,
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    **{each: decomposition_table[each] for each in _AS_PYTORCH},
    aten.softmax.int: _in_dtype(aten.softmax.int),
    aten.log_softmax.int: _in_dtype(aten.log_softmax.int),
    aten.exp2.default: lambda x: torch.pow(2.0, x),
    aten.fmax.default: _unless_nan(torch.maximum),
    aten.fmin.default: _unless_nan(torch.minimum),
    aten.clamp.Tensor: _clamp,
    aten.clamp.default: _clamp_to_scalars,
    aten.clamp_min.default: _clamp_to_scalars,
    aten.clamp_max.default: lambda x, most: torch.clamp(x, max=most),  # TVM ignores the bound
    aten.clamp_min.Tensor: torch.maximum,
    aten.clamp_max.Tensor: torch.minimum,
    aten.frac.default: lambda x: x - torch.trunc(x),
    aten.hypot.default: _hypot,
    aten.angle.default: _angle,
    aten.rrelu_with_noise_functional.default: _rrelu,
    **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean),
    aten.addbmm.default: _addbmm,
    aten.addmm.default: _sum_with_product(torch.mm),
    aten.baddbmm.default: _sum_with_product(torch.bmm),
    aten._grouped_mm.default: _grouped_mm,
    aten.histc.default: _histc,
    aten._trilinear.default: _trilinear,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._cdist_forward.default: _cdist,
    aten._pdist_forward.default: _pdist,
    aten.var.correction: _spread(lambda variance, _: variance),
    aten.std.correction: _spread(lambda variance, _: torch.sqrt(variance)),
    aten.var_mean.correction: _spread(lambda variance, mean: (variance, mean), True),
    aten.std_mean.correction: _spread(lambda variance, mean: (torch.sqrt(variance), mean), True),
    aten.instance_norm.default: _instance_norm,
    aten.cummax.default: _running(torch.gt),
    aten.cummin.default: _running(torch.lt),
    aten.logcumsumexp.default: _logcumsumexp,
    **STEPWISE,
    **INDEXING,
    **LINALG,
    **RECURRENT,
    **SPECIAL,
    **OF_MIXED_TYPES,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.add.Tensor: _with_alpha(torch.add),
    aten.sub.Tensor: _with_alpha(torch.sub),
    **{getattr(aten, name).Scalar: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    aten.mul.Tensor: with_exact_scalars(aten.mul.Tensor, lambda a, b: NotImplemented),
    aten.div.Tensor: with_exact_scalars(aten.div.Tensor, _div),
    aten.elu.default: _elu,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.pow.Tensor_Scalar: _pow,
    aten.isfinite.default: _isfinite,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split_with_sizes.default: _split,
    aten.view.default: _view,
    aten.cat.default: _cat,
    aten.select_scatter.default: select_scatter,
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    **dict.fromkeys(_PRESERVED, _preserve),
}
DECOMPOSITIONS |= {
    each: rounded_once(each, DECOMPOSITIONS.get(each) or decomposition_table[each]) for each in ROUNDED_ONCE
}
DECOMPOSITIONS |= {each: _with_an_axis(each, DECOMPOSITIONS.get(each, _preserve)) for each in _NEED_AN_AXIS}
