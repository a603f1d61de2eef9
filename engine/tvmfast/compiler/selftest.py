"""A small network, built with the default records and run, for `python -m tvmfast doctor`."""

import numpy as np
from tvm import relax

from ..core import errors
from .build import build

_SHAPES = {"x": (1, 16, 16, 16), "w": (32, 16, 3, 3), "v": (32, 10)}


def problem() -> str | None:
    """Say why `tn.build` does not compile and run a convolution and a matrix product, or None."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape, dtype="float32") for name, shape in _SHAPES.items()}
    builder = relax.BlockBuilder()
    x, w, v = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in _SHAPES.items())
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, w, padding=1)))
            y = builder.emit(relax.op.mean(y, axis=[2, 3]))
            y = builder.emit_output(relax.op.matmul(y, v))
        builder.emit_func_output(y)
    given = arrays.pop("x")
    try:
        result = build(builder.get(), arrays)(given)
    except Exception as error:  # whatever it is, the user must be told
        failed = f"{type(error).__name__}: {errors.lines(error)[-1]}"
    else:
        exact = _reference(given, **arrays)
        difference = np.abs(result - exact).max() / np.abs(exact).max()
        failed = "" if difference < 1e-4 else f"a difference of {difference:.0e}"
    if failed:
        return f"tn.build does not compile and run a convolution and a matrix product rightly ({failed})"
    return None


def _reference(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    convolved = np.einsum("nihwkl,oikl->nohw", windows, w, optimize=True)
    return np.maximum(convolved, 0).mean((2, 3)) @ v
