"""Dynamic dims of kernels that are emitted as loops, and softmax over a dynamic axis.

Softmax reads whole vectors of a row, and then its remaining elements one by one. As a tensor expression, the
latter would be a reduction, which TVM initializes in its first iteration, and thus never where none remain.
"""

import math

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ..core import annotations
from ..core.compat import OPAQUE
from ..core.relax import unwrap_ints
from . import elementwise

_ANNOTATION = annotations.attribute({"family": "row_reduction"})


class DynamicDims:
    """The dynamic dims of a kernel, which a call passes after its tensors.

    Attributes:
        outer: The variables of the network, in order.
        large: Whether a tensor may have more elements than an int32 counts.
    """

    def __init__(self, *shapes: tuple):
        dims = [dim for shape in shapes for dim in shape if not isinstance(dim, int)]
        found = {var.name: var for dim in dims for var in tirx.analysis.undefined_vars(dim)}
        self.outer = list(found.values())
        self.large = bool(found)
        self._own = [tirx.Var(var.name, str(var.ty.dtype)) for var in self.outer]

    def inside(self, shape: tuple) -> tuple:
        """Return a shape in the kernel's own variables."""
        names = dict(zip(self.outer, self._own, strict=True))
        own = (tvm.ir.Var, lambda var: names.get(var, var))
        return tuple(n if isinstance(n, int) else tvm_ffi.structural_map(n, own, order="post") for n in shape)

    def declare(self) -> None:
        """Declare the kernel's variables; its tensors but for the result come before."""
        for var in self._own:
            T.arg(var.name, var)

    def whole(self, number: int):
        """Return a number, as an int64 if indices have to be of that type."""
        return tirx.IntImm("int64", number) if self.large and isinstance(number, int) else number


def call(builder: relax.BlockBuilder, kernel, name: str, tensors: list, dynamic: DynamicDims, shape: tuple):
    """Call a kernel that returns a float32 tensor of a shape, in the network's variables."""
    ty = relax.TensorType(shape, "float32")
    return relax.call_tir(builder.add_func(kernel, name), [*tensors, *dynamic.outer], ty)


def softmax(builder: relax.BlockBuilder, x: relax.Expr, lanes: int) -> relax.Call:
    """Call a kernel of softmax over the last axis, which is dynamic, of a float32 tensor."""
    shape = unwrap_ints(x.ty.shape)
    dynamic = DynamicDims(shape)
    return call(builder, _softmax(dynamic.inside(shape), dynamic, lanes), "softmax", [x], dynamic, shape)


def _softmax(shape: tuple, dynamic: DynamicDims, lanes: int) -> tvm.tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(is_private=True):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, **_ANNOTATION})
        x = T.arg("x", T.buffer(shape, "float32"))
        dynamic.declare()
        result = T.arg("result", T.buffer(shape, "float32"))
        *rows, depth = shape
        # In a block, which TVM expects of a kernel whose result has as many elements as its input.
        with T.sblock("rows"):
            everything = tuple(slice(0, dim) for dim in shape)
            T.reads(x[everything])
            T.writes(result[everything])
            count = math.prod(rows, start=dynamic.whole(1))
            with T.parallel(count) as row:
                _row(x, result, row, count, rows, depth // lanes, depth, dynamic.whole(lanes))
    return builder.get()


def _index(number, shape: list) -> list:
    """Return the multi-dimensional index of an element, given its flat index."""
    at = []
    for dim in reversed(shape[1:]):
        at.insert(0, number % dim)
        number = number // dim
    return [number, *at] if shape else []


def _row(x, result, row, count, rows: list, vectors, depth, lanes) -> None:
    """Emit the softmax of a row, of which there are `count`: exp(x - max), and then times 1 / sum."""
    at = _index(row, rows)
    several = T.alloc_buffer((lanes,), "float32", scope="local")
    one = T.alloc_buffer((1,), "float32", scope="local")

    def on_row(of_element):
        with T.serial(vectors) as vector, T.vectorized(lanes) as lane:
            of_element(vector * lanes + lane)
        with T.serial(depth - vectors * lanes) as rest:
            of_element(vectors * lanes + rest)

    def reduce(combine, start, source):
        """Combine the elements of the row of a tensor into `one`."""
        with T.vectorized(lanes) as lane:
            T.buffer_store(several, start, [lane])
        T.buffer_store(one, start, [0])
        with T.serial(vectors) as vector, T.vectorized(lanes) as lane, T.sblock("lanes"):
            # A block's axes tell `long_sums` that this is a reduction.
            own = _index(T.axis.spatial(count, row), rows)
            k, lane = T.axis.reduce(vectors, vector), T.axis.spatial(lanes, lane)
            T.reads()
            T.writes(several[lane])
            T.buffer_store(several, combine(source[(*own, k * lanes + lane)], several[lane]), [lane])
        with T.serial(depth - vectors * lanes) as rest:
            T.buffer_store(one, combine(source[(*at, vectors * lanes + rest)], one[0]), [0])
        width = int(lanes) // 2
        while width:
            with T.vectorized(width) as lane:
                T.buffer_store(several, combine(several[lane], several[lane + width]), [lane])
            width //= 2
        T.buffer_store(one, combine(several[0], one[0]), [0])

    def store(i, value):
        T.buffer_store(result, value, [*at, i])

    def exp(i):
        store(i, elementwise.exp(x[(*at, i)] - one[0]))

    def scale(i):
        store(i, result[(*at, i)] * one[0])

    # The maximum need not propagate a NaN: the exponential function does.
    reduce(lambda a, b: tirx.Select(a > b, a, b), tirx.FloatImm("float32", -math.inf), x)
    on_row(exp)
    reduce(lambda a, b: a + b, tirx.FloatImm("float32", 0), result)
    T.buffer_store(one, tirx.FloatImm("float32", 1) / one[0], [0])
    on_row(scale)
