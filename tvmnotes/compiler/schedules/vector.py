"""The vector registers of a target, and the tile of sums that uses them best; arrays filled up to whole vectors."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tvm

from ...base import env
from ...base.integers import ceildiv


@dataclass(frozen=True)
class Simd:
    """`lanes` float32 numbers fit into one of `registers` vector registers."""

    lanes: int
    registers: int

    def fits(self, rows: int, blocks: int) -> bool:
        """Whether a tile of sums fits: a register for each sum, for each block's weights, and for the input."""
        return rows * blocks + blocks + 1 <= self.registers


def step_cycles(rows: int, blocks: int) -> float:
    """Cycles of one step of a reduction over a tile of `rows` times `blocks` vectors of sums.

    It takes as many as its multiply-adds need at two a cycle, or its loads at somewhat fewer than two, or its weights,
    a vector a block, at one in three cycles, as L2 gives them; but no fewer than the 4 that a sum takes to be ready
    again, and one more for the loop.
    """
    return max(rows * blocks, 1.3 * (rows + blocks), 6 * blocks, 8) / 2 + 1


def fastest_tile(tiles: Iterable[tuple], steps: Callable, simd: Simd) -> tuple:
    """The tile that takes the fewest cycles, the first of several, among those that the registers hold.

    A tile is its sizes in pixels (or rows), one or several, and its blocks; `steps(*tile)` is how many of them it
    takes, as factors.
    """
    fitting = [tile for tile in tiles if simd.fits(math.prod(tile[:-1]), tile[-1])]
    return min(
        fitting, key=lambda tile: math.prod(steps(*tile), start=step_cycles(math.prod(tile[:-1]), tile[-1]))
    )


def register_tile(rows: int, blocks: int, simd: Simd, waste: float = 1.0) -> tuple[int, int]:
    """The tile, (rows, blocks), of the fewest cycles for `rows` times `blocks` vectors of sums, the larger of several.

    Tiles at the end have sums that nobody reads; `waste` is what it costs, as a factor, where the rows' have some.
    """
    tiles = [(r, b) for b in range(1, min(blocks, 8) + 1) for r in range(1, min(rows, simd.registers) + 1)]

    def steps(r, b):
        return ceildiv(rows, r) * ceildiv(blocks, b), waste if rows % r else 1.0

    return fastest_tile(sorted(tiles, key=lambda tile: -math.prod(tile)), steps, simd)


def simd_of(target: tvm.target.Target) -> Simd:
    """The vector registers of a CPU target."""
    sets = env.target_instruction_sets(target)
    if "avx512f" in sets:
        return Simd(16, 32)
    if "avx" in sets:
        return Simd(8, 16)
    return Simd(4, 32 if "neon" in sets else 16)


def pad_to(array: np.ndarray, shape) -> np.ndarray:
    """`array` with zeros behind its numbers along each axis, up to `shape`; itself where nothing is missing."""
    missing = [(0, whole - size) for whole, size in zip(shape, array.shape, strict=True)]
    return np.pad(array, missing) if any(behind for _, behind in missing) else array
