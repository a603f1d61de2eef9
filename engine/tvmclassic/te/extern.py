"""`te.extern` with buffers that today's functions can have."""

from tvm import te
from tvm.tirx import decl_buffer

_EXTERN = te.extern


def extern(
    shape, inputs, fcompute, name="extern", dtype=None, in_buffers=None, out_buffers=None, tag="", attrs=None
):
    """`te.extern`: tensors that a function computes, of which `fcompute(ins, outs)` is the call.

    TVM 0.27 gives the buffers an offset that no function then sets, `elem_offset`; here they begin at 0.

    Raises:
        ValueError: No `dtype`, and inputs of none or of several.
    """
    if in_buffers is None:
        in_buffers = [decl_buffer(tensor.shape, tensor.dtype, tensor.op.name) for tensor in inputs]
    if out_buffers is None:
        shapes = (
            shape
            if isinstance(shape, list | tuple) and shape and isinstance(shape[0], list | tuple)
            else [shape]
        )
        dtypes = [dtype] * len(shapes) if dtype is None or isinstance(dtype, str) else list(dtype)
        if dtype is None:
            found = {str(tensor.dtype) for tensor in inputs}
            if len(found) != 1:
                raise ValueError(
                    f"te.extern {name}: give the dtype of the results; the inputs have {sorted(found)}"
                )
            dtypes = [*found] * len(shapes)
        out_buffers = [decl_buffer(each, of, name) for each, of in zip(shapes, dtypes, strict=True)]
    return _EXTERN(shape, inputs, fcompute, name, dtype, in_buffers, out_buffers, tag, attrs)
