"""AutoTVM's log, a line of JSON for each measurement, and builds with the best of one.

A log names configs of tvmnotes's schedules; lines that TVM's own templates left are passed over, with a warning. What
is best, and which config a build takes, is for `tvmnotes.records` to say.
"""

import contextlib
import functools
import json
import os
import warnings
from collections import namedtuple

import numpy as np
import tvm

from ... import tuning
from ...base import data, env
from ...compiler.records import ConfigLookup, Record, best, read
from .. import context, targets
from .task import ConfigEntity, Task, workload_of

MeasureInput = namedtuple("MeasureInput", ["target", "task", "config"])
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "all_cost", "timestamp"])
_VERSION = 0.2  # of the log's lines


class MeasureErrorNo:
    NO_ERROR, UNKNOWN_ERROR = 0, 8


def seconds(result: MeasureResult) -> float:
    """Of a call: the mean of the costs; infinite for a config that failed."""
    return float("inf") if result.error_no else float(np.mean(result.costs))


def as_record(inp: MeasureInput, result: MeasureResult) -> Record:
    """A measurement as a record of today."""
    task, error = inp.task.today, str(result.costs[0]) if result.error_no else None
    return Record(task.workload, task.target, inp.config.values, () if error else (seconds(result),), error)


def encode(inp: MeasureInput, result: MeasureResult, protocol="json") -> str:
    """A measurement as a line of JSON."""
    costs = [str(cost) for cost in result.costs] if result.error_no else list(result.costs)
    return json.dumps({
        "input": [str(inp.target), inp.task.name, inp.task.args, {}],
        "config": inp.config.to_json_dict(),
        "result": [costs, result.error_no, result.all_cost, result.timestamp],
        "version": _VERSION,
        "tvm_version": tvm.__version__,
    })  # fmt: skip


def decode(row: str, protocol="json") -> tuple[MeasureInput, MeasureResult] | None:
    """What `encode` wrote; None for a line that is torn, or of another TVM's templates."""
    try:
        given = json.loads(row)
        target, name, args, _ = given["input"]
        costs, error, spent, timestamp = given["result"]
        config = ConfigEntity.from_json_dict(given["config"])
        task = _task(workload_of(name, args), target)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if task.config_space.index(config.values) is None:
        return None
    costs = tuple(RuntimeError(c) for c in costs) if error else tuple(costs)
    return MeasureInput(task.target, task, config), MeasureResult(costs, error, spent, timestamp)


@functools.lru_cache(maxsize=1024)
def _task(workload, target: str) -> Task:
    return Task(tuning.Task(workload, 1, env.target_json(env.checked_target(targets.parse(target)))))


def load_from_file(filepath):
    """The measurements of a log. Torn lines, and those of other templates, are left out with a warning."""
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
        warnings.warn(f"{filepath}: {left_out} lines are torn, or of schedules that are not here, and left out",
                      stacklevel=2)  # fmt: skip


def log_to_file(file_out, protocol="json"):
    """A callback that appends each measurement to a file, or a file object, at once."""

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
    text = "".join(
        encode(*pair) + "\n" for pair, record in zip(pairs, measured, strict=True) if id(record) in picked
    )
    if hasattr(out_file, "write"):
        out_file.write(text)
    else:
        data.atomic_write(out_file, text)


class ApplyHistoryBest:
    """Within it, builds use the best configs of a log, of a file of `tn.tune`'s, of several, or of measurements."""

    def __init__(self, records, n_lines=None):
        self._records: list[Record] = []
        self.load(records)

    def load(self, records) -> None:
        for each in [records] if isinstance(records, str | os.PathLike) else records or []:
            if isinstance(each, str | os.PathLike):
                self._records += _read(each)
            else:
                self._records.append(each if isinstance(each, Record) else as_record(*each))

    def lookup(self, target: tvm.target.Target) -> ConfigLookup:
        """What a build for a target asks for configs."""
        return ConfigLookup(self._records, target, "autotvm.apply_history_best")

    def __enter__(self):
        self._token = context.apply_best.set(self)
        return self

    def __exit__(self, *error):
        context.apply_best.reset(self._token)


def _read(file) -> list[Record]:
    """The records in a log of AutoTVM's, or in a file of `tn.tune`'s."""
    with open(file) as lines:
        is_todays = lines.readline().startswith('{"format"')
    return read(file) if is_todays else [as_record(*pair) for pair in load_from_file(file)]
