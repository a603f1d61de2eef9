"""Checks that refuse ONNX models: endless recursion, invalid dtypes or shapes, inputs that must be constants.

onnx.checker, ONNX's inference and TVM's frontend let them pass; `importer.py` calls them between the
passes of graph.py.
"""

import functools

import onnx
from onnx.helper import make_node

from .control_flow import label_of
from .graph import replace

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


# ---------------------------------------------------------------- constants
# Shapes, axes and counts have to be known before a run. `require_known` refuses a graph that computes one of
# them; `deciding_inputs` returns the graph's inputs that they depend on, which the backend for ONNX's suites
# makes constants.

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

# By operator: the numbers of these inputs.
_DECIDING = {
    **dict.fromkeys((f"Reduce{kind}" for kind in _REDUCTIONS), (1,)),
    **dict.fromkeys(
        ("AffineGrid", "CenterCropPad", "CumProd", "CumSum", "Expand", "OneHot", "Reshape", "Split"), (1,)
    ),
    **dict.fromkeys(("Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"), (1,)),
    **dict.fromkeys(("SequenceAt", "SequenceErase", "SplitToSequence"), (1,)),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **{
        "Loop": (0, 1),
        "Range": (0, 1, 2),
        "MaxUnpool": (2,),
        "SequenceInsert": (2,),
        "Compress": (1,),
        "Col2Im": (1, 2),
        "DFT": (1, 2),
        "STFT": (1, 3),
    },
    **{"MelWeightMatrix": (0, 1, 2, 3, 4)},
    **{"Slice": (1, 2, 3, 4), "Pad": (1, 2, 3), "Resize": (1, 2, 3), "Dropout": (2,)},
}

# Operators with data-dependent output shapes.
_DATA_DEPENDENT = ("NonMaxSuppression", "NonZero", "Unique")
_LOOPS = ("Loop", "Scan")  # those with a static trip count are unrolled before


def require_known(graph: onnx.GraphProto) -> None:
    """Raise NotImplementedError for the first node that needs a value that is no compile-time constant."""
    inputs = {value.name for value in graph.input}
    for node, name, sources in _needs(graph):
        label = label_of(node)
        if name is None and node.op_type in _LOOPS:
            raise NotImplementedError(
                f"{label}: its trip count depends on the data, and TVM compiles for a static one; "
                "cut the graph before it"
            )
        if name is None:
            cut = "cut the graph before it"
            if node.op_type == "NonMaxSuppression":
                cut += ", by onnx.utils.extract_model with the outputs "
                cut += (
                    f"{node.input[0]!r} and {node.input[1]!r}, the boxes and their scores, and compute the "
                )
                cut += "rest afterwards, as by torchvision.ops.batched_nms"
            raise NotImplementedError(
                f"{label}: the shape of its output depends on the data, and TVM compiles for static "
                f"shapes; {cut}"
            )
        if given := ", ".join(map(repr, sorted(sources & inputs))):
            raise NotImplementedError(
                f"{label}: its input {name!r} has to be known before the run, as TVM compiles for static "
                f"shapes, and it depends on what is passed as {given}; give that in `values`"
            )


def as_constants(graph: onnx.GraphProto) -> None:
    """Turn weights that must be constants into Constant nodes, as TVM makes weights parameters."""
    inputs = {value.name for value in graph.input}
    names = set().union(*(sources for _, _, sources in _needs(graph) if not sources & inputs))
    found = [tensor for tensor in graph.initializer if tensor.name in names]
    nodes = [make_node("Constant", [], [tensor.name], value=tensor) for tensor in found]
    remaining = [tensor for tensor in graph.initializer if tensor.name not in names]
    replace(graph.node, [*nodes, *graph.node])
    replace(graph.initializer, remaining)


def deciding_inputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the graph's inputs that some operator needs as constants."""
    weights = {tensor.name for tensor in graph.initializer}
    return set().union(*(sources for _, _, sources in _needs(graph))) - weights


def _needs(graph: onnx.GraphProto, known: dict[str, frozenset] | None = None):
    """Yield each node that needs a value, the value's name, and the graph's inputs and weights it depends on.

    `known` maps the values around a subgraph to what they depend on.
    """
    sources = [*graph.initializer, *(graph.input if known is None else [])]
    depends = {**(known or {}), **{each.name: frozenset([each.name]) for each in sources}}
    for node in graph.node:
        for number in _DECIDING.get(node.op_type, ()):
            if number < len(node.input) and node.input[number]:
                yield node, node.input[number], depends.get(node.input[number], frozenset())
        if node.op_type in (*_DATA_DEPENDENT, *_LOOPS):
            yield node, None, frozenset()
        names = node.input[: 1 if node.op_type == "CastLike" else None]
        sources = frozenset().union(*(depends.get(name, frozenset()) for name in names))
        for attribute in node.attribute:
            for subgraph in [attribute.g, *attribute.graphs]:
                yield from _needs(subgraph, depends)
        if node.op_type in ("Shape", "Size"):
            sources = frozenset()
        depends.update(dict.fromkeys(node.output, sources))
