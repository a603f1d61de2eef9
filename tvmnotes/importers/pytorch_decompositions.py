"""PyTorch's operators, and its rules for types, said with other operators of PyTorch, before TVM's importer sees them.

These are the ones that TVM 0.27 gets wrong or lacks. A function of DECOMPOSITIONS returns NotImplemented where the
operator may stay as it is. tests/test_import_pytorch.py holds each one against PyTorch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .pytorch_composites import COMPOSITES, wide
from .pytorch_linalg import LINALG
from .pytorch_places import with_an_axis

aten = torch.ops.aten
_Weight = torch.Tensor | None  # of a norm, or its bias


def _add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """TVM reads no alpha."""
    return NotImplemented if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else a - b * alpha


def _div(a: Any, b: Any) -> Any:
    """TVM divides integers as integers."""
    if any(n.is_floating_point() or n.is_complex() if isinstance(n, torch.Tensor) else isinstance(n, float | complex)
           for n in (a, b)):  # fmt: skip
        return NotImplemented
    return a.to(torch.get_default_dtype()) / b


def _of_halves(operator: Any, usual: Callable | None = None) -> Callable:
    """PyTorch takes half floats times a number in float32; TVM would round the number to a half first."""

    def decomposed(a: Any, b: Any) -> Any:
        tensors = [each for each in (a, b) if isinstance(each, torch.Tensor)]
        if len(tensors) == 2 or wide(tensors[0]) is tensors[0]:
            return usual(a, b) if usual else NotImplemented
        return operator(*(wide(each) if isinstance(each, torch.Tensor) else each for each in (a, b))).to(
            tensors[0].dtype)  # fmt: skip

    return decomposed


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """TVM reads no scale, which selu needs."""
    return torch.where(x > 0, scale * x, scale * alpha * _expm1_of_negatives(input_scale * torch.clamp(x, max=0.0)))


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


def _power_of_tensors(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.is_floating_point() or y.is_floating_point():
        return NotImplemented
    raise NotImplementedError(
        f"aten.pow of {x.dtype} with exponents of {y.dtype}: TVM has powers of floats; write x.double() ** y"
    )


def _with_tensors(operator: Any) -> Callable:
    """TVM takes a number in some dtype; in PyTorch it has the other operand's, or is a float."""

    def convert(x: torch.Tensor | float, y: torch.Tensor | float, **options) -> Any:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return NotImplemented
        tensor, dtype = (x if isinstance(x, torch.Tensor) else y), torch.result_type(x, y)
        return operator(*(
            each.to(dtype) if each is tensor else torch.full_like(tensor, each, dtype=dtype) for each in (x, y)
        ), **options)  # fmt: skip

    return convert


def _atan2(y: torch.Tensor, x: torch.Tensor) -> Any:
    floats = y.is_floating_point() or x.is_floating_point()
    return NotImplemented if floats else torch.atan2(y.float(), x.float())


def _isfinite(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own decomposition multiplies bools, which TVM does not compile."""
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
    x: torch.Tensor, part: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
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


def _any(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """TVM gives the largest number, and knows no `any` of all axes."""
    if x.dtype == torch.bool and dim is not None:
        return NotImplemented
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    return aten.any.dims(x.to(torch.bool), dims, keepdim).to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _all(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    none = torch.logical_not(aten.any.dims(torch.logical_not(x), dims, keepdim))
    return none.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


DECOMPOSITIONS: dict[Any, Callable] = {
    **COMPOSITES,
    **LINALG,
    **{each: with_an_axis(each, _any) for each in (aten.any.default, aten.any.dim, aten.any.dims)},
    **{each: with_an_axis(each, _all) for each in (aten.all.default, aten.all.dim, aten.all.dims)},
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: _of_halves(aten.mul.Tensor),
    aten.div.Tensor: _of_halves(aten.div.Tensor, _div),
    aten.elu.default: _elu,
    aten.isfinite.default: _isfinite,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.pow.Tensor_Scalar: _pow,
    aten.pow.Scalar: _with_tensors(torch.pow),
    aten.pow.Tensor_Tensor: _power_of_tensors,
    aten.remainder.Scalar_Tensor: _with_tensors(torch.remainder),
    aten.floor_divide.default: _with_tensors(torch.floor_divide),
    aten.div.Tensor_mode: _with_tensors(torch.div),
    aten.atan2.default: _atan2,
    aten.select.int: _select,
    aten.roll.default: _roll,
    aten.slice_scatter.default: _slice_scatter,
    **{each: with_an_axis(each, _index_fill) for each in (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)},
    # PyTorch says the first with assertions, and the others with indices that may count from the end.
    aten.one_hot.default: _kept,
    **{each: with_an_axis(each) for each in (aten.index_add.default, aten.index_copy.default)},
    # PyTorch takes these apart into indices of single pixels.
    **dict.fromkeys(
        (
            aten.upsample_linear1d.vec,
            aten.upsample_trilinear3d.vec,
            aten.upsample_bicubic2d.vec,
            aten._upsample_bilinear2d_aa.vec,
            aten._upsample_bicubic2d_aa.vec,
        ),
        _kept,
    ),
}

# ---- PyTorch's type rules, of which TVM knows none

_OF_ONE_DTYPE = ("add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "where", "pow",
                 "remainder", "fmod", "div")  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ACCUMULATIONS = ("sum", "prod", "cumsum", "cumprod")  # of integers: in int64, unless told otherwise


def promote(graph: fx.Graph) -> None:
    """Write the conversions that operators of mixed dtypes, and sums of small integers, make in PyTorch by themselves
    as operators of their own, in place."""
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""
        if name not in (*_OF_ONE_DTYPE, *_COMPARISONS, *_ACCUMULATIONS):
            continue
        if not isinstance(node.meta["val"], torch.Tensor):
            raise NotImplementedError(
                f"{node.target} of a number that PyTorch takes from a tensor while it runs; TVM wants to know it before"
            )
        first = 1 if name == "where" else 0  # behind the condition
        operands = node.args[first:] if name not in _ACCUMULATIONS else node.args[:1]
        dtype = node.meta["val"].dtype
        if name in _COMPARISONS:
            dtype = torch.result_type(*(each.meta["val"] if isinstance(each, fx.Node) else each for each in operands))
        converted = []
        for each in operands:
            own = each.meta["val"].dtype if isinstance(each, fx.Node) else dtype
            if own != dtype and not (name in _ACCUMULATIONS and own.is_floating_point):
                with graph.inserting_before(node):
                    value, each = (
                        each.meta["val"],
                        graph.call_function(aten._to_copy.default, (each,), {"dtype": dtype}),
                    )
                    each.meta["val"] = value.to(dtype)
            converted.append(each)
        node.args = (*node.args[:first], *converted, *node.args[first + len(operands) :])
