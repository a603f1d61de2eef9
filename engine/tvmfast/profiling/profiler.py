"""Profiles: the time of each kernel of a network, and how far each is from the machine's limits.

    profile = tn.profile(lib, x)
    profile                           # a table; print(profile) is text
    profile.plot()                    # bars by share
    profile.roofline()                # each kernel against the machine's limits
    profile.to_chrome_trace("run.json")   # for https://ui.perfetto.dev

FLOPs and bytes of a kernel were counted in its TensorIR when it was built (`compiler.costs.count`), so a
network that was loaded has the same table. With dynamic dims they are counted for those of the call, or, as
a loaded network has no TensorIR, interpolated (`compiler.dynamic.cost`). `memory` reports a run's memory.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler import costs
from ..compiler.schedule.amx import INSTRUCTIONS
from ..core import machine
from ..core.data import atomic_write
from ..core.dims import dims_of, evaluate
from ..core.relax import bytes_of
from ..core.table import Table, draw
from ..runtime.compiled import Compiled
from ..runtime.stopwatch import Call, Stopwatch, of_kernels
from . import measure, peak
from .measure import Timing
from .trace import write_chrome_trace


@dataclass
class Kernel:
    """Statistics of a kernel: calls per run, seconds of these calls by run, operations and bytes moved.

    `flops`, `bytes`, and the `bf16_flops` and `int_ops` of `costs.count` are those of all its calls in a run.
    `tiles` is the instruction of AMX that multiplies its tiles, if one does.
    """

    name: str
    calls: int
    timing: Timing
    flops: int
    bytes: int
    operators: list[str]
    makes: str
    schedule: str
    bf16_flops: int = 0
    int_ops: int = 0
    tiles: str = ""

    @property
    def operations(self) -> int:
        """Those of floating-point numbers and of integers."""
        return self.flops + self.int_ops

    @property
    def computing(self) -> float:
        """The least seconds that its operations take, each kind at its peak: they share the same units."""
        seconds = (self.flops - self.bf16_flops) / peak.flops()
        if self.bf16_flops:
            seconds += self.bf16_flops / self._peak(peak.bf16_flops)
        return seconds + (self.int_ops / self._peak(peak.int8_ops) if self.int_ops else 0)

    def _peak(self, of_vectors: Callable[[], float]) -> float:
        return peak.tile_ops(self.tiles) if self.tiles else of_vectors()

    @property
    def limit(self) -> float:
        """The roofline's lower bound in seconds: max(`computing`, bytes / peak bandwidth)."""
        return max(self.computing, self.bytes / peak.bandwidth())

    @property
    def bound(self) -> str:
        """The roofline limit that binds: "compute" or "memory"."""
        return "compute" if self.computing > self.bytes / peak.bandwidth() else "memory"

    def __str__(self) -> str:
        return f"{self.name[:38] + '…' if len(self.name) > 40 else self.name}, {self.makes}"


@dataclass(repr=False)
class Profile(Table):
    """Kernels by name, those that take the most time first.

    `limit`, and what depends on it, compare with `peak.flops` and `peak.bandwidth`, and where kernels compute
    with integers or pairs of bfloat16 with `peak.int8_ops` and `peak.bf16_flops`, or by AMX with
    `peak.tile_ops`. Each is measured on first use, in about a second. The bandwidth is main memory's: a
    kernel that finds its data in a cache can exceed it. Operations on wider integers than bytes have lower
    peaks than `peak.int8_ops`.

    Attributes:
        compiled: The network.
        runs: For each run, every call of the virtual machine in order.
        unprofiled: Times of runs without the stopwatch.
        profiled: Times of runs with it.
        sizes: The values of the network's dynamic dims in these runs, by name.
        lost: The share of the time that other processes took from the runs, as of a `measure.Comparison`.
        kernels: A `Kernel` by name.
    """

    compiled: Compiled
    runs: list[list[Call]]
    unprofiled: Timing
    profiled: Timing
    sizes: Mapping[str, int] = field(default_factory=dict)
    lost: float | None = None
    kernels: dict[str, Kernel] = field(init=False)

    formatters = (
        dict.fromkeys(("ms", "iqr (ms)"), "{:.3f}".format)
        | dict.fromkeys(("MFLOP", "int Mop", "MB", "GFLOP/s", "int Gop/s", "GB/s"), "{:.1f}".format)
        | dict.fromkeys(("share", "of limit"), "{:.0%}".format)
    )
    text_columns = "operators", "makes", "bound", "schedule"

    def __post_init__(self) -> None:
        spent: list[dict[str, list[float]]] = [{} for _ in self.runs]
        for total, run in zip(spent, self.runs, strict=True):
            for call in of_kernels(run, self.compiled):
                total.setdefault(call.name, []).append(call.end - call.begin)
        graph = self.compiled.graph
        shapes: dict[str, list] = {}
        for node in graph["nodes"]:
            shapes.setdefault(node["kernel"], node["makes"][0]["shape"])
        kernels = []
        functions = self.compiled.functions if self.sizes else {}
        for name, calls in spent[0].items():
            counts = graph["costs"][name]
            if name in functions:
                counts = counts | costs.count(functions[name], self.sizes)
            # A network saved by an older version has no counts of integers and pairs.
            flops, bf16_flops, int_ops, reads, writes = (
                len(calls) * evaluate(counts.get(each, 0), self.sizes) for each in costs.KINDS
            )
            shape = (evaluate(dim, self.sizes) for dim in shapes[name] or ())
            instruction = graph["kernels"][name].get("instruction", "")
            kernel = Kernel(
                name,
                len(calls),
                Timing(name, [sum(total[name]) for total in spent]),
                flops=flops,
                bytes=reads + writes,
                operators=counts["operators"],
                makes="x".join(map(str, shape)) or "a number",
                schedule=schedule_text(graph["kernels"][name]),
                bf16_flops=bf16_flops,
                int_ops=int_ops,
                tiles=instruction if instruction in INSTRUCTIONS else "",
            )
            kernels.append(kernel)
        kernels.sort(key=lambda kernel: -kernel.timing.median)
        self.kernels = {kernel.name: kernel for kernel in kernels}

    @property
    def sum(self) -> float:
        """The seconds of all kernels in a run, the median over the runs; the remainder is VM overhead."""
        return float(np.median(np.sum([kernel.timing.seconds for kernel in self.kernels.values()], axis=0)))

    @property
    def overhead(self) -> float:
        """The stopwatch's overhead as a fraction of a run's time, from the ratio of medians."""
        return self.profiled.median / self.unprofiled.median - 1

    def frame(self) -> Any:
        """Make a pandas DataFrame with a row per kernel, for all its calls in a run: the most time first.

        "ms" is the median over the runs and "iqr (ms)" their interquartile range; "share" is relative to the
        sum of these medians; "of limit" is the roofline's lower bound for the time, by the limit that "bound"
        names, as a fraction of the time. The operations on integers have columns if there are any.
        """
        import pandas as pd  # for speed: only where a table is shown

        total = sum(kernel.timing.median for kernel in self.kernels.values())
        has_integers = any(kernel.int_ops for kernel in self.kernels.values())
        rows = []
        for kernel in self.kernels.values():
            seconds = kernel.timing.median
            row = {
                "kernel": kernel.name,
                "operators": " + ".join(kernel.operators),
                "makes": kernel.makes,
                "calls": kernel.calls,
                "ms": seconds * 1e3,
                "iqr (ms)": kernel.timing.iqr * 1e3,
                "share": seconds / total,
                "MFLOP": kernel.flops / 1e6,
                **({"int Mop": kernel.int_ops / 1e6} if has_integers else {}),
                "MB": kernel.bytes / 1e6,
                "GFLOP/s": kernel.flops / seconds / 1e9,
                **({"int Gop/s": kernel.int_ops / seconds / 1e9} if has_integers else {}),
                "GB/s": kernel.bytes / seconds / 1e9,
                "bound": kernel.bound,
                "of limit": kernel.limit / seconds,
                "schedule": kernel.schedule,
            }
            rows.append(row)
        return pd.DataFrame(rows).set_index("kernel")

    def calls(self) -> Any:
        """Make a pandas DataFrame with a row per kernel call, in order: begin and time in ms, medians.

        "node" is its index in `compiled.graph["nodes"]`.
        """
        import pandas as pd  # for speed: only where a table is shown

        nodes = iter(enumerate(self.compiled.graph["nodes"]))  # some became aliases of their inputs
        rows = []
        for calls in zip(*(of_kernels(run, self.compiled) for run in self.runs), strict=True):
            kernel = calls[0].name
            index = next(index for index, node in nodes if node["kernel"] == kernel)
            begin, spent = np.median([(call.begin, call.end - call.begin) for call in calls], axis=0) * 1e3
            rows.append({"node": index, "kernel": kernel, "begin (ms)": begin, "ms": spent})
        return pd.DataFrame(rows)

    @property
    def summary(self) -> str:  # type: ignore[override]
        """A line that compares runs without and with the stopwatch, and the kernels' sum.

        A sentence is added if the machine was busy meanwhile.
        """
        median = self.unprofiled.median
        line = (
            f"a run {median * 1e3:.2f} ms, with the stopwatch {self.profiled.median * 1e3:.2f} ms "
            f"({self.overhead:+.1%}); kernels {self.sum * 1e3:.2f} ms, {self.sum / median:.1%} of a run; "
            f"{len(self.runs)} runs profiled"
        )
        return ". ".join(filter(None, (line, measure.if_busy(self.lost))))

    def plot(self, most: int = 12) -> Any:
        """Draw the kernels' times as bars, those with the largest shares; see `plots.shares`."""
        return draw("shares", {str(kernel): kernel.timing for kernel in self.kernels.values()}, most)

    def roofline(self) -> Any:
        """Draw the kernels under the machine's roofline; see `plots.roofline`."""
        kernels = self.kernels.values()
        others: dict[str, float] = {}
        if any(kernel.int_ops and not kernel.tiles for kernel in kernels):
            others["bytes"] = peak.int8_ops()
        if any(kernel.bf16_flops and not kernel.tiles for kernel in kernels):
            others["pairs of bfloat16"] = peak.bf16_flops()
        for instruction in sorted({kernel.tiles for kernel in kernels if kernel.tiles}):
            others[f"tiles by {instruction}"] = peak.tile_ops(instruction)
        return draw("roofline", {"kernels": self.dots}, peak.flops(), peak.bandwidth(), others)

    @property
    def dots(self) -> list[tuple[int, int, float]]:
        """Operations, bytes and seconds in a run of each kernel with operations, for `plots.roofline`."""
        return [(k.operations, k.bytes, k.timing.median) for k in self.kernels.values() if k.operations]

    def to_csv(self, path: str | os.PathLike) -> Path:
        """Write `frame` to a file of comma-separated values; return its path."""
        return atomic_write(path, self.frame().to_csv())

    def to_chrome_trace(self, path: str | os.PathLike) -> Path:
        """Write the run with the median time as a Chrome trace for https://ui.perfetto.dev; return its path.

        It has the calls of that run as they were, one after the other; a click on a kernel shows the table's
        facts.
        """
        run = sorted(self.runs, key=lambda run: run[-1].end - run[0].begin)[len(self.runs) // 2]
        whole = run[-1].end - run[0].begin
        events: list[tuple] = [("run", "network", 0.0, whole, {"network": str(self.compiled)})]
        for call in run:
            kernel = self.kernels.get(call.name)
            facts = {}
            if kernel:
                facts = {
                    "operators": " + ".join(kernel.operators),
                    "makes": kernel.makes,
                    "schedule": kernel.schedule,
                    "MFLOP": kernel.flops / kernel.calls / 1e6,
                    "int Mop": kernel.int_ops / kernel.calls / 1e6,
                    "MB": kernel.bytes / kernel.calls / 1e6,
                }
            kind = "kernel" if kernel else "virtual machine"
            events.append((call.name, kind, call.begin - run[0].begin, call.end - call.begin, facts))
        return write_chrome_trace(path, events)


def schedule_text(schedule: dict) -> str:
    """Format a schedule or a config in a line, without a trace of MetaSchedule's, which is long."""
    return " ".join(str(v) if k == "family" else f"{k}={v}" for k, v in schedule.items() if k != "trace")


def profile(lib: Compiled, *inputs: Any, seconds: float = 1.0, calls: int | None = None) -> Profile:
    """Run a network repeatedly and measure each of its kernels.

    Runs with the stopwatch alternate with runs without it, as in `measure.compare`, so that the profile knows
    its own overhead, and on Linux says if the machine was busy. A network with state runs in a session of its
    own, from zeros on, and keeps its state.

    Args:
        lib: The network.
        *inputs: As for a call of `lib`; they are made readable for kernels once, in advance.
        seconds: Timed seconds of the runs with the stopwatch, and of those without.
        calls: Exact number of runs of each, instead.

    Returns:
        A `Profile`, which shows itself as a table.

    Raises:
        TypeError: `lib` is no `Compiled`, or an input is wrong, as in a call of `lib`.
        ValueError: `lib` is for a GPU or has no kernel, or an input is wrong, as in a call of `lib`.
        RuntimeError: `lib` is for another kind of machine.
    """
    if not isinstance(lib, Compiled):
        raise TypeError(
            f"profile: expected a Compiled, as tn.build and tn.load give; got {type(lib).__name__}"
        )
    if lib.target.kind.name != "llvm":
        raise ValueError(f"profile: measures kernels of a CPU; this network is for {lib.target.kind.name}")
    if not lib.graph["kernels"]:
        raise ValueError("profile: this network calls no kernel, so there is nothing to measure")
    tensors = lib.input_tensors(lib.bind(inputs, {}))
    lib = lib.serving(tensors)
    session = lib.session()
    return of_run(lib, lambda: session.run(tensors), seconds, calls, lib.dim_values(tensors))


def of_run(
    lib: Compiled,
    run: Callable,
    seconds: float = 1.0,
    calls: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Profile:
    """Profile a function that runs `lib` once, as `profile` does; `sizes` are the dynamic dims' values."""
    run()
    watch = Stopwatch(lib, run)
    timings = measure.compare({"unprofiled": run, "profiled": watch}, seconds=seconds, calls=calls)
    return Profile(lib, watch.take(), timings["unprofiled"], timings["profiled"], sizes or {}, timings.lost)


def _values(lib: Compiled, sizes: dict[str, int]) -> dict[str, int]:
    """Return the values of the dynamic dims: the given one, or else the upper bound."""
    dims = dims_of(spec.shape for spec in lib.inputs)
    values = {name: sizes.get(name, dim.upper) for name, dim in dims.items()}
    known = {name: value for name, value in values.items() if value is not None and dims[name].takes(value)}
    if len(known) < len(dims) or set(sizes) - set(dims):
        wanted = ", ".join(f"{name} ({dim.bounds})" for name, dim in dims.items()) or "none"
        raise ValueError(f"expected values of the dynamic dims, {wanted}; got {sizes or 'none'}")
    return known


def memory(lib: Compiled, **sizes: int) -> machine.Report:
    """Tabulate the memory of a run, as planned by the compiler.

    Values that are not live at the same time share a buffer. The sizes are in `lib.graph["memory"]`, in
    bytes. Memory that a kernel allocates while it runs is not included. `sizes` are the values of dynamic
    dims, by name; one that is left out has its upper bound. Parameters are those of all shape variants, and
    the rest is that of `lib` itself: `memory(lib.variants[0])` has that of the first one.

    Raises:
        ValueError: The value of a dynamic dim is missing or out of its bounds, or there is no such dim.
    """
    plan, sizes = lib.graph["memory"], _values(lib, sizes)
    buffers = [evaluate(size, sizes) for size in plan["buffers"]]
    peak, unshared = (_largest(plan[name], sizes) for name in ("peak", "unshared"))
    arrays = lib.arrays_of_all
    params = sum(int(np.prod(p.shape)) * bytes_of(p.dtype) for p in arrays.values())
    inputs, state = (
        sum(int(np.prod(spec.at(sizes).shape)) * bytes_of(spec.dtype) for spec in specs)
        for specs in (lib.inputs, lib.state)
    )
    return machine.Report(
        {
            "parameters": f"{params / 1e6:.2f} MB in {len(arrays)} arrays",
            "inputs": f"{inputs / 1e6:.2f} MB",
            **({"state": f"{state / 1e6:.2f} MB"} if lib.state else {}),
            "values, each by itself": f"{unshared / 1e6:.2f} MB",
            "buffers that they share": f"{sum(buffers) / 1e6:.2f} MB in {len(buffers)} buffers",
            "of these at once": f"{peak / 1e6:.2f} MB",
            "peak of a run": f"{(params + inputs + state + peak) / 1e6:.2f} MB",
        }
    )


def _largest(plan: int | str | list, sizes: dict[str, int]) -> int:
    return max(evaluate(size, sizes) for size in (plan if isinstance(plan, list) else [plan]))


def alive(lib: Compiled, **sizes: int) -> list[int]:
    """List, for each node of the graph in order, the bytes of the values that are live while it runs.

    These are its outputs and the values that it or a later node reads, without inputs and parameters. An
    alias of another value counts as a value; parts of a node's several outputs count only while it runs.
    `sizes` are as for `memory`.
    """
    sizes = _values(lib, sizes)
    nodes = lib.graph["nodes"]
    last = list(range(len(nodes)))  # the last node that reads an output of each
    maker: dict[str, int] = {}  # a name may be assigned again, and is then the later value
    for index, node in enumerate(nodes):
        for name in node["reads"]:
            if name in maker:
                last[maker[name]] = index
        maker[node["name"]] = index
    for name, _ in lib.graph["heads"]:
        if name in maker:
            last[maker[name]] = len(nodes) - 1
    held = [0] * len(nodes)
    for first, node in enumerate(nodes):
        makes = [] if node.get("in_place") else node["makes"]
        tensors = [output for output in makes if output["shape"] is not None]
        shapes = ([evaluate(n, sizes) for n in tensor["shape"]] for tensor in tensors)
        pairs = zip(shapes, tensors, strict=True)
        size = sum(int(np.prod(shape)) * bytes_of(tensor["dtype"]) for shape, tensor in pairs)
        for index in range(first, last[first] + 1):
            held[index] += size
    return held
