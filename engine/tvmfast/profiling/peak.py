"""The machine's peaks in computing and in reading memory, measured by a kernel each.

`python -m tvmfast bench` compares what a network reaches with `flops`; compare a kernel that moves more than
it computes with `bandwidth`, one of 8-bit integers with `int8_ops`, one of pairs of bfloat16 with
`bf16_flops`, and one that AMX multiplies with `tile_ops`.

Each thread repeats its own call, about a millisecond long, and waits for no other. For each repetition of
the first thread, the speeds of what all threads run at that moment are added; the largest sum counts. So
other processes disturb it little: if one has a CPU, the call there is slow, and that moment does not count.
An array whose pages lie badly slows calls down too, so the time is divided into placements, each with newly
allocated arrays. If the two best placements differ by more than 1 %, there are more of them, in up to three
times the time asked for. What no measurement from inside can see is a virtual machine whose host serves
others: there the bandwidth may change by a third from one second to the next. Quote two digits of a share of
these peaks.
"""

import functools
import itertools
import math
import threading
import time as clock
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm
from tvm.script import tirx as T

from ..compiler import codegen
from ..compiler.schedule import amx, pairs
from ..compiler.schedule.dot import DOTS, Dot
from ..core import machine
from ..core.compat import fast_tvmscript_parser
from ..core.simd import simd_of

_STEPS = 1 << 17  # of a repetition: some 0.4 ms, short enough to run undisturbed even on a busy machine
_BYTES = 256 << 20  # of the array that is read: much larger than the caches
_PARTS = 4  # of the array, read in turn: each is short, and has left the caches when its turn comes again
_STREAMS = 4  # that a thread reads side by side
_PLACEMENTS = 8  # at least, each measured for an equal part of the time
_AGREE = 1.01  # the ratio of the two best placements that ends the search
_LIMIT = 3  # times the time asked for
_SUMS = 6  # tiles of sums, whose products overlap; the other two of AMX have data and weights
_ONES = 0x3F803F80  # two ones of bfloat16; as four bytes other numbers, which do as well
_PAGE = 2 << 20  # a huge page: NumPy asks Linux for such pages, and fewer pages repeat better


@functools.cache
def flops(seconds: float = 1.0) -> float:
    """Measure the peak of float32 multiply-adds on `machine.threads()` threads, in FLOP/s; once per process.

    A multiplication counts 1, and so does an addition. Each thread repeats `recurrence`, in several
    placements of about `seconds` together.
    """
    chains, lanes = _shape()
    kernel = recurrence(1, chains, lanes)
    x, y = (tvm.runtime.tensor(np.full(lanes, value, "float32")) for value in (0.75, 0.5))
    initial = np.random.default_rng(0).random((1, chains, lanes), "float32")

    def place():
        return [functools.partial(kernel, x, y, tvm.runtime.tensor(initial), _STEPS)]

    return 2 * chains * lanes * _STEPS * _best(place, seconds)


@functools.cache
def int8_ops(seconds: float = 1.0) -> float:
    """Measure the peak of the CPU's instruction for dot products of bytes, in operations/s; as `flops`.

    It is that of `Simd.dot` (`vpdpbusd`, or else `vpmaddwd` of what int8 kernels widen to 16 bits; without
    one, int32 arithmetic). A product counts 1, and so does its addition to an int32 sum.
    """
    chains, lanes = _shape()
    dot = DOTS[simd_of(machine.host_target()).dot]
    kernel = dot_recurrence(1, chains, lanes, dot)
    random = np.random.default_rng(0)
    weights = tvm.runtime.tensor(random.integers(-127, 127, lanes * dot.terms).astype(dot.weight))
    initial = random.integers(-1000, 1000, (1, chains, lanes)).astype("int32")

    def place():
        return [functools.partial(kernel, weights, tvm.runtime.tensor(initial), _STEPS)]

    return 2 * dot.terms * chains * lanes * _STEPS * _best(place, seconds)


@functools.cache
def bf16_flops(seconds: float = 1.0) -> float:
    """Measure the peak of products of pairs of bfloat16, in FLOP/s; as `flops`.

    Without AVX512_BF16 it is that of `flops`, as kernels compute in float32 then.
    """
    if "avx512bf16" not in machine.target_instruction_sets(machine.host_target()):
        return flops(seconds)
    chains, lanes = _shape()
    kernel = pair_recurrence(1, chains, lanes)
    packed = pairs.pack(np.full((2, lanes), 0.5, "float32"), 0, 1).reshape(lanes)
    x, y = tvm.runtime.tensor(packed), tvm.runtime.tensor(packed)
    initial = np.random.default_rng(0).random((1, chains, lanes), "float32")

    def place():
        return [functools.partial(kernel, x, y, tvm.runtime.tensor(initial), _STEPS)]

    return 4 * chains * lanes * _STEPS * _best(place, seconds)


@functools.cache
def tile_ops(instruction: str, seconds: float = 1.0) -> float:
    """Measure the peak of an instruction of AMX, "tdpbusd" or "tdpbf16ps", in operations/s; as `flops`.

    It multiplies bytes, or pairs of bfloat16. A machine without it has vectors for them, and their peak.
    """
    target = machine.host_target()
    if instruction not in simd_of(target).tiles:
        return {"tdpbusd": int8_ops, "tdpbf16ps": bf16_flops}[instruction](seconds)
    kernel, steps = tile_recurrence(instruction, target)["main"], _STEPS // 8
    data, weights = (tvm.runtime.tensor(np.full((16, 16), _ONES, "int32")) for _ in range(2))

    def place():
        sums = tvm.runtime.tensor(np.zeros((_SUMS, 16, 16), "int32"))
        return [functools.partial(kernel, data, weights, sums, steps)]

    products = {"tdpbusd": 4, "tdpbf16ps": 2}[instruction] * 16**3
    return 2 * products * _SUMS * steps * _best(place, seconds)


@functools.cache
def bandwidth(seconds: float = 1.0) -> float:
    """Measure the bytes per second that `machine.threads()` threads read from memory; once per process.

    Each thread repeats `column_sums`, in several placements of about `seconds` together. The arrays of all
    threads have 256 MiB.
    """
    registers, lanes = _shape()
    chains = registers // _STREAMS
    rows = _BYTES // (machine.threads() * _PARTS * 4 * registers * lanes)
    shape = (1, _STREAMS, rows, chains, lanes)
    kernel = column_sums(*shape)

    def place():
        accumulators = tvm.runtime.tensor(np.zeros((1, _STREAMS, chains, lanes), "float32"))
        return [functools.partial(kernel, part, accumulators) for part in _parts(shape)]

    return 4 * math.prod(shape) * _best(place, seconds)


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
        for t in range(threads):
            for _ in range(steps):
                for c in T.unroll(chains):
                    accumulators[t, c, row] = accumulators[t, c, row] * x[row] + y[row]

    return tvm.compile(main, target=machine.host_target())["main"]


@fast_tvmscript_parser()
def dot_recurrence(threads: int, chains: int, lanes: int, dot: Dot) -> Callable:
    """Compile a function of (weights, accumulators, steps): `recurrence` of dot products of integers.

    In each step an accumulator's own bits, as numbers of 8 or 16 bits, are the data that are multiplied by
    the weights, (lanes * terms,), and added to it: an instruction that did not depend on the step before
    could be left out. `accumulators` are int32 (threads, chains, lanes).
    """
    row, count = tvm.tirx.Ramp(0, 1, lanes), lanes * dot.terms
    all_weights = tvm.tirx.Ramp(0, 1, count)

    def added(sums, weights):
        if dot.apply is None:
            return sums * weights.astype(f"int32x{lanes}") + sums
        return dot.apply(sums, T.reinterpret(f"{dot.data}x{count}", sums), weights)

    @T.prim_func
    def main(
        weights: T.Buffer((count,), dot.weight),
        accumulators: T.Buffer((threads, chains, lanes), "int32"),
        steps: T.int32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        for t in range(threads):
            for _ in range(steps):
                for c in T.unroll(chains):
                    accumulators[t, c, row] = added(accumulators[t, c, row], weights[all_weights])

    kernels = {tvm.ir.GlobalVar("main"): main}
    return codegen.compile_kernels(kernels, machine.host_target(), runs_here=True)["main"]


@fast_tvmscript_parser()
def pair_recurrence(threads: int, chains: int, lanes: int) -> Callable:
    """Compile a function of (x, y, accumulators, steps): `steps` times, the products of two pairs are added.

    `x` and `y` are pairs of bfloat16, int32 (lanes,); `accumulators` are float32 (threads, chains, lanes).
    """

    @T.prim_func
    def main(
        x: T.Buffer((lanes,), "int32"),
        y: T.Buffer((lanes,), "int32"),
        accumulators: T.Buffer((threads, chains, lanes), "float32"),
        steps: T.int32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        for t in range(threads):
            for _ in range(steps):
                for c in T.unroll(chains):
                    for i in T.vectorized(lanes):
                        accumulators[t, c, i] = accumulators[t, c, i] + pairs.dot(x[i], y[i])

    kernels = {tvm.ir.GlobalVar("main"): pairs.accumulate(main)}
    return codegen.compile_kernels(kernels, machine.host_target(), runs_here=True)["main"]


@fast_tvmscript_parser()
def tile_recurrence(instruction: str, target: tvm.target.Target) -> tvm.runtime.Module:
    """Compile `main`, a function of (data, weights, sums, steps): six sums of so many products of tiles.

    `data` and `weights` are (16, 16), and `sums` (6, 16, 16), all int32 here, whatever they stand for. They
    stay in AMX's eight registers, and the six products of a step do not depend on each other.
    """
    tile = amx.Tile(instruction, amx.ROWS, across=_SUMS, down=1, blocks=1)
    of_weights, of_data = _SUMS, _SUMS + 1

    def load(register, array):
        T.evaluate(amx.instruction("tileloadd64", register, T.address_of(array[0, 0]), T.int64(64)))

    def clear():
        for n in range(_SUMS):
            T.evaluate(amx.instruction("tilezero", n))

    def multiply():
        for n in range(_SUMS):
            T.evaluate(amx.instruction(instruction, n, of_data, of_weights))

    def store(sums):
        for n in range(_SUMS):
            T.evaluate(amx.instruction("tilestored64", n, T.address_of(sums[n, 0, 0]), T.int64(64)))

    @T.prim_func
    def main(
        data: T.Buffer((16, 16), "int32"),
        weights: T.Buffer((16, 16), "int32"),
        sums: T.Buffer((_SUMS, 16, 16), "int32"),
        steps: T.int32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        clear()
        load(of_data, data)
        load(of_weights, weights)
        for _ in range(steps):
            multiply()
        store(sums)

    kernels = {tvm.ir.GlobalVar("main"): amx.configured(main, tile)}
    return codegen.compile_kernels(kernels, target, runs_here=False)


@fast_tvmscript_parser()
def column_sums(threads: int, streams: int, rows: int, chains: int, lanes: int) -> Callable:
    """Compile a function of (data, accumulators), both float32, that adds all rows of data to accumulators.

    `data` is (threads, streams, rows, chains, lanes); `accumulators`, (threads, streams, chains, lanes), stay
    in registers. A thread reads its streams side by side, since one stream has fewer loads under way.
    """
    row = tvm.tirx.Ramp(0, 1, lanes)

    @T.prim_func
    def main(
        data: T.Buffer((threads, streams, rows, chains, lanes), "float32"),
        accumulators: T.Buffer((threads, streams, chains, lanes), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for t in range(threads):
            for r in range(rows):
                for s in T.unroll(streams):
                    for c in T.unroll(chains):
                        accumulators[t, s, c, row] = accumulators[t, s, c, row] + data[t, s, r, c, row]

    return tvm.compile(main, target=machine.host_target())["main"]


def _shape() -> tuple[int, int]:
    """Return chains and lanes: chains take 3/4 of the registers, as operands need some too."""
    unit = simd_of(machine.host_target())
    return unit.registers * 3 // 4, unit.lanes


def _parts(shape: tuple[int, ...]) -> list:
    """Allocate one array for `_PARTS` tensors of ones, from the beginning of a huge page on."""
    size = -(-4 * math.prod(shape) // 64) * 64  # TVM wants tensors at multiples of 64 bytes
    memory = np.empty(_PARTS * size + _PAGE, "uint8")
    start = -memory.ctypes.data % _PAGE
    parts = [memory[start + i * size :][: 4 * math.prod(shape)].view("float32") for i in range(_PARTS)]
    for part in parts:
        part.fill(1)
    return [tvm.runtime.from_dlpack(part.reshape(shape)) for part in parts]


def _best(place: Callable[[], list[Callable]], seconds: float) -> float:
    """Return how many calls per second all threads make at best, of several placements; see the module.

    `place` allocates a thread's arrays and returns the calls on them, which it makes in turn.
    """
    seconds, least = machine.cap_if_quick(seconds, 0.1), machine.cap_if_quick(_PLACEMENTS, 2)
    rates: list[float] = []
    begin = clock.perf_counter()
    while len(rates) < least or (
        rates[0] > rates[1] * _AGREE and clock.perf_counter() - begin < _LIMIT * seconds
    ):
        calls = [place() for _ in range(machine.threads())]
        rates = sorted([*rates, _rate(calls, seconds / least)], reverse=True)
    return rates[0]


def _rate(calls: list[list[Callable]], seconds: float) -> float:
    """Return the largest sum of the speeds of all threads at a moment, in calls per second.

    `calls` has a list for each thread, which makes them in turn, after a warm-up, for `seconds`.
    """
    ready = threading.Barrier(len(calls))

    def repeat(mine):
        for call in mine:
            call()
        ready.wait()
        times: list[tuple[float, float]] = []
        end = clock.perf_counter() + seconds
        for call in itertools.cycle(mine):
            start = clock.perf_counter()
            if start >= end and times:
                return np.array(times)
            call()
            times.append((start, clock.perf_counter()))

    with ThreadPoolExecutor(len(calls)) as pool:
        spans = list(pool.map(repeat, calls))
    moments = spans[0].mean(axis=1)
    total = np.zeros(len(moments))
    for begun, ended in (each.T for each in spans):
        at = np.searchsorted(begun, moments, side="right") - 1
        running = (at >= 0) & (moments < ended[at])
        total += np.where(running, 1 / (ended[at] - begun[at]), 0.0)
    return float(total.max())
