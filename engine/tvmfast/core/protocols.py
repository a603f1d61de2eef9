"""What layers expect of each other's objects: any object with these methods will do."""

from typing import Any, Protocol


class Lookup(Protocol):
    """What a build asks for tuned configs: `compiler.records.ConfigLookup`, for example."""

    def __call__(self, workload: Any) -> dict | None:
        """Return a config for a kernel that computes a `Workload`, or a `Product`; None: the default one."""


class Runner(Protocol):
    """Where `tn.tune` measures: `tuning.LocalRunner`, `tuning.RpcRunner`, or one of your own.

    Attributes:
        machine: The machine as records store it; None for this one, which can run the whole network as well.
    """

    machine: dict | None

    def measure(self, candidates: list) -> list:
        """Return a `tuning.Trial` for each `tuning.Candidate`, in order, with the error of one that failed.

        Raises ConnectionError if nothing is left to measure on: it ends the tuning; earlier batches are kept.
        """

    def for_metaschedule(self) -> Any:
        """Return the runner that MetaSchedule's own search takes; only the tuner metaschedule asks for it."""
