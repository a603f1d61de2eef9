"""Converters of ONNX operators: functions of a `Node`, decorated with `@converts`.

`CONVERTERS` holds them by operator; `OF_TVM` holds TVM's own.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter, get_constant, onnx_input

from ....core.relax import constant_array
from ...context import Context

CONVERTERS: dict[str, Callable[["Node"], relax.Expr]] = {}
OF_TVM: dict[str, type[OnnxOpConverter]] = onnx_frontend._get_convert_map()


class Node(Context):
    """An ONNX node that is being converted; `outputs` counts its outputs."""

    def __init__(self, op: str, opset: int, builder: relax.BlockBuilder, inputs, attributes: dict, params):
        super().__init__(op, onnx_input(inputs), builder)
        self.opset, self.attributes, self.params = opset, attributes, params
        self.outputs = attributes["tvm_custom"]["num_outputs"]

    @property
    def x(self) -> relax.Expr:
        """The first input, as a tensor."""
        return _tensor(self.inputs[0])

    @property
    def shape(self) -> list[int]:
        """The shape of the first input, empty if it is not known."""
        return list(super().shape or ())

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression with its type inferred, to be bound where it is used."""
        return self.builder.normalize(expr)

    def get(self, name: str, default=None):
        """Return an attribute, or `default` if the node has none of this name."""
        return self.attributes.get(name, default)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that holds a string."""
        return self.attributes.get(name, default.encode()).decode()

    def windows(self, rank: int) -> tuple[list[int], list[int], list[int]]:
        """Return the strides, dilations and pads of an operator on windows with this number of axes."""
        ones = [1] * rank
        pads = list(self.get("pads", [0] * 2 * rank))
        return self.get("strides", ones), self.get("dilations", ones), pads

    def tvm_converter(self, *inputs: relax.Expr | None, **attributes) -> relax.Expr:
        """Apply TVM's own converter to the node, with other inputs and attributes if given."""
        convert = OF_TVM[self.op].get_converter(self.opset)
        inputs = onnx_input(inputs or self.inputs)
        return self.emit(convert(self.builder, inputs, self.attributes | attributes, self.params))

    def known(self, number: int) -> np.ndarray | None:
        """Return the value of an input that `checks.require_known` has checked; None if left out."""
        if self.inputs[number] is None:
            return None
        array = constant_array(get_constant(_tensor(self.inputs[number]), self.params))
        wanted = "is computed in the run; make it a constant of the model"
        self.refuse_if(array is None, f"its input {number} {wanted}")
        return array

    def known_int(self, number: int) -> int:
        """Return the value of such an input of one element."""
        return int(self.known(number).reshape(()))


def converts(*ops: str) -> Callable:
    """Decorate the converter of these operators, for all opsets.

    It takes a `Node` and returns an expression, a Tuple for several outputs.
    """

    def register(function: Callable[[Node], relax.Expr]):
        CONVERTERS.update(dict.fromkeys(ops, function))
        return function

    return register


def in_float32(convert: Callable[[Node], relax.Expr]) -> Callable[[Node], relax.Expr]:
    """Convert an operator that sums functions of halves, such as squares, in float32, and round once."""

    @functools.wraps(convert)
    def converter(n: Node) -> relax.Expr:
        dtype = n.dtype
        if dtype not in ("float16", "bfloat16"):
            return convert(n)
        n.inputs[0] = n.emit(R.astype(n.x, "float32"))
        return R.astype(n.emit(convert(n)), dtype)

    return converter


def is_outer(shapes: list[tuple[int, ...]]) -> bool:
    """Return whether a tensor that is broadcast from these shapes has axes that each of them lacks.

    Of sizes 1, as a dynamic dim may have, the ranks say so.
    """
    size = math.prod(np.broadcast_shapes(*shapes))
    ranks = {len(shape) for shape in shapes}
    return all(math.prod(shape) < size for shape in shapes) or (0 not in ranks and len(ranks) > 1)


def _tensor(x: relax.Expr | None) -> relax.Expr | None:
    return relax.const([int(size) for size in x.values], "int64") if isinstance(x, relax.ShapeExpr) else x
