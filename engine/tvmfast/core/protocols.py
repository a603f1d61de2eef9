"""What layers expect of each other's objects: any object with these methods will do."""

from typing import Any, Protocol


class Lookup(Protocol):
    """What a build asks for tuned configs: `compiler.records.ConfigLookup`, for example."""

    def __call__(self, workload: Any) -> dict | None:
        """Look up the config of a kernel.

        Args:
            workload: The `compiler.schedule.workloads.workload.Workload` that the kernel computes.

        Returns:
            One of the workload's configs, or None for the default one.
        """


class Runner(Protocol):
    """Where `tn.tune` measures: `tuning.LocalRunner`, `tuning.RpcRunner`, or one of your own.

    Attributes:
        machine: The machine as records store it; None for this one, which can run the whole network as well.
    """

    machine: dict | None

    def measure(self, candidates: list) -> list:
        """Measure configs.

        Args:
            candidates: Each a `tuning.Candidate`.

        Returns:
            A `tuning.Trial` for each candidate, in the same order, with the error of one that failed.

        Raises:
            ConnectionError: Nothing is left to measure on. It ends the tuning; earlier batches are kept.
        """

    def for_metaschedule(self) -> Any:
        """Return the runner that MetaSchedule's own search takes; only the tuner metaschedule asks for it."""
