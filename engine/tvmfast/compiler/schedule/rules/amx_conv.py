"""Convolutions in NCHW16c by the tiles of AMX, of 8-bit integers or of bfloat16; see ../amx.py.

The rows of a tile are neighbouring pixels of a row of an image, or of all pixels in one line for a 1x1
convolution. A stage before the product, which also pads the image, brings the channels of a row of a tile
together: 64 of uint8, in the order of the network, or 32 of bfloat16, those of two blocks in pairs. It is the
padding that other rules have, too; that of a 1x1 convolution, which they do without, is a copy of the image.
"""

import math
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd, pad_to
from .. import pairs
from ..amx import INSTRUCTIONS, ROWS, Tile, suits, tile_loops, tile_of
from ..epilogue import crop, parallel
from ..rule import ScheduleRule
from ..workloads.conv2d import Convolution
from . import direct_conv

_NAME, _STAGE = "amx_conv", "pad"
_OF_INTEGERS = "tdpbusd"
_LARGEST_BLOCK = 8  # tiles of pixels of a task of a line


class AmxConv(ScheduleRule):
    """Convolution of uint8 data with int8 weights, or of float32 data, which it rounds, without groups."""

    name = _NAME

    @dataclass(frozen=True)
    class Config:
        """The instruction, the register tile and the loops around it.

        Attributes:
            instruction: A key of `INSTRUCTIONS`.
            rows: Pixels of a tile.
            across: Tiles of a row of the image in the register tile.
            down: Rows of the image in the register tile.
            tile_oc: Blocks of 16 output channels in the register tile.
            loop_order: The outer loop: "rows" (of an image, or blocks of pixels) or "channels".
            strides: Of the convolution, down and across; of a line (1, 1).
            block: Of a line, the register tiles computed before the next output channels; of an image 1.
        """

        instruction: str
        rows: int
        across: int
        down: int
        tile_oc: int
        loop_order: str
        strides: tuple[int, int]
        block: int = 1

    def pack(self, workload: Convolution, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        return pack(weight, config, ROWS, lanes)

    def packed_shape(self, workload: Convolution, config: Config, lanes: int) -> tuple[int, ...]:
        """Return the shape of the packed weight, of which the first axis has the blocks of outputs."""
        instruction, (outs, ins, *window) = INSTRUCTIONS[config.instruction], workload.weight
        groups = ceildiv(ins, instruction.channels)
        return round_up(ceildiv(outs, ROWS), config.tile_oc), groups, *window, ROWS, ROWS, instruction.terms

    def compute(self, data, weight, workload: Convolution, config: Config):
        return compute(data, weight, workload, config)

    def schedule(self, sch: Schedule, config: Config) -> None:
        strides, loops = tuple(config.strides), sch.get_loops(_NAME)
        is_line = len(loops) == 7
        tile = Tile(
            config.instruction, config.rows, config.across, config.down, config.tile_oc, strides, not is_line
        )
        if is_line:
            n, o, p, c, *reduced, k, q = loops
            row, wo, wi = sch.split(p, [None, config.block, config.rows * config.across])
            hi = []
        else:
            n, o, h, w, c, *reduced, k, q = loops
            wo, wi = sch.split(w, [None, config.rows * config.across])
            row, *hi = sch.split(h, [None, config.down])
        oo, oi = sch.split(o, [None, config.tile_oc])
        outer = [n, oo, row] if config.loop_order == "channels" else [n, row, oo]
        sch.reorder(*outer, wo, *reduced, oi, *hi, wi, c, k, q)
        tile_loops(sch, _NAME, outer, wo, reduced[0], oi, tile, (_STAGE,), is_line)
        *padded, last, channels = sch.get_loops(_STAGE)
        if is_line:  # threads share it
            padded.append(sch.split(last, [None, config.rows * config.across])[0])
        parallel(sch, padded)
        sch.vectorize(sch.split(channels, [None, ROWS])[1])


def fits(conv: Convolution, shape: tuple, simd: Simd, instruction: str) -> bool:
    """Tell whether a target computes a convolution of data of a shape, with its dynamic dims, by tiles."""
    if not all(isinstance(dim, int) for dim in shape) or conv.groups > 1 or not conv.blocked:
        return False
    return suits(simd.tiles, instruction, math.prod(conv.out_size), conv.weight[1])


def config_of_integers(conv: Convolution, shape: tuple, simd: Simd) -> dict | None:
    """Return the config of a convolution of 8-bit integers, or None if it is not computed by tiles."""
    if not fits(conv, shape, simd, _OF_INTEGERS):
        return None
    return AmxConv().as_dict(default(conv, _OF_INTEGERS))


def default(conv: Convolution, instruction: str) -> AmxConv.Config:
    """Choose the register tile, the outer loop, and the block of a line."""
    (height, width), blocks, block, strides = conv.out_size, ceildiv(conv.weight[0], ROWS), 1, conv.strides
    if _is_line(conv):
        height, width, strides = 1, height * width, (1, 1)
    tile = tile_of(height, width, blocks)
    rows = ceildiv(height, tile["down"])
    if _is_line(conv):
        tiles = ceildiv(width, tile["rows"] * tile["across"])
        block = max(b for b in range(1, _LARGEST_BLOCK + 1) if (round_up(tiles, b) - tiles) * 50 <= tiles)
        rows = ceildiv(tiles, block)
    size = 1 if INSTRUCTIONS[instruction].terms > 1 else 2
    order = direct_conv.outer_loop(conv, ROWS, rows, ceildiv(blocks, tile["blocks"]), size)
    return AmxConv.Config(
        instruction, tile["rows"], tile["across"], tile["down"], tile["blocks"], order, strides, block
    )


def _is_line(conv: Convolution) -> bool:
    return conv.weight[2:] == (1, 1) and not any(conv.padding)


def pack(weight: np.ndarray, config: AmxConv.Config, inner: int, lanes: int) -> np.ndarray:
    """Pack weights (O, I, KH, KW) into (O / 16, groups, KH, KW, 16, 16, terms), zero-padded to whole tiles.

    A group of channels is a row of a tile. Of bfloat16, terms is 1, and an element two numbers: a channel's
    and that of the same channel of the next block. The data have blocks of `inner` = `lanes` = 16 channels.
    """
    instruction, (outs, ins, *window) = INSTRUCTIONS[config.instruction], weight.shape
    blocks, each = round_up(ceildiv(outs, lanes), config.tile_oc), instruction.channels
    groups = ceildiv(ins, each)
    padded = pad_to(weight, (blocks * lanes, groups * each, *window))
    split = padded.reshape(blocks, lanes, groups, each, *window).transpose(0, 2, 4, 5, 3, 1)
    if instruction.terms == 1:
        split = pairs.pack(split, 4, inner)
    return instruction.weights.pack(split, lanes)


def compute(data, weight, conv: Convolution, config: AmxConv.Config):
    """Return the sums (N, blocks, OH, OW, 16), of int32 or float32, of the products of data and weights.

    Args:
        data: uint8, or float32 to be rounded to bfloat16, (N, I, H, W, 16).
        weight: As `pack` returns it.
        conv: The convolution.
        config: How to compute them.
    """
    instruction, rule = INSTRUCTIONS[config.instruction], AmxConv()
    n, _, h, w, lanes = unwrap_ints(data.shape)
    out, groups, kernel_h, kernel_w, _, _, terms = unwrap_ints(weight.shape)
    (sh, sw), (dh, dw), (out_h, out_w) = conv.strides, conv.dilation, conv.out_size_of(h, w)
    is_line, columns = _is_line(conv), config.rows * config.across
    if is_line:
        pixels, full = out_h * out_w, round_up(out_h * out_w, columns * config.block)

        def pixel(block, p, c):
            at = p if full == pixels else te.min(p, pixels - 1)
            if (sh, sw) == (1, 1):
                return data[(*block, at // w, at % w, c)]
            return data[(*block, at // out_w * sh, at % out_w * sw, c)]

        rows = _rows_of_tiles(data, pixel, (n, groups, full), instruction)
    else:
        full_h, full_w = round_up(out_h, config.down), round_up(out_w, columns)
        (top, left, *_), (reach_h, reach_w) = conv.padding, conv.reach

        def pixel(block, y, x, c):
            value = data[(*block, y - top, x - left, c)]
            inside = tirx.all(y >= top, y < h + top, x >= left, x < w + left)
            return te.if_then_else(inside, value, tirx.const(conv.zero, data.dtype))

        size = (full_h - 1) * sh + reach_h, (full_w - 1) * sw + reach_w
        rows = _rows_of_tiles(data, pixel, (n, groups, *size), instruction)
    extents = {"i": groups, "kh": kernel_h, "kw": kernel_w, "k": ROWS, "q": terms}
    if is_line:
        del extents["kh"], extents["kw"]
    axes = {name: te.reduce_axis((0, extent), name) for name, extent in extents.items()}
    i, k, q = (axes[name] for name in ("i", "k", "q"))

    def of_line(b, o, p, c):
        product = instruction.multiply(rows[b, i, p, k * terms + q], weight[o, i, 0, 0, k, c, q])
        return te.sum(product, axis=[*axes.values()])

    def of_image(b, o, y, x, c):
        kh, kw = axes["kh"], axes["kw"]
        element = rows[b, i, y * sh + kh * dh, x * sw + kw * dw, k * terms + q]
        return te.sum(instruction.multiply(element, weight[o, i, kh, kw, k, c, q]), axis=[*axes.values()])

    attrs = rule.annotation(conv, config)
    shape = n, ceildiv(conv.weight[0], lanes), out_h, out_w, lanes
    if is_line:
        line = te.compute((n, out, full, lanes), of_line, name=_NAME, attrs=attrs)
        return te.compute(shape, lambda b, o, y, x, c: line[b, o, y * out_w + x, c], name="picture")
    return crop(te.compute((n, out, full_h, full_w, lanes), of_image, name=_NAME, attrs=attrs), shape)


def _rows_of_tiles(data, pixel, shape: tuple, instruction):
    """Return data (N, blocks, H, W, 16), which `pixel` reads, as rows of tiles, of a shape (N, groups, …)."""
    blocks = int(data.shape[1])

    def element(b, g, *at):
        *place, c = at
        if instruction.terms == 1:
            return pairs.paired(lambda block: pixel((b, block), *place, c), g, blocks)
        block = g * (instruction.depth // ROWS) + c // ROWS
        if blocks * ROWS % instruction.depth:
            block = te.min(block, blocks - 1)  # weights are 0 behind it
        return pixel((b, block), *place, c % ROWS)

    return te.compute((*shape, instruction.depth), element, name=_STAGE)
