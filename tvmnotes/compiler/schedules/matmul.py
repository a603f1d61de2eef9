"""Matrix products: a tile of `rows` x `blocks` vector accumulators stays in registers.

The right-hand matrix is read in panels of x columns, (blocks, K, x); weights are packed at compile time. Goto
and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), without their blocking for
the caches: the networks' panels fit into L2.

knob    meaning                                           values that `space` tries
rows    rows of the register tile                         1 to min(rows, registers)
blocks  vectors of columns of the register tile           1 to min(vectors of columns, 8)
outer   outer loop over tiles: of "rows" or of "columns"  both

Tiles that do not fit into the registers are left out.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from .epilogue import crop, fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, pad_to, register_tile

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache


def default_config(rows: int, depth: int, columns: int, simd: Simd) -> dict:
    """Choose the register tile with the fewest cycles for (rows, depth) x (depth, columns), and outer.

    Rows and columns may be padded to whole tiles.
    """
    tile_rows, tile_panels = register_tile(rows, ceildiv(columns, simd.lanes), simd)
    outer = "rows" if depth * columns * 4 <= _CACHED_WEIGHTS else "columns"
    return {"rows": tile_rows, "blocks": tile_panels, "outer": outer}


@dataclass(frozen=True)
class Dense(Workload):
    """A float32 product (rows, depth) x (depth, columns) with a right matrix known at compile time."""

    op: ClassVar[str] = "dense"
    general: ClassVar[str] = "matmul"

    rows: int
    depth: int
    columns: int

    @property
    def label(self) -> str:
        """The product in a few words."""
        return f"dense {self.depth} to {self.columns}" + (f", {self.rows} rows" if self.rows > 1 else "")

    @property
    def data(self) -> tuple[int, int]:
        """The shape of the left matrix."""
        return self.rows, self.depth

    @property
    def weight(self) -> tuple[int, int]:
        """The shape of the right matrix."""
        return self.depth, self.columns

    @property
    def macs(self) -> int:
        """Multiply-adds of a call."""
        return self.rows * self.depth * self.columns

    def output_shape(self, config: dict, lanes: int) -> tuple[int, int]:
        """Return the shape of the kernel's output, (rows, columns)."""
        return self.rows, self.columns

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the product with NumPy."""
        return data @ weight

    def compute(self, data, panels, config: dict):
        """Return the product as a tensor expression, of data (…, rows, depth) and packed weights."""
        return self.family(config).compute(data, panels, self.columns, config, self.attribute(config))


def dense(data, panels, columns: int, config: dict, attrs: dict):
    """Multiply data (…, M, K) by the first `columns` columns of packed weights (blocks, K, x)."""
    *batch, rows, depth = plain_sizes(data.shape)
    blocks, _, lanes = (int(s) for s in panels.shape)
    full = round_up(rows, config["rows"])
    k = te.reduce_axis((0, depth), "k")

    def element(*at):
        *b, m, n = at
        row = m if isinstance(full, int) and full == rows else te.min(m, rows - 1)
        return te.sum(data[(*b, row, k)] * panels[n // lanes, k, n % lanes], axis=[k])

    return cropped_product((*batch, full, blocks * lanes), (*batch, rows, columns), element, attrs)


def cropped_product(full, shape, element, attrs):
    """Return the matrix product of shape `full` as a tensor expression, cropped to `shape`."""
    return crop(te.compute(full, element, name="matmul", attrs=attrs), shape)


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `dense` made and to what was fused after it."""
    b, mo, no, tile = tiled(sch, config)
    outer, inner = ([b, mo], [no]) if config["outer"] == "rows" else ([no], [b, mo])
    finish(sch, outer, inner, tile)


def tiled(sch: Schedule, config: dict) -> tuple:
    """Split a product's loops into batch, tiles of rows, tiles of columns, and a tile's four (k first)."""
    *batch, m, n, k = sch.get_loops("matmul")
    if not batch:
        batch = [sch.add_unit_loop(m)]
    mo, mi = sch.split(m, [None, config["rows"]])
    lanes = sch.get(sch.get_sblock("matmul")).reads[1].source.shape[-1]
    no, ni, c = sch.split(n, [None, config["blocks"], int(lanes)])
    b = sch.fuse(*batch) if len(batch) > 1 else batch[0]
    return b, mo, no, (k, mi, ni, c)


def finish(sch: Schedule, outer: list, inner: list, tile: tuple, stages: tuple[str, ...] = ()):
    """Reorder the loops of `tiled`, parallelize `outer`, and return the fused parallel loop."""
    sch.reorder(*outer, *inner, *tile)
    fuse_epilogue(sch, "matmul", inner[-1], stages)
    loop = parallel(sch, outer)
    vectorize(sch, tile[1:])
    init = sch.decompose_reduction("matmul", tile[0])
    vectorize(sch, sch.get_loops(init)[-3:])
    return loop


# ---------------------------------------------------------------- as a family


def serves(product: Workload, simd: Simd) -> bool:
    """Return whether the workload is a product with a weight known at compile time."""
    return isinstance(product, Dense)


def default(product: Dense, simd: Simd) -> dict:
    """Choose the default config of a workload."""
    return default_config(product.rows, product.depth, product.columns, simd)


def space(product: Dense, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    return configs(product.rows, product.columns, simd)


def configs(rows: int, columns: int, simd: Simd) -> list[dict]:
    """List the register tiles and orders of the outer loops to search, for a (rows, columns) output."""
    return [
        {"rows": r, "blocks": p, "outer": outer}
        for p in range(1, min(ceildiv(columns, simd.lanes), 8) + 1)
        for r in range(1, min(rows, simd.registers) + 1)
        for outer in ("rows", "columns")
        if simd.fits(r, p)
    ]


def packed_shape(product: Dense, config: dict, lanes: int) -> tuple[int, ...]:
    """Return the shape of the packed weight, (blocks, K, lanes)."""
    return ceildiv(product.columns, lanes * config["blocks"]) * config["blocks"], product.depth, lanes


def packed(product: Dense, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """Pack the weight (K, N) into (blocks, K, lanes), zero-padded to whole tiles."""
    blocks, depth, _ = packed_shape(product, config, lanes)
    weight = pad_to(weight, (depth, blocks * lanes)).reshape(depth, blocks, lanes)
    return np.ascontiguousarray(weight.transpose(1, 0, 2))


def loops(product: Dense, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    return loops_of(1, product.rows, product.depth, product.columns, config, lanes)


def loops_of(batches: int, rows: int, depth: int, columns: int, config: dict, lanes: int) -> Loops:
    """Return the sizes of the loops of `batches` products (rows, depth) x (depth, columns)."""
    panels = ceildiv(columns, lanes)
    tiles = ceildiv(rows, config["rows"]) if config["outer"] == "rows" else ceildiv(panels, config["blocks"])
    return Loops(
        rows=config["rows"],
        blocks=config["blocks"],
        line=rows,
        outs=panels,
        lines=batches,
        points=batches * rows,
        depth=depth,
        chunks=batches if batches > 1 else tiles,
    )


EXAMPLES = Dense(1, 64, 70), Dense(5, 17, 35), Dense(12, 8, 32)

register(
    Family(
        "matmul",
        compute=dense,
        schedule=schedule,
        serves=serves,
        default=default,
        space=space,
        packed_shape=packed_shape,
        pack=packed,
        loops=loops,
        examples=EXAMPLES,
    )
)
