"""`Context`: an operator that a frontend's converter converts, and what the converters of all frontends need.

A frontend has a subclass, which reads the operator's attributes from the framework's node.
"""

import logging
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ..core.bounds_check import checked
from ..core.relax import static_shape

Type = tuple[tuple[int, ...], str]  # shape and dtype


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    """Return the static shape of an expression."""
    return static_shape(expr.ty)


def dtype_of(expr: relax.Expr) -> str:
    """Return the dtype of an expression."""
    return str(expr.ty.dtype)


class Context:
    """An operator that is being converted to Relax: its name, and its inputs as expressions.

    An input that is left out is None. `x` is the first one.
    """

    def __init__(self, op: str, inputs: list[relax.Expr | None], builder: relax.BlockBuilder):
        self.op, self.inputs, self.builder = op, inputs, builder

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

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable, whose type is then known. Relax flattens nested calls."""
        return self.builder.emit(expr)

    def const(self, value, dtype: str | None = None) -> relax.Expr:
        """Return a constant: by default an array in its own dtype, all else in the first input's."""
        dtype = dtype or (str(value.dtype) if isinstance(value, np.ndarray) else self.dtype)
        return relax.const(list(value) if isinstance(value, tuple) else value, dtype)

    def cast(self, expr: relax.Expr, dtype: str) -> relax.Expr:
        """Return an expression in a dtype."""
        return expr if dtype_of(expr) == dtype else R.astype(expr, dtype)

    def checked(self, indices: relax.Expr, sizes: list[int], negative: bool = True) -> relax.Expr:
        """Return indices, checked in each run: one size for all, or one for each along the last axis."""
        return checked(indices, sizes, self.op, negative, self.builder)

    def element(self, x: relax.Expr | None, index: int, axis: int = 0) -> relax.Expr | None:
        """Return what a tensor has at an index of an axis, without this axis; None if there is no tensor."""
        if x is None:
            return None
        taken = self.builder.emit(R.strided_slice(x, [axis], [index], [index + 1]))
        return self.builder.emit(R.squeeze(taken, [axis]))

    def stacked(self, parts: list[relax.Expr], axis: int = 0) -> relax.Expr:
        """Return tensors along a new axis; Relax makes a kernel of a stack of one, too."""
        return self.emit(R.stack(parts, axis) if len(parts) > 1 else R.expand_dims(*parts, axis))

    def call(self, name: str, kernel: tvm.tirx.PrimFunc, inputs: list[relax.Expr], *types: Type) -> list:
        """Call a kernel; return its results, of these types."""
        function = self.builder.add_func(kernel.without_attr("global_symbol"), name)
        types = [relax.TensorType(*each) for each in types]
        results = self.builder.emit(relax.call_tir(function, inputs, types if len(types) > 1 else types[0]))
        return [results[n] for n in range(len(types))] if len(types) > 1 else [results]

    def refuse_if(self, condition: bool, reason: str) -> None:
        """Raise NotImplementedError if the converter does not serve what the node asks for."""
        if condition:
            raise NotImplementedError(reason)


def log_converter(logger: logging.Logger, op: object, converter: Callable | None) -> None:
    """Log which converter serves an operator."""
    if logger.isEnabledFor(logging.DEBUG):
        function = getattr(converter, "func", converter)  # of a partial
        name, module = getattr(function, "__qualname__", function), getattr(function, "__module__", "TVM")
        logger.debug("%s: converted by %s of %s", op, name, module)
