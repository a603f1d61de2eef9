"""What a MetaSchedule trace may do when it comes from a file: schedule a kernel, and nothing else.

TVM executes whatever a trace says. A trace can annotate a loop with assembly that runs when the library is
loaded, replace a block with a call of some function, drop the check at a loop's end, or ask for loops that
never finish. This file therefore lists the steps that MetaSchedule's search takes on a CPU, with the values
they may have; everything else is forbidden. A trace that passes may be slow, or may not fit the kernel, but
it does not change what the kernel computes.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule, ScheduleError

from ...core.errors import Forbidden

# ---------------------------------------------------------------- steps, before they are applied

_NAME = re.compile(r"[a-z]\d{1,6}")  # of a step's outputs: blocks, loops, values
_WORD = re.compile(r"[\w. ]{1,500}")
_MOST_STEPS, _MOST_OF_A_STEP = 2000, 200
_LARGEST = 1 << 31
_LONGEST_TILE = 1 << 10
_LONGEST_UNROLLED = 512


def _is_integer(value, most: int = _LARGEST) -> bool:
    return isinstance(value, int) and -_LARGEST <= value <= most


def _is_name(value) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_operand(value) -> bool:
    if isinstance(value, list):  # the consumers of a block
        return all(map(_is_name, value))
    return value in (None, "None") or _is_name(value) or _is_integer(value)


def _is_decision(value) -> bool:
    if not (isinstance(value, list) and len(value) == 2 and _is_integer(value[0])):
        return False
    values = value[1] if isinstance(value[1], list) else [value[1]]
    return len(values) <= _MOST_OF_A_STEP and all(map(_is_integer, values))


def _flags(*wanted) -> Callable:
    """Make a check that attributes are these truth values; None accepts either."""

    def fit(attrs: list) -> bool:
        return len(attrs) == len(wanted) and all(
            given in (0, 1) and flag in (None, given) for given, flag in zip(attrs, wanted, strict=True)
        )

    return fit


def _are_words(attrs: list) -> bool:
    return len(attrs) == 2 and all(isinstance(word, str) and _WORD.fullmatch(word) for word in attrs)


def _are_two_integers(attrs: list) -> bool:
    return len(attrs) == 2 and all(_is_integer(number, _LONGEST_TILE) for number in attrs)


def _are_weighted_candidates(attrs: list) -> bool:
    """Return whether attributes are a list of candidates and a list of their probabilities."""
    if len(attrs) != 2 or not all(isinstance(part, list) for part in attrs):
        return False
    return all(isinstance(n, int | float) and abs(n) <= _LONGEST_UNROLLED for part in attrs for n in part)


_STEPS: dict[str, Callable] = {  # name: check of the step's attributes
    **dict.fromkeys(
        ("GetLoops", "GetChildBlocks", "GetConsumers", "GetProducers", "SampleComputeLocation",
         "ComputeInline", "ReverseComputeInline", "Reorder", "Parallel", "Vectorize", "DecomposeReduction",
         "AddUnitLoop", "EnterPostproc"),
        _flags(),
    ),
    "GetSBlock": _are_words,
    "SamplePerfectTile": _are_two_integers,
    "SampleCategorical": _are_weighted_candidates,
    "Split": _flags(None, False),  # the second one drops the check at the loop's end
    "Fuse": _flags(None),
    "ComputeAt": _are_two_integers,
    "ReverseComputeAt": _are_two_integers,
    "CacheWrite": lambda attrs: len(attrs) == 2 and _is_integer(attrs[0]) and attrs[1] in ("global", "local"),
    "RFactor": lambda attrs: len(attrs) == 1 and _is_integer(attrs[0]),
}  # fmt: skip
_ANNOTATIONS: dict[str, Callable] = {  # key: check of the annotation's value
    "meta_schedule.tiling_structure": lambda value: (
        isinstance(value, str) and bool(re.fullmatch('"[SR]+"', value))
    ),
    "meta_schedule.random_compute_producer": _is_integer,
    "meta_schedule.parallel": _is_integer,
    "meta_schedule.vectorize": _is_integer,
    "meta_schedule.unroll_explicit": lambda value: _is_integer(value) or _is_name(value),
    "pragma_auto_unroll_max_step": lambda value: _is_integer(value, _LONGEST_UNROLLED),
    "pragma_unroll_explicit": lambda value: _is_integer(value, 1),
}
_REMOVABLE = {*_ANNOTATIONS, "schedule_rule"}


def check(trace) -> None:
    """Raise Forbidden, with the step's number, unless a trace, as JSON, does only what this file lists."""
    if not (isinstance(trace, list) and len(trace) == 2 and all(isinstance(part, list) for part in trace)):
        raise Forbidden("a trace is a list of steps and a list of decisions")
    steps, decisions = trace
    if len(steps) > _MOST_STEPS:
        raise Forbidden(f"a trace of {len(steps)} steps; at most {_MOST_STEPS} are allowed")
    for number, step in enumerate(steps):
        _check_step(number, step)
    if len(decisions) > len(steps) or not all(map(_is_decision, decisions)):
        raise Forbidden("the decisions of a trace are pairs of a step's number and whole numbers")


def _check_step(number: int, step) -> None:
    if not (isinstance(step, list) and len(step) == 4 and isinstance(step[0], str)):
        raise Forbidden(f"step {number} of a trace is not a name, inputs, attributes and outputs")
    name, *parts = step
    if not all(isinstance(part, list) and len(part) <= _MOST_OF_A_STEP for part in parts):
        raise Forbidden(
            f"step {number} of a trace, {name[:50]!r}, has no lists of at most {_MOST_OF_A_STEP} values"
        )
    inputs, attrs, outputs = parts
    if name in ("Annotate", "Unannotate"):
        _check_annotation(number, name, inputs, attrs)
    elif name not in _STEPS:
        raise Forbidden(f"step {number} of a trace is {name[:50]!r}, which is not allowed")
    elif not _STEPS[name](attrs) or not all(map(_is_operand, inputs)):
        values = f"{inputs} {attrs}"
        raise Forbidden(f"step {number} of a trace, {name}, has values that are not allowed: {values[:200]}")
    if not all(map(_is_name, outputs)):
        raise Forbidden(f"step {number} of a trace, {name}, has outputs that are not names such as 'b0'")


def _check_annotation(number: int, name: str, inputs: list, attrs: list) -> None:
    key = attrs[0] if len(attrs) == 1 else None
    if not isinstance(key, str) or key not in (_ANNOTATIONS if name == "Annotate" else _REMOVABLE):
        raise Forbidden(f"step {number} of a trace is an annotation {str(key)[:50]!r}, which is not allowed")
    annotated, *value = inputs or [None]
    fits = _is_name(annotated) and len(value) == (name == "Annotate")
    if not fits or (value and not _ANNOTATIONS[key](value[0])):
        raise Forbidden(
            f"step {number} of a trace annotates {key!r} with {str(value)[:200]}, which is not allowed"
        )


# ---------------------------------------------------------------- the kernel, after the steps

_LONGEST_VECTOR = 64  # iterations, as in MetaSchedule's search
_MORE_ITERATIONS, _MORE_BYTES = 1 << 10, 1 << 5  # factors of what the unscheduled kernel has
_FREE_BYTES = 64 << 20  # of buffers, always allowed


class Size(NamedTuple):
    """The iterations of a kernel's blocks, bytes of its buffers, iterations of its longest vector loop."""

    iterations: int
    bytes: int
    vector: int


def size(sch: Schedule) -> Size:
    """Measure the kernel of a schedule."""
    func = sch.mod["main"]
    buffers = [_bytes(var.ty) for var in func.params if isinstance(var.ty, tirx.buffer.BufferType)]
    iterations = longest = 0
    waiting = [
        (func.body, 1, 1)
    ]  # a statement, the iterations of the loops around it, those of the vector loops
    while waiting:
        stmt, around, vector = waiting.pop()
        if isinstance(stmt, tirx.For):
            extent = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else 1
            vector *= extent if stmt.kind == tirx.ForKind.VECTORIZED else 1
            longest = max(longest, vector)
            waiting.append((stmt.body, around * extent, vector))
        elif isinstance(stmt, tirx.SeqStmt):
            waiting += [(one, around, vector) for one in stmt.seq]
        elif isinstance(stmt, SBlockRealize):
            buffers += map(_bytes, stmt.block.alloc_buffers)
            waiting.append((stmt.block.body, around, vector))
        else:
            iterations += around
    return Size(iterations, sum(buffers), longest)


def _bytes(buffer) -> int:
    """Return the bytes of a buffer as if its elements were of the widest type."""
    return math.prod(int(n) if isinstance(n, tirx.IntImm) else 1 for n in buffer.shape) * 8


def check_size(before: Size, after: Size) -> None:
    """Raise ScheduleError if a trace enlarged a kernel so much that compiling or running it hardly ends."""
    if after.iterations > before.iterations * _MORE_ITERATIONS:
        raise ScheduleError(f"the trace turns {before.iterations:.1e} iterations into {after.iterations:.1e}")
    if after.bytes > before.bytes * _MORE_BYTES + _FREE_BYTES:
        raise ScheduleError(f"the trace turns buffers of {before.bytes:.1e} bytes into {after.bytes:.1e}")
    if after.vector > _LONGEST_VECTOR:
        raise ScheduleError(
            f"the trace makes a vector loop of {after.vector} iterations; at most {_LONGEST_VECTOR} fit"
        )
