"""A kernel as MetaSchedule's search found it: the config is the trace of what it did to the kernel."""

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace


def schedule(sch: Schedule, config: dict) -> None:
    """Do it again."""
    Trace.apply_json_to_schedule(tvm.ir.load_json(config["trace"]), sch)
