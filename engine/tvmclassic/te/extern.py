"""`te.extern` with buffers that today's functions can have."""

import tvm
from tvm import te
from tvm.tirx import decl_buffer

from .ops import constant

_EXTERN = te.extern


def extern(
    shape, inputs, fcompute, name="extern", dtype=None, in_buffers=None, out_buffers=None, tag="", attrs=None
):
    """`te.extern`: tensors that a function computes, of which `fcompute(ins, outs)` is the call.

    TVM 0.27 gives the buffers an offset that no function then sets, `elem_offset`; here they begin at 0.

    Raises:
        ValueError: No `dtype`, and inputs of none or of several; or not one for each result.
    """
    inputs = [inputs] if isinstance(inputs, te.Tensor) else list(inputs)
    if in_buffers is None:
        in_buffers = [decl_buffer(tensor.shape, tensor.dtype, tensor.op.name) for tensor in inputs]
    if out_buffers is None:
        shape = (shape,) if _is_length(shape) else shape
        shapes = [shape] if not len(shape) or _is_length(shape[0]) else list(shape)
        dtypes = sorted({str(each.dtype) for each in inputs}) if dtype is None else dtype
        dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
        if len(dtypes) != 1 and (dtype is None or len(dtypes) != len(shapes)):
            raise ValueError(
                f"te.extern {name}: give the dtype of the results, one or {len(shapes)}; got {dtypes}"
            )
        dtypes = dtypes * len(shapes) if len(dtypes) == 1 else dtypes
        out_buffers = [decl_buffer(each, of, name) for each, of in zip(shapes, dtypes, strict=True)]
    return _EXTERN(shape, inputs, fcompute, name, dtype, in_buffers, out_buffers, tag, attrs)


def _is_length(value) -> bool:
    return constant(value) is not None or tvm.ir.is_prim_expr(value)
