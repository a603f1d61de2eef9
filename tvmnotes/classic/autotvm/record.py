"""What was measured, as lines of JSON in a log, and builds with the best of it.

A log names configs of tvmnotes's schedules; lines that TVM's own templates left are passed over, with a warning.
"""

import contextlib
import functools
import json
import os
import warnings
from collections import namedtuple
from pathlib import Path

import numpy as np
import tvm

from ...compiler.schedules import choose
from .. import targets
from .task import ConfigEntity, Task, workload_of

MeasureInput = namedtuple("MeasureInput", ["target", "task", "config"])
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "all_cost", "timestamp"])
_VERSION = 0.2  # of the log's lines


class MeasureErrorNo:
    NO_ERROR, UNKNOWN_ERROR = 0, 6


def flops(inp: MeasureInput, result: MeasureResult) -> float:
    """Operations in a second; 0 for a config that failed."""
    return 0.0 if result.error_no else inp.task.flop / float(np.mean(result.costs))


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
    """What `encode` wrote; None for a line of another TVM's templates. ValueError for what is no record."""
    try:
        given = json.loads(row)
        target, name, args, _ = given["input"]
        costs, error, seconds, timestamp = given["result"]
        config = ConfigEntity.from_json_dict(given["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no record of AutoTVM: {row[:80]!r}") from error
    try:
        workload = workload_of(name, args)
    except (ValueError, TypeError, IndexError):
        return None
    task = _task(workload, target)
    if task.config_space.index(config.values) is None:
        return None
    costs = tuple(RuntimeError(c) for c in costs) if error else tuple(costs)
    return MeasureInput(task.target, task, config), MeasureResult(costs, error, seconds, timestamp)


@functools.lru_cache(maxsize=1024)
def _task(workload, target: str) -> Task:
    return Task(workload, tvm.target.Target(json.loads(target) if target.startswith("{") else targets.parse(target)))


def load_from_file(filepath):
    """The measurements of a log. Torn lines, and those of other templates, are left out with a warning."""
    left_out = 0
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(filepath)) if isinstance(filepath, str | os.PathLike) else filepath
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            try:
                found = decode(line)
            except ValueError:
                found = None
            if found is None:
                left_out += 1
            else:
                yield found
    if left_out:
        warnings.warn(f"{filepath}: {left_out} lines are torn, or of schedules that are not here, and left out",
                      stacklevel=2)  # fmt: skip


def _best(records) -> dict:
    """By target and workload, the measurement of the least mean time."""
    best: dict = {}
    for inp, result in records:
        key = str(inp.target), inp.task.workload
        if not result.error_no and (key not in best or np.mean(result.costs) < np.mean(best[key][1].costs)):
            best[key] = inp, result
    return best


def pick_best(in_file, out_file) -> None:
    """Write the best measurement of each task in `in_file` to `out_file`."""
    lines = [encode(*pair) for pair in _best(load_from_file(in_file)).values()]
    if hasattr(out_file, "write"):
        out_file.write("".join(line + "\n" for line in lines))
        return
    out_file = Path(out_file)
    part = out_file.with_name(f".{out_file.name}-{os.getpid()}")
    part.write_text("".join(line + "\n" for line in lines))
    part.replace(out_file)


class ApplyHistoryBest:
    """Within it, builds use the best configs of a log, of several, or of measurements."""

    def __init__(self, records, n_lines=None):
        self._best: dict = {}
        self.load(records)

    def load(self, records) -> None:
        if records is None:
            return
        if isinstance(records, str | os.PathLike):
            records = load_from_file(records)
        elif isinstance(records, list | tuple) and records and isinstance(records[0], str | os.PathLike):
            records = (pair for file in records for pair in load_from_file(file))
        for inp, result in _best(records).values():
            self._best[inp.task._workload] = inp.config.values, result

    def __enter__(self):
        self._context = choose(lambda workload: self._best[workload][0] if workload in self._best else None)
        self._context.__enter__()
        return self

    def __exit__(self, *error):
        self._context.__exit__(*error)


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
