"""Exercises of lesson 17: a tile's operations for each byte, a transposition, sums of rows by warps."""

import math
from collections import defaultdict

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule, transform

from ..loops import lowered, trace
from .exercise import exercise, require

_WARP = 32
_PIECE = 32  # bytes that the memory of a GPU delivers at once
_MOST_THREADS = 1024  # of a block
_MOST_SHARED = 48 * 1024  # bytes of a block


def _scheduled(answer, kernel, what: str):
    """Return the kernel that an answer made."""
    schedule = answer(kernel)
    do = "Return the Schedule, after its last call."
    require(isinstance(schedule, Schedule), f"answer(…) of {what}", "a Schedule", type(schedule).__name__, do)
    return schedule.mod["main"]


def _launch(kernel) -> dict[str, int]:
    """Return the extents of the bound loops, by tag."""
    extents = {}

    def visit(loop):
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            extents[loop.thread_binding.thread_tag] = int(loop.extent)

    tvm_ffi.structural_walk(kernel.body, (tirx.For, visit))
    return extents


def _grid(kernel, what: str, least: int) -> None:
    """Require a launch that a GPU accepts, with enough blocks."""
    extents = _launch(kernel)
    blocks, threads = (
        math.prod(n for tag, n in extents.items() if tag.startswith(f"{kind}Idx"))
        for kind in ("block", "thread")
    )
    do = "Bind the loops inside of a tile to threadIdx.x and threadIdx.y."
    require(any(tag.startswith("threadIdx") for tag in extents), f"the threads of {what}", "some", "none", do)
    do = "A block has at most 1,024 threads. Let each do several elements: split the fused loop once more."
    require(threads <= _MOST_THREADS, f"the threads of a block for {what}", "1,024 or fewer", threads, do)
    do = "A block runs on one multiprocessor. Split the loops into tiles, and bind the outer parts to blocks."
    require(blocks >= least, f"the blocks for {what}", f"{least} or more", blocks, do)


def _shared(kernel) -> list[int]:
    """Return the bytes of each buffer in shared memory."""
    found = []

    def visit(alloc):
        if alloc.buffer.scope() == "shared":
            elements = math.prod(int(extent) for extent in alloc.buffer.shape)
            found.append(elements * np.dtype(str(alloc.buffer.dtype)).itemsize)

    tvm_ffi.structural_walk(lowered(kernel).body, (tirx.AllocBuffer, visit))
    return found


def _coalesced(kernel, what: str, do: dict[bool, str]) -> None:
    """Require that no warp touches more pieces of global memory at a step than its elements fill.

    `do` says what to do about reads (False) and writes (True).
    """
    found = trace(kernel)
    touched = defaultdict(set)
    for step, core, lane, buffer, element, write, _ in found.accesses:
        if found.grids[buffer].scope == "global":
            touched[step, core, lane // _WARP, buffer, write].add(element)
    for write in (False, True):
        for (_, _, _, buffer, writes), elements in touched.items():
            size = np.dtype(found.grids[buffer].dtype).itemsize
            pieces = {element * size // _PIECE for element in elements}
            least = math.ceil(len(elements) * size / _PIECE)
            kind = "writes" if write else "reads"
            require(
                write != writes or len(pieces) <= least,
                f"the pieces of {buffer} that a warp {kind} at a step of {what}",
                f"{least} for its {len(elements)} elements",
                len(pieces),
                do[write],
            )


@exercise(
    "17.1",
    "For one element of a slice, the tile loads a column of the one matrix and a row of the other.",
    "rows * columns multiply-adds are 2 * rows * columns operations, for (rows + columns) * size bytes.",
    minutes=10,
    difficulty=1,
)
def intensity(answer):
    """The operations for each byte of a tile."""
    cases = {(64, 64, 4): 16.0, (128, 128, 4): 32.0, (32, 96, 4): 12.0, (128, 256, 2): 512 / 6}
    for (rows, columns, size), wanted in cases.items():
        got = float(answer(rows, columns, size))
        what = f"FLOP/byte of a tile of {rows} by {columns}, {size} bytes each"
        do = "Divide operations by bytes, for one step of k. What does a tile load for it?"
        if math.isclose(got, wanted / 2):
            do = "A multiply-add is two operations."
        elif math.isclose(got, wanted * size):
            do = "That is for each element. How many bytes has it?"
        require(math.isclose(got, wanted), what, f"{wanted:.1f}", f"{got:.1f}", do)


def _transposition(rows: int, columns: int):
    """Return the kernel that transposes a matrix."""
    x = te.placeholder((rows, columns), name="x")
    y = te.compute((columns, rows), lambda j, i: x[i, j], name="transposed")
    return te.create_prim_func([x, y])


@exercise(
    "17.2",
    "Bind tiles of the result, then cache_read and compute_at at the loop of the block, and give the copy "
    "its own threads, as `fetch` does.",
    "Split both loops by 32, reorder the outer ones out and bind them. copy = sch.cache_read('transposed', "
    "0, 'shared'); sch.compute_at(copy, block_x). Then fuse the two inner loops of each block, split the "
    "fused loop into [None, 256], and bind the last part to threadIdx.x, in both blocks.",
    minutes=30,
    difficulty=2,
)
def transposition(answer):
    """A transposition."""
    what = "1,024 by 1,536"
    kernel = _scheduled(answer, _transposition(1024, 1536), what)
    _grid(kernel, what, 96)
    shared = _shared(kernel)
    do = "sch.cache_read('transposed', 0, 'shared') makes a copy there, and compute_at a tile of it."
    require(bool(shared), f"the buffers in shared memory for {what}", "one", "none", do)
    do = "The copy holds what one iteration of its loop needs. Move it to the innermost loop over blocks."
    require(
        sum(shared) <= _MOST_SHARED,
        f"the shared memory of a block for {what}",
        "49,152 bytes or fewer",
        sum(shared),
        do,
    )
    advice = {
        False: "In the block that reads x, neighbouring threads should move along its last index, j. The "
        "copy needs bound loops of its own.",
        True: "In the block that writes y, neighbouring threads should move along its last index, i. The two "
        "blocks use the same threads, but in different orders.",
    }
    for rows, columns in ((64, 32), (32, 96), (64, 64)):
        what = f"{rows} by {columns}"
        _coalesced(_scheduled(answer, _transposition(rows, columns), what), what, advice)
    what = "48 by 24, which no tile of 32 divides"
    trace(_scheduled(answer, _transposition(48, 24), what))


def _row_sums(rows: int, columns: int):
    """Return the kernel that sums each row of a matrix."""
    x = te.placeholder((rows, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    return te.create_prim_func([x, total])


def _adds_across_threads(kernel) -> bool:
    """Return whether threads add up what they have."""
    mod = transform.LowerCrossThreadReduction()(tvm.IRModule({"main": kernel}))
    return "tvm_thread_allreduce" in mod["main"].script()


@exercise(
    "17.3",
    "Split the loop over columns into [None, 32]. Which of the two parts should be the threads, so that "
    "neighbours read neighbours?",
    "sch.bind(i, 'blockIdx.x'); _, lane = sch.split(k, [None, 32]); sch.bind(lane, 'threadIdx.x'). With "
    "several rows in a block, bind the others to threadIdx.y.",
    minutes=30,
    difficulty=3,
)
def row_sums(answer):
    """The sum of each row."""
    for rows, columns in ((512, 256), (96, 1000)):
        what = f"{rows} rows of {columns}"
        kernel = _scheduled(answer, _row_sums(rows, columns), what)
        _grid(kernel, what, 12)
        across = _launch(kernel).get("threadIdx.x", 1)
        do = "32 threads share a row: the extent of threadIdx.x. More rows of a block go along threadIdx.y."
        require(across == _WARP, f"the threads that sum a row of {what}", _WARP, across, do)
        do = "Each thread sums a row by itself. Bind a part of the loop over columns, not that over rows."
        require(_adds_across_threads(kernel), f"sums across the threads for {what}", "some", "none", do)
    advice = {
        False: "The threads are 32 neighbours, in each iteration: bind the inner part of the split, and keep "
        "the outer part a loop.",
        True: "Each sum is written once.",
    }
    for rows, columns in ((8, 96), (4, 256)):
        what = f"{rows} rows of {columns}"
        _coalesced(_scheduled(answer, _row_sums(rows, columns), what), what, advice)
