"""Weights of 8 or 4 bits, and the calls in a graph that read them: matrix products and look-ups of rows.

A weight (N, K), N output and K input channels, is integers times scales: a float16 scale for each group of
input channels of an output channel, the last group of which may be shorter. 8 bits are int8 (N, K), from -127
to 127. 4 bits, from -8 to 7, are words of int32, (N, ceil(K / 8)): the bits 4 i to 4 i + 3 of a word are
channel i of eight. Products of the integers and their scales are exact in float32.

`quantization/weights_only.py` emits the calls; `compiler/graph/packed_weights.py` lowers them to kernels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .relax import ceildiv, op_name, round_up

MATMUL, TAKE = "tvmfast.packed_matmul", "tvmfast.packed_take"
WORD = 8  # weights of 4 bits in a word


class Packed(NamedTuple):
    """A weight: `integers` (int8, or int32 for 4 bits), `scales`, the `group`, and its input channels."""

    integers: Any
    scales: Any
    group: int
    depth: int


def quantized(weight: np.ndarray, bits: int, group: int) -> Packed:
    """Round a finite float weight (N, K) to `bits`, with the least error that its largest elements allow.

    8 bits: the largest magnitude of a group becomes 127 or -127. 4 bits: the element of the largest magnitude
    becomes -8, so that all 16 values are used and a scale may be negative; that is llama.cpp's Q4_0.
    """
    columns, depth = weight.shape
    group = min(group, round_up(depth, WORD))
    groups = ceildiv(depth, group)
    padded = np.zeros((columns, groups * group), "float32")
    padded[:, :depth] = weight
    padded = padded.reshape(columns, groups, group)
    at = np.abs(padded).argmax(-1)[..., None]
    largest = np.take_along_axis(padded, at, -1)[..., 0]
    limit = float(np.finfo("float16").max)
    scales = (np.abs(largest) / 127 if bits == 8 else largest / -8).clip(-limit, limit).astype("float16")
    with np.errstate(divide="ignore", invalid="ignore"):
        rounded = np.rint(padded / scales.astype("float32")[..., None])
    rounded = np.nan_to_num(rounded, nan=0, posinf=0, neginf=0)  # of scales that are 0
    least = -127 if bits == 8 else -8
    integers = rounded.clip(least, 127 if bits == 8 else 7).astype("int8")
    integers = integers.reshape(columns, groups * group)[:, :depth]
    return Packed(integers if bits == 8 else in_words(integers), scales, group, depth)


def in_words(integers: np.ndarray) -> np.ndarray:
    """Pack integers (N, K) from -8 to 7 into words (N, ceil(K / 8)), with zeros at the end."""
    columns, depth = integers.shape
    padded = np.zeros((columns, ceildiv(depth, WORD), WORD), "uint32")
    padded.reshape(columns, -1)[:, :depth] = integers.astype("uint8") & 15
    shifts = np.arange(0, 32, 4, dtype="uint32")
    return np.bitwise_or.reduce(padded << shifts, axis=-1).view("int32")


def integers_of(weight: Packed) -> np.ndarray:
    """Unpack the integers, int8 (N, K)."""
    words = weight.integers
    if words.dtype == np.int8:
        return words
    nibbles = (words[..., None] << np.arange(28, -1, -4, dtype="int32")) >> 28
    return nibbles.astype("int8").reshape(len(words), -1)[:, : weight.depth]


def dequantized(weight: Packed) -> np.ndarray:
    """Return the float32 weight (N, K) that a packed one stands for."""
    scales = np.repeat(weight.scales.astype("float32"), weight.group, axis=1)[:, : weight.depth]
    return integers_of(weight).astype("float32") * scales


# ---------------------------------------------------------------- calls in a graph


def packed_matmul(x: relax.Expr, weight: Packed) -> relax.Expr:
    """Multiply float32 `x` (…, M, K), or (K,), by the transpose of a weight of expressions."""
    leading = _shape(x)[:-1]
    return _call(MATMUL, x, weight, (*leading, weight.integers.ty.shape[0]))


def packed_take(index: relax.Expr, weight: Packed) -> relax.Expr:
    """Look up rows of a weight of expressions, as float32 (…, K); an index out of range is clipped."""
    return _call(TAKE, index, weight, (*_shape(index), weight.depth))


def _shape(x: relax.Expr) -> tuple:
    return tuple(relax.BlockBuilder().normalize(x).ty.shape)


def _call(name: str, x: relax.Expr, weight: Packed, shape: tuple) -> relax.Expr:
    numbers = map(relax.prim_value, (weight.group, weight.depth))
    ty = relax.TensorType(shape, "float32")
    return relax.call_pure_packed(name, x, weight.integers, weight.scales, *numbers, ty_args=ty)


def arguments(call: relax.Expr, name: str) -> tuple[relax.Expr, Packed] | None:
    """Return the arguments of a call that `packed_matmul` or `packed_take` made; None for any other call."""
    if op_name(call) != "call_pure_packed" or getattr(call.args[0], "global_symbol", "") != name:
        return None
    _, x, integers, scales, group, depth = call.args
    return x, Packed(integers, scales, *(int(getattr(n, "value", n)) for n in (group, depth)))


def _on_any_device(evaluate: Callable) -> Callable:
    """Evaluate a call that no kernel has replaced."""

    def run(x: Any, integers: Any, scales: Any, group: int, depth: int) -> tvm.runtime.Tensor:
        weight = dequantized(Packed(integers.numpy(), scales.numpy(), group, depth))
        return tvm.runtime.tensor(np.ascontiguousarray(evaluate(x.numpy(), weight)), x.device)

    return run


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x @ weight.T


def _rows(index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight.take(index, 0, mode="clip")


for _name, _evaluate in ((MATMUL, _product), (TAKE, _rows)):
    tvm_ffi.register_global_func(_name, _on_any_device(_evaluate), override=True)
