"""Special functions of float64 expressions, to a few units in the last place, and greatest common divisors.

The logarithms, exponentials and square roots are those of TVM's target, C's on a CPU. Each function binds
what it uses more than once, so that an expression inlined as its argument is evaluated once. NaN gives NaN.
"""

import math
from collections.abc import Callable

import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from ..core.compat import OPAQUE, fast_tvmscript_parser
from .elementwise import libm

# B(2k) / (2k), k = 8, ..., 1, with the Bernoulli numbers B: of digamma's and zeta's asymptotic series.
_BERNOULLI = (-3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
_SHIFT = 10  # from where the asymptotic series are exact to double precision

# Wichura's AS241 (PPND16), quantiles of the normal distribution: from the highest power down.
_CENTRAL = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
     1.27045825245236838258, 3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590,
     1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
     1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187,
     1.0),
)  # fmt: skip
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990,
     6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0),
)  # fmt: skip

# Cody's CALERF: erf(x) / x in x**2 up to 0.46875; exp(x**2) erfc(x) up to 4; and beyond, its distance from
# 1 / (x sqrt(pi)), in 1 / x**2: from the highest power down.
_ERF = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)  # fmt: skip
_ERFCX = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_FAR_ERFCX = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip

HIGHEST_ORDER = 20  # of polygamma

_ASYMPTOTIC = 20  # from where the asymptotic series of the Bessel functions is exact to double precision
_TERMS, _FAR_TERMS = 36, 26  # of their power series up to there, and of that one


def lgamma(x):
    """Compute log(|gamma(x)|) by C's lgamma: infinity at the poles 0, -1, -2 and so on."""
    return libm("lgamma", x)


def erfc(x):
    """Compute 1 - erf(x) by C's erfc."""
    return libm("erfc", x)


def digamma(x):
    """Compute the logarithmic derivative of gamma, NaN at the poles but for -infinity at 0, infinity at -0.

    Up to a shift it is an asymptotic series (Abramowitz and Stegun, 6.3.18 and 6.3.5); below 0 it is
    reflected (6.3.7). Near its zeros the error is one of numbers of the size of 1.
    """

    def of_positive(x):
        def shifted(z, w):
            series = te.log(z) - w * (0.5 + w * _polynomial(_BERNOULLI, w * w))
            return series - sum(1 / (x + n) for n in range(_SHIFT - 1, -1, -1))

        return _let(x + _SHIFT, lambda z: _let(1 / z, lambda w: shifted(z, w)))

    def value(x):
        positive = _let(_select(x < 0, 1 - x, x), of_positive)
        reflected = _select(x < 0, _cotangent(x) * math.pi, 0.0)
        is_pole = tirx.all(x < 0, te.floor(x) == x)
        return _select(is_pole, math.nan, positive - reflected)

    return _let(x, value)


def polygamma(order: int, x):
    """Compute the derivative of digamma of an order from 1 to 20, infinite at the poles.

    It is a multiple of Hurwitz's zeta function, summed by Euler and Maclaurin (Abramowitz and Stegun, 6.4.10
    and 23.1.30), and below 0 reflected (6.4.7).
    """
    shift = order + _SHIFT
    factors = [
        each * math.comb(order + 2 * k - 1, order)
        for k, each in zip(range(8, 0, -1), _BERNOULLI, strict=True)
    ]
    cotangents = [0.0, 1.0]  # of which the derivative of cot(x) is the polynomial, from the lowest power up
    for _ in range(order):
        slopes = [n * each for n, each in enumerate(cotangents)][1:]
        cotangents = [-(a + b) for a, b in zip([*slopes, 0.0, 0.0], [0.0, 0.0, *slopes], strict=True)]

    def zeta(x):
        def summed(w):
            rest = _power(w, order) * (1 / order + w * (0.5 + w * _polynomial(factors, w * w)))
            terms = (_let(1 / (x + n), lambda w: _power(w, order + 1)) for n in range(shift - 1, -1, -1))
            return sum(terms, rest)

        return _let(1 / (x + shift), summed)

    def value(x):
        of_positive = math.factorial(order) * _let(_select(x <= 0, 1 - x, x), zeta)
        derivative = _let(_cotangent(x), lambda t: _polynomial(cotangents[::-1], t)) * math.pi ** (order + 1)
        return _let(of_positive, lambda y: _select(x <= 0, -y - derivative, y if order % 2 else -y))

    return _let(x, value)


def _cotangent(x):
    """Compute cot(pi x), infinity at whole numbers, exactly 0 halfway between them."""

    def value(x):
        return te.sin((0.5 - te.abs(x)) * math.pi) / te.sin(x * math.pi)

    return _let(x - te.round(x), value)


def ndtri(x):
    """Compute the quantile of the normal distribution of a probability, NaN beyond 0 and 1."""
    return _let(x, lambda x: _quantile(x - 0.5, _select(x < 0.5, x, 1 - x)))


def erfinv(x):
    """Compute the inverse of erf, NaN beyond -1 and 1."""
    return _let(x, lambda x: _quantile(0.5 * x, 0.5 - 0.5 * te.abs(x)) * math.sqrt(0.5))


def _quantile(centred, tail):
    """Compute the quantile of a probability, given less 0.5, and as it or its complement, the less."""

    def of_root(root):
        near = _let(root - 1.6, lambda r: _polynomial(_TAIL[0], r) / _polynomial(_TAIL[1], r))
        far = _let(root - 5.0, lambda r: _polynomial(_FAR_TAIL[0], r) / _polynomial(_FAR_TAIL[1], r))
        value = _select(root == math.inf, root, _select(root <= 5.0, near, far))
        return _let(value, lambda value: _select(centred < 0, -value, value))

    def value(centred):
        ratio = _let(
            0.180625 - centred * centred, lambda r: _polynomial(_CENTRAL[0], r) / _polynomial(_CENTRAL[1], r)
        )
        return _select(te.abs(centred) <= 0.425, centred * ratio, _let(te.sqrt(-te.log(tail)), of_root))

    return _let(centred, value)


def erfcx(x):
    """Compute exp(x**2) erfc(x) by W. J. Cody's rational approximations (CALERF)."""

    def of_positive(x):
        square = _let(
            x * x, lambda s: te.exp(s) * (1 - x * _polynomial(_ERF[0], s) / _polynomial(_ERF[1], s))
        )
        middle = _polynomial(_ERFCX[0], x) / _polynomial(_ERFCX[1], x)
        far = _let(
            1 / (x * x),
            lambda w: (
                (1 / math.sqrt(math.pi) - w * _polynomial(_FAR_ERFCX[0], w) / _polynomial(_FAR_ERFCX[1], w))
                / x
            ),
        )
        return _select(x <= 0.46875, square, _select(x <= 4, middle, far))

    def value(x):
        positive = _let(te.abs(x), of_positive)
        # a part of few bits, whose square is exact
        part = _let(te.trunc(x * 16) / 16, lambda part: te.exp(part * part) * te.exp((x - part) * (x + part)))
        return _let(positive, lambda y: _select(x < 0, _select(x == -math.inf, math.inf, 2 * part - y), y))

    return _let(x, value)


def log_ndtr(x):
    """Compute the logarithm of the normal distribution's probability of less than x."""

    def value(x):
        tail = te.log(0.5 * erfcx(x * -math.sqrt(0.5))) - 0.5 * x * x
        rest = libm("log1p", -0.5 * erfc(x * math.sqrt(0.5)))
        return _select(x == -math.inf, x, _select(x < -1, tail, rest))

    return _let(x, value)


def i0(x):
    """Compute the modified Bessel function of the first kind of order 0."""
    return _bessel(0, x, False)


def i0e(x):
    """Compute exp(-|x|) i0(x)."""
    return _bessel(0, x, True)


def i1(x):
    """Compute the modified Bessel function of the first kind of order 1."""
    return _bessel(1, x, False)


def i1e(x):
    """Compute exp(-|x|) i1(x)."""
    return _bessel(1, x, True)


def _bessel(order, x, scaled):
    """Sum a power series, or an asymptotic one (Abramowitz and Stegun, 9.6.10 and 9.7.1)."""
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS - 1, -1, -1)]
    inverses = [1.0]
    for k in range(1, _FAR_TERMS):
        inverses.append(-inverses[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))

    def of_positive(x):
        near = _let(0.25 * x * x, lambda s: _polynomial(powers, s)) * (0.5 * x if order else 1.0)
        far = _let(1 / x, lambda w: _polynomial(inverses[::-1], w)) / te.sqrt(2 * math.pi * x)
        if scaled:
            return _select(x < _ASYMPTOTIC, near * te.exp(-x), far)
        # in two factors, as exp(x) overflows first
        return _select(x < _ASYMPTOTIC, near, _let(te.exp(0.5 * x), lambda root: root * far * root))

    def value(x):
        positive = te.abs(x)
        # beyond, i0 and i1 are infinite
        positive = positive if scaled else _let(positive, lambda a: _select(a > 1000, 1000.0, a))
        result = _let(positive, of_positive)
        return result if order == 0 else _let(result, lambda y: _select(x < 0, -y, y))

    return _let(x, value)


def _select(condition, a, b):
    """Return `a` where a condition holds, else `b`; both are computed. Numbers are of float64."""
    return tirx.Select(
        condition, *(tirx.const(each, "float64") if isinstance(each, float) else each for each in (a, b))
    )


def _power(x, exponent: int):
    """Multiply; the expression `x` is a variable."""
    return math.prod([x] * (exponent - 1), start=x)


def _polynomial(coefficients, x):
    """Compute a polynomial of an expression, from the highest power down."""

    def value(x):
        total = tirx.const(coefficients[0], "float64")
        for coefficient in coefficients[1:]:
            total = total * x + tirx.const(coefficient, "float64")
        return total

    return _let(x, value)


def _let(value, use: Callable):
    """Return `use(value)`, with `value` computed once, however often `use` needs it."""
    name = tirx.Var("value", "float64")
    return tirx.Let(name, value, use(name))


@fast_tvmscript_parser()
def gcd(count: int, dtype: str) -> tvm.tirx.PrimFunc:
    """Compute the greatest common divisors, >= 0, of `count` pairs of integers, by Euclid's algorithm."""

    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((count,), dtype), b: T.Buffer((count,), dtype), result: T.Buffer((count,), dtype)):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("gcd"):
            rest = T.sblock_alloc_buffer((2,), dtype)
            for i in range(count):
                result[i] = a[i]
                if a[i] < T.Cast(dtype, 0):
                    result[i] = T.Cast(dtype, 0) - a[i]
                rest[0] = b[i]
                if b[i] < T.Cast(dtype, 0):
                    rest[0] = T.Cast(dtype, 0) - b[i]
                while rest[0] != T.Cast(dtype, 0):
                    rest[1] = T.truncmod(result[i], rest[0])
                    result[i] = rest[0]
                    rest[0] = rest[1]

    return kernel
