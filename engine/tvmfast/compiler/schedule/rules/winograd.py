"""Winograd's convolution for 3x3 windows of stride 1: 4 or 2.25 times fewer multiplications.

A tile of 6x6 inputs and the 3x3 weights are transformed, multiplied elementwise, summed over the channels
(which makes 36 matrix products), and transformed back to 4x4 outputs: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks" (CVPR 2016), F(4x4, 3x3); or 4x4 inputs to 2x2 outputs, F(2x2, 3x3). The
weights are transformed at compile time. The largest error of F(4x4, 3x3) is two or three times that of direct
convolution; that of F(2x2, 3x3) is as small. Tiles that read a NaN or an infinity are computed directly: see
direct_tiles.py.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, of_one_type, round_up, unwrap_ints
from ....core.simd import Simd, fastest_tile, pad_to
from .. import direct_tiles, post_rewrite
from ..epilogue import block_names, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution
from ..workloads.workload import Workload


def _of_four(a: float, b: float) -> tuple:
    """Return the transforms of F(4x4, 3x3) for the points 0, a, -a, b, -b and infinity (Toom and Cook)."""
    aa, bb = a * a, b * b
    of_a, of_b = 2 * aa * (aa - bb), 2 * bb * (bb - aa)
    return (
        ((aa * bb, 0, -aa - bb, 0, 1, 0), (0, -a * bb, -bb, a, 1, 0), (0, a * bb, -bb, -a, 1, 0),
         (0, -b * aa, -aa, b, 1, 0), (0, b * aa, -aa, -b, 1, 0), (0, aa * bb, 0, -aa - bb, 0, 1)),
        ((1 / (aa * bb), 0, 0), (1 / of_a, a / of_a, aa / of_a), (1 / of_a, -a / of_a, aa / of_a),
         (1 / of_b, b / of_b, bb / of_b), (1 / of_b, -b / of_b, bb / of_b), (0, 0, 1)),
        ((1, 1, 1, 1, 1, 0), (0, a, -a, b, -b, 0), (0, aa, aa, bb, bb, 0),
         (0, a * aa, -a * aa, b * bb, -b * bb, 1)),
    )  # fmt: skip


# Transforms of inputs, weights and outputs by the side of a tile of outputs. The larger one's points, 5/8
# and 3/2, give a quarter of the error of the customary 1 and 2, because their powers stay closer to 1.
_TRANSFORMS = {
    2: (
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: _of_four(5 / 8, 3 / 2),
}

_PRODUCT = "winograd"  # the stage of the sums of products
_STAGES = ("patch", "half_transformed", "transformed", _PRODUCT, "half_out")


class Winograd(ScheduleRule):
    """Winograd's convolution.

    `winograd_bf16` and `winograd_int` have other numbers: they override how an element of a patch, a
    transform, a product and a result are computed.
    """

    name = "winograd"
    serves = "blocked 3x3 convolutions of stride 1, neither grouped nor dilated"
    priority = 10

    @dataclass(frozen=True)
    class Config:
        """The tile of outputs, and the tiles whose products are computed together.

        tile_oh * tile_ow * tile_oc vector accumulators are in registers: more than half of the registers are
        in use. With block_oh 0 all inputs are transformed first, and the threads share the channels, for
        weights that do not fit into the cache. `prefetch` loads the weights of the next element of a tile
        while those of the current one are used.

        Attributes:
            m: Side of a tile of outputs, F(m x m, 3x3). Searched: 2, 4.
            tile_oh: Tiles down in a block of tiles. Searched: 1 to min(tiles down, 8).
            tile_ow: Tiles across in a block of tiles. Searched: 1 to min(tiles across, 16).
            tile_oc: Blocks of x output channels per block of tiles. Searched: 1, 2, 3, 4 that divide the
                channels' blocks.
            block_oh: Rows of blocks of tiles that a thread transforms and multiplies while they are in its
                cache. Searched: 0; 1, 2, 4 that divide the rows.
            prefetch: Whether weights are prefetched. Searched: False; True with block_oh 0.
        """

        m: int
        tile_oh: int
        tile_ow: int
        tile_oc: int
        block_oh: int
        prefetch: bool = False

    EXAMPLES = (
        Convolution((1, 32, 16, 16), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True),
        Convolution((2, 32, 9, 11), (40, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True),
        Convolution(
            (1, 16, 8, 8), (24, 16, 3, 3), (1, 1), (1, 0, 0, 2), (1, 1), 1, True
        ),  # no default config
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        if not isinstance(workload, Convolution) or not workload.blocked or workload.groups != 1:
            return False
        return workload.weight[2:] == (3, 3) and workload.strides == workload.dilation == (1, 1)

    def default(self, workload: Convolution, simd: Simd) -> Config | None:
        """Choose the default config; None if direct convolution is better."""
        m = best_tile(workload)
        return None if m is None else default_of_tile(workload, m, simd)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        found = []
        for m in _TRANSFORMS:
            for *tile, blocks in tiles_to_search(workload, m, simd, (4, 8, 16)):
                found += [self.Config(m, *tile, block) for block in blocks]
                found.append(self.Config(m, *tile, 0, prefetch=True))
        return found

    def packed_shape(self, workload: Convolution, config: Config, lanes: int) -> tuple[int, ...]:
        outs, ins = (ceildiv(channels, lanes) for channels in workload.weight[:2])
        return outs, config.m + 2, config.m + 2, ins, lanes, lanes

    def pack(self, workload: Convolution, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        """Transform and pack the weight (O, I, 3, 3)."""
        return transform_weight(weight, self.transforms(config.m)[1], lanes)

    def compute(self, data, weight, workload: Convolution, config: Config):
        """Return the convolution of data (N, blocks, H, W, x) with weights of `pack`."""
        n, sources, h, w, lanes = unwrap_ints(data.shape)
        outs = int(weight.shape[0])
        (top, left, _, _), (out_h, out_w) = workload.padding, workload.out_size_of(h, w)
        m, rows, columns = config.m, config.tile_oh, config.tile_ow
        side = m + 2
        of_input, _, of_output = self.transforms(m)
        # Blocks of tiles, rounded up in a form in which TVM proves that all rows of the result are in them.
        grid = n, (out_h - 1) // (m * rows) + 1, (out_w - 1) // (m * columns) + 1

        def element(b, ty, tx, i, row, column, r, s, c):
            y, x = (ty * rows + row) * m + r - top, (tx * columns + column) * m + s - left
            inside = tirx.all(y >= 0, y < h, x >= 0, x < w)
            return self.padded(inside, data[b, i, y, x, c], workload)

        shape = of_one_type(*grid, sources, rows, columns, side, side, lanes)
        patch = te.compute(shape, element, name="patch")

        def half_input(*at):
            return self.transform(of_input, at[6], lambda r: patch[(*at[:6], r, *at[7:])])

        half = te.compute(patch.shape, half_input, name="half_transformed")

        def whole_input(b, ty, tx, p, q, i, row, column, c):
            return self.factor(
                lambda i: self.transform(of_input, q, lambda s: half[b, ty, tx, i, row, column, p, s, c]),
                i,
                sources,
            )

        depth = int(weight.shape[3])
        shape = of_one_type(*grid, side, side, depth, rows, columns, lanes)
        transformed = te.compute(shape, whole_input, name="transformed")
        sums = of_one_type(depth, *self.split_lanes(weight), *grid[1:])
        names = zip(("i", "ii", "t"), sums[:-2], strict=False)
        axes = [te.reduce_axis((0, extent), name) for name, extent in names]

        def multiplied(b, ty, tx, k, p, q, row, column, c):
            def taken(i, ii):
                return transformed[b, ty, tx, p, q, i, row, column, ii]

            return te.sum(self.product(taken, weight, (k, p, q), c, *axes), axis=axes)

        shape = of_one_type(*grid, outs, side, side, rows, columns, lanes)
        attrs = self.annotation(workload, config)
        product = te.compute(shape, multiplied, name=_PRODUCT, attrs=attrs)

        def half_output(b, ty, tx, k, row, column, r, q, c):
            return self.transform(of_output, r, lambda p: product[b, ty, tx, k, p, q, row, column, c])

        shape = of_one_type(*grid, outs, rows, columns, m, side, lanes)
        half_out = te.compute(shape, half_output, name="half_out")

        def out(b, k, y, x, c):
            ty, tx = tirx.floordiv(y, m), tirx.floordiv(x, m)
            at = (b, ty // rows, tx // columns, k, ty % rows, tx % columns, y % m)
            return self.result(self.transform(of_output, x % m, lambda q: half_out[(*at, q, c)]), m)

        return te.compute(of_one_type(n, outs, out_h, out_w, lanes), out, name="out")

    # ------------------------------------------------------------ what depends on the numbers

    def transforms(self, m: int) -> tuple:
        """Return the matrices that transform inputs, weights and outputs, for tiles of m x m outputs."""
        return _TRANSFORMS[m]

    def transform(self, matrix, row, element: Callable):
        """Multiply row `row` of `matrix`, the index of a loop to be unrolled, by (element(0), …)."""
        selected = None
        for index in reversed(range(len(matrix))):
            total = None
            for column, factor in enumerate(matrix[index]):
                if factor:
                    term = element(column) * float(factor) if factor != 1 else element(column)
                    total = term if total is None else total + term
            selected = total if selected is None else tirx.Select(row == index, total, selected)
        return selected

    def padded(self, inside, value, workload: Convolution):
        """Return an element of a patch, given the image's where it is inside of it."""
        return te.if_then_else(inside, value, 0.0)

    def factor(self, transformed, block, blocks: int):
        """Return an element to multiply of a block of channels, given what a block's is."""
        return transformed(block)

    def split_lanes(self, weight) -> tuple[int, ...]:
        """Return the extents of the sum over a block's channels."""
        return (int(weight.shape[4]),)

    def product(self, taken: Callable, weight, of_tile: tuple, column, i, ii):
        """Return a term of the sum over blocks i and channels ii, given taken(i, ii) of the inputs."""
        return self.multiply(taken(i, ii), weight[(*of_tile, i, ii, column)])

    def multiply(self, element, weight):
        """Return the product of an element of the transformed data and a packed weight."""
        return element * weight

    def result(self, total, m: int):
        """Return an output, given its sum."""
        return direct_tiles.marked(total)

    # ------------------------------------------------------------ its schedule

    def schedule(self, sch: Schedule, config: Config) -> None:
        column = self.schedule_tiles(sch, config)
        direct_tiles.annotate_tiles(sch, column, _taps(config.m))

    def schedule_tiles(self, sch: Schedule, config):
        """Schedule the stages, and return the loop over the tiles across a block."""
        *epilogue, last = [name for name in block_names(sch) if name not in _STAGES]
        for name in epilogue:
            sch.compute_inline(name)
        n, k, y, x, c = sch.get_loops(last)
        ko, ki = sch.split(k, [None, config.tile_oc])
        tb, ty, row, yi = sch.split(y, [None, config.block_oh or 1, config.tile_oh, config.m])
        tx, column, xi = sch.split(x, [None, config.tile_ow, config.m])
        if config.block_oh:
            sch.reorder(n, tb, ko, ty, tx, ki, row, column, yi, xi, c)
            outer = parallel(sch, [n, tb])
        else:
            sch.reorder(ko, n, tb, ty, tx, ki, row, column, yi, xi, c)
            outer = None
            sch.parallel(ko)
        sch.compute_at("half_out", column, True)
        sch.set_scope("half_out", 0, "local")
        sch.compute_at(_PRODUCT, tx, True)
        vectorize(sch, [yi, xi, c])
        _unroll_all(sch, sch.get_loops("half_out")[-3:])
        stored = sch.cache_write(_PRODUCT, 0, "local")
        q, i = self.order_products(sch, config)
        sch.reverse_compute_at(stored, q, True)
        vectorize(sch, sch.get_loops(stored)[-4:])
        init = sch.decompose_reduction(_PRODUCT, i)
        vectorize(sch, sch.get_loops(init)[-4:])
        _inputs(sch, outer)
        return column

    def order_products(self, sch: Schedule, config: Config) -> tuple:
        """Schedule the products of a block of tiles and channels; return the loops over a tile and blocks."""
        k, p, q, row, column, c, i, ii = sch.get_loops(_PRODUCT)[-8:]
        sch.reorder(p, q, i, ii, row, column, k, c)
        vectorize(sch, [row, column, k, c])
        if config.prefetch:
            post_rewrite.annotate_prefetch(sch, i, config.tile_oc)
        return q, i

    def finish(self, func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
        """Insert the prefetches of weights."""
        return post_rewrite.insert_prefetches(func) if config.prefetch else func

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each element of a tile of inputs."""
        images, n = workload.data[0], ceildiv(workload.weight[0], lanes)
        elements = (config.m + 2) ** 2
        down, across = (ceildiv(size, config.m) for size in workload.out_size)
        rows = images * ceildiv(down, config.tile_oh)
        return Loops(
            tile_m=config.tile_oh * config.tile_ow,
            tile_n=config.tile_oc,
            m=round_up(across, config.tile_ow) * config.tile_oh,
            n=n,
            products=rows * elements,
            rows=images * down * across * elements,
            k=workload.data[1],
            n_tasks=ceildiv(rows, config.block_oh) if config.block_oh else ceildiv(n, config.tile_oc),
            block_m=config.tile_oh,
            n_outer=config.tile_ow,
            stride=workload.strides[0],
        )


def best_tile(workload: Convolution) -> int | None:
    """Choose the side of the output tiles, 2 or 4; None if direct convolution is better."""
    return cheapest_tile(workload, _TRANSFORMS, read=24, transform=7)


def default_of_tile(workload: Convolution, m: int, simd: Simd) -> Winograd.Config:
    """Choose the default config among those with output tiles of side `m`."""
    return Winograd.Config(m, *default_tiles(workload, m, simd, 4, l2=512 << 10, l2_weights=1200 << 10))


# ---------------------------------------------------------------- shared with `winograd_int`


def cheapest_tile(workload: Convolution, sides: Iterable[int], read: int, transform: int) -> int | None:
    """Choose the side of the output tiles that costs least; None if direct convolution is better.

    Counted for each pair of an input and an output channel: the multiply-adds, the transforms of tiles, and
    the weights that have to be read.

    Args:
        workload: The convolution.
        sides: Those to choose from.
        read: Multiply-adds in the time that one weight takes from main memory.
        transform: Multiply-adds in the time that an element of a tile takes to be transformed, in or out.
    """
    images, (height, width) = workload.data[0], workload.out_size
    outs, ins = workload.weight[:2]
    costs = {None: 9 * (images * height * width + read)}
    for m in sides:
        tiles = images * ceildiv(height, m) * ceildiv(width, m)
        costs[m] = (m + 2) ** 2 * (tiles * (1 + transform * (1 / outs + 1 / ins)) + read)
    return min(costs, key=costs.get)


def tiles_to_search(workload: Convolution, m: int, simd: Simd, most: tuple[int, int, int]) -> Iterator[tuple]:
    """Yield tile_oh, tile_ow, tile_oc that use half of the registers and more, and the choices of block_oh.

    `most` has the largest tile_oc, tile_oh and tile_ow.
    """
    outs = ceildiv(workload.weight[0], simd.lanes)
    down, across = (ceildiv(size, m) for size in workload.out_size)
    limits = most[0], min(down, most[1]), min(across, most[2])
    for oc, oh, ow in itertools.product(*(range(1, limit + 1) for limit in limits)):
        few = (oh * ow + 1) * oc + 1 <= simd.registers / 2
        if outs % oc == 0 and not few and simd.fits(oh * ow, oc):
            yield oh, ow, oc, (0, *(b for b in (1, 2, 4) if ceildiv(down, oh) % b == 0))


def default_tiles(workload: Convolution, m: int, simd: Simd, size: int, l2: int, l2_weights: int) -> tuple:
    """Choose the default tile_oh, tile_ow, tile_oc and block_oh.

    Two blocks of channels, or three: with one, the transformed inputs, with more, the weights are fetched
    more often than a cache delivers. The shape in tiles is the one with the fewest cycles.

    Args:
        workload: The convolution.
        m: Side of a tile of outputs.
        simd: The registers.
        size: Bytes of a transformed element.
        l2: Bytes of a core's cache for transformed inputs.
        l2_weights: Bytes of transformed weights that are read repeatedly from there.
    """
    images, (down, across) = workload.data[0], (ceildiv(each, m) for each in workload.out_size)
    outs, sources = (ceildiv(channels, simd.lanes) for channels in workload.weight[:2])
    tile_oc = next(b for b in (2, 3, 1) if outs % b == 0)
    shapes = (range(1, min(each, simd.registers) + 1) for each in (down, across))

    def tiles_along(oh, ow, _):
        return images, ceildiv(down, oh), ceildiv(across, ow)

    tile_oh, tile_ow, _ = fastest_tile(itertools.product(*shapes, [tile_oc]), tiles_along, simd)
    vectors = (m + 2) ** 2 * sources * simd.lanes * size  # bytes of a transformed tile of inputs
    row = tile_oh * round_up(across, tile_ow) * vectors  # bytes of a row of blocks
    rows = ceildiv(down, tile_oh)
    block_oh = 0
    if vectors * outs * simd.lanes <= l2_weights and images * rows >= 4:
        most = max(1, min(l2 // row, rows // 4))
        block_oh = next(b for b in range(most, 0, -1) if rows % b == 0)
    return tile_oh, tile_ow, tile_oc, block_oh


def transform_weight(weight: np.ndarray, g, lanes: int) -> np.ndarray:
    """Transform (O, I, 3, 3) by `g` into float32 (O blocks, m + 2, m + 2, I blocks, i, x), zero-padded."""
    out, ins = weight.shape[:2]
    outs, sources = ceildiv(out, lanes), ceildiv(ins, lanes)
    padded = pad_to(weight, (outs * lanes, sources * lanes, 3, 3)).reshape(outs, lanes, sources, lanes, 9)
    taps = padded.transpose(0, 4, 2, 3, 1).reshape(outs, 9, -1).astype("float32", copy=False)
    transformed = np.kron(g, g).astype("float32") @ taps  # G w Gᵀ, of each pair of channels
    return transformed.reshape(outs, len(g), len(g), sources, lanes, lanes)


# ---------------------------------------------------------------- of the kernel


def _taps(m: int) -> list[tuple[float, dict[int, int]]]:
    """Return the three taps of a weight along an axis: a factor of transformed elements and their signs."""
    g, last = _TRANSFORMS[m][1], m + 1
    middle = 1 / (2 * g[last - 2][1])
    return [(1 / g[0][0], {0: 1}), (middle, {last - 2: 1, last - 1: -1}), (1 / g[last][2], {last: 1})]


def _inputs(sch, outer):
    """Schedule the transform of the inputs: within `outer`, or before everything else."""
    if outer is not None:
        sch.compute_at("transformed", outer, True)
    b, ty, tx, p, q, i, row, column, c = sch.get_loops("transformed")[-9:]
    is_dynamic = any(not isinstance(sch.get(loop).extent, tirx.IntImm) for loop in (ty, tx))
    sch.reorder(*((b, i, ty, tx) if is_dynamic else (b, ty, tx, i)), row, column, p, q, c)
    for name in ("half_transformed", "patch"):
        sch.compute_at(name, column, True)
        sch.set_scope(name, 0, "local")
        _unroll_all(sch, sch.get_loops(name)[-3:])
    _unroll_all(sch, [p, q, c])
    if outer is None:  # the index of fused dynamic loops takes TVM long to simplify
        parallel(sch, [b, i] if is_dynamic else [b, ty, tx, i])


def _unroll_all(sch, loops):
    *outer, lane = loops
    sch.vectorize(lane)
    for loop in outer:
        sch.unroll(loop)
