"""Where candidates are measured: on this machine (`LocalRunner`) or on those of an RPC tracker (`RpcRunner`).

Both build here, in worker processes, and run in others, with the functions of `trial`. A candidate that
crashes, hangs or computes nonsense costs only its own trial.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import threading
import time as clock
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner.rpc_runner import default_upload_module

from ..core import machine
from ..core.protocols import Runner
from . import secret as secrets
from . import server, trial, workers
from .trial import Candidate, Trial

_ATTEMPTS = 3  # for a trial that was lost with its server
_SERVERLESS_SECONDS = 15
_GRACE = 5  # seconds
_GONE = "the server is gone"
_NO_ANSWER = f"its server went {_ATTEMPTS} times"


class LocalRunner(Runner):
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

    machine: dict | None = None

    def __init__(
        self,
        timeout: float = 10.0,
        number: int = 1,
        repeat: int = 10,
        min_repeat_ms: int = 0,
        build_timeout: float | None = None,
    ):
        if not machine.cpp_compiler():
            raise RuntimeError(
                "tuning links a library for each trial with a C++ compiler: install g++ or clang++"
            )
        self.timeout = timeout
        self._evaluator = ms.runner.EvaluatorConfig(number, machine.cap_if_quick(repeat, 2), min_repeat_ms)
        self._builder = workers.Builder(timeout if build_timeout is None else build_timeout)
        self._pool = self._new_pool(1)

    @property
    def evaluator(self) -> ms.runner.EvaluatorConfig:
        """How often a trial calls a kernel: `number`, `repeat`, `min_repeat_ms`."""
        return self._evaluator

    def _new_pool(self, size: int) -> workers.Pool:
        return workers.Pool(size, self.timeout, trial.begin, stderr=subprocess.DEVNULL)

    def measure(self, candidates: list[Candidate]) -> list[Trial]:
        """Measure candidates; see `Runner`."""
        built = self._builder.build(trial.build, candidates)
        try:
            pairs = zip(candidates, built, strict=True)
            ran = iter(self._run([(candidate, path) for candidate, (path, _) in pairs if path]))
        finally:
            for path, _ in built:
                if path:
                    shutil.rmtree(Path(path).parent, ignore_errors=True)
        return [next(ran) if path else Trial((), error) for path, error in built]

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        return [self._trial(self._pool.submit(trial.run, *each, self._evaluator)) for each in built]

    def _trial(self, future: Future) -> Trial:
        try:
            return Trial(tuple(future.result()))
        except TimeoutError:
            return Trial((), f"it took longer than {self.timeout:g} s")
        except Exception as error:
            return Trial((), workers.sentence(error))

    def for_metaschedule(self) -> ms.runner.PyRunner:
        """Make MetaSchedule's runner for its own search."""
        with workers.of_runners():
            return ms.runner.LocalRunner(self.timeout, self._evaluator)

    def close(self) -> None:
        """End the worker processes."""
        self._builder.close()
        self._pool.shutdown(wait=False)

    def __enter__(self) -> "LocalRunner":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------- many machines


class RpcRunner(LocalRunner):
    """A runner that measures on all servers of `key` that a tracker knows, at the same time.

    A trial whose server is lost is measured again on another; a server that joins is used from the next batch
    on. Each trial's `machine` says which server measured it, unless that is TVM's own, which does not tell.

    Args:
        tracker: "HOST:PORT" of the tracker.
        key: the key of the servers.
        secret: the one that the tracker printed. None takes that of the variable TVMFAST_RPC_SECRET, else of
            your own file, which a tracker of yours on this machine uses as well. TVM's own tracker and
            servers need none.
        **options: those of `LocalRunner`.

    Raises:
        ValueError: for a tracker that is not HOST:PORT.
        ConnectionError: within 6 seconds, if no tracker answers, or it has another secret, or no server of
            that key.
    """

    def __init__(self, tracker: str, key: str, secret: str | None = None, **options: Any):
        host, port = server.address(tracker)
        self.tracker, self.key = tracker, key
        self.machine = {"rpc": key}
        self._secret = secrets.find(secret) or secrets.NONE
        if not self.servers():
            raise ConnectionError(
                f"the tracker at {tracker} knows no server of key {key!r}: {self._how_to_serve()}"
            )
        super().__init__(**options)
        self._config = ms.runner.RPCConfig(host, port, key, session_timeout_sec=max(1, int(self.timeout)))

    def _new_pool(self, size: int) -> workers.Pool:
        return workers.Pool(size, initializer=trial.begin)  # a session has a limit of its own

    def servers(self) -> int:
        """Return how many servers the tracker knows; raises ConnectionError if it does not answer."""
        return len(server.servers(self.tracker, self.key, self._secret))

    def _how_to_serve(self) -> str:
        return f"start one with python -m tvmfast serve --tracker {self.tracker} --key {self.key}"

    def for_metaschedule(self) -> ms.runner.PyRunner:
        """Make MetaSchedule's runner for its own search."""
        connect = functools.partial(_connect, self._secret)
        options = {"max_workers": max(1, self.servers()), "f_create_session": connect}
        with workers.of_runners():
            return ms.runner.RPCRunner(self._config, self._evaluator, **options)

    def _run(self, built: list[tuple[Candidate, str]]) -> list[Trial]:
        trials: dict[int, Trial] = {}
        running: dict[int, Future] = {}
        waiting = deque(range(len(built)))
        lost: Counter[int] = Counter()
        seen = looked = clock.monotonic()
        try:
            if (count := self.servers()) > self._pool.size:
                self._pool.end()
                self._pool = self._new_pool(count)
            while waiting or running:
                while waiting and len(running) < self._pool.size:
                    number = waiting.popleft()
                    given = self._secret, self._config, *built[number], self._evaluator
                    running[number] = self._pool.submit(_run_on_server, *given)
                for number in [n for n, future in running.items() if future.done()]:
                    trials[number] = self._trial(running.pop(number))
                    if trials[number].lost or trials[number].error == _NO_ANSWER:
                        lost[number] += 1
                        if lost[number] < _ATTEMPTS:
                            waiting.append(number)
                if clock.monotonic() - looked > 2:
                    looked = clock.monotonic()
                    seen = looked if self.servers() else seen
                if looked - seen > _SERVERLESS_SECONDS:
                    raise ConnectionError(
                        f"all servers of key {self.key!r} are gone; what was measured is kept. "
                        f"Tune again when there are some: {self._how_to_serve()}"
                    )
                clock.sleep(0.02)
        except BaseException:  # including Ctrl-C: some workers may wait forever
            self._pool.end(running.values())
            self._pool = self._new_pool(1)
            raise
        return [
            dataclasses.replace(trials[number], machine={"rpc": self.key} | _left_by_server(path))
            for number, (_, path) in enumerate(built)
        ]

    def _trial(self, future: Future) -> Trial:
        error = future.exception()
        message = str(error or "")
        if server.TOOK_TOO_LONG in message:
            return Trial((), f"it took longer than {self.timeout:g} s")
        if server.CRASHED in message:
            return Trial((), "its process ended")
        if trial.KILLED in message:
            return Trial((), trial.KILLED)
        if _GONE in message or isinstance(error, ChildProcessError):
            return Trial((), _NO_ANSWER)
        return super()._trial(future)


# In a worker process.


def _run_on_server(secret: str, config: Any, candidate: Candidate, path: str, evaluator: Any) -> list[float]:
    """Check and time a candidate on a free server, and store the server's description beside its library."""
    with _session(secret, config) as session:
        try:
            Path(path).with_name("server").write_text(session.get_function("tvmfast.server")())
            sweep = True
        except AttributeError:  # a server of TVM's own
            sweep = False
        library = default_upload_module(session, path, Path(path).name)
        return trial.check_and_time(candidate, library, session.cpu(), evaluator, sweep)


@contextlib.contextmanager
def _session(secret: str, config: Any) -> Iterator[Any]:
    """Open a session with a limit: a server that was unplugged leaves a connection that is silent forever.

    A live server ends a session in time. The limit ends this process, so that the trial is lost.

    Raises:
        ConnectionError: if the tracker or the server is gone at the end.
    """
    limit = threading.Timer(config.session_timeout_sec + _GRACE, os._exit, [1])
    limit.daemon = True
    session: Any = None
    try:
        session = _connect(secret, config, limit.start)
        yield session
    finally:
        try:
            session.get_function("tvm.rpc.server.workpath")
        except Exception as error:
            raise ConnectionError(_GONE) from error
        finally:
            limit.cancel()


def _connect(secret: str, config: Any, begin: Callable = lambda: None) -> Any:
    """Open a session with a free server; `begin()` is called when there is one."""
    found = server.free_server(f"{config.tracker_host}:{config.tracker_port}", config.tracker_key, secret)
    begin()
    return tvm.rpc.connect(*found, session_timeout=config.session_timeout_sec)


def _left_by_server(path: str) -> dict:
    """Return what `_run_on_server` stored: the server's name, its CPU and its threads."""
    left = Path(path).with_name("server")
    return json.loads(left.read_text()) if left.exists() else {}
