"""Lower operators to kernels, in place of TVM's legalization.

At opt level 3 these are the computations that `rules` has schedules for; at every level, those that TVM
gets wrong for NaN, infinities and signed zeros.
"""

from functools import partial

import tvm
from tvm import relax, te, tirx, topi

from ...core.compat import CONCATENATE, OPAQUE, OUT_EWISE_FUSABLE
from ...core.protocols import Lookup
from ...core.relax import constant_array, dim_hint, known_shape, static_shape
from ...core.simd import Simd
from ...kernels import dynamic, elementwise, resize
from ..schedule.rules import amx_matmul, paired, row_reduction
from ..schedule.workloads.batch_matmul import BatchMatmul
from ..schedule.workloads.dense import Dense
from . import conv_transpose, dynamic_reshape, ieee754, norms, quantize, scatter
from .ieee754 import default

_DYNAMIC_ROWS = 8  # rows of a product's workload, at least, if their number is dynamic
_FLOATS, _INTEGERS = ("float32",) * 3, ("uint8", "int8", "int32")  # data, weight and result of a product
_DYNAMIC_LENGTH = 64  # assumed for dynamic dims of the matrices of two activations


def legalizations(v: Simd | None, lookup: Lookup | None, opt_level: int, in_pairs: bool = False) -> dict:
    """Return the functions that `relax.transform.LegalizeOps` takes, by operator name.

    Below level 3 these are only those that correct TVM's results. `v` is a CPU's vector registers, or None
    for a GPU. With `in_pairs`, the rules of paired.py multiply.
    """
    corrected = ieee754.legalizations() | OF_CONSTANTS
    corrected |= {"relax.power": _power, "relax.arange": _arange}
    corrected |= quantize.OPERATORS
    corrected["relax.quantize"] = partial(quantize.quantize, for_gpu=v is None)
    corrected[scatter.OPERATOR] = partial(scatter.legalize, for_gpu=v is None)
    corrected |= dict.fromkeys(norms.OF_IMAGES, partial(norms.of_images, for_gpu=v is None))
    corrected[norms.OF_ROWS] = partial(norms.of_rows, flat=v is None)
    corrected |= dict.fromkeys(conv_transpose.OPERATORS, conv_transpose.legalize)
    corrected |= dict.fromkeys(elementwise.FUNCTIONS if v else (), _elementwise)
    corrected |= dict.fromkeys(elementwise.OF_LIBM if v else (), _of_libm)
    if opt_level < 3:
        return corrected
    if v is None:
        return corrected | {"relax.concat": _concat}
    return corrected | {
        "relax.matmul": lambda bb, call: _matmul(bb, call, v, lookup, in_pairs),
        "relax.nn.softmax": lambda bb, call: _softmax(bb, call, v),
        norms.OF_ROWS: lambda bb, call: _layer_norm(bb, call, v),
        "relax.concat": _concat,
        **dict.fromkeys(row_reduction.EXTREMES, lambda bb, call: _extreme(bb, call, v)),
        **dict.fromkeys(norms.OF_IMAGES, partial(norms.of_images, lanes=v.lanes)),
        "relax.reshape": dynamic_reshape.legalize,
    }


def _matmul(bb, call, v, lookup, in_pairs):
    left, right = call.args
    a, b = known_shape(left.ty), known_shape(right.ty)
    dtypes = tuple(str(each.ty.dtype) for each in (left, right, call))
    is_product = None not in (a, b) and len(a) > 1 and len(b) > 1 and 0 not in (*a, *b)
    if not is_product or dtypes not in (_FLOATS, _INTEGERS):
        return default(bb, call)
    of_weight = len(b) == 2 and isinstance(right, tvm.ir.GenericConst)
    if dtypes == _INTEGERS:  # see graph/quantized.py
        return _product_of_integers(bb, left, right, v, lookup) if of_weight else default(bb, call)
    if of_weight:
        dense = Dense(_rows(a), *b)
        config = dense.config(lookup, v)
        config = paired.instead_of(dense, config, a, v) if in_pairs else config
        panels = relax.const(dense.pack(right.value.numpy(), config, v.lanes))
        return _fusable(bb, "dense", dense.compute, left, panels, config)
    left_shape, right_shape = (
        (*map(dim_hint, shape[:-2]), *(dim_hint(dim, _DYNAMIC_LENGTH) for dim in shape[-2:]))
        for shape in (a, b)
    )
    product = BatchMatmul(left_shape, right_shape)
    return _fusable(bb, "matmul", product.compute, left, right, product.config(lookup, v))


def _rows(shape: tuple) -> int:
    rows = shape[-2]
    return rows if isinstance(rows, int) else max(dim_hint(rows), _DYNAMIC_ROWS)


def _product_of_integers(bb, left, right, v, lookup):
    shape = known_shape(left.ty)
    dense = Dense(_rows(shape), *known_shape(right.ty), dtype="uint8")
    config = amx_matmul.config_of_integers(dense, shape, v) or dense.config(lookup, v)
    panels = relax.const(dense.pack(right.value.numpy(), config, v.lanes))
    return _fusable(bb, "dense_of_integers", dense.compute, left, panels, config)


def _power(bb, call):
    """Pass a large exponent as an array; TVM warns of a number from 3 on."""
    exponent = constant_array(call.args[1])
    if exponent is None or exponent.ndim or exponent < 3 or "float" not in str(call.ty.dtype):
        return default(bb, call)
    return bb.call_te(topi.power, *call.args)


def _resize2d(bb, call):
    """Interpolate floats linearly or cubically by kernels of our own, else as TVM does.

    Raises an error for float64, which TVM computes in float32.
    """
    attrs, (x, size), shape = call.attrs, call.args, call.ty.shape
    if str(call.ty.dtype) == "float64":
        raise ValueError("image.resize2d of float64: TVM computes it in float32; resize it as float32")
    axes = [attrs.layout.index(axis) for axis in "HW"]
    mode, is_own = attrs.coordinate_transformation_mode, str(x.ty.dtype) == str(call.ty.dtype)
    is_own = is_own and str(x.ty.dtype).startswith(("float", "bfloat")) and mode in resize.MODES
    if (
        is_own
        and attrs.method in ("linear", "cubic")
        and not (attrs.method == "cubic" and attrs.cubic_exclude)
    ):
        how = mode, attrs.rounding_method
        taps = resize.cubic(*how, attrs.cubic_alpha) if attrs.method == "cubic" else resize.linear(*how)

        def interpolate(x, sizes, shape):
            return resize.resized(x, axes, sizes, shape, taps)

        return bb.call_te(interpolate, x, size, shape, primfunc_name_hint="resize2d")
    is_aligned = mode == "align_corners"
    static = [[isinstance(each.ty.shape[n], tirx.IntImm) for n in axes] for each in (x, call)]
    if not is_aligned and not any(after > before for before, after in zip(*static, strict=True)):
        return default(bb, call)

    def compute(x, sizes, shape):
        # TVM divides by the number of rows less one, and takes a quotient of a dynamic size for a number.
        tests = [size > 1 for size in sizes] if is_aligned else [x.shape[n] > 0 for n in axes]
        return topi.image.resize2d(
            x,
            attrs.roi,
            # A maximum would let TVM 0.27 compute bounds of a float, on which it fails.
            [te.if_then_else(test, size, 2) for test, size in zip(tests, sizes, strict=True)],
            attrs.layout,
            attrs.method,
            mode,
            attrs.rounding_method,
            attrs.cubic_alpha,
            attrs.cubic_exclude,
            output_shape=shape,
        )

    return bb.call_te(compute, x, size, shape, primfunc_name_hint="resize2d")


# Also for constants alone: see OF_FOLDED.
OF_CONSTANTS = {
    **ieee754.OF_CONSTANTS,
    "relax.image.resize2d": _resize2d,
    scatter.OPERATOR: scatter.legalize,
    **dict.fromkeys(norms.OF_IMAGES, norms.of_images),
    norms.OF_ROWS: norms.of_rows,
    **quantize.OPERATORS,
}


def _arange(bb, call):
    """Keep an arange from a dynamic dim unfused: FuseOps fails on two dynamic dims that no tensor has."""
    result, start = default(bb, call), getattr(call.args[0], "value", call.args[0])
    if not isinstance(start, int | float):
        kernel = result.args[0]
        bb.update_func(kernel, bb.get()[kernel].with_attr("op_pattern", OPAQUE))
    return result


def _softmax(bb, call, v):
    shape = known_shape(call.ty)
    if not shape or str(call.ty.dtype) != "float32":
        return default(bb, call)
    axis = int(call.attrs.axis) % len(shape)
    if axis != len(shape) - 1:
        if static_shape(call.ty) is None:
            return default(bb, call)
        return _fusable(bb, "softmax", elementwise.softmax, call.args[0], axis)
    if not isinstance(shape[-1], int):
        return dynamic.softmax(bb, call.args[0], v.lanes)
    return _fusable(bb, "softmax", row_reduction.softmax, call.args[0], v.lanes)


def _layer_norm(bb, call, v):
    shape, attrs = known_shape(call.ty), call.attrs
    last = (
        shape and isinstance(shape[-1], int) and [int(a) % len(shape) for a in attrs.axes] == [len(shape) - 1]
    )
    if not last or str(call.ty.dtype) != "float32" or not (attrs.center and attrs.scale):
        return norms.of_rows(bb, call, flat=True)
    return _fusable(bb, "layer_norm", row_reduction.layer_norm, *call.args, float(attrs.epsilon), v.lanes)


def _extreme(bb, call, v):
    shape, axes = static_shape(call.args[0].ty), call.attrs.axis
    of_rows = shape and axes is not None and [int(axis) % len(shape) for axis in axes] == [len(shape) - 1]
    if not of_rows or str(call.ty.dtype) != "float32" or shape[-1] < 2 * v.lanes or 0 in shape:
        return ieee754.legalizations()[call.op.name](bb, call)
    found = _fusable(bb, "extreme", row_reduction.extreme, call.args[0], call.op.name, v.lanes)
    return found if call.attrs.keepdims else relax.op.reshape(bb.emit(found), call.ty.shape)


def _fusable(bb, name: str, compute, *args):
    """Call a kernel whose epilogue may take elementwise operators."""
    pattern = {"op_pattern": OUT_EWISE_FUSABLE}
    return bb.call_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=pattern)


def _elementwise(bb, call):
    if str(call.ty.dtype) != "float32" or known_shape(call.ty) is None:
        return default(bb, call)
    name = call.op.name.rpartition(".")[2]
    return bb.call_te(elementwise.FUNCTIONS[call.op.name], call.args[0], primfunc_name_hint=name)


def _of_libm(bb, call):
    if str(call.ty.dtype) not in ("float32", "float64"):
        return default(bb, call)
    name = call.op.name.rpartition(".")[2]
    return bb.call_te(elementwise.OF_LIBM[call.op.name], call.args[0], primfunc_name_hint=name)


def _concat(bb, call):
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or len(parts.fields) < 3 or call.attrs.axis is None:
        return default(bb, call)
    axis = int(call.attrs.axis) % len(call.ty.shape)
    if not isinstance(known_shape(call.ty)[axis], int):
        return default(bb, call)
    # Fused, nested concatenations would test for each element which of dozens of parts it comes from.
    attrs = {"op_pattern": OPAQUE} if any(_is_concat(bb, part) for part in parts.fields) else None

    def compute(*xs):
        return elementwise.concat(xs, axis)

    return bb.call_te(compute, *parts.fields, primfunc_name_hint=CONCATENATE, primfunc_attrs=attrs)


def _is_concat(bb, part) -> bool:
    value = bb.lookup_binding(part) if isinstance(part, relax.Var) else None
    called = value.args[0] if isinstance(value, tvm.ir.Call) and value.args else None
    return isinstance(called, tvm.ir.GlobalVar) and called.name_hint.startswith(CONCATENATE)


# Those that FoldConstant needs, which computes on a CPU: see `fold_constants.fold_constant`.
OF_FOLDED = OF_CONSTANTS | ieee754.legalizations() | dict.fromkeys(elementwise.FUNCTIONS, _elementwise)
