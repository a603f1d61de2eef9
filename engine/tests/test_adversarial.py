"""A fixed sample of `adversarial.py`: draws that are equal, and how it judges."""

import math

import adversarial
import ml_dtypes
import numpy as np
import pytest
import torch
from adversarial import Situation, changed, judge, laid_out, table
from agreement import Reference
from testing import Function
from torch import nn

import tvmfast

PLAIN = Situation("as they are", "as they are", "as it is", None, False, "whole")


@pytest.mark.parametrize("values", adversarial.VALUES)
def test_inputs_of_each_kind_of_values(rng, values):
    x = changed(np.ones((3, 4), "float32"), PLAIN._replace(values=values, size=(4, 5)), rng)
    assert (x.shape, x.dtype) == ((3, 5), "float32")


@pytest.mark.parametrize("layout", adversarial.LAYOUTS)
def test_a_layout_keeps_the_numbers(layout):
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(laid_out(x, layout), x[:1] * np.ones((3, 1)) if layout == "broadcast" else x)


@pytest.mark.parametrize("how", adversarial.INTEGERS)
def test_integers_stay_within_their_dtype(rng, how):
    x = changed(np.arange(6, dtype="int8"), PLAIN._replace(integers=how), rng)
    assert (x.shape, x.dtype) == ((6,), "int8")


def test_what_is_wrong():
    one, right = np.ones(2, "float32"), Reference([np.ones(2)], [0.0])
    judge([one], [one + 1], right)  # the framework is off
    judge([one + 1], [one + 1], right)  # and so are we
    judge([np.float32([1, math.nan])], [np.float32([1, math.nan])], right)
    for other in (one * 1.001, np.float32([1, math.nan]), one.astype("float64"), one[:1]):
        with pytest.raises(AssertionError):
            judge([other], [one], right)


def test_sums_that_may_overflow_whatever_their_result():
    """A parameter's sign hides them from an operator on magnitudes, unless that loses the sign, too."""
    x, weight = np.full(2, 3e38, "float32"), np.float32([2, -2])
    framework, of_sizes = (lambda x, weight=each: [np.sum(x * weight, keepdims=True)] for each in (weight, abs(weight)))
    for sizes, found in ((framework, False), (of_sizes, True)):
        with np.errstate(all="ignore"):
            _, beyond = adversarial._reference(framework, [x], framework(x), np.random.default_rng(0), sizes)
        assert beyond[0].tolist() == [found]
    assert [adversarial._overflows(np.float32([each])) for each in (1e19, 1e20, math.inf)] == [False, True, False]


def test_a_framework_without_float64():
    """Its own precision decides then: 1 of 16777217 ones is within what rounding of the inputs moves."""

    def framework(x, y):
        if x.dtype == "float64":
            raise NotImplementedError("float64")
        return [x - y, np.int32([3])]

    x, y = np.float32([16777216.0]), np.float32([16777215.0])
    right, beyond = adversarial._reference(framework, [x, y], framework(x, y), np.random.default_rng(0), framework)
    assert beyond is None and 1 <= right.moved[0] <= 64 and right.moved[1] == 0
    judge([np.float32([2.0]), np.int32([3])], framework(x, y), right)
    with pytest.raises(AssertionError):
        judge([np.float32([200.0]), np.int32([3])], framework(x, y), right)


def test_squares_that_overflow_in_float32():
    dtypes = ("float32", ml_dtypes.bfloat16, "float64")
    assert [adversarial._overflows_in_float32(np.array([1e20], each)) for each in dtypes] == [True, True, False]
    assert [adversarial._overflows_in_float32(np.float32([x])) for x in (1e19, math.inf)] == [False, False]


@pytest.mark.parametrize(
    ("op", "attributes", "wanted"),
    [
        ("topk", {"k": "2", "ret_typ": "both"}, [[[3, 2]], [[1, 0]]]),
        ("topk", {"k": "3", "is_ascend": "True"}, [[[2, 3, 0]]]),
        ("sort", {}, [[[1, 1, 2, 3]]]),
        ("argsort", {"is_ascend": "False"}, [[[1, 0, 2, 3]]]),
    ],
)
def test_mxnets_equal_elements_keep_their_order(op, attributes, wanted):
    ordered = adversarial._order({"nodes": [{"op": "null"}, {"op": op, "attrs": attributes}]})
    assert [each.tolist() for each in ordered(np.float32([[2, 3, 1, 1]]))] == wanted


def test_what_pytorch_leaves_open_has_an_order():
    ordered, x = torch.tensor([3.0, 1, 2]), torch.tensor([2.5])
    assert [adversarial._bucketize(x, ordered).item(), adversarial._searchsorted(ordered, x).item()] == [2, 2]
    assert adversarial._searchsorted(ordered, x, sorter=torch.tensor([2, 0, 1])).item() == 2
    ties = torch.tensor([[2.0, 1, 1, 3]])
    assert [each.tolist() for each in adversarial._kth(ties, 2)] == [[1], [2]]
    assert [each.tolist() for each in adversarial._median(ties, 1, True)] == [[[1]], [[2]]]
    assert [each.tolist() for each in adversarial._topk(ties, 3, largest=False)] == [[[1, 1, 2]], [[1, 2, 0]]]


# By operator and what became of them: wrong, or undefined in PyTorch, or with examples of 12 GB and more in an import.
MENDED = {
    **{4129: ("std_mean", "equal"), 4963: ("cosh", "equal"), 4342: ("bucketize", "equal")},
    **{4343: ("searchsorted", "equal"), 4555: ("kthvalue", "equal"), 4905: ("linalg.inv", "none")},
    **{4887: ("fft.ihfftn", "none"), 4355: ("squeeze", "none"), 4666: ("to", "none"), 4746: ("atleast_1d", "none")},
}


def test_draws_that_were_wrong():
    """They keep their operators, however many the suite has by now."""
    frontend = adversarial.FRONTENDS["torch"]()
    frontend.names = [MENDED[number][0] if number in MENDED else "" for number in range(max(MENDED) + 1)]
    found = [line for _, line in adversarial.outcomes(frontend, "torch", (3,), MENDED)]
    assert {line["number"]: (line["name"], line["outcome"].partition(":")[0]) for line in found} == MENDED


def test_the_table_counts_each_draw_once():
    line = {"name": "sin", "kinds": ["special", "dynamic"], "outcome": "wrong: all"}
    lines = [line, line | {"outcome": "equal"}]
    assert [table(lines).splitlines()[0].split()[4], table(lines).splitlines()[-1].split()[-3]] == ["wrong", "1"]


SAMPLE = {"torch": range(0, 338, 28), "onnx": range(0, 1200, 75), "mxnet": range(0, 240, 20)}


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_sample_of_draws(kind):
    if kind == "mxnet":
        pytest.importorskip("mxnet")
    frontend = adversarial.FRONTENDS[kind]()
    for level, line in adversarial.outcomes(frontend, kind, (0, 3), SAMPLE[kind]):
        assert line["outcome"].partition(":")[0] in ("equal", "refused", "none"), f"at level {level}: {line}"


class Planted:
    """A frontend of four cases; all but the first are not equal."""

    names = ("right", "wrong", "refused", "out of range")

    def case(self, name, rng):
        def model(arrays, shapes):
            if name == "refused":
                raise NotImplementedError("sum")
            more = 1.0 if name == "wrong" else 0.0
            network = Function(lambda x, at: (x + more, x[at + (9 if name == "out of range" else 0)]))
            return tvmfast.from_pytorch(network.eval(), {"x": (shapes[0], "float32"), "at": (shapes[1], "int64")})

        inputs = [rng.standard_normal(3).astype("float32"), np.array([2])]
        return adversarial.Case(inputs, lambda x, at: [x, x[at]], model)


def test_draws_are_one_network_unless_one_of_them_fails(monkeypatch):
    builds, build = [], tvmfast.build
    monkeypatch.setattr(adversarial, "situation", lambda *_: PLAIN)
    monkeypatch.setattr(
        tvmfast, "build", lambda mod, *a, **k: builds.append(int(mod["main"].attrs["num_input"])) or build(mod, *a, **k)
    )
    lines = [line for _, line in adversarial.outcomes(Planted(), "torch", (0,), (0, 4, 8))]
    assert ([line["outcome"] for line in lines], builds) == (["equal"] * 3, [6])
    found = [line["outcome"] for _, line in adversarial.outcomes(Planted(), "torch", (0,), range(4))]
    assert [text.partition(" ")[0] for text in found] == ["equal", "wrong:", "refused:", "refused:"]
    assert "IndexError" in found[3]


def test_networks_with_dynamic_dims_become_one():
    first, second = ({"x": (name, 3)} for name in ("rows", "lines"))
    models = [
        tvmfast.from_pytorch(Function(torch.exp).eval(), first),
        tvmfast.from_pytorch(nn.Linear(3, 2).eval(), second),
    ]
    lib = tvmfast.build(*adversarial.together(models))
    x, y = np.ones((4, 3), "float32"), np.ones((5, 3), "float32")
    alone = [tvmfast.build(*model)(x if at == 0 else y) for at, model in enumerate(models)]
    for ours, theirs in zip(lib(x, y), alone, strict=True):
        np.testing.assert_array_equal(ours, theirs)
