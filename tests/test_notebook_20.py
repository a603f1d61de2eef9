"""What notebook 20 claims, asserted; see test_notebook_00.py. Its stations run with other networks put in."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from agreement import close
from torch import nn

import tvmnotes as tn

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "20_your_own_model.ipynb"
NOTES = nbformat.read(NOTEBOOK, as_version=4).cells
CELLS = {cell.id: cell.source for cell in NOTES if cell.cell_type == "code"}
SPECIMENS = {"branch", "cond", "refused", "converter"}  # networks of the lesson's own
STATIONS = [cell for cell in CELLS if cell not in SPECIMENS | {"setup", "network", "your-answers"}]


class Pair(nn.Module):
    """Words and numbers in; scores, a vector and an index out, in a dictionary and a tuple. No convolution."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.mix = nn.Linear(24, 32)
        self.out = nn.Linear(32, 5)

    def forward(self, ids, extra):
        hidden = torch.tanh(self.mix(torch.cat([self.words(ids).mean(1), extra], 1)))
        return {"scores": self.out(hidden), "rest": (hidden, hidden.argmax(1))}


class Special(nn.Module):
    """An operator that TVM's importer lacks, after a convolution and a batch norm, and a batch that is fixed."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.digamma(1 + torch.relu(self.norm(self.conv(x)))).view(1, 512)


def run(names, *cells):
    """Run cells of the notebook one after another, with and in the names that earlier ones have left."""
    for cell in cells:
        exec(compile(CELLS[cell], cell, "exec"), names)
    return names


def setup(model=None, inputs=(), converters=None):
    """What the notebook's first two code cells define, for another network."""
    names = {"display": print}
    with contextlib.redirect_stdout(io.StringIO()):
        run(names, "setup")
    return names | {"model": model, "inputs": inputs, "converters": converters or {}}


def test_all_stations_work_for_a_network_with_two_inputs_and_three_outputs(capsys):
    torch.manual_seed(0)
    names = setup(Pair().eval(), (torch.arange(12).reshape(1, 12), torch.randn(1, 8)))
    for cell in STATIONS:
        run(names, cell)
        if cell == "left-to-win":
            assert len(names["below"]) >= 1  # the products of matrices
            names["below"] = names["below"].head(0)  # tuning is the notebook's own run
    printed = capsys.readouterr().out
    assert printed.count(", finite, the same twice\n") == 3
    assert "\nright\n" in printed and "wrong" not in printed
    assert "(batch, 12)" in printed.replace(str(names["any_batch"]["main"].params[0].ty.shape[0]), "batch")
    assert "difference to the network that was saved: 0.0" in printed
    sheet = names["sheet"].read_text()
    assert sheet.startswith("# Pair\n") and "tuned: nothing" in sheet


def test_a_network_with_a_missing_operator_and_a_fixed_batch_passes_with_a_converter(capsys):
    names = run(setup(), "branch", "cond", "refused", "converter")
    torch.manual_seed(0)
    names |= {"model": Special().eval(), "inputs": (torch.randn(1, 16, 10, 10),)}
    names["converters"] = {"digamma.default": names["convert_digamma"]}
    capsys.readouterr()
    run(names, "reference", "export", "import", "right", "diverge", "open-batch")
    printed = capsys.readouterr().out
    assert "\nright\n" in printed and "->" not in printed and "Error: " in printed.splitlines()[-1]
    assert "conv2d" in set(names["lib"].kernels["family"])  # TVM's import keeps what the schedules look for


def test_a_network_in_training_mode_does_not_agree_with_itself(capsys):
    names = setup(nn.Sequential(nn.Linear(64, 64), nn.Dropout()), (torch.ones(1, 64),))
    run(names, "reference")
    assert "another the second time" in capsys.readouterr().out


def test_a_wrong_result_is_told_and_calls_diverge(capsys, monkeypatch):
    names = setup(nn.Linear(8, 3).eval(), (torch.randn(1, 8),))
    calls = []
    monkeypatch.setattr(tn, "diverge", lambda *a: calls.append(a) or SimpleNamespace(summary="found"), raising=False)
    run(names, "reference", "export", "import")
    names["reference"][0] *= 1.01
    run(names, "right", "diverge")
    assert re.search(r"^wrong: 1e-02\nfound$", capsys.readouterr().out, re.M)
    ((mod, params, program, inputs),) = calls
    assert (mod, params, program) == (names["mod"], {}, names["program"]) and len(inputs) == 1


def test_the_tolerance_is_that_of_all_layers_one_after_another(capsys):
    names = setup(nn.Sequential(nn.Linear(64, 36), nn.ReLU(), nn.Linear(36, 3)).eval(), (torch.randn(1, 64),))
    run(names, "reference", "export", "import", "right")
    assert names["terms"] == 100
    assert names["tolerance"] == pytest.approx(8 * 2**-23 * 11)


def test_a_branch_is_refused_and_torch_cond_keeps_both_sides(capsys):
    run(setup(), "branch", "cond")
    refused, unsure, sure = capsys.readouterr().out.splitlines()
    assert refused == "GuardOnDataDependentSymNode" and unsure.split() == ["unsure", "right"]
    assert sure.split() == ["sure", "right"]


def test_digamma_is_refused_and_its_converter_agrees_with_pytorch(capsys):
    names = run(setup(), "branch", "cond", "refused", "converter")
    assert capsys.readouterr().out.splitlines()[-2:] == ["Unsupported function types ['digamma.default']", "right"]
    close(names["converted"], names["evidence"].module()(names["scores"].double()), 10)


def test_the_stations_take_45_minutes():
    table = re.findall(r"^\| \d \| (\d+) \|", NOTES[0].source, re.M)
    said = [int(n) for cell in NOTES for n in re.findall(r"^(\d+) minutes\. ", cell.source, re.M)]
    assert list(map(int, table)) == said and sum(said) == 45
