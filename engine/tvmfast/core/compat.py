"""Compatibility with TVM 0.27, tvm-ffi 0.1 and other libraries: their internals, and workarounds.

Review it for each new TVM. Nothing here imports TVM until it is called.

**Internals.** Numbers, names and calls that TVM does not export are defined here. Private names of an object
or a base class of TVM's or torch's cannot be, and stay in these files, and in no other:

    compiler/codegen.py                _collect_from_import_tree
    compiler/graph/half_precision.py   _update_type
    compiler/cuda/workspaces.py        _update_type
    compiler/shape_variants.py         _update_type
    frontends/onnx/ops/node.py         _get_convert_map: TVM's converters of ONNX operators
    frontends/onnx/ops/__init__.py     _convert_operator, _check_for_unsupported_ops, overridden;
                                       _nodes, _params
    frontends/pytorch/importer.py      torch's _split_decomp_table_to_cia_and_python_decomp,
                                       _special_op_to_preserve_cia, _decompose_exported_program
    backends/torch_compile.py          torch's _C, _set_grad_enabled, _enter_inference_mode,
                                       _exit_inference_mode, _enter_autocast, _exit_autocast; a
                                       tensor's _version
    frontends/pytorch/ops/call.py      _convert_data_type
    frontends/pytorch/ops/converters.py  torch's _overloadname
    frontends/pytorch/ops/losses.py    torch's _C.DispatchKey; an operator's _dispatch_cache
    frontends/pytorch/output_aliases.py  a tensor's _version, and its storage's _cdata
    frontends/pytorch/quantized_modules.py  torch's _C.parse_schema
    tuning/metaschedule.py             _cls, _initialize_with_tune_context
    tuning/server.py                   _serve_loop, _ffi_api
    tuning/tracker.py                  _event_handler, overridden
    tvmclassic/te/padding.py           _ffi_api
    tuning/workers.py                  _worker_map, _proc; _start, _worker_run; `PopenPoolExecutor`, replaced

Public names that are replaced or read in an unusual way, which the test cannot find:

    core/compat.py                     `inspect` of TVMScript's parser; the package `tvm.s_tir.tensor_intrin`
    tvmclassic/patches.py              methods of `tvm.IRModule`, `GlobalVar.__call__`
    tvmclassic/relay/lift.py           `_METHODS`: what `dir` of an operator's attributes lists besides these
    compiler/legalize/ieee754.py       what `compilation_pipeline.get_tir_pipeline` returns
    runtime/tensors.py                 functions of the runtime that are found by name, "runtime.…" and
                                       "ffi.ArrayGetItem"

**Workarounds.** Each is registered with the version that it is for and the tests that fail without it;
`make tvm-upgrade` runs them. Those for single operators and passes are in other files, and not registered:

    frontends/                               operators that TVM's frontends get wrong, lack, or do not check
    compiler/legalize/bfloat16.py            bfloat16 is rounded only in memory, some NaNs to zeros
    compiler/legalize/bools.py, accumulate.py  vectors of bools; accumulation in half precision
    compiler/graph/decompose.py              atanh, remainders and norms of float64 are inexact, or missing
    compiler/graph/fold_constants.py         FoldConstant is slow
    compiler/combine_parallel.py             CombineParallelMatmul misses constants
    compiler/codegen.py                      a module without kernels is linked through C; one thread compiles
    compiler/cuda/nms.py                     x & ((y & 1) - 1) of uint32 is simplified to 0
    compiler/legalize/ieee754.py             TVM treats floats as real numbers: NaN is lost; a division by
                                             an integer of 0; LLVM's wrong x % 2^n; argmax of the least
                                             integers is -1; floats cast to narrow integers out of range
    compiler/legalize/long_sums.py           a sum has one accumulator, however long it is
    compiler/legalize/norms.py               norms of numbers far from 0 have no digit, or are NaN
    compiler/legalize/quantize.py            quantize rounds a half away from 0; nearbyint is not vectorized
    compiler/legalize/scatter.py             an index that is smaller than the data scatters into other rows
    compiler/legalize/lower.py               corners aligned with a single row divide by 0
    compiler/schedule/apply.py               `Schedule` modifies a function that has no other reference
    compiler/schedule/dot.py                 TVM's intrinsics of VNNI do not compile with LLVM 22
    compiler/schedule/rules/default.py       bfloat16 expressions that must not be inlined, or vectorized
    tuning/workers.py, runner.py             workers import torch, hide a Ctrl-C, and leak a little memory
    tuning/server.py, tracker.py             untrusted messages, or a crash, leave TVM's server dead
    tvmclassic/te/padding.py, replay.py      compute_at, and reductions across threads, forget conditions
    tvmnotes/vision.py                       GluonCV makes Pillow read truncated images without an error

A process that uses the package finds TVM as it is without it, except for these, which are process-wide:

    set_tvm_threads                          how many threads TVM starts, and how they wait
    import_tvm_ffi                           tvm-ffi loads without torch if that is not imported yet, and
                                             knows KeyboardInterrupt
    core/bounds_check.py                     tvm-ffi knows OutOfRange
    pass_lock, runtime/fork.py, runtime/pool.py  what a fork waits for, and how its child ends
    core/bounds_check.py, core/partial_update.py, compiler/graph/fold_constants.py,
    compiler/graph/quantized.py, compiler/legalize/ieee754.py, compiler/schedule/dot.py, runtime/compiled.py
                                             entries of TVM's tables with names of ours, "tvmfast" in each

Another thread that uses TVM in the meantime meets what a context replaces for all threads:

    lazy_tensor_intrinsics                   an empty package, in the first build for a GPU or by MetaSchedule
    cuda_headers                             environment variables, in a build for a GPU
    tuning/workers.py                        the pools of MetaSchedule's runners, while it tunes
    frontends/pytorch/ops/losses.py          how torch's dispatcher decomposes two losses, in an import
"""

import contextlib
import ctypes
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from . import renamed

_log = logging.getLogger(__name__)

# ---------------------------------------------------------------- internals


# OpPatternKind in tvm/relax/op_attr_types.h, a header that the package of TVM does not include.
OUT_EWISE_FUSABLE = 4  # a kernel that elementwise operators may be fused into as an epilogue
OPAQUE = 8  # and one that nothing is fused with

# `VirtualMachine.POOLED_ALLOCATOR` in tvm/runtime/vm.py, which cannot be imported without the compiler.
POOLED_ALLOCATOR = 2  # it keeps what is freed

CONCATENATE = "concatenate"  # how the kernels of relax.concat begin: tvm/relax/transform/legalize_ops
TIR_PREFIX = "tir_"  # of elementwise kernels' names: legalize_ops/unary.py there
FUSED_PREFIX = "fused_"  # of the functions that FuseOps makes: src/relax/transform/fuse_ops.cc


def _folder_of_tvm() -> Path:
    found = util.find_spec("tvm")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
    return Path(found.origin).parent


def start_machine(module: Any, device: int) -> Any:
    """Start the virtual machine of an executable, as `VirtualMachine.__init__` in tvm/runtime/vm.py does.

    It is a module with the network's functions and `set_instrument`; `device` is DLPack's number of the kind.
    """
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](device, 0, POOLED_ALLOCATOR)
    return machine


# ---------------------------------------------------------------- workarounds


class Workaround(NamedTuple):
    """A workaround: the version that needs it, the tests that fail without it, and what they do not show."""

    seen_in: str
    tests: tuple[str, ...]
    reason: str


REGISTERED: dict[str, Workaround] = {}


def in_use(name: str, seen_in: str, *tests: str, reason: str = "") -> bool:
    """Register a workaround; return whether it is in use, as all are but the one in TVMFAST_WITHOUT."""
    REGISTERED[name] = Workaround(seen_in, tests, reason)
    return renamed.variable("WITHOUT") != name


@contextlib.contextmanager
def _nothing(*_args: Any, **_options: Any) -> Iterator[None]:
    """Do nothing in a context; a mere call does nothing, too."""
    yield


def workaround(seen_in: str, *tests: str, reason: str = "", otherwise: Callable = _nothing) -> Callable:
    """Make a decorator that registers a function; where it is not in use, `otherwise` takes its place.

    Args:
        seen_in: The library and the version that need it.
        *tests: Pytest's ids, in the engine's folder, of the tests that fail without it.
        reason: What no test shows, and why.
        otherwise: A function with the same arguments, whose result serves the callers.
    """

    def decorate(function: Callable) -> Callable:
        return function if in_use(function.__name__, seen_in, *tests, reason=reason) else otherwise

    return decorate


# LLVM 22, in TVM 0.27, treats Zen 3 as a CPU for long loops: it unrolls the inner loop of a tile of
# accumulators that fills all registers, the accumulators then live in memory, and such a kernel takes 1.7
# times as long. Zen 2 has all instructions that kernels use. Apple's M1 to M3 are other names of CPUs that
# LLVM compiles for, and reports, but does not list.
COMPILED_AS = {"znver3": "znver2", "apple-m1": "apple-a14", "apple-m2": "apple-a15", "apple-m3": "apple-a16"}
if not in_use(
    "COMPILED_AS",
    "TVM 0.27",
    "tests/test_machine.py::test_no_cpu_keeps_a_tile_of_sums_in_memory[znver3]",
    "tests/test_machine.py::test_a_cpu_that_llvm_does_not_list_is_the_one_that_it_is_another_name_of",
):
    COMPILED_AS = {}


# TVM 0.27's function builders and operator names are global state, and so is what torch.export patches: one
# thread imports a network or runs passes at a time. A fork waits for the lock: the child would inherit
# unfinished work.
pass_lock: "threading.RLock | threading.Semaphore" = threading.RLock()
if not in_use("pass_lock", "TVM 0.27", "tests/test_threads.py::test_threads_import_and_build_at_once"):
    pass_lock = threading.Semaphore(1 << 30)  # one that nobody waits for
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pass_lock.acquire, after_in_parent=pass_lock.release, after_in_child=pass_lock.release
    )


@workaround(
    "TVM 0.27",
    "tests/test_machine.py::test_tvm_runs_on_as_many_threads_as_there_are_cores",
    reason="how soon idle threads sleep shows only in times, beside other programs",
)
def set_tvm_threads(cores: int, threads: int = 0) -> None:
    """Make TVM start `threads` threads; if that is 0, TVM_NUM_THREADS, or `cores` if that is not set.

    TVM 0.27 by itself uses half of the CPUs it sees, as it assumes hyper-threads: on a virtual machine
    without them, half of the cores stay idle. It reads the variable once, before its first parallel kernel.
    Remove when TVM counts cores.

    An idle thread yields its core 300,000 times before it sleeps, even when the process is about to exit.
    Each time that it yields to another program, it waits for a slice of the scheduler: beside one busy
    process on two cores a network of 54 kernels took 216 ms instead of 4. So TVM's threads sleep at once.
    Libraries of tvmfast have threads of their own, which spin briefly: runtime/pool.cc. Remove when TVM's
    threads wait without yielding.
    """
    if threads:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TVM_NUM_THREADS", str(cores))
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    _log.debug("TVM_NUM_THREADS=%s, of %d usable cores", os.environ["TVM_NUM_THREADS"], cores)


@workaround(
    "torch 2.12",
    "tests/test_threads.py::test_ctrl_c_while_a_network_is_captured_or_converted_is_a_keyboard_interrupt",
    reason="that C++ aborts is left to `make storms`",
)
@contextlib.contextmanager
def hold_interrupt() -> Iterator[None]:
    """Hold back a first Ctrl-C until the context ends; a second one is raised at once.

    torch 2.12 loses a KeyboardInterrupt that it meets in a finalizer, and aborts if C++ meets it: 6 of 374
    Ctrl-C in torch.export. Remove when `make storms` passes without it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: types.FrameType | None) -> None:
        if held:
            signal.default_int_handler(number, frame)
        held.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if held:
            raise KeyboardInterrupt


@workaround("torch 2.12", "tests/test_threads.py::test_ctrl_c_in_a_finalizer_is_a_keyboard_interrupt")
@contextlib.contextmanager
def keep_interrupt() -> Iterator[None]:
    """Raise at a context's end the KeyboardInterrupt that was lost in it.

    Python only prints what is raised in a finalizer or in the callback of a weak reference, and torch leaves
    thousands of both for the garbage collector. Only the main thread gets a Ctrl-C, and contexts of several
    threads would not put back each other's hooks in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost = []
    hook = sys.unraisablehook

    def note(args: Any) -> None:
        if issubclass(args.exc_type, KeyboardInterrupt):
            lost.append(args.exc_type)
        else:
            hook(args)

    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if lost:
            raise KeyboardInterrupt


@contextlib.contextmanager
def without_modules(*names: str) -> Iterator[None]:
    """Make an import of one of `names` an ImportError in a context, in this thread.

    Modules that were imported before are there again afterwards; other threads can import those that were
    not.
    """
    thread = threading.get_ident()

    def find_spec(name: str, _path: Any = None, _target: Any = None) -> None:
        if name in names and threading.get_ident() == thread:
            raise ModuleNotFoundError(f"{name} is left out here", name=name)

    finder = types.SimpleNamespace(find_spec=find_spec)
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(before))  # type: ignore[arg-type] # None: there is no such module
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(before)


@workaround("GluonCV 0.10", "tests/test_gluon.py::test_a_classic_script_imports_gluoncv_beside_torch")
def without_torch() -> contextlib.AbstractContextManager[None]:
    """Make `import torch` an ImportError in a context.

    GluonCV 0.10 refuses to load next to torch; TVM 0.27 imports it needlessly if it can, which takes seconds.
    Remove when both are fixed.
    """
    return without_modules("torch")


@workaround(
    "tvm-ffi 0.1",
    "tests/test_deploy.py::"
    "test_a_process_that_loads_needs_neither_tvms_compiler_nor_torch_and_may_have_them_later",
    "tests/test_threads.py::test_ctrl_c_in_a_pass_is_a_keyboard_interrupt",
    otherwise=lambda: importlib.import_module("tvm_ffi"),
)
def import_tvm_ffi() -> Any:
    """Import `tvm_ffi` and load TVM's runtime library, unless all of TVM is loaded already.

    tvm-ffi 0.1 imports torch if it can, which takes seconds, and CUDA's bindings; those not loaded yet are
    left out. `tvm_ffi.load_module` needs TVM's runtime library, which only TVM 0.27's `import tvm` loads,
    together with its compiler. Remove all of this when the runtime can be imported by itself.

    A Ctrl-C while C++ is calling Python, as it does for passes, builders and runners, becomes a RuntimeError
    without a message unless tvm-ffi knows KeyboardInterrupt. Remove that line when it does.
    """
    with without_modules(*(name for name in ("torch", "cuda.bindings") if name not in sys.modules)):
        import tvm_ffi  # for speed: `import tvmfast` loads no library
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    library = _folder_of_tvm() / "lib" / "libtvm_runtime.so"
    if "tvm" not in sys.modules and library.is_file():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    else:
        importlib.import_module("tvm")
    return tvm_ffi


@workaround(
    "TVM 0.27",
    "tests/test_machine.py::test_quick_script_gives_the_same_function_without_a_look_at_the_callers",
)
@contextlib.contextmanager
def fast_tvmscript_parser() -> Iterator[None]:
    """Parse TVMScript without inspecting all callers, in a context or in a function that it decorates.

    TVM 0.27 otherwise reads the source of every caller to see whether a class encloses the function. For each
    of them Python searches all imported modules: a quarter of a second per function if torch is among them.
    Remove when TVM's parser reads one caller.
    """
    from tvm.tirx.script.parser import entry  # for speed: `import tvmfast` loads no library

    thread = threading.get_ident()

    def stack() -> list:
        if threading.get_ident() != thread:
            return inspect.stack()[1:]
        frame: types.FrameType | None = sys._getframe(1)
        frames = []
        while frame is not None:
            frames.append(types.SimpleNamespace(frame=frame, code_context=None))
            frame = frame.f_back
        return frames

    entry.inspect = types.SimpleNamespace(**vars(inspect) | {"stack": stack})
    try:
        yield
    finally:
        entry.inspect = inspect  # not what was there before, which another thread may have set


@workaround("TVM 0.27", reason="without it only the first build for a GPU, or by MetaSchedule, takes longer")
@contextlib.contextmanager
def lazy_tensor_intrinsics() -> Iterator[None]:
    """Make TVM's package of tensor intrinsics load only the modules that are imported, in a context.

    On import, TVM 0.27's package parses the intrinsics of all processors, which takes a minute; dlight
    imports it, and so does every MetaSchedule context. Remove when TVM imports a processor's intrinsics for
    that processor alone.
    """
    name = "tvm.s_tir.tensor_intrin"
    package = types.ModuleType(name)
    package.__path__ = [str(_folder_of_tvm() / "s_tir" / "tensor_intrin")]
    with pass_lock, fast_tvmscript_parser():
        loaded = sys.modules.setdefault(name, package)
        try:
            yield
        finally:
            if loaded is package:
                del sys.modules[name]


@workaround("TVM 0.27", "tests/test_gpu.py::test_cudas_compiler_takes_the_source")
@contextlib.contextmanager
def cuda_headers() -> Iterator[None]:
    """Make TVM find CUDA's headers in a context, also those from pip, or if nvcc is not on the PATH.

    TVM 0.27 looks for nvcc only, and not for the headers of CUDA 13's C++ library. Remove when it finds both.
    Raises RuntimeError, with a fix, if there are no headers.
    """
    packages = getattr(util.find_spec("nvidia"), "submodule_search_locations", ())
    variables = filter(None, map(os.environ.get, ("CUDA_PATH", "CUDA_HOME")))
    roots = [*map(Path, variables), Path("/usr/local/cuda"), *(Path(folder) / "cu13" for folder in packages)]
    for root in roots:
        folders = (*root.glob("include"), *root.glob("targets/*/include"))
        includes = [folder for folder in folders if (folder / "cccl/cuda/std/cstdint").is_file()]
        if includes and (includes[0] / "cuda_runtime.h").is_file():
            break
    else:
        raise RuntimeError(
            f"compiling for a GPU takes CUDA's headers, which are in none of {', '.join(map(str, roots))}: "
            "install the CUDA toolkit 13 and set CUDA_PATH, or pip install 'nvidia-cuda-cccl==13.0.*' "
            "'nvidia-cuda-crt==13.0.*'"
        )
    changed = {
        "CUDA_PATH": str(root),
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"-w --split-compile=0 -I{includes[0]} -I{includes[0]}/cccl",
    }
    with pass_lock:
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@workaround("TVM 0.27", "tests/test_gpu.py::test_cudas_compiler_keeps_denormals_and_rounds_divisions")
@contextlib.contextmanager
def exact_cuda() -> Iterator[None]:
    """Compile CUDA's code in a context without `--use_fast_math`.

    TVM 0.27 always passes this option to NVRTC, and options after it revoke only parts of it: denormals are
    read as 0, a quotient by a number above 2**126 is 0, and sines of large angles are wrong. Remove when TVM
    asks.
    """
    from cuda.bindings import nvrtc

    compile_program, thread = nvrtc.nvrtcCompileProgram, threading.get_ident()

    def without_fast_math(program: Any, count: int, options: list) -> Any:
        if threading.get_ident() != thread:
            return compile_program(program, count, options)
        options = [option for option in options if option != b"--use_fast_math"]
        return compile_program(program, len(options), options)

    with pass_lock:
        nvrtc.nvrtcCompileProgram = without_fast_math
        try:
            yield
        finally:
            nvrtc.nvrtcCompileProgram = compile_program
