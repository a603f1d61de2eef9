"""Weights of 8 or 4 bits, activations float32: for language models, which read all weights for each token.

Products with such weights are exact to their own definition: w = q * scale, with a float16 scale for each
group of input channels, as core/packed_weights.py describes. Rounding to the nearest integer, group by group,
is what llama.cpp's Q8_0 and Q4_0 do.
"""

from collections.abc import Collection, Mapping

import numpy as np
import tvm

from ..core import packed_weights
from ..core.packed_weights import WORD
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
    found = packed_weights.weights_of(main, set(params) - skip)
    if not found:
        raise ValueError(
            "mod: expected a matrix product with a float32 weight among the parameters, as of a linear layer"
            + ("; skip leaves none" if skip else "; there is none, so weights alone cannot be quantized")
        )
    packed = {}
    for var, transposed in found.items():
        given = params[var.name]
        array = np.asarray(given.numpy() if isinstance(given, tvm.runtime.Tensor) else given)
        if not np.isfinite(array).all():
            raise ValueError(
                f"params: {var.name!r} has NaN or infinities, for which no integer stands: name it in skip"
            )
        if packed_weights.name_of_scales(var.name) in params:
            raise ValueError(f"params: {var.name}.scales is a name for the scales of {var.name}; rename it")
        packed[var] = packed_weights.quantized(array if transposed else array.T, BITS[weights], group)
    return packed_weights.with_packed(mod, params, packed)
