"""Weights that params.bin has in int8, where the kernels of a quantized network read more bytes.

These read int16, float32, or int16 that Winograd's method has made of 3x3 weights, up to 8 bytes for each. In
graph.json, "narrow" describes the arrays that are saved in int8, by name: "dtype", that of what kernels read,
and "transform", a matrix by which 3x3 weights are multiplied from both sides, if any. `compiler/prepare.py`
chooses them, and none that would not come back bit by bit. `Compiled.save` and `load` convert them here; a
program without this package has the library do it.
"""

from collections.abc import Callable, Mapping

import numpy as np

from .tensors import copied


def narrowed(array: np.ndarray, how: dict) -> np.ndarray:
    """Return an array, as kernels read it, in int8, as it is saved."""
    if "transform" in how:
        array = _transformed(array, np.linalg.pinv(how["transform"]))
    with np.errstate(invalid="ignore"):  # of an array that has no int8
        return np.rint(array).clip(-128, 127).astype("int8")


def widened(array: np.ndarray, how: dict) -> np.ndarray:
    """Return an array, as it is saved, as kernels read it."""
    if "transform" in how:
        array = _transformed(array, np.array(how["transform"]))
    return array.astype(how["dtype"])


def for_file(arrays: Mapping, graph: dict) -> dict:
    """Return the tensors of params.bin, given those that kernels read, by name, and graph.json."""
    return _converted(arrays, graph, narrowed)


def from_file(arrays: Mapping, graph: dict) -> dict:
    """Return the tensors that kernels read, given those of params.bin."""
    return _converted(arrays, graph, widened)


def _converted(arrays: Mapping, graph: dict, convert: Callable) -> dict:
    described = [each.get("narrow", {}) for each in (graph, *graph.get("variants", ()))]
    hows = {name: how for each in described for name, how in each.items()}
    return {
        name: copied(convert(np.from_dlpack(array), hows[name])) if name in hows else array
        for name, array in arrays.items()
    }


def _transformed(array: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Multiply the axes 1 and 2 of an array by a matrix; exact of whole numbers while sums are below 2^24."""
    outs, side, _, *inner = array.shape
    both = np.kron(matrix, matrix).astype("float32")
    product = both @ array.reshape(outs, side * side, -1).astype("float32")
    return product.reshape(outs, len(matrix), len(matrix), *inner)
