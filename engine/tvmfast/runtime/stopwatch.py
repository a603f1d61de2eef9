"""A stopwatch for the calls of the virtual machine in a run of a compiled network.

The virtual machine calls an instrument before and after each of its calls, some hundred times in a run. An
instrument in Python takes up to a few microseconds, which adds up to several percent of a fast network. This
one is compiled by TVM itself and does one thing: it makes the C library write the time into the next slot of
an array.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm.script import tirx as T

from ..core import machine
from ..core.compat import fast_tvmscript_parser, pass_lock

_POINTER = tvm.ir.PointerType(tvm.ir.PrimType("int64"))
_CLOCK = time.CLOCK_MONOTONIC
_SLOT = 16  # bytes of a slot: a timespec of the C library, seconds and nanoseconds
_control = np.zeros(2, "int64")  # the addresses of the next slot and of the end of the array


class Call(NamedTuple):
    """A call of a kernel, or of a VM function such as vm.builtin.alloc_tensor; times in seconds."""

    name: str
    begin: float
    end: float


class Stopwatch:
    """A callable that runs a network once and records the time of each call; `take` returns the records."""

    def __init__(self, compiled: Any, run: Callable):
        """Call `run`, which runs a `Compiled` once, to learn the order of its calls, always the same."""
        self._compiled = compiled
        self._run = run
        self._recorded: list[np.ndarray] = []
        # The name of each call, and the indices of the ticks before and after it.
        self._order: list[tuple[str, int, int]] = []
        open_, ticks = [], 0

        def instrument(_function: Any, name: str, before: bool, _result: Any, *_args: Any) -> None:
            nonlocal ticks
            if before:
                open_.append((str(name), ticks))
            else:
                self._order.append((*open_.pop(), ticks))
            ticks += 1

        with compiled.instrumented(instrument):
            run()
        self._order.sort(key=lambda call: call[1])
        self._ticks = ticks

    def __call__(self) -> None:
        """Run once. Raises RuntimeError if another thread runs the network at the same time."""
        slots = np.zeros((self._ticks + 1, 2), "int64")  # one more, which stays empty
        first = slots.ctypes.data
        with pass_lock:  # one stopwatch at a time, and no build at the same time
            _control[:] = first, first + slots.nbytes
            try:
                with self._compiled.instrumented(_tick()):
                    self._run()
            finally:
                _control[:] = 0
        if not slots[-2].any() or slots[-1].any():
            raise RuntimeError("the network ran in another thread, too, while it was timed: run it in one")
        self._recorded.append(slots[: self._ticks])

    def take(self) -> list[list[Call]]:
        """Return the runs since the last `take`: the calls of each in the order they began, at 0 seconds."""
        runs = []
        recorded, self._recorded = self._recorded, []
        for slots in recorded:
            seconds = (slots - slots[0]) @ (1, 1e-9)
            runs.append([Call(name, seconds[before], seconds[after]) for name, before, after in self._order])
        return runs


def of_kernels(run: list[Call], compiled: Any) -> list[Call]:
    """Return the kernel calls of a run, without those of the virtual machine's own functions."""
    return [call for call in run if call.name in compiled.graph["kernels"]]


@functools.cache
@fast_tvmscript_parser()
def _tick() -> Callable:
    """Compile the instrument, a packed function that ignores its handle, args, count and result."""

    @T.prim_func
    def tick(handle: T.handle, args: T.handle, count: T.int32, result: T.handle) -> T.int32:
        T.func_attr({"global_symbol": "__tvm_ffi_tick", "calling_conv": 1})
        control = T.decl_buffer(
            (2,),
            "int64",
            data=T.reinterpret(_POINTER, T.int64(_control.ctypes.data)),
            align=_control.itemsize,
        )
        if control[0] < control[1]:
            T.evaluate(T.call_extern("int32", "clock_gettime", _CLOCK, T.reinterpret("handle", control[0])))
            control[0] = control[0] + T.int64(_SLOT)
        return 0

    target = machine.host_target()
    mod = tvm.tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"tick": tick}))
    return tvm.get_global_func("target.build.llvm")(mod, target).get_function("tick")
