"""This file works around faults of TVM 0.27 and tvm-ffi 0.1, and of libraries beside them: read it on a new TVM.

Each function names the version that it is for, and what may go when that is mended. Nothing here imports TVM before it
is called. Faults of single operators and passes are worked around where these stand:

    importers/pytorch_*.py, onnx*.py                operators that TVM's frontends get wrong, lack, or do not check
    compiler/bools.py, precision.py                 vectors of bools; sums of half precision
    compiler/decompose.py                           atanh, remainders and norms of float64 are inexact, or missing
    compiler/fold.py, combine_parallel.py           FoldConstant is slow; CombineParallelMatmul misses constants
    compiler/codegen.py                             a module without kernels is linked by way of C; one thread compiles
    compiler/cuda_nms.py, `_unbeaten`               the simplifier takes x & ((y & 1) - 1) of uint32 for 0
    compiler/special_values.py                      TVM treats floats as real numbers: NaN is lost
    compiler/schedules/__init__.py                  `Schedule` changes a function that nobody else holds
    compiler/schedules/default.py                   expressions of bfloat16 that may not be inlined, or vectorized
    tuning/workers.py, runner.py                    workers import torch, and hide a Ctrl-C; TVM leaks a little in each
    tuning/server.py, tracker.py                    what a stranger sends, or a crash, leaves TVM's server dead
    course/vision.py                                GluonCV has Pillow read half a picture without an error
"""

import contextlib
import ctypes
import importlib
import inspect
import os
import sys
import threading
import types
from importlib import util
from pathlib import Path

# LLVM 22, in TVM 0.27, takes Zen 3 for a CPU of long loops: it unrolls the inner loop of a tile of sums that fills all
# registers, the sums then live in memory, and such a kernel takes 1.7 times as long. Zen 2 has all instructions that
# kernels use. It goes when `test_no_cpu_keeps_a_tile_of_sums_in_memory` holds without it.
COMPILED_AS = {"znver3": "znver2"}

_SPINS = "1000"  # how often a thread of TVM's looks for work before it sleeps


# TVM 0.27 keeps the builders of functions, and the names of operators, in places that all threads share; so does
# torch.export with what it patches. Imports of networks and passes therefore take turns. A fork waits for the lock: the
# child would have work half done, and nobody to finish it. It goes when `test_threads_import_and_build_at_once` passes
# without it.
pass_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pass_lock.acquire, after_in_parent=pass_lock.release, after_in_child=pass_lock.release
    )


def set_tvm_threads(cores: int, threads: int = 0) -> None:
    """Have TVM start `threads` threads; where that is 0, TVM_NUM_THREADS, or `cores` where that is not set.

    TVM 0.27 by itself takes half of the CPUs it sees, as it expects hyper-threads: on a virtual machine without them,
    half of the cores stay idle. It reads the variable once, before its first parallel kernel. This goes when TVM counts
    cores.

    A thread without work yields its core 300,000 times before it sleeps, also when the process wants to end: with four
    busy processes beside it, a process on two cores took 110 s to end. After 1,000 times it takes 3 to 4 s. Where there
    are more threads than cores, the waiting ones take the cores from those that work, so they sleep at once. This goes
    when TVM's waiting threads check whether the process wants to end.
    """
    if threads:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    count = os.environ.setdefault("TVM_NUM_THREADS", str(cores))
    spins = "0" if count.isdigit() and int(count) > cores else _SPINS
    if os.environ.get("TVM_THREAD_POOL_SPIN_COUNT") in (None, _SPINS):  # unset, or set here for another count
        os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = spins


@contextlib.contextmanager
def without_modules(*names: str):
    """Within it, an import of one of `names` is an ImportError; those that were imported before stay as they are.

    Other threads can import those that were not.
    """
    thread = threading.get_ident()

    def find_spec(name, _path=None, _target=None):
        if name in names and threading.get_ident() == thread:
            raise ModuleNotFoundError(f"{name} is left out here", name=name)

    finder = types.SimpleNamespace(find_spec=find_spec)
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(before))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(before)


def without_torch():
    """Make `import torch` an ImportError in a context, for what refuses to run beside torch or imports it in vain.

    GluonCV 0.10 is the first; TVM 0.27 imports it where it can, which takes seconds. It goes when both let it be.
    """
    return without_modules("torch")


def import_tvm_ffi():
    """Import Python's side of TVM's runtime, `tvm_ffi`, and load the runtime itself, unless all of TVM is here already.

    tvm-ffi 0.1 imports torch where it can, which takes seconds, and CUDA's bindings; what is not here yet is left out.
    `tvm_ffi.load_module` needs TVM's runtime library, which TVM 0.27 loads by `import tvm` alone, with its compiler.
    All of this goes when the runtime can be imported by itself.

    A Ctrl-C that comes while C++ has called Python, as it does for passes, builders and runners, becomes a RuntimeError
    without a message, unless tvm-ffi knows KeyboardInterrupt. This goes when it does.
    """
    with without_modules(*(name for name in ("torch", "cuda.bindings") if name not in sys.modules)):
        import tvm_ffi  # for speed: `import tvmnotes` loads no library
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    library = Path(util.find_spec("tvm").origin).parent / "lib" / "libtvm_runtime.so"
    if "tvm" not in sys.modules and library.is_file():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    else:
        importlib.import_module("tvm")
    return tvm_ffi


@contextlib.contextmanager
def fast_tvmscript_parser():
    """Within it, and within functions that it decorates, TVMScript parses a function without looking at who calls.

    TVM 0.27 otherwise reads the source of all callers, to see whether a class is around the function. Python then goes
    through all imported modules for each of them: a quarter of a second for a function where torch is among them. This
    goes when TVM's parser reads one caller.
    """
    from tvm.tirx.script.parser import entry  # for speed: `import tvmnotes` loads no library

    def stack():
        frame, frames = sys._getframe(1), []
        while frame:
            frames.append(types.SimpleNamespace(frame=frame, code_context=None))
            frame = frame.f_back
        return frames

    entry.inspect = types.SimpleNamespace(**vars(inspect) | {"stack": stack})
    try:
        yield
    finally:
        entry.inspect = inspect  # and not what was there, which another thread may have put there


@contextlib.contextmanager
def lazy_tensor_intrinsics():
    """Within it, TVM's package of tensor intrinsics holds only what is asked for.

    The package of TVM 0.27 parses those of all processors when it is imported, a minute's work; dlight imports it, and
    so does each context of MetaSchedule. This goes when TVM imports a processor's intrinsics for that processor alone.
    """
    name = "tvm.s_tir.tensor_intrin"
    package = types.ModuleType(name)
    package.__path__ = [str(Path(util.find_spec("tvm").origin).parent / "s_tir" / "tensor_intrin")]
    with pass_lock, fast_tvmscript_parser():
        loaded = sys.modules.setdefault(name, package)
        try:
            yield
        finally:
            if loaded is package:
                del sys.modules[name]


@contextlib.contextmanager
def cuda_headers():
    """Within it, TVM finds CUDA's headers, also where the toolkit has come from pip, or nvcc is not on the PATH.

    TVM 0.27 looks for nvcc alone, and not for the headers of CUDA 13's C++ library. This goes when it finds both.
    Raises RuntimeError, with the mend, where there are none.
    """
    pip = [
        Path(folder) / "cu13"
        for folder in getattr(util.find_spec("nvidia"), "submodule_search_locations", ())
    ]
    roots = [
        *map(Path, filter(None, map(os.environ.get, ("CUDA_PATH", "CUDA_HOME")))),
        Path("/usr/local/cuda"),
        *pip,
    ]
    for root in roots:
        includes = [folder for folder in (*root.glob("include"), *root.glob("targets/*/include"))
                    if (folder / "cccl/cuda/std/cstdint").is_file()]  # fmt: skip
        if includes and (includes[0] / "cuda_runtime.h").is_file():
            break
    else:
        raise RuntimeError(
            f"compiling for a GPU takes CUDA's headers, which are in none of {', '.join(map(str, roots))}: install the "
            "CUDA toolkit 13 and set CUDA_PATH, or pip install 'nvidia-cuda-cccl==13.0.*' 'nvidia-cuda-crt==13.0.*'"
        )
    changed = {
        "CUDA_PATH": str(root),
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"-w -I{includes[0]} -I{includes[0]}/cccl",
    }
    with pass_lock:
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
