"""Converters of MXNet's array operators (see call.py): shapes, new arrays, indexing, ordering, reducing."""

import functools
import math

import numpy as np
from tvm import relax, tirx
from tvm.relax import op

from ...context import dtype_of, shape_of
from ...ops.common import along, counter, reduced_axes, reshaped, reversed_sequences
from .call import Call, converts, in_float32
from .elementwise import nonzero, require_floats

# ---------------------------------------------------------------- shapes


converts("Flatten", "flatten")(lambda c: op.reshape(c.x, (c.shape[0], math.prod(c.shape[1:]))))
converts("transpose")(lambda c: op.permute_dims(c.x, list(c.get("axes", ())) or None))
converts("expand_dims")(lambda c: op.expand_dims(c.x, int(c.need("axis"))))
converts("Concat", "concat", "_rnn_param_concat")(lambda c: op.concat(c.inputs, int(c.get("dim", 1))))
converts("tile")(lambda c: op.tile(c.x, list(_as_tuple(c.need("reps")))))
converts("reverse", "flip")(lambda c: functools.reduce(op.flip, c.axes(), c.x))
converts("shape_array")(lambda c: c.const(c.shape, "int64"))
converts("size_array")(lambda c: c.const([math.prod(c.shape)], "int64"))


@converts("Reshape", "reshape")
def _reshape(c: Call):
    target = c.get("shape", ())
    if not target and (target := c.get("target_shape")):  # before version 0.9
        shape = [n or -1 for n in target]
        if c.get("keep_highest", False):
            shape[0] = c.shape[0]
        return op.reshape(c.x, shape)
    return op.reshape(c.x, reshaped(c.shape, _as_tuple(target), c.get("reverse", False)))


@converts("reshape_like")
def _reshape_like(c: Call):
    """Give the axes from lhs_begin to lhs_end the sizes of the other's axes from rhs_begin to rhs_end."""

    def bounds(side, shape):
        begin, end = (c.get(f"{side}_{name}") for name in ("begin", "end"))
        part = slice(None if begin is None else int(begin), None if end is None else int(end))
        return part.indices(len(shape))[:2]

    like = shape_of(c.inputs[1])
    (first, last), (begin, end) = bounds("lhs", c.shape), bounds("rhs", like)
    return op.reshape(c.x, reshaped(c.shape, [*c.shape[:first], *like[begin:end], *c.shape[last:]]))


@converts("SwapAxis", "swapaxes")
def _swap_axis(c: Call):
    order, (a, b) = list(range(c.rank)), (int(c.get("dim1", 0)), int(c.get("dim2", 0)))
    order[a], order[b] = order[b], order[a]
    return op.permute_dims(c.x, order)


@converts("squeeze")
def _squeeze(c: Call):
    axes = c.axes() or [axis for axis, n in enumerate(c.shape) if n == 1]
    return op.reshape(c.x, [n for axis, n in enumerate(c.shape) if axis not in axes] or [1])


@converts("stack")
def _stack(c: Call):
    axis = int(c.get("axis", 0)) % (c.rank + 1)
    return op.concat([op.expand_dims(each, axis) for each in c.inputs], axis)


@converts("SliceChannel", "split")
def _split(c: Call):
    axis, parts = int(c.get("axis", 1)) % c.rank, int(c.need("num_outputs"))
    if c.shape[axis] % parts:
        raise ValueError(f"axis {axis} of shape {c.shape} in {parts} parts")
    return _cut(c, axis, range(0, c.shape[axis], c.shape[axis] // parts))


@converts("_split_v2")
def _split_v2(c: Call):
    axis, sections = int(c.get("axis", 0)) % c.rank, int(c.get("sections", 0))
    begins = list(c.get("indices", (0,)))
    if sections:
        size, larger = divmod(c.shape[axis], sections)  # the first parts are larger by one
        begins = [n * size + min(n, larger) for n in range(sections)]
    return _cut(c, axis, begins)


def _cut(c: Call, axis: int, begins) -> list[relax.Expr]:
    """Cut an axis into the parts that begin at `begins`."""
    ends = [*begins[1:], c.shape[axis]]
    parts = [op.strided_slice(c.x, [axis], [begin], [end]) for begin, end in zip(begins, ends, strict=True)]
    return [op.squeeze(part, [axis]) for part in parts] if c.get("squeeze_axis", False) else parts


@converts("slice", "crop")
def _slice(c: Call):
    return _sliced(c, dict(enumerate(_slices(c))))


def _slices(c: Call) -> tuple[slice, ...]:
    begin, end, step = (_as_tuple(c.get(name, ())) for name in ("begin", "end", "step"))
    return tuple(slice(*each) for each in zip(begin, end, step or (None,) * len(begin), strict=True))


def _as_tuple(value) -> tuple:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _sliced(c: Call, slices: dict[int, slice]) -> relax.Expr:
    x, forward = c.x, {}
    for axis, each in slices.items():
        if each.step == 0:
            raise ValueError("a slice of step 0")
        indices = range(*each.indices(c.shape[axis]))
        if not indices:
            raise ValueError(f"an empty slice of axis {axis} of shape {c.shape}")
        if indices.step < 0:
            x = op.take(x, c.const(list(indices), "int32"), axis, mode="clip")
        elif len(indices) < c.shape[axis]:
            forward[axis] = indices
    if not forward:
        return x
    begins, ends, steps = zip(*((p.start, p[-1] + 1, p.step) for p in forward.values()), strict=True)
    return op.strided_slice(x, list(forward), begins, ends, steps)


@converts("_slice_assign", "_slice_assign_scalar")
def _slice_assign(c: Call):
    """Write an array, or a number, to a slice."""
    places = np.arange(math.prod(c.shape), dtype="int32").reshape(c.shape)[_slices(c)]
    if not places.size:
        return c.x
    value = c.inputs[1] if len(c.inputs) > 1 else c.const(np.full(places.shape, c.get("scalar", 0)), c.dtype)
    values = c.emit(op.reshape(c.emit(op.broadcast_to(value, places.shape)), [-1]))
    written = op.scatter_elements(c.emit(flat(c)), c.const(places.reshape(-1)), values, 0)
    return op.reshape(written, list(c.shape))


@converts("scatter_nd")
def _scatter_nd(c: Call):
    """Write values to zeros, at the places that columns of indices name."""
    (values, indices), shape = c.inputs, _as_tuple(c.need("shape"))
    order = [*range(1, len(shape_of(indices))), 0]
    indices = c.emit(op.permute_dims(c.cast(indices, "int64"), order))
    zeros = c.emit(op.zeros(shape, c.dtype))
    return op.scatter_nd(zeros, c.checked(indices, shape[: shape_of(indices)[-1]]), values)


@converts("_contrib_index_copy")
def _index_copy(c: Call):
    """Write rows to the rows of these numbers."""
    _, numbers, rows = c.inputs
    numbers = c.emit(op.expand_dims(c.cast(numbers, "int64"), 1))
    return op.scatter_nd(c.x, c.checked(numbers, [c.shape[0]], negative=False), rows)


@converts("slice_axis")
def _slice_axis(c: Call):
    return _sliced(c, {int(c.need("axis")) % c.rank: slice(c.get("begin"), c.get("end"))})


@converts("slice_like")
def _slice_like(c: Call):
    like = shape_of(c.inputs[1])
    return _sliced(c, {axis: slice(0, like[axis]) for axis in c.axes("axes") or range(c.rank)})


@converts("repeat")
def _repeat(c: Call):
    axis = c.get("axis")
    return op.repeat(flat(c) if axis is None else c.x, int(c.need("repeats")), int(axis or 0))


def flat(c: Call) -> relax.Expr:
    """Return the first input with one axis."""
    return op.reshape(c.x, [math.prod(c.shape)])


@converts("broadcast_to")
def _broadcast_to(c: Call):
    return op.broadcast_to(c.x, [n or m for n, m in zip(c.need("shape"), c.shape, strict=True)])


@converts("broadcast_axis", "broadcast_axes")
def _broadcast_axis(c: Call):
    shape = list(c.shape)
    for axis, size in zip(_as_tuple(c.need("axis")), _as_tuple(c.need("size")), strict=True):
        shape[axis] = size
    return op.broadcast_to(c.x, shape)


@converts("broadcast_like")
def _broadcast_like(c: Call):
    like, shape = shape_of(c.inputs[1]), list(c.shape)
    own, others = (c.get(f"{side}_axes") for side in ("lhs", "rhs"))
    own = range(c.rank) if own is None else _as_tuple(own)
    others = range(c.rank) if others is None else _as_tuple(others)
    for axis, other in zip(own, others, strict=True):
        shape[axis] = like[other]
    return op.broadcast_to(c.x, shape)


# ---------------------------------------------------------------- new arrays


@converts(
    *("_zeros", "_ones", "_full", "zeros_like", "ones_like"),
    *("_npi_zeros", "_npi_ones", "_npi_full", "_npi_full_like"),
)
def _filled(c: Call):
    value = 0 if "zeros" in c.op else 1 if "ones" in c.op else c.get("fill_value", c.get("value", 0))
    if c.inputs:
        dtype = c.get("dtype", c.dtype)
        return op.full_like(c.x, c.const(np.full((), value), dtype), dtype)
    shape = c.need("shape")
    if c.op in ("_zeros", "_ones", "_full"):
        shape = [n or 1 for n in shape]  # see importer._InferredSizes
    return c.const(np.full(shape, value), c.get("dtype", "float32"))


@converts("_arange")
def _arange(c: Call):
    c.refuse(infer_range=(False,))
    start, stop = c.get("start", 0), c.get("stop")
    start, stop = (0, start) if stop is None else (start, stop)
    values = np.arange(start, stop, c.get("step", 1), c.get("dtype", "float32"))
    return c.const(np.repeat(values, int(c.get("repeat", 1))), str(values.dtype))


@converts("_contrib_arange_like")
def _arange_like(c: Call):
    axis, repeat = c.get("axis"), int(c.get("repeat", 1))
    shape = c.shape if axis is None else (c.shape[int(axis)],)
    steps = np.arange(math.prod(shape)) // repeat
    values = float(c.get("start", 0)) + float(c.get("step", 1)) * steps
    return c.const(values.reshape(shape), c.dtype)


# ---------------------------------------------------------------- choosing elements


def _in_range(c: Call, indices: relax.Expr, size: int, modes=("clip", "wrap")) -> relax.Expr:
    """Return `indices` of any dtype as indices from 0 to size - 1, by the node's mode."""
    c.refuse(mode=modes)
    mode = c.get("mode", "clip")
    floats = dtype_of(indices).startswith("float")
    indices = c.emit(c.cast(indices, "int64" if floats or dtype_of(indices) == "int64" else "int32"))
    if mode == "raise":
        return c.checked(indices, [size], negative=False)
    if mode == "wrap":
        return op.floor_mod(indices, relax.const(size, dtype_of(indices)))
    return op.clip(indices, 0, size - 1)


@converts("take")
def _take(c: Call):
    axis = int(c.get("axis", 0)) % c.rank
    indices = _in_range(c, c.inputs[1], c.shape[axis], modes=("clip", "wrap", "raise"))
    return op.take(c.x, indices, axis, mode="clip")


@converts("Embedding")
def _embedding(c: Call):
    weight = c.expect(1, int(c.need("input_dim")), int(c.need("output_dim")))
    return op.take(weight, _in_range(c, c.x, shape_of(weight)[0]), 0, mode="clip")


@converts("pick", "choose_element_0index", "batch_take")
def _pick(c: Call):
    axis = int(c.get("axis", -1)) % c.rank
    indices = _in_range(c, c.inputs[1], c.shape[axis])
    if len(shape_of(c.inputs[1])) < c.rank:
        indices = op.expand_dims(indices, axis)
    picked = op.gather_elements(c.x, indices, axis)
    # of a vector, too, the result has an axis
    return picked if c.get("keepdims", False) or c.rank == 1 else op.squeeze(picked, [axis])


@converts("gather_nd")
def _gather_nd(c: Call):
    order = [*range(1, len(shape_of(c.inputs[1]))), 0]
    indices = c.emit(op.permute_dims(c.cast(c.inputs[1], "int64"), order))
    sizes = c.shape[: shape_of(indices)[-1]]
    return op.gather_nd(c.x, c.checked(indices, sizes))


@converts("where")
def _where(c: Call):
    condition, x, y = c.inputs
    rank, chosen = len(shape_of(x)), nonzero(condition)
    if len(shape_of(condition)) == 1 < rank:
        chosen = op.reshape(chosen, [*shape_of(condition), *[1] * (rank - 1)])
    return op.where(chosen, x, y)


@converts("one_hot")
def _one_hot(c: Call):
    """Return one-hot rows; an index out of range gives a row of off_value."""
    dtype = c.get("dtype", "float32")
    defaults = ("on_value", 1), ("off_value", 0)
    values = (tirx.const(c.get(name, default), dtype) for name, default in defaults)
    indices = c.x if dtype_of(c.x) == "int64" else c.cast(c.x, "int32")
    return op.one_hot(indices, *values, int(c.need("depth")))


# ---------------------------------------------------------------- sequences


def _lengths(c: Call, axis: int) -> relax.Expr | None:
    """Return the length of each sequence of a batch, the axis beside that of time; None if all are whole."""
    if not c.get("use_sequence_length", False):
        return None
    return c.emit(c.cast(c.expect(1, c.shape[1 - axis]), "int64"))


@converts("SequenceMask")
def _sequence_mask(c: Call):
    axis = int(c.get("axis", 0))
    if (lengths := _lengths(c, axis)) is None:
        return c.x
    inside = op.less(counter(c.shape, axis), along(lengths, c.shape, 1 - axis))
    return op.where(c.emit(inside), c.x, c.const(c.get("value", 0)))


@converts("SequenceLast")
def _sequence_last(c: Call):
    axis = int(c.get("axis", 0))
    if (lengths := _lengths(c, axis)) is None:
        return c.element(c.x, c.shape[axis] - 1, axis)
    last = c.emit(op.subtract(lengths, relax.const(1, "int64")))
    last = along(c.checked(last, [c.shape[axis]], negative=False), c.shape, 1 - axis)
    shape = [1 if i == axis else n for i, n in enumerate(c.shape)]
    indices = c.emit(op.broadcast_to(c.emit(last), shape))
    return op.squeeze(op.gather_elements(c.x, indices, axis), [axis])


@converts("SequenceReverse")
def _sequence_reverse(c: Call):
    c.refuse(axis=(0,))
    if (lengths := _lengths(c, 0)) is None:
        return op.flip(c.x, 0)
    lengths = c.checked(lengths, [c.shape[0] + 1], negative=False)
    return reversed_sequences(c.builder, c.x, lengths, 0, 1)


# ---------------------------------------------------------------- ordering


def _line(c: Call) -> tuple[relax.Expr, int]:
    """Return what is ordered, and the axis: by default the last, for None the flattened array's."""
    if c.node.attrs.get("axis", "").strip() == "None":
        return c.emit(flat(c)), 0
    return c.x, int(c.get("axis", -1)) % c.rank


@converts("topk")
def _topk(c: Call):
    kind, (x, axis) = c.get("ret_typ", "indices"), _line(c)
    count = int(c.get("k", 1)) or shape_of(x)[axis]
    best = c.emit(op.topk(x, count, axis, "both", largest=not c.get("is_ascend", False), dtype="int32"))
    values, indices = (c.emit(relax.TupleGetItem(best, n)) for n in (0, 1))
    if kind == "mask":
        shape, dtype = shape_of(x), dtype_of(x)
        ones = c.emit(op.ones(shape_of(indices), dtype))
        return op.reshape(op.scatter_elements(op.zeros(shape, dtype), indices, ones, axis), c.shape)
    indices = c.cast(indices, c.get("dtype", "float32"))
    return {"value": values, "indices": indices, "both": [values, indices]}[kind]


@converts("sort", "argsort")
def _sort(c: Call):
    (x, axis), descending = _line(c), not c.get("is_ascend", True)
    if c.op == "sort":
        return op.sort(x, axis, descending)
    return op.astype(op.argsort(x, axis, descending, "int32"), c.get("dtype", "float32"))


@converts("argmax", "argmin", "argmax_channel")
def _argmax(c: Call):
    """Return indices; of all elements, or of a vector, along one axis, as MXNet's arrays have."""
    keep, axis = bool(c.get("keepdims", False)), 1 if c.op == "argmax_channel" else c.get("axis")
    is_vector = axis is None or c.rank == 1
    x, axis = (flat(c), 0) if axis is None else (c.x, int(axis))
    indices = (op.argmin if c.op == "argmin" else op.argmax)(x, axis, keepdims=keep or is_vector)
    indices = op.astype(indices, c.dtype)
    return op.reshape(indices, [1] * c.rank) if keep and is_vector else indices


# ---------------------------------------------------------------- reductions


def _reduced(c: Call, reduce) -> relax.Expr:
    """Reduce the axes that the node names; a scalar result gets one axis, as MXNet's arrays have."""
    axes = reduced_axes(c.rank, c.axes() or [], c.get("exclude", False))
    keep = bool(c.get("keepdims", False))
    result = reduce(c.x, axes, keepdims=keep) if axes else c.x
    return result if keep or len(axes) < c.rank else op.reshape(result, [1])


converts("sum", "sum_axis")(functools.partial(_reduced, reduce=op.sum))
converts("mean")(functools.partial(_reduced, reduce=op.mean))
converts("max", "max_axis")(functools.partial(_reduced, reduce=op.max))
converts("min", "min_axis")(functools.partial(_reduced, reduce=op.min))
converts("prod")(functools.partial(_reduced, reduce=op.prod))


@converts("nansum", "nanprod")
def _without_nan(c: Call):
    reduce, neutral = (op.sum, 0) if c.op == "nansum" else (op.prod, 1)
    if not c.dtype.startswith("float"):
        return _reduced(c, reduce)
    return _reduced(
        c, lambda x, *how, **also: reduce(op.where(op.isnan(x), c.const(neutral), x), *how, **also)
    )


@converts("moments")
@in_float32
def _moments(c: Call):
    """Return means and variances; of all axes they have one, as MXNet's arrays have."""
    if (axes := c.axes("axes")) is None:
        raise ValueError("the attribute 'axes' is missing")
    mean = c.emit(op.mean(c.x, axes, keepdims=True))
    centred = c.emit(c.x - mean)
    variance = c.emit(op.mean(centred * centred, axes, keepdims=True))
    if c.get("keepdims", False):
        return [mean, variance]
    shape = [n for axis, n in enumerate(c.shape) if axis not in axes] or [1]
    return [op.reshape(each, shape) for each in (mean, variance)]


@converts("norm")
@in_float32
def _norm(c: Call):
    """Sum squares in float64, in which none of a float32 overflows or becomes 0; MXNet scales them."""
    require_floats(c.x)
    if c.get("ord", 2) == 1:
        return _reduced(c, lambda x, axes, keepdims: op.sum(op.abs(x), axes, keepdims))

    def norm(x, axes, keepdims):
        x = c.emit(c.cast(x, "float64"))
        return c.cast(c.emit(op.sqrt(op.sum(x * x, axes, keepdims))), c.dtype)

    return _reduced(c, norm)
