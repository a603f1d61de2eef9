"""`te.gradient`: derivatives of tensor expressions in reverse mode, which are tensor expressions themselves.

Let an operation compute y[i] = f(i, r, x[g(i, r)], …), perhaps summed over r. By one of its loads, the
derivative dy[p, i] of what was computed of y, with leading axes p, reaches x as

    dx[p, j] = the sum of dy[p, i] * df/dx over all i and r with g(i, r) = j

An equation g(i, r) = j that has a variable with coefficient 1 or -1 gives that variable; where axes are split
or fused by // and %, TVM's inverse of a map of iterators gives all of them. So the sum of a product's or a
convolution's derivative is as long as its own, and a condition leaves out what is outside of the axes. An
equation that gives nothing is a condition, too.
"""

import math

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.tirx import IterVar, Var, if_then_else

from .expressions import is_load
from .te.ops import REDUCE, constant, key, name_of, ordered

_SLOPES = {  # of y = f(x, …): the derivative by each argument
    "exp": lambda y, x: [y],
    "log": lambda y, x: [1 / x],
    "sqrt": lambda y, x: [0.5 / y],
    "rsqrt": lambda y, x: [-0.5 * y / x],
    "tanh": lambda y, x: [1 - y * y],
    "sigmoid": lambda y, x: [y * (1 - y)],
    "sin": lambda y, x: [tirx.cos(x)],
    "cos": lambda y, x: [-tirx.sin(x)],
    "erf": lambda y, x: [2 / math.sqrt(math.pi) * tirx.exp(-x * x)],
    "fabs": lambda y, x: [tirx.Select(x >= 0, tirx.const(1, str(x.ty)), tirx.const(-1, str(x.ty)))],
    "pow": lambda y, x, n: [n * tirx.power(x, n - 1), y * tirx.log(x)],
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "nearbyint"), lambda y, x: []),
}
_PARTS = {  # of y with derivative d: the parts, the derivative by each, and when that is so
    tirx.Add: lambda y, d: [(y.a, d, None), (y.b, d, None)],
    tirx.Sub: lambda y, d: [(y.a, d, None), (y.b, -d, None)],
    tirx.Mul: lambda y, d: [(y.a, d * y.b, None), (y.b, d * y.a, None)],
    tirx.Div: lambda y, d: [(y.a, d / y.b, None), (y.b, -d * y / y.b, None)],
    tirx.Max: lambda y, d: [(y.a, d, y.a >= y.b), (y.b, d, y.a < y.b)],
    tirx.Min: lambda y, d: [(y.a, d, y.a <= y.b), (y.b, d, y.a > y.b)],
    tirx.Select: lambda y, d: [(y.true_value, d, y.condition), (y.false_value, d, tirx.Not(y.condition))],
    tirx.Cast: lambda y, d: [(y.value, d.astype(str(y.value.ty)), None)] if _is_float(y.value) else [],
}


def gradient(output, inputs, head=None) -> list:
    """`te.gradient`: the derivatives of a tensor by others, as tensors to go on with, schedule and build.

    Of a `te.max` or `te.min` over axes, the first of equals has the derivative.

    Args:
        output: A tensor of floats, which `te.compute` made of the inputs by way of others.
        inputs: Tensors, or one: placeholders, and what was computed of them.
        head: The derivatives of something by `output`: (…, *output.shape), of its dtype. By default the
            identity, (*output.shape, *output.shape), for which the results are Jacobians.

    Returns:
        A list of a tensor for each input, (…, *input.shape); zeros where `output` does not depend on it.

    Raises:
        ValueError: `output` is not of floats, or `head` of another shape or dtype.
        NotImplementedError: `output` depends on an input by what has no derivative here: te.extern, te.scan,
            an operation with several results, a reduction by another combiner, or another function.
    """
    inputs = [inputs] if isinstance(inputs, te.Tensor) else list(inputs)
    shape, dtype = list(output.shape), str(output.dtype)
    head = _identity(shape, dtype) if head is None else head
    rank, equal = len(head.shape) - len(shape), tvm.sym.Analyzer().can_prove_equal
    fits = rank >= 0 and all(map(equal, list(head.shape)[rank:], shape))
    if "float" not in dtype or str(head.dtype) != dtype or not fits:
        raise ValueError(
            f"te.gradient: expected a tensor of floats, and a head of its dtype and of shape (…, *{shape}); "
            f"got {dtype}, and a head of {head.dtype} and of shape {list(head.shape)}"
        )
    ops, leading = ordered([output.op]), list(head.shape)[:rank]
    reached = {key(tensor.op) for tensor in inputs}  # what depends on an input
    for op in ops:
        if any(key(tensor.op) in reached for tensor in op.input_tensors):
            reached.add(key(op))
    parts = {key(output.op): [head]}  # of each operation's derivative
    for op in reversed(ops):
        given = parts.get(key(op), [])
        if len(given) > 1:
            parts[key(op)] = given = [_total(given, f"d{op.name}")]
        if given and any(key(tensor.op) in reached for tensor in op.input_tensors):
            for source, part in _through(op, given[0], rank, reached):
                parts.setdefault(key(source), []).append(part)
    return [parts[key(x.op)][0] if key(x.op) in parts else _zeros([*leading, *x.shape], x) for x in inputs]


def _is_float(value) -> bool:
    return "float" in str(value.ty)


def _identity(shape: list, dtype: str):
    def element(*at):
        same = [i.equal(j) for i, j in zip(at[: len(shape)], at[len(shape) :], strict=True)]
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        return if_then_else(tirx.all(*same), one, zero) if same else one

    return te.compute([*shape, *shape], element, "identity")


def _zeros(shape: list, tensor):
    return te.compute(shape, lambda *_: tirx.const(0, str(tensor.dtype)), f"d{tensor.op.name}")


def _total(tensors: list, name: str):
    first, *others = tensors
    return te.compute(first.shape, lambda *at: sum((each(*at) for each in others), first(*at)), name)


def _through(op, head, rank: int, reached: set[int]):
    """Yield what an operation reads, and what of its derivative, `head`, reaches that by one load of it."""
    if not isinstance(op, te.ComputeOp) or int(op.num_outputs) != 1:
        raise NotImplementedError(f"te.gradient: {op.name}: expected a te.compute with one result")
    (value,), axes, conditions = op.body, list(op.axis), []
    if isinstance(value, te.Reduce):
        conditions, value, axes = _counted(op, value), value.source[0], [*axes, *value.axis]
    slope, found = Var("slope", str(op.output(0).dtype)), []
    _find_loads(op.name, value, slope, conditions, reached, found)
    for load, by, when in found:
        yield load.args[0].op, _reaching(op, axes, load, by, when, slope, head, rank)


def _counted(op, sums) -> list:
    """Return when a step of a reduction has a derivative: for the largest, when it is the first such."""
    combined, (one,), (other,) = sums.combiner.result[0], sums.combiner.lhs, sums.combiner.rhs
    known = isinstance(combined, tirx.Add | tirx.Max | tirx.Min)
    if not known or {key(combined.a), key(combined.b)} != {key(one), key(other)} or len(sums.init):
        raise NotImplementedError(f"te.gradient: {op.name}: expected te.sum, te.max or te.min, without init")
    where = [] if constant(sums.condition) == 1 else [sums.condition]
    if isinstance(combined, tirx.Add):
        return where
    lowest = sums.combiner.identity_element[0]

    def first(x, y):
        earlier = x[1] >= y[1] if isinstance(combined, tirx.Max) else x[1] <= y[1]
        return tirx.Select(earlier, x[0], y[0]), tirx.Select(earlier, x[1], y[1])

    pick = te.comm_reducer(first, lambda place, _: (tirx.const(-1, place), lowest))
    number = tirx.const(0, "int32")
    for axis in sums.axis:
        number = number * axis.dom.extent + (axis.var - axis.dom.min)

    def element(*at):
        axes = _copies(sums.axis)
        names = _by_key(sums.axis, axes) | dict(zip((key(axis.var) for axis in op.axis), at, strict=True))
        of = [_replaced(each, names) for each in (number, sums.source[0], sums.condition)]
        return pick(tuple(of[:2]), axis=axes, where=of[2])

    places = te.compute([axis.dom.extent for axis in op.axis], element, f"{op.name}.first")[0]
    return [*where, places(*(axis.var for axis in op.axis)).equal(number)]


def _find_loads(name: str, value, slope, conditions: list, reached: set[int], found: list) -> None:
    """Add to `found` loads of what is reached: with the derivative by each, and the conditions of that."""
    if not any(key(load.args[0].op) in reached for load in _loads_in(value)):
        return
    is_call = isinstance(value, tvm.ir.Call)
    if is_call and is_load(value):
        found.append((value, slope, conditions))
        return
    called = value.op.name.rpartition(".")[2] if is_call else ""
    if type(value) in _PARTS:
        parts = _PARTS[type(value)](value, slope)
    elif called == "if_then_else":
        condition, one, other = value.args
        parts = [(one, slope, condition), (other, slope, tirx.Not(condition))]
    elif called in _SLOPES:
        slopes = _SLOPES[called](value, *value.args)
        parts = [(x, slope * by, None) for x, by in zip(value.args, slopes, strict=False)]
    else:
        raise NotImplementedError(
            f"te.gradient: {name}: no derivative of {called or type(value).__name__} is known here; expected "
            f"arithmetic, conditions, or one of {', '.join(_SLOPES)}"
        )
    for part, by, when in parts:
        _find_loads(name, part, by, conditions if when is None else [*conditions, when], reached, found)


def _loads_in(value) -> list:
    calls: list = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Call, calls.append)])
    return list(filter(is_load, calls))


def _reaching(op, axes: list, load, by, conditions: list, slope, head, rank: int):
    """Return dx: the sum of `head` times a derivative, `by`, over the axes where `load` reads an element."""
    tensor = load.args[0]

    def element(*to):
        to, at = to[:rank], to[rank:]
        copies = _copies(axes)
        names = _by_key(axes, copies)
        indices = [_replaced(index, names) for index in load.args[1:]]
        solved, bounds = _solved(indices, copies, at), tvm.sym.Analyzer()
        names = {of: _replaced(new, solved) for of, new in names.items()}
        left = [axis for axis in copies if key(axis.var) not in solved]
        for var, extent in zip(at, tensor.shape, strict=True):
            bounds.bind(var, tvm.ir.Range.from_min_extent(0, extent))
        for axis in left:
            bounds.bind(axis.var, axis.dom)
        inside = [x.equal(_replaced(index, solved)) for x, index in zip(at, indices, strict=True)]
        for axis in copies:
            if key(axis.var) in solved:
                place = solved[key(axis.var)]
                inside += [place >= axis.dom.min, place < axis.dom.min + axis.dom.extent]
        inside = [each for each in inside if _loads_in(each) or not bounds.can_prove(each)]
        y = head(*to, *(names[key(axis.var)] for axis in op.axis))
        value, zero = _replaced(by, names | {key(slope): y}), tirx.const(0, str(tensor.dtype))
        for condition in reversed(conditions):
            value = if_then_else(_replaced(condition, names), value, zero)
        value = if_then_else(tirx.all(*inside), value, zero) if inside else value
        return te.sum(value, left) if left else value

    return te.compute([*list(head.shape)[:rank], *tensor.shape], element, f"d{tensor.op.name}")


def _solved(indices: list, axes: list, at) -> dict[int, object]:
    """Solve the equations of `indices` and `at`: return expressions of axes, by key; others are left."""
    domains = {axis.var: axis.dom for axis in axes if any(_has(index, axis.var) for index in indices)}
    iterators = tvm.sym.detect_iter_map(indices, domains, True, "bijective").indices if domains else ()
    if len(iterators):
        inverse = tvm.sym.inverse_affine_iter_map(iterators, list(at))
        return {key(var): place for var, place in inverse.items()}
    solved: dict[int, object] = {}
    left = list(axes)
    for index, to in zip(indices, at, strict=True):
        index = _replaced(index, solved)
        factors = list(tvm.sym.detect_linear_equation(index, [axis.var for axis in left]))[:-1]
        ones = [n for n, factor in enumerate(factors) if constant(factor) in (1, -1)]
        if ones:  # the longest, so that the shortest loops are left
            n = max(ones, key=lambda n: constant(left[n].dom.extent) or math.inf)
            axis = left.pop(n)
            rest = _replaced(index, {key(axis.var): tirx.const(0, str(axis.var.ty))})
            place = (to - rest) * constant(factors[n])
            place = (
                place if _loads_in(place) else tvm.sym.Analyzer().simplify(place)
            )  # no analyzer takes loads
            new = {key(axis.var): place}
            solved = {of: _replaced(each, new) for of, each in solved.items()} | new
    return solved


def _has(value, var) -> bool:
    found: list = []
    tvm_ffi.structural_walk(value, [(Var, found.append)])
    return any(key(each) == key(var) for each in found)


def _copies(axes) -> list:
    """Return reduction axes as long as these, which begin at 0."""
    ranges = [tvm.ir.Range.from_min_extent(tirx.const(0, str(axis.var.ty)), axis.dom.extent) for axis in axes]
    return [
        IterVar(dom, Var(name_of(axis), str(axis.var.ty)), REDUCE)
        for dom, axis in zip(ranges, axes, strict=True)
    ]


def _by_key(axes, copies) -> dict[int, object]:
    return {key(axis.var): axis.dom.min + copy.var for axis, copy in zip(axes, copies, strict=True)}


def _replaced(value, names: dict[int, object]):
    """Return an expression with variables replaced, by their keys."""
    return tvm_ffi.structural_map(value, [(Var, lambda var: names.get(key(var), var))])
