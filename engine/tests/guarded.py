"""Kernels that look at each index before they read or write a buffer: the net for what no comparison of numbers sees.

    with guarded() as guard:
        lib = tvmfast.build(mod, params)
    lib(x)
    assert guard.faults() == []

The last pass of a kernel's lowering puts the look at each load and store that LLVM gets, vectors and their lanes
included: what a condition keeps from running is no fault, and both sides of a `Select` are read. An access out of
bounds is noted and left out; a load of it gives 0. The kernels also keep TVM's checks of their arguments, which a
build leaves out, so that the extent of each buffer is that of the array which is passed.

What is reached by an address alone is outside of the net: AMX's tiles, prefetches, and functions that are called with a
pointer. So is an element of the right buffer in a wrong row, and what LLVM makes of an index.
"""

import contextlib
import ctypes
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import tvm
import tvm_ffi
from emulated_amx import library
from tvm import tirx

from tvmfast.compiler import codegen
from tvmfast.compiler.legalize import ieee754
from tvmfast.core.relax import op_name


@functools.cache
def functions() -> ctypes.CDLL:
    """Those of guarded.cc."""
    found = library(Path(__file__).with_suffix(".cc"))
    found.guarded_faults.restype = ctypes.c_char_p
    found.guarded_checks.restype = ctypes.c_int64
    return found


class Guard:
    """What guarded kernels did since the last look."""

    def faults(self) -> list[str]:
        """The accesses out of bounds: "kernel reads buffer 16 of 16", for each access the first."""
        return functions().guarded_faults().decode().splitlines()

    def checks(self) -> int:
        """How many accesses were looked at."""
        return functions().guarded_checks()


@contextlib.contextmanager
def guarded() -> Iterator[Guard]:
    """Kernels that are compiled here look at each index; nothing of them stays in the cache."""
    functions()
    calls, nothing = ieee754.call_instructions, tvm.transform.Sequential([])
    passes = {"call_instructions": lambda: tvm.transform.Sequential([calls(), _guard()])}
    with (
        mock.patch.multiple(ieee754, **passes),
        mock.patch.object(codegen, "_object_cache", lambda: None),
        mock.patch.object(tirx.transform, "SkipAssert", lambda: nothing),
    ):
        guard = Guard()
        guard.faults()
        guard.checks()
        yield guard


def _guard() -> tvm.transform.Pass:
    """Make the pass that has each access look at its index first."""

    @tirx.transform.prim_func_pass(opt_level=0, name="GuardAccesses")
    def run(func, _mod, _context):
        kernel = str(func.attrs["global_symbol"]).removeprefix("__tvm_ffi_")
        plain = {}  # loads by what stands in their place

        def load(node):
            inside = _inside(node.source, node.indices, f"{kernel} reads {node.source.name}")
            if inside is None:
                return node
            dtype = str(node.ty.dtype)
            either = tirx.if_then_else(inside, node, tirx.const(0, dtype))
            plain[either] = node
            return either

        def store(node):
            inside = _inside(node.buffer, node.indices, f"{kernel} writes {node.buffer.name}")
            return node if inside is None else tirx.IfThenElse(inside, node, None)

        def address(call):
            if op_name(call) != "tirx.address_of":
                return call
            return tirx.address_of(plain.get(call.args[0], call.args[0]))

        callbacks = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Call, address)]
        return func.with_body(tvm_ffi.structural_map(func.body, callbacks))

    return run


def _inside(buffer, indices, text: str):
    """The condition that an access is in bounds; None if it is, whatever runs."""
    (index,) = indices
    extent = math.prod(buffer.shape, start=tirx.IntImm("int64", 1))
    if isinstance(index, tirx.Ramp):
        bounds = [(index.base, index.base + index.stride * (int(index.lanes) - 1))]
    else:
        lanes = tvm.DataType(str(index.ty.dtype)).lanes
        each = [tirx.Shuffle([index], [lane]) for lane in range(lanes)] if lanes > 1 else [index]
        bounds = [(lane, lane) for lane in each]
    looks = [_look(text, *map(_wide, (*pair, extent))) for pair in bounds]
    looks = [look for look in looks if look is not None]
    return functools.reduce(tirx.And, looks) if looks else None


def _wide(index):
    return tvm.sym.Analyzer().simplify(tirx.Cast("int64", index))


def _look(text: str, first, last, extent):
    numbers = [each.value for each in (first, last, extent) if isinstance(each, tirx.IntImm)]
    if len(numbers) == 3 and min(numbers[:2]) >= 0 and max(numbers[:2]) < numbers[2]:
        return None
    return tirx.NE(tirx.call_extern("int32", "guarded_inside", text, first, last, extent), tirx.const(0, "int32"))
