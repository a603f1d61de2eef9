"""What the schedules need to know of a target, the width and the number of its vector registers; and whole vectors."""

from dataclasses import dataclass

import numpy as np
import tvm

from ...base import env


@dataclass(frozen=True)
class Vectors:
    """`lanes` float32 numbers fit into one of `registers` vector registers."""

    lanes: int
    registers: int


def step_cycles(rows: int, blocks: int) -> float:
    """Cycles of one step of a reduction over a tile of `rows` times `blocks` vectors of sums.

    It takes as many as its multiply-adds need at two a cycle, or its loads at somewhat fewer than two, or its weights,
    a vector a block, at one in three cycles, as L2 gives them; but no fewer than the 4 that a sum takes to be ready
    again, and one more for the loop.
    """
    return max(rows * blocks, 1.3 * (rows + blocks), 6 * blocks, 8) / 2 + 1


def vectors(target: tvm.target.Target) -> Vectors:
    """The vector registers of a CPU target."""
    sets = env.target_instruction_sets(target)
    if "avx512f" in sets:
        return Vectors(16, 32)
    if "avx" in sets:
        return Vectors(8, 16)
    return Vectors(4, 32 if "neon" in sets else 16)


def filled_up(array: np.ndarray, shape) -> np.ndarray:
    """`array` with zeros behind its numbers along each axis, up to `shape`; itself where nothing is missing."""
    missing = [(0, whole - size) for whole, size in zip(shape, array.shape, strict=True)]
    return np.pad(array, missing) if any(behind for _, behind in missing) else array
