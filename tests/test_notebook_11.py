"""What notebook 11 claims, asserted: its space, its tuners on invented times, its model, the table that ships."""

import itertools
import math
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import tvm
import xgboost
from agreement import close
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvmnotes as tn
from tools import measure_space as script
from tvmfast.core.compat import lazy_tensor_intrinsics

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "11_search.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"}
TUNERS = ("grid", "at_random", "genetic", "learned")
SIZES = [1, 2, 7, 14], [1, 2, 4], [1, 2, 7, 14], [1, 2, 4], [0, 1], [0, 1]


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson's cells up to the race, with invented times."""
    names = {"te": te, "topi": topi, "tvm": tvm, "Schedule": Schedule, "itertools": itertools, "math": math}
    names |= {"np": np, "pd": pd, "xgboost": xgboost, "tn": tn, "ms": ms, "flop": 1}
    for cell in ("convolution", "space", "tuners", "learned"):
        exec(CELLS[cell], names)
    names["times"] = np.array([invented(*config) for config in names["space"]])
    names["best"] = names["times"].min()
    exec(re.sub(r"^(seeds = ).*", r"\g<1>6", re.sub(r"^tn\.plots.*", "", CELLS["race"], flags=re.M), flags=re.M), names)
    exec(CELLS["progress"], names)
    return names


def invented(rows, blocks, pixels, unrolled, pixels_outside, inputs_outside):
    """Milliseconds with one valley: 7 sums, and of each other choice one value that is best."""
    tile = abs(math.log2(blocks * pixels / 7)) + 0.3 * pixels_outside
    return 1 + tile + 0.11 * abs(math.log2(unrolled / 2)) + 0.07 * inputs_outside + 0.05 * abs(math.log2(rows / 7))


# ---------------------------------------------------------------- the space


def test_the_space_has_each_combination_once(lesson):
    assert sorted(lesson["space"]) == sorted(itertools.product(*SIZES))
    found = {lesson["schedule"](*config).mod.script() for config in lesson["space"][::7]}
    assert len(found) == len(lesson["space"][::7])


@pytest.mark.parametrize("config", [(1, 1, 1, 1, 0, 0), (7, 2, 7, 4, 1, 0), (14, 4, 2, 2, 0, 1)])
def test_its_schedules_compute_the_convolution(lesson, config):
    given = script.arguments(lesson["conv"])
    tvm.compile(lesson["schedule"](*config).mod, target=tn.env.host_target())(*given)
    data, weight, shift = (each.numpy().astype("float64") for each in given[:3])
    window = np.zeros((16, 16, 16, 16))
    window[:, 1:-1, 1:-1] = data[0]
    wanted = np.zeros((16, 14, 14, 16))
    for kh, kw in itertools.product(range(3), repeat=2):
        wanted += np.einsum("iyxa,oiac->oyxc", window[:, kh : kh + 14, kw : kw + 14], weight[:, :, kh, kw])
    close(given[3].numpy()[0], np.maximum(wanted + shift[:, None, None], 0), 9 * 256)


def test_the_table_that_ships_has_each_config_once():
    text = tn.data.path("search/conv2d_256_14x14.csv").read_text(encoding="utf-8")
    assert re.match(r"# .+, target \w.*, TVM 0\.\d+.*, \d+ cores?\n", text)
    table = script.read(tn.data.path("search/conv2d_256_14x14.csv"))
    assert list(table) == list(itertools.product(*SIZES)) and min(table.values()) > 0


# ---------------------------------------------------------------- tuners


@pytest.mark.parametrize("name", TUNERS)
def test_each_tuner_proposes_every_config_once(lesson, name):
    rng, measured = np.random.default_rng(0), {}
    while len(measured) < 576:
        got = lesson[name](lesson["space"], measured, 48, rng)
        assert len(got) == len(set(got)) == min(48, 576 - len(measured)) and not measured.keys() & set(got)
        measured |= {number: lesson["times"][number] for number in got}


def test_one_seed_is_one_race(lesson):
    for name in TUNERS:
        first, again, other = (lesson["race"](lesson[name], seed, trials=40) for seed in (3, 3, 4))
        assert first == again and (name == "grid") == (first == other)


def test_where_times_have_one_valley_chance_is_behind(lesson):
    assert {name: np.shape(some) for name, some in lesson["runs"].items()} == {"grid": (1, 128)} | dict.fromkeys(
        ("random", "genetic", "learned"), (6, 128)
    )
    share = {name: np.median(share[:, [63, 127]], axis=0) for name, share in lesson["shares"].items()}
    assert share["learned"][0] > share["random"][0] and share["genetic"][1] >= share["random"][1]
    assert np.median(lesson["needed"]["learned"]) < np.median(lesson["needed"]["random"])


def test_intervals_hold_the_median_and_infinite_trials_stay_infinite(lesson):
    interval = lesson["interval"]
    values = np.random.default_rng(0).random(25)
    low, high = interval(values)
    assert low < np.median(values) < high
    assert tuple(interval(values, values + 1)) < (-0.5, -0.5)
    assert interval([math.inf] * 5).tolist() == [math.inf] * 2
    assert interval([7.0]).tolist() == [7.0] * 2


# ---------------------------------------------------------------- the cost model


def test_tvms_model_draws_lots_until_its_first_trials_are_in(lesson):
    with lazy_tensor_intrinsics():
        target = tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})
        context = ms.TuneContext(mod=tvm.IRModule({"main": lesson["conv"]}), target=target, num_threads=1)
        given = ms.arg_info.ArgInfo.from_prim_func(lesson["conv"])
        numbers = range(0, 576, 36)
        batch = [ms.MeasureCandidate(lesson["schedule"](*lesson["space"][number]), given) for number in numbers]
        results = [ms.runner.RunnerResult([lesson["times"][number]], None) for number in numbers]
        (shape,) = {each.numpy().shape for each in ms.feature_extractor.PerStoreFeature().extract_from(context, batch)}
        assert shape == (3, 164), "the padding, the sums, the result"
        for model, draws in ((ms.cost_model.XGBModel(), True), (ms.cost_model.XGBModel(num_warmup_samples=16), False)):
            model.update(context, batch, results)
            first, again = model.predict(context, batch), model.predict(context, batch)
            assert (first != again).any() == draws


def test_the_order_of_its_scores_is_better_than_chance(lesson):
    known = np.random.default_rng(0).permutation(576)[:64].tolist()
    score = lesson["scores"](lesson["space"], {number: lesson["times"][number] for number in known})
    rest = lesson["left"](lesson["space"], set(known))
    assert np.corrcoef(pd.Series(score[rest]).rank(), pd.Series(-lesson["times"][rest]).rank())[0, 1] > 0.8


# ---------------------------------------------------------------- the script behind the table


def test_a_second_start_measures_what_a_kill_left_out(lesson, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    monkeypatch.setattr(script, "TABLE", tmp_path / "search.csv")
    space = lesson["space"][:40]
    monkeypatch.setattr(script, "names", lambda: lesson | {"space": space})
    asked = []

    def measured(kernel, schedule, batch):
        asked.append(len(batch))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [invented(*config) for config in batch]

    monkeypatch.setattr(script, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        script.main()
    (part,) = tmp_path.rglob("search/search.csv")
    part.write_text(part.read_text()[:-5])
    script.main()
    assert asked == [16, 16, 16, 9]
    table = script.read(tmp_path / "search.csv")
    assert list(table) == space
    assert table == pytest.approx({config: invented(*config) for config in space}, abs=1e-4)


def test_a_config_that_computes_something_else_is_not_measured(lesson):
    kernel = te.create_prim_func(
        [A := te.placeholder((8,), name="A"), te.compute((8,), lambda i: A[i] + 1.0, name="B")]
    )
    wrong = te.create_prim_func([A := te.placeholder((8,), name="A"), te.compute((8,), lambda i: A[i] + 2.0, name="B")])
    made = {1: kernel, 2: kernel, 3: wrong}
    assert all(ms > 0 for ms in script.measured(kernel, lambda n: Schedule(made[n]), [(1,), (2,)]))
    with pytest.raises(AssertionError):
        list(script.measured(kernel, lambda n: Schedule(made[n]), [(1,), (3,)]))


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
