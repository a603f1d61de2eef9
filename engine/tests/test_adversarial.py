"""A fixed sample of `adversarial.py`: draws that are equal, and how it judges."""

import math

import adversarial
import numpy as np
import pytest
from adversarial import Situation, changed, judge, laid_out, table
from agreement import Reference

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
    for number in SAMPLE[kind]:
        name, how, text = adversarial.draw(frontend, kind, 3, number)
        assert text.partition(":")[0] in ("equal", "refused", "none"), f"draw {number}: {name}, {how}: {text}"
