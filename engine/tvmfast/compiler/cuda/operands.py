"""The pass that gives products on a GPU the operands that `tensor_cores.py` wants."""

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ...core.relax import constant_array, on_each_function, op_name
from ..graph.conv_call import match

STEP = 128  # bytes along the channels that a step of a convolution takes, at most


def tensor_core_operands(allow_tf32: bool) -> tvm.transform.Pass:
    """Make the pass.

    Products of float32 whose operands were float16 before a cast, or are constants that float16 holds
    exactly, get these, with sums in float32: the products are the same. Constant weights (O, C, R, S) of
    convolutions on tensor cores become (O, R, S, C): a step along the sum is at one position of the window.
    """
    return on_each_function("TensorCoreOperands", lambda: _Operands(allow_tf32))


@relax.expr_functor.mutator
class _Operands(relax.PyExprMutator):
    def __init__(self, allow_tf32: bool):
        super().__init__()
        self.allow_tf32 = allow_tf32

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name not in ("matmul", "nn.conv2d"):
            return call
        args, halves = list(call.args), [self._half(arg) for arg in call.args]
        if None not in halves and str(call.ty.dtype) == "float32" and None in map(constant_array, halves):
            args = halves
        if name == "matmul":
            return op.matmul(*args, out_dtype="float32") if args is halves else call
        conv, dtype = match(call, lookup=self.lookup_binding), str(args[0].ty.dtype)
        layout, weight = call.attrs.kernel_layout, args[1]
        served = dtype == "float16" or (dtype == "float32" and self.allow_tf32)
        in_steps = conv is not None and conv.weight.shape[1] * np.dtype(dtype).itemsize % STEP == 0
        if served and in_steps and conv.groups == 1 and conv.weight[0, 0].size > 1:
            array = conv.weight.astype(dtype).transpose(0, 2, 3, 1)
            layout, weight = "OHWI", relax.const(np.ascontiguousarray(array))
        if weight is call.args[1] and args is not halves:
            return call
        strides, padding, dilation = (
            [int(n) for n in each] for each in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        )
        return op.nn.conv2d(
            args[0], weight, strides, padding, dilation, int(call.attrs.groups),
            data_layout=call.attrs.data_layout, kernel_layout=layout, out_dtype=str(call.ty.dtype),
        )  # fmt: skip

    def _half(self, arg):
        """Return a float16 expression of the same numbers; None if there is none."""
        array = constant_array(arg)
        if array is not None:
            with np.errstate(over="ignore"):
                narrow = array.astype("float16")
            exact = array.dtype == np.float32 and np.array_equal(narrow.astype("float32"), array)
            return relax.const(narrow) if exact else None
        value = self.lookup_binding(arg) if isinstance(arg, relax.Var) else arg
        if op_name(value) == "astype" and str(arg.ty.dtype) == "float32":
            source = value.args[0]
            return source if str(source.ty.dtype) == "float16" else None
        return None
