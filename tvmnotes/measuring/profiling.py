"""A profile says where a network's time goes, kernel by kernel, and how far each is from what the machine can do.

    profile = tn.profile(lib, x)
    profile                           # a table; print(profile) is text
    profile.plot()                    # bars by share
    profile.roofline()                # each kernel against the machine's limits
    profile.to_chrome_trace("run.json")   # for https://ui.perfetto.dev

What a kernel computes and moves was counted in its TensorIR when it was built (`compiler.costs.count`), so a network
that was loaded from a folder has the same table. `memory` says what a run holds; for threads see threads.py.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..base import env
from ..base.data import atomic_write
from ..base.relax import bytes_of
from ..base.table import Table
from ..runtime.compiled import Compiled
from ..runtime.stopwatch import Call, Stopwatch, of_kernels
from . import measure, peak
from .measure import Timing
from .tracing import write_chrome_trace


@dataclass
class Kernel:
    """A profile has of each kernel how often a run calls it, the seconds of these calls by run, and what they do.

    `flops` and `bytes` are those of all its calls in a run.
    """

    name: str
    calls: int
    timing: Timing
    flops: int
    bytes: int
    operators: list[str]
    makes: str
    schedule: str

    @property
    def limit(self) -> float:
        """This would take so many seconds at the machine's measured limits: for computing, or for memory."""
        return max(self.flops / peak.flops(), self.bytes / peak.bandwidth())

    @property
    def bound(self) -> str:
        """It names the one of the two limits that holds: "compute" or "memory"."""
        return "compute" if self.flops / peak.flops() > self.bytes / peak.bandwidth() else "memory"

    def __str__(self) -> str:
        return f"{self.name[:38] + '…' if len(self.name) > 40 else self.name}, {self.makes}"


@dataclass(repr=False)
class Profile(Table):
    """A profile has `kernels` by name, those that take the most time first; it shows itself as a table.

    `runs` has, for each run, every call of the virtual machine in order; `unprofiled` times runs without the stopwatch,
    `profiled` those with it. `limit` and what stands on it are held against `peak.flops` and `peak.bandwidth`, which
    are measured when first asked for, in about a second. The second is main memory's: a kernel that finds its data in a
    cache can be faster than that.
    """

    compiled: Compiled
    runs: list[list[Call]]
    unprofiled: Timing
    profiled: Timing
    kernels: dict[str, Kernel] = field(init=False)

    formatters = (
        dict.fromkeys(("ms", "iqr (ms)"), "{:.3f}".format)
        | dict.fromkeys(("MFLOP", "MB", "GFLOP/s", "GB/s"), "{:.1f}".format)
        | dict.fromkeys(("share", "of limit"), "{:.0%}".format)
    )
    text_columns = "operators", "makes", "bound", "schedule"

    def __post_init__(self):
        spent = [{} for _ in self.runs]
        for total, run in zip(spent, self.runs, strict=True):
            for call in of_kernels(run, self.compiled):
                total.setdefault(call.name, []).append(call.end - call.begin)
        graph, shapes = self.compiled.graph, {}
        for node in graph["nodes"]:
            shapes.setdefault(node["kernel"], node["makes"][0]["shape"])
        kernels = []
        for name, calls in spent[0].items():
            costs, makes = graph["costs"][name], "x".join(map(str, shapes[name] or ())) or "a number"
            flops, moved = (len(calls) * each for each in (costs["flops"], costs["reads"] + costs["writes"]))
            timing, schedule = Timing(name, [sum(total[name]) for total in spent]), graph["kernels"][name]
            kernels.append(Kernel(name, len(calls), timing, flops, moved, costs["operators"], makes,
                                  schedule_text(schedule)))  # fmt: skip
        kernels.sort(key=lambda kernel: -kernel.timing.median)
        self.kernels = {kernel.name: kernel for kernel in kernels}

    @property
    def sum(self) -> float:
        """All kernels of a run took so many seconds, by the median of the runs; the rest is the virtual machine's."""
        return float(np.median(np.sum([kernel.timing.seconds for kernel in self.kernels.values()], axis=0)))

    @property
    def overhead(self) -> float:
        """The stopwatch makes a run longer by this part of its time, by the medians."""
        return self.profiled.median / self.unprofiled.median - 1

    def frame(self):
        """Make a pandas DataFrame with a row per kernel, for all its calls in a run: the most time first.

        "ms" is the median over the runs and "iqr (ms)" their interquartile range; "share" is of the sum of these
        medians; "of limit" is how much of the time the machine would need at its own limit, the one that "bound" names.
        """
        import pandas as pd  # for speed: only where a table is shown

        total, rows = sum(kernel.timing.median for kernel in self.kernels.values()), []
        for kernel in self.kernels.values():
            seconds = kernel.timing.median
            rows.append({
                "kernel": kernel.name,
                "operators": " + ".join(kernel.operators),
                "makes": kernel.makes,
                "calls": kernel.calls,
                "ms": seconds * 1e3,
                "iqr (ms)": kernel.timing.iqr * 1e3,
                "share": seconds / total,
                "MFLOP": kernel.flops / 1e6,
                "MB": kernel.bytes / 1e6,
                "GFLOP/s": kernel.flops / seconds / 1e9,
                "GB/s": kernel.bytes / seconds / 1e9,
                "bound": kernel.bound,
                "of limit": kernel.limit / seconds,
                "schedule": kernel.schedule,
            })  # fmt: skip
        return pd.DataFrame(rows).set_index("kernel")

    def calls(self):
        """Make a pandas DataFrame with a row per call of a kernel, in order: begin and time in ms, medians of the runs.

        "node" is its number in `compiled.graph["nodes"]`.
        """
        import pandas as pd  # for speed: only where a table is shown

        nodes = iter(enumerate(self.compiled.graph["nodes"]))  # some became views of what they read
        rows = []
        for calls in zip(*(of_kernels(run, self.compiled) for run in self.runs), strict=True):
            kernel = calls[0].name
            number = next(number for number, node in nodes if node["kernel"] == kernel)
            begin, spent = np.median([(call.begin, call.end - call.begin) for call in calls], axis=0) * 1e3
            rows.append({"node": number, "kernel": kernel, "begin (ms)": begin, "ms": spent})
        return pd.DataFrame(rows)

    @property
    def summary(self) -> str:
        """It says how the runs compare: without the stopwatch, with it, and the kernels' sum."""
        plain = self.unprofiled.median
        return (
            f"a run {plain * 1e3:.2f} ms, with the stopwatch {self.profiled.median * 1e3:.2f} ms "
            f"({self.overhead:+.1%}); kernels {self.sum * 1e3:.2f} ms, {self.sum / plain:.1%} of a run; "
            f"{len(self.runs)} runs profiled"
        )

    def plot(self, most: int = 12):
        """Draw the kernels' times as bars, those with the largest shares; see `plots.shares`."""
        from ..course import plots  # for speed: only where it is drawn

        return plots.shares({str(kernel): kernel.timing for kernel in self.kernels.values()}, most)

    def roofline(self):
        """Draw the kernels under the machine's roofline; see `plots.roofline`."""
        from ..course import plots  # for speed: only where it is drawn

        return plots.roofline({"kernels": self.dots}, peak.flops(), peak.bandwidth())

    @property
    def dots(self) -> list[tuple[int, int, float]]:
        """Each kernel that computes has its operations, bytes and seconds of a run here, for `plots.roofline`."""
        return [(k.flops, k.bytes, k.timing.median) for k in self.kernels.values() if k.flops]

    def to_csv(self, path: str | os.PathLike) -> Path:
        """Write `frame` to a file of comma-separated values; returns its path."""
        return atomic_write(path, self.frame().to_csv())

    def to_chrome_trace(self, path: str | os.PathLike) -> Path:
        """Write one of the runs, that of the median time, as a Chrome trace, which https://ui.perfetto.dev opens.

        It has the calls of that run as they were, one after the other; a click on a kernel shows what the table says of
        it. Returns the path.
        """
        run = sorted(self.runs, key=lambda run: run[-1].end - run[0].begin)[len(self.runs) // 2]
        events = [("run", "network", 0.0, run[-1].end - run[0].begin, {"network": str(self.compiled)})]
        for call in run:
            kernel = self.kernels.get(call.name)
            facts = {}
            if kernel:
                once = {"MFLOP": kernel.flops / kernel.calls / 1e6, "MB": kernel.bytes / kernel.calls / 1e6}
                facts = {"operators": " + ".join(kernel.operators), "makes": kernel.makes,
                         "schedule": kernel.schedule, **once}  # fmt: skip
            kind = "kernel" if kernel else "virtual machine"
            events.append((call.name, kind, call.begin - run[0].begin, call.end - call.begin, facts))
        return write_chrome_trace(path, events)


def schedule_text(schedule: dict) -> str:
    """Write a schedule or a config in a line, without a trace of MetaSchedule's, which is long."""
    return " ".join(str(v) if k == "family" else f"{k}={v}" for k, v in schedule.items() if k != "trace")


def profile(lib: Compiled, *inputs, seconds: float = 1.0, calls: int | None = None) -> Profile:
    """Run a network often and measure each of its kernels, for about twice `seconds`, or for exactly `calls` runs.

    Runs with the stopwatch alternate with runs without it, as `measure.compare` does, so that the profile can tell what
    it costs itself. `inputs` are those of a call of `lib`; they are put where kernels can read them once, before that.

    Raises TypeError where `lib` is no Compiled, ValueError where it is for a GPU or has no kernel; and before anything
    is measured what a call of `lib` does: TypeError and ValueError for wrong inputs, RuntimeError for a library that is
    for another machine.
    """
    if not isinstance(lib, Compiled):
        raise TypeError(
            f"profile: expected a Compiled, as tn.build and tn.load give; got {type(lib).__name__}"
        )
    if lib.target.kind.name != "llvm":
        raise ValueError(f"profile: measures kernels of a CPU; this network is for {lib.target.kind.name}")
    if not lib.graph["kernels"]:
        raise ValueError("profile: this network calls no kernel, so there is nothing to measure")
    tensors = lib._tensors(lib._bind(inputs, {}))
    return of_run(lib, lambda: lib.run(tensors), seconds, calls)


def of_run(lib: Compiled, run: Callable, seconds: float = 1.0, calls: int | None = None) -> Profile:
    """Profile a function that runs `lib` once, as `profile` does."""
    run()
    watch = Stopwatch(lib, run)
    timings = measure.compare({"unprofiled": run, "profiled": watch}, seconds=seconds, calls=calls)
    return Profile(lib, watch.take(), timings["unprofiled"], timings["profiled"])


def memory(lib: Compiled) -> env.Report:
    """Tabulate what a run of a network holds in memory. The plan is the compiler's, from the module.

    Values that are not alive together share a buffer. The numbers are in `lib.graph["memory"]`, in bytes. What a kernel
    takes for itself while it runs comes on top.
    """
    plan = lib.graph["memory"]
    params = sum(int(np.prod(p.shape)) * bytes_of(p.dtype) for p in lib.params.values())
    inputs = sum(int(np.prod(spec.shape)) * bytes_of(spec.dtype) for spec in lib.inputs)
    return env.Report(
        {
            "parameters": f"{params / 1e6:.2f} MB in {len(lib.params)} arrays",
            "inputs": f"{inputs / 1e6:.2f} MB",
            "values, each by itself": f"{plan['unshared'] / 1e6:.2f} MB",
            "buffers that they share": f"{sum(plan['buffers']) / 1e6:.2f} MB in {len(plan['buffers'])} buffers",
            "of these at once": f"{plan['peak'] / 1e6:.2f} MB",
            "peak of a run": f"{(params + inputs + plan['peak']) / 1e6:.2f} MB",
        }
    )


def alive(lib: Compiled) -> list[int]:
    """List, for each node of the graph in order, the bytes of the values that are alive while it runs.

    They are what it makes and what it or a later node reads, without inputs and parameters. A view of another value
    counts as a value; parts of a node's several outputs are counted only while that node runs.
    """
    nodes = lib.graph["nodes"]
    last = list(range(len(nodes)))  # the last node that reads what each makes
    maker = {}  # a name can be made again, and is then the later value
    for number, node in enumerate(nodes):
        for name in node["reads"]:
            if name in maker:
                last[maker[name]] = number
        maker[node["name"]] = number
    for name, _ in lib.graph["heads"]:
        if name in maker:
            last[maker[name]] = len(nodes) - 1
    held = [0] * len(nodes)
    for first, node in enumerate(nodes):
        tensors = [made for made in node["makes"] if made["shape"] is not None]
        size = sum(int(np.prod(made["shape"])) * bytes_of(made["dtype"]) for made in tensors)
        for number in range(first, last[first] + 1):
            held[number] += size
    return held
