"""A kernel as MetaSchedule's search found it: the config is the trace of what it did to the kernel."""

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from . import trace
from .default import serves
from .family import Family, register


def schedule(sch: Schedule, config: dict) -> None:
    """Do it again. Raises ScheduleError where the trace does not fit the kernel, or does what `trace` forbids."""
    before = trace.size(sch)
    try:
        trace.check(config["trace"])
        Trace.apply_json_to_schedule(config["trace"], sch)
    except (RuntimeError, TypeError, ValueError) as error:  # whatever TVM says of one that does not fit
        raise ScheduleError(str(error)) from error
    trace.check_size(before, trace.size(sch))


register(Family("metaschedule", schedule, serves))
