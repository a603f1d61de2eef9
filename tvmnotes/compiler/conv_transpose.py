"""Transposed convolutions are computed as convolutions.

A transposed convolution of stride s sets its result at y to a sum of x at (y + p - k) / s, over those k of the kernel
for which that is whole. So results whose y + p leaves the same rest when divided by s come of the same few k, and each
of the s * s rests is a plain convolution of stride 1 with a kernel of 1/s the size. One convolution makes them all, as
so many times the channels, and interleaving them gives the result: the sub-pixel convolution of Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", 2016. TVM's own puts zeros between the numbers of x and
multiplies with them.
"""

import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ..base.relax import constant_array, fixed_shape, on_each_function


def transposed_to_plain() -> tvm.transform.Pass:
    """Make the pass; it leaves those of groups, with dilation, of one channel, or whose weights are not known."""
    return on_each_function("TransposedToPlain", _Rewrite)


@relax.expr_functor.mutator
class _Rewrite(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.nn.conv2d_transpose":
            return call
        (x, weight), attrs = call.args, call.attrs
        weight = self.lookup_binding(weight) if isinstance(weight, relax.Var) else weight
        array, shape, out = constant_array(weight), fixed_shape(x.ty), fixed_shape(call.ty)
        plain = attrs.data_layout == attrs.out_layout == "NCHW" and attrs.kernel_layout == "IOHW"
        plain = plain and attrs.groups == 1 and {*attrs.dilation} == {1} and str(call.ty.dtype) == "float32"
        if array is None or None in (shape, out) or not plain or array.shape[0] == 1:
            return call
        return self._plain(
            x, array, shape, out, [int(s) for s in attrs.strides], [int(p) for p in attrs.padding[:2]]
        )

    def _plain(self, x, array, shape, out, strides, before):
        (n, _, *sizes), outputs = shape, out[1]
        taps = [math.ceil(k / s) for k, s in zip(array.shape[2:], strides, strict=True)]
        # Places of which each gives s results, and what is read beyond the last number of x.
        places = [math.ceil((p + m) / s) for p, m, s in zip(before, out[2:], strides, strict=True)]
        padding = [*(t - 1 for t in taps), *(max(0, q - size) for q, size in zip(places, sizes, strict=True))]
        weight = relax.const(split_by_residue(array, strides, taps))
        every = self._emit(op.nn.conv2d(x, weight, padding=padding))
        every = self._cut(every, [0, 0], places)
        if strides != [1, 1]:
            apart = self._emit(op.reshape(every, (n, *strides, outputs, *places)))
            mixed = self._emit(op.permute_dims(apart, [0, 3, 4, 1, 5, 2]))
            every = self._emit(
                op.reshape(mixed, (n, outputs, *(q * s for q, s in zip(places, strides, strict=True))))
            )
        return self._cut(every, before, [p + m for p, m in zip(before, out[2:], strict=True)])

    def _cut(self, x, begins, ends):
        """Rows and columns of `x`, from and up to these."""
        whole = not any(begins) and [*fixed_shape(x.ty)[2:]] == [*ends]
        return x if whole else self._emit(op.strided_slice(x, [2, 3], begins, ends))

    def _emit(self, expr):
        return self.builder_.emit(self.builder_.normalize(expr))


def split_by_residue(array: np.ndarray, strides: list[int], taps: list[int]) -> np.ndarray:
    """Turn the weights (I, O, kh, kw) of a transposed convolution into those (sh * sw * O, I, *taps) of a plain one."""
    inputs, outputs, *kernel = array.shape
    (sh, sw), (th, tw) = strides, taps
    filled = np.zeros((inputs, outputs, th * sh, tw * sw), array.dtype)
    filled[:, :, : kernel[0], : kernel[1]] = array
    apart = filled.reshape(inputs, outputs, th, sh, tw, sw)[:, :, ::-1, :, ::-1]
    return np.ascontiguousarray(apart.transpose(3, 5, 1, 0, 2, 4)).reshape(sh * sw * outputs, inputs, th, tw)
