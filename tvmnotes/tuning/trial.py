"""One trial, as it runs in worker processes: a kernel is built, run, held against NumPy, and timed.

These are the functions that `runner` hands to MetaSchedule's builders and runners.
"""

import base64
import functools
import os
import signal
import tempfile
import threading
import time as clock
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from ..base import env
from ..compiler import codegen
from ..compiler.records import simd_of_key
from ..compiler.schedules import schedule_kernels

FROM_OUTSIDE = (
    9,
    15,
)  # SIGKILL and SIGTERM: no crash ends with them, but a system that is out of memory sends them
KILLED = "its process was killed from outside, twice"
_TOLERANCE = 1e-3  # of the largest magnitude, as for Winograd's method
_SPIN = 0.1  # seconds that NumPy's threads keep the cores busy after a product
_SWEPT = 32 << 20  # bytes: more than the cores' own caches hold


@dataclass(frozen=True)
class Candidate:
    """A config to try: of a workload, for a target, as `env.target_json` gives it."""

    workload: Any  # a Workload, or what has its methods
    config: dict
    target: str

    def as_module(self) -> tvm.IRModule:
        """A module without functions that carries the candidate to a builder."""
        packed = base64.b64encode(cloudpickle.dumps(self)).decode()
        return tvm.IRModule({}, attrs={"candidate": packed})

    @staticmethod
    def from_module(mod: tvm.IRModule) -> "Candidate":
        return cloudpickle.loads(base64.b64decode(mod.attrs["candidate"]))

    @property
    def lanes(self) -> int:
        return simd_of_key(self.target).lanes


@dataclass(frozen=True)
class Trial:
    """What came of a candidate: the seconds of a call, once per repeat; or none, and the error in one sentence.

    `machine` is where it was measured, as records tell it; None for this one.
    """

    seconds: tuple[float, ...]
    error: str | None = None
    machine: dict | None = None

    @property
    def lost(self) -> bool:
        """Whether it says nothing of the candidate: something else has ended its processes."""
        return self.error is not None and KILLED in self.error


# ---------------------------------------------------------------- in a worker process


def begin() -> None:
    """Be ready to measure; leave Ctrl-C to the process that tunes, and end when it ends, whatever a candidate does."""
    register_cache_flush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Have this process end within a second after the one that started it."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            clock.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def register_cache_flush() -> None:
    """Let timers call "tvmnotes.sweep" before each repeat, so that a kernel finds the caches as in a network.

    There, other kernels have run since a kernel's weights were last read. The sweep reads other data, on all threads.
    """

    @functools.cache
    def kernel():
        count = env.threads()
        data = te.placeholder((count, _SWEPT // count // 64, 16), name="data")
        step = te.reduce_axis((0, data.shape[1]), "step")
        total = te.compute((count, 16), lambda t, c: te.sum(data[t, step, c], axis=step), name="total")
        sch = Schedule(te.create_prim_func([data, total]))
        thread, lane, step = sch.get_loops("total")
        sch.reorder(thread, step, lane)
        sch.parallel(thread)
        sch.vectorize(lane)
        functions = {tvm.ir.GlobalVar("sweep"): sch.mod["main"].with_attr("global_symbol", "sweep")}
        library = codegen.compile_kernels(functions, env.host_target(), True)
        arrays = [tvm.runtime.tensor(np.ones([int(n) for n in t.shape], "float32")) for t in (data, total)]
        return lambda: library["sweep"](*arrays)

    tvm.register_global_func("tvmnotes.sweep", lambda *_: kernel()(), override=True)


def build(mod: tvm.IRModule, target: tvm.target.Target, _params):
    """A builder's f_build: the library with the candidate's kernel, "main"."""
    scheduled = kernel(Candidate.from_module(mod))
    (var,) = scheduled.get_global_vars()
    return codegen.compile_kernels({var: scheduled[var]}, target, runs_here=False)


def kernel(candidate: Candidate) -> tvm.IRModule:
    """Return the candidate's kernel as TensorIR with its schedule: a module with the function "main".

    It takes the data, the packed weight and room for the result, as `arguments` makes them.
    """
    workload, config, registers = candidate.workload, candidate.config, simd_of_key(candidate.target)
    shapes = workload.packed_input_shape(registers.lanes), workload.packed_shape(config, registers.lanes)
    inputs = [
        te.placeholder(shape, name=name) for shape, name in zip(shapes, ("data", "weight"), strict=True)
    ]
    func = te.create_prim_func([*inputs, workload.compute(*inputs, config)]).with_attr(
        "global_symbol", "main"
    )
    return schedule_kernels(registers)(tvm.IRModule({"main": func}))


def export(library, folder: str) -> str:
    """Link the library into a file, in a folder of its own within `folder`, and give the path."""
    os.environ["TMPDIR"] = tempfile.tempdir = (
        folder  # what TVM and the linker would leave if this process were killed
    )
    path = os.path.join(tempfile.mkdtemp(dir=folder), "kernel.so")
    library.export_library(path)
    return path


def arguments(candidate: Candidate, device) -> list[list[tvm.runtime.Tensor]]:
    """A runner's arguments, made once: data, packed weight, and room for the result."""
    workload, lanes = candidate.workload, candidate.lanes
    data, weight, _ = _inputs(workload)
    room = np.zeros(workload.output_shape(candidate.config, lanes), "float32")
    arrays = workload.pack_input(data, lanes), workload.pack(weight, candidate.config, lanes), room
    return [[tvm.runtime.tensor(array, device) for array in arrays]]


def check_and_time(
    candidate: Candidate, library, device, evaluator, arguments, sweep: bool = True
) -> list[float]:
    """A runner's evaluator: seconds of a call, once per repeat, with caches swept before each unless there is none.

    Raises ValueError for a wrong result.
    """
    (tensors,) = arguments
    library["main"](*tensors)
    _, _, wanted = _inputs(candidate.workload)
    made = candidate.workload.unpack_output(tensors[-1].numpy(), candidate.lanes)
    difference = np.abs(made - wanted).max() / np.abs(wanted).max()
    if not difference <= _TOLERANCE:
        raise ValueError(f"its result differs by {difference:.1e} of the largest magnitude")
    timer = library.time_evaluator(
        "main", device, number=evaluator.number, repeat=evaluator.repeat, min_repeat_ms=evaluator.min_repeat_ms,
        f_preproc="tvmnotes.sweep" if sweep else "",
    )  # fmt: skip
    return list(timer(*tensors).results)


@functools.lru_cache(maxsize=2)
def _inputs(workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random data and weight of a workload, and the result that NumPy makes of them."""
    random = np.random.default_rng(0)  # the same in every trial
    data, weight = (
        random.standard_normal(shape, dtype="float32") for shape in (workload.data, workload.weight)
    )
    wanted = workload.reference(data, weight)
    clock.sleep(_SPIN)
    return data, weight, wanted
