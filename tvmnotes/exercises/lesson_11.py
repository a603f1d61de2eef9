"""Exercises of lesson 11: a smaller space, and a measure of how well a model ranks."""

import numpy as np

from .exercise import exercise, require


@exercise(
    "11.1",
    'A config is a dictionary: config["family"] is conv2d or winograd; other keys may be missing.',
    "Collect the configs to keep in a list, in their order, and return every second of them: kept[::2].",
    minutes=20,
    difficulty=2,
)
def smaller_space(answer):
    """A smaller space of configs."""
    space = []
    for number in range(12):
        space.append({"family": "conv2d", "tile_ow": number} | ({"tile_oh": 2} if number % 3 == 0 else {}))
        space.append(
            {"family": "winograd", "m": 2, "tile_oh": number} | ({"prefetch": 1} if number % 4 == 0 else {})
        )
        space.append({"family": "conv2d", "tile_ow": number, "tile_ic": 4})
    got = list(answer(list(space)))
    direct = [config for config in got if config["family"] == "conv2d"]
    winograd = [config for config in got if config["family"] == "winograd"]
    left = [config for config in direct if config.keys() & {"tile_oh", "tile_ic"}]
    require(not left, "the direct configs with tile_oh or tile_ic", "none", left[:2], "Leave them out.")
    left = [config for config in winograd if "prefetch" in config]
    require(not left, "Winograd's configs with prefetch", "none", left[:2], "Leave them out.")
    do = "Leave out tile_oh only where the family is conv2d."
    require(bool(direct) and bool(winograd), "the families", "both", sorted({c["family"] for c in got}), do)
    require(
        len(got) == 9,
        "the number of configs of a space of 36",
        "every second of those that are kept",
        len(got),
        do,
    )
    require(
        got == [config for config in space if config in got],
        "the order",
        "that of the space",
        "another",
        "Do not sort.",
    )


@exercise(
    "11.2",
    "Only the order of the numbers counts: replace each by its rank. argsort of argsort gives ranks.",
    "The answer is np.corrcoef(ranks of the scores, ranks of the speeds)[0, 1].",
    minutes=15,
    difficulty=2,
)
def rank_correlation(answer):
    """How well scores rank speeds."""
    rng = np.random.default_rng(0)
    speeds = rng.random(30)
    do = "Compare the ranks of the numbers, not the numbers."
    got = float(answer(np.exp(5 * speeds), speeds))
    require(abs(got - 1) < 1e-6, "the correlation of two lists in the same order", 1, round(got, 3), do)
    got = float(answer(-(speeds**3), speeds))
    require(abs(got + 1) < 1e-6, "the correlation of two lists in opposite order", -1, round(got, 3), do)
    scores = speeds + 0.5 * rng.random(30)
    wanted = np.corrcoef(scores.argsort().argsort(), speeds.argsort().argsort())[0, 1]
    got = float(answer(scores, speeds))
    require(abs(got - wanted) < 1e-6, "the correlation of noisy scores", f"{wanted:.3f}", f"{got:.3f}", do)
