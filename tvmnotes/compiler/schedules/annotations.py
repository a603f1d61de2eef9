"""The annotation of a kernel: its schedule, a family with its config, and the workload that it serves, if any.

It stands on the kernel's main block, until the pass that schedules the kernel writes it to the function.
"""

import json

from tvm.s_tir import Schedule, ScheduleError

NAME = "tvmnotes.schedule"


def parse(annotation: str) -> dict:
    """What an annotation says: "schedule", and "workload" as plain data, or None."""
    return json.loads(annotation)


def attribute(schedule: dict, workload=None) -> dict[str, str]:
    """The annotation for `schedule`, {"family": …, **config}, as an attribute of a tensor expression or a function."""
    return {NAME: json.dumps({"schedule": schedule, "workload": workload.as_dict() if workload else None})}


def of_blocks(sch: Schedule) -> list[str]:
    """The annotation of each block that has one."""
    try:
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
    except ScheduleError:  # a kernel that is no nest of blocks: a sort, for example
        return []
    return [str(notes[NAME]) for block in blocks if NAME in (notes := sch.get(block).annotations)]


def of_function(func) -> dict:
    """What the annotation of a kernel says, as `parse`; the family is "none" where the kernel has no schedule."""
    attrs = func.attrs or {}
    return parse(str(attrs[NAME])) if NAME in attrs else {"schedule": {"family": "none"}, "workload": None}
