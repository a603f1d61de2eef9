"""Operators of com.microsoft, which ONNX Runtime's optimizer fuses, written as ONNX's own.

`expand` writes each in terms of operators that the rest of the importer and ONNX's inference know. The
definitions are those of ONNX Runtime's docs/ContribOperators.md, and where they leave something open, what
its CPU kernels compute.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import shape_inference
from onnx.helper import make_node, tensor_dtype_to_np_dtype

from .graph import opset_of
from .rewriting import Part, Rewritten, key_of, nodes_of

_FLOAT32, _INT32, _INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64
_LARGE = (1 << 31) - 1
# Those that ONNX Runtime has in ONNX's domain: one for all opsets, one before ONNX had it.
_CLAIMED = {"SimplifiedLayerNormalization": math.inf, "LayerNormalization": 17}


def claim(proto: onnx.ModelProto) -> None:
    """Move operators that ONNX Runtime has, and ONNX not in this opset, to com.microsoft, in place."""
    opset = opset_of(proto, 1)
    found = [node for node in nodes_of(proto.graph) if opset < _CLAIMED.get(node.op_type, 0)]
    for node in found:
        node.domain = _MICROSOFT
    if found and all(each.domain != _MICROSOFT for each in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(_MICROSOFT, 1))


def expand(proto: onnx.ModelProto) -> None:
    """Replace the operators of com.microsoft, in place."""
    if any(key_of(node) in _RULES for node in nodes_of(proto.graph)):
        _Model(proto).rewrite(proto.graph, _RULES, _Part)


class _Model(Rewritten):
    """The model whose operators are replaced.

    Attributes:
        types: What is known of its values, by name: TypeProto with a dtype and perhaps a shape.
    """

    def __init__(self, proto: onnx.ModelProto):
        super().__init__(proto)
        self.types = {each.name: each.type for each in (*proto.graph.value_info, *proto.graph.input)}
        for name, tensor in self.tensors.items():
            self.types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def rewrite(self, graph: onnx.GraphProto, rules: dict, part_of: Callable) -> None:
        """Replace the nodes of a graph, whose inputs are known first."""
        self.types |= {each.name: each.type for each in graph.input}
        super().rewrite(graph, rules, part_of)

    def kept(self, node: onnx.NodeProto) -> None:
        """Note the types of a node's outputs, as far as ONNX infers them from those of its inputs."""
        if all(name in self.types and self.types[name].tensor_type.HasField("shape") for name in node.output):
            return
        known = {name: self.types[name] for name in node.input if name in self.types}
        if any(name and name not in known for name in node.input):
            return
        shape = node.op_type == "Reshape" and known.get(node.input[1])
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
            data = {name: self.tensors[name] for name in known if name in self.tensors}
            opsets = [onnx.helper.make_opsetid("", self.opset)]
            found = shape_inference.infer_node_outputs(schema, node, known, data, opset_imports=opsets)
        except (onnx.defs.SchemaError, shape_inference.InferenceError, onnx.checker.ValidationError):
            return
        self.types |= found
        for name in node.output:
            of = found.get(name, onnx.TypeProto()).tensor_type
            if shape and not of.HasField("shape") and shape.tensor_type.shape.dim:
                rank = shape.tensor_type.shape.dim[0].dim_value
                self.types[name] = onnx.helper.make_tensor_type_proto(of.elem_type, [None] * rank)


class _Part(Part):
    """The nodes that replace an operator; methods add nodes and return the names of their outputs."""

    model: _Model

    def type_of(self, name: str) -> onnx.TypeProto.Tensor:
        """Return the dtype, and perhaps the shape, of a value."""
        found = self.model.types.get(name)
        if found is None:
            self.refuse(f"ONNX infers no dtype of its input {name!r}; export the model again")
        return found.tensor_type

    def rank(self, name: str) -> int:
        """Return a value's number of axes."""
        found = self.type_of(name)
        if not found.HasField("shape"):
            self.refuse(f"ONNX infers no rank of its input {name!r}; export the model again")
        return len(found.shape.dim)

    def sizes(self, name: str) -> list[int]:
        """Return a value's shape, which has to be known."""
        dims = self.type_of(name).shape.dim
        if not dims or not all(dim.HasField("dim_value") for dim in dims):
            self.refuse(f"ONNX infers no shape of its input {name!r}; export the model again")
        return [dim.dim_value for dim in dims]

    def number(self, value: float, like: str) -> str:
        """Add a constant of another value's dtype."""
        dtype = tensor_dtype_to_np_dtype(self.type_of(like).elem_type)
        return self.constant(value, dtype.name)

    def of_axes(self, op: str, x: str, axes: list[int], since: int, **attributes) -> str:
        """Add an operator whose axes are an input since an opset, and an attribute before."""
        if self.model.opset >= since:
            return self.add(op, x, self.constant(axes, "int64"), **attributes)
        return self.add(op, x, axes=axes, **attributes)

    def expanded(self, x: str, *axes: int) -> str:
        """Add axes of size 1."""
        return self.of_axes("Unsqueeze", x, list(axes), 13)

    def reshaped(self, x: str, *shape: int, output: str = "") -> str:
        """Reshape; a 0 keeps the dim."""
        return self.add("Reshape", x, self.constant(shape, "int64"), output=output)

    def size(self, x: str, axis: int) -> str:
        """Add the size of an axis, int64."""
        return self.add("Gather", self.add("Shape", x), self.constant(axis, "int64"))

    def counter(self, count: str) -> str:
        """Add 0, 1, … up to a number, int64."""
        return self.add("Range", self.constant(0, "int64"), count, self.constant(1, "int64"))

    def named(self, x: str, number: int) -> None:
        """Let the output with this number, if it is asked for, be a value."""
        if self.output(number):
            self.add("Identity", x, output=self.output(number))

    def require_no(self, **given) -> None:
        """Refuse what the rule does not know, by its name."""
        if names := [name for name, value in given.items() if value]:
            self.refuse(f"{' and '.join(names)} is not supported; give the model before it was optimized")


# ---------------------------------------------------------------- functions of each element


def _gelu(part: _Part, x: str, output: str) -> str:
    half, one, root = (part.number(value, part.input(0)) for value in (0.5, 1, math.sqrt(0.5)))
    share = part.add("Add", part.add("Erf", part.add("Mul", x, root)), one)
    return part.add("Mul", part.add("Mul", x, half), share, output=output)


def _of_bias(part: _Part) -> str:
    return part.add("Add", part.input(0), part.input(1)) if part.input(1) else part.input(0)


def _fast_gelu(part: _Part) -> None:
    x = _of_bias(part)
    half, one, first, third = (
        part.number(n, part.input(0)) for n in (0.5, 1, 0.7978845608028654, 0.035677408136)
    )
    inner = part.add("Mul", x, part.add("Add", part.add("Mul", part.add("Mul", x, x), third), first))
    share = part.add("Add", part.add("Tanh", inner), one)
    part.add("Mul", part.add("Mul", x, half), share, output=part.output(0))


def _quick_gelu(part: _Part) -> None:
    x, alpha = part.input(0), part.attributes.get("alpha", 1.702)
    inner = x if alpha == 1 else part.add("Mul", x, part.number(alpha, x))
    part.add("Mul", x, part.add("Sigmoid", inner), output=part.output(0))


def _bias_split_gelu(part: _Part) -> None:
    """Multiply one half of the last axis by Gelu of the other."""
    x, names = _of_bias(part), [part.unused("half") for _ in range(2)]
    part.nodes.append(
        make_node("Split", [x], names, axis=-1, **({"num_outputs": 2} if part.model.opset > 17 else {}))
    )
    part.add("Mul", names[0], _gelu(part, names[1], ""), output=part.output(0))


def _activated(part: _Part, x: str, name: str, given: list[float]) -> None:
    """Apply an activation with its numbers, or none, to the result."""
    attributes = {
        "LeakyRelu": ["alpha"],
        "HardSigmoid": ["alpha", "beta"],
        "Elu": ["alpha"],
        "Clip": ["min", "max"],
    }
    if name not in ("", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", *attributes):
        part.refuse(f"the activation {name!r} is not supported; give the model before it was optimized")
    numbers = dict(zip(attributes.get(name, ()), given, strict=False))
    if name == "Clip" and part.model.opset >= 11:
        bounds = (
            part.number(numbers[each], part.input(0)) if each in numbers else "" for each in ("min", "max")
        )
        part.add("Clip", x, *bounds, output=part.output(0))
    else:
        part.add(name or "Identity", x, output=part.output(0), **numbers)


# ---------------------------------------------------------------- products and convolutions


def _mat_mul(part: _Part) -> None:
    """Multiply matrices; of those with transBatch the rows are the first axis, and batches lie behind."""
    operands = []
    for number, side in enumerate("AB"):
        x = part.input(number)
        trans, batch = (part.attributes.get(f"trans{kind}{side}", 0) for kind in ("", "Batch"))
        rank = part.rank(x) if trans or batch else 0
        order = list(range(rank))
        if batch and rank > 2:
            order = [*order[1:-1], 0, order[-1]]
        if trans and rank > 1:
            order[-2:] = order[:-3:-1]
        operands.append(x if order == sorted(order) else part.add("Transpose", x, perm=order))
    alpha = part.attributes.get("alpha", 1.0)
    if alpha == 1:
        part.add("MatMul", *operands, output=part.output(0))
    else:
        product = part.add("MatMul", *operands)
        part.add("Mul", product, part.number(alpha, part.input(0)), output=part.output(0))


def _gemm(part: _Part) -> None:
    own = {name: value for name, value in part.attributes.items() if not name.startswith("activation")}
    y = part.add("Gemm", *part.node.input, **own)
    numbers = [
        part.attributes[f"activation_{n}"] for n in ("alpha", "beta") if f"activation_{n}" in part.attributes
    ]
    _activated(part, y, part.attributes.get("activation", b"").decode(), numbers)


def _conv(part: _Part) -> None:
    own = {name: value for name, value in part.attributes.items() if not name.startswith("activation")}
    y = part.add("Conv", *part.node.input[:3], **own)
    y = part.add("Add", y, part.input(3)) if part.input(3) else y
    name, numbers = (
        part.attributes.get("activation", b"").decode(),
        part.attributes.get("activation_params", []),
    )
    _activated(part, y, name, list(numbers))


def _nhwc_conv(part: _Part) -> None:
    """Convolve pictures whose channels are last, and so are those of the weights."""
    x, weight = (part.add("Transpose", part.input(n), perm=[0, 3, 1, 2]) for n in (0, 1))
    y = part.add("Conv", x, weight, *part.node.input[2:], **part.attributes)
    part.add("Transpose", y, perm=[0, 2, 3, 1], output=part.output(0))


# ---------------------------------------------------------------- normalization


def _normalized(part: _Part, x: str, gamma: str, beta: str, epsilon: float, about_mean: bool = True) -> None:
    """Normalize the last axis, in float32 at least; other outputs are the mean and 1 / deviation."""
    dtype, like = part.type_of(part.input(0)).elem_type, part.input(0)
    mean_output, inverse_output = (part.output(n) for n in ((1, 2) if about_mean else (3, 1)))
    if about_mean and part.model.opset >= 17:
        outputs = [part.output(0), mean_output, inverse_output]
        while not outputs[-1]:
            outputs.pop()
        inputs = [x, gamma, beta] if beta else [x, gamma]
        part.nodes.append(make_node("LayerNormalization", inputs, outputs, axis=-1, epsilon=epsilon))
        return
    is_half = dtype in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wide = part.add("Cast", x, to=_FLOAT32) if is_half else x
    if about_mean:
        mean = part.of_axes("ReduceMean", wide, [-1], 18)
        wide = part.add("Sub", wide, mean)
        if mean_output:
            part.add("Identity", mean, output=mean_output)
    variance = part.of_axes("ReduceMean", part.add("Mul", wide, wide), [-1], 18)
    least = part.constant(epsilon, "float32") if is_half else part.number(epsilon, like)
    deviation = part.add("Sqrt", part.add("Add", variance, least))
    if inverse_output:
        part.add("Reciprocal", deviation, output=inverse_output)
    y = part.add("Div", wide, deviation)
    y = part.add("Cast", y, to=dtype) if is_half else y
    if beta:
        part.add("Add", part.add("Mul", y, gamma), beta, output=part.output(0))
    else:
        part.add("Mul", y, gamma, output=part.output(0))


def _layer_normalization(part: _Part) -> None:
    _require_last_axis(part)
    _normalized(part, part.input(0), part.input(1), part.input(2), part.attributes.get("epsilon", 1e-5))


def _rms_normalization(part: _Part) -> None:
    _require_last_axis(part)
    _normalized(
        part, part.input(0), part.input(1), "", part.attributes.get("epsilon", 1e-5), about_mean=False
    )


def _require_last_axis(part: _Part) -> None:
    axis = part.attributes.get("axis", -1)
    if axis not in (-1, part.rank(part.input(0)) - 1):
        part.refuse(
            f"axis {axis} is not supported, only the last one; export the model with opset 17 or newer"
        )


def _skip_layer_normalization(part: _Part) -> None:
    """Normalize the sum of the input, a skip connection and a bias, which is the fourth output."""
    is_simplified = part.node.op_type.startswith("SkipSimplified")
    beta, bias = ("", part.input(3)) if is_simplified else (part.input(3), part.input(4))
    if is_simplified:
        part.require_no(mean=part.output(1), inv_std_var=part.output(2))
    total = part.add("Add", part.input(0), part.input(1))
    total = part.add("Add", total, bias) if bias else total
    part.named(total, 3)
    epsilon = part.attributes.get("epsilon", 1e-12)
    _normalized(part, total, part.input(2), beta, epsilon, about_mean=not is_simplified)


def _embeddings(part: _Part) -> None:
    """Normalize the sum of embeddings of words, positions and segments; count the words of the mask."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (part.input(n) for n in range(9))

    def taken(table: str, at: str) -> str:
        least, large = (part.number(value, at) for value in (0, _LARGE))  # below 0 is out of range, too
        return part.add("Gather", table, part.add("Where", part.add("Less", at, least), large, at))

    at = positions or part.expanded(part.counter(part.size(ids, 1)), 0)
    total = part.add(
        "Add", taken(words, ids), taken(places, at) if positions else part.add("Gather", places, at)
    )
    total = part.add("Add", total, taken(kinds, segments)) if segments else total
    part.named(total, 2)
    if part.output(1):
        counted = mask or part.add("Mul", ids, part.number(0, ids))
        count = part.of_axes("ReduceSum", counted, [1], 13, keepdims=0)
        part.add("Cast", count, to=_INT32, output=part.output(1))
    epsilon = part.attributes.get("epsilon", 1e-12)
    part.node.output[1:] = []
    _normalized(part, total, gamma, beta, epsilon)


def _group_norm(part: _Part) -> None:
    """Normalize groups of channels, which are last by default; perhaps the sum with a skip connection."""
    x, gamma, beta = part.input(0), part.input(1), part.input(2)
    dtype, rank, last = part.type_of(x).elem_type, part.rank(x), part.attributes.get("channels_last", 1)
    if skip := part.input(3):
        part.require_no(**{"SkipGroupNorm of channels that are not last": not last})
        skip = part.expanded(skip, *range(1, rank - 1)) if part.rank(skip) == 2 else skip
        x = part.add("Add", x, skip)
        x = part.add("Add", x, part.input(4)) if part.input(4) else x
        part.named(x, 1)
    forth, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    x = part.add("Cast", x, to=_FLOAT32)
    x = part.add("Transpose", x, perm=forth) if last else x
    groups = part.attributes["groups"]
    ones, zeros = (part.constant([n] * groups, "float32") for n in (1, 0))
    rows, epsilon = part.reshaped(x, 0, groups, -1), part.attributes.get("epsilon", 1e-5)
    y = part.add("InstanceNormalization", rows, ones, zeros, epsilon=epsilon)
    y = part.add("Reshape", y, part.add("Shape", x))
    gamma, beta = (
        part.expanded(part.add("Cast", each, to=_FLOAT32), *range(1, rank - 1)) for each in (gamma, beta)
    )
    y = part.add("Add", part.add("Mul", y, gamma), beta)
    y = part.add("Mul", y, part.add("Sigmoid", y)) if part.attributes.get("activation", 0) else y
    y = part.add("Transpose", y, perm=back) if last else y
    part.add("Cast", y, to=dtype, output=part.output(0))


# ---------------------------------------------------------------- attention


def _attended(
    part: _Part,
    queries: str,
    keys: str,
    values: str,
    added: list[str],
    output: str,
    scaled: float = 0.0,
    cap: float = 0.0,
) -> None:
    """Add attention of (batch, heads, length, width), with terms that are added to the scores.

    Before that these are bounded by `cap`, 0 for none, as by cap * tanh(score / cap).
    """
    scores = part.add("MatMul", queries, part.add("Transpose", keys, perm=[0, 1, 3, 2]))
    if scaled:
        scale = part.number(scaled, part.input(0))
    else:
        width = part.add("Cast", part.size(queries, 3), to=part.type_of(part.input(0)).elem_type)
        scale = part.add("Reciprocal", part.add("Sqrt", width))
    scores = part.add("Mul", scores, scale)
    if cap:
        bound = part.number(cap, part.input(0))
        scores = part.add("Mul", part.add("Tanh", part.add("Div", scores, bound)), bound)
    for term in added:
        scores = part.add("Add", scores, term)
    weights = part.add("Softmax", scores, axis=-1)
    result = part.add("Transpose", part.add("MatMul", weights, values), perm=[0, 2, 1, 3])
    part.reshaped(result, 0, 0, -1, output=output)


def _heads(part: _Part, x: str, count: int) -> str:
    """Split the last axis into heads: (batch, length, all) to (batch, heads, length, width)."""
    return part.add("Transpose", part.reshaped(x, 0, 0, count, -1), perm=[0, 2, 1, 3])


def _masked(part: _Part, mask: str, keys: str) -> list[str]:
    """Return what is added to the scores for a mask: of each key, of each query and key, or lengths."""
    if not mask:
        return []
    rank = part.rank(mask)
    if rank == 1:
        batch = part.type_of(mask).shape.dim[0].dim_value
        sizes = part.type_of(part.input(0)).shape.dim
        if not sizes or batch != sizes[0].dim_value:
            part.refuse("a mask of more than one length for each sequence is not supported")
        length = part.add("Cast", part.expanded(mask, 1), to=onnx.TensorProto.INT64)
        kept = part.add("Less", part.counter(part.size(keys, 2)), length)
    elif rank in (2, 3):
        kept = part.add("Greater", mask, part.number(0, mask))
    else:
        part.refuse(f"a mask of rank {rank} is not supported; give the model before it was optimized")
    value = part.attributes.get("mask_filter_value", -1e4)
    ends = part.number(0, part.input(0)), part.number(value, part.input(0))
    added = part.add("Where", kept, *ends)
    return [part.expanded(added, *((1,) if rank == 3 else (1, 2)))]


def _causal(part: _Part, queries: str, keys: str, past: str) -> list[str]:
    """Return what is added to the scores so that each query sees the keys up to its own position."""
    if not part.attributes.get("unidirectional", 0):
        return []
    rows, columns = (part.counter(part.size(x, 2)) for x in (queries, keys))
    rows = part.add("Add", rows, part.size(past, 2)) if past else rows
    later = part.add("Greater", columns, part.expanded(rows, 1))
    least = float(np.finfo("float32").min)
    return [part.add("Where", later, part.number(least, part.input(0)), part.number(0, part.input(0)))]


def _attention(part: _Part) -> None:
    """Project one input to queries, keys and values, and attend."""
    mask, past, added = (part.input(n) for n in (3, 4, 5))
    given = {name: part.attributes.get(name, 0) for name in ("do_rotary", "past_present_share_buffer")}
    part.require_no(**given, past_sequence_length=part.input(6))
    heads, sizes = part.attributes["num_heads"], list(part.attributes.get("qkv_hidden_sizes", []))
    product = part.add("MatMul", part.input(0), part.input(1))
    product = part.add("Add", product, part.input(2)) if part.input(2) else product
    names = [part.unused(what) for what in ("queries", "keys", "values")]
    if sizes and part.model.opset >= 13:
        part.nodes.append(make_node("Split", [product, part.constant(sizes, "int64")], names, axis=2))
    else:
        how = {"split": sizes} if sizes else {"num_outputs": 3} if part.model.opset >= 18 else {}
        part.nodes.append(make_node("Split", [product], names, axis=2, **how))
    queries, keys, values = (_heads(part, name, heads) for name in names)
    before = ""
    if past:
        before, *_ = pasts = [part.add("Gather", past, part.constant(n, "int64"), axis=0) for n in (0, 1)]
        pairs = zip(pasts, (keys, values), strict=True)
        keys, values = (part.add("Concat", *pair, axis=2) for pair in pairs)
    if part.output(1):
        both = (part.expanded(each, 0) for each in (keys, values))
        part.add("Concat", *both, axis=0, output=part.output(1))
    terms = [*_causal(part, queries, keys, before), *_masked(part, mask, keys), *filter(None, [added])]
    _attended(part, queries, keys, values, terms, part.output(0), part.attributes.get("scale", 0.0))


def _multi_head_attention(part: _Part) -> None:
    """Attend with queries, keys and values, apart or packed, of which a past may come before."""
    query, key, value, bias, mask, added, *pasts = (part.input(n) for n in range(8))
    part.require_no(past_sequence_length=part.input(8), cache_indirection=part.input(9), qk=part.output(3))
    heads = part.attributes["num_heads"]
    if not key:  # (batch, length, heads, 3, width)
        query, key, value = _unpacked(part, query, 3)
    elif not value:
        key, value = _unpacked(part, key, 2)
    operands = [query, key, value]
    if bias:
        widths = [part.size(x, 2) if _rank_of(part, x) == 3 else "" for x in operands]
        part.require_no(**{"a bias of packed or split heads": "" in widths})
        ends = [part.constant(0, "int64")]
        for width in widths:
            ends.append(part.add("Add", ends[-1], width))
        for n in range(3):
            own = part.add("Slice", bias, *(part.expanded(end, 0) for end in ends[n : n + 2]))
            operands[n] = part.add("Add", operands[n], own)
    queries, keys, values = (x if _rank_of(part, x) == 4 else _heads(part, x, heads) for x in operands)
    if pasts[0]:
        keys, values = (part.add("Concat", *pair, axis=2) for pair in zip(pasts, (keys, values), strict=True))
    part.named(keys, 1)
    part.named(values, 2)
    terms = [*_causal(part, queries, keys, pasts[0]), *_masked(part, mask, keys), *filter(None, [added])]
    _attended(part, queries, keys, values, terms, part.output(0), part.attributes.get("scale", 0.0))


def _rank_of(part: _Part, x: str) -> int:
    """Return 4 for heads that are split already, else 3."""
    added = {name for node in part.nodes if node.op_type == "Gather" for name in node.output}
    return 4 if x in added or (x in part.model.types and part.rank(x) == 4) else 3


def _unpacked(part: _Part, packed: str, count: int) -> list[str]:
    """Return the parts of (batch, length, heads, count, width) as (batch, heads, length, width)."""
    order = part.add("Transpose", packed, perm=[3, 0, 2, 1, 4])
    return [part.add("Gather", order, part.constant(n, "int64"), axis=0) for n in range(count)]


def _rotary_embedding(part: _Part) -> None:
    """Turn the heads of (batch, length, all) or (batch, heads, length, width); see `_turned`.

    A single position is that of the first of each sequence.
    """
    x, positions, *tables = (part.input(n) for n in range(4))
    rotary, heads = (part.attributes.get(name, 0) for name in ("rotary_embedding_dim", "num_heads"))
    is_scaled = part.attributes.get("scale", 1.0) != 1
    part.require_no(is_packed_batching=part.attributes.get("is_packed_batching", 0), scale=is_scaled)
    is_apart = part.rank(x) == 4
    if rotary and not (heads or is_apart):
        part.refuse("rotary_embedding_dim without num_heads leaves open how wide a head is")
    if not is_apart:
        x = part.reshaped(x, 0, 0, heads or -1, -1 if heads else 2 * part.sizes(tables[0])[1])
    if part.rank(positions) == 1:
        counted = part.counter(part.size(x, 2 if is_apart else 1))
        positions = part.expanded(part.add("Add", counted, positions), 0)
    turned = _turned(part, x, positions, tables, rotary, 1 if is_apart else 2)
    if is_apart:
        part.named(turned, 0)
    else:
        part.reshaped(turned, 0, 0, -1, output=part.output(0))


def _turned(part: _Part, x: str, positions: str, tables: list[str], rotary: int, axis: int) -> str:
    """Turn pairs of numbers of each head by angles (Su et al., 2021, https://arxiv.org/abs/2104.09864).

    Tables (position, pairs) hold their cosines and sines. The first `rotary` numbers of a head are turned, 0
    for all: those that are neighbours if the node is interleaved, else those of its two halves. `axis` is
    that of the heads in `x` of rank 4; the positions are (batch, length).
    """
    cosines, sines = (part.expanded(part.add("Gather", table, positions), axis) for table in tables)
    rest = ""
    if rotary:
        begin, middle, end, last = (part.constant([n], "int64") for n in (0, rotary, _LARGE, 3))
        x, rest = (part.add("Slice", x, *ends, last) for ends in ((begin, middle), (middle, end)))
    interleaved = part.attributes.get("interleaved", part.attributes.get("rotary_interleaved", 0))
    pairs, apart = part.reshaped(x, 0, 0, 0, *((-1, 2) if interleaved else (2, -1))), 4 if interleaved else 3
    real, imaginary = (part.add("Gather", pairs, part.constant(n, "int64"), axis=apart) for n in (0, 1))
    products = [part.add("Mul", a, b) for a in (real, imaginary) for b in (cosines, sines)]
    both = part.add("Sub", products[0], products[3]), part.add("Add", products[1], products[2])
    turned = part.add("Concat", *(part.expanded(each, apart) for each in both), axis=apart)
    turned = part.reshaped(turned, 0, 0, 0, -1)
    return part.add("Concat", turned, rest, axis=3) if rest else turned


def _group_query_attention(part: _Part) -> None:
    """Attend with heads of queries that share keys and values, of which a past may come before.

    A sequence has its keys at the beginning of the past and of the present, and behind them others that are
    not read. Input 5 holds the numbers of those that are, less one, and input 6 is the greatest number; if
    that is the length of the queries, they are prompts, for which none of the past is read.
    """
    query, key, value, *pasts = (part.input(n) for n in range(5))
    others = {"head_sink": 11, "k_scale": 12, "v_scale": 13}
    part.require_no(
        **{name: part.input(n) for name, n in others.items()},
        **{name: part.attributes.get(name, 0) for name in ("smooth_softmax", "qk_output")},
        output_qk=part.output(3),
    )
    heads, shared = part.attributes["num_heads"], part.attributes["kv_num_heads"]
    length = part.sizes(query)[1]
    if not key:
        width = part.sizes(query)[2] // (heads + 2 * shared)
        both = part.reshaped(query, 0, 0, heads + 2 * shared, width)
        ends = [part.constant([n], "int64") for n in (0, heads, heads + shared, heads + 2 * shared)]
        pairs, axis = itertools.pairwise(ends), part.constant([2], "int64")
        operands = [part.add("Slice", both, *pair, axis) for pair in pairs]
    else:
        width = part.sizes(query)[2] // heads
        counts = zip((query, key, value), (heads, shared, shared), strict=True)
        operands = [part.reshaped(x, 0, 0, count, width) for x, count in counts]
    rows, before = part.constant(np.arange(length)[None], "int64"), part.sizes(pasts[0])[2] if pasts[0] else 0
    if before:  # (batch, 1): how many keys of a sequence are of the past, none of a prompt
        read = part.reshaped(part.add("Cast", part.input(5), to=_INT64), -1, 1)
        total = part.reshaped(part.add("Cast", part.input(6), to=_INT64), 1)
        of_past = part.add("Add", read, part.constant(1 - length, "int64"))
        is_prompt = part.add("Equal", total, part.constant([length], "int64"))
        of_past = part.add("Where", is_prompt, part.constant(0, "int64"), of_past)
        rows = part.add("Add", of_past, rows)
    if part.attributes.get("do_rotary", 0):
        at, tables = part.input(9) or rows, [part.input(7), part.input(8)]
        rotary = 2 * part.sizes(tables[0])[1]
        rotary = rotary if rotary < width else 0
        operands[:2] = (_turned(part, x, at, tables, rotary, 2) for x in operands[:2])
    queries, keys, values = (part.add("Transpose", x, perm=[0, 2, 1, 3]) for x in operands)
    if before:
        count = part.add("Max", total, part.constant([before], "int64"))
        columns = part.counter(part.add("Squeeze", count))
        pairs = zip(pasts, (keys, values), strict=True)
        keys, values = (_present(part, *pair, of_past, columns, (before, length)) for pair in pairs)
    else:
        columns = part.constant(np.arange(length), "int64")
    part.named(keys, 1)
    part.named(values, 2)
    rows = part.expanded(rows, 2)
    left_out = part.add("Greater", columns, rows)
    if (window := part.attributes.get("local_window_size", -1)) >= 0:
        first = part.add("Sub", rows, part.constant(window, "int64"))
        left_out = part.add("Or", left_out, part.add("LessOrEqual", columns, first))
    least, zero = (part.number(n, query) for n in (-np.inf, 0))
    terms = [part.expanded(part.add("Where", left_out, least, zero), 1), *filter(None, [part.input(10)])]
    if shared < heads:
        times = part.constant([1, 1, heads // shared, 1, 1], "int64")
        keys, values = (
            part.reshaped(part.add("Expand", part.expanded(x, 2), times), 0, heads, -1, width)
            for x in (keys, values)
        )
    scale, cap = (part.attributes.get(name, 0.0) for name in ("scale", "softcap"))
    _attended(part, queries, keys, values, terms, part.output(0), scale, cap)


def _present(part: _Part, past: str, new: str, begin: str, columns: str, lengths: tuple[int, int]) -> str:
    """Write new keys or values (batch, heads, length, width) behind those of the past that each sequence has.

    What comes behind is 0. The past's length and the new one are `lengths`; `columns` counts the present's.
    """
    before, length = lengths
    batch, heads, _, width = part.sizes(past)
    both = part.reshaped(part.add("Concat", past, new, axis=2), -1, width)
    number = part.add("Sub", columns, begin)  # (batch, present) among the new ones
    is_past = part.add("Less", number, part.constant(0, "int64"))
    newer = part.add("Add", number, part.constant(before, "int64"))
    is_read = part.add("Less", number, part.constant(length, "int64"))
    source = part.add("Where", is_past, columns, newer)
    source = part.expanded(part.add("Where", is_read, source, part.constant(0, "int64")), 1)
    first = part.constant(np.arange(batch * heads).reshape(batch, heads, 1) * (before + length), "int64")
    found = part.add("Gather", both, part.add("Add", source, first))
    return part.add("Where", part.of_axes("Unsqueeze", is_read, [1, 3], 13), found, part.number(0, past))


_MICROSOFT = "com.microsoft"
_OF_MICROSOFT: dict[str, Callable[[_Part], None]] = {
    "Gelu": lambda part: _gelu(part, part.input(0), part.output(0)),
    "BiasGelu": lambda part: _gelu(part, _of_bias(part), part.output(0)),
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "BiasAdd": lambda part: part.add("Add", _of_bias(part), part.input(2), output=part.output(0)),
    "FusedMatMul": _mat_mul,
    "TransposeMatMul": _mat_mul,
    "FusedGemm": _gemm,
    "FusedConv": _conv,
    "NhwcConv": _nhwc_conv,
    "LayerNormalization": _layer_normalization,
    "SimplifiedLayerNormalization": _rms_normalization,
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_layer_normalization,
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _group_norm,
    "EmbedLayerNormalization": _embeddings,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention,
    "RotaryEmbedding": _rotary_embedding,
}
_RULES = {(_MICROSOFT, op): rule for op, rule in _OF_MICROSOFT.items()}
