"""Running sums and products; TVM's write the first element of each line, also where a line has none."""

import math
import operator

import tvm
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...core.relax import known_shape, on_each_function, op_name

_SCANS = {"cumsum": (operator.add, 0), "cumprod": (operator.mul, 1)}


def scans_to_kernels() -> tvm.transform.Pass:
    """Make the pass that turns running sums and products into kernels for a CPU."""
    return on_each_function("ScansToKernels", _ToKernels, adds_kernels=True)


@relax.expr_functor.mutator
class _ToKernels(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name not in _SCANS or call.ty.shape is None:
            return call
        (x,), axis, dtype = call.args, call.attrs.axis, str(call.ty.dtype)
        if 0 in known_shape(call.ty):
            return relax.op.zeros(call.ty.shape, dtype)
        if axis is None:
            x, axis = self.builder_.emit(relax.op.reshape(x, call.ty.shape)), 0
        how = name, int(axis) % len(call.ty.shape), dtype, bool(call.attrs.exclusive)
        return self.builder_.call_te(_scan, x, *how, primfunc_name_hint=name)


def _scan(x, name: str, axis: int, dtype: str, exclusive: bool):
    """Scan the lines along an axis, each in one thread; an exclusive scan begins with the identity."""
    combine, identity = _SCANS[name]
    shape, length = x.shape, x.shape[axis]
    one = tirx.const(1, "int64")
    lines, step = (math.prod(part, start=one) for part in (shape[:axis], shape[axis + 1 :]))

    def write(inputs, outputs):
        x, out = map(T.buffer_proxy, (inputs[0], outputs[0]))
        with IRBuilder() as builder:
            with T.parallel(0, lines * step) as line:
                first = line // step * length * step + line % step
                with T.If(length > 0), T.Then():
                    out[first] = tirx.const(identity, dtype) if exclusive else x[first].astype(dtype)
                with T.serial(1, length) as k:
                    last, at = first + (k - 1) * step, first + k * step
                    out[at] = combine(out[last], x[last if exclusive else at].astype(dtype))
            return builder.get()

    buffers = [tirx.decl_buffer(shape, dtype, "out", layout=None)]
    return te.extern([shape], [x], write, "scan", dtype=dtype, out_buffers=buffers)
