"""Files of records, a `Record` of `tvmfast.compiler.records` in each line, and builds with the best of them.

Nothing in a file runs as code: `tvmfast.compiler.schedule.trace` says what a trace may hold.
"""

import json
from collections import namedtuple

import tvm

from tvmfast.compiler import records
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core import machine

from ..autotvm import record as of_autotvm
from ..autotvm.task import target_of

MeasureInput = namedtuple("MeasureInput", ["task", "state", "record"])  # a ComputeDAG applies the state
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "error_msg", "all_cost", "timestamp"])
RecordToFile = namedtuple("RecordToFile", ["filename"])  # the callback that appends each batch to a file
Measured = namedtuple("Measured", ["workload_key", "target"])
_OPENING = '{"format"'  # of every line


def key_of(workload) -> str:
    """Return the key of a workload, as tasks have it."""
    return workload.name if isinstance(workload, Kernel) else json.dumps(workload.as_dict())


def read(path) -> list[records.Record]:
    """Read a file of records as `tvmfast.compiler.records.read` does, which warns of torn lines.

    Raises OSError if it cannot be read, and ValueError for a line, whose number it gives, that is no record
    or would do more than schedule a kernel.
    """
    with records.open_records(path, "rb") as file:
        lines = file.read().decode(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not (line.startswith(_OPENING) or _OPENING.startswith(line.strip())):
            raise ValueError(
                f"{path}, line {number}: expected a record of auto_scheduler.RecordToFile, which begins with "
                f"{_OPENING}; got {line[:60]!r}. Records of TVM up to 0.19 name schedules that are gone: "
                "tune again, into another file"
            )
    return records.read(path)


def fastest(filename, fits, target: str | None) -> records.Record | None:
    """Return a file's fastest record of a workload that fits, of `target` if it has one; None if none ran."""
    ran = [record for record in records.best(read(filename)).values() if fits(record.workload)]
    here = [record for record in ran if record.target == target]
    return min(here or ran, key=lambda record: record.call_seconds, default=None)


def load_records(filename):
    """Yield (MeasureInput, MeasureResult) of each record of a file; raises as `read` does."""
    yield from map(_measured, read(filename))


def _measured(record: records.Record) -> tuple[MeasureInput, MeasureResult]:
    task = Measured(key_of(record.workload), tvm.target.Target(json.loads(record.target)))
    costs = list(record.seconds) or [float("inf")]
    code = of_autotvm.MeasureErrorNo.UNKNOWN_ERROR if record.error else of_autotvm.MeasureErrorNo.NO_ERROR
    result = MeasureResult(costs, code, record.error or "", sum(record.seconds), record.time)
    return MeasureInput(task, record.config, record), result


def load_best_record(filename, workload_key=None, target=None, include_compatible=False) -> tuple:
    """Return the fastest of `load_records`, of a workload if given; (None, None) if there is none.

    With a `target`, those of other targets come in only where it has none.
    """
    wanted = target and machine.target_json(target_of(target, "auto_scheduler"))
    best = fastest(filename, lambda workload: workload_key in (None, key_of(workload)), wanted)
    return (None, None) if best is None else _measured(best)


class ApplyHistoryBest(of_autotvm.ApplyHistoryBest):
    """A context in which `relay.build` takes the best schedules of a file, or of several.

    The build is tvmfast's, whose kernels `extract_tasks` lists. A record decides the config of a kernel that
    tvmfast has a rule for, and MetaSchedule's trace of any other; one without a record is scheduled by rule.
    """

    source, read = "auto_scheduler.ApplyHistoryBest", staticmethod(read)
