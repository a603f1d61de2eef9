"""Exercises of lesson 12: trials shared by servers, what a kill leaves, and who fails."""

import heapq

import numpy as np

from .exercise import exercise, require


def _greedy(seconds: list[float], servers: int) -> float:
    free = [0.0] * servers
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


@exercise(
    "12.1",
    "Keep the moment at which each server is free. The next trial goes to the server with the earliest.",
    "Start with [0.0] * servers; add each trial's seconds to the smallest number; return the largest.",
    minutes=20,
    difficulty=2,
)
def measured_after(answer):
    """The time until all trials are measured."""
    do = "A free server measures the next trial, in the order of the list."
    for seconds, servers in (
        ([2.0, 2.0, 2.0], 1),
        ([3.0, 1.0, 1.0, 1.0], 2),
        ([1.0, 1.0, 4.0], 2),
        ([5.0], 3),
    ):
        got = answer(list(seconds), servers)
        wanted = _greedy(seconds, servers)
        require(np.isclose(got, wanted), f"the time of {seconds} on {servers} servers", wanted, got, do)
    rng = np.random.default_rng(0)
    for servers in (2, 3, 5):
        seconds = rng.uniform(0.1, 2, 40).tolist()
        got = answer(list(seconds), servers)
        least = max(sum(seconds) / servers, max(seconds))
        what = f"the time of 40 random trials on {servers} servers"
        require(
            got >= least - 1e-9, what, f"{least:.3f} or more: no server measures two trials at once", got, do
        )
        wanted = _greedy(seconds, servers)
        require(np.isclose(got, wanted), what, f"{wanted:.3f}", f"{got:.3f}", do)


@exercise(
    "12.2",
    "A thread waits for 8 records and ends the tracker with SIGKILL; the main thread tunes.",
    "tn.tune raises a ConnectionError. len(tn.records.read(log)) is the number of records that are left.",
    minutes=20,
    difficulty=3,
)
def left_by_a_kill(answer):
    """The records that are left when the tracker dies."""
    left = int(answer)
    do = "Let the tracker die in the second batch, after 8 records are written, and before the tuning ends."
    require(8 <= left < 100, "the number of records", "8 or more, and fewer than 100 trials", left, do)
    do = "Records are written by batches of 8: count the lines that tn.records.read returns."
    require(left % 8 == 0, "the number of records", "whole batches of 8", left, do)


@exercise(
    "12.3",
    "A trial that dies with its server is not to blame; a trial that crashes or hangs by itself is.",
    "Section 4 shows a killed server, lesson 10 a trial that fails. The tracker assigns the servers.",
    minutes=10,
    difficulty=1,
)
def who_fails(answer):
    """What happens after each failure."""
    right = {
        "a server is killed": "the trial is measured elsewhere",
        "the kernel crashes": "the trial fails",
        "the kernel hangs": "the trial fails",
        "the kernel computes a wrong result": "the trial fails",
        "the tracker is killed": "the tuning stops",
    }
    results = sorted(set(right.values()))
    for failure, wanted in right.items():
        got = dict(answer).get(failure)
        require(
            got in results,
            f"what happens when {failure}",
            f"one of {', '.join(results)}",
            repr(got),
            "Choose one.",
        )
        do = "Would the trial end the same way on another server? Who hands out the servers?"
        require(got == wanted, f"what happens when {failure}", "another of the three", repr(got), do)
