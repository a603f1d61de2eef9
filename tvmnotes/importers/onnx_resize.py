"""The converter of ONNX's Resize with all its attributes, for onnx_operators.py.

TVM's own is kept where it is right, and fast: whole factors of an image, and its bilinear resizing to whole sizes. All
else is separable: along one axis after the other, each number is a sum of a few weighted neighbours, and which ones
follows from sizes alone, so that they are computed here.
Source: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

import numpy as np
from tvm import relax
from tvm.relax import op as R

from .onnx_node import Node, converts
from .resampling import combined, matrix


@converts("Resize")
def _resize(n: Node):
    """It resamples any axes of a float tensor, and, by its nearest numbers, of any tensor."""
    roi, scales, sizes = ([] if n.known(i) is None else n.known(i).tolist() for i in (1, 2, 3))
    axes = [axis % len(n.shape) for axis in n.get("axes", range(len(n.shape)))]
    before, mode, policy = [n.shape[axis] for axis in axes], n.text("mode", "nearest"), n.text(*_POLICY)
    if scales:
        sizes = [int(np.floor(size * scale)) for size, scale in zip(before, scales, strict=True)]
    else:
        scales = [after / size for size, after in zip(before, sizes, strict=True)]
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            sizes = [int(np.floor(size * scale + 0.5)) for size, scale in zip(before, scales, strict=True)]
    floats = n.dtype.startswith("float")
    if mode != "nearest" and not floats:
        raise NotImplementedError(f"Resize of {n.dtype} with mode {mode!r}: only floats are interpolated")
    if "axes" not in n.attributes and floats and _is_right(n, scales, sizes, mode):
        return n.usual()
    x = n.x
    for i, (axis, scale, size) in enumerate(zip(axes, scales, sizes, strict=True)):
        if n.text(*_PLACES) == "tf_crop_and_resize":
            x = _resampled(n, x, axis, scale, size, mode, (roi[i], roi[i + len(axes)]))
        elif (scale, size) != (1, n.shape[axis]):
            x = _resampled(n, x, axis, scale, size, mode)
    return x


_POLICY, _PLACES = ("keep_aspect_ratio_policy", "stretch"), ("coordinate_transformation_mode", "half_pixel")


def _is_right(n: Node, scales, sizes, mode: str) -> bool:
    """Return whether TVM's Resize does what ONNX says: images alone, by whole factors, or linearly to whole sizes."""
    if len(n.shape) != 4 or scales[:2] != [1, 1] or n.get("antialias", 0) or min(sizes) < 2:
        return False
    if n.text(*_PLACES) == "tf_crop_and_resize":
        return False
    whole = all(
        abs(scale * size - result) < 1e-3 for scale, size, result in zip(scales, n.shape, sizes, strict=True)
    )
    return whole and (
        mode == "linear" or (mode == "nearest" and all(scale == int(scale) for scale in scales))
    )


def _resampled(n: Node, x, axis: int, scale: float, size: int, mode: str, crop=None) -> relax.Expr:
    before = n.shape[axis]
    places = _places(n.text(*_PLACES), before, scale, size, crop)
    if mode == "nearest":
        rounded = _ROUNDED[n.text("nearest_mode", "round_prefer_floor")](places)
        x = R.take(x, n.const(np.clip(rounded, 0, before - 1).astype("int64")), axis)
    else:
        a, inside = n.get("cubic_coeff_a", -0.75), bool(n.get("exclude_outside", 0))
        narrow = min(scale, 1.0) if n.get("antialias", 0) else 1.0
        x = combined(n.builder, x, axis, matrix(places, before, mode, narrow, a, inside))
    if crop is not None:
        outside = ((places < 0) | (places > before - 1)).reshape(
            [-1 if i == axis else 1 for i in range(len(n.shape))]
        )
        x = R.where(n.const(outside), n.const(n.get("extrapolation_value", 0.0)), x)
    return n.emit(x)


def _places(mode: str, before: int, scale: float, size: int, crop) -> np.ndarray:
    """Return where each number of the result lies among those before.

    That is float32, as ONNX Runtime has it: 6.5 / 1.3 - 0.5 then is a tie, which `nearest_mode` decides.
    """
    numbers, width, scale = np.arange(size, dtype="float32"), scale * before, np.float32(scale)
    places = (numbers + np.float32(0.5)) / scale - np.float32(0.5)  # half_pixel
    if mode == "asymmetric":
        places = numbers / scale
    elif mode == "align_corners":
        places = numbers * (before - 1) / (width - 1) if width != 1 else 0 * numbers
    elif mode == "pytorch_half_pixel" and width == 1:
        places = 0 * numbers - 0.5
    elif mode == "half_pixel_symmetric":
        places += before / 2 * (1 - size / width)
    elif mode == "tf_crop_and_resize":
        begin, length = crop[0] * (before - 1), (crop[1] - crop[0]) * (before - 1)
        places = begin + (numbers * length / (width - 1) if width != 1 else length / 2 + 0 * numbers)
    return places


_ROUNDED = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
