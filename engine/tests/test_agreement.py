"""The comparisons of the other tests: right results of any rounding pass, planted faults do not."""

from collections import defaultdict

import agreement
import ml_dtypes
import numpy as np
import pytest
import torch
from agreement import Reference, close, reference
from testing import SmallNet
from torch import nn
from torch.nn import functional as F

from tvmfast.profiling import networks


@pytest.fixture(autouse=True)
def shares(monkeypatch):
    """Of this test alone: planted faults are not shown with those of the other tests."""
    shares = defaultdict(float)
    monkeypatch.setattr(agreement, "shares", shares)
    return shares


def product(rng, dtype="float32"):
    """A product of 300 terms in float64, and each sum of it by steps of another order in `dtype`."""
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((20, 300), (300, 30)))
    sums = np.zeros((20, 30), "float32" if dtype == "float16" else dtype)
    for k in rng.permutation(300):
        sums += np.outer(a[:, k], b[k])
    return sums.astype(dtype), a.astype("float64") @ b.astype("float64")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_in_any_order_are_close(rng, dtype):
    got, wanted = product(rng, dtype)
    close(got, wanted, 300)
    close([got, got], [wanted, wanted], 300)
    close(got, got.astype("float64"), 300)


def test_sums_of_float64_are_held_to_float64(rng):
    got, wanted = product(rng, "float64")
    close(got, wanted, 300)
    with pytest.raises(AssertionError, match="an error of"):
        close(wanted.astype("float32").astype("float64"), wanted, 300)


def largest(array) -> tuple:
    return np.unravel_index(np.abs(array).argmax(), array.shape)


def wrong_number(got):
    got[largest(got)] *= 1 + 1e-4


def lost_tail(got):
    got -= 0.01


def nan(got):
    got[3, 4] = np.nan


def infinite(got):
    got[3, 4] = np.inf


@pytest.mark.parametrize("spoil", [wrong_number, lost_tail, nan, infinite])
def test_planted_faults(rng, spoil):
    got, wanted = product(rng)
    spoil(got)
    with pytest.raises(AssertionError, match="an error of|NaN or infinities"):
        close(got, wanted, 300)


def test_an_error_says_where_and_how_much():
    got, wanted = np.array([1, 2.001, 4], "float32"), np.array([1.0, 2, 4])
    words = r"result 0 of 1: an error of 1.00e-03 at \[1\], of which rounding explains 1.91e-06: expected 2, got 2.00"
    with pytest.raises(AssertionError, match=words):
        close(got, wanted)


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        (np.ones(3, "float32"), np.ones((3, 1)), r"expected float \(3, 1\), got float32 \(3,\)"),
        (np.ones(3, "int32"), np.ones(3), "expected float"),
        (np.ones(3, "float32"), np.ones(3, "int64"), "expected int"),
        (np.ones(3, bool), np.ones(3, "int64"), "expected int"),
        ([np.ones(3, "float32")] * 2, [np.ones(3)], "expected 1 results, got 2"),
        (np.array([1, 2, 3]), np.array([1, 2, 4]), "Mismatched elements: 1"),
        (np.array([1, np.nan], "float32"), np.array([np.nan, 1]), "NaN or infinities"),
        (np.array([1, np.inf], "float32"), np.array([1, -np.inf]), "NaN or infinities"),
        (np.array([1e-38], "float32"), np.array([1.0001e-38]), "an error of"),
        (np.array([1 + 2j, 3], "complex64"), np.array([1 + 2.001j, 3]), "an error of"),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.1]), "an error of"),
    ],
)
def test_what_is_not_close(got, wanted, words):
    with pytest.raises(AssertionError, match=words):
        close(got, wanted)


def test_what_is_close():
    close(np.array([np.nan, np.inf, -np.inf, 1], "float32"), np.array([np.nan, np.inf, -np.inf, 1]))
    close(np.array([np.inf], "float32"), np.array([1e39]))  # it overflows
    close(np.array([1 + 2j], "complex64"), np.array([1 + 2j]))
    close(np.array([1, 2], ml_dtypes.bfloat16), np.array([1.001, 2]))
    close(np.zeros((0, 3), "float32"), np.zeros((0, 3)))
    close(np.array([1e-3, 1e3], "float32"), np.array([1e-3, 1e3]), scale=[1e-3, 1e3])
    with pytest.raises(AssertionError, match=r"at \[0\]"):
        close(np.array([1e-3, 1e3], "float32"), np.array([1.00001e-3, 1e3]), scale=[1e-3, 1e3])


def test_a_reference_of_float32_has_to_be_called_rounded():
    ones = np.ones(3, "float32")
    with pytest.raises(TypeError, match="give a float64 reference, not float32"):
        close(ones, ones)
    close(ones, ones, rounded=True)


# ---------------------------------------------------------------- PyTorch in double precision


def examples():
    return {
        "linear": (nn.Linear(400, 20), (7, 400)),
        "convolutions": (networks.seeded(SmallNet, 8), (1, 3, 8, 8)),
        "lstm": (nn.LSTM(8, 16, 2), (5, 2, 8)),
        "encoder": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), (2, 9, 16)),
        "half": (nn.Linear(400, 20).half(), (7, 400)),
        "double": (nn.Linear(400, 20).double(), (7, 400)),
        "function": (lambda x: F.layer_norm(x.softmax(-1), [400]).sum(0), (7, 400)),
    }


@pytest.mark.parametrize("name", examples())
def test_pytorch_agrees_with_itself_in_double_precision_and_a_fault_does_not(name):
    net, shape = examples()[name]
    dtype = {"half": torch.float16, "double": torch.float64}.get(name, torch.float32)
    x = torch.randn(shape).to(dtype)
    wanted = reference(net, x)
    assert all(value.dtype == "float64" for value in wanted.values)
    with torch.no_grad():
        got = net(x)
    got = [got[0], *got[1]] if name == "lstm" else [got]
    close(got, wanted)
    got = [each.numpy().copy() for each in got]
    got[-1][largest(got[-1])] *= 1 + {"half": 0.05, "double": 1e-13}.get(name, 5e-5)
    with pytest.raises(AssertionError, match="an error of"):
        close(got, wanted)


def test_a_network_is_as_it_was_after_its_reference():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    before = {name: (x.data_ptr(), x.dtype, x.clone()) for name, x in net.state_dict().items()}
    reference(net, torch.ones(2, 3))
    for name, x in net.state_dict().items():
        pointer, dtype, values = before[name]
        assert (x.data_ptr(), x.dtype) == (pointer, dtype) and torch.equal(x, values)


def test_tensors_that_a_function_holds_count_in_double_precision():
    third = torch.ones(4) / 3
    (value,), _ = reference(lambda x: x * third - third * 3, np.full(4, 3, "float32"))
    np.testing.assert_array_equal(value, 3 * third.double() - third.double() * 3)


def test_cancellation_is_measured():
    """A difference of large numbers has their errors; a sum of few has less than one of many."""
    x = torch.rand(1000)
    far, near = (reference(lambda x, at=at: (x + at) - at, x).moved[0] for at in (1e4, 0))
    assert 1e-4 < far < 1e-2 and near < 1e-6
    many, few = (reference(lambda x: x @ x, x[:count]).moved[0] / count for count in (1000, 10))
    assert many > 5 * few


def test_shares_are_recorded_for_the_test(request, shares):
    close(np.array([1], "float32"), Reference([np.array([1.0 + 1e-6])], [1e-6]))
    assert list(shares) == [request.node.nodeid] and 0.3 < shares[request.node.nodeid] < 0.5
