"""What `diverge` compares a network with: each gives the values of its graph, a few at a time, and outputs.

A reference has `mod`, the same network as an imported module; `values`, the name of a value in the reference
by the name of the variable of `mod` that holds it; `read(names)`, the arrays of values, which come in the
order of the graph; `outputs()`; and `rounded`, whether its values are of the network's own precision, or else
of float64.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..compiler.build import bind
from ..core import machine
from ..frontends.contract import recorded
from ..frontends.mxnet.gluon import quiet_unfused


def reference_of(model: Any, inputs: Mapping[str, np.ndarray], params: Mapping) -> Any:
    """Return the reference for a framework's model.

    Args:
        model: A PyTorch module in eval mode, or an ExportedProgram; an ONNX file, its bytes or a ModelProto;
            an MXNet symbol, which takes `params`, or a pair of one and its parameters.
        inputs: The arrays of the inputs, by name, in order.
        params: The parameters of the network that is compared.

    Raises:
        TypeError: The model is of another kind.
        ModuleNotFoundError: The framework is missing.
        Exception: What the frontend raises that imports the model.
    """
    torch, onnx = sys.modules.get("torch"), sys.modules.get("onnx")
    if torch and isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        from .torch_reference import TorchReference  # for speed: torch's exporter

        return TorchReference(model, inputs)
    if isinstance(model, str | os.PathLike | bytes) or (onnx and isinstance(model, onnx.ModelProto)):
        return _Onnx(model, inputs)
    symbol, arrays = model if isinstance(model, tuple) and len(model) == 2 else (model, params)
    if isinstance(arrays, Mapping):
        arrays = {name: array.numpy() if hasattr(array, "numpy") else array for name, array in arrays.items()}
    if hasattr(symbol, "tojson") and hasattr(symbol, "get_internals"):
        return _MXNet(symbol, arrays, inputs)
    raise TypeError(
        "reference: expected a PyTorch module or ExportedProgram, an ONNX file, an mx.sym.Symbol or a pair "
        f"of one and its parameters, or None for the network itself; got {type(model).__name__}"
    )


class _Onnx:
    """An ONNX file in ONNX Runtime without its optimizations, with the values that are read made outputs."""

    rounded = True

    def __init__(self, model: Any, inputs: Mapping[str, np.ndarray]):
        import onnx

        from ..frontends.onnx.importer import from_onnx  # for speed: onnx

        with recorded() as recording:
            self.mod, _ = bind(*from_onnx(model, dict(inputs)))
        self.proto = onnx.ModelProto()
        if isinstance(model, onnx.ModelProto):
            self.proto.CopyFrom(model)
        else:
            self.proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        self.inputs, self.own = inputs, [each.name for each in self.proto.graph.output]
        made = {name for node in self.proto.graph.node for name in node.output}
        self.values = {var: name for name, var in recording.values.items() if name in made}

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return values by their names."""
        return dict(zip(names, self._run(list(names)), strict=True)) if names else {}

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs."""
        return self._run(self.own)

    def _run(self, names: list[str]) -> list[np.ndarray]:
        import onnx
        import onnxruntime

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        known = {each.name: each for each in proto.graph.output}
        del proto.graph.output[:]
        proto.graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in names)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = machine.usable_cores()
        options.log_severity_level = 3
        cpu = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=cpu)
        return session.run(names, dict(self.inputs))


class _MXNet:
    """A symbol of MXNet by its internals, in inference."""

    rounded = True

    def __init__(self, symbol: Any, params: Any, inputs: Mapping[str, np.ndarray]):
        from ..frontends.mxnet.importer import from_mxnet  # for speed: only where a symbol is read

        with recorded() as recording:
            self.mod, arrays = bind(*from_mxnet(symbol, params, dict(inputs)))
        self.symbol, self.inputs = symbol, inputs
        self.arrays = {name: array.numpy() for name, array in arrays.items()}
        known = set(symbol.get_internals().list_outputs())
        self.values = {
            var: f"{name}_output" for name, var in recording.values.items() if f"{name}_output" in known
        }

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return values by their names."""
        import mxnet

        internals = self.symbol.get_internals()
        found = self._run(mxnet.sym.Group([internals[name] for name in names])) if names else ()
        return dict(zip(names, found, strict=True))

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs."""
        return self._run(self.symbol)

    def _run(self, symbol: Any) -> list[np.ndarray]:
        import mxnet

        known = self.arrays | dict(self.inputs)  # what is unknown is a label, which inference does not read
        shapes = {name: x.shape for name, x in self.inputs.items() if name in symbol.list_arguments()}
        sizes, _, held = symbol.infer_shape(**shapes)
        arrays = [
            {
                name: mxnet.nd.array(known.get(name, np.zeros(shape, "float32")))
                for name, shape in zip(names, several, strict=True)
            }
            for names, several in ((symbol.list_arguments(), sizes), (symbol.list_auxiliary_states(), held))
        ]
        with quiet_unfused():
            run = symbol.bind(mxnet.cpu(), arrays[0], grad_req="null", aux_states=arrays[1])
        return [each.asnumpy() for each in run.forward(is_train=False)]
