"""Weights of 8 or 4 bits, and the calls in a graph that read them: matrix products and look-ups of rows.

A weight (N, K), N output and K input channels, is integers times scales: a scale of float16 or float32 for
each group of input channels of an output channel, the last group of which may be shorter. 8 bits are int8
(N, K). 4 bits, from -8 to 7, are words of int32, (N, ceil(K / 8)): the bits 4 i to 4 i + 3 of a word are
channel i of eight. Products of the integers and their scales are exact in float32.

`with_packed` emits the calls, for `tn.quantize` and for ONNX files with such weights;
`compiler/graph/packed_weights.py` lowers them to kernels.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from .relax import ceildiv, op_name, round_up, static_shape

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


# ---------------------------------------------------------------- weights of a graph


def weights_of(main: relax.Function, names: Collection[str]) -> dict[relax.Var, bool]:
    """Return the parameters that are only weights of products, and whether each is transposed, (N, K).

    Those with look-ups of their rows, too, are among them if they are.
    """
    bound = relax.analysis.get_var2val(main)
    readers: dict[relax.Expr, list[relax.Expr]] = defaultdict(list)
    for value in (*bound.values(), main.body.body):
        relax.analysis.post_order_visit(value, lambda each, value=value: readers[each].append(value))

    def multiplies(var: relax.Var) -> bool:
        return all(_is_product(each) and not each.args[0].same_as(var) for each in readers[var])

    found: dict[relax.Var, bool] = {}
    for var in main.params:
        shape = static_shape(var.ty)
        if var.name not in names or shape is None or len(shape) != 2 or 0 in shape:
            continue
        turned = [each for each in bound if _is_turned(bound[each], var)]
        others = [each for each in readers[var] if not _is_turned(each, var)]
        if turned and all(map(multiplies, turned)) and all(_is_look_up(each, var) for each in others):
            found[var] = True
        elif others and not turned and multiplies(var):
            found[var] = False
    return found


def with_packed(
    mod: tvm.IRModule, params: Mapping[str, Any], packed: Mapping[relax.Var, Packed]
) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Replace parameters of `weights_of` by packed weights of arrays; return a module and its parameters.

    In place of a weight are its integers, under the same name, and its scales, under `name_of_scales`.
    """
    main, arrays = mod["main"], {**params}
    own: dict[relax.Var, Packed] = {}
    for var, weight in packed.items():
        named = {var.name: weight.integers, name_of_scales(var.name): weight.scales}
        arrays |= named
        types = (relax.TensorType(array.shape, str(array.dtype)) for array in named.values())
        integers, scales = map(relax.Var, named, types)
        own[var] = weight._replace(integers=integers, scales=scales)
    changed = relax.analysis.remove_all_unused(_Packed(main, own).visit_expr(main))
    variables = [each for var in main.params for each in (own[var][:2] if var in own else (var,))]
    mod = mod.clone()
    mod["main"] = relax.Function(variables, changed.body, changed.ret_ty, main.is_pure, main.attrs)
    return mod, {var.name: arrays[var.name] for var in variables if var.name in arrays}


def name_of_scales(name: str) -> str:
    """Return the name of the parameter that holds the scales of a weight."""
    return f"{name}.scales"


def _is_product(value: relax.Expr) -> bool:
    """Tell whether a value is a product of float32."""
    return op_name(value) == "matmul" and {str(each.ty.dtype) for each in (*value.args, value)} == {"float32"}


def _is_turned(value: relax.Expr, var: relax.Var) -> bool:
    """Tell whether a value is the transpose of a matrix."""
    if op_name(value) != "permute_dims" or not value.args[0].same_as(var):
        return False
    return value.attrs.axes is None or [int(axis) % 2 for axis in value.attrs.axes] == [1, 0]


def _is_look_up(value: relax.Expr, var: relax.Var) -> bool:
    """Tell whether a value is rows of a matrix, by an index that is a tensor."""
    if op_name(value) != "take" or not value.args[0].same_as(var) or value.attrs.axis is None:
        return False
    index = isinstance(value.args[1].ty, relax.TensorType) and not value.args[1].same_as(var)
    return index and int(value.attrs.axis) % 2 == 0 and str(value.attrs.mode) in ("clip", "fast")


@relax.expr_functor.mutator
class _Packed(relax.PyExprMutator):
    """A mutator; `packed` maps a parameter of `weights_of` to its packed weight."""

    def __init__(self, main: relax.Function, packed: dict[relax.Var, Packed]):
        super().__init__()
        self.bound = relax.analysis.get_var2val(main)
        self.packed = packed

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        name = op_name(call)
        if name == "take" and call.args[0] in self.packed:
            return packed_take(self.visit_expr(call.args[1]), self.packed[call.args[0]])
        if name == "matmul":
            right = call.args[1]
            turned = self.bound.get(right)
            weight = self.packed.get(turned.args[0] if op_name(turned) == "permute_dims" else right)
            if weight is not None:
                return packed_matmul(self.visit_expr(call.args[0]), weight)
        return super().visit_call_(call)
