"""`from_mxnet`: import an MXNet network; MXNet itself need not be installed.

It does not go through ONNX: each operator has a converter of its own, see ops/call.py.
"""

import logging
import os
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...core.bounds_check import OutOfRange
from ...core.compat import pass_lock
from ...core.errors import one_line
from ...core.specs import TensorSpec, parse_inputs, require_dense, shorten
from ..context import log_converter, shape_of
from ..contract import as_model
from ..dynamic.probing import with_dynamic_dims
from . import gluon
from .files import Graph, Node, bare_name, read_params, read_symbol
from .ops import (  # noqa: F401  (they fill the table)
    attention,
    detection,
    image,
    layout,
    linalg,
    mx_np,
    nn,
    spatial,
    tensor,
)
from .ops.call import CONVERTERS, Call

_log = logging.getLogger(__name__)

# Operators whose second input is a label, which inference does not read.
_LABELS = {
    *("SoftmaxOutput", "Softmax", "SVMOutput"),
    *("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"),
}


def from_mxnet(
    symbol: Any, params: Any = None, inputs: Any = None
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Import an MXNet network. What only training needs is left out: dropout, labels, losses.

    Args:
        symbol: The path of a -symbol.json file or its text (MXNet 0.8 to 1.9), an `mx.sym.Symbol`, or a Gluon
            HybridBlock with its parameters, in NumPy mode or not.
        params: The path of a .params file, a dictionary of arrays (MXNet's or NumPy's) by name, or
            `(arg_params, aux_params)`; a HybridBlock needs none.
        inputs: The shapes and dtypes of the inputs, in any form that `tvmfast.core.specs.parse_inputs`
            reads; inputs whose shape the symbol holds may be left out. A name in a shape,
            ("batch", 3, 224, 224), or a `Dim` is a dynamic dim.

    Returns:
        `(mod, params)` as `tvmfast.frontends` describes. A batch norm uses its moving averages.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is damaged, parameters are missing, superfluous or of a wrong shape, or an input
            has no shape.
        NotImplementedError: The frontend lacks operators (the message names all), or uses of them, or the
            network does not support a dynamic dim.
        TypeError: An argument is of another kind.
        IndexError: The network holds an index out of range. One that is passed in or computed is an
            IndexError of the run.
    """
    graph, own = _read(symbol)
    arrays = _arrays(own if params is None else params)
    if unknown := sorted({node.op for node in graph.nodes} - {"null", *CONVERTERS}):
        raise NotImplementedError(f"MXNet operators without a converter: {', '.join(unknown)}")
    all_variables = set(graph.variables())
    graph = _used(graph)
    names = graph.variables()
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the symbol has several variables of one name: {', '.join(repeated)}")
    specs = _inputs(graph, arrays, inputs, all_variables)
    arrays = {name: arrays[name] for name in names if name not in specs}
    return with_dynamic_dims(
        lambda static: _convert(graph, {spec.name: spec for spec in static}, arrays), list(specs.values())
    )


def _read(symbol) -> tuple[Graph, dict]:
    """Return the graph, and the parameters that a HybridBlock brings with it."""
    if isinstance(symbol, str | os.PathLike):
        return read_symbol(symbol), {}
    if hasattr(symbol, "tojson") and hasattr(symbol, "list_arguments"):
        return read_symbol(symbol.tojson()), {}
    if hasattr(symbol, "hybrid_forward") and hasattr(symbol, "collect_params"):
        with pass_lock:
            symbol, params = gluon.as_symbol(symbol)
        return read_symbol(symbol.tojson()), params
    raise TypeError(
        "symbol: expected the path of a -symbol.json, its text, an mx.sym.Symbol or a Gluon HybridBlock; "
        f"got {type(symbol).__name__}"
    )


def _arrays(params) -> dict[str, np.ndarray]:
    if isinstance(params, str | os.PathLike):
        return read_params(params)
    is_pair = isinstance(params, tuple | list) and len(params) == 2
    if is_pair and all(isinstance(part, dict) for part in params):
        params = {**params[0], **params[1]}
    if not isinstance(params, dict):
        raise TypeError(
            "params: expected the path of a .params file, a dictionary of arrays, or (arg_params, "
            f"aux_params); got {type(params).__name__}"
        )
    for name, array in params.items():
        require_dense(array, f"params: {name!r}")
    return {
        bare_name(name): array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)
        for name, array in params.items()
    }


def _used(graph: Graph) -> Graph:
    """Return the graph without what no output reads: labels, and nodes that only training needs."""
    needed, waiting = set(), [source for source, _ in graph.heads]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += [source for source, _ in _read_in_inference(graph.nodes[number])]
    position = {number: n for n, number in enumerate(sorted(needed))}
    nodes = [graph.nodes[number] for number in position]
    for node in nodes:
        node.inputs = [(position[source], n) for source, n in _read_in_inference(node)]
    return Graph(nodes, [(position[source], n) for source, n in graph.heads])


def _read_in_inference(node):
    return node.inputs[:1] if node.op in _LABELS else node.inputs


def _inputs(graph: Graph, arrays: dict, inputs, all_variables: set[str]) -> dict[str, TensorSpec]:
    """Return the inputs, the variables without an array; their shapes are in `inputs` or in the symbol."""
    variables = {node.name: node for node in graph.nodes if node.op == "null"}
    specs = {}
    if inputs is not None:
        free = [name for name in variables if name not in arrays]
        specs = {spec.name: spec for spec in parse_inputs(inputs, free, dynamic_dims=True)}
    listed = ", ".join(name for name in variables if name not in arrays) or "none"
    if unknown := [name for name in specs if name not in variables]:
        raise ValueError(
            f"inputs: the symbol has no input {', '.join(map(repr, unknown))}; its inputs: {listed}"
        )
    missing = []
    for name, node in variables.items():
        if name in arrays or name in specs:
            continue
        if shape := _shape_in_symbol(node):
            specs[name] = TensorSpec(name, shape, "float32")
        else:
            missing.append(name)
    if missing:
        if likely := [name for name in missing if name.rpartition("_")[2] in _OF_PARAMETERS]:
            raise ValueError(
                f"params: missing {shorten(likely)}; the file, or the dictionary, must have all of the "
                "symbol's"
            )
        raise ValueError(
            f"inputs: missing for the input {shorten(missing)}; "
            f"give inputs={{{missing[0]!r}: (1, 3, 224, 224)}}, or whatever it is"
        )
    if superfluous := set(arrays) - all_variables:
        raise ValueError(
            f"params: not in the symbol: {shorten(superfluous)}. Is it the file of another network? "
            "Where the symbol is a part of one, leave them out: "
            "{name: params[name] for name in symbol.list_inputs() if name in params}"
        )
    return {name: specs[name] for name in variables if name in specs}


_OF_PARAMETERS = {"weight", "bias", "gamma", "beta", "mean", "var", "alpha", "parameters"}


def _shape_in_symbol(node) -> tuple[int, ...] | None:
    text = node.attrs.get("__shape__", "").strip("()[] ,")
    sizes = [size.strip().rstrip("L") for size in text.split(",")] if text else []
    shape = tuple(int(size) for size in sizes if size.isdigit())
    return shape if len(shape) == len(sizes) and min(shape, default=0) > 0 else None


def _convert(graph: Graph, specs: dict[str, TensorSpec], arrays: dict[str, np.ndarray]):
    builder = relax.BlockBuilder()
    variables = {}
    for name, spec in specs.items():
        variables[name] = relax.Var(name, relax.TensorType(spec.shape, spec.dtype))
    for name, array in arrays.items():
        variables[name] = relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
    outputs, failure = [], None  # the outputs of each node
    inferred = _InferredSizes(graph, set(arrays))
    with pass_lock, builder.function("main", list(variables.values())):
        with builder.dataflow():
            try:
                for node in graph.nodes:
                    if node.op == "null":
                        outputs.append([variables[node.name]])
                        continue
                    read = inferred.read(node, _read_outputs(graph, outputs, node.inputs))
                    names = [graph.nodes[source].name for source, _ in node.inputs]
                    call = Call(node, read, names, builder)
                    inferred.add(call, len(outputs))
                    outputs.append(_emitted(call))
                inferred.require_none_in(graph.heads)
                heads = _read_outputs(graph, outputs, graph.heads)
            except (ValueError, NotImplementedError) as error:
                # Raised later, as TVM complains about an unfinished function.
                failure, heads = error, [relax.const(0)]
            result = builder.emit_output(heads[0] if len(heads) == 1 else relax.Tuple(heads))
        builder.emit_func_output(result)
    if failure is not None:
        raise failure
    arrays = {name: tvm.runtime.tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}
    values = {
        node.name: made[0] for node, made in zip(graph.nodes, outputs, strict=True) if node.op != "null"
    }
    return as_model(builder.finalize(), specs, arrays, values)


# Operators that broadcast their inputs, and those that compute each row of the first input by itself.
_BROADCASTS = {
    *("elemwise_add", "_plus", "_Plus", "elemwise_sub", "_minus", "elemwise_mul", "_mul", "elemwise_div"),
    *("broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "where", "add_n"),
}
_BY_ROW = {
    *("FullyConnected", "Convolution", "Activation", "LeakyReLU", "Dropout", "_copy", "BlockGrad", "sigmoid"),
    *("tanh", "relu", "_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar"),
}


class _InferredSizes:
    """Arrays with sizes of 0, which MXNet infers from their readers: the first states of a cell, (0, units).

    They have 1 element there instead, as does what is computed of them row by row, and are broadcast to what
    they are added to. The operator RNN makes its states itself.
    """

    def __init__(self, graph: Graph, parameters: set[str]):
        self.nodes = graph.nodes
        self.parameters = {n for n, node in enumerate(graph.nodes) if node.name in parameters}
        self.axes: dict[int, set[int]] = {}  # those of size 1 instead of an inferred one, by number of a node

    def read(self, node: Node, values: list[relax.Expr]) -> list[relax.Expr | None]:
        """Return what a node reads; NotImplementedError where another result than MXNet's may follow."""
        sources = [source for source, _ in node.inputs]
        if not (inferred := [source for source in sources if source in self.axes]):
            return values
        if node.op == "RNN" and all(self.nodes[source].op == "_zeros" for source in inferred):
            return [None if source in inferred else x for source, x in zip(sources, values, strict=True)]
        cuts_rows = node.op == "SliceChannel" and node.attrs.get("axis", "1").strip("123456789") == ""
        is_by_row = node.op in _BY_ROW or cuts_rows
        if node.op in _BROADCASTS or (is_by_row and all(self.axes[source] == {0} for source in inferred)):
            return values
        raise NotImplementedError(
            f"MXNet's {node.op} {node.name!r} of {self.nodes[inferred[0]].name!r}, whose size MXNet infers: "
            "name the size, as in begin_state(batch_size=8, func=F.zeros)"
        )

    def add(self, call: Call, number: int) -> None:
        """Note whether a node's outputs have inferred sizes: if all has that it reads, beside parameters."""
        if call.op in ("_zeros", "_ones", "_full"):
            if axes := {axis for axis, n in enumerate(call.need("shape")) if n == 0}:
                self.axes[number] = axes
        elif call.op != "RNN":
            sources = {source for source, _ in call.node.inputs} - self.parameters
            if sources and sources <= self.axes.keys():
                self.axes[number] = set.intersection(*(self.axes[source] for source in sources))

    def require_none_in(self, heads: list[tuple[int, int]]) -> None:
        """Raise NotImplementedError if an output has an inferred size."""
        for source, _ in heads:
            if source in self.axes:
                raise NotImplementedError(f"an output, {self.nodes[source].name!r}, whose size MXNet infers")


def _read_outputs(graph: Graph, outputs: list[list], wanted: list[tuple[int, int]]) -> list[relax.Expr]:
    """Return outputs by node number and output number; ValueError for one that its node does not have."""
    for source, n in wanted:
        if n >= len(outputs[source]):
            node, count = graph.nodes[source], len(outputs[source])
            raise ValueError(
                f"the symbol reads output {n} of {node.op} {node.name!r}, which has {count} (from 0 on)"
            )
    return [outputs[source][n] for source, n in wanted]


def _emitted(call: Call) -> list[relax.Expr]:
    """Return the outputs of a node as variables; errors of its converter get the node's name."""
    node = call.node
    log_converter(_log, node.op, CONVERTERS[node.op])
    try:
        outputs = CONVERTERS[node.op](call)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        return [each if isinstance(each, relax.Var) else call.emit(each) for each in outputs]
    except NotImplementedError as error:
        raise NotImplementedError(f"MXNet's {node.op} {node.name!r}: no converter for {error}") from None
    except OutOfRange:
        raise
    except Exception as error:  # TVM's own are of many kinds
        inputs = zip(call.names, call.inputs, strict=True)
        read = ", ".join(f"{name}: {shape_of(each)}" for name, each in inputs if each is not None)
        raise ValueError(
            f"MXNet's {node.op} {node.name!r}: {one_line(error)}; it reads {read or 'nothing'}"
        ) from error
