"""Exercises of lesson 08: kernels on one core, padding inside of the rows, a depthwise convolution."""

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.s_tir import SBlock, Schedule
from tvm.script import relax as R

from .exercise import agree, exercise, require

_LANES = 8


def _nodes(kernel, kind: type) -> list:
    """Return the statements of a kernel that are of a class, the inner ones first."""
    found = []
    tvm_ffi.structural_walk(getattr(kernel, "body", kernel), (kind, found.append), order="post")
    return found


def _loops(statement, kind=None) -> list:
    """Return the loops in a statement or kernel, of one kind such as `tirx.ForKind.PARALLEL`."""
    loops = _nodes(statement, tirx.For)
    return loops if kind is None else [loop for loop in loops if loop.kind == kind]


def _names(statement) -> set[str]:
    """Return the names of the blocks in a statement or kernel, that of the whole left out."""
    return {block.name_hint for block in _nodes(statement, SBlock)} - {"root"}


def _scheduled(answer, kernel, what: str):
    """Return the kernel that an answer made."""
    schedule = answer(kernel)
    do = "Return the Schedule, after its last call."
    require(isinstance(schedule, Schedule), f"answer(…) of {what}", "a Schedule", type(schedule).__name__, do)
    return schedule.mod["main"]


def _compare(kernel, reference_kernel, what: str) -> None:
    """Require that two kernels compute the same."""
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in parameter.shape] for parameter in kernel.params]
    arrays = [rng.standard_normal(shape, dtype="float32") for shape in shapes]
    results = []
    for each in (kernel, reference_kernel):
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tvm.compile(each, target="llvm")(*tensors)
        results.append(tensors[-1].numpy())
    agree(*results, f"the result of {what}", "A schedule must not change the result.")


# ---------------------------------------------------------------- 1


@exercise(
    "08.1",
    "mod.functions_items() has functions of Relax too; kernels are instances of tirx.PrimFunc.",
    "tvm_ffi.structural_walk(kernel.body, (tirx.For, visit)) calls visit with each loop. That of a parallel "
    "loop has the kind tirx.ForKind.PARALLEL.",
    minutes=15,
    difficulty=1,
)
def on_one_core(answer):
    """Kernels on one core."""

    def twice():
        A = te.placeholder((16, 24), name="A")
        return Schedule(
            te.create_prim_func([A, te.compute(A.shape, lambda i, j: A[i, j] * 2.0, name="twice")])
        )

    def total():
        A = te.placeholder((16, 24), name="A")
        k = te.reduce_axis((0, 24), name="k")
        B = te.compute((16,), lambda i: te.sum(A[i, k], axis=k), name="parallel_sum")
        return Schedule(te.create_prim_func([A, B]))

    of = {
        "twice": twice(),
        "twice_on_all": twice(),
        "vectors": twice(),
        "parallel_sum": total(),  # a name is not a loop
        "sum_on_all": total(),
    }
    of["vectors"].vectorize(of["vectors"].get_loops("twice")[-1])
    of["twice_on_all"].parallel(of["twice_on_all"].get_loops("twice")[1])
    of["sum_on_all"].parallel(of["sum_on_all"].get_loops("parallel_sum")[0])
    bb = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((2,), "float32"))
    with bb.function("main", [x]):
        bb.emit_func_output(x)
    mod = bb.get()
    for name, schedule in of.items():
        mod[name] = schedule.mod["main"].with_attr("global_symbol", name)
    got = answer(mod)
    require(isinstance(got, set), "the answer", "a set of names", type(got).__name__, "Return a set.")
    require("main" not in got, "the names", "kernels only", "main, a function of Relax", "Leave Relax out.")
    wanted = {"twice", "vectors", "parallel_sum"}
    do = "Read the kinds of the loops. A name, a block or vectors say nothing about cores."
    require(got == wanted, "the kernels without a parallel loop", sorted(wanted), sorted(got), do)


# ---------------------------------------------------------------- 2 and 3


def _with_bias(data, weight, sums):
    """Return the kernel of sums with a bias for each channel, and a ReLU."""
    bias = te.placeholder((sums.shape[1], _LANES), name="bias")
    added = te.compute(sums.shape, lambda n, o, y, x, c: sums[n, o, y, x, c] + bias[o, c], name="bias_added")
    out = te.compute(sums.shape, lambda *at: te.max(added(*at), 0.0), name="activated")
    return te.create_prim_func([data, weight, bias, out])


def _convolution(blocks: int, size: int, stride: int):
    """Return the kernel of a padded 3 by 3 convolution in blocks of channels."""
    data = te.placeholder((1, blocks, size, size, _LANES), name="data")
    weight = te.placeholder((2 * blocks, blocks, 3, 3, _LANES, _LANES), name="weight")
    layout = f"NCHW{_LANES}c"
    with tvm.target.Target("llvm"):
        sums = topi.nn.conv2d_NCHWc(data, weight, [stride] * 2, [1] * 4, [1] * 2, layout, layout)
    return _with_bias(data, weight, sums)


def _depthwise(blocks: int, size: int, stride: int, window: int):
    """Return the kernel of a padded depthwise convolution in blocks of channels."""
    data = te.placeholder((1, blocks, size, size, _LANES), name="data")
    weight = te.placeholder((blocks, 1, window, window, 1, _LANES), name="weight")
    edge = window // 2
    pad = topi.nn.pad(data, [0, 0, edge, edge, 0], name="padded")
    out = (size + 2 * edge - window) // stride + 1
    kh, kw = (te.reduce_axis((0, window), name=name) for name in ("kh", "kw"))
    sums = te.compute(
        (1, blocks, out, out, _LANES),
        lambda n, o, y, x, c: te.sum(
            pad[n, o, y * stride + kh, x * stride + kw, c] * weight[o, 0, kh, kw, 0, c], axis=[kh, kw]
        ),
        name="depthwise",
    )
    return _with_bias(data, weight, sums)


def _one_parallel_loop(kernel, what: str):
    """Require a single parallel loop, not within another, and return it."""
    loops = _loops(kernel, tirx.ForKind.PARALLEL)
    do = "Each parallel loop starts and ends all threads. One is enough if the other blocks are inside of it."
    require(len(loops) == 1, f"the parallel loops of {what}", 1, len(loops), do)
    return loops[0]


def _full_vectors(kernel, what: str) -> None:
    """Require a vectorized loop of all lanes."""
    extents = [int(loop.extent) for loop in _loops(kernel, tirx.ForKind.VECTORIZED)]
    do = "Vectorize the loop over the channels of a block, which is the innermost."
    require(
        _LANES in extents, f"the extents of the vectorized loops of {what}", f"some of {_LANES}", extents, do
    )


@exercise(
    "08.2",
    "Schedule the convolution as in section 6. Then, in place of spread_block, move the block of the padding "
    "into the parallel loop by compute_at, before decompose_reduction.",
    "sch.compute_at(name, loop), where loop is what sch.parallel was called with; then vectorize the last "
    "loop of the block. "
    "If many threads pad the same rows, put the loop over rows outside of that over channels.",
    minutes=30,
    difficulty=2,
)
def padding_inside(answer):
    """Padding inside of the rows."""
    for blocks, size, stride in ((2, 10, 1), (3, 9, 2)):
        what = f"{blocks * _LANES} channels on {size} by {size} pixels with stride {stride}"
        kernel = _convolution(blocks, size, stride)
        result = _scheduled(answer, _convolution(blocks, size, stride), what)
        loop = _one_parallel_loop(result, what)
        outside = sorted(_names(result) - _names(loop.body))
        do = "compute_at moves a block into a loop of the block that reads it."
        require(not outside, f"the blocks outside of the parallel loop of {what}", "none", outside, do)
        require(
            "data_pad" in _names(result),
            "the block data_pad",
            "still there",
            "inlined",
            "Inlined, the padding is a test in the innermost loop. Move the block by compute_at.",
        )
        _full_vectors(result, what)
        _compare(result, kernel, what)


@exercise(
    "08.3",
    "The axes of the block are SSSSSRR, as those of a pooling; but a convolution reads two buffers there.",
    "set_scope(conv, 0, 'local') keeps the sums; reverse_compute_at moves the last block to each tile of "
    "pixels. Reorder to n, o, y, x, kh, kw, pixel, c, so that a tile needs a register for each pixel.",
    minutes=45,
    difficulty=3,
)
def depthwise(answer):
    """A depthwise convolution."""
    data = te.placeholder((1, 2, 8, 8, _LANES), name="data")
    pooled = topi.nn.pool2d(data, [2, 2], [2, 2], [1, 1], [0] * 4, "max", layout=f"NCHW{_LANES}c")
    for what, kernel in (
        ("a pooling", te.create_prim_func([data, pooled])),
        ("a convolution of all channels", _convolution(1, 6, 1)),
    ):
        do = "Another rule may have a schedule for it."
        require(answer(kernel) is None, f"answer(…) of {what}", None, "a schedule", do)
    for blocks, size, stride, window in ((3, 12, 1, 3), (2, 15, 2, 5), (1, 7, 1, 3)):
        what = f"{blocks * _LANES} channels on {size} by {size} pixels, window {window}, stride {stride}"
        kernel = _depthwise(blocks, size, stride, window)
        result = _scheduled(answer, _depthwise(blocks, size, stride, window), what)
        require(
            bool(_loops(result, tirx.ForKind.PARALLEL)),
            f"the parallel loops of {what}",
            "at least one",
            0,
            "Fuse batch, blocks of channels and rows, and share them out.",
        )
        _full_vectors(result, what)
        local = [b for block in _nodes(result, SBlock) for b in block.alloc_buffers if b.scope() == "local"]
        do = "The sums go to memory in each step unless their buffer is local: set_scope, or cache_write."
        require(bool(local), f"the local buffers of {what}", "one for the sums", "none", do)
        updates = [block for block in _nodes(result, SBlock) if block.init is not None]
        do = "Call decompose_reduction at the outermost loop of the window, after all reordering."
        require(
            not updates, f"the blocks of {what} that test whether their sum begins", "none", len(updates), do
        )
        _compare(result, kernel, what)
