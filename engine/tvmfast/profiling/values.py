"""A value of a network beside a reference's: its error, and how much of it rounding explains."""

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..core import rounding
from ..core.specs import dtype_of


@dataclass(frozen=True)
class Value:
    """A value of the network beside the reference's.

    Attributes:
        name: Its variable in Relax; of a kernel, in the module that the build schedules.
        operator: What makes it: a kernel, or the operators since the reference's last value.
        reference: Its name in the reference.
        shape: Its shape.
        error: The largest error as a share of the largest number of the reference.
        tolerance: What rounding explains of that.
        cosine: The cosine of the angle between both, as vectors; 1 where all agree.
        nans: How many elements are NaN.
        infinities: How many are infinite.
        rule: The kernel's schedule: its rule and config.
        fault: What is wrong if the value is beyond the tolerance, else an empty text.
    """

    name: str
    operator: str
    reference: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    cosine: float
    nans: int
    infinities: int
    rule: str = ""
    fault: str = ""


def compare(got, moved, wanted, terms: float, eps: float, rounded: bool) -> Value:
    """Compare an array with a reference's; `moved` is what it became when its inputs moved."""
    shape, tolerance = got.shape, 0.0
    if shape != wanted.shape:
        fault = f"its shape is {shape}, the reference's {wanted.shape}"
        return Value("", "", "", shape, math.inf, 0.0, 0.0, *_counts(got), fault=fault)
    nans, infinities = _counts(got)
    floats = got.dtype.kind == "f" or got.dtype == ml_dtypes.bfloat16
    with np.errstate(all="ignore"):
        fits = wanted.astype("float32") if floats else wanted  # beyond float32, an infinity is right
        ours, theirs, other = (np.asarray(each, "float64").ravel() for each in (got, wanted, moved))
        special = ~np.isfinite(np.asarray(fits, "float64").ravel())
        theirs = np.where(special, np.asarray(fits, "float64").ravel(), theirs)
        unlike = (special | ~np.isfinite(ours)) & ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        if not floats:  # what a small move of the inputs turns may be either
            unlike = (ours != theirs) & (ours == other)
        good = np.isfinite(ours) & ~special
        ours, theirs, other = ours[good], theirs[good], other[good]
        size = float(np.abs(theirs).max(initial=0)) or 1.0
        error = float(np.abs(ours - theirs).max(initial=0)) / size
        if floats:
            change = np.abs(other - ours)
            condition = float(change[np.isfinite(change)].max(initial=0)) / math.sqrt(eps) / size
            factor = rounding.share(terms, eps, float(np.finfo("float32").eps)) * (2 if rounded else 1)
            tolerance = factor * (1 + condition)
        norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    fault = ""
    if unlike.any():
        what = "NaN or infinite where the reference is not, or the reverse" if floats else "of another value"
        fault = f"{unlike.sum()} of {unlike.size} elements are {what}"
    elif floats and error > tolerance:
        fault = f"its error is {error:.1e}, of which rounding explains {tolerance:.1e}"
    cosine = float(ours @ theirs) / norms if norms else float(np.array_equal(ours, theirs))
    return Value("", "", "", shape, error, tolerance, cosine, nans, infinities, fault=fault)


def _counts(array: np.ndarray) -> tuple[int, int]:
    if array.dtype.kind in "biu":
        return 0, 0
    return int(np.isnan(array).sum()), int(np.isinf(array).sum())


def shifted(array: np.ndarray) -> np.ndarray:
    """Return numbers that have moved at random by the root of their precision, as a share of themselves."""
    if array.dtype.kind in "biu":
        return array
    step = math.sqrt(eps_of(dtype_of(array)))
    signs = np.random.default_rng(0).choice((-step, step), array.shape)
    with np.errstate(all="ignore"):
        return (array.astype("float64") * (1 + signs)).astype(array.dtype)


def cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return an array in one of TVM's dtypes; what is too large becomes an infinity."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(np.dtype(getattr(ml_dtypes, str(dtype), str(dtype)))))


def eps_of(dtype: str) -> float:
    """Return the distance from 1 to the next number; 0 for integers."""
    return float(ml_dtypes.finfo(dtype).eps) if "float" in dtype else 0.0
