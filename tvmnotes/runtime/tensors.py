"""TVM tensors in the CPU's memory, with TVM's runtime library alone."""

import ctypes
from importlib import import_module

import numpy as np

from ..base.workarounds import import_tvm_ffi

tvm_ffi = import_tvm_ffi()


def function(name: str):
    """Return a function of TVM's runtime."""
    return tvm_ffi.get_global_func(f"runtime.{name}")


def empty(shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """Allocate a tensor, uninitialized."""
    shape, dtype = tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype)
    return function("TVMTensorAllocWithScope")(shape, dtype, tvm_ffi.device("cpu", 0), None)


def zeros(shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """Make a tensor of zeros."""
    tensor = empty(shape, dtype)
    ctypes.memset(tensor.data_ptr(), 0, tensor.numel() * tensor.dtype.itemsize)
    return tensor


def copied(array: np.ndarray) -> tvm_ffi.Tensor:
    """Copy an array to a tensor."""
    array = np.asarray(array, order="C")
    tensor = empty(array.shape, str(array.dtype))
    _copy("From", tensor, array)
    return tensor


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    name = str(tensor.dtype)
    try:
        dtype = np.dtype(name)
    except TypeError:  # bfloat16 and the like, which NumPy itself lacks
        dtype = getattr(import_module("ml_dtypes"), name)
    array = np.empty(tensor.shape, dtype)
    _copy("To", tensor, array)
    return array


def _copy(way: str, tensor: tvm_ffi.Tensor, array: np.ndarray) -> None:
    function(f"TVMTensorCopy{way}Bytes")(tensor, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
