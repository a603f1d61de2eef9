"""Quantized ONNX models: what ONNX Runtime's quantizer writes, each operator by itself, and what is refused.

Where ONNX defines a result bit by bit it has to be that one, elsewhere ONNX Runtime's within one step of the scale.
Weights have 7 bits: with AVX2 alone ONNX Runtime's sums of two products of 8 bits saturate.
"""

import itertools
import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from agreement import close
from onnx import helper, numpy_helper, parser
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType
from testing import by_level, sampled

from tvmfast import build, from_onnx, load

LEVELS = [0, 3]
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1)}


def model_of(inputs: dict, outputs: dict, nodes: list, constants: dict, opset: int = 21) -> onnx.ModelProto:
    """A model of such nodes; inputs and outputs by name are arrays, or dtypes and shapes."""

    def value(name, like):
        dtype, shape = (like.dtype, like.shape) if isinstance(like, np.ndarray) else like
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [value(*each) for each in inputs.items()],
        [value(*each) for each in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def onnx_runtime(model: onnx.ModelProto, feed: dict) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def ours(model: onnx.ModelProto, feed: dict, level: int) -> list[np.ndarray]:
    results = build(*from_onnx(model), opt_level=level)(*feed.values())
    return [np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])]


def quantized(x: np.ndarray, scale, zero, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.clip(np.rint(x / scale).astype("float64") + zero, *RANGES[dtype]).astype(dtype)


@pytest.mark.parametrize("level", LEVELS)
def test_quantizing_and_dequantizing_is_exact(level):
    rng = np.random.default_rng(1)
    halves = np.arange(-300, 300, dtype="float32") * np.float32(0.05)  # ties of a scale of 0.1, about
    large = np.array([0.0, -0.0, 3e38, -3e38, np.inf, -np.inf, 1e-40, 32767.5, -32768.5, 65535.5], "float32")
    x = np.concatenate([halves, large, rng.standard_normal(1790) * 40]).astype("float32").reshape(3, 20, 40)
    scales = {"one": np.float32(0.1), "each": (rng.random(20) + 0.01).astype("float32")}
    nodes, outputs, constants, wanted = [], {}, {}, []
    for dtype, (low, high) in RANGES.items():
        zeros = {"one": np.array(low // 3 + high // 4, dtype), "each": rng.integers(low, high + 1, 20).astype(dtype)}
        for kind, zero in zeros.items():
            name, axis, scale = f"{dtype}_{kind}", {} if kind == "one" else {"axis": -2}, scales[kind]
            constants |= {f"s_{name}": scale, f"z_{name}": zero}
            nodes += [
                helper.make_node("QuantizeLinear", ["x", f"s_{name}", f"z_{name}"], [name], **axis),
                helper.make_node("DequantizeLinear", [name, f"s_{name}", f"z_{name}"], [f"f_{name}"], **axis),
            ]
            outputs |= {name: (dtype, x.shape), f"f_{name}": ("float32", x.shape)}
            scale, zero = (each if kind == "one" else each.reshape(20, 1) for each in (scale, zero))
            q = quantized(x, scale, zero.astype("float64"), dtype)
            wanted += [q, (q.astype("float32") - zero.astype("float32")) * scale]
    model = model_of({"x": x}, outputs, nodes, constants)
    for name, got, want in zip(outputs, ours(model, {"x": x}, level), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, name)


def test_halves_bfloat16_and_int32():
    rng = np.random.default_rng(2)
    x, bias = rng.standard_normal((4, 6)).astype("float16"), rng.integers(-(2**20), 2**20, 6).astype("int32")
    constants = {"h": np.float16(0.03), "z": np.int8(-7), "f": np.float32(0.03), "u": np.uint16(900), "p": np.int8(3)}
    constants |= {"s": rng.random(6).astype("float32"), "b": bias}
    half, single, brain = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "h", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "h", "z"], ["d"]),
        helper.make_node("QuantizeLinear", ["x", "h", "u"], ["w"]),
        helper.make_node("QuantizeLinear", ["x", "h"], ["n"], output_dtype=onnx.TensorProto.INT8, precision=single),
        helper.make_node("DequantizeLinear", ["q", "f", "z"], ["t"], output_dtype=half),
        helper.make_node("DequantizeLinear", ["b", "s"], ["e"], axis=0),
        helper.make_node("Cast", ["x"], ["y"], to=brain),
        helper.make_node("Cast", ["h"], ["k"], to=brain),
        helper.make_node("QuantizeLinear", ["y", "k", "p"], ["v"]),
        helper.make_node("DequantizeLinear", ["v", "k", "p"], ["a"]),
        helper.make_node("Cast", ["a"], ["c"], to=single),
    ]
    outputs = {"q": ("int8", x.shape), "d": ("float16", x.shape), "w": ("uint16", x.shape), "n": ("int8", x.shape)}
    outputs |= {"t": ("float16", x.shape), "e": ("float32", (6,)), "v": ("int8", x.shape), "c": ("float32", x.shape)}
    q, d, w, n, t, e, v, c = ours(model_of({"x": x}, outputs, nodes, constants, 23), {"x": x}, 3)
    np.testing.assert_array_equal(q, quantized(x, np.float16(0.03), -7, "int8"))
    np.testing.assert_array_equal(d, ((q.astype("float32") + 7) * np.float32(np.float16(0.03))).astype("float16"))
    np.testing.assert_array_equal(w, quantized(x, np.float16(0.03), 900, "uint16"))
    np.testing.assert_array_equal(n, quantized(x.astype("float32"), np.float32(np.float16(0.03)), 0, "int8"))
    np.testing.assert_array_equal(t, ((q.astype("float32") + 7) * np.float32(0.03)).astype("float16"))
    np.testing.assert_array_equal(e, bias.astype("float32") * constants["s"])
    step = 0.03 * 2**-7 * np.abs(x.astype("float64") / 0.03).max()  # the quotient in 8 bits
    assert np.abs(v.astype("float64") - 3 - x.astype("float64") / 0.03).max() <= 0.5 + step / 0.03
    np.testing.assert_array_less(np.abs(c - (v.astype("float32") - 3) * 0.03), np.abs(c) * 2**-6 + 1e-30)


@pytest.mark.parametrize("constant", [True, False])
def test_a_product_whose_scales_are_halves(constant):
    """Of numbers that overflow float16, as their products and sums do."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 256, shape).astype("uint8") for shape in ((2, 5, 28), (2, 28, 3)))
    scales = {"a_s": np.array(1000, "float16"), "b_s": np.array(0.05, "float16"), "y_s": np.array(65000, "float16")}
    zeros = {"a_z": np.uint8(113), "b_z": np.uint8(114), "y_z": np.uint8(118)}
    names = "a", "a_s", "a_z", "b", "b_s", "b_z", "y_s", "y_z"
    nodes, feed = [helper.make_node("QLinearMatMul", names, ["y"])], {"a": a, "b": b}
    feed, constants = (feed, scales | zeros) if constant else (feed | scales, zeros)
    model = model_of(feed, {"y": ("uint8", (2, 5, 3))}, nodes, constants)
    total = (a.astype("float64") - 113) @ (b.astype("float64") - 114)
    factor = float(scales["a_s"]) * float(scales["b_s"]) / float(scales["y_s"])
    (got,), wanted = ours(model, feed, 3), total * factor + 118
    assert wanted.min() > 0 and wanted.max() < 255
    assert np.abs(got - wanted).max() < 0.501


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
def test_products_of_integers_are_exact(level):
    rng = np.random.default_rng(3)
    feed = {
        "a": rng.integers(0, 256, (2, 5, 70)).astype("uint8"),
        "x": rng.integers(-128, 128, (1, 4, 9, 8)).astype("int8"),
    }
    constants = {
        "b": rng.integers(-128, 128, (70, 6)).astype("int8"),
        "za": np.uint8(255),
        "rows": rng.integers(0, 256, 5).astype("uint8"),
        "zb": rng.integers(-128, 128, 6).astype("int8"),
        "w": rng.integers(0, 256, (6, 2, 3, 3)).astype("uint8"),
        "zx": np.int8(-128),
        "zw": rng.integers(0, 256, 6).astype("uint8"),
        "one": np.array([77], "uint8"),
    }
    nodes = [
        helper.make_node("MatMulInteger", ["a", "b"], ["y0"]),
        helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y1"]),
        helper.make_node("MatMulInteger", ["a", "b", "rows", "zb"], ["y2"]),
        helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["c0"], group=2, pads=[1, 0, 2, 1], strides=[2, 1]),
        helper.make_node("ConvInteger", ["x", "w", "zx", "one"], ["c1"], group=2, auto_pad="SAME_UPPER"),
    ]
    sizes = {"y0": (2, 5, 6), "y1": (2, 5, 6), "y2": (2, 5, 6), "c0": (1, 6, 5, 7), "c1": (1, 6, 9, 8)}
    outputs = {name: ("int32", shape) for name, shape in sizes.items()}
    got = ours(model_of(feed, outputs, nodes, constants), feed, level)
    wide = {name: np.asarray(array).astype("int64") for name, array in (feed | constants).items()}
    a, b = wide["a"], wide["b"]
    np.testing.assert_array_equal(got[0], a @ b)
    np.testing.assert_array_equal(got[1], (a - wide["za"]) @ (b - wide["zb"]))
    np.testing.assert_array_equal(got[2], (a - wide["rows"][:, None]) @ (b - wide["zb"]))
    x = wide["x"] - wide["zx"]
    for result, zero, pads, strides in ((got[3], "zw", (1, 0, 2, 1), (2, 1)), (got[4], "one", (1, 1, 1, 1), (1, 1))):
        weight = wide["w"] - wide[zero].reshape(-1, 1, 1, 1)
        padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]).reshape(
            1, 2, 2, *[size + pads[i] + pads[2 + i] for i, size in enumerate((9, 8))]
        )
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (3, 4))[
            ..., :: strides[0], :: strides[1], :, :
        ]
        want = np.einsum("ngcyxij,gocij->ngoyx", windows, weight.reshape(2, 3, 2, 3, 3))
        np.testing.assert_array_equal(result, want.reshape(result.shape))


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_extremes_are_those_of_int32(level):
    """They wrap around, as two's complement does; 40,000 squares of 255 are more than it holds."""
    nodes, feed, zeros, outputs, wanted = [], {}, {}, {}, []
    for left, right in itertools.product(("uint8", "int8"), repeat=2):
        for length, (low, high) in itertools.product((7, 64, 40_000), ((0, 1), (1, 0))):
            name = f"{left}_{right}_{length}_{low}"
            values = [np.array(RANGES[dtype], dtype) for dtype in (left, right)]
            a, b = np.full((3, length), values[0][high]), np.full((length, 5), values[1][high])
            feed |= {f"a_{name}": a, f"b_{name}": b}
            zeros |= {f"y_{name}": values[0][low], f"z_{name}": values[1][low]}
            inputs = [f"{each}_{name}" for each in "abyz"]
            nodes.append(helper.make_node("MatMulInteger", inputs, [name]))
            outputs[name] = ("int32", (3, 5))
            exact = (a.astype("int64") - values[0][low]) @ (b.astype("int64") - values[1][low])
            wanted.append(exact.astype("int32"))
    for got, want in zip(ours(model_of(feed, outputs, nodes, zeros), feed, level), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
def test_dynamic_quantization_follows_onnx_runtime(level):
    rng = np.random.default_rng(4)
    cases = [rng.standard_normal((3, 7)) * 3, rng.random((3, 7)) + 2, -rng.random((3, 7)) - 2, np.zeros((3, 7))]
    cases.append(np.array([[0, 2.5, 255, -1.5, 0.5, 1.5, 3]] * 3) / 2)
    for special in ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf], [3e38, -3e38], [1e-44]):
        x = rng.standard_normal((3, 7))
        x[0, : len(special)] = special  # ONNX Runtime forgets what came before NaN, here nothing
        cases.append(x)
    weight = rng.integers(-64, 64, (7, 5)).astype("int8")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DynamicQuantizeMatMul", ["x", "w", "t", "v", "b"], ["y"], domain="com.microsoft"),
        helper.make_node("MatMulIntegerToFloat", ["q", "w", "s", "t", "z"], ["m"], domain="com.microsoft"),
    ]
    constants = {"w": weight, "t": rng.random(5).astype("float32"), "v": np.int8(3), "b": np.ones(5, "float32")}
    outputs = {"q": ("uint8", (3, 7)), "s": ("float32", ()), "z": ("uint8", ())}
    outputs |= {"y": ("float32", (3, 5)), "m": ("float32", (3, 5))}
    model = model_of({"x": ("float32", (3, 7))}, outputs, nodes, constants)
    lib = build(*from_onnx(model), opt_level=level)
    for x in cases:
        x = x.astype("float32")
        wanted = onnx_runtime(model, {"x": x})
        got = [np.asarray(each) for each in lib(x)]
        for mine, want in zip(got[:3], wanted[:3], strict=True):
            np.testing.assert_array_equal(mine, want)
        close(got[3:], wanted[3:], 4, rounded=True)
    q, scale, zero, *_ = lib(np.full((3, 7), np.nan, "float32"))  # as of numbers none of which is an extreme
    assert not np.asarray(q).any() and (scale, zero) == (1, 0)


def scaled(name: str, dtype: str = "uint8", scale: float = 0.02, zero: int | None = None) -> dict:
    """A scale and a zero point as constants, by names."""
    zero = RANGES[dtype][1] // 3 if zero is None else zero
    return {f"{name}_s": np.float32(scale), f"{name}_z": np.array(zero, dtype)}


def qlinear(op: str, inputs: list[str], output: str, **attributes):
    """A node of com.microsoft, whose tensors "x" and output "y" have scales and zero points "x_s" and "x_z"."""
    operands = [name for x in inputs for name in (x, f"{x}_s", f"{x}_z")]
    return helper.make_node(
        op, [*operands, f"{output}_s", f"{output}_z"], [output], domain="com.microsoft", **attributes
    )


OF_BYTES = [(dtype, level) for dtype in ("uint8", "int8") for level in LEVELS]


@pytest.mark.parametrize("given", sampled(OF_BYTES, [("uint8", 0), ("int8", 3)]), ids=str)
def test_operators_on_8_bits_are_those_of_onnx_runtime(given):
    dtype, level = given
    rng = np.random.default_rng(5)
    low, high = RANGES[dtype]
    x, y = (rng.integers(low, high + 1, (2, 6, 7, 7)).astype(dtype) for _ in range(2))
    bias = rng.integers(-900, 900, 8).astype("int32")
    constants = {
        **scaled("x", dtype, 0.03, low + 100), **scaled("y", dtype, 0.02), **scaled("add", dtype, 0.05),
        **scaled("mul", dtype, 0.04), **scaled("sig", dtype, 1 / 256, low), **scaled("leak", dtype, 0.02),
        **scaled("soft", dtype, 1 / 256, low), **scaled("soft1", dtype, 1 / 256, low), **scaled("pool", dtype, 0.025),
        **scaled("gap", dtype, 0.03), **scaled("where", dtype, 0.03),
        **scaled("conv", dtype, 0.09), **scaled("mat", dtype, 0.08), **scaled("gemm", dtype, 0.1),
        **scaled("cat", dtype, 0.03), "bias": bias, "half": (rng.random((2, 6, 7, 7)) < 0.5),
        "w": rng.integers(-64, 64, (8, 3, 3, 3)).astype("int8"), "w_s": (rng.random(8) / 50 + 0.01).astype("float32"),
        "w_z": np.zeros(8, "int8"), "m": rng.integers(-64, 64, (7, 5)).astype("int8"), "m_s": np.float32(0.02),
        "m_z": np.int8(0), "g": rng.integers(-64, 64, (8, 7)).astype("int8"), "g_z": np.zeros(8, "int8"),
        "flat": np.array([-1, 7]),
    }  # fmt: skip
    outputs = {
        "add": (2, 6, 7, 7), "mul": (2, 6, 7, 7), "sig": (2, 6, 7, 7), "leak": (2, 6, 7, 7), "soft": (2, 6, 7, 7),
        "soft1": (2, 6, 7, 7), "pool": (2, 6, 4, 4), "gap": (2, 6, 1, 1), "where": (2, 6, 7, 7),
        "none": (2, 6, 7, 7), "cat": (2, 12, 7, 7), "conv": (2, 8, 4, 4),
        "mat": (2, 6, 7, 5), "gemm": (84, 8), "max": (2, 6, 6, 6),
    }  # fmt: skip
    nodes = [
        qlinear("QLinearAdd", ["x", "y"], "add"),
        qlinear("QLinearMul", ["x", "y"], "mul"),
        qlinear("QLinearSigmoid", ["x"], "sig"),
        qlinear("QLinearLeakyRelu", ["x"], "leak", alpha=0.2),
        qlinear("QLinearSoftmax", ["x"], "soft", axis=-1, opset=13),
        qlinear("QLinearSoftmax", ["x"], "soft1", axis=2, opset=12),
        qlinear("QLinearAveragePool", ["x"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        qlinear("QLinearGlobalAveragePool", ["x"], "gap"),
        helper.make_node(
            "QLinearAdd", ["x", "x_s", "x_z", "y", "y_s", "y_z", "add_s"], ["none"], domain="com.microsoft"
        ),
        helper.make_node(
            "QLinearWhere", ["half", "x", "x_s", "x_z", "y", "y_s", "y_z", "where_s", "where_z"], ["where"],
            domain="com.microsoft",
        ),
        helper.make_node(
            "QLinearConcat", ["cat_s", "cat_z", "x", "x_s", "x_z", "y", "y_s", "y_z"], ["cat"], axis=1,
            domain="com.microsoft",
        ),
        helper.make_node(
            "QLinearConv", ["x", "x_s", "x_z", "w", "w_s", "w_z", "conv_s", "conv_z", "bias"], ["conv"], group=2,
            pads=[1, 1, 1, 1], strides=[2, 2],
        ),
        helper.make_node("QLinearMatMul", ["x", "x_s", "x_z", "m", "m_s", "m_z", "mat_s", "mat_z"], ["mat"]),
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node(
            "QGemm", ["rows", "x_s", "x_z", "g", "w_s", "g_z", "bias", "gemm_s", "gemm_z"], ["gemm"], transB=1,
            domain="com.microsoft",
        ),
        helper.make_node("MaxPool", ["x"], ["max"], kernel_shape=[2, 2]),
    ]  # fmt: skip
    feed = {"x": x, "y": y}
    model = model_of(feed, {name: (dtype, shape) for name, shape in outputs.items()}, nodes, constants, 17)
    wanted = dict(zip(outputs, onnx_runtime(model, feed), strict=True))
    got = dict(zip(outputs, ours(model, feed, level), strict=True))
    for name, want in wanted.items():
        assert got[name].dtype == want.dtype and got[name].shape == want.shape, name
        difference = np.abs(got[name].astype("int32") - want)
        assert difference.max() <= (name != "max"), name
        assert (difference > 0).mean() < 0.05, name  # ties of roundings alone
        assert len(np.unique(want)) > 6, name


def test_mean_of_8_bits_and_operators_on_16():
    """ONNX Runtime has no kernel of QLinearReduceMean; those of 16 bits are its own below opset 21."""
    x = np.random.default_rng(6).integers(0, 256, (2, 3, 40)).astype("uint8")
    constants = scaled("x") | scaled("mean", zero=90) | scaled("wide", "int16", 0.001, -500)
    nodes = [
        qlinear("QLinearReduceMean", ["x"], "mean", axes=[2], keepdims=0),
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["f"]),
        helper.make_node("QuantizeLinear", ["f", "wide_s", "wide_z"], ["wide"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["wide", "wide_s", "wide_z"], ["back"], domain="com.microsoft"),
    ]
    outputs = {"mean": ("uint8", (2, 3)), "wide": ("int16", x.shape), "back": ("float32", x.shape)}
    f = (x.astype("float32") - 85) * np.float32(0.02)
    for opset in (13, 18):
        mean, wide, back = ours(model_of({"x": x}, outputs, nodes, constants, opset), {"x": x}, 0)
        assert np.abs(mean - (f.astype("float64").mean(2) / 0.02 + 90)).max() <= 0.5 + 1e-3
        np.testing.assert_array_equal(wide, quantized(f, np.float32(0.001), -500, "int16"))
        np.testing.assert_array_equal(back, (wide.astype("float32") + 500) * np.float32(0.001))


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits_are_dequantized(bits):
    """Blocks of 16 rows, the last one not full; zero points by default, packed and in float32."""
    rng, rows, columns, block = np.random.default_rng(11), 40, 6, 16
    x = rng.standard_normal((2, 3, rows)).astype("float32")
    q = rng.integers(0, 1 << bits, (columns, 3, block))
    zero = rng.integers(0, 1 << bits, (columns, 4))  # of a block more, which fills the last byte
    scales = (rng.random((columns, 3)) + 0.1).astype("float32") / 8

    def packed(numbers):
        numbers = numbers.astype("uint8")
        return numbers if bits == 8 else numbers[..., ::2] | numbers[..., 1::2] << 4

    constants = {"b": packed(q), "s": scales.reshape(-1), "bias": rng.standard_normal(columns).astype("float32")}
    constants |= {
        "packed": packed(zero[:, : 3 if bits == 8 else 4]).reshape(-1),
        "f": zero[:, :3].astype("float32") + 0.5,
    }
    how = {"K": rows, "N": columns, "bits": bits, "block_size": block, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "b", "s"], ["y0"], **how),
        helper.make_node("MatMulNBits", ["x", "b", "s", "packed"], ["y1"], **how),
        helper.make_node("MatMulNBits", ["x", "b", "s", "f", "", "bias"], ["y2"], **how),
    ]
    outputs = {f"y{i}": ("float32", (2, 3, columns)) for i in range(3)}
    results = ours(model_of({"x": x}, outputs, nodes, constants), {"x": x}, 3)
    zeros = np.full((columns, 3), 1 << (bits - 1)), zero[:, :3], zero[:, :3] + 0.5
    for got, each, bias in zip(results, zeros, (0, 0, constants["bias"]), strict=True):
        weight = ((q - each[..., None]) * scales[..., None].astype("float64")).reshape(columns, -1)[:, :rows]
        sizes = np.abs(x.astype("float64")) @ np.abs(weight.T)
        close(got, x.astype("float64") @ weight.T + bias, rows + 4, scale=sizes.max() + 3)


def bits_model(bits: int, zero=None, block=32, of=np.float32, seed=3) -> tuple:
    """A MatMulNBits of 96 x 24 with scales of a dtype; its input, and the weights that it means, in float64."""
    rng, rows, columns = np.random.default_rng(seed), 96, 24
    blocks = rows // block
    q = rng.integers(0, 1 << bits, (columns, blocks, block)).astype("uint8")
    zeros = np.full((columns, blocks), 1 << (bits - 1) if zero is None else zero)
    scales = (rng.random((columns, blocks)) / 50 + 0.01).astype(of)
    shifts = np.arange(0, 8, bits, dtype="uint8")
    packed = np.bitwise_or.reduce(q.reshape(columns, blocks, -1, 8 // bits) << shifts, axis=-1)
    constants = {"b": packed, "s": scales.reshape(-1).astype("float32")}
    if zero is not None:
        constants["z"] = zeros.reshape(-1).astype("float32")
    x = rng.standard_normal((5, rows)).astype("float32")
    how = {"K": rows, "N": columns, "bits": bits, "block_size": block, "domain": "com.microsoft"}
    node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], **how)
    model = model_of({"x": x}, {"y": ("float32", (5, columns))}, [node], constants)
    weight = ((q - zeros[..., None]) * constants["s"].astype("float64").reshape(columns, blocks, 1)).reshape(
        columns, rows
    )
    return model, x, weight


OF_FEW_BITS = {  # bits, zero point, the dtype that holds the scales, and what a weight takes then, in bits
    "4 bits": (4, None, np.float32, 4 + 1),
    "4 bits and scales of a half": (4, None, np.float16, 4 + 0.5),
    "4 bits and a zero point": (4, 3, np.float16, 8 + 0.5),
    "2 bits and a zero point": (2, 1, np.float16, 4 + 0.5),
    "8 bits": (8, None, np.float16, 8 + 0.5),
    "8 bits and a zero point": (8, 100, np.float16, 32),
    "4 bits between two integers": (4, 7.5, np.float16, 32),
}


@pytest.mark.parametrize(("case", "level"), by_level(OF_FEW_BITS, ["4 bits and a zero point"]))
def test_weights_of_few_bits_stay_in_them(case, level, tmp_path):
    *given, size = OF_FEW_BITS[case]
    model, x, weight = bits_model(given[0], given[1], of=given[2])
    mod, params = from_onnx(model)
    assert sum(array.numpy().nbytes for array in params.values()) == weight.size * size / 8
    lib = build(mod, params, opt_level=level)
    lib.save(tmp_path / "saved")
    lib = load(tmp_path / "saved")
    sizes = np.abs(x.astype("float64")) @ np.abs(weight.T)
    close(lib(x), x.astype("float64") @ weight.T, 96 + 4, scale=sizes.max())
    arrays = lib.arrays_of_all.values()
    stored = sum(int(np.prod(each.shape)) * np.dtype(str(each.dtype)).itemsize for each in arrays)
    assert stored <= weight.size * size / 8 * (1 if level == 0 else 64 / 24)  # panels of whole vectors of columns


def test_weights_of_few_bits_of_dynamic_rows_stay_in_them():
    model, x, weight = bits_model(4)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    mod, params = from_onnx(model)
    assert {str(array.dtype) for array in params.values()} == {"int32", "float32"}
    lib = build(mod, params)
    for rows in (1, 5):
        wanted = x[:rows].astype("float64") @ weight.T
        close(lib(x[:rows]), wanted, 96 + 4, scale=(np.abs(x) @ np.abs(weight.T)).max())


def network() -> onnx.ModelProto:
    """A small network with dynamic batch: convolutions, a residual sum, pools, a matrix product."""
    rng = np.random.default_rng(7)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float["n", 3, 8, 8] x) => (float["n", 5] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1) b = Relu(a) c = Conv<pads = [1, 1, 1, 1], group = 2>(b, w2, b2)
        d = Add(c, b) e = LeakyRelu<alpha = 0.1>(d) f = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
        h = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(f) i = Concat<axis = 1>(f, h)
        l = GlobalAveragePool(i) m = Flatten(l) o = Gemm<transB = 1>(m, w3, b3)
        y = MatMul(o, w4)
    }"""
    model = parser.parse_model(text)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 4, 3, 3), "b2": (8,), "w3": (6, 16), "b3": (6,), "w4": (6, 5)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape) / max(1, np.prod(shape[1:])) ** 0.5
        model.graph.initializer.append(numpy_helper.from_array(array.astype("float32"), name))
    return model


class Samples(quantization.CalibrationDataReader):
    """Four batches to calibrate with."""

    def __init__(self):
        rng = np.random.default_rng(8)
        self.batches = iter([{"x": rng.standard_normal((4, 3, 8, 8)).astype("float32")} for _ in range(4)])

    def get_next(self):
        return next(self.batches, None)


STATIC = {
    "QDQ": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QInt8, "per_channel": True},
    "QDQ of unsigned": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8},
    "QOperator": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QInt8},
    "QOperator of unsigned": {
        "quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8, "per_channel": True,
    },
    "dynamic": {"weight_type": QuantType.QUInt8},
    "dynamic per channel": {"weight_type": QuantType.QInt8, "per_channel": True},
}  # fmt: skip


CASES = [(kind, level) for kind in STATIC for level in (0, 3)]


@pytest.mark.parametrize("case", sampled(CASES, CASES[1::4] + CASES[2::4]), ids=str)
def test_what_onnx_runtimes_quantizer_writes(case, tmp_path, caplog):
    """The scale of the output is the step; where a tie inside rounds the other way, a sample is some steps off."""
    kind, level = case
    caplog.set_level(logging.ERROR)
    source, file = str(tmp_path / "net.onnx"), str(tmp_path / "quantized.onnx")
    onnx.save(network(), source)
    if kind.startswith("dynamic"):
        quantization.quantize_dynamic(source, file, reduce_range=True, **STATIC[kind])
    else:
        quantization.quantize_static(
            source, file, Samples(), weight_type=QuantType.QInt8, reduce_range=True, **STATIC[kind]
        )
    model = onnx.load(file)
    mod, params = from_onnx(file)
    assert {str(array.dtype) for array in params.values()} <= {"int8", "uint8", "int32", "float32"}
    kept = sum(array.numpy().nbytes for array in params.values())
    assert kept < sum(np.prod(tensor.dims) for tensor in network().graph.initializer) * 4 / 2
    x = np.random.default_rng(9).standard_normal((6, 3, 8, 8)).astype("float32")
    wanted = onnx_runtime(model, {"x": x})[0]
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    step = scales.get("y_scale", np.abs(wanted).max() / 255)
    lib = build(mod, params, opt_level=level)
    results = np.asarray(lib(x))
    difference = np.abs(results - wanted).max(1)
    assert np.sort(difference)[-2] <= step * 1.001 and difference.max() <= step * 8
    if "dynamic" not in kind:  # where the scales are those of a batch
        np.testing.assert_array_equal(np.asarray(lib(x[:2])), results[:2])


def attention_model(masked: bool = False, **changed) -> onnx.ModelProto:
    """A QAttention of 2 batches of 12 rows, 3 heads of 8, with a scale for each column, and a mask of keys."""
    rng = np.random.default_rng(12)
    constants = {"w": rng.integers(-64, 64, (40, 72)).astype("int8"), "b": rng.standard_normal(72).astype("float32")}
    constants |= {"x_s": np.float32(0.02), "w_s": (rng.random(72) / 90 + 0.01).astype("float32")}
    constants |= {"x_z": np.uint8(117), "w_z": np.zeros(72, "int8")} | changed.pop("constants", {})
    names = ["x", "w", "b", "x_s", "w_s", "m" if masked else "", "x_z", "w_z", *changed.pop("more", ())]
    how = {"num_heads": 3, "domain": "com.microsoft"} | changed
    inputs = {"x": ("uint8", (2, 12, 40))} | ({"m": ("int32", (2, 12))} if masked else {})
    node = helper.make_node("QAttention", names, ["y"], "heads", **how)
    return model_of(inputs, {"y": ("float32", (2, 12, 24))}, [node], constants, 17)


OF_KEYS = [(keys, level) for keys in ("all keys", "masked") for level in LEVELS]


@pytest.mark.parametrize("given", sampled(OF_KEYS, [("all keys", 0), ("masked", 3)]), ids=str)
def test_attention_on_8_bits(given):
    masked, level = given[0] == "masked", given[1]
    model, rng = attention_model(masked), np.random.default_rng(13)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    feed = {"x": rng.integers(0, 256, (2, 12, 40)).astype("uint8")}
    keep = np.ones((2, 12), "int32")
    if masked:
        keep[0, 7:], keep[1, ::3] = 0, 0
        feed["m"] = keep
    q = (feed["x"].astype("int64") - 117) @ constants["w"].astype("int64")
    product = q * (np.float64(constants["x_s"]) * constants["w_s"]) + constants["b"]
    queries, keys, values = product.reshape(2, 12, 3, 3, 8).transpose(2, 0, 3, 1, 4)
    scores = queries @ keys.swapaxes(-1, -2) / 8**0.5 + np.where(keep, 0, -1e4)[:, None, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True) @ values).transpose(0, 2, 1, 3).reshape(2, 12, 24)
    mod, params = from_onnx(model)
    assert str(params["w"].dtype) == "int8"
    lib = build(mod, params, opt_level=level)
    close(lib(*feed.values()), wanted, 40, scale=np.abs(values).max() * (1 + np.abs(scores[scores > -5e3]).max()))
    np.testing.assert_allclose(onnx_runtime(model, feed)[0], wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())
    if level == 3:
        assert any("dense_of_integers" in kernel for kernel in lib.kernels.index)


def lstm_model() -> onnx.ModelProto:
    """A DynamicQuantizeLSTM of 5 steps of 4 numbers, 3 hidden ones."""
    constants = {"w": np.ones((1, 4, 12), "int8"), "r": np.ones((1, 3, 12), "int8"), "s": np.ones(1, "float32")}
    constants |= {"z": np.zeros(1, "int8")}
    names = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], "cell", hidden_size=3, domain="com.microsoft")
    return model_of({"x": ("float32", (5, 1, 4))}, {"y": ("float32", (5, 1, 1, 3))}, [node], constants, 17)


def embedding_model() -> onnx.ModelProto:
    constants = {name: np.ones((6, 8), "uint8") for name in ("words", "places", "kinds")}
    constants |= {name: np.ones(8, "uint8") for name in ("gamma", "beta")}
    constants |= {"s": np.float32(1), "z": np.uint8(0)}
    names = ["i", "", "words", "places", "", "gamma", "beta", "", *["s"] * 5, *["z"] * 5]
    node = helper.make_node("QEmbedLayerNormalization", names, ["y"], "first", domain="com.microsoft")
    return model_of({"i": ("int32", (1, 5))}, {"y": ("float32", (1, 5, 8))}, [node], constants, 17)


REFUSED = {
    "an LSTM": (lstm_model(), "'cell' is not supported; quantize the model without it: op_types_to_quantize w"),
    "embeddings": (embedding_model(), "'first' is not supported; quantize the model as it was before ONNX Runtime f"),
    "causal": (attention_model(unidirectional=1), "'heads': unidirectional=1 is not supported; quantize the model as"),
    "lengths": (
        attention_model(True, constants={"m": np.array([3, 5], "int32")}),
        "'heads': a mask of another rank than 2 is not supported; quantize the model as it was before ONNX",
    ),
    "a past": (attention_model(more=["p"], constants={"p": np.ones((2, 2, 3, 4, 8), "float32")}), "a past is not"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_operators_of_the_quantizer_without_a_rule_are_refused_by_name(kind):
    model, words = REFUSED[kind]
    with pytest.raises(NotImplementedError, match=words) as caught:
        from_onnx(model)
    assert str(caught.value).startswith(model.graph.node[-1].op_type) and "\n" not in str(caught.value)


def test_a_convolution_of_opset_10_with_a_scale_per_channel():
    rng = np.random.default_rng(10)
    x = rng.integers(0, 256, (1, 2, 6, 6)).astype("uint8")
    constants = scaled("x") | scaled("y", scale=0.3) | {"w": rng.integers(-64, 64, (4, 2, 3, 3)).astype("int8")}
    constants |= {"w_s": np.array([0.01, 0.02, 0.03, 0.04], "float32"), "w_z": np.zeros(4, "int8")}
    operands = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z"]
    nodes = [helper.make_node("QLinearConv", operands, ["y"])]
    model = model_of({"x": x}, {"y": ("uint8", (1, 4, 4, 4))}, nodes, constants, 10)
    (got,) = ours(model, {"x": x}, 0)
    assert np.abs(got.astype("int32") - onnx_runtime(model, {"x": x})[0]).max() <= 1


def conv_of(**changed) -> onnx.ModelProto:
    """A dequantized image convolved with dequantized weights, and quantized; constants and attributes as given."""
    attributes = {key: changed.pop(key) for key in ("axis", "block_size", "output_dtype") if key in changed}
    of_output = {key: attributes.pop(key) for key in ("block_size", "output_dtype") if key in attributes}
    constants = scaled("x") | scaled("y") | {"w": np.ones((4, 2, 3, 3), "int8"), "w_s": np.ones(4, "float32") / 9}
    constants |= {"w_z": np.zeros(4, "int8"), **changed}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["a"], "image"),
        helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["b"], "weight", **({"axis": 0} | attributes)),
        helper.make_node("Conv", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y_s", "y_z"], ["y"], "result", **of_output),
    ]
    return model_of({"x": ("uint8", (1, 2, 6, 6))}, {"y": ("uint8", (1, 4, 4, 4))}, nodes, constants)


def out_of_range() -> onnx.ModelProto:
    model = conv_of()
    for tensor in model.graph.initializer:
        if tensor.name == "x_z":
            tensor.ClearField("raw_data")
            tensor.int32_data.append(300)
    return model


BAD = {
    "scale 0": (conv_of(x_s=np.float32(0)), ValueError, "'image': 'x': its scale 'x_s' is 0; expected finite"),
    "scale below 0": (conv_of(y_s=np.float32(-1)), ValueError, "'result': 'y': its scale 'y_s' is -1"),
    "scale NaN": (conv_of(w_s=np.array([1, 1, np.nan, 1], "float32")), ValueError, "'w': its scale 'w_s' is nan"),
    "scale infinite": (conv_of(x_s=np.float32(np.inf)), ValueError, "its scale 'x_s' is inf"),
    "zero point of another dtype": (conv_of(x_z=np.int8(1)), ValueError, "'x' is of UINT8, and its zero point"),
    "output of another dtype": (conv_of(output_dtype=onnx.TensorProto.INT8), ValueError, "'y' is of INT8, and its"),
    "zero point out of range": (out_of_range(), ValueError, "its zero point 'x_z' is 300; expected 0 to 255"),
    "zero point of int32": (
        conv_of(w=np.ones((4, 2, 3, 3), "int32"), w_z=np.ones(4, "int32")),
        ValueError,
        "is of INT32, whose zero point is 0",
    ),
    "axis": (conv_of(axis=4), ValueError, "is of shape .4, 2, 3, 3., which has no axis 4"),
    "another axis": (conv_of(axis=1), ValueError, "has 2 elements along axis 1, and 'w_s' is of shape .4,."),
    "too few": (conv_of(w_z=np.zeros(3, "int8")), ValueError, "and 'w_z' is of shape .3,."),
    "blocked": (conv_of(block_size=2), NotImplementedError, "blocked quantization .block_size 2. is not supported"),
    "per element": (conv_of(w_s=np.ones((4, 2), "float32")), NotImplementedError, "'w_s' is of shape .4, 2., and"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_scales_and_zero_points_are_one_clear_error(kind):
    model, error, words = BAD[kind]
    with pytest.raises(error, match=words) as caught:
        from_onnx(model)
    assert type(caught.value) is error


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
def test_scales_that_are_inputs_are_checked_in_each_run(level):
    names = ["a", "a_s", "z", "b", "b_s", "z", "y_s", "z"]
    feed = {"a": np.full((2, 3), 7, "uint8"), "b": np.full((3, 2), 9, "uint8")}
    feed |= {"a_s": np.array([0.5, 2], "float32"), "b_s": np.array(0.5, "float32"), "y_s": np.ones(1, "float32")}
    node, constants = helper.make_node("QLinearMatMul", names, ["y"]), {"z": np.uint8(0)}
    lib = build(*from_onnx(model_of(feed, {"y": ("uint8", (2, 2))}, [node], constants)), opt_level=level)
    np.testing.assert_array_equal(lib(*feed.values()), [[47, 47], [189, 189]])
    for name in ("a_s", "b_s", "y_s"):
        for wrong in (0, -1, np.inf, np.nan):
            bad = feed | {name: np.full_like(feed[name], wrong)}
            words = f"expected scales that are finite numbers above 0; so many are others: {bad[name].size}$"
            with pytest.raises(IndexError, match=words):
                lib(*bad.values())


def test_what_is_not_supported_says_so():
    x = np.zeros((1, 4, 4, 2), "uint8")
    last = qlinear("QLinearGlobalAveragePool", ["x"], "y", channels_last=1)
    none = helper.make_node("QLinearSigmoid", ["x", "x_s", "", "y_s", ""], ["y"], domain="com.microsoft")
    rows = qlinear("QLinearAdd", ["x", "w"], "y")
    constants = scaled("x") | scaled("y") | {"w": x[0, 0], "w_s": np.ones(2, "float32"), "w_z": np.zeros(2, "uint8")}
    for node, words in ((last, "channels_last=1"), (none, "has no zero points"), (rows, "only one number is")):
        model = model_of({"x": x}, {"y": ("uint8", x.shape)}, [node], constants)
        with pytest.raises(NotImplementedError, match=words):
            from_onnx(model)
