"""Decompositions of PyTorch operators that TVM 0.27 gets wrong or lacks into others: DECOMPOSITIONS.

They are applied before TVM's importer. A function returns NotImplemented where the operator need not be
decomposed. tests/test_import_pytorch.py compares each one with PyTorch.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from ..partial_update import select_scatter
from ..type_promotion import OF_MIXED_TYPES, with_exact_scalars
from .indexing import INDEXING
from .linalg import LINALG
from .numeric import NUMERIC, wide
from .recurrent import RECURRENT

aten = torch.ops.aten
_Weight = Tensor | None  # of a norm, or its bias


def _add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """Apply alpha, which TVM ignores."""
    return NotImplemented if alpha == 1 else (a + b * alpha).to(torch.result_type(a, b))


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else a - b * alpha


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
    has C's power for float16.
    """
    if isinstance(exponent, bool):
        return x.clone() if exponent else torch.ones_like(x)
    base = wide(x)
    if not x.is_floating_point() or (base is x and exponent not in (-0.5, 0.5, 2, 3, 4)):
        return NotImplemented
    if x.dtype == torch.float16 and abs(exponent) == 0.5:
        root = torch.where(base == -math.inf, math.inf, torch.sqrt(base).abs())
        result = root if exponent == 0.5 else 1 / root
    elif exponent in (2, 3, 4):
        square = base * base
        result = square if exponent == 2 else square * (base if exponent == 3 else square)
    elif exponent == -0.5:
        result = torch.rsqrt(base)
    else:
        result = torch.sqrt(base) if exponent == 0.5 else torch.pow(base, exponent)
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


def _view(x: Tensor, shape: list[int]) -> Any:
    """Copy first what PyTorch cannot view, as strides may differ in a decomposition, as in attention's."""
    return NotImplemented if x.is_contiguous() else aten.view.default(x.contiguous(), shape)


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_options: Any) -> Tensor:
    """Compare indices of int64; those of PyTorch's decomposition have a dtype that depends on the dim."""
    columns = torch.arange(n if m is None else m)
    return (torch.arange(n)[:, None] == columns).to(dtype or torch.get_default_dtype())


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


def _group_norm(
    x: Tensor, groups: int, weight: _Weight = None, bias: _Weight = None, eps=1e-5, cudnn_enabled=True
) -> Any:
    """Normalize without weight or bias, which TVM requires."""
    if weight is not None and bias is not None:
        return NotImplemented
    grouped = wide(x).reshape(x.shape[0], groups, -1)
    centred = grouped - grouped.mean(2, keepdim=True)
    scaled = (centred * torch.rsqrt((centred * centred).mean(2, keepdim=True) + eps)).reshape(x.shape)
    shape = [-1, *[1] * (x.ndim - 2)]
    scaled = scaled if weight is None else scaled * weight.reshape(shape)
    return (scaled if bias is None else scaled + bias.reshape(shape)).to(x.dtype)


def _layer_norm(
    x: Tensor, shape: list[int], weight: _Weight = None, bias: _Weight = None, eps=1e-5, cudnn_enable=True
) -> Any:
    """Compute bfloat16 in float32; TVM does not support it here."""
    if x.dtype != torch.bfloat16:
        return aten.native_layer_norm(x, shape, weight, bias, eps)[0]
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    return aten.native_layer_norm(x.float(), shape, weight, bias, eps)[0].to(x.dtype)


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
    aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.median.dim, aten.nanmedian.dim,
    aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction,
    aten.softmax.int, aten.log_softmax.int, aten.gather.default, aten.index_select.default,
    aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    aten.index_reduce.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
    aten.scatter_reduce.two, aten.flip.default,
)  # fmt: skip

# PyTorch decomposes the first into assertions, the next two into indices that may count from the end, and
# rolls and resampling into gathers of single elements.
_PRESERVED = (
    *(aten.one_hot.default, aten.index_add.default, aten.index_copy.default, aten.roll.default),
    *(aten.upsample_nearest1d.vec, aten.upsample_nearest3d.vec, aten.upsample_linear1d.vec),
    *(aten.upsample_trilinear3d.vec, aten.upsample_bicubic2d.vec),
    *(aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec),
)

DECOMPOSITIONS: dict[Any, Callable] = {
    **dict.fromkeys((aten.eye.default, aten.eye.m), _eye),
    aten._safe_softmax.default: _safe_softmax,
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    **NUMERIC,
    **INDEXING,
    **LINALG,
    **RECURRENT,
    **OF_MIXED_TYPES,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: with_exact_scalars(aten.mul.Tensor, lambda a, b: NotImplemented),
    aten.div.Tensor: with_exact_scalars(aten.div.Tensor, _div),
    aten.elu.default: _elu,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.pow.Tensor_Scalar: _pow,
    aten.isfinite.default: _isfinite,
    aten.select.int: _select,
    aten.view.default: _view,
    aten.cat.default: _cat,
    aten.select_scatter.default: select_scatter,
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    **dict.fromkeys(_PRESERVED, _preserve),
}
DECOMPOSITIONS |= {each: _with_an_axis(each, DECOMPOSITIONS.get(each, _preserve)) for each in _NEED_AN_AXIS}
