"""Matrix products with weights of 8 or 4 bits, which are unpacked in registers: decoding reads weights once.

Of few rows, a tile of outputs takes one group of input channels after another: the integers, converted, times
the data, then the group's scale; several rows share one conversion. The memory is the limit, so the loop
fetches ahead. Of many rows, each panel is first unpacked into float32, once, and multiplied as in `matmul`.
"""

import math
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core import packed_weights
from ....core.annotations import attribute
from ....core.packed_weights import WORD, Packed
from ....core.relax import ceildiv, unwrap_ints
from ....core.simd import Simd, fastest_tile, pad_to, prefetch
from .. import post_rewrite
from ..epilogue import crop, fuse_epilogue, parallel, vectorize
from ..rule import ScheduleRule
from ..workloads.dense import Dense
from . import matmul

FEW = 8  # rows
_BLOCKS = 4  # vectors of columns of a panel
_AHEAD = 8 << 10  # bytes of integers between a fetch and its use
_AVX512 = 16  # lanes, which no other instruction set has
_LINE = 64  # bytes of a cache line
_FETCH = "tvmfast.fetch_ahead"


def pack(weight: Packed, simd: Simd) -> tuple[np.ndarray, np.ndarray]:
    """Pack a weight of arrays (N, K) for the kernels.

    Returns:
        The integers, (panels, groups, G, blocks, lanes) for G channels of a group in 8 bits, or as many words
        as hold them in 4 bits; the scales, (panels, groups, blocks, lanes).
    """
    integers = packed_weights.integers_of(weight)
    (columns, _), groups = integers.shape, weight.scales.shape[1]
    blocks = min(_BLOCKS, ceildiv(columns, simd.lanes))
    panels = ceildiv(columns, blocks * simd.lanes)
    rows = panels * blocks * simd.lanes
    integers = pad_to(integers, (rows, groups * weight.group))
    if weight.integers.dtype != np.int8:
        integers = packed_weights.in_words(integers)

    def in_panels(array, *shape):
        array = array.reshape(panels, blocks, simd.lanes, groups, *shape)
        return np.ascontiguousarray(array.transpose(0, *range(3, array.ndim), 1, 2))

    return in_panels(integers, -1), in_panels(pad_to(weight.scales, (rows, groups)))


def as_float(value, depth):
    """Return the weight of an input channel, float32 and without its scale, given its integer or its word."""
    if value.dtype == "int8":
        return value.astype("float32")
    # Unsigned, as Relax's `call_te` would make an int32 that is shifted by a part of an index an int64. 7 ^ k
    # is 7 - k, of which TVM 0.27 makes (0 - k) + 7 if k is a number, and fails: no unsigned one is below 0.
    up = ((depth % WORD).astype("uint32") ^ tirx.const(WORD - 1, "uint32")) * tirx.const(4, "uint32")
    high = tirx.reinterpret("int32", value.astype("uint32") << up)
    return (high >> tirx.const(28, "int32")).astype("float32")


def _looked_up(word, depth, lane):
    """Return the same of a word by AVX-512's `vpermps`, which reads the last four bits of each lane.

    It replaces a shift and a conversion. The loop over the lanes has to be vectorized: no scalar has it.
    """
    down = (depth % WORD).astype("uint32") * tirx.const(4, "uint32")
    index = tirx.reinterpret("int32", word.astype("uint32") >> down)
    table = tirx.Select(lane < 8, lane, lane - 16).astype("float32")
    return tirx.call_llvm_pure_intrin("float32", "llvm.x86.avx512.permvar.sf.512", table, index)


def _integer(packed, group: int, depth, column, vectorized: bool = False):
    """Return the weight, float32 and without its scale, of an input channel and an output channel.

    `vectorized`: whether the loop over the last axis of the columns will be.
    """
    *_, blocks, lanes = (int(n) for n in packed.shape)
    position = depth % group if packed.dtype == "int8" else depth % group // WORD
    of_panel = column // lanes % blocks, column % lanes
    value = packed[(column // (blocks * lanes), depth // group, position, *of_panel)]
    if vectorized and packed.dtype != "int8" and lanes == _AVX512:
        return _looked_up(value, depth, column % lanes)
    return as_float(value, depth)


def _scale(scales, group_at, column):
    *_, blocks, lanes = (int(n) for n in scales.shape)
    return scales[column // (blocks * lanes), group_at, column // lanes % blocks, column % lanes].astype(
        "float32"
    )


def element(packed, scales, group: int, column, depth):
    """Return the float32 weight of an output channel and an input channel."""
    return _integer(packed, group, depth, column) * _scale(scales, depth // group, column)


def product(data, packed, scales, group: int, columns: int, simd: Simd, rows: int):
    """Multiply float32 data (…, M, K) by the transpose of a packed weight (columns, K).

    `rows` is M, or what it is assumed to be where it is dynamic. Few rows have no other axis.
    """
    blocks = int(packed.shape[-2])
    *batch, m, depth = unwrap_ints(data.shape)
    if not batch and isinstance(m, int) and m <= FEW:
        tile_n = max(n for n in (1, 2, 4) if blocks % n == 0 and (n == 1 or simd.fits(m, n)))
        return _few_rows(
            data, packed, scales, group, columns, FewRowsPacked.Config(tile_n, simd.lanes, blocks)
        )
    vectors = int(packed.shape[0]) * blocks
    tiles = [(r, n) for n in (4, 2, 1) if blocks % n == 0 for r in range(min(rows, simd.registers), 0, -1)]
    tile = fastest_tile(tiles, lambda r, n: (ceildiv(rows, r) * ceildiv(vectors, n), 1.0), simd)
    config = UnpackedMatmul.Config(*tile, "columns")

    def unpacked(block, k, lane):
        return element(packed, scales, group, block * simd.lanes + lane, k)

    panels = te.compute((vectors, depth, simd.lanes), unpacked, name="unpack")
    return UnpackedMatmul().compute(data, panels, Dense(rows, depth, columns), config)


def _few_rows(data, packed, scales, group, columns, config):
    rows, depth = unwrap_ints(data.shape)
    panels, groups, *_, blocks, lanes = (int(n) for n in packed.shape)
    shape = rows, groups, panels * blocks * lanes
    j, g = te.reduce_axis((0, group), "j"), te.reduce_axis((0, groups), "g")

    def of_group(m, at, n):
        k = at * group + j
        x = data[m, k] if depth % group == 0 else te.if_then_else(k < depth, data[m, k], 0.0)
        return te.sum(x * _integer(packed, group, k, n, vectorized=True), axis=[j])

    part = te.compute(shape, of_group, name="part")

    def scaled(m, n):
        return te.sum(part[m, g, n] * _scale(scales, g, n), axis=[g])

    attrs = attribute(FewRowsPacked().as_dict(config))
    whole = te.compute((rows, shape[-1]), scaled, name="product", attrs=attrs)
    return crop(whole, (rows, columns))


class FewRowsPacked(ScheduleRule):
    """Products of at most `FEW` rows."""

    name = "few_rows_packed"

    @dataclass(frozen=True)
    class Config:
        """The register tile, of all rows.

        Attributes:
            tile_n: Vectors of columns of the register tile.
            lanes: `Simd.lanes`.
            blocks: Vectors of columns of a panel, a task.
        """

        tile_n: int
        lanes: int
        blocks: int

    def schedule(self, sch: Schedule, config: Config) -> None:
        m, n, g = sch.get_loops("product")
        t, n2, ni, c = sch.split(n, [None, config.blocks // config.tile_n, config.tile_n, config.lanes])
        sch.reorder(t, g, n2, m, ni, c)
        fuse_epilogue(sch, "product", t, stages=("part",))
        parallel(sch, [t])
        sch.compute_at("part", n2, preserve_unit_loops=True)
        sch.set_scope("part", 0, "local")
        *_, pm, _, pn, pj = sch.get_loops("part")
        pni, pc = sch.split(pn, [config.tile_n, config.lanes])
        pjo, pji = sch.split(pj, [None, WORD])
        sch.reorder(pjo, pji, pni, pm, pc)
        sch.annotate(pjo, _FETCH, 1)
        sch.unroll(pji)
        vectorize(sch, [pni, pm, pc])
        init = sch.decompose_reduction("part", pjo)
        vectorize(sch, sch.get_loops(init)[-3:])
        vectorize(sch, [m, ni, c])
        init = sch.decompose_reduction("product", g)
        vectorize(sch, sch.get_loops(init)[-4:])

    def finish(self, func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
        """Fetch ahead in the loop over the channels of a group, as if the panels were one."""

        def fetching(loop):
            notes = dict(loop.annotations)
            if _FETCH not in notes:
                return loop
            del notes[_FETCH]
            body = tirx.SeqStmt([*_fetches(loop.body, config), loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, notes)

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, fetching)))


def _fetches(body, config) -> list:
    """Return the fetches of what the loop's body, of `WORD` channels, will read `_AHEAD` bytes later."""
    inner = {}
    while isinstance(body, tirx.For):
        inner[body.loop_var] = tirx.const(0, body.loop_var.ty.dtype)
        body = body.body
    (packed,) = (region for region in body.block.reads if len(region.source.shape) == 5)
    values = dict(zip((axis.var for axis in body.block.iter_vars), body.iter_values, strict=True))
    first = [_replaced(_replaced(dim.min, values), inner) for dim in packed.region]
    source, lanes = packed.source, config.lanes
    is_bytes = source.dtype == "int8"
    channels, row = (WORD, config.tile_n) if is_bytes else (1, config.tile_n)
    step = max(1, _LINE // (lanes if is_bytes else 4 * lanes))  # vectors of a line
    of_group = math.prod(int(n) for n in source.shape[2:]) * (1 if is_bytes else 4)
    fetches, panel, group, channel, block, _ = [], *first
    for n in range(0, channels * row, step):
        at = [panel, group + max(1, _AHEAD // of_group), channel + n // row, block + n % row, 0]
        fetches.append(tirx.Evaluate(prefetch(tirx.BufferLoad(source, at), level=1)))
    return fetches


def _replaced(expr, values: dict):
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: values.get(var, var)))


class UnpackedMatmul(ScheduleRule):
    """Products of many rows, or of a dynamic number: panels are unpacked into float32 first."""

    name = "unpacked_matmul"
    Config = matmul.Matmul.Config
    compute = matmul.Matmul.compute  # of the panels
    multiply = matmul.Matmul.multiply
    finish = matmul.Matmul.finish

    def annotation(self, workload, config) -> dict[str, str]:
        return attribute(self.as_dict(config))  # without the workload, which is that of float weights

    def schedule(self, sch: Schedule, config) -> None:
        b, mo, no, tile = matmul.split_loops(sch, config)
        is_dynamic = not isinstance(sch.get(mo).extent, tirx.IntImm)
        loop = matmul.order_loops(sch, [no], [b, mo], tile, stages=("unpack",))
        if is_dynamic and config.tile_m > 1:
            post_rewrite.annotate_rows(sch, mo, config.tile_m)
        sch.compute_at("unpack", loop, preserve_unit_loops=True)
        *_, block, k, lane = sch.get_loops("unpack")
        ko, word = sch.split(k, [None, WORD])
        sch.reorder(ko, block, word)
        sch.unroll(word)
        sch.vectorize(lane)
