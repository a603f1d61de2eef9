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

from tvmfast.compiler import build as compiler
from tvmfast.compiler.cuda.tile_configs import TileLookup
from tvmfast.compiler.records import ConfigLookup, Record, best, read, renamed
from tvmfast.core import data, machine

from .. import context, targets
from . import gpu, old_cuda, task, template
from .task import ConfigEntity, Task

MeasureInput = namedtuple("MeasureInput", ["target", "task", "config"])
MeasureResult = namedtuple("MeasureResult", ["costs", "error_no", "all_cost", "timestamp"])
_VERSION = 0.2  # of the log's lines
_SAID = 3  # lines of TVM's templates for CUDA of which a warning says what they are today


class MeasureErrorNo:
    """The error codes of a MeasureResult."""

    NO_ERROR, INSTANTIATION_ERROR, UNKNOWN_ERROR = 0, 1, 8


def seconds(result: MeasureResult) -> float:
    """Return the seconds per call: the mean of the costs, infinite for a failed config."""
    return float("inf") if result.error_no else float(np.mean(result.costs))


def as_record(inp: MeasureInput, result: MeasureResult) -> Record:
    """Convert a measurement of a network's task to a `Record` of tvmfast."""
    today = inp.task.today
    error = str(result.costs[0]) if result.error_no else None
    return Record(today.workload, today.target, inp.config.values, () if error else (seconds(result),), error)


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
    """Parse a line of `encode`; None if it is truncated, has no times, or is of TVM's own templates."""
    try:
        given = json.loads(row)
        target, name, args, _ = given["input"]
        costs, error, spent, timestamp = given["result"]
        costs = tuple(RuntimeError(cost) if error else float(cost) for cost in costs)
        if not error and not (costs and all(0 < cost < float("inf") for cost in costs)):
            return None
        if name in template.TEMPLATES:
            found = _of_template(name, json.dumps(args), target)
            config = found.config_space.find(given["config"]["entity"])
        else:
            found = _task(name, json.dumps(args), target)
            config = ConfigEntity.from_json_dict(given["config"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if isinstance(found, Task):
        if found.config_space.index(config.values) is None:
            config.values = renamed(config.values)  # of a log from before tvmfast's format 2 of records
        if found.config_space.index(config.values) is None:
            return None
    if config is None:
        return None
    return MeasureInput(found.target, found, config), MeasureResult(costs, error, spent, timestamp)


@functools.lru_cache(maxsize=1024)
def _task(name: str, args: str, target: str) -> Task:
    return task.task_of(name, json.loads(args), machine.checked_target(targets.with_arch(target)))


def _of_template(name: str, args: str, target: str) -> template.TemplateTask:
    try:
        return template.task_of(
            name, args, machine.target_json(machine.checked_target(targets.parse(target)))
        )
    except Exception as error:  # the script's, for arguments that it does not take
        raise ValueError(f"template {name} does not take {args}: {error}") from error


def load_from_file(filepath):
    """Yield the measurements of a log, as `decode` returns them; skip other lines with one warning.

    It says what the first few lines of TVM's templates for CUDA are today.
    """
    left_out, today = 0, []
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(filepath)) if isinstance(filepath, str | os.PathLike) else filepath
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            if found := decode(line):
                yield found
            else:
                left_out += 1
                if len(today) < _SAID and (sentence := old_cuda.today(line)):
                    today.append(f"\nline {number}: {sentence}")
    if left_out:
        message = f"{filepath}: {left_out} lines are torn, or of schedules that are not here, and left out"
        warnings.warn(message + "".join(today), stacklevel=2)


def log_to_file(file_out, protocol="json"):
    """Return a callback that appends each measurement to a path or file object immediately."""

    def callback(_tuner, inputs, results):
        lines = "".join(encode(*pair) + "\n" for pair in zip(inputs, results, strict=True))
        if hasattr(file_out, "write"):
            file_out.write(lines)
            return
        with open(file_out, "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            torn = file.read() not in (b"", b"\n")  # a killed process wrote half a line
            file.write(b"\n" * torn + lines.encode())

    return callback


def pick_best(in_file, out_file) -> None:
    """Write the best measurement of each task in `in_file` to `out_file`."""
    fastest: dict = {}
    for inp, result in load_from_file(in_file):
        case = inp.task.key, inp.task.target_key
        if not result.error_no and (case not in fastest or seconds(result) < seconds(fastest[case][1])):
            fastest[case] = inp, result
    text = "".join(encode(*pair) + "\n" for pair in fastest.values())
    if hasattr(out_file, "write"):
        out_file.write(text)
    else:
        data.atomic_write(out_file, text)


class ApplyHistoryBest:
    """Context manager under which builds and templates use the best configs of `records`.

    Args:
        records: Path of an AutoTVM log or a file of `tn.tune`, or a list of paths, `Record`s or measurements.
        n_lines: Not used.
    """

    source = "autotvm.apply_history_best"

    def __init__(self, records, n_lines=None):
        self._records: list[Record] = []
        self._of_templates: list[tuple[MeasureInput, MeasureResult]] = []
        self.load(records)

    def load(self, records) -> None:
        """Add records, given as to the class."""
        for each in [records] if isinstance(records, str | os.PathLike) else records or []:
            for measured in self.read(each) if isinstance(each, str | os.PathLike) else [each]:
                if isinstance(measured, Record):
                    self._records.append(measured)
                elif isinstance(record := getattr(measured[0], "record", None), Record):
                    self._records.append(record)  # of auto_scheduler.load_records
                elif isinstance(measured[0].task, template.TemplateTask):
                    self._of_templates.append(measured)
                else:
                    self._records.append(as_record(*measured))

    def config_of(self, key: tuple, target: str):
        """Return the fastest config of a template, given its task's `key` and target; None without one.

        Records of the target itself come first, then those of another target of its kind.
        """
        kind = json.loads(target)["kind"]
        ran = [
            (i, r)
            for i, r in self._of_templates
            if (i.task.key, i.task.target.kind.name) == (key, kind) and not r.error_no
        ]
        same = [pair for pair in ran if pair[0].task.target_key == target]
        fastest = min(same or ran, key=lambda pair: seconds(pair[1]), default=None)
        return fastest and fastest[0].config

    def query(self, target, workload: tuple):
        """Return the fastest config of a task's `workload` for its target; None if no record has one."""
        name, *args = workload
        if name in template.TEMPLATES:
            of_target = compiler.resolve_target(targets.for_build(target), kinds=("llvm", "cuda"))
            return self.config_of(template.key_of(name, args), machine.target_json(of_target))
        found = task.create(name, args, target)
        fastest = best(r for r in self._records if r.workload == found.key).get((found.key, found.target_key))
        return fastest and ConfigEntity(found.config_space.index(fastest.config), fastest.config)

    def lookup(self, target: tvm.target.Target) -> ConfigLookup | TileLookup | None:
        """Return the config lookup of a build for `target`; None, with a warning, if no log is of its GPU."""
        if target.kind.name == "llvm":
            of_cpus = [record for record in self._records if json.loads(record.target)["kind"] == "llvm"]
            return ConfigLookup(of_cpus, target, self.source)
        configs = gpu.tiles(self._records, str(target.attrs["arch"]))
        if not configs:
            warnings.warn(
                "autotvm: a build for a GPU takes none of the logs' configs, which are those of CPUs here or "
                "of other GPUs",
                stacklevel=3,
            )
            return None
        return TileLookup(configs, self.source)

    def __enter__(self):
        self._token = context.apply_best.set(self)
        return self

    def __exit__(self, *error):
        context.apply_best.reset(self._token)

    @staticmethod
    def read(file) -> list:
        """Return the records of a file of `tn.tune`, or the measurements of an AutoTVM log."""
        with open(file) as lines:
            is_ours = lines.readline().startswith('{"format"')
        return read(file) if is_ours else list(load_from_file(file))
