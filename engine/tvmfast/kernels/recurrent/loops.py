"""The kernel of a recurrent cell: all time steps, with the state in memory and a tile of gates in registers.

The units are in chunks. For each tile of `rows` of the batch and `blocks` vectors of units, all gates are
accumulated over the state before, and then the activations make the new state of these units. A chunk's
weights are contiguous, and all tiles of the batch use them before the next chunk's, so that they stay in the
cache; so do all weights from one time step to the next, where the threads divide the chunks. Threads meet at
the end of every time step: small cells are faster on one.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ...core.compat import OPAQUE
from ...core.relax import INT32_MAX, ceildiv, round_up
from ...core.simd import prefetch
from ..dynamic import DynamicDims
from .cell import Cell, TimeStep

_LINE = 64  # bytes of a cache line
_AHEAD = 2048  # bytes ahead of their use at which weights are fetched


@dataclass(frozen=True)
class Dims:
    """The dims of a kernel; `outputs` are those that a projection makes of the units, or the units.

    The time steps and the batch may be dynamic.
    """

    steps: int | tvm.ir.Expr
    batch: int | tvm.ir.Expr
    input: int
    units: int
    outputs: int

    @property
    def dynamic(self) -> DynamicDims:
        """The dynamic dims, which a call passes after the inputs."""
        return DynamicDims((self.steps, self.batch))


@dataclass(frozen=True)
class Tile:
    """How a kernel is computed; the default is scalar loops on weights that are not packed.

    Attributes:
        lanes: Units of a vector.
        rows: Rows of the batch in registers.
        blocks: Vectors of units in registers, with all gates of each.
        threads: Whether threads share the units of each time step.
    """

    lanes: int = 1
    rows: int = 1
    blocks: int = 1
    threads: bool = False

    def chunks(self, units: int) -> int:
        """Return how many chunks so many units take."""
        return ceildiv(units, self.lanes * self.blocks)

    def padded(self, units: int) -> int:
        """Return the units of whole chunks."""
        return round_up(units, self.lanes * self.blocks)


def kernel(
    cell: Cell, names: list[str], dims: Dims, dtype: str, tile: Tile | None = None
) -> tvm.tirx.PrimFunc:
    """Make the kernel of a cell.

    Args:
        cell: What it computes.
        names: Its inputs, as `Cell.inputs` lists them; `emit` has their shapes. With a tile, the weights are
            packed as `pack_recurrent` does, and "from_input", (steps, batch, vectors of units, gates, lanes),
            may replace "x", "weight" and "bias".
        dims: Its dims.
        dtype: That of all tensors; halves are computed in float32.
        tile: How it computes; None: in scalar loops on unpacked weights.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        _Kernel(cell, names, dims, dtype, tile).emit()
    function = builder.get()
    return cell.attach(function) if tile is None else function


class _Kernel:
    """Emits the body of the kernel, inside the frame of its function."""

    def __init__(self, cell: Cell, names: list[str], dims: Dims, dtype: str, tile: Tile | None):
        self.cell = cell
        self.dynamic = dims.dynamic
        steps, batch = self.dynamic.inside((dims.steps, dims.batch))
        self.dims = replace(dims, steps=steps, batch=batch)
        self.packed = tile is not None
        self.multiplies = "x" in names  # the input by its weights
        self.tile = tile or Tile()
        self.dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        self.width, self.out_width = self.tile.padded(dims.units), self.tile.padded(dims.outputs)
        rows = self.tile.rows
        if isinstance(batch, int):
            self.rows = round_up(batch, rows)  # some complete a tile
            self.tiles = [(rows, self.rows // rows, 0)]
        else:
            self.rows = batch
            self.tiles = [(rows, batch // rows, 0), (1, batch % rows, batch // rows * rows)][: 1 + (rows > 1)]
        self.pads = isinstance(batch, int) and self.rows != batch
        shapes = self._shapes()
        if not self.dynamic.large:
            self.dynamic.large = any(math.prod(shape) > INT32_MAX for shape in shapes.values())
        self.shapes = shapes = {name: tuple(map(self.dynamic.whole, shape)) for name, shape in shapes.items()}
        self.given = {
            name: T.arg(name, T.buffer(shapes[name], "int32" if name == "lengths" else dtype))
            for name in names
        }
        self.dynamic.declare()
        self.y = T.arg("y", T.buffer(shapes["y"], dtype))
        self.last = {"h": T.arg("h_last", T.buffer(shapes["h"], dtype))}
        if cell.kind == "lstm":
            self.last["c"] = T.arg("c_last", T.buffer(shapes["c"], dtype))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        s, tile = self.dims, self.tile
        gates = len(self.cell.gates)
        shapes = {
            "x": (s.steps, s.batch, s.input),
            "weight": (gates * s.units, s.input),
            "recurrent": (gates * s.units, s.outputs),
            "bias": (gates * self.width,),
            "inner": (self.width,),
            "h": (s.batch, s.outputs),
            "c": (s.batch, s.units),
            "peepholes": (3, self.width),
            "projection": (s.outputs, s.units),
            "lengths": (s.batch,),
            "y": (s.steps, s.batch, s.outputs),
            "results": (2, self.rows, self.out_width),  # before and after a time step
            "units": (self.rows, self.width),
        }
        if self.packed:
            blocks = tile.blocks, gates, tile.lanes
            shapes["from_input"] = (s.steps, s.batch, self.width // tile.lanes, gates, tile.lanes)
            shapes["weight"] = (tile.chunks(s.units), s.input, *blocks)
            shapes["recurrent"] = (tile.chunks(s.units), s.outputs, *blocks)
            shapes["projection"] = (tile.chunks(s.outputs), s.units, tile.blocks, tile.lanes)
        return shapes

    def emit(self) -> None:
        s, kind = self.dims, self.cell.kind
        self.h = T.alloc_buffer(self.shapes["results"], self.dtype)
        self.c = T.alloc_buffer(self.shapes["units"], self.dtype) if kind == "lstm" else None
        two_phases = "projection" in self.given or (kind == "gru" and not self.cell.reset_after)
        self.middle = T.alloc_buffer(self.shapes["units"], self.dtype) if two_phases else None
        self.z = T.alloc_buffer(self.shapes["units"], self.dtype) if kind == "gru" and two_phases else None
        states = {"h": (lambda row, unit: [0, row, unit], self.h, s.outputs)}
        if kind == "lstm":
            states["c"] = (lambda row, unit: [row, unit], self.c, s.units)
        for name, (at, state, size) in states.items():
            with T.grid(*map(self.dynamic.whole, (self.rows, int(state.shape[-1])))) as (row, unit):
                given = self._read(name, tirx.min(row, s.batch - 1), tirx.min(unit, size - 1))
                inside = tirx.all(row < s.batch, unit < size)
                T.buffer_store(state, tirx.Select(inside, given, tirx.const(0, self.dtype)), at(row, unit))
        with T.serial(self.dynamic.whole(s.steps)) as step:
            self.step = step
            self.before, self.after = step % 2, (step + 1) % 2
            {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[kind]()
        for name, (_, state, size) in states.items():
            with T.grid(*map(self.dynamic.whole, (s.batch, size))) as (row, unit):
                value = state[s.steps % 2, row, unit] if name == "h" else state[row, unit]
                if "lengths" in self.given:  # ONNX Runtime has no state of an empty sequence
                    value = tirx.Select(self.given["lengths"][row] > 0, value, tirx.const(0, self.dtype))
                T.buffer_store(self.last[name], value.astype(str(self.y.dtype)), [row, unit])

    def _read(self, name: str, *at):
        return self.given[name][at].astype(self.dtype)

    # ------------------------------------------------------------ a time step of each kind

    def _lstm(self):
        def peephole(gate, unit):
            return self._read("peepholes", "iof".index(gate), unit) if "peepholes" in self.given else None

        def finish(step, row, unit):
            before = self.c[row, unit]
            state, result = step.lstm(before, lambda gate: peephole(gate, unit))
            if "projection" in self.given:
                T.buffer_store(self.middle, result, [row, unit])
            else:
                self._set_result(row, unit, result)
            T.buffer_store(self.c, tirx.Select(self._runs(row), state, before), [row, unit])

        projects = "projection" in self.given
        self._phase(self.cell.gates, self._from_input, self._before, finish, results=not projects)
        if projects:
            self._project()

    def _project(self):
        def finish(step, row, unit):
            self._set_result(row, unit, step.gates[step.at(0)])

        def begin(gate, row, unit):
            return tirx.const(0, self.dtype)

        def weight(chunk, k, q, number, lane, unit):
            at = (chunk, k, q, lane) if self.packed else (unit, k)
            return self._read("projection", *at)

        self._phase("p", begin, lambda row, k: self.middle[row, k], finish, weight)

    def _gru(self):
        def finish(step, row, unit):
            self._set_result(row, unit, step.gru(self._before(row, unit), self._input_of_n(step, row, unit)))

        def reset(step, row, unit):
            step.activate("z", 0)
            step.activate("r", 0)
            T.buffer_store(self.z, step.get("z"), [row, unit])
            T.buffer_store(self.middle, step.get("r") * self._before(row, unit), [row, unit])

        def update(step, row, unit):
            step.set("z", self.z[row, unit])
            self._set_result(row, unit, step.gru(self._before(row, unit)))

        if self.cell.reset_after:
            self._phase(self.cell.gates, self._from_input, self._before, finish)
        else:
            self._phase("zr", self._from_input, self._before, reset, results=False)
            self._phase("n", self._from_input, lambda row, k: self.middle[row, k], update)

    def _rnn(self):
        def finish(step, row, unit):
            self._set_result(row, unit, step.rnn())

        self._phase(self.cell.gates, self._from_input, self._before, finish)

    # ------------------------------------------------------------ what a time step reads and writes

    def _time(self, row):
        """Return the index in its sequence that a row of the batch is at."""
        if not self.cell.reverse:
            return self.step
        if "lengths" not in self.given:
            return self.dims.steps - 1 - self.step
        last = self.given["lengths"][row]
        return tirx.Select(self.step < last, last - 1 - self.step, self.step)

    def _runs(self, row):
        """Return whether a row's sequence has this time step."""
        if "lengths" not in self.given:
            return tirx.const(True, "bool")
        return self.step < self.given["lengths"][self._inside(row)]

    def _inside(self, row):
        """Clamp the index of a row that only completes a tile to the batch."""
        return tirx.min(row, self.dims.batch - 1) if self.pads else row

    def _from_input(self, gate, row, unit):
        """Return what the input and the bias add to a gate; where the kernel multiplies, the bias alone."""
        number, lanes = self.cell.gates.index(gate), self.tile.lanes
        row = self._inside(row)
        if self.multiplies:
            return self._read("bias", number * self.width + unit)
        return self._read("from_input", self._time(row), row, unit // lanes, number, unit % lanes)

    def _input_of_n(self, step, row, unit):
        """Return what the input adds to the candidate of a GRU that resets after its product."""
        if self.multiplies:
            return step.gates[step.at(len(self.cell.gates))]
        return self._from_input("n", row, unit)

    def _before(self, row, unit):
        return self.h[self.before, row, unit]

    def _set_result(self, row, unit, value):
        state = tirx.Select(self._runs(row), value, self._before(row, unit))
        T.buffer_store(self.h, state, [self.after, row, unit])

    def _weight(self, name, chunk, k, q, number, lane, unit):
        at = (chunk, k, q, number, lane) if self.packed else (number * self.dims.units + unit, k)
        return self._read(name, *at)

    # ------------------------------------------------------------ loops

    def _phase(self, gates: str, begin, source, finish, weight: Callable | None = None, results: bool = True):
        """Compute some gates of all units: what they begin with plus a product, and then what follows.

        Args:
            gates: Their letters; "p" is the projection.
            begin: `begin(gate, row, unit)`, the first summand.
            source: `source(row, k)`, the left-hand side of the product.
            finish: `finish(step, row, unit)` writes what follows, for the `TimeStep` of a unit.
            weight: `weight(chunk, k, block, gate's number, lane, unit)`, its right-hand side; None: the
                recurrent weights.
            results: Whether this makes the time step's result.
        """
        s, tile = self.dims, self.tile
        projects = gates == "p"
        letters = gates if projects else self.cell.gates
        depth = s.units if projects else s.outputs
        width = s.outputs if projects else s.units
        # What the input adds to a GRU's candidate is separate from what the state adds.
        slots = len(letters) + (self.cell.reset_after and self.multiplies)
        weight = weight or partial(self._weight, "recurrent")

        def on_tile(rows, chunk, first):
            accumulators = T.alloc_buffer((rows, tile.blocks, slots, tile.lanes), self.dtype, scope="local")

            def each(statements):
                """Emit statements for each element of the tile."""
                extents = map(self.dynamic.whole, (rows, tile.blocks, tile.lanes))
                loops = map(lambda loop, extent: loop(extent), (T.unroll, T.unroll, T.vectorized), extents)
                with ExitStack() as stack:
                    r, q, lane = (stack.enter_context(loop) for loop in loops)
                    statements(r, q, lane, first + r, (chunk * tile.blocks + q) * tile.lanes + lane)

            def add(at, value):
                T.buffer_store(accumulators, accumulators[tuple(at)] + value, at)

            def start(r, q, lane, row, unit):
                for gate in gates:
                    inner = self.cell.reset_after and gate == "n"
                    value = self._read("inner", unit) if inner else begin(gate, row, unit)
                    T.buffer_store(accumulators, value, [r, q, letters.index(gate), lane])
                    if inner and self.multiplies:
                        T.buffer_store(accumulators, begin(gate, row, unit), [r, q, len(letters), lane])

            def add_input(r, q, lane, row, unit):
                row = self._inside(row)
                for gate in gates:
                    number = letters.index(gate)
                    slot = len(letters) if self.cell.reset_after and gate == "n" else number
                    value = self._read("x", self._time(row), row, k)
                    add([r, q, slot, lane], value * self._weight("weight", chunk, k, q, number, lane, unit))

            def add_state(r, q, lane, row, unit):
                for gate in gates:
                    number = letters.index(gate)
                    add([r, q, number, lane], source(row, k) * weight(chunk, k, q, number, lane, unit))

            def end(r, q, lane, row, unit):
                finish(TimeStep(self.cell, accumulators, lambda number: (r, q, number, lane)), row, unit)

            each(start)
            if self.multiplies and not projects:
                with T.serial(self.dynamic.whole(s.input)) as k:
                    each(add_input)
            with T.serial(self.dynamic.whole(depth)) as k:
                if self.packed:
                    self._prefetch("projection" if projects else "recurrent", chunk, k)
                each(add_state)
            each(end)
            if results:
                self._store_outputs(chunk, first, rows, width)

        loop = T.parallel if tile.threads else T.serial
        with loop(self.dynamic.whole(tile.chunks(width))) as chunk:
            for rows, count, before in self.tiles:
                with T.serial(self.dynamic.whole(count)) as number:
                    on_tile(rows, chunk, number * rows + before)

    def _prefetch(self, name: str, chunk, k):
        """Fetch the weights of a later `k`, which are those of the next chunk behind a chunk's last."""
        weights = self.given[name]
        inner = tuple(map(int, weights.shape[2:]))
        later = k + ceildiv(_AHEAD, 4 * math.prod(inner))
        for element in range(0, math.prod(inner), _LINE // 4):
            at = weights[(chunk, later, *map(int, np.unravel_index(element, inner)))]
            T.evaluate(prefetch(at, level=1))

    def _store_outputs(self, chunk, first, rows: int, width: int):
        """Copy a tile of the time step's result to the output, cropped to the batch and the units."""
        each = self.tile.lanes * self.tile.blocks
        extents = map(self.dynamic.whole, (rows, each))
        with ExitStack() as stack:
            r, n = (stack.enter_context(T.serial(extent)) for extent in extents)
            row, unit = first + r, chunk * each + n
            conditions = [row < self.dims.batch] if self.pads else []
            conditions += [unit < width] if width % each else []
            if conditions:
                stack.enter_context(T.If(tirx.all(*conditions)))
                stack.enter_context(T.Then())
            inside = self._inside(row)
            value = tirx.Select(self._runs(row), self.h[self.after, row, unit], tirx.const(0, self.dtype))
            T.buffer_store(self.y, value.astype(str(self.y.dtype)), [self._time(inside), inside, unit])
