"""What notebook 11 claims, asserted. Times are invented, as no test depends on real ones."""

import math
import random
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

import tvmnotes as tn
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core.simd import simd_of
from tvmnotes import records

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "11_search.ipynb"
TUNERS = ("grid", "random", "ga", "xgb")
LAYER = Convolution((1, 64, 56, 56), (128, 64, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, True)


def task_for(mcpu):
    target = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    return tn.tuning.Task(LAYER, 1, str(target))


@pytest.fixture(scope="module")
def race():
    """The names of the lesson's race, run by its own code on a table of invented times."""
    names = {"math": math, "random": random, "np": np, "pd": pd, "tn": tn}
    names["task"] = task_for("skylake-avx512")
    names["space"] = names["task"].space
    names["table"] = np.array([invented_seconds(config) for config in names["space"]])
    code = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tn.env, "threads", lambda: 2)  # the model sees them
        for start in ("def replay", "runs = {", "def progress", "taught = "):
            (source,) = (source for source in code if source.startswith(start))
            exec(re.sub(r"^(tn\.plots|race\.round).*", "", source, flags=re.M), names)
    return names


def invented_seconds(config):
    """Seconds with one valley: 7 pixels of 2 blocks, of one row, with rows outside, are fastest."""
    tile = abs(math.log2(config["tile_ow"] / 7)) + abs(math.log2(config["tile_oc"] / 2))
    order = 0.2 * config.get("tile_oh", 0) + 0.3 * (config["loop_order"] != "rows") + 0.1 * ("tile_ic" in config)
    return 1e-3 * (1 + tile + order)


@pytest.mark.parametrize("mcpu", ["skylake-avx512", "core-avx2"])
def test_the_space_begins_with_the_default_and_holds_what_fits_into_the_registers(mcpu):
    task = task_for(mcpu)
    registers = simd_of(resolve_target({"kind": "llvm", "mcpu": mcpu})).registers
    assert task.space[0] == task.default
    assert len({records.key(config) for config in task.space}) == len(task.space) >= 100
    for config in task.space:
        assert config["family"] == "conv2d", "a stride of 2 leaves nothing to Winograd's method"
        accumulators = config.get("tile_oh", 1) * config["tile_ow"] * config["tile_oc"]
        assert accumulators + config["tile_oc"] + 1 <= registers


@pytest.mark.parametrize("name", TUNERS)
def test_each_tuner_begins_with_the_default_tries_all_once_and_so_finds_the_best(race, name):
    table = race["table"]
    tuner = tn.tuning.tuner(name, race["task"], 0, race["space"])
    run = race["replay"](tuner, table, trials=len(table) + 8)
    assert run[0] == table[0]
    assert sorted(run) == sorted(table)


def test_a_tuner_has_a_name_that_exists(race):
    with pytest.raises(ValueError, match="tuner: expected one of grid, random, ga, xgb; got 'best'"):
        tn.tuning.tuner("best", race["task"])


def test_an_empty_model_is_the_one_that_the_tuner_teaches(race):
    """An empty model has length 0 and is still the one that was meant."""
    model = tn.tuning.CostModel()
    tn.tuning.tuner("xgb", race["task"], 0, race["space"], model).update(0, 1e-3)
    assert len(model) == 1


def test_the_model_needs_fewer_trials_than_chance(race):
    shapes = [np.shape(race["runs"][name]) for name in TUNERS]
    assert shapes == [(1, 128), (5, 128), (5, 128), (5, 128)]
    needed = race["race"]["trials to 98 %"]
    assert needed["xgb"] < needed["random"]
    assert race["race"]["after 20"]["xgb"] >= race["race"]["after 20"]["random"]
    assert ((race["race"].iloc[:, :3] > 0) & (race["race"].iloc[:, :3] <= 1)).all(axis=None)


def test_the_models_order_holds_for_configs_that_it_never_saw(race):
    unseen = [n for n in range(len(race["table"])) if n not in race["taught"]]
    first = sorted(unseen, key=lambda n: -race["scores"][n])[:10]
    assert len(unseen) == len(race["table"]) - 40
    assert np.median([race["table"][n] for n in first]) < np.percentile([race["table"][n] for n in unseen], 25)


# ---------------------------------------------------------------- the figures


def test_the_figures_of_searches_show_what_they_are_given():
    heat = tn.plots.heat([[1, 2], [3, math.nan]], [1, 2], [4, 7], ("tile_oc", "tile_ow", "GFLOP/s"), {"best": (2, 4)})
    assert [tuple(line.get_xydata()[0]) for line in heat.axes[0].lines] == [(0, 1)] * 2
    assert [text.get_text() for text in heat.axes[0].get_legend().texts] == ["best"]

    runs = {"a": [[2, 1, 4]], "b": [[1, 1, 1], [2, 2, 2], [4, 4, 4]]}
    lines = tn.plots.best_so_far(runs, 10**9).axes[0].lines
    assert lines[0].get_ydata().tolist() == [0.5, 1, 1]
    assert lines[1].get_ydata().tolist() == [0.5] * 3, "the median of the runs"

    seen, unseen = (c.get_offsets() for c in tn.plots.predicted([1, 2, 3], [3, 2, 1], [2]).axes[0].collections[::-1])
    assert seen.tolist() == [[3, 1000]] and unseen.tolist() == [[1, 3000], [2, 2000]]
