"""TVM tensors in the CPU's memory, with TVM's runtime library alone."""

import ctypes
import functools
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.compat import import_tvm_ffi
from ..core.dims import check_shape
from ..core.specs import TensorSpec, dtype_of, require_dense

if TYPE_CHECKING:
    import tvm_ffi
else:
    tvm_ffi = import_tvm_ffi()

ALIGNMENT = 64  # bytes: what compiled kernels expect of a buffer's address
_CPU = tvm_ffi.device("cpu", 0)
_shape_of_tvm = functools.lru_cache(1024)(tvm_ffi.Shape)
_dtype_of_tvm = functools.cache(tvm_ffi.dtype)
_element = tvm_ffi.get_global_func("ffi.ArrayGetItem")


@functools.cache  # for speed, as other caches here: a call of a small network is as short as these lookups
def function(name: str) -> Any:
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


def outputs_in(result: Any, graph: dict) -> list[tvm_ffi.Tensor]:
    """Return the outputs in what the `main` of a graph.json returned."""
    if not graph["tuple"]:
        return [result]
    return [_element(result, n) for n in range(len(graph["outputs"]))]  # for speed: its iterator is slow


def to_numpy(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    try:
        return np.from_dlpack(tensor).copy()  # for speed
    except (RuntimeError, BufferError):  # on a GPU, or of a dtype that NumPy's DLPack lacks
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


def input_tensor(value: Any, spec: TensorSpec, known: dict) -> tvm_ffi.Tensor:
    """Return `value` as a TVM tensor on the CPU, without a copy if its memory is contiguous and aligned.

    `known` is that of `dims.check_shape`.
    """
    fits = type(value) is np.ndarray and value.shape == spec.shape and dtype_of(value) == spec.dtype
    if not fits:  # for speed: most do
        _check(value, spec, known)
    if 0 in value.shape:  # its strides may be anything, and kernels check them
        return empty(tuple(value.shape), spec.dtype)
    if isinstance(value, tvm_ffi.Tensor):
        return contiguous(value)
    if isinstance(value, np.ndarray):
        usable = value.flags.carray
        usable &= value.dtype.kind in "iuf"  # NumPy's DLPack has no bfloat16, and NumPy 1's no bool
        return _aligned(value, spec.dtype) if usable else copied(value)
    return _aligned(value.detach().cpu().resolve_neg().contiguous(), spec.dtype)  # a torch tensor


def _check(value: Any, spec: TensorSpec, known: dict) -> None:
    """Raise what a call does if an input does not fit its spec."""
    torch = sys.modules.get("torch")
    if not isinstance(value, np.ndarray | tvm_ffi.Tensor) and not (torch and isinstance(value, torch.Tensor)):
        raise TypeError(
            f"input {spec.name!r}: expected a NumPy array, torch tensor or TVM tensor; "
            f"got {type(value).__name__}"
        )
    require_dense(value, f"input {spec.name!r}")
    shape, dtype = tuple(value.shape), dtype_of(value)
    check_shape(spec.name, shape, spec.shape, known)
    if dtype != spec.dtype:
        raise ValueError(
            f"input {spec.name!r}: expected the dtype {spec.dtype}, got {dtype}; convert it first"
        )


def _aligned(value: Any, dtype: str) -> tvm_ffi.Tensor:
    """Return a contiguous array as a tensor, or a copy if its address is none that kernels expect."""
    tensor = tvm_ffi.from_dlpack(value)
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    result = empty(value.shape, dtype)  # the tensor would make a tuple of its shape
    function("TVMTensorCopyFromTo")(tensor, result)
    return result


def contiguous(tensor: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
    """Return `tensor`, or a copy unless it is contiguous, aligned, and in the CPU's memory."""
    on_cpu = tensor.device == tvm_ffi.device("cpu", tensor.device.index)
    if on_cpu and tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return copied(np.from_dlpack(tensor) if on_cpu else to_numpy(tensor))
