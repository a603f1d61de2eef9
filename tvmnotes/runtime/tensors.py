"""TVM tensors in the CPU's memory, with TVM's runtime library alone."""

import ctypes
import functools
from importlib import import_module

import numpy as np

from ..base.spec import dtype_of
from ..base.workarounds import import_tvm_ffi

tvm_ffi = import_tvm_ffi()


_CPU = tvm_ffi.device("cpu", 0)
_shape_of_tvm = functools.lru_cache(1024)(tvm_ffi.Shape)
_dtype_of_tvm = functools.cache(tvm_ffi.dtype)


@functools.cache  # for speed, as other caches here: a call of a small network is as short as these lookups
def function(name: str):
    """Return a function of TVM's runtime."""
    return tvm_ffi.get_global_func(f"runtime.{name}")


def empty(shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """Allocate a tensor, uninitialized."""
    return function("TVMTensorAllocWithScope")(_shape_of_tvm(tuple(shape)), _dtype_of_tvm(dtype), _CPU, None)


def zeros(shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """Make a tensor of zeros."""
    tensor = empty(shape, dtype)
    ctypes.memset(tensor.data_ptr(), 0, tensor.numel() * tensor.dtype.itemsize)
    return tensor


def copied(array: np.ndarray) -> tvm_ffi.Tensor:
    """Copy an array to a tensor."""
    array = np.asarray(array, order="C")
    tensor = empty(array.shape, dtype_of(array))
    _copy("From", tensor, array)
    return tensor


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    array = np.empty(tensor.shape, _dtype_of_numpy(str(tensor.dtype)))
    _copy("To", tensor, array)
    return array


@functools.cache
def _dtype_of_numpy(name: str) -> np.dtype:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and the like, which NumPy itself lacks
        return np.dtype(getattr(import_module("ml_dtypes"), name))


def _copy(way: str, tensor: tvm_ffi.Tensor, array: np.ndarray) -> None:
    function(f"TVMTensorCopy{way}Bytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
