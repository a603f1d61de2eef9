"""Batched matrix products of two activations, such as those of attention.

The scheme is that of `matmul`. The kernel itself packs the right-hand matrices (keys, values) into panels; of
several batches, one batch at a time, so that the thread that packs a panel reads it from its own cache.

knob    meaning                                               values that `space` tries
lanes   float32 elements of a register, the width of a panel  `Simd.lanes`
rows    rows of the register tile                             1 to min(M, registers)
blocks  vectors of columns of the register tile               1 to min(vectors of N, 8)
outer   outer loop over tiles: of "rows" or of "columns"      both

Tiles that do not fit into the registers are left out.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from . import matmul
from .epilogue import parallel
from .family import Family, Loops, Workload, register
from .vector import Simd, register_tile


@dataclass(frozen=True)
class BatchMatmul(Workload):
    """A float32 product (…, M, K) x (…, K, N) as a workload, given by both shapes; batch axes broadcast."""

    op: ClassVar[str] = "batch_matmul"
    general: ClassVar[str] = "batch_matmul"

    data: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def label(self) -> str:
        """The product in a few words, by the shapes of both matrices."""
        return f"matmul {'x'.join(map(str, self.data))} by {'x'.join(map(str, self.weight))}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the product, (…, M, N)."""
        return (*np.broadcast_shapes(self.data[:-2], self.weight[:-2]), self.data[-2], self.weight[-1])

    @property
    def macs(self) -> int:
        """Multiply-adds of a call."""
        return int(np.prod(self.shape)) * self.data[-1]

    def output_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the kernel's output, (…, M, N)."""
        return self.shape

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the product with NumPy."""
        return data @ weight

    def compute(self, data, weight, config: dict):
        """Return the product as a tensor expression, of float32 tensors of the shapes `data` and `weight`."""
        lefts, rights = plain_sizes(data.shape), plain_sizes(weight.shape)
        (rows, depth), columns = lefts[-2:], rights[-1]
        batch = broadcast(lefts[:-2], rights[:-2])
        lanes = config["lanes"]
        missing = len(batch) - len(rights) + 2
        blocks = ceildiv(columns, lanes * config["blocks"]) * config["blocks"]
        full = round_up(rows, config["rows"])

        def of(shape, at):
            """Map the batch index `at` of the product to that of a matrix with the batch axes `shape`."""
            own = at[len(at) - len(shape) :]
            return [0 if is_one(size) else index for size, index in zip(shape, own, strict=True)]

        def pack(*index):
            *at, p, k, c = index
            column = p * lanes + c
            value = weight[(*of(rights[:-2], at), k, column)]
            return value if blocks * lanes == columns else te.if_then_else(column < columns, value, 0.0)

        panels_of = (*[1] * missing, *rights[:-2])
        panels = te.compute((*panels_of, blocks, depth, lanes), pack, name="pack")
        k = te.reduce_axis((0, depth), "k")

        def element(*index):
            *at, m, n = index
            row = m if full == rows else te.min(m, rows - 1)
            left = data[(*of(lefts[:-2], at), row, k)]
            return te.sum(left * panels[(*of(panels_of, at), n // lanes, k, n % lanes)], axis=[k])

        return matmul.cropped_product(
            (*batch, full, blocks * lanes), (*batch, rows, columns), element, self.attribute(config)
        )


def broadcast(a: tuple, b: tuple) -> tuple:
    """Return the batch axes of a product, of those of both matrices; an open size is taken to be no 1."""
    a, b = ((1,) * (max(len(a), len(b)) - len(each)) + each for each in (a, b))
    return tuple(m if is_one(n) else n for n, m in zip(a, b, strict=True))


def is_one(size) -> bool:
    """Return whether an axis has one index whatever the open sizes are."""
    return isinstance(size, int) and size == 1


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel of a `BatchMatmul` and to what was fused after it."""
    b, mo, no, tile = matmul.tiled(sch, config)
    first, second = (mo, no) if config["outer"] == "rows" else (no, mo)
    several = not is_one(*plain_sizes([sch.get(b).extent]))
    outer, inner = ([b], [first, second]) if several else ([b, first], [second])
    loop = matmul.finish(sch, outer, inner, tile, stages=("pack",))
    if several:
        sch.compute_at("pack", loop)
    else:
        parallel(sch, sch.get_loops("pack")[:-1])
    sch.vectorize(sch.get_loops("pack")[-1])


def serves(product: Workload, simd: Simd) -> bool:
    """Return whether the workload is a product of two activations."""
    return isinstance(product, BatchMatmul)


def default(product: BatchMatmul, simd: Simd) -> dict:
    """Choose the register tile with the fewest cycles."""
    rows, blocks = register_tile(product.data[-2], ceildiv(product.weight[-1], simd.lanes), simd)
    return {"family": "batch_matmul", "lanes": simd.lanes, "rows": rows, "blocks": blocks, "outer": "columns"}


def space(product: BatchMatmul, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    tiles = matmul.configs(product.data[-2], product.weight[-1], simd)
    return [{"family": "batch_matmul", "lanes": simd.lanes, **tile} for tile in tiles]


def loops(product: BatchMatmul, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    *batch, rows, columns = product.shape
    return matmul.loops_of(int(np.prod(batch)), rows, product.data[-1], columns, config, lanes)


EXAMPLES = (
    BatchMatmul((1, 9, 8), (1, 8, 40)),
    BatchMatmul((6, 7), (7, 32)),
    BatchMatmul((2, 3, 4, 6), (6, 17)),  # a matrix for all batches
    BatchMatmul((2, 1, 4, 6), (3, 6, 10)),
)

register(
    Family(
        "batch_matmul",
        schedule=schedule,
        serves=serves,
        default=default,
        space=space,
        loops=loops,
        examples=EXAMPLES,
    )
)
