"""Which product of matrices a kernel is, and what the rules for products build of it.

`match` reads a fused kernel: a sum of products, perhaps of windows of padded images, and what follows it
element by element. The rules (`tensor_cores.py`, `skinny.py`) launch code of their own for the sums, and
`stored` puts what follows behind them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from ...core.relax import bytes_of, op_name
from .operands import STEP

LAUNCHES = 65535  # blocks along the axes y and z of a launch, at most
LARGEST = (1 << 31) - 1  # elements of an array: indices are 32 bits wide
DTYPES = {"float16": "half", "float32": "float"}  # in CUDA


class Product(NamedTuple):
    """C[b][m, n] = sum over k of A[b][m, k] * B[b][k, n], as a kernel has it.

    Attributes:
        a, b, c: The buffers.
        size: (batch, M, N, K).
        window: None, or of a convolution (C, H, W, OH, OW, R, S, SY, SX, PY, PX, DY, DX, C_LAST): the image,
            the output, the window, its strides, padding, dilation, and whether k is (r, s, c) or (c, r, s).
        b_along_k: Whether the rows of B are along k, as those of A are.
        index: Returns the indices of an element of C from (b, m, n).
    """

    a: tirx.Buffer
    b: tirx.Buffer
    c: tirx.Buffer
    size: tuple[int, int, int, int]
    window: tuple[int, ...] | None
    b_along_k: bool
    index: Callable

    @property
    def dtype(self) -> str:
        """The dtype of A and B."""
        return str(self.a.dtype)

    @property
    def key(self) -> tuple:
        """What a tile is chosen by: the dtype, `size`, and R, S and SX of a window."""
        window = self.window
        return (self.dtype, *self.size, *((window[5], window[6], window[8]) if window else ()))


def match(func) -> tuple[Product, tirx.BufferStore] | None:
    """Find the product in a kernel.

    Returns:
        The product, and the statement that stores an element of the result, whose index in the product's
        result is that of the loads of it: `out[index] = f(c[index])`. None for another kernel, one with
        dynamic dims, an empty product, and arrays of 2^31 elements or more, as indices have 32 bits.
    """
    schedule = Schedule(func.with_attr("global_symbol", "main"))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if not all(_is_whole(schedule.get(block)) for block in blocks):
        return None
    sums = [n for n, block in enumerate(blocks) if _is_reduction(schedule.get(block))]
    if len(sums) != 1 or sums[0] > 1:
        return None
    position = sums[0]
    pad = schedule.get(blocks[0]) if position else None
    block = schedule.get(blocks[position])
    product = _conv(block, pad) or (None if pad else _matmul(block))
    if product is None or 0 in product.size:
        return None
    if max(math.prod(_shape(each)) for each in (product.a, product.b, product.c)) > LARGEST:
        return None
    if position == len(blocks) - 1:
        axes = [axis.var for axis in block.iter_vars[: len(product.c.shape)]]
        return product, tirx.BufferStore(product.c, tirx.BufferLoad(product.c, axes), axes)
    for each in blocks[position + 1 : -1]:
        schedule.compute_inline(each)
    store = _elementwise(schedule.get(blocks[-1]), product.c)
    return None if store is None else (product, store)


def _is_whole(block) -> bool:
    """Tell whether the axes of a block have static lengths, from 0 on."""
    return all(
        isinstance(axis.dom.extent, tirx.IntImm)
        and isinstance(axis.dom.min, tirx.IntImm)
        and not int(axis.dom.min)
        for axis in block.iter_vars
    )


def _is_reduction(block) -> bool:
    return any(axis.iter_type != tirx.IterVar.DataPar for axis in block.iter_vars)


def _elementwise(block, buffer):
    """Return what a block stores, with 0 for its axes of length 1, if it reads one element of `buffer`.

    The other axes of the block are then indices of that element. None for any other block.
    """
    store = block.body
    if not isinstance(store, tirx.BufferStore) or _is_reduction(block):
        return None
    single = {
        axis.var: tirx.IntImm(axis.var.ty.dtype, 0) for axis in block.iter_vars if int(axis.dom.extent) == 1
    }
    store = _with_values(store, single)

    found = [list(load.indices) for load in _loads(store.value, buffer)]
    if not found or not all(tvm_ffi.structural_equal(each, found[0]) for each in found):
        return None
    read = [(index, int(n)) for index, n in zip(found[0], buffer.shape, strict=True) if int(n) != 1]
    axes = [axis for axis in block.iter_vars if int(axis.dom.extent) != 1]
    same = len(read) == len(axes) and all(
        any(axis.var.same_as(index) and int(axis.dom.extent) == n for index, n in read) for axis in axes
    )
    return store if same else None


def _loads(value, buffer) -> list:
    found = []
    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, found.append)])
    return [load for load in found if load.source.same_as(buffer)]


def _with_values(store, values: dict, loads: Callable | None = None):
    """Replace variables, and loads, of a store; its buffer stays."""
    changes = [(tirx.Var, lambda var: values.get(var, var))] + ([(tvm.ir.TensorLoad, loads)] if loads else [])
    value = tvm_ffi.structural_map(store.value, changes)
    indices = [tvm_ffi.structural_map(index, changes) for index in store.indices]
    return tirx.BufferStore(store.buffer, value, indices)


def _factors(block):
    """Return the loads of the two factors of a sum of products, A's or the windows' first; else None."""
    store, init = block.body, block.init
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    if not isinstance(init, tirx.BufferStore) or getattr(init.value, "value", None) != 0:
        return None
    product = store.value.b
    if not isinstance(product, tirx.Mul):
        return None
    loads = [each.value if isinstance(each, tirx.Cast) else each for each in (product.a, product.b)]
    if not all(isinstance(load, tvm.ir.TensorLoad) for load in loads):
        return None
    kinds = {str(load.source.dtype) for load in loads}
    if len(kinds) != 1 or not kinds <= {*DTYPES} or str(store.buffer.dtype) not in DTYPES:
        return None
    if bytes_of(product.ty.dtype) < bytes_of(*kinds):  # factors that are rounded first
        return None
    return loads if _static(*loads, store) else None


def _static(*accesses) -> bool:
    buffers = [each.source if isinstance(each, tvm.ir.TensorLoad) else each.buffer for each in accesses]
    return all(isinstance(n, tirx.IntImm) for buffer in buffers for n in buffer.shape)


def _shape(buffer) -> tuple[int, ...]:
    return tuple(int(n) for n in buffer.shape)


def _linear(index, axes) -> list[int] | None:
    """Return the coefficients of `axes` in an index, and its constant; None if it is not linear in them."""
    factors = tvm.sym.detect_linear_equation(index, axes)
    if len(factors) != len(axes) + 1 or not all(isinstance(each, tirx.IntImm) for each in factors):
        return None
    return [int(each) for each in factors]


def _conv(block, pad) -> Product | None:
    """Describe a convolution of images in one group, with weights (O, C, R, S) or (O, R, S, C)."""
    loads = _factors(block)
    axes = [axis.var for axis in block.iter_vars]
    if loads is None or len(axes) != 7 or [len(load.indices) for load in loads] != [4, 4]:
        return None
    data, weight = loads
    image, channel, y, x = axes[:4]
    reduced = axes[4:]
    if not _same(block.body.indices, axes[:4]):
        return None
    source, top, left = (data.source, 0, 0) if pad is None else _unpadded(pad, data.source) or (None, 0, 0)
    if source is None or not isinstance(data.indices[1], tirx.Var):
        return None
    c = data.indices[1]
    others = [var for var in reduced if not var.same_as(c)]
    if len(others) != 2 or not data.indices[0].same_as(image):
        return None
    r, s = others
    rows, columns = _linear(data.indices[2], [y, r]), _linear(data.indices[3], [x, s])
    c_last = _same(weight.indices, [channel, r, s, c])
    if rows is None or columns is None or rows[2] or columns[2]:
        return None
    if not c_last and not _same(weight.indices, [channel, c, r, s]):
        return None
    extents = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
    (count, channels, height, width), (_, outputs, out_y, out_x) = _shape(source), _shape(block.body.buffer)
    of_one_step = channels * bytes_of(source.dtype) % STEP == 0  # see `operands.py`
    if channels != extents[c] or (c_last and not of_one_step and extents[r] * extents[s] > 1):
        return None
    window = (channels, height, width, out_y, out_x, extents[r], extents[s], rows[0], columns[0], top, left)
    window += (rows[1], columns[1], int(c_last or extents[r] * extents[s] == 1))
    size = 1, outputs, count * out_y * out_x, channels * extents[r] * extents[s]

    def index(_b, m, n):
        pixel = n % (out_y * out_x)
        return [n // (out_y * out_x), m, pixel // out_x, pixel % out_x]

    return Product(weight.source, source, block.body.buffer, size, window, False, index)


def _same(indices, axes) -> bool:
    return len(indices) == len(axes) and all(a.same_as(b) for a, b in zip(indices, axes, strict=True))


def _unpadded(pad, padded):
    """Return the buffer that a block pads with zeros, and the rows and columns before it; else None."""
    store, axes = pad.body, [axis.var for axis in pad.iter_vars]
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(padded):
        return None
    if not _same(store.indices, axes) or len(axes) != 4:
        return None
    load, inside = store.value, None
    if not isinstance(load, tvm.ir.TensorLoad):
        if op_name(load) != "prim.if_then_else":
            return None
        inside, load, zero = load.args
        if not isinstance(zero, tirx.FloatImm) or zero.value or not isinstance(load, tvm.ir.TensorLoad):
            return None
    if not _static(load, store):
        return None
    before = []
    for index, axis in zip(load.indices, axes, strict=True):
        factors = _linear(index, [axis])
        if factors is None or factors[0] != 1 or factors[1] > 0:
            return None
        before.append(-factors[1])
    shape = _shape(load.source)
    if before[:2] != [0, 0] or not _tests_bounds(inside, axes, before, shape, _shape(padded)):
        return None
    return load.source, *before[2:]


def _tests_bounds(inside, axes, before, shape, padded) -> bool:
    """Tell whether a condition holds exactly where an index is in the padded array; None holds everywhere."""
    analyzer = tvm.sym.Analyzer()
    for axis, (first, length, total) in enumerate(zip(before, shape, padded, strict=True)):
        for at in {0, first - 1, first, first + length - 1, first + length, total - 1}:
            if 0 <= at < total:
                values = {var: tirx.IntImm(var.ty.dtype, n) for var, n in zip(axes, before, strict=True)}
                values[axes[axis]] = tirx.IntImm(axes[axis].ty.dtype, at)
                wanted = first <= at < first + length
                if inside is None:
                    holds = True
                else:
                    mapped = tvm_ffi.structural_map(inside, (tirx.Var, lambda var, v=values: v.get(var, var)))
                    holds = bool(analyzer.simplify(mapped))
                if holds != wanted:
                    return False
    return True


def _matmul(block) -> Product | None:
    """Describe a product of matrices (…, M, K) and (…, K, N), (…, N, K), (K, N) or (N, K)."""
    loads = _factors(block)
    axes = [axis.var for axis in block.iter_vars]
    extents = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
    if loads is None or len(axes) < 3:
        return None
    a, b = loads
    *batch, m, n, k = axes
    if not _same(block.body.indices, axes[:-1]) or block.iter_vars[-1].iter_type != tirx.IterVar.CommReduce:
        return None
    if not _same(a.indices, [*batch, m, k]):
        return None
    b_along_k = len(b.indices) > 1 and b.indices[-1].same_as(k)
    last = [n, k] if b_along_k else [k, n]
    shared = _same(b.indices, last)
    if not shared and not _same(b.indices, [*batch, *last]):
        return None
    outer = [extents[var] for var in batch]
    size = extents[m], extents[n], extents[k]
    if shared:  # one matrix B: all rows of A are one matrix
        lengths = [*outer, extents[m]]
        size = 1, math.prod(lengths), *size[1:]
        return Product(
            a.source,
            b.source,
            block.body.buffer,
            size,
            None,
            b_along_k,
            lambda _b, m, n: [*_at(m, lengths), n],
        )
    size = math.prod(outer), *size
    return Product(
        a.source, b.source, block.body.buffer, size, None, b_along_k, lambda b, m, n: [*_at(b, outer), m, n]
    )


def _at(flat, lengths) -> list:
    """Return the index in an array of these lengths from that in the flat one."""
    index = []
    for length in reversed(lengths):
        index.append(flat % length)
        flat = flat // length
    return index[::-1]


# ---------------------------------------------------------------- what is built


def stored(product, store, total, b, m, n):
    """Return the statement that stores an element of the kernel's result, from the product's."""
    (read,) = _loads(store.value, product.c)[:1]
    at = zip(read.indices, product.index(b, m, n), strict=True)
    values = {var: index.astype(var.ty.dtype) for var, index in at if isinstance(var, tirx.Var)}
    value = total.astype(str(product.c.dtype))
    return _with_values(store, values, lambda load: value if load.source.same_as(product.c) else load)


def first_of(buffer) -> tvm.ir.Expr:
    """Return the address of a buffer's first element."""
    return tirx.address_of(tirx.BufferLoad(buffer, [0] * len(buffer.shape)))


def var(name: str) -> tirx.Var:
    """Make a variable, such as of a loop or of the number of a block."""
    return tirx.Var(name, "int32")


def unrolled(index, count, body):
    """Return a statement for each value of an index, from 0 to below `count`."""
    loop = tirx.For(index, 0, count, tirx.ForKind.UNROLLED, body)
    return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_unroll_explicit", tirx.IntImm("int32", 0), loop)


def launch(body, axes: dict):
    """Return the launch of a grid whose threads run `body`; `axes` has a variable and an extent by tag."""
    for tag, (number, extent) in reversed(axes.items()):
        axis = tirx.IterVar((0, extent), number, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(axis, "thread_extent", extent, body)
    return body
