"""Linear and cubic resizes of images, which read the pixels that a framework reads.

A pixel also counts where its weight is 0, as NaN and infinities times 0 are NaN. TVM's kernels read others.
"""

from collections.abc import Callable, Iterable, Sequence

from tvm import te, tirx

MODES = ("align_corners", "half_pixel", "pytorch_half_pixel", "asymmetric")
# Which framework's pixels a linear resize reads. Relax has no attribute for that, and TVM ignores the
# rounding of one that is linear, so this names the framework.
PYTORCH, ONNX_RUNTIME, MXNET = "round", "round_prefer_floor", "floor"


def resized(x, axes: Sequence[int], after: Sequence, shape: Sequence, taps: Callable):
    """Return `x` of floats with two `axes` resized to `after`; `taps` returns pixels and their weights."""
    sizes = [
        (x.shape[axis].astype("int32"), size.astype("int32")) for axis, size in zip(axes, after, strict=True)
    ]

    def element(*at):
        rows, columns = (taps(at[axis], *each) for axis, each in zip(axes, sizes, strict=True))

        def pixel(y, column):
            index = dict(enumerate(at)) | {axes[0]: y, axes[1]: column}
            return x[tuple(index.values())].astype("float32")

        total = _sum((w, _sum((each, pixel(y, column)) for column, each in columns)) for y, w in rows)
        return total.astype(x.dtype)

    return te.compute(shape, element, name="resize")


def _sum(products: Iterable[tuple]):
    (weight, value), *others = products
    total = weight * value
    for weight, value in others:
        total = total + weight * value
    return total


def _position(at, before, after, mode: str, framework: str):
    """Return the position, among the pixels before, of one after, rounded as the framework does."""
    at, whole, zero = at.astype("float32"), before.astype("float32"), tirx.const(0, "float32")
    divides = framework == ONNX_RUNTIME
    if mode == "align_corners":
        spans = tirx.max(after - 1, 1).astype("float32")
        moved = at * (whole - 1.0) / spans if divides else (whole - 1.0) / spans * at
        return tirx.Select(after > 1, moved, zero)
    moved = at if mode == "asymmetric" else at + 0.5
    moved = moved / (after.astype("float32") / whole) if divides else whole / after.astype("float32") * moved
    if mode == "pytorch_half_pixel":
        return tirx.Select(after > 1, moved - 0.5, zero)
    return moved - 0.5 if mode == "half_pixel" else moved


def _past(position, first):
    """Return how far a position is past a pixel, at most 1; TVM would drop a factor that is known to be 0."""
    zero = tirx.sqrt(tirx.const(0, "float32"))
    return tirx.min(position - first.astype("float32") + zero, tirx.const(1, "float32"))


def linear(mode: str, framework: str) -> Callable:
    """Return the function of two pixels of an axis, and their weights."""

    def taps(at, before, after) -> list[tuple]:
        position, last = (
            tirx.max(_position(at, before, after, mode, framework), tirx.const(0, "float32")),
            before - 1,
        )
        first = tirx.min(position.astype("int32"), last)
        past, second = _past(position, first), tirx.min(first + 1, last)
        if framework == ONNX_RUNTIME:
            past = tirx.Select(first < last, past, tirx.const(0.5, "float32"))
        elif framework == PYTORCH:
            second = tirx.Select(before == after, first, second)
        return [(first, 1.0 - past), (second, past)]

    return taps


def cubic(mode: str, framework: str, a: float) -> Callable:
    """Return the function of four pixels of an axis, and their weights (Keys, 1981)."""

    def near(t):
        return ((a + 2) * t - (a + 3)) * t * t + 1.0

    def far(t):
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    def taps(at, before, after) -> list[tuple]:
        position, last = _position(at, before, after, mode, framework), before - 1
        first = tirx.min(te.floor(position).astype("int32"), last)
        past = _past(position, first)
        weights = far(past + 1.0), near(past), near(1.0 - past), far(2.0 - past)
        return [(tirx.max(tirx.min(first + n, last), 0), weight) for n, weight in enumerate(weights, -1)]

    return taps
