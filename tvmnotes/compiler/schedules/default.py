"""Every kernel that no family covers: inlined where that costs nothing, parallel outside, vectors inside."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import tvm
import tvm_ffi
from tvm.s_tir import Schedule, ScheduleError

from . import trace
from .family import Family, Workload, key, register
from .vector import Simd

_SMALL = 1 << 13  # iterations of a loop nest that are not worth waking other threads for
_SHARED = 64  # iterations, of which each thread gets its share
_UNROLLED = 25  # iterations: a pool's window
_SPATIAL = 0  # TVM's number for an axis that is not summed over


@dataclass(frozen=True)
class Kernel(Workload):
    """A kernel that has no schedule of a family as a workload: one of a structure, by TVM's hash of it."""

    op: ClassVar[str] = "kernel"
    general: ClassVar[str] = "default"
    by_metaschedule: ClassVar[bool] = True

    hash: str
    name: str = field(compare=False)
    func: tvm.tirx.PrimFunc | None = field(compare=False, repr=False, default=None)

    @staticmethod
    def of(func, name: str) -> "Kernel":
        plain = func.with_attr("global_symbol", "main").without_attr("op_pattern")
        return Kernel(f"{tvm_ffi.structural_hash(plain) % 2**64:016x}", name, plain)

    @property
    def label(self) -> str:
        return self.name

    def is_config(self, config: dict, simd: Simd) -> bool:
        """Whether it is the default config, or a trace. Raises Forbidden for a trace that no file may hold."""
        if config.keys() == {"family", "trace"} and config["family"] == "metaschedule":
            trace.check(config["trace"])
            return True
        return key(config) == key(default(self, simd))


def schedule(sch: Schedule, config: dict) -> None:
    """Inline elementwise stages, then schedule each loop nest that is left. `config` has "lanes" of a register."""
    root = sch.get_sblock("root")
    # TVM rounds to bfloat16 by an expression that repeats its argument, where no name (see elementwise.py) may stand.
    inlined = [] if "bfloat16" in sch.mod.script() else sch.get_child_blocks(root)[:-1]
    for block in inlined:
        if not _sums(sch, block) and not _choosy(sch, block, config["lanes"]):
            try:
                sch.compute_inline(block)
            except ScheduleError:  # two outputs need it, for example
                continue
    for block in sch.get_child_blocks(root):
        if sch.get_loops(block):
            _nest(sch, block, config["lanes"])


def _nest(sch, block, lanes):
    """The outer loops in parallel; a row of outputs inside, in vectors where it is whole vectors."""
    loops, axes = sch.get_loops(block), sch.get(block).iter_vars
    spatial = [loop for loop, axis in zip(loops, axes, strict=True) if int(axis.iter_type) == _SPATIAL]
    reduced = [loop for loop, axis in zip(loops, axes, strict=True) if int(axis.iter_type) != _SPATIAL]
    if not spatial:
        return
    if (
        len(spatial) == 5
    ):  # NCHW[x]c: rows outside, so that a thread reads what it has written in the kernel before
        n, blocks, *others = spatial
        sch.reorder(n, others[0], blocks)
        spatial = [n, others[0], blocks, *others[1:]]
    large = math.prod(int(sch.get(loop).extent) for loop in loops) >= _SMALL
    outer, inner, vector = spatial, [], False
    # A sum is made row by row where its inputs lie side by side, too. (A plain loop over a row LLVM vectorizes itself.)
    if not reduced or _side_by_side(sch, block, axes[loops.index(spatial[-1])].var):
        *outer, row = spatial
        if int(sch.get(row).extent) % lanes == 0 and not (reduced and _bfloat16(sch, block)):
            more, row = sch.split(row, [None, lanes])
            outer = [*outer, more]
            sch.vectorize(row)
            vector = True
        inner = [row]
    if reduced:
        sch.reorder(*outer, *reduced, *inner)
        if vector:  # the sums stay in a register
            stored = sch.cache_write(block, 0, "local")
            sch.reverse_compute_at(stored, outer[-1])
            sch.vectorize(sch.get_loops(stored)[-1])
            if math.prod(int(sch.get(loop).extent) for loop in reduced) <= _UNROLLED:
                for loop in reduced:
                    sch.unroll(loop)
    if large and outer:
        sch.parallel(sch.fuse(*_first(sch, outer)))
    if reduced:
        sch.decompose_reduction(block, reduced[0])


def _first(sch, loops) -> list:
    """The outermost loops, as many as make enough iterations to share out; the others stay loops, which are cheaper."""
    iterations = 1
    for count, loop in enumerate(loops, start=1):
        iterations *= int(sch.get(loop).extent)
        if iterations >= _SHARED:
            return loops[:count]
    return loops


def _choosy(sch, block, lanes) -> bool:
    """Whether sums read a block that asks for each number whether it is padding: then it is better written out first.

    In NCHW[x]c it asks for whole vectors, which costs little.
    """
    node = sch.get(block)
    blocked = len(node.iter_vars) == 5 and int(node.iter_vars[-1].dom.extent) == lanes
    return (
        not blocked
        and "if_then_else" in node.script()
        and any(_sums(sch, b) for b in sch.get_consumers(block))
    )


def _sums(sch, block) -> bool:
    return any(int(axis.iter_type) != _SPATIAL for axis in sch.get(block).iter_vars)


def _side_by_side(sch, block, var) -> bool:
    """Whether neighbours along the axis `var` read neighbours in memory, or one and the same number."""
    for read in sch.get(block).reads:
        steps = [_step(at.min, var) for at in read.region]
        if any(step != 0 for step in steps[:-1]) or steps[-1:] not in ([], [0], [1]):
            return False
    return True


def _step(index, var) -> int | None:
    """By how much `index` grows with `var`; None where that is not known."""
    found = tvm.sym.detect_linear_equation(index, [var])
    return int(found[0]) if found and isinstance(found[0], tvm.tirx.IntImm) else None


def _bfloat16(sch, block) -> bool:
    """TVM stores it as integers, and cannot lower vectors of such sums."""
    return str(sch.get(block).writes[0].source.dtype) == "bfloat16"


def serves(kernel: Workload, simd: Simd) -> bool:
    return isinstance(kernel, Kernel)


def default(kernel: Kernel, simd: Simd) -> dict:
    return {"family": "default", "lanes": simd.lanes}


register(Family("default", schedule, serves, default))
