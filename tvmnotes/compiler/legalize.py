"""From operators to kernels: the computations of our own that opt level 3 gives to the operators it has schedules for."""

import tvm
from tvm import relax

from .fold import fixed_shape
from .schedules import conv2d, depthwise, matmul
from .schedules.vector import vectors

_OUT_EWISE_FUSABLE = 4  # TVM's number for: elementwise operators may be fused behind it


def legalizations(target: tvm.target.Target) -> dict:
    """By operator, what `relax.transform.LegalizeOps` takes."""
    v = vectors(target)
    return {
        "relax.nn.conv2d": lambda bb, call: _conv2d(bb, call, v),
        "relax.matmul": lambda bb, call: _matmul(bb, call, v),
    }


def _default(bb, call):
    return call.op.get_attr("FLegalize")(bb, call)


def _conv2d(bb, call, v):
    attrs = call.attrs
    if attrs.out_layout != f"NCHW{v.lanes}c":
        return _default(bb, call)
    strides, padding, dilation = ([int(i) for i in which] for which in (attrs.strides, attrs.padding, attrs.dilation))
    out, kernel, groups = fixed_shape(call.ty), fixed_shape(call.args[1].ty), int(attrs.groups)
    fusable = {"op_pattern": _OUT_EWISE_FUSABLE}
    if attrs.data_layout == attrs.out_layout and len(kernel) == 5:
        config = depthwise.default_config(out, kernel, strides, v)
        return bb.call_te(depthwise.compute, *call.args, strides, padding, dilation, config,
                          primfunc_name_hint="depthwise_conv2d", primfunc_attrs=fusable)  # fmt: skip
    config = conv2d.default_config(out, kernel, groups, v)
    return bb.call_te(conv2d.compute, *call.args, strides, padding, dilation, groups, config,
                      primfunc_name_hint="conv2d", primfunc_attrs=fusable)  # fmt: skip


def _matmul(bb, call, v):
    left, right = call.args
    a, b = fixed_shape(left.ty), fixed_shape(right.ty)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or str(call.ty.dtype) != "float32":
        return _default(bb, call)
    if len(b) == 2 and isinstance(right, tvm.ir.GenericConst):
        if a[-2] == 1 or len(a) == 2:
            rows = a[-2]
        config = matmul.default_config(a[-2], a[-1], b[1], v)
        return bb.call_te(matmul.dense, left, _panels(right.value.numpy(), v.lanes, config), b[1], config,
                          primfunc_name_hint="dense", primfunc_attrs={"op_pattern": _OUT_EWISE_FUSABLE})  # fmt: skip
    config = matmul.default_config(a[-2], a[-1], b[-1], v)
    return bb.call_te(matmul.batched, left, right, config, v.lanes,
                      primfunc_name_hint="matmul", primfunc_attrs={"op_pattern": _OUT_EWISE_FUSABLE})  # fmt: skip


def _panels(weight, lanes, config):
    """(K, N) to (blocks, K, lanes), filled up with zeros to whole tiles."""
    import numpy as np

    depth, columns = weight.shape
    width = lanes * config["blocks"]
    blocks = -(-columns // width) * config["blocks"]
    weight = np.pad(weight, [(0, 0), (0, blocks * lanes - columns)])
    return relax.const(np.ascontiguousarray(weight.reshape(depth, blocks, lanes).transpose(1, 0, 2)))
