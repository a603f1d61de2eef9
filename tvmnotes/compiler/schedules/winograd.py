"""Winograd's convolution for 3x3 windows of stride 1: 4 or 2.25 times fewer multiplications.

A tile of 6x6 inputs and the 3x3 weights are transformed, multiplied elementwise, summed over the channels
(which makes 36 matrix products), and transformed back to 4x4 outputs: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks" (CVPR 2016), F(4x4, 3x3); or 4x4 inputs to 2x2 outputs, F(2x2, 3x3). The
weights are transformed at compile time. The largest error of F(4x4, 3x3) is two or three times that of direct
convolution; that of F(2x2, 3x3) is as small. A NaN or an infinity reaches every output of the tiles that read
it.

knob      meaning                                               values that `space` tries
tile      side m of a tile of outputs, F(m x m, 3x3)            2, 4
rows      tiles down in a block of tiles                        1 to min(tiles down, 8)
columns   tiles across in a block of tiles                      1 to min(tiles across, 16)
blocks    blocks of x output channels per block of tiles        1, 2, 3, 4 that divide the channels' blocks
group     rows of blocks of tiles that a thread transforms and  0; or 1, 2, 4 that divide the rows
          multiplies while they are in its cache
prefetch  whether weights are prefetched (if present)           absent, or True with group 0

rows * columns * blocks vector accumulators are in registers: more than half of the registers are in use.
Group 0 transforms all inputs first and parallelizes over the channels, for weights that do not fit into the
cache. `prefetch` loads the weights of the next element of a tile while those of the current one are used.
"""

import itertools

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from . import prefetch
from .convolution import Convolution, Window
from .epilogue import block_names, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd, fastest_tile, pad_to


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
# and 3/2, give a quarter of the error of the usual 1 and 2, because their powers stay closer to 1.
_TRANSFORMS = {
    2: (
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: _of_four(5 / 8, 3 / 2),
}

_READ = 24  # multiply-adds in the time that one weight takes from main memory
_L2 = 512 << 10  # bytes of a core's cache for transformed inputs
_L2_WEIGHTS = 1200 << 10  # bytes of transformed weights that are read repeatedly from there


def best_tile(window: Window, data_shape, kernel_shape) -> int | None:
    """Choose the side of the output tiles, 2 or 4; None if direct convolution is better.

    Counted for each pair of an input and an output channel: the multiply-adds, and the weights that have to
    be read. The shapes are those of data (N, blocks, H, W, x) and weights (O, I, 3, 3, x, x).
    """
    fits = tuple(kernel_shape[2:4]) == (3, 3) and window.strides == [1, 1] and window.dilation == [1, 1]
    if not fits or len(data_shape) != 5 or kernel_shape[1] != data_shape[1]:
        return None
    height, width = window.out_size(*data_shape[2:4], 3, 3)
    costs = {None: 9 * (data_shape[0] * height * width + _READ)}
    for tile in _TRANSFORMS:
        tiles = data_shape[0] * ceildiv(height, tile) * ceildiv(width, tile)
        size = (tile + 2) ** 2
        transforms = 7 * size * (1 / window.out + 1 / window.ins)  # of a tile, per channel
        costs[tile] = size * (tiles + _READ) + tiles * transforms
    return min(costs, key=costs.get)


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """Choose the config that runs without tuning; `kernel_shape` is that of `transform_weight`."""
    n, sources, lanes = data_shape[0], data_shape[1], simd.lanes
    side = kernel_shape[1]
    height, width = (ceildiv(size, side - 2) for size in window.out_size(*data_shape[2:4], 3, 3))
    rows, columns, blocks = _register_tile(n, height, width, kernel_shape[0], simd)
    weights = side * side * kernel_shape[0] * sources * lanes * lanes * 4
    row = rows * round_up(width, columns) * side * side * sources * lanes * 4  # bytes of a row of blocks
    lines = ceildiv(height, rows)
    group = 0
    if weights <= _L2_WEIGHTS and n * lines >= 4:
        group = max(1, min(_L2 // row, lines // 4))
        group = next(g for g in range(group, 0, -1) if lines % g == 0)
    return {"tile": side - 2, "rows": rows, "columns": columns, "blocks": blocks, "group": group}


def _register_tile(n: int, height: int, width: int, outs: int, simd: Simd) -> tuple[int, int, int]:
    """Choose a block's rows and columns of tiles, and its blocks of channels.

    Two blocks of channels, or three: with one, the transformed inputs, with more, the weights are fetched
    more often than a cache delivers. The shape in tiles is the one with the fewest cycles for n images of
    (height, width) tiles and outs blocks.
    """
    blocks = next(b for b in (2, 3, 1) if outs % b == 0)
    down, across = (range(1, min(size, simd.registers) + 1) for size in (height, width))

    def steps(rows, columns, _):
        return n, ceildiv(height, rows), ceildiv(width, columns)

    return fastest_tile(itertools.product(down, across, [blocks]), steps, simd)


def transform_weight(weight: np.ndarray, tile: int, lanes: int) -> np.ndarray:
    """Transform and pack (O, I, 3, 3) into (O blocks, tile + 2, tile + 2, I blocks, i, x), zero-padded."""
    out, ins = weight.shape[:2]
    outs, sources = ceildiv(out, lanes), ceildiv(ins, lanes)
    g = np.array(_TRANSFORMS[tile][1])
    padded = pad_to(weight, (outs * lanes, sources * lanes, 3, 3)).reshape(outs, lanes, sources, lanes, 9)
    taps = padded.transpose(0, 4, 2, 3, 1).reshape(outs, 9, -1)
    transformed = np.kron(g, g).astype("float32") @ taps  # G w Gᵀ, of each pair of channels
    return transformed.reshape(outs, tile + 2, tile + 2, sources, lanes, lanes)


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """Return the convolution of data (N, blocks, H, W, x) with weights of `transform_weight`."""
    n, sources, h, w, lanes = plain_sizes(data.shape)
    outs = int(kernel.shape[0])
    top, left = window.padding[:2]
    out_h, out_w = window.out_size(h, w, 3, 3)
    rows, columns, tile = (config[knob] for knob in ("rows", "columns", "tile"))
    side = tile + 2
    of_input, _, of_output = _TRANSFORMS[tile]
    grid = n, ceildiv(out_h, tile * rows), ceildiv(out_w, tile * columns)  # blocks of tiles

    def element(b, ty, tx, i, row, column, r, s, c):
        y, x = (ty * rows + row) * tile + r - top, (tx * columns + column) * tile + s - left
        return te.if_then_else(tirx.all(y >= 0, y < h, x >= 0, x < w), data[b, i, y, x, c], 0.0)

    patch = te.compute((*grid, sources, rows, columns, side, side, lanes), element, name="patch")

    def half_input(*at):
        return _transform(of_input, at[6], lambda r: patch[(*at[:6], r, *at[7:])])

    half = te.compute(patch.shape, half_input, name="half_transformed")

    def whole_input(b, ty, tx, p, q, i, row, column, c):
        return _transform(of_input, q, lambda s: half[b, ty, tx, i, row, column, p, s, c])

    shape = (*grid, side, side, sources, rows, columns, lanes)
    transformed = te.compute(shape, whole_input, name="transformed")
    i, ii = te.reduce_axis((0, sources), "i"), te.reduce_axis((0, lanes), "ii")

    def multiplied(b, ty, tx, k, p, q, row, column, c):
        return te.sum(
            transformed[b, ty, tx, p, q, i, row, column, ii] * kernel[k, p, q, i, ii, c], axis=[i, ii]
        )

    shape = (*grid, outs, side, side, rows, columns, lanes)
    product = te.compute(shape, multiplied, name="winograd", attrs=attrs)

    def half_output(b, ty, tx, k, row, column, r, q, c):
        return _transform(of_output, r, lambda p: product[b, ty, tx, k, p, q, row, column, c])

    half_out = te.compute((*grid, outs, rows, columns, tile, side, lanes), half_output, name="half_out")

    def out(b, k, y, x, c):
        ty, tx = tirx.floordiv(y, tile), tirx.floordiv(x, tile)
        at = (b, ty // rows, tx // columns, k, ty % rows, tx % columns, y % tile)
        return _transform(of_output, x % tile, lambda q: half_out[(*at, q, c)])

    return te.compute((n, outs, out_h, out_w, lanes), out, name="out")


def _transform(matrix, row, element):
    """Multiply row `row` of `matrix`, the index of a loop to be unrolled, by (element(0), element(1), …)."""
    selected = None
    for index in reversed(range(len(matrix))):
        total = None
        for column, factor in enumerate(matrix[index]):
            if factor:
                term = element(column) * float(factor) if factor != 1 else element(column)
                total = term if total is None else total + term
        selected = total if selected is None else tirx.Select(row == index, total, selected)
    return selected


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` made and to what was fused after it."""
    stages = ("patch", "half_transformed", "transformed", "winograd", "half_out")
    *epilogue, last = [name for name in block_names(sch) if name not in stages]
    for name in epilogue:
        sch.compute_inline(name)
    rows, columns, group = config["rows"], config["columns"], config["group"]
    n, k, y, x, c = sch.get_loops(last)
    ko, ki = sch.split(k, [None, config["blocks"]])
    tg, ty, row, yi = sch.split(y, [None, group or 1, rows, config["tile"]])
    tx, column, xi = sch.split(x, [None, columns, config["tile"]])
    if group:
        sch.reorder(n, tg, ko, ty, tx, ki, row, column, yi, xi, c)
        outer = parallel(sch, [n, tg])
    else:
        sch.reorder(ko, n, tg, ty, tx, ki, row, column, yi, xi, c)
        outer = None
        sch.parallel(ko)
    sch.compute_at("half_out", column, True)
    sch.set_scope("half_out", 0, "local")
    sch.compute_at("winograd", tx, True)
    vectorize(sch, [yi, xi, c])
    _unroll_all(sch, sch.get_loops("half_out")[-3:])
    _products(sch, config)
    _inputs(sch, outer)


def _products(sch, config):
    """Schedule the matrix products of one block of tiles and channels."""
    stored = sch.cache_write("winograd", 0, "local")
    k, p, q, row, column, c, i, ii = sch.get_loops("winograd")[-8:]
    sch.reorder(p, q, i, ii, row, column, k, c)
    sch.reverse_compute_at(stored, q, True)
    vectorize(sch, sch.get_loops(stored)[-4:])
    vectorize(sch, [row, column, k, c])
    if config.get("prefetch"):
        prefetch.mark(sch, i, config["blocks"])
    init = sch.decompose_reduction("winograd", i)
    vectorize(sch, sch.get_loops(init)[-4:])


def _inputs(sch, outer):
    """Schedule the transform of the inputs: within `outer`, or before everything else."""
    if outer is not None:
        sch.compute_at("transformed", outer, True)
    b, ty, tx, p, q, i, row, column, c = sch.get_loops("transformed")[-9:]
    sch.reorder(b, ty, tx, i, row, column, p, q, c)
    for name in ("half_transformed", "patch"):
        sch.compute_at(name, column, True)
        sch.set_scope(name, 0, "local")
        _unroll_all(sch, sch.get_loops(name)[-3:])
    _unroll_all(sch, [p, q, c])
    if outer is None:
        parallel(sch, [b, ty, tx, i])


def _unroll_all(sch, loops):
    *outer, lane = loops
    sch.vectorize(lane)
    for loop in outer:
        sch.unroll(loop)


# ---------------------------------------------------------------- as a family


def serves(conv: Workload, simd: Simd) -> bool:
    """Return whether the workload is a 3x3 convolution of stride 1, ungrouped and undilated, and blocked."""
    if not isinstance(conv, Convolution) or not conv.blocked or conv.groups != 1:
        return False
    return conv.weight[2:] == (3, 3) and conv.strides == conv.dilation == (1, 1)


def default(conv: Convolution, simd: Simd) -> dict | None:
    """Choose the default config of a workload; None if direct convolution is better."""
    window, source = conv.window(simd.lanes), conv.packed_input_shape(simd.lanes)
    tile = best_tile(window, source, (ceildiv(conv.weight[0], simd.lanes), source[1], *conv.weight[2:]))
    if tile is None:
        return None
    packed = packed_shape(conv, {"tile": tile}, simd.lanes)
    return {"family": "winograd", **default_config(window, source, packed, simd)}


def space(conv: Convolution, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    height, width = conv.out_size
    outs = ceildiv(conv.weight[0], simd.lanes)
    found = []
    for tile in (2, 4):
        down, across = ceildiv(height, tile), ceildiv(width, tile)
        shapes = [
            (rows, columns, blocks)
            for blocks in (1, 2, 3, 4)
            if outs % blocks == 0
            for rows, columns in itertools.product(range(1, min(down, 8) + 1), range(1, min(across, 16) + 1))
            if simd.registers / 2 < (rows * columns + 1) * blocks + 1 <= simd.registers
        ]
        for rows, columns, blocks in shapes:
            shape = {"family": "winograd", "tile": tile, "rows": rows, "columns": columns, "blocks": blocks}
            found += [shape | {"group": g} for g in (0, 1, 2, 4) if not g or ceildiv(down, rows) % g == 0]
            found.append(shape | {"group": 0, "prefetch": True})
    return found


def packed_shape(conv: Convolution, config: dict, lanes: int) -> tuple[int, ...]:
    """Return the shape of the packed weight; see `transform_weight`."""
    outs, ins, side = ceildiv(conv.weight[0], lanes), ceildiv(conv.data[1], lanes), config["tile"] + 2
    return outs, side, side, ins, lanes, lanes


def packed(conv: Convolution, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """Transform and pack the weight (O, I, 3, 3)."""
    return transform_weight(weight, config["tile"], lanes)


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    n = conv.data[0]
    outs = ceildiv(conv.weight[0], lanes)
    elements = (config["tile"] + 2) ** 2  # of a tile of inputs
    down, across = (ceildiv(size, config["tile"]) for size in conv.out_size)
    rows, columns, blocks, group = (config[key] for key in ("rows", "columns", "blocks", "group"))
    lines = n * ceildiv(down, rows)
    return Loops(
        rows=rows * columns,
        blocks=blocks,
        line=round_up(across, columns) * rows,
        outs=outs,
        lines=lines * elements,
        points=n * down * across * elements,
        depth=conv.data[1],
        chunks=ceildiv(lines, group) if group else ceildiv(outs, blocks),
        run=rows,
        columns=columns,
        stride=conv.strides[0],
    )


EXAMPLES = (
    Convolution((1, 32, 16, 16), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True),
    Convolution((2, 32, 9, 11), (40, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True),
    Convolution((1, 16, 8, 8), (24, 16, 3, 3), (1, 1), (1, 0, 0, 2), (1, 1), 1, True),  # no default config
)

register(
    Family(
        "winograd",
        priority=10,
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
