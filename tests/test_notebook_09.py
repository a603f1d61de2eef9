"""What notebook 09 claims, asserted; see test_notebook_00.py. Only counts are asserted, no times.

The builds are for CPUs that need not be this one, so that the counts are the same everywhere. They have no machine
code: only what is known of the kernels before LLVM compiles them is read.
"""

import ast
import json
from collections import Counter
from pathlib import Path

import nbformat
import pandas as pd
import pytest

import tvmnotes as tn
from tools import scoreboard
from tvmfast.compiler import codegen
from tvmfast.runtime.compiled import Compiled
from tvmnotes import peak

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "09_profiling.ipynb"
TARGETS = {
    mcpu: {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu} for mcpu in ("skylake-avx512", "haswell")
}


def build(*args, **options):
    """As `tn.build`, but without machine code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "executable", lambda *_, **__: None)
        patch.setattr(Compiled, "_start", lambda *_: None)
        return tn.build(*args, **options)


def calls(lib):
    return Counter(node["kernel"] for node in lib.graph["nodes"] if node["kernel"] in lib.graph["kernels"])


def total(lib, *what, where=lambda cost: True):
    """What a run does in all, of kernels that are so."""
    costs = lib.graph["costs"]
    return sum(n * costs[name][each] for name, n in calls(lib).items() if where(costs[name]) for each in what)


def convolves(cost):
    return any("conv2d" in name for name in cost["operators"])


@pytest.fixture(scope="module")
def resnet18():
    net = tn.models.load("resnet18")
    return tn.from_pytorch(net, {"input0": net.input_shape})


@pytest.fixture(scope="module")
def plain(resnet18):
    return build(*resnet18, opt_level=0)


@pytest.fixture(scope="module", params=["skylake-avx512", pytest.param("haswell", marks=pytest.mark.full)])
def fast(request, resnet18):
    """ResNet-18 without tuning records, and with them."""
    target = TARGETS[request.param]
    return build(*resnet18, target=target, records=False), build(*resnet18, target=target)


def test_the_plain_builds_convolutions_have_nearly_all_operations(plain):
    assert plain.graph["costs"]["conv2d1"]["flops"] == 2 * 56 * 56 * 64 * 64 * 3 * 3
    assert calls(plain)["conv2d1"] == 4
    assert total(plain, "flops", where=convolves) > 0.99 * total(plain, "flops")
    assert all(len(cost["operators"]) == 1 for cost in plain.graph["costs"].values())


def test_a_fast_build_has_fewer_kernels_and_about_half_of_the_operations(plain, fast):
    for lib in fast:
        assert calls(lib).total() < calls(plain).total() / 5 and len(calls(lib)) < len(calls(plain)) / 2
        assert 0.4 < total(lib, "flops") / total(plain, "flops") < 0.7
        assert total(lib, "reads", "writes") < total(plain, "reads", "writes")


def test_records_change_schedules_and_not_kernels(fast):
    untuned, tuned = fast
    assert calls(untuned) == calls(tuned)
    assert not untuned.kernels.equals(tuned.kernels) and "shipped records" in tuned.tuned


@pytest.mark.full
def test_fusing_saves_calls_and_bytes_and_leaves_the_convolutions(resnet18, plain):
    levels = [plain, *(build(*resnet18, opt_level=level) for level in (1, 2))]
    for less, more in zip(levels[1:], levels[:-1], strict=True):
        assert calls(less).total() < calls(more).total()
        assert total(less, "reads", "writes") < total(more, "reads", "writes")
    for lib in levels:
        extra = total(lib, "flops", where=convolves) / total(plain, "flops", where=convolves)
        assert 1 <= extra < 1.01


def test_memory_is_shared_and_winograds_weights_are_larger(plain, fast):
    def held(lib):
        return sum(param.numpy().nbytes for param in lib.params.values())

    slow, quick = plain.graph["memory"], fast[0].graph["memory"]
    for lib, plan in ((plain, slow), (fast[0], quick)):
        alive = tn.profiling.alive(lib)
        assert 0 < max(alive) <= 1.01 * plan["peak"], "a view counts as a value"
        assert max(alive) == max(alive[: len(alive) // 4]) > 1.5 * max(alive[len(alive) // 2 :])
        assert plan["peak"] <= sum(plan["buffers"]) < plan["unshared"]
    assert quick["unshared"] < slow["unshared"] and quick["peak"] < slow["peak"]
    assert held(fast[0]) > held(plain) > 5 * quick["peak"]


@pytest.mark.full
def test_depthwise_convolutions_have_few_operations_for_each_byte():
    net = tn.models.load("mobilenet_v2")
    lib = build(*tn.from_pytorch(net, {"x": net.input_shape}), target=TARGETS["skylake-avx512"])

    def is_(kind):
        return lambda cost: cost["operators"][0] == kind

    ordinary, depthwise = (
        [total(lib, "flops", where=is_(kind)), total(lib, "reads", "writes", where=is_(kind))]
        for kind in ("conv2d", "depthwise_conv2d")
    )
    assert ordinary[0] > 0.9 * total(lib, "flops")
    assert depthwise[0] / depthwise[1] < ordinary[0] / ordinary[1] / 5


def test_the_lessons_own_functions_add_up(lib, small, monkeypatch):
    monkeypatch.setattr(peak, "flops", lambda: 100e9)
    monkeypatch.setattr(peak, "bandwidth", lambda: 10e9)
    names = {"pd": pd, "tn": tn}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and cell.source.startswith("def "):
            defined = [part for part in ast.parse(cell.source).body if isinstance(part, ast.FunctionDef)]
            exec(compile(ast.Module(defined, []), NOTEBOOK.name, "exec"), names)
    profile = tn.profile(lib, small.x, calls=3)
    frame = profile.frame()
    assert names["by_kind"](profile).sum() == pytest.approx(frame["ms"].sum())
    assert names["by_kind"](profile)["last layer"] > 0
    assert frame["MFLOP"].sum() == pytest.approx(total(lib, "flops") / 1e6)
    calls = profile.calls()
    calls["kind"] = calls["kernel"].map(frame["operators"]).map(names["kind"])
    bars = tn.plots.timeline(calls).axes[0].patches
    assert len(bars) == len(calls) and sum(bar.get_width() for bar in bars) == pytest.approx(calls["ms"].sum())
    limits = {name: 1e3 * kernel.limit for name, kernel in profile.kernels.items()}
    assert names["at_the_limit"](profile) == pytest.approx(sum(min(limits[name], frame["ms"][name]) for name in limits))
    monkeypatch.setattr(scoreboard.profiler, "profile", lambda lib, x: profile)
    assert 1e3 * scoreboard.at_the_limit(lib, small.x) == pytest.approx(names["at_the_limit"](profile))


def test_the_scoreboard_shows_the_bound(tmp_path, monkeypatch):
    rows = {"tvmnotes, untuned": {"low": 0.013, "median": 0.014, "high": 0.015}}
    run = {"network": "resnet18", "date": "2026-11-25", "machine": "a machine", "bound": 1e-6, "rows": rows}
    monkeypatch.setattr(tn.plots, "SCOREBOARD", tmp_path / "scoreboard.json")
    tn.plots.SCOREBOARD.write_text(json.dumps(run))
    (axes,) = tn.plots.scoreboard("tvmnotes, untuned").axes
    line = axes.lines[-1]  # after the caps of the bars
    assert set(line.get_xdata()) == {1e-3} and axes.get_xlim()[0] < 1e-3
    assert axes.get_legend().get_texts()[0].get_text() == "bound of tvmnotes: 0.001 ms"


@pytest.mark.full
def test_tvms_instrument_sees_each_kernel_of_the_digits():
    names = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and cell.id in ("time-evaluator", "instrument"):
            exec(cell.source.replace("print(", "shown = ("), names)
    spent = names["spent"]
    assert any("conv2d" in name for name in spent) and "vm.builtin.alloc_tensor" in spent
    assert set(names["begun"]) == set(spent) and all(seconds >= 0 for seconds in spent.values())
    assert len(names["shown"].results) == 5
