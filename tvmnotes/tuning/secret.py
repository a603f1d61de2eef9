"""The secret that a tracker, its servers and those who tune share: whoever knows it may run code on the servers.

It is made once for a user, in a file that only this user can read, as Jupyter makes its token; tracker and servers
print it, for processes of other machines. All processes of one user on a machine find it by themselves, so scripts
need not name it. It never goes over the network: who connects gets a number that nobody has seen before, and answers
with a keyed hash of it (HMAC-SHA256). What follows is not encrypted: the secret keeps other users of a machine, and of
a network whose traffic they cannot change, from the servers.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from ..base import data

VARIABLE = "TVMNOTES_RPC_SECRET"
NONE = "none"  # in the place of a secret: all who reach a server may run code on it


def find(secret: str | None = None) -> str | None:
    """The secret: the one given, else that of the variable, else that of this user's file, which is made if need be.

    "none" is no secret, and gives None. Raises PermissionError for a file that is not this user's alone.
    """
    secret = secret or os.environ.get(VARIABLE) or _of_file()
    return None if secret == NONE else secret


def file() -> Path:
    """Where this user's secret is: in the cache."""
    return data.cache() / "rpc_secret"


def _of_file() -> str:
    if not os.path.lexists(file()):
        part = data.writable_cache() / f".rpc_secret-{number()}"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_hex(24))
            with contextlib.suppress(
                FileExistsError
            ):  # another process was faster: its secret is this user's
                os.link(part, file())
        finally:
            part.unlink(missing_ok=True)
    with open(os.open(file(), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))) as found:
        facts = os.fstat(found.fileno())
        if hasattr(os, "geteuid") and (facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077):
            raise PermissionError(
                f"{file()} has to be yours, and readable for nobody else: remove it, and a new one is made; or set "
                f"{VARIABLE}"
            )
        return found.read().strip()


def told() -> str:
    """What to print of the secret: nothing of one that the user has set."""
    if os.environ.get(VARIABLE):
        return ""
    return f"Its secret is in {file()}. On other machines: export {VARIABLE}={find()}"


def number() -> str:
    """A number that nobody has seen before."""
    return secrets.token_hex(16)


def proof(secret: str, *about) -> str:
    """What shows that one knows the secret, about a number and what else is meant."""
    return hmac.new(secret.encode(), " ".join(map(str, about)).encode(), hashlib.sha256).hexdigest()


def proves(given, secret: str, *about) -> bool:
    """Whether `given`, of any type, is that proof; compared in a time that does not tell how much of it is right."""
    right = proof(secret, *about)
    return hmac.compare_digest(str(given).encode("utf-8", "replace"), right.encode())
