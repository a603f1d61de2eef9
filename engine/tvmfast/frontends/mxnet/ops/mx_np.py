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

from ....kernels import special
from ...context import dtype_of, shape_of
from .call import CONVERTERS, Call, converts, in_float32
from .elementwise import hypot, in_floats, modulo, nonzero, require_floats, with_number
from .nn import contracted
from .tensor import flat

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
    "_npx_sequence_mask": "SequenceMask",
}  # fmt: skip
for _name, _older in _OLDER.items():
    converts(_name)(CONVERTERS[_older])


# ---------------------------------------------------------------- element by element


def _alike(a: relax.Expr, b: relax.Expr) -> None:
    if dtype_of(a) != dtype_of(b):
        raise NotImplementedError(
            f"numbers of {dtype_of(a)} with numbers of {dtype_of(b)}; cast one of them before"
        )


_INTEGERS = ("bool", "uint8", "int8", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")


def _promoted(c: Call, name: str) -> list[relax.Expr]:
    """Return two arrays in one dtype, as the function of this name has them; MXNet refuses other pairs."""
    dtypes = [dtype_of(each) for each in c.inputs]
    ints = sum(dtype in _INTEGERS for dtype in dtypes)
    mixed = name in ("add", "multiply", "power") or (name in ("subtract", "mod") and ints < 2)
    mixed = mixed or (name == "true_divide" and ints == 1)
    if name == "true_divide" and dtypes[0] == dtypes[1] in _INTEGERS:
        wide = "float32"
    elif mixed and set(dtypes) != {"int8", "uint8"}:
        wide = max(dtypes, key=(*_INTEGERS, *_FLOATS).index)
    else:
        _alike(*c.inputs)
        return c.inputs
    return [c.emit(c.cast(each, wide)) for each in c.inputs]


def _register(name: str, function, of_floats: bool = False) -> None:
    """Register a function of two arrays, of an array and a number, and of a number and an array."""

    def converted(c: Call, a, b):
        if dtype_of(a) == "bool" and name in ("add", "multiply", "power"):  # as numbers, of which none is 2
            a, b = (c.emit(c.cast(each, "int32")) for each in (a, b))
            return nonzero(c.emit(in_floats(c, function, a, b)))
        return in_floats(c, function, a, b) if of_floats else function(a, b)

    converts(f"_npi_{name}")(lambda c: converted(c, *_promoted(c, name)))

    def numbered(c: Call):
        own = name.startswith("bitwise") or (name in _COMPARED and c.dtype == "bool")
        pair = with_number(c, own)
        if name == "true_divide" and c.dtype in _INTEGERS:
            pair = tuple(c.emit(c.cast(each, "float32")) for each in pair)
        return pair

    converts(f"_npi_{name}_scalar")(lambda c: converted(c, *numbered(c)))
    if name in ("subtract", "mod", "power", "true_divide", "arctan2", "copysign", "ldexp"):
        converts(f"_npi_r{name}_scalar")(lambda c: converted(c, *numbered(c)[::-1]))


def _copysign(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Return `a` with the sign of `b`, of which NaN is positive."""
    zero, one = (relax.const(value, dtype_of(b)) for value in (0, 1))
    if dtype_of(b) in _INTEGERS:
        return op.where(op.less(b, zero), op.negative(op.abs(a)), op.abs(a))
    below = op.logical_or(op.less(b, zero), op.logical_and(op.equal(b, zero), op.less(one / b, zero)))
    return op.where(below, op.negative(op.abs(a)), op.abs(a))


def _ldexp(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return a * op.power(relax.const(2, dtype_of(b)), b)


_COMPUTED = ("add", "subtract", "multiply", "maximum", "minimum")
_COMPARED = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_OF_ALL_DTYPES = {"mod": modulo, "true_divide": op.divide, "copysign": _copysign}
_OF_ALL_DTYPES |= {name: getattr(op, name) for name in (*_COMPUTED, *_COMPARED)}
_OF_FLOATS = {"power": op.power, "hypot": hypot, "arctan2": op.atan2, "ldexp": _ldexp}
for _name, _function in {**_OF_ALL_DTYPES, **_OF_FLOATS}.items():
    _register(_name, _function, _name in _OF_FLOATS)
converts("_npi_logical_not")(lambda c: op.logical_not(nonzero(c.x)))


def _told(name: str, function, of_integers: bool = False) -> None:
    """Register a test of floats, which all integers and bools pass or fail."""
    converts(f"_npi_{name}")(
        lambda c: function(c) if c.dtype in _FLOATS else op.full(c.shape, relax.const(of_integers), "bool")
    )


_told("isnan", lambda c: op.isnan(c.x))
_told("isinf", lambda c: op.isinf(c.x))
_told("isfinite", lambda c: op.isfinite(c.x), of_integers=True)
_told("isposinf", lambda c: op.equal(c.x, c.const(math.inf)))
_told("isneginf", lambda c: op.equal(c.x, c.const(-math.inf)))


@converts("_npi_nan_to_num")
def _nan_to_num(c: Call):
    if not c.dtype.startswith("float"):
        return c.x
    largest = float(np.finfo(c.dtype).max)
    x = op.where(op.isnan(c.x), c.const(float(c.get("nan", 0))), c.x)
    x = op.where(op.equal(x, c.const(math.inf)), c.const(float(c.get("posinf", largest))), x)
    return op.where(op.equal(c.x, c.const(-math.inf)), c.const(float(c.get("neginf", -largest))), x)


def _bits(name: str):
    """Return a function of bits, of bools a logical one."""

    def function(*operands):
        kind = "logical" if dtype_of(operands[0]) == "bool" else "bitwise"
        return getattr(op, f"{kind}_{name}")(*operands)

    return function


for _name in ("and", "or", "xor"):
    _register(f"bitwise_{_name}", _bits(_name))
converts("_npi_bitwise_not")(lambda c: _bits("not")(c.x))


@converts("_npi_lcm", "_npi_lcm_scalar")
def _lcm(c: Call):
    """Return least common multiples, >= 0, and 0 of a 0."""
    a, b = with_number(c, own=True) if c.op.endswith("scalar") else c.inputs
    _alike(a, b)
    c.refuse_if("int" not in c.dtype, f"numbers of {c.dtype}")
    shape = np.broadcast_shapes(shape_of(a), shape_of(b))
    count = math.prod(shape)
    a, b = (c.emit(op.reshape(op.broadcast_to(each, shape), [count])) for each in (a, b))
    (divisor,) = c.call("gcd", special.gcd(count, c.dtype), [a, b], ((count,), c.dtype))
    multiple = op.divide(a, op.maximum(divisor, c.const(1))) * b
    return op.reshape(multiple if c.dtype == "uint8" else op.abs(multiple), shape)


@converts("_npi_around")
def _around(c: Call):
    if "int" in c.dtype and int(c.get("decimals", 0)) >= 0:
        return c.x
    require_floats(c.x)
    scale = c.const(10.0 ** int(c.get("decimals", 0)))
    return op.round(c.x * scale) / scale


@converts("_npi_where", "_npi_where_lscalar", "_npi_where_rscalar", "_npi_where_scalar2")
def _where(c: Call):
    condition, *sides = c.inputs
    if len(sides) == 2:
        _alike(*sides)
    elif sides:
        number = c.const(c.need("scalar"), dtype_of(sides[0]))
        sides.insert(c.op == "_npi_where_rscalar", number)
    else:
        sides = [c.const(c.need(name), "float32") for name in ("x", "y")]
    return op.where(condition if dtype_of(condition) == "bool" else nonzero(condition), *sides)


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


converts("_npi_broadcast_to")(lambda c: op.broadcast_to(c.x, c.need("shape")))
converts("_np_squeeze")(lambda c: op.squeeze(c.x, c.axes()))
converts("_npi_tril")(lambda c: op.tril(c.x, int(c.get("k", 0))))


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
    least = 2 if c.op == "_npi_vstack" else 1
    arrays = [op.reshape(x, (1,) * (least - len(shape_of(x))) + shape_of(x)) for x in c.inputs]
    return op.concat(arrays, 0 if least == 2 or c.rank <= 1 else 1)


@converts("_npi_pad")
def _pad(c: Call):
    c.refuse(mode=("constant",))
    widths = list(itertools.chain.from_iterable(c.need("pad_width")))
    return op.nn.pad(c.x, widths, pad_value=float(c.get("constant_values", 0)))


# ---------------------------------------------------------------- reductions and products


def _reduced(c: Call, reduce):
    return reduce(_summable(c), c.axes(), keepdims=bool(c.get("keepdims", False)))


def _summable(c: Call) -> relax.Expr:
    """Return the input in the dtype of its sum: that which the node asks for, its own, or int64 of bools."""
    c.refuse(initial=())
    return c.emit(c.cast(c.x, c.get("dtype", "int64" if c.dtype == "bool" else c.dtype)))


converts("_np_sum")(functools.partial(_reduced, reduce=op.sum))
converts("_np_prod")(functools.partial(_reduced, reduce=op.prod))


@converts("_np_max", "_np_min", "_np_any", "_np_all")
def _extreme(c: Call):
    """Return the largest or least elements; of bools whether any, or all, are true."""
    of_bools = c.dtype == "bool" or c.op in ("_np_any", "_np_all")
    x = c.emit(op.astype(nonzero(c.x), "int32")) if of_bools else c.x
    reduce = op.max if c.op in ("_np_max", "_np_any") else op.min
    result = c.emit(reduce(x, c.axes(), keepdims=bool(c.get("keepdims", False))))
    return op.astype(result, "bool") if of_bools else result


@converts("_npi_mean")
def _mean(c: Call):
    dtype = c.get("dtype", c.dtype if c.dtype.startswith("float") else "float32")
    return op.mean(c.emit(c.cast(c.x, dtype)), c.axes(), keepdims=bool(c.get("keepdims", False)))


@converts("_npi_var", "_npi_std")
def _spread(c: Call):
    require_floats(c.x)
    c.refuse(dtype=(c.dtype,))
    axes, less = c.axes(), int(c.get("ddof", 0))
    count = math.prod(n for axis, n in enumerate(c.shape) if axes is None or axis in axes)
    c.refuse_if(count <= less, f"ddof={less} of {count} numbers")
    result = op.variance(c.x, axes, keepdims=bool(c.get("keepdims", False)))
    result = c.emit(result * c.const(count / (count - less)) if less else result)
    return op.sqrt(result) if c.op == "_npi_std" else result


@converts("_npi_norm")
@in_float32
def _norm(c: Call):
    """Return norms of vectors, or of matrices (flag 1) those of Frobenius; flag -2 means all elements."""
    require_floats(c.x)
    c.refuse(flag=(-2, -1, 1), ord=(1, 2))
    axes, keep = c.axes(), bool(c.get("keepdims", False))
    if c.get("ord", 2) == 1:
        c.refuse(flag=(-1,))
        return op.sum(op.abs(c.x), axes, keepdims=keep)
    return op.sqrt(op.sum(c.x * c.x, axes, keepdims=keep))


@converts("_npi_average")
def _average(c: Call):
    require_floats(c.x)
    c.refuse(returned=(False,))
    axis = c.axes()
    if not c.get("weighted", True):
        return op.mean(c.x, axis)
    weights = c.inputs[1]
    _alike(c.x, weights)
    if shape_of(weights) != c.shape:
        c.refuse_if(axis is None or len(axis) != 1, f"weights of shape {shape_of(weights)} for {c.shape}")
        weights = c.along(1, c.shape[axis[0]], axis[0])
    weights = c.emit(op.broadcast_to(weights, c.shape))
    return op.sum(c.x * weights, axis) / op.sum(weights, axis)


@converts("_npi_percentile")
def _percentile(c: Call):
    require_floats(c.x)
    c.refuse_if(len(c.inputs) > 1, "an array of percentages")
    c.refuse(interpolation=("linear", "lower", "higher", "midpoint"))
    axes = c.axes() or list(range(c.rank))
    rest = [axis for axis in range(c.rank) if axis not in axes]
    count = math.prod(c.shape[axis] for axis in axes)
    x = c.emit(op.reshape(op.permute_dims(c.x, rest + axes), [*(c.shape[axis] for axis in rest), count]))
    x, place = c.emit(op.sort(x, len(rest))), float(c.need("q_scalar")) / 100 * (count - 1)
    low, high = (c.element(x, round_(place), len(rest)) for round_ in (math.floor, math.ceil))
    parts = {"linear": place - math.floor(place), "lower": 0, "higher": 1, "midpoint": 0.5}
    part = parts[c.get("interpolation", "linear")]
    result = low if part == 0 else high if part == 1 else low * c.const(1 - part) + high * c.const(part)
    if not c.get("keepdims", False):
        return result
    return op.reshape(result, [1 if axis in axes else n for axis, n in enumerate(c.shape)])


@converts("_npi_argmax", "_npi_argmin")
def _argmax(c: Call):
    axis, keep = c.get("axis"), bool(c.get("keepdims", False))
    x = flat(c) if axis is None else c.x
    found = (op.argmax if c.op == "_npi_argmax" else op.argmin)(x, int(axis or 0), keepdims=keep)
    if axis is None:
        found = op.reshape(found, [1] * c.rank if keep else [])
    return op.astype(found, "int64")


@converts("_np_cumsum")
def _cumsum(c: Call):
    axis, x = c.get("axis"), _summable(c)
    return op.cumsum(op.reshape(x, [math.prod(c.shape)]) if axis is None else x, int(axis or 0))


@converts("_npi_diff", "_npi_ediff1d")
def _differences(c: Call):
    """Return the differences of neighbours, n times; ediff1d's are of all elements, between two numbers."""
    is_flat = c.op == "_npi_ediff1d"
    c.refuse(to_begin_arr_given=(False,), to_end_arr_given=(False,))
    c.refuse_if(c.dtype == "bool", "numbers of bool")
    x, axis = (c.emit(flat(c)), 0) if is_flat else (c.x, int(c.get("axis", -1)) % c.rank)
    for _ in range(int(c.get("n", 1))):
        size = shape_of(x)[axis]
        if size < 2:
            raise ValueError(f"no differences are left along axis {axis} of shape {c.shape}")
        x = c.emit(op.strided_slice(x, [axis], [1], [size]) - op.strided_slice(x, [axis], [0], [size - 1]))
    ends = [c.get(f"to_{name}_scalar") for name in ("begin", "end")]
    parts = [None if end is None else c.const(np.array([end]), c.dtype) for end in ends]
    parts = [part for part in (parts[0], x, parts[1]) if part is not None]
    return op.concat(parts, 0) if len(parts) > 1 else x


@converts("_npi_polyval")
def _polyval(c: Call):
    """Evaluate a polynomial at the second input; the first has its coefficients, the highest first."""
    x, result = c.inputs[1], None
    _alike(c.x, x)
    for n in range(c.shape[0]):
        coefficient = c.element(c.x, n)
        result = coefficient if result is None else c.emit(result * x + coefficient)
    return op.broadcast_to(result, shape_of(x))


@converts("_npi_matmul", "_np_dot")
def _product(c: Call):
    a, b = c.inputs
    if c.op == "_np_dot":
        if () in (shape_of(a), shape_of(b)):
            return a * b
        c.refuse_if(len(shape_of(b)) > 2, f"the dot product with an array of shape {shape_of(b)}")
    return op.matmul(a, b)


converts("_npi_einsum")(lambda c: op.einsum(tuple(c.inputs), c.need("subscripts").replace(" ", "")))


@converts("_npi_tensordot", "_npi_tensordot_int_axes")
def _tensordot(c: Call):
    a, b = c.inputs
    rank_a, rank_b = len(shape_of(a)), len(shape_of(b))
    if c.op == "_npi_tensordot":
        of_a = [int(n) % rank_a for n in c.need("a_axes_summed")]
        of_b = [int(n) % rank_b for n in c.need("b_axes_summed")]
    else:
        count = int(c.need("axes"))
        of_a, of_b = list(range(rank_a - count, rank_a)), list(range(count))
    return contracted(c, a, b, of_a, of_b)
