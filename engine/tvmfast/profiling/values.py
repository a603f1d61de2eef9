"""A value of a network beside a reference's: its error, and how much of it rounding explains."""

import math
from dataclasses import dataclass, replace
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

    name: str = ""
    operator: str = ""
    reference: str = ""
    shape: tuple[int, ...] = ()
    error: float = math.inf
    tolerance: float = 0.0
    cosine: float = 0.0
    nans: int = 0
    infinities: int = 0
    rule: str = ""
    fault: str = ""


def compare(
    got: np.ndarray, moved: np.ndarray, wanted: np.ndarray, terms: float, eps: float, rounded: bool
) -> Value:
    """Compare an array with a reference's; `moved` is what it became when its inputs moved.

    `terms` and `eps` are those of `rounding.share`; `rounded` says that the reference is rounded too.
    """
    floats = got.dtype.kind == "f" or got.dtype == ml_dtypes.bfloat16
    with np.errstate(all="ignore"):
        ours, theirs, other = (np.asarray(each, "float64").ravel() for each in (got, wanted, moved))
        value = Value(shape=got.shape, nans=int(np.isnan(ours).sum()), infinities=int(np.isinf(ours).sum()))
        if got.shape != wanted.shape:
            return replace(value, fault=f"its shape is {got.shape}, the reference's {wanted.shape}")
        if floats:  # beyond float32, an infinity is right
            theirs = np.where(np.isfinite(theirs.astype("float32")), theirs, theirs.astype("float32"))
        finite = np.isfinite(ours) & np.isfinite(theirs)
        unlike = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
        # Of integers, what a small move of the inputs turns may be either.
        unlike &= ~finite if floats else ours == other
        ours, theirs, other = ours[finite], theirs[finite], other[finite]
        size = float(np.abs(theirs).max(initial=0)) or 1.0
        error, tolerance = float(np.abs(ours - theirs).max(initial=0)) / size, 0.0
        if floats:
            change = np.abs(other - ours)
            condition = float(change[np.isfinite(change)].max(initial=0)) / math.sqrt(eps) / size
            factor = rounding.share(terms, eps, float(np.finfo("float32").eps)) * (2 if rounded else 1)
            tolerance = factor * (1 + condition)
        norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    cosine = float(ours @ theirs) / norms if norms else float(np.array_equal(ours, theirs))
    fault = ""
    if unlike.any():
        what = "NaN or infinite where the reference is not, or the reverse" if floats else "of another value"
        fault = f"{unlike.sum()} of {unlike.size} elements are {what}"
    elif floats and error > tolerance:
        fault = f"its error is {error:.1e}, of which rounding explains {tolerance:.1e}"
    return replace(value, error=error, tolerance=tolerance, cosine=cosine, fault=fault)


def shifted(array: np.ndarray) -> np.ndarray:
    """Return numbers that have moved at random by the root of their precision, as a share of themselves."""
    if not (eps := eps_of(dtype_of(array))):
        return array
    signs = np.random.default_rng(0).choice((-1, 1), array.shape)
    with np.errstate(all="ignore"):
        return (array.astype("float64") * (1 + math.sqrt(eps) * signs)).astype(array.dtype)


def cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return an array in one of TVM's dtypes; what is too large becomes an infinity."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array.astype(np.dtype(getattr(ml_dtypes, str(dtype), str(dtype)))))


def eps_of(dtype: str) -> float:
    """Return the distance from 1 to the next number; 0 for integers."""
    return float(ml_dtypes.finfo(dtype).eps) if "float" in dtype else 0.0
