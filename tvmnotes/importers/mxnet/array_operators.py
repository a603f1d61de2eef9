"""MXNet's operators on arrays in Relax, see call.py: shapes, choosing, reducing, element by element."""

import math

import numpy as np
from tvm import relax
from tvm.relax import op

from .call import Call, converts, dtype_of, shape_of, sum_of

# ---------------------------------------------------------------- shapes


@converts("Flatten", "flatten")
def _flatten(c: Call):
    return op.reshape(c.x, (c.shape[0], math.prod(c.shape[1:])))


@converts("Reshape", "reshape")
def _reshape(c: Call):
    target = c.get("shape", ())
    if not target and (target := c.get("target_shape")):  # before version 0.9
        shape = [n or -1 for n in target]
        if c.get("keep_highest", False):
            shape[0] = c.shape[0]
        return op.reshape(c.x, shape)
    return op.reshape(c.x, reshaped(c.shape, [target] if isinstance(target, int) else target, c.get("reverse", False)))


def reshaped(shape, target, reverse=False) -> list[int]:
    """The shape that `target` makes of `shape`, with MXNet's codes.

    0 takes a size over, -1 is what is left, -2 takes all others over, -3 multiplies two, and -4 splits one into the
    two that follow it. `reverse` reads both from the right.
    """
    source, codes, made, open_ = list(shape), list(target), [], None
    if reverse:
        source, codes = source[::-1], codes[::-1]
    codes, at = iter(codes), 0
    for code in codes:
        if code == -2:
            made += source[at:]
            at = len(source)
        elif code == -3:
            made.append(source[at] * source[at + 1])
            at += 2
        elif code == -4:
            first, second = next(codes), next(codes)
            first = source[at] // second if first == -1 else first
            made += [first, source[at] // first if second == -1 else second]
            at += 1
        else:
            if code == -1:
                open_ = len(made)
            made.append(source[at] if code == 0 else 1 if code == -1 else code)
            at += 1
    if open_ is not None:
        made[open_] = math.prod(shape) // math.prod(made)
    if math.prod(made) != math.prod(shape):
        raise ValueError(f"shape={tuple(target)} for an input of shape {tuple(shape)}")
    return made[::-1] if reverse else made


@converts("reshape_like")
def _reshape_like(c: Call):
    """Some axes, from begin to end, take the sizes of some axes of the other."""

    def some(side, shape):
        begin, end = c.get(f"{side}_begin"), c.get(f"{side}_end")
        return slice(None if begin is None else int(begin), None if end is None else int(end)).indices(len(shape))[:2]

    like = shape_of(c.inputs[1])
    (first, last), (begin, end) = some("lhs", c.shape), some("rhs", like)
    return op.reshape(c.x, reshaped(c.shape, [*c.shape[:first], *like[begin:end], *c.shape[last:]]))


@converts("transpose")
def _transpose(c: Call):
    return op.permute_dims(c.x, list(c.get("axes", ())) or None)


@converts("SwapAxis", "swapaxes")
def _swap_axis(c: Call):
    order, (a, b) = list(range(c.rank)), (int(c.get("dim1", 0)), int(c.get("dim2", 0)))
    order[a], order[b] = order[b], order[a]
    return op.permute_dims(c.x, order)


@converts("expand_dims")
def _expand_dims(c: Call):
    return op.expand_dims(c.x, int(c.need("axis")))


@converts("squeeze")
def _squeeze(c: Call):
    axes = c.axes()
    return op.reshape(c.x, [n for axis, n in enumerate(c.shape) if (axis not in axes if axes else n != 1)] or [1])


@converts("Concat", "concat")
def _concat(c: Call):
    return op.concat(c.inputs, int(c.get("dim", 1)))


@converts("stack")
def _stack(c: Call):
    axis = int(c.get("axis", 0)) % (c.rank + 1)
    return op.concat([c.emit(op.expand_dims(each, axis)) for each in c.inputs], axis)


@converts("SliceChannel", "split")
def _split(c: Call):
    axis, parts = int(c.get("axis", 1)) % c.rank, int(c.need("num_outputs"))
    if c.shape[axis] % parts:
        raise ValueError(f"axis {axis} of shape {c.shape} in {parts} parts")
    return _cut(c, axis, range(0, c.shape[axis], c.shape[axis] // parts))


@converts("_split_v2")
def _split_v2(c: Call):
    axis, sections = int(c.get("axis", 0)) % c.rank, int(c.get("sections", 0))
    begins = list(c.get("indices", (0,)))
    if sections:
        begins = [n * (c.shape[axis] // sections) for n in range(sections)]
    return _cut(c, axis, begins)


def _cut(c: Call, axis: int, begins) -> list[relax.Expr]:
    """The parts of an axis that begin there."""
    ends = [*begins[1:], c.shape[axis]]
    made = [c.emit(op.strided_slice(c.x, [axis], [a], [b])) for a, b in zip(begins, ends, strict=True)]
    return [c.emit(op.squeeze(each, [axis])) for each in made] if c.get("squeeze_axis", False) else made


@converts("slice", "crop")
def _slice(c: Call):
    begin, end, step = (_as_tuple(c.get(name, ())) for name in ("begin", "end", "step"))
    step = step or (None,) * len(begin)
    return _sliced(c, {axis: slice(*each) for axis, each in enumerate(zip(begin, end, step, strict=True))})


def _as_tuple(found) -> tuple:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _sliced(c: Call, slices: dict[int, slice]) -> relax.Expr:
    made, forward = c.x, {}
    for axis, each in slices.items():
        if each.step == 0:
            raise ValueError("a slice of step 0")
        places = range(*each.indices(c.shape[axis]))
        if not places:
            raise ValueError(f"an empty slice of axis {axis} of shape {c.shape}")
        if places.step < 0:
            made = c.emit(op.take(made, c.const(list(places), "int32"), axis, mode="clip"))
        elif len(places) < c.shape[axis]:
            forward[axis] = places
    if not forward:
        return made
    ends = [places[-1] + 1 for places in forward.values()]
    return op.strided_slice(
        made, list(forward), [p.start for p in forward.values()], ends, [p.step for p in forward.values()]
    )


@converts("slice_axis")
def _slice_axis(c: Call):
    return _sliced(c, {int(c.need("axis")) % c.rank: slice(c.get("begin"), c.get("end"))})


@converts("slice_like")
def _slice_like(c: Call):
    like = shape_of(c.inputs[1])
    return _sliced(c, {axis: slice(0, like[axis]) for axis in c.axes("axes") or range(c.rank)})


@converts("tile")
def _tile(c: Call):
    return op.tile(c.x, list(_as_tuple(c.need("reps"))))


@converts("repeat")
def _repeat(c: Call):
    x, axis = c.x, c.get("axis")
    if axis is None:
        x, axis = c.emit(op.reshape(x, [math.prod(c.shape)])), 0
    return op.repeat(x, int(c.need("repeats")), int(axis))


@converts("reverse", "flip")
def _reverse(c: Call):
    x = c.x
    for axis in c.axes():
        x = c.emit(op.flip(x, axis))
    return x


@converts("broadcast_to")
def _broadcast_to(c: Call):
    wanted = c.need("shape")
    return op.broadcast_to(c.x, [n or m for n, m in zip(wanted, c.shape, strict=True)])


@converts("broadcast_axis", "broadcast_axes")
def _broadcast_axis(c: Call):
    shape = list(c.shape)
    for axis, size in zip(_as_tuple(c.need("axis")), _as_tuple(c.need("size")), strict=True):
        shape[axis] = size
    return op.broadcast_to(c.x, shape)


@converts("broadcast_like")
def _broadcast_like(c: Call):
    like, shape = shape_of(c.inputs[1]), list(c.shape)
    own, other = c.get("lhs_axes"), c.get("rhs_axes")
    pairs = zip(_as_tuple(own), _as_tuple(other), strict=True) if own is not None else ((n, n) for n in range(c.rank))
    for axis, theirs in pairs:
        shape[axis] = like[theirs]
    return op.broadcast_to(c.x, shape)


@converts("shape_array", "size_array")
def _shape_array(c: Call):
    return c.const(c.shape if c.node.op == "shape_array" else [math.prod(c.shape)], "int64")


# ---------------------------------------------------------------- new arrays


@converts("_zeros", "_ones", "_full", "zeros_like", "ones_like", "full_like")
def _filled(c: Call):
    like = bool(c.inputs)
    shape = c.shape if like else _as_tuple(c.need("shape"))
    dtype = c.get("dtype", c.dtype if like else "float32")
    value = 0 if "zeros" in c.node.op else 1 if "ones" in c.node.op else c.get("value", c.get("fill_value", 0))
    return c.const(np.full(shape, value), c.dtype if dtype == "None" else dtype)


@converts("_arange")
def _arange(c: Call):
    if c.get("infer_range", False):
        raise NotImplementedError("infer_range=True")
    start, stop = c.get("start", 0), c.get("stop")
    start, stop = (0, start) if stop is None else (start, stop)
    made = np.arange(start, stop, c.get("step", 1), c.get("dtype", "float32"))
    return c.const(np.repeat(made, int(c.get("repeat", 1))), str(made.dtype))


@converts("_contrib_arange_like")
def _arange_like(c: Call):
    axis, repeat = c.get("axis"), int(c.get("repeat", 1))
    shape = c.shape if axis is None else (c.shape[int(axis)],)
    count = math.prod(shape)
    made = float(c.get("start", 0)) + float(c.get("step", 1)) * (np.arange(count) // repeat)
    return c.const(made.reshape(shape))


@converts("Cast", "cast", "amp_cast")
def _cast(c: Call):
    dtype, x = c.need("dtype"), c.x
    if dtype == c.dtype:
        return x
    return op.astype(x, dtype)


@converts("amp_multicast")
def _multicast(c: Call):
    order = ("float16", "bfloat16", "float32", "float64")
    pick = min if c.get("cast_narrow", False) else max
    dtype = pick((dtype_of(each) for each in c.inputs), key=order.index)
    return [c.cast(each, dtype) for each in c.inputs]


# ---------------------------------------------------------------- choosing elements


def _clip_or_wrap(c: Call, usual: str = "clip") -> str:
    mode = c.get("mode", usual)
    if mode not in ("clip", "wrap"):
        raise NotImplementedError(f"mode={mode}")
    return mode


@converts("take")
def _take(c: Call):
    axis, indices = int(c.get("axis", 0)) % c.rank, c.inputs[1]
    if _clip_or_wrap(c) == "wrap":
        indices = c.emit(op.floor_mod(indices, relax.const(c.shape[axis], dtype_of(indices))))
    return op.take(c.x, _as_places(c, indices), axis, mode="clip")


def _as_places(c: Call, indices: relax.Expr) -> relax.Expr:
    return c.cast(indices, "int32")


@converts("Embedding")
def _embedding(c: Call):
    weight = c.expect(1, int(c.need("input_dim")), int(c.need("output_dim")))
    return op.take(weight, _as_places(c, c.x), 0, mode="clip")


@converts("pick", "choose_element_0index")
def _pick(c: Call):
    _clip_or_wrap(c)
    axis = int(c.get("axis", -1)) % c.rank
    places = c.emit(op.clip(_as_places(c, c.inputs[1]), 0, c.shape[axis] - 1))
    if len(shape_of(places)) < c.rank:
        places = c.emit(op.expand_dims(places, axis))
    made = op.gather_elements(c.x, places, axis)
    return made if c.get("keepdims", False) else op.squeeze(c.emit(made), [axis])


@converts("gather_nd")
def _gather_nd(c: Call):
    indices = _as_places(c, c.inputs[1])
    order = [*range(1, len(shape_of(indices))), 0]
    return op.gather_nd(c.x, c.cast(c.emit(op.permute_dims(indices, order)), "int64"))


@converts("where")
def _where(c: Call):
    condition, x, y = c.inputs
    if len(shape_of(condition)) == 1 < len(shape_of(x)):
        condition = c.emit(op.reshape(condition, [-1, *[1] * (len(shape_of(x)) - 1)]))
    chosen = c.emit(op.not_equal(condition, relax.const(0, dtype_of(condition))))
    return op.where(chosen, x, y)


@converts("one_hot")
def _one_hot(c: Call):
    dtype = c.get("dtype", "float32")
    on, off = (
        relax.const(np.asarray(c.get(name, usual), dtype)) for name, usual in (("on_value", 1), ("off_value", 0))
    )
    depth = int(c.need("depth"))
    # An index outside makes a row without the mark.
    places = c.emit(op.expand_dims(_as_places(c, c.x), c.rank))
    marked = c.emit(op.equal(places, relax.const(np.arange(depth, dtype="int32"))))
    return op.where(marked, on, off)


def _line(c: Call) -> tuple[relax.Expr, int]:
    """What is ordered, and along which axis: the last where none is named, all as one line where it is None."""
    if c.node.attrs.get("axis", "").strip() == "None":
        return c.emit(op.reshape(c.x, [math.prod(c.shape)])), 0
    return c.x, int(c.get("axis", -1)) % c.rank


@converts("topk")
def _topk(c: Call):
    kind, (x, axis) = c.get("ret_typ", "indices"), _line(c)
    if kind == "mask":
        raise NotImplementedError("ret_typ=mask")
    count = int(c.get("k", 1)) or shape_of(x)[axis]
    made = c.emit(op.topk(x, count, axis, "both", largest=not c.get("is_ascend", False), dtype="int32"))
    values, indices = (c.emit(relax.TupleGetItem(made, n)) for n in (0, 1))
    indices = c.cast(indices, c.get("dtype", "float32"))
    return {"value": values, "indices": indices, "both": [values, indices]}[kind]


@converts("sort", "argsort")
def _sort(c: Call):
    (x, axis), descending = _line(c), not c.get("is_ascend", True)
    if c.node.op == "sort":
        return op.sort(x, axis, descending)
    return op.astype(c.emit(op.argsort(x, axis, descending, "int32")), c.get("dtype", "float32"))


@converts("argmax", "argmin", "argmax_channel")
def _argmax(c: Call):
    x, axis, keep = c.x, c.get("axis"), c.get("keepdims", False)
    if c.node.op == "argmax_channel":
        axis = 1
    if axis is None:
        x, axis, keep = c.emit(op.reshape(x, [math.prod(c.shape)])), 0, True
    found = (op.argmin if c.node.op == "argmin" else op.argmax)(x, int(axis), keepdims=keep)
    return op.astype(c.emit(found), "float32")


# ---------------------------------------------------------------- reductions


def _reduced_axes(c: Call) -> list[int]:
    axes = c.axes() or list(range(c.rank))
    return [n for n in range(c.rank) if n not in axes] if c.get("exclude", False) else axes


def _reduction(reduce):
    def convert(c: Call):
        axes = _reduced_axes(c)
        made = reduce(c.x, axes, keepdims=bool(c.get("keepdims", False))) if axes else c.x
        return _at_least_one_axis(c, made)

    return convert


def _at_least_one_axis(c: Call, made: relax.Expr) -> relax.Expr:
    """MXNet's arrays have an axis, if only of size 1."""
    made = c.emit(made)
    return made if shape_of(made) else op.reshape(made, [1])


for _names, _reduce in (
    (("sum", "sum_axis"), op.sum), (("mean",), op.mean), (("max", "max_axis"), op.max),
    (("min", "min_axis"), op.min), (("prod",), op.prod),
):  # fmt: skip
    converts(*_names)(_reduction(_reduce))


@converts("norm")
def _norm(c: Call):
    order, axes, keep = c.get("ord", 2), c.axes() or list(range(c.rank)), bool(c.get("keepdims", False))
    if order == 1:
        return _at_least_one_axis(c, op.sum(c.emit(op.abs(c.x)), axes, keepdims=keep))
    return _at_least_one_axis(c, op.sqrt(c.emit(op.sum(c.emit(op.multiply(c.x, c.x)), axes, keepdims=keep))))


@converts("add_n", "ElementWiseSum")
def _add_n(c: Call):
    return sum_of(c, c.inputs)


# ---------------------------------------------------------------- element by element


def _compare(compare):
    """A comparison, whose result is of the operands' dtype."""
    return lambda c, a, b: op.astype(c.emit(compare(a, b)), dtype_of(a))


def _logical(combine):
    def convert(c, a, b):
        a, b = (c.emit(op.not_equal(each, relax.const(0, dtype_of(each)))) for each in (a, b))
        return op.astype(c.emit(combine(a, b)), c.dtype)

    return convert


def _hypot(c: Call, a, b):
    return op.sqrt(c.emit(op.add(c.emit(op.multiply(a, a)), c.emit(op.multiply(b, b)))))


_BINARY = {
    "add": lambda c, a, b: op.add(a, b),
    "sub": lambda c, a, b: op.subtract(a, b),
    "mul": lambda c, a, b: op.multiply(a, b),
    "div": lambda c, a, b: op.divide(a, b),
    "mod": lambda c, a, b: op.floor_mod(a, b),
    "power": lambda c, a, b: op.power(a, b),
    "maximum": lambda c, a, b: op.maximum(a, b),
    "minimum": lambda c, a, b: op.minimum(a, b),
    "hypot": _hypot,
    "equal": _compare(op.equal),
    "not_equal": _compare(op.not_equal),
    "greater": _compare(op.greater),
    "greater_equal": _compare(op.greater_equal),
    "lesser": _compare(op.less),
    "lesser_equal": _compare(op.less_equal),
    "logical_and": _logical(op.logical_and),
    "logical_or": _logical(op.logical_or),
    "logical_xor": _logical(op.logical_xor),
}
# How MXNet spells them: with two arrays, with an array and a number, and with the number first.
_SPELLED = {
    "add": ("plus",),
    "sub": ("minus", "subtract"),
    "mul": ("multiply",),
    "div": ("divide",),
    "power": ("pow",),
}


def _with_number(function, reversed_: bool):
    def convert(c: Call):
        number = c.const(c.need("scalar"))
        return function(c, number, c.x) if reversed_ else function(c, c.x, number)

    return convert


def _register_binary():
    for name, function in _BINARY.items():
        spelled = [name, *_SPELLED.get(name, ())]
        spelled += ["_".join(part.capitalize() for part in each.split("_")) for each in spelled]  # as in _Greater_Equal
        arrays = [f"{prefix}{each}" for each in spelled for prefix in ("_", "broadcast_", "elemwise_", "_grad_", "")]
        converts(*arrays)(lambda c, function=function: function(c, *c.inputs))
        for each in spelled:
            converts(f"_{each}_scalar", f"_{each}Scalar")(_with_number(function, False))
            capital = each[0].upper() + each[1:]
            converts(f"_r{each}_scalar", f"_R{capital}Scalar", f"_r{capital}Scalar")(_with_number(function, True))


_register_binary()


def _unary(function):
    return lambda c: function(c.x)


for _name in ("abs", "ceil", "floor", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh",
              "sigmoid", "sign", "negative", "erf", "square", "trunc"):  # fmt: skip
    converts(_name, f"_{_name}")(_unary(getattr(op, _name)))
for _name, _theirs in (("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan"), ("arcsinh", "asinh"),
                       ("arccosh", "acosh"), ("arctanh", "atanh"), ("fix", "trunc"), ("rint", "round")):  # fmt: skip
    converts(_name)(_unary(getattr(op, _theirs)))
converts("relu")(lambda c: op.nn.relu(c.x))
converts("reciprocal")(lambda c: op.divide(c.const(1), c.x))
converts("rcbrt")(lambda c: op.divide(c.const(1), c.emit(_cbrt(c))))
converts("log2")(lambda c: op.multiply(c.emit(op.log(c.x)), c.const(1 / math.log(2))))
converts("log10")(lambda c: op.multiply(c.emit(op.log(c.x)), c.const(1 / math.log(10))))
converts("log1p")(lambda c: op.log(c.emit(op.add(c.x, c.const(1)))))
converts("expm1")(lambda c: op.subtract(c.emit(op.exp(c.x)), c.const(1)))
converts("degrees")(lambda c: op.multiply(c.x, c.const(180 / math.pi)))
converts("radians")(lambda c: op.multiply(c.x, c.const(math.pi / 180)))
converts("_contrib_div_sqrt_dim")(lambda c: op.divide(c.x, c.const(math.sqrt(c.shape[-1]))))


@converts("cbrt")
def _cbrt(c: Call):
    root = c.emit(op.power(c.emit(op.abs(c.x)), c.const(1 / 3)))
    return op.multiply(c.emit(op.sign(c.x)), root)


@converts("round")
def _round(c: Call):
    """Halves away from zero."""
    up = c.emit(op.floor(c.emit(op.add(c.emit(op.abs(c.x)), c.const(0.5)))))
    return op.multiply(c.emit(op.sign(c.x)), up)


@converts("logical_not")
def _logical_not(c: Call):
    return op.astype(c.emit(op.equal(c.x, c.const(0))), c.dtype)


@converts("clip")
def _clip(c: Call):
    return op.clip(c.x, float(c.need("a_min")), float(c.need("a_max")))


@converts("smooth_l1")
def _smooth_l1(c: Call):
    square = float(c.get("scalar", 1.0)) ** 2
    away = c.emit(op.abs(c.x))
    near = c.emit(op.multiply(c.emit(op.multiply(c.x, c.x)), c.const(square / 2)))
    far = c.emit(op.subtract(away, c.const(0.5 / square)))
    return op.where(c.emit(op.less(away, c.const(1 / square))), near, far)
