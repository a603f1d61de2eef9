"""Represent booleans as bytes in comparisons and reductions.

TVM 0.27's LLVM back end compares vectors of one bit as if they were floats, which LLVM refuses, and its sums
of single bits overflow. The mean of integers keeps its dtype, which TVM drops.
"""

import math

import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import known_shape, on_each_function, op_name

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_COMBINATIONS = ("add", "multiply", "maximum", "minimum", "max", "min")  # as "or" and "and"
_ARGS = ("argmax", "argmin")
_REDUCTIONS = {"sum": R.max, "prod": R.min}  # equivalent for booleans, and no byte overflows
_SCANS = {"cumsum": R.cumsum, "cumprod": R.cumprod}


def bools_as_bytes() -> tvm.transform.Pass:
    """Make the pass; the result of an operator keeps its values and dtype."""
    return on_each_function("BoolsAsBytes", _AsBytes)


@relax.expr_functor.mutator
class _AsBytes(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "mean" and "int" in str(call.ty.dtype) and known_shape(call.args[0].ty) is not None:
            return self._mean(call)
        known = any(name in table for table in (_COMPARISONS, _COMBINATIONS, _ARGS, _REDUCTIONS, _SCANS))
        if not known or str(getattr(call.args[0].ty, "dtype", "")) != "bool":
            return call
        if name in _SCANS:
            dtype = str(call.ty.dtype)
            operand = R.astype(call.args[0], "int64" if dtype == "bool" else dtype)
            scan = _SCANS[name](operand, call.attrs.axis, exclusive=bool(call.attrs.exclusive))
            return R.astype(self.builder_.normalize(scan), dtype)
        args = [R.astype(arg, "uint8") for arg in call.args]
        if name in _REDUCTIONS:
            result = _REDUCTIONS[name](*args, call.attrs.axis, call.attrs.keepdims)
        else:
            result = tvm.ir.Call(call.op, args, call.attrs)
        if name in _COMPARISONS or name in _ARGS:
            return result
        return R.astype(self.builder_.normalize(result), "bool")

    def _mean(self, call):
        total = R.sum(R.astype(call.args[0], "int64"), call.attrs.axis, call.attrs.keepdims)
        shape, axes = known_shape(call.args[0].ty), call.attrs.axis
        axes = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
        dims = [dim for axis, dim in enumerate(shape) if axis in axes]
        if not all(isinstance(dim, int) for dim in dims):
            raise NotImplementedError(
                f"a mean of integers over a dynamic dim, of {call.args[0].ty}: convert it to float32 first, "
                "or import the network with a static dim"
            )
        return R.astype(R.divide(total, relax.const(math.prod(dims), "int64")), str(call.ty.dtype))
