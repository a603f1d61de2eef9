"""Exercises of lesson 00: a computation, a schedule, and what fusing gains without one."""

import numpy as np
import tvm
from tvm import te

from tvmfast.core import machine

from .exercise import agree, exercise, require


def _run(function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compile a product of two square matrices and run it."""
    kernel = tvm.compile(function, target=machine.host_target())
    result = tvm.runtime.tensor(np.zeros(a.shape, "float32"))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    return result.numpy()


def _matrices(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, n), dtype="float32"), rng.standard_normal((n, n), dtype="float32")


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
    schedule = tvm.s_tir.Schedule(te.create_prim_func([A, B, C]))
    answer(schedule)
    loops = [schedule.get(loop) for loop in schedule.get_loops("C")]
    kinds = [tvm.tirx.ForKind(int(loop.kind)).name.lower() for loop in loops]
    do = "Call schedule.parallel(…) for the loop over rows."
    require(kinds[0] == "parallel", "the kind of the outermost loop", "parallel", kinds[0], do)
    do = "Reorder the loops, and call schedule.vectorize(…) for the last."
    require(kinds[-1] == "vectorized", "the kind of the innermost loop", "vectorized", kinds[-1], do)
    lanes = int(loops[-1].extent)
    require(lanes == 16, "the length of the innermost loop", 16, lanes, "Split j by 16 first.")
    agree(_run(schedule.mod, a, b), a @ b, "the scheduled product", "A schedule must not change the result.")


@exercise(
    "00.3",
    "Compile the network twice with tvm.compile, once with relax_pipeline=….",
    "tn.compare returns the times by name: times[name].median. Divide that without by that with it.",
    minutes=10,
    difficulty=1,
)
def pipeline_ratio(answer):
    """How many times as fast TVM's CPU pipeline makes a network."""
    do = "Compare two results of tvm.compile; in both, the loops inside the kernels are plain."
    expected = "a number near 1, between 0.5 and 2"
    require(
        0.5 < float(answer) < 2,
        "the time without the pipeline, divided by that with it",
        expected,
        answer,
        do,
    )
