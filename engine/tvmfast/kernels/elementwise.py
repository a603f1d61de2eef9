"""Transcendental functions as polynomials, which vectorize; the C library's take one element at a time.

All of float32. The largest relative error is 1e-7 for exp and sigmoid, 3e-7 for tanh and erf; NaN gives NaN.
Each function binds what it uses more than once, so that an expression inlined as its argument is evaluated
once.
"""

import itertools
import math

from tvm import te, tirx

# Cephes's expf: exp(r) for |r| <= log(2) / 2, from the highest power down to r**2.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG2 = (0.693359375, -2.12194440e-4)  # log(2) in two parts, the first of few bits
_LOWEST, _HIGHEST = -103.97208, 88.72283  # beyond, the result is 0 or infinity
_NORMAL = -87.33654  # log(2**-126): below, the result is no normal number

# Eigen's tanh and erf: x * p(x**2) / q(x**2) between the bounds, 1 or -1 beyond; from the highest power down.
_TANH = (
    9.0,
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
     1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip
_ERF = (
    4.0,
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
     -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
     -1.42647390514189e-02),
)  # fmt: skip


def exp(x):
    """Compute the exponential function of a float32 expression by Cephes's expf.

    2**n * e**r with x = n * log(2) + r.
    """

    def value(x, n):
        # 2**n in two factors, as n ranges from -150 to 128 and float32's exponent from -126 to 127.
        half = tirx.floordiv(n.astype("int32"), 2)
        value = _exp_of_rest(x, n) * _two_to(half) * _two_to(n.astype("int32") - half)
        zero, infinity = tirx.const(0, "float32"), tirx.infinity("float32")
        return tirx.Select(x < _LOWEST, zero, tirx.Select(x > _HIGHEST, infinity, value))

    return _with_multiple(x, value)


def exp_to_one(x):
    """Compute the exponential function of a float32 expression <= 0; it gives 0 below the normal numbers."""

    def value(x, n):
        value = _exp_of_rest(x, n) * _two_to(n.astype("int32"))
        return tirx.Select(x < _NORMAL, tirx.const(0, "float32"), value)

    return _with_multiple(x, value)


def _with_multiple(x, use):
    """Return `use(x, n)`, where n * log(2) is the multiple of log(2) next to x."""
    return _named(x, lambda x: _named(te.floor(x * (1 / math.log(2)) + 0.5), lambda n: use(x, n)))


def _exp_of_rest(x, n):
    return _named(x - n * _LOG2[0] - n * _LOG2[1], lambda r: _polynomial(_EXP, r) * r * r + r + 1.0)


def _two_to(n):
    return tirx.reinterpret("float32", tirx.shift_left(n + 127, tirx.const(23, "int32")))


def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) of a float32 expression."""
    return 1.0 / (1.0 + exp(-x))


def silu(x):
    """Compute x * sigmoid(x) of a float32 expression."""
    return _named(x, lambda x: x * sigmoid(x))


def tanh(x):
    """Compute tanh of a float32 expression (Eigen's rational approximation)."""
    return _rational(x, *_TANH)


def erf(x):
    """Compute erf of a float32 expression (Eigen's rational approximation)."""
    return _rational(x, *_ERF)


def gelu(x):
    """Compute x / 2 * (1 + erf(x / sqrt(2))) of a float32 expression."""
    return _named(x, lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5))))


def gelu_tanh(x):
    """Compute GELU of a float32 expression by its approximation with tanh."""
    return _named(x, lambda x: 0.5 * x * (1.0 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))


def _rational(x, bound, over, under):
    def inside(x):
        return _named(x * x, lambda square: x * (_polynomial(over, square) / _polynomial(under, square)))

    def value(x):
        clamped = te.max(te.min(x, bound), -bound)
        return tirx.Select(tirx.isnan(x), x, _named(clamped, inside))

    return _named(x, value)


def _polynomial(coefficients, x):
    total = tirx.const(coefficients[0], "float32")
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _named(value, use):
    """Return `use(value)`, with `value` computed once, however often `use` needs it."""
    name = tirx.Var("value", "float32")
    return tirx.Let(name, value, use(name))


def softmax(x, axis: int):
    """Compute softmax along an axis of a float32 tensor that is not its last."""

    def reduced(element, combine, name):
        r = te.reduce_axis((0, x.shape[axis]), "r")
        shape = [*x.shape[:axis], *x.shape[axis + 1 :]]
        return te.compute(
            shape, lambda *at: combine(element((*at[:axis], r, *at[axis:])), axis=[r]), name=name
        )

    largest = reduced(lambda at: x[at], te.max, "largest")
    powers = te.compute(x.shape, lambda *at: exp(x[at] - largest[(*at[:axis], *at[axis + 1 :])]), name="exp")
    total = reduced(lambda at: powers[at], te.sum, "total")

    def normal(*at):
        return powers[at] * (1.0 / total[(*at[:axis], *at[axis + 1 :])])

    return te.compute(x.shape, normal, name="softmax")


def concat(tensors, axis: int):
    """Concatenate tensors along `axis`; an element finds its tensor by bisection, not by a linear scan."""
    begins = [0, *itertools.accumulate(int(x.shape[axis]) for x in tensors)]
    shape = [*tensors[0].shape[:axis], begins[-1], *tensors[0].shape[axis + 1 :]]

    def element(at, first, last):
        if last - first == 1:
            return tensors[first][(*at[:axis], at[axis] - begins[first], *at[axis + 1 :])]
        middle = (first + last) // 2
        return te.if_then_else(
            at[axis] < begins[middle], element(at, first, middle), element(at, middle, last)
        )

    return te.compute(shape, lambda *at: element(at, 0, len(tensors)), name="concatenate")


def of_tensor(function):
    """Return a function of a tensor that applies `function` to each element."""
    return lambda x: te.compute(x.shape, lambda *at: function(x[at]), name=function.__name__)


def libm(name: str, x):
    """Call a function of C's library on a float32 or float64, in a vectorized loop once for each lane.

    TVM 0.27 lowers its own sinh and cosh to these calls, and fails on vectors of them.
    """
    dtype = str(x.ty.dtype)
    return tirx.call_pure_extern(dtype, name + ("f" if dtype == "float32" else ""), x)


OF_LIBM = {
    f"relax.{name}": lambda x, name=name: te.compute(x.shape, lambda *at: libm(name, x(*at)), name=name)
    for name in ("sinh", "cosh")
}
FUNCTIONS = {
    **{f"relax.{function.__name__}": of_tensor(function) for function in (exp, sigmoid, tanh, erf)},
    **{f"relax.nn.{function.__name__}": of_tensor(function) for function in (silu, gelu, gelu_tanh)},
}
