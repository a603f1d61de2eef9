"""These converter classes, like TVM's own, are of ONNX operators that TVM 0.27's frontend lacks, for onnx.py.

To add one takes its class, with an `_impl_vN` for each opset N that changed it, and its line in CONVERTERS. The table
joins TVM's own in this process, so that a graph may hold operators of both; an entry goes when TVM has the operator.
tests/test_import_onnx.py holds each one against ONNX Runtime.
"""

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter


class LpNormalization(OnnxOpConverter):
    """This divides a float tensor by its L1 or L2 norm along an axis; where the norm is 0, so is the result."""

    @classmethod
    def _impl_v1(cls, bb, inputs, attr, params):
        x, axis = inputs[0], attr.get("axis", -1)
        zero = relax.const(0, x.ty.dtype.dtype)
        if attr.get("p", 2) == 1:
            norm = relax.op.sum(relax.op.abs(x), axis, keepdims=True)
        else:
            norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True))
        return bb.normalize(relax.op.where(relax.op.equal(norm, zero), zero, relax.op.divide(x, norm)))


CONVERTERS = {"LpNormalization": LpNormalization}

_of_tvm = onnx_frontend._get_convert_map


def converters() -> dict[str, type[OnnxOpConverter]]:
    """Return TVM's converters and these, by the operator's name."""
    return {**_of_tvm(), **CONVERTERS}


onnx_frontend._get_convert_map = converters
