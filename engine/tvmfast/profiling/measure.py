"""Timings, and comparisons in one run with the interval of each ratio.

Notebooks and `python -m tvmfast bench` measure here. A comparison alternates its candidates, since a
machine's speed drifts; quote medians, and ratios with their intervals.
"""

import gc
import os
import sys
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..core import machine
from ..core.table import Table, draw

# A candidate's round has at least this many timed calls and seconds, and begins no call after the limit in
# seconds.
_TURN_CALLS = 3
_TURN_SECONDS, _TURN_LIMIT = 0.05, 0.5
_TURNS = 5  # the least number of rounds, and the least that have an interval
_RESAMPLES = 2000
_LOST = 0.05  # a machine is busy if others take this share of the time, and as many seconds


@dataclass
class Timing:
    """The times of repeated calls of one function.

    `seconds` are in the order of the calls; `rounds` has the number of calls after each round of a
    comparison, those of the rounds before included.
    """

    name: str
    seconds: list[float] = field(default_factory=list, repr=False)
    rounds: list[int] = field(default_factory=list, repr=False)

    @property
    def median(self) -> float:
        """The median in seconds: of the rounds' medians, if there were rounds, as intervals are of these."""
        return float(np.median(self.samples if self.rounds else self.seconds))

    @property
    def mean(self) -> float:
        """The mean in seconds."""
        return float(np.mean(self.seconds))

    @property
    def std(self) -> float:
        """The standard deviation in seconds."""
        return float(np.std(self.seconds))

    @property
    def minimum(self) -> float:
        """The minimum in seconds."""
        return float(np.min(self.seconds))

    @property
    def iqr(self) -> float:
        """The interquartile range in seconds: the width of the middle half of the times."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(high - low)

    @property
    def samples(self) -> np.ndarray:
        """The median in seconds of each round: calls of one round share their disturbances."""
        return np.array([np.median(self.seconds[i:j]) for i, j in pairwise([0, *self.rounds])])

    def __str__(self) -> str:
        return (
            f"{self.name}: median {self.median * 1e3:.2f} ms, interquartile range {self.iqr * 1e3:.2f} ms, "
            f"minimum {self.minimum * 1e3:.2f} ms, {len(self.seconds)} calls"
        )

    __repr__ = __str__


class Comparison(Table, dict):
    """`Timing`s by name, in the order given; ratios are relative to the first.

    `lost` is the share of the time in which a thread of this process waited for a CPU that other processes
    had; None where the system does not tell.
    """

    lost: float | None = None

    def interval(self, name: str, to: str | None = None) -> tuple[float, float] | None:
        """Return the 95 % interval of the ratio of a candidate's median to another's, by default the first's.

        See `ratio_interval`. None, if there were fewer than five rounds.
        """
        return ratio_interval(self[name].samples, self[to or next(iter(self))].samples)

    @property
    def summary(self) -> str:  # type: ignore[override]
        """A sentence if the machine was busy, or an empty text."""
        return if_busy(self.lost)

    def frame(self) -> Any:
        """Make a pandas DataFrame with a row per candidate: median and minimum in ms, ratio, interval, calls.

        The interval is text, "0.97 to 1.02: no difference" if it holds 1; with fewer than five rounds there
        is none.
        """
        import pandas as pd  # for speed: only where a table is shown

        first = next(iter(self.values()))
        rows = {
            name: {
                "median (ms)": t.median * 1e3,
                "minimum (ms)": t.minimum * 1e3,
                f"ratio to {first.name}": t.median / first.median,
                "95 % interval": "" if t is first else _shown(self.interval(name)),
                "calls": len(t.seconds),
            }
            for name, t in self.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def plot(self) -> Any:
        """Draw the medians as bars, with the interval of each ratio; see `plots.times`."""
        return draw("times", self)


def if_busy(lost: float | None) -> str:
    """Return a sentence if others took a large share of the time (`Comparison.lost`), or an empty text."""
    if not lost or lost < _LOST:
        return ""
    return (
        f"The machine is busy: for {lost:.0%} of the time, threads waited for a CPU that other processes had."
    )


def ratio_interval(
    times: Sequence[float], reference: Sequence[float], seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95 % interval of the ratio of two medians, from samples that were taken in pairs.

    Alternating rounds give pairs. A percentile bootstrap draws 2,000 times as many pairs as there are, with
    replacement, and takes the ratio of the medians each time. The interval is from the 2.5th to the 97.5th
    percentile of these ratios. If it holds 1, the measurement shows no difference. The interquartile range of
    single calls cannot tell this: it stays as wide however many calls there are, while medians get more
    precise.

    Medians and intervals: T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems",
    SC 2015. The bootstrap: B. Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics
    7 (1979); B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

    Args:
        times: A sample of each round, in its order.
        reference: The same of what it is compared with. If one has more rounds, its last ones do not count.
        seed: Of the draws: the same samples have the same interval.

    Returns:
        The two ends; None for fewer than five pairs, whose range alone would be no 95 % interval.
    """
    pairs = min(len(times), len(reference))
    if pairs < _TURNS:
        return None
    draws = np.random.default_rng(seed).integers(pairs, size=(_RESAMPLES, pairs))
    medians, others = (np.median(np.asarray(samples)[draws], axis=1) for samples in (times, reference))
    low, high = np.percentile(medians / others, [2.5, 97.5])
    return float(low), float(high)


def _shown(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "too few rounds"
    low, high = interval
    return f"{low:.2f} to {high:.2f}" + (": no difference" if low <= 1 <= high else "")


def time(
    call: Callable, *inputs: Any, name: str = "call", seconds: float = 1.0, calls: int | None = None
) -> Timing:
    """Time `call(*inputs)`, as `compare` does, for about `seconds`, or for exactly `calls` calls."""
    return compare({name: call}, *inputs, seconds=seconds, calls=calls)[name]


def compare(
    candidates: Mapping[str, Callable], *inputs: Any, seconds: float = 2.0, calls: int | None = None
) -> Comparison:
    """Time several functions on the same inputs, alternately, within one run.

    In a round, a candidate has one call that does not count, then three that do, or as many as fit into 50
    ms. So what slows the machine down for a while slows all of them, and none is charged for the threads that
    the one before left spinning. Calls that take so long that this does not matter have shorter rounds. The
    comparison ends when `seconds` per candidate have passed and each has had five rounds. The rounds also
    give the interval of each ratio; see `ratio_interval`. On Linux, the table says if the machine was busy. A
    bar shows the progress after 3 seconds. A compiled network with state runs in a session of its own, from
    zeros on: its calls follow each other as in use, and its own state stays as it is.

    Args:
        candidates: Functions by name. A torch module (also a traced, scripted or compiled one) gets the
            inputs as tensors and runs in inference mode; any other callable gets them as they are. A module
            or network on a GPU gets its inputs there, and its call ends when the GPU has finished.
        *inputs: Arguments of each call.
        seconds: Timed seconds per candidate.
        calls: Exact number of timed calls of each, instead; a few are too few rounds for intervals.

    Returns:
        A `Timing` for each name.

    Raises:
        TypeError: A candidate cannot be called.
        ValueError: There is no candidate, or `seconds` or `calls` is not above 0.
    """
    if not candidates:
        raise ValueError("candidates: expected at least one name with its function, got none")
    if seconds <= 0 or (calls is not None and calls < 1):
        raise ValueError(
            f"expected seconds above 0, and calls of 1 or more, or None; got {seconds=}, {calls=}"
        )
    for name, call in candidates.items():
        if not callable(call):
            raise TypeError(
                f"candidate {name!r}: expected a function, a Compiled or a module; got {type(call).__name__}"
            )
    seconds = machine.cap_if_quick(seconds, 0.05)
    calls = calls and machine.cap_if_quick(calls, 2)
    runs = {name: _runner(call, inputs) for name, call in candidates.items()}
    timings = Comparison((name, Timing(name)) for name in runs)
    budget = seconds * len(runs)
    before, started, rounds = _cpu_seconds(), clock.perf_counter(), 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        style = {"desc": "measuring", "bar_format": "{desc} {bar} {elapsed}", "leave": False, "delay": 3}
        with tqdm(total=1.0, disable="TQDM_DISABLE" in os.environ, **style) as bar:
            while (share := _share_done(timings, started, rounds, budget, calls)) < 1:
                for name, run in runs.items():
                    if len(timings[name].seconds) != calls:
                        timed_round(run, timings[name].seconds, calls)
                        timings[name].rounds.append(len(timings[name].seconds))
                    bar.update(max(0.0, share - bar.n))
                rounds += 1
            bar.update(1.0 - bar.n)
    finally:
        if collecting:
            gc.enable()
    timings.lost = _share_lost(before, _cpu_seconds(), clock.perf_counter() - started)
    return timings


def _cpu_seconds(root: Path = Path("/")) -> tuple[float, float] | None:
    """Return the seconds so far that others ran on this process's CPUs, and that its threads waited for one.

    What a hypervisor's other machines took counts as both. None where the system does not tell: others than
    Linux, and some containers.
    """
    try:
        cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = np.array([[int(word) for word in line[1:9]] for line in lines if line and line[0] in cpus])
        seconds = ticks.sum(axis=0) / os.sysconf("SC_CLK_TCK")
        tasks = (root / "proc/self/task").glob("*/schedstat")
        waited = sum(int(task.read_text().split()[1]) for task in tasks) / 1e9
    except (AttributeError, OSError, ValueError, IndexError):
        return None
    if not seconds.any():
        return None
    busy, stolen = seconds[[0, 1, 2, 5, 6, 7]].sum(), seconds[7]
    return float(busy - sum(os.times()[:2])), float(waited + stolen)


def _share_lost(
    before: tuple[float, float] | None, after: tuple[float, float] | None, elapsed: float
) -> float | None:
    """Return the share of its time that a thread waited for a CPU which others had; None if unknown.

    The smaller of the two counts: threads that wait for each other lose nothing to others, and others that
    run on an idle CPU take nothing.
    """
    if before is None or after is None:
        return None
    lost = min(late - early for early, late in zip(before, after, strict=True))
    return min(1.0, lost / (elapsed * machine.threads())) if lost >= _LOST else 0.0


def timed_round(run: Callable, seconds: list[float], calls: int | None) -> None:
    """Warm up with one call, unless the last took long; append the times of timed calls to `seconds`."""
    if not seconds or seconds[-1] < _TURN_LIMIT / 2:
        run()
    first, begin = len(seconds), clock.perf_counter()
    while True:
        start = clock.perf_counter()
        run()
        end = clock.perf_counter()
        seconds.append(end - start)
        enough = len(seconds) - first >= _TURN_CALLS and end - begin >= _TURN_SECONDS
        if enough or end - begin >= _TURN_LIMIT or len(seconds) == calls:
            return


def _share_done(timings: Comparison, started: float, rounds: int, budget: float, calls: int | None) -> float:
    if calls is not None:
        return min(len(t.seconds) for t in timings.values()) / calls
    return min(rounds / machine.cap_if_quick(_TURNS, 1), (clock.perf_counter() - started) / budget)


def _runner(call: Any, inputs: tuple) -> Callable[[], object]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(call, torch.nn.Module):
        return _module_runner(call, inputs, torch)
    session = call
    if getattr(call, "state", None) and callable(getattr(call, "session", None)):
        session = call.session()
    if not hasattr(call, "to_device"):
        return lambda: session(*inputs)
    values = call.to_device(inputs)  # a network on a GPU

    def run() -> None:
        session.run(values)
        call.device.sync()

    return run


def _module_runner(module: Any, inputs: tuple, torch: Any) -> Callable[[], object]:
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    tensors = [
        x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x)) for x in inputs
    ]
    tensors = [tensor.to(device) for tensor in tensors]

    def run() -> None:
        with torch.inference_mode():
            module(*tensors)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run
