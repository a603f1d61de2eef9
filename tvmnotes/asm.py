"""The assembly of a kernel that TVM has compiled: multiply-adds, the innermost loop, PTX for a GPU."""

import re
from collections import Counter

from tvmfast.core.compat import cuda_headers

# The names on x86, with fused multiply-add and without, and on ARM.
_MULTIPLY_ADD = re.compile(r"\s+(v?fm(?:add|la)[\w.]*|v?mul[sp]s)\s")


def multiply_adds(kernel) -> dict[str, int]:
    """Count the multiply-adds in the assembly of a `tvm.compile` result, by instruction and register kind."""
    found: Counter = Counter()
    for line in _lines(kernel):
        if instruction := _MULTIPLY_ADD.match(line):
            register = re.sub(r"\d", "", line.split()[-1])
            found[f"{instruction[1]} {register}"] += 1
    return dict(found)


def inner_loop(kernel) -> str:
    """Return the assembly of the loop with the largest share of multiply-adds, from its label to the jump."""
    lines = _lines(kernel)
    labels, loops = {}, []
    for index, line in enumerate(lines):
        words = line.split()
        if label := re.match(r"(\.?\w+):", line):
            labels[label[1]] = index
        elif words and words[-1] in labels:
            loops.append(lines[labels[words[-1]] : index + 1])
    return "\n".join(max(loops, key=_share))


def ptx(kernel) -> str | None:
    """Return what CUDA's compiler NVRTC makes of a `tvm.compile` result for "cuda", as PTX of `sm_80`.

    No GPU is needed. The result is None where NVRTC is missing, or the headers that float16 takes.
    """
    source = kernel.mod.imports[0].inspect_source("cuda")
    text = source[source.index('extern "C" __global__') :]  # what is before it takes CUDA's headers
    try:
        if "half" in text:
            from tvm.support.nvcc import compile_cuda  # for speed: few cells need it

            with cuda_headers():
                compiled = compile_cuda(source, target_format="ptx", arch="sm_80", compiler="nvrtc")
            return bytes(compiled).decode().rstrip("\0")
        from cuda.bindings import nvrtc  # PyTorch brings it, on Linux alone

        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
        nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"])
        _, size = nvrtc.nvrtcGetPTXSize(program)
        compiled = b" " * size
        nvrtc.nvrtcGetPTX(program, compiled)
    except (ImportError, RuntimeError):
        return None
    return compiled.decode().rstrip("\0")


def _share(loop: list[str]) -> float:
    return sum(bool(_MULTIPLY_ADD.match(line)) for line in loop) / len(loop)


def _lines(kernel) -> list[str]:
    return kernel.mod.inspect_source("asm").splitlines()
