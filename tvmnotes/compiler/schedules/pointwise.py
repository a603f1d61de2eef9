"""1x1 convolution of stride 1 in NCHW[x]c: a matrix product over the pixels, regardless of the image's rows.

The tile of accumulators is `conv2d`'s. An image is one line of H * W pixels, computed up to a whole number of
tiles, so that a width such as 19 or 38 leaves none of a tile unused.

knob    meaning                                                   values that `space` tries
pixels  pixels of the register tile                               1 to min(H * W, registers); see conv2d
blocks  blocks of x output channels in the register tile          1 to min(blocks of channels, 8)
run     tiles of pixels computed before the next output channels  1, 2, 4, 8, 16, all, padded by at most 10 %
outer   outer loop: "rows" (runs of pixels) or "channels"         both
chunk   as in conv2d, for the pixels of a run                     as in conv2d
"""

import itertools
import math

from tvm import te
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from . import conv2d
from .conv2d import CROP, loops_of_lines, outer_loop
from .convolution import Convolution, Window
from .epilogue import fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, register_tile

_RUN = 8  # tiles of pixels in a run, at most


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """Choose the config that runs without tuning, for the shapes of data and weights that `compute` takes."""
    length = data_shape[2] * data_shape[3]
    pixels, blocks = register_tile(length, ceildiv(window.out, simd.lanes), simd, CROP)
    tiles = ceildiv(length, pixels)
    # At most 2 % padding.
    run = max(r for r in range(1, _RUN + 1) if (round_up(tiles, r) - tiles) * 50 <= tiles)
    channel_tiles = ceildiv(window.out, simd.lanes * blocks)
    outer = outer_loop(data_shape, kernel_shape, ceildiv(tiles, run), channel_tiles)
    return {"pixels": pixels, "blocks": blocks, "run": run, "outer": outer}


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """Return the convolution of data (N, blocks, H, W, i) with a kernel (O, I, 1, 1, i, x).

    Groups are as in `conv2d.compute`.
    """
    n, source, h, w, inner = plain_sizes(data.shape)
    out, ins, lanes = (int(kernel.shape[axis]) for axis in (0, 1, -1))
    groups = source // ins
    full = round_up(h * w, config["pixels"] * config["run"])
    i, ii = te.reduce_axis((0, ins), "i"), te.reduce_axis((0, inner), "ii")

    def element(b, k, p, c):
        pixel = p if full == h * w else te.min(p, h * w - 1)
        block = k // (out // groups) * ins + i
        product = data[b, block, pixel // w, pixel % w, ii] * kernel[k, i, 0, 0, ii, c]
        return te.sum(window.within_group(product, i * inner + ii, c), axis=[i, ii])

    lines = te.compute((n, out, full, lanes), element, name="pointwise", attrs=attrs)
    blocks = ceildiv(window.out, lanes) if groups == 1 else out
    shape = (n, blocks, h, w, lanes)
    return te.compute(shape, lambda b, k, y, x, c: lines[b, k, y * w + x, c], name="picture")


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` made and to what was fused after it."""
    n, o, p, c, i, ii = sch.get_loops("pointwise")
    oo, oi = sch.split(o, [None, config["blocks"]])
    line, po, pi = sch.split(p, [None, config["run"], config["pixels"]])
    outer = [n, oo, line] if config["outer"] == "channels" else [n, line, oo]
    if "chunk" in config:
        reduction, i = sch.split(i, [None, config["chunk"]])
        end = outer[-1]
        sch.reorder(*outer, reduction, po, i, ii, pi, oi, c)
    else:
        reduction, end = i, po
        sch.reorder(*outer, po, i, ii, pi, oi, c)
    fuse_epilogue(sch, "pointwise", end, line=True)
    parallel(sch, outer)
    vectorize(sch, [pi, oi, c])
    init = sch.decompose_reduction("pointwise", reduction)
    vectorize(sch, sch.get_loops(init)[-3:])


# ---------------------------------------------------------------- as a family


def serves(conv: Workload, simd: Simd) -> bool:
    """Return whether the workload is a pointwise convolution."""
    return isinstance(conv, Convolution) and conv.is_pointwise


def default(conv: Convolution, simd: Simd) -> dict:
    """Choose the default config of a workload."""
    return conv2d.default(conv, simd, "pointwise", default_config)


def space(conv: Convolution, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    line, blocks = math.prod(conv.out_size), ceildiv(conv.window(simd.lanes).out, simd.lanes)
    tiles = [
        {**tile, "run": run}
        for tile in conv2d.tiles(line, blocks, simd)
        for run in _runs(ceildiv(line, tile["pixels"]))
    ]
    pairs = itertools.product(tiles, conv2d.orders(conv, simd.lanes))
    return [{"family": "pointwise", **tile, **order} for tile, order in pairs]


def _runs(tiles: int) -> list[int]:
    """List the lengths of runs, few and many tiles, that pad the image's `tiles` by at most a tenth."""
    runs = {min(n, tiles) for n in (1, 2, 4, 8, 16, tiles)}
    return sorted(run for run in runs if (round_up(tiles, run) - tiles) * 10 <= tiles)


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    n, line = conv.data[0], math.prod(conv.out_size)
    runs = n * ceildiv(line, config["pixels"] * config["run"])
    return loops_of_lines(conv, config, lanes, line, n, runs, config["run"])


EXAMPLES = (
    Convolution((1, 32, 7, 9), (40, 32, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
    Convolution((3, 24, 5, 5), (16, 24, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
    Convolution((1, 24, 6, 7), (48, 4, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 6, True),  # `joined_groups`
)

register(
    Family(
        "pointwise",
        compute=compute,
        schedule=schedule,
        serves=serves,
        default=default,
        space=space,
        packed_shape=conv2d.packed_shape,
        pack=conv2d.packed,
        loops=loops,
        examples=EXAMPLES,
    )
)
