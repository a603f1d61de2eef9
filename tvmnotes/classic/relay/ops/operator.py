"""An operator of Relay is made here, and what the files of operators beside this one share stands here.

A function there has the signature that scripts know, and a body that makes Relax of it. Called by a script, it notes a
`Call` with its operator and attributes; `OPERATORS[name].lower` runs the body, in a build or to infer a type. The first
parameters, up to a `/`, are tensors, the others attributes.
"""

import functools
import inspect
import re

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ....base.relax import fixed_shape
from ..ir import Call, Expr, Op, TupleWrapper, as_expr

OPERATORS: dict[str, "Operator"] = {}


class Operator:
    """An operator has a name and a body. `signature` is Relay's; `lower(tensors, attrs)` makes Relax of Relax."""

    def __init__(self, name: str, body, results, order=()):
        self.name, self.body, self.results = name, body, results
        self.__name__, self.__doc__ = name.rpartition(".")[2], body.__doc__
        self.signature = inspect.signature(body)
        kinds = self.signature.parameters.values()
        self.tensors = [p.name for p in kinds if p.kind is p.POSITIONAL_ONLY]
        self.defaults = {p.name: p.default for p in kinds if p.name not in self.tensors}
        # A script may name a tensor: nn.conv2d(data=x, weight=w).
        called = {p.name: p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in kinds}
        self.__signature__ = self.signature.replace(parameters=[called[name] for name in order or called])

    def __call__(self, *args, **kwargs):
        """It gives the call, as an expression."""
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"relay.{self.name}{self.__signature__}: {error}") from None
        bound.apply_defaults()
        tensors = [as_expr(bound.arguments.pop(name)) for name in self.tensors]
        attrs = {k: self._sized(k, plain(v)) for k, v in bound.arguments.items()}
        call = Call(Op(self.name), tensors, attrs)
        count = self.results(attrs) if callable(self.results) else self.results
        return TupleWrapper(call, count) if count > 1 else call

    def _sized(self, name: str, value):
        """A number for each axis where a script gives one for all; paddings as before each axis, then behind each."""
        like = self.defaults["strides" if name == "kernel_size" else name]
        if isinstance(like, tuple) and like:
            if isinstance(value, str):
                raise ValueError(f"relay.{self.name}: expected numbers as {name}, got {value!r}")
            value = [value] if isinstance(value, int) else value
            value = value * len(like) if value and len(value) == 1 else value
            value = value * 2 if name == "padding" and len(value) == len(like) else value
        return value

    def lower(self, tensors: list, attrs) -> relax.Expr:
        values = (
            {**self.defaults, **{k: v for k, v in attrs.items() if k in self.defaults}}
            if attrs
            else self.defaults
        )
        return self.body(*tensors, **values)

    def __repr__(self) -> str:
        return f"relay.{self.name}{self.__signature__}"

    def relax_names(self) -> list[str]:
        """The Relax functions that the body calls, in the order in which they stand in it."""
        called = getattr(self.body, "names", None)
        return list(
            dict.fromkeys(f"relax.op.{name}" for name in (_called(self.body) if called is None else called))
        )


def _called(body) -> list[str]:
    """The functions of `tvm.relax.op` that the source of a function names, or else of those whose result it returns."""
    source = inspect.getsource(body)
    helpers = [
        body.__globals__[name] for name in re.findall(r"return (\w+)\(", source) if name in body.__globals__
    ]
    return re.findall(r"\bR\.([\w.]+)\(", source) or [name for helper in helpers for name in _called(helper)]


def operator(name: str, results=1, order=()):
    """Make an operator of a function. `results` is how many values it gives, or a function of the attributes; `order`
    is that of the arguments in a script, where an attribute stands among the tensors.
    """

    def register(body):
        OPERATORS[name] = Operator(name, body, results, order)
        return OPERATORS[name]

    return register


def module(prefix: str) -> dict:
    """The public operators whose names begin with `prefix` ("nn.", or "" for those of relay itself), by short name."""
    ours = [op for name, op in OPERATORS.items() if name.rpartition(".")[0] == prefix.rstrip(".")]
    return {op.__name__: op for op in ours}


def plain(value):
    """An attribute in Python's own types."""
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | Expr) or value is None:
        return value
    return [plain(v) for v in value] if hasattr(value, "__iter__") else str(value)


# ---------------------------------------------------------------- what bodies share


def named(name, body, *today):
    """`body` as the operator `name`; `today` are the Relax functions that it calls."""
    body.names = list(today)
    return operator(name)(body)


def relax_function(path: str):
    """The function of `tvm.relax.op` at a dotted path."""
    return functools.reduce(getattr, path.split("."), R)


def dtype_of(x) -> str:
    return str(x.ty.dtype)


def known_shape(x) -> tuple[int, ...]:
    shape = fixed_shape(x.ty)
    if shape is None:
        raise ValueError(f"expected a tensor of fixed shape, got {x.ty}")
    return shape


def axis_list(axis):
    if axis is None or axis == [] or axis == ():
        return None
    return list(axis) if isinstance(axis, list | tuple) else [axis]


def numbers_of(value) -> list:
    """An attribute that a script may give as a constant expression."""
    return np.ravel(value.data.numpy() if isinstance(value, Expr) else value).tolist()
