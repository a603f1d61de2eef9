"""Machines that measure for others, on TVM's RPC: `serve` makes this one a server, `servers` lists them.

A tracker (`python -m tvmfast tracker`) knows the servers and hands out free ones. `python -m tvmfast serve`
runs `serve`; `runner.RpcRunner` is the client. All share a secret, see secret.py. Before each session a
server tells the tracker a new word (a match key), as TVM's do; a client that sends that word and its proof
gets the session, on the same connection. Anything else costs only its own connection, and nothing waits for a
silent client.

TVM's own tracker and servers ask for no proof, and work as well.
"""

import asyncio
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
import time as clock
from collections.abc import Iterator
from typing import Any

import tvm
from tvm.rpc import base
from tvm.rpc import server as theirs
from tvm.support import utils

from ..core import machine
from ..core.compat import set_tvm_threads
from . import secret as secrets
from . import trial
from .tracker import PROOF, SUCCESS, Say

CRASHED = "TvmfastSessionCrashed"  # in the error that a client receives
TOOK_TOO_LONG = "RPCSessionTimeoutError"  # TVM's own
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORTS = 100
_ANSWER_SECONDS = 1.5  # a tracker answers three times
_HELLO_SECONDS = 5.0  # for a client's first message
_LONGEST_HELLO = 1 << 10  # bytes
_STRANGERS = 64  # most clients whose first message has not come
_PROOF = "-proof="  # follows a client's word
_PING_SECONDS = 2.0
_UNUSED_PINGS = 3  # after these, a word that was handed out counts as lost
_AWAY_SECONDS = 60  # for which a tracker may be away
_log = logging.getLogger(__name__)


def address(tracker: str) -> tuple[str, int]:
    """Parse "HOST:PORT" into host and port; raises ValueError for anything else."""
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"tracker: expected HOST:PORT such as 127.0.0.1:9190; got {tracker!r}")
    return host, int(port)


class Refused(ConnectionError):
    """A tracker answers, but it has another secret."""


@contextlib.contextmanager
def _connected(tracker: str, secret: str | None = None) -> Iterator[socket.socket]:
    """Connect to a tracker, with the proof if it asks for one; `secret` is as for `secret.find`.

    Raises ConnectionError if none answers, and Refused if it has another secret.
    """
    host, port = address(tracker)
    secret = secrets.find(secret)
    try:
        with socket.create_connection((host, port), _ANSWER_SECONDS) as connection:
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(connection, 4)) != (base.RPC_TRACKER_MAGIC,):
                raise OSError("not a tracker")
            answer = _ask(connection, base.TrackerCode.PING)
            if answer != SUCCESS and secret:
                answer = _ask(connection, PROOF, secrets.proof(secret, PROOF, answer[1]))
            if answer != SUCCESS:
                raise Refused(
                    f"the tracker at {tracker} has another secret: "
                    f"set {secrets.VARIABLE} to the one that it printed when it was started"
                )
            yield connection
    except Refused:
        raise
    except (OSError, ValueError, TypeError, LookupError) as error:  # the last three: not a tracker
        raise ConnectionError(
            f"no RPC tracker answers at {tracker}: start one with "
            f"python -m tvmfast tracker --host {host} --port {port}"
        ) from error


def _ask(connection: socket.socket, *request: Any) -> Any:
    base.sendjson(connection, request)
    return base.recvjson(connection)


def servers(tracker: str, key: str, secret: str | None = None) -> list[tuple[str, int]]:
    """List (host, port) of the servers of `key` that a tracker knows; `secret` is as for `secret.find`.

    Raises ConnectionError within 6 s, if no tracker answers, or it has another secret.
    """
    with _connected(tracker, secret) as connection:
        _, summary = _ask(connection, base.TrackerCode.SUMMARY)
    return [tuple(known["addr"]) for known in summary["server_info"] if known["key"] == f"server:{key}"]


def free_server(tracker: str, key: str, secret: str | None = None) -> tuple[str, int, str]:
    """Wait for a free server of `key`, and return the arguments of `tvm.rpc.connect`.

    They are its host, its port, and its word followed by the proof.
    """
    secret = secrets.find(secret)
    with _connected(tracker, secret or secrets.NONE) as connection:
        connection.settimeout(None)
        _, (host, port, word) = _ask(connection, base.TrackerCode.REQUEST, key, "", 1)
    _log.debug("%s:%d measures for %s", host, port, key)
    if secret:
        # The proof covers the address, so that a false server cannot forward a proof meant for itself.
        word += f" {_PROOF}{secrets.proof(secret, word, host, port)}"
    return host, port, word


class TrackerSession(tvm.rpc.TrackerSession):
    """TVM's session with the tracker at "HOST:PORT", as `tvm.rpc.connect_tracker` makes it.

    `secret` is as for `secret.find`.
    """

    def __init__(self, tracker: str, secret: str | None = None):
        self._of = tracker, secret
        super().__init__(address(tracker))

    def _connect(self) -> None:
        with _connected(*self._of) as connection:
            connection.settimeout(None)
            self._sock = connection.dup()

    def request(
        self,
        key: str,
        priority: int = 1,
        session_timeout: float = 0,
        max_retry: int = 5,
        session_constructor_args: list | None = None,
    ) -> tvm.rpc.RPCSession:
        """Open a session with a free server; see `tvm.rpc.TrackerSession.request`."""
        tracker, secret = self._of
        found = free_server(tracker, key, secret)
        return tvm.rpc.connect(*found, session_timeout, session_constructor_args=session_constructor_args)


# ---------------------------------------------------------------- a server


def serve(
    tracker: str, key: str, host: str, port: int, name: str | None, threads: int, cores: list | None, say: Say
) -> None:
    """Measure what clients send, until Ctrl-C or SIGTERM; `say(sentence)` shows messages to the user.

    The tracker at "HOST:PORT" lists this server under `key`, one word. It listens on `host`, from `port` on
    the first that is free. Records have its name, by default host name and port. A kernel has as many
    threads as are given, on the CPUs that are given.

    Raises:
        ValueError: for an argument that cannot be used.
        ConnectionError: if there is no tracker, or it has been away for a minute.
    """
    if len(key.split()) != 1:
        raise ValueError(f"key: expected one word; got {key!r}")
    secret = secrets.find()
    servers(tracker, key)
    if cores:
        machine.stay_on(cores)
    if threads or cores:
        set_tvm_threads(machine.usable_cores(), threads or len(cores or ()))  # before TVM starts them
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    name = name or f"{socket.gethostname()}:{port}"
    here = json.dumps({"server": name, "cpu": machine.cpu_name(), "threads": machine.threads()})
    tvm.register_global_func("tvmfast.server", lambda: here, override=True)
    trial.register_cache_flush()
    # Compiled once, for all sessions. TVM's threads belong to the thread that starts them and do not survive
    # a fork; those of this thread, which forks the sessions, must not have been started.
    first = threading.Thread(target=tvm.get_global_func("tvmfast.sweep"))
    first.start()
    first.join()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if secret is None:
        say(f"Warning: without a secret, whoever reaches {host}:{port} can run any program here.")
    elif host not in _LOOPBACK:
        say(
            f"Warning: what goes to and from {host} is not encrypted. Serve on a network that you trust only."
        )
    serving = f"{name} serves on {host}:{port} as {key!r}, with {machine.threads()} threads"
    say(f"{serving}, for the tracker at {tracker}. Ctrl-C ends it.")
    if told := secrets.told():
        say(told)
    try:
        _serve_all(listening, tracker, key, secret, say)
    except KeyboardInterrupt:
        say(f"{name} ended.")
    except ConnectionError as error:
        raise ConnectionError(
            f"the tracker at {tracker} has been away for a minute ({error}); {name} ended"
        ) from None
    finally:
        for session in multiprocessing.active_children():
            session.kill()
            session.join()


def _serve_all(listening: socket.socket, tracker: str, key: str, secret: str | None, say: Say) -> None:
    """Serve one session after the other; raises ConnectionError if the tracker is away for a minute."""
    away = None
    with contextlib.closing(_Listener(listening, key, secret, say)) as listener:
        while True:
            try:
                with _connected(tracker, secret or secrets.NONE) as connection:
                    connection.settimeout(10)
                    info = {"key": f"server:{key}", "addr": (None, listener.port)}
                    _ask(connection, base.TrackerCode.UPDATE_INFO, info)
                    away = None
                    while True:
                        _serve_one(say, *listener.next_client(connection))
            except ConnectionError:
                away = away or clock.monotonic()
                if clock.monotonic() - away > _AWAY_SECONDS:
                    raise
                clock.sleep(1)


class _Listener:
    """Takes connections independently, and admits a client that sends the tracker's word and its proof.

    Replaces TVM's loop, which ends at unexpected input and waits for a silent client.
    """

    def __init__(self, listening: socket.socket, key: str, secret: str | None, say: Say):
        listening.setblocking(False)
        self.listening, self.port = listening, listening.getsockname()[1]
        self.key, self.secret = key, secret
        self.say = say
        self.word: str | None = None
        self.strangers: dict[asyncio.Task, socket.socket] = {}
        self.found: asyncio.Queue[tuple[socket.socket, float | None]] = asyncio.Queue()
        self.loop = asyncio.new_event_loop()
        self.accepting = self.loop.create_task(self._accept())

    def next_client(self, tracker: socket.socket) -> tuple[socket.socket, float | None]:
        """Return the next client's socket and its limit in seconds, if any; `tracker` is a connection."""
        return self.loop.run_until_complete(self._next_client(tracker))

    async def _next_client(self, tracker: socket.socket) -> tuple[socket.socket, float | None]:
        """Wait for a client with the word, which is renewed for each, and when it is lost."""
        while True:
            self.word, unused = f"{self.key}:{secrets.number()}", 0
            _ask(tracker, base.TrackerCode.PUT, self.key, (self.port, self.word), None)
            while unused < _UNUSED_PINGS:
                try:
                    return await asyncio.wait_for(self.found.get(), _PING_SECONDS)
                except asyncio.TimeoutError:
                    pending = _ask(tracker, base.TrackerCode.GET_PENDING_MATCHKEYS)
                    unused = 0 if self.word in pending else unused + 1

    def close(self) -> None:
        """Cancel all tasks and close the loop."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await self.loop.sock_accept(self.listening)
            except OSError:  # the client is gone, or too many files are open
                await asyncio.sleep(0.1)
                continue
            if len(self.strangers) >= _STRANGERS:
                oldest = next(iter(self.strangers))
                oldest.cancel()
                await asyncio.wait([oldest])
            stranger = self.loop.create_task(self._handshake(client))
            self.strangers[stranger] = client
            stranger.add_done_callback(self.strangers.pop)

    async def _handshake(self, client: socket.socket) -> None:
        seconds = None
        try:
            hello = await asyncio.wait_for(self._hello(client), _HELLO_SECONDS)
            client.setblocking(True)
            seconds = self._seconds(client, *hello.split())
            if seconds:
                name = f"server:{self.key}".encode()
                client.sendall(struct.pack("<ii", base.RPC_CODE_SUCCESS, len(name)) + name)
                self.found.put_nowait((client, seconds if seconds < float("inf") else None))
            else:
                client.sendall(struct.pack("<i", base.RPC_CODE_MISMATCH))
        except (OSError, ValueError, TypeError, asyncio.TimeoutError):
            seconds = None
        finally:
            if not seconds:
                client.close()

    async def _hello(self, client: socket.socket) -> str:
        """Receive a client's first message; raises ValueError if it cannot be one."""
        magic, size = struct.unpack("<ii", await self._receive(client, 8))
        if magic != base.RPC_MAGIC or not 0 < size <= _LONGEST_HELLO:
            raise ValueError("no client of TVM's")
        return (await self._receive(client, size)).decode()

    async def _receive(self, client: socket.socket, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = await self.loop.sock_recv(client, size - len(received))
            if not more:
                raise OSError("it has gone")
            received += more
        return received

    def _seconds(self, client: socket.socket, word: str, *options: str) -> float:
        """Return how long a client may stay; 0.0 for one without the word or its proof."""
        values = dict(option.partition("=")[::2] for option in options)
        if self.word is None or word != f"client:{self.word}":
            return 0.0
        host, port, *_ = client.getsockname()
        about = self.word, host, port
        if self.secret and not secrets.proves(values.get(_PROOF[:-1]), self.secret, *about):
            self.say("a client was turned away, which does not know the secret")
            return 0.0
        self.word = None  # valid for one session
        seconds = float(values.get("-timeout", "inf"))
        return seconds if 0 < seconds < 1e6 else float("inf")


def _listen(host: str, first: int) -> socket.socket:
    for port in range(first, first + _PORTS):
        try:
            return socket.create_server((host, port), family=base.get_addr_family((host, port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(
                    f"cannot serve on {host}:{port} ({error.strerror}); name another host or port"
                ) from None
    raise ValueError(
        f"cannot serve on {host}: the ports {first} to {first + _PORTS - 1} are in use; name another port"
    )


def _serve_one(say: Say, connection: socket.socket, seconds: float | None) -> None:
    """Serve a session, which is one trial, in its own process; tell the client if that ends too early.

    Replaces TVM's function, with which a server dies when its session crashes.
    """
    folder = utils.tempdir()
    session = multiprocessing.get_context("fork").Process(target=_session, args=(connection, folder))
    session.start()
    session.join(seconds)
    if session.exitcode is None:
        error = TOOK_TOO_LONG
    elif -session.exitcode in trial.FROM_OUTSIDE:
        error = trial.KILLED
    else:
        error = f"{CRASHED} ({session.exitcode})" if session.exitcode else ""
    if error:
        say(f"a trial was ended: {error}")
        with contextlib.suppress(Exception):  # the client may be gone as well
            theirs._ffi_api.ReturnException(connection.fileno(), f"{error}: a session was ended")
    session.kill()
    session.join()
    connection.close()
    folder.remove()


def _session(connection: socket.socket, folder: Any) -> None:
    """Run the session's process; it ends with the server, at once or, if that is killed, within a second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    trial.end_with_parent()
    os.chdir(folder.path)
    theirs._serve_loop(connection, None, folder)
