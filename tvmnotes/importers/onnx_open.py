"""Open sizes that an ONNX file compares with numbers, which a few imports at other sizes do not show."""

import math

import numpy as np

from ..base.sizes import Size
from ..base.spec import TensorSpec

_FEW = 8  # floats of a comparison that are of sizes, and not of positions
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip")


def compared(specs: list[TensorSpec], several: dict[tuple, dict[str, tuple]]) -> list[dict[str, int]]:
    """Return open sizes with the numbers at which the result of a comparison may be another one.

    Args:
        specs: The inputs, with open sizes.
        several: By the inputs of fixed sizes of an import: the operands of its comparisons of constants, by
            the name of the result. The first import is the one that the others are compared with.
    """
    found = set()
    samples = [(_sizes(specs, fixed), operands) for fixed, operands in several.items()]
    first, before = samples[0]
    for sizes, after in samples[1:]:
        changed = [name for name, value in sizes.items() if value != first[name]]
        for result in before.keys() & after.keys() if len(changed) == 1 else ():
            name = changed[0]
            here, there = (_difference(*each[result]) for each in (before, after))
            if here.shape != there.shape or (here.dtype == "float64" and here.size > _FEW):
                continue
            for start, end in zip(here.reshape(-1).tolist(), there.reshape(-1).tolist(), strict=True):
                if start != end and abs(start) < math.inf and abs(end) < math.inf:
                    number = int(first[name] - start * (sizes[name] - first[name]) // (end - start))
                    found |= {(name, number), (name, number + 1)}
    bounds = {size.name: size for spec in specs for size in spec.shape if isinstance(size, Size)}
    return [{name: number} for name, number in sorted(found) if bounds[name].takes(number)]


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = "float64" if "f" in (a.dtype.kind, b.dtype.kind) else "int64"
    return np.subtract(*np.broadcast_arrays(a, b), dtype=dtype, casting="unsafe")


def _sizes(specs: list[TensorSpec], fixed: tuple[TensorSpec, ...]) -> dict[str, int]:
    pairs = [
        pair
        for spec, own in zip(specs, fixed, strict=True)
        for pair in zip(spec.shape, own.shape, strict=True)
    ]
    return {size.name: number for size, number in pairs if isinstance(size, Size)}
