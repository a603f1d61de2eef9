"""Weights of 8 or 4 bits, activations float32: for language models, whose decoding reads each weight once a token.

The matrix products with weights are exact to their own definition: w = q * scale, with float16 scales of groups
of input channels, as core/packed_weights.py describes. Rounding to the nearest integer, group by group, is what
llama.cpp's Q8_0 and Q4_0 do.
"""

from collections.abc import Collection, Mapping

import numpy as np
import tvm
from tvm import relax

from ..core import packed_weights
from ..core.packed_weights import WORD
from ..core.relax import op_name, static_shape

BITS = {"int8": 8, "int4": 4}


def quantize_weights(
    mod: tvm.IRModule, params: Mapping, weights: str, group: int = 32, skip: Collection[str] = ()
) -> tuple[tvm.IRModule, dict]:
    """Store the weights of matrix products in 8 or 4 bits.

    Weights are parameters of `main` that are the right-hand matrix of a product, as they are or transposed:
    linear layers, also the projection to a vocabulary. Where such a weight is an embedding, too, its rows are
    looked up in the same bits. All other operators and parameters stay as they are.

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
        raise ValueError(f"group: expected a multiple of {WORD}, the input channels of a scale; got {group!r}")
    unknown = sorted(set(skip) - set(params))
    if unknown:
        raise ValueError(f"skip: expected names of parameters, such as {next(iter(params), '')!r}; got {unknown[0]!r}")
    main = mod["main"]
    found = _weights(main, set(params) - set(skip))
    if not found:
        raise ValueError(
            "mod: expected a matrix product with a float32 weight among the parameters, as of a linear layer"
            + ("; skip leaves none" if skip else "; there is none, so weights alone cannot be quantized")
        )
    packed, arrays = {}, {}  # by parameter: the variables; by name
    for var, transposed in found.items():
        array = np.asarray(params[var.name].numpy() if hasattr(params[var.name], "numpy") else params[var.name])
        if not np.isfinite(array).all():
            raise ValueError(
                f"params: {var.name!r} has NaN or infinities, for which no integer stands: name it in skip"
            )
        weight = packed_weights.quantized(array if transposed else array.T, BITS[weights], group)
        named = {var.name: weight.integers, f"{var.name}.scales": weight.scales}
        if f"{var.name}.scales" in params:
            raise ValueError(f"params: {var.name}.scales is taken, the name of a quantized weight's scales")
        arrays |= named
        own = [relax.Var(name, relax.TensorType(a.shape, str(a.dtype))) for name, a in named.items()]
        packed[var] = weight._replace(integers=own[0], scales=own[1])
    changed = relax.analysis.remove_all_unused(_Packed(main, packed, found).visit_expr(main))
    needed = set(relax.analysis.free_vars(changed.body))
    variables = []
    for var in main.params:
        if var.name not in params or var in needed:
            variables.append(var)
        if var in packed:
            variables += packed[var][:2]
    mod = mod.clone()
    mod["main"] = relax.Function(variables, changed.body, changed.ret_ty, main.is_pure, main.attrs)
    arrays = {**params, **arrays}
    return mod, {var.name: arrays[var.name] for var in variables if var.name in arrays}


def _weights(main: relax.Function, names: set[str]) -> dict[relax.Var, bool]:
    """Return the parameters that are weights of products, and whether each is transposed there, as (N, K)."""
    bound, parameters, found = relax.analysis.get_var2val(main), set(main.params), {}
    for call in bound.values():
        match = _weight(call, bound) if op_name(call) == "matmul" else None
        if match is not None and match[0] in parameters and match[0].name in names:
            found.setdefault(*match)
    return found


def _weight(call, bound) -> tuple[relax.Var, bool] | None:
    """Return the variable that is the right-hand matrix of a float32 product, and whether it is transposed."""
    right = call.args[1]
    shape = static_shape(right.ty)
    dtypes = {str(each.ty.dtype) for each in (*call.args, call)}
    if shape is None or len(shape) != 2 or 0 in shape or dtypes != {"float32"}:
        return None
    value = bound.get(right)
    if op_name(value) == "permute_dims":
        axes = value.attrs.axes
        return value.args[0], axes is None or [int(axis) % 2 for axis in axes] == [1, 0]
    return right, False


@relax.expr_functor.mutator
class _Packed(relax.PyExprMutator):
    """A mutator; `packed` maps a parameter to its packed weight, `transposed` to whether it came as (N, K)."""

    def __init__(self, main, packed: dict, transposed: dict):
        super().__init__()
        self.bound = relax.analysis.get_var2val(main)
        self.packed, self.transposed = packed, transposed

    def visit_call_(self, call):
        name = op_name(call)
        if name == "matmul":
            match = _weight(call, self.bound)
            if match is not None and self.transposed.get(match[0]) is match[1]:
                return packed_weights.packed_matmul(self.visit_expr(call.args[0]), self.packed[match[0]])
        elif name == "take" and self.transposed.get(call.args[0]) and call.attrs.axis is not None:
            axis, mode = int(call.attrs.axis), str(call.attrs.mode)
            if axis % 2 == 0 and mode in ("clip", "fast") and isinstance(call.args[1].ty, relax.TensorType):
                return packed_weights.packed_take(self.visit_expr(call.args[1]), self.packed[call.args[0]])
        return super().visit_call_(call)
