"""The table of MXNet operators' converters, and `Call`, the node that a converter converts.

Converters compute what MXNet 1.9 computes in inference. They refuse what they cannot match: with a
NotImplementedError a use that no converter serves, with a ValueError attributes and shapes that do not fit.
tests/test_import_mxnet.py compares each one with MXNet.
Source: https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/symbol/index.html
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax import op

from ....core.relax import static_shape
from ..files import Node

CONVERTERS: dict[str, Callable[["Call"], relax.Expr | list[relax.Expr]]] = {}


def converts(*names: str):
    """Decorate the converter of the operator that has these names."""

    def register(function):
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass
class Call:
    """A node that is being converted, and its inputs as Relax expressions."""

    node: Node
    inputs: list[relax.Expr]
    names: list[str]  # of the nodes that the inputs come from
    builder: relax.BlockBuilder

    def get(self, name: str, default=None):
        """Return an attribute, parsed as a Python literal, or `default` if it is missing or None."""
        text = self.node.attrs.get(name, "None").strip()
        text = re.sub(r"\b(\d+)[lL]\b", r"\1", text)  # Python 2's long integers
        if text in ("", "None"):
            return default
        if text in ("true", "false", "inf", "-inf", "nan"):
            return text == "true" if text[0] in "tf" else float(text)
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    def need(self, name: str):
        """Return an attribute; raise ValueError if it is missing."""
        if (value := self.get(name)) is None:
            raise ValueError(f"the attribute {name!r} is missing")
        return value

    def integers(self, name: str, count: int, default: int) -> list[int]:
        """Return an attribute that holds `count` integers, all of them `default` if it is missing."""
        value = self.get(name, ())
        values = [value] * count if isinstance(value, int) else list(value) or [default] * count
        if len(values) != count:
            raise ValueError(f"{name}={tuple(values)} where {count} numbers belong")
        return [int(n) for n in values]

    def axes(self, name: str = "axis") -> list[int] | None:
        """Return an attribute that holds axes, counted from the front, or None if it names none."""
        value = self.get(name, ())
        return [n % self.rank for n in ([value] if isinstance(value, int) else value)] or None

    def refuse(self, **served) -> None:
        """Raise NotImplementedError if an attribute has a value that the converter does not serve."""
        for name, values in served.items():
            if (value := self.get(name)) is not None and value not in values:
                raise NotImplementedError(f"{name}={value}")

    @property
    def x(self) -> relax.Expr:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return shape_of(self.x)

    @property
    def rank(self) -> int:
        """The number of axes of the first input."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The dtype of the first input."""
        return dtype_of(self.x)

    def expect(self, number: int, *shape: int) -> relax.Expr:
        """Return an input; raise ValueError if it is missing or not of this shape."""
        if number >= len(self.inputs):
            raise ValueError(f"it has {len(self.inputs)} inputs where {number + 1} belong")
        if (actual := shape_of(self.inputs[number])) != shape:
            raise ValueError(f"{self.names[number]!r} must be of shape {shape}; got {actual}")
        return self.inputs[number]

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression to a variable, whose type is then known. Relax flattens nested calls."""
        return self.builder.emit(expr)

    def const(self, value, dtype: str | None = None) -> relax.Expr:
        """Return a constant, by default of the first input's dtype."""
        dtype = dtype or self.dtype
        return relax.const(np.asarray(value, dtype), dtype)

    def along(self, number: int, size: int, axis: int) -> relax.Expr:
        """Return an input, a vector of this size, reshaped to lie along an axis of the first input."""
        shape = [1] * self.rank
        shape[axis] = size
        return op.reshape(self.expect(number, size), shape)

    def cast(self, expr: relax.Expr, dtype: str) -> relax.Expr:
        """Return an expression in a dtype."""
        return expr if dtype_of(expr) == dtype else op.astype(expr, dtype)


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    """Return the shape of an expression."""
    return static_shape(expr.ty)


def dtype_of(expr: relax.Expr) -> str:
    """Return the dtype of an expression."""
    return str(expr.ty.dtype)
