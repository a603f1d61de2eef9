"""AutoTVM's log, one line of JSON per measurement, and builds with its best configs.

A log names configs of tvmfast's schedules; lines of TVM's own templates are skipped with a warning.
`tvmfast.compiler.records` decides which record is best and which config a build uses.
"""

import contextlib
import functools
import json
import os
import warnings
from collections import namedtuple

import numpy as np
import tvm

from tvmfast import tuning
from tvmfast.compiler.records import ConfigLookup, Record, best, read, renamed
from tvmfast.core import data, machine

from .. import context, targets
from .task import ConfigEntity, Task, workload_of

MeasureInput = namedtuple("MeasureInput", ["target", "task", "config"])
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "all_cost", "timestamp"])
_VERSION = 0.2  # of the log's lines


class MeasureErrorNo:
    """The error codes of a MeasureResult."""

    NO_ERROR, UNKNOWN_ERROR = 0, 8


def seconds(result: MeasureResult) -> float:
    """Return the seconds per call: the mean of the costs, infinite for a failed config."""
    return float("inf") if result.error_no else float(np.mean(result.costs))


def as_record(inp: MeasureInput, result: MeasureResult) -> Record:
    """Convert a measurement to a `Record` of tvmfast."""
    task = inp.task.today
    error = str(result.costs[0]) if result.error_no else None
    return Record(task.workload, task.target, inp.config.values, () if error else (seconds(result),), error)


def encode(inp: MeasureInput, result: MeasureResult, protocol="json") -> str:
    """Serialize a measurement as one line of JSON."""
    costs = [str(cost) for cost in result.costs] if result.error_no else list(result.costs)
    line = {
        "input": [str(inp.target), inp.task.name, inp.task.args, {}],
        "config": inp.config.to_json_dict(),
        "result": [costs, result.error_no, result.all_cost, result.timestamp],
        "version": _VERSION,
        "tvm_version": tvm.__version__,
    }
    return json.dumps(line)


def decode(row: str, protocol="json") -> tuple[MeasureInput, MeasureResult] | None:
    """Parse a line of `encode`; None if it is truncated or of TVM's own templates."""
    try:
        given = json.loads(row)
        target, name, args, _ = given["input"]
        costs, error, spent, timestamp = given["result"]
        config = ConfigEntity.from_json_dict(given["config"])
        task = _task(workload_of(name, args), target)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if task.config_space.index(config.values) is None:
        config.values = renamed(config.values)  # of a log from before tvmfast's format 2 of records
    if task.config_space.index(config.values) is None:
        return None
    costs = tuple(RuntimeError(c) for c in costs) if error else tuple(costs)
    return MeasureInput(task.target, task, config), MeasureResult(costs, error, spent, timestamp)


@functools.lru_cache(maxsize=1024)
def _task(workload, target: str) -> Task:
    return Task(tuning.Task(workload, 1, machine.target_json(machine.checked_target(targets.parse(target)))))


def load_from_file(filepath):
    """Yield the measurements of a log, as `decode` returns them; skip other lines with one warning."""
    left_out = 0
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(filepath)) if isinstance(filepath, str | os.PathLike) else filepath
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            if found := decode(line):
                yield found
            else:
                left_out += 1
    if left_out:
        message = f"{filepath}: {left_out} lines are torn, or of schedules that are not here, and left out"
        warnings.warn(message, stacklevel=2)


def log_to_file(file_out, protocol="json"):
    """Return a callback that appends each measurement to a path or file object immediately."""

    def callback(_tuner, inputs, results):
        lines = "".join(encode(*pair) + "\n" for pair in zip(inputs, results, strict=True))
        if hasattr(file_out, "write"):
            file_out.write(lines)
            return
        with open(file_out, "a") as file:
            file.write(lines)

    return callback


def pick_best(in_file, out_file) -> None:
    """Write the best measurement of each task in `in_file` to `out_file`."""
    pairs = list(load_from_file(in_file))
    measured = [as_record(*pair) for pair in pairs]
    picked = {id(record) for record in best(measured).values()}
    chosen = [pair for pair, record in zip(pairs, measured, strict=True) if id(record) in picked]
    text = "".join(encode(*pair) + "\n" for pair in chosen)
    if hasattr(out_file, "write"):
        out_file.write(text)
    else:
        data.atomic_write(out_file, text)


class ApplyHistoryBest:
    """Context manager under which builds use the best configs of `records`.

    Args:
        records: Path of an AutoTVM log or a file of `tn.tune`, or a list of paths, `Record`s or measurements.
        n_lines: Not used.
    """

    def __init__(self, records, n_lines=None):
        self._records: list[Record] = []
        self.load(records)

    def load(self, records) -> None:
        """Add records, given as to the class."""
        for each in [records] if isinstance(records, str | os.PathLike) else records or []:
            if isinstance(each, str | os.PathLike):
                self._records += _read(each)
            else:
                self._records.append(each if isinstance(each, Record) else as_record(*each))

    def lookup(self, target: tvm.target.Target) -> ConfigLookup | None:
        """Return the config lookup of a build for `target`; None, with a warning, for a GPU."""
        if target.kind.name != "llvm":
            warnings.warn(
                "autotvm: a build for a GPU takes none of the logs' configs, which are those of CPUs here",
                stacklevel=3,
            )
            return None
        return ConfigLookup(self._records, target, "autotvm.apply_history_best")

    def __enter__(self):
        self._token = context.apply_best.set(self)
        return self

    def __exit__(self, *error):
        context.apply_best.reset(self._token)


def _read(file) -> list[Record]:
    """Read the records of an AutoTVM log or a file of `tn.tune`."""
    with open(file) as lines:
        is_ours = lines.readline().startswith('{"format"')
    return read(file) if is_ours else [as_record(*pair) for pair in load_from_file(file)]
