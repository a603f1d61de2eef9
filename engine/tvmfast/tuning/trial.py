"""One trial, as it runs in worker processes: build a kernel, run it, check it against NumPy, time it.

These are the functions that `runner` submits to its workers.
"""

import functools
import os
import signal
import tempfile
import threading
import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

from ..compiler import codegen
from ..compiler.records import simd_of_key
from ..compiler.schedule.apply import schedule_kernels
from ..core import machine

FROM_OUTSIDE = (9, 15)  # SIGKILL, SIGTERM: not from a crash, but from a system that is out of memory
KILLED = "its process was killed from outside, twice"
_TOLERANCE = 1e-3  # of the largest magnitude, as for Winograd's method
_SPIN = 0.1  # seconds for which NumPy's threads keep the cores busy after a product
_SWEPT = 32 << 20  # bytes, more than the cores' own caches hold


@dataclass(frozen=True)
class Candidate:
    """A config of a workload, to measure; the target is text, from `machine.target_json`."""

    workload: Any  # a Workload, or what has its methods
    config: dict
    target: str

    @property
    def lanes(self) -> int:
        """The float32 elements of a register of the target."""
        return simd_of_key(self.target).lanes


@dataclass(frozen=True)
class Trial:
    """The seconds of a call of a candidate, one per repeat; if it failed, none, and the error in a sentence.

    `machine` is where it was measured, as records store it; None for this machine.
    """

    seconds: tuple[float, ...]
    error: str | None = None
    machine: dict | None = None

    @property
    def lost(self) -> bool:
        """Whether it says nothing about the candidate: its processes were killed from outside."""
        return self.error is not None and KILLED in self.error


# ---------------------------------------------------------------- in a worker process


def begin() -> None:
    """Prepare a worker process: leave Ctrl-C to the tuning process, and end when that ends."""
    register_cache_flush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process within a second after its parent."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            clock.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def register_cache_flush() -> None:
    """Let timers call "tvmfast.sweep" before each repeat, so that a kernel finds the caches as in a network.

    There, other kernels have run since a kernel's weights were last read. The sweep reads other data, on all
    threads. These are TVM's, which here wait for a timer's next call without sleeping, as a network's do.
    """
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "1000"

    @functools.cache
    def kernel() -> Callable:
        count = machine.threads()
        data = te.placeholder((count, _SWEPT // count // 64, 16), name="data")
        step = te.reduce_axis((0, data.shape[1]), "step")
        total = te.compute((count, 16), lambda t, c: te.sum(data[t, step, c], axis=step), name="total")
        sch = Schedule(te.create_prim_func([data, total]))
        thread, lane, step = sch.get_loops("total")
        sch.reorder(thread, step, lane)
        sch.parallel(thread)
        sch.vectorize(lane)
        functions = {tvm.ir.GlobalVar("sweep"): sch.mod["main"].with_attr("global_symbol", "sweep")}
        library = codegen.compile_kernels(functions, machine.host_target(), True)
        arrays = [tvm.runtime.tensor(np.ones([int(n) for n in t.shape], "float32")) for t in (data, total)]
        return lambda: library["sweep"](*arrays)

    tvm.register_global_func("tvmfast.sweep", lambda *_: kernel()(), override=True)


def build(candidate: Candidate) -> Any:
    """Build a candidate: the library with its kernel, "main"."""
    scheduled, target = kernel(candidate), tvm.target.Target(candidate.target)
    (var,) = scheduled.get_global_vars()
    return codegen.compile_kernels({var: scheduled[var]}, target, runs_here=False)


def build_module(given: tuple[tvm.IRModule, tvm.target.Target]) -> Any:
    """Build the library of a module for a target, with TVM's own passes."""
    return tvm.tirx.build(*given)


def kernel(candidate: Candidate) -> tvm.IRModule:
    """Lower a candidate to TensorIR and schedule it: a module with the function "main"; see `arguments`."""
    workload, config = candidate.workload, candidate.config
    simd = simd_of_key(candidate.target)
    data = te.placeholder(workload.packed_input_shape(simd.lanes), workload.dtypes[0], "data")
    packed = workload.packed_shape(config, simd.lanes)
    weight = te.placeholder(packed, workload.packed_dtype(config), "weight")
    func = te.create_prim_func([data, weight, workload.compute(data, weight, config)])
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return schedule_kernels(simd)(module)


def export(make: Callable, folder: str, given: Any) -> str:
    """Link the library `make(given)` into a file, in a new folder within `folder`, and return the path."""
    library = make(given)
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # for what TVM and the linker leave if they are killed
    path = os.path.join(tempfile.mkdtemp(dir=folder), "kernel.so")
    library.export_library(path)
    return path


def arguments(candidate: Candidate, device: tvm.runtime.Device) -> list[list[tvm.runtime.Tensor]]:
    """Make the arguments of a kernel's calls: one list of data, packed weight and output buffer."""
    workload, lanes = candidate.workload, candidate.lanes
    data, weight, _ = _inputs(workload)
    output = np.zeros(workload.output_shape(candidate.config, lanes), workload.dtypes[2])
    arrays = workload.pack_input(data, lanes), workload.pack(weight, candidate.config, lanes), output
    return [[tvm.runtime.tensor(array, device) for array in arrays]]


def run(candidate: Candidate, path: str, evaluator: Any) -> list[float]:
    """Check and time a candidate, whose library is at `path`, on this machine; see `check_and_time`."""
    library = tvm_ffi.load_module(path, keep_module_alive=False)  # TVM would keep that of each trial
    return check_and_time(candidate, library, tvm.cpu(), evaluator)


def check_and_time(
    candidate: Candidate, library: Any, device: tvm.runtime.Device, evaluator: Any, sweep: bool = True
) -> list[float]:
    """Check a kernel's output and time it: seconds of a call, one per repeat; ValueError for a wrong output.

    The library is on this machine or a session's. With `sweep`, the caches are flushed before each repeat.
    """
    (tensors,) = arguments(candidate, device)
    library["main"](*tensors)
    _, _, expected = _inputs(candidate.workload)
    output = candidate.workload.unpack_output(tensors[-1].numpy(), candidate.lanes)
    difference = np.abs(output - expected).max() / np.abs(expected).max()
    if not difference <= (_TOLERANCE if candidate.workload.dtype == "float32" else 0):
        raise ValueError(f"its result differs by {difference:.1e} of the largest magnitude")
    timer = library.time_evaluator(
        "main",
        device,
        number=evaluator.number,
        repeat=evaluator.repeat,
        min_repeat_ms=evaluator.min_repeat_ms,
        f_preproc="tvmfast.sweep" if sweep else "",
    )
    return list(timer(*tensors).results)


@functools.lru_cache(maxsize=2)
def _inputs(workload: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random data and weight of a workload, and NumPy's output for them, exact of integers."""
    random = np.random.default_rng(0)  # the same in every trial
    if workload.dtype == "float32":
        data = random.standard_normal(workload.data, dtype="float32")
        weight = random.standard_normal(workload.weight, dtype="float32")
        expected = workload.reference(data, weight)
    else:
        data = random.integers(0, 256, workload.data, "uint8")
        weight = random.integers(-127, 128, workload.weight, "int8")
        expected = workload.reference(data.astype("float64"), weight.astype("float64"))  # below 2^53
    clock.sleep(_SPIN)
    return data, weight, expected
