"""PyTorch's type rules, which TVM 0.27's importer does not know: mixed dtypes, sums of integers, functions of them.

`promote` writes the conversions that PyTorch makes by itself into a program. OF_MIXED_TYPES are decompositions, as in
pytorch_operators.py, of operators whose numbers need more than that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_IN_THE_RESULTS_DTYPE = {
    *(
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "where",
        "pow",
    ),
    *("remainder", "fmod", "floor_divide", "atan2", "softmax", "_softmax", "log_softmax", "_log_softmax"),
    *("clamp", "clamp_min", "clamp_max", "hardtanh", "cat", "sum", "prod", "cumsum", "cumprod"),
    # of bools and integers these are float32
    *("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "erf", "sigmoid"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
}


def promote(graph: fx.Graph) -> None:
    """Write the conversions that PyTorch's operators make by themselves as operators of their own, in place."""
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not (name in _IN_THE_RESULTS_DTYPE or name in _COMPARISONS):
            continue
        first, dtype = (1 if name == "where" else 0), value.dtype  # behind the condition
        if name in _COMPARISONS:
            dtype = torch.result_type(
                *(each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args)
            )
        operands = fx.node.map_arg(node.args[first:], lambda each: _converted(each, dtype, node))  # noqa: B023
        node.args = (*node.args[:first], *operands)


def _converted(operand: fx.Node, dtype: torch.dtype, before: fx.Node) -> fx.Node:
    if operand.meta["val"].dtype == dtype:
        return operand
    with before.graph.inserting_before(before):
        made = before.graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
    made.meta["val"] = operand.meta["val"].to(dtype)
    return made


def with_exact_numbers(operator: Callable, usual: Callable) -> Callable:
    """PyTorch takes half floats times one number in float32; TVM would round the number to a half first."""

    def decomposed(a: Any, b: Any) -> Any:
        dtype, numbers = (
            torch.result_type(a, b),
            [n for n in (a, b) if not isinstance(n, torch.Tensor) or not n.ndim],
        )
        if dtype not in (torch.float16, torch.bfloat16) or not numbers:
            return usual(a, b)
        return operator(*(n.float() if isinstance(n, torch.Tensor) else n for n in (a, b))).to(dtype)

    return decomposed


def _with_tensors(operator: Callable) -> Callable:
    """TVM takes a number in some dtype; in PyTorch it has the other operand's, or is a float."""

    def decomposed(x: torch.Tensor | float, y: torch.Tensor | float, **options) -> Any:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return NotImplemented
        tensor, dtype = (x if isinstance(x, torch.Tensor) else y), torch.result_type(x, y)
        x, y = (n.to(dtype) if n is tensor else torch.full_like(tensor, n, dtype=dtype) for n in (x, y))
        return operator(x, y, **options)

    return decomposed


def _power_of_tensors(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.is_floating_point() or y.is_floating_point():
        return NotImplemented
    raise NotImplementedError(
        f"aten.pow of {x.dtype} with exponents of {y.dtype}: TVM has powers of floats; write x.double() ** y"
    )


def _never(x: torch.Tensor) -> Any:
    """Whole numbers are never NaN nor infinite, and TVM does not ask bools."""
    return NotImplemented if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _any(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """TVM gives the largest number, and knows no `any` of all axes."""
    if x.dtype == torch.bool and dim is not None:
        return NotImplemented
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    return aten.any.dims(x.to(torch.bool), dims, keepdim).to(
        torch.uint8 if x.dtype == torch.uint8 else torch.bool
    )


def _all(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
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
