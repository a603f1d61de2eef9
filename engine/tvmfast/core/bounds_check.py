"""Range checks of the indices that a network is given, or computes from its inputs.

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

from .relax import constant_array, op_name, static_shape, unwrap_ints

NAME = "tvmfast.checked_indices"


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

    A run raises IndexError for an index out of range, with the operator, the range and the index.

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
    ty = relax.BlockBuilder().normalize(indices).ty
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


def _on_any_device(
    indices: Any, text: str, size: int, negative: int, column: int, columns: int, *_unread: Any
) -> tvm.runtime.Tensor:
    """Evaluate a call that no kernel has replaced."""
    result = within(indices.numpy(), text, size, negative, column, columns)
    return tvm.runtime.tensor(result, indices.device)


tvm_ffi.register_error("OutOfRange", OutOfRange)
tvm_ffi.register_global_func(NAME, _on_any_device, override=True)
