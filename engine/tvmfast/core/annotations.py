"""The annotation of a kernel: its schedule, a rule's name ("family") and config, and its workload, if any.

It is set on the kernel's main block; the pass that schedules the kernel moves it to the function.
"""

import json
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError

NAME = "tvmfast.schedule"


def parse(annotation: str) -> dict:
    """Parse an annotation into {"schedule": {"family": …, **config}, "workload": its `as_dict` or None}."""
    return json.loads(annotation)


def attribute(schedule: dict, workload: Any = None) -> dict[str, str]:
    """Make the annotation of a schedule, {"family": …, **config}, as an attribute of a kernel."""
    return {NAME: json.dumps({"schedule": schedule, "workload": workload.as_dict() if workload else None})}


def blocks_of(sch: Schedule) -> list:
    """Return the blocks of a kernel; none if it is not a nest of blocks, a sort for example."""
    try:
        return list(sch.get_child_blocks(sch.get_sblock("root")))
    except ScheduleError:
        return []


def of_blocks(sch: Schedule) -> list[str]:
    """Return the annotation of each block that has one."""
    annotations = [sch.get(block).annotations for block in blocks_of(sch)]
    return [str(notes[NAME]) for notes in annotations if NAME in notes]


def of_function(func: tvm.tirx.PrimFunc) -> dict:
    """Return a kernel's annotation as `parse` does; its family is "none" if the kernel has no schedule."""
    attrs = func.attrs or {}
    return parse(str(attrs[NAME])) if NAME in attrs else {"schedule": {"family": "none"}, "workload": None}
