"""Functions that TVM gets wrong for some numbers, or has not for float64, are made of those that it has right.

Its atanh, and its tanh of float64, lose the last digits of a small number, or all of them, and the sign of 0. Its
remainder and its quotient that is rounded down take `x / y`, which has no rest where y is infinite and too few digits
where it is large. Its norms know no float64.
"""

import math

import tvm
from tvm import relax
from tvm.relax import op as R

from ..base.relax import fixed_shape, on_each_function


def decompose_functions() -> tvm.transform.Pass:
    """Make the pass; functions of whole numbers stay."""
    return on_each_function("DecomposeFunctions", _Decomposed)


@relax.expr_functor.mutator
class _Decomposed(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name, dtype = getattr(call.op, "name", ""), str(getattr(call.ty, "dtype", ""))
        if name in _FUNCTIONS and dtype.startswith(("float", "bfloat")):
            return _FUNCTIONS[name](*call.args, *(relax.const(number, dtype) for number in (0, 1, math.inf)))
        if dtype == "float64" and name == "relax.tanh":
            return _tanh(*call.args)
        if dtype == "float64" and name in _NORMS:
            return _norm(name, *call.args, attrs=call.attrs)
        return call


def _tanh(x):
    near = R.clip(x, -20, 20)
    return R.sinh(near) / R.cosh(near)


def _atanh(x, zero, one, infinity):
    """It is log1p(2 x / (1 - x)) / 2; for log1p see Higham, Accuracy and Stability, section 1.14.1 (Kahan's way)."""
    x = (x + x) / (one - x)
    total = x + one
    exact = R.logical_or(R.equal(total, one), R.equal(total, infinity))
    return R.where(exact, x, R.log(total) * (x / (total - one))) / (one + one)


def _floor_mod(x, y, zero, one, infinity):
    rest = R.mod(x, y)
    turned = R.logical_and(R.not_equal(rest, zero), R.not_equal(R.less(rest, zero), R.less(y, zero)))
    return R.where(turned, rest + y, rest)


def _floor_divide(x, y, zero, one, infinity):
    ratio, rest = x / y, _floor_mod(x, y, zero, one, infinity)
    whole = R.round((x - rest) / y)
    infinite = R.logical_and(R.equal(R.abs(y), infinity), R.less(R.abs(x), infinity))
    whole = R.where(infinite, R.where(R.equal(rest, x), ratio, zero - one), whole)
    whole = R.where(R.equal(whole, zero), ratio * zero, whole)
    return R.where(R.equal(y, zero), ratio, whole)


_FUNCTIONS = {"relax.atanh": _atanh, "relax.floor_mod": _floor_mod, "relax.floor_divide": _floor_divide}
_NORMS = tuple(f"relax.nn.{kind}_norm" for kind in ("layer", "group", "instance", "rms"))


def _norm(name, x, scale, shift=None, *, attrs):
    shape = fixed_shape(x.ty)
    axes = {int(axis) % len(shape) for axis in attrs.axes}
    of_weights, apart = axes, shape
    if name in ("relax.nn.group_norm", "relax.nn.instance_norm"):
        channel = int(attrs.channel_axis) % len(shape)
        of_weights = {channel}
    if name == "relax.nn.group_norm":
        groups = int(attrs.num_groups)
        apart = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
        axes = {channel + 1, *(axis + (axis > channel) for axis in axes)}
    x = R.reshape(x, apart)
    if name != "relax.nn.rms_norm":
        x = x - R.mean(x, sorted(axes), True)
    variance = R.mean(x * x, sorted(axes), True)
    result = R.reshape(x / R.sqrt(variance + relax.const(float(attrs.epsilon), "float64")), shape)
    sizes = [size if axis in of_weights else 1 for axis, size in enumerate(shape)]
    result = result * R.reshape(scale, sizes)
    return result if shift is None else result + R.reshape(shift, sizes)
