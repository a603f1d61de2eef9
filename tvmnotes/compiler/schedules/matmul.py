"""Matrix products: a tile of `rows` times `blocks` vectors of sums stays in registers while the reduction runs.

The right matrix is read in panels of x columns, (blocks, K, x); weights are packed while compiling. Goto and van de
Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), without their blocking for the caches: the
networks' panels fit into L2.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from .epilogue import crop, fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, pad_to, register_tile

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache


def default_config(rows: int, depth: int, columns: int, simd: Simd) -> dict:
    """The register tile with the fewest cycles for (rows, depth) x (depth, columns), and which loop is outside.

    Rows and columns may be filled up to whole tiles.
    """
    tile_rows, tile_panels = register_tile(rows, ceildiv(columns, simd.lanes), simd)
    outer = "rows" if depth * columns * 4 <= _CACHED_WEIGHTS else "columns"
    return {"rows": tile_rows, "blocks": tile_panels, "outer": outer}


@dataclass(frozen=True)
class Dense(Workload):
    """A float32 matrix product (rows, depth) x (depth, columns) as a workload; the second is known while compiling."""

    op: ClassVar[str] = "dense"
    general: ClassVar[str] = "matmul"

    rows: int
    depth: int
    columns: int

    @property
    def label(self) -> str:
        return f"dense {self.depth} to {self.columns}" + (f", {self.rows} rows" if self.rows > 1 else "")

    @property
    def data(self) -> tuple[int, int]:
        return self.rows, self.depth

    @property
    def weight(self) -> tuple[int, int]:
        return self.depth, self.columns

    @property
    def macs(self) -> int:
        return self.rows * self.depth * self.columns

    def output_shape(self, config: dict, lanes: int) -> tuple[int, int]:
        """The shape of what the kernel makes."""
        return self.rows, self.columns

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The product by NumPy."""
        return data @ weight

    def compute(self, data, panels, config: dict):
        """The product as a tensor expression, of data (..., rows, depth) and what `pack` gave."""
        return self.family(config).compute(data, panels, self.columns, config, self.attribute(config))


def dense(data, panels, columns: int, config: dict, attrs: dict):
    """Data (..., M, K) times the first `columns` columns of packed weights (blocks, K, x): (..., M, columns)."""
    *batch, rows, depth = (int(s) for s in data.shape)
    blocks, _, lanes = (int(s) for s in panels.shape)
    full = round_up(rows, config["rows"])
    k = te.reduce_axis((0, depth), "k")

    def element(*at):
        *b, m, n = at
        row = m if full == rows else te.min(m, rows - 1)
        return te.sum(data[(*b, row, k)] * panels[n // lanes, k, n % lanes], axis=[k])

    return cropped_product((*batch, full, blocks * lanes), (*batch, rows, columns), element, attrs)


def cropped_product(full, shape, element, attrs):
    """The matrix product of shape `full` as a tensor expression, cropped to `shape`."""
    return crop(te.compute(full, element, name="matmul", attrs=attrs), shape)


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `dense` gave, with whatever was fused behind it."""
    b, mo, no, tile = tiled(sch, config)
    finish(sch, *(([b, mo], [no]) if config["outer"] == "rows" else ([no], [b, mo])), tile)


def tiled(sch: Schedule, config: dict) -> tuple:
    """The loops of a product: over the batch, over tiles of rows and of columns, and the four of a tile, k first."""
    *batch, m, n, k = sch.get_loops("matmul")
    if not batch:
        batch = [sch.add_unit_loop(m)]
    mo, mi = sch.split(m, [None, config["rows"]])
    lanes = sch.get(sch.get_sblock("matmul")).reads[1].source.shape[-1]
    no, ni, c = sch.split(n, [None, config["blocks"], int(lanes)])
    return sch.fuse(*batch) if len(batch) > 1 else batch[0], mo, no, (k, mi, ni, c)


def finish(sch: Schedule, outer: list, inner: list, tile: tuple, stages: tuple[str, ...] = ()):
    """Put the loops of `tiled` in order, `outer` for the threads; returns the loop that they share."""
    sch.reorder(*outer, *inner, *tile)
    fuse_epilogue(sch, "matmul", inner[-1], stages)
    loop = parallel(sch, outer)
    vectorize(sch, tile[1:])
    init = sch.decompose_reduction("matmul", tile[0])
    vectorize(sch, sch.get_loops(init)[-3:])
    return loop


# ---------------------------------------------------------------- as a family


def serves(product: Workload, simd: Simd) -> bool:
    return isinstance(product, Dense)


def default(product: Dense, simd: Simd) -> dict:
    return default_config(product.rows, product.depth, product.columns, simd)


def space(product: Dense, simd: Simd) -> list[dict]:
    return configs(product.rows, product.columns, simd)


def configs(rows: int, columns: int, simd: Simd) -> list[dict]:
    """The register tiles and the orders of the outer loops to search, for a product of so many rows and columns."""
    return [
        {"rows": r, "blocks": p, "outer": outer}
        for p in range(1, min(ceildiv(columns, simd.lanes), 8) + 1)
        for r in range(1, min(rows, simd.registers) + 1)
        for outer in ("rows", "columns")
        if simd.fits(r, p)
    ]


def packed_shape(product: Dense, config: dict, lanes: int) -> tuple[int, ...]:
    return ceildiv(product.columns, lanes * config["blocks"]) * config["blocks"], product.depth, lanes


def packed(product: Dense, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """(K, N) to (blocks, K, lanes), filled up with zeros to whole tiles."""
    blocks, depth, _ = packed_shape(product, config, lanes)
    weight = pad_to(weight, (depth, blocks * lanes)).reshape(depth, blocks, lanes)
    return np.ascontiguousarray(weight.transpose(1, 0, 2))


def loops(product: Dense, config: dict, lanes: int) -> Loops:
    return loops_of(1, product.rows, product.depth, product.columns, config, lanes)


def loops_of(batches: int, rows: int, depth: int, columns: int, config: dict, lanes: int) -> Loops:
    """The loops of so many products (rows, depth) x (depth, columns)."""
    panels = ceildiv(columns, lanes)
    tiles = ceildiv(rows, config["rows"]) if config["outer"] == "rows" else ceildiv(panels, config["blocks"])
    return Loops(
        rows=config["rows"], blocks=config["blocks"], line=rows, outs=panels, lines=batches, points=batches * rows,
        depth=depth, chunks=batches if batches > 1 else tiles,
    )  # fmt: skip


register(Family("matmul", schedule, serves, default, space, packed_shape, packed, dense, loops))
