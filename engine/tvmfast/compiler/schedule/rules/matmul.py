"""Matrix products: a tile of `tile_m` x `tile_n` vector accumulators stays in registers.

The right-hand matrix is read in panels of x columns, (blocks, K, x); weights are packed at compile time. Goto
and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), without their blocking for
the caches: the networks' panels fit into L2.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd, pad_to, register_tile
from .. import post_rewrite
from ..epilogue import crop, fuse_epilogue, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.dense import Dense
from ..workloads.workload import Workload

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache


class Matmul(ScheduleRule):
    """Products with a weight known at compile time."""

    name = "matmul"
    stages = ()  # before the product
    serves = "products with a weight known at compile time"

    @dataclass(frozen=True)
    class Config:
        """The register tile and the outer loop. Tiles that do not fit into the registers are not searched.

        Attributes:
            tile_m: Rows of the register tile. Searched: 1 to min(rows, registers).
            tile_n: Vectors of columns of the register tile. Searched: 1 to min(vectors of columns, 8).
            loop_order: The outer loop over tiles: of "rows" or of "columns". Searched: both.
        """

        tile_m: int
        tile_n: int
        loop_order: str

    EXAMPLES = Dense(1, 64, 70), Dense(5, 17, 35), Dense(12, 8, 32)

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Dense)

    def default(self, workload: Dense, simd: Simd) -> Config:
        """Choose the register tile with the fewest cycles, and the outer loop."""
        tile = register_tile(workload.rows, ceildiv(workload.columns, simd.lanes), simd)
        cached = workload.depth * workload.columns * 4 <= _CACHED_WEIGHTS
        return self.Config(*tile, "rows" if cached else "columns")

    def space(self, workload: Dense, simd: Simd) -> list[Config]:
        return [self.Config(*choices) for choices in tiles(workload.rows, workload.columns, simd)]

    def packed_shape(self, workload: Dense, config: Config, lanes: int) -> tuple[int, ...]:
        """Return the shape of the packed weight, (blocks, K, lanes)."""
        return round_up(ceildiv(workload.columns, lanes), config.tile_n), workload.depth, lanes

    def pack(self, workload: Dense, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        """Pack the weight (K, N) into (blocks, K, lanes), zero-padded to whole tiles."""
        blocks, depth, _ = self.packed_shape(workload, config, lanes)
        weight = pad_to(weight, (depth, blocks * lanes)).reshape(depth, blocks, lanes)
        return np.ascontiguousarray(weight.transpose(1, 0, 2))

    def compute(self, data, weight, workload: Dense, config: Config):
        """Multiply data (…, M, K) by the columns of the packed weight (blocks, K, x)."""
        *batch, rows, depth = unwrap_ints(data.shape)
        blocks, _, lanes = (int(s) for s in weight.shape)
        full = round_up(rows, config.tile_m)
        k = te.reduce_axis((0, depth), "k")

        def element(*at):
            *b, m, n = at
            row = m if isinstance(full, int) and full == rows else te.min(m, rows - 1)
            return te.sum(self.multiply(data[(*b, row, k)], weight[n // lanes, k, n % lanes]), axis=[k])

        attrs = self.annotation(workload, config)
        product = te.compute((*batch, full, blocks * lanes), element, name="matmul", attrs=attrs)
        return crop(product, (*batch, rows, workload.columns))

    def multiply(self, element, weight):
        """Return the product of an element of the data and a packed weight."""
        return element * weight

    def schedule(self, sch: Schedule, config: Config) -> None:
        b, mo, no, tile = split_loops(sch, config)
        outer, inner = ([b, mo], [no]) if config.loop_order == "rows" else ([no], [b, mo])
        is_dynamic = not isinstance(sch.get(mo).extent, tirx.IntImm)
        order_loops(sch, outer, inner, tile, self.stages)
        if is_dynamic and config.tile_m > 1:
            post_rewrite.annotate_rows(sch, inner[-1], config.tile_m)

    def finish(self, func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
        """Add remainder tiles where the number of rows is dynamic."""
        return post_rewrite.add_remainder_tiles(func)

    def loops(self, workload: Dense, config: Config, lanes: int) -> Loops:
        return loops_of(1, workload.rows, workload.depth, workload.columns, config, lanes)


# ---------------------------------------------------------------- shared with `batch_matmul`


def tiles(rows: int, columns: int, simd: Simd) -> list[tuple[int, int, str]]:
    """List tile_m, tile_n and loop_order of the configs to search, for a (rows, columns) output."""
    vectors = range(1, min(ceildiv(columns, simd.lanes), 8) + 1)
    choices = itertools.product(vectors, range(1, min(rows, simd.registers) + 1), ("rows", "columns"))
    return [(m, n, loop_order) for n, m, loop_order in choices if simd.fits(m, n)]


def split_loops(sch: Schedule, config) -> tuple:
    """Split a product's loops into batch, tiles of rows, tiles of columns, and a tile's four (k first)."""
    *batch, m, n, k = sch.get_loops("matmul")
    if not batch:
        batch = [sch.add_unit_loop(m)]
    mo, mi = sch.split(m, [None, config.tile_m])
    lanes = sch.get(sch.get_sblock("matmul")).reads[1].source.shape[-1]
    no, ni, c = sch.split(n, [None, config.tile_n, int(lanes)])
    b = sch.fuse(*batch) if len(batch) > 1 else batch[0]
    return b, mo, no, (k, mi, ni, c)


def order_loops(sch: Schedule, outer: list, inner: list, tile: tuple, stages: tuple[str, ...] = ()):
    """Reorder the loops of `split_loops`, parallelize `outer`, and return the fused parallel loop."""
    sch.reorder(*outer, *inner, *tile)
    fuse_epilogue(sch, "matmul", inner[-1], stages)
    loop = parallel(sch, outer)
    vectorize(sch, tile[1:])
    init = sch.decompose_reduction("matmul", tile[0])
    vectorize(sch, sch.get_loops(init)[-3:])
    return loop


def loops_of(products: int, rows: int, depth: int, columns: int, config, lanes: int) -> Loops:
    """Return the sizes of the loops of `products` of (rows, depth) x (depth, columns)."""
    n = ceildiv(columns, lanes)
    tiles = ceildiv(rows, config.tile_m) if config.loop_order == "rows" else ceildiv(n, config.tile_n)
    return Loops(
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        m=rows,
        n=n,
        products=products,
        rows=products * rows,
        k=depth,
        n_tasks=products if products > 1 else tiles,
    )
