"""The secret shared by a tracker, its servers and clients: whoever knows it may run code on the servers.

It is made once per user, in a file that only this user can read, as Jupyter makes its token; tracker and
servers print it, for processes on other machines. All processes of one user on a machine find it by
themselves, so scripts need not name it. It is never sent over the network: a client gets a fresh random
number and answers with a keyed hash of it (HMAC-SHA256). The connection is not encrypted afterwards: the
secret keeps out other users of a machine, and of a network whose traffic they cannot change.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from ..core import data, renamed

VARIABLE = "TVMFAST_RPC_SECRET"
NONE = "none"  # instead of a secret: everybody who reaches a server may run code on it


def find(secret: str | None = None) -> str | None:
    """Find the secret: the one given, else the variable's, else that of this user's file, made if needed.

    "none" is no secret, and gives None. Raises PermissionError for a file that is not this user's alone.
    """
    secret = secret or renamed.variable("RPC_SECRET") or _of_file()
    return None if secret == NONE else secret


def file() -> Path:
    """Return the path of this user's secret, in the cache."""
    return data.cache() / "rpc_secret"


def _of_file() -> str:
    if not os.path.lexists(file()):
        part = data.writable_cache() / f".rpc_secret-{number()}"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_hex(24))
            with contextlib.suppress(FileExistsError):  # another process was faster: its secret is the user's
                os.link(part, file())
        finally:
            part.unlink(missing_ok=True)
    with open(os.open(file(), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))) as found:
        facts = os.fstat(found.fileno())
        if hasattr(os, "geteuid") and (facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077):
            raise PermissionError(
                f"{file()} has to be yours, and readable for nobody else: "
                f"remove it, and a new one is made; or set {VARIABLE}"
            )
        return found.read().strip()


def told() -> str:
    """Return what to print about the secret: nothing if the user has set it."""
    if renamed.variable("RPC_SECRET"):
        return ""
    return f"Its secret is in {file()}. On other machines: export {VARIABLE}={find()}"


def number() -> str:
    """Return a fresh random number as text."""
    return secrets.token_hex(16)


def proof(secret: str, *about: object) -> str:
    """Compute the proof that one knows the secret, for a number and what else it has to cover."""
    return hmac.new(secret.encode(), " ".join(map(str, about)).encode(), hashlib.sha256).hexdigest()


def proves(given: object, secret: str, *about: object) -> bool:
    """Return whether `given`, of any type, is that proof, compared in constant time."""
    right = proof(secret, *about)
    return hmac.compare_digest(str(given).encode("utf-8", "replace"), right.encode())
