"""Quantized operators: checks of their scales and zero points, and ONNX's float operators in their place.

A tensor of 8 bits comes with a scale and a zero point, and an operator such as QLinearConv reads and writes
several. `expand` writes each as DequantizeLinear, the float operator and QuantizeLinear, which mean the same
up to the last rounding; ops/quantized.py converts these two. The definitions are those of
https://onnx.ai/onnx/operators and of com.microsoft in ONNX Runtime's docs/ContribOperators.md.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

from ...core import packed_weights
from ...core.packed_weights import Packed
from .control_flow import label_of
from .graph import replace
from .rewriting import Part, Rewritten, constants_of, key_of, nodes_of

# ---------------------------------------------------------------- what an operator reads and writes

# By operator: the numbers of the inputs that hold a tensor, its scale and its zero point, and their axis; and
# last those of the output's scale and zero point. The axis of None is the attribute's.
_UNARY = [(0, 1, 2, 0), (None, 3, 4, 0)]
_BINARY = [(0, 1, 2, 0), (3, 4, 5, 0), (None, 6, 7, 0)]
_PARAMETERS = {
    "QuantizeLinear": [(None, 1, 2, None)],
    "DequantizeLinear": [(0, 1, 2, None)],
    "QLinearConv": _BINARY,
    "QLinearMatMul": [(0, 1, 2, -2), (3, 4, 5, -1), (None, 6, 7, -2)],
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": [(0, 1, 2, 0), (3, 4, 5, -1), (None, 7, 8, 0)],
    "QLinearWhere": [(1, 2, 3, 0), (4, 5, 6, 0), (None, 7, 8, 0)],
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), _UNARY),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean"), _UNARY),
    "ConvInteger": [(0, None, 2, 0), (1, None, 3, 0)],
    "MatMulInteger": [(0, None, 2, -2), (1, None, 3, -1)],
    "MatMulIntegerToFloat": [(0, 2, 4, -2), (1, 3, 5, -1)],
    "DynamicQuantizeMatMul": [(1, 2, 3, -1)],
    "QAttention": [(0, 3, 6, 0), (1, 4, 7, -1)],
}
_PER_TENSOR = ("QLinearAdd", "QLinearMul", "QLinearWhere", "QLinearConcat")


def _parameters(node: onnx.NodeProto) -> Iterator[tuple[str, str, str, int]]:
    """Yield the names of each tensor, scale and zero point, "" for none, and their axis."""
    numbers = _PARAMETERS.get(node.op_type, [])
    if node.op_type == "QLinearConcat":
        numbers = [(None, 0, 1, 0), *((n, n + 1, n + 2, 0) for n in range(2, len(node.input), 3))]
    given = {attribute.name: attribute.i for attribute in node.attribute}
    for tensor, scale, zero, axis in numbers:
        is_b = node.op_type == "QGemm" and tensor == 3
        axis = given.get("axis", 1) if axis is None else -2 if is_b and given.get("transB", 0) else axis
        tensor = node.output[0] if tensor is None else node.input[tensor]
        yield tensor, *("" if n is None else _at(node.input, n) for n in (scale, zero)), axis


def _at(names, number: int) -> str:
    return names[number] if number < len(names) else ""


def _is_quantized(node: onnx.NodeProto) -> bool:
    return node.op_type in _PARAMETERS or key_of(node) in _RULES


# ---------------------------------------------------------------- checks


def check(graph: onnx.GraphProto) -> None:
    """Refuse scales and zero points that no quantized tensor has, as far as they and the shapes are known.

    Raises ValueError for a scale that is no finite number above 0, and for a zero point out of range or of
    another dtype than the tensor; for an axis that the tensor lacks, and for more or fewer scales than it
    has; NotImplementedError for blocked quantization.
    """
    if not any(map(_is_quantized, nodes_of(graph))):
        return
    tensors = constants_of(graph)
    types = {each.name: each.type.tensor_type for each in (*graph.input, *graph.value_info, *graph.output)}
    shapes = {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in each.shape.dim)
        for name, each in types.items()
        if each.HasField("shape")
    }
    dtypes = {name: each.elem_type for name, each in types.items() if each.elem_type}
    shapes |= {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    dtypes |= {name: tensor.data_type for name, tensor in tensors.items()}
    for node in nodes_of(graph):
        attributes = {each.name: each.i for each in node.attribute}
        if attributes.get("block_size", 0) and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            raise NotImplementedError(
                f"{label_of(node)}: blocked quantization (block_size {attributes['block_size']}) is not "
                "supported; quantize the model with a scale for each tensor or channel"
            )
        for tensor, scale, zero, axis in _parameters(node):
            where = f"{label_of(node)}: {tensor!r}"
            if scale in tensors:
                _check_scale(where, scale, to_array(tensors[scale]))
            if zero in tensors:
                _check_range(where, tensors[zero])
            dtype = dtypes.get(tensor) or attributes.get("output_dtype")
            if node.op_type == "QuantizeLinear":
                dtype = attributes.get("output_dtype") or dtype
            if zero in dtypes and dtype and dtypes[zero] != dtype:
                raise ValueError(
                    f"{where} is of {_name(dtype)}, and its zero point {zero!r} of {_name(dtypes[zero])}; "
                    "expected the same dtype: quantize the model again"
                )
            if dtype == onnx.TensorProto.INT32 and zero in tensors and to_array(tensors[zero]).any():
                raise ValueError(
                    f"{where} is of INT32, whose zero point is 0 in ONNX, and {zero!r} is not; quantize the "
                    "model again"
                )
            for name in filter(shapes.__contains__, (scale, zero)):
                _check_axis(node, where, name, shapes[name], shapes.get(tensor), axis)


def _check_scale(where: str, name: str, scale: np.ndarray) -> None:
    scale = scale.astype("float64").reshape(-1)
    wrong = scale[~(np.isfinite(scale) & (scale > 0))]
    if len(wrong):
        raise ValueError(
            f"{where}: its scale {name!r} is {wrong[0]:g}; expected finite numbers above 0: quantize the "
            "model again"
        )


def _check_range(where: str, tensor: onnx.TensorProto) -> None:
    """Raise ValueError for a number beyond the dtype; a file may hold it in 32 bits."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return
    info = np.iinfo(dtype)
    wrong = [n for n in tensor.int32_data if not info.min <= n <= info.max]
    if wrong:
        raise ValueError(
            f"{where}: its zero point {tensor.name!r} is {wrong[0]}; expected {info.min} to {info.max}, the "
            f"range of {dtype}: quantize the model again"
        )


def _check_axis(node, where: str, name: str, shape: tuple, of: tuple | None, axis: int) -> None:
    """Raise for a scale or zero point that is neither one number nor one for each index of the axis."""
    if set(shape) <= {1}:
        return
    if len(shape) > 1 or node.op_type in _PER_TENSOR:
        wanted = "one number" + ("" if node.op_type in _PER_TENSOR else ", or one for each index of an axis,")
        raise NotImplementedError(
            f"{where}: {name!r} is of shape {shape}, and only {wanted} is supported; quantize the model so"
        )
    if of is None:
        return
    if not -len(of) <= axis < len(of):
        raise ValueError(
            f"{where} is of shape {of}, which has no axis {axis}, and {name!r} holds {shape[0]} numbers "
            "along it; quantize the model again"
        )
    if of[axis] is not None and shape[0] is not None and of[axis] != shape[0]:
        raise ValueError(
            f"{where} has {of[axis]} elements along axis {axis}, and {name!r} is of shape {shape}; expected "
            "one number for each: quantize the model again"
        )


def _name(dtype: int) -> str:
    return onnx.TensorProto.DataType.Name(dtype)


# ---------------------------------------------------------------- float operators in their place


def expand(proto: onnx.ModelProto) -> dict[str, Packed]:
    """Replace quantized operators, in place, and turn scales and zero points into Constant nodes.

    Returns the packed form of weights, by name, for `packed_weights.with_packed`.
    """
    graph = proto.graph
    nodes = list(nodes_of(graph))
    if not any(map(_is_quantized, nodes)):
        return {}
    model = _Model(proto)
    model.rewrite(graph, _RULES, _Part)
    names = {name for node in nodes for _, *each, _ in _parameters(node) for name in each}
    moved = [tensor for tensor in graph.initializer if tensor.name in names]
    constants = [make_node("Constant", [], [tensor.name], value=tensor) for tensor in moved]
    replace(graph.node, [*constants, *graph.node])
    replace(graph.initializer, [each for each in graph.initializer if each.name not in names] + model.weights)
    return model.packed


class _Model(Rewritten):
    """The model whose operators are replaced; `weights` are new ones.

    `packed` has those of `weights`, by name, that fit into 4 or 8 bits.
    """

    def __init__(self, proto: onnx.ModelProto):
        super().__init__(proto)
        self.weights: list[onnx.TensorProto] = []
        self.packed: dict[str, Packed] = {}

    @functools.cached_property
    def types(self) -> dict[str, onnx.TypeProto.Tensor]:
        """Return the types of values, by name, as far as ONNX infers them."""
        graph = onnx.shape_inference.infer_shapes(self.proto).graph
        return {each.name: each.type.tensor_type for each in (*graph.input, *graph.value_info)}

    @functools.cached_property
    def ranks(self) -> dict[str, int]:
        """Return the ranks of values, by name, as far as ONNX infers them."""
        known = {name: len(each.shape.dim) for name, each in self.types.items() if each.HasField("shape")}
        return known | {name: len(tensor.dims) for name, tensor in self.tensors.items()}

    def is_half(self, name: str) -> bool:
        """Tell whether a value is of float16 or bfloat16."""
        tensor = self.tensors.get(name)
        dtype = tensor.data_type if tensor else self.types[name].elem_type if name in self.types else 0
        return dtype in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


class _Part(Part):
    """The nodes that replace a quantized operator."""

    model: _Model

    def dequantized(self, tensor: int, scale: int, zero: int, axis: int = 0) -> str:
        """Add the node that dequantizes an input."""
        inputs = self.input(tensor), self.scale(scale), self.input(zero)
        return self.add("DequantizeLinear", *inputs, axis=axis)

    def scale(self, number: int) -> str:
        """Add the cast of a scale to float32 where it is of halves, in which products of sums overflow."""
        name = self.input(number)
        return self.add("Cast", name, to=onnx.TensorProto.FLOAT) if self.model.is_half(name) else name

    def quantized(self, x: str, scale: int, zero: int, like: int, axis: int = 0) -> None:
        """Add the node that quantizes the result; without its own, the zero point is 0 in `like`'s dtype."""
        point = self.input(zero)
        if not point and self.input(like) in self.model.tensors:
            zeros = np.zeros((), to_array(self.model.tensors[self.input(like)]).dtype)
            point = self.add("Constant", value=from_array(zeros))
        if not point:
            raise NotImplementedError(
                f"{label_of(self.node)}: it has no zero points, which say whether its output is int8 or "
                "uint8; give the output's zero point"
            )
        if not self.input(scale):
            raise ValueError(f"{label_of(self.node)}: the scale of its output is missing; export it again")
        self.add("QuantizeLinear", x, self.scale(scale), point, output=self.node.output[0], axis=axis)

    def without(self, *names: str) -> dict:
        """Return the attributes but these; images have their channels first."""
        if self.attributes.get("channels_last", 0):
            raise NotImplementedError(
                f"{label_of(self.node)}: channels_last=1, which ONNX Runtime writes when it optimizes a "
                "model, is not supported; give the model before it was optimized"
            )
        return {
            name: value for name, value in self.attributes.items() if name not in (*names, "channels_last")
        }


def _bias(part: _Part, number: int, axis: int, factor: float = 1.0) -> list[str]:
    """Return an int32 bias, dequantized with the product of both scales; empty if there is none."""
    if not part.input(number):
        return []
    scale = part.add("Mul", part.scale(1), part.scale(4))
    if factor != 1:
        value = from_array(np.float32(factor).reshape(()))
        scale = part.add("Mul", scale, part.add("Constant", value=value))
    return [part.add("DequantizeLinear", part.input(number), scale, axis=axis)]


def _conv(part: _Part) -> None:
    x, weight = part.dequantized(0, 1, 2), part.dequantized(3, 4, 5)
    y = part.add("Conv", x, weight, *_bias(part, 8, 0), **part.without())
    part.quantized(y, 6, 7, 2)


def _mat_mul(part: _Part) -> None:
    y = part.add("MatMul", part.dequantized(0, 1, 2, -2), part.dequantized(3, 4, 5, -1))
    part.quantized(y, 6, 7, 2, -2)


def _gemm(part: _Part) -> None:
    alpha = part.attributes.get("alpha", 1.0)
    axis = 0 if part.attributes.get("transB", 0) else 1
    x, weight = part.dequantized(0, 1, 2), part.dequantized(3, 4, 5, axis)
    inputs = [x, weight, *_bias(part, 6, -1, alpha)]
    if part.input(7):
        part.quantized(part.add("Gemm", *inputs, **part.attributes), 7, 8, 2)
    else:
        part.add("Gemm", *inputs, output=part.node.output[0], **part.attributes)


def _binary(op: str) -> Callable[[_Part], None]:
    def rule(part: _Part) -> None:
        part.quantized(part.add(op, part.dequantized(0, 1, 2), part.dequantized(3, 4, 5)), 6, 7, 2)

    return rule


def _unary(op: str) -> Callable[[_Part], None]:
    def rule(part: _Part) -> None:
        part.quantized(part.add(op, part.dequantized(0, 1, 2), **part.without()), 3, 4, 2)

    return rule


def _softmax(part: _Part) -> None:
    """Below opset 13 Softmax is that of a matrix, whose columns are all axes from `axis` on."""
    x, opset = part.dequantized(0, 1, 2), part.attributes.get("opset", 1)
    axis = part.attributes.get("axis", -1 if opset >= 13 else 1)
    if opset >= 13 and part.model.opset < 13 and axis != -1:
        raise NotImplementedError(
            f"{label_of(part.node)}: Softmax of opset {opset} in a model of opset {part.model.opset}; export "
            "it with opset 13 or newer"
        )
    if opset < 13 <= part.model.opset:
        rows = part.add("Softmax", part.add("Flatten", x, axis=axis), axis=-1)
        y = part.add("Reshape", rows, part.add("Shape", x))
    else:
        y = part.add("Softmax", x, axis=axis)
    part.quantized(y, 3, 4, 2)


def _reduce_mean(part: _Part) -> None:
    x, attributes = part.dequantized(0, 1, 2), part.without("axes")
    axes = part.attributes.get("axes")
    if axes is not None and part.model.opset >= 18:
        value = from_array(np.array(axes, "int64"))
        y = part.add("ReduceMean", x, part.add("Constant", value=value), **attributes)
    else:
        y = part.add("ReduceMean", x, **attributes | ({} if axes is None else {"axes": axes}))
    part.quantized(y, 3, 4, 2)


def _concat(part: _Part) -> None:
    parts = [part.dequantized(n, n + 1, n + 2) for n in range(2, len(part.node.input), 3)]
    part.quantized(part.add("Concat", *parts, axis=part.attributes["axis"]), 0, 1, 4)


def _where(part: _Part) -> None:
    y = part.add("Where", part.input(0), part.dequantized(1, 2, 3), part.dequantized(4, 5, 6))
    part.quantized(y, 7, 8, 3)


def _to_float(
    part: _Part, a: str, zero: str, scale: str, weight: tuple[int, int, int], bias: int, output: str
) -> str:
    """Add the product of integers, its scales and its bias, as ONNX Runtime computes them; return the sum."""
    b, b_scale, b_zero = (part.input(n) for n in weight)
    y = part.add("Cast", part.add("MatMulInteger", a, b, zero, b_zero), to=onnx.TensorProto.FLOAT)
    inputs = y, part.add("Mul", scale, b_scale)
    if part.input(bias):
        return part.add("Add", part.add("Mul", *inputs), part.input(bias), output=output)
    return part.add("Mul", *inputs, output=output)


def _integer_to_float(part: _Part) -> None:
    _to_float(part, part.input(0), part.input(4), part.input(2), (1, 3, 5), 6, part.node.output[0])


def _dynamic_mat_mul(part: _Part) -> None:
    names = [part.unused(what) for what in ("quantized", "scale", "zero")]
    part.nodes.append(make_node("DynamicQuantizeLinear", [part.input(0)], names))
    x, scale, zero = names
    _to_float(part, x, zero, scale, (1, 2, 3), 4, part.node.output[0])


def _mat_mul_n_bits(part: _Part) -> None:
    """Dequantize the weights of a language model, whose shapes are known then, and keep their bits aside."""
    bits, block = part.attributes.get("bits", 4), part.attributes["block_size"]
    columns, rows = part.attributes["N"], part.attributes["K"]
    packed, scales, zeros = (part.weight(number) for number in (1, 2, 3))
    if bits not in (2, 4, 8) or part.input(4):
        wanted = "g_idx, which reorders the rows" if part.input(4) else f"{bits} bits"
        raise NotImplementedError(
            f"{label_of(part.node)}: {wanted}, is not supported; quantize the model with 2, 4 or 8 bits and "
            "blocks of rows in their order"
        )
    blocks = -(-rows // block)
    sizes = {"B": (packed, columns * blocks * (block * bits // 8)), "scales": (scales, columns * blocks)}
    for name, (array, size) in sizes.items():
        count = 0 if array is None else array.size
        if count != size:
            raise ValueError(
                f"{label_of(part.node)}: {name} holds {count} elements; expected {size} for K={rows}, "
                f"N={columns} and blocks of {block}: quantize the model again"
            )
    if not np.isfinite(scales).all():  # one may be 0, or negative
        raise ValueError(
            f"{label_of(part.node)}: expected finite scales, got NaN or infinite ones; quantize the "
            "model again"
        )
    q, zero = _blocks(packed, scales, zeros, bits, block, rows, columns)
    weight = (q.astype(scales.dtype) - zero[..., None]) * scales.reshape(columns, -1, 1)
    weight = np.ascontiguousarray(weight.reshape(columns, -1)[:, :rows].T)
    name = part.unused("weight")
    part.model.weights.append(from_array(weight, name))
    if (as_packed := _packed(q, zero, scales, rows)) is not None:
        part.model.packed[name] = as_packed
    outputs = {"output": part.node.output[0]}
    if part.input(5):
        part.add("Add", part.add("MatMul", part.input(0), name), part.input(5), **outputs)
    else:
        part.add("MatMul", part.input(0), name, **outputs)


def _blocks(
    packed: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    bits: int,
    block: int,
    rows: int,
    columns: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of MatMulNBits, uint8 (columns, blocks, block), and the zero point of each block.

    Each column is stored in blocks of `block` rows, of `bits` bits a number, the first in the lowest bits of
    a byte; a block has a scale and a zero point, packed likewise by column, or unpacked in the scales' dtype.
    Without it the zero point is 2^(bits - 1).
    """
    blocks = -(-rows // block)
    q = _unpacked(packed.reshape(columns, -1), bits).reshape(columns, blocks, block)
    if zeros is None:
        zero = np.full((columns, blocks), 1 << (bits - 1), scales.dtype)
    elif zeros.dtype == np.uint8:
        zero = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].astype(scales.dtype)
    else:
        zero = zeros.reshape(columns, blocks)
    return q, zero


def _packed(q: np.ndarray, zero: np.ndarray, scales: np.ndarray, rows: int) -> Packed | None:
    """Return the same weights, (columns, rows), in 4 bits, or in 8 if less their zero points they need them.

    None if not even these hold them, the zero points are no integers, or they are not of float32.
    """
    columns, blocks, block = q.shape
    if block % packed_weights.WORD or scales.dtype != np.float32 or (zero != np.rint(zero)).any():
        return None
    integers = (q.astype("int16") - zero.astype("int16")[..., None]).reshape(columns, -1)[:, :rows]
    low, high = integers.min(initial=0), integers.max(initial=0)
    if low < -128 or high > 127:
        return None
    integers = integers.astype("int8")
    if low >= -8 and high <= 7:
        integers = packed_weights.in_words(integers)
    scales = scales.reshape(columns, blocks)
    with np.errstate(over="ignore"):
        halves = scales.astype("float16")
    exact = (halves.astype("float32") == scales).all()
    return Packed(integers, halves if exact else scales, block, rows)


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers (n, m) of a few bits each from bytes (n, m * bits / 8)."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    return ((data[..., None] >> shifts) & ((1 << bits) - 1)).astype("uint8").reshape(len(data), -1)


def _attention(part: _Part) -> None:
    """Write attention whose queries, keys and values are one product of 8 bits, as ONNX Runtime computes it.

    A mask has a number for each key of a batch, 0 for those that are left out.
    """
    mask = part.input(5)
    other = mask if mask and part.model.ranks.get(mask) != 2 else ""
    present = _at(part.node.output, 1)
    of_inputs = {"a mask of another rank than 2": other, "a past": part.input(8), "a present": present}
    of_attributes = "unidirectional", "do_rotary"
    given = [what for what, name in of_inputs.items() if name]
    given += [f"{name}=1" for name in of_attributes if part.attributes.get(name, 0)]
    if given:
        raise NotImplementedError(
            f"{label_of(part.node)}: {' and '.join(given)} is not supported; {_BEFORE_FUSION}"
        )
    weight, heads = part.weight(1), part.attributes["num_heads"]
    if weight.ndim != 2 or weight.shape[1] % (3 * heads):
        raise ValueError(
            f"{label_of(part.node)}: its weights are of shape {weight.shape}; expected columns for the "
            f"queries, keys and values of {heads} heads: export the model again"
        )
    width = weight.shape[1] // 3 // heads
    scale = part.attributes.get("scale", 0.0) or width**-0.5

    def constant(value, dtype: str) -> str:
        return part.add("Constant", value=from_array(np.array(value, dtype)))

    def reshaped(x: str, *shape: int, output: str = "") -> str:
        return part.add("Reshape", x, constant(shape, "int64"), output=output)

    operands = part.input(0), part.input(6), part.input(3), (1, 4, 7), 2
    product = _to_float(part, *operands, output=part.unused("product"))
    all_heads = part.add("Transpose", reshaped(product, 0, 0, 3, heads, width), perm=[2, 0, 3, 1, 4])
    queries, keys, values = (part.add("Gather", all_heads, constant(n, "int64"), axis=0) for n in range(3))
    scores = part.add("MatMul", queries, part.add("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = part.add("Mul", scores, constant(scale, "float32"))
    if mask:
        ends = constant(0, "float32"), constant(part.attributes.get("mask_filter_value", -1e4), "float32")
        added = part.add("Where", part.add("Cast", mask, to=onnx.TensorProto.BOOL), *ends)
        scores = part.add("Add", scores, reshaped(added, 0, 1, 1, -1))
    weights = part.add("Softmax", scores, axis=-1)
    result = part.add("Transpose", part.add("MatMul", weights, values), perm=[0, 2, 1, 3])
    reshaped(result, 0, 0, heads * width, output=part.node.output[0])


_BEFORE_FUSION = "quantize the model as it was before ONNX Runtime fused its operators"


def _refused(remedy: str) -> Callable[[_Part], None]:
    def rule(part: _Part) -> None:
        raise NotImplementedError(f"{label_of(part.node)} is not supported; {remedy}")

    return rule


def _own_domain(part: _Part) -> None:
    """Write ONNX Runtime's operator, of 16 bits in older opsets, as ONNX's own, which has them since 21."""
    part.add(part.node.op_type, *part.node.input, output=part.node.output[0], **part.attributes)


_MICROSOFT_RULES = {
    "QuantizeLinear": _own_domain,
    "DequantizeLinear": _own_domain,
    "QLinearConv": _conv,
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearAveragePool": _unary("AveragePool"),
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "QLinearSoftmax": _softmax,
    "QLinearReduceMean": _reduce_mean,
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_mat_mul,
    "MatMulNBits": _mat_mul_n_bits,
    "QAttention": _attention,
    "QEmbedLayerNormalization": _refused(_BEFORE_FUSION),
    "DynamicQuantizeLSTM": _refused("quantize the model without it: op_types_to_quantize without LSTM"),
}
_RULES = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _mat_mul,
    **{("com.microsoft", op): rule for op, rule in _MICROSOFT_RULES.items()},
}
