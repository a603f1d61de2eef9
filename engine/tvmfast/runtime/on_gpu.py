"""What a network needs of an NVIDIA GPU: whether it runs there, and its inputs in that memory."""

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..core.specs import TensorSpec, dtype_of
from .tensors import ALIGNMENT, function, input_tensor

WITHOUT_GPU = "sm_80"  # the arch of "cuda" on a machine without a GPU
_CUDA = 13  # the version of CUDA that this TVM's runtime is for


def cannot_run(target: tvm.target.Target) -> str | None:
    """Return why this machine cannot run code for a target of kind "cuda"; None if it can."""
    device, arch = tvm.cuda(), str(target.attrs["arch"])
    if not device.exist:
        return f"it is built for CUDA ({arch}), and TVM finds no CUDA device on this machine{old_driver()}"
    here = arch_of(device)
    same = version(arch) // 10 == version(here) // 10 and version(arch) <= version(here)
    return None if same else f"it is built for {arch}, this machine's GPU ({device.device_name}) is {here}"


def arch_of(device: tvm.runtime.Device) -> str:
    """Return the architecture of a GPU, as in "sm_90"; `WITHOUT_GPU` if there is none."""
    return f"sm_{device.compute_version.replace('.', '')}" if device.exist else WITHOUT_GPU


def version(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for "sm_90a"."""
    return int(re.sub(r"\D", "", arch))


def old_driver() -> str:
    """Return that the NVIDIA driver is too old for this TVM, and what to do, if it is; else an empty text."""
    version = _driver()
    if version is None or version >= 1000 * _CUDA:
        return ""
    here = f"{version // 1000}.{version % 1000 // 10}"
    return (
        f": its NVIDIA driver is for CUDA {here}, and this TVM needs one for CUDA {_CUDA}.0 or later. "
        "Update the driver, to release 580 or later"
    )


def _driver() -> int | None:
    """Return the version of CUDA that the driver is for, as in 13020 for 13.2; None if there is no driver."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else number.value


def on_device(value: Any, spec: TensorSpec, device: tvm.runtime.Device | None) -> tvm_ffi.Tensor:
    """Return an input, checked, in a GPU's memory, without a copy if it is there; None: in the CPU's."""
    on_gpu = not isinstance(value, np.ndarray) and str(getattr(value, "device", "")) == str(device or "none")
    fits = on_gpu and (tuple(value.shape), dtype_of(value)) == (spec.shape, spec.dtype)
    if fits and value.is_contiguous():
        is_tvms = isinstance(value, tvm_ffi.Tensor)
        tensor = value if is_tvms else tvm_ffi.from_dlpack(value.detach().resolve_neg())
        # Kernels copy 16 bytes at once, and fail at an address in between.
        return tensor if tensor.data_ptr() % ALIGNMENT == 0 else copied(tensor, device)
    checked = input_tensor(value, spec, {})
    return checked if device is None else copied(checked, device)


def copied(tensor: tvm_ffi.Tensor, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """Return a copy of a tensor in the memory of a device."""
    result = tvm.runtime.empty(tuple(tensor.shape), str(tensor.dtype), device)
    function("TVMTensorCopyFromTo")(tensor, result)
    return result


@contextlib.contextmanager
def memory_errors(device: Any, needed: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Say how much memory a network takes where that of the GPU is full.

    Args:
        device: The GPU.
        needed: Returns the bytes of the network's parameters and those of its intermediate values.

    Raises:
        RuntimeError: The GPU is out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        sizes = *needed(), device.available_global_memory or 0, device.total_global_memory or 0
        params, others, free, total = (f"{size / 1e6:,.0f} MB" for size in sizes)
        raise RuntimeError(
            f"the GPU is out of memory: the network takes {params} for parameters and {others} for "
            f"intermediate values, beside its inputs and outputs, and {free} of {total} are free. End other "
            "programs on the GPU, or build for a smaller batch."
        ) from None
