"""Kernels with AMX's instructions on a CPU without them: calls of functions that do, and refuse, what the CPU would.

For the tests of what tvmfast.compiler.schedule has for AMX. The functions are those of emulated_amx.cc.
"""

import ctypes
import functools
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tvmfast.compiler import codegen
from tvmfast.compiler.legalize import ieee754
from tvmfast.compiler.schedule import amx
from tvmfast.core import machine

SETS = ("amx-tile", "amx-int8", "amx-bf16")
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-pthread")


def library(source: Path, *flags: str) -> ctypes.CDLL:
    """A file of C++, compiled, and visible to code that is generated in memory."""
    if machine.cpp_compiler() is None:
        pytest.skip("no C++ compiler here")
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / f"{source.stem}.so"
        subprocess.run([machine.cpp_compiler(), *FLAGS, *flags, str(source), "-o", str(compiled)], check=True)
        return ctypes.CDLL(str(compiled), ctypes.RTLD_GLOBAL)


@functools.cache
def functions() -> ctypes.CDLL:
    """Those of emulated_amx.cc."""
    found = library(Path(__file__).with_suffix(".cc"), "-ffp-contract=off")
    found.emulated_error.restype = ctypes.c_char_p
    for name in ("products", "configurations"):
        getattr(found, f"emulated_{name}").restype = ctypes.c_int64
    for name in ("tileloadd64", "tilestored64"):
        getattr(found, f"emulated_{name}").argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
    return found


def target(*without: str) -> dict:
    """This machine's target with AMX; skips the test where it has no registers of 16 lanes."""
    if "avx512f" not in machine.target_instruction_sets(machine.host_target()):
        pytest.skip("AMX's kernels are for CPUs with AVX-512")
    spec = json.loads(machine.target_json(machine.host_target()))
    given = [each for each in spec.get("mattr", ()) if each[1:] not in SETS]
    return spec | {"mattr": [*given, *(f"{'-' if each in without else '+'}{each}" for each in SETS)]}


def _emulated() -> tvm.transform.Pass:
    """Make the pass that puts the functions in the place of the instructions."""

    def plain(arg):
        is_number = isinstance(arg, tirx.IntImm) and str(arg.ty.dtype) == "int8"
        return tirx.const(int(arg), "int32") if is_number else arg

    def call(node):
        if node.op.same_as(tvm.ir.Op.get("tirx.call_extern")) and str(node.args[0].value) == amx.ALLOWED:
            return tirx.call_extern("int32", "emulated_allowed")
        name = amx.name_of(node)
        return tirx.call_extern("int32", f"emulated_{name}", *map(plain, node.args[1:])) if name else node

    @tirx.transform.prim_func_pass(opt_level=0, name="EmulateTiles")
    def run(func, _mod, _context):
        return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, call)))

    return run


class Tiles:
    """What the kernels did since the last look."""

    def products(self) -> int:
        """How many products of tiles, and that nothing was refused."""
        refused = functions().emulated_error().decode()
        assert not refused, refused
        return functions().emulated_products()

    def configurations(self) -> int:
        """How often a configuration was loaded."""
        return functions().emulated_configurations()


@pytest.fixture
def tiles(monkeypatch):
    """Builds for `target()` run here, with AMX emulated; fails a test in which the hardware would have refused."""
    functions()
    configure, sets = ieee754.configure_tiles, machine.instruction_sets()
    with_amx = (*sets, *(each for each in SETS if each not in sets))
    monkeypatch.setattr(machine, "instruction_sets", lambda: with_amx)
    monkeypatch.setattr(ieee754, "configure_tiles", lambda: tvm.transform.Sequential([configure(), _emulated()]))
    monkeypatch.setattr(codegen, "_object_cache", lambda: None)  # nothing emulated stays
    found = Tiles()
    found.products()
    found.configurations()
    yield found
    found.products()
