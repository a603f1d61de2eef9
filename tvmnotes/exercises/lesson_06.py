"""Exercises of lesson 06: registers of a tile, a 1 by 1 convolution, and the new order of loops alone."""

import numpy as np
import torch
import tvm

from .. import asm
from .exercise import agree, exercise, require


@exercise(
    "06.1",
    "A tile of one pixel needs three registers: its sum, a vector of weights, and the input.",
    "A tile of p pixels needs p + 2 registers. What does not fit goes to the stack; nothing is below 0.",
    minutes=20,
    difficulty=2,
)
def without_a_register(answer):
    """How many vectors of a tile have no register."""
    fitting = {(4, 16): 0, (14, 16): 0, (28, 32): 0}
    do = "Count the registers that the tile needs, and compare with those that there are."
    for (pixels, registers), wanted in fitting.items():
        got = answer(pixels, registers)
        require(
            got == wanted, f"a tile of {pixels} pixels with {registers} registers", "0, as all fit", got, do
        )
    for pixels, registers in ((28, 16), (15, 16), (32, 32)):
        got = answer(pixels, registers)
        what = f"a tile of {pixels} pixels with {registers} registers"
        do = "Beside the sums, count the weights and the input."
        require(
            got == pixels + 2 - registers,
            what,
            "the sums, the weights and the input that do not fit",
            got,
            do,
        )


@exercise(
    "06.2",
    "Treat the picture as one row of 56 · 56 pixels: the tile must divide 3136, and there is nothing to pad.",
    "Pack data as (channels / lanes, pixels, lanes), schedule as in step 6 without kh and kw, and unpack.",
    minutes=40,
    difficulty=3,
)
def pointwise(answer):
    """A 1 by 1 convolution with bias and ReLU."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 256, 56, 56), dtype="float32")
    weight = rng.standard_normal((64, 256, 1, 1), dtype="float32") / 16
    bias = rng.standard_normal(64, dtype="float32")
    sums = weight.reshape(64, 256) @ data.reshape(256, 56 * 56) + bias[:, None]
    assert sums.min() < 0, "the ReLU must have something to do"
    reference = np.maximum(sums, 0).reshape(1, 64, 56, 56)
    do = "Add the bias, apply the ReLU, and unpack the result to NCHW."
    agree(answer(data, weight, bias), reference, "the result of the convolution", do)


@exercise(
    "06.3",
    "Reorder the loops of step 1 to n, y, o, i, kh, kw, x; this is all that the new order is.",
    "For vectorized=True split x by gcd(56, 8) and vectorize the inner part; both use all cores.",
    minutes=20,
    difficulty=2,
)
def order_alone(answer):
    """The new order of loops, without and with `vectorize`."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 64, 56, 56), dtype="float32")
    weight = rng.standard_normal((64, 64, 3, 3), dtype="float32") / 24
    shift = rng.standard_normal(64, dtype="float32")
    x, w, b = map(torch.from_numpy, (data, weight, shift))
    reference = torch.relu(torch.nn.functional.conv2d(x, w, b, padding=1)).numpy()
    for vectorized in (False, True):
        name = f"answer({vectorized})"
        kernel = answer(vectorized)
        out = tvm.runtime.tensor(np.zeros(reference.shape, "float32"))
        kernel(*map(tvm.runtime.tensor, (data, weight, shift)), out)
        agree(out.numpy(), reference, f"the result of {name}", "A schedule must not change the result.")
        found = asm.multiply_adds(kernel)
        packed = [instruction for instruction in found if "ps" in instruction or "fmla" in instruction]
        do = "Put the loop over x innermost, so that neighbouring sums lie side by side."
        require(bool(packed), f"the multiply-adds of {name}", "packed ones, of whole vectors", found, do)
