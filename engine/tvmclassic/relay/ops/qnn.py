"""Operators of `relay.qnn.op`: integers q that stand for (q - zero point) * scale.

Products are exact sums in int32; a build computes those of bytes and constant weights by instructions for dot
products (`tvmfast/compiler/graph/quantized.py`). `requantize`, and what adds or multiplies, is bit by bit as
TVM 0.12 defines it: a ratio of scales is an integer of 31 bits and a shift, the product in 64 bits rounded.
`quantize` rounds halves away from 0. The functions of one tensor (tanh) dequantize and quantize.

Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (CVPR 2018), section 2.2; TVM 0.12, python/tvm/relay/qnn/op/qnn.py.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import numpy as np
from tvm import relax
from tvm.relax import op as R

from tvmfast.core.relax import constant_array

from ..ir import Attrs
from .operator import NEEDED, dtype_of, known_shape, operator
from .shapes import turned

_ROUNDINGS, _COMPUTE_DTYPES = ("UPWARD", "TONEAREST"), ("int64", "float32", "float64")
_config = contextvars.ContextVar("requantize_config", default=("UPWARD", "int64"))


@contextlib.contextmanager
def requantize_config(rounding: str = "UPWARD", compute_dtype: str = "int64") -> Iterator[None]:
    """Set how `requantize` rounds and computes in a build, where its call does not say so.

    `rounding` is "UPWARD" or "TONEAREST", `compute_dtype` "int64", "float32" or "float64"; else ValueError.
    """
    _choice("rounding", rounding, _ROUNDINGS)
    token = _config.set((rounding, _choice("compute_dtype", compute_dtype, _COMPUTE_DTYPES)))
    try:
        yield
    finally:
        _config.reset(token)


def requantize_configured() -> tuple[str, str]:
    """Return the rounding and the dtype that `requantize_config` has set."""
    return _config.get()


# ---------------------------------------------------------------- parameters and steps


def _bound(expr: relax.Expr) -> relax.Var:
    """Return a variable of the builder for a value that is used twice."""
    return relax.BlockBuilder.current().emit(expr)


def _numbers(expr: relax.Expr, what: str) -> np.ndarray:
    array = constant_array(expr)
    if array is None:
        raise ValueError(f"{what}: expected a constant, relay.const(…), or one that relay.bind has bound")
    if "scale" in what and not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{what}: expected finite numbers above 0, got {array.min()}")
    return array


def _one(expr: relax.Expr, what: str) -> np.ndarray:
    """Return the number of a parameter that has one for all, as an array without axes."""
    array = _numbers(expr, what)
    if array.size != 1:
        raise ValueError(f"{what}: expected one number, got {array.shape}")
    return array.reshape(())


def _along(array: np.ndarray, axis: int, data) -> np.ndarray:
    """Reshape a parameter to a scalar, or to broadcast along an axis of `data`."""
    if array.size == 1:
        return array.reshape(())
    rank = len(known_shape(data))
    if array.shape != (size := known_shape(data)[axis],):
        raise ValueError(f"expected one parameter, or {size} along axis {axis}; got {array.shape}")
    return array.reshape([-1 if n == axis % rank else 1 for n in range(rank)])


def _centred(data, zero_point, dtype: str, axis: int = 0) -> relax.Expr:
    """Return integers less their zero point in a wider dtype."""
    zero, wide = _along(_numbers(zero_point, "zero point"), axis, data), R.astype(data, dtype)
    return R.subtract(wide, relax.const(zero.astype(dtype), dtype)) if zero.any() else wide


def fixed_point(multiplier: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 m below 2**31 and exponents e, with a multiplier of about m * 2**(e - 31)."""
    significand, exponent = np.frexp(np.asarray(multiplier, "float64"))
    whole = np.floor(np.ldexp(significand, 31) + 0.5).astype("int64")
    full = whole == 1 << 31
    return np.where(full, whole // 2, whole), exponent.astype("int64") + full


def _rescaled(q: relax.Expr, multiplier: np.ndarray, rounding: str = "") -> relax.Expr:
    """Multiply int64 by a number above 0, and round; saturates beyond the range of int32."""
    if (multiplier == 1).all():
        return q
    rounding = rounding or _config.get()[0]
    m, exponent = fixed_point(multiplier)
    left, right = np.maximum(exponent, 0), 31 - np.minimum(exponent, 0)
    m, right = np.where(right > 62, 0, m), np.minimum(right, 62)
    if left.any():
        most = ((1 << 32) - 1) >> np.minimum(left, 32)  # more is no number of 32 bits then
        q = R.left_shift(R.maximum(R.minimum(q, _int64(most)), _int64(-most)), _int64(left))
    q, half = R.multiply(q, _int64(m)), _int64(np.int64(1) << (right - 1))
    if rounding == "TONEAREST":  # one less where it is below 0
        q = _bound(q)
        half = R.add(R.right_shift(q, _int64(63)), half)
    return R.right_shift(R.add(q, half), _int64(right))


def _int64(values) -> relax.Expr:
    return relax.const(np.asarray(values, "int64"), "int64")


def _saturated(q: relax.Expr, zero_point, dtype: str) -> relax.Expr:
    """Add a zero point to int64, and clip to the range of a dtype."""
    zero, info = _one(zero_point, "output zero point"), np.iinfo(dtype)
    q = R.add(q, _int64(zero)) if zero else q
    return R.astype(R.minimum(R.maximum(q, _int64(info.min)), _int64(info.max)), dtype)


def _rounded(x: relax.Expr) -> relax.Expr:
    """Round floats to whole numbers, halves away from 0."""
    x = _bound(x)
    whole = _bound(R.trunc(x))
    twice = R.multiply(R.subtract(x, whole), relax.const(2, dtype_of(x)))
    return R.add(whole, R.trunc(twice))


def _ratio(scale, output_scale, axis: int, data) -> np.ndarray:
    """Return the quotient of two float32 scales in float64."""
    scale = _along(_numbers(scale, "input scale").astype("float64"), axis, data)
    return scale / float(_one(output_scale, "output scale"))


def _choice(name: str, value: str, known: tuple) -> str:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}; got {value!r}")
    return value


# ---------------------------------------------------------------- between floats and integers


@operator("qnn.quantize", relax="divide clip trunc subtract add quantize")
def quantize(data, output_scale, output_zero_point, /, axis=-1, out_dtype="int8"):
    """Return round(data / scale) + zero point, halves away from 0, saturated."""
    scale = _along(_numbers(output_scale, "output scale"), axis, data).astype("float32")
    zero = _along(_numbers(output_zero_point, "zero point"), axis, data)
    scaled = R.divide(data, relax.const(scale))
    if out_dtype == "int32":
        whole = R.add(_rounded(R.clip(scaled, -(2.0**31), 2.0**31)), relax.const(zero.astype("float32")))
        return R.astype(R.clip(whole, -(2.0**31), float(np.float32(2**31 - 128))), "int32")
    whole = _rounded(R.clip(scaled, -(2.0**18), 2.0**18))
    flat = relax.const(zero.astype("int32").reshape(-1) if zero.ndim else zero.astype("int32"))
    return R.quantize(_bound(whole), relax.const(np.float32(1)), flat, axis, out_dtype)


@operator("qnn.dequantize", relax="dequantize")
def dequantize(data, input_scale, input_zero_point, /, axis=-1, out_dtype="float32"):
    """Return (data - zero point) * scale."""
    scale, zero = _numbers(input_scale, "input scale"), _numbers(input_zero_point, "zero point")
    for each in (scale, zero):
        _along(each, axis, data)
    scale, zero = (each.reshape(()) if each.size == 1 else each for each in (scale, zero))
    result = R.dequantize(data, relax.const(scale.astype("float32")), relax.const(zero.astype("int32")), axis)
    return result if out_dtype == "float32" else R.astype(_bound(result), out_dtype)


@operator("qnn.requantize", relax="astype subtract multiply add right_shift minimum maximum")
def requantize(
    data,
    input_scale,
    input_zero_point,
    output_scale,
    output_zero_point,
    /,
    axis=-1,
    rounding="None",
    compute_dtype="None",
    out_dtype="int8",
):
    """Return integers of one scale, or one for each index of an axis, as those of another.

    `rounding` is "UPWARD", a half to the larger integer, or "TONEAREST", away from 0; `compute_dtype` is
    "int64", "float32" or "float64". "None" is what `requantize_config` says, by default "UPWARD" and "int64".
    """
    own = _config.get()
    rounding = _choice("rounding", own[0] if rounding == "None" else rounding, _ROUNDINGS)
    compute = _choice("compute_dtype", own[1] if compute_dtype == "None" else compute_dtype, _COMPUTE_DTYPES)
    ratio = _ratio(input_scale, output_scale, axis, data)
    q = _centred(data, input_zero_point, "int64", axis)
    if compute == "int64":
        return _saturated(_rescaled(q, ratio, rounding), output_zero_point, out_dtype)
    zero, info = _one(output_zero_point, "output zero point"), np.iinfo(out_dtype)
    x = R.multiply(R.astype(q, compute), relax.const(ratio.astype(compute), compute))
    x = R.add(x, relax.const(zero.astype(compute), compute))
    x = R.floor(R.add(x, relax.const(0.5, compute))) if rounding == "UPWARD" else _rounded(x)
    return _saturated(R.astype(R.clip(x, float(info.min), float(info.max)), "int64"), _ZERO, out_dtype)


_ZERO = relax.const(0, "int32")


# ---------------------------------------------------------------- products

_OF_PRODUCT = "input_zero_point kernel_zero_point input_scale kernel_scale"


def _of_int32(out_dtype: str) -> None:
    if out_dtype not in ("", "int32"):
        raise ValueError(f"out_dtype: expected int32, of the sums; got {out_dtype!r}")


def _convolution(transposed: bool):
    name, kernel = ("conv2d_transpose", "IOHW") if transposed else ("conv2d", "OIHW")
    window = {"strides": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    layouts = {"data_layout": "NCHW", "kernel_layout": kernel, "out_layout": ""}
    sizes = ("channels", "kernel_size") if transposed else ("kernel_size", "channels")
    if transposed:
        attributes = {**window, "groups": 1, **dict.fromkeys(sizes), **layouts, "output_padding": (0, 0)}
    else:
        attributes = {**dict.fromkeys(sizes, NEEDED), **window, "groups": 1, **layouts}

    def body(data, weight, data_zero, weight_zero, _data_scale, _weight_scale, /, **attrs):
        a = Attrs(attrs)
        _of_int32(a.out_dtype)
        data, weight = (
            _bound(turned(each, *layout)) if layout[0] != layout[1] else each
            for each, layout in ((data, (a.data_layout, "NCHW")), (weight, (a.kernel_layout, kernel)))
        )
        shape = known_shape(weight)
        depthwise = not transposed and shape[0] == a.groups == known_shape(data)[1] > 1
        if depthwise and shape[1] > 1:  # with a multiplier
            weight = _bound(R.reshape(weight, (shape[0] * shape[1], 1, *shape[2:])))
        made = known_shape(weight)[kernel.index("O")] * (a.groups if transposed else 1)
        for name, told, have in (("channels", a.channels, made), ("kernel_size", a.kernel_size, shape[2:])):
            if told and np.any(np.asarray(told) != have):
                raise ValueError(f"{name}: its weights have {have}, got {told}")
        data = _centred(data, data_zero, "int32")
        weight = _centred(weight, weight_zero, "int32", kernel.index("O"))
        if transposed:
            options = (a.strides, a.padding, a.output_padding, a.dilation, a.groups, "NCHW", kernel)
            result = R.nn.conv2d_transpose(data, weight, *options, out_dtype="int32")
        else:
            result = R.nn.conv2d(data, weight, a.strides, a.padding, a.dilation, a.groups, out_dtype="int32")
        out = a.out_layout or a.data_layout
        return result if out == "NCHW" else turned(_bound(result), "NCHW", out)

    relax_name = f"nn.{name} astype subtract permute_dims"
    tensors = f"data {'weight' if transposed else 'kernel'} {_OF_PRODUCT}"
    operator(
        f"qnn.{name}", relax=relax_name, tensors=tensors, attributes={**attributes, "out_dtype": "int32"}
    )(body)


_convolution(transposed=False)
_convolution(transposed=True)


@operator("qnn.dense", relax="matmul permute_dims astype subtract", tensors=f"data weight {_OF_PRODUCT}",
          attributes={"units": NEEDED, "out_dtype": "int32"})  # fmt: skip
def dense(data, weight, data_zero, weight_zero, _data_scale, _weight_scale, /, units, out_dtype):
    """Exact sums in int32 of data (…, K) and weights (units, K), both less their zero points."""
    _of_int32(out_dtype)
    if units != (rows := known_shape(weight)[0]):
        raise ValueError(f"units: its weights have {rows}, got {units}")
    weight = R.permute_dims(_centred(weight, weight_zero, "int32"), [1, 0])
    return R.matmul(_centred(data, data_zero, "int32"), weight, out_dtype="int32")


@operator("qnn.batch_matmul", relax="matmul permute_dims astype subtract")
def batch_matmul(x, y, x_zero_point, y_zero_point, x_scale, y_scale, /, out_dtype="int32"):
    """Exact sums in int32 of x (B, M, K) and y (B, N, K), both less their zero points."""
    _of_int32(out_dtype)
    right = R.permute_dims(_centred(y, y_zero_point, "int32"), [0, 2, 1])
    return R.matmul(_centred(x, x_zero_point, "int32"), right, out_dtype="int32")


# ---------------------------------------------------------------- elementwise


def _added(sign: int):
    def body(
        lhs,
        rhs,
        lhs_scale,
        lhs_zero_point,
        rhs_scale,
        rhs_zero_point,
        output_scale,
        output_zero_point,
        /,
        lhs_axis=-1,
        rhs_axis=-1,
    ):
        """Return the sum of both, requantized to the scale of the output, in the dtype of `lhs`."""
        left, right = (
            _rescaled(_centred(q, zero, "int64", axis), _ratio(scale, output_scale, axis, q))
            for q, scale, zero, axis in (
                (lhs, lhs_scale, lhs_zero_point, lhs_axis),
                (rhs, rhs_scale, rhs_zero_point, rhs_axis),
            )
        )
        total = R.add(left, right) if sign > 0 else R.subtract(left, right)
        return _saturated(total, output_zero_point, dtype_of(lhs))

    return body


_STEPS = "astype subtract multiply add right_shift minimum maximum"
operator("qnn.add", relax=_STEPS)(_added(1))
operator("qnn.subtract", relax=_STEPS)(_added(-1))


@operator("qnn.mul", relax=_STEPS)
def mul(
    lhs,
    rhs,
    lhs_scale,
    lhs_zero_point,
    rhs_scale,
    rhs_zero_point,
    output_scale,
    output_zero_point,
    /,
    lhs_axis=-1,
    rhs_axis=-1,
):
    """Return the product of both, requantized to the dtype of `lhs`."""
    left, right = (
        _along(_numbers(scale, "input scale").astype("float32"), axis, q)
        for q, scale, axis in ((lhs, lhs_scale, lhs_axis), (rhs, rhs_scale, rhs_axis))
    )
    ratio = (left * right).astype("float64") / float(_one(output_scale, "output scale"))
    left, right = (
        _centred(q, zero, "int64", axis)
        for q, zero, axis in ((lhs, lhs_zero_point, lhs_axis), (rhs, rhs_zero_point, rhs_axis))
    )
    return _saturated(_rescaled(R.multiply(left, right), ratio), output_zero_point, dtype_of(lhs))


@operator("qnn.concatenate", relax=f"concat {_STEPS}")
def concatenate(data, input_scales, input_zero_points, output_scale, output_zero_point, /, axis):
    """Tensors joined along an axis; those of another scale or zero point are requantized."""
    tuples = data, input_scales, input_zero_points
    if not all(isinstance(each, relax.Tuple) for each in tuples) or len({len(t.fields) for t in tuples}) > 1:
        raise ValueError("data, scales and zero points: expected tuples of one length, such as (x, y)")
    wanted = [_one(output_scale, "output scale"), _one(output_zero_point, "output zero point")]
    parts = []
    for q, scale, zero in zip(*(each.fields for each in tuples), strict=True):
        if wanted != [_one(scale, "input scale"), _one(zero, "input zero point")]:
            ratio = _ratio(scale, output_scale, axis, q)
            rescaled = _rescaled(_centred(q, zero, "int64"), ratio)
            q = _bound(_saturated(rescaled, output_zero_point, dtype_of(q)))
        parts.append(q)
    return R.concat(parts, axis)


_ALPHA_FIRST = ("x", "alpha", "input_scale", "input_zero_point", "output_scale", "output_zero_point")


@operator("qnn.leaky_relu", order=_ALPHA_FIRST, relax=f"where less {_STEPS}")
def leaky_relu(x, input_scale, input_zero_point, output_scale, output_zero_point, /, alpha):
    """Return the requantized q; of negative numbers alpha * q + (1 - alpha) * zero point, both rounded."""
    ratio, dtype = _ratio(input_scale, output_scale, -1, x), dtype_of(x)
    zero = _one(output_zero_point, "output zero point")
    q = _bound(R.add(_rescaled(_centred(x, input_zero_point, "int64"), ratio), _int64(zero)))
    parts = [_rescaled(v, np.float64(a), "UPWARD") for v, a in ((q, alpha), (_int64(zero), 1 - alpha))]
    below = R.less(_centred(x, input_zero_point, "int64"), _int64(0))
    return _saturated(R.where(below, R.add(*parts), q), _ZERO, dtype)


def _hardswish(x):
    shifted = R.clip(R.add(x, relax.const(np.float32(3))), 0.0, 6.0)
    return R.multiply(x, R.multiply(shifted, relax.const(np.float32(1 / 6))))


def _function(name: str, function, names: str):
    def body(x, scale, zero_point, output_scale, output_zero_point, /):
        value = _bound(dequantize.body(x, scale, zero_point))
        return quantize.body(_bound(function(value)), output_scale, output_zero_point, out_dtype=dtype_of(x))

    operator(f"qnn.{name}", relax=f"dequantize {names} quantize")(body)


for _name in ("abs", "erf", "exp", "log", "rsqrt", "sigmoid", "sqrt", "tanh"):
    _function(_name, getattr(R, _name), _name)
_function("hardswish", _hardswish, "add clip multiply")
