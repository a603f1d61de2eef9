"""Worker processes: TVM's, without torch, which TVM imports where it can, 3 seconds and 600 MB in each; a builder."""

import contextlib
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pickle import UnpicklingError

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import local_runner, rpc_runner
from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker, StatusKind

from ..base import env, errors, folders
from . import trial

_BUILDS = 200  # of a worker process: TVM leaks a little in each
# A worker leaves without waiting for TVM's threads, however its loop ends: nobody is there any more to wait for it. On
# Linux the system kills it when the thread that started it ends, whatever the worker does: 1 is PR_SET_PDEATHSIG. Where
# that thread has ended before, nobody has the other end of the pipe.
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
COMMAND = (sys.executable, "-c", _MAIN)  # a worker, but for the numbers of its two pipes


class Killed(ChildProcessError):
    """It is raised where a worker was ended by a signal from outside, not by what it ran, nor by its time limit."""


class _Worker(PopenWorker):
    def _start(self):
        """As TVM's, which runs `python -m tvm.exec.popen_worker`."""
        if self._proc is not None or sys.platform == "win32":
            return super()._start()
        (read, their_write), (their_read, write) = os.pipe(), os.pipe()
        theirs = (their_read, their_write)
        self._proc = subprocess.Popen([*COMMAND, *map(str, theirs)], pass_fds=theirs,
                                      stdout=self._stdout, stderr=self._stderr)  # fmt: skip
        for end in theirs:
            os.close(end)
        self._reader, self._writer = os.fdopen(read, "rb"), os.fdopen(write, "wb")

    def send(self, *args, **kwargs):
        """As TVM's; a process that has ended while it waited makes room for a new one."""
        if self._proc is not None and not self.is_alive():
            self.kill()
        super().send(*args, **kwargs)

    def recv(self):
        """As TVM's, but a process that ends in the midst of an answer has ended, too."""
        try:
            return super().recv()
        except (EOFError, UnpicklingError, struct.error):
            if self._exit_code() is None:  # it lives: this is what it has raised
                raise
        raise self._child_process_error()

    def _child_process_error(self):
        """As TVM's, which kills the process at once: what has ended it could not be told then."""
        code = self._exit_code()
        self.kill()
        if code is not None and -code in trial.FROM_OUTSIDE:
            return Killed(trial.KILLED)
        return ChildProcessError("Subprocess terminated")

    def _exit_code(self) -> int | None:
        """The exit code of the process, whose pipe may be closed already; None if it lives for 5 seconds more."""
        process = self._proc  # None where another thread has ended it
        self.join(5)
        return process and process.poll()


class Pool(PopenPoolExecutor):
    """TVM's pool, whose workers import no torch. What a worker did when a signal from outside ended it is done again.

    Such signals are those of a system that is out of memory. A pool that `ends` does nothing again.
    """

    ends = False

    def shutdown(self, wait=True):
        self.ends = True
        super().shutdown(wait)

    def _worker_run(self, fn, args, kwargs):
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
def of_runners():
    """Within it, MetaSchedule's runners are made with a `Pool`."""
    for module in (local_runner, rpc_runner):
        module.PopenPoolExecutor = Pool
    try:
        yield
    finally:
        for module in (local_runner, rpc_runner):
            module.PopenPoolExecutor = PopenPoolExecutor


@derived_object
class Builder(ms.builder.PyBuilder):
    """MetaSchedule's LocalBuilder with workers that live on: it starts new ones for every batch.

    `make` is a builder's f_build; `timeout` is in seconds.
    """

    def __init__(self, make: Callable, timeout: float):
        super().__init__()
        self.make, self.timeout = make, timeout
        self._folders = contextlib.ExitStack()
        self.folder = str(self._folders.enter_context(folders.temporary("tvmnotes-trials-")))
        limits = {"timeout": timeout, "maximum_process_uses": _BUILDS}
        self.pool = Pool(env.usable_cores(), initializer=trial.begin, stderr=subprocess.DEVNULL, **limits)

    def build(self, build_inputs):
        make, folder = self.make, self.folder

        def work(given):
            return trial.export(make(given.mod, given.target, given.params), folder)

        results = []
        for made in self.pool.map_with_error_catching(work, build_inputs):
            failed = {
                StatusKind.COMPLETE: None,
                StatusKind.TIMEOUT: f"its build took longer than {self.timeout:g} s",
            }
            error = failed.get(made.status, f"its build failed: {sentence(made.value)}")
            results.append(ms.builder.BuilderResult(None if error else made.value, error))
        return results

    def close(self) -> None:
        """End the workers, and remove what they have left behind."""
        self.pool.shutdown(wait=False)
        self._folders.close()


def sentence(error: Exception | str) -> str:
    """What a worker raised, less its traceback."""
    if isinstance(error, ChildProcessError) and not isinstance(error, Killed):
        return "its process ended"
    return errors.lines(error)[-1].removeprefix("ValueError: ").removeprefix("RuntimeError: ")
