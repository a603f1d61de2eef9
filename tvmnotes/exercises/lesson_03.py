"""Exercises of lesson 03: a decision from rounds, the fault of a report, an honest timer; made-up reports."""

import math

import numpy as np
import pandas as pd

from .exercise import exercise, require, require_keys


def report(number: int) -> pd.DataFrame:
    """Return all calls of a made-up report in their order: start, program, threads and time.

    The lesson takes report 1 apart. The second exercise asks for the faults of all four.
    """
    fault = {1: "blocks", 2: "threads", 3: None, 4: "cold"}[number]
    return _calls(fault, number, turn=3 if number == 3 else 1)


def _calls(fault, seed, rounds=40, turn=1, names=("before", "after"), ms=20.0, cold=0):
    """Make up a report with one fault, or None, and `turn` calls of each program in a round."""
    order = np.array([name for _ in range(rounds) for name in names for _ in range(turn)])
    times = ms + np.random.default_rng(seed).exponential(0.02 * ms, len(order))
    threads = np.full(len(order), 8)
    slow = np.full(len(order), 1.0)
    if fault == "blocks":  # a neighbour leaves in the last quarter of the first block
        order = np.repeat(names, rounds * turn)
        slow[: 3 * rounds * turn // 4] = 1.5
    elif fault == "threads":
        threads[order == names[0]] = 1
        slow[order == names[0]] = 2.6
    elif fault == "cold":
        slow[cold * turn] = 60
    else:  # 3 % faster, and a neighbour in one round, which slows both
        slow[order == names[1]] = 0.97
        middle = rounds // 2 * 2 * turn
        slow[middle : middle + 2 * turn] *= 5
    times = (times * slow).round(2)
    start = ((times.cumsum() - times) / 1e3).round(3)
    return pd.DataFrame({"start (s)": start, "program": order, "threads": threads, "ms": times})


def _rounds(ratio, count, shared=0.0, own=0.0, seed=0):
    """Make up rounds of two programs: `shared` slows both in a round, `own` one of them."""
    rng = np.random.default_rng(seed)
    weather = 10 * (1 + shared * rng.random(count))
    times, reference = (weather * (1 + rng.exponential(own, count)) for _ in range(2))
    return ratio * times, reference


@exercise(
    "03.1",
    "The interval of the ratio says which ratios the rounds allow. Compare its two ends with 1 - least.",
    'high < 1 - least is "yes", low > 1 - least is "no", and all else, as fewer than five rounds, is "open".',
    minutes=15,
    difficulty=2,
)
def enough_faster(answer):
    """Whether a program is faster by enough."""
    spoilt, reference = _rounds(0.88, 90, own=0.05, seed=3)
    spoilt[40] *= 300
    cases = [
        (
            "20 rounds with a true ratio of 1.30",
            *(*_rounds(1.30, 20, own=0.02, seed=8), 0.05, "no"),
            "This program is slower. The ratio is times / reference: below 1 is faster.",
        ),
        (
            "600 rounds with a wide interquartile range and a true ratio of 0.90",
            *(*_rounds(0.90, 600, own=0.15, seed=1), 0.05, "yes"),
            "The interquartile range describes single calls. How well is a median of 600 known?",
        ),
        (
            "600 rounds with a true ratio of 0.98",
            *(*_rounds(0.98, 600, own=0.1, seed=2), 0.05, "no"),
            "This program is faster, but not by 5 %: the interval has to be compared with 0.95, not with 1.",
        ),
        (
            "90 rounds with a true ratio of 0.88, one of them 300 times as slow",
            *(spoilt, reference, 0.05, "yes"),
            "One call of a neighbour moves a mean far. Take medians.",
        ),
        (
            "45 rounds with a true ratio of 0.95",
            *(*_rounds(0.95, 45, own=0.2, seed=4), 0.05, "open"),
            "Two medians always fall on one side of 0.95. On which sides are the ends of the interval?",
        ),
        (
            "35 rounds of a machine whose speed changes by half, with a true ratio of 0.92",
            *(*_rounds(0.92, 35, shared=0.5, own=0.005, seed=5), 0.05, "yes"),
            "The two programs share a round's disturbances: draw rounds, and take both times of each.",
        ),
        (
            "4 rounds with a true ratio of 0.5",
            *(*_rounds(0.5, 4, own=0.01, seed=6), 0.05, "open"),
            "Four rounds allow no 95 % interval, whatever their ratio: ask for five at least.",
        ),
        (
            "50 rounds with a true ratio of 0.80, and 30 % wanted",
            *(*_rounds(0.80, 50, own=0.02, seed=7), 0.30, "no"),
            "The third argument says how much is wanted: 0.30 asks for a ratio below 0.70.",
        ),
    ]
    for what, times, reference, least, wanted, do in cases:
        got = answer(times, reference, least)
        require(got == wanted, f"the decision from {what}", repr(wanted), repr(got), do)


@exercise(
    "03.2",
    "Three questions: same threads for both? All calls of one program before the other's? A slow first call?",
    'calls.groupby("program") has each program\'s rows, in order: its threads, its first call, its median.',
    minutes=20,
    difficulty=2,
)
def fault_of_a_report(answer):
    """The fault of a report."""
    order = "Blocks are one turn of each program. Rounds of three calls each alternate, as tn.compare does."
    middle = "The slow calls are in the middle, in one round of both programs. Only a first call is cold."
    first = "Each program has a first call of its own. How does it compare with that program's median?"
    blocks = (
        "All calls of one program come before the other's: whatever changed on the machine counts as a gain."
    )
    threads = "Compare the threads of the two programs before you compare their times."
    honest = {"blocks": order, "cold": middle}
    cases = [
        ("that alternates call by call", None, {"seed": 11, "rounds": 25}, ("old", "new"), honest),
        (
            "that alternates by rounds of three calls",
            None,
            {"seed": 12, "turn": 3, "rounds": 12},
            ("a", "b"),
            honest,
        ),
        ("in two blocks", "blocks", {"seed": 13, "rounds": 55}, ("new", "old"), {}),
        ("with 1 thread and 8 threads", "threads", {"seed": 14, "ms": 3.0, "rounds": 30}, ("old", "new"), {}),
        ("whose first call is 60 times as slow", "cold", {"seed": 15, "rounds": 18}, ("old", "new"), {}),
        ("whose second program has a slow first call", "cold", {"seed": 16, "cold": 1}, ("new", "old"), {}),
        ("with a slow first call and three calls a round", "cold", {"seed": 17, "turn": 3}, ("x", "y"), {}),
    ]
    for what, fault, details, names, mistakes in cases:
        got = answer(_calls(fault, names=names, **details))
        do = mistakes.get(got) or {"blocks": blocks, "threads": threads, "cold": first, None: threads}[fault]
        require(got == fault, f"the fault of a report {what}", repr(fault), repr(got), do)


class _Machine:
    """A machine with a clock of its own, which only its programs move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []  # the program of each call
        self.inputs: list = []

    def program(self, name: str, seconds: float):
        """A program whose first call is slow, as is each that follows a call of another one."""

        def call(x):
            if name not in self.log:
                self.now += 100
            elif self.log[-1] != name:
                self.now += 1
            self.now += seconds
            self.log.append(name)
            self.inputs.append(x)
            return x

        return call

    def turns(self, name: str) -> int:
        """How many turns a program had: calls of one turn follow each other."""
        before = [None, *self.log]
        return sum(now == name != last for last, now in zip(before, self.log, strict=False))


@exercise(
    "03.3",
    "Two loops: the outer one over rounds, the inner one over candidates.",
    "In each turn: call(x), which does not count; then start = clock(), call(x), and append clock() - start.",
    minutes=20,
    difficulty=2,
)
def honest_timer(answer):
    """An honest timer."""
    for rounds, seconds in ((6, {"old": 0.25, "new": 0.125}), (9, {"a": 0.5, "b": 0.5, "c": 2.0})):
        machine, x = _Machine(), object()
        programs = {name: machine.program(name, each) for name, each in seconds.items()}
        times = answer(programs, x, rounds, lambda machine=machine: machine.now)
        require_keys(times, tuple(seconds), "Return a dictionary with the times of each candidate.")
        what = f"with {len(seconds)} candidates and {rounds} rounds"
        counts = {name: len(times[name]) for name in seconds}
        do = "Return one time for each round."
        require(set(counts.values()) == {rounds}, f"the times {what}", f"{rounds} of each", counts, do)
        turns = {name: machine.turns(name) for name in seconds}
        do = "This times in blocks, one candidate after the other. The outer loop is over rounds."
        require(min(turns.values()) >= rounds, f"the turns {what}", f"{rounds} of each or more", turns, do)
        others = sum(given is not x for given in machine.inputs)
        do = "Give every call the same x: two inputs may be two amounts of work."
        require(others == 0, f"the calls {what} that got another input", 0, others, do)
        for name, warm in seconds.items():
            most = max(times[name])
            longest = f"the longest time of {name}, which takes {warm} s when warm"
            do = "A first call is cold: make one that does not count."
            require(most < 100, longest, warm, most, do)
            do = "The program before left threads spinning. Begin each turn with a call that does not count."
            require(most < warm + 1, longest, warm, most, do)
            do = "Read the clock right before and right after the one call that counts."
            right = all(math.isclose(time, warm) for time in times[name])
            require(
                right, f"the times of {name}, which takes {warm} s when warm", warm, list(times[name]), do
            )
