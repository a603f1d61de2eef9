"""Operators that move elements: shapes, slices, indices, order."""

import math
import re

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from tvmfast.core.bounds_check import checked
from tvmfast.frontends.ops.common import reshaped

from .operator import axis_list, known_shape, numbers_of, operator, rank_of

for (_name, _relax), _body in {
    ("reshape_like", "reshape"): lambda data, shape_like, /: R.reshape(data, known_shape(shape_like)),
    ("transpose", "permute_dims"): lambda data, /, axes=None: R.permute_dims(data, axis_list(axes)),
    ("squeeze", "squeeze"): lambda data, /, axis=None: R.squeeze(data, axis_list(axis)),
    ("concatenate", "concat"): lambda data, /, axis=0: R.concat(list(_fields(data)), axis),
    ("stack", "stack"): lambda data, /, axis=0: R.stack(list(_fields(data)), axis),
    ("broadcast_to", "broadcast_to"): lambda data, /, shape, dtype="": R.broadcast_to(data, list(shape)),
    ("broadcast_to_like", "broadcast_to"): lambda data, broadcast_type, /: R.broadcast_to(
        data, known_shape(broadcast_type)
    ),
    ("collapse_sum_like", "collapse_sum_like"): lambda data, collapse_type, /: R.collapse_sum_like(
        data, collapse_type
    ),
    ("repeat", "repeat"): lambda data, /, repeats, axis: R.repeat(data, repeats, axis),
    ("tile", "tile"): lambda data, /, reps: R.tile(data, list(reps)),
    ("reverse", "flip"): lambda data, /, axis: R.flip(data, axis),
    ("sort", "sort"): lambda data, /, axis=-1, is_ascend=1: R.sort(data, axis, not is_ascend),
    ("argsort", "argsort"): lambda data, /, axis=-1, is_ascend=1, dtype="int32": R.argsort(
        data, axis, not is_ascend, dtype
    ),
}.items():
    operator(_name, relax=_relax)(_body)


@operator("reshape", relax="reshape")
def reshape(data, /, newshape, allowzero=False):
    return R.reshape(data, reshaped(known_shape(data), numbers_of(newshape), allowzero=allowzero))


@operator("expand_dims", relax="expand_dims")
def expand_dims(data, /, axis, num_newaxis=1):
    first = axis if axis >= 0 else axis + rank_of(data) + 1
    return R.expand_dims(data, list(range(first, first + num_newaxis)))


def _fields(data):
    """Return the tensors of a tuple, which may be the result of a call such as split."""
    if isinstance(data, relax.Tuple):
        return data.fields
    several = isinstance(data.ty, tvm.ir.TupleType)
    return [relax.TupleGetItem(data, n) for n in range(len(data.ty.fields))] if several else [data]


@operator("split", lambda attrs: _parts(attrs), relax="split")
def split(data, /, indices_or_sections, axis=0):
    size = known_shape(data)[axis]
    if isinstance(indices_or_sections, int) and size % indices_or_sections:
        raise ValueError(f"expected sections of one size, got {indices_or_sections} of {size}")
    return R.split(data, indices_or_sections, axis)


def _parts(attrs) -> int:
    at = attrs["indices_or_sections"]
    return at if isinstance(at, int) else len(at) + 1


@operator("take", relax="reshape take astype")
def take(data, indices, /, axis=None, batch_dims=0, mode="clip"):
    if batch_dims:
        raise NotImplementedError("relay.take with batch_dims: use relay.gather_nd, as Relax's take has none")
    if axis is None:
        data, axis = R.reshape(data, [math.prod(known_shape(data))]), 0
    if mode == "fast":  # unchecked in Relay
        indices, mode = checked(indices, [known_shape(data)[axis]], "take", negative=False), "clip"
    return R.take(data, R.astype(indices, "int64"), axis, mode)


@operator("strided_slice", relax="strided_slice")
def strided_slice(data, /, begin, end, strides=None, axes=None, slice_mode="end"):
    shape = known_shape(data)
    begin, end, strides = (numbers_of(which) for which in (begin, end, strides or []))
    axes = list(range(len(begin))) if axes is None else [a % len(shape) for a in axes]
    steps = strides + [1] * (len(begin) - len(strides))
    if slice_mode == "size":
        begin = [first + shape[a] if first < 0 else first for a, first in zip(axes, begin, strict=True)]
        end = [
            shape[a] if size < 0 else first + size for a, first, size in zip(axes, begin, end, strict=True)
        ]
        steps = [1] * len(begin)
    return R.strided_slice(data, axes, begin, end, steps)


@operator("slice_like", relax="strided_slice")
def slice_like(data, shape_like, /, axes=None):
    wanted = known_shape(shape_like)
    axes = list(range(len(wanted))) if not axes else [a % len(known_shape(data)) for a in axes]
    return R.strided_slice(data, axes, [0] * len(axes), [wanted[a] for a in axes])


@operator("arange", relax="const")
def arange(start, stop=None, step=None, dtype="float32"):
    bounds = [numbers_of(a)[0] for a in (start, stop, step) if a is not None]
    return relax.const(np.arange(*bounds).astype(dtype), dtype)


@operator("gather", order=("data", "axis", "indices"), relax="gather_elements")
def gather(data, indices, /, axis):
    return R.gather_elements(data, checked(indices, [known_shape(data)[axis]], "gather", negative=True), axis)


@operator("gather_nd", relax="gather_nd permute_dims")
def gather_nd(data, indices, /, batch_dims=0, index_rank=None):
    count, *outer = known_shape(indices)  # in Relay, the first axis indexes the axes of data
    sizes, order = known_shape(data)[batch_dims : batch_dims + count], [*range(1, len(outer) + 1), 0]
    return R.gather_nd(
        data, checked(R.permute_dims(indices, order), sizes, "gather_nd", negative=True), batch_dims
    )


def _scattered(data, indices, updates, axis, reduction, name="scatter_elements"):
    indices = checked(indices, [known_shape(data)[axis]], name, negative=True)
    return R.scatter_elements(data, indices, updates, axis, reduction)


@operator("scatter_elements", relax="scatter_elements")
def scatter_elements(data, indices, updates, /, axis=0, reduction="update"):
    return _scattered(data, indices, updates, axis, reduction)


@operator("scatter", relax="scatter_elements")
def scatter(data, indices, updates, /, axis):
    return _scattered(data, indices, updates, axis, "update", "scatter")


@operator("scatter_add", relax="scatter_elements")
def scatter_add(data, indices, updates, /, axis):
    return _scattered(data, indices, updates, axis, "add", "scatter_add")


@operator("one_hot", relax="one_hot astype where")
def one_hot(indices, on_value, off_value, /, depth, axis, dtype):
    hot = R.one_hot(R.astype(indices, "int64"), tirx.const(1, "int8"), tirx.const(0, "int8"), depth, axis)
    return R.where(R.astype(hot, "bool"), R.astype(on_value, dtype), R.astype(off_value, dtype))


@operator("topk", lambda attrs: 2 if attrs["ret_type"] == "both" else 1, relax="topk")
def topk(data, /, k=1, axis=-1, ret_type="both", is_ascend=False, dtype="int32"):
    return R.topk(data, k, axis, ret_type, not is_ascend, dtype)


@operator("layout_transform", relax="permute_dims")
def layout_transform(data, /, src_layout, dst_layout):
    return turned(data, src_layout, dst_layout)


def turned(data, source: str, wanted: str):
    """Return `data` in layout `wanted` instead of `source`.

    Each letter names an axis, and 16c one of 16 elements of the axis C. Raises ValueError for layouts of
    different axes, or a block that does not divide its axis.
    """
    before, after = axes_of(source), axes_of(wanted)
    whole = [letter for letter, factor in before if not factor]
    if sorted(whole) != sorted(letter for letter, factor in after if not factor):
        raise ValueError(f"expected a layout of the axes {''.join(whole)}, got {wanted}")
    if source == wanted:
        return data
    if len(before) == len(after) == len(whole):
        return R.permute_dims(data, [source.index(axis) for axis in wanted])
    if isinstance(data, tvm.ir.Call):
        data = relax.BlockBuilder.current().emit(data)  # a variable knows its shape
    shape, order = known_shape(data), []
    sizes, axes = [], {}  # of the blocks that are wanted, one after another; their positions, by axis
    for letter in whole:
        parts = [n for block in (False, True) for n in _positions(before, letter, block)]
        factors = [factor for axis, factor in after if factor and axis == letter]
        size = math.prod(shape[n] for n in parts)
        if size % math.prod(factors):
            raise ValueError(
                f"layout {wanted}: the axis {letter} has {size} elements, no multiple of its block"
            )
        order += parts
        axes[letter] = [*range(len(sizes), len(sizes) + 1 + len(factors))]
        sizes += [size // math.prod(factors), *factors]
    data = R.reshape(R.permute_dims(data, order), sizes)
    blocks = {letter: iter(positions[1:]) for letter, positions in axes.items()}
    return R.permute_dims(
        data, [next(blocks[letter]) if factor else axes[letter][0] for letter, factor in after]
    )


def axes_of(layout: str) -> list[tuple[str, int]]:
    """Return the axes of a layout by the letter of the whole axis: [("C", 0), ("C", 16)] for C and 16c."""
    return [(letter.upper(), int(factor or 0)) for factor, letter in re.findall(r"(\d*)([A-Za-z])", layout)]


def _positions(axes, letter: str, block: bool) -> list[int]:
    return [n for n, (axis, factor) in enumerate(axes) if axis == letter and bool(factor) is block]
