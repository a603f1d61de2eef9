"""These converter classes, like TVM's own, are of ONNX operators that TVM 0.27's frontend lacks or gets wrong, for
onnx.py.

To add one takes its class, with an `_impl_vN` for each opset N that changed it, and its line in CONVERTERS. The table
joins TVM's own in this process, so that a graph may hold operators of both; an entry goes when TVM has the operator.
tests/test_import_onnx.py holds each one against ONNX Runtime.
"""

import math
from collections.abc import Iterator

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter, get_constant, onnx_input

from ..base.indices import checked
from ..base.relax import fixed_shape
from .composites import regions


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


class MaxUnpool(onnx_frontend.MaxUnpool):
    """This puts numbers at the places that max pooling noted, which count through the output."""

    @classmethod
    def _impl_v9(cls, bb, inputs, attr, params):
        wanted = list(inputs)[2] if len(inputs) > 2 else None
        output = bb.normalize(super()._impl_v9(bb, onnx_input(list(inputs)[:2]), attr, params))
        shape = list(fixed_shape(output.ty))
        if wanted is not None and (given := get_constant(wanted, params).value.numpy().tolist()) != shape:
            raise NotImplementedError(f"MaxUnpool to output_shape {given}: its other attributes lead to {shape}")
        places = checked(inputs[1], [math.prod(shape)], "MaxUnpool", negative=False, bb=bb)
        return super()._impl_v9(bb, onnx_input([inputs[0], places]), attr, params)


class MaxRoiPool(onnx_frontend.MaxRoiPool):
    """Its regions begin with the number of a picture."""

    @classmethod
    def _impl_v1(cls, bb, inputs, attr, params):
        x, rois = inputs
        rois = regions(rois, _sizes(x)[0], "MaxRoiPool", bb)
        return super()._impl_v1(bb, onnx_input([x, rois]), attr, params)


CONVERTERS = {each.__name__: each for each in (LpNormalization, MaxUnpool, MaxRoiPool)}


# ---- operators that take indices, which TVM's converters do not check


def _axis(inputs, attr) -> Iterator[tuple[int, list[int]]]:
    """Yield which input holds indices, and of how many: one axis of the first input."""
    yield 1, [_sizes(inputs[0])[attr.get("axis", 0)]]


def _coordinates(inputs, attr) -> Iterator[tuple[int, list[int]]]:
    first, count = attr.get("batch_dims", 0), fixed_shape(inputs[1].ty)[-1]
    yield 1, _sizes(inputs[0])[first : first + count]


def _pictures(inputs, attr) -> Iterator[tuple[int, list[int]]]:
    yield 2, _sizes(inputs[0])[:1]


def _embeddings(inputs, attr) -> Iterator[tuple[int, list[int]]]:
    for number, table in ((0, 2), (1, 4), (8, 3)):
        if number < len(inputs) and inputs[number] is not None:
            yield number, _sizes(inputs[table])[:1]


def _sizes(x: relax.Expr) -> list[int]:
    return [len(x.values)] if isinstance(x, relax.ShapeExpr) else list(fixed_shape(x.ty))


_INDICES = {
    **dict.fromkeys(("Gather", "GatherElements", "Scatter", "ScatterElements"), _axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _coordinates),
    "RoiAlign": _pictures,
    "EmbedLayerNormalization": _embeddings,
}
_FROM_THE_FRONT = ("RoiAlign", "EmbedLayerNormalization")  # the others count from the end as well


def _checking(name: str, usual: type[OnnxOpConverter]) -> type[OnnxOpConverter]:
    """Return a converter that checks the indices before the usual one uses them."""

    class Checking(usual):
        @classmethod
        def get_converter(cls, opset):
            convert = usual.get_converter(opset)

            def checked_before(bb, inputs, attr, params):
                inputs = onnx_input(inputs)
                for number, sizes in _INDICES[name](inputs, attr):
                    if isinstance(inputs[number].ty, relax.TensorType):  # no shape, which holds no wrong one
                        inputs[number] = checked(inputs[number], sizes, name, name not in _FROM_THE_FRONT, bb)
                return convert(bb, inputs, attr, params)

            return checked_before

    return Checking


_of_tvm = onnx_frontend._get_convert_map


def converters() -> dict[str, type[OnnxOpConverter]]:
    """Return TVM's converters and these, by the operator's name."""
    usual = {**_of_tvm(), **CONVERTERS}
    return {**usual, **{name: _checking(name, usual[name]) for name in _INDICES}}


onnx_frontend._get_convert_map = converters
