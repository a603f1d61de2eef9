"""Channel repacking: concatenations and slices within blocks give PyTorch's results, in the blocked layout."""

import pytest
import torch
from agreement import close, reference
from testing import Function, sampled
from torch import nn

import tvmfast
from tvmfast.core import machine
from tvmfast.profiling import networks

AVX2 = {"kind": "llvm", "mcpu": "core-avx2"}
PARTS = [(parts, target) for target in (None, AVX2) for parts in ((44, 40, 36), (12, 8, 20), (16, 5, 9), (33, 32))]


class Mixed(nn.Module):
    """A convolution of each part of some channels, with a window of its own, and one of them all."""

    def __init__(self, *parts):
        super().__init__()
        self.parts, channels = parts, sum(parts)
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(n, n, 3 + 2 * i, padding=1 + i, groups=n) for i, n in enumerate(parts))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.Conv2d(channels, 5, 1)

    def forward(self, x):
        parts = self.first(x).relu().split(self.parts, 1)
        x = torch.cat([conv(part) for conv, part in zip(self.middle, parts, strict=True)], 1)
        x = self.norm(x).relu()
        return self.last(x * x.mean((2, 3), keepdim=True).sigmoid())


def same(net, x, target=None):
    """Build a network without records, and check its result."""
    lib = tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": tuple(x.shape)}), target, records=False)
    close(lib(x.numpy()), reference(net, x))
    return lib


@pytest.mark.parametrize("case", sampled(PARTS, [PARTS[0], PARTS[2], PARTS[5]]), ids=str)
def test_parts_of_blocks(case):
    parts, target = case
    if target and "avx2" not in machine.instruction_sets():
        pytest.skip("this CPU has no AVX2")
    net = networks.seeded(lambda: Mixed(*parts), 9)
    lib = same(net, torch.randn(2, 3, 9, 7), target)
    assert sum("NCHW" in kernel for kernel in lib.kernels.index) == 1  # that of the output
    assert "regroup" in set(lib.kernels.family)


@pytest.mark.parametrize("shape", [("n", 3, 9, 7), ("n", 3, "height", "width")], ids=["batch", "all"])
def test_parts_of_blocks_with_dynamic_dims(shape):
    net = networks.seeded(lambda: Mixed(12, 8, 20), 9).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": shape}), records=False)
    for n in (1, 3):
        x = torch.randn(n, 3, 9, 7)
        close(lib(x.numpy()), reference(net, x))


def test_infinities_of_a_part_stay_there():
    first, last = nn.Conv2d(3, 24, 1), nn.Conv2d(24, 4, 1)

    def function(x):
        a, b = first(x).split([10, 14], 1)
        y = torch.cat([b / 0.0, a], 1)
        return y.clamp(-9, 9), last(y.clamp(-9, 9)), a

    net = Function(function)
    net.layers = nn.ModuleList([first, last])
    same(net, torch.randn(1, 3, 5, 6))


def test_a_shuffle_of_channels_and_lines():
    conv, lines = nn.Conv2d(3, 24, 1), nn.Conv1d(12, 20, 3)

    def function(x):
        y = conv(x)
        y = torch.cat([y, y.relu()], 1).reshape(2, 2, 24, 5, 6).transpose(1, 2).reshape(2, 48, 5, 6)
        z = torch.cat([lines(y[:, :12, 0]), lines(y[:, 12:24, 1])], 1)
        return z

    net = Function(function)
    net.layers = nn.ModuleList([conv, lines])
    same(net, torch.randn(2, 3, 5, 6))
