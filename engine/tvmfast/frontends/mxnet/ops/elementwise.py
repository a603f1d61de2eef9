"""Converters of MXNet's elementwise operators (see call.py)."""

import functools
import math
from collections.abc import Callable

import numpy as np
from tvm import relax, te
from tvm.relax import op

from ....kernels import special
from ....kernels.elementwise import libm
from ...context import dtype_of, shape_of
from ...ops.common import expm1, expm1_below_1, log1p, logarithm, softplus
from .call import CONVERTERS, Call, converts


def nonzero(x: relax.Expr) -> relax.Expr:
    """Return whether each element differs from 0: bool."""
    return op.not_equal(x, relax.const(0, dtype_of(x)))


def require_floats(x: relax.Expr) -> None:
    """Raise NotImplementedError for a tensor of integers or bools."""
    if not dtype_of(x).startswith("float"):
        raise NotImplementedError(f"numbers of {dtype_of(x)}; cast them to float32 before")


def in_floats(c: Call, function, *operands: relax.Expr) -> relax.Expr:
    """Apply a function of floats; of integers MXNet computes it in float32, and cuts the fraction off.

    Ours is of float64, whose error does not make 2.9999998 of a 3.
    """
    dtype = dtype_of(operands[0])
    if "int" not in dtype:
        return function(*operands)
    result = c.emit(function(*(c.emit(c.cast(each, "float64")) for each in operands)))
    return c.cast(c.emit(c.cast(result, "float32")), dtype)


def with_number(c: Call, own: bool = False) -> tuple[relax.Expr, relax.Expr]:
    """Return the first input and the node's number in one dtype, with `own` that of the input.

    Since MXNet 1.9 integers beside a number that is a float become float64, bools beside an integer int64.
    Without the attribute that says so, the number is cut to the integers' dtype.
    """
    dtype = c.dtype
    if not own and "float" not in dtype:
        dtype = "float64" if not c.get("is_int", True) else "int64" if dtype == "bool" else dtype
    value = np.float64(c.need("scalar"))
    if "float" not in dtype:
        with np.errstate(invalid="ignore"):  # of an infinity
            value = value.astype("int64").astype(dtype)
    return c.emit(c.cast(c.x, dtype)), c.const(value, dtype)


def _comparison(compare):
    """Make a comparison that returns the operands' dtype, as MXNet's do."""
    return lambda a, b: op.astype(compare(a, b), dtype_of(a))


def _logical(combine):
    return lambda a, b: op.astype(combine(nonzero(a), nonzero(b)), dtype_of(a))


def modulo(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Return the remainder, which is 0 of a division by 0."""
    zero = relax.const(0, dtype_of(b))
    return op.where(op.equal(b, zero), relax.const(0, dtype_of(a)), op.floor_mod(a, _without_zeros(b)))


def _without_zeros(b: relax.Expr) -> relax.Expr:
    """Return divisors; of integers a division by 0 would end the process."""
    zero, one = (relax.const(value, dtype_of(b)) for value in (0, 1))
    return op.where(op.equal(b, zero), one, b) if "int" in dtype_of(b) else b


def _divide(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Return quotients, of integers cut off, and the least integer for a division by 0."""
    if "int" not in dtype_of(b):
        return op.divide(a, b)
    zero, least = (relax.const(value, dtype_of(b)) for value in (0, np.iinfo(dtype_of(b)).min))
    return op.where(op.equal(b, zero), least, op.divide(a, _without_zeros(b)))


def hypot(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Compute without squares, which would overflow or be 0; an infinity outweighs NaN."""
    zero, one, infinity = (relax.const(value, dtype_of(a)) for value in (0, 1, math.inf))
    infinite = op.logical_or(op.isinf(a), op.isinf(b))
    a, b = op.abs(a), op.abs(b)
    large, small = op.maximum(a, b), op.minimum(a, b)
    ratio = small / op.where(op.equal(large, zero), one, large)
    return op.where(infinite, infinity, large * op.sqrt(one + ratio * ratio))


_BINARY = {
    "plus": op.add,
    "minus": op.subtract,
    "mul": op.multiply,
    "div": _divide,
    "mod": modulo,
    "power": op.power,
    "maximum": op.maximum,
    "minimum": op.minimum,
    "hypot": hypot,
    **{name: _comparison(getattr(op, name)) for name in ("equal", "not_equal", "greater", "greater_equal")},
    "lesser": _comparison(op.less),
    "lesser_equal": _comparison(op.less_equal),
    **{f"logical_{name}": _logical(getattr(op, f"logical_{name}")) for name in ("and", "or", "xor")},
}


_OF_FLOATS = {"power", "hypot"}


def _register(name: str, function) -> None:
    """Register `function` under MXNet's names for two arrays, array and scalar, and scalar and array."""

    def converted(pair):
        if name in _OF_FLOATS:
            return lambda c: in_floats(c, function, *pair(c))
        return lambda c: function(*pair(c))

    short, capital = {"plus": "add", "minus": "sub"}.get(name, name), name.title()
    names = [f"_{name}", f"_{capital}", f"broadcast_{name}", f"_{short}", f"broadcast_{short}"]
    names += [f"elemwise_{short}"] if short in ("add", "sub", "mul", "div") else []
    converts(*names)(converted(lambda c: c.inputs))
    scalar = f"{name}_scalar", f"{capital.replace('_', '')}Scalar"
    converts(*(f"_{each}" for each in scalar))(converted(with_number))
    if name in ("minus", "div", "mod", "power"):
        converts(f"_r{scalar[0]}", f"_R{scalar[1]}")(converted(lambda c: with_number(c)[::-1]))


for _name, _function in _BINARY.items():
    _register(_name, _function)
converts("_grad_add")(lambda c: op.add(*c.inputs))
converts("add_n", "ElementWiseSum")(lambda c: functools.reduce(op.add, c.inputs))


def _cbrt(x: relax.Expr) -> relax.Expr:
    """Multiply two powers, 85/256 and the rest: 1/3 itself, rounded, is off by 8 units at 1e38."""
    dtype = dtype_of(x)
    wide = "float64" if dtype == "float64" else "float32"
    size = op.astype(op.abs(x), wide)
    root = op.power(size, relax.const(85 / 256, wide)) * op.power(size, relax.const(1 / 768, wide))
    return op.sign(x) * op.astype(root, dtype)


_SAME_NAME = (
    *("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sigmoid", "sign", "erf"),
)
_UNARY = {
    **{name: getattr(op, name) for name in _SAME_NAME},
    **{f"arc{name}": getattr(op, f"a{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "log2": functools.partial(logarithm, base=2),
    "log10": functools.partial(logarithm, base=10),
    "cbrt": _cbrt,
    "rcbrt": lambda x: relax.const(1, dtype_of(x)) / _cbrt(x),
    "reciprocal": lambda x: relax.const(1, dtype_of(x)) / x,
    "degrees": lambda x: x * relax.const(180 / math.pi, dtype_of(x)),
    "radians": lambda x: x * relax.const(math.pi / 180, dtype_of(x)),
    "softsign": lambda x: x / (op.abs(x) + relax.const(1, dtype_of(x))),
}
for _name, _function in _UNARY.items():
    converts(_name)(lambda c, function=_function: in_floats(c, function, c.x))


def _of_doubles(c: Call, function: Callable) -> relax.Expr:
    """Apply a function of float64 expressions to each element."""

    def kernel(x):
        return te.compute(x.shape, lambda *at: function(x[at].astype("float64")).astype(x.dtype), name=c.op)

    def computed(x):
        return c.builder.call_te(kernel, x, primfunc_name_hint=c.op)

    return in_floats(c, computed, c.x)


_gamma = functools.partial(libm, "tgamma")
for _name, _function in {"gamma": _gamma, "gammaln": special.lgamma, "erfinv": special.erfinv}.items():
    converts(_name)(lambda c, function=_function: _of_doubles(c, function))
converts("log1p")(lambda c: in_floats(c, functools.partial(log1p, c.builder), c.x))
converts("expm1")(lambda c: in_floats(c, functools.partial(expm1, c.builder), c.x))
converts("negative")(lambda c: c.const(0) - c.x if c.dtype == "uint8" else op.negative(c.x))
for _name in ("abs", "ceil", "floor", "square", "trunc"):
    converts(_name)(lambda c, name=_name: getattr(op, name)(c.x))
converts("fix")(CONVERTERS["trunc"])
converts("relu")(lambda c: op.nn.relu(c.x))
converts("logical_not")(lambda c: op.astype(op.equal(c.x, c.const(0)), c.dtype))
converts("_contrib_gradientmultiplier")(lambda c: c.x)
converts("_contrib_sign_ste")(CONVERTERS["sign"])
converts("_contrib_div_sqrt_dim")(lambda c: c.x / c.const(math.sqrt(c.shape[-1])))


@converts("clip")
def _clip(c: Call):
    """Clip to bounds of float32, cut to integers for such; one that is NaN is none.

    Of bounds that cross, what exceeds the upper one becomes that one, and all else the lower one.
    """
    is_float = c.dtype.startswith("float")
    with np.errstate(over="ignore"):  # beyond halves a bound is infinite
        bounds = np.float32([c.need("a_min"), c.need("a_max")]).astype(c.dtype if is_float else "float64")
    low, high = (
        none if math.isnan(each) else float(each)
        for each, none in zip(bounds, (-math.inf, math.inf), strict=True)
    )
    if not is_float:
        info = np.iinfo(c.dtype)
        low, high = (int(min(max(each, info.min), info.max)) for each in (low, high))
    if low <= high:
        return op.clip(c.x, low, high)
    low, high = c.const(low), c.const(high)
    return op.where(op.greater(c.x, high), high, op.maximum(c.x, low))


@converts("rint")
def _rint(c: Call):
    """Round to the nearest integer, halves down."""
    if not c.dtype.startswith("float"):
        return c.x
    below, above = op.floor(c.x), op.ceil(c.x)
    return op.where(op.less_equal(c.x - below, above - c.x), below, above)


@converts("round", "_contrib_round_ste")
def _round(c: Call):
    """Round to the nearest integer, halves away from 0."""
    if not c.dtype.startswith("float"):
        return c.x
    whole = op.trunc(c.x)
    return op.where(op.less(op.abs(c.x - whole), c.const(0.5)), whole, whole + op.sign(c.x))


@converts("_contrib_quadratic")
def _quadratic(c: Call):
    a, b, constant = (c.const(float(c.get(name, 0))) for name in "abc")
    return c.x * (a * c.x + b) + constant


@converts("smooth_l1")
def _smooth_l1(c: Call):
    square = float(c.get("scalar", 1.0)) ** 2
    distance = op.abs(c.x)
    near, far = c.x * c.x * c.const(square / 2), distance - c.const(0.5 / square)
    return op.where(op.less(distance, c.const(1 / square)), near, far)


converts("Cast", "cast", "amp_cast")(lambda c: c.cast(c.x, c.need("dtype")))


@converts("amp_multicast")
def _multicast(c: Call):
    order = ("float16", "bfloat16", "float32", "float64")
    pick = min if c.get("cast_narrow", False) else max
    dtype = pick((dtype_of(each) for each in c.inputs), key=order.index)
    return [c.cast(each, dtype) for each in c.inputs]


@converts("Activation")
def _activation(c: Call):
    c.refuse(act_type=("relu", "sigmoid", "tanh", "softsign", "softrelu"))
    kind = c.need("act_type")
    return softplus(c.builder, c.x) if kind == "softrelu" else CONVERTERS[kind](c)


@converts("LeakyReLU")
def _leaky_relu(c: Call):
    kind, slope = c.get("act_type", "leaky"), float(c.get("slope", 0.25))
    if kind == "rrelu":  # in inference, the mean of its bounds
        slope = (float(c.get("lower_bound", 0.125)) + float(c.get("upper_bound", 0.334))) / 2
    if kind in ("leaky", "rrelu"):
        return op.nn.leakyrelu(c.x, slope)
    if kind == "gelu":
        return op.nn.gelu(c.x)
    c.refuse(act_type=("prelu", "elu", "selu"))
    below = op.minimum(c.x, c.const(0))
    if kind == "prelu":
        is_shared = math.prod(shape_of(c.inputs[1])) == 1
        positive = op.nn.relu(c.x)
        slopes = op.reshape(c.inputs[1], [1] * c.rank) if is_shared else c.along(1, c.shape[1], 1)
        return positive + below * slopes
    scale, alpha = (1.0507009873554805, 1.6732632423543772) if kind == "selu" else (1.0, slope)
    result = op.nn.relu(c.x) + expm1_below_1(c.builder, c.emit(below)) * c.const(alpha)
    return result if kind == "elu" else result * c.const(scale)


@converts("hard_sigmoid")
def _hard_sigmoid(c: Call):
    return op.clip(c.x * c.const(c.get("alpha", 0.2)) + c.const(c.get("beta", 0.5)), 0, 1)
