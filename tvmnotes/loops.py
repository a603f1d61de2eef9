"""The loop player: in which order a loop nest touches the elements of its buffers, at a small size.

`trace` lowers a PrimFunc as TVM does, until loops, conditions, loads and stores are left, and walks it. It
computes no values, only indices and conditions. `loops`, which is `tn.show.loops`, plays the trace.
"""

import base64
import html
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LIMIT = 60_000  # accesses
_MOST = 4096  # elements of a buffer that a picture can show
_KINDS = ("range", "parallel", "vectorized", "unroll")  # of tirx.ForKind; the fifth binds a thread
_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "And": "and", "Or": "or"}
_INFIX |= {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_PASSES = ("CanonicalizeLoop", "LowerInitBlock", "PlanAndUpdateBufferAllocationLocation")
_PASSES += ("ConvertBlocksToOpaque", "LiftThreadBinding", "CompactBufferAllocation", "UnifyThreadBinding")
_PASSES += ("LowerMatchBuffer", "LowerOpaqueBlock", "StmtSimplify")
_PARTS = ("a", "b", "value", "condition", "true_value", "false_value", "body")  # of an expression
_ADVICE = "make the same schedule for smaller shapes"
_SPECIALIZE = "give the function its sizes with `specialize`"
_SHADES = 8  # of the still picture


class Access(NamedTuple):
    """A read or a write of one element. Those of the same step happen at the same time."""

    step: int
    core: int  # or the number of a block of threads
    lane: int  # of a vector, or the number of a thread
    buffer: str
    element: int  # row by row
    write: bool
    held: int  # the number of the element's stay in a register, or 0


class Grid(NamedTuple):
    """A buffer. If each core or thread has one for itself, the first axis counts them."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str


class Trace(NamedTuple):
    """What a nest does."""

    grids: dict[str, Grid]
    code: list[tuple[int, str]]  # depth and text
    steps: list[tuple[int, dict[int, int]]]  # the line of code, and the loops' values by their lines
    accesses: list[Access]

    def fetched(self, cache: int, line: int) -> int:
        """Count the lines that the cores fetch. The cache of each holds `cache` lines of `line` bytes.

        The line that was not used for longest goes first. What is in a register passes the cache once.
        """
        count, caches, seen = 0, {}, set()
        for _, core, _, buffer, element, _, held in self.accesses:
            grid, stay = self.grids[buffer], (held, buffer, element)
            if grid.scope != "global" or (held and stay in seen):
                continue
            seen.add(stay)
            lines = caches.setdefault(core, {})
            key = (buffer, element * np.dtype(grid.dtype).itemsize // line)
            count += lines.pop(key, 1)
            lines[key] = 0
            if len(lines) > cache:
                del lines[next(iter(lines))]
        return count


class _Loop(NamedTuple):
    kind: str
    slot: int  # of its value in a context; the next has the number of its entry
    line: int  # of code


class _Walk:
    """Compiles statements to functions of contexts, lists of a core, a lane and the values of loops.

    The lanes of a vector, or threads, are contexts that pass a statement together. Cores run one after
    another, each from the step at which the first began.
    """

    def __init__(self, cores: int, limit: int):
        self.cores, self.limit = cores, limit
        self.variables: dict[Any, Any] = {}  # the source of each, or its expression
        self.buffers: dict[Any, tuple[Grid, str, int]] = {}  # source of a copy's first element; loops outside
        self.slots = 2
        self.bound: dict[str, int] = {}  # extents of blocks and threads by tag
        self.entries = self.step = 0
        self.code: list[tuple[int, str]] = []
        self.steps: dict[int, tuple[int, dict[int, int]]] = {}
        self.accesses: list[Access] = []

    def source(self, expr: Any) -> str:
        """Return an index or a condition as Python, in which `e` is a context."""
        kind = type(expr).__name__
        if kind in ("int", "IntImm", "FloatImm"):
            return str(getattr(expr, "value", expr))
        if kind == "Var" and expr in self.variables:
            value = self.variables[expr]
            return value if isinstance(value, str) else self.source(value)
        if kind in _INFIX:
            return f"({self.source(expr.a)} {_INFIX[kind]} {self.source(expr.b)})"
        if kind in ("Min", "Max"):
            return f"{kind.lower()}({self.source(expr.a)}, {self.source(expr.b)})"
        if kind == "Not":
            return f"(not {self.source(expr.a)})"
        if kind == "Cast":
            return self.source(expr.value)
        if kind == "Select" or _calls(expr, "if_then_else"):
            parts = expr.args if kind == "Call" else (expr.condition, expr.true_value, expr.false_value)
            return "({1} if {0} else {2})".format(*map(self.source, parts))
        if kind == "TensorLoad":
            raise ValueError(f"an index or a condition depends on data, on {expr}: the player has none")
        if kind == "Var":
            raise ValueError(f"{expr.name} has no value: {_SPECIALIZE}")
        raise ValueError(f"the player cannot evaluate {kind}: {expr}")

    def function(self, expr: Any) -> Callable[[list], Any]:
        source = expr if isinstance(expr, str) else self.source(expr)
        return eval(f"lambda e: {source}")

    def place(self, buffer: Any, indices: Any) -> tuple[Grid, str]:
        """Return the grid of a buffer, and the source of an element's number."""
        grid, source, _ = self.buffers[buffer]
        for index, extent in zip(indices, buffer.shape, strict=True):
            source = f"({source} * {extent} + {self.source(index)})"
        return grid, source

    def loads(self, expr: Any, when: str = "True") -> Iterator[tuple[str, Grid, str]]:
        """Find the loads of an expression: the condition, the grid, the source of the element's number."""
        if type(expr).__name__ == "TensorLoad":
            yield when, *self.place(expr.source, expr.indices)
        elif _calls(expr, "if_then_else"):
            condition = self.source(expr.args[0])
            yield from self.loads(expr.args[1], f"{when} and {condition}")
            yield from self.loads(expr.args[2], f"{when} and not {condition}")
        else:
            if type(expr).__name__ == "Let":
                self.variables[expr.var] = expr.value
            for part in (*(getattr(expr, name, None) for name in _PARTS), *getattr(expr, "args", ())):
                if hasattr(part, "ty"):
                    yield from self.loads(part, when)

    def compile(self, node: Any, loops: tuple[_Loop, ...] = ()) -> Callable[[list[list]], None]:
        kind = type(node).__name__
        if kind == "SeqStmt":
            parts = [self.compile(part, loops) for part in node.seq]

            def sequence(contexts: list[list]) -> None:
                for part in parts:
                    part(contexts)

            return sequence
        if kind == "For":
            name = _KINDS[node.kind] if node.kind < len(_KINDS) else node.thread_binding.thread_tag
            return self.loop(node.loop_var, node.min, node.extent, name, node.body, loops)
        if kind == "AttrStmt" and node.attr_key == "thread_extent":
            return self.loop(node.node.var, 0, node.value, node.node.thread_tag, node.body, loops)
        if kind == "AttrStmt":
            return self.compile(node.body, loops)
        if kind == "IfThenElse":
            return self.branch(node, loops)
        if kind == "Bind":
            self.variables[node.var] = node.value
        if kind == "BufferStore" or (kind == "Bind" and any(self.loads(node.value))):
            return self.access(node, loops)
        if kind == "AllocBuffer":
            self.add(node.buffer, loops)
        elif kind not in ("Bind", "AssertStmt") and not _calls(
            getattr(node, "value", None), "tvm_storage_sync"
        ):
            raise ValueError(f"the player does not know what {kind} does: {_text(node)}")
        return lambda contexts: None

    def branch(self, node: Any, loops: tuple[_Loop, ...]) -> Callable[[list[list]], None]:
        condition = self.function(node.condition)
        inside = (*loops, _Loop("if", 0, len(self.code)))
        self.code.append((len(loops), f"if {_text(node.condition)}:"))
        cases = [(True, self.compile(node.then_case, inside))]
        if node.else_case is not None:
            self.code.append((len(loops), "else:"))
            cases.append((False, self.compile(node.else_case, inside)))

        def run(contexts: list[list]) -> None:
            decided = [(bool(condition(e)), e) for e in contexts]
            for wanted, case in cases:
                if those := [e for holds, e in decided if holds is wanted]:
                    case(those)

        return run

    def loop(
        self, var: Any, start: Any, extent: Any, kind: str, body: Any, loops: tuple[_Loop, ...]
    ) -> Callable[[list[list]], None]:
        same = [loop for loop in loops if loop.kind == kind]
        if same and "Idx" in kind:  # once more over the same threads
            self.variables[var] = f"e[{same[0].slot}]"
            return self.compile(body, loops)
        kind = "unroll" if kind.startswith("vthread") else "range" if same and kind == "parallel" else kind
        slot, line = self.slots, len(self.code)
        low, count = self.function(start), self.function(extent)
        self.slots += 2
        self.variables[var] = f"e[{slot}]"
        span = _text(extent) if _text(start) == "0" else f"{_text(start)}, +{_text(extent)}"
        name = f"{kind.partition('Idx')[0]}s" if "Idx" in kind else kind  # blocks, threads
        self.code.append((len(loops), f"for {var.name} in {name}({span}):"))
        if "Idx" in kind:
            self.bound[kind] = max(self.bound.get(kind, 1), count([]))
        run = self.compile(body, (*loops, _Loop(kind, slot, line)))
        weight = 1  # by which the number of a thread grows with threadIdx.y, and so on
        if "Idx" in kind:
            weight = math.prod(self.bound.get(kind[:-1] + axis, 1) for axis in "xyz"[: "xyz".index(kind[-1])])

        def serial(contexts: list[list]) -> None:
            self.entries += 1
            entry = self.entries
            ranges = [(e, low(e), count(e)) for e in contexts]
            for i in range(max(n for _, _, n in ranges)):
                for e, first, _ in ranges:
                    e[slot : slot + 2] = first + i, entry
                run([e for e, _, n in ranges if i < n])

        def together(contexts: list[list]) -> None:
            lanes = []
            for e in contexts:
                for i in range(count(e)):
                    lanes.append(e.copy())
                    lanes[-1][slot] = low(e) + i
                    if kind != "vectorized" or not any(tag.startswith("threadIdx") for tag in self.bound):
                        lanes[-1][1] += i * weight
            run(lanes)

        def cores(contexts: list[list]) -> None:
            first, n = low(contexts[0]), count(contexts[0])
            chunk = 1 if "Idx" in kind else -(-n // self.cores)
            began, ends = self.step, [self.step]
            for core in range(-(-n // chunk)):
                self.step = began
                copies = [[e[0] + core * weight, *e[1:]] for e in contexts]
                for i in range(core * chunk, min(n, (core + 1) * chunk)):
                    for e in copies:
                        e[slot] = first + i
                    run(copies)
                ends.append(self.step)
            self.step = max(ends)

        if kind == "parallel" or kind.startswith("blockIdx"):
            return cores
        return together if kind == "vectorized" or kind.startswith("threadIdx") else serial

    def add(self, buffer: Any, loops: tuple[_Loop, ...] = ()) -> None:
        """Take a buffer in, with a copy for each core or thread if it is allocated there."""
        if not all(type(extent).__name__ == "IntImm" for extent in buffer.shape):
            raise ValueError(f"{buffer.name} has no fixed shape: {_SPECIALIZE}")
        shape, scope, copies, first = tuple(map(int, buffer.shape)), buffer.scope(), 1, "0"
        if any(loop.kind == "parallel" for loop in loops):
            copies, first = self.cores, "e[0]"
        elif any("Idx" in loop.kind for loop in loops):
            copies, first = math.prod(n for tag, n in self.bound.items() if tag.startswith("block")), "e[0]"
            if scope == "local":
                threads = math.prod(n for tag, n in self.bound.items() if tag.startswith("thread"))
                copies, first = copies * threads, f"(e[0] * {threads} + e[1])"
        name, names = buffer.name, {grid.name for grid, _, _ in self.buffers.values()}
        while name in names:
            name += "_"
        grid = Grid(name, shape if copies == 1 else (copies, *shape), str(buffer.dtype), scope)
        if (elements := math.prod(grid.shape)) > _MOST:
            raise ValueError(f"{name} has {elements:,} elements, and a picture shows {_MOST:,}: {_ADVICE}")
        self.buffers[buffer] = grid, first, len(loops)

    def access(self, node: Any, loops: tuple[_Loop, ...]) -> Callable[[list[list]], None]:
        """Compile a step: all loads of a statement, and its store."""
        touched = [(*load, False) for load in self.loads(node.value)]
        own, stays = None, 0
        if type(node).__name__ == "BufferStore":
            own = self.place(node.buffer, node.indices)
            stays = _stays(own[1], loops[self.buffers[node.buffer][2] :])
            touched.append(("True", *own, True))
        parts = [
            (self.function(when), grid, self.function(element), write, (grid, element) == own)
            for when, grid, element, write in touched
        ]
        line = len(self.code)
        self.code.append((len(loops), _text(node)))

        def run(contexts: list[list]) -> None:
            values = {loop.line: contexts[0][loop.slot] for loop in loops if loop.kind != "if"}
            self.steps.setdefault(self.step, (line, values))
            for e in contexts:
                for when, grid, place, write, is_own in parts:
                    if when(e):
                        element = place(e)
                        if not 0 <= element < math.prod(grid.shape):
                            raise ValueError(f"{_text(node)} touches an element outside {grid.name}")
                        held = e[stays] if stays and is_own else 0
                        self.accesses.append(Access(self.step, e[0], e[1], grid.name, element, write, held))
            if len(self.accesses) > self.limit:
                nest = ", ".join(text[4:-1] for _, text in self.code if text.startswith("for "))
                raise ValueError(f"more than {self.limit:,} accesses by the loops {nest}: {_ADVICE}")
            self.step += 1

        return run


def lowered(func: Any) -> Any:
    """Lower a PrimFunc as TVM does, until loops, conditions, loads and stores are left."""
    import tvm  # for speed: the course's other modules need no TVM
    from tvm.s_tir import transform as lower  # for speed

    passes = [getattr(lower, name)() for name in _PASSES]
    return tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]


def trace(func: Any, cores: int = 4, limit: int = LIMIT) -> Trace:
    """Walk the loops of a PrimFunc. The arguments, and what it raises, are those of `loops`."""
    import tvm  # for speed

    if not isinstance(func, tvm.tirx.PrimFunc):
        raise TypeError(f"func: expected a PrimFunc, such as schedule.mod['main']; got {type(func).__name__}")
    kernel = lowered(func)
    walk = _Walk(cores, limit)
    for parameter in kernel.params:
        if hasattr(parameter.ty, "shape"):
            walk.add(parameter)
    run = walk.compile(kernel.body)
    run([[0] * walk.slots])
    grids = {grid.name: grid for grid, _, _ in walk.buffers.values()}
    steps = [walk.steps[step] for step in range(walk.step)]
    return Trace(grids, walk.code, steps, sorted(walk.accesses, key=lambda access: access.step))


def loops(func: Any, *, cores: int = 4, cache: int = 8, line: int = 64, limit: int = LIMIT) -> None:
    """Play in which order a loop nest touches the elements of its buffers, below the cell.

    Args:
        func: A PrimFunc with any schedule, for shapes that one can draw: `schedule.mod["main"]`.
        cores: Number of cores that share a parallel loop, as TVM shares it: one piece for each.
        cache: Number of lines in the cache of a core. The line that was not used for longest goes first.
        line: Bytes of a line.
        limit: Number of accesses that are played at most.

    Raises:
        TypeError: `func` is not a PrimFunc.
        ValueError: There are more accesses, a buffer is too large to draw, or something depends on data.
    """
    from IPython.display import HTML, display  # for speed: only where something is shown

    display(HTML(page(trace(func, cores, limit), cache, line)))


def page(found: Trace, cache: int = 8, line: int = 64) -> str:
    """Return the player of a trace as HTML that needs no other file; without scripts, a still picture."""
    grids = []
    for grid in found.grids.values():
        elements = line // np.dtype(grid.dtype).itemsize if grid.scope == "global" else 0
        grids.append({**grid._asdict(), "line": elements})
    columns = list(zip(*found.accesses, strict=True))  # which compress better than rows
    stream = zlib.compress(json.dumps([found.steps, columns], separators=(",", ":")).encode(), 9)
    data = {"grids": grids, "code": found.code, "cache": cache, "stream": base64.b64encode(stream).decode()}
    words = f"{len(found.steps):,} steps, {len(found.accesses):,} reads and writes"
    words += f", {found.fetched(cache, line):,} lines of {line} bytes fetched"
    text = Path(__file__).with_name("loops.html").read_text(encoding="utf-8")
    for name, value in (
        ("STILL", base64.b64encode(_still(found).encode()).decode()),
        ("WORDS", html.escape(words)),
        ("DATA", json.dumps(data, separators=(",", ":")).replace("</", "<\\/")),
    ):
        text = text.replace(f"«{name}»", value)
    return text


def _still(found: Trace) -> str:
    """Draw when each element is first touched: the later, the fuller its colour."""
    first: dict[tuple[str, int], int] = {}
    for access in found.accesses:
        first.setdefault((access.buffer, access.element), access.step * _SHADES // len(found.steps))
    parts, left, bottom = [], 0, 0
    for name, grid in found.grids.items():
        width = next((n for n in reversed(grid.shape) if n > 1), 1)
        width = 32 if width > 64 else width
        paths = [""] * (_SHADES + 1)
        for element in range(math.prod(grid.shape)):
            row, column = divmod(element, width)
            paths[first.get((name, element), _SHADES)] += f"M{left + 10 * column} {16 + 10 * row}h9v9h-9z"
        bottom = max(bottom, 26 + 10 * row)
        parts.append(f'<text x="{left}" y="11">{html.escape(name)}</text>')
        for shade, path in enumerate(paths[:-1]):
            parts.append(f'<path d="{path}" fill-opacity="{0.2 + shade / 10:.1f}"/>')
        parts.append(f'<path d="{paths[-1]}" fill="none" stroke="#888" stroke-width=".4"/>')
        left += max(10 * width, 8 * len(name)) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left} {bottom}" width="{1.6 * left:.0f}" '
        f'fill="#0072B2" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )


def _calls(expr: Any, name: str) -> bool:
    return type(expr).__name__ == "Call" and getattr(expr.op, "name", "").endswith(f".{name}")


def _text(node: Any) -> str:
    """Return a statement or an expression as TVMScript has it, its numbers without their types."""
    return re.sub(r"T\.(?:float|u?int)\d+\(([-\d.e]+)\)", r"\1", str(node).strip().splitlines()[-1].strip())


def _stays(element: str, loops: tuple[_Loop, ...]) -> int:
    """Return the slot that numbers an element's stays in a register, or 0 if each access goes to memory.

    LLVM can keep an element in a register while a loop runs that does not move it, if each loop inside that
    one is unrolled or a vector, or does not move it either.
    """
    used, found = set(re.findall(r"e\[(\d+)\]", element)), 0
    for loop in reversed(loops):
        if loop.kind == "range" and str(loop.slot) not in used:
            found = loop.slot + 1
        elif loop.kind not in ("vectorized", "unroll", "if"):
            break
    return found
