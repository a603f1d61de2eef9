"""Exercises of lesson 11: a tuner that climbs, batches that are not all alike, and a measure of an order."""

import itertools
import math

import numpy as np

from .exercise import exercise, require

_SPACES = [  # the values of each choice, and the share of configs that the space lacks
    ([[1, 2, 4], [1, 3, 9, 27], [0, 1]], 0.0),
    ([["a", "b", "c", "d"], [8, 16], [1, 5], [False, True], [3, 6, 9]], 0.3),
    ([list(range(40))], 0.2),
]


def _spaces() -> list[list[tuple]]:
    """Return spaces of other sizes than the lesson's, in random orders."""
    rng = np.random.default_rng(0)
    found = []
    for choices, lacking in _SPACES:
        configs = list(itertools.product(*choices))
        kept = rng.permutation(len(configs))[: round(len(configs) * (1 - lacking))]
        found.append([configs[number] for number in kept])
    return found


def _apart(a: tuple, b: tuple) -> int:
    """Return in how many choices two configs differ."""
    return sum(x != y for x, y in zip(a, b, strict=True))


def _numbers(answer, space: list[tuple], count: int, taken, what: str) -> list[int]:
    """Return the numbers that an answer proposes, if there are `count`, of configs that are not taken."""
    got = [int(number) for number in answer]
    require(len(got) == count, f"the length of {what}", count, len(got), "Return as many as are asked for.")
    twice = sorted({number for number in got if got.count(number) > 1})
    require(
        not twice, f"the numbers that are twice in {what}", "none", twice[:3], "Propose each config once."
    )
    bad = [number for number in got if not 0 <= number < len(space) or number in taken]
    do = "Propose numbers of configs that are not measured yet."
    require(not bad, f"the numbers that do not belong to {what}", "none", bad[:3], do)
    return got


@exercise(
    "11.1",
    "Go through sorted(measured, key=measured.get), without those of infinite seconds, and for each through "
    "the whole space: a neighbour differs in exactly one choice.",
    "sum(x != y for x, y in zip(a, b)) == 1 tells neighbours. Stop when there are `count`, and fill up with "
    "rng.permutation of what is left.",
    minutes=25,
    difficulty=2,
)
def climber(answer):
    """A tuner that climbs."""
    rng = np.random.default_rng(1)
    for space, (size, count) in itertools.product(_spaces(), ((0, 5), (3, 4), (6, 9), (9, 12))):
        chosen = rng.permutation(len(space))[:size].tolist()
        measured = {number: float(seconds) for number, seconds in zip(chosen, rng.random(size), strict=True)}
        if size > 3:
            measured[chosen[0]] = math.inf
        given, count = dict(measured), min(count, len(space) - size)
        what = f"{count} proposals in a space of {len(space)} with {size} measured"
        got = _numbers(answer(space, given, count, np.random.default_rng(2)), space, count, measured, what)
        require(
            given == measured, f"what is measured after {what}", "no change", "another", "Change nothing."
        )
        if size == 0:
            others = [int(n) for n in answer(space, {}, count, np.random.default_rng(3))]
            do = "With nothing measured there are no neighbours: draw with rng."
            require(others != got, f"{what}, with another rng", "other numbers", "the same", do)
            continue
        wanted = _levels(space, measured)
        places = [wanted.get(number, len(measured)) for number in got]
        do = "First the neighbours of the fastest, then those of the second fastest, and so on."
        require(places == sorted(places), f"the order of {what}", "that of the measured speeds", places, do)
        best = sorted(wanted.values())[:count]
        best += [len(measured)] * (count - len(best))
        do = "A config that differs from it in one choice is a neighbour, also where the space has gaps. "
        do += "A failed config has none."
        told = f"the ranks of the configs whose neighbours {what} are"
        require(places == best, told, best, places, do)


def _levels(space: list[tuple], measured: dict[int, float]) -> dict[int, int]:
    """Return, for each neighbour of a measured config that is not measured, the rank of the fastest such."""
    levels: dict[int, int] = {}
    fastest = [n for n in sorted(measured, key=lambda n: measured[n]) if measured[n] < math.inf]
    for rank, number in enumerate(fastest):
        for other in range(len(space)):
            if other not in measured and _apart(space[number], space[other]) == 1:
                levels.setdefault(other, rank)
    return levels


@exercise(
    "11.2",
    "np.argsort(-scores) is the order. Keep a list of what is taken, and a list of what was passed over.",
    "Take a config if it differs from all that are taken in at least two choices, else pass it over; return "
    "(taken + passed over)[:count].",
    minutes=20,
    difficulty=2,
)
def varied_batch(answer):
    """A batch that is not all alike."""
    rng = np.random.default_rng(4)
    for space, count in itertools.product(_spaces(), (1, 4, 11)):
        scores = rng.random(len(space))
        what = f"a batch of {count} in a space of {len(space)}"
        got = _numbers(answer(space, scores.copy(), count), space, count, (), what)
        taken: list[int] = []
        order = [int(number) for number in np.argsort(-scores)]
        do = "Begin with the highest score."
        require(got[0] == order[0], f"the first of {what}", order[0], got[0], do)
        for number in order:
            if all(_apart(space[number], space[other]) >= 2 for other in taken):
                taken.append(number)
        alike = [n for n in got[: len(taken)] if n not in taken]
        do = "Compare each config with all that are taken, not with the last alone."
        told = f"the configs of {what} that differ from one with a higher score in a single choice"
        require(not alike, told, "none while there are others", alike[:3], do)
        wanted = (taken + [number for number in order if number not in taken])[:count]
        do = "From the highest score down; what was passed over comes last, in the same order."
        require(got == wanted, f"the order of {what}", wanted, got, do)


@exercise(
    "11.3",
    "A rank is the number of smaller ones, and half of the number of other equal ones.",
    "With a = np.asarray(scores), (a[:, None] > a).sum(1) + ((a[:, None] == a).sum(1) - 1) / 2 are ranks, "
    "and np.corrcoef of both ranks has the answer in [0, 1].",
    minutes=15,
    difficulty=2,
)
def rank_correlation(answer):
    """How well scores rank speeds."""
    rng = np.random.default_rng(0)
    for size in (5, 30):
        speeds = rng.random(size)
        do = "Compare the ranks of the numbers, not the numbers."
        got = float(answer(np.exp(5 * speeds), speeds))
        require(
            abs(got - 1) < 1e-6, f"the correlation of {size} pairs in the same order", 1, round(got, 3), do
        )
        got = float(answer(-(speeds**3), speeds))
        require(abs(got + 1) < 1e-6, f"the correlation of {size} in opposite order", -1, round(got, 3), do)
        for what, scores in (("noisy", speeds + 0.5 * rng.random(size)), ("equal", np.round(3 * speeds))):
            wanted = np.corrcoef(_ranks(scores), _ranks(speeds))[0, 1]
            got = float(answer(scores, speeds))
            if what == "equal":
                do = "Equal numbers share the mean of their ranks, whatever order a sort leaves them in."
            told = f"the correlation of {size} {what} scores"
            require(abs(got - wanted) < 1e-6, told, f"{wanted:.3f}", f"{got:.3f}", do)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of numbers, equal ones with the mean of theirs."""
    smaller, equal = (values[:, None] > values).sum(1), (values[:, None] == values).sum(1)
    return smaller + (equal - 1) / 2
