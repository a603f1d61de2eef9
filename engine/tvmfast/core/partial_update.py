"""Partial updates of a tensor, such as of one position in a cache of keys and values, as calls in a graph.

Frontends emit `partial_update`, which compiler/graph/partial_update.py lowers to a kernel.
compiler/memory/state.py makes it update in place where the old tensor is not needed any more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .relax import op_name, unwrap_ints

NAME = "tvmfast.written"


def partial_update(
    x: relax.Expr, values: relax.Expr, index: relax.Expr, axis: int, starts: Sequence[int]
) -> relax.Expr:
    """Return `x` with the elements from `starts` on replaced by `values`.

    Args:
        x: Tensor expression.
        values: Of as many axes and the same dtype.
        index: One int64 for each of `values` along `axis`: it goes there, counted from the axis's start. Each
            is within `x`, as `bounds_check.checked` makes sure of.
        axis: That axis.
        starts: The first element along each axis.
    """
    numbers = map(relax.prim_value, (axis, *starts))
    ty = relax.BlockBuilder().normalize(x).ty
    return relax.call_pure_packed(NAME, x, values, index, *numbers, ty_args=ty)


def arguments(call: relax.Expr) -> tuple | None:
    """Return the arguments of a call that `partial_update` made; None for any other call.

    A start that depends on dynamic dims is TVM's expression of these.
    """
    if op_name(call) != "call_pure_packed" or getattr(call.args[0], "global_symbol", "") != NAME:
        return None
    _, x, values, index, *numbers = call.args
    axis, *starts = unwrap_ints(getattr(n, "value", n) for n in numbers)
    return x, values, index, axis, starts


def _on_any_device(x: Any, values: Any, index: Any, axis: int, *starts: int) -> tvm.runtime.Tensor:
    """Evaluate a call that no kernel has replaced."""
    result, values = x.numpy().copy(), values.numpy()
    target = [slice(start, start + n) for start, n in zip(starts, values.shape, strict=True)]
    target[axis] = starts[axis] + index.numpy()
    result[tuple(target)] = values
    return tvm.runtime.tensor(np.ascontiguousarray(result), x.device)


tvm_ffi.register_global_func(NAME, _on_any_device, override=True)
