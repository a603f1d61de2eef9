"""Tuning: `tune` searches for the fastest configs of a network's kernels by measuring.

session        `tune`: the loop from the records to the best configs, which are measured again at its end
task           what there is to tune in a network, which task gets the next trials, and progress bars
tuners         which configs to try: grid, random, genetic, XGBoost; features: input of its cost model
runner         where they are measured: here, or on the machines of an RPC tracker; trial: one measurement
metaschedule   TVM's own search, for kernels that no rule was written for
workers        worker processes without torch; tracker, server, secret: machines that measure for others
"""

from .runner import LocalRunner, RpcRunner
from .session import Tuning, tune
from .task import Task, tasks, tasks_by_kernel
from .trial import Candidate, Trial
from .tuners import CostModel, tuner

__all__ = [
    "Candidate",
    "CostModel",
    "LocalRunner",
    "RpcRunner",
    "Task",
    "Trial",
    "Tuning",
    "tasks",
    "tasks_by_kernel",
    "tune",
    "tuner",
]
