"""The table of MXNet operators' converters, and `Call`, the node that a converter converts.

Converters compute what MXNet 1.9 computes in inference. They refuse what they cannot match: with a
NotImplementedError a use that no converter serves, with a ValueError attributes and shapes that do not fit.
tests/test_import_mxnet.py compares each one with MXNet.
Source: https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/symbol/index.html
"""

import ast
import functools
import re
from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from ...context import Context, shape_of
from ..files import Node

CONVERTERS: dict[str, Callable[["Call"], relax.Expr | list[relax.Expr]]] = {}


def converts(*names: str):
    """Decorate the converter of the operator that has these names."""

    def register(function):
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def in_float32(convert: Callable) -> Callable:
    """Decorate a converter whose sums and squares of halves overflow: it computes them in float32."""

    @functools.wraps(convert)
    def converted(c: "Call"):
        if c.dtype != "float16":
            return convert(c)
        inputs = [c.emit(c.cast(each, "float32")) for each in c.inputs]
        return c.cast(c.emit(convert(Call(c.node, inputs, c.names, c.builder))), c.dtype)

    return converted


class Call(Context):
    """A node that is being converted; `names` are those of the nodes that its inputs come from."""

    def __init__(self, node: Node, inputs: list[relax.Expr], names: list[str], builder: relax.BlockBuilder):
        super().__init__(node.op, inputs, builder)
        self.node, self.names = node, names

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

    def expect(self, number: int, *shape: int) -> relax.Expr:
        """Return an input; raise ValueError if it is missing or not of this shape."""
        if number >= len(self.inputs):
            raise ValueError(f"it has {len(self.inputs)} inputs where {number + 1} belong")
        if (actual := shape_of(self.inputs[number])) != shape:
            raise ValueError(f"{self.names[number]!r} must be of shape {shape}; got {actual}")
        return self.inputs[number]

    def along(self, number: int, size: int, axis: int) -> relax.Expr:
        """Return an input, a vector of this size, reshaped to lie along an axis of the first input."""
        shape = [1] * self.rank
        shape[axis] = size
        return op.reshape(self.expect(number, size), shape)
