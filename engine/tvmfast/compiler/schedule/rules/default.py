"""Every other kernel: inlined if that costs nothing, parallel outer loops, vectors inside."""

import contextlib
import math
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm.s_tir import Schedule, ScheduleError

from ....core.relax import dim_hint, dim_to_str, op_name, unwrap_ints
from ....core.simd import Simd
from ..rule import ScheduleRule
from ..workloads.kernel import Kernel
from ..workloads.workload import Workload

_SMALL = 1 << 13  # iterations of a loop nest that are too few to wake other threads
_DYNAMIC = 64  # assumed for dynamic dims here
_SHARED = 64  # iterations that suffice to parallelize
_UNROLLED = 25  # iterations: a pool's window
_INLINED = 4096  # nodes of an expression that inlining may repeat
_TURNED = 4  # elements read for one of a block that is transposed afterwards, from which on it is stored
_SPATIAL = tvm.tirx.IterVar.DataPar  # an axis that is not reduced


class Default(ScheduleRule):
    """Loops for any kernel."""

    name = "default"
    serves = "kernels that no other workload describes"

    @dataclass(frozen=True)
    class Config:
        """What the target decides; nothing to search.

        Attributes:
            lanes: `Simd.lanes`.
        """

        lanes: int

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Kernel)

    def default(self, workload: Kernel, simd: Simd) -> Config:
        return self.Config(simd.lanes)

    def schedule(self, sch: Schedule, config: Config) -> None:
        """Inline elementwise stages, then schedule each remaining loop nest."""
        root = sch.get_sblock("root")
        # TVM rounds to bfloat16 with an expression that repeats its argument. That must not contain a Let, as
        # the functions of kernels/elementwise.py do.
        inlined = [] if _has_bfloat16(sch.mod["main"]) else sch.get_child_blocks(root)[:-1]
        for block in inlined:
            if _reduces(sch, block) or _tests_padding(sch, block, config.lanes) or _explodes(sch, block):
                continue
            if _turns(sch, block):
                continue
            with contextlib.suppress(ScheduleError):  # two outputs need it, for example
                sch.compute_inline(block)
        for block in sch.get_child_blocks(root):
            if sch.get_loops(block):
                _nest(sch, block, config.lanes)


def _nest(sch, block, lanes):
    """Parallelize the outer loops; the row of outputs is innermost, vectorized if it is whole vectors."""
    loops, axes = sch.get_loops(block), sch.get(block).iter_vars
    spatial = [loop for loop, axis in zip(loops, axes, strict=True) if int(axis.iter_type) == _SPATIAL]
    reduced = [loop for loop, axis in zip(loops, axes, strict=True) if int(axis.iter_type) != _SPATIAL]
    if not spatial:
        return
    if len(spatial) == 5:  # NCHW[x]c: rows outside, so that a thread reads what it made in the kernel before
        n, blocks, *others = spatial
        sch.reorder(n, others[0], blocks)
        spatial = [n, others[0], blocks, *others[1:]]
    large = math.prod(_extent(sch, loop, _DYNAMIC) for loop in loops) >= _SMALL
    outer = spatial
    inner = []
    vector = False
    # Reductions go row by row if their inputs are contiguous, too. (LLVM vectorizes serial loops over a row.)
    if not reduced or _is_contiguous(sch, block, axes[loops.index(spatial[-1])].var):
        *outer, row = spatial
        if _static(sch, row) and _extent(sch, row) % lanes == 0 and not (reduced and _bfloat16(sch, block)):
            more, row = sch.split(row, [None, lanes])
            outer = [*outer, more]
            sch.vectorize(row)
            vector = True
        inner = [row]
    if reduced:
        window = [] if vector or not inner else _last(sch, reduced)
        sch.reorder(*outer, *reduced[: len(reduced) - len(window)], *inner, *window)
        for loop in window:
            sch.unroll(loop)
        if vector:  # the accumulators stay in a register
            stored = sch.cache_write(block, 0, "local")
            sch.reverse_compute_at(stored, outer[-1])
            sch.vectorize(sch.get_loops(stored)[-1])
            few = math.prod(_extent(sch, loop) for loop in reduced) <= _UNROLLED
            if few and all(_static(sch, loop) for loop in reduced):
                for loop in reduced:
                    sch.unroll(loop)
    if large and outer:
        sch.parallel(sch.fuse(*_first(sch, outer)))
    if reduced:
        sch.decompose_reduction(block, reduced[0])


def _static(sch, loop) -> bool:
    return isinstance(sch.get(loop).extent, tvm.tirx.IntImm)


def _extent(sch, loop, dim: int = 1) -> int:
    """Return the iterations of a loop, if each dynamic dim is `dim`."""
    return _count([sch.get(loop).extent], dim)


def _count(shape, value: int = _DYNAMIC) -> int:
    """Return the product of a shape, if each dynamic dim is `value`."""
    return math.prod(value if dim_to_str(dim) is None else dim_hint(dim, value) for dim in shape)


def _first(sch, loops) -> list:
    """Return the outermost loops that give the threads enough iterations; unfused loops are cheaper.

    A dynamic dim is taken to be 1 for the first loop, which may be a batch. TVM takes long to simplify the
    index of several fused dynamic loops.
    """
    iterations = 1
    for count, loop in enumerate(loops, start=1):
        iterations *= _extent(sch, loop, 1 if count == 1 else _DYNAMIC)
        if iterations >= _SHARED:
            return loops[:count]
    return loops


def _last(sch, loops) -> list:
    """Return the innermost loops that are few iterations together: unrolled, they sum in registers."""
    iterations = 1
    for count, loop in enumerate(reversed(loops)):
        iterations *= _extent(sch, loop) if _static(sch, loop) else _UNROLLED + 1
        if iterations > _UNROLLED:
            return loops[len(loops) - count :]
    return loops


def _tests_padding(sch, block, lanes) -> bool:
    """Return whether a reduction reads a block that tests each element for padding: do not inline it.

    In NCHW[x]c the test is per vector, which costs little.
    """
    node, calls = sch.get(block), []
    blocked = len(node.iter_vars) == 5 and unwrap_ints([node.iter_vars[-1].dom.extent])[0] == lanes
    if blocked or not any(_reduces(sch, b) for b in sch.get_consumers(block)):
        return False
    tvm_ffi.structural_walk(node.body, (tvm.ir.Call, calls.append))
    return any(op_name(call) == "prim.if_then_else" for call in calls)


def _explodes(sch, block) -> bool:
    """Return whether inlining would repeat a large expression, as each stage of a scan does.

    Inlined, a chain of n stages that each read the one before twice has 2^n copies of the first.
    """
    node = sch.get(block)
    buffer = node.writes[0].source
    loads = []
    for consumer in sch.get_consumers(block):
        tvm_ffi.structural_walk(sch.get(consumer).body, (tvm.ir.TensorLoad, loads.append))
    reads = sum(load.source.same_as(buffer) for load in loads)
    if reads < 2:
        return False
    nodes = []
    tvm_ffi.structural_walk(node.body, nodes.append)
    return len(nodes) * reads > _INLINED


def _turns(sch, block) -> bool:
    """Return whether a block reads many elements for each of its own, and is then transposed as a whole.

    Inlined, as a rotary embedding of keys would be, it is computed element by element: neighbours of the
    result read strided memory. What the block reads transposed, as a resize between blocked layouts does, is
    not counted.
    """
    node, loads = sch.get(block), []
    tvm_ffi.structural_walk(node.body, (tvm.ir.TensorLoad, loads.append))
    if not node.iter_vars:
        return False
    row = node.iter_vars[-1].var
    along = [load for load in loads if len(load.indices) and _stride(load.indices[-1], row) != 0]
    if len(along) < _TURNED:
        return False
    while len(consumers := sch.get_consumers(block)) == 1:
        buffer, consumer = sch.get(block).writes[0].source, sch.get(consumers[0])
        if not buffer.shape or not consumer.iter_vars:  # a number
            return False
        row = consumer.iter_vars[-1].var
        strides = [
            _stride(read.region[-1].min, row) for read in consumer.reads if read.source.same_as(buffer)
        ]
        if 0 in strides and unwrap_ints(buffer.shape)[-1:] != (1,):
            return _count(axis.dom.extent for axis in consumer.iter_vars) >= _count(buffer.shape)
        block = consumers[0]
    return False


def _reduces(sch, block) -> bool:
    return any(int(axis.iter_type) != _SPATIAL for axis in sch.get(block).iter_vars)


def _is_contiguous(sch, block, var) -> bool:
    """Return whether neighbours along the axis `var` read neighbours in memory, or the same element."""
    for read in sch.get(block).reads:
        strides = [_stride(index.min, var) for index in read.region]
        if any(stride != 0 for stride in strides[:-1]) or strides[-1:] not in ([], [0], [1]):
            return False
    return True


def _stride(index, var) -> int | None:
    """Return by how much `index` grows with `var`; None if that is not known."""
    coefficients = tvm.sym.detect_linear_equation(index, [var])
    known = coefficients and isinstance(coefficients[0], tvm.tirx.IntImm)
    return int(coefficients[0]) if known else None


def _has_bfloat16(func) -> bool:
    """Return whether a kernel reads, computes or stores a bfloat16."""
    found: list[str] = []
    kinds = tvm.tirx.Cast, tvm.tirx.FloatImm, tvm.ir.TensorLoad
    computed = kinds, lambda node: found.append(str(node.ty.dtype))
    stored = tvm.tirx.BufferStore, lambda store: found.append(str(store.buffer.dtype))
    tvm_ffi.structural_walk(func.body, [computed, stored])
    return "bfloat16" in found


def _bfloat16(sch, block) -> bool:
    """Return whether the output is bfloat16: TVM stores integers and cannot lower vectors of such sums."""
    return str(sch.get(block).writes[0].source.dtype) == "bfloat16"
