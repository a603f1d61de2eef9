"""Operators that Relax lacks and several frontends share, as functions of its expressions."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op as R

from ...core.bounds_check import checked
from ...core.compat import OPAQUE
from ...core.relax import static_shape
from ...kernels.resize import ONNX_RUNTIME, PYTORCH

_LARGEST_MATRIX = 1 << 24  # elements of that of a Fourier transform: 128 MiB
_MOST_TAPS = 4  # per resampled element; with more, as for antialiasing, a kernel sums them


def reshaped(shape: Sequence[int], target: Sequence[int], reverse=False, allowzero=False) -> list[int]:
    """Return the shape that the codes in `target` mean for a tensor of `shape`.

    0 keeps an axis (with `allowzero` it is a size), -1 is inferred, -2 keeps all axes that follow, -3 joins
    two axes, and -4 splits one into the two sizes that follow it. `reverse` reads both shapes from the right.
    Raises ValueError if `target` has another number of elements, and IndexError if it names more axes than
    there are.
    """
    step = -1 if reverse else 1
    source, codes = list(shape)[::step], iter(list(target)[::step])
    sizes, axis = [], 0
    inferred = None
    for code in codes:
        if code == -2:
            sizes += source[axis:]
            axis = len(source)
        elif code == -3:
            sizes.append(source[axis] * source[axis + 1])
            axis += 2
        elif code == -4:
            first, second = next(codes, None), next(codes, None)
            if second is None:
                raise ValueError(f"expected two numbers after -4, got the new shape {list(target)}")
            first = source[axis] // second if first == -1 else first
            sizes += [first, source[axis] // first if second == -1 else second]
            axis += 1
        else:
            if code == -1:
                inferred = len(sizes)
            sizes.append(source[axis] if code == 0 and not allowzero else 1 if code == -1 else code)
            axis += 1
    if inferred is not None:
        sizes[inferred] = math.prod(shape) // math.prod(sizes)
    if math.prod(sizes) != math.prod(shape):
        raise ValueError(f"shape={tuple(target)} for an input of shape {tuple(shape)}")
    return sizes[::-1] if reverse else sizes


def reduced_axes(rank: int, axes: Sequence[int], exclude: bool) -> list[int]:
    """Return the axes that a reduction removes: `axes` (all if empty), or with `exclude` the others."""
    named = {axis % rank for axis in axes}
    return [axis for axis in range(rank) if not named or (axis in named) != bool(exclude)]


def product(a: relax.Expr, b: relax.Expr, turn_a: bool, turn_b: bool, dtype: str | None = None) -> relax.Expr:
    """Multiply two stacks of matrices, each optionally transposed first."""
    return R.matmul(_transposed(a) if turn_a else a, _transposed(b) if turn_b else b, dtype)


def _transposed(x: relax.Expr) -> relax.Expr:
    rank = len(static_shape(x.ty))
    return R.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


def of_whole_regions(result: relax.Expr, rois: relax.Expr, bb) -> relax.Expr:
    """Return 0 for regions without area, whose aligned result TVM leaves unwritten if it counts the samples.

    `rois` ends with the corners of each region.
    """
    last = int(rois.ty.shape[1])
    begins, ends = (bb.normalize(R.strided_slice(rois, [1], [i - 2], [i])) for i in (last - 2, last))
    least = bb.normalize(R.min(bb.normalize(R.subtract(ends, begins)), 1))
    is_whole = R.greater(R.expand_dims(least, [1, 2, 3]), relax.const(0, rois.ty.dtype))
    return R.where(bb.normalize(is_whole), result, relax.const(0, result.ty.dtype))


def regions(rois: relax.Expr, images: int, operator: str, bb: relax.BlockBuilder) -> relax.Expr:
    """Return rows of (image index, four corners), all of them floats, with the indices checked."""
    indices = bb.emit(R.astype(R.strided_slice(rois, [1], [0], [1]), "int64"))
    indices = checked(indices, [images], operator, negative=False, bb=bb)
    return bb.emit(R.concat([R.astype(indices, rois.ty.dtype), R.strided_slice(rois, [1], [1], [5])], 1))


def counter(shape: Sequence[int], axis: int) -> relax.Expr:
    """Return 0, 1, … along an axis of tensors of this shape, of size 1 along all others: int64."""
    return along(R.arange(0, shape[axis], 1, "int64"), shape, axis)


def along(row: relax.Expr, shape: Sequence[int], axis: int) -> relax.Expr:
    """Return a vector, reshaped to lie along an axis of tensors of this shape."""
    return R.expand_dims(row, [other for other in range(len(shape)) if other != axis])


def reversed_sequences(bb, x: relax.Expr, lengths: relax.Expr, time: int, batch: int) -> relax.Expr:
    """Reverse the first elements along `time` of each sequence, as many as its length says: int64."""
    shape = static_shape(x.ty)
    lengths, indices = along(lengths, shape, batch), counter(shape, time)
    mirrored = R.subtract(R.subtract(lengths, relax.const(1, "int64")), indices)
    indices = R.where(R.less(indices, lengths), mirrored, indices)
    return R.gather_elements(x, bb.normalize(R.broadcast_to(bb.normalize(indices), shape)), time)


def padded(x: relax.Expr, widths: Sequence[tuple[int, int]], mode: str) -> relax.Expr:
    """Pad `x` with its own elements, axis by axis, as NumPy's modes edge, reflect and symmetric do."""
    for axis, ((before, after), size) in enumerate(zip(widths, static_shape(x.ty), strict=True)):
        indices = np.pad(np.arange(size, dtype="int32"), (before, after), mode)
        x = R.take(x, relax.const(indices), axis) if before or after else x
    return x


def logarithm(x: relax.Expr, base: int) -> relax.Expr:
    """Return the logarithm of floats to an integer `base`; of its powers the whole number, for a floor."""
    dtype, number = str(x.ty.dtype), relax.const(base, "float64")
    result = R.divide(R.log(R.astype(x, "float64")), relax.const(math.log(base), "float64"))
    if dtype == "float64":
        whole = R.round(result)
        result = R.where(R.equal(R.power(number, whole), x), whole, result)
    return R.astype(result, dtype)


def _in_float32(function: Callable) -> Callable:
    """Compute a function of halves in float32."""

    def widened(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        own = str(x.ty.dtype)
        if own not in ("float16", "bfloat16"):
            return function(bb, x)
        return R.astype(bb.emit(function(bb, bb.emit(R.astype(x, "float32")))), own)

    return widened


@_in_float32
def expm1_below_1(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Return exp(x) - 1 of numbers below 1, without the subtraction, which loses a small x."""
    half, one, two = (relax.const(number, x.ty.dtype) for number in (0.5, 1, 2))
    tangent = bb.emit(R.tanh(R.multiply(x, half)))
    return R.divide(R.multiply(two, tangent), R.subtract(one, tangent))


@_in_float32
def expm1(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Return exp(x) - 1 accurately."""
    half, one = (relax.const(number, x.ty.dtype) for number in (0.5, 1))
    near = expm1_below_1(bb, bb.emit(R.minimum(x, half)))
    return R.where(R.greater(x, half), R.subtract(R.exp(x), one), near)


@_in_float32
def log1p(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Return log(1 + x), from which a small x is not rounded away: Kahan's way, as in Higham, 1.14.1."""
    one, infinity = (relax.const(number, x.ty.dtype) for number in (1, math.inf))
    above = bb.emit(R.add(x, one))
    is_exact = R.logical_or(R.equal(above, one), R.equal(above, infinity))
    return R.where(is_exact, x, R.multiply(R.log(above), R.divide(x, R.subtract(above, one))))


@_in_float32
def softplus(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Return log(1 + exp(x)), without overflow, and exp(x) where it is far below 1."""
    rest = log1p(bb, bb.emit(R.exp(R.negative(R.abs(x)))))
    return R.add(R.maximum(x, relax.const(0, x.ty.dtype)), rest)


def local_response_norm(
    x: relax.Expr, size: int, axis: int, bias: float, alpha: float, beta: float
) -> relax.Expr:
    """Compute x / (bias + alpha / size · sum of squares of `size` neighbours along an axis) ** beta."""
    shape, half = static_shape(x.ty), size // 2
    widths = [(half, half) if n == axis else (0, 0) for n in range(len(shape))]
    squares = R.nn.pad(R.multiply(x, x), sum(widths, ()))
    total = None
    for first in range(size):
        part = R.strided_slice(squares, [axis], [first], [first + shape[axis]])
        total = part if total is None else R.add(total, part)
    alpha, bias, beta = (relax.const(number, str(x.ty.dtype)) for number in (alpha / size, bias, beta))
    return R.divide(x, R.power(R.add(R.multiply(total, alpha), bias), beta))


def window_counts(sizes, kernel, strides, dilations, pads: Sequence[int]) -> list[int]:
    """Return how many windows fit along each axis; `pads` has those before all axes, then those behind."""
    axes = zip(sizes, kernel, strides, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return [(n + before + behind - d * (k - 1) - 1) // s + 1 for n, k, s, d, before, behind in axes]


def deformed(
    bb, data, offset, mask=None, *, kernel, stride, dilate, pad, parts, size, inside=False
) -> relax.Expr:
    """Return the columns (N, C * taps, *size) of a deformable convolution of data (N, C, H, W).

    `data` is interpolated at the taps moved by `offset` (N, 2 * parts * taps, *size), and multiplied by
    `mask` (N, parts * taps, *size). An element a pixel or more outside, or at NaN, is 0. With `inside`, an
    element before the first pixel is 0, and one less than a pixel behind the last is the last. All share one
    float dtype.
    """
    (batch, channels, height, width), dtype = static_shape(data.ty), data.ty.dtype.dtype
    taps = math.prod(kernel)

    def sampled_positions(offset):
        def position(n, number, y, x):
            """Return the position read along one axis, or -2, outside, if the other axis is outside."""
            tap, pair = number // 2 % taps, number // 2 * 2
            at_y = y * stride[0] - pad[0] + tap // kernel[1] * dilate[0] + offset[n, pair, y, x]
            at_x = x * stride[1] - pad[1] + tap % kernel[1] * dilate[1] + offset[n, pair + 1, y, x]
            near = tirx.all(at_y > -1.0, at_y < height, at_x > -1.0, at_x < width)
            if inside:
                near = tirx.all(at_y >= 0.0, at_y < height, at_x >= 0.0, at_x < width)
                at_y, at_x = te.min(at_y, height - 1.0), te.min(at_x, width - 1.0)
            return tirx.if_then_else(near, tirx.Select(number % 2 == 0, at_y, at_x), tirx.const(-2, dtype))

        return te.compute((batch, 2 * parts * taps, *size), position, name="positions")

    def columns(data, positions, mask=None):
        def column(n, row, y, x):
            channel, tap = row // taps, row % taps
            number = channel // (channels // parts) * taps + tap
            at_y, at_x = (positions[n, 2 * number + axis, y, x] for axis in (0, 1))
            low_y, low_x = te.floor(at_y), te.floor(at_x)
            total = tirx.const(0, dtype)
            for right_y in (0, 1):
                for right_x in (0, 1):
                    y_, x_ = (low_y + right_y).astype("int32"), (low_x + right_x).astype("int32")
                    weight = (1.0 - te.abs(at_y - low_y - right_y)) * (1.0 - te.abs(at_x - low_x - right_x))
                    inside = tirx.all(y_ >= 0, y_ < height, x_ >= 0, x_ < width)
                    element = data[n, channel, y_, x_] * weight
                    total += tirx.if_then_else(inside, element, tirx.const(0, dtype))
            return total * mask[n, number, y, x] if mask is not None else total

        return te.compute((batch, channels * taps, *size), column, name="deformed")

    unfused = {"op_pattern": OPAQUE}  # fused, every channel would compute the positions again
    positions = bb.emit_te(sampled_positions, offset, primfunc_attrs=unfused)
    return bb.emit_te(columns, data, positions, *([] if mask is None else [mask]))


# ---------------------------------------------------------------- resampling
# Along an axis, each element is a sum of a few weighted neighbours, which are read also where their weight
# is 0. They follow from sizes alone, so `neighbours` and `antialiased` compute them at import: indices and
# weights, both (result, neighbours). `combined` applies them in Relax.


def neighbours(
    positions: np.ndarray, before: int, mode: str, framework=PYTORCH, a=-0.75, inside=False
) -> tuple[np.ndarray, np.ndarray]:
    """Return two neighbours by `mode` "linear" or four by "cubic", with the coefficient `a` (Keys, 1981).

    `positions` are those of the result's elements among the `before` ones. Elements past the edge repeat the
    edge or, with `inside`, have no weight.
    """
    last = before - 1
    if mode == "linear":
        positions = np.maximum(positions, 0)
        first = np.minimum(np.floor(positions), last)
        past = np.minimum(positions - first, 1)
        second = first if framework == PYTORCH and len(positions) == before else np.minimum(first + 1, last)
        past = np.where(first == last, 0.5, past) if framework == ONNX_RUNTIME else past
        return np.stack([first, second], 1).astype(int), np.stack([1 - past, past], 1)
    first = np.minimum(np.floor(positions), last)
    indices = first[:, None] + np.arange(-1, 3)
    weights = _keys(abs(indices - np.minimum(positions, first + 1)[:, None]), a)
    if inside:
        weights = np.where((indices >= 0) & (indices < before), weights, 0)
        weights /= weights.sum(1, keepdims=True)
    return np.clip(indices, 0, last).astype(int), weights


def antialiased(
    positions: np.ndarray, before: int, mode: str, scale: float, a: float, inside: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return Pillow's neighbours, of a filter that is 1 / `scale` as wide, if this is less than 1.

    Those past the edge repeat the edge or, with `inside`, have no weight.
    """
    scale = min(scale, 1.0)
    reach = (1 if mode == "linear" else 2) / scale
    begins, ends = (
        np.floor((positions + 1 + side * reach).astype("float32")).astype(int) for side in (-1, 1)
    )
    count = (ends - begins).max()
    indices = begins[:, None] + np.arange(count)
    distance = abs(indices - positions[:, None]) * scale
    weights = np.clip(1 - distance, 0, None) if mode == "linear" else _keys(distance, a)
    is_read = indices < ends[:, None]
    if inside:
        is_read &= (indices >= 0) & (indices < before)
    weights = np.where(is_read, weights, 0)
    weights /= weights.sum(1, keepdims=True)
    at = np.arange(len(positions))[:, None], np.clip(indices, 0, before - 1)
    sums, held = np.zeros((len(positions), before)), np.zeros((len(positions), before), bool)
    np.add.at(sums, at, weights)
    np.logical_or.at(held, at, is_read)
    indices = np.argsort(~held, 1, kind="stable")[:, : held.sum(1).max()]
    # Beyond the filter nothing is read, as it may be NaN: the first element within takes its place, in parts.
    shared = ~np.take_along_axis(held, indices, 1)
    shared[:, 0] = True
    weights = np.take_along_axis(sums, indices, 1)
    parts = weights[:, :1] / shared.sum(1, keepdims=True)
    return np.where(shared, indices[:, :1], indices), np.where(shared, parts, weights)


def _keys(distance: np.ndarray, a: float) -> np.ndarray:
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, inner, np.where(distance < 2, outer, 0))


def combined(bb, x: relax.Expr, axis: int, indices: np.ndarray, weights: np.ndarray) -> relax.Expr:
    """Return `x` resampled along an axis from these neighbours; halves are summed in float32."""
    own = x.ty.dtype.dtype
    if own in ("float16", "bfloat16"):
        wide = bb.normalize(R.astype(x, "float32"))
        return bb.normalize(R.astype(combined(bb, wide, axis, indices, weights), own))
    dtype, rank, taps = own, len(static_shape(x.ty)), indices.shape[1]
    if taps > _MOST_TAPS:
        constants = relax.const(indices, "int64"), relax.const(weights.astype(dtype), dtype)
        return bb.emit_te(_weighted, x, *constants, axis)
    shape = [-1 if i == axis else 1 for i in range(rank)]
    total = None
    for tap, weight in enumerate(weights.T):
        weight = relax.const(weight.reshape(shape).astype(dtype), dtype)
        neighbours = R.take(x, relax.const(indices[:, tap], "int64"), axis, mode="clip")
        part = bb.normalize(R.multiply(neighbours, weight))
        total = part if total is None else bb.normalize(R.add(total, part))
    return total


def _weighted(x, indices, weights, axis: int):
    """Return sums of the elements at `indices` (result, taps) of an axis, each with its weight."""
    k = te.reduce_axis((0, indices.shape[1]), "tap")

    def element(*at):
        own = (*at[:axis], indices[at[axis], k], *at[axis + 1 :])
        return te.sum(x[own] * weights[at[axis], k], axis=k)

    shape = [indices.shape[0] if i == axis else size for i, size in enumerate(x.shape)]
    return te.compute(shape, element, name="resampled")


# ---------------------------------------------------------------- Fourier transforms


def transformed(x: relax.Expr, length: int, inverse: bool = False, onesided: bool = False) -> relax.Expr:
    """Transform float64 signals (…, n, 1), or complex ones (…, n, 2), cut or padded with zeros to `length`.

    The result is (…, length, 2). With `onesided` the forward transform returns only the first length // 2 + 1
    of these, and the inverse one takes them and returns (…, length, 1). Raises NotImplementedError if the
    matrix would take more than 128 MiB (a `length` in the thousands).
    """
    *outer, count, parts = static_shape(x.ty)
    if count * parts * length * 2 > _LARGEST_MATRIX:
        raise NotImplementedError(
            f"a Fourier transform of length {length} takes a matrix of more than 128 MiB"
        )
    basis = np.eye(count * parts).reshape(-1, count, parts)
    signal = basis[..., 0] + (1j * basis[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        result = np.fft.irfft(signal, length)[..., None]
    else:
        result = np.fft.ifft(signal, length) if inverse else np.fft.fft(signal, length)
        result = np.stack([result.real, result.imag], -1)[:, : length // 2 + 1 if onesided else length]
    matrix = relax.const(result.reshape(count * parts, -1), "float64")
    return R.reshape(R.matmul(R.reshape(x, (*outer, count * parts)), matrix), (*outer, *result.shape[1:]))
