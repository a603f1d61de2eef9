"""What notebook 19 claims, asserted; see test_notebook_00.py. nbval compares what it finds in the three networks."""

import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from agreement import terms_of
from tvm import relax

import tvmnotes as tn
from tvmfast.core import rounding
from tvmnotes import faults

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "19_wrong_answers.ipynb"
CELLS = {cell.id: cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


def printed(cell):
    return "".join(output.get("text", "") for output in CELLS[cell].outputs)


@pytest.fixture(scope="module")
def block():
    return faults.transformer()


@pytest.fixture(scope="module")
def file():
    return faults.onnx_file()


def test_no_cell_shows_a_fault_before_it_is_found():
    ids = list(CELLS)
    before = "\n".join(CELLS[name].source for name in ids[: ids.index("diverge")]).lower()
    assert not [word for word in ("exchanged", "swap", "scalelast", "tail is", "w - 8") if word in before]


def test_the_tolerance_of_the_lesson_is_that_of_the_engine_and_of_the_tests():
    names = {"np": np, "math": math, "difference": None}
    exec(CELLS["sums"].source.partition("\n\n\nprint")[0], names)
    for terms in (1, 9, 576, 4608):
        assert names["tolerance"](terms) == rounding.share(terms, np.finfo("float32").eps)
    exec(CELLS["verdict"].source.partition("\n\n\nfor")[0], names)
    digits = faults.digits()
    assert names["terms_of"](digits) == terms_of(digits.params) > 5000


def test_sums_one_by_one_stay_below_the_tolerance_and_far_below_the_worst_case(rng):
    eps = np.finfo("float32").eps
    for terms in (16, 256, 4096, 65536):
        numbers = rng.standard_normal((100, terms), dtype="float32")
        exact = numbers.astype("float64").sum(axis=1)
        error = np.abs(np.cumsum(numbers, axis=1)[:, -1] - exact).max() / np.abs(exact).max()
        assert error < rounding.share(terms, eps) < terms * eps or terms == 16
    numbers = [float(line.split()[1]) for line in printed("sums").splitlines()[1:]]
    assert 4 < numbers[3] / numbers[1] < 64  # 16 in the text


def test_the_weights_are_right_but_for_two():
    digits = faults.digits()
    state = digits.reference.state_dict()
    wrong = [name for name, array in digits.params.items() if not np.array_equal(array.numpy(), state[name])]
    assert len(wrong) == 2 and all(name in printed("weights") for name in wrong)
    assert np.array_equal(digits.params[wrong[0]].numpy(), state[wrong[1]])


def test_one_pass_of_the_block_is_wrong_and_the_two_others_are_right(block):
    found = tn.diverge(block.mod, block.params, block.reference, block.x)
    assert found.first is None
    others = [each for each in block.passes if str(each.info.name) != "ScaleLast"]
    assert tn.diverge(block.mod, block.params, None, block.x, passes=others).moved_by == ""
    wrong = block.passes[:5]
    assert tn.diverge(block.mod, block.params, None, block.x, passes=wrong).moved_by == "ScaleLast"


def test_a_bias_that_is_zero_would_have_hidden_it(block):
    # "perhaps only tested with one": a mask of zeros and infinities
    mask = np.where(np.arange(16)[:, None] >= np.arange(16), 0, -np.inf).astype("float32")
    params = block.params | {"bias": mask}
    assert tn.diverge(block.mod, params, None, block.x, passes=block.passes[:5]).moved_by == ""


def test_the_kernel_is_wrong_from_column_24_on(file):
    found = tn.diverge(file.mod, file.params, file.reference, file.x)
    assert [value.reference for value in found.values if value.fault] == ["relu1", "relu2", ""]
    assert "x[v_n, v_c, v_h, T.Select(v_w < 24, v_w, v_w - 8)]" in file.mod["relu"].script()
    assert "[24, 25, 26, 27, 28, 29]" in printed("where") and "columns [24 25 26 27 28 29]" in printed("report")


def test_each_network_is_wrong_by_thousands_of_times_the_tolerance(block, file):
    eps = np.finfo("float32").eps
    passed = block._replace(mod=relax.transform.BindParams("main", block.params)(block.mod), params={})
    for each in block.passes:
        passed = passed._replace(mod=each(passed.mod))
    for network, terms in ((faults.digits(), None), (passed, terms_of(block.params)), (file, None)):
        if isinstance(network.reference, bytes):
            wanted = tn.build(*tn.from_onnx(network.reference))(network.x)
        else:
            with torch.inference_mode():
                wanted = network.reference(torch.from_numpy(network.x)).numpy()
        got = tn.build(network.mod, network.params, opt_level=0)(network.x)
        error = np.abs(got - wanted).max() / np.abs(wanted).max()
        assert error > 1000 * rounding.share(terms or terms_of(network.params), eps)
