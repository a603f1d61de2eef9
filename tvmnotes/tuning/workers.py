"""Worker processes: TVM's, without torch, which TVM imports where it can, 3 seconds and 600 MB in each; a builder."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import local_runner, rpc_runner
from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker, StatusKind

from ..base import env, errors
from . import trial

_BUILDS = 200  # of a worker process: TVM leaks a little in each
# A worker leaves without waiting for TVM's threads, however its loop ends: nobody is there any more to wait for it.
_MAIN = """
import os, sys
sys.modules["torch"] = None
from tvm.exec import popen_worker
try:
    popen_worker.main()
finally:
    os._exit(0)
"""
COMMAND = (sys.executable, "-c", _MAIN)  # a worker, but for the numbers of its two pipes


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


class Pool(PopenPoolExecutor):
    """TVM's pool, whose workers import no torch."""

    def _worker_run(self, fn, args, kwargs):
        with self._lock:
            if threading.get_ident() not in self._worker_map:
                self._worker_map[threading.get_ident()] = _Worker(
                    self._initializer, self._initargs, self._maximum_process_uses, self._stdout, self._stderr
                )
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
        self.folder = tempfile.TemporaryDirectory(prefix="tvmnotes-trials-", ignore_cleanup_errors=True)
        limits = {"timeout": timeout, "maximum_process_uses": _BUILDS}
        self.pool = Pool(env.usable_cores(), initializer=trial.begin, stderr=subprocess.DEVNULL, **limits)

    def build(self, build_inputs):
        make, folder = self.make, self.folder.name

        def work(given):
            return trial.export(make(given.mod, given.target, given.params), folder)

        results = []
        for made in self.pool.map_with_error_catching(work, build_inputs):
            failed = {StatusKind.COMPLETE: None, StatusKind.TIMEOUT: f"its build took longer than {self.timeout:g} s"}
            error = failed.get(made.status, f"its build failed: {sentence(made.value)}")
            results.append(ms.builder.BuilderResult(None if error else made.value, error))
        return results

    def close(self) -> None:
        """End the workers, and remove what they have left behind."""
        self.pool.shutdown(wait=False)
        self.folder.cleanup()


def sentence(error: Exception | str) -> str:
    """What a worker raised, less its traceback."""
    if isinstance(error, ChildProcessError):
        return "its process ended"
    return errors.lines(error)[-1].removeprefix("ValueError: ").removeprefix("RuntimeError: ")
