"""Parallel loops of an open length, which one thread runs where there is too little to share.

To wake the other threads takes as long as some thousand elements. For fixed sizes the rules decide whether a
loop is parallel; of an open one there are two, and the kernel decides each time it runs.
"""

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.transform import ConvertSSA

LAUNCH = "pragma_parallel_launch_point"  # what a kernel writes that starts its threads itself
_FEW = 1 << 13  # elements that are too few to wake other threads
_OPEN = 64  # iterations that an inner loop of an open length is taken to have


def few_by_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel for a CPU, in which vectors and unrolled loops are expanded, with both loops."""
    attributes = set()
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, lambda node: attributes.add(node.attr_key)))
    if LAUNCH in attributes:  # each of the threads that it starts would run the serial loop
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.For, _by_number))
    if body.same_as(func.body):
        return func
    # The copies get variables and buffers of their own.
    return ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))["main"]


def _by_number(loop):
    """Return a parallel loop of open length with a serial copy for few iterations."""
    if loop.kind != tirx.ForKind.PARALLEL or isinstance(loop.extent, tirx.IntImm):
        return loop
    few = math.ceil(_FEW / max(_elements(loop.body), 1))
    if few < 2:
        return loop
    alone = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
    return tirx.IfThenElse(loop.extent < tirx.IntImm(str(loop.extent.ty.dtype), few), alone, loop)


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
        return inside * (int(statement.extent) if isinstance(statement.extent, tirx.IntImm) else _OPEN)
    return inside
