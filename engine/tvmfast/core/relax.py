"""Helpers on Relax for all layers above: shapes and dims, constants, a pass over all functions."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .dims import Dim, evaluate

INT32_MAX = (1 << 31) - 1  # elements of a tensor of static shape that a kernel's indices, int32, reach
_SUMS = (tvm.tirx.Add, tvm.tirx.Sub, tvm.tirx.Mul)
_FORMS = {
    **{tvm.tirx.FloorDiv: "(({}) // ({}))", tvm.tirx.FloorMod: "(({}) % ({}))"},
    **{tvm.tirx.Max: "max({}, {})", tvm.tirx.Min: "min({}, {})"},
}


def static_shape(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """Return a tensor type's shape as integers; None if it has a dynamic dim or is unknown."""
    shape = getattr(ty, "shape", None)
    if shape is None or not all(isinstance(n, tvm.tirx.IntImm) for n in shape):
        return None
    return tuple(int(n) for n in shape)


def known_shape(ty: tvm.ir.Type) -> tuple | None:
    """Return a tensor type's shape, with an integer for a static dim and TVM's expression for another."""
    shape = getattr(ty, "shape", None)
    return None if shape is None else unwrap_ints(shape)


def unwrap_ints(shape: Iterable) -> tuple:
    """Return the dims of a shape, with Python's integers in place of TVM's constants."""
    return tuple(int(n) if isinstance(n, int | tvm.tirx.IntImm) else n for n in shape)


def simplified(dim: int | tvm.ir.Expr) -> int | tvm.ir.Expr:
    """Return a dim in TVM's simplest form, in which equal dims of two layers make one kernel."""
    return dim if isinstance(dim, int) else unwrap_ints([tvm.sym.Analyzer().simplify(dim)])[0]


def of_one_type(*dims: int | tvm.ir.Expr) -> tuple:
    """Return dims as they are if all are integers, else as expressions of int64, which mix without casts."""
    if all(isinstance(dim, int) for dim in dims):
        return dims
    return tuple(tvm.tirx.IntImm("int64", dim) if isinstance(dim, int) else dim for dim in dims)


def ceildiv(a: Any, b: Any) -> Any:
    """Divide Python's integers, or TVM's expressions, and round up."""
    if isinstance(b, int) and b == 1:
        return a
    return -(-a // b) if isinstance(a, int) else (a + b - 1) // b


def round_up(a: Any, step: Any) -> Any:
    """Round up to the next multiple of `step`."""
    return ceildiv(a, step) * step


def dim_to_str(dim: int | tvm.ir.Expr) -> int | str | None:
    """Return a dim as text in the notation of dims.py; None if it has an operation that dims.py lacks."""
    terms = _terms(dim)
    if terms is None:
        return None
    if not set(terms) - {()}:
        return terms.get((), 0)
    products = (
        [*([] if factor == 1 and names else [str(factor)]), *names] for names, factor in terms.items()
    )
    return " + ".join("*".join(factors) for factors in products)


def dim_hint(dim: int | tvm.ir.Expr, value: int = 1) -> int:
    """Return the value of a dim if every dynamic dim has the given one.

    Raises ValueError for an expression that `dim_to_str` does not support.
    """
    text = dim_to_str(dim)
    if text is None:
        raise ValueError(
            f"the network makes an axis of {dim} elements, and dynamic dims may only be added, multiplied, "
            "and divided by integers: import it with static dims"
        )
    return evaluate(text, defaultdict(lambda: value))


def shape_text(ty: tvm.ir.Type) -> tuple | None:
    """Return a tensor type's shape by `dim_to_str`, so that shapes compare; None if it is not known."""
    shape = getattr(ty, "shape", None)
    dims = None if shape is None else tuple(dim_to_str(n) for n in shape)
    return None if dims is None or None in dims else dims


def upper_bound(dims: list) -> int | tvm.ir.Expr:
    """Return an expression that is at least as large as each of several dims, for all dynamic dims."""
    factors: dict[tuple[str, ...], int] = {}
    variables: dict[str, tvm.tirx.Var] = {}
    for dim in dims:
        terms = _terms(dim)
        variables.update((var.name, var) for var in _variables(dim))
        if terms is None or any(name not in variables for names in terms for name in names):
            return functools.reduce(tvm.tirx.Max, _distinct(dims))
        for names, factor in terms.items():
            factors[names] = max(factor, factors.get(names, 0))
    total = 0
    for names, factor in factors.items():
        total = total + math.prod((variables[name] for name in names), start=factor)
    return total


def _variables(dim: int | tvm.ir.Expr) -> list:
    return [] if isinstance(dim, int) else list(tvm.tirx.analysis.undefined_vars(dim))


def _distinct(dims: list) -> list:
    """Return the dims as expressions of TVM, each once."""
    by_text = {str(dim_to_str(dim) or dim): dim for dim in dims}
    return [tvm.tirx.IntImm("int64", n) if isinstance(n, int) else n for n in by_text.values()]


def _terms(dim: int | tvm.ir.Expr) -> dict | None:
    """Return the factor of each product in a sum; None for an expression that dims.py lacks.

    A product is the sorted names of dynamic dims, and in parentheses what cannot be multiplied out.
    """
    if isinstance(dim, int | tvm.tirx.IntImm):
        return {(): int(dim)} if int(dim) else {}
    if isinstance(dim, tvm.tirx.Var):
        return {(dim.name,): 1}
    if isinstance(dim, tvm.tirx.Cast):
        return _terms(dim.value)
    if not isinstance(dim, _SUMS) and type(dim) not in _FORMS:
        return None
    a, b = _terms(dim.a), _terms(dim.b)
    if a is None or b is None:
        return None
    if type(dim) in _FORMS:
        return {(_FORMS[type(dim)].format(dim_to_str(dim.a), dim_to_str(dim.b)),): 1}
    if isinstance(dim, tvm.tirx.Mul):
        products = [((*p, *q), f * g) for p, f in a.items() for q, g in b.items()]
    else:
        sign = -1 if isinstance(dim, tvm.tirx.Sub) else 1
        products = [*a.items(), *((names, sign * factor) for names, factor in b.items())]
    total: dict[tuple[str, ...], int] = {}
    for names, factor in products:
        key = tuple(sorted(names))
        total[key] = total.get(key, 0) + factor
    return {names: total[names] for names in sorted(total) if total[names]}


def dynamic_dims(main: relax.Function) -> dict[str, Dim]:
    """Return the dynamic dims of a network by name, in order, with the bounds that its frontend noted."""
    bounds = (main.attrs or {}).get("tvmfast.sizes", {})
    dims = {}
    for param in main.params:
        for dim in getattr(param.ty, "shape", None) or ():
            if isinstance(dim, tvm.tirx.Var):
                lower, upper = (int(n) for n in bounds.get(dim.name, (1, -1)))
                dims[dim.name] = Dim(dim.name, lower, None if upper < 0 else upper)
    return dims


def field_of_tuple(mutator: relax.PyExprMutator, item: relax.TupleGetItem) -> relax.Expr:
    """Return the field that `item` reads if a mutator has put a tuple there; else `item`."""
    of = item.tuple_value
    value = mutator.lookup_binding(of) if isinstance(of, relax.Var) else None
    return value.fields[item.index] if isinstance(value, relax.Tuple) else item


def op_name(expr: Any) -> str:
    """Return the name of the operator that an expression calls, without "relax."; "" if it calls none."""
    return getattr(getattr(expr, "op", None), "name", "").removeprefix("relax.")


def constant_array(expr: Any) -> np.ndarray | None:
    """Return the array of a constant; None for any other expression."""
    is_array = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)
    return expr.value.numpy() if is_array else None


def integers_between(source: str, dtype: str) -> str | None:
    """Return the integers through which floats are cast to other ones, whose last bits remain; None if none.

    A float that the integer does not hold is cast as by C on x86, as in PyTorch and ONNX Runtime: 300 to 44,
    -1 to 255 and, where these integers do not hold it either, to 0 (to 2^63 from NaN to uint64). C leaves it
    open: vectors and scalars differ, and so do those two for uint32. Casts to int32 and int64 are left as
    they are: the least integer.
    """
    if not source.startswith(("float", "bfloat")):
        return None
    if dtype in ("uint32", "uint64") or (source, dtype) == ("float64", "uint8"):
        return "int64"
    return "int32" if dtype in ("int8", "uint8", "int16", "uint16") else None


def cast_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in a dtype, with the integers that a built network casts floats to."""
    between = integers_between(str(array.dtype), dtype)
    with np.errstate(all="ignore"):
        if between is None:
            return array.astype(dtype, copy=False)
        if dtype != "uint64":
            return array.astype(between).astype(dtype)
        array = array.astype("float64")
        upper = array >= 2.0**63
        last_bits = np.where(upper, array - 2.0**63, array).astype(between).astype(dtype)
        return np.where(upper, last_bits ^ np.uint64(1 << 63), last_bits)


def array_key(array: tvm.runtime.Tensor) -> int:
    """Return a key that is equal for two handles of one array in memory."""
    return array.__hash__()


def bytes_of(dtype: Any) -> int:
    """Return the size of an element of a dtype in bytes."""
    return (tvm.DataType(str(dtype)).bits + 7) // 8


def on_each_function(
    name: str,
    mutator: Callable[..., relax.PyExprMutator],
    adds_kernels: bool = False,
    needs: Callable = lambda func: True,
) -> tvm.transform.Pass:
    """Make a pass that runs a mutator on each Relax function; one on all if its builder adds kernels.

    It leaves a module alone if `needs` holds for none of its functions.
    """

    @tvm.transform.module_pass(opt_level=0, name=name)
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        if not any(map(needs, mod.functions.values())):
            return mod
        if adds_kernels:
            rewrite = mutator(mod)
            for var, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    rewrite.builder_.update_func(var, rewrite.visit_expr(func))
            return rewrite.builder_.get()
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod.update_func(var, mutator().visit_expr(func))
        return mod

    return run
