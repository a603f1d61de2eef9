"""Relay's operators: what each is called with, and what it has become in Relax.

A function here has the signature that scripts know, and a body that makes Relax of it. Called by a script, it notes a
`Call` with its operator and attributes; `OPERATORS[name].lower` runs the body, in a build or to infer a type. The first
parameters, up to a `/`, are tensors, the others attributes.
"""

import inspect
import math
import re

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ...base.relax import fixed_shape
from .ir import Call, Expr, Op, TupleWrapper, as_expr, plain

OPERATORS: dict[str, "Operator"] = {}


class Operator:
    """One operator. `signature` is Relay's; `lower(tensors, attrs)` makes Relax of Relax."""

    def __init__(self, name: str, body, results, order=()):
        self.name, self.body, self.results = name, body, results
        self.__name__, self.__doc__ = name.rpartition(".")[2], body.__doc__
        self.signature = inspect.signature(body)
        kinds = self.signature.parameters.values()
        self.tensors = [p.name for p in kinds if p.kind is p.POSITIONAL_ONLY]
        self.defaults = {p.name: p.default for p in kinds if p.name not in self.tensors}
        # A script may name a tensor: nn.conv2d(data=x, weight=w).
        called = {p.name: p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in kinds}
        self.__signature__ = self.signature.replace(parameters=[called[name] for name in order or called])

    def __call__(self, *args, **kwargs):
        """The call, as an expression."""
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"relay.{self.name}{self.__signature__}: {error}") from None
        bound.apply_defaults()
        tensors = [as_expr(bound.arguments.pop(name)) for name in self.tensors]
        attrs = {k: self._sized(k, plain(v)) for k, v in bound.arguments.items()}
        call = Call(Op(self.name), tensors, attrs)
        count = self.results(attrs) if callable(self.results) else self.results
        return TupleWrapper(call, count) if count > 1 else call

    def _sized(self, name: str, value):
        """A number for each axis where a script gives one for all; paddings as before each axis, then behind each."""
        like = self.defaults["strides" if name == "kernel_size" else name]
        if isinstance(like, tuple) and like:
            if isinstance(value, str):
                raise ValueError(f"relay.{self.name}: expected numbers as {name}, got {value!r}")
            value = [value] if isinstance(value, int) else value
            value = value * len(like) if value and len(value) == 1 else value
            value = value * 2 if name == "padding" and len(value) == len(like) else value
        return value

    def lower(self, tensors: list, attrs) -> relax.Expr:
        values = {**self.defaults, **{k: v for k, v in attrs.items() if k in self.defaults}} if attrs else self.defaults
        return self.body(*tensors, **values)

    def __repr__(self) -> str:
        return f"relay.{self.name}{self.__signature__}"

    def relax_names(self) -> list[str]:
        """The Relax functions that the body calls, in the order in which they stand in it."""
        called = getattr(self.body, "names", None)
        if called is None:
            called = re.findall(r"\bR\.([\w.]+)\(", inspect.getsource(self.body))
        return list(dict.fromkeys(f"relax.op.{name}" for name in called))


def operator(name: str, results=1, order=()):
    """Make an operator of a function. `results` is how many values it gives, or a function of the attributes; `order`
    is that of the arguments in a script, where an attribute stands among the tensors."""

    def register(body):
        OPERATORS[name] = Operator(name, body, results, order)
        return OPERATORS[name]

    return register


def _named(name, body, *today):
    """`body` as the operator `name`; `today` are the Relax functions that it calls."""
    body.names = list(today)
    return operator(name)(body)


def _unary(name, function, *today):
    def body(data, /):
        return function(data)

    return _named(name, body, *today)


def _binary(name, function, *today):
    def body(lhs, rhs, /):
        return function(lhs, rhs)

    return _named(name, body, *today)


_UNARY = (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "erf", "exp",
        "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "ones_like", "round", "rsqrt",
        "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zeros_like",
        "nn.relu", "nn.batch_flatten",
)  # fmt: skip
_BINARY = (
        "add", "subtract", "multiply", "divide", "power", "mod", "floor_divide", "floor_mod", "maximum", "minimum",
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
        "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "atan2",
)  # fmt: skip


def _relax(path: str):
    made = R
    for part in path.split("."):
        made = getattr(made, part)
    return made


for _name in _UNARY:
    _unary(_name, _relax(_name), _name)
for _name in _BINARY:
    _binary(_name, _relax(_name), _name)
for _name in ("exp", "tanh", "erf"):
    _unary(f"fast_{_name}", _relax(_name), _name)
for _name in ("copy", "identity", "annotation.stop_fusion"):
    _unary(_name, lambda x: x)
for _base in (2, 10):
    _unary(
        f"log{_base}",
        lambda x, base=_base: R.multiply(R.log(x), relax.const(1 / math.log(base), _dtype(x))),
        "log",
        "multiply",
    )


@operator("shape_of")
def shape_of(data, /, dtype="int32"):
    return relax.const(np.asarray(_shape(data), dtype))


def _dtype(x) -> str:
    return str(x.ty.dtype)


def _shape(x) -> tuple[int, ...]:
    shape = fixed_shape(x.ty)
    if shape is None:
        raise ValueError(f"expected a tensor of fixed shape, got {x.ty}")
    return shape


def _axes(axis):
    if axis is None or axis == [] or axis == ():
        return None
    return list(axis) if isinstance(axis, list | tuple) else [axis]


# ---------------------------------------------------------------- those of one expression

_SHORT = {
    "reshape_like": lambda data, shape_like, /: R.reshape(data, _shape(shape_like)),
    "transpose": lambda data, /, axes=None: R.permute_dims(data, _axes(axes)),
    "squeeze": lambda data, /, axis=None: R.squeeze(data, _axes(axis)),
    "concatenate": lambda data, /, axis=0: R.concat(list(_fields(data)), axis),
    "stack": lambda data, /, axis=0: R.stack(list(_fields(data)), axis),
    "broadcast_to": lambda data, /, shape, dtype="": R.broadcast_to(data, list(shape)),
    "broadcast_to_like": lambda data, broadcast_type, /: R.broadcast_to(data, _shape(broadcast_type)),
    "collapse_sum_like": lambda data, collapse_type, /: R.collapse_sum_like(data, collapse_type),
    "repeat": lambda data, /, repeats, axis: R.repeat(data, repeats, axis),
    "tile": lambda data, /, reps: R.tile(data, list(reps)),
    "reverse": lambda data, /, axis: R.flip(data, axis),
    "full": lambda fill_value, /, shape=(), dtype="": R.full(list(shape), fill_value, dtype or None),
    "full_like": lambda data, fill_value, /: R.full_like(data, fill_value),
    "zeros": lambda shape, dtype="float32": R.zeros(list(shape), dtype),
    "ones": lambda shape, dtype="float32": R.ones(list(shape), dtype),
    "where": lambda condition, x, y, /: R.where(R.astype(condition, "bool"), x, y),
    "cast": lambda data, /, dtype: R.astype(data, dtype),
    "cast_like": lambda data, dtype_like, /: R.astype(data, _dtype(dtype_like)),
    "clip": lambda a, /, a_min, a_max: R.clip(a, a_min, a_max),
    "scatter": lambda data, indices, updates, /, axis: R.scatter_elements(data, indices, updates, axis, "update"),
    "scatter_add": lambda data, indices, updates, /, axis: R.scatter_elements(data, indices, updates, axis, "add"),
    "sort": lambda data, /, axis=-1, is_ascend=1: R.sort(data, axis, not is_ascend),
    "argsort": lambda data, /, axis=-1, is_ascend=1, dtype="int32": R.argsort(data, axis, not is_ascend, dtype),
    "cumsum": lambda data, /, axis=None, dtype=None, exclusive=None: R.cumsum(data, axis, dtype, bool(exclusive)),
    "cumprod": lambda data, /, axis=None, dtype=None, exclusive=None: R.cumprod(data, axis, dtype, bool(exclusive)),
    "nn.leaky_relu": lambda data, /, alpha=0.01: R.nn.leakyrelu(data, alpha),
    "nn.prelu": lambda data, alpha, /, axis=1: R.nn.prelu(data, alpha, axis),
    "nn.softmax": lambda data, /, axis=-1: R.nn.softmax(data, axis),
    "nn.fast_softmax": lambda data, /, axis=-1: R.nn.softmax(data, axis),
    "nn.log_softmax": lambda data, /, axis=-1: R.nn.log_softmax(data, axis),
}
for _name, _body in _SHORT.items():
    operator(_name)(_body)


# ---------------------------------------------------------------- reductions


def _reduced(data, axis, exclude) -> list[int]:
    """The axes of `data` that a reduction takes away."""
    rank = len(_shape(data))
    axes = range(rank) if _axes(axis) is None else [a % rank for a in _axes(axis)]
    return [a for a in range(rank) if (a in axes) != bool(exclude and _axes(axis))]


def _reduction(name, function, today):
    def body(data, /, axis=None, keepdims=False, exclude=False):
        return function(data, _reduced(data, axis, exclude), keepdims)

    return _named(name, body, today)


for _name in ("sum", "max", "min", "mean", "prod", "std"):
    _reduction(_name, _relax(_name), _name)
_reduction("all", lambda x, axes, keep: R.astype(R.min(R.astype(x, "int32"), axes, keep), "bool"), "min")
_reduction("any", lambda x, axes, keep: R.astype(R.max(R.astype(x, "int32"), axes, keep), "bool"), "max")


@operator("variance")
def variance(data, /, axis=None, keepdims=False, exclude=False, unbiased=False):
    axes = _reduced(data, axis, exclude)
    count = math.prod(_shape(data)[a] for a in axes)
    made = R.variance(data, axes, keepdims)
    return R.multiply(made, relax.const(count / (count - 1), _dtype(data))) if unbiased else made


@operator("mean_variance", 2)
def mean_variance(data, /, axis=None, keepdims=False, exclude=False, unbiased=False):
    mean = R.mean(data, _reduced(data, axis, exclude), keepdims)
    return relax.Tuple([mean, variance.body(data, axis, keepdims, exclude, unbiased)])


@operator("logsumexp")
def logsumexp(data, /, axis=None, keepdims=False):
    largest = R.max(data, _axes(axis), True)
    total = R.add(R.log(R.sum(R.exp(R.subtract(data, largest)), _axes(axis), True)), largest)
    return total if keepdims else R.squeeze(total, _axes(axis))


def _argument(name, function):
    def body(data, /, axis=None, keepdims=False, exclude=False, select_last_index=False):
        axes = _reduced(data, axis, exclude)
        if (axis is not None and len(axes) != 1) or select_last_index:
            raise ValueError(f"expected one axis, and the first index of it; got axis={axis}")
        return R.astype(function(data, axes[0] if axis is not None else None, keepdims), "int32")

    _named(name, body, name)


_argument("argmax", R.argmax)
_argument("argmin", R.argmin)


# ---------------------------------------------------------------- shapes


@operator("reshape")
def reshape(data, /, newshape, allowzero=False):
    return R.reshape(data, reshaped(_shape(data), _numbers(newshape), allowzero))


def reshaped(shape, wanted, allowzero=False) -> list[int]:
    """The shape that Relay's codes in `wanted` mean for `shape`: 0 keeps an axis, -1 is the rest, -2 all that follow,
    -3 two axes in one, -4 one axis in the two that are named next."""
    made, at, codes = [], 0, iter(wanted)
    for code in codes:
        if code == 0 and not allowzero:
            made.append(shape[at])
        elif code == -2:
            made += shape[at:]
            at = len(shape) - 1
        elif code == -3:
            made.append(shape[at] * shape[at + 1])
            at += 1
        elif code == -4:
            first, second = next(codes, None), next(codes, None)
            if second is None:
                raise ValueError(f"expected two numbers after -4, got the new shape {list(wanted)}")
            first = shape[at] // second if first == -1 else first
            made += [first, shape[at] // first]
        else:
            made.append(code)
        at += 1
    if -1 in made:
        made[made.index(-1)] = math.prod(shape) // -math.prod(made)
    return made


@operator("expand_dims")
def expand_dims(data, /, axis, num_newaxis=1):
    first = axis if axis >= 0 else axis + len(_shape(data)) + 1
    return R.expand_dims(data, list(range(first, first + num_newaxis)))


def _fields(data):
    """The tensors of a tuple, which may be what a split gave."""
    if isinstance(data, relax.Tuple):
        return data.fields
    several = isinstance(data.ty, tvm.ir.TupleType)
    return [relax.TupleGetItem(data, n) for n in range(len(data.ty.fields))] if several else [data]


@operator("split", lambda attrs: _parts(attrs))
def split(data, /, indices_or_sections, axis=0):
    return R.split(data, indices_or_sections, axis)


def _parts(attrs) -> int:
    at = attrs["indices_or_sections"]
    return at if isinstance(at, int) else len(at) + 1


@operator("take")
def take(data, indices, /, axis=None, batch_dims=0, mode="clip"):
    if batch_dims:
        raise NotImplementedError("relay.take with batch_dims: use relay.gather_nd, as Relax's take has none")
    if axis is None:
        data, axis = R.reshape(data, [math.prod(_shape(data))]), 0
    return R.take(data, R.astype(indices, "int32"), axis, mode)


@operator("strided_slice")
def strided_slice(data, /, begin, end, strides=None, axes=None, slice_mode="end"):
    shape = _shape(data)
    begin, end, strides = (_numbers(which) for which in (begin, end, strides or []))
    axes = list(range(len(begin))) if axes is None else [a % len(shape) for a in axes]
    steps = strides + [1] * (len(begin) - len(strides))
    if slice_mode == "size":
        end = [shape[a] if size < 0 else first + size for a, first, size in zip(axes, begin, end, strict=True)]
        steps = [1] * len(begin)
    return R.strided_slice(data, axes, begin, end, steps)


def _numbers(value) -> list:
    """An attribute that a script may give as a constant expression."""
    return np.ravel(value.data.numpy() if isinstance(value, Expr) else value).tolist()


@operator("slice_like")
def slice_like(data, shape_like, /, axes=None):
    wanted = _shape(shape_like)
    axes = list(range(len(wanted))) if not axes else [a % len(_shape(data)) for a in axes]
    return R.strided_slice(data, axes, [0] * len(axes), [wanted[a] for a in axes])


@operator("arange")
def arange(start, stop=None, step=None, dtype="float32"):
    numbers = [_numbers(a)[0] for a in (start, stop, step) if a is not None]
    return relax.const(np.arange(*numbers).astype(dtype))


@operator("gather", order=("data", "axis", "indices"))
def gather(data, indices, /, axis):
    return R.gather_elements(data, indices, axis)


@operator("gather_nd")
def gather_nd(data, indices, /, batch_dims=0, index_rank=None):
    rank = len(_shape(indices))
    return R.gather_nd(data, R.permute_dims(indices, [*range(1, rank), 0]), batch_dims)  # Relay's indices come first


@operator("scatter_elements")
def scatter_elements(data, indices, updates, /, axis=0, reduction="update"):
    return R.scatter_elements(data, indices, updates, axis, reduction)


@operator("one_hot")
def one_hot(indices, on_value, off_value, /, depth, axis, dtype):
    made = R.one_hot(R.astype(indices, "int64"), tirx.const(1, dtype), tirx.const(0, dtype), depth, axis)
    return R.add(R.multiply(made, R.subtract(on_value, off_value)), off_value)


@operator("topk", lambda attrs: 2 if attrs["ret_type"] == "both" else 1)
def topk(data, /, k=1, axis=-1, ret_type="both", is_ascend=False, dtype="int32"):
    return R.topk(data, k, axis, ret_type, not is_ascend, dtype)


@operator("layout_transform")
def layout_transform(data, /, src_layout, dst_layout):
    return _turned(data, src_layout, dst_layout)


def _turned(data, source: str, wanted: str):
    """`data` with its axes in another order; both layouts name each axis by a letter."""
    if sorted(source) != sorted(wanted):
        raise NotImplementedError(
            f"expected a layout of the axes {source}, got {wanted}: tn.build chooses blocked ones"
        )
    return data if source == wanted else R.permute_dims(data, [source.index(axis) for axis in wanted])


# ---------------------------------------------------------------- nn


def _convolution(name, transposed=False):
    function, dims = _relax(f"nn.{name}"), int(name[4])
    layout = {1: "W", 2: "HW", 3: "DHW"}[dims]
    kernel = ("IO" if transposed else "OI") + layout

    def body(data, weight, /, strides=(1,) * dims, padding=(0,) * dims, dilation=(1,) * dims, groups=1,
             channels=None, kernel_size=None, data_layout="NC" + layout, kernel_layout=kernel,
             out_layout="", out_dtype=""):  # fmt: skip
        return function(data, weight, strides, padding, dilation, groups, data_layout, kernel_layout,
                        out_layout or None, out_dtype or None)  # fmt: skip

    def transposed_body(data, weight, /, strides=(1,) * dims, padding=(0,) * dims, dilation=(1,) * dims, channels=None,
                        kernel_size=None, groups=1, data_layout="NC" + layout, kernel_layout=kernel, out_layout="",
                        output_padding=(0,) * dims, out_dtype=""):  # fmt: skip
        plain = "NC" + layout  # the one layout that Relax lowers
        made = function(_turned(data, data_layout, plain), _turned(weight, kernel_layout, kernel), strides, padding,
                        output_padding, dilation, groups, plain, kernel, None, out_dtype or None)  # fmt: skip
        return _turned(made, plain, out_layout or data_layout)

    _named(f"nn.{name}", transposed_body if transposed else body, f"nn.{name}")


def _many(value, count) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,) * count


for _name in ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose"):
    _convolution(_name, _name.endswith("transpose"))


@operator("nn.dense")
def dense(data, weight, /, units=None, out_dtype=""):
    return R.matmul(data, R.permute_dims(weight, [1, 0]), out_dtype or None)


@operator("nn.matmul")
def matmul(tensor_a, tensor_b, /, units=None, out_dtype="", transpose_a=False, transpose_b=False):
    return R.matmul(_swapped(tensor_a, transpose_a), _swapped(tensor_b, transpose_b), out_dtype or None)


@operator("nn.batch_matmul")
def batch_matmul(tensor_a, tensor_b, /, out_dtype="", transpose_a=False, transpose_b=True):
    return R.matmul(_swapped(tensor_a, transpose_a), _swapped(tensor_b, transpose_b), out_dtype or None)


def _swapped(x, swap: bool):
    rank = len(_shape(x))
    return R.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]) if swap else x


@operator("nn.bias_add")
def bias_add(data, bias, /, axis=1):
    rank = len(_shape(data))
    shape = [1] * rank
    shape[axis % rank] = -1
    return R.add(data, R.reshape(bias, reshaped(_shape(bias), shape)))


@operator("nn.batch_norm", 3)
def batch_norm(data, gamma, beta, moving_mean, moving_var, /, axis=1, epsilon=1e-5, center=True, scale=True):
    return R.nn.batch_norm(data, gamma, beta, moving_mean, moving_var, axis, epsilon, center, scale, training=False)


@operator("nn.layer_norm")
def layer_norm(data, gamma, beta, /, axis=-1, epsilon=1e-5, center=True, scale=True):
    return R.nn.layer_norm(data, gamma, beta, _axes(axis), epsilon, center, scale)


@operator("nn.instance_norm")
def instance_norm(data, gamma, beta, /, axis=1, epsilon=1e-5, center=True, scale=True):
    others = list(range(2, len(_shape(data))))
    return R.nn.instance_norm(data, gamma, beta, axis, others, epsilon, center, scale)


@operator("nn.group_norm")
def group_norm(data, gamma, beta, /, num_groups, axis=1, epsilon=1e-5, center=True, scale=True):
    others = list(range(2, len(_shape(data))))
    return R.nn.group_norm(data, gamma, beta, num_groups, axis, others, epsilon, center, scale)


@operator("nn.dropout")
def dropout(data, /, rate=0.5):
    """The identity, as in every network that is compiled to be used."""
    return data


def _pool(name):
    function, dims = _relax(f"nn.{name}"), int(name[-2])
    layout = "NC" + {1: "W", 2: "HW", 3: "DHW"}[dims]
    average = name.startswith("avg")

    def body(data, /, pool_size=(1,) * dims, strides=(1,) * dims, dilation=(1,) * dims, padding=(0,) * dims,
             layout=layout, out_layout="", ceil_mode=False, count_include_pad=False):  # fmt: skip
        return function(data, pool_size, strides, padding, dilation, ceil_mode, count_include_pad, layout,
                        out_layout or None)  # fmt: skip

    def largest(data, /, pool_size=(1,) * dims, strides=(1,) * dims, dilation=(1,) * dims, padding=(0,) * dims,
                layout=layout, out_layout="", ceil_mode=False):  # fmt: skip
        return function(data, pool_size, strides, padding, dilation, ceil_mode, False, layout, out_layout or None)

    _named(f"nn.{name}", body if average else largest, f"nn.{name}")


for _name in ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"):
    _pool(_name)


def _spatial(layout: str) -> list[int]:
    return [axis for axis, letter in enumerate(layout) if letter not in "NC"]


def _whole_pools(spatial: str):
    """The pools of all of a picture, and those that choose their windows by the size of the result."""
    dims, plain = len(spatial), "NC" + spatial

    def average(data, /, layout=plain, out_layout=""):
        return R.mean(data, _spatial(layout), True)

    def largest(data, /, layout=plain, out_layout=""):
        return R.max(data, _spatial(layout), True)

    def adaptive(data, /, output_size=None, layout=plain, out_layout=""):
        size = _many(output_size, dims) if output_size else None
        return _relax(f"nn.adaptive_avg_pool{dims}d")(data, size, layout, out_layout or None)

    _named(f"nn.global_avg_pool{dims}d", average, "mean")
    _named(f"nn.global_max_pool{dims}d", largest, "max")
    _named(f"nn.adaptive_avg_pool{dims}d", adaptive, f"nn.adaptive_avg_pool{dims}d")


for _axes_of in ("W", "HW", "DHW"):
    _whole_pools(_axes_of)


@operator("nn.adaptive_max_pool2d")
def adaptive_max_pool2d(data, /, output_size=None, layout="NCHW", out_layout=""):
    size = [_shape(data)[axis] for axis in _spatial(layout)]
    wanted = _many(output_size, 2) if output_size else size
    if any(a % b for a, b in zip(size, wanted, strict=True)):
        raise NotImplementedError(f"relay.nn.adaptive_max_pool2d of {size} to {list(wanted)}: only whole windows")
    window = tuple(a // b for a, b in zip(size, wanted, strict=True))
    return R.nn.max_pool2d(data, window, window, layout=layout)


@operator("nn.pad")
def pad(data, /, pad_width, pad_value=0, pad_mode="constant"):
    if pad_mode != "constant":
        return _padded(data, pad_width, pad_mode)
    return R.nn.pad(data, _numbers(pad_width), "constant", _numbers(pad_value)[0])


@operator("nn.mirror_pad")
def mirror_pad(data, /, pad_width, mode="SYMMETRIC"):
    return _padded(data, pad_width, mode.lower())


def _padded(data, pad_width, mode):
    """`data` with its own values around it, axis by axis, as NumPy's modes edge, reflect and symmetric have them."""
    for axis, ((before, after), size) in enumerate(zip(pad_width, _shape(data), strict=True)):
        at = np.pad(np.arange(size), (before, after), mode)
        data = R.take(data, relax.const(at.astype("int32")), axis) if before or after else data
    return data


@operator("nn.upsampling")
def upsampling(data, /, scale_h=1, scale_w=1, layout="NCHW", method="nearest_neighbor", align_corners=False):
    size = [int(_shape(data)[axis] * s) for axis, s in zip(_spatial(layout), (scale_h, scale_w), strict=True)]
    kind = "align_corners" if align_corners else "asymmetric"
    return _resized(data, size, layout, method, kind, "floor")


@operator("image.resize2d")
def resize2d(data, /, size, roi=None, layout="NCHW", method="linear",
             coordinate_transformation_mode="half_pixel", rounding_method="", cubic_alpha=-0.5, cubic_exclude=0,
             extrapolation_value=0.0, out_dtype=None):  # fmt: skip
    return _resized(data, _many(size, 2), layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha)


@operator("image.resize")
def resize(data, /, size, layout="NCHW", method="bilinear", coordinate_transformation_mode="half_pixel",
           rounding_method="", bicubic_alpha=-0.5, bicubic_exclude=0, out_dtype=None):  # fmt: skip
    return _resized(
        data, _many(size, 2), layout, method, coordinate_transformation_mode, rounding_method, bicubic_alpha
    )


def _resized(data, size, layout, method, mode, rounding, alpha=-0.5):
    method = {"bilinear": "linear", "bicubic": "cubic"}.get(method, method)
    rounding = rounding or ("round" if method != "nearest_neighbor" or mode != "asymmetric" else "floor")
    return R.image.resize2d(data, tuple(int(s) for s in size), None, layout, method, mode, rounding, alpha)


@operator("nn.lrn")
def lrn(data, /, size=5, axis=1, bias=2.0, alpha=1e-5, beta=0.75):
    """data / (bias + alpha / size · sum of squares of `size` neighbours along `axis`) ** beta."""
    shape, half = _shape(data), size // 2
    rank, length = len(shape), shape[axis]
    padded = R.nn.pad(R.multiply(data, data), [n for i in range(rank) for n in ((half, half) if i == axis else (0, 0))])
    total = None
    for first in range(size):
        part = R.strided_slice(padded, [axis], [first], [first + length])
        total = part if total is None else R.add(total, part)
    number = lambda value: relax.const(value, _dtype(data))  # noqa: E731
    return R.divide(data, R.power(R.add(R.multiply(total, number(alpha / size)), number(bias)), number(beta)))


@operator("nn.l2_normalize")
def l2_normalize(data, /, eps, axis=None):
    total = R.sum(R.multiply(data, data), _axes(axis), True)
    return R.divide(data, R.sqrt(R.maximum(total, relax.const(eps, _dtype(data)))))


@operator("nn.depth_to_space")
def depth_to_space(data, /, block_size, layout="NCHW", mode="DCR"):
    n, c, h, w = _channels_first(data, layout)
    b, inner = block_size, c // block_size**2
    if mode == "DCR":
        made = R.permute_dims(R.reshape(data, (n, b, b, inner, h, w)), [0, 3, 4, 1, 5, 2])
    else:
        made = R.permute_dims(R.reshape(data, (n, inner, b, b, h, w)), [0, 1, 4, 2, 5, 3])
    return R.reshape(made, (n, inner, h * b, w * b))


@operator("nn.space_to_depth")
def space_to_depth(data, /, block_size, layout="NCHW"):
    n, c, h, w = _channels_first(data, layout)
    b = block_size
    made = R.permute_dims(R.reshape(data, (n, c, h // b, b, w // b, b)), [0, 3, 5, 1, 2, 4])
    return R.reshape(made, (n, c * b * b, h // b, w // b))


def _channels_first(data, layout) -> tuple[int, ...]:
    if layout != "NCHW":
        raise NotImplementedError(f"expected the layout NCHW, got {layout}: transpose the data before and after")
    return _shape(data)


@operator("nn.cross_entropy")
def cross_entropy(predictions, targets, /):
    """-sum(targets · log(predictions)) / batch."""
    total = R.sum(R.multiply(R.log(predictions), targets))
    return R.negative(R.divide(total, relax.const(float(_shape(predictions)[0]), _dtype(predictions))))


def module(prefix: str) -> dict:
    """The public operators whose names begin with `prefix` ("nn.", or "" for those of relay itself), by short name."""
    return {n[len(prefix) :]: made for n, made in OPERATORS.items()
            if n.startswith(prefix) and "." not in n[len(prefix) :]}  # fmt: skip
