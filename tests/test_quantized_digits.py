"""The shipped networks in int8: the digits that it reads, and the figure of the report."""

import numpy as np
import pytest

import tvmnotes as tn
from tvmnotes.digits import load_test_set, preprocess


@pytest.fixture(scope="module")
def digits():
    """The digit network, its pictures in batches of 20, and their labels."""
    images, labels = load_test_set()
    mod, params = tn.from_pytorch(tn.models.load("digits"), {"x": (20, 1, 32, 32)})
    return mod, params, preprocess(images).reshape(18, 20, 1, 32, 32), labels


@pytest.fixture(scope="module")
def quantized(digits):
    mod, params, x, _ = digits
    return tn.quantize(mod, params, [*x[:3]])


def test_the_digits_are_read_in_int8(digits, quantized):
    _, _, x, labels = digits
    logits = np.concatenate([*map(tn.build(*quantized), x)])
    right = (logits.argmax(1) == labels).sum()
    assert right >= 356, "of 360; 357 in float32"
    assert quantized.report.output > 35


def test_all_layers_are_quantized(quantized):
    report = quantized.report
    assert not [row for row in report.rows if row.reason]
    kinds = report.frame()["operator"].value_counts().to_dict()
    assert kinds == {"conv2d": 21, "add": 9, "mean": 1, "matmul": 1}
    _, params = quantized
    weights = [array for name, array in params.items() if name.endswith(".weight")]
    assert len(weights) == 22 and {str(array.dtype) for array in weights} == {"int8"}


def test_the_figure_shows_the_report(quantized):
    rows, figure = quantized.report.rows, quantized.report.plot()
    (axes,) = figure.axes
    *dots, line = axes.lines
    worst = sorted(rows, key=lambda row: row.output)
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.layer for row in worst]
    drawn = [each.get_xdata() for each in dots]
    wanted = [[getattr(row, name) for row in worst] for name in ("weight", "activation", "output")]
    np.testing.assert_array_equal(drawn, wanted)
    assert line.get_xdata() == pytest.approx([quantized.report.output] * 2)
