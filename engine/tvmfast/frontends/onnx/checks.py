"""Checks that refuse ONNX models with endless recursion, invalid dtypes or invalid shapes.

onnx.checker, ONNX's inference and TVM's frontend let them pass; `importer.py` calls them between the
passes of graph.py.
"""

import functools
import math

import onnx
import psutil
from onnx.helper import tensor_dtype_to_np_dtype

_MOST_NODES = 100_000  # the largest language models have some ten thousand


def check_dtypes(graph: onnx.GraphProto) -> None:
    """Raise ValueError for a dtype that ONNX does not have, of an input, an output or a weight."""
    values = [(value.name, value.type.tensor_type.elem_type) for value in (*graph.input, *graph.output)]
    for name, dtype in (*values, *((tensor.name, tensor.data_type) for tensor in graph.initializer)):
        if dtype not in onnx.TensorProto.DataType.values():
            raise ValueError(
                f"{name!r} is of dtype {dtype}, which onnx {onnx.__version__} does not have; export the "
                "model again"
            )


def check_functions(proto: onnx.ModelProto) -> None:
    """Raise ValueError if the model's functions expand to more nodes than any network has, or without end."""
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}

    @functools.cache
    def expanded(key: tuple) -> int:
        return count_of(functions[key])

    def count_of(graph: onnx.GraphProto | onnx.FunctionProto) -> int:
        keys = [(node.domain, node.op_type, node.overload) for node in graph.node]
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        inner = sum(count_of(each) for attribute in attributes for each in (attribute.g, *attribute.graphs))
        return inner + sum(expanded(key) if key in functions else 1 for key in keys)

    try:
        count = count_of(proto.graph)
    except RecursionError:
        raise ValueError(
            "the model's functions call one another without end; export the model again"
        ) from None
    if count > _MOST_NODES:
        raise ValueError(
            f"the model's functions expand to {count:,} nodes; the most allowed is {_MOST_NODES:,}"
        )


def check_sizes(graph: onnx.GraphProto) -> None:
    """Raise ValueError for a node whose output exceeds this machine's memory, or has a negative dim.

    The shapes in `graph` are inferred. ONNX infers none in subgraphs of nodes, so those are not checked.
    """
    types = {each.name: each.type.tensor_type for each in (*graph.value_info, *graph.output)}
    memory = psutil.virtual_memory().total
    for node in graph.node:
        for name in filter(types.__contains__, node.output):
            shape = tuple(dim.dim_value for dim in types[name].shape.dim)
            dtype = tensor_dtype_to_np_dtype(types[name].elem_type or onnx.TensorProto.INT8)
            size = math.prod(shape) * dtype.itemsize
            if size > memory or min(shape, default=0) < 0:
                sizes = f", {size / 2**30:,.0f} GiB, and this machine has {memory / 2**30:.0f}"
                sizes = sizes if size > memory else ""
                raise ValueError(
                    f"{node.op_type} {node.name or ','.join(node.output)!r}: its output {name!r} would be of "
                    f"shape {shape}{sizes}; export the model again"
                )
