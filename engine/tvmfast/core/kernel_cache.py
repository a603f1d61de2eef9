"""The cache folder "kernels", which keeps machine code: who may write to it, and its size limit.

Code from that folder runs without asking, so nobody may write there who could not run code here anyway.
`codegen` keeps kernels in it, and `python -m tvmfast doctor` reports on it.
"""

import functools
import logging
import os
import stat
from pathlib import Path

from . import data, renamed

_PACKAGE = Path(__file__).resolve().parents[1]
_LIMIT = 256  # MB
_log = logging.getLogger(__name__)


def limit() -> int:
    """Return the size limit of the folder in bytes: TVMFAST_KERNELS_MB megabytes, by default 256.

    Raises ValueError if TVMFAST_KERNELS_MB is not a number of megabytes.
    """
    given = renamed.variable("KERNELS_MB", str(_LIMIT))
    try:
        size = int(float(given) * 1e6)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise ValueError(
            f"{renamed.spelled('KERNELS_MB')}: expected megabytes, such as 256, or 0 to keep nothing; "
            f"got {given!r}"
        )
    return size


def folder() -> Path:
    """Create and return the folder, with links resolved. Raises OSError if it is not writable."""
    kernels = data.writable_cache() / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    return kernels.resolve()


def status() -> str:
    """Describe in a line how full the folder is, or why it is not used."""
    try:
        kernels, most = folder(), limit()
    except (OSError, ValueError) as error:
        return f"not used: {error}"
    if reason := distrust(kernels):
        return f"not used: {reason}"
    count, size = used(kernels)
    return f"{count} kernels, {size / 1e6:.0f} of {most / 1e6:.0f} MB ({renamed.spelled('KERNELS_MB')})"


# ---------------------------------------------------------------- who may write


def distrust(folder: Path) -> str | None:
    """Say who else could put code into a folder, whose path has no links; None if nobody could.

    As with ssh's keys, the folder and its parents must belong to this user or to root and must not be
    writable by others. A parent may be writable by all if only a file's owner may rename it (the sticky bit,
    as on /tmp). Two exceptions: a group may write if this user is its only member, and whoever can change
    tvmfast itself may write too. The latter are its owner, who need not be this user (a container's root,
    with another user's checkout), its group if that may write, and anyone who may write to a common parent of
    both.
    """
    if not hasattr(os, "geteuid"):  # Windows, where others cannot write to a user's folders
        return None
    for level in (folder, *folder.parents):
        if level in (_PACKAGE, *_PACKAGE.parents):
            return None
        facts = level.stat()
        if facts.st_uid not in _owners():
            return f"{level} belongs to another user (number {facts.st_uid})"
        sticky = level != folder and facts.st_mode & stat.S_ISVTX
        if _others_write(facts) and not sticky:
            return f"{level} can be written by other users"
    return None


def is_own(file: Path) -> bool:
    """Tell whether, by its owner and mode, nobody else can have written a file."""
    facts = file.stat()
    return not hasattr(os, "geteuid") or (facts.st_uid in _owners() and not _others_write(facts))


def _owners() -> set[int]:
    return {0, os.geteuid(), _PACKAGE.stat().st_uid}


def _others_write(facts: os.stat_result) -> bool:
    package = _PACKAGE.stat()
    by_packages_group = package.st_mode & stat.S_IWGRP and facts.st_gid == package.st_gid
    by_group = facts.st_mode & stat.S_IWGRP and not _is_private(facts.st_gid, facts.st_uid)
    return bool((by_group and not by_packages_group) or facts.st_mode & stat.S_IWOTH)


@functools.cache
def _is_private(group: int, user: int) -> bool:
    """Tell whether a group is root's or a user's own: many systems give each user a group of one."""
    import grp  # for speed: not on Windows
    import pwd  # for speed: not on Windows

    if group == 0:
        return True
    try:
        named, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    return owner.pw_gid == group and named.gr_name == owner.pw_name and set(named.gr_mem) <= {owner.pw_name}


# ---------------------------------------------------------------- how much stays


def used(folder: Path) -> tuple[int, int]:
    """Return the number of files in a folder, and their total size in bytes."""
    sizes = []
    for name in os.listdir(folder):
        try:
            sizes.append(_size(f"{folder}/{name}"))
        except FileNotFoundError:  # another process has removed it
            continue
    return len(sizes), sum(sizes)


@functools.cache
def _size(file: str) -> int:
    """Return a file's bytes; cached, as files never change: their names contain their checksums."""
    return os.stat(file).st_size


def make_room(folder: Path) -> None:
    """Remove the least recently used files until a folder is within `limit`.

    Other processes may do so at the same time.
    """
    most = limit()
    if used(folder)[1] <= most:
        return
    found = []
    for entry in os.scandir(folder):
        try:
            facts = entry.stat()
        except FileNotFoundError:  # another process was faster
            continue
        found.append((facts.st_mtime_ns, facts.st_size, entry.path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > most:
            _log.debug("%s removed: the cache is full", path)
            Path(path).unlink(missing_ok=True)
