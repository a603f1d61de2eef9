"""Exercises of the capstone: the bound of a depthwise convolution, its schedule, and the loads of a tile."""

import re

import numpy as np
import torch
import tvm
from torch import nn
from tvm import te, tirx, topi
from tvm.tirx import ForKind

from tvmfast.core import machine

from .exercise import agree, exercise, require

_SIZE = 56
_LANES = 8  # of a block of channels, whatever the machine has


def _plain(blocks: int) -> tvm.tirx.PrimFunc:
    """Return the lesson's computation of a depthwise convolution with bias and ReLU6."""
    data = te.placeholder((1, blocks, _SIZE, _SIZE, _LANES), name="data")
    kernel = te.placeholder((blocks, 3, 3, _LANES), name="kernel")
    shift = te.placeholder((blocks, _LANES), name="shift")
    pad = topi.nn.pad(data, [0, 0, 1, 1, 0], name="pad")
    kh = te.reduce_axis((0, 3), "kh")
    kw = te.reduce_axis((0, 3), "kw")

    def element(n, o, y, x, c):
        return te.sum(pad[n, o, y + kh, x + kw, c] * kernel[o, kh, kw, c], axis=[kh, kw])

    def stored(n, o, y, x, c):
        return tirx.min(tirx.max(conv[n, o, y, x, c] + shift[o, c], 0.0), 6.0)

    conv = te.compute(data.shape, element, name="conv")
    out = te.compute(conv.shape, stored, name="out")
    return te.create_prim_func([data, kernel, shift, out])


def _to_blocks(array: np.ndarray) -> np.ndarray:
    """(N, C, H, W) to (N, C / lanes, H, W, lanes)."""
    n, channels, height, width = array.shape
    split = array.reshape(n, channels // _LANES, _LANES, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def _around_the_sums(schedule: tvm.s_tir.Schedule) -> set[ForKind]:
    """Return the kinds of the loops around the block that adds up, `conv` or what became of it."""
    blocks = [
        block
        for block in schedule.get_child_blocks(schedule.get_sblock("root"))
        if any(axis.iter_type == tirx.IterVar.CommReduce for axis in schedule.get(block).iter_vars)
    ]
    return {ForKind(schedule.get(loop).kind) for block in blocks for loop in schedule.get_loops(block)}


@exercise(
    "capstone.1",
    "Two times: that of all operations at the peak, and that of all bytes at the bandwidth. Which counts?",
    "The larger of 2 · 9 · elements / flops and 4 · (2 · elements + 9 · channels + channels) / bandwidth.",
    minutes=10,
    difficulty=1,
)
def least_time(answer):
    """The time of the kernel at the machine's limit."""
    for channels, size, flops, bandwidth in ((144, 56, 5e11, 5e10), (32, 112, 1e10, 5e10)):
        elements = channels * size**2
        computing, memory = 18 * elements / flops, 8 * (elements + 5 * channels) / bandwidth
        got = float(answer(channels, size, flops, bandwidth))
        what = f"ms of {channels} channels at {flops / 1e9:.0f} GFLOP/s and {bandwidth / 1e9:.0f} GB/s"
        do = "A multiply-add is two operations; an element of float32 has 4 bytes. The longer time counts."
        wanted = max(computing, memory)
        require(abs(got / wanted - 1) < 1e-3, what, f"{wanted * 1e3:.4f}", f"{got * 1e3:.4f}", do)


@exercise(
    "capstone.2",
    "Begin with step 6 of lesson 06: a tile of pixels, `out` moved into it, the sums in a local buffer.",
    "Split y and x; order: n, o, part, row, tile, kh, kw, pixel, c; put `pad` into the parallel loop.",
    minutes=90,
    difficulty=3,
)
def depthwise_schedule(answer):
    """A faster depthwise convolution."""
    for blocks in (2, 3):
        channels = blocks * _LANES
        torch.manual_seed(blocks)
        layer = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        x = 4 * np.random.default_rng(blocks).standard_normal((1, channels, _SIZE, _SIZE), dtype="float32")
        with torch.inference_mode():
            reference = nn.functional.relu6(layer(torch.from_numpy(x))).numpy()
        weight = layer.weight.detach().numpy().reshape(blocks, _LANES, 3, 3).transpose(0, 2, 3, 1)
        bias = layer.bias.detach().numpy().reshape(blocks, _LANES)

        schedule = tvm.s_tir.Schedule(_plain(blocks))
        answer(schedule)
        kernel = tvm.compile(schedule.mod, target=machine.host_target())
        wanted = _to_blocks(reference)
        result = tvm.runtime.tensor(np.full_like(wanted, np.nan))
        arguments = (_to_blocks(x), np.ascontiguousarray(weight), bias)
        kernel(*map(tvm.runtime.tensor, arguments), result)
        do = "A schedule must not change the result; compare after each line of it."
        agree(result.numpy(), wanted, f"the result for {blocks} blocks of channels", do)

        kinds, script = _around_the_sums(schedule), schedule.mod.script()
        for kind, do in (
            (ForKind.PARALLEL, "Call parallel for a loop outside of all three blocks, or for one of each."),
            (ForKind.VECTORIZED, "Call vectorize for the loop over c of each block."),
            (ForKind.UNROLLED, "Split x into tiles, and call unroll for the pixels of a tile."),
        ):
            what = "the kinds of the loops around the sums"
            require(kind in kinds, what, f"one that is {kind.name.lower()}", "none", do)
        local = re.search(r"^ *conv\w* = T\.\w*alloc_buffer\(.*scope=\"local\"", script, re.M)
        do = "Move `out` to the end of a tile with reverse_compute_at, then call set_scope for `conv`."
        require(local is not None, "the buffer of the sums", "a local one", "one in memory", do)


@exercise(
    "capstone.3",
    "Windows of neighbouring pixels overlap: a row of p pixels reads p + 2 inputs of each of three rows.",
    "There are (rows + 2) · (pixels + 2) inputs and 9 weights, for 9 · rows · pixels multiply-adds.",
    minutes=15,
    difficulty=2,
)
def loads_of_a_tile(answer):
    """Vector loads for each multiply-add of a tile."""
    for (rows, pixels), wanted in {(1, 1): 2.0, (1, 14): 57 / 126, (2, 7): 45 / 126}.items():
        got = float(answer(rows, pixels))
        do = "Count each input vector of the tile's windows once, and the 9 weights once."
        require(abs(got - wanted) < 1e-6, f"a tile of {rows} by {pixels}", f"{wanted:.3f}", f"{got:.3f}", do)
