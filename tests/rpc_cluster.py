"""A tracker and servers on this machine, as processes of their own, for the tests of tuning on many machines."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from tvmnotes.tuning import server

QUICK = {"timeout": 20, "number": 1, "repeat": 2}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


class Cluster:
    """A tracker and its servers, each a group of processes, so that one can be unplugged; `with` ends them all."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = folder, free_port(), {}
        self.tracker = f"127.0.0.1:{self.port}"
        self.start_tracker()

    def start_tracker(self):
        self._start("tracker", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", self.port,
                    "--port-end", self.port + 1)  # fmt: skip
        wait_until(self._answers)

    def _answers(self):
        with contextlib.suppress(ConnectionError):
            return server.servers(self.tracker, "any") == []

    def _start(self, name, *command):
        with (self.folder / f"{name}.txt").open("w") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)], stdout=out, stderr=out, start_new_session=True
            )

    def serve_all(self, *names, key="k"):
        """Start servers of ours, and wait for all of them."""
        for name in names:
            self.serve(name, key, wait=False)
        wait_until(lambda: len(self.servers(key)) == len(names))

    def serve(self, name, key="k", module="tvmnotes", wait=True):
        """Start a server of ours, or one of TVM's own."""
        known = set(self.servers(key))
        port = free_port()
        options = ("--tracker", self.tracker, "--key", key, "--host", "127.0.0.1", "--port", port)
        if module == "tvmnotes":
            self._start(name, module, "serve", *options, "--threads", 1, "--name", name)
        else:
            self._start(name, module, *options, "--port-end", port + 1)
        if wait:
            wait_until(lambda: self.servers(key) - known)
        return self.processes[name]

    def servers(self, key="k"):
        return set(server.servers(self.tracker, key))

    def unplug(self, name):
        """Kill a server with the session that it has."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def text(self, name):
        return (self.folder / f"{name}.txt").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for name in list(self.processes):
            self.unplug(name)
