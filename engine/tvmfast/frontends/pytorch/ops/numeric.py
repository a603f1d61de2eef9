"""Decompositions of elementwise functions, products, reductions and scans that TVM 0.27 lacks: NUMERIC.

A function returns NotImplemented where the operator need not be decomposed, as in decompositions.py.
tests/test_pytorch_added_operators.py compares each one with PyTorch.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

aten = torch.ops.aten

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


def _signbit(x: Tensor) -> Tensor:
    """Return whether the sign is negative; NaN counts as positive."""
    return (x < 0) | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else x < 0


def _copysign(a: Tensor, b: Tensor) -> Tensor:
    dtype = torch.result_type(a, b)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    a, b = a.to(dtype), b.to(dtype)
    return torch.where(_signbit(b), -a.abs(), a.abs())


def _angle(x: Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    floats = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x < 0, math.pi, torch.where(torch.isnan(floats), floats, 0.0))


_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807)
_ERFC += (-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)


def _erfcx_of_positives(x: Tensor) -> Tensor:
    """Compute exp(x²) erfc(x) to 1.2e-7 relative (the Chebyshev fit of Numerical Recipes, section 6.2)."""
    t, total = 1 / (1 + 0.5 * x), torch.zeros_like(x)
    for coefficient in _ERFC:
        total = total * t + coefficient
    return t * torch.exp(total)


def _erfcx(x: Tensor) -> Any:
    if x.dtype != torch.float32:
        return NotImplemented
    of_positives = torch.where(x == math.inf, 0.0, _erfcx_of_positives(x.abs()))
    return torch.where(x < 0, 2 * torch.exp(x * x) - of_positives, of_positives)


def _erfc(x: Tensor) -> Any:
    if x.dtype != torch.float32:
        return NotImplemented
    tail = torch.where(x.abs() == math.inf, 0.0, torch.exp(-x * x) * _erfcx_of_positives(x.abs()))
    return torch.where(x.abs() < 0.5, 1 - torch.erf(x), torch.where(x < 0, 2 - tail, tail))


# ---------------------------------------------------------------- sums, products and norms


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
        return NotImplemented
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
    differences = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    return torch.linalg.vector_norm(differences, p, -1)


def _spread(finish: Callable) -> Callable:
    """Compute variances in float64, as PyTorch does: squares of 1e20 are no float32.

    `finish` takes the variances and the means, in float64.
    """

    def decomposed(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False):
        if x.is_complex():
            return NotImplemented
        dims = list(range(x.ndim)) if dim in (None, []) else dim
        mean = x.double().mean(dims, True)
        centred = x.double() - mean
        variance = (centred * centred).mean(dims, keepdim)
        count = math.prod(x.shape[axis] for axis in dims)
        degrees = max(count - (1 if correction is None else correction), 0)
        if count != degrees:
            variance = variance * (count / degrees if degrees else math.inf)
        results = finish(variance, mean.reshape(variance.shape))
        return pytree.tree_map(lambda each: each.to(x.dtype), results)

    return decomposed


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
    dtype, shape = x.dtype, [1, -1, *[1] * (x.ndim - 2)]
    x = wide(x)
    if use_input_stats:
        axes = list(range(2, x.ndim))
        centred = x - x.mean(axes, keepdim=True)
        x = centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    else:
        x = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + eps)
    x = x if weight is None else x * weight.reshape(shape)
    return (x if bias is None else x + bias.reshape(shape)).to(dtype)


def wide(x: Tensor) -> Tensor:
    """Return half-precision tensors in float32, in which PyTorch computes on a CPU; others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _in_dtype(operator: Any) -> Callable:
    """Convert to `dtype` first; TVM's softmax keeps the dtype of its input."""

    def convert(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        return NotImplemented if dtype in (None, x.dtype) else operator(x.to(dtype), dim)

    return convert


NUMERIC: dict[Any, Callable] = {
    **{
        each: decomposition_table[each] for each in (aten.addmv.default, aten.dist.default, aten.ldexp.Tensor)
    },
    aten.softmax.int: _in_dtype(aten.softmax.int),
    aten.log_softmax.int: _in_dtype(aten.log_softmax.int),
    aten.exp2.default: lambda x: torch.pow(2.0, x),
    aten.fmax.default: _unless_nan(torch.maximum),
    aten.fmin.default: _unless_nan(torch.minimum),
    aten.clamp.Tensor: _clamp,
    aten.clamp.default: _clamp_to_scalars,
    aten.clamp_min.default: _clamp_to_scalars,
    aten.clamp_max.default: lambda x, most: _clamp_to_scalars(x, None, most),
    aten.clamp_min.Tensor: torch.maximum,
    aten.clamp_max.Tensor: torch.minimum,
    aten.frac.default: lambda x: x - torch.trunc(x),
    aten.hypot.default: _hypot,
    aten.signbit.default: _signbit,
    aten.copysign.Tensor: _copysign,
    aten.angle.default: _angle,
    aten.erfc.default: _erfc,
    aten.special_erfcx.default: _erfcx,
    aten.addbmm.default: _addbmm,
    aten._grouped_mm.default: _grouped_mm,
    aten.histc.default: _histc,
    aten._trilinear.default: _trilinear,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._cdist_forward.default: _cdist,
    aten.var.correction: _spread(lambda variance, _: variance),
    aten.std.correction: _spread(lambda variance, _: torch.sqrt(variance)),
    aten.var_mean.correction: _spread(lambda variance, mean: (variance, mean)),
    aten.std_mean.correction: _spread(lambda variance, mean: (torch.sqrt(variance), mean)),
    aten.instance_norm.default: _instance_norm,
    aten.cummax.default: _running(torch.gt),
    aten.cummin.default: _running(torch.lt),
    aten.logcumsumexp.default: _logcumsumexp,
}
