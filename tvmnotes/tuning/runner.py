"""Where candidates are measured: on this machine (`LocalRunner`) or on those of an RPC tracker (`RpcRunner`).

Both build here, in worker processes, and run in others: MetaSchedule's LocalRunner and RPCRunner, with the
functions of `trial`. A candidate that crashes, hangs or computes nonsense costs only its own trial.

A runner, as `tn.tune` takes it, has `measure(candidates) -> list[Trial]`; `machine`, the dictionary that
records store, None for this machine; and, for the tuner metaschedule, `for_metaschedule()`.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import threading
import time as clock
from collections import Counter, deque
from pathlib import Path

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner.rpc_runner import default_upload_module

from ..base import env
from . import secret as secrets
from . import server, trial, workers
from .trial import Candidate, Trial

_ATTEMPTS = 3  # for a trial that was lost with its server
_SERVERLESS_SECONDS = 15
_GRACE = 5  # seconds
_GONE = "the server is gone"


class LocalRunner:
    """A runner that measures on this machine, one trial after the other.

    A trial has `repeat` repeats, each the mean of `number` calls. With one call, which is the default, a
    kernel finds the caches as in a network. A context manager, which ends the worker processes.

    Args:
        timeout: seconds for a run.
        number: calls of a repeat.
        repeat: repeats of a trial.
        min_repeat_ms: makes a repeat as many calls as take this time, in milliseconds.
        build_timeout: seconds for a build; None means `timeout`.

    Raises:
        RuntimeError: without a C++ compiler.
    """

    machine: dict | None = None  # as records store it; None for this one

    def __init__(
        self,
        timeout: float = 10.0,
        number: int = 1,
        repeat: int = 10,
        min_repeat_ms: int = 0,
        build_timeout: float | None = None,
    ):
        if not env.cpp_compiler():
            raise RuntimeError(
                "tuning links a library for each trial with a C++ compiler: install g++ or clang++"
            )
        self.timeout = timeout
        self._evaluator = ms.runner.EvaluatorConfig(number, env.cap_if_quick(repeat, 2), min_repeat_ms)
        self._builder = workers.Builder(trial.build, timeout if build_timeout is None else build_timeout)
        self._runner = None

    def measure(self, candidates: list[Candidate]) -> list[Trial]:
        """Measure candidates.

        Args:
            candidates: configs of workloads.

        Returns:
            A trial for each candidate, in the same order.
        """
        inputs = [ms.builder.BuilderInput(c.as_module(), tvm.target.Target(c.target)) for c in candidates]
        built = self._builder.build(inputs)
        try:
            pairs = zip(candidates, built, strict=True)
            ran = self._run([(c, str(made.artifact_path)) for c, made in pairs if not made.error_msg])
        finally:
            for made in built:
                if made.artifact_path:
                    shutil.rmtree(Path(str(made.artifact_path)).parent, ignore_errors=True)
        results = iter(ran)
        return [Trial((), str(made.error_msg)) if made.error_msg else next(results) for made in built]

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        self._runner = self._runner or self.for_metaschedule(initializer=trial.begin)
        return [self._trial(self._submit(candidate, path).result()) for candidate, path in built]

    def _submit(self, candidate: Candidate, path: str):
        """Have MetaSchedule's runner run a library, and return the future."""
        self._runner.f_alloc_argument = functools.partial(_arguments, candidate)
        self._runner.f_run_evaluator = functools.partial(_evaluate, candidate)
        (future,) = self._runner.run([ms.runner.RunnerInput(path, "cpu", [])])
        return future

    def _trial(self, result) -> Trial:
        if not result.error_msg:
            return Trial(tuple(float(s) for s in result.run_secs))
        message = str(result.error_msg)
        if trial.KILLED in message:
            return Trial((), trial.KILLED)
        if "Timeout, killed" in message:
            return Trial((), f"it took longer than {self.timeout:g} s")
        ended = "Subprocess terminated" in message
        return Trial((), "its process ended" if ended else workers.sentence(message))

    def for_metaschedule(self, **options):
        """Make MetaSchedule's runner for its own search or, with `options` of its class, for our trials."""
        with workers.of_runners():
            return ms.runner.LocalRunner(
                timeout_sec=self.timeout, evaluator_config=self._evaluator, **options
            )

    def close(self) -> None:
        """End the worker processes."""
        if self._builder is not None:
            self._builder.close()
        if self._runner is not None:
            self._runner.pool.shutdown(wait=False)
        self._builder = self._runner = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


# MetaSchedule's RPCRunner passes a session as the first argument; its LocalRunner has none.


def _arguments(candidate, *given):
    *_session, device, _args_info, _repeat = given
    return trial.arguments(candidate, device)


def _evaluate(candidate, *given):
    *session, library, device, evaluator, arguments = given
    sweep = not session or _can_sweep(*session)
    return trial.check_and_time(candidate, library, device, evaluator, arguments, sweep)


def _can_sweep(session) -> bool:
    """Return whether a server is one of `python -m tvmnotes serve`."""
    try:
        session.get_function("tvmnotes.sweep")
    except AttributeError:
        return False
    return True


# ---------------------------------------------------------------- many machines


class RpcRunner(LocalRunner):
    """A runner that measures on all servers of `key` that a tracker knows, at the same time.

    A trial whose server is lost is measured again on another; a server that joins is used from the next batch
    on. Each trial's `machine` says which server measured it, unless that is TVM's own, which does not tell.

    Args:
        tracker: "HOST:PORT" of the tracker.
        key: the key of the servers.
        secret: the one that the tracker printed. None takes that of the variable TVMNOTES_RPC_SECRET, else of
            your own file, which a tracker of yours on this machine uses as well. TVM's own tracker and
            servers need none.
        **options: those of `LocalRunner`.

    Raises:
        ValueError: for a tracker that is not HOST:PORT.
        ConnectionError: within 6 seconds, if no tracker answers, or it has another secret, or no server of
            that key.
    """

    def __init__(self, tracker: str, key: str, secret: str | None = None, **options):
        host, port = server.address(tracker)
        self.tracker, self.key, self.machine = tracker, key, {"rpc": key}
        self._secret = secrets.find(secret) or secrets.NONE
        if not self.servers():
            raise ConnectionError(
                f"the tracker at {tracker} knows no server of key {key!r}: {self._how_to_serve()}"
            )
        super().__init__(**options)
        self._config = ms.runner.RPCConfig(host, port, key, session_timeout_sec=max(1, int(self.timeout)))
        self._workers = 0

    def servers(self) -> int:
        """Return how many servers the tracker knows; raises ConnectionError if it does not answer."""
        return len(server.servers(self.tracker, self.key, self._secret))

    def _how_to_serve(self) -> str:
        return f"start one with python -m tvmnotes serve --tracker {self.tracker} --key {self.key}"

    def for_metaschedule(self, **options):
        """Make MetaSchedule's runner for its own search or, with `options` of its class, for our trials."""
        connect = functools.partial(_connect_only, self._secret)
        options = options or {"max_workers": max(1, self.servers()), "f_create_session": connect}
        with workers.of_runners():
            return ms.runner.RPCRunner(self._config, evaluator_config=self._evaluator, **options)

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        trials, running = {}, {}
        waiting = deque(range(len(built)))
        lost = Counter()
        try:
            self._follow_servers()
            while waiting or running:
                while waiting and len(running) < self._workers:
                    number = waiting.popleft()
                    running[number] = self._submit(*built[number])
                for number in [n for n, future in running.items() if future.done()]:
                    trials[number] = self._trial(running.pop(number).result())
                    if trials[number] is None or trials[number].lost:
                        lost[number] += 1
                        trials[number] = trials[number] or Trial((), f"its server went {_ATTEMPTS} times")
                        if lost[number] < _ATTEMPTS:
                            waiting.append(number)
                self._look_for_servers()
                clock.sleep(0.02)
        except BaseException:  # including Ctrl-C: some workers may wait forever
            self._end_workers(running.values())
            raise
        return [
            dataclasses.replace(trials[number], machine=self.machine | _left_by_server(path))
            for number, (_, path) in enumerate(built)
        ]

    def _follow_servers(self) -> None:
        """Start a worker for each server."""
        self._seen = self._looked = clock.monotonic()
        count = max(1, self.servers())
        if count > self._workers:
            self._end_workers()
            connect = functools.partial(_connect, self._secret)
            functions = {"f_create_session": connect, "f_upload_module": _upload, "f_cleanup": _disconnect}
            self._runner = self.for_metaschedule(max_workers=count, initializer=trial.begin, **functions)
            self._workers = count

    def _look_for_servers(self) -> None:
        """Raise ConnectionError if all servers are gone for some time."""
        now = clock.monotonic()
        if now - self._looked > 2:
            self._looked = now
            if self.servers():
                self._seen = now
            elif now - self._seen > _SERVERLESS_SECONDS:
                raise ConnectionError(
                    f"all servers of key {self.key!r} are gone; what was measured is kept. "
                    f"Tune again when there are some: {self._how_to_serve()}"
                )

    def _end_workers(self, running=()) -> None:
        """End the workers, those that run trials first: TVM's pool would wait for them."""
        if self._runner is not None:
            self._runner.pool.ends = True
        while not all(future.done() for future in running):
            for worker in list(self._runner.pool._worker_map.values()):
                if (process := worker._proc) is not None:
                    process.kill()
            clock.sleep(0.02)
        if self._runner is not None:
            self._runner.pool.shutdown(wait=False)
        self._runner, self._workers = None, 0

    def _trial(self, result) -> Trial | None:
        """Return the trial of a result; None if it failed because of its connection."""
        message = str(result.error_msg or "")
        if server.TOOK_TOO_LONG in message:
            return Trial((), f"it took longer than {self.timeout:g} s")
        if server.CRASHED in message:
            return Trial((), "its process ended")
        if trial.KILLED not in message and (_GONE in message or "Subprocess terminated" in message):
            return None
        return super()._trial(result)


# Functions that a worker applies to a session.


def _connect_only(secret, config):
    found = server.free_server(f"{config.tracker_host}:{config.tracker_port}", config.tracker_key, secret)
    return tvm.rpc.connect(*found, session_timeout=config.session_timeout_sec)


def _connect(secret, config):
    """Open a session with a limit: a server that was unplugged leaves a connection that is silent forever.

    A live server ends a session in time. The limit ends this process, so that the trial is lost.
    """
    found = server.free_server(f"{config.tracker_host}:{config.tracker_port}", config.tracker_key, secret)
    limit = threading.Timer(config.session_timeout_sec + _GRACE, os._exit, [1])
    limit.daemon = True
    limit.start()
    try:
        session = tvm.rpc.connect(*found, session_timeout=config.session_timeout_sec)
    except Exception:
        limit.cancel()
        raise
    session.limit = limit
    return session


def _upload(session, local_path, remote_path):
    """Upload the kernel's library, and store the server's description beside the local file."""
    with contextlib.suppress(AttributeError):  # a server of TVM's own
        Path(local_path).with_name("server").write_text(session.get_function("tvmnotes.server")())
    return default_upload_module(session, local_path, remote_path)


def _disconnect(session, _remote_path):
    """End a trial, however it went; raises ConnectionError if the server is gone."""
    try:
        session.get_function("tvm.rpc.server.workpath")
    except Exception as error:
        raise ConnectionError(_GONE) from error
    finally:
        if session is not None:
            session.limit.cancel()


def _left_by_server(path: str) -> dict:
    """Return what `_upload` stored: the server's name, its CPU and its threads."""
    left = Path(path).with_name("server")
    return json.loads(left.read_text()) if left.exists() else {}
