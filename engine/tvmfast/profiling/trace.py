"""Traces of a build, pass by pass: the call tree with times, and what each pass changed.

    trace = tracing.Trace()
    with tvm.transform.PassContext(opt_level=3, instruments=[trace]):
        lib = relay.build(mod, target="llvm", params=params)  # or tn.build, or tvm.compile
    trace                         # in a notebook a table; print(trace) draws the tree
    trace["FuseOps"].diff()       # what one pass did to the list of operators
    trace["FuseOps"].after.mermaid()
    trace.to_chrome_trace("build.json")  # for https://ui.perfetto.dev

TVM calls an instrument before and after each pass that runs in its `PassContext`, including passes run by
passes: hence the tree. Code generation is no pass; it is the remainder of the context's time.
"""

import difflib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm_ffi import structural_hash

from ..compiler.build import build
from ..core.compat import FUSED_PREFIX
from ..core.data import atomic_write
from ..core.relax import op_name, static_shape
from ..core.table import Table
from ..runtime.compiled import Compiled
from . import flowchart


class Operation(NamedTuple):
    """A call in a Relax function; `reads` has indices of other operations, and names of parameters."""

    name: str
    makes: str
    reads: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name:24} {self.makes}"


class Graph(NamedTuple):
    """A module at one moment: operations by Relax function, a hash by kernel, main's parameters."""

    functions: dict[str, list[Operation]]
    kernels: dict[str, int]
    params: list[str]

    @property
    def operations(self) -> list[Operation]:
        """The operations of main."""
        return self.functions.get("main", [])

    def mermaid(self) -> "Mermaid":
        """Draw main as a flowchart; the operations of a function that main calls are listed in its box."""
        lines = ["flowchart TD"]
        nodes, reads = {}, []
        for index, operation in enumerate(self.operations):
            parts = self.functions.get(operation.name)
            if parts is None:
                lines.append(f'    n{index}["{operation.name}"]')
            else:
                lines.append(f'    subgraph n{index}["{operation.name}"]')
                lines += [f'        n{index}_{i}["{part.name}"]' for i, part in enumerate(parts)]
                lines += [f"        n{index}_{i} --> n{index}_{j}" for i, j in _edges(parts)]
                lines.append("    end")
            nodes[index] = [operation.name, *(part.name for part in parts or ())]
            params = [name for name in operation.reads if isinstance(name, str) and name in self.params]
            reads += [(name, index) for name in params]
        inputs = {name: [name] for name, _ in reads}
        keys: dict[int | str, str] = {name: f"i{index}" for index, name in enumerate(inputs)}
        lines[1:1] = [f'    {key}(["{name}"])' for name, key in keys.items()]
        edges: list[tuple[int | str, int]] = [*dict.fromkeys(reads), *_edges(self.operations)]
        lines += [f"    {keys.get(a) or f'n{a}'} --> n{b}" for a, b in edges]
        return Mermaid("\n".join(lines), flowchart.svg(inputs | nodes, edges))


def _edges(operations: list[Operation]) -> list[tuple[int, int]]:
    """Return (from, to) for each value that one operation makes and another reads."""
    edges = ((i, j) for j, operation in enumerate(operations) for i in operation.reads if isinstance(i, int))
    return list(dict.fromkeys(edges))


class Mermaid(str):
    """The text of a Mermaid diagram; notebooks show it as the image `svg`, wherever they are read."""

    svg: str

    def __new__(cls, text: str, svg: str) -> "Mermaid":
        """Make the text, with its image."""
        diagram = super().__new__(cls, text)
        diagram.svg = svg
        return diagram

    def _repr_html_(self) -> str:
        return flowchart.img(self.svg, "graph")

    def _repr_svg_(self) -> str:
        return self.svg


def graph(mod: tvm.IRModule) -> Graph:
    """Read the graph of a module; empty if it has no Relax function, as after the graph's passes."""
    parts = {var.name_hint: func for var, func in mod.functions_items()}
    functions = {name: func for name, func in parts.items() if isinstance(func, relax.Function)}
    if not functions:
        return Graph({}, {}, [])
    return Graph(
        {name: _operations(func) for name, func in functions.items()},
        {name: structural_hash(func) for name, func in parts.items() if isinstance(func, tvm.tirx.PrimFunc)},
        [param.name for param in functions["main"].params] if "main" in functions else [],
    )


def _operations(func: relax.Function) -> list[Operation]:
    operations = []
    value = {param: (param.name,) for param in func.params}  # by variable, what to read for it

    def read(expr: Any) -> tuple:
        if isinstance(expr, relax.Tuple):
            return tuple(part for field in expr.fields for part in read(field))
        if isinstance(expr, relax.TupleGetItem):
            return read(expr.tuple_value)
        return value.get(expr, ()) if isinstance(expr, relax.Var) else ()

    for block in func.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, tvm.ir.Call):
                value[binding.var] = read(call)
                continue
            reads = tuple(part for arg in call.args for part in read(arg))
            operations.append(Operation(called(call), _type(binding.var.ty), reads))
            value[binding.var] = (len(operations) - 1,)
    return operations


def called(call: Any) -> str:
    """Return the operator without "relax.", or the name of the called kernel or function."""
    names = call.args[0] if op_name(call) in _CALLS else call.op
    for attribute in ("name", "name_hint", "global_symbol"):
        if hasattr(names, attribute):
            return str(getattr(names, attribute)).removeprefix("relax.")
    return str(names)


_CALLS = ("call_tir", "call_tir_inplace", "call_pure_packed", "call_dps_packed", "call_builtin_with_ctx")


def _type(ty: Any) -> str:
    types = ty.fields if isinstance(ty, tvm.ir.TupleType) else [ty]
    return ", ".join(f"{static_shape(t)} {t.dtype}" if isinstance(t, relax.TensorType) else "" for t in types)


# ---------------------------------------------------------------- the trace


@dataclass
class PassRun:
    """One run of a pass: its time, the passes that it ran, the graph before and after.

    `seconds` includes those of `steps`; `begin` is in seconds from the beginning of the context.
    """

    name: str
    before: Graph
    after: Graph | None = None  # None if the pass raised an error
    seconds: float = 0.0
    steps: list["PassRun"] = field(default_factory=list)
    runs: int = 1  # more, if the tree shows several as one
    begin: float = 0.0

    def diff(self) -> str:
        """List the operations that the pass removed (-) and added (+), in the order of the graph."""
        before, after = (list(map(str, g.operations)) if g else [] for g in (self.before, self.after))
        changes = difflib.unified_diff(before, after, n=0, lineterm="")
        return "\n".join(
            f"{line[0]} {line[1:].rstrip()}" for line in changes if line[:2] not in ("--", "++", "@@")
        )

    @property
    def changed(self) -> str:
        """A summary: operations of each name, kernels and parameters of main that were removed and added."""
        if self.after is None:
            return "failed"
        names = [Counter(_kind(o.name, g) for o in g.operations) for g in (self.before, self.after)]
        words = [f"{sign}{n} {name}" for sign, counts in _difference(*names) for name, n in counts.items()]
        for what in ("kernels", "params"):
            before, after = (Counter(list(getattr(g, what))) for g in (self.before, self.after))
            for sign, counts in _difference(before, after):
                if counts:
                    words.append(f"{sign}{counts.total()} {what}")
        hashes = self.before.kernels
        rewritten = sum(hashes.get(name, hash_) != hash_ for name, hash_ in self.after.kernels.items())
        if rewritten:
            words.append(f"{rewritten} kernels rewritten")
        return ", ".join(words)


def _kind(name: str, within: Graph) -> str:
    """Return the name of a kernel or function without the numbers that TVM adds for other shapes."""
    base = re.sub(r"\d+(?=_|$)", "", name)
    numbered = name.startswith(FUSED_PREFIX) or base in within.kernels
    return base if numbered else name


def _difference(before: Counter, after: Counter) -> tuple[tuple[str, Counter], tuple[str, Counter]]:
    """Return what was removed and what was added, each with its sign."""
    return ("-", before - after), ("+", after - before)


@tvm.instrument.pass_instrument
class Trace(Table):
    """An instrument that records a `PassRun` for each pass, as above. A context restarts it."""

    text_columns = "pass", "changed"

    def __init__(self) -> None:
        self.steps: list[PassRun] = []
        self.seconds = 0.0
        self._open: list[PassRun] = []
        self._contexts = 0
        self._paused = 0.0

    def enter_pass_ctx(self) -> None:
        """Start recording, unless the context is nested."""
        if not self._contexts:
            self.steps, self._open = [], []
            self._paused = 0.0
            self._begin = self._now()
        self._contexts += 1

    def exit_pass_ctx(self) -> None:
        """Stop recording, unless the context is nested."""
        self._contexts -= 1
        if not self._contexts:
            while self._open:  # a pass that raised an error
                self._close(None)
            self.seconds = self._now() - self._begin

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Record the beginning of a pass."""
        step = PassRun(str(info.name), self._look(mod))
        (self._open[-1].steps if self._open else self.steps).append(step)
        self._open.append(step)
        now = self._now()
        step.begin = now - self._begin
        step.seconds = -now  # until `_close` adds the time at the end

    def run_after_pass(self, mod: tvm.IRModule, _info: Any) -> None:
        """Record the end of a pass."""
        self._close(mod)

    def _close(self, mod: tvm.IRModule | None) -> None:
        step = self._open.pop()
        step.seconds += self._now()
        step.after = None if mod is None else self._look(mod)

    def _now(self) -> float:
        """Return the time in seconds, less the time that this instrument has spent itself."""
        return time.perf_counter() - self._paused

    def _look(self, mod: tvm.IRModule) -> Graph:
        start = time.perf_counter()
        try:
            return graph(mod)
        finally:
            self._paused += time.perf_counter() - start

    def walk(self) -> Iterator[tuple[int, PassRun]]:
        """Yield all runs of passes with their depth, in the order in which they began."""
        return _walk(self.steps, 0)

    def __getitem__(self, name: str) -> PassRun:
        """Return a pass's first run that changed something, else its first; KeyError if there is none."""
        runs = [step for _, step in self.walk() if step.name == name]
        if not runs:
            names = sorted({step.name for _, step in self.walk()})
            raise KeyError(f"no pass {name!r} ran; those that did: {', '.join(names)}")
        return next((step for step in runs if step.changed), runs[0])

    def frame(self) -> Any:
        """Make a pandas DataFrame of the passes that changed the graph: time in ms, change, and result.

        A change made by a pass that another one ran is listed for the inner pass.
        """
        import pandas as pd  # for speed: only where a table is shown

        rows = []
        for _, step in self.walk():
            if step.changed and not any(part.changed for part in step.steps):
                after = step.after or step.before
                counts = len(after.operations), len(after.kernels)
                rows.append((step.name, step.seconds * 1e3, *counts, step.changed))
        return pd.DataFrame(rows, columns=["pass", "ms", "operations", "kernels", "changed"])

    def to_chrome_trace(self, path: str | os.PathLike) -> Path:
        """Write the tree as a Chrome trace for https://ui.perfetto.dev; return its path.

        A pass is below the one that ran it. A click on it shows what it changed.
        """
        events = [(s.name, "pass", s.begin, s.seconds, {"changed": s.changed}) for _, s in self.walk()]
        return write_chrome_trace(path, [("the whole context", "context", 0.0, self.seconds, {}), *events])

    def __str__(self) -> str:
        """Draw the tree: each pass with its milliseconds, and equal passes over parts of the kernels once."""
        within = sum(step.seconds for step in self.steps)
        lines = [f"{'the whole context':60}{self.seconds * 1e3:10.1f} ms"]
        outside = PassRun("(outside of passes)", Graph({}, {}, []), seconds=self.seconds - within)
        for prefix, step in _branches([*_merged(self.steps), outside]):
            name = prefix + step.name + (f" (x{step.runs})" if step.runs > 1 else "")
            lines.append(f"{name:60}{step.seconds * 1e3:10.1f}")
        return "\n".join(lines)


def trace_build(mod: tvm.IRModule, params: dict, **options: Any) -> tuple[Compiled, Trace]:
    """Call `tn.build` with the same arguments under a `Trace`; return the library and the trace."""
    trace = Trace()
    with tvm.transform.PassContext(opt_level=3, instruments=[trace]):
        return build(mod, params, **options), trace


def write_chrome_trace(path: str | os.PathLike, events: list[tuple]) -> Path:
    """Write events (name, category, begin and duration in seconds, facts) to a file atomically.

    The format is Chrome's Trace Event Format, which Perfetto reads: an event within another is shown below
    it.
    """
    written = []
    for name, category, begin, seconds, facts in events:
        # In microseconds, of whole nanoseconds so that events nest.
        first, last = round(begin * 1e9), round((begin + seconds) * 1e9)
        times = {"ts": first / 1e3, "dur": (last - first) / 1e3}
        written.append({"name": name, "cat": category, "ph": "X", **times, "pid": 1, "tid": 1, "args": facts})
    return atomic_write(path, json.dumps({"traceEvents": written, "displayTimeUnit": "ms"}, indent=0))


def _walk(steps: list[PassRun], depth: int) -> Iterator[tuple[int, PassRun]]:
    for step in steps:
        yield depth, step
        yield from _walk(step.steps, depth + 1)


def _merged(steps: list[PassRun]) -> list[PassRun]:
    """Merge the runs of one pass that have no graph to change, at the position of the first."""
    totals: dict = {}
    for index, step in enumerate(steps):
        key = index if step.before.functions else step.name
        total = totals.setdefault(key, PassRun(step.name, step.before, step.after, runs=0))
        total.seconds += step.seconds
        total.runs += 1
        total.steps = total.steps + step.steps
    return list(totals.values())


def _branches(steps: list[PassRun], stem: str = "") -> Iterator[tuple[str, PassRun]]:
    """Yield each run of a pass with the lines of the tree before it."""
    for step in steps:
        last = step is steps[-1]
        yield stem + ("└─ " if last else "├─ "), step
        yield from _branches(_merged(step.steps), stem + ("   " if last else "│  "))
