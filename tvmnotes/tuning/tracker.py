"""The tracker that knows the servers: TVM's, for those who share a secret, and deaf to what is no tracker's language.

`python -m tvmnotes tracker` calls `run`. What a stranger says is answered with [FAIL, NUMBER] until it is
[PROOF, …], the proof of that number; then all is as TVM has it.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time as clock

from tvm.rpc import base, tracker

from . import secret as secrets

PROOF = "tvmnotes.proof"
FAIL, SUCCESS = base.TrackerCode.FAIL, base.TrackerCode.SUCCESS
_HELLO_SECONDS = 5.0  # for all that comes before the proof
_STRANGERS = 64  # connections at most that have proved nothing


class _Connection(tracker.TCPEventHandler):
    """A connection to the tracker. Whatever goes wrong in it closes it."""

    def __init__(self, server, sock, addr):
        super().__init__(server, sock, addr)
        self.known, self.since, self._number = False, clock.monotonic(), secrets.number()
        self._ioloop.call_later(_HELLO_SECONDS, lambda: self.known or self.close())

    def _event_handler(self, events):
        try:
            super()._event_handler(events)
        except Exception:  # of garbage, which TVM hands on to the loop
            self.close()

    def call_handler(self, args):
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
    """TVM's tracker, whose connections are ours."""

    def __init__(self, sock, secret):
        super().__init__(sock, stop_key=secrets.number())
        self.secret = secret

    def _on_event(self, _):
        with contextlib.suppress(OSError):  # who has connected has gone again, or too many files are open
            connection, address = self._sock.accept()
            strangers = [each for each in self._connections if not each.known]
            if len(strangers) >= _STRANGERS:
                min(strangers, key=lambda each: each.since).close()
            _Connection(self, connection, address)


def run(host: str, port: int, say) -> None:
    """Be the tracker at an address until Ctrl-C or SIGTERM; `say` gets sentences for the user.

    The secret is what `secret.find` gives. Raises ValueError where the address cannot be had, PermissionError for a
    file of the secret that others can read.
    """
    secret = secrets.find()
    try:
        listening = socket.create_server((host, port), family=base.get_addr_family((host, port)))
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port} ({error.strerror}); name another host or port"
        ) from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tracker.logger.setLevel(logging.ERROR)  # what strangers send is no news
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
