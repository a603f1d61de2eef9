"""threads.py: a network timed in processes of their own, with other numbers of threads."""

import subprocess
import sys

import pytest

from tvmnotes import threads


@pytest.mark.alone
def test_threads_are_measured_in_processes_of_their_own(lib, small):
    found = threads.by_threads(lib, small.x, counts=[1], turns=1)
    assert set(found) == {(1, True), (1, False)} and all(t.seconds and min(t.seconds) > 0 for t in found.values())
    assert list(found.frame().columns) == ["pinned (ms)", "pinned, speed-up", "not pinned (ms)", "not pinned, speed-up"]


def test_a_process_gets_its_settings(monkeypatch, tmp_path):
    show = "import os; print([int(os.environ[n]) for n in ('TVM_NUM_THREADS', 'TVM_BIND_THREADS')], flush=True)"
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **how: start([sys.executable, "-c", show], **how))
    worker = threads._worker(str(tmp_path), 3, False)
    assert worker.communicate(timeout=1200)[0].strip() == "[3, 0]"


def test_a_process_that_fails_is_an_error(monkeypatch, lib, small):
    broken = [sys.executable, "-c", "raise SystemExit('no such core')"]
    start = subprocess.Popen
    monkeypatch.setattr(threads.subprocess, "Popen", lambda _command, **how: start(broken, **how))
    with pytest.raises(RuntimeError, match="failed: no such core"):
        threads._round(threads._worker("", 1, True))


def test_a_process_that_gives_no_times_is_an_error(monkeypatch):
    silent = [sys.executable, "-c", "input(); input()"]
    start = subprocess.Popen
    monkeypatch.setattr(threads.subprocess, "Popen", lambda _command, **how: start(silent, **how))
    monkeypatch.setattr(threads, "_LIMIT", 0.1)
    worker = threads._worker("", 1, True)
    with pytest.raises(RuntimeError, match="gave no times for 0.1 s"):
        threads._round(worker)
    worker.communicate(timeout=1200)


def test_wrong_arguments_of_threads(lib, small):
    for counts in ([], [0, 1]):
        with pytest.raises(ValueError, match="counts: expected numbers of threads, 1 or more"):
            threads.by_threads(lib, small.x, counts=counts)
    with pytest.raises(ValueError, match="expected the shape"):
        threads.by_threads(lib, small.x[0])
