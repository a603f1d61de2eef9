"""Converters of ONNX operators that TVM 0.27's frontend lacks or gets wrong.

The table is merged into TVM's own in this process, so that a graph may mix both; an entry goes once TVM has
the operator. To add one, write a function of a `node.Node` under `@converts`.

node       what a converter takes, and the table
general    arithmetic, shapes, indices and others
layers     recurrent layers, Resize, windows and spectra
quantized  integers of 8 and 16 bits
"""

import logging

import tvm
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ...context import log_converter
from ...contract import is_recorded
from . import general, layers, quantized  # noqa: F401  (they fill CONVERTERS)
from .node import CONVERTERS, OF_TVM, Node

_log = logging.getLogger(__name__)
KNOWN = OF_TVM.keys() | CONVERTERS.keys()  # operators that have a converter


class Failed(BaseException):
    """Raised with the name of an operator whose converter raised the cause; TVM prints what it can catch."""


class Importer(ONNXGraphImporter):
    """TVM's importer of graphs, with the converters of this package."""

    def _check_for_unsupported_ops(self, graph):
        """Accept the operators, which `graph.require_operators` has checked."""

    @property
    def values(self) -> dict:
        """The expressions of the tensors, by their names."""
        return self._nodes

    def _convert_operator(self, op_name, inputs, attrs, opset):
        log_converter(_log, op_name, CONVERTERS.get(op_name, OF_TVM.get(op_name)))
        try:
            if op_name not in CONVERTERS:
                made = super()._convert_operator(op_name, inputs, attrs, opset)
            else:
                node = Node(op_name, opset, self.bb, inputs, attrs, [self._nodes, self._params])
                made = self.bb.normalize(CONVERTERS[op_name](node))
            return self.bb.emit(made) if is_recorded() and isinstance(made, tvm.ir.Call) else made
        except Exception as error:
            raise Failed(op_name) from error
