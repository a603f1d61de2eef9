"""2-D convolutions on the graph, as the passes that rewrite them recognise them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..base.relax import constant_array, known_shape


@dataclass(frozen=True, eq=False)
class ConvCall:
    """A convolution of NCHW to NCHW with constant weights.

    Attributes:
        shape: The input's shape (N, C, H, W), with integers where it is fixed; None if it is not known.
        weight: The weights (O, C / groups, kh, kw); (C, O / groups, kh, kw) of a transposed convolution.
        window: Strides (2), padding (4: top, left, bottom, right) and dilation (2).
        groups: The number of groups.
    """

    shape: tuple | None
    weight: np.ndarray
    window: tuple[tuple[int, ...], ...]
    groups: int


def match(call, transposed: bool = False, lookup: Callable | None = None) -> ConvCall | None:
    """Describe a call of `nn.conv2d`; None for any other call, layout, or weights that are not constant.

    Args:
        call: The value of a binding.
        transposed: Describe a call of `nn.conv2d_transpose` instead.
        lookup: A builder's `lookup_binding`, to find weights that a variable is bound to.
    """
    op, kernel_layout = ("conv2d_transpose", "IOHW") if transposed else ("conv2d", "OIHW")
    if getattr(getattr(call, "op", None), "name", "") != f"relax.nn.{op}":
        return None
    (data, weight), attrs = call.args, call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", kernel_layout, "NCHW"):
        return None
    if lookup is not None and isinstance(weight, relax.Var):
        weight = lookup(weight)
    array = constant_array(weight)
    if array is None:
        return None
    window = tuple(tuple(int(n) for n in each) for each in (attrs.strides, attrs.padding, attrs.dilation))
    return ConvCall(known_shape(data.ty), array, window, int(attrs.groups))
