"""PyTorch's operators said with other operators of PyTorch, before TVM's importer sees them.

These are the ones that TVM 0.27 gets wrong or lacks. A function of DECOMPOSITIONS returns NotImplemented where the
operator may stay as it is. tests/test_import_pytorch.py holds each one against PyTorch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .pytorch_composites import COMPOSITES, wide
from .pytorch_linalg import LINALG
from .pytorch_places import PLACES
from .pytorch_types import OF_MIXED_TYPES, with_exact_numbers

aten = torch.ops.aten
_Weight = torch.Tensor | None  # of a norm, or its bias


def _add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """TVM reads no alpha."""
    return NotImplemented if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else a - b * alpha


def _div(a: Any, b: Any) -> Any:
    """TVM divides integers as integers."""
    if any(isinstance(n, float) or (isinstance(n, torch.Tensor) and n.is_floating_point()) for n in (a, b)):
        return NotImplemented
    return a.to(torch.get_default_dtype()) / b


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """TVM reads no scale, which selu needs."""
    return torch.where(
        x > 0, scale * x, scale * alpha * _expm1_of_negatives(input_scale * torch.clamp(x, max=0.0))
    )


def _expm1_of_negatives(x: torch.Tensor) -> torch.Tensor:
    half = torch.tanh(x * 0.5)
    return 2 * half / (1 - half)


def _expm1(x: torch.Tensor) -> Any:
    """TVM subtracts 1 from exp(x), which leaves nothing of a small x."""
    if not x.is_floating_point():
        return NotImplemented
    return torch.where(x > 0.5, torch.exp(x) - 1, _expm1_of_negatives(torch.clamp(x, max=0.5)))


def _log1p(x: torch.Tensor) -> Any:
    """TVM takes the logarithm of 1 + x, which is 1 where x is small.

    This is Kahan's way: Higham, Accuracy and Stability of Numerical Algorithms, section 1.14.1.
    """
    if not x.is_floating_point():
        return NotImplemented
    above = 1 + x
    exact = (above == 1) | (above == math.inf)
    return torch.where(exact, x, torch.log(above) * (x / (above - 1)))


def _pow(x: torch.Tensor, exponent: float) -> Any:
    """TVM has C's power; PyTorch takes a square root for 0.5, which differs for -0 and -infinity."""
    return torch.sqrt(x) if exponent == 0.5 and x.is_floating_point() else NotImplemented


def _isfinite(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own decomposition multiplies bools, which TVM does not compile."""
    if not x.is_floating_point():
        return torch.ones_like(x, dtype=torch.bool)
    return torch.logical_and(x == x, x.abs() != math.inf)


def _select(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """TVM takes a negative index as it is, and reads outside the array."""
    start = index % x.shape[dim]
    return aten.squeeze.dim(aten.slice.Tensor(x, dim, start, start + 1), dim)


def _roll(x: torch.Tensor, shifts: list[int], dims: list[int] = ()) -> Any:
    """TVM gathers element by element, and warns of it; two slices joined do."""
    if not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        x = torch.cat([aten.slice.Tensor(x, dim, cut), aten.slice.Tensor(x, dim, 0, cut)], dim)
    return x


def _slice_scatter(
    x: torch.Tensor,
    part: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """It is x with x[start:end] set to part; slices are joined as in `_roll`."""
    if step != 1:
        return NotImplemented
    start, end, _ = slice(start, end).indices(x.shape[dim])
    if end <= start:
        return x.clone()
    return torch.cat([aten.slice.Tensor(x, dim, 0, start), part, aten.slice.Tensor(x, dim, end)], dim)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """Its indices may count from the end, other than those of index_copy."""
    value = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype)
    return aten.index_put(x, [None] * (dim % x.ndim) + [index], value)


def _kept(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _group_norm(x: torch.Tensor, groups: int, weight: _Weight = None, bias: _Weight = None, eps: float = 1e-5,
                cudnn_enabled: bool = True) -> Any:  # fmt: skip
    """TVM needs weight and bias."""
    if weight is not None and bias is not None:
        return NotImplemented
    apart = wide(x).reshape(x.shape[0], groups, -1)
    centred = apart - apart.mean(2, keepdim=True)
    scaled = (centred * torch.rsqrt((centred * centred).mean(2, keepdim=True) + eps)).reshape(x.shape)
    shape = [-1, *[1] * (x.ndim - 2)]
    scaled = scaled if weight is None else scaled * weight.reshape(shape)
    return (scaled if bias is None else scaled + bias.reshape(shape)).to(x.dtype)


def _layer_norm(x: torch.Tensor, shape: list[int], weight: _Weight = None, bias: _Weight = None, eps: float = 1e-5,
                cudnn_enable: bool = True) -> Any:  # fmt: skip
    """TVM knows no bfloat16 here."""
    if x.dtype != torch.bfloat16:
        return aten.native_layer_norm(x, shape, weight, bias, eps)[0]
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    return aten.native_layer_norm(x.float(), shape, weight, bias, eps)[0].to(x.dtype)


def _with_an_axis(operator: Any, usual: Callable = _kept) -> Callable:
    """TVM's reductions, and what goes along an axis, want one; PyTorch takes a tensor without axes for one of 1."""

    def decomposed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.ndim:
            return usual(x, *args, **kwargs)
        given = [
            each.reshape(1) if isinstance(each, torch.Tensor) and each.ndim == 0 else each for each in args
        ]
        shape = given[1].shape if operator is aten.gather.default and args[1].ndim else []
        return pytree.tree_map(lambda each: each.reshape(shape), operator(x.reshape(1), *given, **kwargs))

    return decomposed


_WANT_AN_AXIS = (
    aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.cummin.default, aten.logcumsumexp.default,
    aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int, aten.amax.default, aten.amin.default, aten.argmax.default,
    aten.argmin.default, aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims,
    aten.max.dim, aten.min.dim, aten.sort.stable, aten.kthvalue.default, aten.median.dim, aten.nanmedian.dim,
    aten.var.correction, aten.softmax.int, aten.log_softmax.int, aten.gather.default, aten.index_select.default,
    aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    aten.index_reduce.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two,
)  # fmt: skip

DECOMPOSITIONS: dict[Any, Callable] = {
    **COMPOSITES,
    **PLACES,
    **LINALG,
    **OF_MIXED_TYPES,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: with_exact_numbers(aten.mul.Tensor, lambda a, b: NotImplemented),
    aten.div.Tensor: with_exact_numbers(aten.div.Tensor, _div),
    aten.elu.default: _elu,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.pow.Tensor_Scalar: _pow,
    aten.isfinite.default: _isfinite,
    aten.select.int: _select,
    aten.roll.default: _roll,
    aten.slice_scatter.default: _slice_scatter,
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    # PyTorch says the first with assertions, the next two with indices that may count from the end, and resampling
    # with indices of single pixels.
    **dict.fromkeys(
        (aten.one_hot.default, aten.index_add.default, aten.index_copy.default,
         aten.upsample_linear1d.vec, aten.upsample_trilinear3d.vec, aten.upsample_bicubic2d.vec,
         aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec),
        _kept,
    ),
}  # fmt: skip
DECOMPOSITIONS |= {each: _with_an_axis(each, DECOMPOSITIONS.get(each, _kept)) for each in _WANT_AN_AXIS}
