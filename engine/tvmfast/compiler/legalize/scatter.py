"""Scatters by an index that is smaller than the data.

TVM walks such an index with the strides of the data, so that its elements land in other rows.
"""

import math

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...core.relax import ceildiv, known_shape, shape_text, static_shape
from .ieee754 import default

OPERATOR = "relax.scatter_elements"
_THREADS = 256  # of a block
_REDUCTIONS = {
    "update": lambda _old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


def legalize(bb, call, for_gpu: bool = False):
    """Lower a scatter; as TVM does where data and index have the same sizes along all other axes."""
    (data, index, _), axis = call.args, int(call.attrs.axis)
    reduction = str(call.attrs.reduction)
    if known_shape(data.ty) is None or known_shape(index.ty) is None or reduction not in _REDUCTIONS:
        return default(bb, call)
    if 0 in (static_shape(index.ty) or ()):
        return data
    axis %= len(data.ty.shape)
    shape, sizes = shape_text(data.ty), shape_text(index.ty)
    if shape and sizes and shape[:axis] + shape[axis + 1 :] == sizes[:axis] + sizes[axis + 1 :]:
        return default(bb, call)
    return bb.call_te(_scattered, *call.args, axis, reduction, for_gpu, primfunc_name_hint="scatter_elements")


def _scattered(data, index, updates, axis: int, reduction: str, for_gpu: bool):
    """Copy the data and write updates into it; what an index has along the axis is the work of a thread."""
    shape, sizes = data.shape, index.shape
    others = [i for i in range(len(shape)) if i != axis]

    def write(inputs, outputs):
        (data, index, updates), (out,) = inputs, outputs
        before, after = T.buffer_proxy(data), T.buffer_proxy(out)

        def copy(number):
            after[number] = before[number]

        def line(number):
            at = {}
            for i in reversed(others):
                at[i], number = number % sizes[i], number // sizes[i]
            with T.serial(0, sizes[axis]) as k:
                source = [at.get(i, k) for i in range(len(sizes))]
                position = index[tuple(source)].astype(str(shape[axis].ty.dtype))
                position = position + tirx.Select(position < 0, shape[axis], tirx.const(0, position.ty))
                target = [at.get(i, position) for i in range(len(shape))]
                value = _REDUCTIONS[reduction](out[tuple(target)], updates[tuple(source)])
                T.buffer_store(out, value, target)

        lines = [sizes[i] for i in others]
        return tirx.SeqStmt([_shared(shape, copy, for_gpu), _shared(lines, line, for_gpu)])

    out = tirx.decl_buffer(shape, data.dtype, "out", layout=None)
    inputs, name = [data, index, updates], "scatter_elements"
    return te.extern([shape], inputs, write, name, dtype=data.dtype, out_buffers=[out])


def _shared(sizes: list, work, for_gpu: bool):
    """Return a loop of work that is numbered through, shared by a CPU's threads or a GPU's."""
    count = math.prod(sizes, start=tirx.const(1, "int64"))
    with IRBuilder() as builder:
        if for_gpu:
            block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
            grid = T.attr(block, "thread_extent", ceildiv(count, _THREADS).astype("int32"))
            with T.frame_scope([grid, T.attr(thread, "thread_extent", _THREADS)]):
                number = block.astype("int64") * _THREADS + thread
                with T.If(number < count), T.Then():
                    work(number)
        else:
            with T.parallel(0, count) as number:
                work(number)
    return builder.get()
