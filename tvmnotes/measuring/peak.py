"""This module measures how fast the machine can compute and read memory, by two kernels of our own.

`python -m tvmnotes bench` holds what a network reaches against `flops`; a kernel that moves more than it computes is to
be held against `bandwidth`. The best of many repetitions counts, as whatever else the machine does only slows one down.
"""

import functools
import time as clock
from collections.abc import Callable

import numpy as np
import tvm
from tvm.script import tirx as T

from ..base import env
from ..base.workarounds import fast_tvmscript_parser
from ..compiler.schedules.vector import simd_of
from ..runtime.threads import run

_STEPS = 1 << 17  # of a repetition: some 0.4 ms, which pass undisturbed even on a busy machine
_BYTES = 256 << 20  # of the array that is read: much more than the caches hold


@functools.cache
def flops(seconds: float = 0.5) -> float:
    """Measure the peak of float32 multiply-adds on `env.threads()` threads, in operations per second (FLOP/s).

    A multiplication counts 1, and so does an addition. The best repetition of `recurrence` within `seconds` counts.
    Measured once per process.
    """
    threads, chains, lanes = _shape()
    kernel = recurrence(threads, chains, lanes)
    x, y = (tvm.runtime.tensor(np.full(lanes, value, "float32")) for value in (0.75, 0.5))
    sums = tvm.runtime.tensor(np.random.default_rng(0).random((threads, chains, lanes), "float32"))
    return 2 * threads * chains * lanes * _STEPS / _best(lambda: kernel(x, y, sums, _STEPS), seconds)


@functools.cache
def bandwidth(seconds: float = 0.5) -> float:
    """Measure the bytes per second that `env.threads()` threads read from memory, each a part of an array of 256 MiB.

    The best repetition of `column_sums` within `seconds` counts. Measured once per process.
    """
    threads, chains, lanes = _shape()
    rows = _BYTES // (4 * threads * chains * lanes)
    kernel = column_sums(threads, rows, chains, lanes)
    data = tvm.runtime.tensor(np.ones((threads, rows, chains, lanes), "float32"))
    sums = tvm.runtime.tensor(np.zeros((threads, chains, lanes), "float32"))
    return 4 * threads * rows * chains * lanes / _best(lambda: kernel(data, sums), seconds)


@fast_tvmscript_parser()
def recurrence(threads: int, chains: int, lanes: int) -> Callable:
    """Compile a function of tensors (x, y, sums) and an int, steps: it sets sums to sums * x + y, so many times.

    All are float32; `x` and `y` are (lanes,), `sums` is (threads, chains, lanes) and stays in registers. Each step
    needs the one before, and every sum starts elsewhere, so a compiler can leave none out. Chains do not need each
    other: while one waits for its result, the others are at work.
    """
    row = tvm.tirx.Ramp(0, 1, lanes)

    @T.prim_func
    def main(
        x: T.Buffer((lanes,), "float32"),
        y: T.Buffer((lanes,), "float32"),
        sums: T.Buffer((threads, chains, lanes), "float32"),
        steps: T.int32,
    ):
        T.func_attr({"tirx.noalias": True})  # else the sums would be written to memory in each step
        for t in T.parallel(threads):
            for _ in range(steps):
                for c in T.unroll(chains):
                    sums[t, c, row] = sums[t, c, row] * x[row] + y[row]

    return tvm.compile(main, target=env.host_target())["main"]


@fast_tvmscript_parser()
def column_sums(threads: int, rows: int, chains: int, lanes: int) -> Callable:
    """Compile a function of tensors (data, sums), both float32, that adds all rows of data to sums.

    `data` is (threads, rows, chains, lanes) and `sums`, which stays in registers, (threads, chains, lanes).
    """
    row = tvm.tirx.Ramp(0, 1, lanes)

    @T.prim_func
    def main(
        data: T.Buffer((threads, rows, chains, lanes), "float32"),
        sums: T.Buffer((threads, chains, lanes), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for t in T.parallel(threads):
            for r in range(rows):
                for c in T.unroll(chains):
                    sums[t, c, row] = sums[t, c, row] + data[t, r, c, row]

    return tvm.compile(main, target=env.host_target())["main"]


def _shape() -> tuple[int, int, int]:
    """Threads, chains and lanes: chains take three quarters of the registers, as operands need some too."""
    unit = simd_of(env.host_target())
    return env.threads(), unit.registers * 3 // 4, unit.lanes


def _best(call: Callable, seconds: float) -> float:
    """The shortest time of a call, in seconds, of all that begin within `seconds`; one before them does not count."""
    call = functools.partial(run, call)
    call()
    best, end = float("inf"), clock.perf_counter() + env.cap_if_quick(seconds, 0.1)
    while (start := clock.perf_counter()) < end or best == float("inf"):
        call()
        best = min(best, clock.perf_counter() - start)
    return best
