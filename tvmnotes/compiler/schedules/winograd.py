"""Winograd's convolution for 3x3 windows of stride 1: 4 times fewer multiplications, or 2.25 times.

A tile of 6x6 inputs and the 3x3 weights are transformed, multiplied number by number, summed over the channels (which
makes 36 matrix products), and transformed back to 4x4 outputs: Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016), F(4x4, 3x3); or 4x4 inputs to 2x2 outputs, F(2x2, 3x3). The weights are transformed while
compiling. The largest error of the first is two or three times that of the direct way for one convolution; that of the
second is as small as the direct way's. A NaN or an infinity reaches every output of the tiles that read it.
"""

import itertools

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
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
        ((1, 1, 1, 1, 1, 0), (0, a, -a, b, -b, 0), (0, aa, aa, bb, bb, 0), (0, a * aa, -a * aa, b * bb, -b * bb, 1)),
    )  # fmt: skip


# By the side of a tile of outputs, the transforms of inputs, weights and outputs. The larger one's points, 5/8 and 3/2,
# give a quarter of the error of the usual 1 and 2, because their powers stay closer to 1.
_TRANSFORMS = {
    2: (
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: _of_four(5 / 8, 3 / 2),
}

_READ = 24  # multiply-adds in the time in which one weight comes from main memory
_L2 = 512 << 10  # bytes of a core's cache to be filled with transformed inputs
_L2_WEIGHTS = 1200 << 10  # bytes of transformed weights that are read again and again from there


def best_tile(window: Window, data_shape, kernel_shape) -> int | None:
    """The side of the tiles, 2 or 4, for data (N, blocks, H, W, x), weights (O, I, 3, 3, x, x); None: direct is better.

    Counted for each pair of an input and an output channel: the multiply-adds, and the weights that have to be read.
    """
    fits = tuple(kernel_shape[2:4]) == (3, 3) and window.strides == [1, 1] and window.dilation == [1, 1]
    if not fits or len(data_shape) != 5 or kernel_shape[1] != data_shape[1]:
        return None
    height, width = window.out_size(*data_shape[2:4], 3, 3)
    costs = {None: 9 * (data_shape[0] * height * width + _READ)}
    for tile in _TRANSFORMS:
        tiles, size = data_shape[0] * ceildiv(height, tile) * ceildiv(width, tile), (tile + 2) ** 2
        transforms = 7 * size * (1 / window.out + 1 / window.ins)  # of a tile, shared out to its channels
        costs[tile] = size * (tiles + _READ) + tiles * transforms
    return min(costs, key=costs.get)


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """The config that runs without tuning; `kernel_shape` is that of `transform_weight`.

    tile: the side of a tile of outputs. rows, columns: the tiles of a block, whose matrix products' sums are in
    registers together with `blocks` blocks of channels. group: rows of such blocks that a thread transforms and
    multiplies while they are in its cache; 0 has all inputs transformed first and shares out the channels, for weights
    that do not fit into the cache. prefetch, where it is there: the weights of the next of a tile's numbers come while
    those of one are used.
    """
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
    """Rows and columns of tiles, and blocks of channels, for (height, width) tiles of n pictures and outs blocks.

    Two blocks of channels, or three: with one the transformed inputs, with more the weights are fetched more often than
    a cache delivers. The shape in tiles is that of the fewest cycles.
    """
    blocks = next(b for b in (2, 3, 1) if outs % b == 0)
    down, across = (range(1, min(size, simd.registers) + 1) for size in (height, width))
    tiles = itertools.product(down, across, [blocks])
    return fastest_tile(
        tiles, lambda rows, columns, _: (n, ceildiv(height, rows), ceildiv(width, columns)), simd
    )


def transform_weight(weight: np.ndarray, tile: int, lanes: int) -> np.ndarray:
    """(O, I, 3, 3) to (O blocks, tile + 2, tile + 2, I blocks, i, x), filled up with zeros."""
    out, ins = weight.shape[:2]
    outs, sources = ceildiv(out, lanes), ceildiv(ins, lanes)
    g = np.array(_TRANSFORMS[tile][1])
    filled = pad_to(weight, (outs * lanes, sources * lanes, 3, 3)).reshape(outs, lanes, sources, lanes, 9)
    taps = filled.transpose(0, 4, 2, 3, 1).reshape(outs, 9, -1)
    made = np.kron(g, g).astype("float32") @ taps  # G w Gᵀ, of each pair of channels
    return made.reshape(outs, tile + 2, tile + 2, sources, lanes, lanes)


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """The convolution of data (N, blocks, H, W, x) with weights from `transform_weight` as a tensor expression."""
    n, sources, h, w, lanes = (int(s) for s in data.shape)
    outs = int(kernel.shape[0])
    top, left = window.padding[:2]
    out_h, out_w = window.out_size(h, w, 3, 3)
    rows, columns, tile = config["rows"], config["columns"], config["tile"]
    down, across = ceildiv(out_h, tile * rows), ceildiv(out_w, tile * columns)  # blocks of tiles
    side, (of_input, _, of_output) = tile + 2, _TRANSFORMS[tile]
    grid = (n, down, across)

    def element(b, ty, tx, i, row, column, r, s, c):
        y, x = (ty * rows + row) * tile + r - top, (tx * columns + column) * tile + s - left
        return te.if_then_else(tirx.all(y >= 0, y < h, x >= 0, x < w), data[b, i, y, x, c], 0.0)

    patch = te.compute((*grid, sources, rows, columns, side, side, lanes), element, name="patch")
    half = te.compute(patch.shape, lambda *at: _transform(of_input, at[6], lambda r: patch[(*at[:6], r, *at[7:])]),
                      name="half_transformed")  # fmt: skip
    transformed = te.compute(
        (*grid, side, side, sources, rows, columns, lanes), lambda b, ty, tx, p, q, i, row, column, c:
        _transform(of_input, q, lambda s: half[b, ty, tx, i, row, column, p, s, c]), name="transformed")  # fmt: skip
    i, ii = te.reduce_axis((0, sources), "i"), te.reduce_axis((0, lanes), "ii")
    product = te.compute(
        (*grid, outs, side, side, rows, columns, lanes), lambda b, ty, tx, k, p, q, row, column, c:
        te.sum(transformed[b, ty, tx, p, q, i, row, column, ii] * kernel[k, p, q, i, ii, c], axis=[i, ii]),
        name="winograd", attrs=attrs)  # fmt: skip
    half_out = te.compute(
        (*grid, outs, rows, columns, tile, side, lanes), lambda b, ty, tx, k, row, column, r, q, c:
        _transform(of_output, r, lambda p: product[b, ty, tx, k, p, q, row, column, c]), name="half_out")  # fmt: skip

    def out(b, k, y, x, c):
        ty, tx = tirx.floordiv(y, tile), tirx.floordiv(x, tile)
        at = (b, ty // rows, tx // columns, k, ty % rows, tx % columns, y % tile)
        return _transform(of_output, x % tile, lambda q: half_out[(*at, q, c)])

    return te.compute((n, outs, out_h, out_w, lanes), out, name="out")


def _transform(matrix, row, element):
    """Row `row` of `matrix`, the index of a loop that will be unrolled, times (element(0), element(1), …)."""
    made = None
    for number in reversed(range(len(matrix))):
        total = None
        for column, factor in enumerate(matrix[number]):
            if factor:
                term = element(column) * float(factor) if factor != 1 else element(column)
                total = term if total is None else total + term
        made = total if made is None else tirx.Select(row == number, total, made)
    return made


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` gave, with whatever was fused behind it."""
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
    """The matrix products of one block of tiles and channels."""
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
    """The inputs' transform: within `outer`, or before everything else."""
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
    fits = (
        isinstance(conv, Convolution)
        and conv.weight[2:] == (3, 3)
        and conv.strides == conv.dilation == (1, 1)
    )
    return fits and conv.blocked and conv.groups == 1


def default(conv: Convolution, simd: Simd) -> dict | None:
    window, source = conv.window(simd.lanes), conv.packed_input_shape(simd.lanes)
    tile = best_tile(window, source, (ceildiv(conv.weight[0], simd.lanes), source[1], *conv.weight[2:]))
    if tile is None:
        return None
    packed = packed_shape(conv, {"tile": tile}, simd.lanes)
    return {"family": "winograd", **default_config(window, source, packed, simd)}


def space(conv: Convolution, simd: Simd) -> list[dict]:
    (height, width), outs, found = conv.out_size, ceildiv(conv.weight[0], simd.lanes), []
    for tile in (2, 4):
        down, across = ceildiv(height, tile), ceildiv(width, tile)
        shapes = [
            (rows, columns, blocks)
            for blocks in (1, 2, 3, 4) if outs % blocks == 0
            for rows, columns in itertools.product(range(1, min(down, 8) + 1), range(1, min(across, 16) + 1))
            if simd.registers / 2 < (rows * columns + 1) * blocks + 1 <= simd.registers
        ]  # fmt: skip
        for rows, columns, blocks in shapes:
            shape = {"family": "winograd", "tile": tile, "rows": rows, "columns": columns, "blocks": blocks}
            found += [shape | {"group": g} for g in (0, 1, 2, 4) if not g or ceildiv(down, rows) % g == 0]
            found.append(shape | {"group": 0, "prefetch": True})
    return found


def packed_shape(conv: Convolution, config: dict, lanes: int) -> tuple[int, ...]:
    outs, ins, side = ceildiv(conv.weight[0], lanes), ceildiv(conv.data[1], lanes), config["tile"] + 2
    return outs, side, side, ins, lanes, lanes


def packed(conv: Convolution, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    return transform_weight(weight, config["tile"], lanes)


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    n, outs, numbers = conv.data[0], ceildiv(conv.weight[0], lanes), (config["tile"] + 2) ** 2
    down, across = (ceildiv(size, config["tile"]) for size in conv.out_size)
    rows, columns, blocks, group = (config[key] for key in ("rows", "columns", "blocks", "group"))
    lines = n * ceildiv(down, rows)
    return Loops(
        rows=rows * columns, blocks=blocks, line=round_up(across, columns) * rows, outs=outs,
        lines=lines * numbers, points=n * down * across * numbers, depth=conv.data[1],
        chunks=ceildiv(lines, group) if group else ceildiv(outs, blocks), run=rows, columns=columns, stride=conv.strides[0],
    )  # fmt: skip


register(Family("winograd", schedule, serves, default, space, packed_shape, packed, compute, loops))
