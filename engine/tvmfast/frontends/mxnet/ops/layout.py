"""Converters of diagonals, blocks, rolled axes and positions (see call.py), old ones and those of `mx.np`."""

import math

import numpy as np
from tvm import relax
from tvm.relax import op

from ...context import shape_of
from .call import CONVERTERS, Call, converts
from .tensor import flat

# ---------------------------------------------------------------- diagonals


@converts("diag", "_np_diag")
def _diag(c: Call):
    """Return the matrix with this diagonal, or the diagonal of matrices along the last axis."""
    offset = int(c.get("k", 0))
    return _of_diagonal(c, c.x, offset) if c.rank == 1 else _diagonal(c, offset)


converts("_np_diagflat")(lambda c: _of_diagonal(c, flat(c), int(c.get("k", 0))))
converts("_np_diagonal")(lambda c: _diagonal(c, int(c.get("offset", 0))))
converts("_np_trace")(lambda c: op.sum(_diagonal(c, int(c.get("offset", 0))), -1))


def _diagonal(c: Call, offset: int) -> relax.Expr:
    first, second = (int(c.get(name, n)) % c.rank for n, name in enumerate(("axis1", "axis2")))
    rows, columns = c.shape[first], c.shape[second]
    row, column = max(0, -offset), max(0, offset)
    if row >= rows or column >= columns:
        raise ValueError(f"diagonal {offset} of {rows} rows and {columns} columns")
    rest = [axis for axis in range(c.rank) if axis not in (first, second)]
    x = op.permute_dims(c.x, [*rest, first, second])
    x = c.emit(op.reshape(x, [*(c.shape[axis] for axis in rest), rows * columns]))
    places = np.arange(min(rows - row, columns - column)) * (columns + 1) + row * columns + column
    return c.emit(op.take(x, c.const(places), len(rest), mode="clip"))


def _of_diagonal(c: Call, x: relax.Expr, offset: int) -> relax.Expr:
    index = np.diag(np.arange(1, math.prod(c.shape) + 1), offset) - 1  # -1 is off the diagonal
    taken = c.emit(op.take(c.emit(x), c.const(index.clip(0).reshape(-1)), 0, mode="clip"))
    return op.where(c.const(index >= 0, "bool"), c.emit(op.reshape(taken, index.shape)), c.const(0))


# ---------------------------------------------------------------- blocks and axes


@converts("depth_to_space")
def _depth_to_space(c: Call):
    size, (batch, channels, height, width) = int(c.need("block_size")), c.shape
    x = op.reshape(c.x, (batch, size, size, channels // size**2, height, width))
    shape = batch, channels // size**2, height * size, width * size
    return op.reshape(op.permute_dims(x, [0, 3, 4, 1, 5, 2]), shape)


@converts("space_to_depth")
def _space_to_depth(c: Call):
    size, (batch, channels, height, width) = int(c.need("block_size")), c.shape
    x = op.reshape(c.x, (batch, channels, height // size, size, width // size, size))
    shape = batch, channels * size**2, height // size, width // size
    return op.reshape(op.permute_dims(x, [0, 3, 5, 1, 2, 4]), shape)


@converts("_np_roll")
def _roll(c: Call):
    shifts, axes = c.need("shift"), c.axes()
    x = c.x if axes else c.emit(flat(c))
    shifts = [shifts] * len(axes or [0]) if isinstance(shifts, int) else shifts
    for axis, shift in zip(axes or [0], shifts, strict=True):
        indices = np.roll(np.arange(shape_of(x)[axis], dtype="int32"), shift)
        x = c.emit(op.take(x, c.const(indices), axis, mode="clip"))
    return op.reshape(x, c.shape)


@converts("_npi_rot90")
def _rot90(c: Call):
    turns, (first, second) = int(c.get("k", 1)) % 4, c.axes("axes") or (0, 1)
    order = list(range(c.rank))
    order[first], order[second] = second, first
    if turns == 2:
        return op.flip(op.flip(c.x, first), second)
    if turns == 1:
        return op.permute_dims(op.flip(c.x, second), order)
    return op.flip(op.permute_dims(c.x, order), second) if turns else c.x


def _at_least(x: relax.Expr, rank: int) -> relax.Expr:
    """Return a tensor with axes added as NumPy's atleast_1d, 2d and 3d do."""
    shape = shape_of(x)
    if rank == 3 and len(shape) < 3:
        shape = (*((1,) if len(shape) < 2 else ()), *(shape or (1,)), 1)
    return op.reshape(x, (1,) * (rank - len(shape)) + shape)


for _rank in (1, 2, 3):
    converts(f"_np_atleast_{_rank}d")(lambda c, rank=_rank: [_at_least(x, rank) for x in c.inputs])
converts("_npi_dstack")(lambda c: op.concat([c.emit(_at_least(x, 3)) for x in c.inputs], 2))


@converts("_npi_column_stack")
def _column_stack(c: Call):
    columns = [op.reshape(x, (-1, 1)) if len(shape_of(x)) < 2 else x for x in c.inputs]
    return op.concat([c.emit(each) for each in columns], 1)


converts("_npi_hsplit", "_npi_dsplit")(CONVERTERS["_split_v2"])


@converts("_npi_delete")
def _delete(c: Call):
    c.refuse_if(len(c.inputs) > 1, "an array of indices")
    axis = c.get("axis")
    x, axis = (c.emit(flat(c)), 0) if axis is None else (c.x, int(axis) % c.rank)
    index = c.get("int_ind")
    gone = slice(*(c.get(name) for name in ("start", "stop", "step"))) if index is None else int(index)
    kept = np.delete(np.arange(shape_of(x)[axis]), gone)
    if not kept.size:
        raise ValueError(f"all of axis {axis} of shape {c.shape} is deleted")
    return op.take(x, c.const(kept), axis, mode="clip")


# ---------------------------------------------------------------- positions


@converts("_unravel_index")
def _unravel_index(c: Call):
    """Return a row for each axis of `shape`; the first takes what is outside."""
    c.refuse_if(c.rank != 1, f"positions of shape {c.shape}; reshape them to one axis")
    rest, rows = c.emit(c.cast(c.x, "int64")), []
    for size in reversed(c.need("shape")[1:]):
        whole = c.emit(op.divide(rest, relax.const(size, "int64")))
        rows.append(c.emit(rest - whole * relax.const(size, "int64")))
        rest = whole
    return c.cast(c.stacked([rest, *reversed(rows)]), c.dtype)


@converts("_ravel_multi_index")
def _ravel_multi_index(c: Call):
    sizes = c.need("shape")
    strides = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    x = c.emit(c.cast(c.expect(0, len(sizes), *c.shape[1:]), "int64"))
    strides = c.const(np.array(strides).reshape([-1] + [1] * (c.rank - 1)), "int64")
    return c.cast(c.emit(op.sum(x * strides, 0)), c.dtype)


@converts("_contrib_index_array")
def _index_array(c: Call):
    axes = c.axes("axes") or range(c.rank)
    return c.const(np.stack(np.indices(c.shape), -1)[..., list(axes)], "int64")


# ---------------------------------------------------------------- new arrays


@converts("_eye", "_npi_eye")
def _eye(c: Call):
    rows = int(c.need("N"))
    ones = np.eye(rows, int(c.get("M", 0)) or rows, int(c.get("k", 0)))
    return c.const(ones, c.get("dtype", "float32"))


converts("_npi_identity")(lambda c: c.const(np.eye(c.need("shape")[0]), c.get("dtype", "float32")))
converts("_npi_indices")(lambda c: c.const(np.indices(c.need("dimensions")), c.get("dtype", "int32")))


@converts("_linspace")
def _linspace(c: Call):
    values = np.linspace(c.need("start"), c.need("stop"), int(c.need("num")), c.get("endpoint", True))
    return c.const(values, c.get("dtype", "float32"))


@converts("_npi_logspace")
def _logspace(c: Call):
    how = int(c.need("num")), c.get("endpoint", True), float(c.get("base", 10))
    return c.const(np.logspace(c.need("start"), c.need("stop"), *how), c.get("dtype", "float32"))


@converts("_npi_hanning", "_npi_hamming", "_npi_blackman")
def _window(c: Call):
    return c.const(getattr(np, c.op.rpartition("_")[2])(int(c.need("M"))), c.get("dtype", "float32"))
