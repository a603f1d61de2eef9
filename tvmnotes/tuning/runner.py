"""Where candidates are measured: on this machine (`Local`), or on those behind an RPC tracker (`rpc`).

Both build here, in worker processes, and run in others: MetaSchedule's LocalRunner and RPCRunner, with the functions of
`trial`. A candidate that crashes, hangs or computes nonsense costs its own trial.
"""

import contextlib
import functools
import shutil
import socket
import subprocess
import threading
import time as clock
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.support.popen_pool import PopenPoolExecutor, StatusKind

from .. import env
from . import trial
from .trial import Candidate, Trial

_BUILDS = 200  # of a worker process: TVM leaks a little in each
_ATTEMPTS = 3  # for a trial that was lost with its server
_TRACKER_SECONDS = 5
_SERVERLESS_SECONDS = 20


@derived_object
class _Builder(ms.builder.PyBuilder):
    """MetaSchedule's LocalBuilder with workers that live on: it starts new ones, two seconds each, for every batch."""

    def __init__(self, timeout: float):
        super().__init__()
        self.timeout = timeout
        self.pool = PopenPoolExecutor(
            env.usable_cores(), timeout, trial.begin, maximum_process_uses=_BUILDS, stderr=subprocess.DEVNULL
        )

    def build(self, build_inputs):
        def work(given):
            return trial.export(trial.build(given.mod, given.target, given.params))

        results = []
        for made in self.pool.map_with_error_catching(work, build_inputs):
            failed = {StatusKind.COMPLETE: None, StatusKind.TIMEOUT: f"its build took longer than {self.timeout:g} s"}
            error = failed.get(made.status, f"its build failed: {_sentence(made.value)}")
            results.append(ms.builder.BuilderResult(None if error else made.value, error))
        return results


def _sentence(error: Exception | str) -> str:
    """What a worker raised, less its traceback."""
    if isinstance(error, ChildProcessError):
        return "its process ended"
    lines = str(error).strip().splitlines() or ["unknown"]
    return lines[-1].removeprefix("ValueError: ").removeprefix("RuntimeError: ")


class Local:
    """Measures on this machine, one trial after the other."""

    def __init__(self, timeout: float = 10.0, number: int = 1, repeat: int = 10, min_repeat_ms: int = 0):
        """`timeout`: seconds for a build, and for a run.

        A trial has `repeat` repeats, each the mean of `number` calls, or of as many as take `min_repeat_ms`. With one
        call, which is the default, a kernel finds the caches as in a network.
        """
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise RuntimeError("tuning links a library for each trial with a C++ compiler: install g++ or clang++")
        self.timeout = timeout
        self._evaluator = ms.runner.EvaluatorConfig(number, repeat, min_repeat_ms)
        self._builder = _Builder(timeout)
        self._runner = None

    machine: dict | None = None  # in records: this one

    def measure(self, candidates: list[Candidate]) -> list[Trial]:
        """A trial for each of the candidates."""
        inputs = [ms.builder.BuilderInput(c.as_module(), tvm.target.Target(c.target)) for c in candidates]
        built = self._builder.build(inputs)
        try:
            ran = self._run(
                [(c, str(b.artifact_path)) for c, b in zip(candidates, built, strict=True) if not b.error_msg]
            )
        finally:
            for made in built:
                if made.artifact_path:
                    shutil.rmtree(Path(str(made.artifact_path)).parent, ignore_errors=True)
        results = iter(ran)
        return [Trial((), str(made.error_msg)) if made.error_msg else next(results) for made in built]

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        self._runner = self._runner or ms.runner.LocalRunner(
            timeout_sec=self.timeout, evaluator_config=self._evaluator, initializer=trial.begin
        )
        return [self._trial(self._submit(candidate, path).result()) for candidate, path in built]

    def _submit(self, candidate: Candidate, path: str):
        """Have MetaSchedule's runner run a library; its future."""
        self._runner.f_alloc_argument = functools.partial(_arguments, candidate)
        self._runner.f_run_evaluator = functools.partial(_evaluate, candidate)
        (future,) = self._runner.run([ms.runner.RunnerInput(path, "cpu", [])])
        return future

    def _trial(self, result) -> Trial:
        if not result.error_msg:
            return Trial(tuple(float(s) for s in result.run_secs))
        message = str(result.error_msg)
        if "Timeout, killed" in message:
            return Trial((), f"it took longer than {self.timeout:g} s")
        return Trial((), "its process ended" if "Subprocess terminated" in message else _sentence(message))

    def for_metaschedule(self):
        """A runner for MetaSchedule's own search."""
        return ms.runner.LocalRunner(timeout_sec=self.timeout, evaluator_config=self._evaluator)

    def close(self) -> None:
        """End the worker processes."""
        for owner in (self._builder, self._runner):
            if owner is not None:
                owner.pool.shutdown(wait=False)
        self._builder = self._runner = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


# The runners of MetaSchedule give their functions a session first where there is one.


def _arguments(candidate, *given):
    *_session, device, _args_info, _repeat = given
    return trial.arguments(candidate, device)


def _evaluate(candidate, *given):
    *session, library, device, evaluator, arguments = given
    return trial.check_and_time(candidate, library, device, evaluator, arguments, not session or _can_sweep(*session))


def _can_sweep(session) -> bool:
    """Whether a server is one of `python -m tvmnotes serve`."""
    try:
        session.get_function("tvmnotes.sweep")
    except AttributeError:
        return False
    return True


# ---------------------------------------------------------------- many machines


def rpc(tracker: str, key: str, **options) -> "Rpc":
    """Measure on the servers of `key` that are known to the tracker at "HOST:PORT", on all of them at once.

    A trial that is lost with its server is measured again on another. `options` are those of `Local`. Raises
    ConnectionError within 5 seconds where no tracker answers, or where it has no server of that key.
    """
    return Rpc(tracker, key, **options)


class Rpc(Local):
    """See `rpc`."""

    def __init__(self, tracker: str, key: str, **options):
        host, _, port = tracker.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"tracker: expected HOST:PORT such as 127.0.0.1:9190; got {tracker!r}")
        super().__init__(**options)
        self.tracker, self.key = tracker, key
        self.machine = {"rpc": key}
        self._config = ms.runner.RPCConfig(host, int(port), key, session_timeout_sec=int(self.timeout) or 1)
        self._workers = 0
        if not self.servers():
            raise ConnectionError(
                f"the tracker at {tracker} knows no server of key {key!r}: start one with "
                f"python -m tvmnotes serve --tracker {tracker} --key {key}"
            )

    def servers(self) -> int:
        """How many servers the tracker knows; ConnectionError where it does not answer."""
        found: list[int] = []
        host, port = self._config.tracker_host, self._config.tracker_port

        def ask():
            with contextlib.suppress(Exception):
                listed = tvm.rpc.connect_tracker(host, port).summary()["server_info"]
                found.append(sum(server["key"] == f"server:{self.key}" for server in listed))

        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_TRACKER_SECONDS):
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(_TRACKER_SECONDS)
        if not found:
            raise ConnectionError(
                f"no RPC tracker answers at {self.tracker}: start one with "
                f"python -m tvm.exec.rpc_tracker --host {host} --port {port}"
            )
        return found[0]

    def for_metaschedule(self):
        return ms.runner.RPCRunner(self._config, evaluator_config=self._evaluator, max_workers=self.servers())

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        self._follow_servers()
        trials: dict[int, Trial] = {}
        for _ in range(_ATTEMPTS):
            started = {n: self._submit(*pair) for n, pair in enumerate(built) if n not in trials}
            lost = {}
            for number, future in started.items():
                self._wait(future)
                result = future.result()
                trials[number] = self._trial(result)
                if _is_lost(result):
                    lost[number] = trials.pop(number)
            if not lost:
                break
        return [trials.get(n) or Trial((), f"its server went {_ATTEMPTS} times") for n in range(len(built))]

    def _follow_servers(self) -> None:
        """A session at a time for each server there is."""
        count = max(1, self.servers())
        if count != self._workers:
            if self._runner is not None:
                self._runner.pool.shutdown(wait=False)
            self._workers = count
            self._runner = ms.runner.RPCRunner(
                self._config, evaluator_config=self._evaluator, max_workers=count, initializer=trial.begin
            )

    def _wait(self, future) -> None:
        """Wait for a trial, but not for servers that are all gone."""
        deadline = checked = clock.monotonic()
        while not future.done():
            now = clock.monotonic()
            if now - checked > 2:
                checked = now
                if self.servers():
                    deadline = now
                elif now - deadline > _SERVERLESS_SECONDS:
                    self._runner.pool.shutdown(wait=False)
                    raise ConnectionError(
                        f"all servers of key {self.key!r} are gone; what was measured is kept. Start some with "
                        f"python -m tvmnotes serve --tracker {self.tracker} --key {self.key}, and tune again"
                    )
            clock.sleep(0.02)


def _is_lost(result) -> bool:
    """Whether a trial failed with its connection, not by itself."""
    message = str(result.error_msg or "")
    return bool(message) and "ValueError" not in message and "Timeout, killed" not in message
