"""Tiles of Winograd's convolution whose input is not finite are computed directly.

A NaN or an infinity is part of sums of a tile's inputs, and makes all of the tile's outputs NaN, where the
convolution has them only in the windows that read it. Each input of a tile is part of a corner of the
transformed tile, so four numbers tell whether it is finite: one channel's products of the corners. If one is
not, the kernel sums up products of inputs and weights, which it takes from the transformed weights.

The schedule marks the loop over tiles and the result. The rewrite comes when kernels are lowered, so that
neither workloads nor counts of operations know of it.
"""

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.transform import ConvertSSA

_TILES = "tvmfast.tiles"
_REINTERPRET = tvm.ir.Op.get("tirx.reinterpret")
_SERIAL, _VECTORIZED = tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED


def marked(value):
    """Return a float32 element of a tile of outputs, an expression, such that the epilogue shows it."""
    return tirx.call_intrin("float32", "tirx.reinterpret", value)


def annotate_tiles(sch: Schedule, loop, taps: Sequence[tuple[float, Mapping[int, int]]]) -> None:
    """Have `restored` rewrite `loop`, whose iterations make tiles of outputs.

    The loop's body is a sequence: the block "half_out", and the one that reads it, whose element is marked.

    Args:
        sch: The schedule of the kernel.
        loop: The loop.
        taps: Each tap of a weight along an axis: a factor, and the transformed elements, by their index, that
            are added (1) or subtracted (-1) before.
    """
    sch.annotate(loop, _TILES, json.dumps([(factor, list(signs.items())) for factor, signs in taps]))


def restored(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the annotated loops of a kernel; one that multiplies pairs of bfloat16 stays as it is."""
    if not any(_TILES in loop.annotations for loop in _all(func.body, tirx.For)):
        return func
    blocks = {each.block.name_hint: each for each in _all(func.body, SBlockRealize)}
    product = getattr(blocks["winograd_update"].block.body.value, "b", None)
    if not isinstance(product, tirx.Mul):
        return func
    shape = blocks["half_out"].block.body.buffer.shape
    direct = tirx.decl_buffer((shape[-3], shape[-3], shape[-1]), "float32", "direct", scope="local")

    def rewritten(loop):
        notes = dict(loop.annotations)
        if _TILES not in notes:
            return loop
        tile = _Tile(loop.body, json.loads(str(notes.pop(_TILES))), blocks, product.b, direct)
        body = tirx.IfThenElse(tile.is_finite(), loop.body, tirx.SeqStmt([tile.sums(), *tile.epilogue()]))
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, notes)

    root = func.body
    body = tvm_ffi.structural_map(root.block.body, (tirx.For, rewritten))
    block = _changed(root.block, body=body, alloc_buffers=[*root.block.alloc_buffers, direct])
    func = func.with_body(SBlockRealize(root.iter_values, root.predicate, block))
    return ConvertSSA()(tvm.IRModule({"main": func}))["main"]  # the two branches have the same loops


class _Tile:
    """A tile of outputs: `body` makes it by Winograd's method, and its direct sums go to the buffer `direct`.

    `at` is where it is: image, row and column of the block of tiles, block of channels, row and column of the
    tile in its block.
    """

    def __init__(self, body, taps: list, blocks: dict, weight, direct):
        self.body, self.taps, self.weight, self.direct = body, taps, weight, direct
        half_out = blocks["half_out"]
        self.patch, self.half_out = blocks["patch"].block.body, half_out.block.body
        of_tile = {loop.loop_var: loop.min for loop in _all(body, tirx.For)}  # none of `at` depends on them
        axes = zip(half_out.block.iter_vars, half_out.iter_values, strict=True)
        values = {axis.var: _with(value, of_tile) for axis, value in axes}
        self.at = [_with(index, values) for index in self.half_out.indices[:6]]

    def is_finite(self):
        """Return whether the products of the tile's corners are finite, in one channel."""
        b, ty, tx, k, row, column = self.at
        load = _all(self.half_out.value, tvm.ir.TensorLoad)[0]  # of the products
        largest, tests = tirx.const(float(np.finfo("float32").max), "float32"), []
        last = load.source.shape[4] - 1
        for p, q in ((0, 0), (0, last), (last, 0), (last, last)):
            index = _cast([b, ty, tx, k, p, q, row, column, 0], load.indices)
            tests.append(tirx.abs(tirx.BufferLoad(load.source, index)) <= largest)
        return functools.reduce(tirx.And, tests)

    def sums(self):
        """Return the loops that sum up the products of inputs and weights."""
        size, _, lanes = self.direct.shape
        (load,) = (each for each in _all(self.weight, tvm.ir.TensorLoad) if len(each.indices) == 6)
        y, x, i, ii, c = (
            tirx.Var(name, str(load.indices[3].ty.dtype)) for name in ("y", "x", "i", "ii", "c")
        )
        b, ty, tx, k, row, column = self.at

        def of_weight(p, q):
            return _at(self.weight, load.indices, [k, p, q, i, ii, c])

        total = element = tirx.BufferLoad(self.direct, [y, x, c])
        for r, (of_r, rows) in enumerate(self.taps):
            for s, (of_s, columns) in enumerate(self.taps):
                parts = [
                    of_weight(p, q) * float(f * g) for p, f in rows for q, g in columns
                ]  # of a weight of 0: 0
                at = [b, ty, tx, i, row, column, y + r, x + s, ii]
                element_of_data = _at(self.patch.value, self.patch.indices, at)
                total += element_of_data * (functools.reduce(operator.add, parts) * (of_r * of_s))
        zero = tirx.BufferStore(self.direct, tirx.const(0, "float32"), element.indices)
        added = _loop(c, lanes, tirx.BufferStore(self.direct, total, element.indices), _VECTORIZED)
        channels = _loop(i, load.source.shape[3], _loop(ii, load.source.shape[4], added))
        return _loop(y, size, _loop(x, size, tirx.SeqStmt([_loop(c, lanes, zero, _VECTORIZED), channels])))

    def epilogue(self) -> list:
        """Return what reads the transform of the products, of the direct sums instead, in loops that stay."""

        def serial(loop):
            kind = _VECTORIZED if loop.kind == _VECTORIZED else _SERIAL
            return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body)

        def own(call):
            if not call.op.same_as(_REINTERPRET) or not isinstance(call.args[0], tirx.Select):
                return call
            loads = [each for each in _all(call, tvm.ir.TensorLoad) if self._is_half(each.source)]
            if not loads:
                return call
            test = call.args[0].condition
            column = test.a if isinstance(test.b, tirx.IntImm) else test.b
            return tirx.BufferLoad(self.direct, [loads[0].indices[6], column, loads[0].indices[8]])

        def read(realize):
            whole = tirx.BufferRegion(self.direct, [tvm.ir.Range(0, n) for n in self.direct.shape])
            reads = [whole if self._is_half(each.source) else each for each in realize.block.reads]
            return SBlockRealize(realize.iter_values, realize.predicate, _changed(realize.block, reads=reads))

        rest = [each for each in self.body.seq if not self._makes_half(each)]
        changes = [(tirx.For, serial), (tvm.ir.Call, own), (SBlockRealize, read)]
        return [tvm_ffi.structural_map(each, changes) for each in rest]

    def _is_half(self, buffer) -> bool:
        return buffer.same_as(self.half_out.buffer)

    def _makes_half(self, statement) -> bool:
        return any(self._is_half(store.buffer) for store in _all(statement, tirx.BufferStore))


def _all(node, kind) -> list:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append))
    return found


def _with(expr, values: Mapping):
    """Return an expression with other values for variables."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: values.get(var, var)))


def _at(expr, indices: Sequence, values: Sequence):
    """Return what has these indices at others; an index that is a number is that of an axis of size 1."""
    pairs = zip(indices, _cast(values, indices), strict=True)
    return _with(expr, {index: value for index, value in pairs if isinstance(index, tirx.Var)})


def _cast(values: Sequence, like: Sequence) -> list:
    """Return integers, each in the dtype of another one."""
    dtypes = [str(each.ty.dtype) for each in like]
    return [
        tirx.const(value, dtype) if isinstance(value, int) else value.astype(dtype)
        for value, dtype in zip(values, dtypes, strict=True)
    ]


def _loop(var, extent, body, kind=_SERIAL):
    (extent,) = _cast([int(extent)], [var])
    return tirx.For(var, tirx.const(0, str(var.ty.dtype)), extent, kind, body)


def _changed(block, **changes):
    fields = "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers"
    return SBlock(*(changes.get(name, getattr(block, name)) for name in fields), block.annotations)
