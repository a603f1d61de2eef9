"""These are operators that MXNet and Relay share and Relax lacks: the converters of both make them of Relax's here."""

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op as R

from ..base.indices import checked
from ..base.relax import OPAQUE, fixed_shape


def reshaped(
    shape: Sequence[int], target: Sequence[int], reverse: bool = False, allowzero: bool = False
) -> list[int]:
    """Return the shape that the codes in `target` mean for a tensor of `shape`.

    0 keeps an axis (with `allowzero` it is a size), -1 is what is left, -2 keeps all axes that follow, -3 joins two,
    and -4 splits one into the two sizes that follow it. `reverse` reads both from the right. Raises ValueError for a
    target of another number of elements, and IndexError for one that names more axes than there are.
    """
    source, codes, sizes, rest = list(shape), list(target), [], None
    if reverse:
        source, codes = source[::-1], codes[::-1]
    codes, at = iter(codes), 0
    for code in codes:
        if code == -2:
            sizes += source[at:]
            at = len(source)
        elif code == -3:
            sizes.append(source[at] * source[at + 1])
            at += 2
        elif code == -4:
            first, second = next(codes, None), next(codes, None)
            if second is None:
                raise ValueError(f"expected two numbers after -4, got the new shape {list(target)}")
            first = source[at] // second if first == -1 else first
            sizes += [first, source[at] // first if second == -1 else second]
            at += 1
        else:
            if code == -1:
                rest = len(sizes)
            sizes.append(source[at] if code == 0 and not allowzero else 1 if code == -1 else code)
            at += 1
    if rest is not None:
        sizes[rest] = math.prod(shape) // math.prod(sizes)
    if math.prod(sizes) != math.prod(shape):
        raise ValueError(f"shape={tuple(target)} for an input of shape {tuple(shape)}")
    return sizes[::-1] if reverse else sizes


def reduced_axes(rank: int, axes: Sequence[int], exclude: bool) -> list[int]:
    """Return the axes that a reduction takes away: those in `axes`, all for none, with `exclude` the others."""
    named = {axis % rank for axis in axes}
    return [axis for axis in range(rank) if not named or (axis in named) != bool(exclude)]


def product(a: relax.Expr, b: relax.Expr, turn_a: bool, turn_b: bool, dtype: str | None = None) -> relax.Expr:
    """Multiply two stacks of matrices; each of them may be transposed first."""
    return R.matmul(_turned(a) if turn_a else a, _turned(b) if turn_b else b, dtype)


def _turned(x: relax.Expr) -> relax.Expr:
    rank = len(fixed_shape(x.ty))
    return R.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


def regions(rois: relax.Expr, pictures: int, operator: str, bb: relax.BlockBuilder) -> relax.Expr:
    """Return rows of (number of a picture, four corners), all of them floats, with the numbers checked."""
    numbers = bb.emit(R.astype(R.strided_slice(rois, [1], [0], [1]), "int64"))
    numbers = checked(numbers, [pictures], operator, negative=False, bb=bb)
    return bb.emit(R.concat([R.astype(numbers, rois.ty.dtype), R.strided_slice(rois, [1], [1], [5])], 1))


def padded(x: relax.Expr, widths: Sequence[tuple[int, int]], mode: str) -> relax.Expr:
    """Surround `x` with values of its own, axis by axis, as NumPy's modes edge, reflect and symmetric do."""
    for axis, ((before, behind), size) in enumerate(zip(widths, fixed_shape(x.ty), strict=True)):
        places = np.pad(np.arange(size, dtype="int32"), (before, behind), mode)
        x = R.take(x, relax.const(places), axis) if before or behind else x
    return x


def logarithm(x: relax.Expr, base: int) -> relax.Expr:
    return R.multiply(R.log(x), relax.const(1 / math.log(base), str(x.ty.dtype)))


def local_response_norm(
    x: relax.Expr, size: int, axis: int, bias: float, alpha: float, beta: float
) -> relax.Expr:
    """Compute x / (bias + alpha / size · sum of squares of `size` neighbours along an axis) ** beta."""
    shape, half = fixed_shape(x.ty), size // 2
    widths = [(half, half) if n == axis else (0, 0) for n in range(len(shape))]
    squares, total = R.nn.pad(R.multiply(x, x), sum(widths, ())), None
    for first in range(size):
        part = R.strided_slice(squares, [axis], [first], [first + shape[axis]])
        total = part if total is None else R.add(total, part)
    alpha, bias, beta = (relax.const(number, str(x.ty.dtype)) for number in (alpha / size, bias, beta))
    return R.divide(x, R.power(R.add(R.multiply(total, alpha), bias), beta))


def deformed(bb, data, offset, mask=None, *, kernel, stride, dilate, pad, parts, size) -> relax.Expr:
    """Return the columns of a deformable convolution: data (N, C, H, W) between its pixels, (N, C * taps, *size).

    What lies a pixel or more outside is 0, and so is what lies nowhere, at NaN. All are of one dtype of floats.
    """
    (batch, channels, height, width), dtype = fixed_shape(data.ty), data.ty.dtype.dtype
    taps = math.prod(kernel)

    def places(offset):
        def place(n, number, y, x):
            """Return where on one axis a tap reads, and -2, which is outside, where the other is outside too."""
            tap, pair = number // 2 % taps, number // 2 * 2
            at_y = y * stride[0] - pad[0] + tap // kernel[1] * dilate[0] + offset[n, pair, y, x]
            at_x = x * stride[1] - pad[1] + tap % kernel[1] * dilate[1] + offset[n, pair + 1, y, x]
            near = tirx.all(at_y > -1.0, at_y < height, at_x > -1.0, at_x < width)
            return tirx.if_then_else(near, tirx.Select(number % 2 == 0, at_y, at_x), tirx.const(-2, dtype))

        return te.compute((batch, 2 * parts * taps, *size), place, name="places")

    def columns(data, places, mask=None):
        def column(n, row, y, x):
            channel, tap = row // taps, row % taps
            number = channel // (channels // parts) * taps + tap
            at_y, at_x = (places[n, 2 * number + axis, y, x] for axis in (0, 1))
            low_y, low_x = te.floor(at_y), te.floor(at_x)
            total = tirx.const(0, dtype)
            for right_y in (0, 1):
                for right_x in (0, 1):
                    y_, x_ = (low_y + right_y).astype("int32"), (low_x + right_x).astype("int32")
                    weight = (1.0 - te.abs(at_y - low_y - right_y)) * (1.0 - te.abs(at_x - low_x - right_x))
                    inside = tirx.all(y_ >= 0, y_ < height, x_ >= 0, x_ < width)
                    total += tirx.if_then_else(
                        inside, data[n, channel, y_, x_] * weight, tirx.const(0, dtype)
                    )
            return total * mask[n, number, y, x] if mask is not None else total

        return te.compute((batch, channels * taps, *size), column, name="deformed")

    apart = {"op_pattern": OPAQUE}  # lest each channel computes them again
    where = bb.emit_te(places, offset, primfunc_attrs=apart)
    return bb.emit_te(columns, data, where, *([] if mask is None else [mask]))
