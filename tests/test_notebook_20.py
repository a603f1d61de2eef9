"""What notebook 20 claims, asserted; see test_notebook_00.py. Its own cells run here, on its network's head.

Three of the network's thirteen parts, and a smaller image, are enough for the planted fault and for the tasks.
"""

import copy
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from agreement import close, reference
from tvm import relax

import tvmnotes as tn
from tvmfast.frontends.pytorch.ops.converters import CONVERTERS

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "20_your_own_model.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
SIZE = (1, 3, 64, 64)


def run(names, *cells):
    """Run cells of the notebook one after another, with and in the names that earlier ones have left."""
    for cell in cells:
        exec(compile(CELLS[cell], cell, "exec"), names)
    return names


def largest_difference(result, reference):
    return np.abs(result - reference).max() / np.abs(reference).max()


class Head(torch.nn.Module):
    """The first parts of a network: here a convolution, a block with a hard sigmoid, and one without."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, x):
        return self.features(x)


@pytest.fixture(scope="module")
def head():
    return Head(tn.models.load("mobilenet_v3_small").features[:3]).eval()


@pytest.fixture
def names(head, rng):
    """What the lesson's first cells define, for a smaller image."""
    x = rng.standard_normal(SIZE, dtype="float32")
    with torch.inference_mode():
        reference = head(torch.from_numpy(x)).numpy()
    packages = {"copy": copy, "np": np, "relax": relax, "torch": torch, "tn": tn}
    return packages | {"model": head, "x": x, "reference": reference, "largest_difference": largest_difference}


def printed(capsys):
    """The differences that a cell has printed, one a line."""
    return [float(number) for number in re.findall(r": (\d+e[+-]\d+)$", capsys.readouterr().out, re.M)]


def test_digamma_is_refused_and_both_ways_out_agree_with_pytorch(names, capsys):
    run(names, "refused")
    assert "lacks these operators: aten.digamma.default; write that part" in capsys.readouterr().out
    run(names, "workaround")
    wanted, terms = names["evidence"](names["scores"].double()), 10  # of the series; alpha's sum has as many
    close(names["rewritten"](names["scores"]), wanted, terms)
    try:
        run(names, "relax-converter")
    finally:
        CONVERTERS.pop("digamma.default", None)
    close(names["converted"](names["scores"]), wanted, terms)


def test_the_network_agrees_and_the_planted_fault_is_there_at_every_level(names, capsys):
    close(tn.build(names["model"], {"x": SIZE})(names["x"]), reference(names["model"], names["x"]))
    run(names, "plant", "levels")
    levels = printed(capsys)
    assert len(levels) == 4
    assert min(levels) > 1e-3
    assert max(levels) <= 2 * min(levels)  # one digit is printed


def test_the_planted_fault_is_found_in_two_steps(names, capsys):
    run(names, "plant", "stages")
    parts = printed(capsys)
    assert len(parts) == 3
    assert parts[0] < 1e-5 < 1e-3 < parts[1]
    run(names, "deeper")
    parts = printed(capsys)
    assert parts[0] < 1e-5 < 1e-3 < parts[1]


def test_a_build_has_the_tasks_of_its_module_by_kernel(names):
    mod, params = tn.from_pytorch(names["model"], {"x": SIZE})
    lib = tn.build(mod, params, records=False)
    by_kernel = tn.tuning.tasks_by_kernel(lib)
    assert set(by_kernel) < set(lib.kernels.index)
    assert set(by_kernel.values()) == set(tn.tuning.tasks(mod, params))


def test_the_script_to_take_home_has_twelve_lines():
    assert len([line for line in CELLS["script"].splitlines() if line.strip()]) == 12
