"""Skinny GEMM: products of a few rows with a strided view of a tensor, as a decoder's with its caches.

The view is read once, without a copy. Packed into panels, as `batch_matmul` does, it would be read,
written and read again. If its rows are contiguous, a register holds x columns of a row of the product; if its
columns are, a register holds x partial sums of one element, which are added up in halves.
"""

from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule

from ....core.annotations import attribute
from ....core.simd import Simd
from ..epilogue import block_names, fuse_epilogue, parallel, vectorize
from ..rule import ScheduleRule

_NAME = "few_rows"  # the rule's name in records
_COLUMNS = 8  # elements of a task, if columns are contiguous, at most


@dataclass(frozen=True)
class View:
    """A strided view of another tensor; strides and offset are in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def at(self, flat, *index):
        """Return an element, given the other tensor as a flat one."""
        return flat[self.offset + sum(i * stride for i, stride in zip(index, self.strides, strict=True))]


def product(left, flat, view: View, simd: Simd):
    """Multiply a tensor (…, M, K) by a view (…, K, N) of `flat`, with the same batch axes; see `tile`."""
    *batch, rows, _ = (int(n) for n in left.shape)
    depth, columns = view.shape[-2:]
    attrs = attribute({"family": _NAME, "tile_n": tile(view, rows, simd), "lanes": simd.lanes})
    if _has_rows(view, simd):
        k = te.reduce_axis((0, depth), "k")

        def element(*at):
            *b, m, n = at
            return te.sum(left[(*b, m, k)] * view.at(flat, *b, k, n), axis=[k])

        return te.compute((*batch, rows, columns), element, name="product", attrs=attrs)
    k = te.reduce_axis((0, depth // simd.lanes), "k")

    def partial(*at):
        *b, m, n, lane = at
        d = k * simd.lanes + lane
        return te.sum(left[(*b, m, d)] * view.at(flat, *b, d, n), axis=[k])

    sums = te.compute((*batch, rows, columns, simd.lanes), partial, name="partial")
    width = simd.lanes // 2
    while width > 1:
        sums = te.compute((*batch, rows, columns, width), _halves(sums, width), name=f"halves{width}")
        width //= 2

    def last(*at):
        return sums[(*at, 0)] + sums[(*at, 1)]

    return te.compute((*batch, rows, columns), last, name="product", attrs=attrs)


def _halves(sums, width: int):
    return lambda *at: sums[at] + sums[(*at[:-1], at[-1] + width)]


def tile(view: View, rows: int, simd: Simd) -> int | None:
    """Return the vectors of columns in registers, or a task's columns if they are contiguous.

    None: the product is left to other rules.
    """
    depth, columns = view.shape[-2:]
    if _has_rows(view, simd):
        fit = [n for n in range(1, 9) if columns // simd.lanes % n == 0 and simd.fits(rows, n)]
        return max(fit, default=None)
    if view.strides[-2] == 1 and depth % simd.lanes == 0:
        return max(n for n in range(1, _COLUMNS + 1) if columns % n == 0)
    return None


def _has_rows(view: View, simd: Simd) -> bool:
    """Return whether the rows of a view are contiguous and whole vectors."""
    return view.strides[-1] == 1 and view.shape[-1] % simd.lanes == 0


class SkinnyGemm(ScheduleRule):
    """Skinny GEMM with a strided view."""

    name = _NAME

    @dataclass(frozen=True)
    class Config:
        """The register tile.

        Attributes:
            tile_n: That of `tile`.
            lanes: `Simd.lanes`.
        """

        tile_n: int
        lanes: int

    def schedule(self, sch: Schedule, config: Config) -> None:
        names = block_names(sch)
        if "partial" in names:
            self._by_columns(sch, config, names)
            return
        *batch, m, n, k = sch.get_loops("product")
        no, ni, c = sch.split(n, [None, config.tile_n, config.lanes])
        outer = [*batch, no]
        sch.reorder(*outer, k, m, ni, c)
        fuse_epilogue(sch, "product", no)
        parallel(sch, outer)
        vectorize(sch, [m, ni, c])
        init = sch.decompose_reduction("product", k)
        vectorize(sch, sch.get_loops(init)[-3:])

    def _by_columns(self, sch, config, names):
        stages = [name for name in names if name == "partial" or name.startswith("halves")]
        for name in names[len(stages) : -1]:
            sch.compute_inline(name)
        *batch, m, n = sch.get_loops(names[-1])
        no, ni = sch.split(n, [None, config.tile_n])
        sch.reorder(*batch, no, ni, m)
        parallel(sch, [*batch, no])
        for name in reversed(stages):
            sch.compute_at(name, m, preserve_unit_loops=True)
            sch.set_scope(name, 0, "local")
        for name in stages[1:]:
            sch.vectorize(sch.get_loops(name)[-1])
        lane, k = sch.get_loops("partial")[-2:]
        sch.reorder(k, lane)
        sch.vectorize(lane)
        if int(sch.get(k).extent) <= _COLUMNS:
            sch.unroll(k)
        sch.decompose_reduction("partial", k)
