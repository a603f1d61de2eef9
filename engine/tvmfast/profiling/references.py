"""What `diverge` compares a network with: a framework's network, whose values are read by their names."""

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


def onnx_reference(model: Any, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run an ONNX file in ONNX Runtime without its optimizations; the values that are read become outputs."""
    import onnx  # for speed, as the next two: only where a file is compared
    import onnxruntime

    from ..frontends.onnx.importer import from_onnx  # for speed

    mod, _, recording = imported(from_onnx, model, dict(inputs))
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = machine.usable_cores()
    options.log_severity_level = 3

    def run(names: list[str]) -> list[np.ndarray]:
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


def mxnet_reference(symbol: Any, params: Any, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run a symbol of MXNet in inference; its values are its internals."""
    import mxnet  # for speed, as the next: only where a symbol is compared

    from ..frontends.mxnet.importer import from_mxnet  # for speed

    if isinstance(params, Mapping):
        params = {name: x.numpy() if hasattr(x, "numpy") else x for name, x in params.items()}
    mod, arrays, recording = imported(from_mxnet, symbol, params, dict(inputs))
    known = {name: array.numpy() for name, array in arrays.items()} | dict(inputs)
    internals = symbol.get_internals()

    def run(symbol: Any) -> list[np.ndarray]:
        shapes = {name: x.shape for name, x in inputs.items() if name in symbol.list_arguments()}
        with quiet_unfused():
            bound = symbol.simple_bind(mxnet.cpu(), grad_req="null", **shapes)
        given = {name: mxnet.nd.array(x) for name, x in known.items()}
        bound.copy_params_from(given, given, allow_extra_params=True)
        return [each.asnumpy() for each in bound.forward(is_train=False)]

    def read(names: list[str]) -> dict[str, np.ndarray]:
        found = run(mxnet.sym.Group([internals[name] for name in names])) if names else []
        return dict(zip(names, found, strict=True))

    made = {*internals.list_outputs()}
    values = {var: f"{name}_output" for var, name in recording.values.items() if f"{name}_output" in made}
    return Reference(mod, values, read, lambda: run(symbol))
