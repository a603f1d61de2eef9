"""Parallel loops as threads share them: in even chunks, or on one thread where there is too little to share.

A thread takes a chunk at a time; see runtime/pool.cc. TVM's code divides a loop into parts of the same
length, rounded up, so that the last ones may be empty: 14 iterations in 8 parts are 7 parts of 2, of which
one thread of two gets 4. A loop over chunks of 1 or 2 iterations gives each thread 7 iterations.

To wake the other threads takes as long as some thousand elements. The rules decide whether a loop of static
length is parallel; one of dynamic length has a serial copy, and the kernel chooses each time it runs.
"""

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.transform import ConvertSSA

from ...runtime.pool import CHUNKS

_FEW = 1 << 13  # elements that are too few to wake other threads
_DYNAMIC = 64  # iterations assumed for an inner loop of dynamic length


def share_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel for a CPU, in which vectors and unrolled loops are expanded, with loops as above."""
    chunks = CHUNKS * int(func.attrs["target"].attrs.get("num-cores") or 1)
    body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: _shared(loop, chunks)))
    if body.same_as(func.body):
        return func
    # The copies get variables and buffers of their own.
    return ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))["main"]


def _shared(loop, chunks: int):
    """Return a parallel loop in chunks; one of dynamic length has a serial copy for few iterations."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    shared = _in_chunks(loop, chunks)
    if isinstance(loop.extent, tirx.IntImm):
        return shared
    few = math.ceil(_FEW / max(_elements(loop.body), 1))
    if few < 2:
        return shared
    alone = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
    return tirx.IfThenElse(loop.extent < tirx.IntImm(str(loop.extent.ty.dtype), few), alone, shared)


def _in_chunks(loop, chunks: int):
    """Return a parallel loop over chunks, whose lengths differ by one iteration at most."""
    extent = loop.extent
    if chunks == 1 or (isinstance(extent, tirx.IntImm) and (int(extent) % chunks == 0 or int(extent) == 1)):
        return loop
    chunk = tirx.Var("chunk", "int64")
    first, last = (
        (number * extent.astype("int64") // chunks).astype(str(extent.ty.dtype))
        for number in (chunk, chunk + 1)
    )
    inside = tirx.For(loop.loop_var, loop.min + first, last - first, tirx.ForKind.SERIAL, loop.body)
    zero, count = (tirx.IntImm("int64", number) for number in (0, chunks))
    return tirx.For(chunk, zero, count, tirx.ForKind.PARALLEL, inside)


def _elements(statement) -> float:
    """Return about how many elements a statement stores; infinity if it calls functions."""
    if isinstance(statement, tirx.BufferStore):
        return tvm.DataType(str(statement.value.ty.dtype)).lanes
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(_elements, statement.seq))
    if isinstance(statement, tirx.IfThenElse):
        return max(_elements(case) for case in (statement.then_case, statement.else_case) if case is not None)
    if isinstance(statement, tirx.Evaluate):
        return math.inf if isinstance(statement.value, tvm.ir.Call) else 0
    if isinstance(statement, tirx.While):
        return math.inf
    inside = _elements(statement.body) if getattr(statement, "body", None) is not None else 0
    if isinstance(statement, tirx.For):
        return inside * (int(statement.extent) if isinstance(statement.extent, tirx.IntImm) else _DYNAMIC)
    return inside
