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
from .tiles import SKINNY, TENSOR_CORES, serves

STEP = 128  # bytes along the channels that a step of a convolution takes, at most
CORES = 80  # the first architecture with asynchronous copies and TF32
FEW = 8  # rows of a skinny product, at most


def operands_for_gpus(target: tvm.target.Target, allow_tf32: bool, experimental: bool) -> tvm.transform.Pass:
    """Make the pass, for a target of kind "cuda"; it changes what `tiles.serves` gives to these rules.

    Products of float32 whose operands were float16 before a cast, or are constants that float16 holds
    exactly, get these, with sums in float32: the products are the same. Constant weights (O, C, R, S) of
    convolutions on tensor cores, which are those from `CORES` on, become (O, R, S, C): a step along the sum
    is at one position of the window. Those (K, N) of products of a few rows become (N, K), whose rows warps
    read.
    """
    arch = str(target.attrs["arch"])
    mutator = lambda mod: _Operands(mod, arch, allow_tf32, experimental)  # noqa: E731
    return on_each_function("OperandsForGPUs", mutator, adds_kernels=True)


@relax.expr_functor.mutator
class _Operands(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, arch: str, allow_tf32: bool, experimental: bool):
        super().__init__(mod)
        self.arch, self.allow_tf32, self.experimental = arch, allow_tf32, experimental

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if op_name(call) not in ("matmul", "nn.conv2d"):
            return call
        args, halves = list(call.args), [self._half(arg) for arg in call.args]
        if None not in halves and str(call.ty.dtype) == "float32" and None in map(constant_array, halves):
            args = halves
        return self._with(call, args)

    def _with(self, call, args):
        """Return a call with these operands, as the rule that serves it wants them; else the call."""
        dtype = str(args[0].ty.dtype)
        key = _key(call, dtype)
        if key is None:
            return call
        skinny, on_cores = (
            serves(rule, key, self.arch, self.experimental) for rule in (SKINNY, TENSOR_CORES)
        )
        is_conv, is_half = op_name(call) == "nn.conv2d", dtype != str(call.args[0].ty.dtype)
        if skinny and not is_conv and _is_skinny(*args):
            return self._skinny(*args, str(call.ty.dtype))
        if not on_cores or version(self.arch) < CORES:
            return call
        if not is_conv:
            return op.matmul(*args, out_dtype="float32") if is_half else call
        conv, layout, weight = match(call, lookup=self.lookup_binding), "OIHW", args[1]
        served = dtype == "float16" or (dtype == "float32" and self.allow_tf32)
        in_steps = conv is not None and conv.weight.shape[1] * np.dtype(dtype).itemsize % STEP == 0
        if served and in_steps and conv.weight[0, 0].size > 1:
            array = conv.weight.astype(dtype).transpose(0, 2, 3, 1)
            layout, weight = "OHWI", relax.const(np.ascontiguousarray(array))
        if layout == "OIHW" and not is_half:
            return call
        strides, padding, dilation = (
            [int(n) for n in each] for each in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        )
        return op.nn.conv2d(
            args[0], weight, strides, padding, dilation, kernel_layout=layout, out_dtype=str(call.ty.dtype),
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


def _key(call, dtype) -> tuple | None:
    """Return `products.Product.key` of a call with operands of a dtype; None if it is of another kind."""
    a, b, result = (static_shape(each.ty) for each in (*call.args, call))
    if a is None or b is None or result is None or min(len(a), len(b)) < 2:
        return None
    if op_name(call) == "matmul":
        if len(b) == 2:
            return dtype, 1, math.prod(a[:-1]), b[1], a[-1]
        return dtype, math.prod(result[:-2]), *result[-2:], a[-1]
    if (call.attrs.data_layout, call.attrs.kernel_layout, int(call.attrs.groups)) != ("NCHW", "OIHW", 1):
        return None
    (outputs, channels, rows, columns), (images, _, height, width) = b, result
    size = 1, outputs, images * height * width, channels * rows * columns
    return dtype, *size, rows, columns, int(call.attrs.strides[1])


def _is_skinny(data, weight) -> bool:
    """Tell whether a product is one of a few rows with constant weights, of whole vectors along K."""
    shape, array = static_shape(data.ty), constant_array(weight)
    if shape is None or array is None or array.ndim != 2 or len(shape) < 2:
        return False
    served = str(data.ty.dtype) == str(array.dtype) in ("float16", "float32")
    whole = array.nbytes and array.shape[0] * array.itemsize % 16 == 0
    return served and whole and 0 < math.prod(shape[:-1]) <= FEW


def _along_k(data, weight):
    """Return the product of data (…, K) and weights (N, K), summed in float32."""
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def element(*at):
        return te.sum(data[(*at[:-1], k)].astype("float32") * weight[at[-1], k].astype("float32"), k)

    return te.compute((*data.shape[:-1], weight.shape[0]), element, "matmul")
