"""1x1 convolution of stride 1 in NCHW[x]c: a matrix product over the pixels, regardless of the image's rows.

The tile of accumulators is that of `direct_conv`. An image is one line of H * W pixels, computed up to a
whole number of tiles, so that a width such as 19 or 38 leaves none of a tile unused.
"""

import itertools
import math
from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd, register_tile
from ..epilogue import fuse_epilogue, parallel, vectorize
from ..rule import Loops
from ..workloads.conv2d import Convolution
from ..workloads.workload import Workload
from . import direct_conv

_LARGEST_BLOCK = 8  # tiles of pixels in a block of the default config


class Pointwise(direct_conv.DirectConv):
    """Pointwise convolution; the weight is packed as for direct convolution."""

    name = "pointwise"
    stages = ()  # before the product
    serves = "1x1 convolutions of stride 1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """The register tile and the order of the loops around it.

        Attributes:
            tile_m: Pixels of the register tile. Searched: 1 to min(H * W, registers); see `direct_conv`.
            tile_oc: Blocks of x output channels in it. Searched: 1 to min(blocks of channels, 8).
            block_m: Tiles of pixels computed before the next output channels. Searched: 1, 2, 4, 8, 16 and
                all, padded by at most 10 %.
            loop_order: The outer loop: "rows" (blocks of pixels) or "channels". Searched: both.
            tile_ic: As in `direct_conv`, for the pixels of a block.
        """

        tile_m: int
        tile_oc: int
        block_m: int
        loop_order: str
        tile_ic: int | None = None

    EXAMPLES = (
        Convolution((1, 32, 7, 9), (40, 32, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
        Convolution((3, 24, 5, 5), (16, 24, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
        Convolution((1, 24, 6, 7), (48, 4, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 6, True),  # `joined_groups`
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Convolution) and workload.is_pointwise

    def default(self, workload: Convolution, simd: Simd) -> Config:
        """Choose the register tile with the fewest cycles, the block and the outer loop."""
        pixels, (ins, outs) = math.prod(workload.out_size), workload.group_channels(simd.lanes)
        # A single tile uses its weights once; small tiles gain nothing by it.
        depth = ins if pixels > simd.registers >= 32 else None
        tile_m, tile_oc = register_tile(pixels, ceildiv(outs, simd.lanes), simd, direct_conv.CROP, depth)
        tiles = ceildiv(pixels, tile_m)
        # At most 2 % padding.
        block_m = max(b for b in range(1, _LARGEST_BLOCK + 1) if (round_up(tiles, b) - tiles) * 50 <= tiles)
        channel_tiles = ceildiv(outs, simd.lanes * tile_oc)
        loop_order = direct_conv.outer_loop(workload, simd.lanes, ceildiv(tiles, block_m), channel_tiles)
        return self.Config(tile_m=tile_m, tile_oc=tile_oc, block_m=block_m, loop_order=loop_order)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        pixels, outs = math.prod(workload.out_size), workload.group_channels(simd.lanes)[1]
        tiles = [
            {"tile_m": m, "tile_oc": oc, "block_m": block}
            for m, oc in direct_conv.tiles(pixels, ceildiv(outs, simd.lanes), simd)
            for block in _blocks(ceildiv(pixels, m))
        ]
        pairs = itertools.product(tiles, direct_conv.orders(workload, simd.lanes))
        return [self.Config(**tile, **order) for tile, order in pairs]

    def compute(self, data, weight, workload: Convolution, config: Config):
        """Return the convolution of data (N, blocks, H, W, i) with a weight (O, I, 1, 1, i, x).

        Groups are as in `DirectConv.compute`.
        """
        n, _, h, w, inner = unwrap_ints(data.shape)
        out, ins, lanes = (int(weight.shape[axis]) for axis in (0, 1, -1))
        groups = workload.kernel_groups(lanes)
        full = round_up(h * w, config.tile_m * config.block_m)
        i, ii = te.reduce_axis((0, ins), "i"), te.reduce_axis((0, inner), "ii")

        def element(b, k, p, c):
            pixel = p if full == h * w else te.min(p, h * w - 1)
            block = k // (out // groups) * ins + i
            product = self.multiply(data[b, block, pixel // w, pixel % w, ii], weight[k, i, 0, 0, ii, c])
            return te.sum(workload.within_group(product, i * inner + ii, c, lanes), axis=[i, ii])

        attrs = self.annotation(workload, config)
        line = te.compute((n, out, full, lanes), element, name="pointwise", attrs=attrs)
        blocks = ceildiv(workload.weight[0], lanes) if groups == 1 else out
        shape = (n, blocks, h, w, lanes)
        return te.compute(shape, lambda b, k, y, x, c: line[b, k, y * w + x, c], name="picture")

    def schedule(self, sch: Schedule, config: Config) -> None:
        n, o, p, c, i, ii = sch.get_loops("pointwise")
        oo, oi = sch.split(o, [None, config.tile_oc])
        block, po, pi = sch.split(p, [None, config.block_m, config.tile_m])
        outer = [n, oo, block] if config.loop_order == "channels" else [n, block, oo]
        if config.tile_ic:
            reduction, i = sch.split(i, [None, config.tile_ic])
            end = outer[-1]
            sch.reorder(*outer, reduction, po, i, ii, pi, oi, c)
        else:
            reduction, end = i, po
            sch.reorder(*outer, po, i, ii, pi, oi, c)
        fuse_epilogue(sch, "pointwise", end, self.stages, line=True)
        parallel(sch, outer)
        vectorize(sch, [pi, oi, c])
        init = sch.decompose_reduction("pointwise", reduction)
        vectorize(sch, sch.get_loops(init)[-3:])

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each image."""
        n, pixels = workload.data[0], math.prod(workload.out_size)
        blocks = n * ceildiv(pixels, config.tile_m * config.block_m)
        sizes = {"tile_m": config.tile_m, "m": pixels, "products": n, "block_m": config.block_m}
        return direct_conv.loops_of(workload, config, lanes, blocks, **sizes)


def _blocks(tiles: int) -> list[int]:
    """List the sizes of blocks, few and many tiles, that pad the image's `tiles` by at most a tenth."""
    blocks = {min(n, tiles) for n in (1, 2, 4, 8, 16, tiles)}
    return sorted(b for b in blocks if (round_up(tiles, b) - tiles) * 10 <= tiles)
