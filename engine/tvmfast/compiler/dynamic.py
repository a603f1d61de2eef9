"""Dynamic dims in a build: checks of the inputs, and costs of a kernel as expressions of these dims."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from tvm import relax, tirx

from ..core.dims import Dim
from ..core.relax import dim_to_str, unwrap_ints
from . import costs

_STEP = 60  # between the values of a dim at which costs are counted
_MOST_FACTORS = 3  # of a dynamic dim in a count
_KINDS = ("flops", "reads", "writes")


def check_inputs(main: relax.Function, inputs: Sequence[relax.Var]) -> None:
    """Raise ValueError unless each dim of the inputs is static, or a variable with a name of its own."""
    names = {}
    for var in inputs:
        shape = getattr(var.ty, "shape", None)
        if shape is None or not all(isinstance(dim, int | tirx.Var) for dim in unwrap_ints(shape)):
            raise ValueError(
                f"input {var.name!r} is {var.ty}, whose shape is not known: import the model with a number "
                "or a name for every axis"
            )
        for dim in shape:
            if isinstance(dim, tirx.Var) and not names.setdefault(dim.name, dim).same_as(dim):
                raise ValueError(f"two dynamic dims of the model share the name {dim.name!r}: rename one")


def cost(func: tirx.PrimFunc, dims: dict[str, Dim]) -> dict[str, int | str]:
    """Return `costs.count` of a kernel, each count a number or an expression as in core/dims.py.

    A count that depends on dynamic dims is interpolated by a polynomial. It is exact at the interpolation
    points, each dim's lower bound and 60 more; elsewhere it may miss what tiles compute in vain.
    """
    degrees = _degrees(func)
    own = [dim for name, dim in dims.items() if name in degrees]
    least = {name: dim.lower for name, dim in dims.items()}
    counts = {}  # by the index of an interpolation point
    for at in itertools.product(*(range(degrees[dim.name] + 1) for dim in own)):
        values = {dim.name: dim.lower + _STEP * n for dim, n in zip(own, at, strict=True)}
        counts[at] = costs.count(func, least | values)
    return {kind: _polynomial({at: count[kind] for at, count in counts.items()}, own) for kind in _KINDS}


def _degrees(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the degree in which the counts depend on each dynamic dim of a kernel's arguments, at most 3.

    That is how often the shape of one argument has it as a factor.
    """
    degrees = {}
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            axes = [dim for dim in param.ty.shape if not isinstance(dim, int)]
            for name in {var.name for dim in axes for var in tirx.analysis.undefined_vars(dim)}:
                degree = sum(_degree(dim, name) for dim in axes)
                degrees[name] = max(degrees.get(name, 1), min(_MOST_FACTORS, degree))
    return degrees


def _degree(dim, name: str) -> int:
    """Return the degree of an axis, as a polynomial, in a dynamic dim."""
    factors = max(term.split("*").count(name) for term in str(dim_to_str(dim)).split(" + "))
    return factors or int(any(var.name == name for var in tirx.analysis.undefined_vars(dim)))


def _polynomial(counts: dict[tuple[int, ...], int], dims: list[Dim]) -> int | str:
    """Return the polynomial through the counts at the interpolation points (Newton's method)."""
    for axis in range(len(dims)):
        for order in range(1, _MOST_FACTORS + 1):
            before = dict(counts)
            for at in counts:
                if at[axis] >= order:
                    lower = (*at[:axis], at[axis] - 1, *at[axis + 1 :])
                    counts = counts | {at: Fraction(before[at] - before[lower], order)}
    terms = {}  # by the powers of the dims
    for at, factor in counts.items():
        bases = [_falling(dim.lower, count) for dim, count in zip(dims, at, strict=True)]
        for powers in itertools.product(*(range(len(base)) for base in bases)):
            value = factor * math.prod(base[power] for base, power in zip(bases, powers, strict=True))
            terms[powers] = terms.get(powers, 0) + value
    divisor = math.lcm(*(Fraction(value).denominator for value in terms.values()))
    products = []
    for powers, value in sorted(terms.items()):
        names = [dim.name for dim, power in zip(dims, powers, strict=True) for _ in range(power)]
        if value:
            products.append("*".join([str(int(value * divisor)), *names]))
    text = " + ".join(products) or "0"
    if divisor > 1:
        return f"(({text}) // ({divisor}))"
    return int(text) if text.isdigit() else text


def _falling(least: int, count: int) -> list[Fraction]:
    """Return the factors of the powers of n in the product of (n - least) / _STEP - i for all i < count."""
    factors = [Fraction(1)]
    for i in range(count):
        root = Fraction(-least, _STEP) - i
        shifted = [Fraction(0), *(factor / _STEP for factor in factors)]
        factors = [a + b for a, b in zip([*(root * factor for factor in factors), 0], shifted, strict=True)]
    return factors
