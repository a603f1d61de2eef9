"""Relay's `qnn` bit by bit, against integers of Python; `relay.quantize` against the network in float32."""

import functools
import importlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from old_api import Module, enabled  # noqa: F401 (a fixture)
from testing import of_integers, sampled

import tvmfast
from tvmclassic.relay import ir
from tvmclassic.relay.build import relax_of

LEVELS = pytest.mark.parametrize("level", [0, 3])
AT_3 = pytest.mark.parametrize("level", sampled([0, 3], [3]))  # in `make test`


relay, qnn = Module(), Module("tvm.relay.qnn.op")


def built(body, arrays, level=3, params=None):
    """What is built of a function of Relay variables by name, `body`."""
    given = {**arrays, **(params or {})}
    variables = {name: relay.var(name, shape=a.shape, dtype=a.dtype.name) for name, a in given.items()}
    function = relay.Function([*variables.values()], ir.as_expr(body(**variables)))
    return tvmfast.build(*relax_of(function, params), opt_level=level)


def run(body, arrays, level=3, params=None):
    results = built(body, arrays, level, params)(*arrays.values())
    return [np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])]


def const(value, dtype="float32"):
    return relay.const(np.asarray(value, dtype))


def zero(value=0):
    return const(value, "int32")


# ---------------------------------------------------------------- the definition, in integers of any size


def scaled(q: int, multiplier: float, rounding="UPWARD") -> int:
    """q * multiplier: an integer of 31 bits, and a half rounded up or away from 0."""
    if multiplier == 1:
        return q
    significand, exponent = math.frexp(multiplier)
    m = math.floor(significand * 2**31 + 0.5)
    if exponent > 0:
        q, exponent = q << exponent, 0
    shift = 31 - exponent
    half = 1 << (shift - 1)
    return (q * m + half - (rounding == "TONEAREST" and q < 0)) >> shift


def saturated(values, dtype, like) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.array([min(max(int(v), info.min), info.max) for v in values], dtype).reshape(like.shape)


def requantized(q, scale, at, out_scale, out_zero, rounding="UPWARD", dtype="int8"):
    """`scale` and `at`, the zero point, are arrays that broadcast to `q`."""
    scale, at = (np.broadcast_to(np.asarray(each), q.shape).ravel() for each in (np.float32(scale), at))
    ratios = scale.astype("float64") / float(np.float32(out_scale))
    values = [scaled(int(x) - int(z), r, rounding) + out_zero for x, z, r in zip(q.ravel(), at, ratios, strict=True)]
    return saturated(values, dtype, q)


# ---------------------------------------------------------------- requantize, quantize, dequantize


ROUNDINGS = [(rounding, level) for rounding in ("UPWARD", "TONEAREST") for level in (0, 3)]


@pytest.mark.parametrize("given", sampled(ROUNDINGS, [("UPWARD", 0), ("TONEAREST", 3)]), ids=str)
def test_requantize_is_bit_by_bit_what_tvm_defines(given):
    rounding, level = given
    rng = np.random.default_rng(1)
    q = rng.integers(-(2**31), 2**31, (2, 3, 40)).astype("int32")
    q[0] = np.arange(-60, 60).reshape(3, 40)  # ties of ratios of 1/2 and 1/4
    small = rng.integers(-128, 128, (2, 3, 40)).astype("int8")
    each = np.array([0.5, 1e-4, 3.0], "float32")
    cases = [  # data, input scale and zero point, output scale and zero point, dtype, axis
        (0, 0.5, 0, 1.0, 0, "int32", -1), (0, 0.25, 3, 1.0, -7, "int8", -1), (0, 1e-7, 0, 0.3, 4, "uint8", -1),
        (0, 0.1, 0, 0.1, 5, "int16", -1), (0, 1e-12, 0, 30.0, 1, "int8", -1), (0, each, 0, 0.9, 2, "int32", 1),
        (1, 0.7, -5, 0.3, 9, "int8", -1), (1, 0.999, 127, 40.0, -128, "int8", -1), (1, 900.0, 1, 0.01, 0, "int8", -1),
        (1, each, [1, -2, 3], 0.02, 100, "uint8", 1),
    ]  # fmt: skip

    def body(q, small):
        return relay.Tuple([
            qnn.requantize((q, small)[n], const(s), zero(z), const(to), zero(at), axis, rounding, out_dtype=dtype)
            for n, s, z, to, at, dtype, axis in cases
        ])  # fmt: skip

    for got, (n, s, z, to, at, dtype, axis) in zip(run(body, {"q": q, "small": small}, level), cases, strict=True):
        s, z = (np.reshape(each, (3, 1)) if axis == 1 and np.size(each) > 1 else each for each in (s, z))
        want = requantized((q, small)[n], s, z, to, at, rounding, dtype)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_requantize_in_float32_and_by_the_config_of_a_build():
    q = np.arange(-9, 10).astype("int32")  # halves

    def body(q):
        parts = const(0.5), zero(), const(1.0), zero(2)
        float32 = [qnn.requantize(q, *parts, rounding=r, compute_dtype="float32") for r in ("UPWARD", "TONEAREST")]
        return relay.Tuple([*float32, qnn.requantize(q, *parts)])

    up, away = np.floor(q / 2 + 0.5) + 2, np.sign(q) * np.floor(np.abs(q) / 2 + 0.5) + 2
    shifted = np.sign(q / 2 + 2) * np.floor(np.abs(q / 2 + 2) + 0.5)  # floats are rounded with the zero point
    for wanted, config in ((up, {}), (away, {"rounding": "TONEAREST"})):
        with qnn.requantize_config(**config):
            got = run(body, {"q": q})
        np.testing.assert_array_equal(got[0], up)
        np.testing.assert_array_equal(got[1], shifted)
        np.testing.assert_array_equal(got[2], wanted)


@AT_3
def test_quantize_rounds_halves_away_from_zero(level):
    x = np.array([[-2.5, -0.5, 0.49999997, 0.5, 1.5, 2.5], [3e38, -np.inf, np.inf, 127.4, -130.0, 0.0]], "float32")
    scales, zeros = np.array([1.0, 0.5], "float32"), np.array([3, -4], "int32")

    def body(x):
        return relay.Tuple([
            qnn.quantize(x, const(1.0), zero(1)),
            qnn.quantize(x, const(0.25), zero(7), out_dtype="uint8"),
            qnn.quantize(x, const(scales), zero(zeros), axis=0, out_dtype="int16"),
            qnn.quantize(x, const(0.5), zero(), out_dtype="int32"),
            qnn.dequantize(qnn.quantize(x, const(scales), zero(zeros), axis=0), const(scales), zero(zeros), axis=0),
        ])  # fmt: skip

    def wanted(scale, at, dtype):
        info, y = np.iinfo(dtype), x.astype("float64") / scale
        whole = np.where(np.isinf(y), y, np.trunc(y) + np.trunc(2 * (y - np.trunc(np.nan_to_num(y)))))
        return np.clip(whole + at, info.min, info.max)

    column = scales[:, None], zeros[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        want = [wanted(1.0, 1, "int8"), wanted(0.25, 7, "uint8"), wanted(*column, "int16"), wanted(0.5, 0, "int32")]
        want.append((wanted(*column, "int8") - column[1]) * column[0])
    for got, each in zip(run(body, {"x": x}, level), want, strict=True):
        if got.dtype == np.int32:  # in float32, the largest number of 32 bits is 128 less
            each = np.minimum(each, 2**31 - 128)
        np.testing.assert_array_equal(got, each)


# ---------------------------------------------------------------- products


def conv(x, w, strides=1, padding=0, groups=1, dilation=1, function=F.conv2d, **more):
    """Exact sums of integers, in float64."""
    tensors = [torch.from_numpy(each.astype("float64")) for each in (x, w)]
    sums = function(*tensors, stride=strides, padding=padding, groups=groups, dilation=dilation, **more)
    return sums.numpy().astype("int64")


def integers(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@AT_3
def test_convolutions_are_exact_sums(level):
    rng = np.random.default_rng(2)
    x, s = integers(rng, (2, 8, 9, 10), "uint8"), integers(rng, (2, 8, 9, 10), "int8")
    w, wide = integers(rng, (20, 8, 3, 3), "int8"), integers(rng, (6, 8, 3, 3), "uint8")
    one, depth = integers(rng, (5, 8, 1, 1), "int8"), integers(rng, (8, 1, 3, 3), "int8")
    twice, grouped = integers(rng, (3, 3, 8, 2), "uint8"), integers(rng, (4, 4, 3, 3), "int8")
    turned, zeros = integers(rng, (8, 4, 3, 3), "int8"), integers(rng, 6, "uint8").astype("int32")
    pair = const(0.1), const(0.2)

    def body(x, s, w):
        y = relay.transpose(s, [0, 2, 3, 1])
        hwio = relay.const(w_.transpose(2, 3, 1, 0))
        how = {"data_layout": "NHWC", "kernel_layout": "HWOI", "groups": 8}
        return relay.Tuple([
            qnn.conv2d(x, w, zero(121), zero(), *pair, (3, 3), 20, padding=(1, 1)),
            qnn.conv2d(s, relay.const(wide), zero(-5), zero(zeros), *pair, (3, 3), 6, (2, 2), padding=(1, 1, 0, 0)),
            qnn.conv2d(s, relay.const(one), zero(-128), zero(), *pair, kernel_size=(1, 1), channels=5),
            qnn.conv2d(x, relay.const(depth), zero(3), zero(), *pair, (3, 3), 8, padding=(1, 1), groups=8),
            qnn.conv2d(y, relay.const(twice), zero(7), zero(130), *pair, (3, 3), 16, padding=(1, 1), **how),
            qnn.conv2d(x, relay.const(grouped), zero(9), zero(1), *pair, (3, 3), 4, groups=2, dilation=(2, 1)),
            qnn.conv2d(y, hwio, zero(1), zero(), *pair, (3, 3), 20, data_layout="NHWC", kernel_layout="HWIO"),
            qnn.conv2d_transpose(x, relay.const(turned), zero(100), zero(2), *pair, strides=(2, 2), channels=4,
                                 kernel_size=(3, 3), padding=(1, 1), output_padding=(1, 1)),
        ])  # fmt: skip

    w_ = w
    lib = built(body, {"x": x, "s": s}, level, {"w": w})
    got = [np.asarray(each) for each in lib(x, s)]
    wx, ws, f = x.astype("int64"), s.astype("int64"), lambda a, z=0: a.astype("int64") - z
    two = f(twice, 130).transpose(2, 3, 0, 1).reshape(16, 1, 3, 3)
    padded = np.pad(ws + 5, ((0, 0), (0, 0), (1, 0), (1, 0)))
    want = [
        conv(wx - 121, f(w), padding=1),
        conv(padded, f(wide, zeros[:, None, None, None]), 2),
        conv(ws + 128, f(one)),
        conv(wx - 3, f(depth), padding=1, groups=8),
        conv(ws - 7, two, padding=1, groups=8).transpose(0, 2, 3, 1),
        conv(wx - 9, f(grouped, 1), groups=2, dilation=(2, 1)),
        conv(ws - 1, f(w)).transpose(0, 2, 3, 1),
        conv(wx - 100, f(turned, 2), 2, 1, function=F.conv_transpose2d, output_padding=1),
    ]
    for n, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine.dtype == np.int32
        np.testing.assert_array_equal(mine, theirs, str(n))
    if level:
        assert of_integers(lib) == 4


@AT_3
def test_dense_and_batch_matmul_are_exact_sums(level):
    rng = np.random.default_rng(3)
    x, y = integers(rng, (4, 30), "uint8"), integers(rng, (2, 5, 30), "int8")
    w, each = integers(rng, (20, 30), "int8"), integers(rng, (7, 30), "uint8")
    right, zeros = integers(rng, (2, 6, 30), "int8"), integers(rng, 7, "uint8").astype("int32")
    pair = const(0.1), const(0.2)

    def body(x, y, right, w):
        return relay.Tuple([
            qnn.dense(x, w, zero(77), zero(), *pair, 20),
            qnn.dense(x, relay.const(each), zero(1), zero(zeros), *pair, units=7),
            qnn.batch_matmul(y, right, zero(-9), zero(4), *pair),
        ])  # fmt: skip

    lib = built(body, {"x": x, "y": y, "right": right}, level, {"w": w})
    got = [np.asarray(each) for each in lib(x, y, right)]
    x, y, w, each, right = (array.astype("int64") for array in (x, y, w, each, right))
    np.testing.assert_array_equal(got[0], (x - 77) @ w.T)
    np.testing.assert_array_equal(got[1], (x - 1) @ (each - zeros[:, None]).T)
    np.testing.assert_array_equal(got[2], (y + 9) @ (right - 4).transpose(0, 2, 1))
    assert not level or "dot_matmul" in [*lib.kernels.family]


# ---------------------------------------------------------------- elementwise


@AT_3
def test_sums_and_products_of_two_are_bit_by_bit_what_tvm_defines(level):
    rng = np.random.default_rng(4)
    a, b = integers(rng, (3, 70), "uint8"), integers(rng, (3, 70), "uint8")
    scales = [0.1, 0.07, 0.15]
    each, parts = (
        np.array([0.1, 0.2, 0.3], "float32"),
        (const(0.1), zero(3), const(0.07), zero(90), const(0.15), zero(9)),
    )

    def body(a, b):
        return relay.Tuple([
            qnn.add(a, b, *parts), qnn.subtract(a, b, *parts), qnn.mul(a, b, *parts),
            qnn.add(a, b, *(const(0.1), zero(5)) * 3), qnn.mul(a, b, const(each), zero(3), *parts[2:], lhs_axis=0),
            qnn.concatenate((a, b), (const(0.1), const(0.15)), (zero(3), zero(9)), const(0.15), zero(9), axis=1),
            qnn.leaky_relu(a, 0.3, const(0.1), zero(80), const(0.15), zero(60)),
            qnn.leaky_relu(a, 0.3, const(0.1), zero(80), const(0.1), zero(80)),
        ])  # fmt: skip

    got = run(body, {"a": a, "b": b}, level)
    left, right = (
        requantized(q, s, z, 0.15, 0, dtype="int64").astype("int64") for q, s, z in ((a, 0.1, 3), (b, 0.07, 90))
    )
    products = (a.astype("int32") - 3) * (b.astype("int32") - 90)

    def leaky(scale, at):
        q = requantized(a, 0.1, 80, scale, at, dtype="int64")
        low = np.array([scaled(int(x), 0.3) + scaled(at, 1 - 0.3) for x in q.ravel()]).reshape(q.shape)
        return np.where(a < 80, low, q)

    f32 = np.float32
    want = [
        left + right + 9,
        left - right + 9,
        requantized(products, f32(scales[0]) * f32(scales[1]), 0, 0.15, 9, dtype="uint8"),
        a.astype("int64") + b - 5,
        requantized(products, each[:, None] * f32(scales[1]), 0, 0.15, 9, dtype="uint8"),
        np.concatenate([requantized(a, 0.1, 3, 0.15, 9, dtype="uint8"), b], 1),
        leaky(0.15, 60),
        leaky(0.1, 80),
    ]
    for n, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine.dtype == np.uint8
        np.testing.assert_array_equal(mine, np.clip(theirs, 0, 255), str(n))


FUNCTIONS = {
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "exp": np.exp, "log": np.log, "abs": np.abs, "tanh": np.tanh,
    "erf": np.vectorize(math.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}  # fmt: skip


def test_functions_are_within_a_step():
    q = np.arange(256).astype("uint8").reshape(4, 64)
    positive = {name: name in ("sqrt", "rsqrt", "log") for name in FUNCTIONS}

    def body(q):
        return relay.Tuple([
            getattr(qnn, name)(q, const(0.03), zero(-1 if positive[name] else 128), const(0.02), zero(100))
            for name in FUNCTIONS
        ])  # fmt: skip

    for name, got in zip(FUNCTIONS, run(body, {"q": q}), strict=True):
        x = (q.astype("float64") + 1 if positive[name] else q.astype("float64") - 128) * np.float64(np.float32(0.03))
        want = np.clip(np.rint(FUNCTIONS[name](x) / np.float64(np.float32(0.02))) + 100, 0, 255)
        assert got.dtype == np.uint8 and len(np.unique(got)) > 20
        assert np.abs(got - want).max() <= 1


# ---------------------------------------------------------------- a network


def network(rng):
    """A quantized network as importers of Relay write it, its weights, and what it is bit by bit."""
    weights = {
        "w1": integers(rng, (24, 3, 3, 3), "int8"), "b1": rng.integers(-4000, 4000, 24).astype("int32"),
        "w2": integers(rng, (24, 24, 3, 3), "int8"), "w3": integers(rng, (10, 24), "int8"),
    }  # fmt: skip
    each = rng.uniform(0.002, 0.01, 24).astype("float32")

    def body(x, w1, b1, w2, w3):
        q = qnn.quantize(x, const(0.02), zero(128), out_dtype="uint8")
        y = qnn.conv2d(q, w1, zero(128), zero(), const(0.02), const(each), (3, 3), 24, padding=(1, 1))
        y = relay.nn.bias_add(y, b1)
        y = qnn.requantize(y, const(0.02 * each), zero(), const(0.05), zero(0), axis=1, out_dtype="uint8")
        z = qnn.conv2d(y, w2, zero(0), zero(), const(0.05), const(0.01), (3, 3), 24, padding=(1, 1))
        z = qnn.requantize(z, const(0.0005), zero(), const(0.2), zero(10), out_dtype="uint8")
        y = qnn.add(y, z, const(0.05), zero(0), const(0.2), zero(10), const(0.2), zero(10))
        y = relay.nn.batch_flatten(relay.nn.max_pool2d(y, (8, 8), (8, 8)))
        y = qnn.dense(y, w3, zero(10), zero(), const(0.2), const(0.01), 10)
        return qnn.dequantize(y, const(0.002), zero())

    def exact(x):
        q = np.clip(np.rint(x / np.float32(0.02)) + 128, 0, 255).astype("int64")
        y = conv(q - 128, weights["w1"], padding=1) + weights["b1"][:, None, None]
        y = requantized(y, (0.02 * each)[:, None, None], 0, 0.05, 0, dtype="uint8")
        z = requantized(conv(y, weights["w2"], padding=1), 0.0005, 0, 0.2, 10, dtype="uint8")
        left, right = requantized(y, 0.05, 0, 0.2, 0, dtype="int64"), z.astype("int64") - 10
        y = np.clip(left + right + 10, 0, 255).max((2, 3))
        return ((y - 10) @ weights["w3"].T.astype("int64")).astype("float32") * np.float32(0.002)

    return body, weights, exact


@LEVELS
def test_a_network_is_bit_by_bit_what_relay_defines(level):
    rng = np.random.default_rng(5)
    body, weights, exact = network(rng)
    x = (rng.integers(-127, 127, (2, 3, 8, 8)) * 0.02 + 0.003).astype("float32")  # no ties
    lib = built(body, {"x": x}, level, weights)
    np.testing.assert_array_equal(np.asarray(lib(x)), exact(x))
    if level:
        kernels = [*lib.kernels.index]
        assert of_integers(lib) == 2 and "dot_matmul" in [*lib.kernels.family]
        assert len(kernels) <= 7, kernels  # requantize is computed where the sums are


def test_the_passes_of_qnn():
    rng = np.random.default_rng(6)
    body, weights, exact = network(rng)
    x = (rng.integers(-127, 127, (1, 3, 8, 8)) * 0.02 + 0.003).astype("float32")
    given = {"x": x, **weights}
    variables = {name: relay.var(name, shape=a.shape, dtype=a.dtype.name) for name, a in given.items()}
    mod = tvm.IRModule.from_expr(relay.Function([*variables.values()], body(**variables)))
    passes = importlib.import_module("tvm.relay.qnn.transform")
    assert "qnn.conv2d" in passes.Legalize()(mod).astext()
    lowered = passes.CanonicalizeOps()(mod)
    assert "qnn." not in lowered.astext() and "nn.conv2d" in lowered.astext()
    lib = relay.build(lowered, "llvm", params=weights)
    np.testing.assert_array_equal(np.asarray(lib.compiled(x)), exact(x))


def small_conv(q, weight, channels):
    x, w = relay.reshape(q, (1, 1, 3, 4)), relay.const(np.ones(weight, "int8"))
    return qnn.conv2d(relay.cast(x, "int8"), w, zero(), zero(), const(1.0), const(1.0), (1, 1), channels)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda q: qnn.requantize(q, const(-1.0), zero(), const(1.0), zero()), "input scale: expected finite numbers"),
        (lambda q: qnn.requantize(q, const(1.0), zero(), const(1.0), zero(), rounding="DOWN"), "UPWARD, TONEAREST"),
        (lambda q: qnn.requantize(q, const([1.0, 2.0]), zero(), const(1.0), zero()), "or 4 along axis -1"),
        (lambda q: qnn.quantize(q, relay.var("s", shape=()), zero()), "output scale: expected a constant"),
        (lambda q: qnn.dense(q, q, zero(), zero(), const(1.0), const(1.0), 3, "int16"), "expected int32"),
        (
            lambda q: qnn.concatenate(q, (const(1.0),), (zero(),), const(1.0), zero(), 0),
            "expected tuples of one length",
        ),
        (
            lambda q: qnn.requantize(q, const(1.0), zero(), const(1.0), zero([1, 2, 3, 4])),
            "output zero point: expected",
        ),
        (lambda q: qnn.dense(q, q, zero(), zero(), const(1.0), const(1.0), 4), "units: its weights have 3, got 4"),
        (lambda q: small_conv(q, (2, 1, 1, 1), 3), "channels: its weights have 2, got 3"),
        (lambda q: small_conv(q, (2, 3, 1, 1), 2), "relay.qnn.conv2d"),  # three channels of one
    ],
)
def test_what_qnn_refuses(call, words):
    q = relay.var("q", shape=(3, 4), dtype="int32")
    result = call(q)
    with pytest.raises(ValueError, match=words):
        relax_of(relay.Function(ir.free_vars(result), result))


# ---------------------------------------------------------------- relay.quantize


def floats():
    """A network of three convolutions and a dense layer, its weights, and its samples."""
    rng = np.random.default_rng(7)
    x = relay.var("data", shape=(2, 3, 8, 8))
    y, params = x, {}
    for n, (ins, outs) in enumerate(((3, 16), (16, 16), (16, 16))):
        w = relay.var(f"w{n}", shape=(outs, ins, 3, 3))
        params[f"w{n}"] = (rng.standard_normal(w.type_annotation.shape) / (3 * ins**0.5)).astype("float32")
        y = relay.nn.relu(relay.nn.conv2d(y, w, kernel_size=(3, 3), channels=outs, padding=(1, 1)))
    params["d"] = rng.standard_normal((4, 16)).astype("float32")
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y))
    y = relay.nn.dense(y, relay.var("d", shape=(4, 16)))
    samples = [rng.standard_normal((2, 3, 8, 8)).astype("float32") for _ in range(3)]
    return tvm.IRModule.from_expr(relay.Function(ir.free_vars(y), y)), params, samples


@functools.cache
def wanted():
    mod, params, samples = floats()
    return np.asarray(tvmfast.build(*relax_of(mod, params))(samples[0]))


@pytest.mark.parametrize(
    "options, layers, share",
    [
        ({}, 2, 0.08),
        ({"global_scale": 4.0, "skip_conv_layers": None, "skip_dense_layer": False}, 4, 0.08),
        pytest.param({"calibrate_mode": "kl_divergence"}, 2, 0.05, marks=pytest.mark.full),
        ({"calibrate_mode": "percentile", "skip_conv_layers": [0, 2]}, 1, 0.05),
    ],
)
def test_relay_quantize_computes_in_int8(options, layers, share):
    mod, params, samples = floats()
    with relay.quantize.qconfig(**options):
        dataset = [{"data": tvm.runtime.tensor(x)} for x in samples]
        quantized = relay.quantize.quantize(mod, params, dataset=dataset)
    assert [p.name_hint for p in quantized["main"].params] == ["data"]
    lib = relay.build(quantized, "llvm").compiled
    families = [*lib.kernels.family]
    assert of_integers(lib) + families.count("dot_matmul") == layers
    got = np.asarray(lib(samples[0]))
    assert 0 < np.abs(got - wanted()).max() <= share * np.abs(wanted()).max()


def test_a_fixed_range_is_that_of_relay():
    mod, params, _ = floats()
    with relay.quantize.qconfig(global_scale=2.0, skip_conv_layers=[1, 2]):
        lib = relay.build(relay.quantize.quantize(mod, params), "llvm").compiled
    large = np.full((2, 3, 8, 8), 5.0, "float32")
    np.testing.assert_array_equal(np.asarray(lib(large)), np.asarray(lib(np.full_like(large, 2 - 2 / 128))))


def test_what_relay_quantize_refuses():
    mod, params, _ = floats()
    for option in ({"weight_scale": "max"}, {"do_simulation": True}, {"rounding": "TONEAREST"}):
        with pytest.warns(UserWarning, match=f"qconfig: {next(iter(option))} has no effect: "):
            relay.quantize.qconfig(**option)
    with pytest.raises(ValueError, match="UPWARD, TONEAREST; got 'DOWN'"), qnn.requantize_config(rounding="DOWN"):
        pytest.fail("the context is not entered")
    with pytest.raises(AttributeError, match="no option 'nbits'; it has calibrate_mode"):
        relay.quantize.qconfig(nbits=4)
    with pytest.raises(NotImplementedError, match="nbit_weight is one of 8; got 4"):
        relay.quantize.qconfig(nbit_weight=4)
    with pytest.raises(ValueError, match="global_scale is a number above 0"):
        relay.quantize.qconfig(global_scale=0)
    with relay.quantize.qconfig(calibrate_mode="percentile"), pytest.raises(ValueError, match="give dataset="):
        assert relay.quantize.current_qconfig().calibrate_mode == "percentile"
        relay.quantize.quantize(mod, params)
    assert relay.quantize.current_qconfig().calibrate_mode == "global_scale"
