"""Each schedule of opt level 3 against PyTorch, over networks that hypothesis draws.

A property draws a small network and the shapes of its inputs, builds it for this machine, runs it on random tensors,
and looks into `Compiled.kernels` whether the family of schedules that it means to test is the one that ran. The
examples written out above a property are those that once failed.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from testing import QUICK, Function, by_level
from torch import nn
from torch.utils import _pytree as pytree
from tvm import relax

import tvmfast
from tvmfast.compiler.schedule.rules import winograd
from tvmfast.core.relax import ceildiv


def drawn(examples: int):
    """Settings of a property, whose examples may take long; `make test` has a quarter of them."""
    examples = ceildiv(examples, 4) if QUICK else examples
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, suppress_health_check=checks)


def example_in_full(*case):
    """As hypothesis's `example`, for `make test-full` alone: one that failed for the reason of another beside it."""
    return (lambda test: test) if QUICK else example(*case)


def random_tensor(shape, dtype="float32", seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def assert_same(network, *inputs, family=None):
    """Build `network` for tensors like `inputs` (shapes make random ones): PyTorch's results, by a kernel of `family`.

    A kernel that was made for a family may not have fallen back to another, whatever `family` says. Gives the library.
    """
    network = (network if isinstance(network, nn.Module) else Function(network)).eval()
    inputs = [random_tensor(x, seed=i) if isinstance(x, tuple) else x for i, x in enumerate(inputs)]
    wanted = reference(network, *inputs)
    assert all(np.isfinite(each).all() for each in wanted.values), "the example is no good: not all results are finite"
    specs = {f"input{i}": (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for i, x in enumerate(inputs)}
    lib = tvmfast.build(*tvmfast.from_pytorch(network, specs))
    with torch.no_grad():
        dtypes = [str(each.dtype).removeprefix("torch.") for each in pytree.tree_leaves(network(*inputs))]
    assert [str(spec.dtype) for spec in lib.outputs] == dtypes
    close(lib(*inputs), wanted)
    assert family is None or set(lib.kernels.family) & set(family.split(" or ")), f"{family} did not run: {lib.kernels}"
    if all(x.dtype == torch.float32 for x in inputs):
        families = [family for name, family in lib.kernels.family.items() if "conv2d" in name or "dense" in name]
        assert not {"default", "none"} & set(families), f"fell back: {lib.kernels}"
    return lib


# ---------------------------------------------------------------- convolutions

lengths = st.sampled_from([1, 2, 7, 14, 17, 19, 23, 31, 37]) | st.integers(1, 40)
channels = st.sampled_from([1, 3, 5, 16, 17, 32, 48, 64]) | st.integers(1, 70)
widths = st.sampled_from([1, 3, 4, 8, 12, 16, 20, 24])  # channels of a group


class Conv(NamedTuple):
    """A convolution, what follows it (`tail`), and whether another convolution, of 1x1, comes last (`again`)."""

    batch: int
    ins: int
    out: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True
    tail: str = "none"
    again: bool = False


TAILS = {
    "none": lambda net, x, y: y,
    "relu": lambda net, x, y: torch.relu(y),
    "relu6": lambda net, x, y: F.relu6(y),
    "hardswish": lambda net, x, y: F.hardswish(y),
    "swish": lambda net, x, y: y * torch.sigmoid(y),
    "scale": lambda net, x, y: (y * 0.3 + 1) * 2,
    "batch norm": lambda net, x, y: torch.relu(net.norm(y)),
    "residual": lambda net, x, y: torch.relu(y + net.other(x)),
    "pooled residual": lambda net, x, y: torch.relu(net.other(x).mean((2, 3), keepdim=True) + y),
    "gate": lambda net, x, y: y * torch.sigmoid(net.gate(F.adaptive_avg_pool2d(y, 1))),
    "gate of one channel": lambda net, x, y: y * torch.sigmoid(y.mean(1, keepdim=True)),
}
tails = st.sampled_from(list(TAILS))


class ConvNet(nn.Module):
    def __init__(self, case: Conv):
        super().__init__()
        torch.manual_seed(1)
        self.tail, self.again = TAILS[case.tail], case.again
        self.conv, self.other = (nn.Conv2d(*case[1:3], *case[4:8], case.groups, case.bias) for _ in range(2))
        self.gate, self.last = nn.Conv2d(case.out, case.out, 1), nn.Conv2d(case.out, 6, 1)
        self.norm = nn.BatchNorm2d(case.out)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x):
        y = self.tail(self, x, self.conv(x))
        return self.last(y) if self.again else y


def assert_convolves(case: Conv, family: str, dtype="float32"):
    x = random_tensor((case.batch, case.ins, *case.size), dtype)
    assert_same(ConvNet(case).to(x.dtype), x, family=family)


@st.composite
def convolutions(draw, ins=channels, out=channels, groups=None, kernel=None):
    """Convolutions whose groups have `ins` and `out` channels."""

    def pair(integers):
        return draw(integers.map(lambda n: (n, n)) | st.tuples(integers, integers))

    kernel = pair(st.sampled_from([1, 2, 3, 5, 7]) if kernel is None else kernel)
    padding, dilation = pair(st.integers(0, 3)), pair(st.integers(1, 2))
    reach = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = tuple(max(1, r, s) for r, s in zip(reach, pair(lengths), strict=True))
    groups = draw(groups) if groups is not None else 1
    return Conv(
        draw(st.integers(1, 3)), groups * draw(ins), groups * draw(out), size, kernel, pair(st.integers(1, 3)),
        padding, dilation, groups, draw(st.booleans()), draw(tails), draw(st.booleans()),
    )  # fmt: skip


@drawn(10)
@given(convolutions())
def test_convolutions(case):
    assert_convolves(case, "conv2d or pointwise or winograd")


@drawn(9)
@given(convolutions(widths, widths, st.integers(2, 6)))
@example(Conv(1, 16, 16, (16, 16), (3, 3), padding=(1, 1), groups=2))
@example(Conv(1, 24, 4, (16, 16), (3, 3), padding=(1, 1), groups=2))
@example(Conv(1, 7, 21, (9, 19), (3, 3), groups=7))  # depthwise, with several outputs for each channel
@example_in_full(Conv(1, 224, 224, (9, 14), (3, 3), padding=(1, 1), groups=2, tail="gate"))  # 7 blocks in a group
@example(Conv(2, 120, 120, (9, 14), (3, 3), (2, 2), (1, 1), groups=2, tail="residual"))  # 3 and 3 quarters
@example_in_full(Conv(2, 240, 240, (9, 14), (3, 3), (2, 2), (1, 1), groups=2, tail="residual"))  # 7 and a half
@example_in_full(Conv(1, 80, 240, (9, 14), (1, 1), groups=2, tail="residual"))
def test_grouped_convolutions(case):
    if case.groups == case.ins == case.out:
        assert_convolves(case, "depthwise")
    else:  # groups that fill one block together may become one convolution for Winograd
        assert_convolves(case, "conv2d or pointwise or winograd")


@drawn(7)
@given(convolutions(st.just(1), st.just(1), channels.filter(lambda n: n > 1)))
def test_depthwise_convolutions(case):
    assert_convolves(case, "depthwise")


@drawn(8)
@given(convolutions(st.integers(16, 70), kernel=st.just(3)), st.sampled_from([2, 4]))
@example(Conv(1, 64, 64, (28, 28), (3, 3), padding=(1, 1)), None)
def test_winograds_convolutions(case, tile):
    """For every shape, in tiles of either size; without a `tile`, as the compiler chooses."""
    case = case._replace(stride=(1, 1), dilation=(1, 1), batch=min(case.batch, 2))
    with pytest.MonkeyPatch.context() as patch:
        if tile:
            patch.setattr(winograd, "best_tile", lambda workload: tile)
        assert_convolves(case, "winograd")


# ---------------------------------------------------------------- between convolutions


def between(function, ins: int, out: int):
    """A network: a convolution from 3 channels to `ins`, `function`, and a convolution from `out` channels to 7."""
    torch.manual_seed(1)
    first, last = nn.Conv2d(3, ins, 1), nn.Conv2d(out, 7, 1)
    network = Function(lambda x: last(function(first(x))))
    network.parts = nn.ModuleList([first, last])
    return network


class Pool(NamedTuple):
    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    ceil_mode: bool
    flag: bool  # of the pool: count_include_pad, dilation, keepdim


POOLS = {
    "max": lambda x, p: F.max_pool2d(x, *p[1:4], 1 + p.flag, p.ceil_mode),
    "avg": lambda x, p: F.avg_pool2d(x, *p[1:5], p.flag),
    "adaptive avg": lambda x, p: F.adaptive_avg_pool2d(x, p.kernel),
    "mean": lambda x, p: x.mean((2, 3), keepdim=p.flag).reshape(*x.shape[:2], 1, 1),
}
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
pools = st.builds(Pool, st.sampled_from(list(POOLS)), pairs, pairs, pairs, st.booleans(), st.booleans())


@drawn(9)
@given(pools, channels, st.tuples(lengths, lengths))
@example(Pool("adaptive avg", (1, 2), (1, 1), (1, 1), ceil_mode=False, flag=False), 1, (5, 5))  # windows overlap
def test_pools_between_convolutions(pool, count, size):
    pool = pool._replace(padding=tuple(min(p, k // 2) for p, k in zip(pool.padding, pool.kernel, strict=True)))
    size = tuple(max(s, 5) for s in size)
    assert_same(between(lambda x: POOLS[pool.kind](x, pool), count, count), (2, 3, *size), family="conv2d")


@drawn(6)
@given(channels, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 40))
def test_flattened_images(count, size, out):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, count, 1), nn.ReLU(), nn.Flatten(), nn.Linear(count * math.prod(size), out))
    assert_same(network, (2, 3, *size), family="matmul")


class Chain(nn.Module):
    """The operators that `operators` names, in order: each changes the last result, some with an earlier one."""

    def __init__(self, operators):
        super().__init__()
        self.operators, self.weights = operators, nn.ParameterDict()

    def conv(self, x, out, size=1, groups=1):
        shape = (out, x.shape[1] // groups, size, size)
        if str(shape) not in self.weights:  # in the first call: only then are the channels known
            self.weights[str(shape)] = nn.Parameter(random_tensor(shape) / math.prod(shape[1:]) ** 0.5)
        return F.conv2d(x, self.weights[str(shape)], padding=size // 2, groups=groups)

    def like(self, other, x):
        """`other` with the channels and the size of `x`."""
        other = other if other.shape[1] == x.shape[1] else self.conv(other, x.shape[1])
        return other if other.shape == x.shape else F.adaptive_avg_pool2d(other, 1).expand_as(x)

    def forward(self, x):
        outputs = [self.conv(x, 20, 3)]
        for kind, back, k in self.operators:
            outputs.append(OPERATORS[kind](self, outputs[-1], outputs[-1 - back % len(outputs)], k))
        return outputs[-1], outputs[-2]


def shuffle(x, groups):
    n, c, h, w = x.shape
    return x if c % groups else x.reshape(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def attend(x):
    tokens = x.flatten(2).transpose(1, 2)
    return (torch.softmax(tokens @ tokens.transpose(1, 2), -1) @ tokens).transpose(1, 2).reshape(x.shape)


OPERATORS = {
    "conv": lambda net, x, other, k: net.conv(x, (5, 16, 24, 32)[k % 4], (1, 3, 5)[k % 3]),
    "depthwise": lambda net, x, other, k: net.conv(x, x.shape[1], 3, x.shape[1]),
    "grouped": lambda net, x, other, k: net.conv(x, 24, 3, math.gcd(x.shape[1], 4)),
    "add": lambda net, x, other, k: torch.relu(x + net.like(other, x)),
    "gate": lambda net, x, other, k: x * torch.sigmoid(net.conv(x.mean((2, 3), keepdim=True), x.shape[1])),
    "gate by a linear layer": lambda net, x, other, k: x * torch.sigmoid(x.mean((2, 3)))[:, :, None, None],
    "join": lambda net, x, other, k: torch.cat([x[:, :64], net.like(other, x)[:, :64]], 1),
    "halves": lambda net, x, other, k: torch.cat(x.chunk(2, 1)[::-1], 1),
    "part": lambda net, x, other, k: x.split([3, x.shape[1] - 3], 1)[k % 2] if x.shape[1] > 3 else x,
    "shuffle": lambda net, x, other, k: shuffle(x, 2 + k % 3),
    "max pool": lambda net, x, other, k: F.max_pool2d(x, 3, 1 + k % 2, 1),
    "avg pool": lambda net, x, other, k: F.avg_pool2d(x, 3, 1, 1, False, k % 2 == 0),
    "layer norm": lambda net, x, other, k: F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2),
    "attention": lambda net, x, other, k: attend(x),
    "divide": lambda net, x, other, k: x / (1 + x.abs().amax(1, keepdim=True)),
    "affine": lambda net, x, other, k: (x * 0.3 + 1) * torch.linspace(1, 2, x.shape[1])[:, None, None],
    "crop": lambda net, x, other, k: F.pad(x[:, :, 1:], (0, 1, 2, 0)),
}
operators = st.tuples(st.sampled_from(list(OPERATORS)), st.integers(0, 3), st.integers(0, 11))


@drawn(8)
@given(st.lists(operators, min_size=3, max_size=10), st.integers(1, 2), st.sampled_from([(5, 9), (8, 8), (13, 17)]))
def test_networks_of_many_operators(operators, batch, size):
    network, x = Chain(operators), random_tensor((batch, 3, *size))
    network(x)
    assert_same(network.requires_grad_(False), x)


FUNCTIONS = {
    "exp": torch.exp, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf, "silu": F.silu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": F.hardswish, "log": torch.log,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "divide": lambda x: x / (x + 1),
    "by itself": lambda x: x / x, "power": lambda x: x**-1.5, "square": torch.square, "to itself": lambda x: x**x,
    "softplus": F.softplus, "leaky": F.leaky_relu, "elu": F.elu, "mish": F.mish, "modulo": lambda x: x % 0.7,
    "log2": torch.log2, "normalize": F.normalize, "share": lambda x: x / x.sum(1, keepdim=True),
    "softmax": lambda x: torch.softmax(x, 1), "group norm": lambda x: F.group_norm(x, 1),
    "silu thrice": lambda x: F.silu(F.silu(F.silu(x))),
}  # fmt: skip


@drawn(12)
@given(st.sampled_from(list(FUNCTIONS)), channels, st.booleans())
@example("silu thrice", 5, False)
def test_functions_where_the_last_block_of_channels_is_not_full(kind, count, spread):
    """The channels that fill the last block hold 0, of which many of these functions make no number."""

    def function(x):
        y = FUNCTIONS[kind](x)
        return torch.cat([y, y.mean((2, 3), keepdim=True).expand_as(y)], 1) if spread else y

    network = between(function, count, count * (1 + spread))
    for parameter in network.parts[0].parameters():  # so that the channels of the network are positive
        nn.init.uniform_(parameter, 0.1, 1)
    assert_same(network, torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)), family="conv2d")


# ---------------------------------------------------------------- matrix products

rows = st.sampled_from([1, 13, 49, 197]) | st.integers(1, 40)
depths = st.integers(1, 130)
batches = st.lists(st.integers(1, 3), max_size=2)
AFTER = {
    "none": lambda y: y,
    "gelu": F.gelu,
    "scale": lambda y: y / 3,
    "gate": lambda y: y * torch.tanh(y) + 1,
}
after = st.sampled_from(list(AFTER))


def then(layer: nn.Module, tail: str):
    """A network: `layer`, and `tail` of AFTER."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    network = Function(lambda x: AFTER[tail](layer(x)))
    network.layer = layer
    return network


@drawn(8)
@given(batches, rows, depths, depths, st.booleans(), after)
@example([], 1, 124, 1, False, "none")
def test_linear_layers(batch, count, depth, columns, bias, tail):
    assert_same(then(nn.Linear(depth, columns, bias), tail), (*batch, count, depth), family="matmul")


@drawn(10)
@given(batches, st.lists(st.booleans(), min_size=5, max_size=5), rows, depths, rows, after)
@example([2], [False] * 5, 1, 1, 1, "none")
def test_products_of_two_inputs(batch, ones, count, depth, columns, tail):
    """Batches broadcast: where `ones` says so, a side has 1 for an axis, or the right one lacks the first."""
    left = [1 if ones[i] else n for i, n in enumerate(batch)]
    right = [1 if ones[i + 2] else n for i, n in enumerate(batch)][ones[4] :]
    assert_same(lambda a, b: AFTER[tail](a @ b), (*left, count, depth), (*right, depth, columns), family="batch_matmul")


@drawn(6)
@given(st.integers(1, 2), st.integers(1, 3), rows, rows, st.sampled_from([1, 7, 16, 32, 40]))
def test_attention(batch, heads, queries, keys, width):
    def attention(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width) + mask, -1) @ v

    shapes = [(batch, heads, n, width) for n in (queries, keys, keys)]
    assert_same(attention, *shapes, (queries, keys), family="batch_matmul or none")  # "none" has one for all


# ---------------------------------------------------------------- rows, and single elements

sizes = st.sampled_from([1, 2, 15, 16, 17, 31, 197])
others = st.lists(st.integers(1, 5), max_size=3)
REDUCTIONS = {
    "mean": torch.mean,
    "sum": lambda x, axis: x.sum(axis, keepdim=True),
    "max": torch.amax,
    "min": torch.amin,
    "variance": lambda x, axis: x.var(axis, correction=0) + 1,
    "argmax": torch.argmax,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis),
    "cumsum": torch.cumsum,
    "sort": lambda x, axis: torch.sort(x, axis)[0],
}


@drawn(12)
@given(st.sampled_from(list(REDUCTIONS)), others, sizes, st.integers(0, 3), st.sampled_from(["float32", "bfloat16"]))
@example("sum", [4], 16, 0, "bfloat16")
def test_reductions_over_any_axis(kind, others, size, axis, dtype):
    assume(dtype == "float32" or kind in ("mean", "sum", "max", "min"))
    axis = min(axis, len(others))
    x = random_tensor((*others[:axis], size, *others[axis:]), dtype)
    family = {"softmax": "row_reduction" if axis == len(others) else "default", "cumsum": None, "sort": None}.get(
        kind, "default"
    )
    assert_same(lambda x: REDUCTIONS[kind](x, axis), x, family=family)


@drawn(8)
@given(others, sizes, st.sampled_from([nn.LayerNorm, nn.RMSNorm, nn.Softmax]), after)
def test_softmax_and_norms_of_rows(others, size, layer, tail):
    layer = layer(-1 if layer is nn.Softmax else size)
    assert_same(then(layer, tail), (*others, size), family="row_reduction")


def test_norms_of_groups():
    """Of one group, of several, of one channel each; whole vectors and others; sums that are far from 0."""
    shapes = [(2, 8, 12, 12), (1, 6, 5, 7), (3, 32, 4)]
    for shape in shapes:
        x = random_tensor(shape) + 100
        weight, bias = random_tensor(shape[1:2], seed=2), random_tensor(shape[1:2], seed=3)

        def net(x, weight=weight, bias=bias):
            norms = [F.group_norm(x, n, weight, bias, 1e-3).relu() + x for n in (1, 2, x.shape[1])]
            return *norms, F.instance_norm(x)

        lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), {"x": shape}))
        # A kernel multiplies x by a factor and adds a number, as PyTorch's do: it rounds at the size of the product.
        largest = float(x.abs().max() * weight.abs().max())
        close(lib(x.numpy()), reference(net, x).values, terms=x[0].numel(), scale=largest)


BY_THEIR_OWN = {  # norms, and shapes
    "groups": (lambda x, w: F.group_norm(x, 2), [(2, 6, 5, 7), (1, 4, 9), (1, 2, 3, 5, 4), (5, 6)]),
    "weighted groups": (lambda x, w: F.group_norm(x, 2, w, w), [(2, 6, 16, 7), (3, 6)]),
    "images": (lambda x, w: F.instance_norm(x), [(2, 6, 5, 7), (1, 4, 9), (1, 2, 3, 5, 4)]),
    "weighted images": (lambda x, w: F.instance_norm(x, weight=w), [(2, 6, 8, 8)]),
    "batches": (lambda x, w: F.batch_norm(x, None, None, training=True), [(1, 6, 8, 8), (3, 6, 7, 5), (2, 6, 2, 3, 4)]),
    "weighted batches": (lambda x, w: F.batch_norm(x, None, None, w, w, True), [(64, 6), (3, 6, 16), (4, 6, 4, 4)]),
    "rows": (lambda x, w: F.layer_norm(x, x.shape[-1:]), [(3, 37), (6,), (2, 3, 768), (2, 1)]),
    "images by themselves": (lambda x, w: F.layer_norm(x, x.shape[1:]), [(2, 5, 37), (2, 3, 4, 16), (1, 4, 64, 9)]),
    "all": (lambda x, w: F.layer_norm(x, x.shape), [(24, 64), (3, 5, 7)]),
    "spreads": (lambda x, w: (x.var(), x.std(1), x.var((0, -1), correction=0)), [(3, 5, 70)]),
}


@pytest.mark.parametrize(("name", "level"), by_level(BY_THEIR_OWN, ["weighted groups", "batches", "rows"]))
def test_norms_of_numbers_far_from_zero(name, level):
    """TVM's own kernels leave no digit of the variance, or a negative number; of one value a norm is 0."""
    norm, shapes = BY_THEIR_OWN[name]
    inputs = [part for shape in shapes for part in (random_tensor(shape) + 10_000, random_tensor((6,), seed=2))]

    def net(*inputs):
        parts = [norm(*pair) for pair in zip(inputs[::2], inputs[1::2], strict=True)]
        return tuple(each for part in parts for each in (part if isinstance(part, tuple) else [part]))

    lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), inputs), opt_level=level)
    terms = max(x.numel() for x in inputs)
    # A norm's differences to the first of a row are exact; PyTorch's variance has the error of its mean.
    scale = 10_000 * 3 if name == "spreads" else 3
    close(lib(*(x.numpy() for x in inputs)), reference(net, *inputs).values, terms=terms, scale=scale)
    inputs[::2] = [torch.full_like(x, 7.7) for x in inputs[::2]]
    close(lib(*(x.numpy() for x in inputs)), reference(net, *inputs).values, terms=1, scale=1)


@pytest.mark.parametrize(("level", "dtype"), [(0, "float32"), (3, "float32"), (0, "float64")])
def test_norms_of_other_layouts(level, dtype):
    """Of modules that no frontend makes: channels last, axes that are not the last ones, without weight or bias."""
    x, weights = random_tensor((3, 4, 5, 6), dtype) + 100, {n: random_tensor((n,), dtype, n) for n in (4, 5, 6)}
    weights["rows"] = random_tensor((3, 5), dtype)
    names = {f"w{key}": weight for key, weight in weights.items()}
    builder, variables = relax.BlockBuilder(), {"x": relax.Var("x", relax.TensorType(x.shape, dtype))}
    variables |= {name: relax.Var(name, relax.TensorType(weight.shape, dtype)) for name, weight in names.items()}
    v, pair = variables["x"], lambda name: [variables[name]] * 2
    norm = relax.op.nn
    norms = [
        norm.layer_norm(v, *pair("wrows"), [0, 2]), norm.layer_norm(v, *pair("w4"), [1]),
        norm.layer_norm(v, *pair("w6"), [3], center=False), norm.layer_norm(v, *pair("w6"), [3], scale=False),
        norm.group_norm(v, *pair("w6"), 2, 3, [1, 2]), norm.group_norm(v, *pair("w4"), 2, 1, [2, 3], scale=False),
        norm.instance_norm(v, *pair("w6"), 3, [1, 2]), norm.instance_norm(v, *pair("w5"), 2, [0, 1]),
        norm.instance_norm(v, *pair("w4"), 1, [0, 2, 3], center=False),
    ]  # fmt: skip
    with builder.function("main", [*variables.values()]):
        with builder.dataflow():
            out = builder.emit_output(relax.Tuple([builder.emit(each) for each in norms]))
        builder.emit_func_output(out)
    lib = tvmfast.build(builder.get(), {}, opt_level=level)
    doubled, w = x.double(), {name: weight.double() for name, weight in names.items()}

    def normed(axes, weight=1.0, bias=0.0, x=doubled):
        return (x - x.mean(axes, True)) / (x.var(axes, correction=0, keepdim=True) + 1e-5).sqrt() * weight + bias

    def along(name, axis):
        return w[name].reshape([-1 if n == axis else 1 for n in range(4)])

    rows = w["wrows"].reshape(3, 1, 5, 1)
    grouped = normed((1, 2, 4), x=doubled.reshape(3, 4, 5, 2, 3)).reshape(x.shape)
    paired = normed((2, 3, 4), x=doubled.reshape(3, 2, 2, 5, 6)).reshape(x.shape)
    wanted = [
        normed((0, 2), rows, rows), normed(1, along("w4", 1), along("w4", 1)), normed(3, along("w6", 3)),
        normed(3, bias=along("w6", 3)), grouped * along("w6", 3) + along("w6", 3), paired + along("w4", 1),
        normed((1, 2), along("w6", 3), along("w6", 3)), normed((0, 1), along("w5", 2), along("w5", 2)),
        normed((0, 2, 3), along("w4", 1)),
    ]  # fmt: skip
    results = lib(x.numpy(), *(weight.numpy() for weight in names.values()))
    close(results, [part.numpy() for part in wanted], terms=90, scale=300)


def test_extremes_of_rows():
    """Of rows with a NaN, of infinities alone, of a size that vectors do not divide; with what follows."""
    for shape in [(3, 5, 37), (64,), (1, 1, 48), (2, 2, 8, 160)]:
        x = random_tensor(shape)
        rows = x.view(-1, shape[-1])
        rows[-1, 35] = math.nan
        if len(rows) > 1:
            rows[0] = -math.inf

        def net(x):
            largest = x.amax(-1, keepdim=True)
            return largest, (largest == -math.inf).float() + x, x.amin(-1), -x.amax(-1)

        with torch.no_grad():
            wanted = net(x)
        lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), {"x": shape}))
        for mine, theirs in zip(lib(x.numpy()), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy())
        assert "row_reduction" in set(lib.kernels.family)


def mean_square(x):
    return (x * x).mean(-1, keepdim=True) + 1e-5


WEIGHT = torch.linspace(-1, 2, 37)
# Root mean square norms as networks write them; each is one kernel.
NORMS = {
    "operator": lambda x: F.rms_norm(x, x.shape[-1:], WEIGHT, 1e-5),
    "weight first": lambda x: WEIGHT * (torch.rsqrt(mean_square(x)) * x),
    "power, no weight": lambda x: x * torch.rsqrt(1e-5 + x.pow(2).mean(2, True)),
    "quotient": lambda x: x / mean_square(x).sqrt() * (1 + WEIGHT),
    "of a sum": lambda x: F.rms_norm(x + WEIGHT, x.shape[-1:], WEIGHT, 1e-5) + x,
    "of a difference": lambda x: F.rms_norm(x - x.mean(1, True), x.shape[-1:], WEIGHT, 1e-5),
    "in float32": lambda x: WEIGHT.half() * F.rms_norm(x.half().float(), x.shape[-1:], None, 1e-5).half(),
}
OTHERS = {
    "another axis": lambda x: x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5),
    "two axes": lambda x: x * torch.rsqrt((x * x).mean((1, 2), keepdim=True) + 1e-5),
    "another tensor": lambda x: torch.relu(x) * torch.rsqrt(mean_square(x)),
    "a sum": lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5),
    "a cube": lambda x: x * torch.rsqrt((x * x * x.abs()).mean(-1, keepdim=True) + 1e-5),
    "an epsilon for each channel": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + WEIGHT.abs()),
    "an epsilon of higher rank": lambda x: x / ((x * x).mean(-1, keepdim=True) + torch.full((1, 1, 1, 1), 1e-5)).sqrt(),
    "the root itself": lambda x: x * mean_square(x).sqrt(),
    "the norm's inverse": lambda x: mean_square(x).sqrt() / x.abs().clamp(0.5),
}


@pytest.mark.parametrize("found", [True, False])
def test_root_mean_square_norms_are_found(found):
    """Each of a tensor of its own, in one network."""
    functions = (NORMS if found else OTHERS).values()

    def net(*xs):
        return tuple(function(x) for function, x in zip(functions, xs, strict=True))

    lib = assert_same(net, *[(2, 5, 37)] * len(functions), family="row_reduction" if found else "default")
    families = [schedule["family"] for schedule in lib.graph["kernels"].values()]
    assert found or "row_reduction" not in families
    norms = [node["kernel"] for node in lib.graph["nodes"] if "norm" in node["kernel"]]
    assert not found or len(norms) == len(NORMS)
    assert {lib.graph["kernels"][kernel]["family"] for kernel in norms} <= {"row_reduction"}


@pytest.mark.parametrize(
    ("function", "shape", "stored"),
    [
        (lambda a, b, c, d: (a * b + c * d).permute(0, 2, 3, 1), (1, 64, 32, 32), 1),
        (lambda a, b, c, d: (a * b + c * d)[..., 3], (1, 64, 32, 32), 0),  # the other elements are not needed
    ],
)
def test_products_are_stored_if_they_are_transposed_as_a_whole(function, shape, stored, rng):
    xs = [rng.standard_normal(shape, "float32") for _ in range(4)]
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), dict.fromkeys("abcd", shape)), records=False)
    close(lib(*xs), reference(function, *xs))
    (kernel,) = (lib.functions[name] for name in lib.kernels.index)
    assert kernel.script().count("sblock_alloc_buffer") == stored


def test_numbers_made_of_several():
    assert_same(lambda x: (x.sum() * x[0] + x[1] * x[2] - x[3]).exp() * x[0], (4,), family="default")


def test_layer_norms_are_found(rng):
    """As ONNX has them below opset 17; differences to a row's first element are exact."""

    def net(x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * WEIGHT + 1, centred

    lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), {"x": ("batch", 5, 37)}))
    assert sum("layer_norm" in name for name in lib.kernels.index) == 1
    x = torch.from_numpy(rng.standard_normal((3, 5, 37), "float32"))
    for shift in (0, 10_000):
        (norm, _), (wanted, _) = lib(x + shift), reference(net, x + shift).values
        close(norm, wanted, terms=37, scale=3 * float(WEIGHT.abs().max()))
    assert (np.asarray(lib(torch.full_like(x, 3.3))[0]) == 1).all()


def test_norms_of_a_dynamic_number_of_rows(rng):
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(NORMS["operator"]).eval(), {"x": ("batch", "length", 37)}))
    assert set(lib.kernels.family) == {"row_reduction"}
    for shape in ((1, 1, 37), (2, 70, 37)):
        x = rng.standard_normal(shape, "float32")
        close(lib(x), reference(NORMS["operator"], x))


# By name: the number by whose rounding the error of small results is given. Normal numbers end at SMALL's rounding,
# silu multiplies by up to 100, and the gelus by 1 + erf or 1 + tanh, which is 0 from -5.5 on.
SMALL = float(np.finfo("float32").tiny / np.finfo("float32").eps)
LEAST = {
    "exp": SMALL,
    "sigmoid": SMALL,
    "silu": 100 * SMALL,
    "tanh": SMALL,
    "erf": SMALL,
    "gelu": 5.5,
    "gelu_tanh": 5.5,
}


def test_functions_of_all_kinds_of_values():
    """Each result is right for its own size, or that in LEAST; infinities and NaN are PyTorch's."""
    special = [-math.inf, -3e38, -200, -104, -0.0, 0, 1e-40, 1e-30, 88.7, 88.8, 3e38, math.inf, math.nan]
    x = torch.cat([torch.tensor(special), torch.linspace(-90, 90, 3000), torch.logspace(-9, 1, 100)])
    network = Function(lambda x: tuple(FUNCTIONS[kind](x) for kind in LEAST)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": tuple(x.shape)}))
    for (kind, least), output in zip(LEAST.items(), lib(x), strict=True):
        wanted = FUNCTIONS[kind](x.double()).numpy()
        close(output, wanted, terms=4, scale=np.maximum(np.abs(wanted), least))


# ---------------------------------------------------------------- other dtypes, by TVM's own kernels

halves = st.sampled_from(["float16", "bfloat16"])
ANY_DTYPE = {
    "add": lambda x: x + x.flip(-1),
    "clamp": lambda x: x.clamp(-3, 5) * 3,
    "concat": lambda x: torch.cat([x, torch.relu(x)], 1),
    "where": lambda x: torch.where(x > 2, x, -x),
    "max": lambda x: x.amax(1),
    "to float": lambda x: torch.relu(x.float() * 0.1),
}
FLOATING = {
    **{kind: FUNCTIONS[kind] for kind in ("exp", "sigmoid", "tanh", "erf", "silu", "gelu", "softmax")},
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "mean": lambda x: x.mean((2, 3)),
    "max pool": lambda x: F.max_pool2d(x, 2),
    "avg pool": lambda x: F.avg_pool2d(x, 2),
    "product": lambda x: x @ x.transpose(-1, -2),
}


@drawn(8)
@given(st.sampled_from(list(FLOATING)), halves, channels)
@example("silu", "bfloat16", 1)
@example("layer norm", "bfloat16", 3)
@example("rms norm", "bfloat16", 3)
def test_functions_in_half_precision(kind, dtype, count):
    assert_same(FLOATING[kind], random_tensor((2, count, 4, 17), dtype))


@drawn(8)
@given(
    st.sampled_from(list(ANY_DTYPE)),
    st.sampled_from(["float16", "bfloat16", "int8", "int32", "int64"]),
    channels,
    st.sampled_from([2, 16, 17]),
)
@example("max", "bfloat16", 5, 16)
def test_functions_in_every_dtype(kind, dtype, count, width):
    assert_same(ANY_DTYPE[kind], random_tensor((2, count, 4, width)).mul(5).to(getattr(torch, dtype)))


@drawn(6)
@given(convolutions(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 1, 2])), halves)
def test_convolutions_in_half_precision(case, dtype):
    assert_convolves(case, None, dtype)


@drawn(6)
@given(halves, rows, depths, depths, st.booleans())
@example("bfloat16", 1, 2, 16, False)
def test_matrix_products_in_half_precision(dtype, count, depth, columns, weights):
    a, b = random_tensor((count, depth), dtype), random_tensor((depth, columns), dtype, 2)
    network, inputs = (nn.Linear(depth, columns).to(a.dtype), [a]) if weights else (torch.matmul, [a, b])
    assert_same(network, *inputs)


def test_winograds_larger_tiles_are_nearly_as_exact_as_the_direct_way():
    network, x = nn.Conv2d(64, 64, 3, padding=1, bias=False), random_tensor((1, 64, 28, 28))
    with torch.no_grad():
        network.weight.copy_(torch.from_numpy(np.random.default_rng(2).normal(size=(64, 64, 3, 3))) / 24)
    lib = tvmfast.build(*tvmfast.from_pytorch(network.eval(), {"x": x.shape}), records=False)
    assert [
        config["m"]
        for family, config in zip(lib.kernels.family, lib.kernels.config, strict=True)
        if family == "winograd"
    ] == [4], lib.kernels
    close(lib(x), reference(network, x))
