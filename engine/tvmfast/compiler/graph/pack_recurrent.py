"""The pass that computes recurrent layers of float32 on packed weights.

One matrix product computes what the inputs of all time steps add to the gates; with a single time step and
few rows, the kernel does that itself.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import ceildiv, known_shape, on_each_function, static_shape
from ...core.simd import Simd, fastest_tile
from ...kernels.recurrent.cell import Cell
from ...kernels.recurrent.loops import Dims, Tile, kernel

_SHARED = 1 << 16  # multiply-adds of a time step that are worth another thread
_FEW = 8  # rows of a single time step up to which one kernel is faster than a product and a kernel
_DYNAMIC_BATCH = 8  # assumed for a dynamic batch in the choice of a tile; for threads, 1 is


def pack_recurrent(simd: Simd) -> tvm.transform.Pass:
    """Make the pass; weights that are not constants are packed in each run."""
    return on_each_function("PackRecurrent", partial(_Packer, simd=simd), adds_kernels=True, needs=Cell.of)


def tile_of(cell: Cell, dims: Dims, simd: Simd) -> Tile:
    """Choose the register tile of a kernel."""
    single = _is_single(dims)
    gates = len(cell.gates) + (single and cell.reset_after)  # accumulators of a unit
    vectors = ceildiv(dims.units, simd.lanes)
    is_dynamic = not isinstance(dims.batch, int)
    batch = _DYNAMIC_BATCH if is_dynamic else dims.batch
    tiles = [
        (r, q * gates) for q in range(1, min(vectors, 8) + 1) for r in range(1, min(max(1, batch), 8) + 1)
    ]

    def tiles_along(rows, blocks):
        return ceildiv(batch, rows), ceildiv(vectors, blocks // gates)

    rows, blocks = fastest_tile(tiles, tiles_along, simd)
    depth = dims.outputs + (dims.input if single else 0)
    work = (1 if is_dynamic else batch) * dims.units * depth * len(cell.gates)
    tile = Tile(simd.lanes, rows, blocks // gates)
    return replace(tile, threads=work >= _SHARED and tile.chunks(dims.units) > 1)


def _is_single(dims: Dims) -> bool:
    """Return whether the kernel multiplies the input itself: for one time step of few rows."""
    static = isinstance(dims.steps, int) and isinstance(dims.batch, int)
    return static and dims.steps == 1 and dims.batch <= _FEW


@relax.expr_functor.mutator
class _Packer(relax.PyExprMutator):
    def __init__(self, mod, simd):
        super().__init__(mod)
        self.mod, self.simd = mod, simd

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        found = Cell.of_call(self.mod, call)
        if found is None or str(found[1]["x"].ty.dtype) != "float32":
            return call
        return self._packed(*found, call)

    def _packed(self, cell: Cell, given: dict, call):
        emit, gates = self.builder_.emit, len(cell.gates)
        steps, batch, width = known_shape(given["x"].ty)
        rows, outputs = static_shape(given["recurrent"].ty)
        units = rows // gates
        dims = Dims(steps, batch, width, units, outputs)
        tile = tile_of(cell, dims, self.simd)
        chunks, padded = tile.chunks(units), tile.padded(units)
        lanes, blocks = tile.lanes, tile.blocks

        def by_gate(name, *last):
            """Return a weight or bias as (gates, units, …), with zeros for units that complete a chunk."""
            return self._padded(R.reshape(given.pop(name), (gates, units, *last)), 1, padded)

        def by_chunk(name, depth):
            """Return weights in the order in which a kernel reads them."""
            parts = R.reshape(by_gate(name, depth), (gates, chunks, blocks, lanes, depth))
            return emit(R.permute_dims(emit(parts), (1, 4, 2, 0, 3)))

        if _is_single(dims):
            bias = emit(R.reshape(by_gate("bias"), (gates * padded,)))
            own = {"x": given.pop("x"), "weight": by_chunk("weight", width), "bias": bias}
        else:
            weight = R.reshape(by_gate("weight", width), (gates, padded // lanes, lanes, width))
            weight = R.reshape(emit(R.permute_dims(emit(weight), (3, 1, 0, 2))), (width, padded * gates))
            bias = R.reshape(by_gate("bias"), (gates, padded // lanes, lanes))
            bias = R.reshape(emit(R.permute_dims(emit(bias), (1, 0, 2))), (padded * gates,))
            x = R.reshape(given.pop("x"), (steps * batch, width))
            from_input = R.add(emit(R.matmul(emit(x), emit(weight))), emit(bias))
            shape = (steps, batch, padded // lanes, gates, lanes)
            own = {"from_input": emit(R.reshape(emit(from_input), shape))}
        given = own | {"recurrent": by_chunk("recurrent", outputs)} | given
        if "inner" in given:
            given["inner"] = self._padded(given["inner"], 0, padded)
        if "peepholes" in given:
            given["peepholes"] = self._padded(given["peepholes"], 1, padded)
        if "projection" in given:
            parts = self._padded(given["projection"], 0, tile.padded(outputs))
            parts = emit(R.reshape(parts, (tile.chunks(outputs), blocks, lanes, units)))
            given["projection"] = emit(R.permute_dims(parts, (0, 3, 1, 2)))
        function = self.builder_.add_func(kernel(cell, list(given), dims, "float32", tile), cell.kind)
        args = [*given.values(), *dims.dynamic.outer]
        return relax.call_tir(function, args, list(call.ty_args[0].fields))

    def _padded(self, x, axis: int, length: int):
        x = self.builder_.emit(x) if not isinstance(x, relax.Var | tvm.ir.GenericConst) else x
        shape = list(static_shape(x.ty))
        missing = length - shape[axis]
        if not missing:
            return x
        shape[axis] = missing
        return self.builder_.emit(R.concat([x, relax.const(np.zeros(shape, "float32"))], axis))
