"""Exercises of lesson 00: a computation, a schedule, and both for another operator."""

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmfast.core import machine

from .exercise import agree, exercise, require


def _run(function, a: np.ndarray, b: np.ndarray, shape: tuple[int, int] | None = None) -> np.ndarray:
    """Compile a function of two matrices and run it. The result has the shape of the first, or this one."""
    kernel = tvm.compile(function, target=machine.host_target())
    result = tvm.runtime.tensor(np.zeros(shape or a.shape, "float32"))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    return result.numpy()


def _matrices(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, n), dtype="float32"), rng.standard_normal((n, n), dtype="float32")


def _require_loops(schedule: Schedule) -> None:
    """Require that the cores share the rows of the sums, and that 16 neighbouring columns are a vector."""
    *_, sums = schedule.get_child_blocks(schedule.get_sblock("root"))  # of any name
    loops = [schedule.get(loop) for loop in schedule.get_loops(sums)]
    kinds = [tvm.tirx.ForKind(int(loop.kind)).name.lower() for loop in loops]
    do = "Call schedule.parallel(…) for the loop over rows."
    require(kinds[0] == "parallel", "the kind of the outermost loop", "parallel", kinds[0], do)
    do = "Reorder the loops, and call schedule.vectorize(…) for the last."
    require(kinds[-1] == "vectorized", "the kind of the innermost loop", "vectorized", kinds[-1], do)
    lanes = int(loops[-1].extent)
    require(lanes == 16, "the length of the innermost loop", 16, lanes, "Split j by 16 first.")


@exercise(
    "00.1",
    "Only the tensor expression changes. In `B[r, j]` the first index is the row.",
    "C[i, j] is the sum of A[i, r] * B[j, r] over r. Return te.create_prim_func([A, B, C]).",
    minutes=10,
    difficulty=1,
)
def transposed_product(answer):
    """The computation of a product with the second matrix transposed."""
    for n in (8, 24):
        a, b = _matrices(n)
        do = "Row j of B is what column j of the result is computed from."
        agree(_run(answer(n), a, b), a @ b.T, f"C for n = {n}", do)


@exercise(
    "00.2",
    'The lesson\'s five lines do it for one size: get_loops("C"), split, reorder, vectorize, parallel.',
    "Split j by 16, then reorder to i, j_outer, k, j_inner. Vectorize j_inner and parallelize i.",
    minutes=15,
    difficulty=2,
)
def product_schedule(answer):
    """The schedule of a product: cores, vectors, and the sum in between."""
    n = 48
    a, b = _matrices(n)
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([A, B, C]))
    answer(schedule)
    _require_loops(schedule)
    agree(_run(schedule.mod, a, b), a @ b, "the scheduled product", "A schedule must not change the result.")


@exercise(
    "00.3",
    "The computation is that of the product with other indices: two reduce axes, y and x, of length w each. "
    "Element [i, j] reads A[i + y, j + x].",
    "get_loops returns i, j, y, x. Split j by 16 and reorder to i, j_outer, y, x, j_inner: neighbouring "
    "columns read neighbouring elements of A, so 16 of them can be one vector.",
    minutes=20,
    difficulty=2,
)
def window_sum(answer):
    """A sum over a window: the computation and its schedule."""
    for n, w in ((32, 3), (48, 4)):
        what = f"n = {n} and w = {w}"
        schedule = answer(n, w)
        do = "Return the Schedule, after its last call."
        require(
            isinstance(schedule, Schedule),
            f"the result for {what}",
            "a Schedule",
            type(schedule).__name__,
            do,
        )
        rng = np.random.default_rng(n)
        a = rng.standard_normal((n + w - 1, n + w - 1), dtype="float32")
        weights = rng.standard_normal((w, w), dtype="float32")
        shapes = [list(map(int, parameter.shape)) for parameter in schedule.mod["main"].params]
        do = "Pass A, W and C to create_prim_func. A is larger than C by w - 1 rows and columns."
        wanted = [[n + w - 1] * 2, [w, w], [n, n]]
        require(shapes == wanted, f"the shapes of the matrices for {what}", wanted, shapes, do)
        windows = np.lib.stride_tricks.sliding_window_view(a, (w, w))
        sums = (windows * weights).sum(axis=(2, 3))
        got = _run(schedule.mod, a, weights, sums.shape)
        turned = (windows * weights[::-1, ::-1]).sum(axis=(2, 3))
        do = "W[y, x] belongs to A[i + y, j + x]. Subtracting the offsets turns the window round."
        require(
            not np.allclose(got, turned, atol=1e-4),
            f"C for {what}",
            "the window as it is",
            "that of the window turned round",
            do,
        )
        agree(
            got, sums, f"C for {what}", "Element [i, j] is the sum of W[y, x] * A[i + y, j + x] over y and x."
        )
        _require_loops(schedule)
