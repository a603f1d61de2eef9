"""Tuning records: which config of which workload took how long, a line of JSON each, in files that only grow.

`tn.tune` appends to such a file, `tn.build` takes the best of one (or of those that the package ships), and
`pick_best` makes a small file of the best of several.
"""

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
from pathlib import Path

import tvm

from ..base import data, env
from .schedules import Kernel, configs
from .schedules.annotations import described
from .schedules.convolution import Convolution
from .schedules.matmul import Dense
from .schedules.vector import Vectors, vectors

try:
    import fcntl
except ImportError:  # Windows, where only one process at a time should append to a file
    fcntl = None

_FORMAT = 1  # of a line, and of what the configs in it mean
_WORKLOADS = {kind.op: kind for kind in (Convolution, Dense, Kernel)}


@dataclass(frozen=True)
class Record:
    """A measured config. `seconds` holds a number for each repeat, or none where it failed; then `error` says how.

    `final` is empty for a trial. At its end, a tuning measures the best few configs of each workload in turns; the
    records of those carry that moment.
    """

    workload: Convolution | Dense | Kernel
    target: str  # as str(tvm.target.Target) gives it
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
        the turns of finals, each of which is already the least of several runs, the median.
        """
        if not self.seconds:
            return float("inf")
        return statistics.median(self.seconds) if self.final else min(self.seconds)

    def __str__(self) -> str:
        return json.dumps({
            "format": _FORMAT,
            "workload": described(self.workload),
            "target": json.loads(self.target),
            "config": self.config,
            "seconds": [float(f"{s:.4g}") for s in self.seconds],
            "error": self.error,
            "final": self.final,
            "machine": self.machine,
            "versions": self.versions,
            "time": self.time,
        })  # fmt: skip


def measured(workload, target: str, config: dict, seconds=(), error=None, final="", machine=None) -> Record:
    """A record of now; `machine` is this one unless given."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    here = machine or {"cpu": env.cpu_name(), "threads": env.threads()}
    return Record(workload, target, config, tuple(seconds), error, final, here, _versions(), now)


@functools.cache
def _versions() -> dict:
    return {name: metadata.version(name) for name in ("apache-tvm", "tvmnotes")}


def _workload(given: dict):
    kind = _WORKLOADS[given.pop("op")]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


# ---------------------------------------------------------------- reading


def parse(line: str | bytes, check: bool = True) -> Record | str:
    """The record in a line, or, in a few words, why there is none. Without `check` its config is taken to exist."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return "torn"
    if not isinstance(given, dict) or given.get("format") != _FORMAT:
        return "of another format"
    try:
        record = Record(
            _workload(given["workload"]), _canonical(json.dumps(given["target"])), given["config"],
            tuple(map(float, given["seconds"])), given["error"], given["final"], given["machine"], given["versions"],
            given["time"],
        )  # fmt: skip
        sound = _is_sound(record)
        known = sound and (not check or is_config(record.workload, record.config, record.target))
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
    return str(tvm.target.Target(json.loads(target)))


@functools.lru_cache(maxsize=64)
def vectors_of(target: str) -> Vectors:
    return vectors(tvm.target.Target(json.loads(target)))


def is_config(workload, config: dict, target: str) -> bool:
    """Whether the schedules of today know the config."""
    if isinstance(workload, Kernel):
        return {"default": "lanes", "metaschedule": "trace"}.get(config.get("family")) in config
    return key(config) in _config_keys(workload, vectors_of(target))


@functools.lru_cache(maxsize=1024)
def _config_keys(workload, vectors) -> frozenset:
    return frozenset(map(key, configs(workload, vectors)))


def key(config: dict) -> str:
    """A config as something to look up."""
    return json.dumps(config, sort_keys=True)


class Log:
    """A file of records that this process reads and appends to, perhaps together with others.

    Raises OSError, at once, where the file cannot be read, or written.
    """

    def __init__(self, path: str | os.PathLike, write: bool = False):
        self.path, self._read = Path(path), 0
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b" if write else "rb", buffering=0)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            what = "write" if write else "read"
            raise type(error)(error.errno, f"cannot {what} the records ({error.strerror})", str(path)) from None

    def fresh(self) -> list[Record]:
        """The records that came since the last call, whoever wrote them. Warns of lines that hold none."""
        with _locked(self._file, shared=True):  # nobody is in the middle of a line
            self._file.seek(self._read)
            text = self._file.read()
        self._read += len(text)
        parsed = [parse(line) for line in text.splitlines() if line.strip()]
        self._note(Counter(reason for reason in parsed if isinstance(reason, str)))
        return [record for record in parsed if isinstance(record, Record)]

    def _note(self, left_out: Counter) -> None:
        if left_out:
            listed = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
            lines = "lines" if left_out.total() > 1 else "line"
            warnings.warn(f"{self.path}: left out {left_out.total()} {lines} ({listed})", stacklevel=4)

    def append(self, records: Iterable[Record]) -> None:
        """Write the records, all or none, and have them on the disk before this returns.

        Raises OSError where they cannot be written, on a full disk for example; what was there before stays as it was.
        """
        text = "".join(f"{record}\n" for record in records).encode()
        with _locked(self._file):
            size = self._file.seek(0, os.SEEK_END)
            if size and self._last_byte(size) != b"\n":  # a line that a kill has torn
                text = b"\n" + text
            try:
                written = 0
                while written < len(text):
                    written += self._file.write(text[written:])
                os.fsync(self._file.fileno())
            except OSError as error:
                os.ftruncate(self._file.fileno(), size)
                message = f"cannot write the records ({error.strerror}); those of before are all there"
                raise type(error)(error.errno, message, str(self.path)) from None

    def _last_byte(self, size: int) -> bytes:
        self._file.seek(size - 1)
        return self._file.read(1)

    def close(self) -> None:
        self._file.close()


class _locked:
    """Within it, no other process appends to the file; nor reads it, unless both read."""

    def __init__(self, file, shared: bool = False):
        self._file, self._shared = file, shared

    def __enter__(self):
        if fcntl:
            fcntl.flock(self._file, fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX)

    def __exit__(self, *error):
        if fcntl:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def read(*paths: str | os.PathLike) -> list[Record]:
    """The records of files. Raises OSError for one that cannot be read; warns of lines that hold no record."""
    found = []
    for path in paths:
        log = Log(path)
        found += log.fresh()
        log.close()
    return found


# ---------------------------------------------------------------- the best


def best(records: Iterable[Record]) -> dict[tuple, Record]:
    """By workload and target, the fastest config's record.

    Where there were finals, the last decide: of many trials, the one that seems best was lucky too.
    """
    found: dict = {}
    for record in records:
        if not record.error:
            where = record.workload, record.target
            known = found.setdefault(where, record)
            if (record.final, -record.call_seconds) > (known.final, -known.call_seconds):
                found[where] = record
    return found


def pick_best(sources, out: str | os.PathLike) -> list[Record]:
    """Write the best record of each workload and target in `sources`, a file or several, to the file `out`."""
    sources = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    picked = list(best(read(*sources)).values())
    data.atomic_write(out, "".join(f"{record}\n" for record in picked))
    return picked


class Chosen:
    """What records say of the workloads of a build for a target: the config of each, or None.

    Records of the target itself come first, then those of a CPU with the same vector registers. `counts` tells how many
    workloads had an "exact" record, a "near" one, or none and so their "default" config.
    """

    def __init__(self, records: Iterable[Record], target: tvm.target.Target, source: str):
        self.source, self.counts = source, Counter(exact=0, near=0, default=0)
        self._exact, self._near = {}, {}
        target = str(target)
        for (workload, measured_for), record in best(records).items():
            if measured_for == target:
                self._exact[workload] = record
            elif vectors_of(measured_for) == vectors_of(target):
                self._near[workload] = record
        self._given = {}

    def __call__(self, workload) -> dict | None:
        if workload not in self._given:
            found = self._exact.get(workload) or self._near.get(workload)
            self._given[workload] = found.config if found else None
            how = "exact" if workload in self._exact else "near" if workload in self._near else "default"
            if not isinstance(workload, Kernel) or found:
                self.counts[how] += 1
        return self._given[workload]

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
    """The records that come with the package, in data/records/: the best for the networks of the notes."""
    files = data.bundled("records", "*.jsonl")
    return [parse(line, check=False) for file in files for line in file.read_bytes().splitlines()]
