"""Matrix products of a few rows, as of a decoded token, whose time is that of reading one matrix.

C[m, n] = sum over k of A[m, k] * B[n, k]: rows of B, the weights, lie along k, as `operands.py` stores them.
A warp reads such a row once, 16 bytes a thread, for all rows of A, and its threads add up what they have by
exchanging registers; several warps share a row where there are too few. Sums are float32, in an order that
depends on the shape alone.
"""

import hashlib
import math

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.s_tir import Schedule

from ...core.relax import bytes_of, ceildiv
from . import tiles
from .device_code import INSTRUCTIONS, SKINNY
from .operands import FEW
from .products import DTYPES, LARGEST, LAUNCHES, Product, first_of, launch, match, stored, var

_WARPS = 4  # of a block
_BUSY = 132 * 16  # warps that keep an H100's memory busy


class Skinny:
    """The rule for products of one to eight rows with rows of weights along the sum; as dlight's are."""

    def __init__(self, experimental: bool):
        self.experimental = experimental

    def apply(self, func, target, _):
        """Return a kernel's schedule; None for one that it does not serve."""
        matched = match(func)
        if matched is None:
            return None
        product, store = matched
        batch, rows, _, length = product.size
        if product.window or not product.b_along_k or rows > FEW:
            return None
        if not tiles.serves(tiles.SKINNY, product.key, str(target.attrs["arch"]), self.experimental):
            return None
        if batch > LAUNCHES or length > LARGEST // 2:
            return None
        return Schedule(tvm.IRModule({"main": func.with_body(_kernel(product, store))}))


def split_of(product: Product) -> int:
    """Return how many warps share a column: more while they are too few, and each has steps enough."""
    batch, _, columns, length = product.size
    split = 1
    while split < _WARPS and batch * columns * split < _BUSY and length >= 128 * split * _vector(product):
        split *= 2
    return split


def _vector(product) -> int:
    """Return the elements that a thread reads at once: up to 16 bytes, all of one row."""
    return math.gcd(16 // bytes_of(product.dtype), product.size[3])


def _kernel(product: Product, store) -> tirx.Stmt:
    batch, rows, columns, _ = product.size
    split = split_of(product)
    x, y, thread = map(var, ("x", "y", "thread"))
    total = tirx.decl_buffer((1,), "float32", "total", scope="local")
    function, source = _source(product, split)
    arrays = map(first_of, (total, product.a, product.b))
    call = cuda_func_call(function, *arrays, x, y, source_code=source)
    of_block = _WARPS // split
    m, n = thread % rows, x * of_block + thread // rows
    result = stored(product, store, tirx.BufferLoad(total, [0]), y, m, n)
    inside = tirx.And(thread < of_block * rows, n < columns)
    body = [tirx.AllocBuffer(total), tirx.Evaluate(call), tirx.IfThenElse(inside, result, None)]
    axes = {
        "blockIdx.x": (x, ceildiv(columns, of_block)),
        "blockIdx.y": (y, batch),
        "threadIdx.x": (thread, 32 * _WARPS),
    }
    return launch(tirx.SeqStmt(body), axes)


def _source(product, split) -> tuple[str, str]:
    """Return the name and the source of the function that computes a block's columns."""
    _, rows, columns, length = product.size
    kind = DTYPES[product.dtype]
    numbers = rows, columns, length, _vector(product), _WARPS, split
    name = f"skinny_{hashlib.sha256(repr((kind, numbers)).encode()).hexdigest()[:12]}"
    source = f"""
INLINE void {name}(float* total, const {kind}* a, const {kind}* b, int x, int y) {{
  a += (long long)y * {rows * length}; b += (long long)y * {columns * length};
  *total = tvmfast::skinny<{kind}, {", ".join(map(str, numbers))}>(a, b, x * {_WARPS // split});
}}
"""
    return name, INSTRUCTIONS + SKINNY + source
