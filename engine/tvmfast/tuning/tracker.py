"""The tracker that knows the servers: TVM's, for clients that share a secret; other input is ignored.

`python -m tvmfast tracker` calls `run`. A stranger's message is answered with [FAIL, NUMBER] until it is
[PROOF, …], the proof of that number; then the protocol is TVM's. A connection with malformed input is closed.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time as clock
from collections.abc import Callable
from typing import Any

from tvm.rpc import base, tracker

from . import secret as secrets

Say = Callable[[str], None]

PROOF = "tvmfast.proof"  # other until 0.1, whose clients and servers are strangers
FAIL, SUCCESS = base.TrackerCode.FAIL, base.TrackerCode.SUCCESS
_HELLO_SECONDS = 5.0  # for everything before the proof
_STRANGERS = 64  # most connections without a proof


class _Connection(tracker.TCPEventHandler):
    """A connection to the tracker; any error in it closes it."""

    def __init__(self, server: Any, sock: socket.socket, addr: Any):
        super().__init__(server, sock, addr)
        self.known = False
        self.since = clock.monotonic()
        self._number = secrets.number()
        self._ioloop.call_later(_HELLO_SECONDS, lambda: self.known or self.close())

    def _event_handler(self, events: Any) -> None:
        try:
            super()._event_handler(events)
        except Exception:  # for malformed input, which TVM raises in the loop
            self.close()

    def call_handler(self, args: list) -> None:
        """Handle a request, which has to be the proof as long as the client is unknown."""
        secret = self._tracker.secret
        if self.known or secret is None:
            self.known = True
            super().call_handler(args)
        elif args[0] == PROOF and secrets.proves(args[1], secret, PROOF, self._number):
            self.known = True
            self.ret_value(SUCCESS)
        else:
            self.ret_value([FAIL, self._number])


class _Tracker(tracker.TrackerServerHandler):
    """TVM's tracker with connections of the class above."""

    def __init__(self, sock: socket.socket, secret: str | None):
        super().__init__(sock, stop_key=secrets.number())
        self.secret = secret

    def _on_event(self, _: Any) -> None:
        with contextlib.suppress(OSError):  # the client is gone, or too many files are open
            connection, address = self._sock.accept()
            strangers = [each for each in self._connections if not each.known]
            if len(strangers) >= _STRANGERS:
                min(strangers, key=lambda each: each.since).close()
            _Connection(self, connection, address)


def run(host: str, port: int, say: Say) -> None:
    """Run the tracker at an address until Ctrl-C or SIGTERM; `say(sentence)` shows messages to the user.

    The secret is that of `secret.find`. Raises ValueError if the address cannot be used, PermissionError for
    a secret file that others can read.
    """
    secret = secrets.find()
    try:
        listening = socket.create_server((host, port), family=base.get_addr_family((host, port)))
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port} ({error.strerror}); name another host or port"
        ) from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tracker.logger.setLevel(logging.ERROR)  # do not log what strangers send
    asyncio.set_event_loop(asyncio.new_event_loop())
    say(f"The tracker listens at {host}:{port}. Ctrl-C ends it.")
    if secret is None:
        say("Warning: it asks for no secret, so whoever reaches it can use its servers, or name others.")
    elif told := secrets.told():
        say(told)
    try:
        _Tracker(listening, secret).run()
    except KeyboardInterrupt:
        say("The tracker ended.")
