"""The threads of compiled kernels: every iteration runs once, whatever the number of threads, chunks and callers."""

import ctypes
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.core import machine
from tvmfast.runtime import pool

# Kernels of Python would need its lock, so this one is of C++. It counts each chunk; chunk 5 may fail.
KERNEL = r"""
#include <stdint.h>
#include <atomic>
#include <sched.h>
struct Env { void* sync; int32_t num_task; };
struct Data { std::atomic<int32_t>* counts; int32_t fails, yields, most; };
extern "C" int count(int task, Env* env, void* given) {
  Data* data = static_cast<Data*>(given);
  data->most = env->num_task;
  ++data->counts[task];
  if (task == 7 && data->yields) sched_yield();
  return data->fails == task ? -1 : 0;
}
"""


class Data(ctypes.Structure):
    _fields_ = [("counts", ctypes.c_void_p), *((name, ctypes.c_int32) for name in ("fails", "yields", "most"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where pool.cc and the kernel lie as libraries: each test opens copies of its own, as their state is global."""
    folder = tmp_path_factory.mktemp("pool")
    (folder / "kernel.cc").write_text(KERNEL)
    compiler = machine.cpp_compiler()
    for source, name in ((pool.SOURCE, "pool"), (folder / "kernel.cc", "kernel")):
        options = [option for option in codegen._POOL_OPTIONS if option != "-c"]
        command = [
            compiler,
            *options,
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            str(source),
            "-o",
            folder / f"{name}.so",
        ]
        subprocess.run(command, check=True)
    return folder


def opened(folder, threads: int, chunks: int, spin: int = 20_000):
    """A pool of its own, and a function that runs a loop on it: how often each task ran, the tasks, the return code."""
    copy = Path(tempfile.mkdtemp(dir=folder), "pool.so")
    copy.write_bytes((folder / "pool.so").read_bytes())
    library, kernel = ctypes.CDLL(str(copy)), ctypes.CDLL(str(folder / "kernel.so"))
    library.tvmfast_pool_configure(threads, chunks, ctypes.c_int64(spin), 0)

    def run(tasks: int = 0, fails: int = -1, yields: bool = False):
        counts = np.zeros(1024, "int32")
        data = Data(counts.ctypes.data, fails, yields)
        code = library.tvmfast_pool_launch(kernel.count, ctypes.byref(data), tasks)
        return counts, data.most, code

    return library, run


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("spin", [0, 20_000])
def test_each_chunk_runs_once(folder, threads, chunks, spin):
    _, run = opened(folder, threads, chunks, spin)
    for _ in range(200):
        counts, tasks, code = run()
        assert (tasks, code) == (threads * chunks if threads > 1 else 1, 0)
        np.testing.assert_array_equal(counts, np.arange(1024) < tasks)
    for given in (1, 2, 7, 64):
        counts, tasks, _ = run(given)
        np.testing.assert_array_equal(counts, np.arange(1024) < tasks)


def test_loops_of_several_threads_run_at_once(folder):
    """More than there are slots for: the rest run alone, on the thread that asked."""
    _, run = opened(folder, 3, 4)
    wrong = []

    def many():
        for number in range(300):
            counts, tasks, code = run(yields=number % 16 == 0)
            if code or not np.array_equal(counts, np.arange(1024) < tasks):
                wrong.append((counts, tasks, code))

    callers = [threading.Thread(target=many) for _ in range(12)]
    [caller.start() for caller in callers], [caller.join() for caller in callers]
    assert not wrong


@pytest.mark.parametrize("fails", [0, 5, 11])
def test_a_chunk_that_fails_fails_the_loop_and_not_the_next(folder, fails):
    _, run = opened(folder, 3, 4)
    counts, tasks, code = run(fails=fails)
    assert code == -1
    np.testing.assert_array_equal(counts, np.arange(1024) < tasks)  # the others run all the same
    assert run()[2] == 0


def test_a_child_of_a_fork_starts_threads_of_its_own(folder):
    library, run = opened(folder, 3, 4)
    run()
    child = os.fork()
    if not child:
        library.tvmfast_pool_forked()
        before = len(os.listdir("/proc/self/task"))
        right = all(np.array_equal(run()[0], np.arange(1024) < 12) for _ in range(100))
        os._exit(0 if right and len(os.listdir("/proc/self/task")) == before + 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPUs of a thread are Linux's")
def test_a_worker_leaves_the_cpu_of_the_thread_that_began_the_loop(folder):
    """As far as the program lets it. It looks when it runs a chunk, so loops go on until it has had one there."""
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("one CPU")
    here = min(usable)
    before = set(os.listdir("/proc/self/task"))
    _, run = opened(folder, 2, 4)
    run()
    (worker,) = map(int, set(os.listdir("/proc/self/task")) - before)

    def allowed_after(given: set[int], wanted: set[int], seconds: float) -> set[int]:
        os.sched_setaffinity(worker, given)
        end = time.monotonic() + seconds
        while os.sched_getaffinity(worker) != wanted and time.monotonic() < end:
            os.sched_setaffinity(worker, {here})  # where Linux may have left it
            os.sched_setaffinity(worker, given)
            for _ in range(20):
                run(64, yields=True)
        return os.sched_getaffinity(worker)

    os.sched_setaffinity(0, {here})  # of this thread
    try:
        assert allowed_after(usable, usable - {here}, 60) == usable - {here}
        assert allowed_after({here}, set(), 0.2) == {here}
    finally:
        os.sched_setaffinity(0, usable)


NETWORKS = """
import os, sys
import numpy as np, tvmfast
x = np.linspace(-1, 1, 64 * 4096, dtype="float32").reshape(64, 4096)
def threads():
    return len(os.listdir("/proc/self/task"))
counts = [threads()]
for path in sys.argv[1:]:
    assert np.array_equal(tvmfast.load(path)(x), np.maximum(x, 0))
    counts.append(threads())
print(np.diff(counts))
"""


@pytest.mark.parametrize("saved_as", [("tvmfast", "tvmnotes", "tvmfast"), ("tvmnotes", "tvmfast", "tvmnotes")], ids=str)
def test_libraries_share_the_threads_of_the_first(compile_function, tmp_path, python, monkeypatch, saved_as):
    """Those that were saved up to 0.1, too, when the names of pool.cc's functions began with tvmnotes."""
    lib = compile_function(lambda x: x.relu(), {"x": (64, 4096)})
    source, paths = pool.SOURCE.read_text(), []
    for number, name in enumerate(saved_as):
        monkeypatch.setattr(pool, "SOURCE", tmp_path / f"{name}.cc")
        pool.SOURCE.write_text(source.replace("tvmfast_pool", f"{name}_pool"))
        paths.append(str(lib.save(tmp_path / str(number))))
    assert python(NETWORKS.replace("sys.argv[1:]", repr(paths)), TVM_NUM_THREADS="2") == "[1 0 0]"


def test_a_library_without_these_threads_runs_on_tvms(small, monkeypatch, lib):
    monkeypatch.setattr(machine, "cpp_compiler", lambda: None)
    in_memory = tvmfast.build(small.mod, small.params)
    assert not in_memory._on_pool and lib._on_pool
    np.testing.assert_array_equal(in_memory(small.x), lib(small.x))  # exact: the same kernels
