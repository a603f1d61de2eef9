"""Open sizes in a build: what is refused, and what a kernel costs at any of them."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from tvm import relax, tirx

from ..core.dims import Dim
from ..core.relax import plain_sizes, written
from . import costs

_STEP = 60  # between the sizes at which costs are counted
_MOST_FACTORS = 3  # of an open size in a count
_KINDS = ("flops", "reads", "writes")


def check_inputs(main: relax.Function, inputs: Sequence[relax.Var]) -> None:
    """Raise ValueError unless each size of the inputs is fixed, or an open size by name."""
    names = {}
    for var in inputs:
        shape = getattr(var.ty, "shape", None)
        if shape is None or not all(isinstance(size, int | tirx.Var) for size in plain_sizes(shape)):
            raise ValueError(
                f"input {var.name!r} is {var.ty}, whose shape is not known: import the model with a whole "
                "number or a name for every axis"
            )
        for size in shape:
            if isinstance(size, tirx.Var) and not names.setdefault(size.name, size).same_as(size):
                raise ValueError(f"two open sizes of the model have one name, {size.name!r}: give them two")


def cost(func: tirx.PrimFunc, sizes: dict[str, Dim]) -> dict[str, int | str]:
    """Return `costs.count` of a kernel, each count as in core/dims.py.

    A count that depends on open sizes is interpolated by a polynomial: it is exact at each size's least value
    and 60 more, and elsewhere up to what tiles compute in vain.
    """
    degrees = _degrees(func)
    own = [size for name, size in sizes.items() if name in degrees]
    least = {name: size.lower for name, size in sizes.items()}
    counts = {}  # at each of a grid of sizes
    for steps in itertools.product(*(range(degrees[size.name] + 1) for size in own)):
        values = {size.name: size.lower + _STEP * step for size, step in zip(own, steps, strict=True)}
        counts[steps] = costs.count(func, least | values)
    return {kind: _polynomial({at: count[kind] for at, count in counts.items()}, own) for kind in _KINDS}


def _degrees(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the open sizes of a kernel's arguments by name, with how often one argument has it as a factor.

    From 3 times on it is 3.
    """
    degrees = {}
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            axes = [size for size in param.ty.shape if not isinstance(size, int)]
            for name in {var.name for size in axes for var in tirx.analysis.undefined_vars(size)}:
                degree = sum(_degree(size, name) for size in axes)
                degrees[name] = max(degrees.get(name, 1), min(_MOST_FACTORS, degree))
    return degrees


def _degree(size, name: str) -> int:
    """Return how often a size has an open one as a factor."""
    factors = max(term.split("*").count(name) for term in str(written(size)).split(" + "))
    return factors or int(any(var.name == name for var in tirx.analysis.undefined_vars(size)))


def _polynomial(counts: dict[tuple[int, ...], int], sizes: list[Dim]) -> int | str:
    """Return the polynomial that has these values at steps from the least sizes (Newton's method)."""
    for axis in range(len(sizes)):
        for order in range(1, _MOST_FACTORS + 1):
            before = dict(counts)
            for at in counts:
                if at[axis] >= order:
                    lower = (*at[:axis], at[axis] - 1, *at[axis + 1 :])
                    counts = counts | {at: Fraction(before[at] - before[lower], order)}
    terms = {}  # by the powers of the sizes
    for at, factor in counts.items():
        bases = [_falling(size.lower, count) for size, count in zip(sizes, at, strict=True)]
        for powers in itertools.product(*(range(len(base)) for base in bases)):
            value = factor * math.prod(base[power] for base, power in zip(bases, powers, strict=True))
            terms[powers] = terms.get(powers, 0) + value
    divisor = math.lcm(*(Fraction(value).denominator for value in terms.values()))
    products = []
    for powers, value in sorted(terms.items()):
        names = [size.name for size, power in zip(sizes, powers, strict=True) for _ in range(power)]
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
