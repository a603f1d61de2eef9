"""The machine's peaks in computing and in reading memory, measured by two kernels.

`python -m tvmfast bench` compares what a network reaches with `flops`; compare a kernel that moves more than
it computes with `bandwidth`. The best of many repetitions counts, as other load on the machine can only slow
one down.
"""

import functools
import time as clock
from collections.abc import Callable

import numpy as np
import tvm
from tvm.script import tirx as T

from ..core import machine
from ..core.compat import fast_tvmscript_parser
from ..core.simd import simd_of
from ..runtime.fork import run

_STEPS = 1 << 17  # of a repetition: some 0.4 ms, short enough to run undisturbed even on a busy machine
_BYTES = 256 << 20  # of the array that is read: much larger than the caches


@functools.cache
def flops(seconds: float = 0.5) -> float:
    """Measure the peak of float32 multiply-adds on `machine.threads()` threads, in FLOP/s; once per process.

    A multiplication counts 1, and so does an addition. The best repetition of `recurrence` within `seconds`
    counts.
    """
    threads, chains, lanes = _shape()
    kernel = recurrence(threads, chains, lanes)
    x, y = (tvm.runtime.tensor(np.full(lanes, value, "float32")) for value in (0.75, 0.5))
    initial = np.random.default_rng(0).random((threads, chains, lanes), "float32")
    accumulators = tvm.runtime.tensor(initial)
    best = _best(lambda: kernel(x, y, accumulators, _STEPS), seconds)
    return 2 * threads * chains * lanes * _STEPS / best


@functools.cache
def bandwidth(seconds: float = 0.5) -> float:
    """Measure the bytes per second that `machine.threads()` threads read from memory; once per process.

    Each thread reads its part of an array of 256 MiB. The best repetition of `column_sums` within `seconds`
    counts.
    """
    threads, chains, lanes = _shape()
    rows = _BYTES // (4 * threads * chains * lanes)
    kernel = column_sums(threads, rows, chains, lanes)
    data = tvm.runtime.tensor(np.ones((threads, rows, chains, lanes), "float32"))
    accumulators = tvm.runtime.tensor(np.zeros((threads, chains, lanes), "float32"))
    return 4 * threads * rows * chains * lanes / _best(lambda: kernel(data, accumulators), seconds)


@fast_tvmscript_parser()
def recurrence(threads: int, chains: int, lanes: int) -> Callable:
    """Compile a function of (x, y, accumulators, steps): `steps` times, each accumulator a becomes a * x + y.

    `x` and `y` are float32 (lanes,); `accumulators`, float32 (threads, chains, lanes), stay in
    registers. Each step needs the one before, and every accumulator starts with another value, so a compiler
    can leave none out. Chains are independent: while one waits for its result, the others are at work.
    """
    row = tvm.tirx.Ramp(0, 1, lanes)

    @T.prim_func
    def main(
        x: T.Buffer((lanes,), "float32"),
        y: T.Buffer((lanes,), "float32"),
        accumulators: T.Buffer((threads, chains, lanes), "float32"),
        steps: T.int32,
    ):
        T.func_attr({"tirx.noalias": True})  # else they would be written to memory in each step
        for t in T.parallel(threads):
            for _ in range(steps):
                for c in T.unroll(chains):
                    accumulators[t, c, row] = accumulators[t, c, row] * x[row] + y[row]

    return tvm.compile(main, target=machine.host_target())["main"]


@fast_tvmscript_parser()
def column_sums(threads: int, rows: int, chains: int, lanes: int) -> Callable:
    """Compile a function of (data, accumulators), both float32, that adds all rows of data to accumulators.

    `data` is (threads, rows, chains, lanes); `accumulators`, (threads, chains, lanes), stay in
    registers.
    """
    row = tvm.tirx.Ramp(0, 1, lanes)

    @T.prim_func
    def main(
        data: T.Buffer((threads, rows, chains, lanes), "float32"),
        accumulators: T.Buffer((threads, chains, lanes), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for t in T.parallel(threads):
            for r in range(rows):
                for c in T.unroll(chains):
                    accumulators[t, c, row] = accumulators[t, c, row] + data[t, r, c, row]

    return tvm.compile(main, target=machine.host_target())["main"]


def _shape() -> tuple[int, int, int]:
    """Return threads, chains and lanes: chains take 3/4 of the registers, as operands need some too."""
    unit = simd_of(machine.host_target())
    return machine.threads(), unit.registers * 3 // 4, unit.lanes


def _best(call: Callable, seconds: float) -> float:
    """Return the shortest time of a call, in seconds, of all that begin within `seconds`, after a warm-up."""
    call = functools.partial(run, call)
    call()
    best, end = float("inf"), clock.perf_counter() + machine.cap_if_quick(seconds, 0.1)
    while (start := clock.perf_counter()) < end or best == float("inf"):
        call()
        best = min(best, clock.perf_counter() - start)
    return best
