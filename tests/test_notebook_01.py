"""What lesson 01 claims: what each way of PyTorch's records, TVM's own calls and `tn.build` on it, the scoreboard."""

import json
import shutil
from datetime import date

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from torch import nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import tvmnotes as tn
from tools import scoreboard
from tvmfast.profiling import benchmark

X = {"x": (1, 3, 8, 8)}


class Small(nn.Module):
    """The lesson's first network."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.linear(x.mean(dim=(2, 3)))


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() < 0:
            return -x
        return x * 2


@pytest.fixture(scope="module")
def small():
    """The network, an input, and PyTorch's output for it in double precision."""
    torch.manual_seed(0)
    net, x = Small().eval(), torch.randn(X["x"])
    return net, x, reference(net, x)


def test_every_way_leads_to_pytorchs_results(small):
    net, x, wanted = small
    for source in (net, torch.jit.trace(net, x), torch.jit.script(net), torch.export.export(net, (x,))):
        close(tn.build(source, X)(x), wanted)


def test_tvms_pipeline_for_cpus_fuses_and_the_default_one_does_not(small):
    net, x, wanted = small
    mod, target = from_exported_program(torch.export.export(net, (x,))), tn.env.host_target()
    pipelines = {"as called": relax.get_pipeline("default"), "cpu": relax.get_default_pipeline(target)}
    fused = {}
    for name, pipeline in pipelines.items():
        fused[name] = [f for f in pipeline(mod).functions if f.name_hint.startswith("fused_")]
        vm = relax.VirtualMachine(tvm.compile(mod, target=target, relax_pipeline=pipeline), tvm.cpu())
        (output,) = vm["main"](tvm.runtime.tensor(x.numpy()))
        close(output.numpy(), wanted)
    assert fused["cpu"] and not fused["as called"]


def test_a_trace_keeps_its_examples_branch_a_script_both_and_export_refuses():
    branch, plus = Branch().eval(), torch.ones(3)
    minus = -torch.ones(3)
    with pytest.warns(torch.jit.TracerWarning):
        traced = torch.jit.trace(branch, plus)
    assert traced(minus).tolist() == [-2] * 3
    scripted = torch.jit.script(branch)
    assert scripted(minus).tolist() == branch(minus).tolist() == [1] * 3
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(branch, (plus,))
    lib = tn.build(scripted, {"x": (3,)})
    assert lib(plus).tolist() == [2] * 3 and lib(minus).tolist() == [1] * 3


def test_the_same_top_5_is_the_weaker_check(rng):
    output = rng.standard_normal((1, 1000)).astype("float32")
    assert tn.vision.same_top_k(1.1 * output, output)
    assert np.abs(1.1 * output - output).max() > 0.09 * np.abs(output).max()


@pytest.mark.full
def test_resnet18_gives_pytorchs_results_and_classes_on_the_picture():
    net = tn.models.load("resnet18")
    x = tn.vision.preprocess(tn.vision.open_picture())
    wanted = reference(net, x)
    for records in (None, False):
        result = tn.build(net, {"input0": x.shape}, records=records)(input0=x)
        close(result, wanted)
        assert tn.vision.same_top_k(result, wanted.values[0])


# ---------------------------------------------------------------- the scoreboard


def test_the_stored_scoreboard_has_every_row():
    run = json.loads(tn.plots.SCOREBOARD.read_text(encoding="utf-8"))
    assert list(run["rows"]) == list(scoreboard.ROWS)
    assert (run["network"], run["input"]) == ("resnet18", [1, 3, 224, 224])
    assert date.fromisoformat(run["date"]) and run["machine"] and set(run["versions"]) == set(benchmark.versions())
    for row in run["rows"].values():
        assert 0 < row["low"] <= row["median"] <= row["high"] and row["calls"] >= 5
    assert 0 < run["bound"] < run["rows"][scoreboard.BOUNDED]["low"]


def test_the_figure_marks_the_named_rows_and_names_the_machine():
    run = json.loads(tn.plots.SCOREBOARD.read_text(encoding="utf-8"))
    (axes,) = tn.plots.scoreboard("tvm.compile", "tvmnotes, untuned").axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    colors = dict(zip(names, (bar.get_facecolor() for bar in axes.patches), strict=True))
    marked = {name for name, color in colors.items() if color != colors["PyTorch eager"]}
    assert names == list(run["rows"]) and marked == {"tvm.compile", "tvmnotes, untuned"}
    assert axes.patches[0].get_width() == pytest.approx(1e3 * run["rows"]["PyTorch eager"]["median"])
    assert axes.get_xscale() == "log" and run["machine"] in axes.get_title(loc="left")


def test_an_unknown_row_is_refused():
    with pytest.raises(ValueError, match="unknown row 'tvm'; there are 'PyTorch eager', 'torch.compile'"):
        tn.plots.scoreboard("PyTorch eager", "tvm")


def test_records_of_another_network_are_an_error(tmp_path, rng):
    shutil.unpack_archive(tn.data.path("metaschedule/resnet18_avx2.tar.xz"), tmp_path)
    net = tn.models.load("digits")
    x = rng.standard_normal(net.input_shape).astype("float32")
    with pytest.raises(ValueError, match=r"no record is of one of the network's \d+ kernels"):
        benchmark.with_metaschedule(net, x, str(tmp_path))


@pytest.fixture
def peers(monkeypatch):
    """Every row is PyTorch, so that nothing is compiled; torch's thread count is as before afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(scoreboard, "ROWS", dict.fromkeys(scoreboard.ROWS, "pytorch"))
    monkeypatch.setattr(scoreboard, "at_the_limit", lambda lib, x: 1e-6)
    yield monkeypatch
    torch.set_num_threads(threads)


def test_a_run_measures_every_row(peers):
    run = scoreboard.measure_rows("digits", seconds=0.01)
    assert list(run["rows"]) == list(scoreboard.ROWS) and run["machine"] == tn.env.machine()
    assert run["bound"] == 1e-6
    for row in run["rows"].values():
        assert 0 < row["low"] <= row["median"] <= row["high"] and row["calls"] > 0


def test_a_wrong_result_ends_the_run(peers):
    peers.setitem(benchmark._RUNTIMES, "wrong", lambda net, x, folder: (lambda x: np.zeros((1, 10)), None))
    peers.setitem(scoreboard.ROWS, "tvm.compile", "wrong")
    with pytest.raises(ValueError, match=r"tvm.compile: its result is not PyTorch's"):
        scoreboard.measure_rows("digits", seconds=0.01)


@pytest.mark.parametrize("runtime", ["plain", "pipeline"])
def test_tvm_compile_is_a_peer_of_bench(runtime, tmp_path, rng):
    net = tn.models.load("digits")
    x = rng.standard_normal((1, 1, 32, 32)).astype("float32")
    wanted = reference(net, x)
    for each in ("pytorch", runtime):
        close(benchmark.candidate(each, net, x, tmp_path)(x), wanted)
