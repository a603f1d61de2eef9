"""Converters of what prepares images (see call.py), one of (height, width, channels) or a batch of them.

Source: MXNet 1.9.1, src/operator/image.
"""

import numpy as np
from tvm.relax import op

from .call import Call, converts


@converts("_image_to_tensor")
def _to_tensor(c: Call):
    """Return numbers from 0 to 1, channels first."""
    last = c.rank - 1
    x = op.divide(c.cast(c.x, "float32"), c.const(255, "float32"))
    return op.permute_dims(x, [*range(last - 2), last, last - 2, last - 1])


@converts("_image_normalize")
def _normalize(c: Call):
    """Subtract a mean from the channels, which come first, and divide by a deviation."""
    mean, deviation = (np.reshape(c.get(name, n), (-1, 1, 1)) for n, name in enumerate(("mean", "std")))
    return (c.x - c.const(mean, c.dtype)) / c.const(deviation, c.dtype)


@converts("_image_crop")
def _crop(c: Call):
    last = c.rank - 1
    first = [int(c.need(name)) for name in ("y", "x")]
    sizes = [int(c.need(name)) for name in ("height", "width")]
    ends = [a + n for a, n in zip(first, sizes, strict=True)]
    if any(end > c.shape[axis] for axis, end in zip((last - 2, last - 1), ends, strict=True)):
        raise ValueError(f"x, y, width and height reach outside the image of shape {c.shape}")
    return op.strided_slice(c.x, [last - 2, last - 1], first, ends)


converts("_image_flip_left_right")(lambda c: op.flip(c.x, c.rank - 2))
converts("_image_flip_top_bottom")(lambda c: op.flip(c.x, c.rank - 3))
