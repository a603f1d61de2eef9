"""Programs that a lesson runs beside itself, such as a tracker and servers: started, ended, and none left behind."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable


class Processes:
    """Programs by name, each a process group of its own. All end when Python ends."""

    def __init__(self):
        self.running: dict[str, subprocess.Popen] = {}
        atexit.register(self.end_all)

    def start(
        self, name: str, *command, folder: str | os.PathLike = ".", environment: dict | None = None
    ) -> None:
        """Run `python -m COMMAND` in the background, without its output, in a folder, with more of an environment."""
        command, quiet = [sys.executable, "-m", *map(str, command)], subprocess.DEVNULL
        self.running[name] = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
                                              cwd=folder, env=os.environ | (environment or {}))  # fmt: skip

    def pid(self, name: str) -> int:
        """Return the number of a program's process."""
        return self.running[name].pid

    def end(self, name: str, how: int = signal.SIGTERM) -> None:
        """Send a signal to a program and to all its processes, and wait for its end."""
        process = self.running.pop(name)
        os.killpg(process.pid, how)
        process.wait()

    def end_all(self) -> None:
        """End all that run."""
        for name in list(self.running):
            self.end(name)


def first_line(arguments: list, folder: str | os.PathLike, environment: dict | None = None) -> float:
    """Return the seconds from the start of a process, `python ARGUMENTS` in a folder, to its first line of output."""
    command = [sys.executable, *map(str, arguments)]
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | (environment or {}), stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        return time.perf_counter() - began


def free_port() -> int:
    """Return the number of a port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def retried(call: Callable, seconds: float = 120):
    """Call until it raises neither OSError nor RuntimeError, and return its result; raise these after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (OSError, RuntimeError):
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Ask until it is true; an answer that is a ConnectionError counts as no. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            if true():
                return
        except ConnectionError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {seconds} seconds")
        time.sleep(0.05)
