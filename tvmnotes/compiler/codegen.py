"""This module makes machine code of scheduled kernels: on all cores, and of each kernel once.

LLVM takes most of a build's time. What it makes of a kernel is kept as an object file, in the cache's folder "kernels",
under a hash of all that it depends on: the kernel's TensorIR, the target, the pass context, TVM's version, this module,
`special_values`. A network that is built again, or differs in a few kernels, then waits for the linker alone, some 50
ms. The cache is used only where nobody else may write to it, and what was not used for longest makes room for more; see
base/kept.py.

Kernels are compiled without the checks of their arguments that TVM puts into each, two thirds of the code: `Compiled`
has checked the inputs, and what one kernel makes fits the next.
"""

import hashlib
import os
import re
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import tvm
from tvm import tirx

from ..base import data, env, folders, kept
from . import special_values

_PART = re.compile(r"\w+-(\d+)-\d+\.part")  # an object that is being written, by a process


class Executable(tvm.relax.VMExecutable):
    """This is TVM's executable of a virtual machine, a network's program and kernels, that knows its source.

    `kernels` are the lowered functions, by variable, and `target` is that of the build.
    """

    def __init__(self, module: tvm.runtime.Module, kernels: dict, target: tvm.target.Target):
        super().__init__(module)
        self.kernels, self.target = kernels, target

    def jit(self):
        """Return the module that runs, as TVM's method does; a kill meanwhile leaves nothing for long."""
        if not self.mod._collect_from_import_tree(lambda module: module.kind in ("c", "static_library")):
            return self.mod
        with folders.temporary("tvmnotes-build-") as folder:
            file = folder / "lib.so"
            self.export_library(str(file), workspace_dir=str(folder))
            return tvm.runtime.load_module(str(file))

    def source(self, kernel: str | None, fmt: str) -> str:
        """Return what LLVM makes of a kernel, or of all where `kernel` is None: its text ("ll") or assembly ("asm")."""
        kernels = {var: func for var, func in self.kernels.items() if kernel in (None, var.name_hint)}
        return compile_kernels(kernels, self.target, runs_here=False).inspect_source(fmt)


def executable(mod: tvm.IRModule, target: tvm.target.Target, runs_here: bool) -> Executable:
    """Make the virtual machine's executable of a module that `pipeline.lowering` has lowered.

    `runs_here` makes the machine code at once, which TVM leaves to a library's first call. Objects need a C++ compiler
    to link them, and a cache that can be written; without either, code is made in memory, for this process. That is
    also done where passes are traced, as in `tracing`: every kernel goes through all of them.
    """
    functions = dict(mod.functions_items())
    kernels = {var: func for var, func in functions.items() if isinstance(func, tirx.PrimFunc)}
    traced = bool(tvm.transform.PassContext.current().instruments)
    objects = None
    if not traced and (env.cpp_compiler() or not runs_here):
        objects = _kept_objects()
    texts = {var: tvm.ir.save_json(func) for var, func in kernels.items()}
    # The longest first, so that no core is left with it at the end. The shortest is left to TVM, which would link an
    # executable without a kernel of its own by way of C.
    *apart, _ = sorted(kernels, key=lambda var: -len(texts[var])) or [None]

    def make(var):
        if objects is None:
            return compile_kernels({var: kernels[var]}, target, runs_here)
        key = _key(target, texts[var])
        return objects.find(key, var) or objects.keep(
            key, var, compile_kernels({var: kernels[var]}, target, False)
        )

    if traced:  # the instruments belong to this thread
        libraries = [make(var) for var in apart]
    else:
        with ThreadPoolExecutor(env.usable_cores()) as pool:
            libraries = list(pool.map(_in_this_context(make), apart))
    if objects:
        kept.make_room(objects.folder)
    rest = tvm.IRModule({var: func for var, func in functions.items() if var not in apart})
    built = tvm.relax.build(rest.with_attr("external_mods", libraries), target=target, relax_pipeline=None,
                            tir_pipeline=special_values.LOWERING)  # fmt: skip
    return Executable(built.mod, kernels, target)


def compile_kernels(kernels: dict, target, runs_here):
    """Compile a CPU's kernels as `tvm.tirx.build` does, without the assertions."""
    lower, finalize, _ = tirx.get_tir_pipeline(special_values.LOWERING)
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(kernels))
    mod = tirx.transform.SkipAssert()(finalize()(lower(mod)))
    library = tvm.get_global_func("target.build.llvm")(mod, target)
    if runs_here:
        library.get_function(next(iter(kernels)).name_hint)
    return library


def _in_this_context(function):
    """`function` for other threads, in the pass context of this one."""
    context = tvm.transform.PassContext.current()

    def run(*args):
        with tvm.transform.PassContext(context.opt_level, config=dict(context.config)):
            return function(*args)

    return run


def _kept_objects() -> "_Objects | None":
    """The objects in the cache; None where it cannot be written, or where others could put code into it."""
    try:
        folder = kept.folder()
        reason = kept.distrust(folder)
        if not reason:
            return _Objects(folder)
    except OSError:
        return None
    warnings.warn(
        f"the kernel cache is not used, as others could put code into it: {reason}. Builds compile every kernel anew. "
        "Mend it (chmod go-w, chown), or set TVMNOTES_CACHE to a folder of your own",
        stacklevel=4,
    )
    return None


class _Objects:
    """Object files in a folder, by key. A file's name is its key and its content's SHA-256, which is checked."""

    def __init__(self, folder: Path):
        self.folder, names = folder, os.listdir(folder)
        self._files = {name.partition("-")[0]: name for name in names if name.endswith(".o")}
        for part in filter(None, map(_PART.fullmatch, names)):
            if not psutil.pid_exists(int(part[1])):  # it was killed
                (folder / part[0]).unlink(missing_ok=True)

    def find(self, key: str, var):
        """The module of a kernel's object; None where there is none, or it is damaged, or others could have made it."""
        if key not in self._files:
            return None
        file = self.folder / self._files[key]
        try:
            if not kept.is_own(file) or data.checksum(file) != file.stem.partition("-")[2]:
                file.unlink()
                return None
            os.utime(file)  # it is used
            return tvm.runtime.load_static_library(str(file), [var.name_hint])
        except (OSError, RuntimeError):  # another process has made room
            return None

    def keep(self, key: str, var, library):
        """The module of the object of what LLVM has made; `library` itself where no object can be kept."""
        part = self.folder / f"{key}-{os.getpid()}-{threading.get_ident()}.part"
        try:
            library.write_to_file(str(part), "o")
            file = part.replace(self.folder / f"{key}-{data.checksum(part)}.o")
            return tvm.runtime.load_static_library(str(file), [var.name_hint])
        except (OSError, RuntimeError):  # a full disk
            return library
        finally:
            part.unlink(missing_ok=True)


def _key(target, text: str) -> str:
    context = tvm.transform.PassContext.current()
    parts = (
        _toolchain(),
        env.target_json(target),
        str(context.opt_level),
        str(sorted(context.config.items())),
        text,
    )
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()


@cache
def _toolchain() -> str:
    source = "".join(Path(module.__file__).read_text() for module in (sys.modules[__name__], special_values))
    return f"{tvm.__version__} {tvm.target.codegen.llvm_version_major()} {source}"
