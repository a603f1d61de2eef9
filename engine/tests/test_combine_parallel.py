"""The merging of parallel convolutions and matrix products: equal results, and what is left alone."""

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from testing import QUICK, Function
from torch import nn
from torch.nn.functional import conv2d

import tvmfast
from tvmfast.compiler import combine_parallel
from tvmfast.profiling import networks, trace

rng = np.random.default_rng(0)
X = rng.standard_normal((1, 8, 12, 12), dtype="float32")


class Parallel(nn.Module):
    """Convolutions of one input, each with what stands behind it; the results as they are."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return tuple(branch(x) for branch in self.branches)


def conv(channels, size=3, padding=1, **options):
    return nn.Conv2d(8, channels, size, padding=padding, **options)


def merged(net, x=X):
    """The operators before and after, once the results are found equal; `make test` runs those after alone."""
    net = networks.seeded(lambda: net, 12, calibrate=False)
    mod, params = tvmfast.from_pytorch(net, {"x": x.shape})
    folded, _ = combine_parallel.prepared(mod, params)
    after = combine_parallel.combine_parallel_ops()(folded)
    wanted = reference(net, x)
    for module in (after,) if QUICK else (folded, after):
        close(tvmfast.build(module, {})(x), wanted)
    return [[operation.name for operation in trace.graph(module).operations] for module in (folded, after)]


@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_of_one_value_become_one_with_biases_and_activations(bias):
    branches = (nn.Sequential(conv(n, bias=bias), nn.BatchNorm2d(n), nn.ReLU()) for n in (16, 5, 24))
    before, after = merged(Parallel(*branches))
    assert before.count("nn.conv2d") == before.count("nn.relu") == 3
    assert after[0] == "nn.conv2d" and after[-2:] == ["nn.relu", "split"]
    assert len(after) == len(before) / 3 + 1


def test_what_differs_behind_the_convolutions_stays_apart():
    branches = nn.Sequential(conv(16), nn.ReLU()), nn.Sequential(conv(16), nn.Sigmoid())
    assert merged(Parallel(*branches))[1] == ["nn.conv2d", "add", "split", "nn.relu", "sigmoid"]
    leaky = (nn.Sequential(conv(16), nn.LeakyReLU(slope)) for slope in (0.1, 0.2))
    assert merged(Parallel(*leaky))[1].count("nn.leakyrelu") == 2
    clipped = (nn.Sequential(conv(16), nn.Hardtanh(0, most)) for most in (0.5, 0.5, 0.7))
    assert merged(Parallel(*clipped))[1].count("clip") == 3


def test_a_bias_that_some_lack_stays_apart():
    after = merged(Parallel(conv(16), conv(16, bias=False)))[1]
    assert after == ["nn.conv2d", "split", "add"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (conv(16), conv(16, stride=2)),
        (conv(16), conv(16, padding=0)),
        (conv(16), conv(16, padding=2, dilation=2)),
        (conv(16), conv(16, size=1, padding=0)),
        (conv(16), conv(16, size=(3, 1), padding=(1, 0))),
        (conv(16, groups=2), conv(16, groups=2)),
    ],
    ids=["strides", "padding", "dilation", "window", "shape", "groups"],
)
def test_convolutions_that_differ_are_not_merged(one, other):
    before, after = merged(Parallel(one, other))
    assert after == before


def test_only_those_that_fit_are_merged():
    after = merged(Parallel(conv(16), conv(8, stride=2), conv(4), conv(2, stride=2), conv(1, size=1, padding=0)))[1]
    assert after.count("nn.conv2d") == 3 and after.count("split") == 2


def test_convolutions_one_after_another_are_not_parallel():
    before, after = merged(nn.Sequential(conv(8), conv(8)))
    assert after == before


def test_a_value_that_is_read_twice_ends_its_branch():
    first, second = conv(16), conv(16)

    def function(x):
        a, b = first(x), second(x)
        return torch.relu(a) + a, torch.relu(b)

    net = Function(function)
    net.first, net.second = first, second
    after = merged(net)[1]
    assert after[:3] == ["nn.conv2d", "add", "split"] and after.count("nn.relu") == 2


def test_weights_that_come_as_inputs_are_left_alone():
    net = Function(lambda x, w, v: (conv2d(x, w), conv2d(x, v))).eval()
    mod, params = tvmfast.from_pytorch(net, {"x": X.shape, "w": (4, 8, 3, 3), "v": (4, 8, 3, 3)})
    folded, _ = combine_parallel.prepared(mod, params)
    tvm.ir.assert_structural_equal(combine_parallel.combine_parallel_ops()(folded), folded)


def test_matrix_products_of_one_value_become_one():
    before, after = merged(Parallel(*(nn.Linear(12, n) for n in (6, 7, 8))), X[0, 0])
    assert before.count("matmul") == 3 and after == ["matmul", "add", "split"]


@pytest.mark.parametrize(("name", "counts"), [("googlenet", (57, 39)), ("squeezenet1_1", (26, 26))])
def test_how_much_there_is_to_merge_in_networks(name, counts):
    net = networks.load(name)
    folded, _ = combine_parallel.prepared(*tvmfast.from_pytorch(net, {"x": (1, 3, 64, 64)}))
    found = (trace.graph(module).operations for module in (folded, combine_parallel.combine_parallel_ops()(folded)))
    assert tuple(sum(o.name == "nn.conv2d" for o in operations) for operations in found) == counts
