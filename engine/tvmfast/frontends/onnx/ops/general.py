"""Converters of ONNX operators that TVM 0.27 lacks, or computes differently from ONNX's specification.

What cannot be computed correctly raises NotImplementedError. tests/test_onnx_suite.py compares them with
ONNX.
"""

import math
import string

import ml_dtypes
import numpy as np
import tvm
from onnx.helper import make_node
from onnx.reference import ReferenceEvaluator
from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.relax.frontend.onnx.onnx_frontend import get_constant, get_type

from ....core.relax import cast_array, constant_array
from ....kernels import linalg
from ....kernels.detection.regions import region_maxima
from ...context import dtype_of, shape_of
from ...ops.common import (
    along,
    counter,
    expm1_below_1,
    of_whole_regions,
    regions,
    reversed_sequences,
    softplus,
)
from .node import Node, converts, in_float32, is_outer

_EXACT = 1 << 53  # up to it float64 represents each integer exactly
_LONGEST = (1 << 31) - 1  # stride of a slice


@converts("LpNormalization")
def _lp_normalization(n: Node):
    """Divide by the L1 or L2 norm along an axis, in float64; a norm of 0 gives 0."""
    axis, zero, x = n.get("axis", -1), relax.const(0, "float64"), _wide(n)
    if n.get("p", 2) == 1:
        norm = R.sum(R.abs(x), axis, keepdims=True)
    else:
        norm = R.sqrt(R.sum(R.multiply(x, x), axis, keepdims=True))
    return n.cast(n.emit(R.where(R.equal(norm, zero), zero, R.divide(x, norm))), n.dtype)


def _wide(n: Node) -> relax.Expr:
    """Return x in float64, in which sums and squares of float32 neither overflow nor become 0."""
    return n.emit(n.cast(n.x, "float64"))


def _moments(n: Node, axes: list[int]) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return the mean of x, its difference to it, and its variance, along axes that are kept, in float64."""
    x = n.emit(_wide(n))
    mean = n.emit(R.mean(x, axes, keepdims=True))
    centred = n.emit(R.subtract(x, mean))
    return mean, centred, n.emit(R.mean(R.multiply(centred, centred), axes, keepdims=True))


@converts("LayerNormalization")
def _layer_normalization(n: Node):
    """Compute Mean and InvStdDev, which TVM returns as scalars of 0."""
    axes = list(range(n.get("axis", -1) % n.rank, n.rank))
    output = n.tvm_converter().fields[0]
    if n.outputs == 1:
        return output
    epsilon = relax.const(n.get("epsilon", float(np.float32(1e-5))), "float64")
    mean, _, variance = _moments(n, axes)
    statistics = mean, R.rsqrt(R.add(variance, epsilon))
    return relax.Tuple([output, *(n.cast(n.emit(each), "float32") for each in statistics)])


@converts("RMSNormalization")
def _rms_normalization(n: Node):
    """Compute in the dtype of x, at least in float32; ONNX's own definition squares float64 in float32."""
    axes = list(range(n.get("axis", -1) % n.rank, n.rank))
    x = n.builder.emit(R.astype(n.x, "float32")) if n.dtype in ("float16", "bfloat16") else n.x
    squares = R.mean(R.multiply(x, x), axes, keepdims=True)
    epsilon = n.get("epsilon", float(np.float32(1e-5)))
    deviation = R.sqrt(R.add(squares, relax.const(epsilon, x.ty.dtype)))
    return R.multiply(n.cast(n.emit(R.divide(x, deviation)), dtype_of(n.inputs[1])), n.inputs[1])


@converts("InstanceNormalization")
def _instance_normalization(n: Node):
    """Normalize with the kernel of group norms, whose sums are short, and which is one."""
    axes = list(range(2, n.rank))
    return R.nn.instance_norm(n.x, *n.inputs[1:3], 1, axes, n.get("epsilon", 1e-5))


@converts("MeanVarianceNormalization")
def _mean_variance_normalization(n: Node):
    """Divide by the deviation from the mean; TVM subtracts the mean's square from that of the squares."""
    _, centred, variance = _moments(n, list(n.get("axes", (0, 2, 3))))
    deviation = R.add(R.sqrt(variance), relax.const(1e-9, "float64"))
    return n.cast(n.emit(R.divide(centred, deviation)), n.dtype)


@converts("Elu", "Selu")
@in_float32
def _elu(n: Node):
    """Convert all float dtypes, TVM float32 only, which loses small numbers below 0."""
    # Those of Selu are float32 by specification.
    alpha, gamma = (1.0, 1.0) if n.op == "Elu" else (1.67326319217681884765625, 1.05070102214813232421875)
    below = expm1_below_1(n.builder, n.emit(R.minimum(n.x, n.const(0))))
    below = R.multiply(n.const(n.get("alpha", alpha)), below)
    return R.multiply(n.const(n.get("gamma", gamma)), R.where(R.less(n.x, n.const(0)), below, n.x))


@converts("Celu")
@in_float32
def _celu(n: Node):
    """Convert tensors of any rank; onnx cannot expand this function for one of rank 0."""
    alpha = n.const(n.get("alpha", 1.0))
    below = expm1_below_1(n.builder, n.emit(R.divide(R.minimum(n.x, n.const(0)), alpha)))
    return R.where(R.less(n.x, n.const(0)), R.multiply(alpha, below), n.x)


@converts("LeakyRelu", "HardSigmoid")
@in_float32
def _with_default(n: Node):
    """Give alpha the default of ONNX's specification, which is a float32; TVM has a float64."""
    default = np.float32({"LeakyRelu": 0.01, "HardSigmoid": 0.2}[n.op])
    return n.tvm_converter(*n.inputs, alpha=n.get("alpha", float(default)))


@converts("ThresholdedRelu")
def _thresholded_relu(n: Node):
    """Convert all float dtypes, TVM float32 only; NaN is not above the threshold."""
    return R.where(R.greater(n.x, n.const(n.get("alpha", 1.0))), n.x, n.const(0))


@converts("Shrink")
@in_float32
def _shrink(n: Node):
    """Convert integers through floats, as lambd is one; TVM adds both cases where lambd is below 0."""
    dtype = n.dtype if n.dtype.startswith("float") else "float64"
    lambd, bias = relax.const(n.get("lambd", 0.5), dtype), relax.const(n.get("bias", 0.0), dtype)
    x, zero = n.emit(n.cast(n.x, dtype)), relax.const(0, dtype)
    above = R.where(R.greater(x, lambd), R.subtract(x, bias), zero)
    return n.cast(n.emit(R.where(R.less(x, R.negative(lambd)), R.add(x, bias), above)), n.dtype)


@converts("Gemm")
def _gemm(n: Node):
    """Leave out C where beta is 0, as ONNX Runtime does: 0 * NaN is NaN."""
    scales = n.get("alpha", 1.0), n.get("beta", 1.0)
    reason = f"Gemm of {n.dtype} with alpha {scales[0]} and beta {scales[1]}: expected whole numbers"
    n.refuse_if("float" not in n.dtype and not all(float(each).is_integer() for each in scales), reason)
    return n.tvm_converter(*n.inputs[:2], n.inputs[2] if scales[1] else None)


@converts("Einsum")
def _einsum(n: Node):
    """Name the axes of an ellipsis that the result lacks, over which TVM cannot sum."""
    equation = n.text("equation", "").replace(" ", "")
    given, arrow, result = equation.partition("->")
    if arrow and "..." not in result:
        terms = zip(given.replace("...", "").split(","), n.inputs, strict=True)
        count = max(len(shape_of(x)) - len(term) for term, x in terms)  # ONNX has it the same in all terms
        unused = "".join(letter for letter in string.ascii_letters if letter not in equation)
        equation = equation.replace("...", unused[:count])
    return n.tvm_converter(equation=equation.encode())


converts("Softplus")(lambda n: softplus(n.builder, n.x))
converts("Mish")(in_float32(lambda n: R.multiply(n.x, R.tanh(softplus(n.builder, n.x)))))
converts("HardSwish", "Softsign")(in_float32(lambda n: n.tvm_converter()))
converts("PRelu")(in_float32(lambda n: n.tvm_converter(n.x, n.emit(n.cast(n.inputs[1], n.dtype)))))


@converts("Swish")
@in_float32
def _swish(n: Node):
    return R.multiply(n.x, R.sigmoid(R.multiply(n.x, n.const(n.get("alpha", 1.0)))))


@converts("Cast")
def _cast(n: Node):
    """Cast floats to integers as `integers_between` describes; TVM takes infinities and NaN for 0."""
    dtype = str(get_type(n.get("to")))
    is_number = isinstance(n.inputs[0].ty, relax.TensorType) and n.dtype.startswith(("float", "bfloat"))
    if not is_number or dtype.lstrip("u") not in ("int8", "int16", "int32", "int64"):
        return n.tvm_converter()
    array = constant_array(n.x)
    return R.astype(n.x, dtype) if array is None else n.const(cast_array(array, dtype))


@converts("Clip")
def _clip(n: Node):
    """Clip with operators, which passes know; TVM makes a kernel of each bound.

    A bound that is left out is the dtype's largest finite number, or its least; one that is NaN is none.
    """
    if n.opset < 11:
        return n.tvm_converter()
    result, is_float = n.x, "float" in n.dtype
    for bound, apply, sign in ((n.inputs[1], R.maximum, -1), (n.inputs[2], R.minimum, 1)):
        if is_float and bound is None:
            bound = n.const(sign * float(ml_dtypes.finfo(n.dtype).max))
        elif is_float:
            bound = R.where(R.isnan(bound), n.const(sign * math.inf), bound)
        result = result if bound is None else apply(result, bound)
    return result


_OF_TWO = {"Add": R.add, "Sub": R.subtract, "And": R.logical_and, "Or": R.logical_or, "Equal": R.equal}
_OF_TWO |= {"Less": R.less, "LessOrEqual": R.less_equal}
_OF_TWO |= {"Greater": R.greater, "GreaterOrEqual": R.greater_equal}


@converts(*_OF_TWO)
def _of_two(n: Node):
    """Combine constants that lie along several axes, as of a mask, in the run; TVM makes another one."""
    arrays = [constant_array(x) for x in n.inputs]
    is_mask = all(array is not None for array in arrays) and is_outer([array.shape for array in arrays])
    return _OF_TWO[n.op](*n.inputs) if is_mask else n.tvm_converter()


@converts("BitShift")
def _bit_shift(n: Node):
    """Shift; by less than 0, or by the width or more, gives 0, or -1 for a negative element shifted right."""
    by, signed = n.inputs[1], not n.dtype.startswith("u")
    last = n.const(int(n.dtype.lstrip("uint")) - 1)
    beyond = R.greater(by, last)
    if signed:
        beyond = R.logical_or(beyond, R.less(by, n.const(0)))
    right = n.text("direction", "") == "RIGHT"
    result = (R.right_shift if right else R.left_shift)(n.x, R.where(beyond, last, by))
    return result if right and signed else R.where(beyond, n.const(0), result)


@converts("IsInf")
def _is_inf(n: Node):
    found = R.isinf(n.x)
    if not n.get("detect_positive", 1):
        found = R.logical_and(found, R.less(n.x, n.const(0)))
    if not n.get("detect_negative", 1):
        found = R.logical_and(found, R.greater(n.x, n.const(0)))
    return found


@converts("SpaceToDepth")
def _space_to_depth(n: Node):
    (batch, channels, height, width), block = n.shape, n.get("blocksize")
    x = R.reshape(n.x, (batch, channels, height // block, block, width // block, block))
    x = R.permute_dims(x, [0, 1, 3, 5, 2, 4] if n.text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4])
    return R.reshape(x, (batch, channels * block * block, height // block, width // block))


@converts("Dropout")
def _dropout(n: Node):
    """Pass the input on, with a mask of True, as in inference."""
    training = n.known(2)
    draws = training is not None and training.any() and (n.inputs[1] is None or n.known(1).any())
    n.refuse_if(draws, "Dropout in training mode draws random numbers; export with it off")
    return n.x if n.outputs == 1 else relax.Tuple([n.x, R.full(n.shape, relax.const(True, "bool"), "bool")])


@converts("BatchNormalization")
def _batch_normalization(n: Node):
    """Multiply and add once, as ONNX Runtime does, where a variance of 0 makes an infinity of the factor."""
    if n.get("training_mode", 0):
        return _trained(n)
    scale, bias, mean, variance = n.inputs[1:5]
    known, epsilon = constant_array(get_constant(variance, n.params)), np.float32(n.get("epsilon", 1e-5))
    if n.dtype != "float32" or known is None or (known + epsilon).all():
        return n.tvm_converter()
    factor = n.emit(R.divide(scale, R.sqrt(R.add(variance, n.const(epsilon)))))
    shift = n.emit(R.subtract(bias, R.multiply(mean, factor)))
    factor, shift = (R.reshape(each, (-1, *[1] * (n.rank - 2))) for each in (factor, shift))
    return R.add(R.multiply(n.x, factor), shift)


def _trained(n: Node) -> relax.Expr:
    """Normalize by the statistics of the batch, which move the running ones; of halves they are of float32.

    TVM takes another momentum.
    """
    x, wide = n.x, "float64" if n.dtype == "float64" else "float32"
    axes, momentum = [0, *range(2, n.rank)], n.get("momentum", 0.9)
    data = n.emit(n.cast(x, wide))
    mean = n.emit(R.mean(data, axes, keepdims=True))
    centred = n.emit(R.subtract(data, mean))
    variance = n.emit(R.mean(n.emit(R.multiply(centred, centred)), axes))
    found, results = (n.emit(R.reshape(mean, [n.shape[1]])), variance), []
    for new, old in zip(found, n.inputs[3:5], strict=True):
        kept = n.emit(R.multiply(n.emit(n.cast(old, wide)), relax.const(momentum, wide)))
        moved = n.emit(R.add(kept, R.multiply(new, relax.const(1 - momentum, wide))))
        results.append(n.emit(n.cast(moved, dtype_of(old))))
    y = n.tvm_converter(x, *n.inputs[1:3], *found, training_mode=0)
    return relax.Tuple([n.emit(relax.TupleGetItem(y, 0)), *results])


@converts("ConvTranspose")
def _conv_transpose(n: Node):
    """Pad for the attribute output_shape, which TVM ignores."""
    wanted, rank = list(n.get("output_shape", [])), n.rank - 2
    if not wanted:
        return n.tvm_converter()
    kernel = [int(size) for size in n.inputs[1].ty.shape][2:]
    strides, dilations, _ = n.windows(rank)
    extra = list(n.get("output_padding", [0] * rank))
    begin, end = [], []
    for i, size in enumerate(wanted[-rank:]):
        total = strides[i] * (n.shape[2 + i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - size
        extra[i] -= min(total, 0)
        reason = f"ConvTranspose to output_shape {wanted}: its strides do not reach that far"
        n.refuse_if(extra[i] >= max(strides[i], dilations[i]), reason)
        half = max(total, 0) // 2
        begin.append(half if n.text("auto_pad", "NOTSET") == "SAME_UPPER" else max(total, 0) - half)
        end.append(max(total, 0) - begin[-1])
    return n.tvm_converter(*n.inputs, auto_pad=b"NOTSET", pads=begin + end, output_padding=extra)


@converts("Pow")
def _pow(n: Node):
    """Raise to a power in the base's dtype, whatever the exponent's; integers go through float64.

    Their squares and cubes do not, as in ONNX Runtime: those beyond the dtype wrap around.
    """
    exponent = constant_array(get_constant(n.inputs[1], n.params))
    is_one = exponent is not None and exponent.size == 1 and exponent.ndim <= n.rank
    if "float" not in n.dtype and is_one and exponent in (2, 3):
        square = n.emit(R.multiply(n.x, n.x))
        return square if exponent == 2 else R.multiply(square, n.x)
    wide = n.dtype if n.dtype.startswith(("float", "bfloat")) else "float64"
    return R.astype(R.power(*(R.astype(x, wide) for x in (n.x, n.inputs[1]))), n.dtype)


@converts("Sign")
def _sign(n: Node):
    """Convert unsigned integers, too, which have no -1 to compare with; NaN has TVM's sign 0, not ONNX's."""
    if n.dtype.startswith("uint"):
        return R.minimum(n.x, n.const(1))
    return R.where(R.isnan(n.x), n.x, n.tvm_converter()) if n.dtype.startswith("float") else n.tvm_converter()


@converts("Mod")
def _mod(n: Node):
    """Compute the remainder, also for a divisor of infinity, with the divisor's sign, or x's with fmod."""
    if not n.dtype.startswith(("float", "bfloat")):
        return n.tvm_converter()
    x, y = n.x, n.inputs[1]
    remainder = R.where(R.logical_and(R.isinf(y), R.isfinite(x)), x, R.mod(x, y))
    if n.get("fmod", 0):
        return remainder
    remainder = n.emit(remainder)
    differ = R.less(R.multiply(R.sign(remainder), R.sign(y)), n.const(0))
    return R.where(differ, R.add(remainder, y), remainder)


@converts("ReduceMax", "ReduceMin")
def _extreme(n: Node):
    if n.dtype != "bool":
        return n.tvm_converter()
    return R.astype(n.tvm_converter(n.emit(R.astype(n.x, "uint8")), *n.inputs[1:]), "bool")


@converts("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
@in_float32
def _of_no_axes(n: Node):
    """Apply the function of each element where no axes are reduced; TVM returns the input."""
    _refuse_integers(n)
    axes = n.known(1) if n.get("noop_with_empty_axes", 0) else [0]
    if axes is not None and len(axes):
        return n.tvm_converter()
    return {"ReduceLogSum": R.log, "ReduceSumSquare": R.square}.get(n.op, R.abs)(n.x)


def _refuse_integers(n: Node) -> None:
    is_rounded = n.op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp") and "float" not in n.dtype
    reason = f"{n.op} of {n.dtype}: ONNX does not say how it is rounded; cast to float32 before"
    n.refuse_if(is_rounded, reason)


@converts("ReduceLogSumExp")
@in_float32
def _log_sum_exp(n: Node):
    """Subtract the largest element first, if it is finite; TVM's difference of two infinities is NaN."""
    _refuse_integers(n)
    axes = n.get("axes") if n.opset < 18 else n.known(1)
    axes = None if axes is None or not len(axes) else [int(axis) for axis in axes]
    is_identity = axes is None and n.get("noop_with_empty_axes", 0)
    if is_identity or not n.shape:
        return n.tvm_converter()
    largest = n.emit(R.max(n.x, axes, keepdims=True))
    largest = n.emit(R.where(R.isinf(largest), n.const(0), largest))
    total = R.sum(R.exp(R.subtract(n.x, largest)), axes, keepdims=True)
    result = n.emit(R.add(R.log(total), largest))
    return result if n.get("keepdims", 1) else R.squeeze(result, axes)


@converts("Split")
def _split(n: Node):
    """Split into parts, of which TVM allows only the last one to be empty."""
    sizes = n.known(1) if n.opset >= 13 else n.get("split")
    if sizes is None or np.all(sizes):
        return n.tvm_converter()
    return relax.Tuple(_parts(n, sizes))


def _parts(n: Node, sizes) -> list[relax.Expr]:
    """Return the parts of x, of these sizes, along the node's axis."""
    axis, ends = n.get("axis", 0) % n.rank, np.cumsum(sizes).tolist()
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return [R.strided_slice(n.x, [axis], [begin], [end]) for begin, end in bounds]


@converts("SplitToSequence")
def _split_to_sequence(n: Node):
    """Split into parts of a size, of which the last may be smaller; TVM evens the parts out."""
    axis, given = n.get("axis", 0) % n.rank, n.known(1)
    size = n.shape[axis]
    sizes = np.ones(size, "int64") if given is None else given
    if not sizes.ndim:
        sizes = np.minimum(sizes, size - np.arange(0, size, sizes))
    if sizes.sum() != size:
        raise ValueError(f"SplitToSequence: expected parts of {size} in sum, got {sizes.tolist()}")
    parts = [n.emit(part) for part in _parts(n, sizes)]
    is_squeezed = given is None and not n.get("keepdims", 1)
    return relax.Tuple([R.squeeze(part, [axis]) for part in parts] if is_squeezed else parts)


@converts("SequenceInsert")
def _sequence_insert(n: Node):
    """Insert a tensor before a position; TVM takes a negative one for one further behind."""
    tensors, size = list(n.inputs[0]), len(n.inputs[0])
    position = size if n.inputs[2] is None else n.known_int(2)
    if not -size <= position <= size:
        raise IndexError(f"SequenceInsert: its position is {position} in a sequence of {size}")
    tensors.insert(position, n.inputs[1])
    return relax.Tuple(tensors)


@converts("Slice")
def _slice(n: Node):
    """Slice; backwards, slice the flipped axis forwards, which serves a dynamic one, too.

    Where nothing is within the bounds, TVM fails if the end lies before the begin. It adds the step to a
    size, in 64 bits.
    """
    if not isinstance(n.inputs[0].ty, relax.TensorType):
        return n.tvm_converter()
    x, (begins, ends, axes, steps) = n.x, (n.known(i) for i in range(1, 5))
    begins, ends = begins.astype("int64"), ends.astype("int64")
    axes = np.arange(len(begins)) if axes is None else axes
    steps = np.ones_like(begins) if steps is None else np.clip(steps, -_LONGEST, _LONGEST)
    for axis in axes[steps < 0].tolist():
        x = n.emit(R.flip(x, axis))
    last = [n.shape[axis] - 1 for axis in axes]  # where ONNX moves the begin of a backward one
    begins, ends = (np.where(steps < 0, -1 - each, each) for each in (begins, ends))
    begins, steps = np.where(steps < 0, np.minimum(begins, last), begins), abs(steps)
    begins, ends = (np.where(each <= -_LONGEST, 0, each) for each in (begins, ends))
    if np.all((begins == 0) & (ends >= _LONGEST) & (steps == 1)):
        return x
    none = [
        not range(n.shape[axis])[begin:end:step]
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True)
    ]
    pairs = (0, begins), (0, ends), (1, steps)
    bounds = (np.where(none, other, each).astype("int64") for other, each in pairs)
    begins, ends, steps = map(n.const, bounds)
    return n.tvm_converter(x, begins, ends, n.const(axes), steps)


@converts("Pad")
def _pad(n: Node):
    """Pad, or crop where a width is negative, with operators; TVM's kernel is for one static shape."""
    mode, rank = n.text("mode", "constant"), n.rank
    reason = f"Pad with mode {mode!r}: expected constant, edge, reflect or wrap"
    n.refuse_if(mode not in ("constant", "edge", "reflect", "wrap"), reason)
    axes = list(range(rank)) if n.inputs[3] is None else (n.known(3).reshape(-1) % rank).tolist()
    ends = n.known(1).reshape(2, -1).tolist()
    if not axes:
        return n.x
    x, pairs = n.x, zip(axes, *ends, strict=True)
    widths = {axis: _within(n.shape[axis], before, after) for axis, before, after in pairs}
    if min(0, *ends[0], *ends[1]) < 0:
        first = [max(-before, 0) for before, _ in widths.values()]
        last = [n.shape[axis] + min(after, 0) for axis, (_, after) in widths.items()]
        x = n.emit(R.strided_slice(x, axes, first, last))
        widths = {axis: (max(before, 0), max(after, 0)) for axis, (before, after) in widths.items()}
    if mode == "constant":
        value = 0 if n.inputs[2] is None else n.known(2).item()
        if abs(value) > _EXACT and n.dtype in ("int64", "uint64"):  # an attribute is a float64
            return n.tvm_converter()
        return R.nn.pad(x, [width for axis in range(rank) for width in widths.get(axis, (0, 0))], mode, value)
    for axis, (before, after) in widths.items():
        if before or after:
            indices = n.emit(_padding_indices(shape_of(x)[axis], before, after, mode))
            x = n.emit(R.take(x, indices, axis, "clip"))
    return x


def _within(size: int, before: int, after: int) -> tuple[int, int]:
    """Return an axis's pad widths; one that crops more than the axis has crops the other's padding."""
    return max(before, -size) + min(after + size, 0), max(after, -size) + min(before + size, 0)


def _padding_indices(size: int, before: int, after: int, mode: str) -> relax.Expr:
    """Return the indices into an axis that pad it, in NumPy's modes edge, reflect and wrap."""
    if not size:
        raise NotImplementedError(f"Pad with mode {mode!r} of an axis without elements: use mode 'constant'")
    indices = R.arange(-before, size + after, 1, "int64")
    last = relax.const(size - 1, "int64")
    if mode == "edge":
        return R.minimum(R.maximum(indices, relax.const(0, "int64")), last)
    if mode == "wrap":
        return R.floor_mod(indices, relax.const(size, "int64"))
    period = relax.const(max(2 * size - 2, 1), "int64")
    indices = R.floor_mod(indices, period)
    return R.minimum(indices, R.subtract(period, indices)) if size > 1 else indices


@converts("Compress")
def _compress(n: Node):
    """Take the elements that a constant condition selects, along an axis, or of the flattened input."""
    axis, taken = n.get("axis"), np.flatnonzero(n.known(1))
    if axis is None:
        x, axis = R.reshape(n.x, (-1,)), 0
        size = math.prod(n.shape)
    else:
        x, size = n.x, n.shape[axis]
    if len(taken) and taken[-1] >= size:
        raise IndexError(f"Compress: its condition takes number {taken[-1]} of {size}")
    return R.take(x, n.const(taken), axis)


@converts("OneHot")
def _one_hot(n: Node):
    """Convert any depth and values; an index may be negative and then counts from the end."""
    rank, depth = n.rank, n.known_int(1)
    axis = n.get("axis", -1) % (rank + 1)
    indices = R.expand_dims(R.astype(n.x, "int64"), axis)
    positions = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(rank + 1)])
    is_hot = R.logical_or(R.equal(indices, n.const(positions)), R.equal(indices, n.const(positions - depth)))
    off, on = (R.strided_slice(n.inputs[2], [0], [i], [i + 1]) for i in (0, 1))
    return R.where(is_hot, on, off)


@converts("Tile")
def _tile(n: Node):
    """Tile with an operator; TVM's kernel is for static shapes."""
    return R.tile(n.x, n.known(1).reshape(-1).tolist())


@converts("Trilu")
def _trilu(n: Node):
    """Move a diagonal that is known to where one beyond the matrix may lie; TVM holds it in 32 bits."""
    k, upper = n.inputs[1], n.get("upper", 1)
    known = np.zeros(()) if k is None else constant_array(get_constant(k, n.params))
    if known is not None:
        beyond = sum(n.shape[-2:])
        return (R.triu if upper else R.tril)(n.x, int(np.clip(known, -beyond, beyond).item()))
    rows, columns = (counter(n.shape[-2:], axis) for axis in (0, 1))
    distance = R.subtract(columns, rows)
    return R.where((R.greater_equal if upper else R.less_equal)(distance, k), n.x, n.const(0))


@converts("TopK")
def _top_k(n: Node):
    reason = "TopK of uint64: TVM sorts no such numbers; cast them to int64 before"
    n.refuse_if(n.dtype == "uint64", reason)
    count = n.get("k") if n.opset < 10 else n.known(1).item()
    if count == 0:  # TVM's k for all
        none = n.emit(R.strided_slice(n.x, [n.get("axis", -1)], [0], [0]))
        return relax.Tuple([none, R.astype(none, "int64")])
    return n.tvm_converter(*n.inputs, sorted=1)  # of elements in any order, too


@converts("CumProd")
def _cum_prod(n: Node):
    axis, back = n.known_int(1) % n.rank, n.get("reverse", 0)
    product = R.cumprod(R.flip(n.x, axis) if back else n.x, axis, n.dtype, bool(n.get("exclusive", 0)))
    return R.flip(product, axis) if back else product


@converts("EyeLike")
def _eye_like(n: Node):
    dtype = get_type(n.get("dtype")) if n.get("dtype") else n.dtype
    return n.const(np.eye(*n.shape, k=n.get("k", 0)).astype(dtype))


@converts("MelWeightMatrix")
def _of_constants(n: Node):
    """Evaluate with ONNX's reference implementation, as all inputs are constants."""
    arrays = {f"x{i}": n.known(i) for i in range(len(n.inputs))}
    given = {name: value for name, value in n.attributes.items() if name != "tvm_custom"}
    node = make_node(n.op, list(arrays), ["y"], **given)
    (result,) = ReferenceEvaluator(node, opsets={"": n.opset}).run(None, arrays)
    return n.const(result)


@converts("BitCast")
def _bit_cast(n: Node):
    """Reinterpret the bits of each element as another dtype of the same width."""
    dtype = get_type(n.get("to"))
    n.refuse_if("bool" in (dtype, n.dtype), "BitCast of bool, which TVM keeps in one bit")

    def bits(x):
        return te.compute(x.shape, lambda *indices: tirx.reinterpret(dtype, x(*indices)), "bit_cast")

    return n.builder.emit_te(bits, n.x)


@converts("ReverseSequence")
def _reverse_sequence(n: Node):
    """Reverse the first elements of each sequence of a batch, as many as its length says."""
    time, batch = n.get("time_axis", 0), n.get("batch_axis", 1)
    lengths = n.checked(n.inputs[1], [n.shape[time] + 1], negative=False)
    return reversed_sequences(n.builder, n.x, n.emit(R.astype(lengths, "int64")), time, batch)


@converts("TensorScatter")
def _tensor_scatter(n: Node):
    """Write an update into a cache along an axis, at one start index for each sequence of a batch."""
    update, begin = n.inputs[1], n.inputs[2]
    axis = n.get("axis", -2) % n.rank
    count, size = int(update.ty.shape[axis]), n.shape[axis]
    circular = n.text("mode", "linear") == "circular"
    begin = relax.const(np.zeros(n.shape[0]), "int64") if begin is None else begin
    begin = n.checked(begin, [size if circular else size - count + 1], negative=False)
    indices = R.subtract(counter(n.shape, axis), along(begin, n.shape, 0))
    if circular:
        indices = R.floor_mod(indices, relax.const(size, "int64"))
    zero, last = relax.const(0, "int64"), relax.const(count - 1, "int64")
    indices = n.emit(R.broadcast_to(indices, n.shape))
    clipped = n.emit(R.minimum(R.maximum(indices, zero), last))
    return R.where(R.equal(indices, clipped), R.gather_elements(update, clipped, axis), n.x)


@converts("Det")
def _det(n: Node):
    """Multiply, in float64, the pivots of the matrix's LU factors."""
    count, size = math.prod(n.shape[:-2]), n.shape[-1]
    flat = n.emit(R.reshape(R.astype(n.x, "float64"), (count, size, size)))
    types = ((count, size, size), "float64"), ((count, size), "int64"), ((count,), "float64")
    types += ((count,), "int32"), ((count, size), "int32")
    factors, _, sign, *_ = n.call("lu", linalg.lu(count, size, "float64"), [flat], *types)
    pivots = R.where(n.const(np.eye(size, dtype=bool)), factors, relax.const(1.0, "float64"))
    result = R.multiply(R.prod(pivots, [1, 2]), sign)
    return R.astype(R.reshape(result, n.shape[:-2]), n.dtype)


# ---------------------------------------------------------------- indices


def _checked(n: Node, bounds: dict[int, list[int]], negative: bool = True) -> relax.Expr:
    """Check inputs against `bounds`, lists by the input's number, and apply TVM's converter."""
    inputs = list(n.inputs)
    for number, each in bounds.items():
        if isinstance(inputs[number].ty, relax.TensorType):  # a shape holds no wrong index
            inputs[number] = n.checked(inputs[number], each, negative)
    return n.tvm_converter(*inputs)


@converts("Gather", "GatherElements", "ScatterElements")
def _along_an_axis(n: Node):
    size = n.shape[n.get("axis", 0)]
    is_taken = n.op == "Gather" and all(isinstance(each.ty, relax.TensorType) for each in n.inputs)
    if is_taken and not isinstance(n.x, tvm.ir.GenericConst):  # TVM would look for negative indices again
        return R.take(n.x, n.checked(n.inputs[1], [size]), n.get("axis", 0))
    return _checked(n, {1: [size]})


@converts("Scatter")
def _scatter(n: Node):
    """Scatter as ScatterElements does, which is its newer name; TVM has other operators for some indices."""
    axis = n.get("axis", 0)
    return R.scatter_elements(n.x, n.checked(n.inputs[1], [n.shape[axis]]), n.inputs[2], axis)


@converts("GatherND", "ScatterND")
def _coordinates(n: Node):
    first, count = n.get("batch_dims", 0), shape_of(n.inputs[1])[-1]
    sizes = n.shape[first : first + count]
    if n.op == "GatherND":  # TVM would look for negative indices again, by the sizes of examples
        return R.gather_nd(n.x, n.checked(n.inputs[1], sizes), first)
    return _checked(n, {1: sizes})


@converts("EmbedLayerNormalization")
def _embeddings(n: Node):
    tables = {i: table for i, table in ((0, 2), (1, 4), (8, 3)) if n.inputs[i] is not None}
    bounds = {i: shape_of(n.inputs[table])[:1] for i, table in tables.items()}
    return _checked(n, bounds, negative=False)


@converts("RoiAlign")
def _roi_align(n: Node):
    """Align regions; TVM's mode "max" is another: it takes the maximum of interpolated points.

    The corners of half pixels lie half a pixel of the scaled image further up; TVM's frontend takes one of
    the regions' image.
    """
    reason = "RoiAlign of float16, which TVM computes in float32: cast to float32 before"
    n.refuse_if(n.dtype == "float16", reason)
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    is_aligned = n.text("coordinate_transformation_mode", default) == "half_pixel"
    if n.text("mode", "avg") == "max":
        size = n.get("output_height", 1), n.get("output_width", 1)
        how = size, n.get("spatial_scale", 1.0), n.get("sampling_ratio", 0), is_aligned
        images = R.astype(n.checked(n.inputs[2], n.shape[:1], negative=False), "int64")
        result = (shape_of(n.inputs[1])[0], n.shape[1], *size), n.dtype
        inputs = [n.x, n.inputs[1], n.emit(images)]
        return n.call("region_maxima", region_maxima(n.dtype, *how), inputs, result)[0]
    if is_aligned:
        n.inputs[1] = n.emit(R.add(n.inputs[1], n.const(0.5 - 0.5 / n.get("spatial_scale", 1.0))))
    result = _checked(n, {2: n.shape[:1]}, negative=False)
    is_partial = is_aligned and n.get("sampling_ratio", 0) <= 0
    return of_whole_regions(result, n.inputs[1], n.builder) if is_partial else result


converts("MaxRoiPool")(lambda n: n.tvm_converter(n.x, regions(n.inputs[1], n.shape[0], n.op, n.builder)))


@converts("MaxUnpool")
def _max_unpool(n: Node):
    """Write elements at the indices that max pooling returned, which count through the whole output."""
    kernel, rank = n.get("kernel_shape"), n.rank - 2
    strides, _, pads = n.windows(rank)
    shape, wanted = n.shape[:2], n.known(2)
    for i in range(rank):
        shape.append((n.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i])
    wanted = shape if wanted is None else wanted.tolist()
    reason = f"MaxUnpool to output_shape {wanted}: its other attributes lead to {shape}"
    n.refuse_if(wanted != shape, reason)
    indices = n.checked(n.inputs[1], [math.prod(shape)], negative=False)
    zeros = R.zeros([math.prod(shape)], n.dtype)
    return R.reshape(R.scatter_elements(zeros, R.reshape(indices, (-1,)), R.reshape(n.x, (-1,)), 0), shape)
