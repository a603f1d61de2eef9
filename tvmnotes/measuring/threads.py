"""This module tells how a network's time falls with TVM's threads, and whether it matters that each is bound to a core.

    timings = by_threads(lib, x)
    timings                           # a table
    timings.plot()

TVM reads TVM_NUM_THREADS and TVM_BIND_THREADS once in a process, so each setting is measured in one of its own: this
module, run as a program.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time as clock
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..base import env, errors
from ..base.table import Table
from ..runtime.compiled import Compiled, load
from . import measure
from .measure import Timing

_LIMIT = 600  # seconds in which a process loads the network and takes its turn
_REST = 0.15  # seconds for which TVM's idle threads still spin, and so slow down those of another process


class Threads(Table, dict):
    """This maps (threads, bound) to `Timing`: with so many threads, each bound to a core or not."""

    def frame(self):
        """Make a pandas DataFrame by number of threads: medians in ms, and how often faster than one thread."""
        import pandas as pd  # for speed: only where a table is shown

        rows = {}
        for count in sorted({count for count, _ in self}):
            for bound, name in ((True, "bound"), (False, "not bound")):
                median = self[count, bound].median
                rows.setdefault(count, {})[f"{name} (ms)"] = median * 1e3
                rows[count][f"{name}, speed-up"] = self[min(self)[0], bound].median / median
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("threads")

    def plot(self):
        """Plot time against threads; see `plots.by_threads`."""
        from ..course import plots  # for speed: only where it is drawn

        return plots.by_threads(self)


def by_threads(lib: Compiled, *inputs, counts: Iterable[int] | None = None, turns: int = 5) -> Threads:
    """Time a network on 1, 2, 3, … threads, or as many as `counts` says, each bound to a core and not bound.

    There is a process for each setting, which loads the network from a folder; they take turns, so that what slows the
    machine down for a while slows all.

    Raises what a call of `lib` does for wrong inputs; ValueError for counts below 1; RuntimeError where a process
    fails, or gives no times for ten minutes.
    """
    counts = list(range(1, env.usable_cores() + 1) if counts is None else counts)
    if not counts or min(counts) < 1:
        raise ValueError(f"counts: expected numbers of threads, 1 or more; got {counts}")
    values = lib._bind(inputs, {})
    lib.run(values)
    timings = Threads(
        {(count, bound): Timing(f"{count} threads") for count in counts for bound in (True, False)}
    )
    with tempfile.TemporaryDirectory() as folder:
        lib.save(Path(folder) / "network")
        np.savez(Path(folder) / "inputs.npz", *map(np.asarray, values))
        workers = {setting: _worker(folder, *setting) for setting in timings}
        try:
            for _ in range(env.cap_if_quick(turns, 1)):
                for setting, worker in workers.items():
                    timings[setting].seconds += _round(worker)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
    return timings


def _worker(folder: str, count: int, bound: bool) -> subprocess.Popen:
    settings = {"TVM_NUM_THREADS": str(count), "TVM_BIND_THREADS": str(int(bound))}
    command = [sys.executable, "-m", "tvmnotes.measuring.threads", folder]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env={**os.environ, **settings}, text=True, **pipes)


def _round(worker: subprocess.Popen) -> list[float]:
    """The times of a worker's turn, after which its threads come to rest."""
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
    clock.sleep(_REST)
    return seconds


def _work(folder: Path) -> None:
    """Do a worker's part: for each line of its input, print a turn's times as a line of JSON."""
    lib, values = load(folder / "network"), list(np.load(folder / "inputs.npz").values())
    for _ in sys.stdin:
        turn = []
        measure._round(lambda: lib.run(values), turn, None)
        print(json.dumps(turn), flush=True)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
