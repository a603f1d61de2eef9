"""Code for NVIDIA's GPUs, by CUDA's compiler."""

import contextlib
import functools
import re
import threading
from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.support.nvcc import compile_cuda

from ...core.compat import cuda_headers, exact_cuda
from ..legalize import ieee754

_COMPILE = "tvm_callback_cuda_compile"  # what TVM calls with source, in the context of a target
_SHARED = 48 << 10  # bytes that a block gets in arrays whose size is in the source, on each GPU
_BYTES = {"double": 8, "int64_t": 8, "uint64_t": 8, "float": 4, "int": 4, "uint": 4, "half": 2, "short": 2}
_BYTES |= {"nv_bfloat16": 2, "__nv_bfloat16": 2, "ushort": 2}


class Executable(relax.VMExecutable):
    """TVM's virtual machine executable with CUDA kernels, and access to their source.

    `kernels` maps variables to the scheduled functions; `is_machine_code` tells whether NVRTC has compiled
    them.
    """

    def __init__(self, module: tvm.runtime.Module, kernels: dict, is_machine_code: bool):
        super().__init__(module)
        self.kernels = kernels
        self.is_machine_code = is_machine_code

    def export_library(self, file_name, **options):
        """Write the library to a file, as TVM does.

        Raises:
            RuntimeError: The kernels are CUDA source, as there was no CUDA device where they were built.
        """
        if not self.is_machine_code:
            raise RuntimeError(
                "saving a network for CUDA takes a build on a machine with a CUDA device: without one its "
                "kernels stay source"
            )
        return super().export_library(file_name, **options)

    def source(self, kernel: str | None) -> str:
        """Return the CUDA source of the functions that a kernel launches, or of all if `kernel` is None."""
        text = "".join(part.inspect_source("cuda") for part in _cuda(self.mod))
        if kernel is None:
            return text
        starts = [m.start() for m in re.finditer(r'^extern "C" __global__ .*\{$', text, re.M)]
        parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
        named = re.compile(rf"\b{re.escape(kernel)}_kernel(_\d+)?\(")
        return "".join(part for part in parts if named.search(part.split("{", 1)[0])).rstrip() + "\n"


def _cuda(module):
    for part in module.imports:
        if part.kind == "cuda":
            yield part
        yield from _cuda(part)


@contextlib.contextmanager
def compiler() -> Iterator[None]:
    """Have TVM compile CUDA source in a context: exactly, and a source that it has compiled before not again.

    A network and its CUDA graph have the same source, whose compilation takes most of a build.

    Raises:
        RuntimeError: CUDA's headers are not found.
        ValueError: In a build: what `check_shared_memory` raises.
    """
    with cuda_headers(), exact_cuda():
        before, thread = tvm_ffi.get_global_func(_COMPILE), threading.get_ident()

        def compiled(source: str) -> bytes:
            target = tvm.target.Target.current(allow_none=True)
            if target is None or threading.get_ident() != thread:
                return before(source)
            check_shared_memory(source)
            return _compiled(source, str(target.attrs["arch"]))

        tvm_ffi.register_global_func(_COMPILE, compiled, override=True)
        try:
            yield
        finally:
            tvm_ffi.register_global_func(_COMPILE, before, override=True)


@functools.lru_cache(8)
def _compiled(source: str, arch: str) -> bytes:
    return bytes(compile_cuda(source, target_format="cubin", arch=arch, compiler="nvrtc"))


def machine_code(source: str, arch: str) -> bytes:
    """Return what a build on a machine with a GPU makes of CUDA source; no GPU is needed.

    Args:
        source: What `Executable.source` returns.
        arch: The GPU's architecture, such as "sm_90".

    Raises:
        RuntimeError: CUDA's headers are not found, or NVRTC refuses the source.
    """
    with cuda_headers(), exact_cuda():
        return _compiled(source, arch)


def check_shared_memory(source: str) -> None:
    """Raise ValueError if a kernel in CUDA source has arrays in shared memory that no GPU gives a block."""
    for kernel in re.split(r'^extern "C" __global__ ', source, flags=re.M)[1:]:
        arrays = re.findall(r"__shared__ .*?(\w+) \w+\[(\d+)\];", kernel)
        size = sum(_BYTES.get(dtype, 1) * int(count) for dtype, count in arrays)
        if size > _SHARED:
            (name,) = re.findall(r"(\w+)\(", kernel.partition(" {\n")[0])[-1:]
            raise ValueError(
                f"kernel {name}: expected at most {_SHARED:,} bytes of shared memory for a block; its "
                f"schedule takes {size:,}. Make its tiles in shared memory smaller."
            )


def executable(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Make the virtual machine's executable of a module that `pipeline.lowering` has lowered.

    With a CUDA device on this machine, NVRTC compiles the kernels; without one they stay CUDA source.

    Raises:
        RuntimeError: NVRTC is needed and CUDA's headers are not found.
        ValueError: What `check_shared_memory` raises.
    """
    here = bool(tvm.cuda().exist)
    with target, compiler() if here else contextlib.nullcontext():
        built = relax.build(mod, target=target, relax_pipeline=None, tir_pipeline=ieee754.LOWERING)
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    made = Executable(built.mod, kernels, here)
    check_shared_memory(made.source(None))
    return made
