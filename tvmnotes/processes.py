"""Programs that a lesson runs in the background, such as a tracker and servers; none outlives Python."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class Processes:
    """Programs by name, each a process group of its own. All end when Python ends, even if it is killed."""

    def __init__(self):
        self.running: dict[str, subprocess.Popen] = {}
        self._watchers: dict[str, subprocess.Popen] = {}
        atexit.register(self.end_all)

    def start(
        self, name: str, *command, folder: str | os.PathLike = ".", environment: dict | None = None
    ) -> None:
        """Run `python -m COMMAND` in the background, without output; `environment` extends this process's."""
        arguments = [sys.executable, "-m", *map(str, command)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        variables = os.environ | (environment or {})
        program = self.running[name] = subprocess.Popen(
            arguments, cwd=folder, env=variables, start_new_session=True, **pipes
        )
        # Its standard input is at its end when this process is gone, however it ended.
        watch = ["sh", "-c", f"read -r line; kill -TERM -{program.pid}"]
        pipes["stdin"] = subprocess.PIPE
        self._watchers[name] = subprocess.Popen(watch, start_new_session=True, **pipes)

    def pid(self, name: str) -> int:
        """Return a program's process ID."""
        return self.running[name].pid

    def end(self, name: str, how: int = signal.SIGTERM) -> None:
        """Send a signal to a program and all its processes, and wait for its exit."""
        process, watcher = self.running.pop(name), self._watchers.pop(name)
        watcher.kill()
        watcher.communicate()
        os.killpg(process.pid, how)
        process.wait()

    def end_all(self) -> None:
        """End all running programs."""
        for name in list(self.running):
            self.end(name)


def hide_torch(folder: str | os.PathLike) -> None:
    """Hide torch from the programs that this process starts from now on; `folder` gets the file that does.

    `import tvm` imports torch wherever it is installed, which takes seconds and 600 MB in each program.
    """
    hides = Path(folder).resolve()
    hides.mkdir(parents=True, exist_ok=True)
    (hides / "torch.py").write_text('raise ImportError("hidden by tvmnotes.processes")\n')
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hides), os.environ.get("PYTHONPATH"))))


def first_line(arguments: list, folder: str | os.PathLike, environment: dict | None = None) -> float:
    """Return the seconds from the start of `python ARGUMENTS` in a folder to its first line of output."""
    command = [sys.executable, *map(str, arguments)]
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | (environment or {}), stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        return time.perf_counter() - began


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def retried(call: Callable, seconds: float = 120):
    """Retry a call that raises OSError or RuntimeError for up to `seconds`; return its result."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (OSError, RuntimeError):
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until `true()` holds; a ConnectionError counts as no. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            if true():
                return
        except ConnectionError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {seconds} seconds")
        time.sleep(0.01)
