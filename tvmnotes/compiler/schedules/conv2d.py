"""Direct convolution in NCHW[x]c: a tile of accumulators stays in registers while the window slides.

The accumulators of `pixels` neighbouring pixels times `blocks` blocks of output channels are `pixels *
blocks` vector registers. Each step of the reduction loads one input element per pixel, broadcast to a
register's lanes, and one vector of weights per block: (pixels + blocks) loads for pixels * blocks fused
multiply-adds. The scheme is that of NeoCPU (Liu et al., USENIX ATC 2019) and of oneDNN's direct convolution
(Georganas et al., SC 2018).

knob    meaning                                             values that `space` tries
pixels  pixels of a row in the register tile                1 to min(width, registers)
blocks  blocks of x output channels in the register tile    1 to min(blocks of channels, 8)
lines   rows of the register tile; 1 if absent              absent, or 2, 3, 4, 7 up to the height,
                                                            with 2 pixels or more, up to 3 blocks
outer   outer loop: "rows" of the image or "channels"       both
chunk   blocks of input channels reduced at a time, or all  absent, or divisors of the blocks out of 1, 4, 16;
                                                            only of blocked data, with outer "channels"

With `chunk` all pixels are computed for one chunk before the next, with their accumulators in the cache, so
that large weights are read once, sequentially. Tiles that do not fit into the registers, or leave too many
unused (`_uses`), are left out.
"""

import itertools
import math

import numpy as np
from tvm import te, topi
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from .convolution import Convolution, Window, pack
from .epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, pad_to, register_tile

_CACHED_WEIGHTS = 512 << 10  # bytes of weights that stay in a core's L2 cache beside the images
_CACHED_IMAGE = 1 << 20  # bytes of an image that stays there beside some weights
CROP = 1.1  # factor of the cycles if pixels are cropped


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """Choose the config that runs without tuning, for the shapes of data and weights that `compute` takes."""
    height, width = window.out_size(*data_shape[2:4], *kernel_shape[2:4])
    pixels, blocks = register_tile(width, ceildiv(window.out, simd.lanes), simd, CROP)
    tiles = ceildiv(window.out, simd.lanes * blocks)
    return {"pixels": pixels, "blocks": blocks, "outer": outer_loop(data_shape, kernel_shape, height, tiles)}


def outer_loop(data_shape, kernel_shape, lines: int, tiles: int) -> str:
    """Choose the outer loop: "rows", of `lines` that each read all weights, or "channels", in `tiles`.

    Rows if all weights fit into the cache, channels if the image does; if neither does, the one that fetches
    less. Weights are read sequentially, an image a few pixels here and there, which costs twice as much.
    """
    image, weights = 4 * math.prod(data_shape[1:]), 4 * math.prod(kernel_shape)  # bytes
    if weights <= _CACHED_WEIGHTS:
        return "rows"
    return "rows" if image > _CACHED_IMAGE and weights * lines < 2 * image * tiles else "channels"


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """Return the convolution as a tensor expression, of NCHW[x]c or, with one group, of NCHW data.

    Rows are computed up to a multiple of the tile and then cropped; so are the blocks if there is one group.
    Of several groups, each has I of the input blocks and an equal share of the O output blocks.

    Args:
        data: (N, blocks, H, W, i), or (N, I, H, W).
        kernel: (O, I, KH, KW, i, x), or (O, I, KH, KW, x).
        window: strides, padding, dilation and channels.
        config: see the table above.
        attrs: attributes of the tensor expression, with the annotation of the kernel.

    Returns:
        The output, (N, blocks, OH, OW, x).
    """
    n, source, h, w, *inner = plain_sizes(data.shape)
    out, ins, kernel_h, kernel_w = (int(s) for s in kernel.shape[:4])
    lanes = int(kernel.shape[-1])
    (sh, sw), (top, left, _, _), (dh, dw) = window.strides, window.padding, window.dilation
    reach_h, reach_w = window.reach(kernel_h, kernel_w)
    out_h, out_w = window.out_size(h, w, kernel_h, kernel_w)
    lines, pixels = config.get("lines", 1), config["pixels"]
    full_h, full_w = round_up(out_h, lines), round_up(out_w, pixels)
    bottom = max(0, (full_h - 1) * sh + reach_h - h - top)
    right = max(0, (full_w - 1) * sw + reach_w - w - left)
    if any((top, left, bottom, right)):
        unpadded = [0] * len(inner)
        data = topi.nn.pad(data, [0, 0, top, left, *unpadded], [0, 0, bottom, right, *unpadded], name="pad")
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

    output = te.compute((n, out, full_h, full_w, lanes), element, name="conv2d", attrs=attrs)
    blocks = ceildiv(window.out, lanes) if groups == 1 else out
    return crop(output, (n, blocks, out_h, out_w, lanes))


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` made and to what was fused after it."""
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


def serves(conv: Workload, simd: Simd) -> bool:
    """Return whether the workload is a convolution that is neither depthwise nor pointwise."""
    return isinstance(conv, Convolution) and not conv.is_depthwise and not conv.is_pointwise


def default(conv: Convolution, simd: Simd, family: str = "conv2d", of_shapes=default_config) -> dict:
    """Choose the default config with `of_shapes`, the `default_config` of conv2d or of pointwise."""
    packed = packed_shape(conv, {"blocks": 1}, simd.lanes)
    source = conv.packed_input_shape(simd.lanes)
    return {"family": family, **of_shapes(conv.window(simd.lanes), source, packed, simd)}


def space(conv: Convolution, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    height, width = conv.out_size
    blocks = ceildiv(conv.window(simd.lanes).out, simd.lanes)
    tall = [
        {"lines": lines, "pixels": p, "blocks": b}
        for lines in (2, 3, 4, 7)
        if lines <= height
        for b in range(1, min(blocks, 3) + 1)
        for p in range(2, min(width, simd.registers) + 1)
        if _uses(lines * p, b, simd)
    ]
    pairs = itertools.product([*tiles(width, blocks, simd), *tall], orders(conv, simd.lanes))
    return [{"family": "conv2d", **tile, **order} for tile, order in pairs]


def tiles(line: int, blocks: int, simd: Simd) -> list[dict]:
    """List the register tiles to search for lines of `line` pixels and `blocks` blocks of output channels."""
    return [
        {"pixels": p, "blocks": b}
        for b in range(1, min(blocks, 8) + 1)
        for p in range(1, min(line, simd.registers) + 1)
        if _uses(p, b, simd)
    ]


def orders(conv: Convolution, lanes: int) -> list[dict]:
    """List the orders of the outer loops to search."""
    ins = packed_shape(conv, {"blocks": 1}, lanes)[1]
    chunks = [c for c in (1, 4, 16) if c < ins and ins % c == 0] if conv.blocked else []
    return [{"outer": "rows"}, {"outer": "channels"}, *({"outer": "channels", "chunk": c} for c in chunks)]


def _uses(pixels: int, blocks: int, simd: Simd) -> bool:
    """Return whether a tile fits into the registers and leaves not too many unused."""
    used = pixels * blocks + blocks + 1
    return used <= simd.registers < 2 * (used + pixels * blocks)


def packed_shape(conv: Convolution, config: dict, lanes: int) -> tuple[int, ...]:
    """Return the shape of the packed weight, (O, I, KH, KW, i, x) or (O, I, KH, KW, x); see `compute`."""
    groups, window = conv.kernel_groups(lanes), conv.window(lanes)
    source = conv.packed_input_shape(lanes)
    blocks = groups * ceildiv(window.out, lanes * config["blocks"]) * config["blocks"]
    if not conv.blocked:
        return blocks, window.ins, *conv.weight[2:], lanes
    return blocks, source[1] // groups, *conv.weight[2:], source[-1], lanes


def packed(conv: Convolution, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """Pack the weight (O, I, KH, KW) as `compute` takes it, each group zero-padded to whole tiles."""
    groups, tile = conv.kernel_groups(lanes), lanes * config["blocks"]
    weight = conv.joined(weight, lanes)
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    by_group = pad_to(by_group, (groups, round_up(by_group.shape[1], tile), *weight.shape[1:]))
    inner = conv.packed_input_shape(lanes)[-1] if conv.blocked else 1
    array = pack(by_group.reshape(-1, *weight.shape[1:]), inner, lanes)
    return array if conv.blocked else array[..., 0, :]


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    (height, width), down = conv.out_size, config.get("lines", 1)
    lines = conv.data[0] * ceildiv(height, down)
    return loops_of_lines(conv, config, lanes, width * down, lines, lines, down)


def loops_of_lines(
    conv: Convolution, config: dict, lanes: int, line: int, lines: int, runs: int, run: int
) -> Loops:
    """Return the sizes of loops over `lines` of `line` pixels in `runs` of `run` rows or tiles each."""
    outs, ins = ceildiv(conv.weight[0], lanes), conv.window(lanes).ins
    tiles = ceildiv(outs, config["blocks"])
    return Loops(
        rows=config.get("lines", 1) * config["pixels"],
        blocks=config["blocks"],
        line=line,
        outs=outs,
        lines=lines,
        points=conv.data[0] * math.prod(conv.out_size),
        depth=ins * math.prod(conv.weight[2:]),
        chunks=runs * tiles,
        run=run,
        columns=runs if config["outer"] == "rows" else tiles,
        chunk=config.get("chunk", ceildiv(ins, lanes) if conv.blocked else 1),
        stride=conv.strides[0],
    )


EXAMPLES = (
    Convolution((1, 3, 24, 24), (32, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, False),  # of an image
    Convolution((1, 32, 12, 12), (32, 32, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1, True),
    Convolution((1, 48, 8, 8), (72, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, True),  # `has_gaps`
    Convolution((2, 32, 9, 11), (40, 32, 1, 1), (2, 2), (1, 0, 0, 1), (1, 1), 1, True),
)

register(
    Family(
        "conv2d",
        compute=compute,
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
