"""The figures of the engine's results: they show what they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from test_profiling import invented_profile

from tvmfast.core.table import finders
from tvmfast.profiling.measure import Comparison, Timing
from tvmnotes import peak, plots, threads


def test_the_figures_show_what_they_are_given(monkeypatch):
    bars = plots.shares({name: Timing(name, [seconds]) for name, seconds in zip("abcd", (1, 5, 3, 1), strict=True)}, 2)
    assert [text.get_text() for text in bars.axes[0].get_yticklabels()] == ["b", "c", "2 more"]
    assert [bar.get_width() for bar in bars.axes[0].patches] == [50, 30, 20]

    monkeypatch.setattr(peak, "flops", lambda: 100e9)
    monkeypatch.setattr(peak, "bandwidth", lambda: 10e9)
    figure = invented_profile().roofline()
    (dots,) = figure.axes[0].collections
    assert dots.get_offsets().tolist() == [pytest.approx([100, 2e8 / 3e-3 / 1e9]), pytest.approx([0.01, 0.1])]
    (roof,) = figure.axes[0].lines
    assert [tuple(point) for point in roof.get_xydata()][1] == (10, 100), "where both limits meet"
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")
    monkeypatch.setattr(peak, "int8_ops", lambda: 400e9)
    roof, of_bytes = invented_profile(int_ops=10**8).roofline().axes[0].lines
    assert [tuple(point) for point in of_bytes.get_xydata()][:2] == [(10, 100), (40, 400)]

    (area,) = plots.memory({"a": [1e6, 3e6]}).axes[0].patches
    assert area.get_data().values.tolist() == [1, 3] and area.get_data().edges.tolist() == [0, 50, 100]

    found = threads.Threads({(n, bound): Timing("", [0.008 / n]) for n in (1, 2) for bound in (True, False)})
    bound, free, even = found.plot().axes[0].lines
    assert bound.get_xydata().tolist() == free.get_xydata().tolist() == even.get_xydata().tolist() == [[1, 8], [2, 4]]
    assert found.frame()["pinned, speed-up"].tolist() == [1, 2]


def test_drawers_are_found_where_no_one_has_imported_plots():
    assert plots in [find() for find in finders]


def of_rounds(**samples):
    """A comparison with one call in each round."""
    return Comparison((name, Timing(name, list(times), [*range(1, len(times) + 1)])) for name, times in samples.items())


def test_a_comparison_plots_its_medians():
    figure = Comparison(slow=Timing("slow", [0.003]), fast=Timing("fast", [0.001, 0.0015, 0.002])).plot()
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([3, 1.5])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["slow", "fast"]
    assert not axes.containers[1:]  # too few rounds for an interval
    plt.close(figure)


def test_a_plot_has_the_intervals():
    table = of_rounds(a=[0.002, 0.003, 0.002, 0.002, 0.002], b=[0.002] * 5, c=[0.004] * 5)
    figure = table.plot()
    (axes,) = figure.axes
    drawn = [line.lines[2][0].get_segments()[0][:, 0] for line in axes.containers if hasattr(line, "has_xerr")]
    wanted = [np.array(table.interval(name)) * table["a"].median * 1e3 for name in "bc"]
    np.testing.assert_allclose(drawn, wanted)
    assert [text.get_text() for text in axes.texts] == ["  2 ms (1x)", "  2 ms (1x, no difference)", "  4 ms (2x)"]
    plt.close(figure)
