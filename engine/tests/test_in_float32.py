"""`Compiled.kernels` says why an operator of a quantized network computes in float32, and nothing of other networks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from test_dot import Network, const
from test_onnx_quantized import model_of, scaled
from test_pytorch_quantized import Network as OfTorch
from test_quantization import Small, model, samples

from tvmfast import build, from_onnx, from_pytorch, load, quantize

COLUMNS = ["family", "config", "calls"]


def reasons(lib) -> dict[str, str]:
    """The reasons by kernel, of those that have one."""
    table = lib.kernels
    assert [*table.columns] == [*COLUMNS, "in_float32"]
    return {kernel: why for kernel, why in table.in_float32.items() if why}


def floats(net, shape):
    return const(net.rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5)


def rows(net, x):
    return net.reshape(x, (1, 16, 64))


def corner(net, x):
    """A pixel as weights of a depthwise convolution."""
    return net.permute_dims(net.strided_slice(x, [2, 3], [0, 0], [1, 1]), [1, 0, 2, 3])


def by_channel(net, x):
    parameters = const(np.full(16, 0.1)), const(np.zeros(16), "uint8")
    return net.dequantize(net.quantize(x, *parameters, 1, "uint8"), *parameters, 1)


BODIES = {  # what is left in float32 between a convolution of integers and another, and what is said of it
    "weights of float32": (
        lambda net, x: net.nn("relu", net.nn("conv2d", net.qdq(x, 0.1), floats(net, (16, 16, 3, 3)), 1, 1)),
        "conv2d: its weights are not quantized",
    ),
    "weights beyond int8": (
        lambda net, x: net.nn(
            "conv2d", net.qdq(x, 0.1), net.weight(net.integers((16, 16, 1, 1), "uint8"), np.full(16, 0.01), 250)
        ),
        "conv2d: its weights do not fit into int8",
    ),
    "computed weights": (
        lambda net, x: net.nn("conv2d", net.qdq(x, 0.1), corner(net, x), groups=16),
        "conv2d: its weights are computed",
    ),
    "an input of float32": (
        lambda net, x: net.nn("conv2d", net.sigmoid(x), net.weight(net.integers((16, 16, 3, 3)), 0.001), 1, 1),
        "conv2d: its input is not quantized",
    ),
    "a scale per channel": (
        lambda net, x: net.nn("conv2d", by_channel(net, x), net.weight(net.integers((16, 16, 3, 3)), 0.001), 1, 1),
        "conv2d: its input is not of 8 bits with one scale",
    ),
    "two computed operands": (
        lambda net, x: net.reshape(
            net.matmul(net.permute_dims(rows(net, net.qdq(x, 0.1)), [0, 2, 1]), rows(net, net.qdq(x, 0.2))),
            (1, 64, 8, 8),
        ),
        "matmul: both its operands are computed",
    ),
    "softmax": (
        lambda net, x: net.nn("softmax", net.qdq(x, 0.1), 3),
        "softmax: there is no kernel of integers for it",
    ),
    "softmax of floats": (lambda net, x: net.nn("softmax", x, 3), "softmax: its input is not quantized"),
}


@pytest.mark.parametrize("case", BODIES)
def test_the_kernel_that_computes_in_float32_says_why(rng, case):
    between, why = BODIES[case]

    def body(net, x):
        x = between(net, net.conv(net.qdq(x, 0.1), 16, relu=False))
        return net.conv(net.qdq(x, 0.1), 16)

    found = reasons(Network((1, 16, 8, 8), rng)(body))
    operator = why.partition(":")[0].replace("matmul", "")
    assert {*found.values()} == {why}
    assert any(operator in kernel for kernel in found) and not any("of_integers" in kernel for kernel in found)


def test_fused_attention_says_why(rng):
    def body(net, x):
        rows = net.reshape(net.qdq(net.conv(net.qdq(x, 0.1), 16, relu=False), 0.1), (1, 16, 64))
        queries, keys = net.permute_dims(rows, [0, 2, 1]), rows
        weights = net.nn("softmax", net.matmul(queries, keys), 2)
        x = net.reshape(net.permute_dims(net.matmul(weights, queries), [0, 2, 1]), (1, 16, 8, 8))
        return net.conv(net.qdq(x, 0.1), 16)

    found = reasons(Network((1, 16, 8, 8), rng)(body))
    assert {*found.values()} == {"matmul: both its operands are computed"}
    assert any("attention" in kernel for kernel in found)


def test_floats_in_registers_need_no_reason(rng):
    """The epilogues of sums of integers, and operators whose kernel reads integers and writes integers."""

    def body(net, x):
        x = net.qdq(net.clip(net.conv(net.qdq(x, 0.1), 16, relu=False), 0, 6), 0.1)
        return net.conv(net.qdq(net.multiply(x, x), 0.1), 24)

    assert [*Network((1, 16, 8, 8), rng)(body).kernels.columns] == COLUMNS
    assert [*Network((1, 16, 8, 8), rng)(body, level=1).kernels.columns] == COLUMNS


def file(weight: np.ndarray):
    """A QDQ file of two convolutions, the first with given weights."""
    constants = scaled("x") | scaled("h", scale=0.05) | {"w": weight, "v": np.ones((4, 8, 1, 1), "int8")}
    constants |= {"s": np.float32(0.01), "z": np.int8(0)}

    def node(op, *names):
        return helper.make_node(op, [*names[:-1]], [names[-1]])

    is_int8 = weight.dtype == np.int8
    nodes = [
        node("QuantizeLinear", "x", "x_s", "x_z", "q"),
        node("DequantizeLinear", "q", "x_s", "x_z", "a"),
        *([node("DequantizeLinear", "w", "s", "z", "wf")] if is_int8 else []),
        node("Conv", "a", "wf" if is_int8 else "w", "b"),
        node("Relu", "b", "c"),
        node("QuantizeLinear", "c", "h_s", "h_z", "h"),
        node("DequantizeLinear", "h", "h_s", "h_z", "d"),
        node("DequantizeLinear", "v", "s", "z", "vf"),
        node("Conv", "d", "vf", "y"),
    ]
    return model_of({"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", (1, 4, 6, 6))}, nodes, constants)


def test_a_file_with_a_layer_in_float32(rng, tmp_path):
    weight = rng.integers(-127, 128, (8, 3, 3, 3)).astype("int8")
    lib = build(*from_onnx(file(weight.astype("float32") / 100)))
    assert {*reasons(lib).values()} == {"conv2d: its weights are not quantized"}
    assert load(lib.save(tmp_path / "net")).kernels.equals(lib.kernels)
    assert [*build(*from_onnx(file(weight))).kernels.columns] == COLUMNS


class WithSoftmax(OfTorch):
    """Two convolutions and a softmax between."""

    def forward(self, x):
        x = self.through(x, 0.03, 121)
        x = self.through(F.conv2d(x, self.weight("first"), self.bias), 0.02, 128)
        x = self.through(torch.softmax(x, 1), 1 / 256, 0)
        return F.conv2d(x, self.weight("second"))


def test_a_program_of_pytorch_with_an_operator_in_float32():
    mod, params = from_pytorch(WithSoftmax().eval(), {"x": ("n", 3, 8, 8)})
    lib = build(mod, params, sizes=[{"n": 2}])
    for each in (lib, *lib.variants):
        assert {*reasons(each).values()} == {"softmax: there is no kernel of integers for it"}


def test_layers_that_quantize_left_out(rng):
    mod, params = model(Small())
    found = reasons(build(*quantize(mod, params, samples(rng), skip="second")))
    assert "conv2d: its input is not quantized" in found.values()
