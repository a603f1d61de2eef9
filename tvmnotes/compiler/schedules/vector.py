"""What the schedules need to know of a target: the width and the number of its vector registers."""

from dataclasses import dataclass

import tvm

from ... import env


@dataclass(frozen=True)
class Vectors:
    """`lanes` float32 numbers fit into one of `registers` vector registers."""

    lanes: int
    registers: int


def vectors(target: tvm.target.Target) -> Vectors:
    """The vector registers of a CPU target."""
    sets = env.target_instruction_sets(target)
    if "avx512f" in sets:
        return Vectors(16, 32)
    if "avx" in sets:
        return Vectors(8, 16)
    return Vectors(4, 32 if "neon" in sets else 16)
