"""The annotations of a kernel's main block: family, config, and the workload that it serves."""

import json
from dataclasses import fields

from tvm.s_tir import Schedule, ScheduleError


def marks(family: str, config: dict, workload=None) -> dict:
    """The annotations, as attributes of a tensor expression."""
    served = {"tvmnotes.workload": json.dumps(described(workload))} if workload else {}
    return {"tvmnotes.family": family, "tvmnotes.config": json.dumps(config), **served}


def marked(sch: Schedule) -> list[tuple[str, dict, str | None]]:
    """Family, config, and workload as JSON, of each block that has them."""
    try:
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
    except ScheduleError:  # a kernel that is no nest of blocks: a sort, for example
        return []
    found = [notes for block in blocks if "tvmnotes.family" in (notes := sch.get(block).annotations)]
    return [(str(notes["tvmnotes.family"]), json.loads(notes["tvmnotes.config"]),
             str(notes["tvmnotes.workload"]) if "tvmnotes.workload" in notes else None) for notes in found]  # fmt: skip


def described(workload) -> dict:
    """A workload as plain data: its operator and what it is compared by."""
    return {"op": workload.op, **{f.name: getattr(workload, f.name) for f in fields(workload) if f.repr}}
