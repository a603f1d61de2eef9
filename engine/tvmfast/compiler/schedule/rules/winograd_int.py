"""Winograd's convolution of 8-bit integers for 3x3 windows of stride 1, exact, where 16 bits are multiplied.

As in winograd.py, a tile of inputs and the weights are transformed, multiplied elementwise, summed over the
channels, and transformed back: F(m x m, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (CVPR 2016). Toom and Cook's transforms for integer points are fractions whose common denominator D
is small. Here they are multiplied by D, so that all numbers are integers: transformed inputs and weights fit
into 16 bits, and sums are kept modulo 2**32. The result is D**2 times the convolution. It is multiplied by
the inverse, modulo 2**32, of the odd part of D**2, and shifted by the other, of s bits. That is the
convolution itself while it is below 2**(31 - s) in magnitude, whatever the sums before were.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from ....core.relax import ceildiv, of_one_type, round_up, unwrap_ints
from ....core.simd import Simd, fastest_tile, pad_to
from ..dot import DOTS, Dot, tensorize
from ..epilogue import block_names, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution
from ..workloads.workload import Workload

_NAME = "winograd_int"
_STAGES = ("patch", "half_transformed", "transformed", _NAME, "half_out")
_L2 = 256 << 10  # bytes of a core's cache for transformed inputs
_L2_WEIGHTS = 1 << 20  # bytes of transformed weights that are read repeatedly from there
_POINTS = {2: (0, 1, -1), 3: (0, 1, -1, 2), 4: (0, 1, -1, 2, -2)}  # and infinity
_READ = 12  # multiply-adds in the time that one weight takes from main memory
_TRANSFORM = 16  # multiply-adds in the time that an element of a tile takes to be transformed, in or out
_LARGEST = 15  # the largest sum of a row of the weights' transform: 128 * 15**2 < 2**15


class _Transforms(NamedTuple):
    """The matrices of F(m x m, 3x3), of integers, and what their product is divided by, odd << shift."""

    of_input: np.ndarray
    of_weight: np.ndarray
    of_output: np.ndarray
    odd: int
    shift: int


class WinogradInt(ScheduleRule):
    """Winograd's convolution of uint8 data with int8 weights."""

    name = _NAME
    serves = "blocked 3x3 convolutions of 8-bit integers of stride 1, not of groups, by products of 16 bits"
    dtype = "uint8"
    priority = 10

    @dataclass(frozen=True)
    class Config:
        """The tile of outputs, and the tiles whose products are computed together.

        Attributes:
            instruction: A key of `DOTS`, one that reads int16, or PLAIN.
            m: Side of a tile of outputs, F(m x m, 3x3). Searched, as is what follows, as in `winograd`: 2, 3,
                and 4 for few channels.
            tile_oh: Tiles down in a block of tiles.
            tile_ow: Tiles across in a block of tiles.
            tile_oc: Blocks of x output channels per block of tiles.
            block_oh: Rows of blocks of tiles that a thread transforms and multiplies while they are in its
                cache; 0: all inputs are transformed first, and the threads share the channels.
        """

        instruction: str
        m: int
        tile_oh: int
        tile_ow: int
        tile_oc: int
        block_oh: int

    EXAMPLES = (
        Convolution((1, 32, 16, 16), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True, "uint8"),
        Convolution((2, 40, 9, 11), (40, 40, 3, 3), (1, 1), (1, 0, 0, 2), (1, 1), 1, True, "uint8"),
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        if not isinstance(workload, Convolution) or not workload.blocked or workload.groups != 1:
            return False
        fits = workload.weight[2:] == (3, 3) and workload.strides == workload.dilation == (1, 1)
        return fits and bool(_exact(workload))

    def default(self, workload: Convolution, simd: Simd) -> Config | None:
        """Choose the default config; None if direct convolution is better, as with a dot product of bytes."""
        m = best_tile(workload) if DOTS[simd.dot].data == "int16" else None
        return None if m is None else default_of_tile(workload, m, simd)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        outs = ceildiv(workload.weight[0], simd.lanes)
        found = []
        for m in _exact(workload):
            down, across = (ceildiv(size, m) for size in workload.out_size)
            shapes = itertools.product((1, 2, 3), range(1, min(down, 4) + 1), range(1, min(across, 12) + 1))
            for oc, oh, ow in shapes:
                few = (oh * ow + 1) * oc + 1 <= simd.registers / 2
                if outs % oc or few or not simd.fits(oh * ow, oc):
                    continue
                blocks = (0, *(b for b in (1, 2, 4) if ceildiv(down, oh) % b == 0))
                found += [self.Config(simd.pairs, m, oh, ow, oc, block) for block in blocks]
        return found

    def packed_shape(self, workload: Convolution, config: Config, lanes: int) -> tuple[int, ...]:
        outs, ins = (ceildiv(channels, lanes) for channels in workload.weight[:2])
        terms = _of_int16(config.instruction).terms
        return outs, config.m + 2, config.m + 2, ins, lanes // terms, lanes, terms

    def packed_dtype(self, config: Config) -> str:
        return "int16"

    def pack(self, workload: Convolution, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        """Transform and pack the weight (O, I, 3, 3)."""
        (out, ins), g = weight.shape[:2], transforms(config.m).of_weight
        outs, sources = ceildiv(out, lanes), ceildiv(ins, lanes)
        padded = pad_to(weight, (outs * lanes, sources * lanes, 3, 3)).reshape(outs, lanes, sources, lanes, 9)
        taps = padded.transpose(0, 4, 2, 3, 1).reshape(outs, 9, -1).astype("float32")  # exact: below 2**24
        transformed = np.kron(g, g).astype("float32") @ taps  # G w Gᵀ, of each pair of channels
        split = transformed.reshape(outs, config.m + 2, config.m + 2, sources, lanes, lanes)
        return _of_int16(config.instruction).pack(split, lanes)

    def compute(self, data, weight, workload: Convolution, config: Config):
        """Return the sums (N, blocks, OH, OW, x) in int32 of uint8 data (N, blocks, H, W, x) and weights."""
        n, sources, h, w, lanes = unwrap_ints(data.shape)
        outs, terms = int(weight.shape[0]), int(weight.shape[-1])
        (top, left, _, _), (out_h, out_w) = workload.padding, workload.out_size_of(h, w)
        m, rows, columns, by = config.m, config.tile_oh, config.tile_ow, transforms(config.m)
        side, zero = m + 2, tirx.const(workload.zero, "uint8")
        grid = n, ceildiv(out_h, m * rows), ceildiv(out_w, m * columns)

        def element(b, ty, tx, i, row, column, r, s, c):
            y, x = (ty * rows + row) * m + r - top, (tx * columns + column) * m + s - left
            inside = tirx.all(y >= 0, y < h, x >= 0, x < w)
            return te.if_then_else(inside, data[b, i, y, x, c], zero).astype("int16")

        shape = of_one_type(*grid, sources, rows, columns, side, side, lanes)
        patch = te.compute(shape, element, name="patch")

        def half_input(*at):
            return _transform(by.of_input, at[6], lambda r: patch[(*at[:6], r, *at[7:])])

        half = te.compute(patch.shape, half_input, name="half_transformed")

        def whole_input(b, ty, tx, p, q, i, row, column, c):
            return _transform(by.of_input, q, lambda s: half[b, ty, tx, i, row, column, p, s, c])

        shape = of_one_type(*grid, side, side, sources, rows, columns, lanes)
        transformed = te.compute(shape, whole_input, name="transformed")
        extents = {"i": sources, "ii": lanes // terms, "t": terms}
        i, ii, t = (te.reduce_axis((0, extent), name) for name, extent in extents.items())

        def multiplied(b, ty, tx, k, p, q, row, column, c):
            pair = transformed[b, ty, tx, p, q, i, row, column, ii * terms + t].astype("int32")
            product = pair * weight[k, p, q, i, ii, c, t].astype("int32")
            return te.sum(product.astype("uint32"), axis=[i, ii, t])

        shape = of_one_type(*grid, outs, side, side, rows, columns, lanes)
        attrs = self.annotation(workload, config)
        product = te.compute(shape, multiplied, name=_NAME, attrs=attrs)

        def half_output(b, ty, tx, k, row, column, r, q, c):
            return _transform(by.of_output, r, lambda p: product[b, ty, tx, k, p, q, row, column, c])

        shape = of_one_type(*grid, outs, rows, columns, m, side, lanes)
        half_out = te.compute(shape, half_output, name="half_out")
        inverse = tirx.const(pow(by.odd, -1, 1 << 32), "uint32")

        def out(b, k, y, x, c):
            ty, tx = tirx.floordiv(y, m), tirx.floordiv(x, m)
            at = (b, ty // rows, tx // columns, k, ty % rows, tx % columns, y % m)
            total = _transform(by.of_output, x % m, lambda q: half_out[(*at, q, c)])
            return (total * inverse).astype("int32") >> by.shift

        return te.compute(of_one_type(n, outs, out_h, out_w, lanes), out, name="out")

    def schedule(self, sch: Schedule, config: Config) -> None:
        *epilogue, last = [name for name in block_names(sch) if name not in _STAGES]
        for name in epilogue:
            sch.compute_inline(name)
        n, k, y, x, c = sch.get_loops(last)
        ko, ki = sch.split(k, [None, config.tile_oc])
        tb, ty, row, yi = sch.split(y, [None, config.block_oh or 1, config.tile_oh, config.m])
        tx, column, xi = sch.split(x, [None, config.tile_ow, config.m])
        if config.block_oh:
            sch.reorder(n, tb, ko, ty, tx, ki, row, column, yi, xi, c)
            outer = parallel(sch, [n, tb])
        else:
            sch.reorder(ko, n, tb, ty, tx, ki, row, column, yi, xi, c)
            outer = None
            sch.parallel(ko)
        sch.compute_at("half_out", column, True)
        sch.set_scope("half_out", 0, "local")
        sch.compute_at(_NAME, tx, True)
        vectorize(sch, [yi, xi, c])
        _unroll_all(sch, sch.get_loops("half_out")[-3:])
        dot, lanes = _of_int16(config.instruction), int(sch.get(c).extent)
        _products(sch, dot.apply is not None)
        _inputs(sch, outer)
        if dot.apply is not None:
            tensorize(sch, f"{_NAME}_update", _modular(dot, lanes), lanes)

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each element of a tile of inputs."""
        images, n = workload.data[0], ceildiv(workload.weight[0], lanes)
        elements = (config.m + 2) ** 2
        down, across = (ceildiv(size, config.m) for size in workload.out_size)
        rows = images * ceildiv(down, config.tile_oh)
        return Loops(
            tile_m=config.tile_oh * config.tile_ow,
            tile_n=config.tile_oc,
            m=round_up(across, config.tile_ow) * config.tile_oh,
            n=n,
            products=rows * elements,
            rows=images * down * across * elements,
            k=ceildiv(workload.data[1], _of_int16(config.instruction).terms),
            n_tasks=ceildiv(rows, config.block_oh) if config.block_oh else ceildiv(n, config.tile_oc),
            block_m=config.tile_oh,
            n_outer=config.tile_ow,
        )


@functools.cache
def transforms(m: int) -> _Transforms:
    """Return the transforms of F(m x m, 3x3) for the points of `_POINTS` and infinity (Toom and Cook).

    A row of the weights' transform takes as much of its factor as its numbers have room for in 16 bits, the
    outputs' the rest.
    """
    points = _POINTS[m]
    without = [np.poly([b for b in points if b != a])[::-1].round().astype(int) for a in points]
    divisors = [math.prod(a - b for b in points if b != a) for a in points] + [1]
    common = math.lcm(*divisors)
    of_input = np.zeros((m + 2, m + 2), int)
    for row, coefficients in enumerate([*without, np.poly(points)[::-1].round().astype(int)]):
        of_input[row, : len(coefficients)] = coefficients
    of_weight = np.array([[a**j for j in range(3)] for a in points] + [[0, 0, 1]])
    of_output = np.array([[a**j for a in points] + [int(j == m - 1)] for j in range(m)])
    for row, divisor in enumerate(divisors):
        factor, rest = common // divisor, 1
        while abs(factor) * np.abs(of_weight[row]).sum() > _LARGEST:
            factor, rest = factor // 2, rest * 2
        of_weight[row] *= factor
        of_output[:, row] *= rest
    shift = (common**2 & -(common**2)).bit_length() - 1
    return _Transforms(of_input, of_weight, of_output, common**2 >> shift, shift)


def _exact(conv: Convolution) -> list[int]:
    """List the tiles that are exact, whatever the data and weights."""
    most = 9 * conv.weight[1] * 255 * 128
    return [m for m in _POINTS if most < 1 << (31 - transforms(m).shift)]


def best_tile(workload: Convolution) -> int | None:
    """Choose the side of the output tiles; None if direct convolution is better.

    Counted for each pair of an input and an output channel: the multiply-adds, the transforms of tiles, and
    the weights that have to be read.
    """
    images, (height, width) = workload.data[0], workload.out_size
    outs, ins = workload.weight[:2]
    costs = {None: 9 * (images * height * width + _READ)}
    for m in _exact(workload):
        tiles = images * ceildiv(height, m) * ceildiv(width, m)
        costs[m] = (m + 2) ** 2 * (tiles * (1 + _TRANSFORM * (1 / outs + 1 / ins)) + _READ)
    return min(costs, key=costs.get)


def default_of_tile(workload: Convolution, m: int, simd: Simd) -> WinogradInt.Config:
    """Choose the default config among those with output tiles of side `m`."""
    images, (down, across) = workload.data[0], (ceildiv(size, m) for size in workload.out_size)
    outs, sources = (ceildiv(channels, simd.lanes) for channels in workload.weight[:2])
    tile_oc = next(b for b in (2, 3, 1) if outs % b == 0)
    sizes = (range(1, min(size, simd.registers) + 1) for size in (down, across))

    def tiles_along(oh, ow, _):
        return images, ceildiv(down, oh), ceildiv(across, ow)

    tile_oh, tile_ow, _ = fastest_tile(itertools.product(*sizes, [tile_oc]), tiles_along, simd)
    vectors = (m + 2) ** 2 * sources * simd.lanes * 2  # bytes of a transformed tile of inputs
    row = tile_oh * round_up(across, tile_ow) * vectors  # bytes of a row of blocks
    rows = ceildiv(down, tile_oh)
    block_oh = 0
    if vectors * outs * simd.lanes <= _L2_WEIGHTS and images * rows >= 4:
        most = max(1, min(_L2 // row, rows // 4))
        block_oh = next(b for b in range(most, 0, -1) if rows % b == 0)
    return WinogradInt.Config(simd.pairs, m, tile_oh, tile_ow, tile_oc, block_oh)


def _transform(matrix, row, element):
    """Multiply row `row` of `matrix`, the index of a loop to be unrolled, by (element(0), element(1), …)."""
    selected = None
    for index in reversed(range(len(matrix))):
        total = None
        for column in sorted(np.flatnonzero(matrix[index]), key=lambda j: matrix[index][j] < 0):
            factor, term = int(matrix[index][column]), element(int(column))
            if abs(factor) != 1:
                term = term * tirx.const(abs(factor), term.dtype)
            total = term if total is None else total + term if factor > 0 else total - term
        selected = total if selected is None else tirx.Select(row == index, total, selected)
    return selected


def _of_int16(instruction: str) -> Dot:
    """Return what computes the products."""
    return replace(DOTS[instruction], data="int16", weight="int16")


def _modular(dot: Dot, lanes: int) -> Dot:
    """Return an instruction with sums modulo 2**32; those of int32 must not overflow, in LLVM's terms."""

    def apply(sums, data, weights):
        products = dot.apply(T.broadcast(T.int32(0), lanes), data, weights)
        return sums + T.reinterpret(f"uint32x{lanes}", products)

    return replace(dot, name=f"{dot.name} modular", sums="uint32", apply=apply)


def _products(sch, tensorized: bool):
    """Schedule the matrix products of one block of tiles and channels."""
    stored = sch.cache_write(_NAME, 0, "local")
    k, p, q, row, column, c, i, ii, t = sch.get_loops(_NAME)[-9:]
    sch.reorder(p, q, i, ii, *((row, column, k, c, t) if tensorized else (t, row, column, k, c)))
    sch.reverse_compute_at(stored, q, True)
    vectorize(sch, sch.get_loops(stored)[-4:])
    if not tensorized:
        sch.vectorize(c)
    for loop in (row, column, k):
        sch.unroll(loop)
    init = sch.decompose_reduction(_NAME, i)
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
