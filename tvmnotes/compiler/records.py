"""A tuning record says which config of which workload took how long: a line of JSON, in files that only grow.

`tn.tune` appends to such a file, `tn.build` takes the best of one (or of those that the package ships), and
`pick_best` makes a small file of the best of several. Nothing in such a file runs as code, whoever wrote it: `read`
says which lines are refused.
"""

import contextlib
import functools
import json
import os
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata

import tvm

from ..base import data, env
from ..base.errors import Forbidden
from .schedules import Workload
from .schedules.family import key as key
from .schedules.vector import Simd, simd_of

try:
    import fcntl
except ImportError:  # Windows, where only one process at a time should append to a file
    fcntl = None

_FORMAT = 1  # of a line, and of what the configs in it mean
_EXPECTED = "records: expected None, False, a file, or a list of files or of tvmnotes.records.Record"


@dataclass(frozen=True)
class Record:
    """A record is a measured config: `seconds` for each repeat, or none where it failed; then `error` says how.

    `final` is empty for a trial. At its end, a tuning measures the best few configs of each workload in turns; the
    records of those carry that moment.
    """

    workload: Workload
    target: str  # as `env.target_json` gives it
    config: dict
    seconds: tuple[float, ...]
    error: str | None = None
    final: str = ""
    machine: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    time: str = ""

    @property
    def call_seconds(self) -> float:
        """Seconds of a call, infinite where it failed.

        The least of a trial's repeats, as what other processes do to a machine makes times longer, never shorter; of
        the turns of a re-measurement, each of which is already the least of several runs, the median.
        """
        if not self.seconds:
            return float("inf")
        return statistics.median(self.seconds) if self.final else min(self.seconds)

    def __str__(self) -> str:
        return json.dumps({
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
        })  # fmt: skip


def new_record(workload, target: str, config: dict, seconds=(), error=None, final="", machine=None) -> Record:
    """Make a record of now; `machine` is this one unless given."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    here = machine or {"cpu": env.cpu_name(), "threads": env.threads()}
    return Record(workload, target, config, tuple(seconds), error, final, here, _versions(), now)


@functools.cache
def _versions() -> dict:
    return {name: metadata.version(name) for name in ("apache-tvm", "tvmnotes")}


def parse(line: str | bytes, check: bool = True) -> Record | str:
    """Return the record in a line, or in a few words why it has none. Without `check` its config is taken to exist.

    Raises Forbidden for a line that could do more than say how to schedule a kernel; see `read`.
    """
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return "torn"
    if not isinstance(given, dict) or given.get("format") != _FORMAT:
        return "of another format"
    try:
        record = Record(
            Workload.from_dict(given["workload"]), _canonical(json.dumps(given["target"])), given["config"],
            tuple(map(float, given["seconds"])), given["error"], given["final"], given["machine"], given["versions"],
            given["time"],
        )  # fmt: skip
        sound = _is_sound(record)
        known = sound and (not check or record.workload.is_config(record.config, simd_of_key(record.target)))
    except Forbidden:
        raise
    except Exception:  # a foreign line may hold anything
        return "of another format"
    return record if known else "of configs that no longer exist" if sound else "of another format"


def _is_sound(record: Record) -> bool:
    """Whether a record's parts are of their kinds: either seconds or an error, for one."""
    texts = record.final, record.time, record.error or ""
    timed = all(0 < seconds < float("inf") for seconds in record.seconds)
    failed = isinstance(record.error, str)
    return all(isinstance(text, str) for text in texts) and timed and failed == (not record.seconds)


@functools.lru_cache(maxsize=64)
def _canonical(target: str) -> str:
    made = env.checked_target(json.loads(target))
    if made.kind.name != "llvm":
        raise ValueError(f"records are of CPUs; got one of {made.kind.name}")
    return env.target_json(made)


@functools.lru_cache(maxsize=64)
def simd_of_key(target: str) -> Simd:
    return simd_of(tvm.target.Target(json.loads(target)))


@contextlib.contextmanager
def locked(file, shared: bool = False):
    """Within it, no other process appends to the file; nor reads it, unless both read."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_UN)


def open_records(path: str | os.PathLike, mode: str, what: str = "read"):
    """Open a file of records, not buffered. Raises an OSError that says what was to be done with it."""
    try:
        return open(path, mode, buffering=0)
    except OSError as error:
        raise type(error)(error.errno, f"cannot {what} the records ({error.strerror})", str(path)) from None


def read_from(file, position: int) -> tuple[list[Record], int]:
    """Read the records of an open file from a position on, and where they end. Raises and warns as `read` does."""
    with locked(file, shared=True):  # nobody is in the middle of a line
        file.seek(position)
        text = file.read()
    parsed = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            parsed += [parse(line)] if line.strip() else []
        except Forbidden as error:
            file.seek(0)
            number += file.read(position).count(b"\n")
            raise ValueError(
                f"{file.name}, line {number}: refused, as a record may only say how to schedule a kernel: {error}. "
                "Find out who wrote this line; without it, the file can be used"
            ) from None
    if left_out := Counter(reason for reason in parsed if isinstance(reason, str)):
        listed = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        lines = "lines" if left_out.total() > 1 else "line"
        warnings.warn(f"{file.name}: left out {left_out.total()} {lines} ({listed})", stacklevel=3)
    return [record for record in parsed if isinstance(record, Record)], position + len(text)


def read(*paths: str | os.PathLike) -> list[Record]:
    """Read the records of files, which may come from anyone: nothing in them runs as code.

    Warns of lines that hold no record, and leaves them out. Raises OSError for a file that cannot be read, and
    ValueError, with the line's number, for a line whose trace of MetaSchedule has a step, an annotation or a value that
    `compiler/schedules/trace.py` does not list, or whose target is one that `env.checked_target` forbids.
    """
    records = []
    for path in paths:
        with open_records(path, "rb") as file:
            records += read_from(file, 0)[0]
    return records


def best(records: Iterable[Record]) -> dict[tuple, Record]:
    """Find the fastest config's record by workload and target.

    Where there were re-measurements, the last decide: of many trials, the one that seems best was lucky too.
    """
    fastest: dict = {}
    for record in records:
        if not record.error:
            where = record.workload, record.target
            before = fastest.setdefault(where, record)
            if (record.final, -record.call_seconds) > (before.final, -before.call_seconds):
                fastest[where] = record
    return fastest


def pick_best(sources, out: str | os.PathLike) -> list[Record]:
    """Write the best record of each workload and target in `sources`, a file or several, to the file `out`."""
    sources = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    picked = list(best(read(*sources)).values())
    data.atomic_write(out, "".join(f"{record}\n" for record in picked))
    return picked


class ConfigLookup:
    """A look-up gives the config that records have for a workload of a build for a target, or None.

    Records of the target itself come first, then those of a CPU with the same vector registers. `counts` tells how many
    workloads had an "exact" record, a "near" one, or none and so their "default" config.
    """

    def __init__(self, records: Iterable[Record], target: tvm.target.Target, source: str):
        """`source` names the records in `str` of this."""
        self.source, self.counts = source, Counter(exact=0, near=0, default=0)
        self._exact, self._near, self._asked = {}, {}, set()
        target = env.target_json(target)
        for (workload, measured_for), record in best(records).items():
            if measured_for == target:
                self._exact[workload] = record
            elif simd_of_key(measured_for) == simd_of_key(target):
                self._near[workload] = record

    def __call__(self, workload: Workload) -> dict | None:
        record = self._exact.get(workload) or self._near.get(workload)
        if workload not in self._asked and (record or not workload.by_metaschedule):
            self.counts["exact" if workload in self._exact else "near" if record else "default"] += 1
        self._asked.add(workload)
        return record.config if record else None

    def __str__(self) -> str:
        exact, near, default = (self.counts[how] for how in ("exact", "near", "default"))
        if not exact + near:
            return f"{self.source}: none for this network and target"
        parts = [f"{exact} of this target"] * bool(exact)
        parts += [f"{near} near (another CPU with the same vector registers)"] * bool(near)
        parts += [f"{default} workloads with none"] * bool(default)
        return f"{self.source}: {', '.join(parts)}"


@functools.cache
def shipped() -> list[Record]:
    """Read the records that come with the package, in data/records/: the best for the networks of the notes."""
    files = data.bundled("records", "*.jsonl")
    return [parse(line, check=False) for file in files for line in file.read_bytes().splitlines()]


def resolve_records(records, target: tvm.target.Target) -> ConfigLookup | None:
    """Make the look-up of a build, whose `records` are those of `build.build`; None where it is to use none.

    Raises TypeError and OSError for what are no records, and ValueError for those of a GPU.
    """
    if target.kind.name == "cuda":
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
