"""Transposed convolutions as ordinary ones: PyTorch's results for all strides, kernels, pads; what is left alone."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import SEED, Function, sampled
from torch import nn

import tvmfast
from tvmfast.core import machine
from tvmfast.core.simd import simd_of

CASES = [
    (kernel, stride, padding, extra)
    for kernel, stride, padding, extra in itertools.product((1, 2, 3, 4, 5), (1, 2, 3), (0, 1, 2), (0, 1))
    if padding < kernel and extra < max(stride, 2) and (extra == 0 or stride > 1)
]


def held(net: nn.Module, shape: tuple):
    lib = tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": shape}))
    x = np.random.default_rng(SEED).standard_normal(shape, "float32")
    close(lib(x), reference(net, x))
    return lib


def transposed(lib) -> bool:
    return any("conv2d_transpose" in kernel for kernel in lib.kernels.index)


@pytest.mark.parametrize("kernel", sampled(range(1, 6), [3]))
def test_each_size_of_kernel_stride_and_padding(kernel):
    layers = [
        nn.ConvTranspose2d(8, 12, kernel, stride, padding, extra) for k, stride, padding, extra in CASES if k == kernel
    ]

    class Side(nn.Module):
        """One network of all, as building takes longer than running."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            return torch.cat([layer(x).flatten(1) for layer in self.layers], 1)

    assert layers and not transposed(held(Side(), (2, 8, 7, 6)))


SIZES = [(1, 2), (3, 2), (5, 3), ((3, 4), (2, 3))]  # of the kernel, and strides


@pytest.mark.parametrize("sizes", sampled(SIZES, [SIZES[0], SIZES[3]]), ids=str)
def test_an_infinity_reaches_the_outputs_that_read_it(sizes):
    net = nn.ConvTranspose2d(8, 16, *sizes)
    x = np.random.default_rng(SEED).standard_normal((1, 8, 7, 6), "float32")
    x[0, 1, 3, 3], x[0, 2, 0, 5] = np.inf, -np.inf
    wanted = reference(net, x)
    made = tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": x.shape}))(x)
    assert np.isinf(wanted.values[0]).any() and not np.isnan(wanted.values[0]).any()
    close(made, wanted)


def transposed_in_all_ways(x, w):
    return (
        *(F.conv_transpose2d(x, w, stride=2), F.conv_transpose2d(x, w, padding=1, dilation=2)),
        *(F.conv_transpose2d(x, w, stride=2, groups=2), F.conv_transpose1d(x[..., 0], w[..., 0], stride=3)),
    )


@pytest.mark.parametrize(
    "case", sampled([(1, True), (1, False), (3, True), (3, False)], [(1, False), (3, True)]), ids=str
)
def test_weights_that_are_not_finite(case, rng):
    level, held = case
    x, w = (torch.from_numpy(rng.standard_normal(shape, "float32")) for shape in ((2, 4, 5, 6), (4, 8, 3, 2)))
    w[1, 1, 1, 1], w[2, 0, 0, 0], w[3, 2, 2, 0] = np.inf, np.nan, -np.inf
    inputs = {"x": x} if held else {"x": x, "w": w}
    net = Function((lambda x: transposed_in_all_ways(x, w)) if held else transposed_in_all_ways)
    made = tvmfast.build(*tvmfast.from_pytorch(net.eval(), inputs), opt_level=level)(*inputs.values())
    close(made, reference(transposed_in_all_ways, x, w))


def test_an_infinity_in_a_dilated_one(rng):
    net = nn.ConvTranspose2d(4, 8, 3, dilation=2)
    x = rng.standard_normal((1, 4, 7, 6), "float32")
    x[0, 1, 3, 3] = np.inf
    close(tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": x.shape}))(x), reference(net, x))


def test_a_kernel_that_is_no_multiple_of_the_stride_costs_no_products_more():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.even = nn.ConvTranspose2d(16, 16, 3, 2, 1, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)

        def forward(self, x):
            return self.odd(x) + self.even(x)

    lib = held(Two(), (1, 16, 8, 8))
    flops = [(node["makes"][0]["shape"], lib.graph["costs"][node["kernel"]]["flops"]) for node in lib.graph["nodes"]]
    lanes = simd_of(machine.host_target()).lanes
    odd = sum(each for shape, each in flops if shape[1:2] == [16 // lanes])  # of 16 channels each, in blocks
    even = sum(each for shape, each in flops if shape[1:2] == [64 // lanes])  # of all residues
    assert 0 < odd < 0.7 * even


def test_sides_that_differ_and_what_comes_behind():
    net = nn.Sequential(
        nn.ConvTranspose2d(16, 32, (4, 2), (2, 1), (1, 0)), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3)
    )
    assert not transposed(held(net, (1, 16, 5, 9)))


@pytest.mark.parametrize("options", [{"dilation": 2}, {"groups": 2}], ids=str)
def test_others_are_left_to_tvm(options):
    assert transposed(held(nn.ConvTranspose2d(8, 8, 3, 2, 1, **options), (1, 8, 6, 6)))


def test_weights_that_are_computed_are_left_to_tvm():
    class Computed(nn.Module):
        def forward(self, x, w):
            return nn.functional.conv_transpose2d(x, w, stride=2)

    lib = tvmfast.build(*tvmfast.from_pytorch(Computed().eval(), {"x": (1, 4, 6, 6), "w": (4, 4, 2, 2)}))
    assert transposed(lib)
