"""Code for NVIDIA's GPUs: CUDA's compiler, and the compiled network that runs there."""

import contextlib
import json
import platform
import re

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ...core import machine
from ...core.compat import cuda_headers, exact_cuda
from ...core.specs import dtype_of
from ...runtime.compiled import Compiled
from ...runtime.tensors import input_tensor
from ..legalize import ieee754
from .gpu import cannot_run


class Executable(relax.VMExecutable):
    """TVM's virtual machine executable with CUDA kernels, and access to their source.

    `kernels` maps variables to the scheduled functions.
    """

    def __init__(self, module: tvm.runtime.Module, kernels: dict):
        super().__init__(module)
        self.kernels = kernels

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
    with contextlib.ExitStack() as compiler:
        compiler.enter_context(target)
        if tvm.cuda().exist:
            compiler.enter_context(cuda_headers())
            compiler.enter_context(exact_cuda())
        built = relax.build(mod, target=target, relax_pipeline=None, tir_pipeline=ieee754.LOWERING)
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    return Executable(built.mod, kernels)


class CompiledForGPU(Compiled):
    """A network compiled for a GPU: a `Compiled` whose parameters and temporaries are in its memory."""

    def __init__(self, library, graph: dict, params: dict, target: tvm.target.Target, opt_level: int):
        described = json.loads(machine.target_json(target))
        build_info = {"target": described, "architecture": platform.machine(), "instruction_sets": []}
        super().__init__(library, graph, params, build_info, opt_level)

    def _start(self, library):
        self._cannot = cannot_run(self.target)
        if self._cannot:
            return None
        self.device = tvm.cuda()
        self._params = tvm_ffi.convert([array.copyto(self.device) for array in self.params.values()])
        self._vm = relax.VirtualMachine(library, self.device)
        return self._vm["main"]

    def run(
        self, values: list, params: dict | None = None, held: list | None = None
    ) -> list[tvm.runtime.Tensor]:
        """Run the network on a list of inputs, as a call does.

        Args:
            values: The inputs; those already in the GPU's memory are not copied.
            params: Arrays that replace the parameters of these names.
            held: See `Compiled.run`.

        Returns:
            TVM tensors in the GPU's memory, possibly not yet computed: `self.device.sync()` waits for them.

        Raises:
            RuntimeError: This machine cannot run the library.
            ValueError: Parameters are passed to a network that is a CUDA graph.
        """
        tensors = self.to_device(values)
        if self._main is None:
            raise RuntimeError(f"this library cannot run here: {self._cannot}. Build it where it can.")
        weights = self._params
        if params:
            if "vm.builtin.cuda_graph.run_or_capture" in self._library.as_text():
                raise ValueError(
                    "params: a CUDA graph keeps the parameters that it was recorded with; build the network "
                    'without "relax.backend.use_cuda_graph" to pass others'
                )
            arrays = dict(zip(self.params, self._params, strict=True))
            arrays |= {name: array.copyto(self.device) for name, array in params.items()}
            weights = tvm_ffi.convert(list(arrays.values()))
        return self._advance(self._main, tensors, weights, held)

    def _on_device(self, tensor):
        return tensor.copyto(self.device)

    def to_device(self, values) -> list:
        """Return the inputs, checked, in the GPU's memory; those already there are not copied."""
        if len(values) != len(self.inputs):
            raise TypeError(f"expected {len(self.inputs)} inputs, got {len(values)}")
        return [self._to_device(value, spec) for value, spec in zip(values, self.inputs, strict=True)]

    def _to_device(self, value, spec):
        on_gpu = not isinstance(value, np.ndarray) and str(getattr(value, "device", "")).startswith("cuda")
        fits = on_gpu and (tuple(value.shape), dtype_of(value)) == (spec.shape, spec.dtype)
        if fits and value.is_contiguous():
            return value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value.detach())
        checked = input_tensor(value, spec, {})
        return checked if self._main is None else tvm.runtime.from_dlpack(checked).copyto(self.device)

    def save(self, folder):
        """Raise NotImplementedError: the library was built for the GPU of this machine."""
        raise NotImplementedError(
            f"{folder}: libraries for CUDA are not saved: build the network where it runs"
        )

    def source(self, kernel: str | None = None) -> str:
        """Return the CUDA source of the functions that one of `kernels` launches, or of all."""
        self._known(kernel)
        return self._library.source(kernel)

    def __repr__(self) -> str:
        return super().__repr__().replace("generic CPU", f"CUDA {self.target.attrs['arch']}")
