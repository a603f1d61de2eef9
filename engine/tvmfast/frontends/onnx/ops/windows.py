"""Converters of ONNX operators on windows and signals.

MaxPool with its indices, LpPool, Col2Im, DeformConv, DFT, STFT, TfIdfVectorizer.
"""

import math

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op as R

from ....core.relax import ceildiv
from ...context import shape_of
from ...ops.common import deformed, transformed
from .node import Node, converts


@converts("MaxPool")
def _max_pool(n: Node):
    """Return, if asked for, the argmax of each window, too, as an index into the whole input."""
    (batch, channels, *sizes), kernel = n.shape, n.get("kernel_shape")
    rank = len(sizes)
    strides, dilations, pads = n.windows(rank)
    spans = [(window - 1) * dilation + 1 for window, dilation in zip(kernel, dilations, strict=True)]
    mode = n.text("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        missing = [
            max((math.ceil(size / stride) - 1) * stride + span - size, 0)
            for size, stride, span in zip(sizes, strides, spans, strict=True)
        ]
        pads = [less // 2 for less in missing] + [less - less // 2 for less in missing]
        pads = pads if mode == "SAME_UPPER" else pads[rank:] + pads[:rank]
    pooled = n.emit(n.tvm_converter(*n.inputs, pads=pads, auto_pad=b"NOTSET"))
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


@converts("LpPool")
def _lp_pool(n: Node):
    """Pad for ceil_mode: TVM multiplies means by the size of a window, also where its end is left out."""
    rank = n.rank - 2
    auto_pad = n.text("auto_pad", "NOTSET")
    if not n.get("ceil_mode", 0) or auto_pad.startswith("SAME"):
        return n.tvm_converter()
    kernel, (strides, dilations, pads) = n.get("kernel_shape"), n.windows(rank)
    pads = [0] * 2 * rank if auto_pad == "VALID" else pads
    for i, size in enumerate(n.shape[2:]):
        span, total = (kernel[i] - 1) * dilations[i] + 1, size + pads[i] + pads[rank + i]
        steps = ceildiv(total - span, strides[i])
        if steps * strides[i] < size + pads[i]:  # a window starts before the padding behind
            pads[rank + i] += steps * strides[i] + span - total
    return n.tvm_converter(*n.inputs, pads=pads, ceil_mode=0, auto_pad=b"NOTSET")


@converts("Col2Im")
def _col2im(n: Node):
    """Add up blocks (batch, channels * elements of a block, blocks) at their positions in an image."""
    image, block = n.known(1).tolist(), n.known(2).tolist()
    rank, dtype = len(image), n.dtype
    strides, dilations, pads = n.windows(rank)
    n.refuse_if(dtype == "bool", "Col2Im of bool, whose sum ONNX does not define; cast it to a number before")
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
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
    size = [
        (n.shape[2 + i] + pads[i] + pads[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in (0, 1)
    ]
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
    x, weight, offset, bias, mask = (
        y if y is None or n.dtype == wide else n.emit(R.astype(y, wide))
        for y in (n.x, weight, offset, bias, mask)
    )
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
