"""Convolutions of images and lines on the graph, as the passes that rewrite them recognise them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...core.relax import constant_array, known_shape, op_name


@dataclass(frozen=True, eq=False)
class ConvCall:
    """A convolution of NCHW to NCHW with constant weights, or of NCW to NCW, as one of height 1.

    Attributes:
        is_line: Whether the network's tensors are (N, C, W).
        shape: The input's shape (N, C, H, W), with integers where it is static; None if it is not known.
        weight: The weights (O, C / groups, kh, kw); (C, O / groups, kh, kw) of a transposed convolution.
        window: Strides (2), padding (4: top, left, bottom, right) and dilation (2).
        groups: The number of groups.
    """

    is_line: bool
    shape: tuple | None
    weight: np.ndarray
    window: tuple[tuple[int, ...], ...]
    groups: int


def match(call, transposed: bool = False, lookup: Callable | None = None) -> ConvCall | None:
    """Describe a call of `nn.conv2d` or `nn.conv1d`; None for another call or layout, or computed weights.

    Args:
        call: The value of a binding.
        transposed: Describe a call of `nn.conv2d_transpose` or `nn.conv1d_transpose` instead.
        lookup: A builder's `lookup_binding`, to find weights that a variable is bound to.
    """
    name = op_name(call)
    kind = "_transpose" if transposed else ""
    if name not in (f"nn.conv1d{kind}", f"nn.conv2d{kind}"):
        return None
    is_line = "conv1d" in name
    axes = "W" if is_line else "HW"
    (data, weight), attrs = call.args, call.attrs
    layouts = f"NC{axes}", ("IO" if transposed else "OI") + axes, f"NC{axes}"
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != layouts:
        return None
    if lookup is not None and isinstance(weight, relax.Var):
        weight = lookup(weight)
    array = constant_array(weight)
    if array is None:
        return None
    shape = known_shape(data.ty)
    window = tuple(tuple(int(n) for n in each) for each in (attrs.strides, attrs.padding, attrs.dilation))
    if is_line:
        (stride,), (left, right), (dilation,) = window
        window = (1, stride), (0, left, 0, right), (1, dilation)
        array, shape = array[:, :, None], shape and as_images(shape)
    return ConvCall(is_line, shape, array, window, int(attrs.groups))


def as_images(shape: tuple) -> tuple:
    """Return the shape (N, C, H, W) of images, also of lines (N, C, W), whose height is 1."""
    return shape if len(shape) == 4 else (*shape[:2], 1, *shape[2:])
