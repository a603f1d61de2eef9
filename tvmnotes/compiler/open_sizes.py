"""Open sizes in a build: their bounds, what is refused, and what a kernel costs at any of them."""

from collections.abc import Sequence

from tvm import relax, tirx

from ..base.relax import plain_sizes
from ..base.sizes import Size
from . import costs

_FEW, _MANY = 1, 61  # the sizes at which costs are counted


def open_sizes(main: relax.Function) -> dict[str, Size]:
    """Return the open sizes of a network by name, in order, with the bounds that its importer noted."""
    bounds = (main.attrs or {}).get("tvmnotes.sizes", {})
    sizes = {}
    for param in main.params:
        for size in getattr(param.ty, "shape", None) or ():
            if isinstance(size, tirx.Var):
                lower, upper = (int(n) for n in bounds.get(size.name, (1, -1)))
                sizes[size.name] = Size(size.name, lower, None if upper < 0 else upper)
    return sizes


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


def cost(func: tirx.PrimFunc, sizes: dict[str, Size]) -> dict[str, int | str]:
    """Return `costs.count` of a kernel, each count as in base/sizes.py.

    A count that depends on an open size is interpolated: it is exact at 1 and 61, and elsewhere up to what
    tiles compute in vain.
    """
    few = dict.fromkeys(sizes, _FEW)
    counts = {name: [] for name in ("flops", "reads", "writes")}
    for values in (few, *({**few, name: _MANY} for name in sizes)):
        for name, number in costs.count(func, values).items():
            counts[name].append(number)
    return {name: _line(numbers, sizes) for name, numbers in counts.items()}


def _line(numbers: list[int], sizes) -> int | str:
    """Return the linear function of the sizes that has these values at `_FEW`, and at `_MANY` for each."""
    first, *others = numbers
    slopes = {name: round((n - first) / (_MANY - _FEW)) for name, n in zip(sizes, others, strict=True)}
    if not any(slopes.values()):
        return first
    constant = first - _FEW * sum(slopes.values())
    terms = [str(constant)] if constant else []
    return " + ".join([*terms, *(f"{slope}*{name}" for name, slope in slopes.items() if slope)])
