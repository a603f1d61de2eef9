"""What a tuning shows while it runs: a bar for all trials with the time that is left, and a line for each task."""

import os

from tqdm.auto import tqdm

from .task import Progress, Task


class Bars:
    """Bars in a notebook or a terminal; none where TQDM_DISABLE is set."""

    def __init__(self, tasks: list[Task], trials: int):
        off = {
            "disable": True if "TQDM_DISABLE" in os.environ else None
        }  # None: none where nobody looks, as in a pipe
        overall = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}<{remaining}"
        self._all = tqdm(total=trials, desc="trials", bar_format=overall, **off)
        sizes = ["" if task.workload.by_metaschedule else f" of {len(task.space)}" for task in tasks]
        self._tasks = [tqdm(desc=str(task), bar_format=f"{{desc}}: {{n_fmt}}{size} configs{{postfix}}", **off)
                       for task, size in zip(tasks, sizes, strict=True)]  # fmt: skip

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
        self._all.total = self._all.n  # a bar that ends before its end would be red
        for bar in (self._all, *self._tasks):
            bar.refresh()
            bar.close()
