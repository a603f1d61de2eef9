"""Dynamic dims, whose values the inputs of a call have.

A dim in the description of a network is an integer, a `Dim`, or an expression as text, in Python's notation
of integers and the names of dynamic dims: "2*batch + 1", "((height + -1) // 2) + 1", "max(a, b)".
"""

import ast
import functools
import keyword
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_OPERATORS = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
_FUNCTIONS = {"max": max, "min": min}


@dataclass(frozen=True)
class Dim:
    """A dynamic dim, by name; a call may give it any value from `lower` to `upper`.

    Attributes:
        name: A Python identifier; the same name is the same dim everywhere.
        lower: The least value, 1 or more.
        upper: The greatest value; None if there is none.
    """

    name: str
    lower: int = 1
    upper: int | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"Dim: expected a name such as 'batch', a Python identifier; got {self.name!r}")
        upper = self.lower if self.upper is None else self.upper
        if type(self.lower) is not int or type(upper) is not int or not 1 <= self.lower <= upper:
            raise ValueError(
                f"Dim {self.name!r}: expected integers with 1 <= lower <= upper, or None as upper; got "
                f"lower {self.lower!r}, upper {self.upper!r}"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def bounds(self) -> str:
        """The values that a call may give it, in words."""
        return f"{self.lower} or more" if self.upper is None else f"{self.lower} to {self.upper}"

    def takes(self, value: int) -> bool:
        """Return whether a call may give it this value."""
        return self.lower <= value and (self.upper is None or value <= self.upper)

    def within(self, other: "Dim") -> "Dim":
        """Return the dim with the bounds of both. Raises ValueError if no value is within both."""
        lower = max(self.lower, other.lower)
        upper = min((each.upper for each in (self, other) if each.upper is not None), default=None)
        if upper is not None and upper < lower:
            raise ValueError(
                f"dim {self.name!r}: expected bounds that overlap; got {self.bounds} and {other.bounds}"
            )
        return Dim(self.name, lower, upper)


def is_name(name: Any) -> bool:
    """Return whether a dim may have this name."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def dims_of(shapes: Iterable[tuple]) -> dict[str, Dim]:
    """Return the dynamic dims of several shapes by name, each with all bounds that the shapes give it."""
    dims: dict[str, Dim] = {}
    for shape in shapes:
        for dim in shape:
            if isinstance(dim, Dim):
                dims[dim.name] = dim.within(dims.get(dim.name, dim))
    return dims


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple, known: dict[str, tuple[int, str]]) -> None:
    """Check the shape of an input of a call.

    Args:
        name: The input's name.
        shape: Its shape.
        wanted: The expected shape, with a `Dim` where it is dynamic.
        known: By name of a dynamic dim, its value and the input that has it; new ones are added.

    Raises:
        ValueError: It has another shape, a dim is out of its bounds, or it differs from that in `known`.
    """
    pairs = list(zip(shape, wanted, strict=False))
    if len(shape) != len(wanted) or any(isinstance(dim, int) and n != dim for n, dim in pairs):
        comma = "," if len(wanted) == 1 else ""
        expected = f"({', '.join(map(str, wanted))}{comma})"
        raise ValueError(f"input {name!r}: expected the shape {expected}, got {shape}")
    for n, dim in pairs:
        if not isinstance(dim, Dim):
            continue
        if not dim.takes(n):
            raise ValueError(
                f"input {name!r}: expected a {dim} of {dim.bounds}, got {n} in the shape {shape}; import "
                f"the network with other bounds, Dim({dim.name!r}, lower, upper), to serve it"
            )
        value, owner = known.setdefault(dim.name, (n, name))
        if n != value:
            raise ValueError(
                f"input {name!r}: expected the {dim} {value} that input {owner!r} has, got {n} in the shape "
                f"{shape}; give both the same"
            )


def evaluate(dim: int | Dim | str, values: Mapping[str, int]) -> int:
    """Return the value of a dim, given those of the dynamic dims by name."""
    return dim if isinstance(dim, int) else _value(_parsed(str(dim)), values)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ValueError(f"invalid literal for a dim: {text!r}") from None


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    call = node if isinstance(node, ast.Call) and not node.keywords else None
    if call and isinstance(call.func, ast.Name) and call.func.id in _FUNCTIONS:
        return _FUNCTIONS[call.func.id](*(_value(each, values) for each in call.args))
    raise ValueError(f"invalid literal for a dim: {ast.unparse(node)!r}")
