"""What lesson 07 claims, asserted on the names that its cells define. No time is asserted."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from agreement import close
from tvm.s_tir import Schedule

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "07_tensor_expressions.ipynb"
TIMED = r"^tn\.compare\(.*\)$"


@pytest.fixture(scope="module")
def lesson():
    """The names that the lesson's cells define, run without timing."""
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            exec(re.sub(TIMED, "", cell.source, flags=re.M), names)
    return names


def layer_in_float64(lesson, x, w):
    return np.maximum(lesson["direct_in_float64"](x.astype("float64"), w.astype("float64")), 0)


@pytest.mark.parametrize("name", ["inlined", "tiled", "cached"])
def test_wherever_a_stage_is_computed_the_result_is_the_same(lesson, rng, name):
    x = rng.standard_normal((8, 12, 12), dtype="float32")
    w = rng.standard_normal((8, 8, 3, 3), dtype="float32")
    close(lesson["call"](lesson[name], x, w), layer_in_float64(lesson, x, w), 72)


def test_the_tiles_share_the_rows_at_their_seams(lesson):
    runs, buffers = lesson["runs"], lesson["buffers"]
    whole = Schedule(lesson["layer"])
    assert (runs(whole, "pad"), runs(lesson["tiled"], "pad")) == (8 * 14 * 14, 3 * 8 * 6 * 14)
    assert buffers(whole)["pad"] == "(8, 14, 14)"
    assert buffers(lesson["tiled"]) == {"pad": "(8, 6, 14)", "conv": "(8, 4, 12)"}
    assert "pad" not in buffers(lesson["inlined"])
    assert buffers(lesson["cached"])["conv_local"] == "(1, 1, 4)"


def test_a_sum_in_parts_is_the_sum(lesson, rng):
    array = rng.standard_normal(lesson["length"], dtype="float32")
    for name in ("one_sum", "parts"):
        close(lesson["call"](lesson[name], array), array.sum(dtype="float64", keepdims=True), array.size)
    assert "T.vectorized(32)" in lesson["parts"].mod.script()


def test_the_chain_is_one_loop(lesson):
    assert lesson["nest"](lesson["one_pass"]).count("for ") == 1
    assert lesson["nest"](lesson["three_passes"]).count("for ") == 3


def test_one_dimension_of_winograd_is_the_direct_sum(lesson):
    d, g = np.array([3.0, 1.0, 4.0, 1.0]), lesson["g"]
    m1, m2, m3, m4 = (lesson[f"m{number}"] for number in range(1, 5))
    assert (m1 + m2 + m3, m2 - m3 - m4) == (d[:3] @ g, d[1:] @ g)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("channels", "size"), [(3, 8), (5, 12)])
def test_winograds_method_is_a_convolution(lesson, rng, m, channels, size):
    x, w = rng.standard_normal((channels, size, size)), rng.standard_normal((channels, channels, 3, 3))
    U = lesson["call"](lesson["transformed_weights"](channels, m, "float64"), w)
    result = lesson["call"](lesson["winograd"](channels, size, m, "float64"), x, U)
    # Its transforms may make the error m times as large.
    close(result, lesson["direct_in_float64"](x, w), m**2 * 9 * channels)


def test_an_unrolled_transform_only_adds(lesson):
    statements = lesson["statements"]
    assert sum("+" in line for line in statements) == 64 and lesson["steps"] == 256
    assert len(statements) == 64 + 16 and not any("Select" in line for line in statements)


def test_the_length_of_the_sums_decides_before_the_method_does(lesson):
    direct, direct_parts, small, small_parts, large, _ = lesson["errors"].values()
    assert direct_parts < small_parts < small < direct < large
    assert direct_parts < direct / 2 and small < 0.8 * direct and large > 2 * direct
