"""What `tvm.contrib.cblas` calls, by NumPy's BLAS, where TVM was built without one, as its wheels are."""

import numpy as np
import tvm
import tvm_ffi

_NAMES = tuple(f"tvm.contrib.cblas.{name}" for name in ("matmul", "batch_matmul"))
_registered: list[str] = []


def register() -> None:
    """Register the functions that TVM does not have."""
    for name in _NAMES:
        if tvm.get_global_func(name, allow_missing=True) is None:
            tvm.register_global_func(name, _matmul)
            _registered.append(name)


def unregister() -> None:
    """Remove what `register` has registered."""
    while _registered:
        tvm_ffi.remove_global_func(_registered.pop())


def _matmul(a, b, c, a_transposed, b_transposed) -> None:
    """Write the product of matrices, or of batches of these, into `c`."""
    a, b = a.numpy(), b.numpy()
    a, b = np.swapaxes(a, -1, -2) if a_transposed else a, np.swapaxes(b, -1, -2) if b_transposed else b
    tvm.runtime.tensor(np.matmul(a, b)).copyto(c)
