"""TVM's worker processes without torch, whose import takes 3 seconds and 600 MB in each, and a builder."""

import contextlib
import functools
import os
import struct
import subprocess
import sys
import threading
import time as clock
from collections.abc import Callable, Collection, Iterable, Iterator
from pickle import UnpicklingError
from typing import Any

from tvm.s_tir.meta_schedule.runner import local_runner, rpc_runner
from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker, StatusKind

from ..core import errors, folders, machine
from . import trial

_BUILDS = 200  # per worker process: TVM leaks a little memory in each
# A worker exits without waiting for TVM's threads, however its loop ends: nobody waits for it any more. On
# Linux the system kills it when the thread that started it ends, whatever the worker does: 1 is
# PR_SET_PDEATHSIG. If that thread has ended before, the other end of the pipe is closed.
_MAIN = """
import ctypes, os, select, signal, sys, traceback
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
pipe = select.poll()
pipe.register(int(sys.argv[1]), 0)
code = 0
try:
    if not pipe.poll(0):
        sys.modules["torch"] = None
        from tvm.exec import popen_worker
        popen_worker.main()
except BrokenPipeError:
    pass
except BaseException:
    traceback.print_exc()
    code = 1
os._exit(code)
"""
COMMAND = (sys.executable, "-c", _MAIN)  # of a worker; the numbers of its two pipes follow


class Killed(ChildProcessError):
    """A worker was ended by a signal from outside, not by what it ran nor by its time limit."""


class _Worker(PopenWorker):
    _proc: subprocess.Popen | None

    def _start(self) -> None:
        """Start the process as TVM does, which runs `python -m tvm.exec.popen_worker`."""
        if self._proc is not None or sys.platform == "win32":
            return super()._start()
        (read, their_write), (their_read, write) = os.pipe(), os.pipe()
        theirs = (their_read, their_write)
        command = [*COMMAND, *map(str, theirs)]
        self._proc = subprocess.Popen(command, pass_fds=theirs, stdout=self._stdout, stderr=self._stderr)
        for end in theirs:
            os.close(end)
        self._reader, self._writer = os.fdopen(read, "rb"), os.fdopen(write, "wb")

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Send as TVM does; an idle process that has ended is replaced."""
        if self._proc is not None and not self.is_alive():
            self.kill()
        super().send(*args, **kwargs)

    def recv(self) -> Any:
        """Receive as TVM does; a process that ends in the middle of an answer counts as ended, too."""
        try:
            return super().recv()
        except (EOFError, UnpicklingError, struct.error):
            if self._exit_code() is None:  # it lives: this is what it raised
                raise
        raise self._child_process_error()

    def _child_process_error(self) -> ChildProcessError:
        """Return the error as TVM does, which kills the process at once and so cannot tell what ended it."""
        code = self._exit_code()
        self.kill()
        if code is not None and -code in trial.FROM_OUTSIDE:
            return Killed(trial.KILLED)
        return ChildProcessError("Subprocess terminated")

    def _exit_code(self) -> int | None:
        """Return the exit code of the process, whose pipe may be closed; None if it lives for 5 s more."""
        process = self._proc  # None if another thread has ended it
        self.join(5)
        return None if process is None else process.poll()


class Pool(PopenPoolExecutor):
    """TVM's pool with workers without torch; it repeats what a signal from outside interrupted, once.

    Such signals come from a system that is out of memory. A pool with `ends` set repeats nothing.
    """

    ends = False

    def __init__(self, max_workers: int, *args: Any, **kwargs: Any):
        super().__init__(max_workers, *args, **kwargs)
        self.size = max_workers

    def shutdown(self, wait: bool = True) -> None:
        """Shut down as TVM does, and repeat nothing from now on."""
        self.ends = True
        super().shutdown(wait)

    def end(self, running: Collection = ()) -> None:
        """Shut down without waiting for the futures that are `running`: end their processes."""
        self.ends = True
        while not all(future.done() for future in running):
            for worker in list(self._worker_map.values()):
                if (process := worker._proc) is not None:
                    process.kill()
            clock.sleep(0.02)
        self.shutdown(wait=False)

    def _worker_run(self, fn: Callable, args: list, kwargs: dict) -> Any:
        with self._lock:
            if threading.get_ident() not in self._worker_map:
                self._worker_map[threading.get_ident()] = _Worker(
                    self._initializer, self._initargs, self._maximum_process_uses, self._stdout, self._stderr
                )
        try:
            return super()._worker_run(fn, args, kwargs)
        except Killed:
            if self.ends:
                raise
        return super()._worker_run(fn, args, kwargs)


@contextlib.contextmanager
def of_runners() -> Iterator[None]:
    """Make MetaSchedule's runners with a `Pool` inside this context."""
    for module in (local_runner, rpc_runner):
        module.PopenPoolExecutor = Pool
    try:
        yield
    finally:
        for module in (local_runner, rpc_runner):
            module.PopenPoolExecutor = PopenPoolExecutor


class Builder:
    """Worker processes, one per core, that build libraries; `timeout` is in seconds."""

    def __init__(self, timeout: float):
        self.timeout = timeout
        self._folders = contextlib.ExitStack()
        self.folder = str(self._folders.enter_context(folders.temporary("tvmfast-trials-")))
        limits = {"timeout": timeout, "maximum_process_uses": _BUILDS}
        self._pool = Pool(
            machine.usable_cores(), initializer=trial.begin, stderr=subprocess.DEVNULL, **limits
        )

    def build(self, make: Callable, batch: Iterable) -> list[tuple[str | None, str | None]]:
        """Build the libraries `make(given)` of a batch; return the path of each, or None and the error."""
        work = functools.partial(trial.export, make, self.folder)
        return [self._outcome(*built) for built in self._pool.map_with_error_catching(work, batch)]

    def _outcome(self, status: StatusKind, value: Any) -> tuple[str | None, str | None]:
        if status == StatusKind.COMPLETE:
            return value, None
        if status == StatusKind.TIMEOUT:
            return None, f"its build took longer than {self.timeout:g} s"
        return None, f"its build failed: {sentence(value)}"

    def close(self) -> None:
        """End the workers, and remove the files that they left."""
        self._pool.shutdown(wait=False)
        self._folders.close()


def sentence(error: Exception) -> str:
    """Return the message of a worker's exception, without its traceback."""
    if isinstance(error, ChildProcessError) and not isinstance(error, Killed):
        return "its process ended"
    return errors.lines(error)[-1].removeprefix("ValueError: ").removeprefix("RuntimeError: ")
