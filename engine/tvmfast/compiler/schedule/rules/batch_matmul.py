"""Batched matrix products of two activations, such as those of attention.

The loops are those of `matmul`. The kernel itself packs the right-hand matrices (keys, values) into panels;
of several batches, one batch at a time, so that the thread that packs a panel reads it from its own cache.
"""

import math
from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, of_one_type, round_up, unwrap_ints
from ....core.simd import Simd, register_tile
from ..epilogue import crop, parallel
from ..rule import Loops, ScheduleRule
from ..workloads.batch_matmul import BatchMatmul
from ..workloads.workload import Workload
from . import matmul


class BatchedMatmul(ScheduleRule):
    """Products of two activations."""

    name = "batch_matmul"
    serves = "products of two activations"

    @dataclass(frozen=True)
    class Config(matmul.Matmul.Config):
        """That of `matmul`, and the width of a panel.

        Attributes:
            lanes: `Simd.lanes`.
        """

        lanes: int

    EXAMPLES = (
        BatchMatmul((1, 9, 8), (1, 8, 40)),
        BatchMatmul((6, 7), (7, 32)),
        BatchMatmul((2, 3, 4, 6), (6, 17)),  # a matrix for all batches
        BatchMatmul((2, 1, 4, 6), (3, 6, 10)),
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, BatchMatmul)

    def default(self, workload: BatchMatmul, simd: Simd) -> Config:
        """Choose the register tile with the fewest cycles."""
        tile = register_tile(workload.data[-2], ceildiv(workload.weight[-1], simd.lanes), simd)
        return self.Config(*tile, "columns", simd.lanes)

    def space(self, workload: BatchMatmul, simd: Simd) -> list[Config]:
        choices = matmul.tiles(workload.data[-2], workload.weight[-1], simd)
        return [self.Config(*tile, simd.lanes) for tile in choices]

    def compute(self, data, weight, workload: BatchMatmul, config: Config):
        """Return the product as a tensor expression, of float32 tensors whose dims may be dynamic."""
        lefts, rights = unwrap_ints(data.shape), unwrap_ints(weight.shape)
        (rows, depth), columns = lefts[-2:], rights[-1]
        depth = depth if isinstance(depth, int) else rights[-2]
        batch = _broadcast(lefts[:-2], rights[:-2])
        lanes = config.lanes
        missing = len(batch) - len(rights) + 2
        blocks = ceildiv(columns, lanes * config.tile_n) * config.tile_n
        full = round_up(rows, config.tile_m)
        whole_rows = isinstance(rows, int) and full == rows
        whole_columns = isinstance(columns, int) and blocks * lanes == columns

        def of(shape, at):
            """Map the batch index `at` of the product to that of a matrix with the batch axes `shape`."""
            own = at[len(at) - len(shape) :]
            return [0 if _is_one(dim) else index for dim, index in zip(shape, own, strict=True)]

        def pack(*index):
            *at, p, k, c = index
            column = p * lanes + c
            value = weight[(*of(rights[:-2], at), k, column)]
            return value if whole_columns else te.if_then_else(column < columns, value, 0.0)

        panels_of = (*[1] * missing, *rights[:-2])
        panels = te.compute((*panels_of, *of_one_type(blocks, depth, lanes)), pack, name="pack")
        k = te.reduce_axis((0, depth), "k")

        def element(*index):
            *at, m, n = index
            row = m if whole_rows else te.min(m, rows - 1)
            left = data[(*of(lefts[:-2], at), row, k)]
            return te.sum(left * panels[(*of(panels_of, at), n // lanes, k, n % lanes)], axis=[k])

        attrs = self.annotation(workload, config)
        product = te.compute(
            (*batch, *of_one_type(full, blocks * lanes)), element, name="matmul", attrs=attrs
        )
        return crop(product, (*batch, rows, columns))

    def schedule(self, sch: Schedule, config: Config) -> None:
        b, mo, no, tile = matmul.split_loops(sch, config)
        first, second = (mo, no) if config.loop_order == "rows" else (no, mo)
        several = not _is_one(*unwrap_ints([sch.get(b).extent]))
        outer, inner = ([b], [first, second]) if several else ([b, first], [second])
        loop = matmul.order_loops(sch, outer, inner, tile, stages=("pack",))
        if several:
            sch.compute_at("pack", loop)
        else:
            parallel(sch, sch.get_loops("pack")[:-1])
        sch.vectorize(sch.get_loops("pack")[-1])

    def loops(self, workload: BatchMatmul, config: Config, lanes: int) -> Loops:
        *batch, rows, columns = workload.shape
        return matmul.loops_of(math.prod(batch), rows, workload.data[-1], columns, config, lanes)


def _broadcast(a: tuple, b: tuple) -> tuple:
    """Broadcast the batch axes of two matrices; a dynamic dim is taken not to be 1."""
    a, b = ((1,) * (max(len(a), len(b)) - len(each)) + each for each in (a, b))
    return tuple(m if _is_one(n) else n for n, m in zip(a, b, strict=True))


def _is_one(dim) -> bool:
    return isinstance(dim, int) and dim == 1
