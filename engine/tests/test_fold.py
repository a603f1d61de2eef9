"""Folding: what depends on constants alone is gone after a build, and what is left gives PyTorch's results."""

import itertools

import numpy as np
import pytest
import torch
from agreement import close, reference
from testing import Function, sampled
from torch import nn

from tvmfast import build, from_pytorch


class Table(nn.Module):
    """x plus what each function of CONSTANTS computes from the buffer `table`, float32 (4, 6)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 3, 24).reshape(4, 6))
        self.register_buffer("rows", torch.tensor([2, 0, 3, 3]))

    def forward(self, x):
        return tuple(x + make(self.table, self.rows) for make in CONSTANTS.values())


CONSTANTS = {
    "arithmetic": lambda table, rows: -torch.sqrt(table * 2 - 0.5) / torch.exp(table).clamp(1, 4) ** 2,
    "rsqrt": lambda table, rows: torch.rsqrt(table),
    "slices": lambda table, rows: torch.cat([table[:, 2:], table[:, :2]], 1),
    "steps": lambda table, rows: torch.cat([table[::2], table[1::2]]),
    "rows": lambda table, rows: table[rows],
    "choice": lambda table, rows: torch.where(table < 1.5, table, torch.full((4, 6), 7.0)),
    "equality": lambda table, rows: torch.where((table == 0.5) | (table != table[0, 3]), table, -table),
    "shapes": lambda table, rows: table.reshape(6, 4).T.unsqueeze(0).expand(2, 4, 6)[1].squeeze(0),
}


@pytest.mark.parametrize("level", [2, 3])
def test_what_depends_on_constants_alone_is_folded(level):
    net, x = Table().eval(), torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    lib = build(*from_pytorch(net, {"x": x}), opt_level=level)
    assert [node["kernel"] for node in lib.graph["nodes"]] == ["add"] * len(CONSTANTS)
    close(lib(x), reference(net, x))


def test_a_batch_norm_without_convolution_is_one_multiplication_and_one_addition():
    norm = nn.BatchNorm2d(5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in (norm.weight, norm.bias, norm.running_mean):
            values.copy_(torch.randn(5, generator=generator))
        norm.running_var.copy_(torch.rand(5, generator=generator) + 0.5)
    net, x = nn.Sequential(nn.ReLU(), norm).eval(), torch.randn(2, 5, 7, 7, generator=generator)
    lib = build(*from_pytorch(net, {"x": x}))
    (kernel,) = lib.kernels.index
    assert "multiply" in kernel and "add" in kernel and "subtract" not in kernel and "divide" not in kernel
    close(lib(x), reference(net, x))


def test_a_chain_that_is_used_within_stays():
    def function(x):
        y = x * 2.0 + 1.0
        return y, (y - 0.5) * 3.0

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    lib = build(*from_pytorch(Function(function).eval(), {"x": x}))
    close(lib(x), reference(function, x))


def normed(conv: nn.Conv2d, **options) -> nn.Sequential:
    """A convolution and a batch norm behind it, with statistics that are not those of a fresh one."""
    norm, generator = nn.BatchNorm2d(conv.out_channels, **options), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for values in (conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean):
            if values is not None:
                values.copy_(torch.randn(values.shape, generator=generator))
        norm.running_var.copy_(torch.rand(conv.out_channels, generator=generator) + 0.5)
    return nn.Sequential(conv, norm)


CONVOLUTIONS = (
    {"kernel_size": 3},
    {"kernel_size": 3, "bias": False},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "groups": 4, "bias": False},
    {"kernel_size": 3, "groups": 8, "padding": 1},
    {"kernel_size": 3, "dilation": 2, "padding": 1},
)
NORMS = {}, {"affine": False}, {"eps": 0.1}
# Each convolution, and each norm, once.
FEW = [*itertools.product(CONVOLUTIONS, NORMS[:1]), *itertools.product(CONVOLUTIONS[1:2], NORMS)]


@pytest.mark.parametrize("pair", sampled(list(itertools.product(CONVOLUTIONS, NORMS)), FEW), ids=str)
def test_a_batch_norm_behind_a_convolution_is_in_its_weights(pair):
    conv, options = pair
    net = normed(nn.Conv2d(8, 8, **conv), **options).eval()
    x = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))
    lib = build(*from_pytorch(net, {"x": x}))
    assert sum("conv2d" in kernel for kernel in lib.kernels.index) == 1
    assert not any("multiply" in kernel or "divide" in kernel for kernel in lib.kernels.index)
    close(lib(x), reference(net, x))


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_that_others_read_keeps_its_weights(bias):
    conv, norm = normed(nn.Conv2d(8, 8, 3, bias=bias))

    def several(x):
        y = conv(x)
        return norm(y), y.relu()

    net, x = Function(several), torch.randn(1, 8, 9, 9, generator=torch.Generator().manual_seed(1))
    net.conv, net.norm = conv, norm
    lib = build(*from_pytorch(net.eval(), {"x": x}))
    assert sum(node["kernel"].count("conv2d") for node in lib.graph["nodes"]) == 1
    close(lib(x), reference(net, x))


@pytest.mark.parametrize("shape", [(7, 7), (2, 8, 1, 1), (2, 1, 1, 1)], ids=str)
def test_a_sum_that_is_no_bias_is_not_folded(shape):
    conv, norm = normed(nn.Conv2d(8, 8, 3, bias=False))
    each_element = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    net = Function(lambda x: norm(conv(x) + each_element))
    net.conv, net.norm = conv, norm
    net.register_buffer("each_element", each_element)
    x = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))
    lib = build(*from_pytorch(net.eval(), {"x": x}))
    close(lib(x), reference(net, x))


def test_a_batch_norm_whose_scale_overflows_is_not_folded():
    """Infinite weights would make NaN of sums that are infinite without folding."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0))
    with torch.no_grad():
        net[0].weight.copy_(torch.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3))
        net[1].weight.fill_(1e38)
        net[1].running_var.fill_(1e-6)
    mod = from_pytorch(net.eval(), {"x": (1, 3, 5, 5)})
    x = np.random.default_rng(1).normal(size=(1, 3, 5, 5)).astype("float32")
    folded, baseline = (build(*mod, opt_level=level)(x) for level in (3, 0))
    assert np.isinf(baseline).any()
    close(folded, reference(net, x))


SPECIAL = {  # of what TVM's own kernels lose
    "relu": lambda table: torch.relu(table),
    "clamp": lambda table: table.clamp(-1, 1),
    "maximum": lambda table: torch.maximum(table, table.flip(1)),
    "minimum": lambda table: torch.minimum(table, table.flip(1)),
    "largest": lambda table: table.amax(1),
    "smallest": lambda table: table.amin(1),
    "pool": lambda table: nn.functional.max_pool1d(table[None], 2),
    "elu": lambda table: nn.functional.elu(table),
    "tanh": lambda table: torch.tanh(table),
    "not less": lambda table: torch.logical_not(table < table.flip(1)),
}


@pytest.mark.parametrize("level", [2, 3])
def test_special_numbers_of_constants(level):
    class Special(nn.Module):
        def __init__(self):
            super().__init__()
            nan, inf = float("nan"), float("inf")
            rows = [[nan, inf, -inf, 0.0, -0.0, -1.5], [-inf] * 6, [inf] * 6, [nan] * 6, [1, 2, nan, 3, -inf, inf]]
            self.register_buffer("table", torch.tensor(rows))

        def forward(self, x):
            return *(make(self.table) for make in SPECIAL.values()), x + self.table

    net, x = Special().eval(), torch.ones(5, 6)
    lib = build(*from_pytorch(net, {"x": x}), opt_level=level)
    for name, ours, theirs in zip((*SPECIAL, "sum"), lib(x), net(x), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_chain_with_an_infinite_mask():
    mask = torch.tensor([0.0, float("-inf"), 0.0, float("-inf")])
    net, x = Function(lambda x: (x * 2 + 0 + mask) * 0.5 + mask).eval(), torch.tensor([1.0, 2.0, float("inf"), -3.0])
    close(build(*from_pytorch(net, {"x": x}))(x), reference(net, x))
