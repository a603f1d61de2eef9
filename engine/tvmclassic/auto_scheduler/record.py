"""Files of records, a `Record` of `tvmfast.compiler.records` in each line, and builds with the best of them.

Lines are appended a batch at a time and flushed to disk: a kill costs the batch that is being measured.
Nothing in a file runs as code: `tvmfast.compiler.schedule.trace` says what a trace may hold.
"""

import json
import warnings
from collections import namedtuple

import tvm

from tvmfast.compiler import records
from tvmfast.compiler.records import Record
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core import machine
from tvmfast.core.errors import Forbidden

from ..autotvm.record import ApplyHistoryBest as _ApplyHistoryBest
from ..autotvm.task import target_of

MeasureInput = namedtuple("MeasureInput", ["task", "state", "record"])  # a ComputeDAG applies the state
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "error_msg", "all_cost", "timestamp"])
RecordToFile = namedtuple("RecordToFile", ["filename"])  # the callback that appends each batch to a file
Measured = namedtuple("Measured", ["workload_key", "target"])
_OPENING = '{"format"'  # of every line


def key_of(workload) -> str:
    """Return the key of a workload, as tasks have it."""
    return workload.name if isinstance(workload, Kernel) else json.dumps(workload.as_dict())


def read(path) -> list[Record]:
    """Read a file of records; what a killed process did not finish is left out with a warning.

    Raises:
        OSError: It cannot be read.
        ValueError: A line, whose number it gives, is no record, or would do more than schedule a kernel.
    """
    with records.open_records(path, "rb") as file, records.locked(file, shared=True):
        lines = file.read().decode(errors="replace").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = records.parse(line)
        except Forbidden as error:
            raise ValueError(f"{path}, line {number}: refused: {error}") from None
        cut_off = record == "torn" and (line.startswith(_OPENING) or _OPENING.startswith(line))
        if isinstance(record, Record):
            found.append(record)
        elif cut_off or record not in ("torn", "of another format"):
            warnings.warn(f"{path}, line {number}: left out ({record})", stacklevel=3)
        else:
            raise ValueError(
                f"{path}, line {number}: expected a record of auto_scheduler.RecordToFile, which begins with "
                f"{_OPENING}; got {line[:60]!r}. Records of TVM up to 0.19 name schedules that are gone: "
                "tune again, into another file"
            )
    return found


def load_records(filename):
    """Yield (MeasureInput, MeasureResult) of each record of a file; raises as `read` does."""
    for record in read(filename):
        task = Measured(key_of(record.workload), tvm.target.Target(json.loads(record.target)))
        failed = record.error is not None
        result = [float("inf")] if failed else list(record.seconds), 8 * failed, record.error or ""
        yield (
            MeasureInput(task, record.config, record),
            MeasureResult(*result, sum(record.seconds), record.time),
        )


def load_best_record(filename, workload_key=None, target=None, include_compatible=False) -> tuple:
    """Return the fastest of `load_records`, of a workload if given; (None, None) if there is none.

    With a `target`, those of other targets come in only where it has none.
    """
    ran = [(inp, result) for inp, result in load_records(filename) if not result.error_no]
    fitting = [pair for pair in ran if workload_key in (None, pair[0].task.workload_key)]
    wanted = target and machine.target_json(target_of(target, "auto_scheduler"))
    here = [pair for pair in fitting if pair[0].record.target == wanted]
    return min(here or fitting, key=lambda pair: pair[0].record.call_seconds, default=(None, None))


class ApplyHistoryBest(_ApplyHistoryBest):
    """A context in which `relay.build` takes the best schedules of a file, or of several.

    The build is tvmfast's, whose kernels `extract_tasks` lists. A record decides the config of a kernel that
    tvmfast has a rule for, and MetaSchedule's trace of any other; one without a record is scheduled by rule.
    """

    source, read = "auto_scheduler.ApplyHistoryBest", staticmethod(read)
