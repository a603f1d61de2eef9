"""Lower transposed convolutions to kernels, without NaN where a weight is infinite.

TVM's own kernel inserts zeros between the elements of x and multiplies by them, which makes NaN of an
infinite weight. Where the weights may be infinite or NaN, `legalize` computes each result from the elements
that it has alone. Most of those with constant, finite weights are ordinary convolutions by now: see
`graph/conv_transpose.py`.
"""

import numpy as np
from tvm import te, tirx

from ...core.relax import constant_array, unwrap_ints
from .ieee754 import default

OPERATORS = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))


def legalize(bb, call):
    """Lower a call to TVM's kernel, or to one without products of inserted zeros.

    TVM inserts zeros into x, and into dilated weights.
    """
    (data, weight), attrs = call.args, call.attrs
    array = constant_array(weight)
    is_finite = str(call.ty.dtype).startswith("int") or (array is not None and np.isfinite(array).all())
    rank = len(call.ty.shape) - 2
    axes = "DHW"[-rank:]
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    strides, padding, dilation = (
        [int(n) for n in each] for each in (attrs.strides, attrs.padding, attrs.dilation)
    )
    if (is_finite and {*dilation} == {1}) or layouts != (f"NC{axes}", f"IO{axes}", f"NC{axes}"):
        return default(bb, call)
    extra, groups, dtype = [int(n) for n in attrs.output_padding], int(attrs.groups), str(call.ty.dtype)

    def summed(x, w):
        (batch, channels, *sizes), (_, filters, *kernel) = unwrap_ints(x.shape), unwrap_ints(w.shape)
        channels //= groups
        outputs = [
            (sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilation[i] + 1 - lost + extra[i]
            for i, lost in enumerate(map(sum, zip(padding[:rank], padding[rank:], strict=True)))
        ]
        reduced = te.reduce_axis((0, channels), "channel")
        taps = [te.reduce_axis((0, size), f"tap{i}") for i, size in enumerate(kernel)]

        def element(n, filter_, *position):
            inside, index = [], []
            for i, tap in enumerate(taps):
                begin = position[i] + padding[i] - tap * dilation[i]
                at = tirx.floordiv(begin, strides[i])
                inside += [tirx.floormod(begin, strides[i]) == 0, at >= 0, at < sizes[i]]
                index.append(at)
            channel = filter_ // filters * channels + reduced
            product = x(n, channel, *index) * w(channel, filter_ % filters, *taps)
            return te.sum(
                tirx.if_then_else(tirx.all(*inside), product, tirx.const(0, dtype)), axis=[reduced, *taps]
            )

        return te.compute((batch, filters * groups, *outputs), element, "conv_transpose")

    return bb.call_te(summed, data, weight, primfunc_name_hint=f"conv{rank}d_transpose")
