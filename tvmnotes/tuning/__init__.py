"""Tuning: `tune` searches for the fastest configs of a network's kernels, by measuring.

task          what there is to tune in a network, and which task deserves the next trials
tuners        which configs to try: grid, random, genetic, XGBoost; features: what the last one's model sees
runner        where they are measured: here, or on the machines behind an RPC tracker; trial: one of them
session       the loop, from what the records hold to what is best; log: the file; remeasurement: its end
metaschedule  TVM's own search, for the kernels without a schedule of ours
"""

from .runner import LocalRunner, RpcRunner
from .session import Tuning, tune
from .task import Task, tasks, tasks_by_kernel
from .trial import Candidate, Trial
from .tuners import CostModel, tuner

__all__ = [
    "Candidate", "CostModel", "LocalRunner", "RpcRunner", "Task", "Trial", "Tuning", "tasks", "tasks_by_kernel", "tune", "tuner",
]  # fmt: skip
