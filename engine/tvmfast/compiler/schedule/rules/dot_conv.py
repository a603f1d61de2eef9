"""Convolutions of 8-bit integers in NCHW[x]c, by instructions for dot products: exact sums in int32.

The loops and register tiles are those of `direct_conv`, and of `pointwise` for 1x1 convolutions of stride 1.
An iteration of the reduction takes as many neighbouring channels of a pixel as the instruction adds up (see
../dot.py), broadcast to all lanes, and a register of weights for each block of output channels.
Of a line, bytes that the instruction reads as int16 are widened into panels first: the pixels of a tile, in
the order in which they are read.

Of a convolution of groups, a tile of output channels reads the blocks of input channels that hold its groups'
(`_band`), with weights of 0 for those of others.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.annotations import attribute
from ....core.relax import ceildiv, of_one_type, round_up, simplified, unwrap_ints
from ....core.simd import Simd, pad_to, register_tile
from ..dot import DOTS, tensorize, with_products
from ..epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution
from ..workloads.workload import Workload
from . import direct_conv

_NAME = "dot_conv"
_LARGEST_BLOCK = 8  # tiles of pixels of a task of a line
_TASKS = 8  # for the threads to share


class DotConv(ScheduleRule):
    """Convolution of uint8 data with int8 weights, not depthwise."""

    name = _NAME
    serves = "convolutions of 8-bit integers, not depthwise"
    dtype = "uint8"

    @dataclass(frozen=True)
    class Config:
        """The instruction and the tiles.

        Attributes:
            instruction: A key of `DOTS`.
            tile_ow: Pixels of the register tile. Searched, as is what follows: as in `direct_conv`.
            tile_oc: Blocks of x output channels in it.
            loop_order: The outer loop: "rows" (of an image, or blocks of pixels) or "channels".
            block: Of a line, the tiles of pixels computed before the next output channels; of an image 1.
                Searched: 1, 2, 4, 8, padded by at most 10 %.
        """

        instruction: str
        tile_ow: int
        tile_oc: int
        loop_order: str
        block: int = 1

    EXAMPLES = (
        Convolution((1, 3, 17, 19), (40, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, False, "uint8"),
        Convolution((2, 40, 9, 8), (24, 40, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True, "uint8"),
        Convolution((1, 32, 7, 9), (72, 32, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True, "uint8"),
        Convolution((1, 60, 6, 9), (72, 20, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, True, "uint8"),
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Convolution) and not workload.is_depthwise

    def default(self, workload: Convolution, simd: Simd) -> Config:
        return default(workload, simd)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        height, width = workload.out_size
        line = height * width if workload.is_pointwise else 0
        blocks = ceildiv(workload.weight[0], simd.lanes)
        tiles = direct_conv.tiles(line or width, blocks, with_products(simd))
        sizes = [
            (tile_ow, tile_oc, block)
            for tile_ow, tile_oc in tiles
            for block in (_blocks(ceildiv(line, tile_ow)) if line else [1])
        ]
        return [
            self.Config(simd.dot, tile_ow, tile_oc, order, block)
            for (tile_ow, tile_oc, block), order in itertools.product(sizes, ("rows", "channels"))
        ]

    def packed_shape(self, workload: Convolution, config, lanes: int) -> tuple[int, ...]:
        (outs, _, *window), inner = workload.weight, workload.packed_input_shape(lanes)[-1]
        terms = DOTS[config.instruction].terms
        blocks = round_up(ceildiv(outs, lanes), config.tile_oc)
        ins = _band(workload, config.tile_oc, lanes)[0]
        return blocks, ins, *window, inner // terms, lanes, terms

    def packed_dtype(self, config) -> str:
        return DOTS[config.instruction].weight

    def pack(self, workload: Convolution, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        if workload.groups > 1:
            weight = _banded(workload, weight, config.tile_oc, lanes)
        return pack(weight, config, workload.packed_input_shape(lanes)[-1], lanes)

    def compute(self, data, weight, workload: Convolution, config):
        return compute(data, weight, workload, config)

    def loops(self, workload: Convolution, config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each image of a line, or each row."""
        (height, width), (outs, ins, *window) = workload.out_size, workload.weight
        images, n = workload.data[0], ceildiv(outs, lanes)
        ins = ins if workload.groups == 1 else _band(workload, config.tile_oc, lanes)[0] * lanes
        channel_tiles = ceildiv(n, config.tile_oc)
        if workload.is_pointwise:
            products, m = images, height * width
            rows = images * ceildiv(m, config.tile_ow * config.block)
        else:
            products, m = images * height, width
            rows = products
        return Loops(
            tile_m=config.tile_ow,
            tile_n=config.tile_oc,
            m=m,
            n=n,
            products=products,
            rows=images * height * width,
            k=ceildiv(ins, DOTS[config.instruction].terms) * math.prod(window),
            n_tasks=rows * (1 if workload.is_pointwise and _in_tasks(config) else channel_tiles),
            block_m=config.block,
            n_outer=rows if config.loop_order == "rows" else channel_tiles,
            stride=workload.strides[0],
        )

    def schedule(self, sch: Schedule, config: Config) -> None:
        dot, names = DOTS[config.instruction], block_names(sch)
        loops = sch.get_loops(_NAME)
        is_line = len(loops) == 7
        if is_line:
            n, o, p, c, *reduced, q = loops
            row, wo, wi = sch.split(p, [None, config.block, config.tile_ow])
        else:
            n, o, row, w, c, *reduced, q = loops
            wo, wi = sch.split(w, [None, config.tile_ow])
        oo, oi = sch.split(o, [None, config.tile_oc])
        outer = [n, oo, row] if config.loop_order == "channels" else [n, row, oo]
        lanes = int(sch.get(c).extent)
        sch.reorder(*outer, wo, *reduced, *((q, wi, oi, c) if dot.apply is None else (wi, oi, c, q)))
        fuse_epilogue(sch, _NAME, wo, stages=("pad", "panels"), line=is_line)
        of_task = _in_tasks(config) and "panels" in names
        loop = parallel(sch, outer[:-1] if of_task else outer)
        for name in {"pad", "panels"} & {*names}:
            if of_task:
                sch.compute_at(name, loop)
            widened = sch.get_loops(name)
            sch.vectorize(widened[-1])
            if not of_task:
                parallel(sch, widened[:-2])
        if dot.apply is None:
            sch.vectorize(c)
        for loop in (wi, oi):
            sch.unroll(loop)
        init = sch.decompose_reduction(_NAME, reduced[0])
        vectorize(sch, sch.get_loops(init)[-3:])
        if dot.apply is not None:
            tensorize(sch, f"{_NAME}_update", dot, lanes)


def default(conv: Convolution, simd: Simd) -> DotConv.Config:
    """Choose the register tile with the fewest cycles, as for float32, and the outer loop."""
    (height, width), (outs, ins) = conv.out_size, conv.weight[:2]
    blocks, block, room = ceildiv(outs, simd.lanes), 1, with_products(simd)

    def reads(tile_oc: int) -> int:
        return 1 if conv.groups == 1 else _band(conv, tile_oc, simd.lanes)[0]

    if conv.is_pointwise:
        pixels = height * width
        depth = ceildiv(ins, 4) if pixels > simd.registers >= 32 else None
        tile_ow, tile_oc = register_tile(pixels, blocks, room, direct_conv.CROP, depth, reads)
        tiles = ceildiv(pixels, tile_ow)
        even = [b for b in range(1, _LARGEST_BLOCK + 1) if (round_up(tiles, b) - tiles) * 50 <= tiles]
        if DOTS[simd.dot].data != "uint8":  # by rows, tasks do not share channels
            even = [b for b in even if ceildiv(tiles, b) >= _TASKS] or even
        block = max(even)
        rows = ceildiv(tiles, block)
    else:
        tile_ow, tile_oc = register_tile(width, blocks, room, direct_conv.CROP, reads=reads)
        rows = height
    order = direct_conv.outer_loop(conv, simd.lanes, rows, ceildiv(blocks, tile_oc), size=1)
    return DotConv.Config(simd.dot, tile_ow, tile_oc, "rows" if conv.groups > 1 else order, block)


def _in_tasks(config: DotConv.Config) -> bool:
    """Return whether each task packs the panels of its own pixels, if there are any, and has all channels."""
    return config.loop_order == "rows" and DOTS[config.instruction].data != "uint8"


@functools.lru_cache(maxsize=1024)
def _band(conv: Convolution, tile_oc: int, lanes: int) -> tuple[int, Callable]:
    """Return how many blocks of inputs a tile of output channels reads, and the first, by its number."""
    blocks, width = conv.packed_input_shape(lanes)[1], tile_oc * lanes
    (outs, ins), groups = conv.weight[:2], conv.groups
    if groups == 1:
        return blocks, lambda _: 0
    tiles, out = range(ceildiv(outs, width)), outs // groups

    def first(tile):
        return tile * width // out * ins // lanes

    ends = [ceildiv(((min((tile + 1) * width, outs) - 1) // out + 1) * ins, lanes) for tile in tiles]
    count = max(end - first(tile) for tile, end in enumerate(ends))
    last = blocks - count
    if all(first(tile) <= last for tile in tiles):
        return count, first
    return count, lambda tile: min(first(tile), last) if isinstance(tile, int) else te.min(first(tile), last)


def _banded(conv: Convolution, weight: np.ndarray, tile_oc: int, lanes: int) -> np.ndarray:
    """Return weights (O, I, KH, KW) of groups as (O, i, KH, KW), of all channels that their tile reads."""
    (outs, ins, *window), (count, first) = weight.shape, _band(conv, tile_oc, lanes)
    banded = np.zeros((outs, count * lanes, *window), weight.dtype)
    for out in range(outs):
        start = out // (outs // conv.groups) * ins - first(out // (tile_oc * lanes)) * lanes
        banded[out, start : start + ins] = weight[out]
    return banded


def pack(weight: np.ndarray, config: DotConv.Config, inner: int, lanes: int) -> np.ndarray:
    """Pack integers (O, I, KH, KW) into (O / x, I / i, KH, KW, i / terms, x, terms).

    The data have blocks of i channels. O and I are zero-padded, O to whole tiles.
    """
    outs, ins, *window = weight.shape
    blocks, groups = round_up(ceildiv(outs, lanes), config.tile_oc), ceildiv(ins, inner)
    padded = pad_to(weight, (blocks * lanes, groups * inner, *window))
    split = padded.reshape(blocks, lanes, groups, inner, *window).transpose(0, 2, 4, 5, 3, 1)
    return DOTS[config.instruction].pack(split, lanes)


def _blocks(tiles: int) -> list[int]:
    """List the blocks of a line's tiles to search."""
    return [n for n in (1, 2, 4, _LARGEST_BLOCK) if n <= tiles and (round_up(tiles, n) - tiles) * 10 <= tiles]


def compute(data, weight, conv: Convolution, config: DotConv.Config):
    """Return the sums (N, blocks, OH, OW, x) in int32 of the products of data and weights.

    Args:
        data: uint8, (N, I, H, W, i).
        weight: As `pack` returns it.
        conv: The convolution.
        config: How to compute them.
    """
    dot = DOTS[config.instruction]
    n, _, h, w, inner = unwrap_ints(data.shape)
    out, ins, kernel_h, kernel_w, _, lanes, _ = unwrap_ints(weight.shape)
    (sh, sw), (dh, dw), (out_h, out_w) = conv.strides, conv.dilation, conv.out_size_of(h, w)
    static, first = isinstance(h, int) and isinstance(w, int), _band(conv, config.tile_oc, lanes)[1]
    is_line, clamped = conv.is_pointwise and static, conv.is_pointwise and str(data.dtype) == dot.data
    full_w, in_panels = round_up(out_w, config.tile_ow), is_line and str(data.dtype) != dot.data
    if is_line:
        pixels, full = h * w, round_up(h * w, config.tile_ow * config.block)
        if in_panels:
            data = _panels(data, dot.data, full, config.tile_ow)
    elif not clamped:
        reach_h, reach_w = conv.reach
        size = simplified((out_h - 1) * sh + reach_h), simplified((full_w - 1) * sw + reach_w)
        data = _padded(data, dot.data, conv.padding[:2], size, conv.zero)
    # Expressions of int64 mix with no numbers of int32.
    (_, kernel_h), (_, kernel_w) = of_one_type(out_h, kernel_h), of_one_type(out_w, kernel_w)
    extents = {"i": ins, "kh": kernel_h, "kw": kernel_w, "ii": inner // dot.terms, "q": dot.terms}
    if is_line:
        del extents["kh"], extents["kw"]
    axes = {name: te.reduce_axis((0, extent), name) for name, extent in extents.items()}
    i, ii, q = (axes[name] for name in ("i", "ii", "q"))

    def total(pixel, weights):
        return te.sum(pixel.astype("int32") * weights.astype("int32"), axis=[*axes.values()])

    def of_line(b, k, p, c):
        block, channel = first(k // config.tile_oc) + i, ii * dot.terms + q
        if in_panels:
            pixel = data[b, p // config.tile_ow, block, p % config.tile_ow, channel]
        else:
            at = p if full == pixels else te.min(p, pixels - 1)
            pixel = data[b, block, at // w, at % w, channel]
        return total(pixel, weight[k, i, 0, 0, ii, c, q])

    def of_image(b, k, y, x, c):
        kh, kw = axes["kh"], axes["kw"]
        row, column = y * sh + kh * dh, te.min(x, w - 1) if clamped else x * sw + kw * dw
        pixel = data[b, first(k // config.tile_oc) + i, row, column, ii * dot.terms + q]
        return total(pixel, weight[k, i, kh, kw, ii, c, q])

    attrs = attribute(DotConv().as_dict(config), conv)
    shape = n, ceildiv(conv.weight[0], lanes), out_h, out_w, lanes
    if is_line:
        line = te.compute((n, out, full, lanes), of_line, name=_NAME, attrs=attrs)
        return te.compute(shape, lambda b, k, y, x, c: line[b, k, y * w + x, c], name="picture")
    return crop(te.compute((n, out, out_h, full_w, lanes), of_image, name=_NAME, attrs=attrs), shape)


def _panels(data, dtype: str, pixels: int, tile: int):
    """Return data (N, I, H, W, i) in a dtype as (N, tiles, I, pixels of a tile, i), in a tile's order."""
    n, ins, h, w, inner = unwrap_ints(data.shape)

    def element(b, t, k, p, c):
        at = t * tile + p
        at = at if pixels == h * w else te.min(at, h * w - 1)
        return data[b, k, at // w, at % w, c].astype(dtype)

    return te.compute((n, pixels // tile, ins, tile, inner), element, name="panels")


def _padded(data, dtype: str, before: tuple[int, int], size: tuple[int, int], zero: int):
    """Return data (N, I, H, W, i) in a dtype, padded by `zero` at the top and the left, and up to a size."""
    n, ins, h, w, inner = unwrap_ints(data.shape)
    (top, left), (height, width) = before, size
    static = all(isinstance(each, int) for each in (h, w, height, width))
    fits = not (top or left) and static and height <= h and width <= w
    if fits and str(data.dtype) == dtype:
        return data

    def element(b, k, y, x, c):
        value = data[b, k, y - top, x - left, c]
        if not fits:
            inside = tirx.all(y >= top, y < h + top, x >= left, x < w + left)
            value = te.if_then_else(inside, value, tirx.const(zero, data.dtype))
        return value.astype(dtype)

    return te.compute((n, ins, height, width, inner), element, name="pad")
