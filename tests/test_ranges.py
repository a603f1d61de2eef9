"""Expected ranges: figures found in outputs, compared with known machines, added to them, shown in TEACHING.md."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools import ranges
from tvmnotes import lessons

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
TABLE = """<table><thead><tr><th></th><th>median (ms)</th><th>iqr (ms)</th><th>ratio to a</th><th>calls</th></tr>
<tr><th>name</th><th></th><th></th><th></th><th></th></tr></thead>
<tr><th>a</th><td>1,234.50</td><td>0.10</td><td>1.00</td><td>7</td></tr>
<tr><th>b</th><td>2.50</td><td>0.10</td><td>0.20</td><td>open</td></tr></table>"""


def store(folder, *, machine="A CPU, 2 cores, target znver5", tagged=True, text="step 1  93.24 ms  2.5 GFLOP/s"):
    """A lesson 06 of one cell that prints a machine and a text."""
    outputs = [{"output_type": "stream", "name": "stdout", "text": f"{machine}, TVM 0.27.0\n{text}\n"}]
    tags = [ranges.TAG] if tagged else []
    cell = {"cell_type": "code", "id": "it", "metadata": {"tags": tags}, "source": "", "outputs": outputs}
    path = folder / "06_conv2d_by_hand.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": [cell]}))
    return folder


def test_numbers_with_units_are_found_by_the_words_around_them():
    text = "1 plain loops   93.24 ms   2.5 GFLOP/s\n12 kernels\n1,024 runs, 80% busy, 5.6 GB/s: {'tile': 3}\nv0.5 3 ms"
    assert ranges.printed(text) == {
        "1 plain loops * ms # GFLOP/s": 93.24,
        "1 plain loops # ms * GFLOP/s": 2.5,
        "# runs, * % busy, # GB/s": 80,
        "# runs, # % busy, * GB/s": 5.6,
    }


def test_columns_of_times_and_ratios_are_found_by_row_and_head():
    assert ranges.tabled(TABLE) == {"a: median (ms)": 1234.5, "b: median (ms)": 2.5, "b: ratio to a": 0.2}
    assert ranges.tabled(TABLE.replace("<th>name</th>", "<th>kernel</th>")) == {}
    in_ms = "<tr><th>token (times in ms)</th><th></th></tr>"
    assert ranges.tabled(f"<table><tr><th></th><th>all</th></tr>{in_ms}<tr><th>64</th><td>1.4</td></tr></table>") == {
        "64: all (ms)": 1.4
    }


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "not measured here"), (10, "within"), (8, "within"), (7, "below"), (26, "above")]
)
def test_a_quarter_on_either_side_of_a_range_is_within(value, expected):
    assert ranges.verdict(value, 10, 20) == expected


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Known ranges of nothing yet, for a checkout whose only lesson is `store`'s."""
    (tmp_path / "ranges.json").write_text(
        json.dumps({"machines": {}, "asked": [["06", "it", "step 1 * ms # GFLOP/s", "step 1, ms"]], "figures": {}})
    )
    (tmp_path / "TEACHING.md").write_text("<!-- ranges -->\n<!-- /ranges -->\n")
    monkeypatch.setattr(ranges, "FILE", tmp_path / "ranges.json")
    monkeypatch.setattr(ranges, "PAGE", tmp_path / "TEACHING.md")
    monkeypatch.setattr(lessons, "ROOT", tmp_path)
    return store(tmp_path / "notebooks")


def test_runs_widen_the_range_of_their_machine_and_another_machine_is_a_column(known, tmp_path):
    said = ranges.add(known, "AVX-512")
    assert said == "2 figures of A CPU, 2 cores, target znver5 added as AVX-512"
    ranges.add(store(tmp_path / "again", text="step 1  95 ms  2.4 GFLOP/s\nstep 0  1 ms"))
    ranges.add(store(tmp_path / "other", machine="B CPU, 8 cores, target skylake", text="step 1 200 ms 1 GFLOP/s"))
    assert "| 06 | step 1, ms | 93.2 to 95 | 200 |\n" in (tmp_path / "TEACHING.md").read_text()
    figures = ranges.load()["figures"]["06"]["it"]
    assert figures == {
        "step 1 # ms * GFLOP/s": {"AVX-512": [2.4, 2.5], "B CPU, 8 cores, target skylake": [1, 1]},
        "step 1 * ms # GFLOP/s": {"AVX-512": [93.24, 95], "B CPU, 8 cores, target skylake": [200, 200]},
    }
    rows = ranges.compare(store(tmp_path / "mine", text="step 1 270 ms 0.7 GFLOP/s")).rows
    assert [(row["known"], row["here"], row["verdict"]) for row in rows] == [
        ("93.2 to 200", "270", "above"),
        ("1 to 2.5", "0.7", "below"),
    ]
    rows = ranges.compare(store(tmp_path / "mine", tagged=False)).rows
    assert {row["verdict"] for row in rows} == {"not measured here"}


def test_one_lesson_alone_is_added(known):
    path = known / "06_conv2d_by_hand.ipynb"
    path.with_name("09_profiling.ipynb").write_text(path.read_text())
    done = CliRunner().invoke(ranges.app, [str(known), "--add", "--lesson", "09"])
    assert done.exit_code == 0 and done.output.startswith("2 figures of ")
    assert ranges.load()["figures"].keys() == {"09"}


def test_what_cannot_be_added_is_refused(known, tmp_path):
    ranges.add(known, "AVX-512")
    store(tmp_path / "mixed", text="step 1 1 ms 2 GFLOP/s\nB CPU, 8 cores, target skylake, TVM 0.27.0")
    other = store(tmp_path / "other", machine="B CPU, 8 cores, target skylake")
    for words, message in (
        ([tmp_path / "mixed", "--add"], "expected lessons of one machine"),
        ([other, "--add", "--name", "AVX-512"], "AVX-512 is A CPU, 2 cores, target znver5"),
        ([tmp_path, "--add"], "expected lessons such as 00_start_here.ipynb, found none"),
        ([known, "--lesson", "99"], "lesson: expected one of 00, 01"),
        ([known, "--add", "--lesson", "99"], "lesson: expected one of 00, 01"),
        ([known, "--add", "--lesson", "10"], "expected lessons such as 10_tuning.ipynb, found none"),
    ):
        done = CliRunner().invoke(ranges.app, [*map(str, words)], env={"COLUMNS": "400"})
        assert done.exit_code == 2 and message in done.output


# ---------------------------------------------------------------- what is stored

STALE = "`python -m tools.ranges --add` after lessons were stored again; then see what ranges.json says under asked"


def test_the_stored_lessons_are_known_and_teaching_shows_what_people_ask_about():
    stored, _ = ranges.read(NOTEBOOKS)
    (machine,) = ranges.read(NOTEBOOKS, "00")[1]
    known = ranges.load()
    (name,) = (name for name, each in known["machines"].items() if each == machine)
    there = {lesson.number for lesson in lessons.LESSONS if ranges.read(NOTEBOOKS, lesson.number)[1] == {machine}}
    assert len(there) >= 20, "a few lessons may be stored on other machines"
    for lesson, cell, words, _ in known["asked"]:
        low, high = known["figures"][lesson][cell][words][name]
        assert lesson not in there or low <= stored[ranges.Figure(lesson, cell, words)] <= high, STALE
    page = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    assert lessons.marked(page, "ranges", ranges.table()) == page, STALE
    assert len(known["asked"]) >= 40 and len(known["machines"]) >= 2
