"""Exercises of lesson 12: trials shared by servers, a request with a limit, a runner that measures again."""

import heapq
import time
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import runner as runners

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


class _Tracker:
    """A session with a tracker on which a server of the key "pi" becomes free after so many summaries."""

    def __init__(self, queues: dict, after: float):
        self.queues, self.after = queues, after
        self.looks = 0
        self.session = object()
        self.end = time.monotonic() + 20

    def summary(self) -> dict:
        """Return what `TrackerSession.summary` returns."""
        self.looks += 1
        require(
            time.monotonic() < self.end,
            "the time until the answer ends, where no server is free for 0.1 seconds",
            "at most 20 seconds",
            "more",
            "Compare time.monotonic() with the end of the wait after each summary.",
        )
        if self.looks > self.after:
            self.queues["pi"] = {"free": 1, "pending": 0}
        return {"queue_info": self.queues, "server_info": []}

    def request(self, key: str, *args: Any, **options: Any) -> object:
        """Return a session where a server of the key is free."""
        free = self.queues.get(key, {"free": 0})["free"]
        do = "Request only when a summary shows a free server of this key: else the call may never return."
        require(free > 0, "servers that are free at the request", "1 or more", 0, do)
        return self.session


@exercise(
    "12.2",
    'tracker.summary()["queue_info"] has the number of free servers by key. A key that the tracker has never '
    "heard of is not in it.",
    "Until the time is up: if the key's queue has a free server, return tracker.request(key); else sleep for "
    "a moment. Then raise TimeoutError.",
    minutes=15,
    difficulty=2,
)
def limited_request(answer):
    """A request with a limit."""
    other = {"tv": {"free": 2, "pending": 0}}
    busy = {"pi": {"free": 0, "pending": 3}}
    for what, queues, after in (
        ("where a server is free", {}, 0),
        ("where a server becomes free at the third summary", busy, 2),
        ("where the tracker hears of the key at the third summary", other, 2),
    ):
        tracker = _Tracker(dict(queues), after)
        got = answer(tracker, "pi", 10)
        do = "Return what tracker.request(key) returns."
        require(
            got is tracker.session,
            f"the result {what}",
            "the session that the tracker gave",
            type(got).__name__,
            do,
        )
    for what, queues in (
        ("where all servers of the key are busy", busy),
        ("where only servers of another key are free", other),
        ("where the tracker knows no server", {}),
    ):
        try:
            result = f"{type(answer(_Tracker(dict(queues), float('inf')), 'pi', 0.1)).__name__} as a result"
        except TimeoutError:
            continue
        require(False, f"the end {what}", "TimeoutError", result, "Raise it when the time is up.")


@derived_object
class _Ended(runners.PyRunnerFuture):
    """A trial that is over; an ending is "ok" or an error message."""

    def __init__(self, ending: str):
        super().__init__()
        self.ending = ending

    def done(self) -> bool:
        return True

    def result(self) -> runners.RunnerResult:
        return runners.RunnerResult(*(([1e-3], None) if self.ending == "ok" else (None, self.ending)))


@derived_object
class _Played(runners.PyRunner):
    """A runner whose trials end as planned: `endings` has those of each library, run by run."""

    def __init__(self, endings: dict[str, list[str]], runs: list[str]):
        super().__init__()
        self.endings = {library: list(planned) for library, planned in endings.items()}
        self.runs = runs

    def run(self, runner_inputs: list[runners.RunnerInput]) -> list[runners.RunnerFuture]:
        """Return the next ending of each library."""
        libraries = [str(each.artifact_path) for each in runner_inputs]
        self.runs += libraries
        return [_Ended(self.endings[library].pop(0)) for library in libraries]


_GONE = "RPCRunner: An exception occurred\ncode=kShutdown"
_WRONG = "RPCRunner: An exception occurred\nValueError: not a library"


@exercise(
    "12.3",
    "Run all inputs once, and keep the futures in a list. Its order must stay that of the inputs.",
    "Twice at most: collect the indices whose future.result().error_msg is not None and lost; call "
    "self.runner.run with their inputs alone, and put the new futures in the places of the old.",
    minutes=30,
    difficulty=3,
)
def measured_again(answer):
    """A runner that measures again."""
    cases = {
        "where no trial is lost": {"a": ["ok"], "b": ["ok"]},
        "where the second of three is lost": {"a": ["ok"], "b": [_GONE, "ok"], "c": ["ok"]},
        "where two are lost, one of them twice": {"a": [_GONE, _GONE, "ok"], "b": [_GONE, "ok"]},
        "where one fails by itself": {"a": [_WRONG], "b": ["ok"]},
        "where one is lost, and then fails by itself": {"a": ["ok"], "b": [_GONE, _WRONG]},
        "where one is lost three times": {"a": [_GONE, _GONE, _GONE], "b": ["ok"]},
    }
    for what, endings in cases.items():
        runs: list[str] = []
        spare = {library: [*planned, "ok"] for library, planned in endings.items()}  # for a run too many
        runner = answer(_Played(spare, runs), lambda error: "kShutdown" in error)
        inputs = [runners.RunnerInput(library, "cpu", []) for library in endings]
        futures = list(runner.run(inputs))
        do = "Return one future for each input."
        require(len(futures) == len(inputs), f"the futures {what}", len(inputs), len(futures), do)
        for library, future in zip(endings, futures, strict=True):
            number = runs.count(library)
            wanted = len(endings[library])
            trial = f"runs of trial {library} {what}"
            do = "Measure again what is lost, and nothing else; three runs in all are enough."
            require(number == wanted, trial, wanted, number, do)
            error = future.result().error_msg
            ending = "ok" if error is None else str(error)
            do = "The result is that of the last run, in the place of its input."
            last = endings[library][-1]
            require(ending == last, f"the end of trial {library} {what}", repr(last), repr(ending), do)
