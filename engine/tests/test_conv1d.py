"""Convolutions of lines (N, C, W) as those of images of height 1: PyTorch's numbers, and a schedule for each kind."""

import numpy as np
import onnxruntime
import pytest
import torch
from agreement import close, reference
from onnx import helper, numpy_helper
from testing import Function
from torch import nn
from torch.nn import functional as F

import tvmfast


def held(net: nn.Module, *shapes: tuple, rng):
    """A network as `tvmfast.build` makes it, after its result for random inputs was PyTorch's."""
    names = {f"x{n}": shape for n, shape in enumerate(shapes)}
    lib = tvmfast.build(*tvmfast.from_pytorch(net.eval(), names))
    xs = [rng.standard_normal(shape, "float32") for shape in shapes]
    close(lib(*xs), reference(net, *xs))
    return lib


def families(lib) -> set[str]:
    return {*lib.kernels.family} - {"default"}


class Side(nn.Module):
    """One network of several layers on one input, as building takes longer than running."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        return torch.cat([layer(x).flatten(1) for layer in self.layers], 1)


def test_each_kind_of_convolution_has_its_rule(rng):
    layers = {
        "conv2d": nn.Conv1d(24, 40, 3, padding=1),
        "pointwise": nn.Conv1d(24, 17, 1),
        "depthwise": nn.Conv1d(24, 24, 5, padding=2, groups=24),
    }
    assert families(held(Side(*layers.values()), (2, 24, 37), rng=rng)) == {*layers}


def test_strides_paddings_dilations_and_groups(rng):
    layers = [
        nn.Conv1d(24, 20, 4, 2, 3),
        nn.Conv1d(24, 33, 2, 3, bias=False),
        nn.Conv1d(24, 16, 3, dilation=4, padding=4),
        nn.Conv1d(24, 24, 3, 2, dilation=2, groups=24),
        nn.Conv1d(24, 48, 3, groups=24),
        nn.Conv1d(24, 36, 5, padding=2, groups=3),
        nn.Conv1d(24, 1, 7, padding=3),
        nn.Conv1d(24, 8, 3, padding="same", padding_mode="reflect"),
    ]
    lib = held(Side(*layers), (1, 24, 41), rng=rng)
    assert not any("conv1d" in kernel for kernel in lib.kernels.index)


def test_few_input_channels_and_one_sample(rng):
    held(Side(nn.Conv1d(1, 20, 16, 5), nn.Conv1d(1, 3, 1)), (2, 1, 101), rng=rng)
    held(nn.Conv1d(24, 20, 1), (1, 24, 1), rng=rng)


def test_chains_stay_in_blocks_of_channels(rng):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.BatchNorm1d(16), nn.GELU())
            self.second = nn.Sequential(nn.Conv1d(16, 16, 3, padding=1, bias=False), nn.BatchNorm1d(16))
            self.pool, self.mean = nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1)
            self.linear = nn.Linear(32, 5)
            for norm in (self.first[1], self.second[1]):
                nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)

        def forward(self, x):
            y = F.max_pool1d(torch.relu(self.second(self.first(x)) + x), 3, 2, 1)
            y = torch.cat([self.pool(y), F.avg_pool1d(y, 2, ceil_mode=True)[..., :11]], 1)
            return self.linear(self.mean(y * y).squeeze(-1))

    lib = held(Residual(), (2, 16, 45), rng=rng)
    assert not any("batch_norm" in kernel for kernel in lib.kernels.index)


def test_lines_become_images_and_lines_again(rng):
    layers = nn.Conv1d(16, 16, 3), nn.Conv2d(16, 16, (1, 3)), nn.Conv1d(16, 8, 3)

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            first, second, third = self.layers
            return third(second(first(x).unsqueeze(2)).relu().squeeze(2))

    lib = held(Between(), (1, 16, 29), rng=rng)
    assert [*lib.kernels.family].count("conv2d") == 3
    assert sum("from_NCHW" in kernel for kernel in lib.kernels.index) == 1


def test_operands_of_other_shapes(rng):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(16, 16, 3)
            self.row = nn.Parameter(torch.randn(27))

        def forward(self, x, gate, image):
            y = self.conv(x)
            y = y * self.row + gate.sigmoid() * y - y.mean(2, keepdim=True)
            return y + image  # a line becomes an image

    held(Scaled(), (1, 16, 29), (1, 1, 27), (3, 16, 16, 27), rng=rng)


@pytest.mark.parametrize("output_padding", [0, 1])
def test_transposed_convolutions(output_padding, rng):
    layers = [
        nn.ConvTranspose1d(16, 12, 4, 2, 1, output_padding),
        nn.ConvTranspose1d(16, 9, 5, 3, 2, output_padding, bias=False),
        nn.ConvTranspose1d(16, 16, 2, 2, 0, output_padding),
    ]
    lib = held(Side(*layers), (2, 16, 13), rng=rng)
    assert not any("transpose" in kernel and "conv" in kernel for kernel in lib.kernels.index)


def test_computed_weights_and_half_floats(rng):
    x, w = rng.standard_normal((1, 4, 9), "float32"), rng.standard_normal((6, 4, 3), "float32")
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(F.conv1d).eval(), {"x": x.shape, "w": w.shape}))
    close(lib(x, w), reference(F.conv1d, x, w))
    half = nn.Conv1d(20, 6, 3).half().eval()
    x = rng.standard_normal((1, 20, 9)).astype("float16")
    lib = tvmfast.build(*tvmfast.from_pytorch(half, (torch.from_numpy(x),)))
    close(lib(x), reference(half, x))


@pytest.mark.parametrize("pads", [{"auto_pad": "SAME_UPPER"}, {"pads": [0, 3]}], ids=str)
def test_onnx(pads, rng):
    shapes = {"x": (2, 18, 33), "w": (20, 9, 4), "b": (20,)}
    arrays = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    node = helper.make_node("Conv", [*arrays], ["y"], group=2, strides=[2], **pads)
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", shapes["x"]), ("y", None)))
    weights = [numpy_helper.from_array(arrays[name], name) for name in "wb"]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lib = tvmfast.build(*tvmfast.from_onnx(model))
    close(lib(arrays["x"]), session.run(None, {"x": arrays["x"]}), terms=9 * 4, rounded=True)
    assert families(lib) == {"conv2d"}


def test_nan_and_infinity_stay_where_pytorch_has_them(rng):
    net = nn.Sequential(nn.Conv1d(20, 20, 3, padding=1), nn.ReLU(), nn.Conv1d(20, 5, 3)).eval()
    x = rng.standard_normal((1, 20, 31), "float32")
    x[0, 3, 4], x[0, 19, 20] = np.nan, np.inf
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": x.shape}))
    close(lib(x), reference(net, x))
