"""The converter of ONNX's Resize with all its attributes.

TVM's own is used where it is right, and fast: integer factors of an image, and bilinear resizing to integer
sizes. All else is separable: along one axis after another each element is a sum of a few weighted neighbours,
whose weights follow from sizes alone and are computed here.
Source: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ops.common import combined, matrix
from .node import Node, converts


@converts("Resize")
def _resize(n: Node):
    """Resample any axes of a float tensor, or, by nearest neighbours, of any tensor."""
    roi, scales, sizes = ([] if n.known(i) is None else n.known(i).tolist() for i in (1, 2, 3))
    axes = [axis % n.rank for axis in n.get("axes", range(n.rank))]
    before = [n.shape[axis] for axis in axes]
    mode, policy = n.text("mode", "nearest"), n.text(*_POLICY)
    if scales:
        # In float32, as in ONNX Runtime: 10 * 0.7 is then 7.
        sizes = (np.array(before, "float32") * np.array(scales, "float32")).astype(int).tolist()
    else:
        scales = [after / size for size, after in zip(before, sizes, strict=True)]
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            sizes = [int(np.floor(size * scale + 0.5)) for size, scale in zip(before, scales, strict=True)]
    floats = n.dtype.startswith("float")
    reason = f"Resize of {n.dtype} with mode {mode!r}: only floats are interpolated"
    n.refuse_if(mode != "nearest" and not floats, reason)
    if "axes" not in n.attributes and floats and _is_right(n, scales, sizes, mode):
        rounding = {"nearest_mode": b"floor"} if n.text(*_ROUNDING) == _OLD else {}
        return n.tvm_converter(n.x, n.inputs[1], None, n.const(np.array(sizes)), **rounding)
    x = n.x
    for i, (axis, scale, size) in enumerate(zip(axes, scales, sizes, strict=True)):
        if n.text(*_COORDINATES) == "tf_crop_and_resize":
            x = _resampled(n, x, axis, scale, size, mode, (roi[i], roi[i + len(axes)]))
        elif (scale, size) != (1, n.shape[axis]):
            x = _resampled(n, x, axis, scale, size, mode)
    return x


# Attributes and their defaults.
_POLICY = ("keep_aspect_ratio_policy", "stretch")
_COORDINATES = ("coordinate_transformation_mode", "half_pixel")
_ROUNDING = ("nearest_mode", "round_prefer_floor")
_OLD = "floor_or_ceil"  # of opset 10, as `graph.modernize` names it: ceil for fewer elements, else floor


def _is_right(n: Node, scales, sizes, mode: str) -> bool:
    """Return whether TVM's Resize matches ONNX: images, by integer factors, or linearly to integer sizes.

    TVM computes float64 in float32.
    """
    if n.rank != 4 or scales[:2] != [1, 1] or n.get("antialias", 0) or n.dtype == "float64":
        return False
    if n.text(*_COORDINATES) in ("tf_crop_and_resize", "half_pixel_symmetric", "tf_half_pixel_for_nn"):
        return False
    triples = zip(scales, n.shape, sizes, strict=True)
    if not all(abs(scale * size - result) < 1e-3 for scale, size, result in triples):
        return False
    return mode == "linear" or (mode == "nearest" and all(scale == int(scale) for scale in scales))


def _resampled(n: Node, x, axis: int, scale: float, size: int, mode: str, crop=None) -> relax.Expr:
    before = n.shape[axis]
    positions = _positions(n.text(*_COORDINATES), before, scale, size, crop)
    if mode == "nearest":
        rounding = n.text(*_ROUNDING)
        rounding = ("ceil" if scale < 1 else "floor") if rounding == _OLD else rounding
        rounded = _ROUNDED[rounding](positions)
        x = R.take(x, n.const(np.clip(rounded, 0, before - 1).astype("int64")), axis)
    else:
        a, inside = n.get("cubic_coeff_a", -0.75), bool(n.get("exclude_outside", 0))
        narrow = min(scale, 1.0) if n.get("antialias", 0) else 1.0
        x = combined(n.builder, x, axis, matrix(positions, before, mode, narrow, a, inside))
    if crop is not None:
        shape = [-1 if i == axis else 1 for i in range(n.rank)]
        outside = ((positions < 0) | (positions > before - 1)).reshape(shape)
        x = R.where(n.const(outside), n.const(n.get("extrapolation_value", 0.0)), x)
    return n.emit(x)


def _positions(mode: str, before: int, scale: float, size: int, crop) -> np.ndarray:
    """Return the position of each element of the result among those before.

    In float32, as in ONNX Runtime: 6.5 / 1.3 - 0.5 is then a tie, which `nearest_mode` decides. And as there,
    in PyTorch and by the specification's words, corners are those of the resized tensor; ONNX's reference
    aligns them at `scale * before`, which no tensor has if it is no whole number.
    """
    indices = np.arange(size, dtype="float32")
    last, scale = size - 1, np.float32(scale)
    positions = (indices + np.float32(0.5)) / scale - np.float32(0.5)  # half_pixel
    if mode == "asymmetric":
        positions = indices / scale
    elif mode == "tf_half_pixel_for_nn":
        positions = (indices + np.float32(0.5)) / scale
    elif mode == "align_corners":
        positions = indices * (before - 1) / last if last else 0 * indices
    elif mode == "pytorch_half_pixel" and size == 1:
        positions = 0 * indices
    elif mode == "half_pixel_symmetric":
        moved = np.float32(before / 2) * (np.float32(1) - np.float32(size) / (scale * np.float32(before)))
        positions = moved + (indices + np.float32(0.5)) / scale - np.float32(0.5)
    elif mode == "tf_crop_and_resize":
        begin, length = crop[0] * (before - 1), (crop[1] - crop[0]) * (before - 1)
        positions = begin + (indices * length / last if last else length / 2 + 0 * indices)
    return positions


_ROUNDED = {
    "round_prefer_floor": lambda positions: np.ceil(positions - 0.5),
    # A tie in float32, such as 2 / (4 / 7), may be the number below.
    "round_prefer_ceil": lambda positions: np.floor(np.nextafter(positions, np.float32(np.inf)) + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
