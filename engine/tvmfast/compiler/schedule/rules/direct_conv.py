"""Direct convolution in NCHW[x]c: a tile of accumulators stays in registers while the window slides.

The accumulators of `tile_ow` neighbouring pixels times `tile_oc` blocks of output channels are `tile_ow *
tile_oc` vector registers. Each iteration of the reduction loads one input element per pixel, broadcast to a
register's lanes, and one vector of weights per block: (tile_ow + tile_oc) loads for tile_ow * tile_oc fused
multiply-adds. The scheme is that of NeoCPU (Liu et al., USENIX ATC 2019) and of oneDNN's direct convolution
(Georganas et al., SC 2018).
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, of_one_type, round_up, unwrap_ints
from ....core.simd import Simd, pad_to, register_tile
from ..epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution, pack
from ..workloads.workload import Workload

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache beside the images
_CACHED_IMAGE = 1 << 20  # bytes of an image that stays there beside some weights
_REDUCED = ("i", "kh", "kw", "ii")  # the axes of the reduction
CROP = 1.1  # factor of the cycles if pixels are cropped


class DirectConv(ScheduleRule):
    """Direct convolution, neither depthwise nor pointwise."""

    name = "conv2d"
    serves = "convolutions neither depthwise nor pointwise"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """The register tile and the order of the loops around it.

        With `tile_ic` all pixels are computed for some input channels before the next, with their
        accumulators in the cache, so that large weights are read once, sequentially. Tiles that do not fit
        into the registers, or leave too many unused (`_uses`), are not searched.

        Attributes:
            tile_oh: Rows of the register tile. Searched: 1; 2, 3, 4, 7 up to the height, with 2 pixels or
                more and up to 3 blocks.
            tile_ow: Pixels of a row in the register tile. Searched: 1 to min(width, registers).
            tile_oc: Blocks of x output channels in it. Searched: 1 to min(blocks of channels, 8).
            loop_order: The outer loop: "rows" of the image or "channels". Searched: both.
            tile_ic: Blocks of input channels reduced at a time, None for all. Searched: None; divisors of the
                blocks out of 1, 4, 16, of blocked data, with the outer loop "channels".
        """

        tile_oh: int = 1
        tile_ow: int
        tile_oc: int
        loop_order: str
        tile_ic: int | None = None

    EXAMPLES = (
        Convolution((1, 3, 24, 24), (32, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, False),  # of an image
        Convolution((1, 32, 12, 12), (32, 32, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1, True),
        Convolution((1, 48, 8, 8), (72, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, True),  # `has_gaps`
        Convolution((2, 32, 1, 41), (40, 32, 1, 3), (1, 2), (0, 1, 0, 2), (1, 1), 1, True),  # of a line
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Convolution) and not (workload.is_depthwise or workload.is_pointwise)

    def default(self, workload: Convolution, simd: Simd) -> Config:
        """Choose the register tile with the fewest cycles, and the outer loop.

        A tile of all channels of a group takes several rows into the registers that are left.
        """
        height, width = workload.out_size
        blocks = ceildiv(workload.group_channels(simd.lanes)[1], simd.lanes)
        tile_ow, tile_oc = register_tile(width, blocks, simd, CROP)
        loop_order = outer_loop(workload, simd.lanes, height, ceildiv(blocks, tile_oc))
        tile_oh = 1
        if workload.kernel_groups(simd.lanes) > 1 and tile_oc == blocks:
            tile_oh = max(oh for oh in (1, 2, 4) if oh <= height and simd.fits(oh * tile_ow, tile_oc))
        return self.Config(tile_oh=tile_oh, tile_ow=tile_ow, tile_oc=tile_oc, loop_order=loop_order)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        height, width = workload.out_size
        blocks = ceildiv(workload.group_channels(simd.lanes)[1], simd.lanes)
        flat = [{"tile_ow": ow, "tile_oc": oc} for ow, oc in tiles(width, blocks, simd)]
        tall = [
            {"tile_oh": oh, "tile_ow": ow, "tile_oc": oc}
            for oh in (2, 3, 4, 7)
            if oh <= height
            for oc in range(1, min(blocks, 3) + 1)
            for ow in range(2, min(width, simd.registers) + 1)
            if _uses(oh * ow, oc, simd)
        ]
        pairs = itertools.product([*flat, *tall], orders(workload, simd.lanes))
        return [self.Config(**tile, **order) for tile, order in pairs]

    def packed_shape(self, workload: Convolution, config, lanes: int) -> tuple[int, ...]:
        """Return the shape of the packed weight, (O, I, KH, KW, i, x) or (O, I, KH, KW, x); see `compute`."""
        return _packed_shape(workload, config.tile_oc, lanes)

    def pack(self, workload: Convolution, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        """Pack the weight (O, I, KH, KW) as `compute` takes it, each group zero-padded to whole tiles."""
        groups, tile = workload.kernel_groups(lanes), lanes * config.tile_oc
        weight = workload.joined(weight, lanes)
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        by_group = pad_to(by_group, (groups, round_up(by_group.shape[1], tile), *weight.shape[1:]))
        inner = workload.packed_input_shape(lanes)[-1] if workload.blocked else 1
        array = pack(by_group.reshape(-1, *weight.shape[1:]), inner, lanes)
        return array if workload.blocked else array[..., 0, :]

    def compute(self, data, weight, workload: Convolution, config: Config):
        """Return the convolution (N, blocks, OH, OW, x) of NCHW[x]c or, with one group, of NCHW data.

        Data (N, blocks, H, W, i) have a weight (O, I, KH, KW, i, x), and (N, I, H, W) have (O, I, KH, KW, x).
        Rows are computed up to a multiple of the tile and then cropped; so are the blocks if there is one
        group. Of several groups, each has I of the input blocks and an equal share of the O output blocks.
        """
        n, _, h, w, *inner = unwrap_ints(data.shape)
        out, ins, kernel_h, kernel_w = (int(s) for s in weight.shape[:4])
        lanes = int(weight.shape[-1])
        (sh, sw), (dh, dw), (out_h, out_w) = workload.strides, workload.dilation, workload.out_size_of(h, w)
        full_h, full_w = round_up(out_h, config.tile_oh), round_up(out_w, config.tile_ow)
        clamped = (kernel_h, kernel_w) == (1, 1) and not any(workload.padding)
        clamped = clamped and not (isinstance(h, int) and isinstance(w, int))
        data = data if clamped else workload.pad(data, full_h, full_w)
        groups = workload.kernel_groups(lanes)
        extents = of_one_type(ins, kernel_h, kernel_w, inner[0] if inner else 1, full_h, full_w)
        i, kh, kw, ii = (te.reduce_axis((0, n), name) for n, name in zip(extents, _REDUCED, strict=False))

        def element(b, k, y, x, c):
            block = k // (out // groups) * ins + i
            row, column = y * sh + kh * dh, x * sw + kw * dw
            if clamped:
                row, column = te.min(row, h - 1), te.min(column, w - 1)
            if inner:
                product = self.multiply(data[b, block, row, column, ii], weight[k, i, kh, kw, ii, c])
            else:
                product = data[b, i + ii, row, column] * weight[k, i + ii, kh, kw, c]
            channel = i * (inner[0] if inner else 1) + ii
            return te.sum(workload.within_group(product, channel, c, lanes), axis=[i, kh, kw, ii])

        attrs = self.annotation(workload, config)
        shape = (n, *of_one_type(out, full_h, full_w, lanes))
        output = te.compute(shape, element, name="conv2d", attrs=attrs)
        blocks = ceildiv(workload.weight[0], lanes) if groups == 1 else out
        return crop(output, (n, blocks, out_h, out_w, lanes))

    def multiply(self, element, weight):
        """Return the product of an element of the data and a packed weight."""
        return element * weight

    def schedule(self, sch: Schedule, config: Config) -> None:
        names = block_names(sch)
        n, o, h, w, c, i, kh, kw, ii = sch.get_loops("conv2d")
        is_line = _runs_once(sch.get(h))
        oo, oi = sch.split(o, [None, config.tile_oc])
        wo, wi = sch.split(w, [None, config.tile_ow])
        ho, hi = sch.split(h, [None, config.tile_oh])
        own_channels = "pad" in names and _reads_own_channels(sch, oo, i)
        if config.tile_ic:
            reduction, i = sch.split(i, [None, config.tile_ic])
            outer, end = [n, oo], oo
            sch.reorder(*outer, reduction, ho, wo, i, kh, kw, ii, hi, wi, oi, c)
        else:
            reduction, end = i, wo
            outer = [n, oo, ho] if config.loop_order == "channels" else [n, ho, oo]
            sch.reorder(*outer, wo, i, kh, kw, ii, hi, wi, oi, c)
        fuse_epilogue(sch, "conv2d", end, stages=("pad",))
        if is_line and not config.tile_ic:
            outer.append(wo)  # threads share a line's tiles
        loop = parallel(sch, outer)
        vectorize(sch, [hi, wi, oi, c])
        if "pad" in names:
            loops = sch.get_loops("pad")
            if own_channels:
                sch.compute_at("pad", loop, preserve_unit_loops=True)
            else:
                parallel(sch, loops[:-2])
            if len(loops) == 5:
                sch.vectorize(sch.get_loops("pad")[-1])
        init = sch.decompose_reduction("conv2d", reduction)
        vectorize(sch, sch.get_loops(init)[-4:])

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each row of register tiles."""
        height, width = workload.out_size
        rows, oh = workload.data[0] * ceildiv(height, config.tile_oh), config.tile_oh
        sizes = {"tile_m": oh * config.tile_ow, "m": oh * width, "products": rows, "block_m": oh}
        loops = loops_of(workload, config, lanes, rows, **sizes)
        shared = ceildiv(width, config.tile_ow) if height == 1 and not config.tile_ic else 1
        return dataclasses.replace(loops, n_tasks=loops.n_tasks * shared)


# ---------------------------------------------------------------- shared with `pointwise`


def outer_loop(workload: Convolution, lanes: int, rows: int, channel_tiles: int, size: int = 4) -> str:
    """Choose the outer loop: "rows", of `rows` that each read all weights, or "channels", in tiles.

    Rows if all weights fit into the cache, channels if the image does; if neither does, the one that fetches
    less. Weights are read sequentially, an image a few pixels here and there, which costs twice as much. An
    element of either has `size` bytes.
    """
    image = size * math.prod(workload.packed_input_shape(lanes)[1:])  # bytes
    weights = size * math.prod(_packed_shape(workload, 1, lanes))
    if weights <= _CACHED_WEIGHTS:
        return "rows"
    return "rows" if image > _CACHED_IMAGE and weights * rows < 2 * image * channel_tiles else "channels"


def tiles(pixels: int, blocks: int, simd: Simd) -> list[tuple[int, int]]:
    """List the register tiles to search, pixels and blocks of output channels, for a row of `pixels`."""
    return [
        (p, b)
        for b in range(1, min(blocks, 8) + 1)
        for p in range(1, min(pixels, simd.registers) + 1)
        if _uses(p, b, simd)
    ]


def _uses(pixels: int, blocks: int, simd: Simd) -> bool:
    """Return whether a tile fits into the registers and leaves not too many unused."""
    used = pixels * blocks + blocks + 1
    return simd.fits(pixels, blocks) and simd.registers < 2 * (used + pixels * blocks)


def orders(workload: Convolution, lanes: int) -> list[dict]:
    """List the orders of the outer loops to search."""
    ins = _packed_shape(workload, 1, lanes)[1]
    divisors = [c for c in (1, 4, 16) if c < ins and ins % c == 0] if workload.blocked else []
    split = [{"loop_order": "channels", "tile_ic": c} for c in divisors]
    return [{"loop_order": "rows"}, {"loop_order": "channels"}, *split]


def _packed_shape(workload: Convolution, tile_oc: int, lanes: int) -> tuple[int, ...]:
    groups, (ins, outs) = workload.kernel_groups(lanes), workload.group_channels(lanes)
    blocks = groups * round_up(ceildiv(outs, lanes), tile_oc)
    if not workload.blocked:
        return blocks, ins, *workload.weight[2:], lanes
    source = workload.packed_input_shape(lanes)
    return blocks, source[1] // groups, *workload.weight[2:], source[-1], lanes


def loops_of(workload: Convolution, config, lanes: int, blocks: int, **sizes: int) -> Loops:
    """Return the sizes of loops over `blocks` of `block_m` rows or tiles each, given those of the pixels."""
    n, ins = ceildiv(workload.weight[0], lanes), workload.group_channels(lanes)[0]
    channel_tiles = ceildiv(n, config.tile_oc)
    return Loops(
        **sizes,
        tile_n=config.tile_oc,
        n=n,
        rows=workload.data[0] * math.prod(workload.out_size),
        k=ins * math.prod(workload.weight[2:]),
        n_tasks=blocks * channel_tiles,
        n_outer=blocks if config.loop_order == "rows" else channel_tiles,
        k_block=config.tile_ic or (ceildiv(ins, lanes) if workload.blocked else 1),
        stride=workload.strides[0],
    )


def _reads_own_channels(sch: Schedule, oo, i) -> bool:
    """Return whether no two tiles of output channels read the same input: each can pad its rows itself."""
    channels = sch.get(sch.get_loops("pad")[1]).extent
    return int(sch.get(oo).extent) * int(sch.get(i).extent) == int(channels)


def _runs_once(loop) -> bool:
    return isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 1
