"""Converters of ONNX operators: functions of a `Node`, decorated with `@converts`.

`CONVERTERS` holds them by operator; `OF_TVM` holds TVM's own.
"""

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter, get_constant, onnx_input

from ....core.relax import constant_array, static_shape

CONVERTERS: dict[str, Callable[["Node"], relax.Expr]] = {}
OF_TVM: dict[str, type[OnnxOpConverter]] = onnx_frontend._get_convert_map()


class Node:
    """An ONNX node that is being converted to Relax: its operator, inputs (None if left out) and attributes.

    `outputs` counts its outputs; `x` is its first input, of dtype `dtype` and shape `shape`.
    """

    def __init__(self, op: str, opset: int, builder: relax.BlockBuilder, inputs, attributes: dict, params):
        self.op, self.opset = op, opset
        self.builder, self.attributes = builder, attributes
        self.params = params
        self.inputs = onnx_input(inputs)
        self.outputs = attributes["tvm_custom"]["num_outputs"]
        self.x = _tensor(self.inputs[0])
        self.dtype, self.shape = self.x.ty.dtype.dtype, list(static_shape(self.x.ty) or ())

    def get(self, name: str, default=None):
        """Return an attribute, or `default` if the node has none of this name."""
        return self.attributes.get(name, default)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that holds a string."""
        return self.attributes.get(name, default.encode()).decode()

    def tvm_converter(self, *inputs: relax.Expr | None, **attributes) -> relax.Expr:
        """Apply TVM's own converter to the node, with other inputs and attributes if given."""
        convert = OF_TVM[self.op].get_converter(self.opset)
        inputs = onnx_input(inputs or self.inputs)
        return self.emit(convert(self.builder, inputs, self.attributes | attributes, self.params))

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression with its type inferred."""
        return self.builder.normalize(expr)

    def const(self, value: np.ndarray | float) -> relax.Expr:
        """Return a constant: an array in its own dtype, a scalar in the first input's."""
        return relax.const(value, str(value.dtype) if isinstance(value, np.ndarray) else self.dtype)

    def known(self, number: int) -> np.ndarray | None:
        """Return the value of an input that `constants.require_known` has checked; None if left out."""
        if self.inputs[number] is None:
            return None
        array = constant_array(get_constant(_tensor(self.inputs[number]), self.params))
        if array is None:
            raise NotImplementedError(
                f"its input {number} is computed in the run; make it a constant of the model"
            )
        return array


def converts(*ops: str) -> Callable:
    """Decorate the converter of these operators, for all opsets.

    It takes a `Node` and returns an expression, a Tuple for several outputs.
    """

    def register(function: Callable[[Node], relax.Expr]):
        CONVERTERS.update(dict.fromkeys(ops, function))
        return function

    return register


def _tensor(x: relax.Expr | None) -> relax.Expr | None:
    return relax.const([int(size) for size in x.values], "int64") if isinstance(x, relax.ShapeExpr) else x
