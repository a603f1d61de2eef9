"""Kernels for GPUs on a machine without one: run with their threads one after another, and compiled by CUDA's compiler.

For the tests of what tvmfast.compiler has for target "cuda".
"""

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlock

from tvmfast.compiler import pipeline
from tvmfast.compiler.build import bind, resolve_target
from tvmfast.compiler.context import BuildContext
from tvmfast.compiler.cuda import gpu
from tvmfast.compiler.legalize import ieee754
from tvmfast.core import machine
from tvmfast.core.compat import cuda_headers, exact_cuda

TARGET = {"kind": "cuda", "arch": "sm_80"}


def emulate(func):
    """A kernel for a GPU as one for a CPU: all memory is the CPU's, and what threads do is done by one after another.

    Right for kernels whose threads exchange data between loops over all of them, where a GPU has its barriers: there
    each loop ends before the next begins.
    """
    own = []
    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.AllocBuffer, lambda alloc: own.append(alloc.buffer)),
            (SBlock, lambda block: own.extend(block.alloc_buffers)),
        ],
    )
    plain = {b: tirx.decl_buffer(b.shape, b.dtype, b.name) for b in own}

    def loop(node):
        if node.kind != tirx.ForKind.THREAD_BINDING:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)

    def launch(node):
        if node.attr_key != "thread_extent":
            return node
        return tirx.For(node.node.var, 0, node.value, tirx.ForKind.SERIAL, node.body)

    changes = [(tirx.Var, lambda var: plain.get(var, var)), (tirx.For, loop), (tirx.AttrStmt, launch)]
    return func.with_body(tvm_ffi.structural_map(func.body, changes))


def emulate_all(mod):
    """A module with all kernels `emulate`."""
    mod = mod.clone()
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            mod.update_func(var, emulate(func).without_attr("tirx.is_scheduled"))
    return mod


def run_emulated(mod, params, *inputs, lookup=None):
    """What a build for a GPU computes, with tiles of `lookup`, its kernels `emulate`: an array, or a tuple of them."""
    target, here = resolve_target(TARGET, ("cuda",)), machine.host_target()
    mod, _ = bind(mod, params)
    with target:
        mod = tvm.transform.Sequential(pipeline.passes(BuildContext(target)))(mod)
        mod, constants = pipeline.lift_constants(mod, {})
        mod = emulate_all(gpu.scheduled(mod, target, lookup=lookup)[0])
        mod = pipeline.lowering()(pipeline.bundle(mod))
    emulated = relax.VirtualMachine(
        relax.build(mod, here, relax_pipeline=None, tir_pipeline=ieee754.LOWERING), tvm.cpu()
    )
    tensors = [tvm.runtime.tensor(x) for x in inputs]
    result = emulated["main"](*tensors, tvm_ffi.convert(list(constants.values())))
    return result.numpy() if isinstance(result, tvm.runtime.Tensor) else tuple(each.numpy() for each in result)


def machine_code(lib, target_format="cubin", arch="sm_80") -> bytes:
    """What CUDA's compiler, NVRTC, makes of a library's source; skips the test where that is not to be had."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from tvm.support.nvcc import compile_cuda

    try:
        with cuda_headers(), exact_cuda():
            return bytes(compile_cuda(lib.source(), target_format=target_format, arch=arch, compiler="nvrtc"))
    except RuntimeError as error:
        if "CUDA's headers" not in str(error):
            raise
        pytest.skip("no CUDA toolkit here")
