"""PyTorch's type rules, which TVM 0.27's importer does not know: operators of mixed dtypes, and sums of integers.

`promote` writes the conversions that PyTorch makes by itself into a program. OF_MIXED_TYPES are decompositions, as in
pytorch_operators.py, of operators whose numbers need more than that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_OF_ONE_DTYPE = ("add", "sub", "mul", "div", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "where",
                 "pow", "remainder", "fmod", "clamp", "clamp_min", "clamp_max", "hardtanh")  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ACCUMULATIONS = ("sum", "prod", "cumsum", "cumprod")  # of bools and integers: in int64, unless told otherwise


def promote(graph: fx.Graph) -> None:
    """Write the conversions that PyTorch's operators make by themselves as operators of their own, in place."""
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if dtype is None or name not in (*_OF_ONE_DTYPE, *_COMPARISONS, *_ACCUMULATIONS):
            continue
        first = 1 if name == "where" else 0  # behind the condition
        last = 1 if name in _ACCUMULATIONS else len(node.args)
        operands = node.args[first:last]
        if name in _COMPARISONS:
            dtype = torch.result_type(*(each.meta["val"] if isinstance(each, fx.Node) else each for each in operands))
        node.args = (*node.args[:first], *(_converted(each, dtype, node) for each in operands), *node.args[last:])


def _converted(operand: Any, dtype: torch.dtype, before: fx.Node) -> Any:
    if not isinstance(operand, fx.Node) or operand.meta["val"].dtype == dtype:
        return operand
    with before.graph.inserting_before(before):
        made = before.graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
    made.meta["val"] = operand.meta["val"].to(dtype)
    return made


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


def _atan2(y: torch.Tensor, x: torch.Tensor) -> Any:
    floats = y.is_floating_point() or x.is_floating_point()
    return NotImplemented if floats else torch.atan2(y.float(), x.float())


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


OF_MIXED_TYPES: dict[Any, Callable] = {
    aten.pow.Scalar: _with_tensors(torch.pow),
    aten.pow.Tensor_Tensor: _power_of_tensors,
    aten.remainder.Scalar_Tensor: _with_tensors(torch.remainder),
    aten.floor_divide.default: _with_tensors(torch.floor_divide),
    aten.div.Tensor_mode: _with_tensors(torch.div),
    aten.atan2.default: _atan2,
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
}
