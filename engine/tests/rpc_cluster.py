"""A tracker and servers on this machine, as processes of their own, for the tests of tuning on many machines."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
from tvm.rpc import base

from tvmfast.tuning import server

QUICK = {"timeout": 120, "number": 1, "repeat": 2}
# The tests' process is patient with a tracker, which may be late on a busy machine.
server._ANSWER_SECONDS, ANSWER_SECONDS = 15, server._ANSWER_SECONDS


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def wait_until(true, seconds=300):
    """Ask until it is true. A tracker that does not answer is asked again."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ConnectionError):
            if true():
                return
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Cluster:
    """A tracker and its servers, each a group of processes, so that one can be unplugged; `with` ends them all."""

    def __init__(self, folder, tvms_own=False):
        """`tvms_own`: with TVM's own tracker, which asks for no secret."""
        self.folder, self.processes = folder, {}
        self.tvms_own = tvms_own
        for _ in range(5):  # another process may take the port first
            self.port = free_port()
            self.tracker = f"127.0.0.1:{self.port}"
            if self.start_tracker():
                return
        raise RuntimeError(f"no tracker starts: {self.text('tracker')}")

    def start_tracker(self) -> bool:
        """Start the tracker, and wait for it; whether it got its port."""
        address = ("--host", "127.0.0.1", "--port", self.port)
        if self.tvms_own:
            self._start("tracker", "tvm.exec.rpc_tracker", *address, "--port-end", self.port + 1)
        else:
            self._start("tracker", "tvmfast", "tracker", *address)
        tracker = self.processes["tracker"]
        wait_until(lambda: tracker.poll() is not None or server.servers(self.tracker, "any") == [])
        return tracker.poll() is None

    def _start(self, name, *command):
        with (self.folder / f"{name}.txt").open("w") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.folder)},  # what is killed leaves its files there
            )

    def serve_all(self, *names, key="k"):
        """Start servers of ours, and wait for all of them."""
        for name in names:
            self.serve(name, key, wait=False)
        wait_until(lambda: self.free(key) == len(names))

    def serve(self, name, key="k", module="tvmfast", wait=True):
        """Start a server of ours, or one of TVM's own."""
        known = len(self.servers(key))
        port = free_port()
        options = ("--tracker", self.tracker, "--key", key, "--host", "127.0.0.1", "--port", port)
        if module == "tvmfast":
            self._start(name, module, "serve", *options, "--threads", 1, "--name", name)
        else:
            self._start(name, module, *options, "--port-end", port + 100)
        if wait:
            wait_until(lambda: self.free(key) > known)
        return self.processes[name]

    def servers(self, key="k"):
        return set(server.servers(self.tracker, key))

    def free(self, key="k"):
        """How many servers wait for a trial; they get the next ones in turn."""
        with server._connected(self.tracker) as connection:
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(connection)
        return summary["queue_info"].get(key, {"free": 0})["free"]

    def wait_for_trial(self, name):
        """Wait until a server begins a trial, which runs in a child process of it."""
        process = psutil.Process(self.processes[name].pid)
        before = set(process.children())
        wait_until(lambda: set(process.children()) - before)

    def unplug_in_mid_trial(self, name):
        self.wait_for_trial(name)
        self.unplug(name)

    def unplug(self, name):
        """Kill a server with the session that it has."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait(120)

    def text(self, name):
        return (self.folder / f"{name}.txt").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for name in list(self.processes):
            self.unplug(name)
