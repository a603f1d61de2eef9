"""What `diverge` compares a network with: a framework's network, whose values are read by their names."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tvm

from ..compiler.build import bind
from ..core import machine
from ..frontends.contract import recorded
from ..frontends.mxnet.gluon import quiet_unfused


class Reference(NamedTuple):
    """A network whose values are known to be right.

    Attributes:
        mod: The same network as an imported module.
        values: The names of its values, by the names of the variables of `mod` that hold them.
        read: Computes named values, each array by its name.
        outputs: Computes the outputs.
        rounded: Whether the values are of the network's own precision; else of float64.
    """

    mod: tvm.IRModule
    values: dict[str, str]
    read: Callable
    outputs: Callable
    rounded: bool = True


def imported(frontend: Callable, *args: Any) -> tuple:
    """Import a network; return the module with its parameters bound, their arrays, and the recording."""
    with recorded() as recording:
        mod, arrays = bind(*frontend(*args))
    return mod, arrays, recording


def reference_of(model: Any, inputs: Mapping[str, np.ndarray], params: Mapping) -> Reference:
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
        from .torch_reference import torch_reference  # for speed: torch's exporter

        return torch_reference(model, inputs)
    if isinstance(model, str | os.PathLike | bytes) or (onnx and isinstance(model, onnx.ModelProto)):
        return _onnx(model, inputs)
    symbol, arrays = model if isinstance(model, tuple) and len(model) == 2 else (model, params)
    if hasattr(symbol, "tojson") and hasattr(symbol, "get_internals"):
        return _mxnet(symbol, arrays, inputs)
    raise TypeError(
        "reference: expected a PyTorch module or ExportedProgram, an ONNX file, an mx.sym.Symbol or a pair "
        f"of one and its parameters, or None for the network itself; got {type(model).__name__}"
    )


def _onnx(model: Any, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run an ONNX file in ONNX Runtime without its optimizations; the values that are read become outputs."""
    import onnx  # for speed, as the next two: only where a file is compared
    import onnxruntime

    from ..frontends.onnx.importer import from_onnx

    mod, _, recording = imported(from_onnx, model, dict(inputs))
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = machine.usable_cores()
    options.log_severity_level = 3

    def run(names):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        cpu = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=cpu)
        return session.run(names, dict(inputs))

    made = {name for node in model.graph.node for name in node.output}
    return Reference(
        mod,
        {var: name for var, name in recording.values.items() if name in made},
        lambda names: dict(zip(names, run(names), strict=True)) if names else {},
        lambda: run([each.name for each in model.graph.output]),
    )


def _mxnet(symbol: Any, params: Any, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run a symbol of MXNet in inference; its values are its internals."""
    import mxnet  # for speed, as the next: only where a symbol is compared

    from ..frontends.mxnet.importer import from_mxnet

    if isinstance(params, Mapping):
        params = {name: x.numpy() if hasattr(x, "numpy") else x for name, x in params.items()}
    mod, arrays, recording = imported(from_mxnet, symbol, params, dict(inputs))
    known = {name: array.numpy() for name, array in arrays.items()} | dict(inputs)
    internals = symbol.get_internals()

    def run(symbol):
        shapes = {name: x.shape for name, x in inputs.items() if name in symbol.list_arguments()}
        with quiet_unfused():
            bound = symbol.simple_bind(mxnet.cpu(), grad_req="null", **shapes)
        given = {name: mxnet.nd.array(x) for name, x in known.items()}
        bound.copy_params_from(given, given, allow_extra_params=True)
        return [each.asnumpy() for each in bound.forward(is_train=False)]

    def read(names):
        found = run(mxnet.sym.Group([internals[name] for name in names])) if names else []
        return dict(zip(names, found, strict=True))

    made = {*internals.list_outputs()}
    values = {var: f"{name}_output" for var, name in recording.values.items() if f"{name}_output" in made}
    return Reference(mod, values, read, lambda: run(symbol))
