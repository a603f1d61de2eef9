"""What may happen to a tuning: it is killed or stopped, the disk is full, two share a file, candidates are bad."""

import contextlib
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from fake_runner import TARGET, AsItIs, FakeRunner, known_to_workers, task
from testing import SEED, STORM, sampled
from torch import nn
from tvm import te

import tvmfast
from tvmfast.compiler import records
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.profiling import networks
from tvmfast.tuning import LocalRunner, Task, trial, workers

HERE = Path(__file__).parent  # where a process of its own finds `fake_runner` and `testing`
LIMIT = 600  # seconds: far more than anything here takes

# A tuning with a runner that answers at once. Its log tells, a line of JSON for each batch, when it had read the file
# last, and when the batch was on the disk, and which configs those were.
TELLING = """
import json, os, sys, time
from fake_runner import *
from tvmfast import tune
from tvmfast.compiler import records
from tvmfast.tuning import session

class Telling(session.Log):
    def _read_new(self):
        self.had_read = time.monotonic()
        return super().read_new()
    read_new = _read_new

    def append(self, found):
        super().append(found)
        keys = [[f.workload.op, str(f.workload), records.key(f.config)] for f in found if not f.final]
        told = {"pid": os.getpid(), "read": self.had_read, "written": time.monotonic(), "keys": keys}
        os.write(marks, json.dumps(told).encode() + b"\\n")

session.Log = Telling

class Slow(FakeRunner):
    pause = 0.002

    def measure(self, candidates):
        time.sleep(self.pause)
        return super().measure(candidates)

def go(records, **options):
    given = {"tasks": tasks(), "runner": Slow(), "trials": TRIALS, "tuner": "random"} | options
    return tune(None, {}, records=records, **given)

path, marks = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
"""


def told(marks: Path) -> list[dict]:
    return [json.loads(line) for line in marks.read_text().splitlines()] if marks.exists() else []


def keys_of(found) -> list[tuple]:
    return [(each.workload.op, str(each.workload), records.key(each.config)) for each in found if not each.final]


@contextlib.contextmanager
def started(*command, **options):
    """A Python process, with pipes, that is killed at the end; or after LIMIT, so that nobody waits for it for ever."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    ) as process:
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def state_of(process: psutil.Process) -> str:
    """What a process is, and where in the kernel it waits; nothing of one that has ended."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE or not process.is_running():
            return ""
        wchan = Path(f"/proc/{process.pid}/wchan")
        where = wchan.read_text() if wchan.exists() else "?"
        return f"{process.pid} {process.cmdline()}: {process.status()}, in {where}"
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_end(processes, seconds=120) -> list[str]:
    """Those that are still there after so many seconds."""
    end = time.monotonic() + seconds
    while (alive := [*filter(None, map(state_of, processes))]) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


# ---------------------------------------------------------------- killed

# One process has everything imported; each of the tunings is a child of it, killed at a moment of its own.
KILLED = (
    TELLING.replace("TRIALS", "10**6")
    + """
import random, signal, threading
from tqdm import tqdm
tqdm.monitor_interval = 0  # its thread and its semaphore are shared with children, who may be killed holding the lock
tqdm.set_lock(threading.RLock())
moments, Slow.pause = random.Random(int(sys.argv[3])), 0.02
tune(None, {}, records=path, tasks=tasks(), runner=FakeRunner(), trials=10, tuner="random")  # everything is imported
for kill in range(20):
    child = os.fork()
    if not child:
        go(path)
        os._exit(3)  # it must not come to its end
    size, batches = os.fstat(marks).st_size, moments.randrange(4)
    while open(sys.argv[2]).read()[size:].count("\\n") < batches:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
        time.sleep(0.0005)
    time.sleep(moments.uniform(0, 0.02 if batches else 0.2))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(open(path).readlines()), flush=True)
before = sum(trials for _, trials, _, _ in go(path, trials=1).rows)
summary = go(path, trials=before + 40)
print(before, sum(trials for _, trials, _, _ in summary.rows))
"""
)


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.storm
@pytest.mark.parametrize("seed", range(SEED, SEED + STORM))
def test_a_tuning_killed_20_times_loses_no_batch_and_measures_nothing_twice(tmp_path, seed):
    path, marks = tmp_path / "tuning.jsonl", tmp_path / "marks"
    command = [sys.executable, "-c", KILLED, path, marks, str(seed)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    *kills, (before, trials) = (list(map(int, line.split())) for line in done.stdout.splitlines())
    assert [code for code, _ in kills] == [-signal.SIGKILL] * 20
    assert trials == before + 40
    grown = [lines for _, lines in kills]
    assert grown == sorted(grown) and len(set(grown)) > 5, "each start goes on where the last was killed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lines that a kill has torn
        found = keys_of(records.read(path))
    assert len(found) == trials == len(set(found)), "a config was measured twice"
    marked = [tuple(key) for batch in told(marks) for key in batch["keys"]]
    assert set(marked) <= set(found), "a batch that was measured is not there"


REAL = """
import sys
import testing
from tvmfast import from_pytorch, tune
from tvmfast.profiling import networks
from tvmfast.tuning import session
session.Session.finish = lambda *_: None  # what follows the search
append = session.Log.append
def telling(self, found):
    append(self, found)
    print("batch", flush=True)
session.Log.append = telling
mod, params = from_pytorch(networks.seeded(testing.SmallNet, 8), {"image": (1, 3, 8, 8)})
print(tune(mod, params, records=sys.argv[1], trials=int(sys.argv[2]), tuner="random"))
"""


def start_real(path, trials, temporary):
    env = {**os.environ, "TQDM_DISABLE": "1", "TMPDIR": str(temporary)}
    return started("-c", REAL, path, trials, cwd=HERE, env=env)


@pytest.mark.alone
@pytest.mark.storm
@pytest.mark.parametrize("_kill", range(STORM))
def test_a_kill_while_kernels_are_measured_leaves_the_batches_and_no_process(tmp_path, _kill):
    path, temporary = tmp_path / "tuning.jsonl", tmp_path / "tmp"
    temporary.mkdir()
    with start_real(path, 1000, temporary) as killed:
        for _ in range(2):
            assert killed.stdout.readline() == "batch\n", killed.stderr.read()
        workers = psutil.Process(killed.pid).children(recursive=True)
        assert workers
        os.kill(killed.pid, signal.SIGKILL)
    assert wait_for_end(workers) == []
    before = keys_of(records.read(path))
    assert len(before) >= 16
    assert [*temporary.glob("tvmfast-trials-*")]
    with start_real(path, len(before) + 4, temporary) as again:
        out, err = again.communicate(timeout=LIMIT)
    assert again.returncode == 0, err
    found = keys_of(records.read(path))
    assert found[: len(before)] == before
    assert len(found) == len(before) + 4 == len(set(found))
    assert f"{len(found)} trials in {path}" in out
    assert list(temporary.glob("tvmfast-trials-*")) == []


# A process that starts a worker, gives it a job, and waits. The job holds Python's lock: no thread of the worker runs.
STARTS = """
import os, pickle, struct, subprocess, sys
(read, their_write), (their_read, write) = os.pipe(), os.pipe()
pipes = (their_read, their_write)
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], *map(str, pipes)], pass_fds=pipes)
job = pickle.dumps((exec, (sys.argv[2],), {}, None))
os.write(write, struct.pack("<i", len(job)) + job)
worker.wait()
"""
HANG = "import ctypes, os; os.write(1, b'%d\\n' % os.getpid()); ctypes.PyDLL(None).sleep(1000)"


@pytest.mark.alone
def test_a_worker_ends_with_who_started_it_whatever_it_does():
    with started("-c", STARTS, workers._MAIN, HANG) as killed:
        worker = psutil.Process(int(killed.stdout.readline()))
        killed.kill()
        assert wait_for_end([worker]) == []


@pytest.mark.alone
def test_a_worker_that_cannot_go_on_says_why_and_fails():
    read, write = os.pipe()
    with started("-c", workers._MAIN, read, 1, pass_fds=[read]) as worker:
        os.close(read)
        os.write(write, struct.pack("<i", 4) + b"none")  # it cannot be unpickled
        _, err = worker.communicate(timeout=LIMIT)
        os.close(write)
    assert worker.returncode == 1
    assert "Traceback" in err and "UnpicklingError" in err


@pytest.mark.alone
def test_what_a_worker_did_when_it_was_killed_from_outside_is_done_again_once(tmp_path):
    def work(mark, kills):
        with mark.open("a") as file:
            file.write(".")
        if mark.stat().st_size <= kills:
            os.kill(os.getpid(), signal.SIGTERM)
        return mark.stat().st_size

    pool = workers.Pool(1, initializer=work, initargs=(tmp_path / "start", 1))  # killed at its start, too
    try:
        assert pool.submit(work, tmp_path / "no", 0).result(LIMIT) == 1
        (worker,) = pool._worker_map.values()
        worker._proc.kill()  # while it waits for work
        worker._proc.wait()
        assert pool.submit(work, tmp_path / "once", 1).result(LIMIT) == 2
        with pytest.raises(workers.Killed, match="killed from outside, twice"):
            pool.submit(work, tmp_path / "always", 9).result(LIMIT)
        with pytest.raises(ChildProcessError, match="Subprocess terminated"):
            pool.submit(os.abort).result(LIMIT)
    finally:
        pool.shutdown()
    assert [(tmp_path / name).stat().st_size for name in ("no", "once", "always")] == [1, 2, 2]


def test_a_system_that_kills_every_trial_ends_a_tuning_and_nothing_is_held_against_a_config(tmp_path):
    path, options = tmp_path / "tuning.jsonl", {"tasks": [task("conv")], "tuner": "grid"}
    answers = itertools.cycle([1e-3, f"its build failed: {trial.KILLED}"])
    tvmfast.tune(None, {}, records=path, runner=FakeRunner(lambda _config: next(answers)), trials=20, **options)
    found = records.read(path)
    assert len(keys_of(found)) == 20 and not any(each.error for each in found)
    with pytest.raises(RuntimeError, match=r"trials in a row were killed from outside, .* out of memory"):
        tvmfast.tune(None, {}, records=path, runner=FakeRunner(lambda _config: trial.KILLED), trials=100, **options)
    assert records.read(path) == found


# ---------------------------------------------------------------- stopped


@pytest.mark.alone
def test_ctrl_c_ends_the_command_with_the_best_so_far(tmp_path):
    file, path, temporary = tmp_path / "net.onnx", tmp_path / "net.jsonl", tmp_path / "tmp"
    temporary.mkdir()
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    networks.export_onnx(net.eval(), file, (1, 1, 32, 32))
    command = ["-m", "tvmfast", "tune", file, "--trials", "5000", "--records", path]
    env = {**os.environ, "TQDM_DISABLE": "1", "TMPDIR": str(temporary)}
    with started(*command, env=env, start_new_session=True) as stopped:
        while stopped.poll() is None and not (path.exists() and path.read_text().count("\n") >= 8):
            time.sleep(0.05)
        workers = psutil.Process(stopped.pid).children(recursive=True)
        os.killpg(stopped.pid, signal.SIGINT)
        out, err = stopped.communicate(timeout=LIMIT)
    assert stopped.returncode == 130, err
    assert "interrupted: the same call goes on from here" in out
    assert "conv2d 3x3, 1 to 16, 32x32" in out and f"trials in {path}" in " ".join(out.split())
    assert "Traceback" not in out + err and "KeyboardInterrupt" not in out + err
    assert workers and wait_for_end(workers) == []
    assert len(records.read(path)) >= 8
    assert list(temporary.glob("tvmfast-*")) == []


# ---------------------------------------------------------------- the disk, and others

FULL = (
    TELLING.replace("TRIALS", "100")
    + """
import resource
go(path, trials=40)
size = os.path.getsize(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 3000, -1))
try:
    go(path)
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
summary = go(path)
print(sum(trials for _, trials, _, _ in summary.rows))
"""
)


def test_a_full_disk_ends_a_tuning_with_an_error_and_it_goes_on_when_there_is_room(tmp_path):
    path, marks = tmp_path / "tuning.jsonl", tmp_path / "marks"
    command = [sys.executable, "-W", "error::UserWarning", "-c", FULL, path, marks]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    error, trials = done.stdout.splitlines()
    assert error.endswith(f"cannot write the records (File too large); those of before are all there: '{path}'")
    assert trials == "100"
    found = keys_of(records.read(path))
    marked = [tuple(key) for batch in told(marks) for key in batch["keys"]]
    assert sorted(found) == sorted(marked), "the file holds what was written, each record once"


TWO = (
    TELLING.replace("TRIALS", "400")
    + """
class Awaited(Slow):  # says that it is about to measure, and goes on when the other tuning is, too
    pause = 0.02

    def measure(self, candidates):
        if not self.asked:
            print("measures", flush=True)
            sys.stdin.readline()
        return super().measure(candidates)

summary = go(path, seed=int(sys.argv[3]), tuner=sys.argv[4], runner=Awaited())
print(sum(trials for _, trials, _, _ in summary.rows))
"""
)


@pytest.mark.alone
@pytest.mark.parametrize("tuner", sampled(["random", "xgb"], ["random"]))
def test_two_tunings_at_once_share_a_file_and_what_they_measure(tmp_path, tuner):
    path, marks = tmp_path / "tuning.jsonl", tmp_path / "marks"
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(started("-c", TWO, path, marks, seed, tuner, cwd=HERE)) for seed in (1, 2)]
        for each in both:
            assert each.stdout.readline() == "measures\n", each.stderr.read()
        for each in both:
            each.stdin.write("\n")
            each.stdin.flush()
        for each in both:
            out, err = each.communicate(timeout=LIMIT)
            assert each.returncode == 0, err
            assert int(out) >= 400
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = keys_of(records.read(path))
    batches = [batch for batch in told(marks) if batch["keys"]]
    assert Counter(found) == Counter(tuple(key) for batch in batches for key in batch["keys"]), "a record is lost"
    assert min(Counter(batch["pid"] for batch in batches).values()) >= 10, "both have measured"
    assert 400 <= len(set(found)) <= 400 + 2 * 8
    first = {}
    for batch in batches:
        for key in map(tuple, batch["keys"]):
            earlier = first.setdefault(key, batch)
            if earlier is not batch:
                in_flight = earlier["read"] < batch["written"] and batch["read"] < earlier["written"]
                assert in_flight and earlier["pid"] != batch["pid"], "what was in the file was measured again"


# ---------------------------------------------------------------- bad candidates


TIMEOUT, BUILD_TIMEOUT = 10, 15
ERRORS = {
    "crash": "its process ended",
    "crash the build": "its build failed: its process ended",
    "crash the run": "its process ended",
    "hang": f"it took longer than {TIMEOUT} s",
    "hang the build": f"its build took longer than {BUILD_TIMEOUT} s",
    "triple": "its result differs by 5.0e-01 of the largest magnitude",
    "make nothing": "its result differs by nan of the largest magnitude",
    "raise in the build": "its build failed: planted in the build",
    "raise in the run": "planted in the run",
}


@dataclass(frozen=True)
class Planted(AsItIs, Convolution):
    """A workload whose configs do what they say: doubling 64 elements is its work."""

    op: ClassVar[str] = "planted"

    def default_config(self, simd):
        return {"does": "double"}

    def space(self, simd):
        good = [{"does": "double", "again": n} for n in range(3)]
        return [*good[:2], *({"does": does} for does in ERRORS), *good[2:]]

    def pack(self, weight, config, lanes):
        if config["does"] == "crash the run":
            os.abort()
        if config["does"] == "raise in the run":
            raise RuntimeError("planted in the run")
        return weight

    def reference(self, data, weight):
        return data * 2

    def compute(self, data, kernel, config):
        does = config["does"]
        if does == "crash the build":
            os.abort()
        if does == "hang the build":
            time.sleep(1000)
        if does == "raise in the build":
            raise RuntimeError("planted in the build")
        if does == "hang":  # in the kernel: 10^15 additions that no compiler may leave out
            long = te.reduce_axis((0, 10**15), "long")
            return self._of_channels(
                lambda c: te.sum(data[0, (long * 7 + c) % 64, 0, 0] * kernel[long % 4, 0, 0, 0], [long])
            )
        if does == "crash":  # in the kernel: it reads where there is no memory
            return self._of_channels(lambda c: data[0, (c + 1) * 2**40, 0, 0] + kernel[0, 0, 0, 0])
        factor = {"triple": 3.0, "make nothing": float("nan")}.get(does, 2.0)
        return self._of_channels(lambda c: data[0, c, 0, 0] * factor + kernel[0, 0, 0, 0] * 0.0)

    def _of_channels(self, of_channel):
        return te.compute(self.data, lambda n, c, y, x: of_channel(c))


PLANTED = Planted((1, 64, 1, 1), (64, 64, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, False)


@pytest.fixture
def planted():
    with known_to_workers(__name__):
        yield


@pytest.mark.alone
def test_a_bad_candidate_costs_its_trial_only_and_is_written_down(planted, tmp_path):
    path = tmp_path / "planted.jsonl"
    others = psutil.Process().children(recursive=True)
    with LocalRunner(timeout=TIMEOUT, build_timeout=BUILD_TIMEOUT, repeat=3) as runner:
        runner.machine = {"rpc": "planted"}  # so that the finals ask it, too, and no network is built
        summary = tvmfast.tune(None, {}, tuner="grid", records=path, runner=runner, tasks=[Task(PLANTED, 1, TARGET)])
        workers = [p for p in psutil.Process().children(recursive=True) if p not in others]
    found = records.read(path)
    trials = [each for each in found if not each.final]
    assert [each.config["does"] for each in trials] == ["double"] * 3 + list(ERRORS) + ["double"]
    for each in trials:
        assert each.error == ERRORS.get(each.config["does"]), each.config
        assert len(each.seconds) == (0 if each.error else 3), each.config
    assert all(each.config["does"] == "double" and not each.error for each in found if each.final)
    assert summary.rows[0][1] == len(trials) and summary.rows[0][3].config["does"] == "double"
    assert workers and wait_for_end(workers) == []
