"""Quantized PyTorch programs: what pt2e exports, built here of the same operators, which torchao need not write."""

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
import torch.nn.functional as F
from agreement import close

from tvmfast import build, from_pytorch

ops = torch.ops.quantized_decomposed


class Network(torch.nn.Module):
    """A convolution, a residual sum and a matrix product, their weights in int8 by channel, all else by tensor."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in {"first": (8, 3, 3, 3), "second": (8, 8, 3, 3), "last": (5, 8)}.items():
            weight = torch.randn(shape, generator=generator) / np.prod(shape[1:]) ** 0.5
            scale = weight.reshape(shape[0], -1).abs().amax(1) / 127
            self.register_buffer(f"{name}_scale", scale)
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))
            parameters = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero"), 0, -127, 127, torch.int8
            self.register_buffer(name, ops.quantize_per_channel(weight, *parameters))
        self.register_buffer("bias", torch.randn(8, generator=generator))

    def weight(self, name):
        scale, zero = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero")
        return ops.dequantize_per_channel(getattr(self, name), scale, zero, 0, -127, 127, torch.int8)

    @staticmethod
    def through(x, scale, zero, low=0, high=255, dtype=torch.uint8):
        q = ops.quantize_per_tensor(x, scale, zero, low, high, dtype)
        return ops.dequantize_per_tensor(q, scale, zero, low, high, dtype)

    def forward(self, x):
        x = self.through(x, 0.03, 121, -128 + 128, 255)
        x = self.through(F.relu(F.conv2d(x, self.weight("first"), self.bias, padding=1)), 0.02, 0)
        y = self.through(F.conv2d(x, self.weight("second"), padding=1), 0.025, 3, -128, 127, torch.int8)
        x = self.through(F.max_pool2d(x + y, 2), 0.03, 90)
        x = self.through(x.mean((2, 3)), 0.01, 100)
        return self.through(F.linear(x, self.weight("last")), 0.04, 128)


@pytest.mark.parametrize("shape", [(3, 3, 8, 8), ("n", 3, 8, 8)], ids=["static", "dynamic"])
def test_a_program_of_pt2e_is_within_a_step(shape):
    net, x = Network().eval(), torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    mod, params = from_pytorch(net if "n" in shape else torch.export.export(net, (x,)), {"x": shape})
    assert {name: str(params[name].dtype) for name in ("first", "second", "last")} == dict.fromkeys(
        ("first", "second", "last"), "int8"
    )
    wanted = net(x).numpy()
    for level in (0, 3):
        got = np.asarray(build(mod, params, opt_level=level)(x.numpy()))
        assert np.abs(got - wanted).max() <= 0.04 * 1.001
        assert len(np.unique(wanted)) > 8


class Each(torch.nn.Module):
    """Every form of the operators, of numbers that are no ties."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.11], dtype=torch.float64))
        self.register_buffer("zero", torch.tensor([7]))
        self.register_buffer("scales", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("zeros", torch.tensor([-3, 0, 100]))

    def forward(self, x, q):
        short = ops.quantize_per_tensor(x, 0.01, -5, -(2**15), 2**15 - 1, torch.int16)
        of_tensors = ops.quantize_per_tensor(x, self.scale, self.zero, -100, 90, torch.int8)
        by_channel = ops.quantize_per_channel(x, self.scales, self.zeros, -2, -128, 127, torch.int8)
        return (
            short,
            ops.dequantize_per_tensor(short, 0.01, -5, -(2**15), 2**15 - 1, torch.int16),
            of_tensors,
            ops.dequantize_per_tensor(of_tensors, self.scale, self.zero, -100, 90, torch.int8),
            by_channel,
            ops.dequantize_per_channel(by_channel, self.scales, self.zeros, 1, -128, 127, torch.int8),
            ops.dequantize_per_channel(by_channel, self.scales, None, 1, -128, 127, torch.int8),
            ops.dequantize_per_tensor(q, 0.5, 3, 0, 255, torch.uint8, out_dtype=torch.float16),
            ops.quantize_per_tensor(x.half(), 0.5, 100, 0, 255, torch.uint8),
        )


@pytest.mark.parametrize("level", [0, 3])
def test_each_form_equals_pytorch(level):
    rng = np.random.default_rng(3)
    x = (rng.integers(-900, 900, (2, 3, 50)) / 20 + 0.003).astype("float32")
    x[0, 0, :4] = np.inf, -np.inf, 1e30, -0.0
    q = rng.integers(0, 256, (4, 5)).astype("uint8")
    net = Each().eval()
    wanted = net(torch.from_numpy(x), torch.from_numpy(q))
    got = build(*from_pytorch(net, {"x": x, "q": q}), opt_level=level)(x, q)
    short, _, of_tensors, _, by_channel, *_ = (each.double().numpy() for each in wanted)
    scales, zeros = net.scales.double().numpy()[:, None], net.zeros.numpy()[:, None]
    dequantized = {1: (short + 5) * 0.01, 3: (of_tensors - 7) * 0.11, 7: (q.astype("float64") - 3) / 2}
    dequantized |= {5: (by_channel - zeros) * scales, 6: by_channel * scales}
    for place, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        mine, theirs = np.asarray(mine), theirs.numpy()
        assert mine.dtype == theirs.dtype
        if place in dequantized:  # the scale is rounded, and the product
            close(mine, dequantized[place], 2, scale=np.abs(dequantized[place]))
        else:
            np.testing.assert_array_equal(mine, theirs)


def test_other_dtypes_and_scales_are_refused():
    class Wrong(torch.nn.Module):
        def __init__(self, scale, dtype):
            super().__init__()
            self.scale, self.dtype = scale, dtype

        def forward(self, x):
            return ops.quantize_per_tensor(x, self.scale, 0, 0, 100, self.dtype)

    for scale, dtype, words in (
        (0.1, torch.int32, "to int32; quantize to int8"),
        (-1.0, torch.int8, "scale -1.0; exp"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            from_pytorch(Wrong(scale, dtype).eval(), {"x": (2, 3)})
