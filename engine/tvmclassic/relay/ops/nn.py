"""Operators of layers: convolutions, matrix products, normalizations, activations and a loss."""

from tvm import relax
from tvm.relax import op as R

from tvmfast.frontends.ops.common import local_response_norm, product

from ..ir import Attrs
from .operator import axis_list, dtype_of, known_shape, operator, rank_of, relax_function
from .shapes import turned

for (_name, _relax), _body in {
    ("nn.leaky_relu", "nn.leakyrelu"): lambda data, /, alpha=0.01: R.nn.leakyrelu(data, alpha),
    ("nn.prelu", "nn.prelu"): lambda data, alpha, /, axis=1: R.nn.prelu(data, alpha, axis),
    ("nn.softmax", "nn.softmax"): lambda data, /, axis=-1: R.nn.softmax(data, axis),
    ("nn.fast_softmax", "nn.softmax"): lambda data, /, axis=-1: R.nn.softmax(data, axis),
    ("nn.log_softmax", "nn.log_softmax"): lambda data, /, axis=-1: R.nn.log_softmax(data, axis),
}.items():
    operator(_name, relax=_relax)(_body)


def _convolution(name):
    function, dims = relax_function(f"nn.{name}"), int(name[4])
    transposed = name.endswith("transpose")
    layout = "NC" + "DHW"[-dims:]
    kernel = layout.replace("NC", "IO" if transposed else "OI")
    ones, zeros = (1,) * dims, (0,) * dims
    window = {"strides": ones, "padding": zeros, "dilation": ones}
    weight = {"channels": None, "kernel_size": None}
    layouts = {"data_layout": layout, "kernel_layout": kernel, "out_layout": ""}
    attributes = {**window, "groups": 1, **weight, **layouts, "out_dtype": ""}
    if transposed:
        attributes = {**window, **weight, "groups": 1, **layouts, "output_padding": zeros, "out_dtype": ""}

    def body(data, weight, /, **attrs):
        a = Attrs(attrs)
        blocked = any(map(str.isdigit, a.data_layout + a.kernel_layout))
        if not transposed and not blocked and a.out_layout in ("", a.data_layout):
            window, layouts = (a.strides, a.padding, a.dilation), (a.data_layout, a.kernel_layout)
            return function(data, weight, *window, a.groups, *layouts, None, a.out_dtype or None)
        # Relax lowers one layout only, of transposed ones, of those with another one for the result, and of
        # those that a script has blocked.
        data, weight = turned(data, a.data_layout, layout), turned(weight, a.kernel_layout, kernel)
        window = (a.strides, a.padding, *([a.output_padding] if transposed else []), a.dilation)
        result = function(data, weight, *window, a.groups, layout, kernel, None, a.out_dtype or None)
        return turned(result, layout, a.out_layout or a.data_layout)

    operator(f"nn.{name}", relax=f"nn.{name}", attributes=attributes)(body)


for _name in ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose"):
    _convolution(_name)


@operator("nn.dense", relax="matmul permute_dims")
def dense(data, weight, /, units=None, out_dtype=""):
    return R.matmul(data, R.permute_dims(weight, [1, 0]), out_dtype or None)


@operator("nn.matmul", relax="matmul")
def matmul(tensor_a, tensor_b, /, units=None, out_dtype="", transpose_a=False, transpose_b=False):
    return product(tensor_a, tensor_b, transpose_a, transpose_b, out_dtype or None)


@operator("nn.batch_matmul", relax="matmul")
def batch_matmul(tensor_a, tensor_b, /, out_dtype="", transpose_a=False, transpose_b=True):
    return product(tensor_a, tensor_b, transpose_a, transpose_b, out_dtype or None)


@operator("nn.bias_add", relax="add reshape")
def bias_add(data, bias, /, axis=1):
    rank = rank_of(data)
    shape = [1] * rank
    shape[axis % rank] = -1
    return R.add(data, R.reshape(bias, shape))


@operator("nn.batch_norm", 3, relax="nn.batch_norm")
def batch_norm(data, gamma, beta, moving_mean, moving_var, /, axis=1, epsilon=1e-5, center=True, scale=True):
    return R.nn.batch_norm(
        data, gamma, beta, moving_mean, moving_var, axis, epsilon, center, scale, training=False
    )


@operator("nn.layer_norm", relax="nn.layer_norm")
def layer_norm(data, gamma, beta, /, axis=-1, epsilon=1e-5, center=True, scale=True):
    return R.nn.layer_norm(data, gamma, beta, axis_list(axis), epsilon, center, scale)


@operator("nn.instance_norm", relax="nn.instance_norm")
def instance_norm(data, gamma, beta, /, axis=1, epsilon=1e-5, center=True, scale=True):
    return R.nn.instance_norm(data, gamma, beta, axis, spatial_axes(data, axis), epsilon, center, scale)


@operator("nn.group_norm", relax="nn.group_norm")
def group_norm(data, gamma, beta, /, num_groups, axis=1, epsilon=1e-5, center=True, scale=True):
    others = spatial_axes(data, axis)
    return R.nn.group_norm(data, gamma, beta, num_groups, axis, others, epsilon, center, scale)


def spatial_axes(data, channels: int) -> list[int]:
    """Return all axes but that of the batch and that of the channels."""
    rank = rank_of(data)
    return [axis for axis in range(1, rank) if axis != channels % rank]


@operator("nn.dropout", relax="")
def dropout(data, /, rate=0.5):
    """Return `data`, as networks are compiled for inference only."""
    return data


@operator("nn.lrn", relax="nn.pad multiply strided_slice add divide power")
def lrn(data, /, size=5, axis=1, bias=2.0, alpha=1e-5, beta=0.75):
    return local_response_norm(data, size, axis % rank_of(data), bias, alpha, beta)


@operator("nn.l2_normalize", relax="sum multiply divide sqrt maximum")
def l2_normalize(data, /, eps, axis=None):
    total = R.sum(R.multiply(data, data), axis_list(axis), True)
    return R.divide(data, R.sqrt(R.maximum(total, relax.const(eps, dtype_of(data)))))


@operator("nn.cross_entropy", relax="sum multiply log negative divide")
def cross_entropy(predictions, targets, /):
    """-sum(targets · log(predictions)) / batch."""
    total = R.sum(R.multiply(R.log(predictions), targets))
    return R.negative(R.divide(total, relax.const(float(known_shape(predictions)[0]), dtype_of(predictions))))
