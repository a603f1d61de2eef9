"""Converters of ONNX operators on integers of 8 and 16 bits.

quantize(x) = saturate(round(x / scale) + zero_point), with ties to even; dequantize(q) = (q - zero_point) *
scale (Jacob et al., 2018, https://arxiv.org/abs/1712.05877). They become Relax's own operators of these
names, so that the compiler finds the float operators between them, whose products can stay integers. Scales
and zero points are checked before, by `..quantized.check`, which also rewrites the other quantized operators.
"""

from tvm import relax
from tvm.relax import op as R
from tvm.relax.frontend.onnx.onnx_frontend import get_type

from ....core.bounds_check import checked
from ....core.relax import constant_array
from ...context import dtype_of, shape_of
from .node import OF_TVM, Node, converts


@converts("QuantizeLinear")
def _quantize_linear(n: Node):
    """Divide in the precision of the scale, or the one asked for; bfloat16, and 16 bits, round in float32."""
    scale, zero, axis = _parameters(n, n.inputs[1], n.inputs[2])
    dtype = get_type(n.get("output_dtype")) if n.get("output_dtype", 0) else "uint8"
    dtype = dtype if zero is None else dtype_of(zero)
    zero = n.const(0, dtype) if zero is None else zero
    precision = get_type(n.get("precision")) if n.get("precision", 0) else dtype_of(scale)
    x, scale = n.emit(n.cast(n.x, precision)), n.emit(n.cast(scale, precision))
    if precision != "float32" and (precision != "float16" or dtype.endswith("16")):
        scale = scale if axis is None else _along(n, scale, axis)
        x = n.emit(R.astype(n.emit(R.divide(x, scale)), "float32"))
        scale = relax.const(1, "float32")
    return R.quantize(x, scale, zero, axis or 0, dtype)


@converts("DequantizeLinear")
def _dequantize_linear(n: Node):
    scale, zero, axis = _parameters(n, n.inputs[1], n.inputs[2])
    dtype = get_type(n.get("output_dtype")) if n.get("output_dtype", 0) else dtype_of(scale)
    zero = n.const(0) if zero is None else zero
    if dtype in ("float16", "float32"):
        return R.dequantize(n.x, scale, zero, axis or 0, dtype)
    scale = n.emit(n.cast(scale, "float32"))
    return R.astype(n.emit(R.dequantize(n.x, scale, zero, axis or 0, "float32")), dtype)


@converts("DynamicQuantizeLinear")
def _dynamic_quantize_linear(n: Node):
    """Quantize to uint8 so that 0 and the extremes fit; zeros alone have the scale 1, as in ONNX Runtime.

    As there NaN is no extreme, and becomes 0, and a zero point that is NaN, beside -infinity, is 255.
    """
    zero, last = n.const(0), n.const(255)
    known = n.emit(R.where(R.isnan(n.x), zero, n.x))
    low = n.emit(R.minimum(zero, n.emit(R.min(known))))
    high = n.emit(R.maximum(zero, n.emit(R.max(known))))
    scale = n.emit(R.divide(n.emit(R.subtract(high, low)), last))
    scale = n.emit(R.where(R.equal(high, low), n.const(1), scale))
    point = n.emit(R.subtract(zero, n.emit(R.divide(low, scale))))
    point = n.emit(R.where(R.less(point, last), R.maximum(point, zero), last))
    point = n.emit(R.astype(n.emit(R.round(point)), "uint8"))
    is_nan = n.emit(R.isnan(n.emit(R.divide(n.x, scale))))
    result = n.emit(R.quantize(n.x, scale, point, 0, "uint8"))
    return relax.Tuple([n.emit(R.where(is_nan, n.const(0, "uint8"), result)), scale, point])


@converts("MatMulInteger")
def _mat_mul_integer(n: Node):
    """Multiply in int32; a zero point is one for all, for each row of the left or column of the right."""
    a, b = (_centred(n, n.inputs[i], n.inputs[2 + i], -2 + i) for i in (0, 1))
    return R.matmul(a, b, out_dtype="int32")


@converts("ConvInteger")
def _conv_integer(n: Node):
    """Convolve in int32; the padding is of the zero point, 0 once that is subtracted."""
    x, weight = (_centred(n, n.inputs[i], n.inputs[2 + i], 0) for i in (0, 1))
    convolve = OF_TVM["Conv"].get_converter(n.opset)
    return convolve(n.builder, [x, weight, None], n.attributes, n.params)


def _centred(n: Node, x: relax.Expr, zero: relax.Expr | None, axis: int) -> relax.Expr:
    """Return integers in int32 without their zero points, which are along an axis if there are several."""
    wide = n.emit(R.astype(x, "int32"))
    if zero is None:
        return wide
    zero = n.emit(R.astype(_single(n, zero), "int32"))
    rank = len(shape_of(x))
    zero = n.emit(_along(n, zero, axis % rank, rank)) if len(shape_of(zero)) == 1 else zero
    return n.emit(R.subtract(wide, zero))


def _parameters(n: Node, scale: relax.Expr, zero: relax.Expr | None) -> tuple:
    """Return the scale, the zero point, and their axis, None if there is one of each for the whole tensor."""
    scale, zero = _single(n, _checked(n, scale)), zero if zero is None else _single(n, zero)
    per_axis = any(x is not None and shape_of(x) for x in (scale, zero))
    return scale, zero, n.get("axis", 1) % n.rank if per_axis else None


def _checked(n: Node, scale: relax.Expr) -> relax.Expr:
    """Check a scale that is an input of the model in each run, as `..quantized.check` does a constant."""
    if not isinstance(scale, relax.Var) or n.builder.lookup_binding(scale) is not None:
        return scale
    x, zero = n.emit(n.cast(scale, "float32")), relax.const(0, "float32")
    is_right = n.emit(R.logical_and(R.isfinite(x), R.greater(x, zero)))
    count = n.builder.emit(R.sum(R.astype(R.logical_not(is_right), "int64")))
    text = f"{n.op}: expected scales that are finite numbers above 0; so many are others: "
    count = checked(count, [1], text, negative=False, bb=n.builder)
    return n.builder.emit(R.add(scale, n.emit(n.cast(count, dtype_of(scale)))))


def _single(n: Node, x: relax.Expr) -> relax.Expr:
    """Return a tensor of one element as a scalar, and any other as it is."""
    shape = shape_of(n.emit(x))
    if not shape or set(shape) != {1}:
        return x
    array = constant_array(x)
    return n.emit(R.squeeze(x)) if array is None else n.const(array.reshape(()))


def _along(n: Node, x: relax.Expr, axis: int, rank: int | None = None) -> relax.Expr:
    """Return a vector as a tensor along an axis of `rank`, by default those of `n.x`."""
    shape = [1] * (n.rank if rank is None else rank)
    shape[axis] = shape_of(x)[0]
    return n.emit(R.reshape(x, shape))
