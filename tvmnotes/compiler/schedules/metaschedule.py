"""A kernel as MetaSchedule's search found it: the config's only knob, "trace", is a trace as JSON."""

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from . import trace
from .default import serves
from .family import Family, register


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the trace; raises ScheduleError if it does not fit the kernel, or does what `trace` forbids."""
    before = trace.size(sch)
    try:
        trace.check(config["trace"])
        Trace.apply_json_to_schedule(config["trace"], sch)
    except (RuntimeError, TypeError, ValueError) as error:  # whatever TVM raises for one that does not fit
        raise ScheduleError(str(error)) from error
    trace.check_size(before, trace.size(sch))


register(Family("metaschedule", schedule=schedule, serves=serves))
