"""Accumulate half floats in float32 and round once, as frameworks do on CPUs; TVM accumulates them in halves.

There a sum of 5,000 ones is 2,048. The same applies to functions that TVM composes of several operations,
each of which would round, and to those that it has only for wider floats.
"""

import inspect

import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import on_each_function

_HALVES = ("float16", "bfloat16")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
_PRODUCTS = {"relax.matmul": R.matmul} | {f"relax.nn.{name}": getattr(R.nn, name) for name in _CONVOLUTIONS}
_SCANS = {"relax.cumsum": R.cumsum, "relax.cumprod": R.cumprod}
_POOLS = tuple(f"nn.{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
_FUNCTIONS = {f"relax.{name}" for name in (
    "sum", "mean", "variance", "std", "einsum", *_POOLS, "nn.softmax", "nn.log_softmax", "nn.layer_norm",
    "nn.group_norm", "nn.instance_norm", "nn.rms_norm", "log_add_exp", "nn.gelu", "nn.gelu_tanh", "nn.silu",
    "nn.softplus", "nn.selu", "nn.leakyrelu", "acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2",
    "cosh", "floor_divide", "floor_mod", "prod", "rsqrt", "sigmoid", "sinh", "tan", "tanh",
)}  # fmt: skip


def sums_in_float32(products: bool = True) -> tvm.transform.Pass:
    """Make the pass; the result of an operator on halves keeps its dtype.

    Without `products` it leaves matrix products and convolutions to the tensor cores of a GPU.
    """
    served = {*_SCANS, *_FUNCTIONS}
    served = served | {*_PRODUCTS} if products else served - {"relax.einsum"}
    return on_each_function("SumsInFloat32", lambda: _Widened(served))


@relax.expr_functor.mutator
class _Widened(relax.PyExprMutator):
    def __init__(self, served: set[str]):
        super().__init__()
        self.served = served

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name, dtype = getattr(call.op, "name", ""), str(getattr(call.ty, "dtype", ""))
        if name == "relax.nn.batch_norm":
            return self._batch_norm(call)
        if dtype not in _HALVES or name not in self.served:
            return call
        args = [self._float32(arg) for arg in call.args]
        if name in _PRODUCTS:
            options = list(inspect.signature(_PRODUCTS[name]).parameters)[2:-1]  # all but out_dtype
            result = _PRODUCTS[name](*args, **{option: getattr(call.attrs, option) for option in options})
        elif name in _SCANS:
            result = _SCANS[name](*args, call.attrs.axis, "float32", bool(call.attrs.exclusive))
        else:
            result = tvm.ir.Call(call.op, args, call.attrs)
        return R.astype(self.builder_.normalize(result), dtype)

    def _batch_norm(self, call):
        """Normalize in float32; the statistics, its other results, stay what they are."""
        x, *weights = call.args
        dtype = str(x.ty.dtype)
        if dtype not in _HALVES:
            return call
        wide = tvm.ir.Call(call.op, [self._float32(arg) for arg in call.args], call.attrs)
        normal = R.astype(relax.TupleGetItem(self.builder_.emit(wide), 0), dtype)
        return relax.Tuple([self.builder_.emit(normal), *weights[2:]])

    def _float32(self, arg):
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._float32(field) for field in arg.fields])
        narrow = str(getattr(arg.ty, "dtype", "")) in _HALVES
        return self.builder_.normalize(R.astype(arg, "float32")) if narrow else arg
