"""A kernel as MetaSchedule's search found it: the config is the trace of what it did to the kernel.

Where the kernel was best as it is without, the config is that of `default`.
"""

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from . import default


def schedule(sch: Schedule, config: dict) -> None:
    """Do it again."""
    if config["family"] == "default":
        default.schedule(sch, config)
    else:
        Trace.apply_json_to_schedule(config["trace"], sch)
