"""The progress of a tuning: a bar for all trials with the remaining time, and a line for each task."""

import os

from tqdm.auto import tqdm

from .task import Progress


class Bars:
    """Progress bars in a notebook or a terminal; none if TQDM_DISABLE is set.

    A context manager, for the `states` of the tasks and the number of `trials` of all of them.
    """

    def __init__(self, states: list[Progress], trials: int):
        off = {"disable": True if "TQDM_DISABLE" in os.environ else None}  # None: disabled without a terminal
        overall = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}<{remaining}"
        self._all = tqdm(total=trials, desc="trials", bar_format=overall, **off)
        self._tasks = []
        for number, state in enumerate(states):
            size = "" if state.task.workload.by_metaschedule else f" of {len(state.task.space)}"
            layout = f"{{desc}}: {{n_fmt}}{size} configs{{postfix}}"
            self._tasks.append(tqdm(desc=str(state.task), bar_format=layout, **off))
            self.update(number, state)

    def update(self, number: int, state: Progress) -> None:
        """Show the progress of task `number`."""
        bar = self._tasks[number]
        if state.best:
            current, best = state.last * 1e3, state.best[-1] * 1e3
            bar.set_postfix_str(f"current {current:.3f} ms, best {best:.3f} ms", refresh=False)
        before = bar.n
        bar.update(state.trials - bar.n)
        self._all.update(state.trials - before)

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *error: object) -> None:
        self._all.total = self._all.n  # an incomplete bar would be red
        for bar in (self._all, *self._tasks):
            bar.refresh()
            bar.close()
