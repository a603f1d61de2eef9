"""One config of a workload: built, held against the default config's result, and timed, in a process of its own."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te

from ..compiler import codegen
from ..compiler.schedules import schedule_kernels
from ..compiler.schedules.vector import vectors

_TOLERANCE = 1e-3  # of the largest magnitude, as for Winograd's method


@dataclass(frozen=True)
class Trial:
    """What came of a config: the seconds of a call, once per repeat; or none, and the error in one sentence."""

    seconds: list[float]
    error: str | None = None


class Worker:
    """A process that measures, started at the first trial, and anew after one that crashed or took too long."""

    def __init__(self, timeout: float = 10.0):
        """`timeout`: seconds for a trial, its build included."""
        self.timeout, self._worker = timeout, None

    def measure(self, workload, config: dict, target: tvm.target.Target, number: int = 4, repeat: int = 3,
                min_repeat_ms: int = 0) -> Trial:  # fmt: skip
        """Seconds of `workload` with `config`: `repeat` means of `number` calls or as many as take `min_repeat_ms`."""
        from tvm.support.popen_pool import PopenWorker

        first = self._worker is None
        if first:
            self._worker = PopenWorker()
        args = [workload, config, str(target), number, repeat, min_repeat_ms]
        try:
            self._worker.send(_measure, args, timeout=self.timeout + 60 * first)  # the imports take a while
            return Trial(self._worker.recv())
        except TimeoutError:
            self.close()
            return Trial([], f"it took longer than {self.timeout:g} s")
        except ChildProcessError:
            self.close()
            return Trial([], "its process ended")
        except Exception as error:  # what the worker raised, whatever it is
            return Trial([], str(error).strip().splitlines()[-1])  # of its traceback

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _measure(workload, config, target, number, repeat, min_repeat_ms):
    target = tvm.target.Target(target)
    lanes = vectors(target).lanes
    random = np.random.default_rng(0)
    data = random.standard_normal(workload.source_shape(lanes), dtype="float32")
    weight = random.standard_normal(workload.weight, dtype="float32")
    library, arrays = _build(workload, config, target, data, weight)
    library["main"](*arrays)
    made, wanted = arrays[-1].numpy(), _reference(workload, target, data, weight)
    difference = np.abs(made - wanted).max() / np.abs(wanted).max()
    if not difference <= _TOLERANCE:
        raise ValueError(f"its result differs by {difference:.1e} of the largest magnitude")
    timer = library.time_evaluator("main", tvm.cpu(), number=number, repeat=repeat, min_repeat_ms=min_repeat_ms)
    return list(timer(*arrays).results)


_references: dict = {}


def _reference(workload, target, data, weight):
    """The result with the default config, which the project's tests hold against PyTorch."""
    if workload not in _references:
        _references.clear()
        library, arrays = _build(workload, workload.default_config(vectors(target)), target, data, weight)
        library["main"](*arrays)
        _references[workload] = arrays[-1].numpy()
    return _references[workload]


def _build(workload, config, target, data, weight):
    """The kernel's library, and its arguments: data, packed weight, and room for the result."""
    registers = vectors(target)
    packed = workload.pack(weight, config, registers.lanes)
    inputs = [te.placeholder(array.shape, name=name) for array, name in ((data, "data"), (packed, "weight"))]
    out = workload.compute(*inputs, config)
    func = te.create_prim_func([*inputs, out]).with_attr("global_symbol", "main")
    mod = schedule_kernels(registers)(tvm.IRModule({"main": func}))
    (var,) = mod.get_global_vars()
    room = tvm.runtime.empty([int(size) for size in out.shape], "float32")
    return codegen.compile_kernels({var: mod[var]}, target, runs_here=True), [
        tvm.runtime.tensor(data), tvm.runtime.tensor(packed), room]  # fmt: skip
