"""Transcendental functions in plain arithmetic, which vectorizes: the C library's take one number at a time.

For float32 only. The largest relative error is 1e-7 for exp and sigmoid, 3e-7 for tanh and erf; a NaN stays one.
"""

import itertools
import math

from tvm import te, tirx, topi

# Cephes's expf: exp(r) for |r| <= log(2) / 2, from the highest power down to r**2.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG2 = (0.693359375, -2.12194440e-4)  # log(2) in two parts, the first of few bits
_LOWEST, _HIGHEST = -87.33654, 88.72283  # beyond, the result is 0 or infinity


def exp(x):
    """exp of a float32 expression: 2**n * exp(r) with x = n * log(2) + r (Cephes's expf)."""
    n = te.floor(x * (1 / math.log(2)) + 0.5)
    r = x - n * _LOG2[0] - n * _LOG2[1]
    polynomial = tirx.const(_EXP[0], "float32")
    for coefficient in _EXP[1:]:
        polynomial = polynomial * r + coefficient
    # 2**n in two factors, as n reaches 128 and float32's exponent 127.
    half = tirx.floordiv(n.astype("int32"), 2)
    value = (polynomial * r * r + r + 1.0) * _two_to(half) * _two_to(n.astype("int32") - half)
    return tirx.Select(
        x < _LOWEST, tirx.const(0, "float32"), tirx.Select(x > _HIGHEST, tirx.infinity("float32"), value)
    )


def _two_to(n):
    return tirx.reinterpret("float32", tirx.shift_left(n + 127, tirx.const(23, "int32")))


def sigmoid(x):
    return 1.0 / (1.0 + exp(-x))


def of_tensor(function, x):
    """A tensor of `function` of each element of the tensor `x`."""
    return te.compute(x.shape, lambda *at: function(x[at]), name="elementwise")


def tanh(x):
    return _or_nan(x, topi.fast_tanh(x))


def erf(x):
    return _or_nan(x, topi.fast_erf(x))


def gelu(x):
    inner = erf(of_tensor(lambda v: v * math.sqrt(0.5), x))
    return te.compute(x.shape, lambda *at: 0.5 * x[at] * (1.0 + inner[at]), name="gelu")


def gelu_tanh(x):
    inner = tanh(of_tensor(lambda v: math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v), x))
    return te.compute(x.shape, lambda *at: 0.5 * x[at] * (1.0 + inner[at]), name="gelu_tanh")


def _or_nan(x, made):
    return te.compute(x.shape, lambda *at: tirx.Select(tirx.isnan(x[at]), x[at], made[at]), name="or_nan")


def concat(tensors, axis: int):
    """Tensors one after another along `axis`: an element's tensor is looked for by bisection, not one by one."""
    begins = [0, *itertools.accumulate(int(x.shape[axis]) for x in tensors)]
    shape = [*tensors[0].shape[:axis], begins[-1], *tensors[0].shape[axis + 1 :]]

    def element(at, first, last):
        if last - first == 1:
            return tensors[first][(*at[:axis], at[axis] - begins[first], *at[axis + 1 :])]
        middle = (first + last) // 2
        return te.if_then_else(at[axis] < begins[middle], element(at, first, middle), element(at, middle, last))

    return te.compute(shape, lambda *at: element(at, 0, len(tensors)), name="concatenate")


FUNCTIONS = {
    "relax.exp": lambda x: of_tensor(exp, x),
    "relax.sigmoid": lambda x: of_tensor(sigmoid, x),
    "relax.nn.silu": lambda x: of_tensor(lambda v: v * sigmoid(v), x),
    "relax.tanh": tanh,
    "relax.erf": erf,
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
}
