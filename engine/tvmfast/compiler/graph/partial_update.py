"""Kernels of the partial updates that core/partial_update.py describes.

A kernel copies the tensor and then stores the new elements; one that updates in place only stores them.
"""

import math
from contextlib import ExitStack

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ...core import partial_update
from ...core.compat import OPAQUE
from ...core.dims import evaluate
from ...core.relax import dim_to_str, known_shape, on_each_function, static_shape, unwrap_ints

OFFSETS = "tvmfast.write"  # attribute of a copying kernel: the axis of the index, the offset on each axis
_SHARED = 1 << 15  # elements that are copied by all threads
_FEW = 32  # indices that each element of a copy is compared with, on a GPU


def partial_updates_to_kernels() -> tvm.transform.Pass:
    """Make the pass that turns partial updates into calls of kernels, for a CPU."""
    return on_each_function("PartialUpdatesToKernels", _ToKernels, adds_kernels=True)


def partial_updates_to_scatter() -> tvm.transform.Pass:
    """Make the pass that turns partial updates into scatters of elements, for a GPU.

    An update at a few indices, as of a cache by a token, is a copy instead, in which each element looks for
    its index: TVM's scatter runs the updates one after another.
    """
    return on_each_function("PartialUpdatesToScatter", _ToOperators, adds_kernels=True)


def in_place(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel that updates its first argument in place, where `kernel` updates a copy."""
    x, values = kernel.params[:2]
    axis, *starts = (int(n) for n in kernel.attrs[OFFSETS])
    return _kernel(unwrap_ints(x.shape), unwrap_ints(values.shape), str(x.dtype), axis, starts, copies=False)


@relax.expr_functor.mutator
class _ToKernels(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        update = partial_update.arguments(call)
        if update is None:
            return call
        x, values, index, axis, starts = update
        own = {}  # the kernel's variable for each dynamic dim

        def shape(ty):
            dims = known_shape(ty)
            if dims is None or not all(isinstance(dim, int | tirx.Var) for dim in dims):
                raise ValueError(
                    f"a partial update of a {ty}, with dims that are expressions: "
                    "import the network with static dims"
                )
            return tuple(
                dim if isinstance(dim, int) else own.setdefault(dim, tirx.Var(dim.name, "int64"))
                for dim in dims
            )

        shapes = shape(x.ty), shape(values.ty)
        names = {var.name: var for var in own.values()}
        try:
            starts = [evaluate(dim_to_str(start), names) for start in starts]
        except KeyError:
            raise ValueError(
                f"a partial update of a {x.ty} at an offset that depends on another dynamic dim: import the "
                "network with static dims there"
            ) from None
        kernel = _kernel(*shapes, str(x.ty.dtype), axis, starts, copies=True)
        return relax.call_tir(self.builder_.add_func(kernel, "write"), [x, values, index], call.ty)


def _kernel(shape, box, dtype, axis, starts, copies) -> tirx.PrimFunc:
    """Make a kernel of (x, values, index), and of the result if it copies; dynamic dims are variables."""
    with IRBuilder() as builder, T.prim_func(is_private=True):
        is_static = all(isinstance(start, int) for start in starts)  # as in a state, where no dim is dynamic
        attrs = {OFFSETS: [axis, *starts]} if copies and is_static else {}
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, **attrs})
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
    static = all(isinstance(dim, int) for dim in shape)
    if not rows or not static or math.prod(shape) < _SHARED:
        return [stack.enter_context(T.serial(dim)) for dim in shape]
    row, at = stack.enter_context(T.parallel(math.prod(shape[axis] for axis in rows))), {}
    for axis in reversed(rows):
        at[axis] = row % shape[axis]
        row = row // shape[axis]
    return [at[axis] if axis in at else stack.enter_context(T.serial(dim)) for axis, dim in enumerate(shape)]


@relax.expr_functor.mutator
class _ToOperators(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        update = partial_update.arguments(call)
        if update is None:
            return call
        x, values, index, axis, starts = update
        shape, box = static_shape(x.ty), static_shape(values.ty)
        if box[axis] <= _FEW:
            return self.builder_.call_te(_copied, x, values, index, axis=axis, starts=starts)
        strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        offsets = np.zeros(box, "int64")
        for n, (start, stride) in enumerate(zip(starts, strides, strict=True)):
            positions = np.zeros(box[n], "int64") if n == axis else np.arange(box[n])
            offsets += ((start + positions) * stride).reshape([-1 if m == n else 1 for m in range(len(box))])
        along = R.reshape(index, [-1 if n == axis else 1 for n in range(len(box))])
        flat = R.add(R.multiply(along, relax.const(strides[axis], "int64")), relax.const(offsets, "int64"))
        count = math.prod(box)
        x = R.reshape(x, [math.prod(shape)])
        result = R.scatter_nd(x, R.reshape(flat, [count, 1]), R.reshape(values, [count]), "update")
        return R.reshape(result, shape)


def _copied(x, values, index, axis: int, starts):
    """Compute a copy with the new elements; of equal indices, the last one counts."""
    starts = [int(start) for start in starts]

    def element(*at):
        inside = [at[n] >= start for n, start in enumerate(starts) if n != axis]
        inside += [at[n] < start + values.shape[n] for n, start in enumerate(starts) if n != axis]
        source, result = [here - start for here, start in zip(at, starts, strict=True)], x[at]
        for n in range(int(values.shape[axis])):
            source[axis] = n
            hit = tirx.all(*inside, at[axis] - starts[axis] == index[n].astype(at[axis].ty.dtype))
            result = tirx.if_then_else(hit, values[tuple(source)], result)
        return result

    return te.compute(x.shape, element, name="write")
