"""Quantized programs, as torchao's pt2e writes them: CONVERTERS of torch.ops.quantized_decomposed.

quantize(x) = clamp(round(x / scale) + zero_point), with ties to even, and dequantize(q) = (q - zero_point) *
scale become Relax's own operators, so that the compiler finds the float operators between them. PyTorch
multiplies by 1 / scale, which may round to the next step where x / scale is a tie.
"""

import torch
from tvm import relax
from tvm.relax import op as R

from ...context import dtype_of, shape_of
from .call import Call


def _quantize(c: Call) -> relax.Expr:
    """Convert (input, scale, zero_point, [axis,] quant_min, quant_max, dtype)."""
    *axis, low, high, _ = c.inputs[3:]
    dtype = c.dtype_in_tvm(c.result.dtype)
    if dtype not in ("int8", "uint8", "int16", "uint16"):
        raise ValueError(f"{c.node.target} to {dtype}; quantize to int8, uint8, int16 or uint16")
    x = c.emit(c.cast(c.x, "float32"))
    result = R.quantize(x, *_parameters(c), axis[0] % c.rank if axis else 0, dtype)
    info = torch.iinfo(c.result.dtype)
    if low > info.min:
        result = R.maximum(c.emit(result), c.const(low, dtype))
    if high < info.max:
        result = R.minimum(c.emit(result), c.const(high, dtype))
    return result


def _dequantize(c: Call) -> relax.Expr:
    """Convert (input, scale, zero_point, [axis,] quant_min, quant_max, dtype, *, out_dtype)."""
    axis = c.inputs[3:-3]
    result = R.dequantize(c.x, *_parameters(c), axis[0] % c.rank if axis else 0, "float32")
    return c.cast(c.emit(result), c.dtype_in_tvm(c.result.dtype))


def _parameters(c: Call) -> list[relax.Expr]:
    """Return the scale in float32 and the zero point in int32: scalars, or vectors by channel."""
    scale, zero = c.inputs[1:3]
    if isinstance(scale, float) and not 0 < scale < float("inf"):
        raise ValueError(f"{c.node.target} with the scale {scale}; expected a finite number above 0")
    return [_parameter(c, x, dtype) for x, dtype in ((scale, "float32"), (zero, "int32"))]


def _parameter(c: Call, x: relax.Expr | float | None, dtype: str) -> relax.Expr:
    if not isinstance(x, relax.Expr):
        return c.const(x or 0, dtype)
    x = x if dtype_of(x) == dtype else c.emit(R.astype(x, dtype))
    return c.emit(R.squeeze(x)) if shape_of(x) == (1,) else x


CONVERTERS = {
    **dict.fromkeys(("quantize_per_tensor.default", "quantize_per_tensor.tensor"), _quantize),
    **dict.fromkeys(("dequantize_per_tensor.default", "dequantize_per_tensor.tensor"), _dequantize),
    "quantize_per_channel.default": _quantize,
    "dequantize_per_channel.default": _dequantize,
}
