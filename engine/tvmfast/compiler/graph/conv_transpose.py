"""Compute transposed convolutions as ordinary convolutions.

A transposed convolution of stride s computes its result at y as a sum of x at (y + p - k) / s, over those k
of the kernel for which this is an integer. Results whose y + p leaves the same residue modulo s therefore use
the same few k, and each of the s * s residues is a convolution of stride 1 with a kernel of 1/s the
size. One convolution computes those that have the same number of k, as channels of its result, and
interleaving all gives the result: the sub-pixel convolution of Shi et al., "Is the deconvolution layer the
same as a convolutional layer?", 2016. TVM's own kernel inserts zeros between the elements of x and multiplies
by them, which makes NaN of an infinite weight; `legalize/conv_transpose.py` is for weights that may be
infinite or NaN.
"""

import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ...core.relax import known_shape, on_each_function
from .conv_call import as_images, match


def conv_transpose_to_conv() -> tvm.transform.Pass:
    """Make the pass; it skips groups, dilation, one input channel, and weights not constant or not finite."""
    return on_each_function("ConvTransposeToConv", _Rewrite)


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
            or not np.isfinite(conv.weight).all()
        ):
            return call
        x = self._emit(op.expand_dims(call.args[0], 2)) if conv.is_line else call.args[0]
        result = self._as_conv(x, conv.weight, conv.shape, as_images(out), [*strides], [*padding[:2]])
        return op.squeeze(result, [2]) if conv.is_line else result

    def _as_conv(self, x, array, shape, out, strides, before):
        n, _, *sizes = shape
        outputs = out[1]
        # Each position gives s results per axis; `after` covers reads beyond the last element of x.
        positions = [math.ceil((p + m) / s) for p, m, s in zip(before, out[2:], strides, strict=True)]
        after = [max(0, q - size) for q, size in zip(positions, sizes, strict=True)]
        made = [size + extra for size, extra in zip(sizes, after, strict=True)]
        parts = []
        for residues, taps in _groups(array.shape[2:], strides):
            if 0 in taps:
                channels = math.prod(map(len, residues)) * outputs
                parts.append(self._emit(op.zeros((n, channels, *made), "float32")))
                continue
            weight = relax.const(split_by_residue(array, strides, residues, taps))
            parts.append(self._emit(op.nn.conv2d(x, weight, padding=[*(t - 1 for t in taps), *after])))
        result = self._emit(op.concat(parts, 1)) if len(parts) > 1 else parts[0]
        result = self._cut(result, [0, 0], positions)
        if strides != [1, 1]:
            residues = self._emit(op.reshape(result, (n, *strides, outputs, *positions)))
            interleaved = self._emit(op.permute_dims(residues, [0, 3, 4, 1, 5, 2]))
            sizes = [q * s for q, s in zip(positions, strides, strict=True)]
            result = self._emit(op.reshape(interleaved, (n, outputs, *sizes)))
        return self._cut(result, before, [p + m for p, m in zip(before, out[2:], strict=True)])

    def _cut(self, x, begins, ends):
        whole = not any(begins) and [*known_shape(x.ty)[2:]] == [*ends]
        return x if whole else self._emit(op.strided_slice(x, [2, 3], begins, ends))

    def _emit(self, expr):
        return self.builder_.emit(self.builder_.normalize(expr))


def _groups(kernel: tuple[int, ...], strides: list[int]) -> list[tuple[list[range], list[int]]]:
    """Return the residues of each axis, and the taps there, for which one convolution has no padded weights.

    A weight of 0 would make NaN of an infinite element. The groups are in the order of the residues.
    """
    by_axis = []
    for size, stride in zip(kernel, strides, strict=True):
        whole, rest = divmod(size, stride)  # the first `rest` residues have a tap more
        by_axis.append(
            [(range(rest), whole + 1), (range(rest, stride), whole)] if rest else [(range(stride), whole)]
        )
    rows, columns = by_axis
    if len(columns) > 1:  # a row has both kinds of columns
        rows = [(range(y, y + 1), taps) for ys, taps in rows for y in ys]
    return [([ys, xs], [th, tw]) for ys, th in rows for xs, tw in columns]


def split_by_residue(
    array: np.ndarray, strides: list[int], residues: list[range], taps: list[int]
) -> np.ndarray:
    """Convert weights (I, O, kh, kw) of a transposed convolution to those of an ordinary one.

    The result is (residues * O, I, *taps) for some residues of each axis, which have that many taps.
    """
    inputs = array.shape[0]
    rows, columns = (
        np.array([[residue + tap * stride for tap in reversed(range(count))] for residue in own])
        for own, count, stride in zip(residues, taps, strides, strict=True)
    )
    split = array[:, :, rows[:, None, :, None], columns[None, :, None, :]]  # I, O, residues, taps
    return np.ascontiguousarray(split.transpose(2, 3, 1, 0, 4, 5)).reshape(-1, inputs, *taps)
