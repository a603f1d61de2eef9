"""Code for NVIDIA's GPUs, by CUDA's compiler."""

import contextlib
import re

import tvm
from tvm import relax, tirx

from ...core.compat import cuda_headers, exact_cuda
from ..legalize import ieee754


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
        text = next(_cuda(self.mod)).inspect_source("cuda")
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


def executable(mod: tvm.IRModule, target: tvm.target.Target) -> Executable:
    """Make the virtual machine's executable of a module that `pipeline.lowering` has lowered.

    With a CUDA device on this machine, NVRTC compiles the kernels; without one they stay CUDA source.

    Raises:
        RuntimeError: NVRTC is needed and CUDA's headers are not found.
    """
    here = bool(tvm.cuda().exist)
    with contextlib.ExitStack() as compiler:
        compiler.enter_context(target)
        if here:
            compiler.enter_context(cuda_headers())
            compiler.enter_context(exact_cuda())
        built = relax.build(mod, target=target, relax_pipeline=None, tir_pipeline=ieee754.LOWERING)
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    return Executable(built.mod, kernels, here)
