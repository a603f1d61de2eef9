"""A CPU quota for this process, as a container has it: a cgroup of Linux, version 1 or 2.

`bench --quota` times its calls in one.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

LEAST = 0.01  # cores: the kernel takes no quota below 1 ms of time
_PERIOD = 100_000  # microseconds, as containers have it
# Removes a group once this process has left it, or has ended in whichever way: then `read` ends too.
_REMOVE = 'read _; n=0; until rmdir "$0" 2>/dev/null || [ $((n += 1)) -gt 100 ]; do sleep 0.1; done'


@contextlib.contextmanager
def limited(cores: float, root: str | os.PathLike = "/") -> Iterator[Path]:
    """Give this process the time of so many cores, in each 0.1 s; yield the folder of its cgroup.

    When its threads have used that up, they stand still until the next 0.1 s. Processes that it started
    before are not limited. The group is removed afterwards, even after a kill. `root` has /proc and /sys.

    Raises:
        ValueError: This process may make no cgroup with a CPU quota.
    """
    reason = "there is no cgroup with a CPU quota"
    with contextlib.ExitStack() as stack:
        for own, parent, settings in _places(Path(root), round(cores * _PERIOD)):
            try:
                group = stack.enter_context(_member(own, parent, settings))
                break
            except OSError as error:
                reason = f"{parent}: {error.strerror}"
        else:
            raise ValueError(
                f"no CPU quota can be set here ({reason}): run as root on Linux, or without a quota in a "
                f"container that has one, such as docker run --cpus {cores:g}"
            )
        yield group


@contextlib.contextmanager
def _member(own: Path, parent: Path, settings: dict[str, str]) -> Iterator[Path]:
    """Make a group with settings below `parent`, and move this process into it, afterwards back to `own`."""
    group = Path(tempfile.mkdtemp(prefix="tvmfast-", dir=parent))
    try:
        remover = subprocess.Popen(
            ["sh", "-c", _REMOVE, str(group)], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:
        group.rmdir()
        raise
    try:
        for name, value in settings.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield group
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        remover.communicate(b"\n")  # a process that was forked in the group may hold the pipe open


def _places(root: Path, quota: int) -> Iterator[tuple[Path, Path, dict[str, str]]]:
    """Yield this process's group, a group that may get one below it, and the files that limit that one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # another system
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        own = base / path.strip("/")
        if not own.is_dir():  # the container sees its own part only
            own = base
        if controllers:
            yield own, own, {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(quota)}
            continue
        # Version 2: processes are in leaves only, and the group above has to hand on its controller.
        for parent in (own, *own.parents):
            shared = parent / "cgroup.subtree_control"
            if shared.is_file() and "cpu" in shared.read_text().split():
                yield own, parent, {"cpu.max": f"{quota} {_PERIOD}"}
            if parent == base:
                break
