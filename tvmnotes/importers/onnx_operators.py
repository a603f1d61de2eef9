"""Converters of ONNX operators that TVM 0.27's frontend lacks or gets wrong, from five modules.

The table is merged into TVM's own in this process, so that a graph may mix both; an entry goes once TVM has
the operator. To add one, write a function of an `onnx_node.Node` under `@converts`.
"""

from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from . import (  # noqa: F401  (they fill CONVERTERS)
    onnx_corrections,
    onnx_indices,
    onnx_recurrent,
    onnx_resize,
    onnx_windows,
)
from .onnx_node import CONVERTERS, OF_TVM


def converters() -> dict[str, type[OnnxOpConverter]]:
    """Return TVM's converters and those of tvmnotes, by operator name."""
    return {**OF_TVM, **CONVERTERS}


onnx_frontend._get_convert_map = converters
