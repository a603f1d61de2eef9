"""Decompose functions that TVM gets wrong, or lacks for float64, into operators that it gets right.

TVM's atanh, and its tanh of float64, lose the last digits of a small number, or all of them, and the sign of
0. Its floor_mod and floor_divide start from `x / y`, which leaves no residue if y is infinite and has too few
digits if it is large. Its norms do not support float64.
"""

import math

import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import known_shape, on_each_function


def decompose_functions() -> tvm.transform.Pass:
    """Make the pass; functions of integers are left as they are."""
    return on_each_function("DecomposeFunctions", _Decomposed)


@relax.expr_functor.mutator
class _Decomposed(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name, dtype = getattr(call.op, "name", ""), str(getattr(call.ty, "dtype", ""))
        if name in _FUNCTIONS and dtype.startswith(("float", "bfloat")):
            constants = [relax.const(value, dtype) for value in (0, 1, math.inf)]
            return _FUNCTIONS[name](*call.args, *constants)
        if dtype == "float64" and name == "relax.tanh":
            return _tanh(*call.args)
        if dtype == "float64" and name in _NORMS:
            return _norm(name, *call.args, attrs=call.attrs)
        return call


def _tanh(x):
    near = R.clip(x, -20, 20)
    return R.sinh(near) / R.cosh(near)


def _atanh(x, zero, one, infinity):
    """Compute log1p(2 |x| / (1 - |x|)) / 2 with the sign of x, as log1p is inexact near -1.

    log1p as in Higham, Accuracy and Stability, 1.14.1 (Kahan's way).
    """
    magnitude = R.abs(x)
    y = (magnitude + magnitude) / (one - magnitude)
    total = y + one
    exact = R.logical_or(R.equal(total, one), R.equal(total, infinity))
    result = R.where(exact, y, R.log(total) * (y / (total - one))) / (one + one)
    return R.where(R.less(x, zero), zero - result, R.where(R.equal(x, zero), x, result))


def _floor_mod(x, y, zero, one, infinity):
    residue = R.mod(x, y)
    signs_differ = R.not_equal(R.less(residue, zero), R.less(y, zero))
    corrected = R.logical_and(R.not_equal(residue, zero), signs_differ)
    return R.where(corrected, residue + y, residue)


def _floor_divide(x, y, zero, one, infinity):
    """Divide what is left without the residue, as PyTorch and Python do: x / y may round up to an integer."""
    ratio, residue = x / y, R.mod(x, y)
    signs_differ = R.not_equal(R.less(residue, zero), R.less(y, zero))
    below = R.where(R.logical_and(R.not_equal(residue, zero), signs_differ), one, zero)
    quotient = (x - residue) / y - below
    whole = R.floor(quotient)
    whole = R.where(R.greater(quotient - whole, relax.const(0.5, x.ty.dtype)), whole + one, whole)
    whole = R.where(R.equal(whole, zero), ratio * zero, whole)
    return R.where(R.equal(y, zero), ratio, whole)


_FUNCTIONS = {"relax.atanh": _atanh, "relax.floor_mod": _floor_mod, "relax.floor_divide": _floor_divide}
_NORMS = tuple(f"relax.nn.{kind}_norm" for kind in ("layer", "group", "instance", "rms"))


def _norm(name, x, scale, shift=None, *, attrs):
    shape = known_shape(x.ty)
    axes = {int(axis) % len(shape) for axis in attrs.axes}
    weight_axes, grouped = axes, shape
    if name in ("relax.nn.group_norm", "relax.nn.instance_norm"):
        channel = int(attrs.channel_axis) % len(shape)
        weight_axes = {channel}
    if name == "relax.nn.group_norm":
        groups = int(attrs.num_groups)
        grouped = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
        axes = {channel + 1, *(axis + (axis > channel) for axis in axes)}
    x = R.reshape(x, grouped)
    if name != "relax.nn.rms_norm":
        x = x - R.mean(x, sorted(axes), True)
    variance = R.mean(x * x, sorted(axes), True)
    result = R.reshape(x / R.sqrt(variance + relax.const(float(attrs.epsilon), "float64")), shape)
    dims = [dim if axis in weight_axes else 1 for axis, dim in enumerate(shape)]
    if name == "relax.nn.rms_norm":
        return result * R.reshape(scale, dims)
    result = result * R.reshape(scale, dims) if attrs.scale else result
    return result + R.reshape(shift, dims) if attrs.center else result
