"""Callbacks of a `TaskScheduler`: what a search tells of its tasks while it runs."""

import time
from pathlib import Path

from .workload import operations

NOT_MEASURED = 1e10  # the seconds of a task without a schedule that ran
_ROW = "| {:>3} | {:<40.40} | {:>12} | {:>14} | {:>6} |"


class TaskSchedulerCallback:
    """The base class of callbacks, which does nothing."""

    def pre_tune(self, task_scheduler, task_id) -> None:
        """Hear that a batch of a task is about to be measured."""

    def post_tune(self, task_scheduler, task_id) -> None:
        """Hear that a batch of a task was measured."""


class PrintTableInfo(TaskSchedulerCallback):
    """Prints a table before each batch: of each task the fastest schedule's time and rate, and the trials."""

    def pre_tune(self, task_scheduler, task_id) -> None:
        """Print the table."""
        print(_ROW.format("ID", "Task", "Latency (ms)", "Speed (GFLOPS)", "Trials"))
        state = zip(task_scheduler.tasks, task_scheduler.best_costs, task_scheduler.task_cts, strict=True)
        for number, (task, seconds, trials) in enumerate(state):
            latency, speed = "-", "-"
            if seconds < NOT_MEASURED:
                workload = task.today.workload
                count = operations(workload.func) if workload.by_metaschedule else task.today.operations
                latency, speed = f"{seconds * 1e3:.3f}", f"{count / seconds / 1e9:.2f}"
            print(_ROW.format(number, task.desc or task.workload_key, latency, speed, trials))


class LogEstimatedLatency(TaskSchedulerCallback):
    """Appends a line to a new file after each batch: seconds so far, milliseconds of the network, trials.

    The network's time is the sum of its tasks' best times their weights, or N/A until each task has one.
    """

    def __init__(self, log_file):
        self.log_file = Path(log_file)
        self.log_file.unlink(missing_ok=True)

    def post_tune(self, task_scheduler, task_id) -> None:
        """Append the line."""
        known = max(task_scheduler.best_costs) < NOT_MEASURED
        latency = f"{task_scheduler.cur_score * 1e3:.3f}" if known else "N/A"
        spent, trials = time.time() - task_scheduler.tic, sum(task_scheduler.task_cts)
        with open(self.log_file, "a") as file:
            file.write(f"ElapsedTime(s)\t{spent:.0f}\tEstimatedLatency(ms)\t{latency}\tTrials\t{trials}\n")
