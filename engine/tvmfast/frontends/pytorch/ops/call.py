"""`Call`: a node that a converter converts, and the form in which TVM's importer takes converters."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from tvm import relax

from ...context import Context


class Call(Context):
    """A torch.fx node that is being converted; `inputs` are its arguments, with expressions for nodes."""

    def __init__(self, node: fx.Node, importer: Any):
        inputs = fx.map_arg(node.args, importer.env.get)
        super().__init__(node.target.__name__.partition(".")[0], inputs, importer.block_builder)
        self.node, self.importer = node, importer

    @property
    def result(self) -> Any:
        """PyTorch's result, a fake tensor or several of them."""
        return self.node.meta["val"]

    @property
    def result_shape(self) -> list[int]:
        """The shape of the result."""
        return list(self.result.shape)

    def dtype_in_tvm(self, dtype: torch.dtype) -> str:
        """Return TVM's name of a dtype."""
        return self.importer._convert_data_type(dtype)

    def converted(self, converter: str | Callable) -> relax.Expr:
        """Apply a method of TVM's importer, by its name, or a converter that takes a `Call`."""
        if isinstance(converter, str):
            return getattr(self.importer, converter)(self.node)
        return converter(Call(self.node, self.importer))

    @contextmanager
    def substituted(self, values: dict[fx.Node, relax.Expr]) -> Iterator[None]:
        """Give nodes other expressions, in `converted`."""
        env = self.importer.env
        own = {node: env[node] for node in values}
        env.update(values)
        yield
        env.update(own)


def bound(convert: Callable[[Call], relax.Expr]) -> Callable[[fx.Node, Any], relax.Expr]:
    """Return a converter of a `Call` as one of a node and TVM's importer, which binds its result."""

    @functools.wraps(convert)
    def converter(node: fx.Node, importer: Any) -> relax.Expr:
        call = Call(node, importer)
        result = convert(call)
        return result if isinstance(result, relax.Var | relax.Tuple) else call.emit(result)

    return converter
