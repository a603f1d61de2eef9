"""Converters of PyTorch operators that TVM 0.27 gets wrong or lacks, without a decomposition: CONVERTERS.

They are functions of a torch.fx node and TVM's importer, by its keys; those below take a `Call` of both, and
emit Relax. What can be converted neither here nor in decompositions.py raises a ValueError, rather than
computing values that differ from PyTorch's. tests/test_import_pytorch.py compares each one with PyTorch.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx, topi
from tvm.relax import op as R

from ....kernels.resize import PYTORCH
from ...context import dtype_of, shape_of
from ...ops.common import antialiased, combined, logarithm, neighbours, of_whole_regions, regions
from ..partial_update import CONVERTERS as PARTIAL_UPDATES
from . import uint8_images
from .call import Call, bound
from .linalg import CONVERTERS as LINALG
from .quantized import CONVERTERS as QUANTIZED
from .recurrent import CONVERTERS as RECURRENT
from .special import CONVERTERS as SPECIAL

_OUTSIDE = 1024  # a coordinate of a grid that is outside of an image, at whose edges are -1 and 1
_SMALL = 128  # height and width of images, together, of which PyTorch has nearest pixels in another way


def _reduce(op: Callable) -> Callable:
    """Convert reductions of (input, dims, keepdim): TVM lacks amax, amin, and prod along an axis."""

    def convert(c: Call) -> relax.Expr:
        x, dims, keepdim = (*c.inputs, *(None, False)[len(c.inputs) - 1 :])
        return op(x, None if dims == [] else dims, keepdims=keepdim)

    return convert


def _embedding(c: Call) -> relax.Expr:
    """Convert embedding(weight, ids); TVM reads outside the table if an id is too large, and warns of it."""
    table, ids = c.inputs[:2]
    return R.take(table, c.checked(ids, c.shape[:1], negative=False), axis=0, mode="clip")


def _along(converter: str | Callable) -> Callable:
    """Convert operators of (input, dim, index, …) with checked indices, which the importer does not check."""

    def convert(c: Call) -> relax.Expr:
        _, dim, index = c.inputs[:3]
        index = c.checked(index, [(c.shape or (1,))[dim]], negative=False)
        with c.substituted({c.node.args[2]: index}):
            return c.converted(converter)

    return convert


def _roll(c: Call) -> relax.Expr:
    """Join two slices; dynamic dims, which may be less than a shift, gather element by element."""
    x, shifts, dims = (*c.inputs, ())[:3]
    sizes = c.shape if dims else [math.prod(c.shape)]
    x = x if dims else c.emit(R.reshape(x, sizes))
    for shift, dim in zip(shifts, dims or [0], strict=True):
        size = sizes[dim]
        if c.importer.has_dynamic_dims:
            counted = R.subtract(R.arange(0, size, 1, "int64"), relax.const(shift, "int64"))
            index = c.emit(R.floor_mod(counted, relax.const(size, "int64")))
            x = c.emit(R.take(x, index, dim, mode="clip"))
        elif size and shift % size:
            ends = ((-shift % size, size), (0, -shift % size))
            x = c.emit(R.concat([R.strided_slice(x, [dim], [a], [b]) for a, b in ends], dim))
    return x if dims else R.reshape(x, c.shape)


def _is_mask(index: relax.Expr) -> bool:
    return dtype_of(index) in ("bool", "uint8")


def _flat_index(c: Call, by_axis: list[relax.Expr | None], negative: bool = True) -> tuple:
    """Return the indices of the first tensor by axis, the axis of the elements they pick, and a flat index.

    The flat index is checked, and counts along all indexed axes as if they were one.
    """
    indices = {axis: index for axis, index in enumerate(by_axis) if index is not None}
    if any(map(_is_mask, indices.values())):
        raise ValueError(f"{c.node.target} with a mask, whose result has no static shape")
    flat = None
    for axis, index in indices.items():
        index = c.checked(index, [c.shape[axis]], negative)
        if len(indices) > 1:
            index = c.builder.normalize(c.cast(index, "int64"))  # which may differ, or be too narrow for both
        if flat is not None:
            index = R.add(R.multiply(flat, relax.const(c.shape[axis], "int64")), index)
        flat = c.builder.normalize(index)
    first = min(indices)
    adjacent = list(indices) == list(range(first, first + len(indices)))
    return indices, first if adjacent else 0, flat


def _index(c: Call) -> relax.Expr:
    """Convert x[:, i, j], which TVM gets wrong for negative indices, and for two of them after a colon.

    The indexed axes, made adjacent, become one, along which one index picks an element.
    """
    x = c.x
    indices, first, flat = _flat_index(c, c.inputs[1])
    order = [axis for axis in range(c.rank) if axis not in indices]
    order[first:first] = indices
    if order != sorted(order):
        x = R.permute_dims(x, order)
    if len(indices) > 1:
        sizes, end = [c.shape[axis] for axis in order], first + len(indices)
        x = R.reshape(x, [*sizes[:first], math.prod(sizes[first:end]), *sizes[end:]])
    return R.take(x, flat, axis=first, mode="clip")


def _index_put(c: Call) -> relax.Expr:
    """Convert x[:, i] = y: TVM needs an index for each axis, unchecked. A mask selects between x and y."""
    x, indices, values, summed = (*c.inputs, False)[:4]
    if len(indices) == 1 and _is_mask(indices[0]) and shape_of(values) in ((), (1,)) and not summed:
        (mask,) = indices
        mask = R.reshape(mask, [*shape_of(mask), *[1] * (c.rank - len(shape_of(mask)))])
        return R.where(R.astype(mask, "bool"), values, x)
    return _put(c, values, summed, _flat_index(c, indices))


def _index_along(summed: bool) -> Callable:
    """Convert index_add and index_copy, of (input, dim, index, source), without negative indices."""

    def convert(c: Call) -> relax.Expr:
        _, dim, index, values = c.inputs
        alpha = c.node.kwargs.get("alpha", 1)
        values = values if alpha == 1 else R.multiply(values, relax.const(alpha, values.ty.dtype))
        by_axis = [None] * (dim % c.rank) + [index]
        return _put(c, values, summed, _flat_index(c, by_axis, negative=False))

    return convert


def _put(c: Call, values: relax.Expr, summed: bool, flattened: tuple) -> relax.Expr:
    indices, first, flat = flattened
    remaining = [axis for axis in range(c.rank) if axis not in indices]
    picked = shape_of(flat)
    order, sizes = [*indices, *remaining], [c.shape[axis] for axis in remaining]
    end = first + len(picked)
    values = R.broadcast_to(values, [*sizes[:first], *picked, *sizes[first:]])
    axes = [*range(first, end), *range(first), *range(end, len(picked) + len(remaining))]
    values = R.reshape(R.permute_dims(values, axes), [math.prod(picked), *sizes])
    count = math.prod(c.shape[axis] for axis in indices)
    x = R.reshape(R.permute_dims(c.x, order), [count, *sizes])
    flat = R.reshape(flat, [math.prod(picked), 1])
    x = c.emit(R.scatter_nd(x, flat, values, "add" if summed else "update"))
    x = R.reshape(x, [c.shape[axis] for axis in order])
    return R.permute_dims(x, [order.index(axis) for axis in range(c.rank)])


def _one_hot(c: Call) -> relax.Expr:
    index, count = c.inputs
    one, zero = (relax.prim_value(tirx.const(n, "int64")) for n in (1, 0))
    return R.one_hot(c.checked(index, [count], negative=False), one, zero, count, -1)


def _roi_align(c: Call) -> relax.Expr:
    """Move aligned regions by half a pixel of the scaled image; TVM moves them by one of theirs."""
    x, own, scale, *size, samples, aligned = c.inputs
    rois = regions(own, c.shape[0], "roi_align", c.builder)
    if aligned:
        rois = R.subtract(rois, relax.const([0, *[0.5 / scale] * 4], rois.ty.dtype))
    result = c.emit(R.vision.roi_align(x, rois, size, scale, samples, aligned))
    return of_whole_regions(result, own, c.builder) if aligned and samples <= 0 else result


def _resize(method: str) -> Callable:
    """Convert upsample(input, size, [align_corners,] scales).

    TVM rounds "nearest" to other pixels than PyTorch, and has neither one nor three axes, no antialiasing,
    and no other scale than the ratio of the two sizes.
    """
    filter_ = method.removesuffix("_aa")
    is_nearest, antialias = method == "nearest_neighbor", filter_ != method

    def convert(c: Call) -> relax.Expr:
        x, node, is_dynamic = c.x, c.node, c.importer.has_dynamic_dims
        dtype = node.args[0].meta["val"].dtype
        if dtype == torch.uint8 and node.target in uint8_images.RESIZES:
            return uint8_images.convert(c)
        if not is_nearest and not dtype.is_floating_point:
            raise ValueError(f"{node.target} of {dtype}: resize it as float32, round and clip")
        before, after = c.shape[2:], c.result_shape[2:]
        options = (*node.args[2:], *node.kwargs.values())
        corners, *scales = (False, *options) if is_nearest else options
        scales = scales[0] if node.target._overloadname == "vec" else scales
        given = not corners and bool(scales) and None not in scales
        if is_nearest and is_dynamic:
            for axis in range(len(before)):
                x = _nearest(c, x, axis, before, after, scales[axis] if given else None)
            return x
        # PyTorch ignores the scale of an axis that keeps its size, or doubles it; of pixels in small images.
        if filter_ == "linear" or antialias:
            ratios = (1,)
        else:
            ratios = (1, 2) if is_nearest and len(before) == 2 and sum(after) <= _SMALL else ()
        sizes = list(zip(before, after, strict=True))
        own = scales if given else [None] * len(sizes)
        scales = [
            m / n if scale is None or m in [n * ratio for ratio in ratios] else scale
            for (n, m), scale in zip(sizes, own, strict=True)
        ]
        whole = not given or all(n * scale == m for (n, m), scale in zip(sizes, scales, strict=True))
        is_row = len(before) == 1 and is_dynamic
        halves = (torch.float16, torch.bfloat16)
        # TVM's converts to float32, also the cubic weights of halves, which PyTorch rounds.
        is_exact = dtype in (torch.float32, *(() if filter_ == "cubic" else halves)) or is_dynamic
        if (len(before) == 2 or is_row) and not antialias and (corners or whole) and is_exact:
            if dtype == torch.float64:
                raise ValueError(f"{node.target} of float64 with dynamic dims, which TVM computes in float32")
            mode = "asymmetric" if is_nearest else "align_corners" if corners else "half_pixel"
            how = {"method": method, "coordinate_transformation_mode": mode}
            how["rounding_method"] = "floor" if is_nearest else PYTORCH
            if is_row:
                x = c.emit(R.image.resize2d(c.emit(R.expand_dims(x, 2)), [1, *after], **how))
                return R.squeeze(x, 2)
            return R.image.resize2d(x, after, **how)
        x = c.emit(R.astype(x, "float32")) if dtype in halves and not is_nearest else x
        for axis, (size, scale, length) in enumerate(zip(before, scales, after, strict=True), 2):
            if antialias and size == length:
                continue
            indices = np.arange(length)
            if is_nearest:
                # PyTorch computes in float32
                positions = np.minimum(np.floor(indices.astype("float32") * np.float32(1 / scale)), size - 1)
                x = c.emit(R.take(x, relax.const(positions, "int64"), axis, mode="clip"))
                continue
            number = np.float64 if dtype == torch.float64 else np.float32  # in which PyTorch computes
            if corners:
                scale = (length - 1) / (size - 1) if min(size, length) > 1 else 1.0
            ratio = number(0 if corners and length == 1 and not antialias else 1 / scale)
            indices = indices.astype(number)
            if antialias:  # with Pillow's coefficient, according to PyTorch
                positions = ratio * (indices + number(0.5)) - number(0.5)
                taps = antialiased(positions, size, filter_, scale, a=-0.5, inside=True)
            else:
                positions = ratio * indices if corners else ratio * (indices + number(0.5)) - number(0.5)
                taps = neighbours(positions, size, filter_)
                if dtype in halves and (filter_ == "cubic" or len(before) != 2):
                    taps = taps[0], _weights_of_halves(taps[1], c.dtype)
            x = c.emit(combined(c.builder, x, axis, *taps))
        return R.astype(x, c.dtype)

    return convert


def _weights_of_halves(weights: np.ndarray, dtype: str) -> np.ndarray:
    """Round weights (result, neighbours) as PyTorch does: of two the second, then what is left of 1."""
    weights = weights.astype(dtype)
    if weights.shape[1] == 2:
        weights[:, 0] = (1 - weights[:, 1].astype("float32")).astype(dtype)
    return weights


def _nearest(c: Call, x: relax.Var, axis: int, before: tuple, after: tuple, scale: float | None) -> relax.Var:
    """Resize a dynamic axis to the pixels that PyTorch takes, computing in the graph what `_resize` does."""

    def number(value):
        return relax.const(value, "int64")

    size, length = number(before[axis]), number(after[axis])
    positions = R.astype(R.arange(0, after[axis], 1, "int64"), "float32")
    ratio = R.divide(R.astype(size, "float32"), R.astype(length, "float32"))
    if scale is not None:
        own = relax.const(1 / scale, "float32")
        if len(before) == 2:
            is_small = R.less_equal(R.add(number(after[0]), number(after[1])), number(_SMALL))
            is_kept = R.logical_or(R.equal(size, length), R.equal(R.add(size, size), length))
            ratio = R.where(R.logical_and(is_small, is_kept), ratio, own)
        else:
            ratio = own
    positions = R.astype(R.floor(R.multiply(positions, ratio)), "int64")
    return c.emit(R.take(x, positions, axis + 2, mode="clip"))


def _grid_sample(c: Call) -> relax.Expr:
    """Move the grid's coordinates, last in PyTorch, to the second axis, as TVM expects; halves in float32.

    TVM makes int32 of coordinates. Those far outside, which do not fit, become closer ones with the same
    result: reflected, an image repeats every 4. One that is not finite stays so, as PyTorch multiplies by its
    distance from a pixel; is clipped to an edge; or is outside.
    """
    x, grid, method, padding, align_corners = c.inputs
    rank, (zeros, border, reflection) = c.rank, (padding == n for n in range(3))
    method = ("bilinear", "nearest", "bicubic")[method]
    wide = "float64" if c.dtype == "float64" else "float32"
    x, grid = (c.emit(R.astype(each, wide)) for each in (x, grid))
    is_outside = zeros and (rank == 5 or method == "nearest")
    edge = relax.const(math.nan if zeros or method == "bicubic" else -1 if rank == 4 else 1, wide)
    limit, period = relax.const(_OUTSIDE, wide), relax.const(4, wide)
    is_finite = c.emit(R.less(R.abs(grid), relax.const(math.inf, wide)))
    near = c.emit(R.minimum(R.maximum(grid, R.negative(limit)), limit))
    if reflection:
        near = c.emit(R.subtract(grid, R.multiply(R.trunc(R.divide(grid, period)), period)))
    clips = border and method != "bicubic"
    grid = c.emit(R.where(R.equal(grid, grid) if clips else is_finite, near, edge))
    alone = np.array(c.shape[:1:-1]) == 1  # the grid has the last axis first
    if reflection and align_corners and alone.any():  # TVM divides by the distance of the outer pixels
        for axis in rank - 1 - np.flatnonzero(alone):
            x = c.emit(R.concat([x, x], int(axis)))
        at_first = R.multiply(grid, relax.const(~alone, wide)), relax.const(alone, wide)
        grid = c.emit(R.subtract(*at_first))  # -1 there, or NaN
    grid = c.emit(R.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]))
    how = (("NCHW", "NCDHW")[rank - 4], ("zeros", "border", "reflection")[padding], align_corners)
    if rank == 4:
        result = c.emit(R.image.grid_sample(x, grid, method, *how))
    else:
        result = c.builder.emit_te(topi.image.grid_sample, x, grid, method, *how)
    if is_outside:
        inside = R.expand_dims(R.min(R.astype(is_finite, "int32"), -1), 1)
        result = c.emit(R.where(R.equal(inside, relax.const(1, "int32")), result, relax.const(0, wide)))
    return R.astype(result, c.dtype)


def _shift(left: bool) -> Callable:
    """Convert a shift; by less than 0, or the width or more, C does not define it; PyTorch leaves no bit."""

    def convert(c: Call) -> relax.Expr:
        x, by = (c.const(arg) if isinstance(arg, int) else arg for arg in c.inputs)
        zero, last = c.const(0), c.const(torch.iinfo(c.result.dtype).bits - 1)
        inside = c.emit(R.logical_and(R.greater_equal(by, zero), R.less_equal(by, last)))
        by = c.emit(R.where(inside, by, last))
        shifted = (R.left_shift if left else R.right_shift)(x, by)
        keeps_sign = not left and c.dtype.startswith("int")
        return shifted if keeps_sign else R.where(inside, c.emit(shifted), zero)

    return convert


def _scatter(c: Call, reduction: str) -> relax.Expr:
    """Convert a scatter, also of a source larger than the index, whose rest it does not read."""
    x, dim, index, source = c.inputs[:4]
    sizes, own = shape_of(index), shape_of(source)
    axes = [axis for axis, (size, held) in enumerate(zip(sizes, own, strict=True)) if size != held]
    if axes:
        source = c.emit(R.strided_slice(source, axes, [0] * len(axes), [sizes[axis] for axis in axes]))
    return R.scatter_elements(x, index, source, dim, reduction)


def _scatter_reduce(c: Call) -> relax.Expr:
    """Convert the three reductions that indexing.py does not decompose, with `include_self`."""
    reduce = c.inputs[4]
    how = {"prod": "mul", "amax": "max", "amin": "min"}.get(reduce)
    if how is None or not c.node.kwargs.get("include_self", True):
        raise ValueError(f"scatter_reduce {reduce!r} of {c.dtype}")
    return _scatter(c, how)


def _first_result_only(tvm_converter: str, what: str) -> Callable:
    """Raise if other results of a tuple are used, such as a norm's means, which TVM fills with zeros."""

    def convert(c: Call) -> relax.Expr:
        if any(user.args[1] != 0 for user in c.node.users):
            raise ValueError(what)
        return c.converted(tvm_converter)

    return convert


def _in_float32(converter: str | Callable, product: bool = False) -> Callable:
    """Convert an operator that sums: half precision accumulates in float32, as in PyTorch on a CPU.

    TVM accumulates in the operands' dtype; and it treats every product as float32, whatever its dtype.
    """

    def convert(c: Call) -> relax.Expr:
        nodes = {arg: own for arg, own in zip(c.node.args, c.inputs, strict=True) if isinstance(arg, fx.Node)}
        operands = {arg: own for arg, own in nodes.items() if isinstance(own.ty, relax.TensorType)}
        dtypes = set(map(dtype_of, operands.values()))
        if product and not dtypes <= {"float32", "float16", "bfloat16"}:
            raise ValueError(f"{c.node.target} of {', '.join(sorted(dtypes))}; call net.float() first")
        if not dtypes & {"float16", "bfloat16"}:
            return c.converted(converter)
        halves = {arg: own for arg, own in operands.items() if dtype_of(own) in ("float16", "bfloat16")}
        with c.substituted({arg: c.emit(R.astype(own, "float32")) for arg, own in halves.items()}):
            result = c.converted(converter)
        return R.astype(result, c.dtype_in_tvm(c.result.dtype))

    return convert


def _power(c: Call) -> relax.Expr:
    """Raise integers to powers by squaring; a negative one of other numbers than 1 and -1 is 0."""
    x, y = c.inputs
    if c.result.dtype.is_floating_point:
        return R.power(x, y)
    info, one, zero = torch.iinfo(c.result.dtype), c.const(1), c.const(0)
    result, power = c.emit(R.full_like(x, one)), x
    for bit in range(info.bits - (info.min < 0)):
        is_set = c.emit(R.not_equal(c.emit(R.bitwise_and(y, c.const(1 << bit))), zero))
        result = c.emit(R.multiply(result, c.emit(R.where(is_set, power, one))))
        power = c.emit(R.multiply(power, power))
    if info.min == 0:
        return result
    is_unit = c.emit(R.logical_or(R.equal(x, one), R.equal(x, c.const(-1))))
    return R.where(R.logical_or(is_unit, R.greater_equal(y, zero)), result, zero)


def _convolution(c: Call) -> relax.Expr:
    """Convolve integers and float64 in their own dtype."""
    if c.dtype in ("float32", "float16", "bfloat16"):
        return _in_float32("_convolution")(c)
    x, weight, bias, strides, padding, dilation, transposed, output_padding, groups = c.inputs
    how = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    how |= {"out_dtype": c.dtype} | ({"output_padding": output_padding} if transposed else {})
    operator = f"conv{c.rank - 2}d{'_transpose' if transposed else ''}"
    result = c.emit(getattr(R.nn, operator)(x, weight, **how))
    return result if bias is None else R.add(result, R.reshape(bias, [1, -1, *[1] * (c.rank - 2)]))


def _running(op: Callable) -> Callable:
    """Convert cumsum or cumprod; float32 accumulates in float64, as in PyTorch on a CPU."""

    def convert(c: Call) -> relax.Expr:
        x, is_single = c.x, c.result.dtype == torch.float32
        x = c.emit(R.astype(x, "float64")) if is_single else x
        if op is R.cumsum and c.result.dtype.is_floating_point:
            x = R.add(x, relax.const(0, x.ty.dtype))  # PyTorch starts from 0, which -0 does not change
        result = op(x, c.inputs[1])
        return R.astype(c.emit(result), "float32") if is_single else result

    return convert


# Operators that the importer converts by a method of the same name, as `_method` gives it.
_PRODUCTS = (
    *("addmm.default", "baddbmm.default", "linear.default"),
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


_OF_CALLS: dict[str, Callable[[Call], relax.Expr]] = {
    **{key: _in_float32(_method(key), product=True) for key in _PRODUCTS},
    "convolution.default": _convolution,
    **{key: _in_float32(_method(key)) for key in _SUMS},
    "pow.Tensor_Tensor": _power,
    "log2.default": lambda c: logarithm(c.x, 2),
    "log10.default": lambda c: logarithm(c.x, 10),
    "cumsum.default": _in_float32(_running(R.cumsum)),
    "cumprod.default": _in_float32(_running(R.cumprod)),
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), lambda c: R.matmul(*c.inputs)),
    "amax.default": _reduce(R.max),
    "amin.default": _reduce(R.min),
    "prod.dim_int": _reduce(R.prod),
    "embedding.default": _embedding,
    "gather.default": _along("_gather"),
    # TVM's importer makes kernels trust the indices, and warns of it.
    "index_select.default": _along(lambda c: R.take(c.x, c.inputs[2], c.inputs[1], mode="clip")),
    "scatter.src": _along(lambda c: _scatter(c, "update")),
    "scatter.value": _along("_scatter_value"),
    "scatter_add.default": _in_float32(_along(lambda c: _scatter(c, "add"))),
    "roll.default": _roll,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_add.default": _in_float32(_index_along(summed=True)),
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
    "scatter_reduce.two": _in_float32(_along(_scatter_reduce)),
    "_native_batch_norm_legit_no_training.default": _first_result_only(
        "_batch_norm_legit_no_training", "native_batch_norm that returns its statistics"
    ),
    **LINALG,
    **QUANTIZED,
    **RECURRENT,
    **SPECIAL,
    **PARTIAL_UPDATES,
}
CONVERTERS = {key: bound(convert) for key, convert in _OF_CALLS.items()}
