"""data: bundled before cached before downloaded, with the checksum; no network, a bad one, and none allowed."""

import hashlib
import http.server
import socket
import threading

import pytest

from tvmfast.core import data

CONTENT = b"what the server has" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT for any path, or an error or half of it where `trouble` says so; `asked` holds the paths."""

    def __init__(self):
        self.asked, self.trouble = [], None
        self.heard, self.over = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.heard.set()
        if self.server.trouble == "404":
            self.send_error(404)
            return
        if self.server.trouble == "silence":
            self.server.over.wait(120)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.server.trouble is None else CONTENT[:100])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(data, "_CONNECT_SECONDS", 120)  # it may be late on a busy machine
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of the test's own, and leave to download."""
    monkeypatch.setenv("TVMNOTES_OFFLINE", "0")
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))
    data._host_answers.cache_clear()
    yield tmp_path / "cache"
    data._host_answers.cache_clear()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def put(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.fixture
def refused():
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/file.bin"


# ---------------------------------------------------------------- where a file comes from


def test_a_bundled_file_comes_before_all_others(cache, server, monkeypatch, tmp_path):
    put(cache / "digits/test.npz", CONTENT)
    bundled = put(tmp_path / "bundled/digits/test.npz", CONTENT)
    monkeypatch.setattr(data, "BUNDLED", [tmp_path / "bundled"])
    assert data.path("digits/test.npz", server.url, SHA256) == bundled
    assert server.asked == []


def test_a_cached_file_comes_before_a_download(cache, server):
    cached = put(cache / "a/b.bin", CONTENT)
    assert data.path("a/b.bin", server.url, SHA256) == cached
    assert data.path("a/b.bin") == cached
    assert server.asked == []


def test_a_download_is_kept(cache, server):
    path = data.path("a/b.bin", server.url, SHA256)
    assert path == cache / "a/b.bin" and path.read_bytes() == CONTENT
    assert data.path("a/b.bin", server.url, SHA256) == path
    assert (server.asked, files(cache)) == (["/file.bin"], ["a/b.bin"])


def test_a_cached_file_with_another_checksum_is_fetched_anew(cache, server):
    put(cache / "b.bin", b"half of it")
    assert data.path("b.bin", server.url, SHA256).read_bytes() == CONTENT


# ---------------------------------------------------------------- what goes wrong on the way


def test_a_download_with_another_checksum_is_not_kept(cache, server):
    with pytest.raises(ValueError, match=f"{server.url} gave .* not the expected SHA-256 {OTHER}"):
        data.path("a/b.bin", server.url, OTHER)
    assert (server.asked, files(cache)) == (["/file.bin"], [])


@pytest.mark.parametrize("trouble", ["404", "half", "silence"])
def test_a_download_that_breaks_leaves_nothing_and_says_how_to_do_without(cache, server, monkeypatch, trouble):
    if trouble == "silence":
        monkeypatch.setattr(data, "_CONNECT_SECONDS", 0.3)
    server.trouble = trouble
    with pytest.raises(FileNotFoundError) as raised:
        data.path("a/b.bin", server.url, SHA256)
    for part in ("b.bin", server.url, str(cache / "a/b.bin"), SHA256):
        assert part in str(raised.value)
    assert server.heard.wait(120)
    assert (server.asked, files(cache)) == (["/file.bin"], [])


def test_a_host_that_does_not_answer_is_given_up(cache, refused):
    with pytest.raises(FileNotFoundError) as raised:
        data.path("a/b.bin", refused, SHA256)
    for part in ("'a/b.bin'", "127.0.0.1 does not answer", refused, str(cache / "a/b.bin"), SHA256):
        assert part in str(raised.value)
    assert not cache.exists()


def test_a_host_is_tried_once_with_a_limit(cache, monkeypatch):
    tried = []

    def connect(address, timeout):
        tried.append((address, timeout))
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for url in ("https://slow.example/a", "https://slow.example/b", "http://slow.example/c"):
        assert not data.reachable(url)
    assert tried == [(("slow.example", 443), 3), (("slow.example", 80), 3)]


def test_behind_a_proxy_the_proxy_decides(cache, monkeypatch, refused):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert data.reachable("http://far.example/file")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not data.reachable(refused)


@pytest.mark.parametrize(("setting", "offline"), [("", False), ("0", False), ("1", True), ("yes", True)])
def test_offline(monkeypatch, setting, offline):
    monkeypatch.setenv("TVMNOTES_OFFLINE", setting)
    assert data.offline() == offline


def test_offline_opens_no_socket(cache, server, monkeypatch):
    def forbidden(*args, **kwargs):
        pytest.fail("a socket was opened")

    monkeypatch.setenv("TVMNOTES_OFFLINE", "1")
    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, forbidden)
    put(cache / "old.bin", b"half of it")
    assert not data.reachable(server.url)
    for name in ("new.bin", "old.bin"):
        with pytest.raises(FileNotFoundError, match="TVMNOTES_OFFLINE is set.*Fetch it elsewhere from"):
            data.path(name, server.url, SHA256)


# ---------------------------------------------------------------- at the door


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc/hostname"])
def test_names_stay_inside(cache, server, name):
    with pytest.raises(ValueError, match="expected a name inside the data folder"):
        data.path(name, server.url, SHA256)
    assert server.asked == []


def test_a_file_that_is_nowhere(cache):
    with pytest.raises(FileNotFoundError, match="no file 'digits/tset.npz'.*no address to fetch it from"):
        data.path("digits/tset.npz")


def test_a_download_needs_a_checksum(cache, server):
    with pytest.raises(ValueError, match="needs its SHA-256"):
        data.path("b.bin", server.url)
    assert server.asked == []


def test_a_cache_that_cannot_be_written(cache, server):
    cache.write_text("a file in the place of the folder")
    for attempt in (data.writable_cache, lambda: data.path("a/b.bin", server.url, SHA256)):
        with pytest.raises(PermissionError, match="cannot be written.*set TVMNOTES_CACHE"):
            attempt()
    assert server.asked == []


def test_a_writable_cache_is_made_and_left_empty(cache):
    assert data.writable_cache() == cache == data.cache()
    assert list(cache.iterdir()) == []


def test_the_cache_is_under_home_unless_set(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMNOTES_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    now, former = (tmp_path / ".cache" / name for name in ("tvmfast", "tvmnotes"))
    assert data.cache() == now
    former.mkdir(parents=True)
    assert data.cache() == former  # of versions until 0.1: it holds exercises, downloads and kernels
    now.mkdir()
    assert data.cache() == now


def test_a_variable_has_two_spellings(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "former"))
    assert data.cache() == tmp_path / "former"
    monkeypatch.setenv("TVMFAST_CACHE", str(tmp_path / "now"))
    assert data.cache() == tmp_path / "now"
    monkeypatch.setenv("TVMFAST_CACHE", "")
    assert data.cache() == tmp_path / "former"
    monkeypatch.setenv("TVMNOTES_OFFLINE", "1")
    monkeypatch.setenv("TVMFAST_OFFLINE", "0")
    assert not data.offline()
    monkeypatch.setenv("TVMFAST_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="TVMFAST_OFFLINE is set"):
        data.path("new.bin", "http://127.0.0.1:1/file", SHA256)
