"""Make kernels of the writes that core/partial_update.py describes.

A kernel copies the tensor and then replaces the elements; one that writes in place only replaces them.
"""

import math
from contextlib import ExitStack

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ...core import partial_update
from ...core.compat import OPAQUE
from ...core.dims import evaluate
from ...core.relax import fixed_shape, known_shape, on_each_function, plain_sizes, written

PLACE = "tvmnotes.write"  # of a kernel that copies: the axis of the index, and the first element on each axis
_SHARED = 1 << 15  # elements that are copied by all threads


def writes_to_kernels() -> tvm.transform.Pass:
    """Make the pass that turns writes into calls of kernels for a CPU."""
    return on_each_function("WritesToKernels", _ToKernels, adds_kernels=True)


def writes_to_operators() -> tvm.transform.Pass:
    """Make the pass that turns writes into scatters of single elements, for a GPU."""
    return on_each_function("WritesToOperators", _ToOperators)


def in_place(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel that writes to its first argument what `kernel` writes to a copy of it."""
    x, values = kernel.params[:2]
    axis, *starts = (int(n) for n in kernel.attrs[PLACE])
    return _kernel(plain_sizes(x.shape), plain_sizes(values.shape), str(x.dtype), axis, starts, copies=False)


@relax.expr_functor.mutator
class _ToKernels(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        write = partial_update.arguments(call)
        if write is None:
            return call
        x, values, index, axis, starts = write
        own = {}  # a kernel's variable for each open size

        def shape(ty):
            sizes = known_shape(ty)
            if sizes is None or not all(isinstance(size, int | tirx.Var) for size in sizes):
                raise ValueError(
                    f"a write to a {ty}, neither fixed nor open: import the network with whole numbers"
                )
            return tuple(
                size if isinstance(size, int) else own.setdefault(size, tirx.Var(size.name, "int64"))
                for size in sizes
            )

        shapes = shape(x.ty), shape(values.ty)
        names = {var.name: var for var in own.values()}
        try:
            starts = [evaluate(written(start), names) for start in starts]
        except KeyError:
            raise ValueError(
                f"a write to a {x.ty} at a place that depends on another open size: import the network with "
                "whole numbers there"
            ) from None
        kernel = _kernel(*shapes, str(x.ty.dtype), axis, starts, copies=True)
        return relax.call_tir(self.builder_.add_func(kernel, "write"), [x, values, index], call.ty)


def _kernel(shape, box, dtype, axis, starts, copies) -> tirx.PrimFunc:
    """Make a kernel of (x, values, index), and of the result if it copies; an open size is a variable."""
    with IRBuilder() as builder, T.prim_func(is_private=True):
        is_fixed = all(isinstance(start, int) for start in starts)  # as in a state, which has no open size
        place = {PLACE: [axis, *starts]} if copies and is_fixed else {}
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, **place})
        x = T.arg("x", T.buffer(shape, dtype))
        values = T.arg("values", T.buffer(box, dtype))
        index = T.arg("index", T.buffer((box[axis],), "int64"))
        result = T.arg("result", T.buffer(shape, dtype)) if copies else x
        if copies:
            with ExitStack() as loops:
                at = _loops(loops, shape)
                T.buffer_store(result, x[tuple(at)], at)
        with ExitStack() as loops:
            at = _loops(loops, box, axis)  # of equal indices, the last one counts
            value = values[tuple(at)]
            at[axis] = index[at[axis]].astype("int32")
            T.buffer_store(result, value, [start + n for start, n in zip(starts, at, strict=True)])
    return builder.get()


def _loops(stack: ExitStack, shape: tuple, serial: int | None = None) -> list:
    """Open loops over all elements; threads share the rows if there is enough to do.

    One thread runs all of an axis `serial`, in order.
    """
    rows = [axis for axis in range(len(shape) - 1) if axis != serial]
    fixed = all(isinstance(size, int) for size in shape)
    if not rows or not fixed or math.prod(shape) < _SHARED:
        return [stack.enter_context(T.serial(size)) for size in shape]
    row, at = stack.enter_context(T.parallel(math.prod(shape[axis] for axis in rows))), {}
    for axis in reversed(rows):
        at[axis] = row % shape[axis]
        row = row // shape[axis]
    return [
        at[axis] if axis in at else stack.enter_context(T.serial(size)) for axis, size in enumerate(shape)
    ]


@relax.expr_functor.mutator
class _ToOperators(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        write = partial_update.arguments(call)
        if write is None:
            return call
        x, values, index, axis, starts = write
        shape, box = fixed_shape(x.ty), fixed_shape(values.ty)
        strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        offsets = np.zeros(box, "int64")
        for n, (start, stride) in enumerate(zip(starts, strides, strict=True)):
            steps = np.zeros(box[n], "int64") if n == axis else np.arange(box[n])
            offsets += ((start + steps) * stride).reshape([-1 if m == n else 1 for m in range(len(box))])
        along = R.reshape(index, [-1 if n == axis else 1 for n in range(len(box))])
        flat = R.add(R.multiply(along, relax.const(strides[axis], "int64")), relax.const(offsets, "int64"))
        count = math.prod(box)
        x = R.reshape(x, [math.prod(shape)])
        result = R.scatter_nd(x, R.reshape(flat, [count, 1]), R.reshape(values, [count]), "update")
        return R.reshape(result, shape)
