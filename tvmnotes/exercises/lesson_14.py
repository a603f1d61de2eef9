"""Exercises of lesson 14: scales per channel, where to clip, a zero point in a sum of bytes."""

import numpy as np

from .exercise import agree, array, exercise, require


def _weights() -> np.ndarray:
    """Convolution weights whose channels have very different sizes; one of them is all zeros."""
    rng = np.random.default_rng(14)
    weight = rng.standard_normal((12, 5, 3, 3)) * 10.0 ** rng.uniform(-4, 2, (12, 1, 1, 1))
    weight[4] = 0
    return weight.astype("float32")


@exercise(
    "14.1",
    "The largest magnitude of each channel becomes 127; with `keepdims=True` the scales broadcast.",
    "A channel of zeros has the scale 0, and 0 / 0 is no byte. Any other scale will do there.",
    minutes=15,
    difficulty=1,
)
def per_channel(answer):
    """A scale for each channel, by hand."""
    weight = _weights()
    with np.errstate(all="ignore"):
        q, scale = map(array, answer(weight))
    require(q.dtype == np.int8, "the dtype of the bytes", "int8", q.dtype, "Round, clip, then use astype.")
    require(
        q.shape == weight.shape and scale.size == len(weight),
        "the shapes",
        f"{weight.shape} and one scale for each of the {len(weight)} channels",
        f"{q.shape} and {scale.shape}",
        "Reduce over all axes but the first.",
    )
    require(
        np.isfinite(scale).all() and (scale > 0).all(),
        "the scales",
        "finite and above 0",
        scale.ravel().min(),
        "Mind the channel of zeros.",
    )
    require(
        q.min() >= -127,
        "the smallest byte",
        "-127 or more",
        q.min(),
        "The range is symmetric: -128 has no counterpart.",
    )
    scale = scale.astype("float64").reshape(-1, 1, 1, 1)
    error = np.abs(q * scale - weight).reshape(len(weight), -1).max(1) / scale.ravel()
    require(
        error.max() <= 0.5 + 1e-3,
        "the largest error of a weight",
        "half a scale or less",
        f"{error.max():.2f} scales",
        "Round to the nearest byte, and clip nothing.",
    )
    least = np.abs(weight).reshape(len(weight), -1).max(1) / 127
    require(
        (scale.ravel() <= least * 1.001)[least > 0].all(),
        "the scales",
        "as small as the range of their channel allows",
        "a larger one",
        "Use the channel's own largest magnitude, and all 127 steps.",
    )


def _noise(values: np.ndarray, limit: float, bits: int) -> float:
    """Return the mean squared error of symmetric quantization with a range from -limit to limit."""
    steps = 2 ** (bits - 1) - 1
    scale = limit / steps
    back = np.clip(np.rint(values / scale), -steps, steps) * scale
    return float(np.mean((back - values) ** 2))


@exercise(
    "14.2",
    "Try many limits, from a small share of the largest magnitude to all of it; compute the error of each.",
    "np.geomspace(largest / 100, largest, 400) is fine enough. Clipped values count in the error, too.",
    minutes=25,
    difficulty=2,
)
def where_to_clip(answer):
    """Where to clip."""
    rng = np.random.default_rng(15)
    bell = rng.standard_normal(20_000)
    cases = {
        "a bell curve, 8 bits": (bell, 8),
        "a bell curve, 4 bits": (bell, 4),
        "numbers of one size, 4 bits": (rng.choice([-1.0, 1.0], 1000) * rng.uniform(0.9, 1, 1000), 4),
        "a bell curve with an outlier of 50, 4 bits": (np.append(bell, 50.0), 4),
        "a bell curve with an outlier of 50, 8 bits": (np.append(bell, 50.0), 8),
    }
    for name, (values, bits) in cases.items():
        limit = float(answer(values, bits))
        largest = np.abs(values).max()
        require(
            0 < limit <= largest * 1.001,
            f"the limit for {name}",
            f"above 0, and at most the largest magnitude, {largest:.3g}",
            f"{limit:.3g}",
            "A range beyond the numbers wastes steps.",
        )
        best = min(_noise(values, each, bits) for each in np.geomspace(largest / 100, largest, 800))
        noise = _noise(values, limit, bits)
        require(
            noise <= 1.05 * best,
            f"the mean squared error for {name}",
            f"within 5 % of the best, {best:.2e}",
            f"{noise:.2e}",
            "Too small a limit clips too much, too large a one rounds too coarsely.",
        )


@exercise(
    "14.3",
    "Write the sum of (x - zero) * w as a sum of x * w and a second sum. Which of the two needs x?",
    "sum(x * w) - zero * sum(w): the second is a constant for each output channel. Beyond the border, "
    "x - zero is to be 0.",
    minutes=20,
    difficulty=2,
)
def zero_point(answer):
    """A zero point in a sum of bytes."""
    rng = np.random.default_rng(16)
    for zero in (0, 3, 128, 255):
        image = rng.integers(0, 256, (6, 8, 9)).astype("int64")
        weight = rng.integers(-127, 128, (4, 6, 3, 3)).astype("int8")
        correction, border = answer(weight, zero)
        require(
            np.ndim(border) == 0 and 0 <= border <= 255,
            "the byte around the picture",
            "one number from 0 to 255",
            border,
            "Return (correction, border).",
        )
        correction = np.broadcast_to(array(correction).astype("int64").ravel(), (4,))
        sums = _convolve(image, weight, int(border)) + correction[:, None, None]
        exact = _convolve(image - zero, weight, 0)
        require(
            np.array_equal(sums[:, 1:-1, 1:-1], exact[:, 1:-1, 1:-1]),
            f"the sums inside of the picture, with the zero point {zero}",
            "those of (byte - zero point) times weight",
            "others",
            "The correction depends on the zero point and on the weights of its output channel.",
        )
        agree(
            sums,
            exact,
            f"the sums at the border, with the zero point {zero}",
            "Which byte stands for 0.0?",
            within=0,
        )


def _convolve(image: np.ndarray, weight: np.ndarray, border: int) -> np.ndarray:
    """Convolve (I, H, W) with (O, I, 3, 3), padded by one pixel of `border`, in whole numbers."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=border)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("ihwyx,oiyx->ohw", windows, weight.astype("int64"))
