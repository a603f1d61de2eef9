"""Converters of PyTorch operators that TVM 0.27 gets wrong or lacks, without a decomposition: CONVERTERS.

They are functions of a torch.fx node and TVM's importer, by its keys, and emit Relax. What can be converted
neither here nor in decompositions.py raises a ValueError, rather than computing values that differ from
PyTorch's. tests/test_import_pytorch.py compares each one with PyTorch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx, topi

from ....core.bounds_check import checked
from ...ops.common import of_whole_regions, regions
from ...ops.resampling import combined, matrix
from ..partial_update import CONVERTERS as PARTIAL_UPDATES
from .linalg import CONVERTERS as LINALG
from .recurrent import CONVERTERS as RECURRENT


def _shape(node: fx.Node) -> list[int]:
    return list(node.meta["val"].shape)


def _reduce(op: Callable) -> Callable:
    """Convert reductions of (input, dims, keepdim): TVM lacks amax, amin, and prod along an axis."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        dims = node.args[1] if len(node.args) > 1 and node.args[1] != [] else None
        keepdim = node.args[2] if len(node.args) > 2 else False
        return importer.block_builder.emit(op(importer.env[node.args[0]], dims, keepdims=keepdim))

    return convert


def _checked(index: fx.Node, size: int, node: fx.Node, importer: Any, negative: bool) -> relax.Expr:
    operator = node.target.__name__.partition(".")[0]
    return checked(importer.env[index], [size], operator, negative, importer.block_builder)


def _rows(node: fx.Node, importer: Any) -> relax.Var:
    """Convert embedding(weight, ids); TVM reads outside the table if an id is too large, and warns of it."""
    table, ids = node.args[:2]
    ids = _checked(ids, _shape(table)[0], node, importer, negative=False)
    return importer.block_builder.emit(relax.op.take(importer.env[table], ids, axis=0, mode="clip"))


def _along(converter: str | Callable) -> Callable:
    """Convert operators of (input, dim, index, …) with checked indices, which the importer does not check.

    `converter` is the name of the importer's method, or a function like those of CONVERTERS.
    """

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        x, dim, index = node.args[:3]
        own, size = importer.env[index], (_shape(x) or [1])[dim]
        importer.env[index] = _checked(index, size, node, importer, negative=False)
        result = (
            getattr(importer, converter)(node) if isinstance(converter, str) else converter(node, importer)
        )
        importer.env[index] = own
        return result

    return convert


def _index_select(node: fx.Node, importer: Any) -> relax.Var:
    """Take with mode "clip"; TVM's importer makes kernels trust the indices, and warns of it."""
    x, dim, index = node.args
    return importer.block_builder.emit(relax.op.take(importer.env[x], importer.env[index], dim, mode="clip"))


def _roll(node: fx.Node, importer: Any) -> relax.Var:
    """Join two slices; dynamic dims, which may be less than a shift, gather element by element."""
    emit, (x, shifts, dims) = importer.block_builder.emit, (*node.args, ())[:3]
    x, shape = importer.env[x], _shape(node)
    sizes = shape if dims else [math.prod(shape)]
    x = x if dims else emit(relax.op.reshape(x, sizes))
    for shift, dim in zip(shifts, dims or [0], strict=True):
        size = sizes[dim]
        if importer.has_dynamic_dims:
            counted = relax.op.subtract(relax.op.arange(0, size, 1, "int64"), relax.const(shift, "int64"))
            index = emit(relax.op.floor_mod(counted, relax.const(size, "int64")))
            x = emit(relax.op.take(x, index, dim, mode="clip"))
        elif size and shift % size:
            ends = ((-shift % size, size), (0, -shift % size))
            x = emit(relax.op.concat([relax.op.strided_slice(x, [dim], [a], [b]) for a, b in ends], dim))
    return x if dims else emit(relax.op.reshape(x, shape))


def _scatter_add(node: fx.Node, importer: Any) -> relax.Var:
    (x, _, index, source), dim = (importer.env.get(arg) for arg in node.args), node.args[1]
    return importer.block_builder.emit(relax.op.scatter_elements(x, index, source, dim, "add"))


def _is_mask(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _flat_index(node: fx.Node, importer: Any, by_axis: list[fx.Node | None], negative: bool = True) -> tuple:
    """Return the indices of the first tensor by axis, the axis of the elements they pick, and a flat index.

    The flat index is checked, and counts along all indexed axes as if they were one.
    """
    shape, flat = _shape(node.args[0]), None
    indices = {axis: index for axis, index in enumerate(by_axis) if index is not None}
    if any(map(_is_mask, indices.values())):
        raise ValueError(f"{node.target} with a mask, whose result has no static shape")
    for axis, index in indices.items():
        index = _checked(index, shape[axis], node, importer, negative)
        if flat is not None:
            index = relax.op.add(relax.op.multiply(flat, relax.const(shape[axis], index.ty.dtype)), index)
        flat = importer.block_builder.normalize(index)
    first = min(indices)
    adjacent = list(indices) == list(range(first, first + len(indices)))
    return indices, first if adjacent else 0, flat


def _index(node: fx.Node, importer: Any) -> relax.Var:
    """Convert x[:, i, j], which TVM gets wrong for negative indices, and for two of them after a colon.

    The indexed axes, made adjacent, become one, along which one index picks an element.
    """
    x, shape = importer.env[node.args[0]], _shape(node.args[0])
    indices, first, flat = _flat_index(node, importer, node.args[1])
    order = [axis for axis in range(len(shape)) if axis not in indices]
    order[first:first] = indices
    if order != sorted(order):
        x = relax.op.permute_dims(x, order)
    if len(indices) > 1:
        sizes, end = [shape[axis] for axis in order], first + len(indices)
        x = relax.op.reshape(x, [*sizes[:first], math.prod(sizes[first:end]), *sizes[end:]])
    return importer.block_builder.emit(relax.op.take(x, flat, axis=first, mode="clip"))


def _index_put(node: fx.Node, importer: Any) -> relax.Var:
    """Convert x[:, i] = y: TVM needs an index for each axis, unchecked. A mask selects between x and y."""
    x, indices, values, summed = (*node.args, False)[:4]
    if len(indices) == 1 and _is_mask(indices[0]) and _shape(values) in ([], [1]) and not summed:
        mask, x, values = (importer.env[arg] for arg in (indices[0], x, values))
        mask = relax.op.reshape(mask, [*mask.ty.shape, *[1] * (len(x.ty.shape) - len(mask.ty.shape))])
        return importer.block_builder.emit(relax.op.where(relax.op.astype(mask, "bool"), values, x))
    return _put(node, importer, importer.env[values], summed, _flat_index(node, importer, indices))


def _index_along(summed: bool) -> Callable:
    """Convert index_add and index_copy, of (input, dim, index, source), without negative indices."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        _, dim, index, source = node.args
        values, alpha = importer.env[source], node.kwargs.get("alpha", 1)
        values = values if alpha == 1 else relax.op.multiply(values, relax.const(alpha, values.ty.dtype))
        by_axis = [None] * (dim % len(_shape(node))) + [index]
        return _put(node, importer, values, summed, _flat_index(node, importer, by_axis, negative=False))

    return convert


def _put(node: fx.Node, importer: Any, values: relax.Expr, summed: bool, flattened: tuple) -> relax.Var:
    emit = importer.block_builder.emit
    x, shape = importer.env[node.args[0]], _shape(node.args[0])
    indices, first, flat = flattened
    remaining = [axis for axis in range(len(shape)) if axis not in indices]
    picked = [int(n) for n in flat.ty.shape]
    order, sizes = [*indices, *remaining], [shape[axis] for axis in remaining]
    end = first + len(picked)
    values = relax.op.broadcast_to(values, [*sizes[:first], *picked, *sizes[first:]])
    axes = [*range(first, end), *range(first), *range(end, len(picked) + len(remaining))]
    values = relax.op.reshape(relax.op.permute_dims(values, axes), [math.prod(picked), *sizes])
    count = math.prod(shape[axis] for axis in indices)
    x = relax.op.reshape(relax.op.permute_dims(x, order), [count, *sizes])
    flat = relax.op.reshape(flat, [math.prod(picked), 1])
    x = emit(relax.op.scatter_nd(x, flat, values, "add" if summed else "update"))
    x = relax.op.reshape(x, [shape[axis] for axis in order])
    return emit(relax.op.permute_dims(x, [order.index(axis) for axis in range(len(shape))]))


def _one_hot(node: fx.Node, importer: Any) -> relax.Var:
    index, count = node.args
    one, zero = (relax.prim_value(tirx.const(n, "int64")) for n in (1, 0))
    index = _checked(index, count, node, importer, negative=False)
    return importer.block_builder.emit(relax.op.one_hot(index, one, zero, count, -1))


def _roi_align(node: fx.Node, importer: Any) -> relax.Var:
    """Move aligned regions by half a pixel of the scaled image; TVM moves them by one of theirs."""
    x, rois, scale, *size, samples, aligned = node.args
    own, bb = importer.env[rois], importer.block_builder
    rois = regions(own, _shape(x)[0], "roi_align", bb)
    if aligned:
        rois = relax.op.subtract(rois, relax.const([0, *[0.5 / scale] * 4], rois.ty.dtype))
    result = bb.emit(relax.op.vision.roi_align(importer.env[x], rois, size, scale, samples, aligned))
    return bb.emit(of_whole_regions(result, own, bb)) if aligned and samples <= 0 else result


def _resize(method: str) -> Callable:
    """Convert upsample(input, size, [align_corners,] scales).

    TVM rounds "nearest" to other pixels than PyTorch, and has neither one nor three axes, no antialiasing,
    and no other scale than the ratio of the two sizes.
    """
    filter_ = method.removesuffix("_aa")

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        x = importer.env[node.args[0]]
        dtype = node.args[0].meta["val"].dtype
        if method != "nearest_neighbor" and not dtype.is_floating_point:
            raise ValueError(f"{node.target} of {dtype}: resize it as float32, round and clip")
        before, after = _shape(node.args[0])[2:], _shape(node)[2:]
        options = (*node.args[2:], *node.kwargs.values())
        corners, *scales = (False, *options) if method == "nearest_neighbor" else options
        scales = scales[0] if node.target._overloadname == "vec" else scales
        given = not corners and bool(scales) and None not in scales
        if method == "nearest_neighbor" and importer.has_dynamic_dims:
            for axis, (size, length) in enumerate(zip(before, after, strict=True), 2):
                x = _nearest(importer, x, axis, size, length, scales[axis - 2] if given else None)
            return x
        if not given:
            scales = [m / n for n, m in zip(before, after, strict=True)]
        whole = not given or all(n * s == m for n, s, m in zip(before, scales, after, strict=True))
        is_row = len(before) == 1 and importer.has_dynamic_dims
        # TVM's converts to float32.
        is_exact = dtype in (torch.float32, torch.float16, torch.bfloat16) or importer.has_dynamic_dims
        if (len(before) == 2 or is_row) and filter_ == method and (corners or whole) and is_exact:
            mode = "align_corners" if corners else "half_pixel"
            mode = "asymmetric" if method == "nearest_neighbor" else mode
            rounding = "floor" if method == "nearest_neighbor" else "round"
            if dtype == torch.float64:
                raise ValueError(f"{node.target} of float64 with dynamic dims, which TVM computes in float32")
            if is_row:
                x, after = importer.block_builder.emit(relax.op.expand_dims(x, 2)), [1, *after]
            x = relax.op.image.resize2d(
                x, after, method=method, coordinate_transformation_mode=mode, rounding_method=rounding
            )
            x = importer.block_builder.emit(x)
            return importer.block_builder.emit(relax.op.squeeze(x, 2)) if is_row else x
        for axis, (size, scale, length) in enumerate(zip(before, scales, after, strict=True), 2):
            indices = np.arange(length)
            if method == "nearest_neighbor":
                # PyTorch computes in float32
                positions = np.minimum(np.floor(indices.astype("float32") * np.float32(1 / scale)), size - 1)
                taken = relax.op.take(x, relax.const(positions, "int64"), axis, mode="clip")
                x = importer.block_builder.emit(taken)
                continue
            antialias = filter_ != method
            if corners:
                scale = (length - 1) / (size - 1) if min(size, length) > 1 else 1.0
            positions = indices / scale if corners and not antialias else (indices + 0.5) / scale - 0.5
            a = -0.5 if antialias else -0.75  # Pillow's coefficient, according to PyTorch
            narrow = min(scale, 1.0) if antialias else 1.0
            weights = matrix(positions, size, filter_, narrow, a, inside=antialias)
            x = importer.block_builder.emit(combined(importer.block_builder, x, axis, weights))
        return x

    return convert


def _nearest(
    importer: Any, x: relax.Var, axis: int, size: int, length: int, scale: float | None
) -> relax.Var:
    """Resize a dynamic axis to the pixels that PyTorch takes, computing in the graph what `_resize` does."""
    positions = relax.op.astype(relax.op.arange(0, length, 1, "int64"), "float32")
    if scale is None:
        whole, part = (relax.op.astype(relax.const(n, "int64"), "float32") for n in (size, length))
        ratio = relax.op.divide(whole, part)
    else:
        ratio = relax.const(1 / scale, "float32")
    positions = relax.op.astype(relax.op.floor(relax.op.multiply(positions, ratio)), "int64")
    return importer.block_builder.emit(relax.op.take(x, positions, axis, mode="clip"))


def _grid_sample(node: fx.Node, importer: Any) -> relax.Var:
    """Move the grid's coordinates, last in PyTorch, to the second axis, as TVM expects."""
    x, grid, method, padding, align_corners = node.args
    rank, bb = len(_shape(grid)), importer.block_builder
    grid = relax.op.permute_dims(importer.env[grid], [0, rank - 1, *range(1, rank - 1)])
    method = ("bilinear", "nearest", "bicubic")[method]
    how = (("NCHW", "NCDHW")[rank - 4], ("zeros", "border", "reflection")[padding], align_corners)
    if rank == 4:
        return bb.emit(relax.op.image.grid_sample(importer.env[x], grid, method, *how))
    return bb.emit_te(topi.image.grid_sample, importer.env[x], bb.emit(grid), method, *how)


def _bound(result: relax.Expr, importer: Any) -> relax.Var:
    """Bind the result to a variable, which TVM's importer does not do for one image without a batch."""
    return result if isinstance(result, relax.Var) else importer.block_builder.emit(result)


def _shift(left: bool) -> Callable:
    """Convert a shift; by less than 0, or the width or more, C does not define it; PyTorch leaves no bit."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        emit, dtype = importer.block_builder.emit, importer.env[node.args[0]].ty.dtype.dtype
        width = torch.iinfo(node.meta["val"].dtype).bits
        x, by = (
            importer.env[arg] if isinstance(arg, fx.Node) else relax.const(arg, dtype) for arg in node.args
        )
        zero, last = relax.const(0, dtype), relax.const(width - 1, dtype)
        inside = emit(relax.op.logical_and(relax.op.greater_equal(by, zero), relax.op.less_equal(by, last)))
        by = emit(relax.op.where(inside, by, last))
        shifted = emit((relax.op.left_shift if left else relax.op.right_shift)(x, by))
        if not left and dtype.startswith("int"):  # its sign remains
            return shifted
        return emit(relax.op.where(inside, shifted, zero))

    return convert


def _scatter_reduce(node: fx.Node, importer: Any) -> relax.Var:
    """Convert the three reductions that indexing.py does not decompose, with `include_self`."""
    x, dim, index, source, how = node.args
    how = {"prod": "mul", "amax": "max", "amin": "min"}.get(how)
    if how is None or not node.kwargs.get("include_self", True):
        raise ValueError(f"scatter_reduce {node.args[4]!r} of integers")
    x, index, source = (importer.env[each] for each in (x, index, source))
    return importer.block_builder.emit(relax.op.scatter_elements(x, index, source, dim, how))


def _first_result_only(tvm_converter: str, what: str) -> Callable:
    """Raise if other results of a tuple are used, such as a norm's means, which TVM fills with zeros."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        if any(user.args[1] != 0 for user in node.users):
            raise ValueError(what)
        return getattr(importer, tvm_converter)(node)

    return convert


def _in_float32(converter: str | Callable, product: bool = False) -> Callable:
    """Convert an operator that sums: half precision accumulates in float32, as in PyTorch on a CPU.

    TVM accumulates in the operands' dtype; and it treats every product as float32, whatever its dtype.
    `converter` is the name of the importer's method, or a function like those of CONVERTERS.
    """

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        own = dict(importer.env)
        emit = (
            getattr(importer, converter)
            if isinstance(converter, str)
            else partial(converter, importer=importer)
        )
        operands = [
            arg for arg in node.args if isinstance(arg, fx.Node) and isinstance(own[arg].ty, relax.TensorType)
        ]
        dtypes = {str(own[arg].ty.dtype) for arg in operands}
        if product and not dtypes <= {"float32", "float16", "bfloat16"}:
            raise ValueError(f"{node.target} of {', '.join(sorted(dtypes))}; call net.float() first")
        if not dtypes & {"float16", "bfloat16"}:
            return _bound(emit(node), importer)
        for arg in operands:
            importer.env[arg] = importer.block_builder.emit(relax.op.astype(own[arg], "float32"))
        result = emit(node)
        importer.env.update({arg: own[arg] for arg in operands})
        dtype = importer._convert_data_type(node.meta["val"].dtype)
        return importer.block_builder.emit(relax.op.astype(result, dtype))

    return convert


def _running(op: Callable) -> Callable:
    """Convert cumsum or cumprod; float32 accumulates in float64, as in PyTorch on a CPU."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        emit, dtype = importer.block_builder.emit, node.meta["val"].dtype
        x, is_single = importer.env[node.args[0]], dtype == torch.float32
        x = emit(relax.op.astype(x, "float64")) if is_single else x
        if op is relax.op.cumsum and dtype.is_floating_point:
            x = relax.op.add(x, relax.const(0, x.ty.dtype))  # PyTorch starts from 0, which -0 does not change
        result = emit(op(x, node.args[1]))
        return emit(relax.op.astype(result, "float32")) if is_single else result

    return convert


def _matmul(node: fx.Node, importer: Any) -> relax.Var:
    a, b = (importer.env[arg] for arg in node.args)
    return importer.block_builder.emit(relax.op.matmul(a, b))


# Operators that the importer converts by a method of the same name, as `_method` gives it.
_PRODUCTS = (
    *("addmm.default", "baddbmm.default", "linear.default", "convolution.default"),
    *("conv1d.default", "conv2d.default", "conv3d.default"),
    *("conv_transpose1d.default", "conv_transpose2d.input"),
)
_SUMS = (
    *("sum.default", "sum.dim_IntList", "mean.dim", "mean.default", "var.correction"),
    *("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default"),
    *("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default"),
    *("avg_pool2d.default", "avg_pool3d.default"),
)


def _method(key: str) -> str:
    return "_" + key.lstrip("_").partition(".")[0]


CONVERTERS: dict[str, Callable] = {
    **{key: _in_float32(_method(key), product=True) for key in _PRODUCTS},
    **{key: _in_float32(_method(key)) for key in _SUMS},
    "cumsum.default": _in_float32(_running(relax.op.cumsum)),
    "cumprod.default": _in_float32(_running(relax.op.cumprod)),
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), _matmul),
    "amax.default": _reduce(relax.op.max),
    "amin.default": _reduce(relax.op.min),
    "prod.dim_int": _reduce(relax.op.prod),
    "embedding.default": _rows,
    "gather.default": _along("_gather"),
    "index_select.default": _along(_index_select),
    "scatter.src": _along("_scatter"),
    "scatter.value": _along("_scatter_value"),
    "scatter_add.default": _along(_scatter_add),
    "roll.default": _roll,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_add.default": _index_along(summed=True),
    "index_copy.default": _index_along(summed=False),
    "one_hot.default": _one_hot,
    "roi_align.default": _in_float32(_roi_align),
    **{f"upsample_nearest{n}d.vec": _resize("nearest_neighbor") for n in (1, 2, 3)},
    "upsample_linear1d.vec": _resize("linear"),
    "upsample_bilinear2d.vec": _resize("linear"),
    "upsample_trilinear3d.vec": _resize("linear"),
    "upsample_bicubic2d.vec": _resize("cubic"),
    **dict.fromkeys(("_upsample_bilinear2d_aa.default", "_upsample_bilinear2d_aa.vec"), _resize("linear_aa")),
    **dict.fromkeys(("_upsample_bicubic2d_aa.default", "_upsample_bicubic2d_aa.vec"), _resize("cubic_aa")),
    **dict.fromkeys(("grid_sampler_2d.default", "grid_sampler_3d.default"), _grid_sample),
    "bitwise_left_shift.Tensor": _shift(left=True),
    "bitwise_right_shift.Tensor": _shift(left=False),
    "scatter_reduce.two": _along(_scatter_reduce),
    "_native_batch_norm_legit_no_training.default": _first_result_only(
        "_batch_norm_legit_no_training", "native_batch_norm that returns its statistics"
    ),
    **LINALG,
    **RECURRENT,
    **PARTIAL_UPDATES,
}
