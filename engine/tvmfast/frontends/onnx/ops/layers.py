"""Converters of ONNX's layers: recurrent ones, Resize, and operators on windows and signals."""

import itertools
import math

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op as R

from ....core.relax import ceildiv
from ....kernels.recurrent.cell import FUNCTIONS, Cell
from ....kernels.recurrent.emit import emit
from ....kernels.resize import ONNX_RUNTIME
from ...context import shape_of
from ...ops.common import antialiased, combined, deformed, neighbours, transformed, window_counts
from .node import Node, converts, in_float32

# ---------------------------------------------------------------- recurrent layers

_GATES = {"LSTM": "iofg", "GRU": "zrn", "RNN": "n"}
_FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# The defaults of alpha and beta, by the function's name in lower case; others have none.
_ALPHA = {"leakyrelu": 0.01, "hardsigmoid": 0.2}
_ALPHA |= dict.fromkeys(("affine", "thresholdedrelu", "scaledtanh", "elu"), 1.0)
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@converts("LSTM", "GRU", "RNN")
def _recurrent(n: Node):
    x, weights, recurrents, biases, lengths, *states, peepholes = [*n.inputs, *[None] * 8][:8]
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    direction = n.text("direction", "forward").lower()
    reason = f"direction is {direction!r}; expected 'forward', 'reverse' or 'bidirectional'"
    n.refuse_if(direction not in directions, reason)
    shape, size = shape_of(weights), n.get("hidden_size", None)
    if shape[0] != len(directions[direction]):
        raise ValueError(
            f"{n.op}: {direction!r} takes {len(directions[direction])} directions, W has the shape {shape}"
        )
    if size is not None and shape[1] != len(_GATES[n.op]) * size:
        raise ValueError(f"{n.op}: hidden_size is {size}, and W has the shape {shape}")
    by_batch = n.get("layout", 0) == 1
    x = n.builder.emit(R.permute_dims(x, (1, 0, 2))) if by_batch else x

    results = []
    for number, cell in enumerate(_cells(n, directions[direction])):
        halves, seen = _halves(n, n.element(biases, number)), n.element(peepholes, number)
        if seen is not None:
            seen = n.builder.emit(R.reshape(seen, (3, -1)))
        own = [n.element(state, number, 1 if by_batch else 0) for state in states]
        matrices = n.element(weights, number), n.element(recurrents, number)
        results.append(emit(n.builder, cell, x, *matrices, halves, own, lengths=lengths, peepholes=seen))
    outputs = []
    for number, parts in enumerate(zip(*results, strict=True)):
        first = number == 0  # the outputs of all time steps, with time as the first axis
        if by_batch and first:
            parts = [n.builder.emit(R.permute_dims(each, (1, 0, 2))) for each in parts]
        outputs.append(n.stacked(parts, first + by_batch))
    return relax.Tuple(outputs[: n.outputs]) if n.outputs > 1 else outputs[0]


def _halves(n: Node, both: relax.Expr | None) -> tuple[relax.Expr | None, relax.Expr | None]:
    """Return the bias of the input and that of the state."""
    if both is None:
        return None, None
    half = shape_of(both)[0] // 2
    first, second = (R.strided_slice(both, [0], [begin], [begin + half]) for begin in (0, half))
    return n.builder.emit(first), n.builder.emit(second)


def _cells(n: Node, directions: tuple[bool, ...]) -> list[Cell]:
    count = len(_FUNCTIONS[n.op])
    names = [each.decode() for each in n.get("activations", [])] or list(_FUNCTIONS[n.op]) * len(directions)
    reason = f"activations are {', '.join(names)}; expected {count} for each direction"
    n.refuse_if(len(names) != count * len(directions), reason)
    for name in names:
        n.refuse_if(name.lower() not in FUNCTIONS, f"activations: {name!r} is not a function that ONNX lists")
    alphas, betas = iter(n.get("activation_alpha", [])), iter(n.get("activation_beta", []))
    functions = []
    for name in map(str.lower, names):
        alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
        beta = next(betas, _BETA[name]) if name in _BETA else 0.0
        functions.append((name, float(alpha), float(beta)))
    how = {"clip": float(n.get("clip", 0.0)), "coupled": bool(n.get("input_forget", 0))}
    how["reset_after"] = n.op == "GRU" and bool(n.get("linear_before_reset", 0))
    by_direction = [tuple(functions[begin : begin + count]) for begin in range(0, len(functions), count)]
    pairs = zip(by_direction, directions, strict=True)
    return [Cell(n.op.lower(), _GATES[n.op], own, reverse=reverse, **how) for own, reverse in pairs]


# ---------------------------------------------------------------- Resize
# TVM's own converter is used where it is right, and fast: integer factors of an image, and bilinear resizing
# to integer sizes. All else is separable: along one axis after another each element is a sum of a few
# weighted neighbours, whose weights follow from sizes alone and are computed here.
# Source: https://onnx.ai/onnx/operators/onnx__Resize.html


@converts("Resize")
@in_float32
def _resize(n: Node):
    """Resample any axes of a float tensor, or, by nearest neighbours, of any tensor.

    Images of integers are also resized linearly, as far as ONNX Runtime does it: int8, uint8 and int32.
    """
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
    if "axes" not in n.attributes and floats and _is_right(n, scales, sizes, mode):
        rounding = {"nearest_mode": b"floor"} if n.text(*_ROUNDING) == _OLD else {}
        if mode == "linear":
            rounding = {"nearest_mode": ONNX_RUNTIME.encode()}
        return n.tvm_converter(n.x, n.inputs[1], None, n.const(np.array(sizes)), **rounding)
    x, changed = n.x, [(scale, m) != (1, size) for scale, m, size in zip(scales, sizes, before, strict=True)]
    image = ()  # axes that ONNX Runtime interpolates along, also those that keep their size
    if mode != "nearest" and not n.get("antialias", 0) and any(changed):
        by_channel = n.rank < 4 or not (1 in axes and changed[axes.index(1)])
        image = (
            range(max(n.rank - 3, 0) if n.rank % 2 else max(n.rank - 2, 0), n.rank) if by_channel else (1, 2)
        )
    if mode != "nearest" and not floats:
        steps = {axis: (scale, size) for axis, scale, size in zip(axes, scales, sizes, strict=True)}
        outside = any(on and axis not in image for axis, on in zip(axes, changed, strict=True))
        is_known = (mode, n.rank % 2) == ("linear", 0) and n.dtype in ("int8", "uint8", "int32")
        is_known &= len(image) == 2 and not outside and n.text(*_COORDINATES) != "tf_crop_and_resize"
        reason = f"Resize of {n.dtype} with mode {mode!r}: only floats, and images of int8, uint8 and int32"
        n.refuse_if(any(changed) and not is_known, f"{reason} linearly, are interpolated")
        return _of_integers(n, image, [steps.get(axis, (1, n.shape[axis])) for axis in image]) if image else x
    for i, (axis, scale, size) in enumerate(zip(axes, scales, sizes, strict=True)):
        if n.text(*_COORDINATES) == "tf_crop_and_resize":
            x = _resampled(n, x, axis, scale, size, mode, (roi[i], roi[i + len(axes)]))
        elif changed[i] or axis in image:
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


def _of_integers(n: Node, image, steps: list[tuple[float, int]]) -> relax.Expr:
    """Resize an image of integers linearly, and truncate, as ONNX Runtime.

    It multiplies the weights of both axes first, in float32; channels that are last and of 8 bits have
    weights of 10 bits. So results are equal, but for those that a fused multiply-add rounds differently.
    """
    fixed = image[-1] < n.rank - 1 and n.dtype != "int32"
    indices, weights = [], []
    for axis, (scale, size) in zip(image, steps, strict=True):
        before = n.shape[axis]
        positions = _positions(n.text(*_COORDINATES), before, scale, size, None)
        at, share = neighbours(positions, before, "linear", ONNX_RUNTIME)
        indices.append(at)
        past = (share[:, 1] * 1024).astype("int32")
        weights.append(np.stack([1024 - past, past], 1) if fixed else share.astype("float32"))
    wide, shape = weights[0].dtype.name, [1] * n.rank
    shape[image[0]], shape[image[1]] = (size for _, size in steps)
    x, total = n.emit(R.astype(n.x, wide)), None
    for row, column in itertools.product(range(2), repeat=2):
        part = n.emit(R.take(x, n.const(indices[0][:, row]), image[0], mode="clip"))
        part = n.emit(R.take(part, n.const(indices[1][:, column]), image[1], mode="clip"))
        weight = weights[0][:, None, row] * weights[1][None, :, column]
        part = n.emit(R.multiply(part, relax.const(weight.reshape(shape), wide)))
        total = part if total is None else n.emit(R.add(total, part))
    if fixed:  # no shift: a quotient is rounded towards 0
        quotient = n.emit(R.right_shift(n.emit(R.abs(total)), relax.const(20, "int32")))
        total = n.emit(R.multiply(quotient, R.sign(total)))
    return R.astype(total, n.dtype)


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
        if n.get("antialias", 0):
            taps = antialiased(positions, before, mode, scale, a, inside)
        else:
            taps = neighbours(positions, before, mode, ONNX_RUNTIME, a, inside)
        x = combined(n.builder, x, axis, *taps)
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
    if mode == "asymmetric" or (scale == 1 and crop is None):
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
        begin, end, extent = np.float32(crop[0]), np.float32(crop[1]), np.float32(before - 1)
        middle = np.float32(0.5) * (begin + end) * extent + 0 * indices
        positions = begin * extent + indices * (end - begin) * extent / np.float32(last) if last else middle
    return positions


_ROUNDED = {
    "round_prefer_floor": lambda positions: np.ceil(positions - 0.5),
    # A tie in float32, such as 2 / (4 / 7), may be the number below.
    "round_prefer_ceil": lambda positions: np.floor(np.nextafter(positions, np.float32(np.inf)) + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@converts("GridSample")
def _grid_sample(n: Node):
    """Interpolate at the positions of a grid, halves in float32.

    A coordinate that is NaN, infinite or beyond int64 is -1, as in ONNX Runtime. The nearest pixel is
    reflected, not the coordinate, which may be a tie; TVM divides by the distance of an axis's outer pixels.
    """
    mode, is_float = n.text("mode", "linear"), n.dtype.startswith(("float", "bfloat"))
    reason = f"GridSample of {n.dtype} with mode {mode!r}: only floats are interpolated"
    n.refuse_if(mode != "nearest" and not is_float, reason)
    wide = "float64" if n.dtype == "float64" else "float32"
    grid = n.emit(n.cast(n.inputs[1], wide))
    is_near = R.less(R.abs(grid), relax.const(2.0**62, wide))
    grid = n.emit(R.where(is_near, grid, relax.const(-1, wide)))
    x = n.emit(n.cast(n.x, wide) if is_float else n.x)
    if n.text("padding_mode", "zeros") == "reflection":
        between = bool(n.get("align_corners", 0))
        for axis in range(2, n.rank if between else 2):
            x = x if n.shape[axis] > 1 else n.emit(R.concat([x, x], axis))
        if mode == "nearest":
            sizes = np.array(shape_of(x)[:1:-1])  # the grid has the last axis first
            grid = n.emit(_of_whole_pixels(grid, relax.const(sizes, wide), between))
    return n.cast(n.tvm_converter(x, grid), n.dtype)


def _of_whole_pixels(grid, sizes, between: bool) -> relax.Expr:
    """Move coordinates from -1 to 1 to the nearest pixels; `between` the outer pixels' centres, or edges."""
    one, half = (relax.const(value, sizes.ty.dtype) for value in (1, 0.5))
    if between:
        spans = R.multiply(R.subtract(sizes, one), half)
        return R.subtract(R.divide(R.round(R.multiply(R.add(grid, one), spans)), spans), one)
    pixels = R.round(R.subtract(R.multiply(R.add(grid, one), R.multiply(sizes, half)), half))
    return R.subtract(R.divide(R.add(pixels, half), R.multiply(sizes, half)), one)


@converts("AffineGrid")
def _affine_grid(n: Node):
    reason = "AffineGrid with align_corners of an axis of size 1, whose corners are one point"
    n.refuse_if(n.get("align_corners", 0) and 1 in n.known(1)[2:].tolist(), reason)
    return n.tvm_converter()


# ---------------------------------------------------------------- windows and signals


def _windows(n: Node) -> tuple[list[int], list[int], list[int], dict]:
    """Return the strides, dilations and spans of windows, and their padding as attributes, without auto_pad.

    TVM's own auto_pad leaves out dilations, and rounds the number of windows of SAME_LOWER down.
    """
    rank, mode = n.rank - 2, n.text("auto_pad", "NOTSET")
    kernel = n.get("kernel_shape") or shape_of(n.inputs[1])[2:]
    strides, dilations, pads = n.windows(rank)
    spans = [(window - 1) * dilation + 1 for window, dilation in zip(kernel, dilations, strict=True)]
    if mode.startswith("SAME"):
        missing = [
            max((math.ceil(size / stride) - 1) * stride + span - size, 0)
            for size, stride, span in zip(n.shape[2:], strides, spans, strict=True)
        ]
        pads = [less // 2 for less in missing] + [less - less // 2 for less in missing]
        pads = pads if mode == "SAME_UPPER" else pads[rank:] + pads[:rank]
    pads = [0] * 2 * rank if mode == "VALID" else pads
    ceil_mode = 0 if mode.startswith("SAME") else n.get("ceil_mode", 0)
    return strides, dilations, spans, {"pads": pads, "auto_pad": b"NOTSET", "ceil_mode": ceil_mode}


converts("AveragePool", "Conv")(lambda n: n.tvm_converter(*n.inputs, **_windows(n)[-1]))


@converts("MaxPool")
def _max_pool(n: Node):
    """Return, if asked for, the argmax of each window, too, as an index into the whole input."""
    (batch, channels, *sizes), (strides, dilations, spans, padding) = n.shape, _windows(n)
    rank, pads = len(sizes), padding["pads"]
    pooled = n.emit(n.tvm_converter(*n.inputs, **padding))
    if n.outputs == 1:
        return pooled
    outputs = shape_of(pooled)[2:]
    planes, volume = batch * channels, math.prod(sizes)
    widths = [(pads[i], pads[rank + i] + strides[i]) for i in range(rank)]
    indices = np.pad(np.arange(volume).reshape(sizes), widths, constant_values=-1)
    steps = tuple(slice(None, stride * count, stride) for stride, count in zip(strides, outputs, strict=True))
    steps += tuple(slice(None, None, dilation) for dilation in dilations)
    taps = np.lib.stride_tricks.sliding_window_view(indices, spans)[steps].reshape(math.prod(outputs), -1)
    first = np.take_along_axis(taps, (taps >= 0).argmax(1)[:, None], 1)
    taps = np.where(taps < 0, first, taps)  # taps outside repeat the first one inside
    flat = R.take(R.reshape(n.x, (planes, volume)), n.const(taps.reshape(-1)), 1)
    best = R.argmax(R.reshape(flat, (planes, *taps.shape)), -1)
    if n.get("storage_order", 0):
        taps = np.ravel_multi_index(np.unravel_index(taps, sizes), sizes, order="F")
    index = R.add(best, n.const(np.arange(len(taps)) * taps.shape[1]))
    index = R.add(R.take(n.const(taps.reshape(-1)), index, 0), n.const(np.arange(planes)[:, None] * volume))
    return relax.Tuple([pooled, R.reshape(index, (batch, channels, *outputs))])


converts("GlobalLpPool")(in_float32(lambda n: n.tvm_converter()))


@converts("LpPool")
@in_float32
def _lp_pool(n: Node):
    """Pad for ceil_mode: TVM multiplies means by the size of a window, also where its end is left out."""
    strides, _, spans, padding = _windows(n)
    rank, pads = len(spans), list(padding["pads"])
    for i, size in enumerate(n.shape[2:] if padding["ceil_mode"] else ()):
        total = size + pads[i] + pads[rank + i]
        steps = ceildiv(total - spans[i], strides[i])
        if steps * strides[i] < size + pads[i]:  # a window starts before the padding behind
            pads[rank + i] += steps * strides[i] + spans[i] - total
    return n.tvm_converter(*n.inputs, **padding | {"pads": pads, "ceil_mode": 0})


@converts("LRN")
@in_float32
def _local_response_normalization(n: Node):
    """Convert any rank, float dtype and size; of an even one, the window reaches further behind."""
    size, rest = n.get("size"), math.prod(n.shape[2:])
    squares = R.reshape(R.multiply(n.x, n.x), (n.shape[0], 1, n.shape[1], rest))
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = R.nn.avg_pool2d(squares, (size, 1), padding=pads, count_include_pad=True)
    scale = R.multiply(R.reshape(means, n.shape), n.const(n.get("alpha", 1e-4)))
    return R.divide(n.x, R.power(R.add(scale, n.const(n.get("bias", 1.0))), n.const(n.get("beta", 0.75))))


@converts("Col2Im")
def _col2im(n: Node):
    """Add up blocks (batch, channels * elements of a block, blocks) at their positions in an image."""
    image, block = n.known(1).tolist(), n.known(2).tolist()
    rank, dtype = len(image), n.dtype
    strides, dilations, pads = n.windows(rank)
    n.refuse_if(dtype == "bool", "Col2Im of bool, whose sum ONNX does not define; cast it to a number before")
    counts = window_counts(image, block, strides, dilations, pads)
    if n.shape[1] % math.prod(block) or n.shape[2] != math.prod(counts) or min(counts) < 1:
        raise ValueError(
            f"Col2Im: expected shape (batch, a multiple of {math.prod(block)}, {math.prod(counts)}) for "
            f"blocks of {block} in an image of {image}, got {n.shape}"
        )

    def added(x):
        taps = [te.reduce_axis((0, size), f"tap{i}") for i, size in enumerate(block)]

        def number(sample, channel, *position):
            row, column = channel, 0
            inside = []
            for i in range(rank):
                begin = position[i] + pads[i] - taps[i] * dilations[i]
                at = tirx.floordiv(begin, strides[i])
                row, column = row * block[i] + taps[i], column * counts[i] + at
                inside += [tirx.floormod(begin, strides[i]) == 0, at >= 0, at < counts[i]]
            value = tirx.if_then_else(tirx.all(*inside), x[sample, row, column], tirx.const(0, dtype))
            return te.sum(value, axis=taps)

        return te.compute((n.shape[0], n.shape[1] // math.prod(block), *image), number, "col2im")

    return n.builder.emit_te(added, n.x)


@converts("DeformConv")
def _deform_conv(n: Node):
    """Convolve an image that is read at positions moved by an input, and weighted by a mask."""
    reason = f"DeformConv: expected images (batch, channels, height, width), got {n.shape}"
    n.refuse_if(n.rank != 4, reason)
    _, weight, offset, bias, mask = (n.inputs[i] for i in range(5))
    filters, channels, *kernel = shape_of(weight)
    taps = math.prod(kernel)
    groups, parts = n.get("group", 1), n.get("offset_group", 1)
    strides, dilations, pads = n.windows(2)
    size = window_counts(n.shape[2:], kernel, strides, dilations, pads)
    expected = {
        "input": (n.x, (n.shape[0], channels * groups // parts * parts, *n.shape[2:])),
        "weight": (weight, (filters // groups * groups, channels, *n.get("kernel_shape", kernel))),
        "offset": (offset, (n.shape[0], 2 * parts * taps, *size)),
        "bias": (bias, (filters,)),
        "mask": (mask, (n.shape[0], parts * taps, *size)),
    }
    for name, (given, wanted) in expected.items():
        if given is not None and (got := shape_of(given)) != wanted:
            raise ValueError(f"DeformConv: expected its {name} to be of shape {wanted}, got {got}")
    wide = "float64" if n.dtype == "float64" else "float32"
    given = (n.x, weight, offset, bias, mask)
    x, weight, offset, bias, mask = (y if y is None else n.emit(n.cast(y, wide)) for y in given)
    how = {"kernel": kernel, "stride": strides, "dilate": dilations, "pad": pads, "parts": parts}
    columns = deformed(n.builder, x, offset, mask, size=size, **how)
    result = R.nn.conv2d(columns, R.reshape(weight, (filters, channels * taps, 1, 1)), groups=groups)
    if bias is not None:
        result = R.add(result, R.reshape(bias, (1, filters, 1, 1)))
    return R.astype(result, n.dtype)


@converts("DFT")
def _dft(n: Node):
    """Transform in float64 along an axis of real elements (…, 1) or complex ones (…, 2)."""
    onesided, inverse = bool(n.get("onesided", 0)), bool(n.get("inverse", 0))
    axis = n.get("axis", 1)
    if n.opset >= 20:
        axis = -2 if n.inputs[2] is None else n.known_int(2)
    rank = n.rank
    axis %= rank
    length = 2 * (n.shape[axis] - 1) if inverse and onesided else n.shape[axis]
    length = length if n.inputs[1] is None else n.known_int(1)
    if length < 1:
        raise ValueError(f"DFT: expected a dft_length from 1, got {length}")
    order = [i for i in range(rank) if i not in (axis, rank - 1)] + [axis, rank - 1]
    x = n.emit(R.permute_dims(R.astype(n.x, "float64"), order))
    result = transformed(x, length, inverse, onesided)
    return R.astype(R.permute_dims(result, np.argsort(order).tolist()), n.dtype)


@converts("STFT")
def _stft(n: Node):
    """Transform each frame of a signal (batch, length, 1 or 2), multiplied by a window."""
    step = n.known_int(1)
    window = n.inputs[2]
    width = n.shape[1] if window is None else shape_of(window)[0]
    length = width if n.inputs[3] is None else n.known_int(3)
    if step < 1 or not 1 <= length <= n.shape[1]:
        raise ValueError(
            f"STFT: expected a step from 1 and a frame of 1 to {n.shape[1]}, got {step} and {length}"
        )
    begins = np.arange(0, n.shape[1] - length + 1, step)
    frames = R.take(R.astype(n.x, "float64"), n.const(begins[:, None] + np.arange(length)), 1)
    if window is not None:
        frames = R.multiply(frames, R.reshape(R.astype(window, "float64"), (length, 1)))
    return R.astype(transformed(n.emit(frames), length, onesided=bool(n.get("onesided", 1))), n.dtype)


@converts("TfIdfVectorizer")
def _tf_idf(n: Node):
    """Count how often each n-gram of a constant pool of integers occurs in a row, and weight the counts."""
    reason = f"TfIdfVectorizer: expected a pool of integers and rows of them, got {n.shape}"
    n.refuse_if("pool_int64s" not in n.attributes or n.rank > 2, reason)
    pool, columns = np.array(n.get("pool_int64s")), np.array(n.get("ngram_indexes"))
    begins = [*n.get("ngram_counts"), len(pool)]
    mode, weights = n.text("mode", "TF"), np.array(n.get("weights", [1.0] * len(columns)), "float32")
    length, first = n.shape[-1], 0
    x = n.emit(R.reshape(n.emit(R.astype(n.x, "int64")), (-1, length)))
    size = int(columns.max()) + 1
    total = n.const(np.zeros((math.prod(n.shape[:-1]), size), "float32"))
    for order in range(1, len(begins)):
        grams = pool[begins[order - 1] : begins[order]].reshape(-1, order)
        indices = np.arange(first, first + len(grams))
        first += len(grams)
        repeated = len(np.unique(grams, axis=0)) < len(grams)
        repeated |= mode == "IDF" and len(set(columns)) < len(columns)
        n.refuse_if(repeated, "TfIdfVectorizer: expected different n-grams in its pool, of different indices")
        steps = range(1, 2 + (n.get("max_skip_count") if order > 1 else 0))
        spans = [np.arange(length - (order - 1) * step)[:, None] + step * np.arange(order) for step in steps]
        windows = np.concatenate(spans)
        counted = n.get("min_gram_length") <= order <= n.get("max_gram_length")
        if not counted or not len(grams) or not len(windows):
            continue
        given = n.emit(R.expand_dims(n.emit(R.take(x, n.const(windows), 1)), 2))
        counts = R.sum(R.min(R.astype(R.equal(given, n.const(grams)), "float32"), -1), 1)
        counts = R.minimum(counts, relax.const(1.0)) if mode == "IDF" else counts
        table = np.zeros((len(grams), size), "float32")
        table[np.arange(len(grams)), columns[indices]] = 1 if mode == "TF" else weights[indices]
        total = n.emit(R.add(total, R.matmul(counts, n.const(table))))
    return R.reshape(total, (*n.shape[:-1], size))
