"""A kernel as MetaSchedule's search found it: the config is the trace of what it did to the kernel.

Where the kernel was best as it is without, the config is that of `default`.
"""

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace

from . import default


def schedule(sch: Schedule, config: dict) -> None:
    """Do it again. Raises ScheduleError where the trace does not fit the kernel."""
    if config["family"] == "default":
        default.schedule(sch, config)
    else:
        try:
            Trace.apply_json_to_schedule(config["trace"], sch)
        except (RuntimeError, TypeError, ValueError) as error:  # whatever TVM says of one that does not fit
            raise ScheduleError(str(error)) from error
