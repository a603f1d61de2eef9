"""PyTorch's type rules, which TVM 0.27's importer lacks: mixed dtypes, sums and functions of integers.

`promote` makes the conversions that PyTorch does implicitly explicit. OF_MIXED_TYPES are decompositions, as
in pytorch_decompositions.py, of operators that need more than that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_IN_THE_RESULTS_DTYPE = {
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
    *("remainder", "fmod", "floor_divide", "atan2", "softmax", "_softmax", "log_softmax", "_log_softmax"),
    *("clamp", "clamp_min", "clamp_max", "hardtanh", "cat", "sum", "prod", "cumsum", "cumprod"),
    # of bools and integers these are float32
    *("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "erf", "sigmoid"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
}


def promote(graph: fx.Graph) -> None:
    """Insert, in place, the conversions that PyTorch's operators do implicitly."""
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or not (name in _IN_THE_RESULTS_DTYPE or name in _COMPARISONS):
            continue
        first, dtype = (1 if name == "where" else 0), value.dtype  # `where` has its condition first
        if name in _COMPARISONS:
            operands = (each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args)
            dtype = torch.result_type(*operands)
        operands = fx.node.map_arg(node.args[first:], lambda each: _converted(each, dtype, node))  # noqa: B023
        node.args = (*node.args[:first], *operands)


def _converted(operand: fx.Node, dtype: torch.dtype, before: fx.Node) -> fx.Node:
    if operand.meta["val"].dtype == dtype:
        return operand
    with before.graph.inserting_before(before):
        converted = before.graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
    converted.meta["val"] = operand.meta["val"].to(dtype)
    return converted


def with_exact_numbers(operator: Callable, usual: Callable) -> Callable:
    """Compute half precision with a scalar in float32, as PyTorch does; TVM would round the scalar first."""

    def decomposed(a: Any, b: Any) -> Any:
        dtype = torch.result_type(a, b)
        has_scalar = any(not isinstance(n, Tensor) or not n.ndim for n in (a, b))
        if dtype not in (torch.float16, torch.bfloat16) or not has_scalar:
            return usual(a, b)
        return operator(*(n.float() if isinstance(n, Tensor) else n for n in (a, b))).to(dtype)

    return decomposed


def _with_tensors(operator: Callable) -> Callable:
    """Give a scalar the other operand's dtype, or a float one, as PyTorch does; TVM's choice differs."""

    def decomposed(x: Tensor | float, y: Tensor | float, **options) -> Any:
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return NotImplemented
        tensor, dtype = (x if isinstance(x, Tensor) else y), torch.result_type(x, y)
        x, y = (n.to(dtype) if n is tensor else torch.full_like(tensor, n, dtype=dtype) for n in (x, y))
        return operator(x, y, **options)

    return decomposed


def _power_of_tensors(x: Tensor, y: Tensor) -> Any:
    if x.is_floating_point() or y.is_floating_point():
        return NotImplemented
    raise NotImplementedError(
        f"aten.pow of {x.dtype} with exponents of {y.dtype}: TVM has powers of floats; write x.double() ** y"
    )


def _never(x: Tensor) -> Any:
    """Return False for integers, which are never NaN or infinite; TVM does not take bools."""
    return NotImplemented if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Reduce as PyTorch does; TVM returns the largest element, and has no `any` over all axes."""
    if x.dtype == torch.bool and dim is not None:
        return NotImplemented
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    result = aten.any.dims(x.to(torch.bool), dims, keepdim)
    return result.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _all(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    none = torch.logical_not(aten.any.dims(torch.logical_not(x), dims, keepdim))
    return none.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


OF_MIXED_TYPES: dict[Any, Callable] = {
    aten.pow.Scalar: _with_tensors(torch.pow),
    aten.pow.Tensor_Tensor: _power_of_tensors,
    aten.remainder.Scalar_Tensor: _with_tensors(torch.remainder),
    aten.floor_divide.default: _with_tensors(torch.floor_divide),
    aten.div.Tensor_mode: _with_tensors(torch.div),
    aten.isnan.default: _never,
    aten.isinf.default: _never,
    aten.sign.default: lambda x: NotImplemented if x.dtype.is_signed else (x != 0).to(x.dtype),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
}
