"""Range checks of the indices that a network is given, or computes from its inputs, and of their shapes.

Each is checked once, before the kernels that use it: those would read and write out of bounds.

Frontends emit `checked`, a call that opt levels 2 and 3 evaluate for constants and that
`compiler/legalize/bounds_check.py` lowers to a kernel on CPUs. On a GPU, where a kernel cannot raise, it
stays a call into this process.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .relax import constant_array, dim_to_str, known_shape, op_name, static_shape, unwrap_ints

NAME = "tvmfast.checked_indices"
_ALONG_AN_AXIS = ("gather_elements", "scatter_elements")
_NARROW = ("int8", "uint8", "int16", "uint16")  # do not hold all positions along an axis, or in a tensor


class OutOfRange(IndexError):
    """An index is out of range."""


def checked(
    indices: relax.Expr,
    sizes: Sequence[int],
    operator: str,
    negative: bool,
    bb: relax.BlockBuilder | None = None,
    expected: str = "an index",
) -> relax.Expr:
    """Return `indices` as an expression that checks them and maps them to the range 0 to size - 1.

    A run raises IndexError for an index out of range, with the operator, the range and the index. Integers
    of 8 and 16 bits become int32.

    Args:
        indices: Integer tensor expression.
        sizes: One size for all indices, or one for each position along the last axis.
        operator: Operator's name for the error message. If it ends with a space, it is all of the message
            before the index.
        negative: Whether indices from -size to -1 count from the end.
        bb: Block builder that binds the result to a variable, if given.
        expected: What the indices are, for the error message.

    Raises:
        OutOfRange: At once, if `indices` is a constant and has an index out of range.
    """
    indices = relax.BlockBuilder().normalize(indices)
    if str(indices.ty.dtype) in _NARROW:
        array = constant_array(indices)
        wide = relax.op.astype(indices, "int32") if array is None else relax.const(array, "int32")
        indices = (bb or relax.BlockBuilder()).normalize(wide)
    ty = indices.ty
    for column, size in enumerate(sizes if 0 not in (static_shape(ty) or ()) else ()):
        text = operator
        if not operator.endswith(" "):
            text = f"{operator}: expected {expected}{limits(-size if negative else 0, size - 1)}"
        check = (size, int(negative), column, len(sizes))
        array = constant_array(indices)
        if array is not None:
            indices = relax.const(within(array, text, *check), str(array.dtype))
        else:
            args = (indices, tvm.ir.StringImm(text), *map(relax.prim_value, check))
            indices = relax.call_pure_packed(NAME, *args, ty_args=ty)
            indices = bb.emit(indices) if bb else indices
    return indices


def limits(first: int | str, last: int | str) -> str:
    """Return how an error message says that an index is not from `first` to `last`, up to the index."""
    return f" from {first} to {last}, got "


def arguments(call: relax.Expr) -> tuple | None:
    """Return the arguments of `within`, with an expression for the indices, of a call that `checked` made.

    None for any other call. A static size is an integer.
    """
    if op_name(call) != "call_pure_packed" or getattr(call.args[0], "global_symbol", "") != NAME:
        return None
    _, indices, text, *check = call.args
    return indices, str(text.value), *unwrap_ints(getattr(n, "value", n) for n in check)


def within(indices: np.ndarray, text: str, size: int, negative: int, column: int, columns: int) -> np.ndarray:
    """Return a copy of `indices` with those in `column`, of `columns` along the last axis, in 0 to size - 1.

    Raises `OutOfRange`, with `text` before the index. Those from -size on are allowed if `negative` is not 0.
    """
    result = np.array(indices, order="C")
    own = result.reshape(-1)[column::columns]
    outside = own[(own < (-size if negative else 0)) | (own >= size)]
    if outside.size:
        raise OutOfRange(f"{text}{outside[0]}")
    own[own < 0] += size
    return result


def fitting(call: relax.Expr) -> list[tuple[str, Any, Any]]:
    """Return what a call demands of the dims that it reads: the text of an error, a dim, and its upper bound.

    TVM's kernels go through all elements of an index, and through k of them, also where the data have fewer.
    """
    name = op_name(call)
    if name != "topk" and name not in _ALONG_AN_AXIS:
        return []
    shapes: list[Any] = [known_shape(arg.ty) for arg in call.args]
    if None in shapes:
        return []
    if name == "topk":
        axis = int(call.attrs.axis) % len(shapes[0])
        k, most = unwrap_ints([call.attrs.k, shapes[0][axis]])
        return [(f"topk: expected k of at most {dim_to_str(most)}, the size of axis {axis}, got ", k, most)]
    (data, index, *updates), found = shapes, []
    own = int(call.attrs.axis) % len(data) if data else 0
    for which, shape in (("data", data), *(("updates", each) for each in updates)):
        for axis, (size, most) in enumerate(zip(index, shape, strict=True)):
            if axis != own or which == "updates":
                bound = f"at most {dim_to_str(most)} elements along axis {axis}, as the {which} have"
                found.append((f"{name}: expected an index of {bound}, got ", size, most))
    return found


def require_fitting(call: relax.Expr) -> None:
    """Raise ValueError if dims that a call reads, and that are known, do not fit together."""
    for text, size, most in fitting(call):
        if isinstance(size, int) and isinstance(most, int) and size > most:
            raise ValueError(f"{text}{size}")


def _on_any_device(
    indices: Any, text: str, size: int, negative: int, column: int, columns: int, *_unread: Any
) -> tvm.runtime.Tensor:
    """Evaluate a call that no kernel has replaced."""
    result = within(indices.numpy(), text, size, negative, column, columns)
    return tvm.runtime.tensor(result, indices.device)


tvm_ffi.register_error("OutOfRange", OutOfRange)
tvm_ffi.register_global_func(NAME, _on_any_device, override=True)
