"""What a network needs of an NVIDIA GPU: whether it runs there, and its inputs in that memory."""

import re
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..core.specs import TensorSpec, dtype_of
from .tensors import input_tensor

WITHOUT_GPU = "sm_80"  # the arch of "cuda" on a machine without a GPU


def cannot_run(target: tvm.target.Target) -> str | None:
    """Return why this machine cannot run code for a target of kind "cuda"; None if it can."""
    device, arch = tvm.cuda(), str(target.attrs["arch"])
    if not device.exist:
        return f"it is built for CUDA ({arch}), and TVM finds no CUDA device on this machine"
    here = arch_of(device)
    same = version(arch) // 10 == version(here) // 10 and version(arch) <= version(here)
    return None if same else f"it is built for {arch}, this machine's GPU ({device.device_name}) is {here}"


def arch_of(device: tvm.runtime.Device) -> str:
    """Return the architecture of a GPU, as in "sm_90"; `WITHOUT_GPU` if there is none."""
    return f"sm_{device.compute_version.replace('.', '')}" if device.exist else WITHOUT_GPU


def version(arch: str) -> int:
    """Return the number in the name of an architecture: 90 for "sm_90a"."""
    return int(re.sub(r"\D", "", arch))


def on_device(value: Any, spec: TensorSpec, device: tvm.runtime.Device | None) -> tvm_ffi.Tensor:
    """Return an input, checked, in a GPU's memory, without a copy if it is there; None: in the CPU's."""
    on_gpu = not isinstance(value, np.ndarray) and str(getattr(value, "device", "")).startswith("cuda")
    fits = on_gpu and (tuple(value.shape), dtype_of(value)) == (spec.shape, spec.dtype)
    if fits and value.is_contiguous():
        return value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value.detach())
    checked = input_tensor(value, spec, {})
    return checked if device is None else copied(checked, device)


def copied(tensor: tvm_ffi.Tensor, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """Return a copy of a tensor in the memory of a device."""
    return tvm.runtime.from_dlpack(tensor).copyto(device)
