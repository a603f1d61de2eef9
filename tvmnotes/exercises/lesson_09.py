"""Exercises of lesson 09: two kinds of convolutions, what is left to win, memory that is alive at once."""

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
    "At the limit a kernel takes the longer of MFLOP / flops and MB / bandwidth, both in ms.",
    "1 MFLOP takes 1e6 / flops seconds, so 1e9 / flops ms. The limit is the larger of MFLOP * 1e9 / flops "
    "and MB * 1e9 / bandwidth. A kernel can win ms - limit, and never less than 0.",
    minutes=20,
    difficulty=2,
)
def left_to_win(answer):
    """What each kernel can win."""
    rows = {
        "computes": (4.0, 100.0, 10.0),  # ms, MFLOP, MB
        "moves": (5.0, 10.0, 100.0),
        "done": (9.0, 800.0, 5.0),
        "cached": (0.5, 1.0, 40.0),  # faster than main memory allows
    }
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["ms", "MFLOP", "MB"])
    for flops, bandwidth in ((1e11, 4e10), (2e11, 5e10)):
        got = dict(answer(frame.copy(), flops, bandwidth))
        do = "Return a dictionary, or a Series, with a number of ms for each kernel of the frame's index."
        require_keys(got, tuple(rows), do)
        machine = f"on a machine of {flops / 1e9:.0f} GFLOP/s and {bandwidth / 1e9:.0f} GB/s"
        for name, (ms, mflop, mb) in rows.items():
            computing, memory = mflop * 1e9 / flops, mb * 1e9 / bandwidth
            wanted = max(0.0, ms - max(computing, memory))
            do = "The limit is the longer of the two times."
            if got[name] < 0:
                do = "A kernel above its limit, with its data in a cache, has nothing to win."
            elif math.isclose(got[name], ms - computing - memory):
                do = "A core computes while memory is read: the times do not add up, the longer one counts."
            elif math.isclose(got[name], ms - min(computing, memory)):
                do = "That is the shorter of the two times. A kernel can be no faster than the longer one."
            elif wanted and not 1e-3 < got[name] / wanted < 1e3:
                do = "Check the units: ms, millions of operations, millions of bytes."
            require(
                math.isclose(got[name], wanted, abs_tol=1e-9),
                f"what {name} can win {machine}",
                f"{wanted:.3f} ms",
                f"{got[name]:.3f} ms",
                do,
            )


@exercise(
    "09.3",
    "For each call, add up the bytes of the values that are made at or before it and read at or after it.",
    "max(sum(size for size, made, read in values if made <= call <= read) for call in …), over the calls at "
    "which values are made.",
    minutes=20,
    difficulty=2,
)
def alive_at_once(answer):
    """Memory that is alive at once."""
    chain = [(8, 0, 1), (8, 1, 2), (8, 2, 3)]
    skip = [(10, 0, 4), (3, 1, 2), (5, 2, 3), (2, 3, 4), (1, 4, 4)]
    narrow = [(7, 0, 1), (20, 1, 2), (6, 2, 3), (18, 3, 4)]
    late = [(4, 5, 9), (6, 6, 7), (1, 7, 8), (9, 8, 9)]
    cases = {
        "a chain of equal values": (chain, 16),
        "a value that is read again at the end": (skip, 18),
        "values of many sizes": (narrow, 27),
        "calls that begin at 5": (late, 14),
        "no value": ([], 0),
    }
    for what, (values, wanted) in cases.items():
        got = answer(list(values))
        do = "Go through the calls, and add up what is alive at each."
        if values and got == sum(size for size, _, _ in values):
            do = "That is all of them. A value whose last reader has run leaves its bytes to others."
        elif values and got == _exclusive(values):
            do = "A call writes its result while it reads its inputs, so count the last call too."
        require(got == wanted, f"the bytes of {what}", wanted, got, do)


def _exclusive(values: list[tuple[int, int, int]]) -> int:
    """Return the most bytes if values ended before their last reader."""
    return max(sum(size for size, made, read in values if made <= call < read) for _, call, _ in values)
