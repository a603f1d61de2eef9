"""The class of Relay's operators, their registry, and helpers of the other files in this folder.

An operator is written as a function with Relay's signature and a body that returns Relax. Parameters before
the `/` are tensors, the others attributes. Calling the operator creates a `Call`; `OPERATORS[name].lower`
runs the body, in a build or to infer a type.
"""

import functools
import inspect

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tvmfast.core.relax import static_shape

from ..ir import Call, Constant, Expr, Op, TupleWrapper, as_expr

OPERATORS: dict[str, "Operator"] = {}


class Operator:
    """An operator of Relay.

    Args:
        name: Relay's full name, such as "nn.conv2d".
        body: Function from Relax tensors and attributes to a Relax expression, with Relay's signature.
        results: Number of results, or a function from the attributes to it.
        order: Parameter names in Relay's order, if attributes come between tensors.
        relax: Names in `tvm.relax.op` of the functions that the body calls, with spaces between them; "const"
            if the result is a `relax.const`, and "" if it is the tensor itself.
        tensors: Their names in Relay, with spaces between them, if the body has others.
        attributes: Defaults by name, in Relay's order, if the signature of the body does not give them.
    """

    def __init__(self, name: str, body, results, order, relax: str, tensors: str, attributes: dict | None):
        self.name, self.body = name, body
        self.results, self.relax = results, relax.split()
        self.__name__, self.__doc__ = name.rpartition(".")[2], body.__doc__
        kinds = [*inspect.signature(body).parameters.values()]
        if tensors or attributes is not None:
            names = tensors.split() or [p.name for p in kinds if p.kind is p.POSITIONAL_ONLY]
            kinds = parameters(dict.fromkeys(names, NEEDED), inspect.Parameter.POSITIONAL_ONLY)
            kinds += parameters(attributes or {})
        self.tensors = [p.name for p in kinds if p.kind is p.POSITIONAL_ONLY]
        self.defaults = {p.name: p.default for p in kinds if p.name not in self.tensors}
        # A script may name a tensor: nn.conv2d(data=x, weight=w).
        called = {p.name: p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in kinds}
        self.__signature__ = inspect.Signature([called[name] for name in order or called])

    def __call__(self, *args, **kwargs):
        """Return the call as an expression. Raises TypeError for arguments that the signature rejects."""
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"relay.{self.name}{self.__signature__}: {error}") from None
        bound.apply_defaults()
        tensors = [as_expr(bound.arguments.pop(name)) for name in self.tensors]
        attrs = {k: self._sized(k, as_python(v)) for k, v in bound.arguments.items()}
        call = Call(Op(self.name), tensors, attrs)
        count = self.results(attrs) if callable(self.results) else self.results
        return TupleWrapper(call, count) if count > 1 else call

    def _sized(self, name: str, value):
        """Expand one number to one per axis, and paddings to those before each axis and those after each."""
        like = self.defaults["strides" if name == "kernel_size" else name]
        if isinstance(like, tuple) and like:
            if isinstance(value, str):
                raise ValueError(f"relay.{self.name}: expected numbers as {name}, got {value!r}")
            value = [value] if isinstance(value, int) else value
            value = value * len(like) if value and len(value) == 1 else value
            value = value * 2 if name == "padding" and len(value) == len(like) else value
        return value

    def lower(self, tensors: list, attrs) -> relax.Expr:
        """Return the Relax expression for Relax tensors; unknown attributes are ignored."""
        given = {k: v for k, v in attrs.items() if k in self.defaults} if attrs else {}
        return self.body(*tensors, **{**self.defaults, **given})

    def __repr__(self) -> str:
        return f"relay.{self.name}{self.__signature__}"


NEEDED = inspect.Parameter.empty


def parameters(defaults: dict, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) -> list[inspect.Parameter]:
    """Return the parameters of a signature; a default of NEEDED is none."""
    return [inspect.Parameter(name, kind, default=value) for name, value in defaults.items()]


def operator(name: str, results=1, order=(), *, relax: str, tensors="", attributes: dict | None = None):
    """Return a decorator that registers a function as an operator; see `Operator` for the arguments."""

    def register(body):
        OPERATORS[name] = Operator(name, body, results, order, relax, tensors, attributes)
        return OPERATORS[name]

    return register


def module(prefix: str) -> dict:
    """Return the operators of a namespace ("nn.", or "" for relay itself), by short name."""
    ours = [op for name, op in OPERATORS.items() if name.rpartition(".")[0] == prefix.rstrip(".")]
    return {op.__name__: op for op in ours}


def as_python(value):
    """Convert an attribute to built-in Python types; expressions stay as they are."""
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | Expr) or value is None:
        return value
    return [as_python(v) for v in value] if hasattr(value, "__iter__") else str(value)


# ---------------------------------------------------------------- helpers of bodies


def relax_function(path: str):
    """Return the function of `tvm.relax.op` at a dotted path."""
    return functools.reduce(getattr, path.split("."), R)


def dtype_of(x) -> str:
    return str(x.ty.dtype)


def known_shape(x) -> tuple[int, ...]:
    shape = static_shape(x.ty)
    if shape is None:
        raise ValueError(f"expected a tensor of static shape, got {x.ty}")
    return shape


def rank_of(x) -> int:
    """Return the number of axes, which is known where their lengths are not."""
    return int(x.ty.ndim)


def axis_list(axis):
    if axis is None or axis == [] or axis == ():
        return None
    return list(axis) if isinstance(axis, list | tuple) else [axis]


def numbers_of(value) -> list:
    """Return the elements of an attribute that may be a constant expression, as a flat list."""
    if isinstance(value, Expr) and not isinstance(value, Constant):
        raise ValueError("expected constants as its attributes; relay.vm runs programs that compute them")
    return np.ravel(value.data.numpy() if isinstance(value, Expr) else value).tolist()
