"""These are the operators that TVM 0.27's PyTorch importer gets wrong or lacks, for pytorch.py.

Where one operator can be said with others, DECOMPOSITIONS rewrites it within PyTorch, before TVM sees it. The rest is
in CONVERTERS, under the importer's own keys: functions of a torch.fx node and the importer, which emit Relax. What can
be neither is refused with a ValueError, instead of numbers that are not PyTorch's. tests/test_import_pytorch.py holds
each one against PyTorch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx

from ..base.indices import checked
from .composites import regions
from .pytorch_types import OF_MIXED_TYPES

aten = torch.ops.aten
_Weight = torch.Tensor | None  # of a norm, or its bias

# ---- within PyTorch: a function returns NotImplemented where the operator may stay as it is


def _add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """TVM reads no alpha."""
    return NotImplemented if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else a - b * alpha


def _div(a: Any, b: Any) -> Any:
    """TVM divides integers as integers."""
    if any(isinstance(n, float) or (isinstance(n, torch.Tensor) and n.is_floating_point()) for n in (a, b)):
        return NotImplemented
    return a.to(torch.get_default_dtype()) / b


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """TVM reads no scale, which selu needs."""
    return torch.where(x > 0, scale * x, scale * alpha * _expm1_of_negatives(input_scale * torch.clamp(x, max=0.0)))


def _expm1_of_negatives(x: torch.Tensor) -> torch.Tensor:
    half = torch.tanh(x * 0.5)
    return 2 * half / (1 - half)


def _expm1(x: torch.Tensor) -> Any:
    """TVM subtracts 1 from exp(x), which leaves nothing of a small x."""
    if not x.is_floating_point():
        return NotImplemented
    return torch.where(x > 0.5, torch.exp(x) - 1, _expm1_of_negatives(torch.clamp(x, max=0.5)))


def _log1p(x: torch.Tensor) -> Any:
    """TVM takes the logarithm of 1 + x, which is 1 where x is small.

    This is Kahan's way: Higham, Accuracy and Stability of Numerical Algorithms, section 1.14.1.
    """
    if not x.is_floating_point():
        return NotImplemented
    above = 1 + x
    exact = (above == 1) | (above == math.inf)
    return torch.where(exact, x, torch.log(above) * (x / (above - 1)))


def _pow(x: torch.Tensor, exponent: float) -> Any:
    """TVM has C's power; PyTorch takes a square root for 0.5, which differs for -0 and -infinity."""
    return torch.sqrt(x) if exponent == 0.5 and x.is_floating_point() else NotImplemented


def _isfinite(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own decomposition multiplies bools, which TVM does not compile."""
    return torch.logical_and(x == x, x.abs() != math.inf)


def _select(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """TVM takes a negative index as it is, and reads outside the array."""
    start = index % x.shape[dim]
    return aten.squeeze.dim(aten.slice.Tensor(x, dim, start, start + 1), dim)


def _roll(x: torch.Tensor, shifts: list[int], dims: list[int] = ()) -> Any:
    """TVM gathers element by element, and warns of it; two slices joined do."""
    if not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        x = torch.cat([aten.slice.Tensor(x, dim, cut), aten.slice.Tensor(x, dim, 0, cut)], dim)
    return x


def _slice_scatter(
    x: torch.Tensor, part: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """It is x with x[start:end] set to part; slices are joined as in `_roll`."""
    if step != 1:
        return NotImplemented
    start, end, _ = slice(start, end).indices(x.shape[dim])
    if end <= start:
        return x.clone()
    return torch.cat([aten.slice.Tensor(x, dim, 0, start), part, aten.slice.Tensor(x, dim, end)], dim)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """Its indices may count from the end, other than those of index_copy."""
    value = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype)
    return aten.index_put(x, [None] * (dim % x.ndim) + [index], value)


def _kept(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _group_norm(x: torch.Tensor, groups: int, weight: _Weight = None, bias: _Weight = None, eps: float = 1e-5,
                cudnn_enabled: bool = True) -> Any:  # fmt: skip
    """TVM needs weight and bias."""
    if weight is not None and bias is not None:
        return NotImplemented
    apart = x.reshape(x.shape[0], groups, -1)
    centred = apart - apart.mean(2, keepdim=True)
    scaled = (centred * torch.rsqrt((centred * centred).mean(2, keepdim=True) + eps)).reshape(x.shape)
    shape = [-1, *[1] * (x.ndim - 2)]
    scaled = scaled if weight is None else scaled * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def _layer_norm(x: torch.Tensor, shape: list[int], weight: _Weight = None, bias: _Weight = None, eps: float = 1e-5,
                cudnn_enable: bool = True) -> Any:  # fmt: skip
    """TVM knows no bfloat16 here."""
    if x.dtype != torch.bfloat16:
        return aten.native_layer_norm(x, shape, weight, bias, eps)[0]
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    return aten.native_layer_norm(x.float(), shape, weight, bias, eps)[0].to(x.dtype)


DECOMPOSITIONS: dict[Any, Callable] = {
    **OF_MIXED_TYPES,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.div.Tensor: _div,
    aten.elu.default: _elu,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.pow.Tensor_Scalar: _pow,
    aten.isfinite.default: _isfinite,
    aten.select.int: _select,
    aten.roll.default: _roll,
    aten.slice_scatter.default: _slice_scatter,
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    # PyTorch says the first with assertions, and the others with indices that may count from the end.
    **dict.fromkeys((aten.one_hot.default, aten.index_add.default, aten.index_copy.default), _kept),
}

# ---- from PyTorch to Relax


def _shape(node: fx.Node) -> list[int]:
    return list(node.meta["val"].shape)


def _reduce(op: Callable) -> Callable:
    """TVM lacks amax, amin, and prod along an axis: aten's reductions of (input, dims, keepdim)."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        x, dims, keepdim = (*node.args, *([], False)[len(node.args) - 1 :])
        return importer.block_builder.emit(op(importer.env[x], dims if dims != [] else None, keepdims=keepdim))

    return convert


def _checked(index: fx.Node, size: int, node: fx.Node, importer: Any, negative: bool) -> relax.Expr:
    operator = node.target.__name__.partition(".")[0]
    return checked(importer.env[index], [size], operator, negative, importer.block_builder)


def _rows(node: fx.Node, importer: Any) -> relax.Var:
    """embedding(weight, ids) reads outside the table in TVM's way where an id is too large, and warns of it."""
    table, ids = node.args[:2]
    ids = _checked(ids, _shape(table)[0], node, importer, negative=False)
    return importer.block_builder.emit(relax.op.take(importer.env[table], ids, axis=0, mode="clip"))


def _along(usual: str | Callable) -> Callable:
    """Convert operators of (input, dim, index, …) by a method of the importer, which checks no index, or a function."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        x, dim, index = node.args[:3]
        own, size = importer.env[index], (_shape(x) or [1])[dim]
        importer.env[index] = _checked(index, size, node, importer, negative=False)
        result = getattr(importer, usual)(node) if isinstance(usual, str) else usual(node, importer)
        importer.env[index] = own
        return result

    return convert


def _index_select(node: fx.Node, importer: Any) -> relax.Var:
    """TVM's importer has kernels trust the indices, and warns of it."""
    x, dim, index = node.args
    return importer.block_builder.emit(relax.op.take(importer.env[x], importer.env[index], dim, mode="clip"))


def _scatter_add(node: fx.Node, importer: Any) -> relax.Var:
    (x, _, index, source), dim = (importer.env.get(arg) for arg in node.args), node.args[1]
    return importer.block_builder.emit(relax.op.scatter_elements(x, index, source, dim, "add"))


def _is_mask(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _places(node: fx.Node, importer: Any, by_axis: list[fx.Node | None], negative: bool = True) -> tuple:
    """Give the indices of an operator's first tensor by axis, the axis where what they pick stands, and one index,
    checked, that counts along all indexed axes as if they were one."""
    shape, flat = _shape(node.args[0]), None
    indices = {axis: index for axis, index in enumerate(by_axis) if index is not None}
    if any(map(_is_mask, indices.values())):
        raise ValueError(f"{node.target} with a mask, whose result has no fixed shape")
    for axis, index in indices.items():
        index = _checked(index, shape[axis], node, importer, negative)
        if flat is not None:
            index = relax.op.add(relax.op.multiply(flat, relax.const(shape[axis], index.ty.dtype)), index)
        flat = importer.block_builder.normalize(index)
    first = min(indices)
    return indices, first if list(indices) == list(range(first, first + len(indices))) else 0, flat


def _index(node: fx.Node, importer: Any) -> relax.Var:
    """x[:, i, j] goes wrong in TVM's way on negative indices, and on two of them after a colon.

    The indexed axes, made neighbours, become one; one number then picks an element along it.
    """
    x, shape = importer.env[node.args[0]], _shape(node.args[0])
    indices, first, flat = _places(node, importer, node.args[1])
    order = [axis for axis in range(len(shape)) if axis not in indices]
    order[first:first] = indices
    if order != sorted(order):
        x = relax.op.permute_dims(x, order)
    if len(indices) > 1:
        sizes, end = [shape[axis] for axis in order], first + len(indices)
        x = relax.op.reshape(x, [*sizes[:first], math.prod(sizes[first:end]), *sizes[end:]])
    return importer.block_builder.emit(relax.op.take(x, flat, axis=first, mode="clip"))


def _index_put(node: fx.Node, importer: Any) -> relax.Var:
    """x[:, i] = y: TVM needs an index for each axis, and writes wherever they say. A mask chooses between x and y."""
    x, indices, values, summed = (*node.args, False)[:4]
    if len(indices) == 1 and _is_mask(indices[0]) and _shape(values) in ([], [1]) and not summed:
        mask, x, values = (importer.env[arg] for arg in (indices[0], x, values))
        mask = relax.op.reshape(mask, [*mask.ty.shape, *[1] * (len(x.ty.shape) - len(mask.ty.shape))])
        return importer.block_builder.emit(relax.op.where(relax.op.astype(mask, "bool"), values, x))
    return _put(node, importer, importer.env[values], summed, _places(node, importer, indices))


def _index_along(summed: bool) -> Callable:
    """Convert index_add and index_copy, of (input, dim, index, source), whose indices do not count from the end."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        _, dim, index, source = node.args
        values, alpha = importer.env[source], node.kwargs.get("alpha", 1)
        values = values if alpha == 1 else relax.op.multiply(values, relax.const(alpha, values.ty.dtype))
        by_axis = [None] * (dim % len(_shape(node))) + [index]
        return _put(node, importer, values, summed, _places(node, importer, by_axis, negative=False))

    return convert


def _put(node: fx.Node, importer: Any, values: relax.Expr, summed: bool, places: tuple) -> relax.Var:
    x, shape, emit = importer.env[node.args[0]], _shape(node.args[0]), importer.block_builder.emit
    indices, first, flat = places
    rest, picked = [axis for axis in range(len(shape)) if axis not in indices], [int(n) for n in flat.ty.shape]
    order, sizes, end = [*indices, *rest], [shape[axis] for axis in rest], first + len(picked)
    values = relax.op.broadcast_to(values, [*sizes[:first], *picked, *sizes[first:]])
    axes = [*range(first, end), *range(first), *range(end, len(picked) + len(rest))]
    values = relax.op.reshape(relax.op.permute_dims(values, axes), [math.prod(picked), *sizes])
    x = relax.op.reshape(relax.op.permute_dims(x, order), [math.prod(shape[axis] for axis in indices), *sizes])
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
    x, rois = node.args[:2]
    own = importer.env[rois]
    importer.env[rois] = regions(own, _shape(x)[0], "roi_align", importer.block_builder)
    result = importer._torchvision_roi_align(node)
    importer.env[rois] = own
    return result


def _resize(method: str) -> Callable:
    """upsample(input, size, [align_corners,] scales): TVM rounds "nearest" to other pixels than PyTorch, and takes the
    ratio of the two sizes for the scale, which PyTorch does only where no scale is given."""

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        before, after = _shape(node.args[0])[2:], _shape(node)[2:]
        corners = method != "nearest_neighbor" and node.args[2]
        scales = node.args[-1]
        if scales and not corners and any(n * s != m for n, s, m in zip(before, scales, after, strict=True)):
            raise ValueError(f"upsample of {before} by {scales}, no whole number of pixels; give the size {after}")
        mode = "asymmetric" if method == "nearest_neighbor" else "align_corners" if corners else "half_pixel"
        rounding = "floor" if method == "nearest_neighbor" else "round"
        x = importer.env[node.args[0]]
        return importer.block_builder.emit(
            relax.op.image.resize2d(
                x, after, method=method, coordinate_transformation_mode=mode, rounding_method=rounding
            )
        )

    return convert


def _grid_sample(node: fx.Node, importer: Any) -> relax.Var:
    """PyTorch's grid is N, H, W, 2; TVM's is N, 2, H, W."""
    x, grid, method, padding, align_corners = node.args
    return importer.block_builder.emit(
        relax.op.image.grid_sample(
            importer.env[x],
            relax.op.permute_dims(importer.env[grid], [0, 3, 1, 2]),
            method=("bilinear", "nearest", "bicubic")[method],
            padding_mode=("zeros", "border", "reflection")[padding],
            align_corners=align_corners,
        )
    )


def _avg_pool2d(node: fx.Node, importer: Any) -> relax.Var:
    """TVM reads no divisor_override."""
    if len(node.args) > 6 and node.args[6] is not None:
        raise ValueError("avg_pool2d with divisor_override")
    return importer._avg_pool2d(node)


def _max_pool2d(node: fx.Node, importer: Any) -> relax.Var:
    """TVM puts zeros where the indices of the largest elements belong."""
    if any(user.args[1] == 1 for user in node.users):
        raise ValueError("max_pool2d that returns indices")
    return importer._max_pool2d_with_indices(node)


def _in_float32(usual: str | Callable, product: bool = False) -> Callable:
    """Convert an operator that sums: half precision is summed in float32 and then rounded, as PyTorch does on a CPU.

    TVM's way keeps the sum in the operands' dtype; and it takes every product for float32, whatever it is made of.
    `usual` is the converter: the importer's method of that name, or a function like those of CONVERTERS.
    """

    def convert(node: fx.Node, importer: Any) -> relax.Var:
        own = dict(importer.env)
        emit = getattr(importer, usual) if isinstance(usual, str) else partial(usual, importer=importer)
        operands = [arg for arg in node.args if isinstance(arg, fx.Node) and isinstance(own[arg].ty, relax.TensorType)]
        dtypes = {str(own[arg].ty.dtype) for arg in operands}
        if product and not dtypes <= {"float32", "float16", "bfloat16"}:
            raise ValueError(f"{node.target} of {', '.join(sorted(dtypes))}; call net.float() first")
        if not dtypes & {"float16", "bfloat16"}:
            return emit(node)
        for arg in operands:
            importer.env[arg] = importer.block_builder.emit(relax.op.astype(own[arg], "float32"))
        result = emit(node)
        importer.env.update({arg: own[arg] for arg in operands})
        dtype = importer._convert_data_type(node.meta["val"].dtype)
        return importer.block_builder.emit(relax.op.astype(result, dtype))

    return convert


def _matmul(node: fx.Node, importer: Any) -> relax.Var:
    a, b = (importer.env[arg] for arg in node.args)
    return importer.block_builder.emit(relax.op.matmul(a, b))


# Operators that the importer converts by a method of the same name, as `_method` gives it.
_PRODUCTS = ("addmm.default", "baddbmm.default", "linear.default", "convolution.default", "conv1d.default",
             "conv2d.default", "conv3d.default", "conv_transpose1d.default", "conv_transpose2d.input")  # fmt: skip
_SUMS = ("sum.default", "sum.dim_IntList", "mean.dim", "mean.default", "cumsum.default", "var.correction",
         "softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default",
         "adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")  # fmt: skip


def _method(key: str) -> str:
    return "_" + key.lstrip("_").partition(".")[0]


CONVERTERS: dict[str, Callable] = {
    **{key: _in_float32(_method(key), product=True) for key in _PRODUCTS},
    **{key: _in_float32(_method(key)) for key in _SUMS},
    "avg_pool2d.default": _in_float32(_avg_pool2d),
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
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_add.default": _index_along(summed=True),
    "index_copy.default": _index_along(summed=False),
    "one_hot.default": _one_hot,
    "roi_align.default": _roi_align,
    "upsample_nearest2d.vec": _resize("nearest_neighbor"),
    "upsample_bilinear2d.vec": _resize("linear"),
    "upsample_bicubic2d.vec": _resize("cubic"),
    "grid_sampler_2d.default": _grid_sample,
    "max_pool2d_with_indices.default": _max_pool2d,
}
