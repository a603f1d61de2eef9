"""Exercises of lesson 09: two kinds of convolutions, calls by level, the profile of a loaded network."""

import math

import pandas as pd

from .exercise import exercise, require, require_keys


@exercise(
    "09.1",
    "A kernel's operators begin with its kind. Add up the MFLOP and the MB of a kind before you divide.",
    'rows = frame[frame["operators"].str.startswith(kind)]; rows["MFLOP"].sum() / rows["MB"].sum().',
    minutes=20,
    difficulty=2,
)
def intensity_by_kind(answer):
    """Operations for each byte, by kind of convolution."""
    rows = [
        ("conv2d + add + clip", 100.0, 5.0),
        ("depthwise_conv2d + add + clip", 4.0, 2.0),
        ("conv2d + add", 20.0, 3.0),
        ("depthwise_conv2d + add", 1.0, 3.0),
        ("dense + add", 2.0, 4.0),
    ]
    frame = pd.DataFrame(rows, columns=["operators", "MFLOP", "MB"])
    got = dict(answer(frame))
    require_keys(got, ("conv2d", "depthwise"), "Return a dictionary with a number for each of the two kinds.")
    for kind, wanted in (("conv2d", 15.0), ("depthwise", 1.0)):
        do = "Divide the sum of MFLOP by the sum of MB, over the kernels whose operators begin with the kind."
        require(
            math.isclose(got[kind], wanted),
            f"FLOP/byte of {kind} in a made-up profile",
            wanted,
            got[kind],
            do,
        )


@exercise(
    "09.2",
    "tn.profile(tn.build(mod, params, opt_level=level), x).frame() has a column calls.",
    'The answer is {0: …, 1: …, 2: …} with frame["calls"].sum() of each level.',
    minutes=15,
    difficulty=1,
)
def calls_by_level(answer):
    """The kernel calls of ResNet-18 at opt levels 0, 1 and 2."""
    require_keys(answer, (0, 1, 2), "Return a dictionary with the calls of each level.")
    calls = [int(answer[level]) for level in (0, 1, 2)]
    do = "Add up the column calls; a kernel may be called several times."
    require(
        min(calls) >= 20, "the fewest calls", "as many as there are convolutions, or more", min(calls), do
    )
    require(
        calls[1] < calls[0] / 2, "the calls at level 1", "less than half of those at level 0", calls[1], do
    )
    require(calls[2] < calls[1], "the calls at level 2", "fewer than at level 1", calls[2], do)


@exercise(
    "09.3",
    "The fresh process needs tn.load, an input of the right shape, tn.profile and its method to_csv.",
    'Read the file with pandas.read_csv("profile.csv"): this table is the answer.',
    minutes=15,
    difficulty=2,
)
def loaded_profile(answer):
    """The profile of a loaded network, as a table."""
    columns = list(getattr(answer, "columns", []))
    for name in ("operators", "schedule", "MFLOP", "calls"):
        require(
            name in columns,
            "the columns",
            f"{name} among them",
            columns,
            "Write the file with profile.to_csv(…).",
        )
    do = "Profile the whole network, tuned or not, at opt level 3."
    require(len(answer) >= 5, "the number of kernels", "5 or more", len(answer), do)
    empty = int(answer["operators"].isna().sum())
    require(empty == 0, "the kernels without operators", 0, empty, do)
    scheduled = int(answer["schedule"].fillna("").str.contains("conv2d|winograd").sum())
    require(scheduled >= 3, "the kernels with a schedule for convolutions", "3 or more", scheduled, do)
