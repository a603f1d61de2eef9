"""Exercises of lesson 07: a depthwise convolution, a border in a tile, sums in vectors, a large element."""

import math
import re
from itertools import takewhile

import numpy as np
import torch
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmfast.core import machine

from .exercise import agree, exercise, require, require_keys


def _shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in parameter.shape) for parameter in function.params]


def _run(function: tvm.tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    """Compile a function and run it on arrays; its last parameter is the result."""
    out = tvm.runtime.tensor(np.zeros(_shapes(function)[-1], "float32"))
    tvm.compile(function, target=machine.host_target())(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


@exercise(
    "07.1",
    "Begin with the lesson's `padded`. The result has one window for each stride-th row and column.",
    "(height - 1) // stride + 1 rows; the window of (c, y, x) begins at pad[c, y * stride, x * stride].",
    minutes=20,
    difficulty=2,
)
def depthwise(answer):
    """A depthwise convolution in TE."""
    for channels, height, width, stride in ((3, 6, 10, 1), (4, 9, 8, 2), (2, 7, 7, 3)):
        of = f"{channels} channels of {height} by {width} with a stride of {stride}"
        function = answer(channels, height, width, stride)
        do = "Return te.create_prim_func([data, weight, result])."
        is_function = isinstance(function, tvm.tirx.PrimFunc)
        require(is_function, "the answer", "a function of TensorIR", type(function).__name__, do)
        rows, columns = (height - 1) // stride + 1, (width - 1) // stride + 1
        wanted = [(channels, height, width), (channels, 3, 3), (channels, rows, columns)]
        do = "With the border, a window can begin at each row and column of the data; each stride-th does."
        got = _shapes(function)
        require(got == wanted, f"the shapes of data, weight and result for {of}", wanted, got, do)
        rng = np.random.default_rng(channels)
        data = rng.standard_normal(wanted[0], dtype="float32")
        weight = rng.standard_normal(wanted[1], dtype="float32")
        x, w = torch.from_numpy(data)[None], torch.from_numpy(weight)[:, None]
        reference = torch.conv2d(x, w, stride=stride, padding=1, groups=channels)[0].numpy()
        result = _run(function, data, weight)
        mixed = torch.conv2d(x.sum(1, keepdim=True), w, stride=stride, padding=1)[0].numpy()
        do = "Channels do not meet: the axes of the sum are the two of the window."
        all_channels = np.abs(result - mixed).max() < 1e-4
        require(not all_channels, f"the result for {of}", "a sum over the window", "one over channels", do)
        do = "Draw the picture with its border: which of its elements does the window of (c, 0, 0) read?"
        agree(result, reference, f"the result for {of}", do)


def _layer(channels: int, size: int) -> tvm.tirx.PrimFunc:
    """Return the lesson's layer: a border of zeros, a convolution and a ReLU."""
    data = te.placeholder((channels, size, size), name="data")
    weight = te.placeholder((channels, channels, 3, 3), name="weight")
    i, kh, kw = (te.reduce_axis((0, n), name) for n, name in ((channels, "i"), (3, "kh"), (3, "kw")))

    def border(c, y, x):
        return te.if_then_else(te.all(y > 0, y <= size, x > 0, x <= size), data[c, y - 1, x - 1], 0.0)

    def element(o, y, x):
        return te.sum(pad[i, y + kh, x + kw] * weight[o, i, kh, kw], axis=[i, kh, kw])

    pad = te.compute((channels, size + 2, size + 2), border, name="pad")
    conv = te.compute(data.shape, element, name="conv")
    relu = te.compute(data.shape, lambda o, y, x: te.max(conv[o, y, x], 0.0), name="relu")
    return te.create_prim_func([data, weight, relu])


def _shared(sch: Schedule, block: str) -> tuple[int, int]:
    """Return how often the loops that a block shares with `conv` run, and how often its own run in each."""
    loops, of_conv = ([sch.get(loop) for loop in sch.get_loops(name)] for name in (block, "conv"))
    pairs = zip(loops, of_conv, strict=False)
    count = sum(1 for _ in takewhile(lambda pair: pair[0].same_as(pair[1]), pairs))
    extents = [int(loop.extent) for loop in loops]
    return math.prod(extents[:count]), math.prod(extents[count:])


@exercise(
    "07.2",
    "Split y, and put the loop over tiles outside of all others; then compute_at and reverse_compute_at.",
    'Order: tile, o, row, x, i, kh, kw. Then compute_at("pad", tile) and reverse_compute_at("relu", tile).',
    minutes=20,
    difficulty=2,
)
def border_in_a_tile(answer):
    """The border of zeros, computed inside a tile of rows."""
    for channels, size, rows in ((4, 10, 5), (6, 8, 2)):
        of = f"with {channels} channels, {size} rows and tiles of {rows}"
        sch = Schedule(_layer(channels, size))
        answer(sch, rows)
        script = sch.mod.script()
        for block in ("pad", "conv", "relu"):
            do = "Move blocks with compute_at and reverse_compute_at; compute_inline removes them."
            there = f'T.sblock("{block}")' in script
            require(there, f"the blocks {of}", f"{block} among them", "none of this name", do)
        times, elements = _shared(sch, "pad")
        do = "Call compute_at for pad, with a loop of conv."
        require(times > 1, f"how often pad is computed {of}", "once in each tile", "once, before all", do)
        do = "Put the loop over tiles outside of that over output channels, and pad directly inside of it."
        require(times == size // rows, f"how often pad is computed {of}", size // rows, times, do)
        do = "A tile of rows needs its own rows and one more on each side. Split y by `rows`."
        wanted = channels * (rows + 2) * (size + 2)
        require(elements == wanted, f"the elements of pad in each tile {of}", wanted, elements, do)
        got = _shared(sch, "relu")
        do = "Call reverse_compute_at for relu, with the loop over tiles."
        wanted = (size // rows, channels * rows * size)
        require(got == wanted, f"the tiles, and the elements of relu in each, {of}", wanted, got, do)
        rng = np.random.default_rng(size)
        data = rng.standard_normal((channels, size, size), dtype="float32")
        weight = rng.standard_normal((channels, channels, 3, 3), dtype="float32")
        reference = torch.conv2d(torch.from_numpy(data)[None], torch.from_numpy(weight), padding=1)[0]
        result = _run(sch.mod["main"], data, weight)
        agree(result, reference.relu().numpy(), f"the result {of}", "A schedule must not change the result.")


def _vectors_of_additions(script: str) -> list[int]:
    """Return the lengths of the vectorized loops that have an addition to a sum in them."""
    lines = script.splitlines()
    lengths = []
    for at, line in enumerate(lines):
        if loop := re.match(r"( *)for \w+ in T\.vectorized\((\d+)\)", line):
            body = takewhile(lambda inner, loop=loop: inner.startswith(loop[1] + " "), lines[at + 1 :])
            if any(re.search(r"(\S+\[.*?\]) = \1 \+ ", inner) for inner in body):
                lengths.append(int(loop[2]))
    return lengths


@exercise(
    "07.3",
    "Split the columns by lanes, and factor the inner loop out of the sum. What is it then, S or R?",
    "rf = sch.rfactor(inner, factor_axis=1), then sch.vectorize(sch.get_loops(rf)[-1]).",
    minutes=25,
    difficulty=3,
)
def squares(answer):
    """Sums of squares that fill a vector."""
    for rows, columns, lanes in ((3, 96, 8), (5, 64, 16)):
        of = f"{rows} rows, {columns} columns and {lanes} lanes"
        sch = answer(rows, columns, lanes)
        do = "Make the function with te.create_prim_func, and return Schedule(function) when it is scheduled."
        require(isinstance(sch, Schedule), "the answer", "a Schedule", type(sch).__name__, do)
        function = sch.mod["main"]
        wanted, got = [(rows, columns), (rows,)], _shapes(function)
        do = "The parameters are the array and the sums; what lies between them is no parameter."
        require(got == wanted, f"the shapes of the parameters for {of}", wanted, got, do)
        array = np.random.default_rng(rows).standard_normal((rows, columns), dtype="float32")
        reference = np.sum(array.astype("float64") ** 2, axis=1)
        agree(_run(function, array), reference, f"the sums for {of}", "Add the square of each element.")
        lengths = _vectors_of_additions(sch.mod.script())
        do = "The loop over columns is a reduction. Give each lane its own sum with rfactor, then vectorize."
        what = f"the vectorized loops around an addition for {of}"
        require(lanes in lengths, what, f"one of {lanes}", lengths, do)


@exercise(
    "07.4",
    "Leave out the outputs that read the large element: rows and columns 13 to 15 of every channel.",
    "Call each kernel with both arrays, and direct_in_float64 too: np.abs(result - exact)[:, unread].max().",
    minutes=25,
    difficulty=3,
)
def large_element(answer):
    """The errors that one large element causes elsewhere."""
    require_keys(answer, ("direct", "2 × 2", "4 × 4"), "Each key has two errors: before and after.")
    growth = {}
    for name, errors in answer.items():
        before, after = (float(error) for error in errors)
        do = "Take absolute errors, over the outputs that do not read the element."
        require(0 < before < 1e-2, f"the error of {name} before", "a rounding error, above 0", before, do)
        growth[name] = after / before
    never = "No output that does not read the element adds it to anything here: leave out those that do."
    always = "The transform adds the element to others of its tile: set x[0, 14, 14] = 1e4 before the call."
    for name in ("direct", "2 × 2"):
        what = f"how often the error of {name} has grown"
        require(growth[name] < 3, what, "about 1", f"{growth[name]:.1f}", never)
    what = "how often the error of 4 × 4 has grown"
    require(growth["4 × 4"] > 10, what, "10 or more", f"{growth['4 × 4']:.1f}", always)
