"""Temporary folders that are cleaned up even after a kill, and atomic replacement of files and folders."""

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no locks, so folders of killed processes stay
    fcntl = None  # type: ignore[assignment]

_libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
_renameat2 = getattr(_libc, "renameat2", None)  # on Linux only
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)


@contextlib.contextmanager
def temporary(
    prefix: str, *former: str, parent: Path | None = None, rescue: Callable = lambda folder: None
) -> Iterator[Path]:
    """Give a new folder whose name begins with `prefix`; it is removed at the end.

    Folders with that prefix, or a former one, whose processes were killed are removed first, each after a
    call of `rescue` with it. A folder is locked while its process lives: the system releases the lock with
    the process, however that ends.
    """
    parent = Path(parent or tempfile.gettempdir())
    for left in (each for name in (prefix, *former) for each in parent.glob(f"{glob.escape(name)}????????")):
        with contextlib.suppress(OSError), _lock(left, wait=False):
            rescue(left)
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # a file system without locks
                stack.enter_context(_lock(folder, wait=True))
            if folder.exists():  # else another process removed it before it was locked
                break
        yield folder


@contextlib.contextmanager
def _lock(folder: Path, wait: bool) -> Iterator[None]:
    """Lock the folder for this process alone. Raises OSError if that is not possible."""
    if fcntl is None:
        raise OSError("no locks here")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def sync(*paths: Path) -> None:
    """Flush files, or the entries of folders, to the disk."""
    for path in paths if os.name == "posix" else ():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def put(new: Path, path: Path) -> None:
    """Rename a file or folder to `path` atomically. What was at `path` is then called `new`, or removed.

    If the system cannot exchange two names there are two steps; between them, what was at `path` is called
    `old`, next to `new`.
    """
    while True:
        try:
            new.replace(path)
            break
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        with contextlib.suppress(FileNotFoundError):  # another process has moved it away meanwhile
            _exchange(new, path)
            break
    sync(path.parent)


def _exchange(new: Path, path: Path) -> None:
    if _renameat2:
        if not _renameat2(_HERE, os.fsencode(new), _HERE, os.fsencode(path), _EXCHANGE):
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(path))
    old = path.rename(new.with_name("old"))
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
