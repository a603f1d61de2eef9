"""What lesson 03 claims: its bootstrap is `tn.compare`'s; what its runs and reports show; what mistakes are told."""

import ast
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

import tvmnotes as tn
from tvmnotes import digits
from tvmnotes.exercises import lesson_03, verdict

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "03_measuring.ipynb"


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


@pytest.fixture
def run(cells, capsys):
    """Run cells by name; return their variables and what they print."""

    def run(*ids, **names):
        names = {"np": np, "pd": pd, "report": lesson_03.report, **names}
        for name in ids:
            exec(cells[name].source, names)
        return names, capsys.readouterr().out

    return run


# ---------------------------------------------------------------- the statistics


def test_the_lessons_interval_is_that_of_compare(run, rng):
    names, _ = run("rounds")
    for rounds in (5, 31):
        times, reference = rng.exponential(1, (2, rounds))
        assert tuple(names["interval"](times, reference)) == tn.measure.ratio_interval(times, reference)


def test_one_slow_call_moves_mean_and_deviation_but_not_median_and_quartiles(run, rng):
    names, _ = run("disturbed", noise=list(rng.uniform(30, 40, 50)))
    change = names["table"]["with one slow call"] / names["table"]["as measured"]
    assert change["mean"] > 1.3 and change["standard deviation"] > 10
    assert abs(change["median"] - 1) < 0.05 and abs(change["interquartile range"] - 1) < 0.2


def test_more_calls_narrow_the_spread_of_medians_but_not_the_iqr(run):
    _, printed = run("medians")
    calls, iqr, spread, estimate = np.array([row.split() for row in printed.splitlines()[1:]], float).T
    assert np.ptp(iqr) < 0.1 * iqr.max()
    np.testing.assert_allclose(spread[0] / spread, (calls / calls[0]) ** 0.5, rtol=0.1)
    np.testing.assert_allclose(estimate, spread, rtol=0.1)


def test_about_95_of_100_intervals_contain_the_true_median(run):
    _, printed = run("medians", "bootstrap")
    (hits,) = re.findall(r"(\d+) of 200", printed)
    assert 181 <= int(hits) <= 199


def test_rounds_show_a_difference_that_shuffled_pairs_and_middle_halves_hide(run):
    names, printed = run("rounds")
    rounds, shuffled = (tuple(map(float, ends)) for ends in re.findall(r"ratio .* ([\d.]+) to ([\d.]+)", printed))
    assert rounds[0] < 0.98 < rounds[1] < 1 and shuffled[0] < 1 < shuffled[1]
    (low, _), (_, high) = (np.percentile(names[name], [25, 75]) for name in ("before", "after"))
    assert low < high


# ---------------------------------------------------------------- the false speed-up


def test_the_report_shows_a_speed_up_that_its_neighbouring_calls_do_not(run):
    names, printed = run("rounds", "report")
    assert "after / before: 0.67" in printed
    before, after = (names["times"][name] for name in ("before", "after"))
    low, high = names["interval"](after, before)
    assert low < high < 0.7
    low, high = names["interval"](after[:10], before[-10:])
    assert low < 1 < high


def test_the_neighbours_end_with_their_block_even_if_it_fails(cells, monkeypatch):
    started = []

    class Program(subprocess.Popen):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Program)
    names = {"subprocess": subprocess, "sys": sys, "tn": tn, "contextmanager": contextmanager}
    exec(cells["blocks"].source.partition("\nwith neighbours():")[0], names)
    with pytest.raises(KeyboardInterrupt), names["neighbours"]():
        assert [program.poll() for program in started] == [None] * 2 * tn.env.threads()
        raise KeyboardInterrupt
    assert started and all(program.returncode is not None for program in started)


def test_a_network_in_training_mode_is_another_program():
    net = tn.models.load("digits")
    x = torch.from_numpy(digits.preprocess(digits.load_test_set()[0][:1]))
    with torch.inference_mode():
        wanted, other = net(x), net.train()(x)
    assert (other - wanted).abs().max() > 0.01 * wanted.abs().max()


def test_the_stored_outputs_are_what_the_text_says(cells):
    printed = {
        name: "".join(output.get("text", "") for output in cells[name].outputs)
        for name in ("first-calls", "blocks", "alternating", "careless", "compare")
    }
    first, later = map(float, re.findall(r"PyTorch.* ([\d.]+) ms.* ([\d.]+) ms", printed["first-calls"])[0])
    assert first > 1.5 * later
    ends = {
        name: tuple(map(float, re.findall(r"interval ([\d.]+) to ([\d.]+)", printed[name])[0]))
        for name in ("blocks", "alternating")
    }
    assert ends["blocks"][1] < 0.9 and ends["alternating"][0] <= 1 <= ends["alternating"][1]
    assert float(printed["careless"].split()[-1]) > 0.01
    by_hand, compared = (ast.literal_eval(found) for found in re.findall(r"\(.*\)", printed["compare"]))
    assert by_hand == compared and all(0.7 < end < 1.4 for end in by_hand)
    text = cells["compare"].outputs[-1].data["text/plain"]
    medians = {name: float(ms) for name, ms in re.findall(r"^(\S.*?) {2,}([\d.]+) ", text, re.M)}
    assert list(medians)[-1] == "tn.build" and medians["tn.build"] < medians["tvm.compile"] / 5


# ---------------------------------------------------------------- what a wrong answer is told


def interval(times, reference):
    return tn.measure.ratio_interval(times, reference)


def apart(times, reference):
    one, other = (np.random.default_rng(seed).integers(len(times), size=(2000, len(times))) for seed in (0, 1))
    return np.percentile(np.median(times[one], axis=1) / np.median(reference[other], axis=1), [2.5, 97.5])


def of_means(times, reference):
    draws = np.random.default_rng(0).integers(len(times), size=(2000, len(times)))
    return np.percentile(times[draws].mean(axis=1) / reference[draws].mean(axis=1), [2.5, 97.5])


def middle_halves(times, reference):
    (low, high), (least, most) = (np.percentile(each, [25, 75]) for each in (times, reference))
    return low / most, high / least


def medians(times, reference):
    return [np.median(times) / np.median(reference)] * 2


def decision(ends=interval, fewest=5, wanted=lambda least: 1 - least):
    def decide(times, reference, least):
        if len(times) < fewest:
            return "open"
        low, high = ends(times, reference)
        return "yes" if high < wanted(least) else "no" if low > wanted(least) else "open"

    return decide


def fault(calls, own_first=True, turns=True, first=True):
    """The right answer, and three mistakes in it."""
    groups = [rows for _, rows in calls.groupby("program")]
    if len({tuple(set(rows["threads"])) for rows in groups}) > 1:
        return "threads"
    one, other = groups
    in_blocks = one.index.max() < other.index.min() or other.index.max() < one.index.min()
    if in_blocks if turns else (calls["program"] == calls["program"].shift()).any():
        return "blocks"
    for rows in groups if own_first else [calls]:
        if (rows["ms"].iloc[0] if first else rows["ms"].max()) > 3 * rows["ms"].median():
            return "cold"
    return None


def timer(warm=True, blocks=False, calls=1, shared=True, every=1):
    """The right answer, and a mistake for each argument."""

    def time_it(candidates, x, rounds, clock):
        times = {name: [] for name in candidates}

        def turn(name, number):
            given = x if shared else [x]
            if warm and number % every == 0:
                candidates[name](given)
            start = clock()
            for _ in range(calls):
                candidates[name](given)
            times[name].append(clock() - start)

        turns = [(name, number) for number in range(rounds) for name in candidates]
        for name, number in sorted(turns) if blocks else turns:
            turn(name, number)
        return times

    return time_it


@pytest.mark.parametrize("number, answer", [("03.1", decision()), ("03.2", fault), ("03.3", timer())])
def test_a_right_answer_is_right(number, answer, monkeypatch, tmp_path):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    assert verdict(number, answer) == "right"


MISTAKES = [
    ("03.1", decision(lambda times, reference: interval(reference, times)), "below 1 is faster"),
    ("03.1", decision(middle_halves), "describes single calls"),
    ("03.1", decision(wanted=lambda least: 1), "compared with 0.95, not with 1"),
    ("03.1", decision(of_means), "moves a mean far"),
    ("03.1", decision(medians), "which sides are the ends"),
    ("03.1", decision(apart), "share a round's disturbances"),
    ("03.1", decision(lambda t, r: interval([*t, *t], [*r, *r]), fewest=1), "ask for five"),
    ("03.1", decision(wanted=lambda least: 0.95), "asks for a ratio below 0.70"),
    ("03.2", lambda calls: None, "whatever changed on the machine"),
    ("03.2", lambda calls: fault(calls, first=False), "Only a first call is cold"),
    ("03.2", lambda calls: fault(calls, turns=False), "Rounds of three calls each alternate"),
    ("03.2", lambda calls: fault(calls, own_first=False), "a first call of its own"),
    ("03.3", timer(blocks=True), "This times in blocks"),
    ("03.3", timer(shared=False), "the same x"),
    ("03.3", timer(warm=False), "A first call is cold"),
    ("03.3", timer(every=100), "left threads spinning"),
    ("03.3", timer(calls=3), "the one call that counts"),
]


@pytest.mark.parametrize("number, answer, words", MISTAKES)
def test_a_mistake_gets_its_own_words(number, answer, words):
    told = verdict(number, answer)
    assert told.startswith("wrong. ") and words in told


def test_one_of_the_four_reports_is_honest():
    assert [fault(lesson_03.report(number)) for number in (1, 2, 3, 4)] == ["blocks", "threads", None, "cold"]
    for number in (1, 2, 3, 4):
        means = lesson_03.report(number).groupby("program")["ms"].mean()
        assert means["after"] < means["before"]
