"""Passes that prepare an ONNX graph for TVM's frontend, in the order in which `importer.py` runs them.

with_output_shapes -> expand_functions -> require_operators -> modernize -> fold_constants -> check_shapes ->
prepare_for_tvm. From `expand_functions` onwards each takes a checked ModelProto with static input shapes, or
its graph. All of them may change their argument in place; those that return a model may return another one.
"""

import contextlib
import functools
import logging
import math
from collections import Counter

import numpy as np
import onnx
import psutil
import tvm
from onnx import inliner, numpy_helper, shape_inference, version_converter
from onnx.helper import make_attribute, make_node, make_tensor_value_info, tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator

from ...core.errors import one_line
from .control_flow import inline_if, label_of, unroll
from .dynamic import operands
from .ops import KNOWN
from .ops.node import is_outer

_log = logging.getLogger(__name__)

# Results with more elements than this are left for the compiler to fold: importing must not enlarge a model.
FOLD_LIMIT = 1 << 16

# Operators that ONNX Runtime defines (domain com.microsoft) and TVM's frontend reads, in that domain only.
_MICROSOFT = {"AllClassNMS", "MatMulInteger16"}


def opset_of(proto: onnx.ModelProto, default: int) -> int:
    """Return the version of ONNX's own operators, or `default` if the model names none."""
    own = (each.version for each in proto.opset_import if each.domain in ("", "ai.onnx"))
    return max(own, default=default)


def with_output_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the shapes of outputs without one, which onnx.checker requires and ONNX Runtime does not."""
    if all(value.type.tensor_type.HasField("shape") for value in proto.graph.output):
        return proto
    proto = shape_inference.infer_shapes(proto)
    for value in proto.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":  # of rank 0 until something is inferred
            value.type.tensor_type.shape.SetInParent()
    return proto


# Operators that ONNX defines with others, and that TVM's frontend knows as Microsoft's only.
_WRONG = {"Attention"}


@functools.cache
def _functions() -> frozenset[str]:
    """Return the ONNX operators that are expanded: those above, and functions without a converter."""
    schemas = [each for each in onnx.defs.get_all_schemas() if not each.domain]
    functions = {each.name for each in schemas if each.has_function or each.has_context_dependent_function}
    return frozenset(_WRONG | (functions - KNOWN - {"Bernoulli", "LinearAttention", "SequenceMap"}))


def _is_function(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in _functions()


def expand_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace operators by the ones that ONNX defines them with, in ONNX's own domain only.

    The definition depends on types, which are inferred first; weights count as inputs, which have types.
    """
    version, counts = opset_of(proto, 1), None
    for node in _all_nodes(proto.graph):
        if node.op_type == "MeanVarianceNormalization":  # onnx infers no shape of it without its axes
            _with_defaults(node, version)
    while nodes := [node for node in _all_nodes(proto.graph) if _is_function(node)]:
        before, counts = counts, Counter(node.op_type for node in nodes)
        if counts == before:  # in some opsets ONNX has no definition of an operator
            break
        for node in nodes:
            _with_defaults(node, version)
        names = sorted({node.op_type for node in nodes})
        weights, count = list(proto.graph.initializer), len(proto.graph.input)
        proto.graph.input.extend(make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights)
        replace(proto.graph.initializer, [tensor for tensor in weights if _is_small(tensor.dims)])
        _forget_shapes(proto.graph)
        proto.graph.value_info.add()  # named "": the inliner looks up omitted optional inputs
        proto = _with_shapes(proto)
        try:
            proto = inliner.inline_selected_functions(
                proto, [("", name) for name in names], inline_schema_functions=True
            )
            shape_inference.infer_shapes(proto, strict_mode=True)
        except (RuntimeError, shape_inference.InferenceError) as error:
            raise NotImplementedError(
                f"onnx {onnx.__version__} cannot expand this model's {', '.join(names)} into simpler "
                f"operators: {one_line(error)}"
            ) from error
        replace(proto.graph.initializer, weights)
        del proto.graph.input[count:]
    return proto


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Clear the shapes that the exporter noted, perhaps those of its example, for inference to fill in."""
    del graph.value_info[:]
    passed = {value.name: value for value in graph.input}
    for value in graph.output:
        if value.name in passed:
            value.CopyFrom(passed[value.name])
        else:
            value.type.tensor_type.ClearField("shape")


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    if any(node.op_type in (*_HELD, *_SIZED) for node in proto.graph.node):
        check_sizes(shape_inference.infer_shapes(proto).graph)  # onnx's data propagation would list elements
    with contextlib.suppress(shape_inference.InferenceError):
        return shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    try:  # onnx 1.23's data propagation broadcasts a row with a column as if both were rows
        return shape_inference.infer_shapes(proto, strict_mode=True)
    except shape_inference.InferenceError as error:
        raise ValueError(f"the model does not work with inputs of these shapes: {one_line(error)}") from error


def _with_defaults(node: onnx.NodeProto, version: int) -> None:
    """Write the defaults of omitted attributes into a node; onnx's inliner treats them as missing."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, version, "").attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def require_operators(proto: onnx.ModelProto) -> None:
    """Raise NotImplementedError with every operator that has no converter; TVM itself compares names only."""
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    known = KNOWN | {"If", "Loop", "Scan"}
    missing = set()
    for node in _all_nodes(proto.graph):
        domain = node.domain or "ai.onnx"
        supported = {"ai.onnx": known - _MICROSOFT, "com.microsoft": _MICROSOFT}.get(domain, set())
        if node.op_type not in supported:
            missing.add(f"{node.op_type} ({domain}, opset {opsets[domain]})")
    if missing:
        raise NotImplementedError(
            f"TVM {tvm.__version__} has no counterpart of {len(missing)} operator(s) of this model: "
            f"{', '.join(sorted(missing))}; export the model without them, or cut the graph before them"
        )


def _all_nodes(graph: onnx.GraphProto):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _all_nodes(inner)


def modernize(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert an opset below 11, whose Slice, Upsample, Resize and broadcasts TVM's frontend misreads."""
    opset = opset_of(proto, 11)
    if opset >= 11:
        return proto
    if opset == 8 and any(node.op_type == "Scan" for node in _all_nodes(proto.graph)):
        raise NotImplementedError(
            "Scan of opset 8 has an axis of batches, which later ones lack: export the model with opset 9 or "
            "newer"
        )
    try:
        proto = version_converter.convert_version(proto, 11)
    except RuntimeError as error:
        raise NotImplementedError(
            f"the model is of opset {opset}, TVM reads 11 and later, and onnx.version_converter fails on it "
            f"({one_line(error)}); export it again with a newer opset"
        ) from error
    for node in _all_nodes(proto.graph):
        if node.op_type == "Resize":
            # The behaviour of Upsample, and of Resize up to opset 10; the converter does not write it out.
            # The latter takes the nearest pixel, in ONNX Runtime, in a way that later opsets do not name.
            old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor_or_ceil"}
            node.attribute.extend(make_attribute(name, value) for name, value in old.items())
    return proto


def fold_constants(proto: onnx.ModelProto, compared: dict, has_dynamic_dims: bool = False) -> onnx.ModelProto:
    """Infer all shapes and fold what depends on shapes and constants alone, to a fixed point.

    Inference copies the model each time, so inputs of their shape replace large weights meanwhile. `compared`
    gets the operands of the comparisons that are folded. With dynamic dims, runs fill tensors of one float.
    """
    weights, count = list(proto.graph.initializer), len(proto.graph.input)
    outputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in proto.graph.output]
    light = [tensor for tensor in weights if _is_small(tensor.dims)]
    heavy = [make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights if not _is_small(t.dims)]
    replace(proto.graph.initializer, light)
    proto.graph.input.extend(heavy)
    _forget_shapes(proto.graph)

    folded = True
    while folded:
        proto = _with_shapes(proto)
        check_widths(proto.graph)
        folded = _fold_once(proto, compared, has_dynamic_dims)

    replace(proto.graph.initializer, weights)
    del proto.graph.input[count:]
    for value, before in zip(proto.graph.output, outputs, strict=True):
        if not value.type.tensor_type.HasField("shape"):  # it depends on the data
            value.CopyFrom(before)
    return proto


def _fold_once(proto: onnx.ModelProto, compared: dict[str, tuple], has_dynamic_dims: bool) -> bool:
    """Replace nodes with constant inputs by Constant nodes, in place; return whether there were any.

    An If with a constant condition is inlined, a Loop or Scan with a static trip count unrolled. An empty
    tensor is constant. Floating-point initializers are weights and count as unknown, so that they stay
    parameters under their names.
    """
    graph = proto.graph
    shapes = _static_shapes([*graph.input, *graph.value_info, *graph.output])
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if _is_small(tensor.dims) and tensor_dtype_to_np_dtype(tensor.data_type).kind in "iub"
    }
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.value_info]}
    for name, dtype in types.items():
        if 0 in shapes.get(name, ()):
            values[name] = np.zeros(shapes[name], tensor_dtype_to_np_dtype(dtype))
    nodes, folded = [], False
    for node in graph.node:
        if node.op_type == "CastLike" and types.get(node.input[1]):  # only the dtype of input 1 matters
            node = make_node("Cast", node.input[:1], node.output, node.name, to=types[node.input[1]])
        inner = None
        if node.op_type in ("If", "Loop", "Scan"):  # the list may be of many thousands
            inner = _inlined(node, values, shapes, opsets, [*graph.node, *nodes])
        if inner is not None:
            nodes += inner
            folded = True
            continue
        is_preserved = has_dynamic_dims and (_fills(node, types, shapes) or _combines(node, shapes))
        results = None if is_preserved else _evaluate(node, values, shapes, opsets)
        if results is None:
            nodes.append(node)
            continue
        compared |= operands(node, [values.get(name) for name in node.input])
        values.update(results)
        folded |= node.op_type != "Constant"
        for name, value in results.items():
            nodes.append(make_node("Constant", [], [name], value=numpy_helper.from_array(value, name)))
    replace(graph.node, nodes)
    return folded


def _fills(node: onnx.NodeProto, types: dict, shapes: dict) -> bool:
    """Return whether a node fills a tensor of rank 2 or more with one float, as for an LSTM's first state."""
    name, x = node.output[0], node.input[0] if node.input else ""
    if node.op_type not in ("ConstantOfShape", "Expand") or len(shapes.get(name, ())) < 2:
        return False
    is_one = node.op_type == "ConstantOfShape" or math.prod(shapes.get(x, (0,))) == 1
    return is_one and tensor_dtype_to_np_dtype(types.get(name, onnx.TensorProto.BOOL)).kind == "f"


# Of two axes' indices they make masks, which no dim describes.
_MASKS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Add", "Sub", "Where")


def _combines(node: onnx.NodeProto, shapes: dict) -> bool:
    """Return whether a node combines indices of several axes."""
    known = [shapes[name] for name in node.input if name in shapes]
    return node.op_type in _MASKS and len(known) == len(node.input) and is_outer(known)


def _inlined(node: onnx.NodeProto, values: dict, shapes: dict, opsets: dict, nodes: list) -> list | None:
    """Return what replaces an If, Loop or Scan that is inlined or unrolled; `nodes` are those around it."""
    if node.op_type == "If" and node.input[0] not in values:
        return None
    _log.debug("inlining or unrolling %s %r", node.op_type, node.name or node.output[0])
    used = {name for each in nodes for name in each.output} | {*values, *shapes}
    if node.op_type == "If":
        return inline_if(node, bool(values[node.input[0]].reshape(-1)[0]), used)
    return unroll(node, values, shapes, opsets, used)


# Weights stay in 8 bits, and the compiler finds them next to their scales.
_PRESERVED = ("DequantizeLinear", "QuantizeLinear")


def _evaluate(node: onnx.NodeProto, values: dict, shapes: dict, opsets: dict) -> dict[str, np.ndarray] | None:
    """Return a node's outputs by name if they follow from constants and shapes and are small, else None."""
    outputs = [name for name in node.output if name]
    is_small = all(name in shapes and _is_small(shapes[name]) for name in outputs)
    if node.domain not in ("", "ai.onnx") or not is_small or node.op_type in _PRESERVED:
        return None
    if node.op_type == "Shape" and node.input[0] in shapes:
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        return {outputs[0]: np.array(shapes[node.input[0]][ends.get("start", 0) : ends.get("end")], "int64")}
    if not all(name in values for name in node.input if name):
        return None
    if any(attribute.type in (attribute.GRAPH, attribute.GRAPHS) for attribute in node.attribute):
        return None
    inputs = {name: values[name] for name in node.input if name}
    try:
        results = ReferenceEvaluator(node, opsets=opsets).run(None, inputs)
    except Exception:  # it lacks quantized types and some old operator versions that TVM may have
        return None
    results = {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}
    return results if all(value.dtype.kind in "biuf" for value in results.values()) else None


def _is_small(shape) -> bool:
    return math.prod(shape) <= FOLD_LIMIT


def replace(field, messages: list) -> None:
    """Set the messages of a repeated protobuf field, which does not support assignment."""
    del field[:]
    field.extend(messages)


# TVM 0.27 does not pack them, or has another NaN.
_NARROW = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")


def check_widths(graph: onnx.GraphProto) -> None:
    """Raise NotImplementedError for a node with an input or output of a few bits, by the types in `graph`."""
    values = [*graph.input, *graph.value_info, *graph.output]
    dtypes = {value.name: value.type.tensor_type.elem_type for value in values}
    dtypes |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        for name in (*node.input, *node.output):
            dtype = onnx.TensorProto.DataType.Name(dtypes.get(name, 0))
            if dtype.startswith(_NARROW):
                raise NotImplementedError(
                    f"{label_of(node)}: {name!r} is of {dtype}, and TVM "
                    f"{tvm.__version__} has no such numbers as ONNX means them; export the model with 8 bits "
                    "or more"
                )


# Operators whose output, of a size that a value sets, TVM's frontend holds as a constant.
_HELD = ("Range", "BlackmanWindow", "HammingWindow", "HannWindow")
_MOST_HELD = 1 << 30  # bytes of one
# Others with a size that a value sets.
_SIZED = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Resize", "Tile", "Upsample")


def check_sizes(graph: onnx.GraphProto) -> None:
    """Raise ValueError for a node whose output exceeds this machine's memory, or has a negative dim.

    A constant may have 1 GiB. The shapes in `graph` are inferred. ONNX infers none in subgraphs of nodes, so
    those are not checked.
    """
    types = {each.name: each.type.tensor_type for each in (*graph.value_info, *graph.output)}
    memory = psutil.virtual_memory().total
    for node in graph.node:
        for name in filter(types.__contains__, node.output):
            shape = tuple(dim.dim_value for dim in types[name].shape.dim)
            dtype = tensor_dtype_to_np_dtype(types[name].elem_type or onnx.TensorProto.INT8)
            size = math.prod(shape) * dtype.itemsize
            is_held = node.op_type in _HELD and size > _MOST_HELD
            if size > memory or is_held or min(shape, default=0) < 0:
                limit = f"and this machine has {memory / 2**30:.0f}"
                limit = "and a constant may have 1" if is_held and size <= memory else limit
                sizes = f", {size / 2**30:,.0f} GiB, {limit}" if size > memory or is_held else ""
                raise ValueError(
                    f"{label_of(node)}: its output {name!r} would be of "
                    f"shape {shape}{sizes}; export the model again"
                )


def check_shapes(graph: onnx.GraphProto) -> None:
    """Raise ValueError for attributes and weights that contradict each other.

    TVM and ONNX's inference let them pass. The shapes in `graph` are inferred.
    """
    shapes = _static_shapes([*graph.input, *graph.value_info])
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in _all_nodes(graph):
        attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
        window, pads = attributes.get("kernel_shape", []), attributes.get("pads", [])
        shape, weight, bias = (shapes.get(name) for name in (*node.input, "", "", "")[:3])
        fault = None
        if node.op_type in ("Conv", "ConvTranspose") and window and weight and list(weight[2:]) != window:
            fault = f"its kernel_shape is {window}, and its weight is of shape {weight}"
        elif node.op_type in ("MaxPool", "AveragePool", "LpPool") and any(
            pad >= size for pad, size in zip(pads, window * 2, strict=False)
        ):
            fault = f"its pads {pads} are not smaller than its kernel_shape {window}"
        elif node.op_type == "PRelu" and shape and weight and not _broadcasts(weight, shape):
            fault = f"its slope is of shape {weight}, which does not broadcast to its input's {shape}"
        elif node.op_type == "Gemm" and shape and weight and bias:
            flags = {attribute.name: attribute.i for attribute in node.attribute}
            product = shape[flags.get("transA", 0)], weight[1 - flags.get("transB", 0)]
            if not _broadcasts(bias, product):
                fault = f"its C is of shape {bias}, which does not broadcast to its product's {product}"
        if fault:
            raise ValueError(f"{node.op_type} {node.name!r}: {fault}; export the model again")


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, m) for n, m in pairs)


def _static_shapes(values) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in values:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def prepare_for_tvm(graph: onnx.GraphProto) -> None:
    """Work around two defects of TVM's frontend, in place.

    It uses an empty `scales` of Resize, which ONNX allows next to `sizes`: its name is cleared. And it strips
    "onnx::" from the names of weights, so that "onnx::w" and "w" become one: such a name gets the prefix
    twice.
    """
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
    empty = {tensor.name for tensor in [*graph.initializer, *constants] if 0 in tensor.dims}
    renamed = {t.name: f"onnx::{t.name}" for t in graph.initializer if t.name.startswith("onnx::")}
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in _all_nodes(graph):
        for i, name in enumerate(node.input):
            node.input[i] = "" if node.op_type == "Resize" and name in empty else renamed.get(name, name)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)
