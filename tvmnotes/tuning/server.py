"""Machines that measure for others, on TVM's RPC: `serve` makes this one a server, `servers` tells who is there.

A tracker (`python -m tvm.exec.rpc_tracker`) knows the servers and hands out those that are free. `python -m tvmnotes
serve` calls the one, `runner.Rpc` the other.
"""

import contextlib
import errno
import json
import logging
import multiprocessing
import os
import signal
import socket
import struct
import threading

import tvm
from tvm.rpc import base
from tvm.rpc import server as theirs
from tvm.support import utils

from ..base import env
from ..base.workarounds import set_tvm_threads
from . import trial

CRASHED = "TvmnotesSessionCrashed"  # in the error that a client gets
TOOK_TOO_LONG = "RPCSessionTimeoutError"  # TVM's own word
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORTS = 100
_ANSWER_SECONDS = 1.5  # a tracker answers three times


def address(tracker: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT". Raises ValueError for anything else."""
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"tracker: expected HOST:PORT such as 127.0.0.1:9190; got {tracker!r}")
    return host, int(port)


@contextlib.contextmanager
def _connected(tracker: str):
    """A connection to a tracker. Raises ConnectionError where none answers."""
    host, port = address(tracker)
    try:
        with socket.create_connection((host, port), _ANSWER_SECONDS) as connection:
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(connection, 4)) != (base.RPC_TRACKER_MAGIC,):
                raise OSError("not a tracker")
            yield connection
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"no RPC tracker answers at {tracker}: start one with "
            f"python -m tvm.exec.rpc_tracker --host {host} --port {port} --port-end {port + 1}"
        ) from error


def servers(tracker: str, key: str) -> list[tuple[str, int]]:
    """Where the servers of `key` are that a tracker knows. Raises ConnectionError within 5 s where none answers."""
    with _connected(tracker) as connection:
        base.sendjson(connection, [base.TrackerCode.SUMMARY])
        _, summary = base.recvjson(connection)
    return [tuple(known["addr"]) for known in summary["server_info"] if known["key"] == f"server:{key}"]


def free_server(tracker: str, key: str) -> tuple[str, int, str]:
    """Wait until the tracker has a server that is free: its host, its port, and the word that it expects."""
    with _connected(tracker) as connection:
        connection.settimeout(None)
        base.sendjson(connection, [base.TrackerCode.REQUEST, key, "", 1])
        _, found = base.recvjson(connection)
    return tuple(found)


def serve(tracker, key, host, port, name, threads, cores, say) -> None:
    """Measure what is sent until Ctrl-C or SIGTERM; `say` gets a sentence for the user now and then.

    The arguments are those of `python -m tvmnotes serve`, `cores` a list of numbers. Raises ValueError where one of
    them will not do, and ConnectionError where there is no tracker, or none any more for a minute.
    """
    servers(tracker, key)
    if cores:
        _stay_on(cores)
    if threads or cores:
        set_tvm_threads(env.usable_cores(), threads or len(cores))  # before TVM starts them
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    name = name or f"{socket.gethostname()}:{port}"
    machine = json.dumps({"server": name, "cpu": env.cpu_name(), "threads": env.threads()})
    tvm.register_global_func("tvmnotes.server", lambda: machine, override=True)
    trial.register_sweep()
    # Compiled once, for all sessions. TVM's threads belong to the thread that starts them, and do not survive a fork;
    # those of this one, which forks the sessions, must not have been started.
    first = threading.Thread(target=tvm.get_global_func("tvmnotes.sweep"))
    first.start()
    first.join()
    theirs._serving = lambda *session: _serve_one(say, *session)
    theirs.logger.setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if host not in _LOOPBACK:
        say(f"Warning: whoever reaches {host} can run any program here. Serve on a network that you trust only.")
    say(f"{name} serves on {host}:{port} as {key!r}, with {env.threads()} threads, for the tracker at {tracker}. "
        "Ctrl-C ends it.")  # fmt: skip
    try:
        theirs._listen_loop(listening, port, key, address(tracker), None, None)
    except KeyboardInterrupt:
        say(f"{name} ended.")
    except RuntimeError:
        raise ConnectionError(f"the tracker at {tracker} has been away for a minute; {name} ended") from None
    finally:
        for session in multiprocessing.active_children():
            session.kill()
            session.join()


def _stay_on(cores: list[int]) -> None:
    """Run on these CPUs only, TVM's threads too, which it would bind to others."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, AttributeError) as error:
        known = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "none"
        raise ValueError(f"cores: cannot stay on {cores} ({error}); those that this process may use: {known}") from None
    os.environ["TVM_BIND_THREADS"] = "0"


def _listen(host: str, first: int) -> socket.socket:
    """A socket that listens on the first free port."""
    for port in range(first, first + _PORTS):
        try:
            return socket.create_server((host, port), family=base.get_addr_family((host, port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(
                    f"cannot serve on {host}:{port} ({error.strerror}); name another host or port"
                ) from None
    raise ValueError(f"cannot serve on {host}: the ports {first} to {first + _PORTS - 1} are in use; name another port")


def _serve_one(say, connection, _client, options, _libraries) -> None:
    """Serve a session, which is one trial, in a process of its own, and tell the client if that ends before it should.

    In place of TVM's function, after which a server is dead whose session has crashed.
    """
    folder = utils.tempdir()
    session = multiprocessing.get_context("fork").Process(target=_session, args=(connection, folder))
    session.start()
    session.join(options.get("timeout"))
    error = TOOK_TOO_LONG if session.exitcode is None else f"{CRASHED} ({session.exitcode})" * bool(session.exitcode)
    if error:
        say(f"a trial was ended: {error}")
        with contextlib.suppress(Exception):  # of a client that has gone as well
            theirs._ffi_api.ReturnException(connection.fileno(), f"{error}: a session was ended")
    session.kill()
    session.join()
    connection.close()
    folder.remove()


def _session(connection, folder) -> None:
    """The session's process. It ends with the server, at once or, where that is killed, within a second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    trial.end_with_parent()
    os.chdir(folder.path)
    theirs._serve_loop(connection, None, folder)
