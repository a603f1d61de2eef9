"""The pass that gives products on a GPU the operands that `tensor_cores.py` and `skinny.py` want."""

import math

import numpy as np
import tvm
from tvm import relax, te
from tvm.relax import op

from ...core.compat import OUT_EWISE_FUSABLE
from ...core.relax import constant_array, on_each_function, op_name, static_shape
from ...runtime.on_gpu import version
from ..graph.conv_call import match

STEP = 128  # bytes along the channels that a step of a convolution takes, at most
CORES = 80  # the first architecture with asynchronous copies and TF32
FEW = 8  # rows of a skinny product, at most
SERVED = (
    "float16",
)  # dtypes of skinny products; float32 stays with dlight until `tools/gpu_tiles.py` has measured it


def operands_for_gpus(target: tvm.target.Target, allow_tf32: bool) -> tvm.transform.Pass:
    """Make the pass, for a target of kind "cuda"; only for tensor cores from `CORES` on.

    Products of float32 whose operands were float16 before a cast, or are constants that float16 holds
    exactly, get these, with sums in float32: the products are the same. Constant weights (O, C, R, S) of
    convolutions on tensor cores become (O, R, S, C): a step along the sum is at one position of the window.
    Those (K, N) of products of a few rows, of the dtypes SERVED, become (N, K), whose rows warps read.
    """
    on_cores = version(str(target.attrs["arch"])) >= CORES
    mutator = lambda mod: _Operands(mod, on_cores, allow_tf32)  # noqa: E731
    return on_each_function("OperandsForGPUs", mutator, adds_kernels=True)


@relax.expr_functor.mutator
class _Operands(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, on_cores: bool, allow_tf32: bool):
        super().__init__(mod)
        self.on_cores, self.allow_tf32 = on_cores, allow_tf32

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name not in ("matmul", "nn.conv2d"):
            return call
        args, halves = list(call.args), [self._half(arg) for arg in call.args]
        if None not in halves and str(call.ty.dtype) == "float32" and None in map(constant_array, halves):
            args = halves
        if name == "matmul" and _is_skinny(*args):
            return self._skinny(*args, str(call.ty.dtype))
        if not self.on_cores:
            return call
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

    def _skinny(self, data, weight, dtype):
        transposed = relax.const(np.ascontiguousarray(constant_array(weight).T))
        hint = {"primfunc_name_hint": "matmul", "primfunc_attrs": {"op_pattern": OUT_EWISE_FUSABLE}}
        product = self.builder_.call_te(_along_k, data, transposed, **hint)
        return product if dtype == "float32" else op.astype(self.builder_.emit(product), dtype)

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


def _is_skinny(data, weight) -> bool:
    """Tell whether a product is one of a few rows with constant weights, of whole vectors along K."""
    shape, array = static_shape(data.ty), constant_array(weight)
    if shape is None or array is None or array.ndim != 2 or len(shape) < 2:
        return False
    served = str(data.ty.dtype) == str(array.dtype) in SERVED
    whole = array.nbytes and array.shape[0] * array.itemsize % 16 == 0
    return served and whole and 0 < math.prod(shape[:-1]) <= FEW


def _along_k(data, weight):
    """Return the product of data (…, K) and weights (N, K), summed in float32."""
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def element(*at):
        return te.sum(data[(*at[:-1], k)].astype("float32") * weight[at[-1], k].astype("float32"), k)

    return te.compute((*data.shape[:-1], weight.shape[0]), element, "matmul")
