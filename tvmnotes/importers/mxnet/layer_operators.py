"""The layers of MXNet's networks in Relax, see call.py: convolutions, norms, pooling, activations, outputs."""

import math

import numpy as np
from tvm import relax
from tvm.relax import op

from .call import Call, converts, dtype_of, shape_of, sum_of
from .files import Node

# ---------------------------------------------------------------- convolutions and products


def _window(c: Call, axes: int):
    """Kernel, stride, dilation and padding."""
    usual = ("None", "NCW", "NCHW", "NCDHW")
    c.refuse(layout=usual)
    if c.rank != axes + 2:
        raise ValueError(f"a kernel of {axes} axes for an input of shape {c.shape}")
    return (
        c.numbers("kernel", axes, 1),
        c.numbers("stride", axes, 1),
        c.numbers("dilate", axes, 1),
        c.numbers("pad", axes, 0),
    )


def _axes_of_kernel(c: Call) -> int:
    kernel = c.need("kernel")
    return 1 if isinstance(kernel, int) else len(kernel)


def _biased(c: Call, made: relax.Expr, filters: int, default: bool = False) -> relax.Expr:
    if c.get("no_bias", default):
        return made
    return op.add(c.emit(made), c.along(c.expect(2, filters), 1))


@converts("Convolution", "Convolution_v1")
def _convolution(c: Call):
    axes = _axes_of_kernel(c)
    kernel, stride, dilate, pad = _window(c, axes)
    filters, groups = int(c.need("num_filter")), int(c.get("num_group", 1))
    if c.shape[1] % groups or filters % groups:
        raise ValueError(f"{c.shape[1]} channels to {filters} in {groups} groups")
    weight = c.expect(1, filters, c.shape[1] // groups, *kernel)
    convolve = (op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)[axes - 1]
    made = convolve(c.x, weight, strides=stride, padding=[*pad, *pad], dilation=dilate, groups=groups)
    return _biased(c, made, filters)


@converts("Deconvolution")
def _deconvolution(c: Call):
    axes = _axes_of_kernel(c)
    if axes > 2:
        raise NotImplementedError("a transposed convolution of three axes")
    kernel, stride, dilate, pad = _window(c, axes)
    adj, filters, groups = c.numbers("adj", axes, 0), int(c.need("num_filter")), int(c.get("num_group", 1))
    if wanted := c.get("target_shape"):
        wanted = [wanted] if isinstance(wanted, int) else wanted
        if any(wanted):
            full = [
                s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(stride, c.shape[2:], dilate, kernel, strict=True)
            ]
            if any(n > m for n, m in zip(wanted, full, strict=True)):
                raise ValueError(f"target_shape={tuple(wanted)}, larger than {tuple(full)}")
            excess = [m - n for n, m in zip(wanted, full, strict=True)]
            pad, adj = [(n + 1) // 2 for n in excess], [n % 2 for n in excess]
    weight = c.expect(1, c.shape[1], filters // groups, *kernel)
    convolve = (op.nn.conv1d_transpose, op.nn.conv2d_transpose)[axes - 1]
    options = {"strides": stride, "padding": [*pad, *pad], "output_padding": adj, "dilation": dilate}
    if groups == 1:
        return _biased(c, convolve(c.x, weight, **options), filters, default=True)
    # TVM's transposed convolution in groups goes by other shapes, so each group is one of its own.
    xs, weights = ([c.emit(op.strided_slice(e, [axis], [g * n], [g * n + n])) for g in range(groups)]
                   for e, axis, n in ((c.x, 1, c.shape[1] // groups), (weight, 0, c.shape[1] // groups)))  # fmt: skip
    parts = [c.emit(convolve(x, w, **options)) for x, w in zip(xs, weights, strict=True)]
    return _biased(c, op.concat(parts, 1), filters, default=True)


@converts("FullyConnected")
def _fully_connected(c: Call):
    units, x = int(c.need("num_hidden")), c.x
    if c.get("flatten", True):
        x = c.emit(op.reshape(x, (c.shape[0], math.prod(c.shape[1:]))))
    weight = c.expect(1, units, shape_of(x)[-1])
    made = op.matmul(x, c.emit(op.permute_dims(weight, [1, 0])))
    return made if c.get("no_bias", False) else op.add(c.emit(made), c.expect(2, units))


@converts("dot")
def _dot(c: Call):
    """The last axis of one with the first of the other."""
    a, b = c.inputs
    if c.get("transpose_a", False):
        a = c.emit(op.permute_dims(a, [*range(1, len(shape_of(a))), 0]))
    if c.get("transpose_b", False):
        b = c.emit(op.permute_dims(b, [len(shape_of(b)) - 1, *range(len(shape_of(b)) - 1)]))
    shape_a, shape_b = shape_of(a), shape_of(b)
    a = c.emit(op.reshape(a, (math.prod(shape_a[:-1]), shape_a[-1])))
    b = c.emit(op.reshape(b, (shape_b[0], math.prod(shape_b[1:]))))
    return op.reshape(c.emit(op.matmul(a, b)), (*shape_a[:-1], *shape_b[1:]) or (1,))


@converts("batch_dot", "linalg_gemm2", "_linalg_gemm2")
def _batch_dot(c: Call):
    turn = [*range(c.rank - 2), c.rank - 1, c.rank - 2]
    a, b = (
        c.emit(op.permute_dims(each, turn)) if c.get(name, False) else each
        for each, name in zip(c.inputs, ("transpose_a", "transpose_b"), strict=True)
    )
    made, alpha = op.matmul(a, b), c.get("alpha", 1.0)
    return made if alpha == 1 else op.multiply(c.emit(made), c.const(alpha))


@converts("_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution")
def _deformable_convolution(c: Call):
    """The input at the places that the offsets name, between pixels, as columns; then a 1x1 convolution of them."""
    from .detection_operators import deformed

    kernel, stride, dilate, pad = _window(c, 2)
    modulated = c.node.op.startswith("_contrib_Modulated")
    filters, groups, parts = (
        int(c.need("num_filter")),
        int(c.get("num_group", 1)),
        int(c.get("num_deformable_group", 1)),
    )
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(c.shape[2:], pad, dilate, kernel, stride, strict=True)
    ]
    taps = math.prod(kernel)
    offset = c.expect(1, c.shape[0], 2 * parts * taps, *size)
    mask = c.expect(2, c.shape[0], parts * taps, *size) if modulated else None
    place = 3 if modulated else 2
    weight = c.expect(place, filters, c.shape[1] // groups, *kernel)
    columns = c.builder.emit_te(
        deformed, c.x, offset, *([mask] if modulated else []), kernel=kernel, stride=stride, dilate=dilate, pad=pad,
        parts=parts, size=size,
    )  # fmt: skip
    weight = c.emit(op.reshape(weight, (filters, c.shape[1] // groups * taps, 1, 1)))
    made = op.nn.conv2d(columns, weight, groups=groups)
    return made if c.get("no_bias", False) else op.add(c.emit(made), c.along(c.expect(place + 1, filters), 1))


# ---------------------------------------------------------------- normalization


@converts("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(c: Call):
    axis = int(c.get("axis", 1)) % c.rank
    if c.get("output_mean_var", False):
        raise NotImplementedError("output_mean_var=True")
    gamma, beta, mean, variance = (c.expect(n, c.shape[axis]) for n in (1, 2, 3, 4))
    if c.get("fix_gamma", True):
        gamma = c.const(np.ones(c.shape[axis]), dtype_of(gamma))
    # MXNet's SyncBatchNorm has no axis, and the default epsilon of all of them is 0.001.
    made = op.nn.batch_norm(c.x, gamma, beta, mean, variance, axis, float(c.get("eps", 1e-3)), training=False)
    return relax.TupleGetItem(c.emit(made), 0)


@converts("InstanceNorm")
def _instance_norm(c: Call):
    made = _normalized(c, c.x, list(range(2, c.rank)), float(c.get("eps", 1e-3)))
    return _scaled(c, made, 1)


def _scaled(c: Call, made: relax.Expr, axis: int) -> relax.Expr:
    """Times gamma, plus beta, which lie along an axis."""
    gamma, beta = (c.along(c.expect(n, c.shape[axis]), axis) for n in (1, 2))
    return op.add(c.emit(op.multiply(made, gamma)), beta)


def _normalized(c: Call, x: relax.Expr, axes: list[int], epsilon: float) -> relax.Expr:
    centred = c.emit(op.subtract(x, c.emit(op.mean(x, axes, keepdims=True))))
    variance = c.emit(op.mean(c.emit(op.multiply(centred, centred)), axes, keepdims=True))
    return c.emit(op.divide(centred, c.emit(op.sqrt(c.emit(op.add(variance, c.const(epsilon)))))))


@converts("LayerNorm")
def _layer_norm(c: Call):
    axis = int(c.get("axis", -1)) % c.rank
    return _scaled(c, _normalized(c, c.x, [axis], float(c.get("eps", 1e-5))), axis)


@converts("GroupNorm")
def _group_norm(c: Call):
    """Its gamma and beta have a number for each group; in some versions, for each channel."""
    groups = int(c.get("num_groups", 1))
    made = c.emit(op.reshape(c.x, (c.shape[0], groups, math.prod(c.shape[1:]) // groups)))
    made = _normalized(c, made, [2], float(c.get("eps", 1e-5)))
    of_groups = shape_of(c.inputs[1]) == (groups,)
    if not of_groups:
        made = c.emit(op.reshape(made, c.shape))
    size, rest = (groups, (1,)) if of_groups else (c.shape[1], (1,) * (c.rank - 2))
    gamma, beta = (c.emit(op.reshape(c.expect(n, size), (1, size, *rest))) for n in (1, 2))
    return op.reshape(c.emit(op.add(c.emit(op.multiply(made, gamma)), beta)), c.shape)


@converts("L2Normalization")
def _l2_normalization(c: Call):
    mode = c.get("mode", "instance")
    axes = {"instance": range(1, c.rank), "channel": [1], "spatial": range(2, c.rank)}.get(mode)
    if axes is None:
        raise NotImplementedError(f"mode={mode}")
    squares = c.emit(op.sum(c.emit(op.multiply(c.x, c.x)), list(axes), keepdims=True))
    return op.divide(c.x, c.emit(op.sqrt(c.emit(op.add(squares, c.const(c.get("eps", 1e-10)))))))


@converts("LRN")
def _lrn(c: Call):
    size, (batch, channels, *plane) = int(c.need("nsize")), c.shape
    lines = c.emit(op.reshape(c.emit(op.multiply(c.x, c.x)), (batch, 1, channels, math.prod(plane))))
    around = (size // 2, 0, size // 2, 0)
    mean = c.emit(op.nn.avg_pool2d(lines, (size, 1), padding=around, count_include_pad=True))
    alpha, beta, knorm = (
        c.const(c.get(name, usual)) for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("knorm", 2.0))
    )
    base = c.emit(op.add(c.emit(op.multiply(c.emit(op.reshape(mean, c.shape)), alpha)), knorm))
    return op.divide(c.x, c.emit(op.power(base, beta)))


# ---------------------------------------------------------------- pooling and resizing


@converts("Pooling", "Pooling_v1")
def _pooling(c: Call):
    kind, axes = c.get("pool_type", "max"), c.rank - 2
    c.refuse(layout=("NCW", "NCHW", "NCDHW"), pool_type=("max", "avg", "sum"), pooling_convention=("valid", "full"))
    plane = list(range(2, c.rank))
    if c.get("global_pool", False):
        reduce = {"max": op.max, "avg": op.mean, "sum": op.sum}[kind]
        return reduce(c.x, plane, keepdims=True)
    kernel, stride, pad = c.numbers("kernel", axes, 1), c.numbers("stride", axes, 1), c.numbers("pad", axes, 0)
    excess = []  # how far the last window reaches beyond the padding
    for n, k, s, p in zip(c.shape[2:], kernel, stride, pad, strict=True):
        if n + 2 * p < k:
            raise ValueError(f"a window of {k} on {n + 2 * p} pixels")
        whole = -(-(n + 2 * p - k) // s) if c.get("pooling_convention", "valid") == "full" else (n + 2 * p - k) // s
        excess.append(max(0, whole * s + k - (n + 2 * p)))
    padding = [*pad, *(p + e for p, e in zip(pad, excess, strict=True))]
    options = {"strides": stride, "padding": padding}
    if kind == "max":
        return (op.nn.max_pool1d, op.nn.max_pool2d, op.nn.max_pool3d)[axes - 1](c.x, kernel, **options)
    average = (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d)[axes - 1]
    if kind == "avg" and not c.get("count_include_pad", True):
        return average(c.x, kernel, count_include_pad=False, **options)
    made = average(c.x, kernel, count_include_pad=True, **options)
    if kind == "avg" and not any(excess):
        return made
    # The mean is over what of the window lies on the pixels and their padding, the sum is over all.
    lengths = [
        np.minimum(np.arange(-p, n + p + e - k + 1, s) + k, n + p) - np.arange(-p, n + p + e - k + 1, s)
        for n, k, s, p, e in zip(c.shape[2:], kernel, stride, pad, excess, strict=True)
    ]
    counts = np.ones(()) if kind == "sum" else np.prod(np.meshgrid(*lengths, indexing="ij"), axis=0)
    return op.multiply(c.emit(made), c.const(math.prod(kernel) / counts))


@converts("_contrib_AdaptiveAvgPooling2D")
def _adaptive_pooling(c: Call):
    return op.nn.adaptive_avg_pool2d(c.x, c.numbers("output_size", 2, 1))


def _resized(c: Call, x, size, **how):
    return c.emit(op.image.resize2d(x, tuple(size), **how))


@converts("UpSampling")
def _up_sampling(c: Call):
    scale, kind = int(c.need("scale")), c.get("sample_type", "nearest")
    size = [n * scale for n in c.shape[2:]]
    if kind == "bilinear":
        kernel, pad = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
        weight = c.expect(1, c.shape[1], 1, kernel, kernel)
        node = Node("Deconvolution", c.node.name, {
            "kernel": f"({kernel}, {kernel})", "stride": f"({scale}, {scale})", "pad": f"({pad}, {pad})",
            "num_filter": str(c.shape[1]), "num_group": str(c.shape[1]), "no_bias": "True",
        })  # fmt: skip
        return _deconvolution(Call(node, [c.x, weight], c.names, c.builder))
    made = [
        _resized(
            c, x, size, method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"
        )
        for x in c.inputs
    ]
    if len(made) == 1:
        return made[0]
    return sum_of(c, made) if c.get("multi_input_mode", "concat") == "sum" else op.concat(made, 1)


@converts("_contrib_BilinearResize2D")
def _bilinear_resize(c: Call):
    mode, height, width = c.get("mode", "size"), *c.shape[2:]
    if mode == "like" or len(c.inputs) > 1:
        size = shape_of(c.inputs[1])[2:]
    elif mode == "size":
        size = c.get("height", 1), c.get("width", 1)
        if (scale := c.get("scale_height")) is not None:
            size = int(scale * height), int(c.need("scale_width") * width)
    else:
        raise NotImplementedError(f"mode={mode}")
    corners = c.get("align_corners", True)
    return _resized(
        c, c.x, size, method="linear", coordinate_transformation_mode="align_corners" if corners else "half_pixel"
    )


@converts("Crop")
def _crop(c: Call):
    size = shape_of(c.inputs[1])[2:] if len(c.inputs) > 1 else c.numbers("h_w", 2, 0)
    first = c.numbers("offset", 2, 0)
    if c.get("center_crop", False):
        first = [(n - m) // 2 for n, m in zip(c.shape[2:], size, strict=True)]
    return op.strided_slice(c.x, [2, 3], first, [a + n for a, n in zip(first, size, strict=True)])


@converts("Pad", "pad")
def _pad(c: Call):
    width, mode = c.need("pad_width"), c.get("mode", "constant")
    if mode == "constant":
        return op.nn.pad(c.x, list(width), pad_value=float(c.get("constant_value", 0)))
    x = c.x
    for axis, (before, after) in enumerate(zip(width[::2], width[1::2], strict=True)):
        if before or after:
            places = np.arange(-before, c.shape[axis] + after)
            if mode == "edge":
                places = places.clip(0, c.shape[axis] - 1)
            else:  # reflect, without the edge itself
                period = 2 * c.shape[axis] - 2
                places = np.abs((places + c.shape[axis] - 1) % period - (c.shape[axis] - 1))
            x = c.emit(op.take(x, c.const(places, "int32"), axis, mode="clip"))
    return x


# ---------------------------------------------------------------- activations and outputs


@converts("Activation")
def _activation(c: Call):
    kind = c.need("act_type")
    if kind not in _ACTIVATIONS:
        raise NotImplementedError(f"act_type={kind}")
    return _ACTIVATIONS[kind](c)


@converts("softsign")
def _softsign(c: Call):
    return op.divide(c.x, c.emit(op.add(c.emit(op.abs(c.x)), c.const(1))))


def _softrelu(c: Call):
    """log(1 + exp(x)), which is x where exp(x) would be too large."""
    below = c.emit(op.exp(c.emit(op.negative(c.emit(op.abs(c.x))))))
    return op.add(c.emit(op.nn.relu(c.x)), c.emit(op.log(c.emit(op.add(below, c.const(1))))))


_ACTIVATIONS = {
    "relu": lambda c: op.nn.relu(c.x),
    "sigmoid": lambda c: op.sigmoid(c.x),
    "tanh": lambda c: op.tanh(c.x),
    "softrelu": _softrelu,
    "softsign": _softsign,
}


@converts("LeakyReLU")
def _leaky_relu(c: Call):
    kind, slope = c.get("act_type", "leaky"), float(c.get("slope", 0.25))
    if kind == "rrelu":  # in inference, the middle of its bounds
        slope = (float(c.get("lower_bound", 0.125)) + float(c.get("upper_bound", 0.334))) / 2
    if kind in ("leaky", "rrelu"):
        return op.nn.leakyrelu(c.x, slope)
    if kind == "prelu":
        gamma = c.inputs[1]
        if math.prod(shape_of(gamma)) == 1:
            gamma = c.emit(op.reshape(gamma, [1] * c.rank))
        else:
            gamma = c.along(c.expect(1, c.shape[1]), 1)
        below = c.emit(op.minimum(c.x, c.const(0)))
        return op.add(c.emit(op.nn.relu(c.x)), c.emit(op.multiply(below, gamma)))
    if kind == "gelu":
        return op.nn.gelu(c.x)
    if kind in ("elu", "selu"):
        scale, alpha = (1.0507009873554805, 1.6732632423543772) if kind == "selu" else (1.0, slope)
        below = c.emit(op.subtract(c.emit(op.exp(c.emit(op.minimum(c.x, c.const(0))))), c.const(1)))
        made = op.add(c.emit(op.nn.relu(c.x)), c.emit(op.multiply(below, c.const(alpha))))
        return made if kind == "elu" else op.multiply(c.emit(made), c.const(scale))
    raise NotImplementedError(f"act_type={kind}")


@converts("hard_sigmoid")
def _hard_sigmoid(c: Call):
    made = op.add(c.emit(op.multiply(c.x, c.const(c.get("alpha", 0.2)))), c.const(c.get("beta", 0.5)))
    return op.clip(c.emit(made), 0, 1)


@converts("softmax", "log_softmax", "softmin", "SoftmaxActivation")
def _softmax(c: Call):
    if c.get("use_length", False):
        raise NotImplementedError("use_length=True")
    x, axis, temperature = c.x, int(c.get("axis", -1)), c.get("temperature")
    if c.node.op == "SoftmaxActivation":
        axis = 1 if c.get("mode", "instance") == "channel" else -1
    if c.node.op == "softmin":
        x = c.emit(op.negative(x))
    if temperature not in (None, 1, 1.0):
        x = c.emit(op.divide(x, c.const(temperature)))
    return (op.nn.log_softmax if c.node.op == "log_softmax" else op.nn.softmax)(x, axis)


def _softmax_of_rows(c: Call):
    rows = c.emit(op.reshape(c.x, (c.shape[0], math.prod(c.shape[1:]))))
    return op.reshape(c.emit(op.nn.softmax(rows, 1)), c.shape)


@converts("SoftmaxOutput", "Softmax")
def _softmax_output(c: Call):
    if c.get("multi_output", False):
        return op.nn.softmax(c.x, 1)
    return op.nn.softmax(c.x, -1) if c.get("preserve_shape", False) or c.rank <= 2 else _softmax_of_rows(c)


@converts("LogisticRegressionOutput")
def _logistic_output(c: Call):
    return op.sigmoid(c.x)


@converts("identity", "_copy", "BlockGrad", "stop_gradient", "Dropout", "MakeLoss", "make_loss",
          "LinearRegressionOutput", "MAERegressionOutput", "SVMOutput",
          "_CrossDeviceCopy", "_identity_with_attr_like_rhs")  # fmt: skip
def _identity(c: Call):
    return c.x
