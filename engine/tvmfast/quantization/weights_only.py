"""Weights of 8 or 4 bits, activations float32: for language models, which read all weights for each token.

Products with such weights are exact to their own definition: w = q * scale, with a float16 scale for each
group of input channels, as core/packed_weights.py describes. Rounding to the nearest integer, group by group,
is what llama.cpp's Q8_0 and Q4_0 do.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np
import tvm
from tvm import relax

from ..core import packed_weights
from ..core.packed_weights import WORD
from ..core.relax import op_name, static_shape
from ..core.specs import shorten

BITS = {"int8": 8, "int4": 4}


def quantize_weights(
    mod: tvm.IRModule, params: Mapping, weights: str, group: int = 32, skip: str | Collection[str] = ()
) -> tuple[tvm.IRModule, dict]:
    """Store the weights of matrix products in 8 or 4 bits.

    Weights are parameters of `main` that are nothing but the right-hand matrix of products, as they are or
    transposed: linear layers, also the projection to a vocabulary. Where such a weight is an embedding, too,
    its rows are looked up in the same bits. All other operators and parameters stay as they are.

    Args:
        mod: A module from a frontend.
        params: Its arrays by name. They are not changed.
        weights: "int8", integers from -127 to 127, or "int4", from -8 to 7.
        group: Input channels that share a scale, a multiple of 8; the last group of a weight may have fewer.
        skip: Names of parameters that stay float.

    Returns:
        A module and parameters for `build`: in place of a weight (N, K), its integers under the same name and
        its scales, float16 (N, groups), under the name with ".scales".

    Raises:
        ValueError: An unknown kind of weights, a group that is no multiple of 8, a name in `skip` that is no
            parameter, a weight with NaN or infinities, or no product with a weight.
    """
    if weights not in BITS:
        raise ValueError(f'weights: expected "int8" or "int4", got {weights!r}')
    if isinstance(group, bool) or not isinstance(group, int) or group < WORD or group % WORD:
        raise ValueError(f"group: expected a multiple of {WORD}, input channels of a scale; got {group!r}")
    skip = {skip} if isinstance(skip, str) else {*skip}
    if unknown := sorted(skip - set(params)):
        raise ValueError(f"skip: expected names of parameters, {shorten(params)}; got {unknown[0]!r}")
    main = mod["main"]
    found = _weights(main, set(params) - skip)
    if not found:
        raise ValueError(
            "mod: expected a matrix product with a float32 weight among the parameters, as of a linear layer"
            + ("; skip leaves none" if skip else "; there is none, so weights alone cannot be quantized")
        )
    packed, arrays = {}, {}  # by parameter: the variables; by name
    for var, transposed in found.items():
        given = params[var.name]
        array = np.asarray(given.numpy() if isinstance(given, tvm.runtime.Tensor) else given)
        if not np.isfinite(array).all():
            raise ValueError(
                f"params: {var.name!r} has NaN or infinities, for which no integer stands: name it in skip"
            )
        if f"{var.name}.scales" in params:
            raise ValueError(f"params: {var.name}.scales is a name for the scales of {var.name}; rename it")
        weight = packed_weights.quantized(array if transposed else array.T, BITS[weights], group)
        named = {var.name: weight.integers, f"{var.name}.scales": weight.scales}
        arrays |= named
        own = [relax.Var(name, relax.TensorType(a.shape, str(a.dtype))) for name, a in named.items()]
        packed[var] = weight._replace(integers=own[0], scales=own[1])
    changed = relax.analysis.remove_all_unused(_Packed(main, packed).visit_expr(main))
    variables = [each for var in main.params for each in (packed[var][:2] if var in packed else (var,))]
    mod = mod.clone()
    mod["main"] = relax.Function(variables, changed.body, changed.ret_ty, main.is_pure, main.attrs)
    arrays = {**params, **arrays}
    return mod, {var.name: arrays[var.name] for var in variables if var.name in arrays}


def _weights(main: relax.Function, names: set[str]) -> dict[relax.Var, bool]:
    """Return the parameters that are only weights of products, and whether each is transposed, (N, K)."""
    bound = relax.analysis.get_var2val(main)
    readers = defaultdict(list)
    for value in (*bound.values(), main.body.body):
        relax.analysis.post_order_visit(value, lambda each, value=value: readers[each].append(value))

    def multiplies(var) -> bool:
        return all(_is_product(each) and not each.args[0].same_as(var) for each in readers[var])

    found = {}
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


def _is_product(value) -> bool:
    """Tell whether a value is a product of float32."""
    return op_name(value) == "matmul" and {str(each.ty.dtype) for each in (*value.args, value)} == {"float32"}


def _is_turned(value, var) -> bool:
    """Tell whether a value is the transpose of a matrix."""
    if op_name(value) != "permute_dims" or not value.args[0].same_as(var):
        return False
    return value.attrs.axes is None or [int(axis) % 2 for axis in value.attrs.axes] == [1, 0]


def _is_look_up(value, var) -> bool:
    """Tell whether a value is rows of a matrix, by an index that is a tensor."""
    if op_name(value) != "take" or not value.args[0].same_as(var) or value.attrs.axis is None:
        return False
    index = isinstance(value.args[1].ty, relax.TensorType) and not value.args[1].same_as(var)
    return index and int(value.attrs.axis) % 2 == 0 and str(value.attrs.mode) in ("clip", "fast")


@relax.expr_functor.mutator
class _Packed(relax.PyExprMutator):
    """A mutator; `packed` maps a parameter of `_weights` to its packed weight."""

    def __init__(self, main, packed: dict):
        super().__init__()
        self.bound = relax.analysis.get_var2val(main)
        self.packed = packed

    def visit_call_(self, call):
        name = op_name(call)
        if name == "take" and call.args[0] in self.packed:
            return packed_weights.packed_take(self.visit_expr(call.args[1]), self.packed[call.args[0]])
        if name == "matmul":
            right = call.args[1]
            turned = self.bound.get(right)
            weight = self.packed.get(turned.args[0] if op_name(turned) == "permute_dims" else right)
            if weight is not None:
                return packed_weights.packed_matmul(self.visit_expr(call.args[0]), weight)
        return super().visit_call_(call)
