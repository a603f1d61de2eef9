"""PyTorch's type promotion, which TVM 0.27's importer lacks: mixed dtypes, sums and functions of integers.

`promote` makes implicit conversions explicit. OF_MIXED_TYPES are decompositions, as in ops/decompositions.py,
of operators that need more than that.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from tvm import relax

from ...core.relax import static_shape
from ...core.specs import dtype_of
from ..context import log_converter

aten = torch.ops.aten
_log = logging.getLogger(__name__)

# Operators whose operands get the result's dtype, besides those that PyTorch tags as pointwise.
_IN_THE_RESULTS_DTYPE = {
    *("floor_divide", "softmax", "_softmax", "log_softmax", "_log_softmax", "cat"),
    *("sum", "prod", "mean", "cumsum", "cumprod"),
}


def promote(module: fx.GraphModule) -> None:
    """Insert, in place, the conversions that PyTorch's operators do implicitly, in branches too.

    The operands of pointwise operators get the dtype of the result. Where that is bool, as of a comparison,
    they get the dtype to which they promote.
    """
    for graph in [each.graph for each in module.modules() if isinstance(each, fx.GraphModule)]:
        for node in list(graph.nodes):
            if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor):
                _promote(node)


def _promote(node: fx.Node) -> None:
    name = node.target.__name__.partition(".")[0]
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and name not in _IN_THE_RESULTS_DTYPE:
        return
    first = 1 if name == "where" else 0  # `where` has its condition first
    operands, dtype = node.args[first:], node.meta["val"].dtype
    if dtype is torch.bool and len(operands) == 2 and name != "cat":
        values = (each.meta["val"] if isinstance(each, fx.Node) else each for each in operands)
        dtype = torch.result_type(*values)
    elif dtype is torch.bool:
        return
    operands = fx.node.map_arg(operands, lambda each: _converted(each, dtype, node))
    node.args = (*node.args[:first], *operands)


def _converted(operand: fx.Node, dtype: torch.dtype, before: fx.Node) -> fx.Node:
    value = operand.meta["val"]
    if not isinstance(value, Tensor) or value.dtype == dtype:
        return operand
    with before.graph.inserting_before(before):
        converted = before.graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
    converted.meta["val"] = value.to(dtype)
    return converted


def exact(converters: dict[str, Callable], importer: Any) -> dict[str, Callable]:
    """Make each converter fail where its result has not the dtype and the shape that PyTorch gives it.

    Those of TVM's importer serve the other names. All take a node alone, too, as TVM calls them in a branch.
    """
    given = {name: partial(convert, importer=importer) for name, convert in converters.items()}
    return {name: partial(_checked, convert) for name, convert in (importer.convert_map | given).items()}


def _checked(convert: Callable, node: fx.Node, *_: Any) -> Any:
    log_converter(_log, node.target, convert)
    result, value = convert(node), node.meta.get("val")
    ty = getattr(result, "ty", None)
    if isinstance(value, Tensor) and isinstance(ty, relax.TensorType):
        found, wanted = (static_shape(ty), str(ty.dtype)), (tuple(value.shape), dtype_of(value))
        if found != wanted:
            texts = [f"{dtype}{shape}" for shape, dtype in (found, wanted)]
            raise ValueError(f"it makes {texts[0]} of what is {texts[1]}: {node.target}")
    return result


def with_exact_scalars(operator: Callable, otherwise: Callable, second: bool = False) -> Callable:
    """Compute half precision with a scalar in float32, as PyTorch does; TVM would round the scalar first.

    With `second` that is so for the second operand alone.
    """

    def decomposed(a: Any, b: Any, **options: Any) -> Any:
        dtype = torch.result_type(a, b)
        has_scalar = any(not isinstance(n, Tensor) or not n.ndim for n in (b, *([] if second else [a])))
        if dtype not in (torch.float16, torch.bfloat16) or not has_scalar:
            return otherwise(a, b, **options)
        a, b = (n.float() if isinstance(n, Tensor) else n for n in (a, b))
        return operator(a, b, **options).to(dtype)

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
    """Compute halves in float32."""
    dtype = torch.result_type(x, y)
    if dtype in (torch.float16, torch.bfloat16):
        return torch.pow(x.float(), y.float()).to(dtype)
    return NotImplemented


def _fmod(x: Any, y: Any) -> Any:
    """Compute bfloat16 in float32; TVM does not support it here."""
    if torch.result_type(x, y) != torch.bfloat16:
        return NotImplemented
    x, y = (n if isinstance(n, Tensor) else torch.full((), n) for n in (x, y))
    return torch.fmod(x.bfloat16().float(), y.bfloat16().float()).bfloat16()


def _of_floats(operator: Callable) -> Callable:
    """Return False for integers, which are never NaN or infinite; TVM supports neither bools nor bfloat16."""

    def decomposed(x: Tensor) -> Any:
        if x.dtype == torch.bfloat16:
            return operator(x.float())
        return NotImplemented if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)

    return decomposed


def of_nothing(x: Tensor, dims: Sequence[int], keepdim: bool, value: float, dtype: Any) -> Tensor | None:
    """Return a reduction's value for no elements, in its result's shape; None if there are some, or may be.

    TVM starts from the dtype's least number, divides by 0, or refuses.
    """
    axes = {dim % x.ndim for dim in dims} if x.ndim else set()
    if not any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
        return None
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdim or axis not in axes]
    return torch.full(shape, value, dtype=dtype)


def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Reduce as PyTorch does; TVM returns the largest element, and has no `any` over all axes."""
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    dtype = torch.uint8 if x.dtype == torch.uint8 else torch.bool
    if (none := of_nothing(x, dims, keepdim, False, dtype)) is not None:
        return none
    if x.dtype == torch.bool and dim is not None:
        return NotImplemented
    return aten.any.dims(x.to(torch.bool), dims, keepdim).to(dtype)


def _all(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else dim
    none = torch.logical_not(aten.any.dims(torch.logical_not(x), dims, keepdim))
    return none.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


_LEFT_SHIFT, _RIGHT_SHIFT = aten.bitwise_left_shift, aten.bitwise_right_shift
_OF_A_SCALAR = {
    torch.pow: (aten.pow.Scalar,),
    torch.remainder: (aten.remainder.Scalar_Tensor,),
    torch.copysign: (aten.copysign.Scalar,),
    torch.xlogy: (aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other),
    torch.bitwise_and: (aten.bitwise_and.Scalar_Tensor,),
    torch.bitwise_or: (aten.bitwise_or.Scalar_Tensor,),
    torch.bitwise_xor: (aten.bitwise_xor.Scalar_Tensor,),
    torch.bitwise_left_shift: (_LEFT_SHIFT.Tensor_Scalar, _LEFT_SHIFT.Scalar_Tensor, aten.__lshift__.Scalar),
    torch.bitwise_right_shift: (
        *(_RIGHT_SHIFT.Tensor_Scalar, _RIGHT_SHIFT.Scalar_Tensor),
        aten.__rshift__.Scalar,
    ),
}

OF_MIXED_TYPES: dict[Any, Callable] = {
    **{each: _with_tensors(operator) for operator, names in _OF_A_SCALAR.items() for each in names},
    **{
        each: with_exact_scalars(operator, _with_tensors(operator), second=True)
        for each, operator in (
            (aten.floor_divide.default, torch.floor_divide),
            (aten.div.Tensor_mode, torch.div),
        )
    },
    aten.__lshift__.Tensor: torch.bitwise_left_shift,
    aten.__rshift__.Tensor: torch.bitwise_right_shift,
    aten.pow.Tensor_Tensor: _power_of_tensors,
    **dict.fromkeys((aten.fmod.Tensor, aten.fmod.Scalar), _fmod),
    aten.isnan.default: _of_floats(torch.isnan),
    aten.isinf.default: _of_floats(torch.isinf),
    aten.neg.default: lambda x: NotImplemented if x.dtype.is_signed else torch.zeros_like(x) - x,
    aten.sign.default: lambda x: NotImplemented if x.dtype.is_signed else (x != 0).to(x.dtype),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
}
