"""A network's time against TVM's threads, with each pinned to a core or not.

    timings = by_threads(lib, x)
    timings                           # a table
    timings.plot()

TVM reads TVM_NUM_THREADS and TVM_BIND_THREADS once in a process, so each setting is measured in its own
process: this module, run as a program.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tvmfast.core import errors, machine
from tvmfast.core.table import Table
from tvmfast.profiling import measure
from tvmfast.profiling.measure import Timing
from tvmfast.runtime.compiled import Compiled, load

_LIMIT = 600  # seconds in which a process loads the network and runs its round


class Threads(Table, dict):
    """`Timing`s by (threads, bound): the number of threads, and whether each is pinned to a core."""

    def frame(self):
        """Make a pandas DataFrame by number of threads: medians in ms, and speed-ups over one thread."""
        import pandas as pd  # for speed: only where a table is shown

        rows = {}
        for count in sorted({count for count, _ in self}):
            for bound, name in ((True, "pinned"), (False, "not pinned")):
                median = self[count, bound].median
                rows.setdefault(count, {})[f"{name} (ms)"] = median * 1e3
                rows[count][f"{name}, speed-up"] = self[min(self)[0], bound].median / median
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("threads")

    def plot(self):
        """Plot time against threads; see `plots.by_threads`."""
        from . import plots  # for speed: only where it is drawn

        return plots.by_threads(self)


def by_threads(lib: Compiled, *inputs, counts: Iterable[int] | None = None, turns: int = 5) -> Threads:
    """Time a network on several numbers of threads, each pinned to a core and not pinned.

    A process for each setting loads the network from a folder; they run alternately, so that what slows the
    machine down for a while slows all.

    Args:
        lib: The network.
        *inputs: As for a call of `lib`.
        counts: Numbers of threads; by default 1, 2, 3, … up to the usable cores.
        turns: Rounds of each process.

    Raises:
        TypeError: As a call of `lib`.
        ValueError: A count is below 1, or as a call of `lib`.
        RuntimeError: A process fails, or returns no times for ten minutes.
    """
    counts = list(range(1, machine.usable_cores() + 1) if counts is None else counts)
    if not counts or min(counts) < 1:
        raise ValueError(f"counts: expected numbers of threads, 1 or more; got {counts}")
    values = lib.bind(inputs, {})
    lib.session().run(values)
    timings = Threads(
        {(count, bound): Timing(f"{count} threads") for count in counts for bound in (True, False)}
    )
    with tempfile.TemporaryDirectory() as folder:
        lib.save(Path(folder) / "network")
        np.savez(Path(folder) / "inputs.npz", *map(np.asarray, values))
        workers = {setting: _worker(folder, *setting) for setting in timings}
        try:
            for _ in range(machine.cap_if_quick(turns, 1)):
                for setting, worker in workers.items():
                    timings[setting].seconds += _round(worker)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
    return timings


def _worker(folder: str, count: int, bound: bool) -> subprocess.Popen:
    settings = {"TVM_NUM_THREADS": str(count), "TVM_BIND_THREADS": str(int(bound))}
    command = [sys.executable, "-m", __name__, folder]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env={**os.environ, **settings}, text=True, **pipes)


def _round(worker: subprocess.Popen) -> list[float]:
    try:
        worker.stdin.write("\n")
        worker.stdin.flush()
        if not select.select([worker.stdout], [], [], _LIMIT)[0]:
            raise RuntimeError(f"a process that was to time the network gave no times for {_LIMIT} s")
        seconds = json.loads(worker.stdout.readline())
    except (OSError, ValueError):
        worker.kill()
        said = errors.lines(worker.communicate()[1])[-1]
        raise RuntimeError(f"a process that was to time the network failed: {said}") from None
    return seconds


def _work(folder: Path) -> None:
    """Run as a worker: for each line of input, print a round's times as a line of JSON."""
    lib, values = load(folder / "network"), list(np.load(folder / "inputs.npz").values())
    for _ in sys.stdin:
        seconds = []
        measure.timed_round(lambda: lib.run(values), seconds, None)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
