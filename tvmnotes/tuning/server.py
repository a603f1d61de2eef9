"""Machines that measure for others, on TVM's RPC: `serve` makes this one a server, `servers` tells who is there.

A tracker (`python -m tvmnotes tracker`) knows the servers and hands out those that are free. `python -m tvmnotes
serve` calls the one, `runner.RpcRunner` the other. All share a secret, see secret.py. Before each session a server tells the
tracker a new word, as TVM's do; who brings that word and its proof gets the session, on that very connection. What else
comes costs its own connection, and nobody waits for those who are silent.

TVM's own tracker and servers ask for no proof, and will do as well.
"""

import asyncio
import contextlib
import errno
import json
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time as clock

import tvm
from tvm.rpc import base
from tvm.rpc import server as theirs
from tvm.support import utils

from ..base import env
from ..base.workarounds import set_tvm_threads
from . import secret as secrets
from . import trial
from .tracker import PROOF, SUCCESS

CRASHED = "TvmnotesSessionCrashed"  # in the error that a client gets
TOOK_TOO_LONG = "RPCSessionTimeoutError"  # TVM's own word
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORTS = 100
_ANSWER_SECONDS = 1.5  # a tracker answers three times
_HELLO_SECONDS = 5.0  # for a client's first message
_LONGEST_HELLO = 1 << 10  # bytes
_STRANGERS = 64  # clients at most that have not said theirs
_PROOF = "-proof="  # of a client's word, behind it
_PING_SECONDS = 2.0
_UNUSED_PINGS = 3  # after which a word that was handed out is taken for lost
_AWAY_SECONDS = 60  # that a tracker may be away


def address(tracker: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT". Raises ValueError for anything else."""
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"tracker: expected HOST:PORT such as 127.0.0.1:9190; got {tracker!r}")
    return host, int(port)


class Refused(ConnectionError):
    """A tracker that is there, but not for who does not know its secret."""


@contextlib.contextmanager
def _connected(tracker: str, secret: str | None = None):
    """A connection to a tracker, which has the proof if it asks for one; `secret` is as for `secret.find`.

    Raises ConnectionError where none answers, and Refused where it has another secret.
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
                    f"the tracker at {tracker} has another secret: set {secrets.VARIABLE} to the one that it printed "
                    "when it was started"
                )
            yield connection
    except Refused:
        raise
    except (OSError, ValueError, TypeError, LookupError) as error:  # the last three of what is no tracker
        raise ConnectionError(
            f"no RPC tracker answers at {tracker}: start one with "
            f"python -m tvmnotes tracker --host {host} --port {port}"
        ) from error


def _ask(connection, *request):
    """What a tracker answers."""
    base.sendjson(connection, request)
    return base.recvjson(connection)


def servers(tracker: str, key: str, secret: str | None = None) -> list[tuple[str, int]]:
    """Where the servers of `key` are that a tracker knows; `secret` is as for `secret.find`.

    Raises ConnectionError within 6 s where none answers, or it has another secret.
    """
    with _connected(tracker, secret) as connection:
        _, summary = _ask(connection, base.TrackerCode.SUMMARY)
    return [tuple(known["addr"]) for known in summary["server_info"] if known["key"] == f"server:{key}"]


def free_server(tracker: str, key: str, secret: str | None = None) -> tuple[str, int, str]:
    """Wait until the tracker has a server that is free: the arguments of `tvm.rpc.connect`.

    They are its host, its port, and the word that it expects, with the proof behind it.
    """
    secret = secrets.find(secret)
    with _connected(tracker, secret or secrets.NONE) as connection:
        connection.settimeout(None)
        _, (host, port, word) = _ask(connection, base.TrackerCode.REQUEST, key, "", 1)
    if secret:
        # The address is a part of the proof, so that a false server cannot pass on what was meant for itself.
        word += f" {_PROOF}{secrets.proof(secret, word, host, port)}"
    return host, port, word


class TrackerSession(tvm.rpc.TrackerSession):
    """TVM's session with the tracker at "HOST:PORT", as `tvm.rpc.connect_tracker` gives it, for one with a secret."""

    def __init__(self, tracker: str, secret: str | None = None):
        self._of = tracker, secret
        super().__init__(address(tracker))

    def _connect(self):
        with _connected(*self._of) as connection:
            connection.settimeout(None)
            self._sock = connection.dup()

    def request(self, key, priority=1, session_timeout=0, max_retry=5, session_constructor_args=None):
        """A session with a free server."""
        tracker, secret = self._of
        found = free_server(tracker, key, secret)
        return tvm.rpc.connect(*found, session_timeout, session_constructor_args=session_constructor_args)


# ---------------------------------------------------------------- a server


def serve(tracker, key, host, port, name, threads, cores, say) -> None:
    """Measure what is sent until Ctrl-C or SIGTERM; `say` gets a sentence for the user now and then.

    The arguments are those of `python -m tvmnotes serve`, `cores` a list of numbers. Raises ValueError where one of
    them will not do, and ConnectionError where there is no tracker, or none any more for a minute.
    """
    if len(key.split()) != 1:
        raise ValueError(f"key: expected one word; got {key!r}")
    secret = secrets.find()
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
    trial.register_cache_flush()
    # Compiled once, for all sessions. TVM's threads belong to the thread that starts them, and do not survive a fork;
    # those of this one, which forks the sessions, must not have been started.
    first = threading.Thread(target=tvm.get_global_func("tvmnotes.sweep"))
    first.start()
    first.join()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if secret is None:
        say(f"Warning: without a secret, whoever reaches {host}:{port} can run any program here.")
    elif host not in _LOOPBACK:
        say(
            f"Warning: what goes to and from {host} is not encrypted. Serve on a network that you trust only."
        )
    say(f"{name} serves on {host}:{port} as {key!r}, with {env.threads()} threads, for the tracker at {tracker}. "
        "Ctrl-C ends it.")  # fmt: skip
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


def _serve_all(listening, tracker: str, key: str, secret: str | None, say) -> None:
    """Serve one session after the other. Raises ConnectionError where the tracker has been away for a minute."""
    away = None
    with contextlib.closing(_Door(listening, key, secret, say)) as door:
        while True:
            try:
                with _connected(tracker, secret or secrets.NONE) as connection:
                    connection.settimeout(10)
                    info = {"key": f"server:{key}", "addr": (None, door.port)}
                    _ask(connection, base.TrackerCode.UPDATE_INFO, info)
                    away = None
                    while True:
                        _serve_one(say, *door.next_client(connection))
            except ConnectionError:
                away = away or clock.monotonic()
                if clock.monotonic() - away > _AWAY_SECONDS:
                    raise
                clock.sleep(1)


class _Door:
    """Takes connections, each by itself, and lets in who brings the word that the tracker was told, and its proof.

    In place of TVM's loop, which ends with what it does not expect, and waits for who says nothing.
    """

    def __init__(self, listening, key: str, secret: str | None, say):
        listening.setblocking(False)
        self.listening, self.port = listening, listening.getsockname()[1]
        self.key, self.secret, self.say = key, secret, say
        self.word, self.strangers, self.found = None, {}, asyncio.Queue()
        self.loop = asyncio.new_event_loop()
        self.taking = self.loop.create_task(self._take())

    def next_client(self, tracker) -> tuple[socket.socket, float | None]:
        """The next client, and the seconds that it wants at most, if any; `tracker` is the connection to it."""
        return self.loop.run_until_complete(self._next_client(tracker))

    async def _next_client(self, tracker):
        """The word is new for each client, and after a while where the tracker has handed it out in vain."""
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
        """End what still runs."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    async def _take(self):
        while True:
            try:
                client, _ = await self.loop.sock_accept(self.listening)
            except OSError:  # it has gone again, or too many files are open
                await asyncio.sleep(0.1)
                continue
            if len(self.strangers) >= _STRANGERS:
                longest = next(iter(self.strangers))
                longest.cancel()
                await asyncio.wait([longest])
            stranger = self.loop.create_task(self._hear(client))
            self.strangers[stranger] = client
            stranger.add_done_callback(self.strangers.pop)

    async def _hear(self, client) -> None:
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

    async def _hello(self, client) -> str:
        """A client's first message. Raises ValueError where it cannot be one."""
        magic, size = struct.unpack("<ii", await self._receive(client, 8))
        if magic != base.RPC_MAGIC or not 0 < size <= _LONGEST_HELLO:
            raise ValueError("no client of TVM's")
        return (await self._receive(client, size)).decode()

    async def _receive(self, client, size: int) -> bytes:
        said = b""
        while len(said) < size:
            more = await self.loop.sock_recv(client, size - len(said))
            if not more:
                raise OSError("it has gone")
            said += more
        return said

    def _seconds(self, client, word: str, *options: str) -> float:
        """How long a client may stay; 0.0 for one that does not bring the word, or not its proof."""
        values = dict(option.partition("=")[::2] for option in options)
        if self.word is None or word != f"client:{self.word}":
            return 0.0
        host, port, *_ = client.getsockname()
        about = self.word, host, port
        if self.secret and not secrets.proves(values.get(_PROOF[:-1]), self.secret, *about):
            self.say("a client was turned away, which does not know the secret")
            return 0.0
        self.word = None  # it is good for one session
        seconds = float(values.get("-timeout", "inf"))
        return seconds if 0 < seconds < 1e6 else float("inf")


def _stay_on(cores: list[int]) -> None:
    """Run on these CPUs only, TVM's threads too, which it would bind to others."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, AttributeError) as error:
        known = (
            ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            if hasattr(os, "sched_getaffinity")
            else "none"
        )
        raise ValueError(
            f"cores: cannot stay on {cores} ({error}); those that this process may use: {known}"
        ) from None
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
    raise ValueError(
        f"cannot serve on {host}: the ports {first} to {first + _PORTS - 1} are in use; name another port"
    )


def _serve_one(say, connection, seconds: float | None) -> None:
    """Serve a session, which is one trial, in a process of its own, and tell the client if that ends before it should.

    In place of TVM's function, after which a server is dead whose session has crashed.
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
        error = f"{CRASHED} ({session.exitcode})" * bool(session.exitcode)
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
