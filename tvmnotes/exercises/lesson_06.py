"""Exercises of lesson 06: registers of a tile, a 1 by 1 convolution, and the new order of loops alone."""

import math

import numpy as np
import torch
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import SBlockRealize, Schedule

from tvmfast.core import machine

from .. import asm
from .exercise import agree, exercise, require

_LANES = 8  # of a block of channels, whatever the machine has
_MOST_SUMS = 30  # that leave a register for the weights and one for the input, on any CPU


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


def _one_by_one(inputs: int, outputs: int, points: int) -> tirx.PrimFunc:
    """Return the lesson's `one_by_one`: a 1 by 1 convolution with bias and ReLU, on a row of pixels."""
    data = te.placeholder((inputs // _LANES, points, _LANES), name="data")
    kernel = te.placeholder((outputs // _LANES, inputs // _LANES, _LANES, _LANES), name="kernel")
    shift = te.placeholder((outputs // _LANES, _LANES), name="shift")
    i, ii = te.reduce_axis((0, inputs // _LANES), "i"), te.reduce_axis((0, _LANES), "ii")
    conv = te.compute(
        (outputs // _LANES, points, _LANES),
        lambda o, p, c: te.sum(data[i, p, ii] * kernel[o, i, ii, c], axis=[i, ii]),
        name="conv",
    )
    out = te.compute(conv.shape, lambda o, p, c: te.max(conv[o, p, c] + shift[o, c], 0.0), name="out")
    return te.create_prim_func([data, kernel, shift, out])


def _is_a_sum(block) -> bool:
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def _drives_a_sum(sch: Schedule, block) -> list[bool]:
    """Return for each loop around a block whether an axis of its reduction depends on the loop."""
    realized = []

    def visit(realize):
        if realize.block.same_as(sch.get(block)):
            realized.append(realize)

    tvm_ffi.structural_walk(sch.mod["main"].body, (SBlockRealize, visit))
    variables = []
    for axis, value in zip(realized[0].block.iter_vars, realized[0].iter_values, strict=True):
        if axis.iter_type == tirx.IterVar.CommReduce:
            tvm_ffi.structural_walk(value, (tirx.Var, variables.append))
    loops = (sch.get(loop) for loop in sch.get_loops(block))
    return [any(loop.loop_var.same_as(variable) for variable in variables) for loop in loops]


@exercise(
    "06.2",
    "Without kh and kw it is step 6. The picture is one row, so the tile must divide its number of pixels.",
    "Order: tile, o, i, ii, pixel, c. Move `out` to the loop o, make the buffer of conv local, decompose at "
    "i, and unroll the pixels of conv_update, conv_init and out.",
    minutes=40,
    difficulty=3,
)
def pointwise(answer):
    """A 1 by 1 convolution with bias and ReLU."""
    rng = np.random.default_rng(0)
    for inputs, outputs, points in ((32, 16, 196), (16, 24, 49)):
        what = f"{inputs} to {outputs} channels on {points} pixels"
        sch = Schedule(_one_by_one(inputs, outputs, points))
        answer(sch)
        function = sch.mod["main"]

        data = rng.standard_normal((inputs, points), dtype="float32")
        weight = rng.standard_normal((outputs, inputs), dtype="float32") / 4
        shift = rng.standard_normal(outputs, dtype="float32")
        sums = weight @ data + shift[:, None]
        assert sums.min() < 0, "the ReLU must have something to do"
        packed = weight.reshape(outputs // _LANES, _LANES, inputs // _LANES, _LANES).transpose(0, 2, 3, 1)
        arrays = [data.reshape(-1, _LANES, points).transpose(0, 2, 1), packed, shift.reshape(-1, _LANES)]
        wanted = np.maximum(sums, 0).reshape(-1, _LANES, points).transpose(0, 2, 1)
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in arrays]
        result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, "float32"))
        tvm.compile(function, target=machine.host_target())(*tensors, result)
        agree(result.numpy(), wanted, f"the result for {what}", "A schedule must not change the result.")

        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        update = next(block for block in blocks if _is_a_sum(sch.get(block)))
        loops = [sch.get(loop) for loop in sch.get_loops(update)]
        kinds = [loop.kind for loop in loops]
        around = f"the loops around the sums of {what}"
        do = "Call parallel for the loop over tiles, or for it and others that were fused."
        require(tirx.ForKind.PARALLEL in kinds, around, "a parallel one", "none", do)
        last = (tirx.ForKind(kinds[-1]).name.lower(), int(loops[-1].extent))
        do = "Put c innermost, and vectorize it."
        require(last == ("vectorized", _LANES), f"the last of {around}", ("vectorized", _LANES), last, do)
        do = "Call decompose_reduction at the outermost loop of the sum, after all reordering."
        require(sch.get(update).init is None, f"the sums of {what}", "a start outside", "one inside", do)
        scope = sch.get(update).writes[0].source.scope()
        do = "Move `out` into the tile with reverse_compute_at, then call set_scope for `conv`."
        require(scope == "local", f"the buffer of the sums of {what}", "local", scope, do)

        of_sum = _drives_a_sum(sch, update)
        outermost = of_sum.index(True)
        inside = zip(loops[outermost:-1], of_sum[outermost:-1], strict=True)
        tile = [loop for loop, drives in inside if not drives]
        count = math.prod(int(loop.extent) for loop in tile)
        do = "Split the row by a divisor that leaves registers for the weights and the input, and not by 1."
        require(4 <= count <= _MOST_SUMS, f"the sums of a tile of {what}", f"4 to {_MOST_SUMS}", count, do)
        unrolled = all(loop.kind == tirx.ForKind.UNROLLED for loop in tile)
        do = "Registers have fixed names: call unroll for the loops of the tile, inside of the sum."
        require(unrolled, f"the loops of the tile of {what}", "all unrolled", "some that are not", do)
        stored = [sch.get(loop) for loop in sch.get_loops("out")][:outermost]
        together = all(a.same_as(b) for a, b in zip(stored, loops[:outermost], strict=True))
        do = "reverse_compute_at moves it to the end of a tile, where the sums are in registers."
        require(together, f"the block out of {what}", "in the loops of a tile", "outside of them", do)


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
