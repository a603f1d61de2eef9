"""Open libraries of kernels, and run their parallel loops on the threads of `pool.cc`.

A library that `codegen` links contains pool.cc. The threads are those of the first library that the process
opens; the others are told to use them. TVM's own threads are left as they are, for libraries without them.
"""

import ctypes
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..core import folders, machine, renamed
from ..core.compat import import_tvm_ffi

SOURCE = Path(__file__).with_name("pool.cc")
CHUNKS = 4  # of a loop for each thread: more share the work better, and cost more claims
_SPIN = 50_000  # nanoseconds for which a thread looks for work before it sleeps
_FUNCTIONS = ("configure", "forked", "launch")  # of pool.cc
_LAUNCH = "__TVMBackendParallelLaunch"  # the pointer through which kernels start a loop
_log = logging.getLogger(__name__)

_opening = threading.Lock()
_first: SimpleNamespace | None = None  # the functions of the library whose threads serve this process


def open_library(file: Path) -> tuple[Any, bool]:
    """Open a shared library of kernels under a unique name.

    For the name of a library that is open already, the system's loader would return that one again, even if
    the file has been replaced since. The library is closed with the last that uses its module.

    Returns:
        The module, and whether its loops run on the threads of `pool.cc`.
    """
    with folders.temporary("tvmfast-load-") as folder:
        link = folder / file.name
        link.symlink_to(file.resolve())
        # tvm.runtime.load_module would follow the link first.
        module = import_tvm_ffi().load_module(str(link), keep_module_alive=False)
        own = _adopt(str(link))
    _log.debug("%s opened: its loops run on %s threads", file, "tvmfast's" if own else "TVM's")
    return module, own


def _adopt(path: str) -> bool:
    """Make an open library start its loops on the process's threads; tell whether it can."""
    global _first
    system = ctypes.CDLL(None)
    system.dlopen.restype = ctypes.c_void_p
    handle = system.dlopen(path.encode(), os.RTLD_NOW)
    library = ctypes.CDLL(path, handle=handle)
    functions = _functions(library)
    with _opening:
        if functions and _first is None:
            _configure(functions)
            _first = functions
    if functions and _first and hasattr(library, _LAUNCH):  # it has parallel loops
        launch = ctypes.cast(_first.launch, ctypes.c_void_p)
        ctypes.c_void_p.in_dll(library, _LAUNCH).value = launch.value
    if functions is None or functions is not _first:  # that one stays open
        system.dlclose(ctypes.c_void_p(handle))  # the module holds it open
    return functions is not None


def _functions(library: ctypes.CDLL) -> SimpleNamespace | None:
    """Return the functions of pool.cc in a library; None if it has none."""
    for name in renamed.NAMES:
        if hasattr(library, f"{name}_pool_launch"):
            return SimpleNamespace(**{each: getattr(library, f"{name}_pool_{each}") for each in _FUNCTIONS})
    return None


def _configure(functions: SimpleNamespace) -> None:
    """Set the number of threads, and that they sleep at once where they are more than the cores."""
    cores = machine.usable_cores()
    count = min(machine.threads(), os.cpu_count() or 1)
    bound = os.environ.get("TVM_BIND_THREADS", "0") != "0"
    _log.debug("%d threads for %d usable cores%s", count, cores, ", each bound to one" if bound else "")
    functions.configure(count, CHUNKS, ctypes.c_int64(_SPIN if count <= cores else 0), bound)


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    if _first is not None:
        _first.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
