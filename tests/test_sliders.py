"""Sliders below a cell: what they show at first, when they are moved, when the function fails, and when stored."""

import IPython.display
import pytest

import tvmnotes as tn


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    return shown


def ratio(pixels, blocks):
    return f"{pixels / blocks}"


def test_a_slider_that_is_moved_measures(shown):
    tn.sliders.show(ratio, pixels=(7, 14), blocks=(1, 2))
    (box,) = shown
    pixels, blocks, line = box.children
    assert [pixels.description, blocks.description, line.value] == ["pixels", "blocks", "7.0"]
    pixels.value, blocks.value = 14, 2
    assert line.value == "7.0"
    blocks.value = 1
    assert line.value == "14.0"


def test_an_error_is_shown_and_the_sliders_go_on(shown):
    tn.sliders.show(ratio, pixels=(1, 2), blocks=(0, 1))
    _, blocks, line = shown[0].children
    assert line.value == "ZeroDivisionError: division by zero"
    blocks.value = 1
    assert line.value == "1.0"


def test_none_is_shown_where_outputs_are_stored(shown, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    tn.sliders.show(ratio, pixels=(1, 2), blocks=(1, 2))
    assert shown == []
