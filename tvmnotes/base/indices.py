"""Indices that a network is given, or computes from what it is given, are checked once, before the kernels that use
them: those would read and write whatever lies at a wrong one.

Importers say `checked`, a call that opt levels 2 and 3 compute for constants, that `compiler/indices.py` makes a kernel
for CPUs of, and that stays a call into this process on a GPU, where a kernel cannot raise.
"""

from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .relax import constant_array, fixed_shape

NAME = "tvmnotes.checked_indices"


class OutOfRange(IndexError):
    """An index is outside of what it counts in."""


def checked(indices: relax.Expr, sizes: Sequence[int], operator: str, negative: bool, bb=None) -> relax.Expr:
    """Return integer `indices` for an `operator`, in the range 0 to size - 1; bound to a variable by `bb`, if given.

    One of `sizes` holds for all; of several, each for its place along the last axis. With `negative` an index from
    -size on counts from the end. A run raises IndexError for any other, with operator, range and index; for constants
    this raises `OutOfRange` at once. An `operator` that ends with a space is all that the error says before the index.
    """
    ty = relax.BlockBuilder().normalize(indices).ty
    for column, size in enumerate(sizes if 0 not in (fixed_shape(ty) or ()) else ()):
        text = operator
        if not operator.endswith(" "):
            text = f"{operator}: expected an index from {-size if negative else 0} to {size - 1}, got "
        numbers = (size, int(negative), column, len(sizes))
        array = constant_array(indices)
        if array is not None:
            indices = relax.const(within(array, text, *numbers), str(array.dtype))
        else:
            args = (indices, tvm.ir.StringImm(text), *map(relax.prim_value, numbers))
            indices = relax.call_pure_packed(NAME, *args, ty_args=ty)
            indices = bb.emit(indices) if bb else indices
    return indices


def arguments(call: relax.Expr) -> tuple | None:
    """Return what `within` takes, the indices as an expression, of a call that `checked` has made; else None."""
    name = getattr(getattr(call, "op", None), "name", "")
    if name != "relax.call_pure_packed" or getattr(call.args[0], "global_symbol", "") != NAME:
        return None
    _, indices, text, *numbers = call.args
    return indices, str(text.value), *(int(getattr(n, "value", n)) for n in numbers)


def within(indices: np.ndarray, text: str, size: int, negative: int, column: int, columns: int) -> np.ndarray:
    """Return an array of indices in which every one of a column counts from the front; raises `OutOfRange`."""
    result = np.array(indices, order="C")
    own = result.reshape(-1)[column::columns]
    outside = own[(own < (-size if negative else 0)) | (own >= size)]
    if outside.size:
        raise OutOfRange(f"{text}{outside[0]}")
    own[own < 0] += size
    return result


def _on_any_device(indices, *how):
    """What the call does where no kernel has taken its place."""
    return tvm.runtime.tensor(within(indices.numpy(), *how), indices.device)


tvm_ffi.register_error("OutOfRange", OutOfRange)
tvm_ffi.register_global_func(NAME, _on_any_device, override=True)
