"""1x1 convolution of stride 1 in NCHW[x]c: a matrix product over the pixels, where rows of the picture do not matter.

The tile of sums is `conv2d`'s. A picture is one line of H * W pixels, computed up to a whole number of tiles, so that a
width such as 19 or 38 leaves none of a tile unused.
"""

import itertools
import math

from tvm import te
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from . import conv2d
from .conv2d import CROP, loops_of_lines, outer_loop
from .convolution import Convolution, Window
from .epilogue import fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, register_tile

_RUN = 8  # tiles of pixels


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """The config that runs without tuning.

    pixels, blocks: the register tile. run: as many tiles of pixels take their turn before the next channels. outer:
    which loop is outside, "rows" (runs of pixels) or "channels". chunk: as in `conv2d`, for the pixels of a run.
    """
    length = data_shape[2] * data_shape[3]
    pixels, blocks = register_tile(length, ceildiv(window.out, simd.lanes), simd, CROP)
    tiles = ceildiv(length, pixels)
    run = max(r for r in range(1, _RUN + 1) if -tiles % r * 50 <= tiles)  # at most 2 % that nobody reads
    outer = outer_loop(
        data_shape, kernel_shape, ceildiv(tiles, run), ceildiv(window.out, simd.lanes * blocks)
    )
    return {"pixels": pixels, "blocks": blocks, "run": run, "outer": outer}


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """The convolution of `data` (N, blocks, H, W, i) with `kernel` (O, I, 1, 1, i, x); groups as in `conv2d`."""
    n, source, h, w, inner = (int(s) for s in data.shape)
    out, ins, lanes = (int(kernel.shape[axis]) for axis in (0, 1, -1))
    step, groups = config["pixels"] * config["run"], source // ins
    full = round_up(h * w, step)
    i, ii = te.reduce_axis((0, ins), "i"), te.reduce_axis((0, inner), "ii")

    def element(b, k, p, c):
        pixel = p if full == h * w else te.min(p, h * w - 1)
        block = k // (out // groups) * ins + i
        product = data[b, block, pixel // w, pixel % w, ii] * kernel[k, i, 0, 0, ii, c]
        return te.sum(window.within_group(product, i * inner + ii, c), axis=[i, ii])

    made = te.compute((n, out, full, lanes), element, name="pointwise", attrs=attrs)
    blocks = ceildiv(window.out, lanes) if groups == 1 else out
    return te.compute(
        (n, blocks, h, w, lanes), lambda b, k, y, x, c: made[b, k, y * w + x, c], name="picture"
    )


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` gave, with whatever was fused behind it."""
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
    return isinstance(conv, Convolution) and conv.is_pointwise


def default(conv: Convolution, simd: Simd) -> dict:
    return conv2d.default(conv, simd, "pointwise", default_config)


def space(conv: Convolution, simd: Simd) -> list[dict]:
    line, blocks = math.prod(conv.out_size), ceildiv(conv.window(simd.lanes).out, simd.lanes)
    tiles = [
        {**tile, "run": run}
        for tile in conv2d.tiles(line, blocks, simd)
        for run in _runs(ceildiv(line, tile["pixels"]))
    ]
    every = itertools.product(tiles, conv2d.orders(conv, simd.lanes))
    return [{"family": "pointwise", **tile, **order} for tile, order in every]


def _runs(tiles: int) -> list[int]:
    """Lengths of runs of tiles, few and many, that leave no more than a tenth of the last run unused."""
    return sorted({r for n in (1, 2, 4, 8, 16, tiles) if -tiles % (r := min(n, tiles)) * 10 <= tiles})


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    n, line = conv.data[0], math.prod(conv.out_size)
    runs = n * ceildiv(line, config["pixels"] * config["run"])
    return loops_of_lines(conv, config, lanes, line, n, runs, config["run"])


register(
    Family("pointwise", schedule, serves, default, space, conv2d.packed_shape, conv2d.packed, compute, loops)
)
