"""The networks of `relay.testing`, and their layers.

Each network is a function that takes the arguments of TVM's `get_net` and returns a `relay.Function`.
"""

import re
from functools import partial
from types import SimpleNamespace

from . import ir
from .ops import OPERATORS, module
from .ty import TensorType, TupleType

nn = SimpleNamespace(**module("nn."))


# ---------------------------------------------------------------- layers: relay.testing.layers


def _weight(param, name):
    return ir.var(name) if param is None else param


def _layer(operator):
    def layer(data, weight=None, *, name="", **attrs):
        return operator(data, _weight(weight, f"{name}_weight"), **attrs)

    layer.__name__ = operator.__name__
    return layer


conv2d, conv3d, conv2d_transpose = map(_layer, (nn.conv2d, nn.conv3d, nn.conv2d_transpose))


def dense_add_bias(data, weight=None, bias=None, units=None, *, name="", **attrs):
    """Call nn.dense and nn.bias_add; missing parameters become variables named after `name`."""
    product = nn.dense(data, _weight(weight, f"{name}_weight"), units, **attrs)
    return nn.bias_add(product, _weight(bias, f"{name}_bias"), axis=-1)


def batch_norm_infer(data, gamma=None, beta=None, moving_mean=None, moving_var=None, *, name="", **attrs):
    """Return the first result of nn.batch_norm; missing parameters become variables named after `name`."""
    params = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
    return nn.batch_norm(data, *(_weight(v, f"{name}_{k}") for k, v in params.items()), **attrs)[0]


def conv_kernel_layout(data_layout: str, is_depthwise=False) -> str:
    """Return the weight layout for NCHW or NHWC data. Raises ValueError for others."""
    layouts = {"NCHW": "OIHW", "NHWC": "HWOI" if is_depthwise else "HWIO"}
    if data_layout not in layouts:
        raise ValueError(f"conv_kernel_layout: expected NCHW or NHWC, got {data_layout!r}")
    return layouts[data_layout]


def _square(size: int, strides: int = 1, padding: int | None = None) -> dict:
    """Return a square window's attributes; without `padding` and at stride 1, it keeps the image size."""
    edge = size // 2 if padding is None else padding
    return {"kernel_size": (size, size), "strides": (strides, strides), "padding": (edge, edge)}


def _pool(function, x, size, strides, padding=0, **attrs):
    return function(
        x, pool_size=(size, size), strides=(strides, strides), padding=(padding, padding), **attrs
    )


def _data(batch_size, shape, dtype):
    return ir.var("data", shape=(batch_size, *shape), dtype=dtype)


def _function(body) -> ir.Function:
    return ir.Function(ir.free_vars(body), body)


# ---------------------------------------------------------------- the networks

_UNITS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}


def _resnet_plan(num_layers: int, height: int) -> tuple[list[int], list[int], bool]:
    """Return each stage's units, the stem's and each stage's channels, and whether units are bottlenecks."""
    if height > 28 and num_layers in _UNITS:
        deep = num_layers >= 50
        channels = (256, 512, 1024, 2048) if deep else (64, 128, 256, 512)
        return list(_UNITS[num_layers]), [64, *channels], deep
    if height <= 28 and num_layers >= 164 and num_layers % 9 == 2:
        return [num_layers // 9] * 3, [16, 64, 128, 256], True
    if height <= 28 and num_layers < 164 and num_layers % 6 == 2:
        return [num_layers // 6] * 3, [16, 16, 32, 64], False
    raise ValueError(
        f"resnet: no network of {num_layers} layers for images {height} high; above 28: "
        f"{', '.join(map(str, _UNITS))}; up to 28: 6n + 2 layers, from 164 on 9n + 2"
    )


def resnet(
    batch_size,
    num_classes,
    num_layers=50,
    image_shape=(3, 224, 224),
    layout="NCHW",
    dtype="float32",
    **_others,
):
    """Build a ResNet with batch norm and ReLU first.

    Source: Kaiming He et al., "Identity Mappings in Deep Residual Networks" (2016).
    """
    height = image_shape[layout.index("H") - 1]
    units, channels, deep = _resnet_plan(num_layers, height)
    conv = partial(conv2d, data_layout=layout, kernel_layout=conv_kernel_layout(layout))
    norm = partial(batch_norm_infer, epsilon=2e-5, axis=layout.index("C"))

    def unit(x, outs, by, name, first):
        steps = [(outs, 3, by), (outs, 3, 1)]
        if deep:
            steps = [(outs // 4, 1, by), (outs // 4, 3, 1), (outs, 1, 1)]
        begin = y = nn.relu(norm(x, name=f"{name}_bn1"))
        for n, (width, size, strides) in enumerate(steps, 1):
            y = y if n == 1 else nn.relu(norm(y, name=f"{name}_bn{n}"))
            y = conv(y, channels=width, name=f"{name}_conv{n}", **_square(size, strides))
        return y + (conv(begin, channels=outs, name=f"{name}_sc", **_square(1, by)) if first else x)

    x = norm(_data(batch_size, image_shape, dtype), scale=False, name="bn_data")
    if height <= 32:
        x = conv(x, channels=channels[0], name="conv0", **_square(3))
    else:
        x = conv(x, channels=channels[0], name="conv0", **_square(7, 2))
        x = _pool(nn.max_pool2d, nn.relu(norm(x, name="bn0")), 3, 2, 1, layout=layout)
    for stage, (count, outs) in enumerate(zip(units, channels[1:], strict=True), 1):
        for n in range(1, count + 1):
            x = unit(x, outs, 2 if n == 1 and stage > 1 else 1, f"stage{stage}_unit{n}", n == 1)
    x = nn.global_avg_pool2d(nn.relu(norm(x, name="bn1")), layout=layout)
    return _function(nn.softmax(dense_add_bias(nn.batch_flatten(x), units=num_classes, name="fc1")))


def mobile_net(
    num_classes=1000, data_shape=(1, 3, 224, 224), dtype="float32", alpha=1.0, is_shallow=False, layout="NCHW"
):
    """Build MobileNet (Andrew Howard et al., 2017): alternating depthwise 3×3 and pointwise convolutions."""
    norm = partial(batch_norm_infer, axis=layout.index("C"))
    conv = partial(conv2d, data_layout=layout, kernel_layout=conv_kernel_layout(layout))
    depthwise = partial(conv2d, data_layout=layout, kernel_layout=conv_kernel_layout(layout, True))
    last = [(1024, 2), (1024, 2)] if is_shallow else [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *last]  # channels, stride
    x, ins = ir.var("data", shape=data_shape, dtype=dtype), int(32 * alpha)
    x = conv(x, channels=ins, name="conv_block_1_conv", **_square(3, 2))
    x = nn.relu(norm(x, name="conv_block_1_bn"))
    for n, (outs, strides) in enumerate(blocks, 1):
        name, outs = f"separable_conv_block_{n}", int(outs * alpha)
        x = depthwise(x, channels=ins, groups=ins, name=name, **_square(3, strides))
        x = conv(nn.relu(norm(x, name=f"{name}_bn1")), channels=outs, name=f"{name}_conv2", **_square(1))
        x, ins = nn.relu(norm(x, name=f"{name}_bn2")), outs
    x = nn.batch_flatten(nn.global_avg_pool2d(x, layout=layout))
    return _function(nn.softmax(dense_add_bias(x, units=num_classes, name="fc")))


def mobilenet(batch_size, num_classes, image_shape, dtype, layout):
    """Build `mobile_net` from the arguments of the other networks."""
    return mobile_net(num_classes, (batch_size, *image_shape), dtype, layout=layout)


_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(batch_size, image_shape, num_classes, dtype, num_layers=11, batch_norm=False):
    """Build a VGG: Karen Simonyan, Andrew Zisserman, "Very Deep Convolutional Networks" (2014)."""
    if num_layers not in _VGG:
        raise ValueError(f"vgg: expected num_layers of {', '.join(map(str, _VGG))}; got {num_layers}")
    x = _data(batch_size, image_shape, dtype)
    for stage, (count, outs) in enumerate(zip(_VGG[num_layers], (64, 128, 256, 512, 512), strict=True), 1):
        for n in range(1, count + 1):
            name = f"conv{stage}_{n}"
            x = nn.bias_add(conv2d(x, channels=outs, name=name, **_square(3)), ir.var(f"{name}_bias"))
            x = nn.relu(batch_norm_infer(x, name=f"bn{stage}_{n}") if batch_norm else x)
        x = _pool(nn.max_pool2d, x, 2, 2)
    x = nn.batch_flatten(x)
    for name in ("fc6", "fc7"):
        x = nn.dropout(nn.relu(dense_add_bias(x, units=4096, name=name)), rate=0.5)
    return _function(nn.softmax(dense_add_bias(x, units=num_classes, name="fc8")))


def mlp(batch_size, num_classes=10, image_shape=(1, 28, 28), dtype="float32"):
    """Build three dense layers of 128, 64 and `num_classes` units."""
    x = nn.batch_flatten(_data(batch_size, image_shape, dtype))
    for n, units in enumerate((128, 64), 1):
        x = nn.relu(dense_add_bias(x, units=units, name=f"fc{n}"))
    return _function(nn.softmax(dense_add_bias(x, units=num_classes, name="fc3")))


def squeezenet(batch_size, image_shape, num_classes, version, dtype):
    """Build SqueezeNet (Forrest Iandola et al., 2016): eight fire modules, which squeeze and then expand."""
    if version not in ("1.0", "1.1"):
        raise ValueError(f"squeezenet: expected the version 1.0 or 1.1, got {version!r}")
    outs, size, pooled = (96, 7, (1, 4, 8)) if version == "1.0" else (64, 3, (1, 3, 5))

    def conv(x, outs, size, name, strides=1):
        x = conv2d(x, channels=outs, name=name, **_square(size, strides))
        return nn.relu(nn.bias_add(x, ir.var(f"{name}_bias")))

    x = conv(_data(batch_size, image_shape, dtype), outs, size, "conv1", 2)
    for n, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 1):
        x = conv(_pool(nn.max_pool2d, x, 3, 2) if n in pooled else x, width, 1, f"fire{n}_input_conv")
        sides = [conv(x, 4 * width, 1, f"fire{n}_left_conv"), conv(x, 4 * width, 3, f"fire{n}_right_conv")]
        x = OPERATORS["concatenate"](sides, axis=1)
    x = conv(nn.dropout(x, rate=0.5), num_classes, 1, "conv_final")
    return _function(nn.softmax(nn.batch_flatten(nn.global_avg_pool2d(x))))


# Christian Szegedy et al., "Rethinking the Inception Architecture" (2015). Bars separate a block's branches,
# spaces a branch's layers: channels:window/stride; v is for no padding, + for two convolutions in parallel.
_STEM = "32:3x3/2 32:3x3v 64:3x3 max/2 80 192:3x3v max/2"
_INCEPTION = [
    *(f"64 | 48 64:5x5 | 64 96:3x3 96:3x3 | avg {width}" for width in (32, 64, 64)),
    "384:3x3/2 | 64 96:3x3 96:3x3/2 | max/2",
    *(
        f"192 | {n} {n}:1x7 192:7x1 | {n} {n}:7x1 {n}:1x7 {n}:7x1 192:1x7 | avg 192"
        for n in (128, 160, 160, 192)
    ),
    "192 320:3x3/2 | 192 192:1x7 192:7x1 192:3x3/2 | max/2",
    *(f"320 | 384 384:1x3+384:3x1 | 448 384:3x3 384:1x3+384:3x1 | {pool} 192" for pool in ("avg", "max")),
]


def inception_v3(batch_size, num_classes, image_shape, dtype):
    """Build the network of `_STEM` and `_INCEPTION`, for 299 × 299 images."""

    def layer(x, text, name):
        strides, edge = (2, 0) if text.endswith("/2") else (1, 1)
        if text.startswith("max"):
            return _pool(nn.max_pool2d, x, 3, strides, edge)
        if text == "avg":
            return _pool(nn.avg_pool2d, x, 3, 1, 1, count_include_pad=True)
        outs, *window = map(int, re.findall(r"\d+", text.removesuffix("/2")))
        window = window or [1, 1]
        padding = [0, 0] if strides == 2 or text.endswith("v") else [size // 2 for size in window]
        attrs = {"kernel_size": window, "strides": (strides, strides), "padding": padding}
        x = conv2d(x, channels=outs, name=f"{name}_conv1", **attrs)
        return nn.relu(batch_norm_infer(x, epsilon=2e-5, name=f"{name}_bn"))

    def branch(x, text, name) -> list:
        sides = [x]
        for n, step in enumerate(text.split()):
            sides = [layer(sides[0], part, f"{name}_{n}{'ab'[m]}") for m, part in enumerate(step.split("+"))]
        return sides

    (x,) = branch(_data(batch_size, image_shape, dtype), _STEM, "stem")
    for n, block in enumerate(_INCEPTION):
        branches = [branch(x, text, f"mixed{n}_{m}") for m, text in enumerate(block.split("|"))]
        x = OPERATORS["concatenate"]([y for ys in branches for y in ys], axis=1)
    x = nn.batch_flatten(nn.global_avg_pool2d(x))
    return _function(nn.softmax(dense_add_bias(x, units=num_classes, name="fc1")))


_DENSENET = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}


def densenet(densenet_size, classes, batch_size, image_shape, dtype):
    """Build a DenseNet: Gao Huang et al., "Densely Connected Convolutional Networks" (2016).

    As in the paper, each layer reads all earlier ones of its block; in TVM's version, only the last one.
    """
    if densenet_size not in _DENSENET:
        raise ValueError(
            f"densenet: expected densenet_size of {', '.join(map(str, _DENSENET))}; got {densenet_size}"
        )
    outs, growth, blocks = _DENSENET[densenet_size]

    def conv(x, outs, size, bn, name):
        return conv2d(nn.relu(batch_norm_infer(x, name=bn)), channels=outs, name=name, **_square(size))

    x = conv2d(_data(batch_size, image_shape, dtype), channels=outs, name="conv1", **_square(7, 2))
    x = _pool(nn.max_pool2d, nn.relu(batch_norm_infer(x, name="batch1")), 3, 2, 1)
    for block, count in enumerate(blocks):
        if block:
            outs //= 2
            x = conv(x, outs, 1, f"batch_t_{block - 1}", f"conv_t_{block - 1}")
            x = _pool(nn.avg_pool2d, x, 2, 2)
        for n in range(count):
            new = conv(x, 4 * growth, 1, f"batch_1_{block}_{n}", f"conv2d_1_{block}_{n}")
            new = conv(new, growth, 3, f"batch_2_{block}_{n}", f"conv2d_2_{block}_{n}")
            x, outs = OPERATORS["concatenate"]([x, new], axis=1), outs + growth
    x = nn.global_avg_pool2d(nn.relu(batch_norm_infer(x, name="batch2")))
    return _function(dense_add_bias(nn.batch_flatten(x), units=classes, name="dense"))


def dcgan(batch_size, random_len=100, oshape=(3, 64, 64), ngf=128, code=None, layout="NCHW", dtype="float32"):
    """Build a generator of 64 × 64 images.

    Source: Alec Radford et al., "Unsupervised Representation Learning" (2015).
    """
    if tuple(oshape[-2:]) != (64, 64):
        raise ValueError(f"dcgan: expected images of 64 × 64, got an oshape of {tuple(oshape)}")
    kernel = {"NCHW": "IOHW", "NHWC": "HWOI"}[layout]
    code = _data(batch_size, (random_len,), dtype) if code is None else code
    deconv = partial(conv2d_transpose, data_layout=layout, kernel_layout=kernel, output_padding=(0, 0))
    norm = partial(batch_norm_infer, epsilon=1e-5, scale=False, axis=layout.index("C"))
    x = nn.relu(nn.dense(code, ir.var("dense_weight"), units=16 * 8 * ngf))
    x = OPERATORS["reshape"](x, newshape=(-1, 8 * ngf, 4, 4) if layout == "NCHW" else (-1, 4, 4, 8 * ngf))
    for n, outs in enumerate((4 * ngf, 2 * ngf, ngf, oshape[0]), 2):
        x = deconv(x, channels=outs, name=f"g{n}_deconv", **_square(4, 2, 1))
        if n < 5:
            x = nn.relu(norm(x, name=f"g{n}_batch_norm"))
    return _function(OPERATORS["tanh"](x))


def lstm_cell(num_hidden, batch_size=1, dtype="float32", name=""):
    """Build one step: a function from inputs, states (h, c), weights and biases to (output, (h, c))."""
    state = TensorType((batch_size, num_hidden), dtype)
    types = [state, TupleType([state, state])]
    types += 2 * [TensorType((4 * num_hidden, num_hidden), dtype), TensorType((4 * num_hidden,), dtype)]
    names = ("inputs", "states", "i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
    inputs, states, *weights = params = [ir.Var(n, ty) for n, ty in zip(names, types, strict=True)]
    gates = dense_add_bias(inputs, *weights[:2], units=4 * num_hidden)
    gates = gates + dense_add_bias(ir.TupleGetItem(states, 0), *weights[2:], units=4 * num_hidden)
    enter, keep, new, leave = OPERATORS["split"](gates, indices_or_sections=4, axis=1)
    sigmoid, tanh = OPERATORS["sigmoid"], OPERATORS["tanh"]
    c = sigmoid(keep) * ir.TupleGetItem(states, 1) + sigmoid(enter) * tanh(new)
    h = sigmoid(leave) * tanh(c)
    return ir.Function(params, ir.Tuple([h, ir.Tuple([h, c])]))


def lstm(iterations, num_hidden, batch_size=1, dtype="float32"):
    """Chain `iterations` cells, each with its own weights; the inputs are data, data_1, data_2 and so on."""
    state = TensorType((batch_size, num_hidden), dtype)
    types = {
        "weight": TensorType((4 * num_hidden, num_hidden), dtype),
        "bias": TensorType((4 * num_hidden,), dtype),
    }
    out, states = None, ir.Tuple([OPERATORS["zeros"](state.shape, dtype)] * 2)
    for n in range(iterations):
        weights = [ir.Var(f"{side}_{n}_{kind}", ty) for side in ("i2h", "h2h") for kind, ty in types.items()]
        data = ir.Var(f"data_{n}" if n else "data", state)
        step = ir.Call(lstm_cell(num_hidden, batch_size, dtype), [data, states, *weights])
        out, states = ir.TupleGetItem(step, 0), ir.TupleGetItem(step, 1)
    return _function(out)
