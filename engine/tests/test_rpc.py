"""Tuning on many machines: a real tracker, real servers, and what becomes of a tuning when some of them go."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import psutil
import pytest
import tvm
from agreement import close
from fake_runner import TARGET, AsItIs, known_to_workers
from rpc_cluster import ANSWER_SECONDS, QUICK, Cluster, wait_until
from testing import SEED
from tvm import te
from tvm.rpc import base

import tvmfast
from tvmfast import tuning
from tvmfast.compiler import records
from tvmfast.core import machine
from tvmfast.tuning import secret as secrets
from tvmfast.tuning import server
from tvmfast.tuning.trial import KILLED, Candidate

pytestmark = pytest.mark.alone
HANGS = QUICK | {"timeout": 10, "build_timeout": 60}  # where a trial hangs


@dataclass(frozen=True)
class Planted(AsItIs):
    """A workload whose kernels do what their config says, and double one number."""

    op: ClassVar[str] = "planted"
    data: tuple[int] = (1,)
    weight: tuple[int] = (1,)

    def reference(self, data, weight):
        return 2 * data

    def compute(self, data, weight, config):
        call = {
            "crash": lambda: tvm.tirx.call_extern("int32", "abort"),
            "hang": lambda: tvm.tirx.call_extern("int32", "sleep", 1000),
            "be killed": lambda: tvm.tirx.call_extern("int32", "raise", int(signal.SIGKILL)),
            "sleep": lambda: tvm.tirx.call_extern("int32", "usleep", config.get("us", 0)),
        }.get(config["does"], lambda: 0)
        factor = 3.0 if config["does"] == "nonsense" else 2.0
        return te.compute((1,), lambda i: data[i] * factor + weight[i] * 0.0 + tvm.tirx.Cast("float32", call()))


def planted(*configs):
    return [Candidate(Planted(), {"does": config} if isinstance(config, str) else config, TARGET) for config in configs]


def sleeps(seconds, count):
    return planted(*({"does": "sleep", "us": int(seconds * 1e6), "number": n} for n in range(count)))


def servers_of(trials):
    """The names of the servers that have measured trials, or records; None for one that does not tell."""
    return {trial.machine.get("server") for trial in trials}


@pytest.fixture(autouse=True, scope="module")
def _planted():
    with known_to_workers(__name__):
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A tracker, with two servers of key "k" that live on."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as found:
        found.serve_all("first", "second")
        yield found


@pytest.fixture(scope="module")
def runner(cluster):
    with tuning.RpcRunner(cluster.tracker, "k", **QUICK) as found:
        yield found


# ---------------------------------------------------------------- at the door


@pytest.mark.parametrize("tracker", ["9190", "localhost", ":9190", "localhost:", "localhost:port", "localhost:99999"])
def test_a_tracker_is_named_by_host_and_port(tracker):
    with pytest.raises(ValueError, match=f"expected HOST:PORT such as 127.0.0.1:9190; got '{tracker}'"):
        tuning.RpcRunner(tracker, "k")


@pytest.mark.parametrize("listens", [False, True])
def test_a_tracker_that_does_not_answer_is_an_error_within_seconds(monkeypatch, listens):
    monkeypatch.setattr(server, "_ANSWER_SECONDS", ANSWER_SECONDS)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if listens:
            silent.listen()
        started = time.monotonic()
        with pytest.raises(ConnectionError) as caught:
            tuning.RpcRunner(f"127.0.0.1:{port}", "k")
        assert time.monotonic() - started < 15
    assert str(caught.value) == (
        f"no RPC tracker answers at 127.0.0.1:{port}: start one with "
        f"python -m tvmfast tracker --host 127.0.0.1 --port {port}"
    )


def test_a_tracker_that_speaks_something_else_is_no_tracker():
    with socket.create_server(("127.0.0.1", 0)) as web:
        address = f"127.0.0.1:{web.getsockname()[1]}"
        threading.Thread(target=lambda: web.accept()[0].sendall(b"HTTP/1.1 400 Bad Request"), daemon=True).start()
        with pytest.raises(ConnectionError, match="no RPC tracker answers"):
            server.servers(address, "k")


def test_a_tracker_without_a_server_of_the_key_says_how_to_start_one(cluster):
    with pytest.raises(ConnectionError) as caught:
        tuning.RpcRunner(cluster.tracker, "pi")
    assert f"knows no server of key 'pi': start one with python -m tvmfast serve --tracker {cluster.tracker} " in str(
        caught.value
    )


# ---------------------------------------------------------------- tuning


def test_a_tuning_uses_all_servers(small, cluster, runner, tmp_path):
    log = tmp_path / "records.jsonl"
    summary = tvmfast.tune(small.mod, small.params, tuner="random", trials=6, records=log, runner=runner, seed=SEED)
    found = records.read(log)
    trials, finals = [r for r in found if not r.final], [r for r in found if r.final]
    assert len(trials) == 6 and finals
    assert not any(r.error for r in found)
    assert {r.machine["rpc"] for r in found} == {"k"}
    assert servers_of(trials) == {"first", "second"}
    assert all(r.machine["cpu"] == machine.cpu_name() and r.machine["threads"] == 1 for r in trials)
    assert summary.network is None and not summary.interrupted
    lib = tvmfast.build(small.mod, small.params, records=log)
    assert "of this target" in lib.graph["tuned"]
    close(lib(small.x), small.exact)


def test_a_candidate_that_fails_costs_its_trial_only(cluster):
    def ended():
        return sum(cluster.text(name).count("a trial was ended") for name in ("first", "second"))

    before = ended()
    with tuning.RpcRunner(cluster.tracker, "k", **HANGS) as runner:
        started = {name: process.pid for name, process in cluster.processes.items()}
        trials = runner.measure(planted("double", "crash", "nonsense", "hang", "crash", "be killed", "double"))
        wait_until(lambda: cluster.free() == 2)
        again = runner.measure(planted("double", "double", "double", "double"))
    assert [trial.error for trial in trials] == [
        None,
        "its process ended",
        "its result differs by 5.0e-01 of the largest magnitude",
        "it took longer than 10 s",
        "its process ended",
        KILLED,
        None,
    ]
    assert [trial.lost for trial in trials] == [False] * 5 + [True, False]
    assert [bool(trial.seconds) for trial in trials] == [trial.error is None for trial in trials]
    assert [trial.error for trial in again] == [None] * 4
    assert servers_of(again) == {"first", "second"}
    assert started == {name: process.pid for name, process in cluster.processes.items()}
    assert len(cluster.servers()) == 2
    assert ended() - before == 3 + 3  # of these, the one that was killed from outside alone was tried again


def test_the_caches_are_swept_on_the_server(runner):
    assert [t.error for t in runner.measure(planted("double"))] == [None]
    session = server.TrackerSession(runner.tracker).request("k")
    session.get_function("tvmfast.sweep")()
    told = json.loads(session.get_function("tvmfast.server")())
    assert told["server"] in {"first", "second"}
    assert told["threads"] == 1 and told["cpu"] == machine.cpu_name()


@pytest.mark.full
def test_a_server_that_joins_is_used_from_the_next_batch_on(cluster):
    cluster.serve("one", key="joined")
    with tuning.RpcRunner(cluster.tracker, "joined", **QUICK) as runner:
        assert servers_of(runner.measure(planted("double", "double"))) == {"one"}
        cluster.serve("another", key="joined")
        assert servers_of(runner.measure(sleeps(0.1, 4))) == {"one", "another"}
    for name in ("one", "another"):
        cluster.unplug(name)


@pytest.mark.full
def test_servers_that_go(cluster, tmp_path):
    """One is killed in mid-trial: nothing is lost. All are killed: an error, and the runner can be used again."""
    cluster.serve_all("one", "another", key="dying")
    with tuning.RpcRunner(cluster.tracker, "dying", **QUICK) as runner:
        runner.measure(sleeps(0.0, 2))
        with ThreadPoolExecutor() as threads:
            killed = threads.submit(cluster.unplug_in_mid_trial, "one")
            trials = runner.measure(sleeps(0.5, 6))
            killed.result()
        assert [trial.error for trial in trials] == [None] * 6
        assert all(len(trial.seconds) == QUICK["repeat"] for trial in trials)
        assert servers_of(trials[-2:]) == {"another"}
        wait_until(lambda: len(cluster.servers("dying")) == 1)

        started = time.monotonic()
        all_gone = "all servers of key 'dying' are gone; what was measured is kept"
        with ThreadPoolExecutor() as threads, pytest.raises(ConnectionError, match=all_gone):
            threads.submit(cluster.unplug_in_mid_trial, "another")
            runner.measure(sleeps(0.5, 4))
        assert time.monotonic() - started < 120
        cluster.serve("one", key="dying")
        assert [trial.error for trial in runner.measure(planted("double"))] == [None]
    cluster.unplug("one")


@pytest.mark.full
@pytest.mark.parametrize("when", ["free", "in mid-trial"])
def test_a_server_that_falls_silent_loses_its_trial_to_another(cluster, when):
    """As when a cable is pulled: the connection stays, and no answer comes."""
    cluster.serve_all("silent", "other", key="cable")

    def pull():
        if when == "in mid-trial":
            cluster.wait_for_trial("silent")
        os.killpg(cluster.processes["silent"].pid, signal.SIGSTOP)

    with tuning.RpcRunner(cluster.tracker, "cable", **HANGS) as runner, ThreadPoolExecutor() as threads:
        runner.measure(sleeps(0.0, 2))
        wait_until(lambda: cluster.free("cable") == 2)
        pulled = threads.submit(pull)
        if when == "free":
            pulled.result()
        trials = runner.measure(sleeps(0.1, 8))
        pulled.result()
    assert [trial.error for trial in trials] == [None] * 8
    for name in ("silent", "other"):
        cluster.unplug(name)


@pytest.mark.full
def test_tvms_own_tracker_and_server_will_do(tmp_path):
    with Cluster(tmp_path, tvms_own=True) as cluster:
        cluster.serve("tvms", key="tvms", module="tvm.exec.rpc_server")
        with tuning.RpcRunner(cluster.tracker, "tvms", **HANGS) as runner:
            trials = runner.measure(planted("double", "nonsense", "hang", "double"))
    assert [trial.error for trial in trials] == [
        None,
        "its result differs by 5.0e-01 of the largest magnitude",
        "it took longer than 10 s",
        None,
    ]
    assert servers_of(trials) == {None}


# ---------------------------------------------------------------- strangers

GARBAGE = {
    "no key": struct.pack("<ii", base.RPC_MAGIC, 0),
    "a key that is no text": struct.pack("<ii", base.RPC_MAGIC, 4) + b"\xff\xfe\xfd\xfc",
    "a negative length": struct.pack("<ii", base.RPC_MAGIC, -1),
    "a length without end": struct.pack("<ii", base.RPC_MAGIC, 1 << 30) + b"x" * 100,
    "a wrong word": struct.pack("<ii", base.RPC_MAGIC, 12) + b"client:k:0.5",
    "spaces": struct.pack("<ii", base.RPC_MAGIC, 4) + b"    ",
    "the web": b"GET / HTTP/1.1\r\n\r\n",
    "half a message": struct.pack("<i", base.RPC_MAGIC),
    "nothing": b"",
}
TO_A_TRACKER = [b"\xff\xfe", b"{{", b"[]", b"5", b"{}", b"[3]", b'["tvmfast.proof", null]', b"[" * 100_000]


def greeted(address):
    """A connection to a tracker that has answered the greeting."""
    connection = socket.create_connection(address, 60)
    connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
    base.recvall(connection, 4)
    return connection


def test_garbage_and_silence_cost_their_own_connection(cluster, runner):
    """To the tracker and to servers. Those that say too little stay open while others are served, and are closed."""
    tracker = server.address(cluster.tracker)
    connections = []
    for there in (tracker, *cluster.servers()):
        for message in GARBAGE.values():
            connections.append(socket.create_connection(there, 60))
            connections[-1].sendall(message)
    for message in TO_A_TRACKER:
        connections.append(greeted(tracker))
        connections[-1].sendall(struct.pack("<i", len(message)) + message)
    trials = runner.measure(planted("double", "double", "double", "double"))
    assert [trial.error for trial in trials] == [None] * 4 and servers_of(trials) == {"first", "second"}
    for connection in connections:
        with connection, contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):  # what the tracker says to strangers, until it closes the connection
                pass
    for name in ("tracker", "first", "second"):
        assert cluster.processes[name].poll() is None and "Traceback" not in cluster.text(name)


@pytest.mark.parametrize("secret", ["another", "none"])
def test_without_the_secret_a_tracker_says_nothing(cluster, secret):
    with pytest.raises(server.Refused, match=f"has another secret: set {secrets.VARIABLE} to the one that it printed"):
        tuning.RpcRunner(cluster.tracker, "k", secret)
    with pytest.raises(RuntimeError):  # TVM's own client
        tvm.rpc.connect_tracker(*server.address(cluster.tracker)).summary()
    assert f"export {secrets.VARIABLE}={secrets.find()}" in cluster.text("tracker")


def test_a_server_runs_nothing_for_who_knows_its_word_but_not_the_secret(cluster):
    host, port, word = server.free_server(cluster.tracker, "k")
    match_key, _, proof = word.partition(" -proof=")
    elsewhere = secrets.proof(secrets.find(), match_key, host, port + 1)  # what a false server could pass on
    for bad in (
        match_key,
        f"{match_key} -proof=",
        f"{match_key} -proof={'0' * 64}",
        f"{match_key} -proof={elsewhere}",
        f"{match_key}0 -proof={proof}",
    ):
        with pytest.raises(Exception, match="(?i)match"):
            tvm.rpc.connect(host, port, bad)
    assert tvm.rpc.connect(host, port, word).get_function("tvmfast.server")()
    with pytest.raises(Exception, match="(?i)match"):  # a word is good for one session
        tvm.rpc.connect(host, port, word)


# ---------------------------------------------------------------- serve


def serve(*options):
    command = [sys.executable, "-m", "tvmfast", "serve", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**os.environ, "COLUMNS": "500"})


@pytest.mark.parametrize(
    "options, told",
    [
        (("--tracker", "nowhere"), "tracker: expected HOST:PORT such as 127.0.0.1:9190; got 'nowhere'"),
        (("--threads", 0), "expected 1 or more, got 0"),
        (("--cores", "0,x"), "expected numbers with commas such as 0,1; got '0,x'"),
    ],
)
def test_serve_refuses_what_will_not_do(options, told):
    done = serve(*options)
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr


def test_serve_refuses_cores_that_are_not_there(cluster):
    done = serve("--tracker", cluster.tracker, "--cores", 4095)
    assert done.returncode == 2
    assert "cannot stay on [4095]" in done.stderr and "those that this process may use: " in done.stderr


def test_serve_says_in_one_sentence_that_no_tracker_answers():
    with socket.socket() as taken:  # by one that does not listen
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = serve("--tracker", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"no RPC tracker answers at 127.0.0.1:{port}: start one with python -m tvmfast tracker" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_with_all_its_processes(cluster, number):
    """In mid-trial, and also where only the server itself gets the signal."""
    key = f"ended-by-{number:d}"
    ends = cluster.serve("ends", key=key)
    _session = session(cluster, key)
    children = psutil.Process(ends.pid).children(recursive=True)
    ends.send_signal(number)
    assert ends.wait(300) == 0
    _, alive = psutil.wait_procs(children, timeout=120)
    assert children and not alive
    assert "ends ended." in cluster.text("ends")
    assert "Traceback" not in cluster.text("ends")
    cluster.processes.pop("ends")


def session(cluster, key):
    """A session, as of a trial, that has answered."""
    session = server.TrackerSession(cluster.tracker).request(key, session_timeout=600)
    session.get_function("tvmfast.sweep")()  # TVM has started its threads, and may bind them
    return session


@pytest.mark.full
def test_serve_warns_on_a_network(cluster):
    cluster._start("open", "tvmfast", "serve", "--tracker", cluster.tracker, "--key", "open", "--host", "0.0.0.0")
    wait_until(lambda: cluster.servers("open"))
    cluster.unplug("open")
    assert "Warning: what goes to and from 0.0.0.0 is not encrypted." in cluster.text("open")
    assert "Warning" not in cluster.text("first")


@pytest.mark.full
def test_serve_stays_on_its_cores(cluster):
    core = min(os.sched_getaffinity(0))
    cluster._start("pinned", "tvmfast", "serve", "--tracker", cluster.tracker, "--key", "pinned", "--cores", core)
    wait_until(lambda: cluster.servers("pinned"))
    _session = session(cluster, "pinned")
    running = psutil.Process(cluster.processes["pinned"].pid).children()
    assert running
    assert all(os.sched_getaffinity(thread.id) == {core} for process in running for thread in process.threads())
    assert re.search(r":\d+ serves on 127.0.0.1:\d+ as 'pinned', with 1 threads", cluster.text("pinned"))
    cluster.unplug("pinned")
