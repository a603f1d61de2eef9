"""Direct convolution in NCHW[x]c: a tile of sums stays in registers while the kernel's window runs over its inputs.

The sums of `pixels` neighbouring pixels times `blocks` blocks of output channels are `pixels * blocks` vector
registers. Each step of the reduction loads one input number per pixel, spread over a register's lanes, and one vector
of weights per block: (pixels + blocks) loads for pixels * blocks fused multiply-adds. The scheme is that of NeoCPU
(Liu et al., USENIX ATC 2019) and of oneDNN's direct convolution (Georganas et al., SC 2018).
"""

import itertools
import math

import numpy as np
from tvm import te, topi
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from .convolution import Convolution, Window, pack
from .epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, pad_to, register_tile

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache beside the pictures
_CACHED_PICTURE = 1 << 20  # bytes of a picture that stays there beside some weights
CROP = 1.1  # times the cycles, where pixels are cropped


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """The config that runs without tuning, from the shapes of data and packed weights (see `compute`).

    pixels, blocks: the register tile, of one row, or of as many as "lines" says where it is there.
    outer: which loop is outside, "rows" of the picture or "channels". chunk, where it is there: for as many blocks of
    input channels at a time all pixels take their turn, while their sums wait in the cache, so that large weights are
    read once, one after the other.
    """
    height, width = window.out_size(*data_shape[2:4], *kernel_shape[2:4])
    pixels, blocks = register_tile(width, ceildiv(window.out, simd.lanes), simd, CROP)
    tiles = ceildiv(window.out, simd.lanes * blocks)
    return {"pixels": pixels, "blocks": blocks, "outer": outer_loop(data_shape, kernel_shape, height, tiles)}


def outer_loop(data_shape, kernel_shape, lines: int, tiles: int) -> str:
    """Which loop is outside: "rows", of `lines` lines that each take all weights, or "channels", in tiles.

    Rows where all weights stay in the cache, channels where the picture does; where neither, what fetches less. Weights
    are read one after another, of a picture a few pixels here and there, which costs twice as much.
    """
    picture, weights = 4 * math.prod(data_shape[1:]), 4 * math.prod(kernel_shape)
    if weights <= _CACHED_WEIGHTS:
        return "rows"
    return "rows" if picture > _CACHED_PICTURE and weights * lines < 2 * picture * tiles else "channels"


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """The convolution as a tensor expression.

    `data` is (N, blocks, H, W, i) and `kernel` (O, I, KH, KW, i, x), or, of one group, `data` is (N, I, H, W) and
    `kernel` (O, I, KH, KW, x). A group has I of the blocks, and an equal share of the O. Rows are computed up to a
    multiple of the tile and then cropped; so are the blocks where there is one group.
    """
    n, source, h, w, *inner = (int(s) for s in data.shape)
    out, ins, kernel_h, kernel_w = (int(s) for s in kernel.shape[:4])
    lanes = int(kernel.shape[-1])
    (sh, sw), (top, left, _, _), (dh, dw) = window.strides, window.padding, window.dilation
    (reach_h, reach_w), (out_h, out_w) = (
        window.reach(kernel_h, kernel_w),
        window.out_size(h, w, kernel_h, kernel_w),
    )
    lines, pixels = config.get("lines", 1), config["pixels"]
    full_h, full_w = round_up(out_h, lines), round_up(out_w, pixels)
    bottom, right = (
        max(0, (full_h - 1) * sh + reach_h - h - top),
        max(0, (full_w - 1) * sw + reach_w - w - left),
    )
    if any((top, left, bottom, right)):
        zeros = [0] * len(inner)
        data = topi.nn.pad(data, [0, 0, top, left, *zeros], [0, 0, bottom, right, *zeros], name="pad")
    groups = source // ins
    i = te.reduce_axis((0, ins), "i")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    ii = te.reduce_axis((0, inner[0] if inner else 1), "ii")

    def element(b, k, y, x, c):
        block = k // (out // groups) * ins + i
        row, column = y * sh + kh * dh, x * sw + kw * dw
        if inner:
            product = data[b, block, row, column, ii] * kernel[k, i, kh, kw, ii, c]
        else:
            product = data[b, i + ii, row, column] * kernel[k, i + ii, kh, kw, c]
        return te.sum(
            window.within_group(product, i * (inner[0] if inner else 1) + ii, c), axis=[i, kh, kw, ii]
        )

    made = te.compute((n, out, full_h, full_w, lanes), element, name="conv2d", attrs=attrs)
    blocks = ceildiv(window.out, lanes) if groups == 1 else out
    return crop(made, (n, blocks, out_h, out_w, lanes))


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` gave, with whatever was fused behind it."""
    names = block_names(sch)
    n, o, h, w, c, i, kh, kw, ii = sch.get_loops("conv2d")
    oo, oi = sch.split(o, [None, config["blocks"]])
    wo, wi = sch.split(w, [None, config["pixels"]])
    ho, hi = sch.split(h, [None, config.get("lines", 1)])
    if "chunk" in config:
        reduction, i = sch.split(i, [None, config["chunk"]])
        outer, end = [n, oo], oo
        sch.reorder(*outer, reduction, ho, wo, i, kh, kw, ii, hi, wi, oi, c)
    else:
        reduction, end = i, wo
        outer = [n, oo, ho] if config["outer"] == "channels" else [n, ho, oo]
        sch.reorder(*outer, wo, i, kh, kw, ii, hi, wi, oi, c)
    fuse_epilogue(sch, "conv2d", end, stages=("pad",))
    parallel(sch, outer)
    vectorize(sch, [hi, wi, oi, c])
    if "pad" in names:
        loops = sch.get_loops("pad")
        parallel(sch, loops[:-2])
        if len(loops) == 5:
            sch.vectorize(loops[-1])
    init = sch.decompose_reduction("conv2d", reduction)
    vectorize(sch, sch.get_loops(init)[-4:])


# ---------------------------------------------------------------- as a family


def default(conv: Convolution, simd: Simd, family: str = "conv2d", of_shapes=default_config) -> dict:
    """The default config of a workload, from that of its shapes; of this family, or of pointwise."""
    packed = packed_shape(conv, {"blocks": 1}, simd.lanes)
    source = conv.packed_input_shape(simd.lanes)
    return {"family": family, **of_shapes(conv.window(simd.lanes), source, packed, simd)}


def space(conv: Convolution, simd: Simd) -> list[dict]:
    height, width = conv.out_size
    blocks = ceildiv(conv.window(simd.lanes).out, simd.lanes)
    tall = [
        {"lines": lines, "pixels": p, "blocks": b}
        for lines in (2, 3, 4, 7) if lines <= height
        for b in range(1, min(blocks, 3) + 1)
        for p in range(2, min(width, simd.registers) + 1)
        if _uses(lines * p, b, simd)
    ]  # fmt: skip
    every = itertools.product([*tiles(width, blocks, simd), *tall], orders(conv, simd.lanes))
    return [{"family": "conv2d", **tile, **order} for tile, order in every]


def tiles(line: int, blocks: int, simd: Simd) -> list[dict]:
    """The register tiles to search for lines of so many pixels."""
    return [
        {"pixels": p, "blocks": b}
        for b in range(1, min(blocks, 8) + 1)
        for p in range(1, min(line, simd.registers) + 1)
        if _uses(p, b, simd)
    ]


def orders(conv: Convolution, lanes: int) -> list[dict]:
    """The orders of the outer loops to search."""
    ins = packed_shape(conv, {"blocks": 1}, lanes)[1]
    chunks = [c for c in (1, 4, 16) if c < ins and ins % c == 0] if conv.blocked else []
    return [{"outer": "rows"}, {"outer": "channels"}, *({"outer": "channels", "chunk": c} for c in chunks)]


def _uses(pixels: int, blocks: int, simd: Simd) -> bool:
    """Whether a tile fits into the registers and leaves not too many unused."""
    used = pixels * blocks + blocks + 1
    return used <= simd.registers < 2 * (used + pixels * blocks)


def packed_shape(conv: Convolution, config: dict, lanes: int) -> tuple[int, ...]:
    """The shape of what `packed` makes."""
    groups, window, source = conv.kernel_groups(lanes), conv.window(lanes), conv.packed_input_shape(lanes)
    blocks = groups * ceildiv(window.out, lanes * config["blocks"]) * config["blocks"]
    if not conv.blocked:
        return blocks, window.ins, *conv.weight[2:], lanes
    return blocks, source[1] // groups, *conv.weight[2:], source[-1], lanes


def packed(conv: Convolution, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """The weight as `compute` takes it, each group filled up to whole tiles."""
    groups, tile = conv.kernel_groups(lanes), lanes * config["blocks"]
    weight = conv.joined(weight, lanes)
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    by_group = pad_to(by_group, (groups, round_up(by_group.shape[1], tile), *weight.shape[1:]))
    inner = conv.packed_input_shape(lanes)[-1] if conv.blocked else 1
    array = pack(by_group.reshape(-1, *weight.shape[1:]), inner, lanes)
    return array if conv.blocked else array[..., 0, :]


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    (height, width), down = conv.out_size, config.get("lines", 1)
    lines = conv.data[0] * ceildiv(height, down)
    return loops_of_lines(conv, config, lanes, width * down, lines, lines, down)


def loops_of_lines(
    conv: Convolution, config: dict, lanes: int, line: int, lines: int, runs: int, run: int
) -> Loops:
    """The loops where so many `lines` of pixels are walked in `runs`; a `run` is of rows, or of tiles."""
    outs, ins = ceildiv(conv.weight[0], lanes), conv.window(lanes).ins
    tiles = ceildiv(outs, config["blocks"])
    return Loops(
        rows=config.get("lines", 1) * config["pixels"], blocks=config["blocks"], line=line, outs=outs, lines=lines,
        points=conv.data[0] * math.prod(conv.out_size), depth=ins * math.prod(conv.weight[2:]), chunks=runs * tiles,
        run=run, columns=runs if config["outer"] == "rows" else tiles,
        chunk=config.get("chunk", ceildiv(ins, lanes) if conv.blocked else 1), stride=conv.strides[0],
    )  # fmt: skip


def serves(conv: Workload, simd: Simd) -> bool:
    return isinstance(conv, Convolution) and not conv.is_depthwise and not conv.is_pointwise


register(Family("conv2d", schedule, serves, default, space, packed_shape, packed, compute, loops))
