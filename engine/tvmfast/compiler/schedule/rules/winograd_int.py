"""Winograd's convolution of 8-bit integers for 3x3 windows of stride 1, exact, by products of 16 bits.

As in winograd.py, a tile of inputs and the weights are transformed, multiplied elementwise, summed over the
channels, and transformed back: F(m x m, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (CVPR 2016). Toom and Cook's transforms for integer points are fractions whose common denominator D
is small. Here they are multiplied by D, so that all numbers are integers: transformed inputs and weights fit
into 16 bits, and sums are kept modulo 2**32. The result is D**2 times the convolution. It is multiplied by
the inverse, modulo 2**32, of the odd part of D**2, and shifted by the other, of s bits. That is the
convolution itself while it is below 2**(31 - s) in magnitude, whatever the sums before were.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv
from ....core.simd import PLAIN, Simd
from ..dot import DOTS, Dot, tensorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution
from ..workloads.workload import Workload
from . import winograd

_POINTS = {2: (0, 1, -1), 3: (0, 1, -1, 2), 4: (0, 1, -1, 2, -2)}  # and infinity
_LARGEST = 15  # the largest sum of a row of the weights' transform: 128 * 15**2 < 2**15


class _Transforms(NamedTuple):
    """The matrices of F(m x m, 3x3), of integers, and what their product is divided by, odd << shift."""

    of_input: np.ndarray
    of_weight: np.ndarray
    of_output: np.ndarray
    odd: int
    shift: int


class WinogradInt(winograd.Winograd):
    """Winograd's convolution of uint8 data with int8 weights."""

    name = "winograd_int"
    serves = "blocked 3x3 convolutions of 8-bit integers of stride 1, not of groups, by products of 16 bits"
    dtype = "uint8"

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
        return super().applies(workload, simd) and bool(_exact(workload))

    def default(self, workload: Convolution, simd: Simd) -> Config | None:
        """Choose the default config; None if direct convolution is better."""
        m = best_tile(workload, simd)
        return None if m is None else default_of_tile(workload, m, simd)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        return [
            self.Config(simd.pairs, m, *tile, block)
            for m in _exact(workload)
            for *tile, blocks in winograd.tiles_to_search(workload, m, simd, (3, 4, 12))
            for block in blocks
        ]

    def packed_shape(self, workload: Convolution, config: Config, lanes: int) -> tuple[int, ...]:
        *outer, ins, outs = super().packed_shape(workload, config, lanes)
        terms = _of_int16(config.instruction).terms
        return *outer, ins // terms, outs, terms

    def packed_dtype(self, config: Config) -> str:
        return "int16"

    def pack(self, workload: Convolution, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        """Transform and pack the weight (O, I, 3, 3)."""
        return _of_int16(config.instruction).pack(super().pack(workload, weight, config, lanes), lanes)

    # ------------------------------------------------------------ the numbers

    def transforms(self, m: int) -> tuple:
        return transforms(m)[:3]

    def transform(self, matrix, row, element: Callable):
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

    def padded(self, inside, value, workload: Convolution):
        return te.if_then_else(inside, value, tirx.const(workload.zero, "uint8")).astype("int16")

    def split_lanes(self, weight) -> tuple[int, ...]:
        return int(weight.shape[4]), int(weight.shape[6])

    def product(self, taken: Callable, weight, of_tile: tuple, column, i, ii, t):
        element = taken(i, ii * int(weight.shape[6]) + t).astype("int32")
        return (element * weight[(*of_tile, i, ii, column, t)].astype("int32")).astype("uint32")

    def result(self, total, m: int):
        by = transforms(m)
        return (total * tirx.const(pow(by.odd, -1, 1 << 32), "uint32")).astype("int32") >> by.shift

    # ------------------------------------------------------------ its schedule

    def schedule(self, sch: Schedule, config: Config) -> None:
        self.schedule_tiles(sch, config)
        dot = _of_int16(config.instruction)
        if dot.apply is not None:
            lanes = int(sch.get(sch.get_loops("half_out")[-1]).extent)
            dot = replace(dot, name=f"{dot.name} modular", sums="uint32")
            tensorize(sch, "winograd_update", dot, lanes)

    def order_products(self, sch: Schedule, config: Config) -> tuple:
        k, p, q, row, column, c, i, ii, t = sch.get_loops("winograd")[-9:]
        if _of_int16(config.instruction).apply is not None:
            sch.reorder(p, q, i, ii, row, column, k, c, t)
        else:
            sch.reorder(p, q, i, ii, t, row, column, k, c)
            sch.vectorize(c)
        for loop in (row, column, k):
            sch.unroll(loop)
        return q, i

    finish = ScheduleRule.finish  # no weights are fetched ahead

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return those of `winograd`, of which one step sums as many channels as the instruction does."""
        steps = ceildiv(workload.data[1], _of_int16(config.instruction).terms)
        return replace(super().loops(workload, config, lanes), k=steps)


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


def best_tile(workload: Convolution, simd: Simd) -> int | None:
    """Choose the side of the output tiles; None if direct convolution is better.

    An instruction for dot products of bytes multiplies twice as many as one of 16 bits (with VNNI, LLVM makes
    one, `vpdpwssd`, of the product and the sum).
    """
    if simd.pairs == PLAIN:
        return None
    direct = DOTS[simd.pairs].terms / DOTS[simd.dot].terms
    return winograd.cheapest_tile(workload, _exact(workload), read=12, transform=16, direct=direct)


def default_of_tile(workload: Convolution, m: int, simd: Simd) -> WinogradInt.Config:
    """Choose the default config among those with output tiles of side `m`."""
    tiles = winograd.default_tiles(workload, m, simd, 2, l2=256 << 10, l2_weights=1 << 20, tasks=8)
    return WinogradInt.Config(simd.pairs, m, *tiles)


def _of_int16(instruction: str) -> Dot:
    """Return what computes the products."""
    return replace(DOTS[instruction], data="int16", weight="int16")
