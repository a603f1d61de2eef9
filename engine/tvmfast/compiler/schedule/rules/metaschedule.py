"""A kernel as MetaSchedule's search found it."""

from dataclasses import dataclass

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from ....core.simd import Simd
from .. import trace
from ..rule import ScheduleRule
from ..workloads.kernel import Kernel
from ..workloads.workload import Workload


class MetaSchedule(ScheduleRule):
    """A trace of MetaSchedule's."""

    name = "metaschedule"
    serves = "kernels that no other workload describes"

    @dataclass(frozen=True)
    class Config:
        """A trace.

        Attributes:
            trace: The trace as JSON; see `trace`.
        """

        trace: list

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Kernel)

    def schedule(self, sch: Schedule, config: Config) -> None:
        """Apply the trace; raises ScheduleError if it does not fit, or does what `trace` forbids."""
        before = trace.size(sch)
        try:
            trace.check(config.trace)
            Trace.apply_json_to_schedule(config.trace, sch)
        except (
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # whatever TVM raises for one that does not fit
            raise ScheduleError(str(error)) from error
        trace.check_size(before, trace.size(sch))
