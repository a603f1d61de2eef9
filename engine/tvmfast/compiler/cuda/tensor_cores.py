"""Matrix products and convolutions on tensor cores: float16, and float32 rounded to TF32.

A convolution is a product of its weights (M output channels) with windows (N pixels of all images), gathered
while tiles are copied to shared memory ("implicit GEMM": Chetlur et al., cuDNN, arXiv 1410.0759). The product
of tiles is `device_code.PRODUCT`; what follows in the fused kernel is computed on its sums. Where a launch
has too few tiles for a GPU, several blocks share a tile's sum ("split-K"), and a second launch adds their
parts, in a fixed order.
"""

import hashlib
import math

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.s_tir import Schedule

from ...core.relax import bytes_of, ceildiv
from ...runtime.on_gpu import version
from .device_code import INSTRUCTIONS, PRODUCT
from .operands import CORES
from .products import DTYPES, LARGEST, LAUNCHES, Product, first_of, launch, match, stored, unrolled, var
from .tiles import TENSOR_CORES, Tile, serves, tile_for

_REDUCE_THREADS = 256


class TensorCores:
    """The rule for products of float16, and convolutions of float32 if TF32 is allowed; as dlight's are."""

    def __init__(self, allow_tf32: bool, experimental: bool):
        self.allow_tf32, self.experimental = allow_tf32, experimental

    def apply(self, func, target, _):
        """Return a kernel's schedule; None for one that it does not serve, and for an older GPU."""
        arch = str(target.attrs["arch"])
        matched = match(func) if version(arch) >= CORES else None
        if matched is None:
            return None
        product, store = matched
        if product.dtype == "float32" and not (product.window and self.allow_tf32):
            return None
        if not serves(TENSOR_CORES, product.key, arch, self.experimental):
            return None
        if min(product.size[1:3]) < 2:  # a product with a vector: `gemv`
            return None
        return scheduled(func, product, store, tile_for(product.key, arch))


# ---------------------------------------------------------------- kernels


def scheduled(func, product: Product, store, tile: Tile) -> Schedule | None:
    """Return the schedule of a kernel, with what `match` found in it; None for too many tiles."""
    batch, rows, columns, _ = product.size
    if tile.split * batch * rows * columns > LARGEST:
        tile = tile._replace(split=1)
    if ceildiv(columns, tile.n) > LAUNCHES or batch * tile.split > LAUNCHES:
        return None
    return Schedule(tvm.IRModule({"main": func.with_body(_kernel(product, tile, store))}))


def _kernel(product: Product, tile: Tile, store) -> tirx.Stmt:
    """Return the launches of a product: one, or two if several blocks share a tile's sum."""
    batch, rows, columns, _ = product.size
    grid = ceildiv(rows, tile.m), ceildiv(columns, tile.n), batch * tile.split
    x, y, z, thread = (var(each) for each in ("x", "y", "z", "thread"))
    threads = tile.threads
    part_m, part_n = tile.warp_m // 16, tile.warp_n // 8
    own = tirx.decl_buffer((part_m * part_n * 4,), "float32", "sums", scope="local")
    size = _shared_bytes(product, tile)
    shared = tirx.decl_buffer((size,), "uint8", "tiles", scope="shared.dyn")
    function, source = _source(product, tile)
    arrays = map(first_of, (own, shared, product.a, product.b))
    call = cuda_func_call(function, *arrays, x, y, z, source_code=source)
    i = var("i")
    warp, lane = thread // 32, thread % 32
    across = tile.m // tile.warp_m
    m = x * tile.m + warp % across * tile.warp_m + i // (part_n * 4) * 16 + lane // 4 + i % 4 // 2 * 8
    n = y * tile.n + warp // across * tile.warp_n + i // 4 % part_n * 8 + lane % 4 * 2 + i % 2
    total = tirx.BufferLoad(own, [i])
    parts = None
    if tile.split == 1:
        result = stored(product, store, total, z, m, n)
    else:
        parts = tirx.decl_buffer((tile.split, batch, rows, columns), "float32", "parts")
        result = tirx.BufferStore(parts, total, [z % tile.split, z // tile.split, m, n])
    result = tirx.IfThenElse(tirx.And(m < rows, n < columns), result, None)
    body = [
        tirx.AllocBuffer(own),
        tirx.AllocBuffer(shared),
        tirx.Evaluate(call),
        unrolled(i, part_m * part_n * 4, result),
    ]
    # The launch is told the size: TVM, which sees the address of one element, makes the array that small.
    sized = tirx.AttrStmt(0, "tirx.dyn_smem_bytes", tirx.IntImm("int64", size), tirx.SeqStmt(body))
    first = launch(
        sized,
        {
            "blockIdx.x": (x, grid[0]),
            "blockIdx.y": (y, grid[1]),
            "blockIdx.z": (z, grid[2]),
            "threadIdx.x": (thread, threads),
        },
    )
    if parts is None:
        return first
    return tirx.SeqStmt([tirx.AllocBuffer(parts), first, _added(product, tile, store, parts)])


def _added(product, tile, store, parts):
    """Return the launch that adds the parts of each element, from the first to the last."""
    batch, rows, columns, _ = product.size
    count = batch * rows * columns
    block, thread, i = var("block"), var("thread_of_sum"), var("part")
    at = block * _REDUCE_THREADS + thread
    b, m, n = at // (rows * columns), at // columns % rows, at % columns
    total = tirx.decl_buffer((1,), "float32", "total", scope="local")
    sums = tirx.BufferLoad(total, [0])
    add = tirx.BufferStore(total, sums + tirx.BufferLoad(parts, [i, b, m, n]), [0])
    body = tirx.SeqStmt(
        [
            tirx.AllocBuffer(total),
            tirx.BufferStore(total, tirx.FloatImm("float32", 0.0), [0]),
            unrolled(i, tile.split, add),
            stored(product, store, sums, b, m, n),
        ]
    )
    guarded = tirx.IfThenElse(at < count, body, None) if count % _REDUCE_THREADS else body
    axes = {"blockIdx.x": (block, ceildiv(count, _REDUCE_THREADS)), "threadIdx.x": (thread, _REDUCE_THREADS)}
    return launch(guarded, axes)


# ---------------------------------------------------------------- the call of the device function


def _shared_bytes(product, tile) -> int:
    """Return the shared memory of a block, in bytes, as `AlongK` and `AlongN` of PRODUCT lay it out."""
    size = bytes_of(product.dtype)
    step = tile.elements(product.dtype)
    a = tile.m * (step + 16 // size)
    b = tile.n * (step + 16 // size) if product.b_along_k else step * (tile.n + 8)
    return tile.stages * (a + b) * size


def _source(product: Product, tile: Tile) -> tuple[str, str]:
    """Return the name and the source of the function that computes a tile of a product."""
    batch, rows, columns, length = product.size
    kind, step, threads = DTYPES[product.dtype], tile.elements(product.dtype), tile.threads
    vector = 16 // bytes_of(product.dtype)

    def widest(*multiples):
        return math.gcd(vector, *multiples)

    def rows_of(along: int, count: int) -> str:
        return f"tvmfast::Rows<{kind}, {along}, {step}, {widest(length)}, {threads}, {count}, {length}>"

    window = product.window
    is_point = window is not None and window[5:11] == (1, 1, 1, 1, 0, 0)  # 1x1, stride 1, no padding
    pixels = math.prod(window[1:3]) if is_point else columns
    of_rows = rows_of(tile.m, rows)
    if product.b_along_k:
        of_columns = rows_of(tile.n, columns)
    elif window is None or (is_point and widest(pixels) > 1):
        numbers = tile.n, step, widest(pixels), threads, columns, length, pixels
        of_columns = f"tvmfast::Columns<{kind}, {', '.join(map(str, numbers))}>"
    else:
        c_last = bool(window[13]) and window[0] % step == 0
        numbers = tile.n, step, threads, columns, *window[:13], str(c_last).lower()
        of_columns = f"tvmfast::Windows<{kind}, {', '.join(map(str, numbers))}>"
    described = repr((of_rows, of_columns, tile, product.size)).encode()
    name = f"product_{hashlib.sha256(described).hexdigest()[:12]}"
    source = f"""
INLINE void {name}(float* c, void* memory, const {kind}* a, const {kind}* b, int x, int y, int z) {{
  constexpr int STEPS = {ceildiv(length, step)}, SPLIT = {tile.split};
  const int part = z % SPLIT, batch = z / SPLIT;
  {of_rows} rows(a + (long long)batch * {rows * length}, x * {tile.m});
  {of_columns} columns(b + (long long)batch * {columns * length if batch > 1 else 0}, y * {tile.n});
  tvmfast::product<{kind}, {tile.m}, {tile.n}, {step}, {tile.warp_m}, {tile.warp_n}, {tile.stages}>(
      c, memory, rows, columns, part * STEPS / SPLIT, (part + 1) * STEPS / SPLIT);
}}
"""
    return name, INSTRUCTIONS + PRODUCT + source
