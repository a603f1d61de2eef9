"""Generate machine code for scheduled kernels, on all cores, and for each kernel only once.

LLVM takes most of a build's time. Its result for a kernel is cached as an object file in the cache folder
"kernels", under a hash of everything that it depends on: the kernel's TensorIR, the target, the pass context,
TVM's version, this module, and those whose passes lower a kernel. A network that is built again, or differs
in a few kernels, then waits only for the linker, some 50 ms. The cache is used only if nobody else may write
to it, and the least recently used files make room for new ones; see core/kernel_cache.py.

Kernels are compiled without the argument checks that TVM puts into each, two thirds of the code: `Compiled`
checks the inputs, and the result of one kernel fits the next.

Each library that is linked contains runtime/pool.cc, the threads on which its parallel loops run. Code that
is generated in memory runs on TVM's threads.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import tvm
from tvm import tirx

from ..core import data, folders, kernel_cache, machine, renamed
from ..runtime import pool
from .legalize import ieee754

_LOG = logging.getLogger(__name__)
_POOL_OPTIONS = ("-O2", "-std=c++17", "-fPIC", "-pthread", "-c")
_PART = re.compile(r"\w+-(\d+)-\d+\.part")  # an unfinished object, with the process that writes it
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk, or of what this user may have of it
_LINKING = 1 << 24  # bytes that have to be free for what LLVM writes while a library is linked


class Executable(tvm.relax.VMExecutable):
    """TVM's virtual machine executable, with access to the source of its kernels.

    `kernels` maps variables to the lowered functions; `target` is the build's.
    """

    def __init__(self, module: tvm.runtime.Module, kernels: dict, target: tvm.target.Target):
        super().__init__(module)
        self.kernels, self.target = kernels, target

    def jit(self):
        """Return the module that runs, as TVM's method does."""
        return self.open()[0]

    def open(self):
        """Return the module that runs, and whether its loops run on the threads of `runtime.pool`.

        If killed here, it leaves no files for long.
        """
        if not self.mod._collect_from_import_tree(lambda module: module.kind in ("c", "static_library")):
            return self.mod, False
        with folders.temporary("tvmfast-build-") as folder:
            file = folder / "lib.so"
            self.export_library(str(file), workspace_dir=str(folder))
            return pool.open_library(file)

    def export_library(self, file_name: str, *, workspace_dir: str, cc: str | None = None):
        """Link the library as TVM's method does, with the threads for its parallel loops.

        Raises OSError if the disk is full: LLVM would end the process.
        """
        if shutil.disk_usage(workspace_dir).free < _LINKING:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, to link a library", workspace_dir)
        compiler = cc or machine.cpp_compiler()
        threads = _threads(compiler, Path(workspace_dir))
        super().export_library(file_name, addons=[threads], workspace_dir=workspace_dir, cc=compiler)

    def source(self, kernel: str | None, fmt: str) -> str:
        """Return LLVM IR (`fmt` "ll") or assembly ("asm") of a kernel, or of all if it is None."""
        kernels = {var: func for var, func in self.kernels.items() if kernel in (None, var.name_hint)}
        return compile_kernels(kernels, self.target, runs_here=False).inspect_source(fmt)


def executable(mod: tvm.IRModule, target: tvm.target.Target, runs_here: bool) -> Executable:
    """Make the virtual machine's executable of a module that `pipeline.lowering` has lowered.

    `runs_here` generates machine code now, which TVM leaves to a library's first call. Object files need a
    C++ compiler to link them and a writable cache; without either, code is generated in memory, for this
    process. That is also done while passes are traced, as in `tracing`, so that every kernel goes through all
    of them.
    """
    functions = dict(mod.functions_items())
    kernels = {var: func for var, func in functions.items() if isinstance(func, tirx.PrimFunc)}
    traced = bool(tvm.transform.PassContext.current().instruments)
    objects = None
    if not traced and (machine.cpp_compiler() or not runs_here):
        objects = _object_cache()
    texts = {var: tvm.ir.save_json(func) for var, func in kernels.items()}
    # The longest first, so that no core is left with it at the end. The shortest is left to TVM, which would
    # link an executable that has no kernel of its own through C.
    *separate, _ = sorted(kernels, key=lambda var: -len(texts[var])) or [None]

    def make(var):
        if objects is None:
            _LOG.debug("%s: compiled in memory", var.name_hint)
            return compile_kernels({var: kernels[var]}, target, runs_here)
        key = _key(target, texts[var])
        found = objects.find(key, var)
        _LOG.debug("%s: %s", var.name_hint, "from the cache" if found else "compiled")
        return found or objects.keep(key, var, compile_kernels({var: kernels[var]}, target, False))

    if traced:  # the instruments belong to this thread
        libraries = [make(var) for var in separate]
    else:
        with ThreadPoolExecutor(machine.usable_cores()) as pool:
            libraries = list(pool.map(_in_this_context(make), separate))
    if objects:
        kernel_cache.make_room(objects.folder)
        if objects.refused:
            _warn_of_full_disk(objects.refused)
    remaining = tvm.IRModule({var: func for var, func in functions.items() if var not in separate})
    remaining = remaining.with_attr("external_mods", libraries)
    lowering = ieee754.LOWERING
    built = tvm.relax.build(remaining, target=target, relax_pipeline=None, tir_pipeline=lowering)
    return Executable(built.mod, kernels, target)


def compile_kernels(kernels: dict, target, runs_here):
    """Compile kernels for a CPU as `tvm.tirx.build` does, without the assertions."""
    lower, finalize, _ = tirx.get_tir_pipeline(ieee754.LOWERING)
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(kernels))
    mod = tirx.transform.SkipAssert()(finalize()(lower(mod)))
    library = tvm.get_global_func("target.build.llvm")(mod, target)
    if runs_here:
        library.get_function(next(iter(kernels)).name_hint)
    return library


def _threads(compiler: str, folder: Path) -> str:
    """Compile runtime/pool.cc into a folder, or take it from the cache; return the object's path."""
    source = pool.SOURCE.read_text()
    objects = _object_cache()
    key = hashlib.sha256(chr(0).join((compiler, *_POOL_OPTIONS, source)).encode()).hexdigest()
    made = folder / "pool.o"
    if objects and (file := objects.path(key)):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            return str(shutil.copy(file, made))
    done = subprocess.run(
        [compiler, *_POOL_OPTIONS, str(pool.SOURCE), "-o", str(made)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(
            f"{compiler} does not compile {pool.SOURCE.name}, which takes C++17 and the headers of the "
            f"system: {done.stderr.strip()}"
        )
    if objects:
        objects.put(key, lambda part: shutil.copy(made, part))
        kernel_cache.make_room(objects.folder)
    return str(made)


def _in_this_context(function):
    """Wrap a function to run on other threads in the pass context of this one."""
    context = tvm.transform.PassContext.current()

    def run(*args):
        with tvm.transform.PassContext(context.opt_level, config=dict(context.config)):
            return function(*args)

    return run


def _object_cache() -> "_Objects | None":
    """Return the object cache; None if it is not writable, or others could put code into it."""
    try:
        folder = kernel_cache.folder()
        reason = kernel_cache.distrust(folder)
        if not reason:
            return _Objects(folder)
    except OSError as error:
        if getattr(error.__cause__ or error, "errno", None) in _FULL:
            _warn_of_full_disk(error.__cause__ or error)
        return None
    warnings.warn(
        f"the kernel cache is not used, as others could put code into it: {reason}. "
        "Builds compile every kernel anew. "
        f"Mend it (chmod go-w, chown), or set {renamed.spelled('CACHE')} to a folder of your own",
        stacklevel=4,
    )
    return None


def _warn_of_full_disk(error: BaseException) -> None:
    warnings.warn(
        f"the kernel cache is not used, as its disk is full: {error}. Builds compile every kernel anew. "
        f"Free some space, or set {renamed.spelled('CACHE')} to a folder on another disk",
        stacklevel=4,
    )


def _object_code(library) -> bytes:
    """Return what LLVM generated as the content of an object file.

    LLVM ends the process if it cannot write to a disk, so it writes to memory where the system has such
    files.
    """
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("tvmfast-kernel"), "rb") as file:
            library.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
            return file.read()
    with folders.temporary("tvmfast-kernel-") as folder:
        if shutil.disk_usage(folder).free < _LINKING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        library.write_to_file(str(folder / "kernel.o"), "o")
        return (folder / "kernel.o").read_bytes()


class _Objects:
    """Object files in a folder, by key; a file's name is its key and its content's SHA-256.

    `refused` is the error of a full disk, if it was.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.refused: OSError | None = None
        names = os.listdir(folder)
        self._files = {name.partition("-")[0]: name for name in names if name.endswith(".o")}
        for part in filter(None, map(_PART.fullmatch, names)):
            if not psutil.pid_exists(int(part[1])):  # the process was killed
                (folder / part[0]).unlink(missing_ok=True)

    def path(self, key: str) -> Path | None:
        """Return the path of an object; None if it is missing or damaged, or others could have made it."""
        if key not in self._files:
            return None
        file = self.folder / self._files[key]
        try:
            if not kernel_cache.is_own(file) or data.checksum(file) != file.stem.partition("-")[2]:
                file.unlink()
                return None
            os.utime(file)  # mark it as used
        except OSError:  # another process has removed it
            return None
        return file

    def put(self, key: str, write) -> Path | None:
        """Store the object that `write(path)` makes, and return its path; None if the disk is full."""
        part = self.folder / f"{key}-{os.getpid()}-{threading.get_ident()}.part"
        try:
            write(part)
            return part.replace(self.folder / f"{key}-{data.checksum(part)}.o")
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                self.refused = error
            return None
        finally:
            part.unlink(missing_ok=True)

    def find(self, key: str, var):
        """Load a kernel's object; None as in `path`."""
        return self._load(self.path(key), var)

    def keep(self, key: str, var, library):
        """Store what LLVM generated as an object and load that; return `library` if none can be stored."""
        return self._load(self.put(key, lambda part: part.write_bytes(_object_code(library))), var) or library

    def _load(self, file: Path | None, var):
        try:
            return file and tvm.runtime.load_static_library(str(file), [var.name_hint])
        except RuntimeError:  # another process has removed it
            return None


def _key(target, text: str) -> str:
    context = tvm.transform.PassContext.current()
    parts = (
        _toolchain(),
        machine.target_json(target),
        str(context.opt_level),
        str(sorted(context.config.items())),
        text,
    )
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()


@cache
def _toolchain() -> str:
    here = Path(__file__)
    files = here, *sorted(here.parent.glob("legalize/**/*.py")), *sorted(here.parent.glob("schedule/**/*.py"))
    source = "".join(file.read_text() for file in files)
    return f"{tvm.__version__} {tvm.target.codegen.llvm_version_major()} {source}"
