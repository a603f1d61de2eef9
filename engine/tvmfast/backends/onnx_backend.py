"""`onnx.backend.base`, the interface that ONNX's test suites run against, on top of `from_onnx` and `build`.

`onnx.backend.test.BackendTest(onnx_backend, name)` runs ONNX's own cases on it, as this project's tests do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info, np_dtype_to_tensor_dtype
from onnx.numpy_helper import from_array

from ..compiler.build import build
from ..frontends.onnx.checks import deciding_inputs
from ..frontends.onnx.importer import from_onnx


class CompiledModel(BackendRep):
    """A model that is compiled once for each set of input shapes that it is run with.

    TVM compiles for static shapes, so inputs that determine shapes, axes or counts become constants of the
    network, which is compiled once for each of their values too.
    """

    def __init__(self, model: onnx.ModelProto, opt_level: int):
        self._model, self._opt_level = model, opt_level
        self._networks = {}  # by shapes and constants
        weights = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value for value in model.graph.input if value.name not in weights]
        self._deciding = deciding_inputs(model.graph)
        if not self._deciding and all(map(_is_static, self._inputs)):
            self._compile({value.name: None for value in self._inputs}, {})

    def _compile(self, shapes: dict[str, tuple[int, ...] | None], constants: dict[str, np.ndarray]):
        contents = ((array.dtype, array.shape, array.tobytes()) for array in constants.values())
        key = (*shapes.values(), *contents)
        if key not in self._networks:
            model = onnx.ModelProto()
            model.CopyFrom(self._model)
            model.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
            known = {name: shape for name, shape in shapes.items() if shape is not None}
            self._networks[key] = build(*from_onnx(model, known or None), opt_level=self._opt_level)
        return self._networks[key]

    def run(self, inputs: Any, **kwargs) -> tuple[np.ndarray, ...]:
        """Run the model on arrays in the order of its inputs, or on a dictionary of them, and return a tuple.

        Raises ValueError for a wrong number of inputs, TypeError for options, of which there are none, and
        what `from_onnx` and `build` raise for shapes that are new.
        """
        if kwargs:
            raise TypeError(f"run takes no options, got {', '.join(kwargs)}")
        names = [value.name for value in self._inputs]
        values = [inputs[name] for name in names] if isinstance(inputs, dict) else list(inputs)
        if len(values) != len(names):
            raise ValueError(f"the model takes {len(names)} inputs ({names}), got {len(values)}")
        arrays = dict(zip(names, map(np.asarray, values), strict=True))
        constants = {name: arrays.pop(name) for name in names if name in self._deciding}
        static = {value.name: _is_static(value) for value in self._inputs}
        shapes = {name: None if static[name] else array.shape for name, array in arrays.items()}
        outputs = self._compile(shapes, constants)(*arrays.values())
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


class TVMBackend(Backend):
    """ONNX models and nodes, compiled by TVM for this machine's CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", *, opt_level: int = 3) -> CompiledModel:
        """Compile a model; one with dynamic shapes, or shapes that inputs set, is compiled at its first run.

        Raises ValueError for a device other than "CPU", and what `from_onnx` and `build` raise.
        """
        _on_cpu(device)
        return CompiledModel(model, opt_level)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        *,
        opset_version: int | None = None,
        opt_level: int = 3,
    ) -> tuple[np.ndarray, ...]:
        """Run one node on arrays, given in the order of its named inputs, and return a tuple of arrays.

        `outputs_info` holds each output's dtype and shape; without it ONNX infers them. Raises what `prepare`
        does.
        """
        _on_cpu(device)
        names = list(dict.fromkeys(name for name in node.input if name))
        arrays = list(map(np.asarray, inputs))
        takes = [
            make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        gives = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        if outputs_info is not None:
            gives = [
                make_tensor_value_info(value.name, np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
                for value, (dtype, shape) in zip(gives, outputs_info, strict=True)
            ]
        opset = make_opsetid(node.domain, opset_version or onnx.defs.onnx_opset_version())
        model = make_model(make_graph([node], "node", takes, gives), opset_imports=[opset])
        if outputs_info is None:
            model = onnx.shape_inference.infer_shapes(model)
        return cls.run_model(model, arrays, device, opt_level=opt_level)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on the device: only on "CPU"."""
        return device.partition(":")[0] == "CPU"


def _on_cpu(device: str) -> None:
    if not TVMBackend.supports_device(device):
        raise ValueError(f"device: expected 'CPU', got {device!r}")


def _is_static(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    # Old exporters wrote a dynamic dim as 0, and `from_onnx` reads it so.
    return tensor.HasField("shape") and all(dim.dim_value > 0 for dim in tensor.shape.dim)


prepare = TVMBackend.prepare
run_model = TVMBackend.run_model
run_node = TVMBackend.run_node
supports_device = TVMBackend.supports_device
is_compatible = TVMBackend.is_compatible
