"""Post-schedule rewrites: a schedule annotates loops, which are rewritten as no primitive of TVM's does."""

from collections.abc import Callable

import tvm_ffi
from tvm import tirx


def rewrite(func: tirx.PrimFunc, note: str, body_of: Callable) -> tirx.PrimFunc:
    """Replace the body of each loop annotated `note` by `body_of(body, value of the annotation)`."""

    def rewritten(loop):
        notes = dict(loop.annotations)
        if note not in notes:
            return loop
        body = body_of(loop.body, notes.pop(note))
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, notes)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, rewritten)))


def innermost(stmt) -> tuple:
    """Return the block inside nested loops, and the variables of these loops."""
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt.loop_var)
        stmt = stmt.body
    return stmt, loops
