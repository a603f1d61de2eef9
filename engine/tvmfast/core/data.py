"""Files by name: bundled with the project, else in the cache, else downloaded and checked by SHA-256.

Notebooks, `models` and `vision` get every file that is not code from here. Nothing is downloaded if
TVMFAST_OFFLINE=1. Without a network a download fails within seconds, with an error that says how to do
without it.
"""

import contextlib
import functools
import hashlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from . import renamed

BUNDLED: list[Path] = []  # folders of files that are here without a download: tvmnotes adds its own
_CONNECT_SECONDS = 3
_log = logging.getLogger(__name__)


def offline() -> bool:
    """Tell whether the user has disabled downloads: TVMFAST_OFFLINE is set, and is neither 0 nor empty."""
    return renamed.variable("OFFLINE", "0") != "0"


def cache() -> Path:
    """Return the folder for downloaded and generated files: TVMFAST_CACHE or ~/.cache/tvmfast.

    Where only the folder of versions until 0.1 exists, ~/.cache/tvmnotes, it is that one: it holds downloads,
    compiled kernels and solved exercises. The folder may not exist yet.
    """
    if given := renamed.variable("CACHE"):
        return Path(given).expanduser()
    folders = [Path.home() / ".cache" / name for name in renamed.NAMES]
    return next(filter(Path.is_dir, folders), folders[0])


def writable_cache() -> Path:
    """Create and return `cache()`. Raises PermissionError, with a fix, if it is not writable."""
    folder = cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise PermissionError(
            f"the cache {folder} cannot be written ({error.strerror or error}): "
            f"set {renamed.spelled('CACHE')} to a folder that can, or mend its permissions"
        ) from error
    return folder


def path(name: str, url: str | None = None, sha256: str | None = None) -> Path:
    """Return the local path of a file; download it if it is neither bundled nor cached.

    Args:
        name: Path inside the data folder, such as "digits/test.npz".
        url: Address to download from; None means no download.
        sha256: Checksum in hexadecimal. A download needs one, and a file that does not match is not kept.

    Raises:
        ValueError: The name leaves the data folder, or the checksum is missing or does not match.
        FileNotFoundError: The file is not here and cannot be downloaded.
        PermissionError: The cache is not writable.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"expected a name inside the data folder, such as 'digits/test.npz'; got {name!r}")
    for folder in BUNDLED:
        if (folder / name).is_file():
            _log.debug("%s: bundled in %s", name, folder)
            return folder / name
    cached = cache() / name
    if cached.is_file() and (sha256 is None or checksum(cached) == sha256):
        _log.debug("%s: cached in %s", name, cache())
        return cached
    if url is None:
        raise FileNotFoundError(
            f"no file {name!r}: it is not in {' or '.join(map(str, [*BUNDLED, cache()]))}, and there is no "
            "address to fetch it from. Check the name, or put the file into one of these folders."
        )
    if sha256 is None:
        raise ValueError(f"{name!r}: a download needs its SHA-256 checksum, got none")
    if not reachable(url):
        why = f"{urlsplit(url).hostname} does not answer"
        if offline():
            why = f"{renamed.spelled('OFFLINE')} is set"
        raise FileNotFoundError(
            f"cannot fetch {name!r}: {why}. Fetch it elsewhere from {url} and put it at {cached} "
            f"(SHA-256 {sha256})."
        )
    _log.info("%s: fetched from %s", name, url)
    return _download(url, sha256, cached)


@contextlib.contextmanager
def atomic_path(file: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary path that is renamed to `file` at the end: no reader sees a partial file."""
    file = Path(file)
    part = file.with_name(f".{file.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def atomic_write(file: str | os.PathLike, text: str) -> Path:
    """Write a text file so that no reader ever sees it half-written; return its path."""
    with atomic_path(file) as part:
        part.write_text(text)
    return Path(file)


def _download(url: str, sha256: str, target: Path) -> Path:
    import pooch  # for speed: most files are here already
    import requests  # for speed

    folder = writable_cache() / target.relative_to(cache()).parent
    fetch = pooch.HTTPDownloader(progressbar=True, timeout=_CONNECT_SECONDS)
    try:
        return Path(pooch.retrieve(url, f"sha256:{sha256}", target.name, folder, downloader=fetch))
    except requests.RequestException as error:
        raise FileNotFoundError(
            f"cannot fetch {target.name!r} from {url} ({type(error).__name__}: {error}). "
            f"Fetch it elsewhere and put it at {target} (SHA-256 {sha256})."
        ) from error
    except ValueError as error:  # pooch's error for a checksum that does not match; it has removed the file
        raise ValueError(
            f"{url} gave a file whose checksum is not the expected SHA-256 {sha256}; it was not kept. "
            "Try again later, or fetch it elsewhere."
        ) from error


@functools.cache
def _host_answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def reachable(url: str) -> bool:
    """Tell whether to try a download: not `offline()`, and the host accepts a connection in 3 seconds.

    Each host is tried once per process. With a proxy (HTTPS_PROXY, …) the proxy decides, so the answer is
    yes.
    """
    from urllib.request import getproxies, proxy_bypass  # for speed: most files are here already

    if offline():
        return False
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return True
    return _host_answers(host, parts.port or (80 if parts.scheme == "http" else 443))


def checksum(file: Path) -> str:
    """Compute the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
