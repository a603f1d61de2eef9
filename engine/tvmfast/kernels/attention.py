"""The kernel of attention: a block of keys at a time, with a running maximum and sum for each query.

The scores of a tile of queries and a block of keys are computed in registers and stay in the cache. Their
maximum so far is subtracted before the exponential function, and what was summed with a smaller one is
rescaled: the online softmax of Milakov and Gimelshein (2018), and the loops of Dao et al., "FlashAttention"
(NeurIPS 2022). The keys are read in panels, one for each tile, as matrix products read their right-hand
matrix. In vectors of one number for each query of a tile, the last lanes are unused.
"""

import math
from contextlib import ExitStack
from dataclasses import dataclass

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ..core.compat import OPAQUE
from ..core.relax import ceildiv, of_one_type, unwrap_ints
from ..core.simd import Simd
from . import elementwise
from .dynamic import DynamicDims

_BYTES = 32 << 10  # of a block's keys and values, at most: they stay in the L1 cache
_TILES = 8  # tiles of queries that use a block of keys one after the other, at most
_MANY = 1024  # keys for which a tile is chosen if their number is dynamic
_ROWS = 6  # queries in registers
_LANES = 8  # of the vector that has a number for each of them
OPERATORS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


@dataclass(frozen=True)
class ScoreOp:
    """An elementwise operator on the scores, before the softmax.

    Attributes:
        operator: "add", "subtract", "multiply", "divide" or "where".
        operand: A number; the name of an input for a tensor that broadcasts to the scores; of "where", the
            number that replaces scores.
        flipped: Whether the operand is the left one.
        condition: Of "where", the name of an input that is not 0 where scores stay, or with `flipped` where
            they are replaced.
    """

    operator: str
    operand: float | str
    flipped: bool = False
    condition: str = ""


@dataclass(frozen=True)
class Dims:
    """The dims of attention: its batch axes, queries, keys, elements of a key, elements of a value.

    The first three may be dynamic, expressions of TVM.
    """

    batch: tuple
    queries: int
    keys: int
    depth: int
    width: int


@dataclass(frozen=True)
class Tile:
    """How a kernel is computed.

    Attributes:
        lanes: Elements of a vector.
        keys: Vectors of keys in registers.
        values: Vectors of values in registers.
        block: Tiles of keys in a block.
        group: Tiles of queries of a task.
    """

    lanes: int
    keys: int
    values: int
    block: int
    group: int

    @staticmethod
    def of(dims: Dims, simd: Simd) -> "Tile":
        """Choose the tile for dims whose values are whole vectors; dynamic ones are taken to be large."""
        most = next((n for n in (4, 3) if simd.fits(_ROWS, n)), 2)
        choices = range(most, max(1, most - 2), -1)
        vectors = ceildiv(dims.keys if isinstance(dims.keys, int) else _MANY, simd.lanes)
        keys = min(choices, key=lambda n: ceildiv(vectors, n) * n)
        values = max(n for n in range(1, choices[0] + 1) if dims.width // simd.lanes % n == 0)
        tiles = ceildiv(vectors, keys)
        fit = max(1, _BYTES // (4 * (dims.depth + dims.width) * keys * simd.lanes))
        block = ceildiv(tiles, ceildiv(tiles, fit))
        rows = ceildiv(dims.queries, _ROWS) if isinstance(dims.queries, int) else _TILES
        return Tile(simd.lanes, keys, values, block, ceildiv(rows, ceildiv(rows, _TILES)))

    def panels(self, keys):
        """Return how many vectors of keys whole tiles have."""
        return ceildiv(keys, self.lanes * self.keys) * self.keys


def panels(keys, tile: Tile):
    """Return keys (batch, depth, keys) in panels, (batch, tiles, depth, keys of a tile), zeros at the end."""
    batch, depth, count = unwrap_ints(keys.shape)
    width, tiles = tile.keys * tile.lanes, tile.panels(count) // tile.keys

    def element(b, p, d, c):
        key = p * width + c
        value = keys[b, d, key]
        whole = isinstance(count, int) and tiles * width == count
        return value if whole else te.if_then_else(key < count, value, 0.0)

    return te.compute(of_one_type(batch, tiles, depth, width), element, name="panels")


def pad_keys(mask, length):
    """Return a tensor with zeros at the end of its last axis, up to a length."""
    *others, keys = unwrap_ints(mask.shape)

    def element(*at):
        return te.if_then_else(at[-1] < keys, mask[at], 0.0)

    return te.compute(of_one_type(*others, length), element, name="pad")


def kernel(
    dims: Dims, tile: Tile, score_ops: list[ScoreOp], inputs: dict, empty: float, dynamic: DynamicDims
) -> tvm.tirx.PrimFunc:
    """Make the kernel, of queries (batch, queries, depth), `panels` of keys, and values (batch, keys, width).

    Args:
        dims: Its dims; the batch is one axis of its inputs.
        tile: How it is computed.
        score_ops: The operators on the scores, in order.
        inputs: The shapes of the inputs that `score_ops` name, of float32, which follow the values. An axis
            of keys has as many elements as the panels.
        empty: The sum by which the result of a query is divided if all its scores are -infinity: 0 makes it
            NaN, and 1 makes it 0.
        dynamic: The dynamic dims of all shapes.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        _Kernel(dims, tile, score_ops, inputs, empty, dynamic).emit()
    return builder.get()


def _number(value: float):
    return tirx.FloatImm("float32", value)


def _larger(a, b):
    """Return the larger of two scores; a NaN need not propagate here: the exponential function does that."""
    return tirx.Select(a > b, a, b)


class _Kernel:
    """Emits the body of the kernel, inside the frame of its function."""

    def __init__(self, dims, tile, score_ops, inputs, empty, dynamic):
        self.dims, self.tile, self.score_ops, self.empty = dims, tile, score_ops, empty
        self.whole = dynamic.whole
        batch, self.panels = math.prod(dims.batch), tile.panels(dims.keys)
        shapes = {
            "query": (batch, dims.queries, dims.depth),
            "key": (batch, self.panels // tile.keys, dims.depth, tile.keys * tile.lanes),
            "value": (batch, dims.keys, dims.width),
            **inputs,
        }
        self.given = {name: T.arg(name, T.buffer(shape, "float32")) for name, shape in shapes.items()}
        dynamic.declare()
        self.result = T.arg("result", T.buffer((batch, dims.queries, dims.width), "float32"))

    def emit(self) -> None:
        s, t = self.dims, self.tile
        tiles = ceildiv(s.queries, _ROWS)
        groups, key_tiles = ceildiv(tiles, t.group), self.panels // t.keys
        rows = t.group * _ROWS
        with T.parallel(self.whole(math.prod(s.batch) * groups)) as task:
            self.batch, first = task // groups, task % groups * t.group
            self.first = first * _ROWS
            self.sums = T.alloc_buffer((rows, s.width), "float32", scope="local")
            self.totals = T.alloc_buffer((rows, t.lanes), "float32", scope="local")
            self.largest = T.alloc_buffer((t.group, _LANES), "float32", scope="local")
            with T.serial(self.whole(t.group)) as tile, T.vectorized(self.whole(_LANES)) as lane:
                T.buffer_store(self.largest, _number(-math.inf), [tile, lane])
            with T.serial(self.whole(rows)) as row:
                with T.vectorized(self.whole(t.lanes)) as lane:
                    T.buffer_store(self.totals, _number(0), [row, lane])
                with (
                    T.serial(self.whole(s.width // t.lanes)) as vector,
                    T.vectorized(self.whole(t.lanes)) as lane,
                ):
                    T.buffer_store(self.sums, _number(0), [row, vector * t.lanes + lane])
            count = tirx.min(t.group, tiles - first)
            with T.serial(ceildiv(key_tiles, t.block)) as block, T.serial(count) as tile:
                self._tile(tile, block * t.block, tirx.min(t.block, key_tiles - block * t.block))
            with T.serial(count) as tile:
                self._finish(tile)

    def _tile(self, queries, first, count):
        """Add what a block of keys, of `count` tiles from the tile `first` on, makes of a tile of queries."""
        t, row = self.tile, queries * _ROWS
        self.scores = T.alloc_buffer((_ROWS, t.block * t.keys * t.lanes), "float32", scope="local")
        self.best = T.alloc_buffer((_ROWS, t.lanes), "float32", scope="local")
        self.shifts = T.alloc_buffer((_LANES,), "float32", scope="local")
        self.factors = T.alloc_buffer((_LANES,), "float32", scope="local")
        with T.unroll(self.whole(_ROWS)) as r, T.vectorized(self.whole(t.lanes)) as lane:
            T.buffer_store(self.best, _number(-math.inf), [r, lane])
        with T.serial(count) as tile:
            self._product(row, first + tile, tile * t.keys * t.lanes)
        self._reduce(self.best, _larger, lambda r: r)
        self._subtract(queries)
        self._exponentials(row, count * t.keys)
        key = first * t.keys * t.lanes
        self._values(row, key, tirx.min(count * t.keys * t.lanes, self.dims.keys - key))

    def _product(self, row, tile, at):
        """Compute the scores of a tile of keys, store them from `at` on, note the largest of each lane."""
        s, t = self.dims, self.tile
        sums = T.alloc_buffer((_ROWS, t.keys, t.lanes), "float32", scope="local")

        def each(statement):
            with (
                T.unroll(self.whole(_ROWS)) as r,
                T.unroll(self.whole(t.keys)) as q,
                T.vectorized(self.whole(t.lanes)) as lane,
            ):
                statement(r, q, lane)

        def add(r, q, lane):
            query = self.given["query"][self.batch, self._inside(row + r), k]
            term = query * self.given["key"][self.batch, tile, k, q * t.lanes + lane]
            T.buffer_store(sums, sums[r, q, lane] + term, [r, q, lane])

        def end(r, q, lane):
            key = (tile * t.keys + q) * t.lanes + lane
            score = sums[r, q, lane]
            for op in self.score_ops:
                score = self._apply(op, score, self._inside(row + r), key)
            if not isinstance(s.keys, int) or self.panels * t.lanes != s.keys:
                score = tirx.Select(key < s.keys, score, _number(-math.inf))
            T.buffer_store(self.scores, score, [r, at + q * t.lanes + lane])

        def note(r, q, lane):
            score = self.scores[r, at + q * t.lanes + lane]
            T.buffer_store(self.best, _larger(score, self.best[r, lane]), [r, lane])

        each(lambda *index: T.buffer_store(sums, _number(0), index))
        with T.serial(self.whole(s.depth)) as k:
            each(add)
        each(end)
        each(note)

    def _inside(self, row):
        """Return the query of a row, or the last one for a row that only completes a tile."""
        query = self.first + row
        queries = self.dims.queries
        return query if isinstance(queries, int) and queries % _ROWS == 0 else tirx.min(query, queries - 1)

    def _apply(self, op: ScoreOp, score, query, key):
        at = [*self._batch_index(), query, key]
        operand = self._input(op.operand, at) if isinstance(op.operand, str) else _number(op.operand)
        left, right = (operand, score) if op.flipped else (score, operand)
        if op.operator == "where":
            return tirx.Select(self._input(op.condition, at) > _number(0.5), left, right)
        return OPERATORS[op.operator](left, right)

    def _batch_index(self) -> list:
        dims = self.dims.batch
        strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
        index = [self.batch // stride % dim for dim, stride in zip(dims, strides, strict=True)]
        return [self.batch // strides[0], *index[1:]] if dims else []

    def _input(self, name: str, at: list):
        """Return an element of an input that broadcasts to the scores."""
        shape = unwrap_ints(self.given[name].shape)
        own = at[len(at) - len(shape) :]
        fixed = (isinstance(n, int) and n == 1 for n in shape)
        return self.given[name][tuple(0 if one else i for one, i in zip(fixed, own, strict=True))]

    def _reduce(self, lanes, combine, at):
        """Combine the lanes of each row into the first one."""
        width = self.tile.lanes // 2
        while width:
            with T.unroll(self.whole(_ROWS)) as r, T.vectorized(self.whole(width)) as lane:
                T.buffer_store(lanes, combine(lanes[at(r), lane], lanes[at(r), lane + width]), [at(r), lane])
            width //= 2

    def _subtract(self, queries):
        """Note the largest score so far, and the factors for what was summed before."""
        with T.vectorized(self.whole(_LANES)) as lane:
            T.buffer_store(self.shifts, _number(-math.inf), [lane])
        with T.unroll(self.whole(_ROWS)) as r:
            T.buffer_store(self.shifts, self.best[r, 0], [r])
        with T.vectorized(self.whole(_LANES)) as lane:
            T.buffer_store(self.factors, self.largest[queries, lane], [lane])
            largest = _larger(self.shifts[lane], self.factors[lane])
            T.buffer_store(self.largest, largest, [queries, lane])
            # Minus infinity, of scores that are all masked, is not subtracted from itself.
            largest = self.largest[queries, lane]
            shift = tirx.Select(largest > _number(-math.inf), largest, _number(0))
            T.buffer_store(self.shifts, shift, [lane])
            factor = elementwise.exp_to_one(self.factors[lane] - self.shifts[lane])
            T.buffer_store(self.factors, factor, [lane])

    def _exponentials(self, row, vectors):
        """Replace the scores by their exponentials, and add these up."""
        lanes = self.tile.lanes
        with T.unroll(self.whole(_ROWS)) as r, T.vectorized(self.whole(lanes)) as lane:
            total = self.totals[row + r, lane] * self.factors[r]
            T.buffer_store(self.totals, total, [row + r, lane])
        with (
            T.serial(self.whole(vectors)) as vector,
            T.unroll(self.whole(_ROWS)) as r,
            T.vectorized(self.whole(lanes)) as lane,
        ):
            score = self.scores[r, vector * lanes + lane]
            weight = elementwise.exp_to_one(score - self.shifts[r])
            T.buffer_store(self.scores, weight, [r, vector * lanes + lane])
            total = self.totals[row + r, lane] + self.scores[r, vector * lanes + lane]
            T.buffer_store(self.totals, total, [row + r, lane])

    def _values(self, row, first, count):
        """Add the values of `count` keys from `first` on, each times its weight."""
        s, t = self.dims, self.tile
        with T.serial(self.whole(s.width // t.lanes // t.values)) as chunk:
            sums = T.alloc_buffer((_ROWS, t.values, t.lanes), "float32", scope="local")

            def each(statement):
                with (
                    T.unroll(self.whole(_ROWS)) as r,
                    T.unroll(self.whole(t.values)) as q,
                    T.vectorized(self.whole(t.lanes)) as lane,
                ):
                    statement(r, q, lane, (chunk * t.values + q) * t.lanes + lane)

            def begin(r, q, lane, at):
                T.buffer_store(sums, self.sums[row + r, at] * self.factors[r], [r, q, lane])

            def add(r, q, lane, at):
                term = self.scores[r, k] * self.given["value"][self.batch, first + k, at]
                T.buffer_store(sums, sums[r, q, lane] + term, [r, q, lane])

            each(begin)
            with T.serial(count) as k:
                each(add)
            each(lambda r, q, lane, at: T.buffer_store(self.sums, sums[r, q, lane], [row + r, at]))

    def _finish(self, queries):
        """Divide the sums of a tile by the sums of its weights."""
        s, lanes, row = self.dims, self.tile.lanes, queries * _ROWS
        self._reduce(self.totals, lambda a, b: a + b, lambda r: row + r)
        with T.serial(self.whole(_ROWS)) as r:
            total = self.totals[row + r, 0]
            if self.empty:
                total = tirx.Select(self.largest[queries, r] > _number(-math.inf), total, _number(self.empty))
            T.buffer_store(self.totals, _number(1) / total, [row + r, 0])
            with ExitStack() as stack:
                stack.enter_context(T.If(self.first + row + r < s.queries))
                stack.enter_context(T.Then())
                vector = stack.enter_context(T.serial(self.whole(s.width // lanes)))
                at = vector * lanes + stack.enter_context(T.vectorized(self.whole(lanes)))
                result = self.sums[row + r, at] * self.totals[row + r, 0]
                T.buffer_store(self.result, result, [self.batch, self.first + row + r, at])
