"""The vector registers of a target, the register tile that uses them best, padding, and prefetches."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
from tvm import tirx

from . import machine
from .relax import ceildiv

PLAIN = "plain"  # no instruction for dot products of 8-bit integers
_AMX = {"tdpbusd": "amx-int8", "tdpbf16ps": "amx-bf16"}
_NEAR = 16 << 10  # bytes of weights that stay in a core's L1 cache beside the data


@dataclass(frozen=True)
class Simd:
    """The vector registers of a target.

    Attributes:
        lanes: The float32 elements of a register.
        registers: How many there are.
        inputs: How many a tile has to leave for its inputs. One where a multiply-add or a load broadcasts an
            element of memory. NEON's multiply-add takes an element of a register instead (by-element fmla),
            and LLVM loads those of several rows ahead: tiles that leave fewer than 9 keep sums on the stack.
        dot: The instruction for dot products of 8-bit integers, a key of `schedule.dot.DOTS`. Kernels of
            floats do not depend on it.
        tiles: The instructions that multiply tiles of AMX, keys of `schedule.amx.INSTRUCTIONS`.
    """

    lanes: int
    registers: int
    inputs: int = 1
    dot: str = field(default=PLAIN, compare=False, repr=False)
    tiles: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def pairs(self) -> str:
        """The instruction for products of 16 bits, a key of `schedule.dot.DOTS`: VNNI comes with another."""
        name = self.dot.replace("vpdpbusd", "vpmaddwd")
        return name if "pmaddwd" in name else PLAIN

    def fits(self, rows: int, blocks: int) -> bool:
        """Return whether a tile fits: accumulators, a vector of weights per block, and the inputs."""
        return rows * blocks + blocks + self.inputs <= self.registers


NEON = Simd(4, 32, inputs=9)


def step_cycles(rows: int, blocks: int, near: bool = False) -> float:
    """Estimate the cycles of one reduction step over a tile of `rows` times `blocks` vector accumulators.

    The largest of four, and one more cycle for the loop: the multiply-adds at two per cycle; the loads at
    somewhat fewer than two; the weights, a vector per block, at one in three cycles, as L2 delivers them,
    unless they are `near`, in L1; and 4 cycles, the latency of an accumulator.
    """
    return max(rows * blocks, 1.3 * (rows + blocks), 0 if near else 6 * blocks, 8) / 2 + 1


def fastest_tile(tiles: Iterable[tuple], steps: Callable, simd: Simd, depth: int | None = None) -> tuple:
    """Choose the tile with the fewest cycles, the first of several, among those that fit into the registers.

    A tile is one or several sizes in pixels (or rows), and then its blocks; `steps(*tile)` gives, as factors,
    how many tiles there are to compute. `depth` is the number of reduction steps if several tiles in a row
    use the same weights.
    """

    def cycles(tile: tuple) -> float:
        near = depth is not None and depth * tile[-1] * simd.lanes * 4 <= _NEAR
        return math.prod(steps(*tile), start=step_cycles(math.prod(tile[:-1]), tile[-1], near))

    return min((tile for tile in tiles if simd.fits(math.prod(tile[:-1]), tile[-1])), key=cycles)


def register_tile(
    rows: int, blocks: int, simd: Simd, waste: float = 1.0, depth: int | None = None
) -> tuple[int, int]:
    """Choose the tile (rows, blocks) with the fewest cycles for `rows` x `blocks` vectors.

    Of equal ones, the largest. Accumulators of the last tiles may be unused; `waste` is the factor that this
    costs along the rows. `depth` is as in `fastest_tile`.
    """
    tiles = [
        (r, b) for b in range(1, min(blocks, 8) + 1) for r in range(1, min(max(1, rows), simd.registers) + 1)
    ]

    def steps(r: int, b: int) -> tuple[int, float]:
        return ceildiv(rows, r) * ceildiv(blocks, b), waste if rows % r else 1.0

    return fastest_tile(sorted(tiles, key=lambda tile: -math.prod(tile)), steps, simd, depth)


def simd_of(target: tvm.target.Target) -> Simd:
    """Return the vector registers of a CPU target."""
    sets = machine.target_instruction_sets(target)
    if "avx512f" in sets:
        dot = _dot(sets, "vpdpbusd 512" if "avx512vnni" in sets else "vpmaddwd 512", "avx512bw")
        system = machine.system(str(target.attrs.get("mtriple") or ""))
        amx = _AMX if system == "Linux" and "amx-tile" in sets else {}  # which is asked for tiles
        return Simd(16, 32, dot=dot, tiles=tuple(name for name, isa in amx.items() if isa in sets))
    if "avx" in sets:
        vnni = "avxvnni" in sets or {"avx512vnni", "avx512vl"} <= {*sets}
        return Simd(8, 16, dot=_dot(sets, "vpdpbusd 256" if vnni else "vpmaddwd 256", "avx2"))
    if "neon" in sets:
        return replace(NEON, dot=_dot(sets, "usdot 128", "i8mm"))
    is_x86 = machine.architecture(str(target.attrs.get("mtriple") or "")) == "x86_64"  # which has SSE2
    return Simd(4, 16, dot="pmaddwd 128" if is_x86 else PLAIN)


def _dot(sets: tuple[str, ...], name: str, needs: str) -> str:
    return name if needs in sets else PLAIN


def pad_to(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Zero-pad `array` at the end of each axis up to `shape`; return it unchanged if it has that shape."""
    missing = [(0, whole - size) for whole, size in zip(shape, array.shape, strict=True)]
    return np.pad(array, missing) if any(after for _, after in missing) else array


def prefetch(element: tirx.BufferLoad, level: int) -> tvm.ir.Expr:
    """Return the call that fetches the cache line of an element into a core's cache of a level, 1 to 3.

    The element is not read, so it may lie beyond the end of its buffer.
    """
    to_read, data = 0, 1
    how = (tirx.const(value, "int32") for value in (to_read, 4 - level, data))
    return tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(element), *how)
