"""Matrix products with weights by the tiles of AMX, of 8-bit integers or of bfloat16; see ../amx.py.

Integers are read where they lie if the matrix consists of whole tiles; else, and in bfloat16, a stage before
the product copies or rounds it. In bfloat16 the second half of a row is paired with the first.
"""

from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd, pad_to
from .. import pairs
from ..amx import INSTRUCTIONS, ROWS, Tile, suits, tile_loops, tile_of
from ..epilogue import block_names, parallel
from ..rule import ScheduleRule
from ..workloads.dense import Dense

_NAME, _STAGE = "amx_matmul", "rows"
_OF_INTEGERS = "tdpbusd"
_CACHED_WEIGHTS = 1 << 20  # bytes of weights that stay in a core's L2 cache


class AmxMatmul(ScheduleRule):
    """Product of uint8 data with int8 weights, or of float32 data, which it rounds, with such weights."""

    name = _NAME

    @dataclass(frozen=True)
    class Config:
        """The instruction, the register tile and the outer loop.

        Attributes:
            instruction: A key of `INSTRUCTIONS`.
            rows: Rows of a tile.
            tile_m: Tiles of rows in the register tile.
            tile_n: Blocks of 16 columns in the register tile.
            loop_order: The outer loop over register tiles: of "rows" or of "columns".
        """

        instruction: str
        rows: int
        tile_m: int
        tile_n: int
        loop_order: str

    def pack(self, workload: Dense, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        return pack(weight, config, lanes)

    def compute(self, data, weight, workload: Dense, config: Config):
        return compute(data, weight, workload, config)

    def schedule(self, sch: Schedule, config: Config) -> None:
        tile = Tile(config.instruction, config.rows, config.tile_m, 1, config.tile_n)
        *batch, o, m, c, k, q = sch.get_loops(_NAME)
        mo, mi = sch.split(m, [None, config.rows * config.tile_m])
        no, ni = sch.split(o, [None, config.tile_n])
        ko, ki = sch.split(k, [None, ROWS])
        outer = [*batch, mo, no] if config.loop_order == "rows" else [no, *batch, mo]
        sch.reorder(*outer, ko, ni, mi, c, ki, q)
        has_stage = _STAGE in block_names(sch)
        tile_loops(sch, _NAME, outer, outer[-1], ko, ni, tile, stages=(_STAGE,))
        if has_stage:
            *rows, row = sch.get_loops(_STAGE)
            parallel(sch, rows)
            sch.vectorize(sch.split(row, [None, ROWS])[1])


def fits(shape: tuple, simd: Simd, instruction: str) -> bool:
    """Tell whether a target multiplies data of a shape, with its dynamic dims, by an instruction."""
    return all(isinstance(dim, int) for dim in shape) and suits(simd.tiles, instruction, *shape[-2:])


def config_of_integers(dense: Dense, shape: tuple, simd: Simd) -> dict | None:
    """Return the config of a product of 8-bit integers, or None if it is not computed by tiles."""
    if not fits(shape, simd, _OF_INTEGERS):
        return None
    return AmxMatmul().as_dict(default(shape[-2], dense.depth, dense.columns, _OF_INTEGERS))


def default(rows: int, depth: int, columns: int, instruction: str) -> AmxMatmul.Config:
    """Choose two by two tiles, and the outer loop."""
    tile = tile_of(1, rows, ceildiv(columns, ROWS))
    size = depth * columns * (1 if INSTRUCTIONS[instruction].terms > 1 else 2)
    order = "rows" if size <= _CACHED_WEIGHTS else "columns"
    return AmxMatmul.Config(instruction, tile["rows"], tile["across"], tile["blocks"], order)


def pack(weight: np.ndarray, config: AmxMatmul.Config, lanes: int) -> np.ndarray:
    """Pack weights (K, N) into (blocks, K / terms, 16, terms), zero-padded to whole tiles.

    Of bfloat16, terms is 1, and an element two numbers, a half of K apart.
    """
    (depth, columns), instruction = weight.shape, INSTRUCTIONS[config.instruction]
    blocks = round_up(ceildiv(columns, lanes), config.tile_n)
    full = round_up(depth, instruction.channels)
    split = pad_to(weight, (full, blocks * lanes)).reshape(full, blocks, lanes).transpose(1, 0, 2)
    if instruction.terms == 1:
        split = pairs.pack(split, 1, full // 2)
    return instruction.weights.pack(split, lanes)


def compute(data, weight, dense: Dense, config: AmxMatmul.Config):
    """Multiply data (…, M, K) by packed weights; return the sums (…, M, columns), of int32 or float32.

    Args:
        data: uint8, or float32 to be rounded to bfloat16.
        weight: As `pack` returns it.
        dense: The product.
        config: How to compute them.
    """
    instruction, rule = INSTRUCTIONS[config.instruction], AmxMatmul()
    *batch, rows, _ = unwrap_ints(data.shape)
    blocks, steps, _, terms = unwrap_ints(weight.shape)
    full = round_up(rows, config.rows * config.tile_m)
    data = _staged(data, full, steps * terms, instruction.data)
    k, q = te.reduce_axis((0, steps), "k"), te.reduce_axis((0, terms), "q")

    def element(*at):
        *b, n, m, c = at
        return te.sum(instruction.multiply(data[(*b, m, k * terms + q)], weight[n, k, c, q]), axis=[k, q])

    attrs = rule.annotation(dense, config)
    tiles = te.compute((*batch, blocks, full, ROWS), element, name=_NAME, attrs=attrs)

    def flat(*at):
        *b, m, n = at
        return tiles[(*b, n // ROWS, m, n % ROWS)]

    return te.compute((*batch, rows, dense.columns), flat, name="flat")


def _staged(data, full: int, elements: int, dtype: str):
    """Return data (…, M, K) as rows of so many elements, whole tiles of them; pairs of bfloat16 if int32."""
    *batch, rows, depth = unwrap_ints(data.shape)
    if (rows, depth, str(data.dtype)) == (full, elements, dtype):
        return data

    def element(*at):
        *b, m, k = at
        row = m if full == rows else te.min(m, rows - 1)
        if str(data.dtype) == dtype:
            return data[(*b, row, k if elements == depth else te.min(k, depth - 1))]  # times weights of 0
        second = data[(*b, row, k + elements)]
        if depth < 2 * elements:
            second = tirx.if_then_else(k + elements < depth, second, tirx.const(0, "float32"))
        return pairs.pair(data[(*b, row, k)], second)

    return te.compute((*batch, full, elements), element, name=_STAGE)
