"""What a tuning shows while it runs: a bar for all trials with the time that is left, and a line for each task."""

import os

from tqdm.auto import tqdm

from ..compiler.schedules import Kernel
from .task import Progress, Task


class Bars:
    """Bars in a notebook or a terminal; none where TQDM_DISABLE is set."""

    def __init__(self, tasks: list[Task], trials: int):
        off = {"disable": "TQDM_DISABLE" in os.environ}
        overall = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}<{remaining}"
        self._all = tqdm(total=trials, desc="trials", bar_format=overall, **off)
        width = max(len(str(task)) for task in tasks)
        line = "{desc} {n_fmt:>4} of {total_fmt:>4}{postfix}"
        totals = [None if isinstance(task.workload, Kernel) else len(task.space) for task in tasks]
        self._tasks = [tqdm(total=total, desc=f"{task!s:{width}}", bar_format=line, **off)
                       for task, total in zip(tasks, totals, strict=True)]  # fmt: skip

    def update(self, number: int, state: Progress) -> None:
        """Show where a task is."""
        bar = self._tasks[number]
        if state.best:
            current, best = state.last * 1e3, state.best[-1] * 1e3
            bar.set_postfix_str(f"current {current:.3f} ms, best {best:.3f} ms", refresh=False)
        before = bar.n
        bar.update(state.trials - bar.n)
        self._all.update(state.trials - before)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for bar in (self._all, *self._tasks):
            bar.total = bar.n  # a bar that ends before its end would be red
            bar.refresh()
            bar.close()
