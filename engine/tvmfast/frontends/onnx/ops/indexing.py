"""Converters of ONNX operators that take indices: check their bounds, then apply TVM's converter."""

import math

import tvm
from tvm import relax
from tvm.relax import op as R

from ....core.bounds_check import checked
from ....core.relax import static_shape
from ...ops.common import of_whole_regions, regions
from .node import Node, converts


def _checked(n: Node, bounds: dict[int, list[int]], negative: bool = True) -> relax.Expr:
    """Check inputs against `bounds`, lists by the input's number, and apply TVM's converter."""
    inputs = list(n.inputs)
    for number, each in bounds.items():
        if isinstance(inputs[number].ty, relax.TensorType):  # a shape holds no wrong index
            inputs[number] = checked(inputs[number], each, n.op, negative, n.builder)
    return n.tvm_converter(*inputs)


@converts("Gather", "GatherElements", "Scatter", "ScatterElements")
def _along_an_axis(n: Node):
    size = n.shape[n.get("axis", 0)]
    is_taken = n.op == "Gather" and all(isinstance(each.ty, relax.TensorType) for each in n.inputs)
    if is_taken and not isinstance(n.x, tvm.ir.GenericConst):  # TVM would look for negative indices again
        return R.take(n.x, checked(n.inputs[1], [size], n.op, True, n.builder), n.get("axis", 0))
    return _checked(n, {1: [size]})


@converts("GatherND", "ScatterND")
def _coordinates(n: Node):
    first, count = n.get("batch_dims", 0), static_shape(n.inputs[1].ty)[-1]
    return _checked(n, {1: n.shape[first : first + count]})


@converts("EmbedLayerNormalization")
def _embeddings(n: Node):
    tables = {0: 2, 1: 4, 8: 3}
    bounds = {
        i: list(static_shape(n.inputs[table].ty))[:1]
        for i, table in tables.items()
        if n.inputs[i] is not None
    }
    return _checked(n, bounds, negative=False)


@converts("RoiAlign")
def _roi_align(n: Node):
    """Refuse mode "max": ONNX takes the maximum before summing a point's weighted neighbours, TVM after.

    The corners of half pixels lie half a pixel of the scaled image further up; TVM's frontend takes one of
    the regions' image.
    """
    if n.text("mode", "avg") == "max":
        raise NotImplementedError("RoiAlign with mode 'max': TVM's takes the maximum of interpolated points")
    if n.dtype == "float16":
        raise NotImplementedError(
            "RoiAlign of float16, which TVM computes in float32: cast to float32 before"
        )
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    if n.text("coordinate_transformation_mode", default) == "half_pixel":
        n.inputs[1] = n.emit(R.add(n.inputs[1], n.const(0.5 - 0.5 / n.get("spatial_scale", 1.0))))
        rois, result = n.inputs[1], _checked(n, {2: n.shape[:1]}, negative=False)
        return result if n.get("sampling_ratio", 0) > 0 else of_whole_regions(result, rois, n.builder)
    return _checked(n, {2: n.shape[:1]}, negative=False)


@converts("MaxRoiPool")
def _max_roi_pool(n: Node):
    return n.tvm_converter(n.x, regions(n.inputs[1], n.shape[0], n.op, n.builder))


@converts("MaxUnpool")
def _max_unpool(n: Node):
    """Write elements at the indices that max pooling returned, which count through the whole output."""
    kernel, rank = n.get("kernel_shape"), len(n.shape) - 2
    pads, strides = n.get("pads", [0] * 2 * rank), n.get("strides", [1] * rank)
    shape, wanted = n.shape[:2], n.known(2)
    for i in range(rank):
        shape.append((n.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i])
    if wanted is not None and wanted.tolist() != shape:
        raise NotImplementedError(
            f"MaxUnpool to output_shape {wanted.tolist()}: its other attributes lead to {shape}"
        )
    indices = checked(n.inputs[1], [math.prod(shape)], n.op, negative=False, bb=n.builder)
    zeros = R.zeros([math.prod(shape)], n.dtype)
    return R.reshape(R.scatter_elements(zeros, R.reshape(indices, (-1,)), R.reshape(n.x, (-1,)), 0), shape)
