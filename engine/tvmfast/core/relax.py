"""Helpers on Relax for all layers above: shapes, constants, a pass over all functions."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from .dims import Dim, evaluate

_SUMS = (tvm.tirx.Add, tvm.tirx.Sub, tvm.tirx.Mul)
_FORMS = {
    **{tvm.tirx.FloorDiv: "(({}) // ({}))", tvm.tirx.FloorMod: "(({}) % ({}))"},
    **{tvm.tirx.Max: "max({}, {})", tvm.tirx.Min: "min({}, {})"},
}


def fixed_shape(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """Return a tensor type's shape as integers; None if it is not known before the network runs."""
    shape = getattr(ty, "shape", None)
    fixed = shape is not None and all(isinstance(n, tvm.tirx.IntImm) for n in shape)
    return tuple(int(n) for n in shape) if fixed else None


def known_shape(ty: tvm.ir.Type) -> tuple | None:
    """Return a tensor type's shape, with an integer where a size is fixed and TVM's expression elsewhere."""
    shape = getattr(ty, "shape", None)
    return None if shape is None else plain_sizes(shape)


def plain_sizes(shape) -> tuple:
    """Return the sizes of a shape, with integers in place of TVM's constants."""
    return tuple(int(n) if isinstance(n, int | tvm.tirx.IntImm) else n for n in shape)


def simplified(size):
    """Return a size in TVM's simplest form, in which the same sizes of two layers make one kernel."""
    return size if isinstance(size, int) else plain_sizes([tvm.sym.Analyzer().simplify(size)])[0]


def of_one_type(*sizes) -> tuple:
    """Return sizes as they are if all are integers, else as expressions of int64, which mix without casts."""
    if all(isinstance(size, int) for size in sizes):
        return sizes
    return tuple(tvm.tirx.IntImm("int64", size) if isinstance(size, int) else size for size in sizes)


def written(size) -> int | str | None:
    """Return a size as dims.py writes it; None if dims.py has no such operation."""
    terms = _terms(size)
    if terms is None:
        return None
    if not set(terms) - {()}:
        return terms.get((), 0)
    products = (
        [*([] if factor == 1 and names else [str(factor)]), *names] for names, factor in terms.items()
    )
    return " + ".join("*".join(factors) for factors in products)


def typical(size, value: int = 1) -> int:
    """Return a size where all open sizes have a value. Raises ValueError if `written` does not write it."""
    text = written(size)
    if text is None:
        raise ValueError(
            f"the network makes an axis of {size} elements, and open sizes may only be added, multiplied and "
            "divided by whole numbers: import it with whole numbers"
        )
    return evaluate(text, defaultdict(lambda: value))


def shape_text(ty: tvm.ir.Type) -> tuple | None:
    """Return a tensor type's shape as dims.py writes it, which compares; None if it is not known."""
    shape = getattr(ty, "shape", None)
    sizes = None if shape is None else tuple(written(n) for n in shape)
    return None if sizes is None or None in sizes else sizes


def most(sizes: list):
    """Return a size that is at least as large as each of several, whatever the open sizes are."""
    factors, variables = {}, {}
    for size in sizes:
        terms = _terms(size)
        variables.update((var.name, var) for var in _variables(size))
        if any(name not in variables for names in terms for name in names):
            return functools.reduce(tvm.tirx.Max, _distinct(sizes))
        for names, factor in terms.items():
            factors[names] = max(factor, factors.get(names, 0))
    total = 0
    for names, factor in factors.items():
        total = total + math.prod((variables[name] for name in names), start=factor)
    return total


def _variables(size) -> list:
    return [] if isinstance(size, int) else list(tvm.tirx.analysis.undefined_vars(size))


def _distinct(sizes: list) -> list:
    """Return the sizes as expressions of TVM, each once."""
    by_text = {str(written(size)): size for size in sizes}
    return [tvm.tirx.IntImm("int64", n) if isinstance(n, int) else n for n in by_text.values()]


def _terms(size) -> dict | None:
    """Return the factor of each product in a sum; None for an expression that dims.py does not write.

    A product is the sorted names of open sizes, and in parentheses what cannot be multiplied out.
    """
    if isinstance(size, int | tvm.tirx.IntImm):
        return {(): int(size)} if int(size) else {}
    if isinstance(size, tvm.tirx.Var):
        return {(size.name,): 1}
    if isinstance(size, tvm.tirx.Cast):
        return _terms(size.value)
    if not isinstance(size, _SUMS) and type(size) not in _FORMS:
        return None
    a, b = _terms(size.a), _terms(size.b)
    if a is None or b is None:
        return None
    if type(size) in _FORMS:
        return {(_FORMS[type(size)].format(written(size.a), written(size.b)),): 1}
    if isinstance(size, tvm.tirx.Mul):
        products = [((*p, *q), f * g) for p, f in a.items() for q, g in b.items()]
    else:
        sign = -1 if isinstance(size, tvm.tirx.Sub) else 1
        products = [*a.items(), *((names, sign * factor) for names, factor in b.items())]
    total = {}
    for names, factor in products:
        key = tuple(sorted(names))
        total[key] = total.get(key, 0) + factor
    return {names: total[names] for names in sorted(total) if total[names]}


def open_sizes(main: relax.Function) -> dict[str, Dim]:
    """Return the open sizes of a network by name, in order, with the bounds that its importer noted."""
    bounds = (main.attrs or {}).get("tvmnotes.sizes", {})
    sizes = {}
    for param in main.params:
        for size in getattr(param.ty, "shape", None) or ():
            if isinstance(size, tvm.tirx.Var):
                lower, upper = (int(n) for n in bounds.get(size.name, (1, -1)))
                sizes[size.name] = Dim(size.name, lower, None if upper < 0 else upper)
    return sizes


def field_of_tuple(mutator: relax.PyExprMutator, item: relax.TupleGetItem) -> relax.Expr:
    """Return the field that `item` reads if a mutator has put a tuple there; else `item`."""
    of = item.tuple_value
    value = mutator.lookup_binding(of) if isinstance(of, relax.Var) else None
    return value.fields[item.index] if isinstance(value, relax.Tuple) else item


def op_name(expr) -> str:
    """Return the name of the operator that an expression calls, without "relax."; "" if it calls none."""
    return getattr(getattr(expr, "op", None), "name", "").removeprefix("relax.")


def constant_array(expr) -> np.ndarray | None:
    """Return the array of a constant; None for any other expression."""
    is_array = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)
    return expr.value.numpy() if is_array else None


def array_key(array: tvm.runtime.Tensor) -> int:
    """Return a key that is equal for two handles of one array in memory."""
    return array.__hash__()


def bytes_of(dtype) -> int:
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
    def run(mod, _context):
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
