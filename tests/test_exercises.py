"""Exercises: a wrong answer is told with the property that it lacks; hints, solutions, progress, notebooks' cells."""

import heapq
import json
import re
import tarfile
import time
from collections import Counter
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import onnx
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax, te, tirx
from tvm.ir.utils import derived_object
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm.relax.frontend import nn as modules
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.runner import PyRunner

import tvmclassic
import tvmnotes as tn
from tvmfast.core import data, kernel_cache
from tvmnotes import lessons
from tvmnotes.exercises import EXERCISES, verdict

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache in which nobody has solved anything, with the run's kernels."""
    kernels = kernel_cache.folder()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))


# ---------------------------------------------------------------- answers that are wrong in one property


def product(n):
    """A times B, where B should be transposed."""
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    return te.create_prim_func([A, B, te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")])


def rows_alone(schedule):
    i, *_ = schedule.get_loops("C")
    schedule.parallel(i)


def end_to_end(passes, mod, is_right):
    for each in passes:
        mod = each(mod)
        if not is_right(mod):
            return [str(each.info.name)]


def with_vectors(n):
    """A loop of 8, where there are 8."""
    schedule = Schedule(without_vectors(n))
    (i,) = schedule.get_loops("relu")
    if n >= 8:
        _, lanes = schedule.split(i, [None, 8])
        schedule.vectorize(lanes)
    return schedule.mod["main"]


def without_vectors(n):
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: te.max(x[i], 0.0), name="relu")])


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() < 0:
            return -x
        return 2 * x


@tvm.instrument.pass_instrument
class Twice:
    def __init__(self):
        self.runs = Counter()

    def run_before_pass(self, mod, info):
        self.runs[info.name] += 1

    def run_after_pass(self, mod, info):
        self.runs[info.name] += 1


def any_gate(mod):
    """Take x * sigmoid(y) for SiLU too."""
    x, y = wildcard(), wildcard()
    pattern = is_op("relax.multiply")(x, is_op("relax.sigmoid")(y))
    mod = mod.clone()
    mod["main"] = rewrite_call(pattern, lambda call, found: relax.op.nn.silu(found[x]), mod["main"])
    return mod


@tvm.instrument.pass_instrument
class NamesTheLast:
    def __init__(self, x):
        self.culprit = None

    def run_after_pass(self, mod, info):
        self.culprit = info.name


def by_text(mod):
    """Look for a word in the printed kernels."""
    kernels = ((name.name_hint, f) for name, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    return {name for name, kernel in kernels if "parallel" not in kernel.script()}


def plain_convolution(vectorized):
    """Step 1 of lesson 06, whose innermost loop is a sum."""
    data = te.placeholder((1, 64, 56, 56), name="data")
    kernel = te.placeholder((64, 64, 3, 3), name="kernel")
    shift = te.placeholder((64,), name="shift")
    pad = tvm.topi.nn.pad(data, [0, 0, 1, 1], name="pad")
    i, kh, kw = (te.reduce_axis((0, n)) for n in (64, 3, 3))
    conv = te.compute(
        data.shape, lambda n, o, y, x: te.sum(pad[n, i, y + kh, x + kw] * kernel[o, i, kh, kw], axis=[i, kh, kw])
    )
    out = te.compute(data.shape, lambda n, o, y, x: te.max(conv[n, o, y, x] + shift[o], 0.0))
    return tvm.compile(te.create_prim_func([data, kernel, shift, out]), target=tn.env.host_target())


def row_of_pixels(sch, unrolled=True, local=True, most=14):
    """A schedule of a 1 by 1 convolution with a tile of so many pixels at most."""
    o, p, c, i, ii = sch.get_loops("conv")
    points = int(sch.get(p).extent)
    tile, pixel = sch.split(p, [None, max(n for n in range(1, most + 1) if points % n == 0)])
    sch.reorder(tile, o, i, ii, pixel, c)
    if local:
        sch.reverse_compute_at("out", o)
        sch.set_scope("conv", 0, "local")
    sch.vectorize(c)
    sch.parallel(tile)
    sch.decompose_reduction("conv", i)
    if unrolled:
        sch.unroll(pixel)


def as_in_2019(sch, factors=(4, None), start=True):
    """The loops of lesson 22's old schedule."""
    i, j, k = sch.get_loops("C")
    outer, inner = sch.split(j, list(factors))
    sch.reorder(outer, i, k, inner)
    sch.parallel(outer)
    sch.vectorize(inner)
    if start:
        sch.decompose_reduction("C", k)


def over_channels(channels, height, width, stride):
    """An ordinary convolution with one window for each output channel, in place of a depthwise one."""
    data = te.placeholder((channels, height, width), name="data")
    weight = te.placeholder((channels, 3, 3), name="weight")
    pad = tvm.topi.nn.pad(data, [0, 1, 1], name="pad")
    i, kh, kw = (te.reduce_axis((0, n)) for n in (channels, 3, 3))
    shape = (channels, (height - 1) // stride + 1, (width - 1) // stride + 1)
    out = te.compute(
        shape,
        lambda c, y, x: te.sum(pad[i, y * stride + kh, x * stride + kw] * weight[c, kh, kw], axis=[i, kh, kw]),
    )
    return te.create_prim_func([data, weight, out])


def one_sum(rows, columns, lanes):
    """Sums of squares without rfactor."""
    data = te.placeholder((rows, columns), name="data")
    k = te.reduce_axis((0, columns))
    total = te.compute((rows,), lambda y: te.sum(data[y, k] * data[y, k], axis=k))
    return tvm.s_tir.Schedule(te.create_prim_func([data, total]))


def extracted(archive, folder):
    """Unpack without a filter."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="fully_trusted")


def checked(archive, folder, links=True):
    """Unpack after a look at each entry, with or without one at links."""
    with tarfile.open(archive) as opened:
        for entry in opened:
            if (links and entry.issym()) or not (folder / entry.name).resolve().is_relative_to(folder.resolve()):
                raise RuntimeError(f"not unpacked: {entry.name}")
        opened.extractall(folder, filter="fully_trusted")


def any_rows(schedule):
    """A space of tiles with as many rows as there are."""
    i, j, k = schedule.get_loops("C")
    i, row = schedule.split(i, schedule.sample_perfect_tile(i, n=2))
    j, column = schedule.split(j, [None, schedule.sample_categorical([8, 16], [0.5, 0.5])])
    schedule.reorder(i, j, k, row, column)
    schedule.unroll(row)
    schedule.vectorize(column)


def as_it_stands(trace, kernel, rows):
    """Replay without another decision."""
    schedule = Schedule(kernel)
    trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule


def fastest_repeat(folder):
    """Compare single repeats, not means."""
    fastest = {}
    for line in (Path(folder) / "database_tuning_record.json").read_text().splitlines():
        number, (_, seconds, *_) = json.loads(line)
        if min(seconds) < 1e10:
            fastest[number] = min(*seconds, fastest.get(number, 1e10))
    return fastest


def lost(schedule, preserve_unit_loops=False):
    """The space of exercise 10.4, with its first fault, or with its second alone."""
    i, j, k = schedule.get_loops("product")
    i, row = schedule.split(i, schedule.sample_perfect_tile(i, n=2, max_innermost_factor=4))
    columns = schedule.sample_categorical([4, 8], [0.5, 0.5])
    j, column = schedule.split(j, [None, columns])
    schedule.reorder(i, j, k, row, column)
    schedule.reverse_compute_at("relu", j, preserve_unit_loops=preserve_unit_loops)
    if schedule.get(columns) == 8:
        schedule.vectorize(column)
    schedule.unroll(schedule.get_loops("relu")[-2])


def shared_out(seconds, servers):
    """Divide the trials beforehand."""
    return max(sum(seconds[first::servers]) for first in range(servers))


def layer(relay, rows, inputs, units, bias_last=False):
    """A layer in Relay."""
    data, weight = relay.var("data", shape=(rows, inputs)), relay.var("weight", shape=(units, inputs))
    bias = relay.var("bias", shape=(units,))
    sums = relay.nn.dense(data, weight)
    body = relay.nn.bias_add(relay.nn.relu(sums), bias) if bias_last else relay.nn.relu(relay.nn.bias_add(sums, bias))
    return relay.Function([data, weight, bias], body)


def transposed(writes="along", reads="along", threads=256, tile=32, scope="shared"):
    """A schedule of a transposition by tiles, whose warps read or write along rows or down columns."""

    def schedule(kernel):
        sch = Schedule(kernel)
        block_y, j, block_x, i = (
            part for loop in sch.get_loops("transposed") for part in sch.split(loop, [None, tile])
        )
        sch.reorder(block_y, block_x, j, i)
        sch.bind(block_y, "blockIdx.y")
        sch.bind(block_x, "blockIdx.x")
        ways = {"transposed": writes}
        if scope:
            copy = sch.cache_read("transposed", 0, scope)
            sch.compute_at(copy, block_x)
            ways[copy] = reads
        for block, way in ways.items():
            outer, inner = sch.get_loops(block)[-2:]
            if way == "down":
                sch.reorder(inner, outer)
                outer, inner = inner, outer
            sch.bind(sch.split(sch.fuse(outer, inner), [None, threads])[1], "threadIdx.x")
        return sch

    return schedule


def a_row_for_each_thread(kernel):
    sch = Schedule(kernel)
    block, thread = sch.split(sch.get_loops("total")[0], [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


def a_warp_for_each_row(kernel, strided=True):
    """Threads that take every 32nd column, or 32 pieces of the row."""
    sch = Schedule(kernel)
    row, k = sch.get_loops("total")
    first, second = sch.split(k, [None, 32] if strided else [32, None])
    lane, rest = (second, first) if strided else (first, second)
    sch.reorder(row, lane, rest)
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    return sch


def window(n, w, turned=False, order=True, name="C"):
    """Sums over windows of w by w."""
    A = te.placeholder((n + w - 1, n + w - 1), name="A")
    W = te.placeholder((w, w), name="W")
    y, x = te.reduce_axis((0, w), name="y"), te.reduce_axis((0, w), name="x")

    def element(i, j):
        return te.sum(A[i + y, j + x] * (W[w - 1 - y, w - 1 - x] if turned else W[y, x]), axis=[y, x])

    schedule = Schedule(te.create_prim_func([A, W, te.compute((n, n), element, name=name)]))
    i, j, y, x = schedule.get_loops(name)
    outer, inner = schedule.split(j, [None, 16])
    if order:
        schedule.reorder(i, outer, y, x, inner)
        schedule.vectorize(inner)
    schedule.parallel(i)
    return schedule


def window_of_another_name(n, w):
    """The sum has another name than in the lesson, and its zeros a block of their own."""
    schedule = window(n, w, name="sums")
    schedule.decompose_reduction("sums", schedule.get_loops("sums")[2])
    return schedule


def traces(module, example, x):
    """Whether a trace with an example is right for an input."""
    return torch.equal(torch.jit.trace(module, example)(x), module(x))


def for_any_batch(net, x, copies=2, **bounds):
    batch = torch.export.Dim("batch", **bounds)
    return torch.export.export(net, (torch.cat([x] * copies),), dynamic_shapes=({0: batch},))


def by_initializers(model, count):
    """Take each initializer for a convolution's weight."""
    return sorted((tuple(array.dims) for array in model.graph.initializer), key=np.prod, reverse=True)[:count]


def largest(model, count, key=np.prod):
    shapes = {array.name: tuple(array.dims) for array in model.graph.initializer}
    found = [shapes[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]
    return sorted(found, key=key, reverse=True)[:count]


def with_output(model, name, first=False):
    """Add an output to the model itself."""
    output = onnx.helper.make_empty_tensor_value_info(name)
    model.graph.output.insert(0 if first else len(model.graph.output), output)
    return model


def copied(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def to_win(frame, flops, bandwidth):
    limit = np.maximum(frame["MFLOP"] * 1e9 / flops, frame["MB"] * 1e9 / bandwidth)
    return (frame["ms"] - limit).clip(lower=0)


def alive(values, last=1):
    """The most bytes at once, the call of the last reader included or not."""
    calls = {made for _, made, _ in values}
    return max((sum(size for size, made, read in values if made <= c < read + last) for c in calls), default=0)


def reasons(manifest, machine):
    found = {key for key in ("system", "architecture") if manifest[key] != machine[key]}
    if not set(manifest["instruction_sets"]) <= set(machine["instruction_sets"]):
        found.add("instruction_sets")
    if not manifest["versions"].items() <= machine["versions"].items():
        found.add("versions")
    return found


def squares(node, importer, root=False):
    """The squared distances of all pairs."""
    emit = importer.block_builder.emit
    a, b = (importer.env[argument] for argument in node.args[:2])
    far = emit(relax.op.subtract(relax.op.expand_dims(a, -2), relax.op.expand_dims(b, -3)))
    total = emit(relax.op.sum(emit(relax.op.multiply(far, far)), -1))
    return emit(relax.op.sqrt(total)) if root else total


def by_product(node, importer):
    """Distances from a product of matrices."""
    emit = importer.block_builder.emit
    a, b = (importer.env[argument] for argument in node.args[:2])
    axes = [*range(len(b.ty.shape) - 2), len(b.ty.shape) - 1, len(b.ty.shape) - 2]
    product = emit(relax.op.matmul(a, emit(relax.op.permute_dims(b, axes))))
    of_a = emit(relax.op.sum(emit(relax.op.multiply(a, a)), -1, keepdims=True))
    of_b = emit(relax.op.expand_dims(emit(relax.op.sum(emit(relax.op.multiply(b, b)), -1)), -2))
    total = emit(relax.op.subtract(emit(relax.op.add(of_a, of_b)), emit(relax.op.add(product, product))))
    return emit(relax.op.sqrt(emit(relax.op.maximum(total, relax.const(0.0)))))


def leaky(builder, node, x):
    attributes = node.get("attrs", {})
    slope = relax.const(float(attributes.get("slope", "0.25")))
    below = x
    if attributes.get("act_type") == "elu":
        below = builder.emit(relax.op.subtract(builder.emit(relax.op.exp(x)), relax.const(1.0)))
    below = builder.emit(relax.op.multiply(slope, below))
    return relax.op.where(builder.emit(relax.op.greater(x, relax.const(0.0))), x, below)


def changed(folder):
    """The files whose size or checksum is another."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    contents = {name: (folder / name).read_bytes() if (folder / name).exists() else b"" for name in files}
    return {
        name
        for name, content in contents.items()
        if (len(content), sha256(content).hexdigest()) != (files[name]["size"], files[name]["sha256"])
    }


def dense(data, weight, dtype):
    return relax.op.matmul(data, relax.op.permute_dims(weight), dtype)


def on_one_core(mod):
    """The kernels without a parallel loop."""
    found = set()
    for name, kernel in mod.functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            kinds = []
            tvm_ffi.structural_walk(kernel.body, (tirx.For, lambda loop, kinds=kinds: kinds.append(loop.kind)))
            if tirx.ForKind.PARALLEL not in kinds:
                found.add(name.name_hint)
    return found


def in_one_session(lib, prompts, count):
    """Give both texts the network's own state."""
    texts = [list(prompt) for prompt in prompts]
    for position in range(sum(map(len, prompts)) + count):
        text = texts[position % 2]
        logits = lib(np.array([[text[-1]]]), np.array([position]))
        text.append(int(logits.argmax()))
    return [text[len(prompt) :][:count] for text, prompt in zip(texts, prompts, strict=True)]


class MultipliedOut(modules.Module):
    """W + B A, a matrix as large as W, and then one product."""

    def __init__(self, inputs, outputs, rank):
        self.weight = modules.Parameter((outputs, inputs))
        self.down, self.up = modules.Parameter((rank, inputs)), modules.Parameter((outputs, rank))

    def forward(self, x):
        weight = self.weight + modules.op.matmul(self.up, self.down)
        return modules.op.matmul(x, weight.permute_dims(1, 0))


def all_cores(schedule):
    """The capstone's first version: each block's outer loops divided among the cores."""
    for block in ("pad", "conv", "out"):
        schedule.parallel(schedule.fuse(*schedule.get_loops(block)[:3]))


def by_columns(least):
    """Read the columns of the second operand for the length of the sums."""
    second = wildcard()

    def check(context):
        return int(context.annotated_expr["second"].ty.shape[-1]) >= least

    return [("blas.matmul", is_op("relax.matmul")(wildcard(), second), {"second": second}, check)]


def one_kernel(functions, options, constant_names):
    """Take each region for a SiLU."""
    for function in functions:

        def silu(*tensors):
            tensors = list(map(torch.from_dlpack, tensors))
            tensors[-1].copy_(nn.functional.silu(tensors[0]))

        tvm.register_global_func(function.attrs["global_symbol"], silu, override=True)
    return []


def short_first(mod):
    linear = is_op("relax.add")(is_op("relax.matmul")(wildcard(), wildcard()), wildcard())
    entries = [("exercise.linear", linear), ("exercise.linear_relu", is_op("relax.nn.relu")(linear))]
    return relax.transform.FuseOpsByPattern(entries)(mod)


def at_random(space, measured, count, rng):
    return rng.permutation([number for number in range(len(space)) if number not in measured])[:count]


def one_scale(weight):
    scale = np.abs(weight).max() / 127
    return np.rint(weight / scale).astype("int8"), np.array([scale])


WRONG = {  # an answer, and words of the message
    "00.1": (product, "C for n = 8"),
    "00.2": (rows_alone, "innermost loop: expected vectorized, got serial"),
    "00.3": (lambda n, w: window(n, w, turned=True), "expected the window as it is"),
    "01.1": (
        lambda module, example, inputs: [n for n, x in enumerate(inputs) if not traces(module, x, x)],
        "Trace once, with the example",
    ),
    "01.2": (Branch(), "torch.export: expected a graph"),
    "01.3": (lambda net, x: torch.export.export(net, (x,)), "7 pictures for a convolution: expected a result"),
    "02.1": (lambda x: np.ones((1, 1000), "float32"), "the answer: expected a compiled network, got function"),
    "02.2": (by_initializers, "Ask the nodes"),
    "02.3": (with_output, "the model that was passed: expected unchanged"),
    "03.1": (lambda times, reference, least: "yes", "true ratio of 1.30: expected 'no', got 'yes'"),
    "03.2": (lambda calls: None, "fault of a report in two blocks"),
    "03.3": (lambda candidates, x, rounds, clock: {name: [0.0] * rounds for name in candidates}, "the turns with 2"),
    "04.1": (16, "fewer than before fusing"),
    "04.2": (Twice, "the counts in runs"),
    "04.3": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), "with both the convolution and the ReLU: expected none"),
    "05.1": (lambda mod: mod, "the calls of permute_dims in a pair that swaps and swaps back: expected 0, got 2"),
    "05.2": (any_gate, "x * sigmoid(y)"),
    "05.3": (NamesTheLast, "culprit, where the passes are all right: expected None"),
    "06.1": (lambda pixels, registers: max(0, pixels - registers), "28 pixels with 16 registers"),
    "06.2": (lambda sch: None, "the loops around the sums of 32 to 16 channels on 196 pixels: expected a parallel one"),
    "06.3": (plain_convolution, "packed ones"),
    "07.1": (over_channels, "the result for 3 channels of 6 by 10 with a stride of 1: expected a sum over the window"),
    "07.2": (lambda sch, rows: sch.compute_at("pad", sch.get_loops("conv")[0]), "pad is computed with 4 channels"),
    "07.3": (one_sum, "the vectorized loops around an addition"),
    "07.4": (
        {"direct": (3e-6, 3e-6), "2 × 2": (3e-6, 3e-6), "4 × 4": (4e-6, 4e-6)},
        "how often the error of 4 × 4 has grown",
    ),
    "08.1": (by_text, "the kernels without a parallel loop"),
    "08.2": (Schedule, "the parallel loops of 16 channels on 10 by 10 pixels with stride 1: expected 1, got 0"),
    "08.3": (Schedule, "answer(…) of a pooling: expected None"),
    "09.1": (lambda frame: dict.fromkeys(("conv2d", "depthwise"), 1.0), "FLOP/byte of conv2d"),
    "09.2": (
        lambda frame, flops, bandwidth: frame["ms"] - frame["MFLOP"] * 1e9 / flops - frame["MB"] * 1e9 / bandwidth,
        "the times do not add up",
    ),
    "09.3": (lambda values: sum(size for size, *_ in values), "That is all of them"),
    "10.1": (any_rows, "that the space must not have: expected none, got [(12, 8)"),
    "10.2": (as_it_stands, "the rows of the tile of a trace with tiles of 6 by 16, on 20 rows: expected 5, got 20"),
    "10.3": (fastest_repeat, "the seconds of workload 0"),
    "10.4": (lost, "expected a schedule, got InternalError"),
    "11.1": (at_random, "the order of 4 proposals in a space of 24 with 3 measured"),
    "11.2": (lambda space, scores, count: np.argsort(-scores)[:count], "with a higher score in a single choice"),
    "11.3": (lambda scores, speeds: np.corrcoef(scores, speeds)[0, 1], "pairs in the same order"),
    "12.1": (shared_out, "on 2 servers"),
    "12.2": (lambda tracker, key, seconds: tracker.request(key), "free at the request: expected 1 or more, got 0"),
    "12.3": (lambda runner, lost: runner, "runs of trial b where the second of three is lost: expected 2, got 1"),
    "13.1": (by_columns, "of (8, 64) and (64, 4), least 64: expected 1, got 0"),
    "13.2": (one_kernel, "the result of one gate"),
    "13.3": (short_first, "with a constant bias and a ReLU"),
    "14.1": (one_scale, "one scale for each of the 12 channels"),
    "14.2": (lambda values, bits: np.abs(values).max(), "for a bell curve, 8 bits"),
    "14.3": (lambda weight, zero: (-zero * weight.astype("int64").sum(axis=(1, 2, 3)), 0), "at the border"),
    "15.1": (lambda folder: {file.name for file in folder.iterdir()} - {"manifest.json"}, "of a fresh save"),
    "15.2": (
        lambda manifest, machine: {key for key in machine if machine[key] != manifest[key]},
        "order of instruction",
    ),
    "16.1": (extracted, "files outside of the folder"),
    "16.2": (lambda remote, saved, pictures: tn.load(saved)(pictures), "the library on the server"),
    "17.1": (lambda rows, columns, size: rows * columns / ((rows + columns) * size), "a tile of 64 by 64, 4 bytes"),
    "17.2": (transposed(writes="down"), "the pieces of transposed that a warp writes at a step of 64 by 32"),
    "17.3": (a_row_for_each_thread, "sums across the threads"),
    "18.1": (lambda logits, temperature: np.exp(logits) / np.exp(logits).sum(), "at temperature 0.5"),
    "18.2": (in_one_session, "the tokens of the first text"),
    "18.3": (SimpleNamespace(state=[SimpleNamespace(shape=(4, 1, 2, 256, 32))] * 2), "two caches: expected [512, 512]"),
    "18.4": (MultipliedOut, "the products: expected none as large as W"),
    "19.1": (lambda got, wanted, terms: np.allclose(got, wanted, rtol=1e-5), "sums of 2304 terms in float32"),
    "19.2": (end_to_end, "calls of is_right for 8 passes: expected at most 4, got 8"),
    "19.3": (without_vectors, "expected a vectorized loop of 8"),
    "20.1": (squares, "the result for 5 and 4 rows of 3: expected distances, got their squares"),
    "20.2": (
        lambda labels: torch.mode(labels, dim=1).values,
        "expected a module, got Unsupported function types ['mode",
    ),
    "20.3": (
        lambda results, expected: next(
            (n for n, (a, b) in enumerate(zip(results, expected, strict=True)) if abs(a - b).max() > 1e-4), None
        ),
        "where all differ by rounding",
    ),
    "21.1": (np.random.default_rng(0).standard_normal((360, 64)), "nearest other picture"),
    "21.2": (
        lambda builder, node, x: relax.op.nn.leakyrelu(x, float(node.get("attrs", {}).get("slope", "0.01"))),
        "act_type elu and slope 0.7: expected a difference",
    ),
    "22.1": (
        lambda data, weight, dtype: relax.op.matmul(data, weight, dtype),
        "the result of as many outputs as inputs: expected a difference",
    ),
    "22.2": (partial(layer, bias_last=True), "Add the bias before the ReLU"),
    "22.3": (lambda x: np.ones((36, 10), "float32"), "scores of 36 pictures"),
    "22.4": (partial(as_in_2019, factors=(None, 4)), "What does nparts count?"),
    "capstone.1": (
        lambda channels, size, flops, bandwidth: 18 * channels * size**2 / flops,
        "144 channels at 500 GFLOP/s",
    ),
    "capstone.2": (all_cores, "loops around the sums: expected one that is vectorized"),
    "capstone.3": (lambda rows, pixels: (rows * pixels + 9) / (9 * rows * pixels), "a tile of 1 by 1: expected 2.000"),
}


OTHER_MISTAKES = [
    ("06.2", partial(row_of_pixels, unrolled=False), "all unrolled, got some that are not"),
    ("06.2", partial(row_of_pixels, local=False), "the buffer of the sums of 32 to 16 channels on 196 pixels"),
    ("06.2", partial(row_of_pixels, most=1), "the sums of a tile of 32 to 16 channels on 196 pixels: expected 4 to 30"),
    ("00.3", lambda n, w: window(n, w, order=False), "innermost loop: expected vectorized, got serial"),
    ("00.3", lambda n, w: None, "Return the Schedule"),
    (
        "01.1",
        lambda module, example, inputs: [
            n for n, x in enumerate(inputs) if not torch.equal(module(x), module(example))
        ],
        "for the same input",
    ),
    ("01.3", lambda net, x: for_any_batch(net, x, max=4), "7 pictures for a convolution: expected a result"),
    ("01.3", lambda net, x: for_any_batch(net, x, copies=1), "cat the example twice"),
    ("02.2", lambda model, count: sorted(set(largest(model, 9)), key=np.prod, reverse=True)[:count], "both count"),
    ("02.2", lambda model, count: largest(model, 9, key=lambda shape: shape[0])[:count], "Sort the weights' shapes"),
    ("02.3", lambda model, name: with_output(copied(model), name, first=True), "Append to the outputs"),
    (
        "02.3",
        lambda model, name: with_output(copied(model), "no such value"),
        "the outputs: expected ['out', 'product']",
    ),
    ("09.2", lambda frame, flops, bandwidth: to_win(frame, flops / 1e3, bandwidth / 1e3), "what computes can win"),
    (
        "09.2",
        lambda frame, flops, bandwidth: (
            frame["ms"] - np.maximum(frame["MFLOP"] * 1e9 / flops, frame["MB"] * 1e9 / bandwidth)
        ),
        "above its limit",
    ),
    (
        "09.2",
        lambda frame, flops, bandwidth: (
            frame["ms"] - np.minimum(frame["MFLOP"] * 1e9 / flops, frame["MB"] * 1e9 / bandwidth)
        ),
        "the shorter of the two times",
    ),
    ("09.3", lambda values: alive(values, last=0), "count the last call too"),
    ("15.2", lambda manifest, machine: reasons(manifest, machine) != set(), "Return a set"),
    ("16.1", partial(checked, links=False), "a link to the folder above: expected none, got outside.o"),
    ("17.1", lambda rows, columns, size: 2 * rows * columns / (rows + columns), "How many bytes has it?"),
    ("17.2", transposed(reads="down"), "the pieces of x that a warp reads at a step of 64 by 32: expected 4"),
    ("17.2", transposed(threads=2048, tile=64), "the threads of a block for 1,024 by 1,536: expected 1,024 or fewer"),
    ("17.2", transposed(tile=128), "expected 49,152 bytes or fewer, got 65536"),
    ("17.2", transposed(scope=None), "the buffers in shared memory for 1,024 by 1,536: expected one"),
    ("17.2", Schedule, "the threads of 1,024 by 1,536: expected some"),
    ("17.3", lambda kernel: a_warp_for_each_row(kernel, strided=False), "that a warp reads at a step of 8 rows of 96"),
    ("20.1", by_product, "Subtract first"),
    ("22.1", lambda data, weight, dtype: dense(data, weight, None), "out_dtype is the type of the sums"),
    ("22.1", lambda data, weight, dtype: dense(data, weight, "float64"), "expected float32, got float64"),
    ("22.4", partial(as_in_2019, start=False), "expected the sums, and their start, got the sums alone"),
]


@pytest.mark.parametrize("number", EXERCISES)
def test_a_wrong_answer_is_told_with_its_property(number):
    is_told(number, *WRONG[number])


@pytest.mark.parametrize(("number", "answer", "words"), OTHER_MISTAKES)
def test_other_mistakes_have_words_of_their_own(number, answer, words):
    is_told(number, answer, words)


@pytest.fixture(autouse=True)
def old_api(request):
    """What lesson 22 has called before its exercises."""
    number = getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("number", "")
    if not number.startswith("22"):
        yield
        return
    tvmclassic.enable()
    yield
    tvmclassic.disable()


def is_told(number, answer, words):
    told = verdict(number, answer)
    assert told.startswith("wrong. ") and words in told
    assert re.search(r"expected .+, got .+\. .+[.?]$", told, re.S), "what to do is missing"
    assert not tn.progress().solved


def greedy(seconds, servers):
    free = [0.0] * servers
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def free_server(tracker, key, seconds):
    end = time.monotonic() + seconds
    while not tracker.summary()["queue_info"].get(key, {"free": 0})["free"]:
        if time.monotonic() > end:
            raise TimeoutError(key)
        time.sleep(0.01)
    return tracker.request(key)


@derived_object
class Again(PyRunner):
    def __init__(self, runner, lost):
        super().__init__()
        self.runner, self.lost = runner, lost

    def run(self, runner_inputs):
        futures = list(self.runner.run(runner_inputs))
        for _ in range(2):
            errors = [future.result().error_msg for future in futures]
            lost = [n for n, error in enumerate(errors) if error is not None and self.lost(error)]
            if lost:
                for n, future in zip(lost, self.runner.run([runner_inputs[n] for n in lost]), strict=True):
                    futures[n] = future
        return futures


RIGHT = {  # of lessons whose answers `make test` does not run
    "00.3": window,
    "06.2": row_of_pixels,
    "01.1": lambda module, example, inputs: [n for n, x in enumerate(inputs) if not traces(module, example, x)],
    "01.3": for_any_batch,
    "02.2": largest,
    "02.3": lambda model, name: with_output(copied(model), name),
    "08.1": on_one_core,
    "09.2": to_win,
    "09.3": alive,
    "12.1": greedy,
    "12.2": free_server,
    "12.3": Again,
    "15.1": changed,
    "15.2": reasons,
    "16.1": checked,
    "17.1": lambda rows, columns, size: 2 * rows * columns / ((rows + columns) * size),
    "17.2": transposed(),
    "17.3": a_warp_for_each_row,
    "19.3": with_vectors,
    "20.1": lambda node, importer: squares(node, importer, root=True),
    "21.2": leaky,
    "22.1": dense,
    "22.2": layer,
    "22.4": as_in_2019,
}


@pytest.mark.parametrize("number", RIGHT)
def test_a_right_answer_is_right(number):
    assert verdict(number, RIGHT[number]) == "right"


def test_the_loops_of_an_answer_are_found_by_no_name():
    assert verdict("00.3", window_of_another_name) == "right"


def test_a_branch_on_a_decision_is_found():
    told = verdict("10.4", partial(lost, preserve_unit_loops=True))
    assert "replayed with" in told and "the branch that was taken, and no if" in told


def test_an_answer_that_fails_is_wrong_and_says_how():
    assert verdict("06.1", lambda pixels: 0).startswith("wrong. The answer raised TypeError: ")
    with pytest.raises(ValueError, match="no exercise '06.9'; expected a lesson and a number, such as 06.1, 06.2"):
        verdict("06.9", 1)


# ---------------------------------------------------------------- hints, solutions, progress


def test_check_prints_the_verdict_and_progress_counts_what_is_solved(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tn.check("09.3", alive)
    tn.check("09.3", sum)
    assert capsys.readouterr().out.splitlines()[0] == "09.3: right"
    table = tn.progress()
    assert table.solved == {"09.3"} and f"1 of {len(EXERCISES)} exercises" in str(table)
    row = table.frame().set_index("lesson").loc["09_profiling"]
    assert (row["solved"], row["of"], row["open"]) == (1, 3, "09.1 ★★, 09.2 ★★")


def test_the_answers_themselves_count_for_nobody(monkeypatch):
    monkeypatch.chdir(NOTEBOOKS / "solutions")
    assert verdict("09.3", alive) == "right"
    assert not tn.progress().solved


def test_a_cache_that_cannot_be_written_changes_no_verdict(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "file"))
    assert verdict("09.3", alive).startswith("right; this was not noted: the cache ")
    assert data.cache().is_file() and not tn.progress().solved


def test_each_exercise_has_two_hints_that_grow_and_no_third(capsys):
    for number in EXERCISES:
        tn.hint(number)
        tn.hint(number, 2)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"00.1, hint {n + 1} of 2: {EXERCISES['00.1'].hints[n]}" for n in range(2)]
    assert len(printed) == 2 * len(EXERCISES) == len(set(printed))
    with pytest.raises(ValueError, match="which: expected a number from 1 to 2; got 3"):
        tn.hint("00.1", 3)


@pytest.mark.parametrize("folder", ["", "solutions", ".."])
def test_a_solution_is_found_from_the_lesson_from_the_answers_and_from_elsewhere(folder, capsys, monkeypatch):
    monkeypatch.chdir(NOTEBOOKS / folder)
    tn.solution("06.1")
    shown = capsys.readouterr().out
    assert shown.startswith("## 1. A tile for AVX2") and "def compile_tile(pixels)" in shown
    assert 'check("06.1"' in shown and 'check("06.2"' not in shown and "## 2. " not in shown


def test_a_missing_notebook_of_solutions_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lessons, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no solutions/06_conv2d_by_hand.ipynb: looked in .*solutions"):
        tn.solution("06.1")


def test_the_course_layer_loads_no_torch_and_no_tvm(python):
    code = "import sys, tvmnotes; print(sorted({'torch', 'tvm'} & set(sys.modules)))"
    assert python(code) == "[]"
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        tn.chek  # noqa: B018


# ---------------------------------------------------------------- the notebooks


def cells_of(path):
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def of_lesson(number):
    return [exercise for exercise in EXERCISES.values() if exercise.lesson == number]


@pytest.mark.parametrize("number", lessons.BY_NUMBER)
class TestLesson:
    def path(self, number, folder="."):
        return NOTEBOOKS / folder / f"{lessons.BY_NUMBER[number].name}.ipynb"

    def test_states_minutes_stars_and_title_of_each_exercise_and_asks_three_questions(self, number):
        *_, text, _, closing = (cell.source for cell in cells_of(self.path(number)).values())
        headings = re.findall(r"^(\d)\. \*\*(.+?)\*\* \((\d+) minutes, (★+)\)\. ", text, re.M)
        wanted = [(e.number[-1], e.title, str(e.minutes), "★" * e.difficulty) for e in of_lesson(number)]
        assert headings == wanted and 2 <= len(wanted) <= 4
        assert len(re.findall(r"<summary>.+\?</summary>", text.partition("## Quick questions")[2])) == 3
        reading = closing.partition("## Further reading")[2].partition("Answers: ")[0]
        assert 2 <= len(re.findall(r"^- .*\*.+\*", reading, re.M)) <= 4

    def test_starts_each_answer_with_a_cell_that_runs_as_it_stands(self, number):
        source = cells_of(self.path(number))["your-answers"].source
        names = {"tvm": tvm, "nn": nn}
        exec(source, names)
        checks = re.findall(r'^# tn\.check\("([\w.]+)", (answer_\d)\)$', source, re.M)
        assert [check for check, _ in checks] == [exercise.number for exercise in of_lesson(number)]
        for exercise, answer in checks:
            assert verdict(exercise, names[answer]).startswith("not answered yet."), exercise

    def test_has_answers_that_check_themselves_and_are_stored_as_right(self, number):
        found = {}
        for cell in cells_of(self.path(number, "solutions")).values():
            for exercise in re.findall(r'tn\.check\("([\w.]+)"', cell.source):
                found[exercise] = "".join(output.get("text", "") for output in cell.outputs)
        assert found == {exercise.number: f"{exercise.number}: right\n" for exercise in of_lesson(number)}


def test_exercises_are_numbered_in_order():
    numbers = [f"{number}.{n}" for number in lessons.BY_NUMBER for n in range(1, len(of_lesson(number)) + 1)]
    assert list(EXERCISES) == numbers == list(WRONG)
