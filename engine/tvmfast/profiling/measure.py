"""Timings with their spread, and comparisons in one run.

Notebooks and `python -m tvmfast bench` measure here. A comparison alternates its candidates, since a
machine's speed drifts; quote medians and ratios.
"""

import gc
import os
import sys
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..core import machine
from ..core.table import Table, draw

# A candidate's round has at least this many timed calls and seconds, and begins no call after the limit in
# seconds.
_TURN_CALLS = 3
_TURN_SECONDS, _TURN_LIMIT = 0.05, 0.5
_TURNS = 5  # the least number of rounds


@dataclass
class Timing:
    """The times of repeated calls of one function: `seconds`, in the order of the calls."""

    name: str
    seconds: list[float] = field(default_factory=list, repr=False)

    @property
    def median(self) -> float:
        """The median in seconds."""
        return float(np.median(self.seconds))

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

    def __str__(self) -> str:
        return (
            f"{self.name}: median {self.median * 1e3:.2f} ms, interquartile range {self.iqr * 1e3:.2f} ms, "
            f"minimum {self.minimum * 1e3:.2f} ms, {len(self.seconds)} calls"
        )

    __repr__ = __str__


class Comparison(Table, dict):
    """`Timing`s by name, in the order given; ratios are relative to the first."""

    def frame(self) -> Any:
        """Make a pandas DataFrame with a row per candidate: median, iqr and minimum in ms, ratio, calls."""
        import pandas as pd  # for speed: only where a table is shown

        first = next(iter(self.values()))
        rows = {
            name: {
                "median (ms)": t.median * 1e3,
                "iqr (ms)": t.iqr * 1e3,
                "minimum (ms)": t.minimum * 1e3,
                f"ratio to {first.name}": t.median / first.median,
                "calls": len(t.seconds),
            }
            for name, t in self.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def plot(self) -> Any:
        """Draw the medians as bars with the interquartile range on each; see `plots.times`."""
        return draw("times", self)


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
    comparison ends when `seconds` per candidate have passed and each has had five rounds. A bar shows the
    progress after 3 seconds. A compiled network with state runs in a session of its own, from zeros on: its
    calls follow each other as in use, and its own state stays as it is.

    Args:
        candidates: Functions by name. A torch module (also a traced, scripted or compiled one) gets the
            inputs as tensors and runs in inference mode; any other callable gets them as they are. A module
            or network on a GPU gets its inputs there, and its call ends when the GPU has finished.
        *inputs: Arguments of each call.
        seconds: Timed seconds per candidate.
        calls: Exact number of timed calls of each, instead.

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
    started, rounds = clock.perf_counter(), 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        style = {"desc": "measuring", "bar_format": "{desc} {bar} {elapsed}", "leave": False, "delay": 3}
        with tqdm(total=1.0, disable="TQDM_DISABLE" in os.environ, **style) as bar:
            while (share := _share_done(timings, started, rounds, budget, calls)) < 1:
                for name, run in runs.items():
                    if len(timings[name].seconds) != calls:
                        timed_round(run, timings[name].seconds, calls)
                    bar.update(max(0.0, share - bar.n))
                rounds += 1
            bar.update(1.0 - bar.n)
    finally:
        if collecting:
            gc.enable()
    return timings


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
