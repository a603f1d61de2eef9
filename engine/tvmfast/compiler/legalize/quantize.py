"""Lower `relax.quantize` and `relax.dequantize` as ONNX and PyTorch define them.

TVM rounds a half away from 0, and they to the even neighbour; TVM fails on zero points by channel of another
dtype than the data's.
"""

import numpy as np
from tvm import relax, te, tirx

from ...core.relax import constant_array
from .ieee754 import default

_INTEGERS = ("int8", "uint8", "int16", "uint16")


def quantize(bb: relax.BlockBuilder, call, for_gpu: bool = False):
    """Lower x to round(x / scale) + zero point, saturated; a half is rounded to the even neighbour.

    NaN becomes the zero point.
    """
    dtype = str(call.attrs.out_dtype)
    if dtype not in _INTEGERS:
        return default(bb, call)
    data, scale, zero = call.args
    info, unscaled = np.iinfo(dtype), _is_one(scale)

    def compute(x, *parameters):
        scaled, axis = parameters[:-1], int(call.attrs.axis) % max(len(x.shape), 1)

        def element(*at):
            shift = _at(parameters[-1], at, axis).astype("int32")
            value = x[at].astype("float32")
            if scaled:
                value = value / _at(scaled[0], at, axis).astype("float32")
            low, high = (
                (tirx.const(int(end), "int32") - shift).astype("float32") for end in (info.min, info.max)
            )
            value = te.min(te.max(value, low), high)
            # TVM vectorizes calls of LLVM's functions, but not `nearbyint`.
            whole = te.nearbyint(value).astype("int32") if for_gpu else _lrint(value)
            return (whole + shift).astype(dtype)

        return te.compute(x.shape, element, name="quantize")

    parameters = [_number(zero)] if unscaled else [_number(scale), _number(zero)]
    return bb.call_te(compute, data, *parameters, primfunc_name_hint="quantize")


def dequantize(bb: relax.BlockBuilder, call):
    """Lower q to (q - zero point) * scale, in float32."""
    data, scale, zero = call.args
    if not str(data.ty.dtype).startswith(("int", "uint")):
        return default(bb, call)

    def compute(q, scale, zero):
        axis = int(call.attrs.axis) % max(len(q.shape), 1)

        def element(*at):
            value = q[at].astype("int32") - _at(zero, at, axis).astype("int32")
            return (value.astype("float32") * _at(scale, at, axis).astype("float32")).astype(
                call.attrs.out_dtype
            )

        return te.compute(q.shape, element, name="dequantize")

    return bb.call_te(compute, data, _number(scale), _number(zero), primfunc_name_hint="dequantize")


def _lrint(value):
    return tirx.call_llvm_pure_intrin("int32", "llvm.lrint", value)


def _number(parameter):
    """Return a constant of one element as a number in the kernel; other parameters as they are."""
    array = constant_array(parameter)
    if array is None or array.size != 1:
        return parameter
    kind = "float32" if array.dtype.kind not in "iu" else "int32"
    return tirx.const(array.reshape(()).item(), kind)


def _at(parameter, at: tuple, axis: int):
    """Return the element of a scale or zero point, of one element or one for each index of an axis."""
    if not isinstance(parameter, te.Tensor):
        return parameter
    if all(isinstance(n, tirx.IntImm) and int(n) == 1 for n in parameter.shape):
        return parameter[(0,) * len(parameter.shape)]
    return parameter[at[axis]]


def _is_one(scale) -> bool:
    array = constant_array(scale)
    return array is not None and array.size == 1 and float(array.reshape(())) == 1


OPERATORS = {"relax.quantize": quantize, "relax.dequantize": dequantize}
