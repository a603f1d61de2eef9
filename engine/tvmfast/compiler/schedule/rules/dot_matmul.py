"""Matrix products of 8-bit integers by instructions for dot products: exact sums in int32.

The register tile is that of `matmul`; the weights are packed for the instruction (see ../dot.py).
"""

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

from ....core.annotations import attribute
from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd, pad_to, register_tile
from ..dot import DOTS, tensorize, with_products
from ..epilogue import block_names, fuse_epilogue, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.dense import Dense
from ..workloads.workload import Workload
from . import direct_conv

_NAME = "dot_matmul"
_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache


class DotMatmul(ScheduleRule):
    """Product of uint8 data with int8 weights."""

    name = _NAME
    serves = "products of 8-bit integers with a weight known at compile time"
    dtype = "uint8"

    @dataclass(frozen=True)
    class Config:
        """The instruction, the register tile and the outer loop.

        Attributes:
            instruction: A key of `DOTS`.
            tile_m: Rows of the register tile. Searched, as `tile_n`: what fits into the registers.
            tile_n: Vectors of columns of the register tile.
            loop_order: The outer loop over tiles: of "rows" or of "columns". Searched: both.
        """

        instruction: str
        tile_m: int
        tile_n: int
        loop_order: str

    EXAMPLES = Dense(1, 64, 70, "uint8"), Dense(5, 35, 33, "uint8")

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Dense)

    def default(self, workload: Dense, simd: Simd) -> Config:
        return default(workload.rows, workload.depth, workload.columns, simd)

    def space(self, workload: Dense, simd: Simd) -> list[Config]:
        blocks = ceildiv(workload.columns, simd.lanes)
        tiles = direct_conv.tiles(workload.rows, blocks, with_products(simd))
        # Of few rows no tile uses many registers.
        tiles = tiles or [
            (workload.rows, n) for n in range(1, 9) if n <= blocks and simd.fits(workload.rows, n)
        ]
        return [
            self.Config(simd.dot, *tile, order)
            for tile, order in itertools.product(tiles, ("rows", "columns"))
        ]

    def packed_shape(self, workload: Dense, config, lanes: int) -> tuple[int, ...]:
        terms = DOTS[config.instruction].terms
        blocks = round_up(ceildiv(workload.columns, lanes), config.tile_n)
        return blocks, ceildiv(workload.depth, terms), lanes, terms

    def packed_dtype(self, config) -> str:
        return DOTS[config.instruction].weight

    def pack(self, workload: Dense, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        return pack(weight, config, lanes)

    def compute(self, data, weight, workload: Dense, config):
        return compute(data, weight, workload, config)

    def loops(self, workload: Dense, config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: one product."""
        n = ceildiv(workload.columns, lanes)
        tiles = ceildiv(workload.rows, config.tile_m), ceildiv(n, config.tile_n)
        by_rows = config.loop_order == "rows"
        return Loops(
            tile_m=config.tile_m,
            tile_n=config.tile_n,
            m=workload.rows,
            n=n,
            products=1,
            rows=workload.rows,
            k=ceildiv(workload.depth, DOTS[config.instruction].terms),
            n_tasks=tiles[0] if by_rows else tiles[1],
            n_outer=tiles[0] if by_rows else tiles[1],
        )

    def schedule(self, sch: Schedule, config: Config) -> None:
        dot, names = DOTS[config.instruction], block_names(sch)
        *batch, m, o, c, k, q = sch.get_loops(_NAME)
        if not batch:
            batch = [sch.add_unit_loop(m)]
        mo, mi = sch.split(m, [None, config.tile_m])
        no, ni = sch.split(o, [None, config.tile_n])
        outer, inner = ([*batch, mo], [no]) if config.loop_order == "rows" else ([no], [*batch, mo])
        lanes = int(sch.get(c).extent)
        sch.reorder(*outer, *inner, k, *((q, mi, ni, c) if dot.apply is None else (mi, ni, c, q)))
        fuse_epilogue(sch, _NAME, inner[-1], stages=("widened",))
        parallel(sch, outer)
        if "widened" in names:
            *rows, row = sch.get_loops("widened")
            parallel(sch, rows)
            sch.vectorize(sch.split(row, [None, lanes])[1])
        if dot.apply is None:
            sch.vectorize(c)
        for loop in (mi, ni):
            sch.unroll(loop)
        init = sch.decompose_reduction(_NAME, k)
        vectorize(sch, sch.get_loops(init)[-3:])
        if dot.apply is not None:
            tensorize(sch, f"{_NAME}_update", dot, lanes)


def default(rows: int, depth: int, columns: int, simd: Simd) -> DotMatmul.Config:
    """Choose the register tile with the fewest cycles, as for float32, and the outer loop."""
    tile = register_tile(rows, ceildiv(columns, simd.lanes), with_products(simd))
    return DotMatmul.Config(simd.dot, *tile, "rows" if depth * columns <= _CACHED_WEIGHTS else "columns")


def pack(weight: np.ndarray, config: DotMatmul.Config, lanes: int) -> np.ndarray:
    """Pack integers (K, N) into (blocks, K / terms, x, terms), zero-padded to whole tiles."""
    (depth, columns), dot = weight.shape, DOTS[config.instruction]
    blocks = round_up(ceildiv(columns, lanes), config.tile_n)
    padded = pad_to(weight, (round_up(depth, dot.terms), blocks * lanes))
    return dot.pack(padded.reshape(-1, blocks, lanes).transpose(1, 0, 2), lanes)


def compute(data, weight, dense: Dense, config: DotMatmul.Config):
    """Multiply uint8 data (…, M, K) by packed weights; return the sums (…, M, columns) in int32."""
    dot = DOTS[config.instruction]
    *batch, rows, depth = unwrap_ints(data.shape)
    blocks, steps, lanes, terms = unwrap_ints(weight.shape)
    if depth % terms or str(data.dtype) != dot.data:
        data = _widened(data, steps * terms, dot.data)
    full = round_up(rows, config.tile_m)
    k, q = te.reduce_axis((0, steps), "k"), te.reduce_axis((0, terms), "q")

    def element(*at):
        *b, m, n, c = at
        row = m if isinstance(full, int) and full == rows else te.min(m, rows - 1)
        product = data[(*b, row, k * terms + q)].astype("int32") * weight[n, k, c, q].astype("int32")
        return te.sum(product, axis=[k, q])

    attrs = attribute(DotMatmul().as_dict(config), dense)
    tiles = te.compute((*batch, full, blocks, lanes), element, name=_NAME, attrs=attrs)

    def flat(*at):
        *b, n = at
        return tiles[(*b, n // lanes, n % lanes)]

    return te.compute((*batch, rows, dense.columns), flat, name="flat")


def _widened(data, depth: int, dtype: str):
    """Return data (…, M, K) in a dtype, its rows zero-padded to a length."""
    *outer, own = unwrap_ints(data.shape)

    def element(*at):
        *b, k = at
        value = data[(*b, k if own == depth else te.min(k, own - 1))]
        return value.astype(dtype)  # weights are 0 beyond the end

    return te.compute((*outer, depth), element, name="widened")
