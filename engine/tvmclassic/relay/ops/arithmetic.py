"""Elementwise operators, and reductions over axes."""

import math
from functools import partial

import numpy as np
from tvm import relax
from tvm.relax import op as R

from tvmfast.frontends.ops.common import logarithm, reduced_axes

from ..ir import Expr, const
from .operator import OPERATORS, axis_list, dtype_of, known_shape, operator, rank_of, relax_function

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "erf",
    "exp", "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "ones_like", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zeros_like",
    "nn.relu", "nn.batch_flatten",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "power", "mod", "floor_divide", "floor_mod", "maximum",
    "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "atan2",
)  # fmt: skip


def _negative(data):
    if "uint" not in (dtype := dtype_of(data)):
        return R.negative(data)
    return R.add(R.bitwise_not(data), relax.const(1, dtype))  # TVM makes 0 - x of 32 or 64 bits 0


def _round(data):
    """Return whole numbers, halves away from 0; Relax rounds them to even ones."""
    if "float" not in (dtype := dtype_of(data)):
        return data
    whole = R.trunc(data)
    is_half = R.greater_equal(R.abs(R.subtract(data, whole)), relax.const(0.5, dtype))
    return R.where(is_half, R.add(whole, R.sign(data)), whole)


def _sign(data):
    dtype = dtype_of(data)
    return R.minimum(data, relax.const(1, dtype)) if "uint" in dtype else R.sign(data)


_OWN = {"negative": _negative, "round": _round, "sign": _sign}
_OF_ROUND = "trunc subtract abs greater_equal sign add where"
for _name in UNARY:
    operator(_name, relax=_OF_ROUND if _name == "round" else _name, tensors="data")(
        _OWN.get(_name) or relax_function(_name)
    )
for _name in BINARY:
    operator(_name, relax=_name, tensors="lhs rhs")(relax_function(_name))
for _name in ("exp", "tanh", "erf"):
    operator(f"fast_{_name}", relax=_name, tensors="data")(relax_function(_name))
for _name in ("copy", "identity", "annotation.stop_fusion"):
    operator(_name, relax="")(lambda data, /: data)
for _base in (2, 10):
    operator(f"log{_base}", relax="astype log divide", tensors="data")(partial(logarithm, base=_base))


@operator("shape_of", relax="const")
def shape_of(data, /, dtype="int32"):
    return relax.const(np.asarray(known_shape(data), dtype), dtype)


for (_name, _relax), _body in {
    ("full", "full"): lambda fill_value, /, shape=(), dtype="": R.full(
        list(shape), fill_value, dtype or None
    ),
    ("full_like", "full_like"): lambda data, fill_value, /: R.full_like(data, fill_value),
    ("zeros", "zeros"): lambda shape, dtype="float32": R.zeros(list(shape), dtype),
    ("ones", "ones"): lambda shape, dtype="float32": R.ones(list(shape), dtype),
    ("where", "where astype"): lambda condition, x, y, /: R.where(R.astype(condition, "bool"), x, y),
    ("cast", "astype"): lambda data, /, dtype: R.astype(data, dtype),
    ("cast_like", "astype"): lambda data, dtype_like, /: R.astype(data, dtype_of(dtype_like)),
    ("cumsum", "cumsum"): lambda data, /, axis=None, dtype=None, exclusive=None: R.cumsum(
        data, axis, dtype, bool(exclusive)
    ),
    ("cumprod", "cumprod"): lambda data, /, axis=None, dtype=None, exclusive=None: R.cumprod(
        data, axis, dtype, bool(exclusive)
    ),
}.items():
    operator(_name, relax=_relax)(_body)


@operator("clip", relax="clip")
def clip(a, /, a_min, a_max):
    """Return `a` between the bounds, cast to its dtype; a bound out of its range is that of the range."""
    dtype = dtype_of(a)
    if "float" in dtype:
        with np.errstate(over="ignore"):
            return R.clip(a, *map(float, np.array([a_min, a_max]).astype(dtype)))
    info = np.iinfo(dtype)
    least, most = (int(min(max(bound, info.min), info.max)) for bound in (a_min, a_max))
    return R.maximum(R.minimum(a, relax.const(most, dtype)), relax.const(least, dtype))


# ---------------------------------------------------------------- reductions


def _reduced(data, axis, exclude) -> list[int]:
    return reduced_axes(rank_of(data), axis_list(axis) or [], exclude)


def _reduction(name, function, relax_name):
    def body(data, /, axis=None, keepdims=False, exclude=False):
        return function(data, _reduced(data, axis, exclude), keepdims)

    return operator(name, relax=relax_name)(body)


for _name in ("sum", "max", "min", "mean", "prod", "std"):
    _reduction(_name, relax_function(_name), _name)
_reduction("all", lambda x, axes, keep: R.min(R.astype(x, "bool"), axes, keep), "min")
_reduction("any", lambda x, axes, keep: R.max(R.astype(x, "bool"), axes, keep), "max")


@operator("variance", relax="variance multiply")
def variance(data, /, axis=None, keepdims=False, exclude=False, unbiased=False):
    axes = _reduced(data, axis, exclude)
    count = math.prod(known_shape(data)[a] for a in axes)
    factor = count / (count - 1) if count > 1 else math.inf  # of one element, whose variance is 0: NaN
    biased = R.variance(data, axes, keepdims)
    return R.multiply(biased, relax.const(factor, dtype_of(data))) if unbiased else biased


@operator("mean_variance", 2, relax="mean")
def mean_variance(data, /, axis=None, keepdims=False, exclude=False, unbiased=False):
    mean = R.mean(data, _reduced(data, axis, exclude), keepdims)
    return relax.Tuple([mean, variance.body(data, axis, keepdims, exclude, unbiased)])


@operator("logsumexp", relax="max isfinite where add log sum exp subtract squeeze")
def logsumexp(data, /, axis=None, keepdims=False):
    largest = R.max(data, axis_list(axis), True)
    # an infinity less itself is NaN
    largest = R.where(R.isfinite(largest), largest, relax.const(0, dtype_of(data)))
    total = R.add(R.log(R.sum(R.exp(R.subtract(data, largest)), axis_list(axis), True)), largest)
    return total if keepdims else R.squeeze(total, axis_list(axis))


def _argument(name, function):
    def body(data, /, axis=None, keepdims=False, exclude=False, select_last_index=False):
        axes = _reduced(data, axis, exclude)
        if (axis is not None and len(axes) != 1) or select_last_index:
            raise ValueError(f"expected one axis, and the first index of it; got axis={axis}")
        return R.astype(function(data, axes[0] if axis is not None else None, keepdims), "int32")

    operator(name, relax=name)(body)


_argument("argmax", R.argmax)
_argument("argmin", R.argmin)


# ---------------------------------------------------------------- Python's operators


def _method(name: str, swapped: bool = False):
    """Return a method of `Expr` that calls an operator; a Python number becomes a constant."""

    def method(self, other):
        if isinstance(other, int | float):
            other, number = const(other), other
            other.number = number
        return OPERATORS[name](*((other, self) if swapped else (self, other)))

    return method


_OF_PYTHON = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power",
    "mod": "floor_mod", "floordiv": "floor_divide", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
for _short, _name in _OF_PYTHON.items():
    setattr(Expr, f"__{_short}__", _method(_name))
    if _short in ("add", "sub", "mul", "truediv"):
        setattr(Expr, f"__r{_short}__", _method(_name, swapped=True))
Expr.__neg__ = lambda self: OPERATORS["negative"](self)
Expr.astype = lambda self, dtype: OPERATORS["cast"](self, dtype)
