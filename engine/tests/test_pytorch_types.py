"""PyTorch's types: what operators return of two dtypes, of a tensor and a number, and of sums of integers."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from agreement import close
from testing import Function
from torch import nn
from torch.utils import _pytree as pytree

import tvmfast
from tvmfast.frontends.pytorch.ops.converters import CONVERTERS

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
# `make test` has these pairs, `make test-full` all.
SAMPLE = ((torch.bool, torch.int64), (torch.float32, torch.int32), (torch.float16, torch.bfloat16))
OF_TWO = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow")},
    **{name: getattr(torch, name) for name in ("maximum", "minimum", "eq", "lt", "ge", "atan2", "hypot", "copysign")},
    **{name: getattr(torch, name) for name in ("logical_and", "bitwise_or", "bitwise_left_shift", "fmax", "xlogy")},
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add, alpha": lambda x, y: torch.add(x, y, alpha=2),
    "rsub": lambda x, y: torch.rsub(x, y),
    "where": lambda x, y: torch.where(y > 1, x, y),
    "clamp": lambda x, y: torch.clamp(x, y),
    "cat": lambda x, y: torch.cat([x, y.expand(8)]),
    "stack": lambda x, y: torch.stack([x, y.expand(8)]),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2),
    "masked_fill": lambda x, y: x.masked_fill(x > 1, y.reshape(-1)[0]),
    "isclose": torch.isclose,
}
OF_ONE = {
    **{name: getattr(torch, name) for name in ("sum", "prod", "mean", "amax", "any", "all", "argmax", "sigmoid")},
    **{name: getattr(torch, name) for name in ("exp", "sqrt", "abs", "neg", "square", "sign", "floor", "round")},
    **{name: getattr(torch, name) for name in ("relu", "logical_not", "bitwise_not", "isfinite", "count_nonzero")},
    "sum, 0": lambda x: x.sum(0),
    "mean of float64": lambda x: x.mean(0, dtype=torch.float64),
    "sum of float16": lambda x: x.sum(0, dtype=torch.float16),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cumsum of int32": lambda x: x.cumsum(0, dtype=torch.int32),
    "softmax of float32": lambda x: torch.softmax(x, 0, dtype=torch.float32),
    "full_like": lambda x: torch.full_like(x, 1.5) + x,
}
SCALARS = (True, 2, 2.5)


def random_tensor(rng, dtype, low, high):
    low = 0 if dtype in (torch.bool, torch.uint8) and low < 0 else low
    return torch.from_numpy(rng.integers(low, 2 if dtype is torch.bool else high, 8)).to(dtype)


def calls_of_two(rng, first, second):
    """Names, functions and operands: two arrays, and an array and an array without axes."""
    x, y = random_tensor(rng, first, -9, 9), random_tensor(rng, second, 1, 4)
    for (name, function), operand in product(OF_TWO.items(), (y, y[0])):
        if name != "pow" or first.is_floating_point or second.is_floating_point:  # test_pytorch_integers.py has these
            yield f"{name}, {first}, {second}, {operand.ndim} axes", function, (x, operand)


def calls_with_scalars(rng, dtype):
    x = random_tensor(rng, dtype, 1, 9)
    for (name, function), number in product(OF_TWO.items(), SCALARS):
        yield f"{name}, {dtype}, {number}", lambda x, f=function, n=number: f(x, n), (x,)
        if name != "pow" or dtype.is_floating_point or number == 2.5:
            yield f"{name}, {number}, {dtype}", lambda x, f=function, n=number: f(n, x), (x,)


def calls_of_one(rng, dtype):
    x = random_tensor(rng, dtype, -2, 3)
    for name, function in OF_ONE.items():
        yield f"{name}, {dtype}", function, (x,)


def check(calls):
    """Build one network of all calls that PyTorch takes, and compare it with PyTorch."""
    calls, wanted = list(calls), []
    for call in list(calls):
        try:
            wanted.append(call[1](*call[2]))
        except (RuntimeError, TypeError, AttributeError):
            calls.remove(call)
    inputs = list({id(x): x for _, _, operands in calls for x in operands}.values())
    index_of = {id(x): index for index, x in enumerate(inputs)}
    net = Function(lambda *xs: tuple(f(*(xs[index_of[id(x)]] for x in operands)) for _, f, operands in calls)).eval()
    outputs = pytree.tree_leaves(tvmfast.build(*tvmfast.from_pytorch(net, inputs), opt_level=1)(*inputs))
    wrong = []
    for (name, _, _), ours, theirs in zip(calls, outputs, wanted, strict=True):
        dtype = str(theirs.dtype).removeprefix("torch.")
        theirs = theirs.double() if theirs.is_floating_point() else theirs
        try:
            assert str(ours.dtype) == dtype
            close(ours, theirs, scale=np.abs(theirs.numpy()), rounded=True)
        except AssertionError as error:
            wrong.append(f"{name}: {ours.dtype} {ours}, expected {dtype} {theirs}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", [None, *(pytest.param(each, marks=pytest.mark.full) for each in DTYPES)])
def test_operators_of_two_dtypes(first, rng):
    pairs = SAMPLE if first is None else [(first, second) for second in DTYPES]
    check(call for pair in pairs for call in calls_of_two(rng, *pair))


@pytest.mark.parametrize(
    "dtypes",
    [(torch.bool, torch.int16), pytest.param(DTYPES, marks=pytest.mark.full)],
    ids=["some", "all"],
)
def test_operators_of_a_tensor_and_a_number(dtypes, rng):
    check(call for dtype in dtypes for call in calls_with_scalars(rng, dtype))


def test_operators_of_one_tensor(rng, quick):
    dtypes = [dtype for dtype in DTYPES if not quick or dtype not in (torch.int8, torch.int16)]
    check(call for dtype in dtypes for call in calls_of_one(rng, dtype))


def test_a_converter_that_makes_another_shape_is_refused(monkeypatch, rng):
    monkeypatch.setitem(CONVERTERS, "amax.default", lambda node, importer: importer.env[node.args[0]])
    with pytest.raises(NotImplementedError, match=r"makes float32\(2, 3\) of what is float32\(2,\): aten.amax.default"):
        tvmfast.from_pytorch(Function(lambda x: x.amax(1).cumsum(0)).eval(), {"x": (2, 3)})


def test_what_tvm_computes_in_another_way(rng):
    halves = torch.full((16,), 300.0, dtype=torch.float16)
    special = torch.tensor([-0.0, 0.0, 4.0, -math.inf, math.inf, math.nan])
    check(
        [
            ("crossed bounds", lambda x: x.clamp(2.0, 1.0), (special,)),
            ("norm of halves", torch.linalg.vector_norm, (halves,)),
            ("isfinite", torch.isfinite, (special.bfloat16(),)),
            ("power of -0.5", lambda x: x**-0.5, (special,)),
            ("slice_scatter", lambda x: torch.slice_scatter(x, torch.ones(2), 0, 1, 3), (torch.zeros(4).long(),)),
            ("eye", lambda x: x + torch.eye(2, 3), (torch.zeros(2, 3),)),
        ]
    )


@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (lambda x: x + torch.randn(4), torch.zeros(4), "randn.* draws random numbers in each run"),
        (lambda x: x.t().as_strided((2, 2), (2, 1)), torch.zeros(2, 3), "as_strided reads the memory"),
        (lambda x: (x * 2)[2:].as_strided((2,), (1,), 0), torch.zeros(6), "as_strided reads the memory"),
        (
            lambda x: nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic"),
            torch.zeros((1, 1, 4, 4), dtype=torch.int32),
            "resize it as float32",
        ),
    ],
    ids=["random", "of columns", "of a slice", "resized integers"],
)
def test_what_would_be_a_wrong_number_is_refused(function, x, words):
    with pytest.raises(NotImplementedError, match=words):
        tvmfast.from_pytorch(Function(function).eval(), [x])


NORMS = [nn.GroupNorm(2, 4), nn.GroupNorm(2, 4, affine=False), nn.InstanceNorm2d(4, affine=True)]


@pytest.mark.parametrize("norm", NORMS, ids=["groups", "groups, plain", "instance"])
def test_norms_of_bfloat16(norm, rng):
    """As PyTorch, in float32, rounded once."""
    net, x = norm.bfloat16().eval(), torch.from_numpy(rng.standard_normal((1, 4, 3, 5))).bfloat16()
    got = tvmfast.build(net, {"x": (x.shape, "bfloat16")}, opt_level=1)(x)
    exact = net.double()(x.double()).detach().numpy()
    close(got, exact, x.numel(), scale=np.maximum(np.abs(exact), 2.0**-9))
