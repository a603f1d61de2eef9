"""Tuning records: the time of a config of a workload, as a line of JSON, in files that only grow.

`tn.tune` appends to such a file, `tn.build` uses the best of one (or of those that the package ships), and
`pick_best` makes a small file of the best of several. Nothing in such a file runs as code, whoever wrote it:
`read` says which lines are refused.
"""

import contextlib
import functools
import json
import logging
import os
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import tvm

from ..core import data, machine
from ..core.errors import Forbidden, UnknownCpu
from ..core.simd import Simd, simd_of
from .cuda.tile_configs import TileLookup
from .schedule.workloads.workload import Workload
from .schedule.workloads.workload import key as key

try:
    import fcntl
except ImportError:  # on Windows, only one process at a time should append to a file
    fcntl = None

_LOG = logging.getLogger(__name__)
_FORMAT = 2  # version of a line's format and of the meaning of configs
_RENAMED = {  # the fields of configs by their names in format 1, by rule
    "conv2d": {"lines": "tile_oh", "pixels": "tile_ow", "blocks": "tile_oc", "outer": "loop_order",
               "chunk": "tile_ic"},
    "pointwise": {"pixels": "tile_m", "blocks": "tile_oc", "run": "block_m", "outer": "loop_order",
                  "chunk": "tile_ic"},
    "depthwise": {"rows": "tile_oh", "pixels": "tile_ow"},
    "winograd": {"tile": "m", "rows": "tile_oh", "columns": "tile_ow", "blocks": "tile_oc",
                 "group": "block_oh"},
    "matmul": {"rows": "tile_m", "blocks": "tile_n", "outer": "loop_order"},
    "batch_matmul": {"rows": "tile_m", "blocks": "tile_n", "outer": "loop_order"},
}  # fmt: skip
_EXPECTED = "records: expected None, False, a file, or a list of files or of tvmfast.compiler.records.Record"


@dataclass(frozen=True)
class Record:
    """A measured config.

    Attributes:
        workload: What the kernel computes.
        target: As `machine.target_json` gives it.
        config: The parameters of the kernel's schedule, and the name of its rule.
        seconds: One time per repeat; empty if the config failed.
        error: How it failed, or None.
        final: Empty for a trial. At its end, a tuning measures the best few configs of each workload again,
            alternately; the records of those carry the time of that re-measurement.
        machine: "cpu" and "threads" of the machine that measured.
        versions: The versions of apache-tvm and tvmfast (tvmnotes until 0.1).
        time: When the record was made, in ISO format.
    """

    workload: Workload
    target: str
    config: dict
    seconds: tuple[float, ...]
    error: str | None = None
    final: str = ""
    machine: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    time: str = ""

    @property
    def call_seconds(self) -> float:
        """Seconds of a call, infinite if it failed.

        For a trial the minimum of its repeats, because other processes only ever make a time longer; for a
        re-measurement the median of its rounds, each of which is already the minimum of several runs.
        """
        if not self.seconds:
            return float("inf")
        return statistics.median(self.seconds) if self.final else min(self.seconds)

    def __str__(self) -> str:
        fields = {
            "format": _FORMAT,
            "workload": self.workload.as_dict(),
            "target": json.loads(self.target),
            "config": self.config,
            "seconds": [float(f"{s:.4g}") for s in self.seconds],
            "error": self.error,
            "final": self.final,
            "machine": self.machine,
            "versions": self.versions,
            "time": self.time,
        }
        return json.dumps(fields)


def new_record(workload, target: str, config: dict, seconds=(), error=None, final="", machine=None) -> Record:
    """Make a record with the current time and versions.

    Args:
        workload: What the kernel computes.
        target: As `machine.target_json` gives it.
        config: The measured config.
        seconds: One time per repeat.
        error: How the config failed, or None.
        final: See `Record`.
        machine: "cpu" and "threads"; this machine's by default.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    here = machine or _this_machine()
    return Record(workload, target, config, tuple(seconds), error, final, here, _versions(), now)


def _this_machine() -> dict:
    return {"cpu": machine.cpu_name(), "threads": machine.threads()}


@functools.cache
def _versions() -> dict:
    return {name: metadata.version(name) for name in ("apache-tvm", "tvmfast")}


def parse(line: str | bytes, check: bool = True) -> Record | str:
    """Parse a line of a file of records.

    Args:
        line: JSON.
        check: Whether to check that the config still exists.

    Returns:
        The record, or a few words on why the line holds none.

    Raises:
        Forbidden: The line could do more than say how to schedule a kernel; see `read`.
    """
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return "torn"
    if not isinstance(given, dict) or given.get("format") not in (1, _FORMAT):
        return "of another format"
    try:
        target = _canonical(json.dumps(given["target"]))
        if target is None:
            return "of CPUs that LLVM does not know here"
        config = given["config"] if given["format"] == _FORMAT else renamed(given["config"])
        record = Record(
            workload=Workload.from_dict(given["workload"]),
            target=target,
            config=config,
            seconds=tuple(map(float, given["seconds"])),
            error=given["error"],
            final=given["final"],
            machine=given["machine"],
            versions=given["versions"],
            time=given["time"],
        )
        sound = _is_sound(record)
        known = sound and (not check or record.workload.is_config(record.config, simd_of_key(record.target)))
    except Forbidden:
        raise
    except Exception:  # a foreign line may hold anything
        return "of another format"
    if known:
        return record
    return "of configs that no longer exist" if sound else "of another format"


def renamed(config: dict) -> dict:
    """Return a config of format 1, whose fields had other names, and no family in the case of "matmul"."""
    config = {"family": "matmul", **config}
    names = _RENAMED.get(config["family"], {})
    return {names.get(name, name): value for name, value in config.items()}


def _is_sound(record: Record) -> bool:
    """Tell whether a record's fields have the right types and it has either seconds or an error."""
    texts = record.final, record.time, record.error or ""
    timed = all(0 < seconds < float("inf") for seconds in record.seconds)
    failed = isinstance(record.error, str)
    return all(isinstance(text, str) for text in texts) and timed and failed == (not record.seconds)


@functools.lru_cache(maxsize=64)
def _canonical(target: str) -> str | None:
    """Return a target as `machine.target_json` gives it; None if LLVM does not know its CPU.

    A target without a triple is taken for one of this machine's architecture, wherever it comes from.
    """
    try:
        checked = machine.checked_target(json.loads(target))
    except UnknownCpu:
        return None
    if checked.kind.name != "llvm":
        raise ValueError(f"records are of CPUs; got one of {checked.kind.name}")
    return machine.target_json(checked)


@functools.lru_cache(maxsize=64)
def simd_of_key(target: str) -> Simd:
    """Return the vector registers of a target, given as `machine.target_json` gives it."""
    return simd_of(tvm.target.Target(json.loads(target)))


@functools.lru_cache(maxsize=64)
def _any_system(target: str) -> dict:
    """Return what matters of a target: its options, and the architecture for the triple that it may have."""
    options = json.loads(target)
    triple = options.pop("mtriple", "")
    told = {name: options[name] for name in options if name != "keys" and not name.startswith("feature.")}
    return told | {"architecture": machine.architecture(triple)}


@contextlib.contextmanager
def locked(file, shared: bool = False):
    """Lock a file of records, so that no other process appends to it in the meantime.

    Args:
        file: An open file.
        shared: Whether others that lock it as shared, too, may read it.
    """
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_UN)


def open_records(path: str | os.PathLike, mode: str, what: str = "read"):
    """Open a file of records, unbuffered.

    Args:
        path: The file.
        mode: As for `open`, with "b".
        what: A verb for the error: what was to be done with the file.

    Raises:
        OSError: The file cannot be opened; names `what` and the path.
    """
    try:
        return open(path, mode, buffering=0)
    except OSError as error:
        raise type(error)(error.errno, f"cannot {what} the records ({error.strerror})", str(path)) from None


def read_from(file, position: int) -> tuple[list[Record], int]:
    """Read the records of an open file.

    Args:
        file: Opened by `open_records`.
        position: Where to start, in bytes.

    Returns:
        The records, and the position after them.

    Raises:
        ValueError: As `read` does, which also says what this warns of.
    """
    with locked(file, shared=True):  # so no line is half written
        file.seek(position)
        text = file.read()
    parsed = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                parsed.append(parse(line))
        except Forbidden as error:
            file.seek(0)
            number += file.read(position).count(b"\n")
            raise ValueError(
                f"{file.name}, line {number}: refused, as a record may only say how to schedule a kernel: "
                f"{error}. Find out who wrote this line; without it, the file can be used"
            ) from None
    left_out = Counter(reason for reason in parsed if isinstance(reason, str))
    if left_out:
        listed = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        lines = "lines" if left_out.total() > 1 else "line"
        warnings.warn(f"{file.name}: left out {left_out.total()} {lines} ({listed})", stacklevel=3)
    return [record for record in parsed if isinstance(record, Record)], position + len(text)


def read(*paths: str | os.PathLike) -> list[Record]:
    """Read the records of files, which may come from anyone: nothing in them runs as code.

    Lines that hold no record are left out, with a warning.

    Args:
        *paths: Files of records.

    Raises:
        OSError: A file cannot be read.
        ValueError: A line, whose number it gives, has a MetaSchedule trace with a step, an annotation or a
            value that `compiler/schedule/trace.py` does not list, or a target that `machine.checked_target`
            forbids.
    """
    records = []
    for path in paths:
        with open_records(path, "rb") as file:
            records += read_from(file, 0)[0]
    return records


def best(records: Iterable[Record]) -> dict[tuple, Record]:
    """Find the record of the fastest config by (workload, target).

    The last re-measurement decides, if there is one: the best of many trials was also lucky.
    """
    fastest: dict = {}
    for record in records:
        if not record.error:
            case = record.workload, record.target
            before = fastest.setdefault(case, record)
            if (record.final, -record.call_seconds) > (before.final, -before.call_seconds):
                fastest[case] = record
    return fastest


def pick_best(sources, out: str | os.PathLike) -> list[Record]:
    """Write the best record of each workload and target to a file.

    Args:
        sources: A file of records, or several.
        out: The file to write.

    Returns:
        The records written.
    """
    sources = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    picked = list(best(read(*sources)).values())
    data.atomic_write(out, "".join(f"{record}\n" for record in picked))
    return picked


class ConfigLookup:
    """A lookup from a workload to the best config that records have for it, or None.

    Records of the target itself come first, then those of a CPU with the same vector registers.

    Args:
        records: The records.
        target: The target of the build.
        source: A name for the records, shown by `str`.

    Attributes:
        counts: How many workloads had an "exact" record, a "near" one, or none and so their "default" config.
    """

    def __init__(self, records: Iterable[Record], target: tvm.target.Target, source: str):
        self.source = source
        self.counts = Counter(exact=0, near=0, default=0)
        self._exact, self._near = {}, {}  # by workload
        self._asked = set()
        target = machine.target_json(target)
        simd = simd_of_key(target)
        for (workload, measured_for), record in best(records).items():
            if record.config.get("instruction", simd.dot) not in (simd.dot, simd.pairs):
                continue  # of integers, by what this target lacks
            if _any_system(measured_for) == _any_system(target):
                self._exact[workload] = record
            elif simd_of_key(measured_for) == simd_of_key(target):
                self._near[workload] = record

    def __call__(self, workload: Workload) -> dict | None:
        """Return the best config for a workload, or None if no record is for it."""
        record = self._exact.get(workload) or self._near.get(workload)
        if record:
            _LOG.debug("%s: %s, from %s for %s", workload, record.config, self.source, record.target)
        else:
            _LOG.debug("%s: no config in %s", workload, self.source)
        if workload not in self._asked and (record or not workload.by_metaschedule):
            self.counts["exact" if workload in self._exact else "near" if record else "default"] += 1
        self._asked.add(workload)
        return record.config if record else None

    def __str__(self) -> str:
        exact, near, default = (self.counts[how] for how in ("exact", "near", "default"))
        if not exact + near:
            return f"{self.source}: none for this network and target"
        parts = []
        if exact:
            parts.append(f"{exact} of this target")
        if near:
            parts.append(f"{near} near (another CPU with the same vector registers)")
        if default:
            parts.append(f"{default} workloads with none")
        return f"{self.source}: {', '.join(parts)}"


FOLDER = Path(__file__).parents[1] / "records"  # those that the package ships


@functools.cache
def shipped() -> list[Record]:
    """Read the records that come with the package, in `FOLDER`: the best for the course's networks.

    Those of CPUs that LLVM does not know here are left out.
    """
    files = sorted(FOLDER.glob("*.jsonl"))
    parsed = [parse(line, check=False) for file in files for line in file.read_bytes().splitlines()]
    return [record for record in parsed if isinstance(record, Record)]


def resolve_records(records, target: tvm.target.Target) -> ConfigLookup | TileLookup | None:
    """Make the lookup of a build.

    Args:
        records: As for `build.build`.
        target: The target of the build.

    Returns:
        The lookup, or None to use no records.

    Raises:
        TypeError: `records` are no records.
        OSError: A file cannot be read.
        ValueError: `records` are given for a GPU, or as `read` raises it.
    """
    if target.kind.name == "cuda":
        if isinstance(records, TileLookup):
            return records
        if records:
            raise ValueError(
                "records: those of tn.tune are of CPUs; for a GPU use a database of MetaSchedule"
            )
        return None
    if records is False or isinstance(records, ConfigLookup):
        return records or None
    if records is None:
        return ConfigLookup(shipped(), target, "shipped records")
    if isinstance(records, str | os.PathLike):
        records = [records]
    if not isinstance(records, list | tuple):
        raise TypeError(f"{_EXPECTED}; got {type(records).__name__}")
    files = [each for each in records if isinstance(each, str | os.PathLike)]
    listed = [each for each in records if isinstance(each, Record)]
    if len(files) + len(listed) < len(records):
        raise TypeError(f"{_EXPECTED}; got a list with others")
    return ConfigLookup([*read(*files), *listed], target, ", ".join(map(str, files)) or "records")
