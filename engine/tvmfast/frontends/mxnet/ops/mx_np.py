"""Converters of the operators behind `mx.np` and `mx.npx` (see call.py), whose names begin with _np.

They follow NumPy where MXNet's older operators do not: a comparison returns bools, an index is an int64,
the sum of all elements has no axis. Many functions of `mx.np` are older operators under their old names.
"""

import functools
import itertools
import math

import numpy as np
from tvm import relax
from tvm.relax import op

from . import elementwise, nn, tensor  # noqa: F401  (they fill the table)
from .call import CONVERTERS, Call, converts, dtype_of, shape_of
from .elementwise import nonzero

_OLDER = {  # operators that do the same as an older one
    **{f"_npi_{name}": name for name in (
        "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "cbrt", "square", "sign", "negative",
        "reciprocal", "ceil", "floor", "trunc", "rint", "fix", "sin", "cos", "tan", "sinh", "cosh", "tanh",
        "degrees", "radians", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "stack", "flip",
        "tile",
    )},
    **{f"_npx_{name}": name for name in (
        "relu", "sigmoid", "reshape_like", "one_hot", "pick", "gather_nd", "topk",
    )},
    "_npi_absolute": "abs", "_npi_arange": "_arange", "_np_copy": "_copy", "_np_repeat": "repeat",
    "_np_transpose": "transpose",
}  # fmt: skip
for _name, _older in _OLDER.items():
    converts(_name)(CONVERTERS[_older])


# ---------------------------------------------------------------- element by element


def _floats(expr: relax.Expr) -> None:
    if not dtype_of(expr).startswith("float"):
        raise NotImplementedError(f"numbers of {dtype_of(expr)}; cast them to float32 before")


def _alike(a: relax.Expr, b: relax.Expr) -> None:
    if dtype_of(a) != dtype_of(b):
        raise NotImplementedError(
            f"numbers of {dtype_of(a)} with numbers of {dtype_of(b)}; cast one of them before"
        )


def _number(c: Call, name: str = "scalar") -> relax.Expr:
    """Return a number of the node, in the dtype of the array beside it."""
    value = float(c.need(name))
    if not c.dtype.startswith("float") and (value != int(value) or c.dtype == "bool"):
        raise NotImplementedError(f"numbers of {c.dtype} with {value}; cast them to float32 before")
    return c.const(value)


def _register(name: str, function, of_floats: bool) -> None:
    """Register a function of two arrays, of an array and a number, and of a number and an array."""

    def converted(c: Call, pair):
        a, b = pair(c)
        _alike(a, b)
        if of_floats:
            _floats(a)
        return function(a, b)

    converts(f"_npi_{name}")(functools.partial(converted, pair=lambda c: c.inputs))
    converts(f"_npi_{name}_scalar")(functools.partial(converted, pair=lambda c: (c.x, _number(c))))
    if name in ("subtract", "mod", "power", "true_divide"):
        converts(f"_npi_r{name}_scalar")(functools.partial(converted, pair=lambda c: (_number(c), c.x)))


_COMPUTED = ("add", "subtract", "multiply", "maximum", "minimum")
_COMPARED = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_OF_ALL_DTYPES = {"mod": op.floor_mod, **{name: getattr(op, name) for name in (*_COMPUTED, *_COMPARED)}}
_OF_FLOATS = {"power": op.power, "true_divide": op.divide, "hypot": lambda a, b: op.sqrt(a * a + b * b)}
for _name, _function in {**_OF_ALL_DTYPES, **_OF_FLOATS}.items():
    _register(_name, _function, _name in _OF_FLOATS)
converts("_npi_logical_not")(lambda c: op.logical_not(nonzero(c.x)))
converts("_npi_isnan")(lambda c: op.isnan(c.x))
converts("_npi_isinf")(lambda c: op.isinf(c.x))
converts("_npi_isfinite")(lambda c: op.isfinite(c.x))


@converts("_npi_around")
def _around(c: Call):
    _floats(c.x)
    scale = c.const(10.0 ** int(c.get("decimals", 0)))
    return op.round(c.x * scale) / scale


def _where(condition, x, y):
    return op.where(condition if dtype_of(condition) == "bool" else nonzero(condition), x, y)


@converts("_npi_where")
def _where_arrays(c: Call):
    _alike(c.inputs[1], c.inputs[2])
    return _where(*c.inputs)


@converts("_npi_where_lscalar", "_npi_where_rscalar")
def _where_scalar(c: Call):
    condition, array = c.inputs
    number = c.const(c.need("scalar"), dtype_of(array))
    return _where(condition, *((number, array) if c.node.op == "_npi_where_lscalar" else (array, number)))


@converts("_npi_where_scalar2")
def _where_scalars(c: Call):
    return _where(c.x, c.const(c.need("x"), "float32"), c.const(c.need("y"), "float32"))


# ---------------------------------------------------------------- shapes


@converts("_np_reshape", "_npi_reshape")
def _reshape(c: Call):
    c.refuse(order=("C",))
    shape = c.need("newshape")
    return op.reshape(c.x, [shape] if isinstance(shape, int) else list(shape))


@converts("_npx_reshape")
def _npx_reshape(c: Call):
    """Reshape by codes below -1: copy, drop a 1, copy the rest, multiply two, split one into two."""
    c.refuse(order=("C",), reverse=(False,))
    asked = c.need("newshape")
    asked, sizes = iter([asked] if isinstance(asked, int) else asked), iter(c.shape)
    shape = []
    for code in asked:
        if code == -6:
            size = next(sizes)
            first, second = next(asked), next(asked)
            shape += [size // second if first == -1 else first, size // first if second == -1 else second]
        elif code == -5:
            shape.append(next(sizes) * next(sizes))
        elif code == -4:
            shape += sizes
        elif code == -3:
            if (size := next(sizes)) != 1:
                raise ValueError(f"newshape: -3 drops an axis of size 1; got one of size {size}")
        else:
            size = next(sizes, None)
            shape.append(size if code == -2 else code)
    return op.reshape(c.x, shape)


@converts("_npi_broadcast_to")
def _broadcast_to(c: Call):
    return op.broadcast_to(c.x, c.need("shape"))


@converts("_np_squeeze")
def _squeeze(c: Call):
    return op.squeeze(c.x, c.axes())


@converts("_np_moveaxis")
def _moveaxis(c: Call):
    source, to = c.axes("source"), c.axes("destination")
    order = [axis for axis in range(c.rank) if axis not in source]
    for index, axis in sorted(zip(to, source, strict=True)):
        order.insert(index, axis)
    return op.permute_dims(c.x, order)


@converts("_npi_concatenate")
def _concatenate(c: Call):
    axis = c.get("axis", None if c.node.attrs.get("axis") == "None" else 0)
    if axis is None:
        return op.concat([op.reshape(each, [math.prod(shape_of(each))]) for each in c.inputs], 0)
    return op.concat(c.inputs, int(axis))


@converts("_npi_hstack", "_npi_vstack")
def _stacked(c: Call):
    least = 2 if c.node.op == "_npi_vstack" else 1
    arrays = [
        op.reshape(each, [1] * (least - len(shape_of(each))) + list(shape_of(each))) for each in c.inputs
    ]
    return op.concat(arrays, 0 if least == 2 or c.rank <= 1 else 1)


@converts("_npi_pad")
def _pad(c: Call):
    c.refuse(mode=("constant",))
    widths = list(itertools.chain.from_iterable(c.need("pad_width")))
    return op.nn.pad(c.x, widths, pad_value=float(c.get("constant_values", 0)))


@converts("_npi_zeros", "_npi_ones", "_npi_full", "_npi_full_like")
def _filled(c: Call):
    shape, like = (c.shape, c.dtype) if c.inputs else (c.need("shape"), "float32")
    value = {"_npi_zeros": 0, "_npi_ones": 1}.get(c.node.op)
    value = c.get("fill_value", c.get("value", 0)) if value is None else value
    return c.const(np.full(shape, value), c.get("dtype", like))


@converts("_npi_tril")
def _tril(c: Call):
    return op.tril(c.x, int(c.get("k", 0)))


# ---------------------------------------------------------------- reductions and products


def _reduced(c: Call, reduce):
    _floats(c.x)
    c.refuse(dtype=(c.dtype,), initial=())
    return reduce(c.x, c.axes(), keepdims=bool(c.get("keepdims", False)))


for _name in ("_np_sum", "_npi_mean", "_np_max", "_np_min", "_np_prod"):
    converts(_name)(functools.partial(_reduced, reduce=getattr(op, _name.rpartition("_")[2])))


@converts("_npi_var", "_npi_std")
def _variance(c: Call):
    c.refuse(ddof=(0,))
    return _reduced(c, op.variance if c.node.op == "_npi_var" else op.std)


@converts("_npi_argmax", "_npi_argmin")
def _argmax(c: Call):
    axis = c.get("axis")
    x = op.reshape(c.x, [math.prod(c.shape)]) if axis is None else c.x
    keep = bool(c.get("keepdims", False))
    found = (op.argmax if c.node.op == "_npi_argmax" else op.argmin)(x, int(axis or 0), keepdims=keep)
    if axis is None:
        found = op.reshape(found, [1] * c.rank if keep else [])
    return op.astype(found, "int64")


@converts("_np_cumsum")
def _cumsum(c: Call):
    _floats(c.x)
    c.refuse(dtype=(c.dtype,))
    axis = c.get("axis")
    return op.cumsum(op.reshape(c.x, [math.prod(c.shape)]) if axis is None else c.x, int(axis or 0))


@converts("_npi_matmul", "_np_dot")
def _product(c: Call):
    a, b = c.inputs
    if c.node.op == "_np_dot":
        if () in (shape_of(a), shape_of(b)):
            return a * b
        if len(shape_of(b)) > 2:
            raise NotImplementedError(f"the dot product with an array of shape {shape_of(b)}")
    return op.matmul(a, b)


@converts("_npi_einsum")
def _einsum(c: Call):
    return op.einsum(tuple(c.inputs), c.need("subscripts").replace(" ", ""))


@converts("_npi_tensordot", "_npi_tensordot_int_axes")
def _tensordot(c: Call):
    a, b = c.inputs
    rank_a, rank_b = len(shape_of(a)), len(shape_of(b))
    if c.node.op == "_npi_tensordot":
        of_a = [int(n) % rank_a for n in c.need("a_axes_summed")]
        of_b = [int(n) % rank_b for n in c.need("b_axes_summed")]
    else:
        count = int(c.need("axes"))
        of_a, of_b = list(range(rank_a - count, rank_a)), list(range(count))
    left = [axis for axis in range(rank_a) if axis not in of_a]
    right = [axis for axis in range(rank_b) if axis not in of_b]
    shape = [*(shape_of(a)[axis] for axis in left), *(shape_of(b)[axis] for axis in right)]
    depth = math.prod(shape_of(a)[axis] for axis in of_a)
    a = op.reshape(c.emit(op.permute_dims(a, left + of_a)), [-1, depth])
    b = op.reshape(c.emit(op.permute_dims(b, of_b + right)), [depth, -1])
    return op.reshape(op.matmul(a, b), shape)
