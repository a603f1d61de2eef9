"""Compute transposed convolutions as plain convolutions.

A transposed convolution of stride s computes its result at y as a sum of x at (y + p - k) / s, over those k
of the kernel for which this is an integer. Results whose y + p leaves the same residue modulo s therefore use
the same few k, and each of the s * s residues is a plain convolution of stride 1 with a kernel of 1/s the
size. One convolution computes them all, as s * s times the channels, and interleaving them gives the result:
the sub-pixel convolution of Shi et al., "Is the deconvolution layer the same as a convolutional layer?",
2016. TVM's own kernel inserts zeros between the elements of x and multiplies by them.
"""

import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ..base.relax import known_shape, on_each_function
from .conv_call import as_images, match


def transposed_to_plain() -> tvm.transform.Pass:
    """Make the pass; it skips groups, dilation, a single input channel, and weights that are not constant."""
    return on_each_function("TransposedToPlain", _Rewrite)


@relax.expr_functor.mutator
class _Rewrite(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        conv = match(call, transposed=True, lookup=self.lookup_binding)
        if conv is None or conv.groups != 1 or len(conv.weight) == 1:
            return call
        out, (strides, padding, dilation) = known_shape(call.ty), conv.window
        if (
            not all(shape and {*map(type, shape[1:])} == {int} for shape in (conv.shape, out))
            or {*dilation} != {1}
            or str(call.ty.dtype) != "float32"
        ):
            return call
        x = self._emit(op.expand_dims(call.args[0], 2)) if conv.is_line else call.args[0]
        result = self._plain(x, conv.weight, conv.shape, as_images(out), [*strides], [*padding[:2]])
        return op.squeeze(result, [2]) if conv.is_line else result

    def _plain(self, x, array, shape, out, strides, before):
        n, _, *sizes = shape
        outputs = out[1]
        taps = [math.ceil(k / s) for k, s in zip(array.shape[2:], strides, strict=True)]
        # Each position gives s results per axis; `after` covers reads beyond the last element of x.
        positions = [math.ceil((p + m) / s) for p, m, s in zip(before, out[2:], strides, strict=True)]
        after = [max(0, q - size) for q, size in zip(positions, sizes, strict=True)]
        weight = relax.const(split_by_residue(array, strides, taps))
        result = self._emit(op.nn.conv2d(x, weight, padding=[*(t - 1 for t in taps), *after]))
        result = self._cut(result, [0, 0], positions)
        if strides != [1, 1]:
            residues = self._emit(op.reshape(result, (n, *strides, outputs, *positions)))
            interleaved = self._emit(op.permute_dims(residues, [0, 3, 4, 1, 5, 2]))
            sizes = [q * s for q, s in zip(positions, strides, strict=True)]
            result = self._emit(op.reshape(interleaved, (n, outputs, *sizes)))
        return self._cut(result, before, [p + m for p, m in zip(before, out[2:], strict=True)])

    def _cut(self, x, begins, ends):
        """Slice rows and columns of `x` from `begins` up to `ends`."""
        whole = not any(begins) and [*known_shape(x.ty)[2:]] == [*ends]
        return x if whole else self._emit(op.strided_slice(x, [2, 3], begins, ends))

    def _emit(self, expr):
        return self.builder_.emit(self.builder_.normalize(expr))


def split_by_residue(array: np.ndarray, strides: list[int], taps: list[int]) -> np.ndarray:
    """Convert weights (I, O, kh, kw) of a transposed convolution to those of a plain one.

    The result is (sh * sw * O, I, *taps), for strides sh, sw and a plain kernel of size `taps`, ceil(k / s).
    """
    inputs, outputs, *kernel = array.shape
    (sh, sw), (th, tw) = strides, taps
    padded = np.zeros((inputs, outputs, th * sh, tw * sw), array.dtype)
    padded[:, :, : kernel[0], : kernel[1]] = array
    flipped = padded.reshape(inputs, outputs, th, sh, tw, sw)[:, :, ::-1, :, ::-1]
    return np.ascontiguousarray(flipped.transpose(3, 5, 1, 0, 2, 4)).reshape(
        sh * sw * outputs, inputs, th, tw
    )
