"""Converters of MXNet's layers (see call.py), recurrent ones too, and of what trains them, the outputs."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
from tvm import relax
from tvm.relax import op

from ....core.relax import ceildiv
from ....kernels.recurrent.cell import OF_CUDNN
from ....kernels.recurrent.emit import emit
from ....kernels.resize import MXNET
from ...context import dtype_of, shape_of
from ...ops.common import counter, deformed, local_response_norm, padded, product, window_counts
from ..files import Node
from .call import CONVERTERS, Call, converts, in_float32

# ---------------------------------------------------------------- convolutions and products


def _window(c: Call, axes: int):
    """Return kernel, stride, dilation and padding."""
    c.refuse(layout=("NCW", "NCHW", "NCDHW"))
    if c.rank != axes + 2:
        raise ValueError(f"a kernel of {axes} axes for an input of shape {c.shape}")
    defaults = {"kernel": 1, "stride": 1, "dilate": 1, "pad": 0}
    return [c.integers(name, axes, default) for name, default in defaults.items()]


def _axes_of_kernel(c: Call) -> int:
    kernel = c.need("kernel")
    return 1 if isinstance(kernel, int) else len(kernel)


def _biased(c: Call, result: relax.Expr, filters: int, number: int = 2, no_bias: bool = False) -> relax.Expr:
    """Add the bias, which is the input of that number, unless there is none."""
    return result if c.get("no_bias", no_bias) else op.add(result, c.along(number, filters, axis=1))


@converts("Convolution", "Convolution_v1")
def _convolution(c: Call):
    axes = _axes_of_kernel(c)
    kernel, stride, dilate, pad = _window(c, axes)
    filters, groups = int(c.need("num_filter")), int(c.get("num_group", 1))
    if c.shape[1] % groups or filters % groups:
        raise ValueError(f"{c.shape[1]} channels to {filters} in {groups} groups")
    weight = c.expect(1, filters, c.shape[1] // groups, *kernel)
    convolve = (op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)[axes - 1]
    result = convolve(c.x, weight, strides=stride, padding=[*pad, *pad], dilation=dilate, groups=groups)
    return _biased(c, result, filters)


@converts("Deconvolution")
def _deconvolution(c: Call):
    axes = _axes_of_kernel(c)
    c.refuse_if(axes > 2, "a transposed convolution of three axes")
    kernel, stride, dilate, pad = _window(c, axes)
    adj = c.integers("adj", axes, 0)
    filters, groups = int(c.need("num_filter")), int(c.get("num_group", 1))
    if wanted := c.get("target_shape"):
        wanted = [wanted] if isinstance(wanted, int) else wanted
        if any(wanted):
            sizes = zip(stride, c.shape[2:], dilate, kernel, strict=True)
            full = [s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in sizes]
            if any(n > m for n, m in zip(wanted, full, strict=True)):
                raise ValueError(f"target_shape={tuple(wanted)}, larger than {tuple(full)}")
            excess = [m - n for n, m in zip(wanted, full, strict=True)]
            pad, adj = [(n + 1) // 2 for n in excess], [n % 2 for n in excess]
    weight = c.expect(1, c.shape[1], filters // groups, *kernel)
    convolve = (op.nn.conv1d_transpose, op.nn.conv2d_transpose)[axes - 1]
    options = {"strides": stride, "padding": [*pad, *pad], "output_padding": adj, "dilation": dilate}
    if groups == 1:
        return _biased(c, convolve(c.x, weight, **options), filters, no_bias=True)
    # TVM's grouped transposed convolution expects other shapes, so each group becomes one of its own.
    size, parts = c.shape[1] // groups, []
    for n in range(0, c.shape[1], size):
        x = op.strided_slice(c.x, [1], [n], [n + size])
        part = op.strided_slice(weight, [0], [n], [n + size])
        parts.append(convolve(x, part, **options))
    return _biased(c, op.concat(parts, 1), filters, no_bias=True)


@converts("FullyConnected")
def _fully_connected(c: Call):
    units = int(c.need("num_hidden"))
    x, width = c.x, c.shape[-1]
    if c.get("flatten", True):
        width = math.prod(c.shape[1:])
        x = op.reshape(x, (c.shape[0], width))
    result = op.matmul(x, op.permute_dims(c.expect(1, units, width), [1, 0]))
    return result if c.get("no_bias", False) else op.add(result, c.expect(2, units))


@converts("dot")
def _dot(c: Call):
    """Sum over the last axis of one operand and the first of the other, or the other way round."""
    a, b = c.inputs
    of_a = 0 if c.get("transpose_a", False) else c.rank - 1
    of_b = len(shape_of(b)) - 1 if c.get("transpose_b", False) else 0
    result = contracted(c, a, b, [of_a], [of_b])
    return op.reshape(result, (1,)) if c.rank == len(shape_of(b)) == 1 else result


def contracted(c: Call, a: relax.Expr, b: relax.Expr, of_a: list[int], of_b: list[int]) -> relax.Expr:
    """Sum the products over some axes of two tensors, in one product of matrices."""
    left, right = (
        [axis for axis in range(len(shape_of(x))) if axis not in axes] for x, axes in ((a, of_a), (b, of_b))
    )
    shape = [*(shape_of(a)[axis] for axis in left), *(shape_of(b)[axis] for axis in right)]
    depth = math.prod(shape_of(a)[axis] for axis in of_a)
    a, b = (
        x if order == sorted(order) else c.emit(op.permute_dims(x, order))
        for x, order in ((a, left + of_a), (b, of_b + right))
    )
    return op.reshape(op.matmul(op.reshape(a, [-1, depth]), op.reshape(b, [depth, -1])), shape)


@converts("batch_dot")
def _batch_dot(c: Call):
    return product(*c.inputs, c.get("transpose_a", False), c.get("transpose_b", False))


@converts("_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution")
def _deformable_convolution(c: Call):
    """Interpolate the input at the offsets' positions into columns, and convolve these by 1x1.

    Without masks, MXNet reads nothing outside the image; with them, it interpolates with zeros there.
    """
    kernel, stride, dilate, pad = _window(c, 2)
    modulated = c.op.startswith("_contrib_Modulated")
    filters, groups = int(c.need("num_filter")), int(c.get("num_group", 1))
    parts = int(c.get("num_deformable_group", 1))
    size = window_counts(c.shape[2:], kernel, stride, dilate, [*pad, *pad])
    taps = math.prod(kernel)
    offset = c.expect(1, c.shape[0], 2 * parts * taps, *size)
    mask = c.expect(2, c.shape[0], parts * taps, *size) if modulated else None
    index = 3 if modulated else 2
    weight = c.expect(index, filters, c.shape[1] // groups, *kernel)
    how = {"kernel": kernel, "stride": stride, "dilate": dilate, "pad": pad, "parts": parts, "size": size}
    columns = deformed(c.builder, c.x, offset, mask, inside=not modulated, **how)
    weight = op.reshape(weight, (filters, c.shape[1] // groups * taps, 1, 1))
    return _biased(c, op.nn.conv2d(columns, weight, groups=groups), filters, index + 1)


@converts("im2col")
def _im2col(c: Call):
    """Return the windows as columns (batch, channels * taps, places)."""
    kernel, stride, dilate, pad = _window(c, 2)
    size = window_counts(c.shape[2:], kernel, stride, dilate, [*pad, *pad])
    x = c.emit(op.nn.pad(c.x, [0, 0, 0, 0, *(n for p in pad for n in (p, p))]))
    taps = []
    for first in itertools.product(*map(range, kernel)):
        begin = [n * d for n, d in zip(first, dilate, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, size, stride, strict=True)]
        taps.append(c.emit(op.strided_slice(x, [2, 3], begin, end, stride)))
    return op.reshape(c.stacked(taps, 2), (c.shape[0], c.shape[1] * math.prod(kernel), math.prod(size)))


# ---------------------------------------------------------------- normalization


@converts(
    "BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU"
)
@in_float32
def _batch_norm(c: Call):
    axis = int(c.get("axis", 1)) % c.rank
    c.refuse(output_mean_var=(False,))
    gamma, beta, mean, variance = (c.expect(n, c.shape[axis]) for n in (1, 2, 3, 4))
    if c.get("fix_gamma", True):
        gamma = c.const(np.ones(c.shape[axis]), dtype_of(gamma))
    # MXNet's SyncBatchNorm has no axis, and the default epsilon of all of them is 0.001.
    epsilon = float(c.get("eps", 1e-3))
    result = op.nn.batch_norm(c.x, gamma, beta, mean, variance, axis, epsilon, training=False)
    result = c.emit(relax.TupleGetItem(c.emit(result), 0))
    return op.nn.relu(result) if c.op.endswith("ReLU") else result


@converts("InstanceNorm")
@in_float32
def _instance_norm(c: Call):
    weights = (c.expect(number, c.shape[1]) for number in (1, 2))
    return op.nn.instance_norm(c.x, *weights, 1, list(range(2, c.rank)), float(c.get("eps", 1e-3)))


@converts("LayerNorm")
@in_float32
def _layer_norm(c: Call):
    axis = int(c.get("axis", -1)) % c.rank
    weights = (c.expect(number, c.shape[axis]) for number in (1, 2))
    return op.nn.layer_norm(c.x, *weights, [axis], float(c.get("eps", 1e-5)))


@converts("GroupNorm")
@in_float32
def _group_norm(c: Call):
    """Normalize; gamma and beta have one element per group or, in some versions, per channel."""
    groups, epsilon = int(c.get("num_groups", 1)), float(c.get("eps", 1e-5))
    if shape_of(c.inputs[1]) == (groups,):
        weights = (c.expect(number, groups) for number in (1, 2))
        rows = op.reshape(c.x, (c.shape[0], groups, math.prod(c.shape[1:]) // groups))
        return op.reshape(op.nn.instance_norm(rows, *weights, 1, [2], epsilon), c.shape)
    weights = (c.expect(number, c.shape[1]) for number in (1, 2))
    return op.nn.group_norm(c.x, *weights, groups, 1, list(range(2, c.rank)), epsilon)


@converts("L2Normalization")
def _l2_normalization(c: Call):
    """Divide by the norm in float64, in which no square of a float32 overflows or becomes 0."""
    c.refuse(mode=("instance", "channel", "spatial"))
    axes = {"instance": range(1, c.rank), "channel": [1], "spatial": range(2, c.rank)}
    x = c.cast(c.x, "float64")
    squares = op.sum(x * x, list(axes[c.get("mode", "instance")]), keepdims=True)
    return c.cast(c.emit(x / op.sqrt(squares + relax.const(float(c.get("eps", 1e-10)), "float64"))), c.dtype)


@converts("LRN")
@in_float32
def _lrn(c: Call):
    bias, alpha = float(c.get("knorm", 2)), float(c.get("alpha", 1e-4))
    beta = float(c.get("beta", 0.75))
    return local_response_norm(c.x, int(c.need("nsize")), 1, bias, alpha, beta)


# ---------------------------------------------------------------- pooling and resizing


@converts("Pooling", "Pooling_v1")
def _pooling(c: Call):
    kind, axes = c.get("pool_type", "max"), c.rank - 2
    c.refuse(layout=("NCW", "NCHW", "NCDHW"), pool_type=("max", "avg", "sum", "lp"), p_value=(1, 2, 3))
    if kind == "lp":
        return _lp_pooling(c)
    convention = c.get("pooling_convention", "valid")
    c.refuse(pooling_convention=("valid", "full", "same") if axes == 1 else ("valid", "full"))
    plane = list(range(2, c.rank))
    if c.get("global_pool", False):
        reduce = {"max": op.max, "avg": op.mean, "sum": op.sum}[kind]
        return reduce(c.x, plane, keepdims=True)
    kernel, stride = c.integers("kernel", axes, 1), c.integers("stride", axes, 1)
    if convention == "same":  # MXNet 1.9.1 wants three pads of one axis, all 0
        c.refuse(pad=(0, (0,), (0, 0, 0)))
    pad = [0] if convention == "same" else c.integers("pad", axes, 0)
    excess = []  # how far the last window reaches beyond the padding
    for n, k, s, p in zip(c.shape[2:], kernel, stride, pad, strict=True):
        if n + 2 * p < k:
            raise ValueError(f"a window of {k} on {n + 2 * p} pixels")
        full = ceildiv(n + 2 * p - k, s)
        steps = {"valid": (n + 2 * p - k) // s, "full": full, "same": ceildiv(n, s) - 1}[convention]
        excess.append(max(0, steps * s + k - (n + 2 * p)))
    padding = [*pad, *(p + e for p, e in zip(pad, excess, strict=True))]
    options = {"strides": stride, "padding": padding}
    # A window may have padding alone: before the pixels, or behind them, where "full" adds a window.
    reach = [p + s if convention == "full" else p + 1 for p, s in zip(pad, stride, strict=True)]
    is_empty = any(k < n for k, n in zip(kernel, reach, strict=True))
    if kind == "max":
        result = (op.nn.max_pool1d, op.nn.max_pool2d, op.nn.max_pool3d)[axes - 1](c.x, kernel, **options)
        return op.maximum(result, c.const(np.finfo(c.dtype).min, c.dtype)) if is_empty else result
    average = (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d)[axes - 1]
    on_pixels = kind == "avg" and not c.get("count_include_pad", True)
    if on_pixels and (axes < 3 or not is_empty):
        return average(c.x, kernel, count_include_pad=False, **options)
    means = average(c.x, kernel, count_include_pad=True, **options)
    if kind == "avg" and not on_pixels and not any(excess):
        return means
    # The mean is over the part of the window on the pixels and their padding, the sum over all of it.
    lengths = []
    for n, k, s, p, e in zip(c.shape[2:], kernel, stride, pad, excess, strict=True):
        begins = np.arange(-p, n + p + e - k + 1, s)
        ends = np.minimum(begins + k, n if on_pixels else n + p)
        lengths.append(ends - (np.maximum(begins, 0) if on_pixels else begins))
    counts = np.ones(()) if kind == "sum" else np.prod(np.meshgrid(*lengths, indexing="ij"), axis=0)
    if axes < 3:  # of three, MXNet divides by 0 where a window begins where the pixels or the padding end
        counts = np.maximum(counts, 1)
    with np.errstate(divide="ignore"):
        return means * c.const(math.prod(kernel) / counts, c.dtype)


def _lp_pooling(c: Call) -> relax.Expr:
    """Return a root of each window's sum of powers, which keep their signs; halves are summed in float32."""
    power, wide = int(c.need("p_value")), "float32" if c.dtype == "float16" else c.dtype
    x = c.emit(c.cast(c.x, wide))
    x = c.emit(functools.reduce(op.multiply, [x] * power))
    node = Node(c.op, c.node.name, c.node.attrs | {"pool_type": "sum"})
    total = c.emit(_pooling(Call(node, [x], c.names, c.builder)))
    if power > 1:
        roots = Node("sqrt" if power == 2 else "cbrt", c.node.name, {})
        total = c.emit(CONVERTERS[roots.op](Call(roots, [total], c.names, c.builder)))
    return c.cast(total, c.dtype)


@converts("_contrib_AdaptiveAvgPooling2D")
def _adaptive_average(c: Call):
    size = c.get("output_size", 1)
    square = size[0] if isinstance(size, tuple) and len(size) == 1 else size
    return op.nn.adaptive_avg_pool2d(
        c.x, [square, square] if isinstance(square, int) else c.integers("output_size", 2, 1)
    )


@converts("UpSampling")
def _up_sampling(c: Call):
    scale, kind = int(c.need("scale")), c.get("sample_type", "nearest")
    size = tuple(n * scale for n in c.shape[2:])
    if kind == "bilinear":
        kernel, pad = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
        weight = c.expect(1, c.shape[1], 1, kernel, kernel)
        square = {"kernel": kernel, "stride": scale, "pad": pad}
        attrs = {name: f"({size}, {size})" for name, size in square.items()}
        attrs |= {"num_filter": str(c.shape[1]), "num_group": str(c.shape[1]), "no_bias": "True"}
        node = Node("Deconvolution", c.node.name, attrs)
        return _deconvolution(Call(node, [c.x, weight], c.names, c.builder))
    how = {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}
    images = [op.image.resize2d(x, size, method="nearest_neighbor", **how) for x in c.inputs]
    if len(images) == 1:
        return images[0]
    summed = c.get("multi_input_mode", "concat") == "sum"
    return functools.reduce(op.add, images) if summed else op.concat(images, 1)


@converts("_contrib_BilinearResize2D")
def _bilinear_resize(c: Call):
    mode = c.get("mode", "size")
    height, width = c.shape[2:]
    if mode == "like" or len(c.inputs) > 1:
        size = shape_of(c.inputs[1])[2:]
    else:
        size = _resized(c, mode, height, width)
    if tuple(size) == (height, width):
        return c.x
    # Without aligned corners, a single row is the first one, too.
    mode = "align_corners" if c.get("align_corners", True) else "pytorch_half_pixel"
    how = {"coordinate_transformation_mode": mode, "rounding_method": MXNET}
    return op.image.resize2d(c.x, size, method="linear", **how)


def _resized(c: Call, mode: str, height: int, width: int) -> tuple[int, ...]:
    """Return the size of the result; "to_even_up" and its like change a size by 1 or not at all."""
    c.refuse(mode=("size", "odd_scale", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"))
    if mode.startswith("to_"):
        odd, step = "odd" in mode, -1 if mode.endswith("down") else 1
        return tuple(n if n % 2 == odd else n + step for n in (height, width))
    scale = c.get("scale_height")
    if mode == "odd_scale":
        scales = float(c.need("scale_height")), float(c.need("scale_width"))
        sizes = zip((height, width), scales, strict=True)
        return tuple(int(n * s) if n % 2 == 0 else int((n - 1) * s) + 1 for n, s in sizes)
    if scale is not None:
        return int(scale * height), int(c.need("scale_width") * width)
    return c.get("height", 1), c.get("width", 1)


@converts("Crop")
def _crop(c: Call):
    size = shape_of(c.inputs[1])[2:] if len(c.inputs) > 1 else c.integers("h_w", 2, 0)
    first = c.integers("offset", 2, 0)
    if c.get("center_crop", False):
        first = [(n - m) // 2 for n, m in zip(c.shape[2:], size, strict=True)]
    return op.strided_slice(c.x, [2, 3], first, [a + n for a, n in zip(first, size, strict=True)])


@converts("Pad", "pad")
def _pad(c: Call):
    width, mode = c.need("pad_width"), c.get("mode", "constant")
    if mode == "constant":
        return op.nn.pad(c.x, list(width), pad_value=float(c.get("constant_value", 0)))
    c.refuse(mode=("edge", "reflect"))
    return padded(c.x, list(zip(width[::2], width[1::2], strict=True)), mode)


# ---------------------------------------------------------------- recurrent layers


@converts("RNN")
def _recurrent(c: Call):
    """Convert all layers; the parameters are one vector, the weights of all layers and then all biases."""
    c.refuse(projection_size=(), lstm_state_clip_min=(), lstm_state_clip_max=(), use_sequence_length=(False,))
    mode, units = c.need("mode"), int(c.need("state_size"))
    layers = int(c.need("num_layers"))
    if mode not in OF_CUDNN:
        raise ValueError(f"mode={mode}; expected one of {', '.join(OF_CUDNN)}")
    if c.rank != 3:
        raise ValueError(f"an input of shape {c.shape}; expected three axes")
    cell, directions = OF_CUDNN[mode], 2 if c.get("bidirectional") else 1
    rows, (_, batch, width) = len(cell.gates) * units, c.shape
    inner = units * directions
    widths = [width if layer == 0 else inner for layer in range(layers) for _ in range(directions)]
    shapes = [shape for n in widths for shape in ((rows, n), (rows, units))] + [(rows,)] * 2 * len(widths)
    weights = _parameters(c, shapes)
    given = [_state(c, n, len(widths), batch, units) for n in range(2, 4 if mode == "lstm" else 3)]
    x, last = c.x, []
    for layer in range(layers):
        results = []
        for direction in range(directions):
            n = layer * directions + direction
            weight, recurrent = weights[2 * n : 2 * n + 2]
            biases = tuple(weights[2 * (len(widths) + n) :][:2])
            states = [c.element(state, n) for state in given]
            each = replace(cell, reverse=direction == 1)
            results.append(emit(c.builder, each, x, weight, recurrent, biases, states))
        x = c.emit(op.concat([result[0] for result in results], 2)) if directions > 1 else results[0][0]
        last += [result[1:] for result in results]
    finals = [c.stacked(parts) for parts in zip(*last, strict=True)]
    return [x, *finals] if c.get("state_outputs") else [x]


def _state(c: Call, number: int, *shape: int) -> relax.Expr | None:
    """Return the states of all layers, an input; None for Gluon's own, zeros of a dynamic batch."""
    empty = number < len(c.inputs) and c.inputs[number] is None
    return None if empty else c.expect(number, *shape)


def _parameters(c: Call, shapes: list[tuple[int, ...]]) -> list[relax.Expr]:
    """Cut the vector of parameters, the second input, into tensors."""
    parts, begin = [], 0
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes]
    vector = c.expect(1, sum(sizes))
    for shape, size in zip(shapes, sizes, strict=True):
        part = c.emit(op.strided_slice(vector, [0], [begin], [begin + size]))
        parts.append(c.emit(op.reshape(part, shape)))
        begin += size
    return parts


# ---------------------------------------------------------------- outputs


@converts("softmax", "log_softmax", "softmin", "SoftmaxActivation")
def _softmax(c: Call):
    axis, temperature = int(c.get("axis", -1)) % c.rank, c.get("temperature")
    if c.op == "SoftmaxActivation":
        axis = 1 if c.get("mode", "instance") == "channel" else -1
    x = op.negative(c.x) if c.op == "softmin" else c.x
    if temperature not in (None, 1, 1.0):
        x = op.divide(x, c.const(temperature))
    apply = op.nn.log_softmax if c.op == "log_softmax" else op.nn.softmax
    if not c.get("use_length", False):
        return c.cast(c.emit(apply(x, axis)), c.get("dtype", c.dtype))
    others = [n for i, n in enumerate(c.shape) if i != axis]
    lengths = c.checked(c.emit(c.cast(c.expect(1, *others), "int64")), [c.shape[axis] + 1], negative=False)
    inside = c.emit(op.less(counter(c.shape, axis), op.expand_dims(lengths, axis)))
    result = c.emit(apply(c.emit(op.where(inside, x, c.const(-math.inf))), axis))
    return c.cast(c.emit(op.where(inside, result, c.const(0))), c.get("dtype", c.dtype))


@converts("SoftmaxOutput", "Softmax")
def _softmax_output(c: Call):
    if c.get("multi_output", False):
        return op.nn.softmax(c.x, 1)
    if c.get("preserve_shape", False) or c.rank <= 2:
        return op.nn.softmax(c.x, -1)
    rows = op.reshape(c.x, (c.shape[0], math.prod(c.shape[1:])))
    return op.reshape(op.nn.softmax(rows, 1), c.shape)


converts("LogisticRegressionOutput")(lambda c: op.sigmoid(c.x))
_IDENTITIES = (
    *("identity", "_copy", "BlockGrad", "stop_gradient", "Dropout", "MakeLoss", "make_loss"),
    *("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput"),
    *("_CrossDeviceCopy", "_identity_with_attr_like_rhs"),
)
converts(*_IDENTITIES)(lambda c: c.x)
