"""CPU kernels of matrix factorizations, on stacks of `count` matrices, for the frontends.

Textbook loops: Golub and Van Loan, Matrix Computations, sections 3.1, 3.4, 4.2, 5.1 and 5.2.
"""

import tvm
from tvm.script import tirx as T

from ..core.compat import OPAQUE, fast_tvmscript_parser


@fast_tvmscript_parser()
def lu(count: int, n: int, dtype: str) -> tvm.tirx.PrimFunc:
    """Factor (count, n, n) with partial pivoting.

    The kernel writes L (without its diagonal of ones) and U in one matrix; the row permutation, int64 (count,
    n); its sign, 1 or -1, (count,); the 1-based index of the first zero pivot, or 0, int32 (count,); and the
    1-based row that changed places with each row, in turn, int32 (count, n).
    """

    @T.prim_func(s_tir=True)
    def kernel(
        given: T.Buffer((count, n, n), dtype),
        a: T.Buffer((count, n, n), dtype),
        rows: T.Buffer((count, n), "int64"),
        sign: T.Buffer((count,), dtype),
        info: T.Buffer((count,), "int32"),
        pivots: T.Buffer((count, n), "int32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("lu"):
            best = T.sblock_alloc_buffer((1,), "int32")
            kept = T.sblock_alloc_buffer((1,), dtype)
            row = T.sblock_alloc_buffer((1,), "int64")
            for b in range(count):
                sign[b] = T.Cast(dtype, 1)
                info[b] = 0
                for i in range(n):
                    rows[b, i] = T.Cast("int64", i)
                    for j in range(n):
                        a[b, i, j] = given[b, i, j]
                for k in range(n):
                    best[0] = k
                    for i in range(n - 1 - k):
                        kept[0] = T.abs(a[b, k + 1 + i, k])
                        # NaN is a pivot, and stays one
                        if T.Or(kept[0] > T.abs(a[b, best[0], k]), kept[0] != kept[0]):
                            best[0] = k + 1 + i
                    pivots[b, k] = best[0] + 1
                    if best[0] != k:
                        sign[b] = T.Cast(dtype, 0) - sign[b]
                        row[0] = rows[b, k]
                        rows[b, k] = rows[b, best[0]]
                        rows[b, best[0]] = row[0]
                        for j in range(n):
                            kept[0] = a[b, k, j]
                            a[b, k, j] = a[b, best[0], j]
                            a[b, best[0], j] = kept[0]
                    if T.And(info[b] == 0, a[b, k, k] == T.Cast(dtype, 0)):
                        info[b] = k + 1
                    for i in range(n - 1 - k):
                        kept[0] = a[b, k + 1 + i, k]  # 0 if the pivot is 0
                        if a[b, k, k] != T.Cast(dtype, 0):
                            kept[0] = kept[0] / a[b, k, k]
                        a[b, k + 1 + i, k] = kept[0]
                        for j in range(n - 1 - k):
                            a[b, k + 1 + i, k + 1 + j] = (
                                a[b, k + 1 + i, k + 1 + j] - kept[0] * a[b, k, k + 1 + j]
                            )

    return kernel


@fast_tvmscript_parser()
def permutation(count: int, n: int, size: int) -> tvm.tirx.PrimFunc:
    """Write the permutation of `size` rows, int64 (count, size), of `lu`'s pivots, int32 (count, n)."""

    @T.prim_func(s_tir=True)
    def kernel(pivots: T.Buffer((count, n), "int32"), rows: T.Buffer((count, size), "int64")):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("permutation"):
            row = T.sblock_alloc_buffer((1,), "int64")
            for b in range(count):
                for i in range(size):
                    rows[b, i] = T.Cast("int64", i)
                for k in range(n):
                    row[0] = rows[b, k]
                    rows[b, k] = rows[b, pivots[b, k] - 1]
                    rows[b, pivots[b, k] - 1] = row[0]

    return kernel


@fast_tvmscript_parser()
def cholesky(count: int, n: int, dtype: str) -> tvm.tirx.PrimFunc:
    """Factor (count, n, n), of which the lower half is read, into L and its transpose.

    The kernel writes L and the 1-based index of the first row that shows that the matrix is not
    positive-definite, or 0, int32 (count,). From that column on L has what is given, but the pivot
    that is not positive: so LAPACK's potf2 leaves it.
    """

    @T.prim_func(s_tir=True)
    def kernel(
        given: T.Buffer((count, n, n), dtype),
        a: T.Buffer((count, n, n), dtype),
        info: T.Buffer((count,), "int32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("cholesky"):
            total = T.sblock_alloc_buffer((1,), dtype)
            for b in range(count):
                info[b] = 0
                for i in range(n):
                    for j in range(n):
                        a[b, i, j] = T.Cast(dtype, 0)
                    for j in range(i + 1):
                        total[0] = given[b, i, j]
                        for k in range(j):
                            total[0] = total[0] - a[b, i, k] * a[b, j, k]
                        if T.And(info[b] != 0, j + 1 >= info[b]):
                            a[b, i, j] = given[b, i, j]
                        elif i != j:
                            a[b, i, j] = total[0] / a[b, j, j]
                        elif total[0] > T.Cast(dtype, 0):
                            a[b, i, i] = T.sqrt(total[0])
                        else:
                            info[b] = i + 1
                            a[b, i, i] = total[0]

    return kernel


@fast_tvmscript_parser()
def reflections(count: int, m: int, n: int, dtype: str) -> tvm.tirx.PrimFunc:
    """Factor (count, m, n) into Householder's reflections and R, as LAPACK's geqrf.

    The kernel writes R and, below its diagonal, the reflections' vectors without their leading ones, in one
    matrix; and the reflections' factors, (count, min(m, n)).
    """
    least = min(m, n)

    @T.prim_func(s_tir=True)
    def kernel(
        given: T.Buffer((count, m, n), dtype),
        a: T.Buffer((count, m, n), dtype),
        factors: T.Buffer((count, least), dtype),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("reflections"):
            norm = T.sblock_alloc_buffer((1,), "float64")  # squares of float32 do not overflow it
            first = T.sblock_alloc_buffer((1,), dtype)
            total = T.sblock_alloc_buffer((1,), dtype)
            for b in range(count):
                for i in range(m):
                    for j in range(n):
                        a[b, i, j] = given[b, i, j]
                for k in range(least):
                    factors[b, k] = T.Cast(dtype, 0)
                    norm[0] = T.float64(0)
                    for i in range(m - 1 - k):
                        norm[0] = norm[0] + T.Cast("float64", a[b, k + 1 + i, k]) * T.Cast(
                            "float64", a[b, k + 1 + i, k]
                        )
                    if norm[0] != T.float64(0):
                        first[0] = T.Cast(
                            dtype,
                            T.sqrt(norm[0] + T.Cast("float64", a[b, k, k]) * T.Cast("float64", a[b, k, k])),
                        )
                        if a[b, k, k] >= T.Cast(dtype, 0):
                            first[0] = T.Cast(dtype, 0) - first[0]
                        factors[b, k] = (first[0] - a[b, k, k]) / first[0]
                        for i in range(m - 1 - k):
                            a[b, k + 1 + i, k] = a[b, k + 1 + i, k] / (a[b, k, k] - first[0])
                        a[b, k, k] = first[0]
                        for j in range(n - 1 - k):
                            total[0] = a[b, k, k + 1 + j]
                            for i in range(m - 1 - k):
                                total[0] = total[0] + a[b, k + 1 + i, k] * a[b, k + 1 + i, k + 1 + j]
                            total[0] = total[0] * factors[b, k]
                            a[b, k, k + 1 + j] = a[b, k, k + 1 + j] - total[0]
                            for i in range(m - 1 - k):
                                a[b, k + 1 + i, k + 1 + j] = (
                                    a[b, k + 1 + i, k + 1 + j] - a[b, k + 1 + i, k] * total[0]
                                )

    return kernel


@fast_tvmscript_parser()
def product_of_reflections(count: int, m: int, n: int, size: int, dtype: str) -> tvm.tirx.PrimFunc:
    """Multiply `size` reflections, as `reflections` writes them: the first n columns, (count, m, n)."""

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.Buffer((count, m, n), dtype),
        factors: T.Buffer((count, size), dtype),
        q: T.Buffer((count, m, n), dtype),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("product_of_reflections"):
            total = T.sblock_alloc_buffer((1,), dtype)
            k = T.sblock_alloc_buffer((1,), "int32")
            for b in range(count):
                for i in range(m):
                    for j in range(n):
                        q[b, i, j] = T.Select(i == j, T.Cast(dtype, 1), T.Cast(dtype, 0))
                for step in range(size):
                    k[0] = size - 1 - step
                    for j in range(n):
                        total[0] = q[b, k[0], j]
                        for i in range(m - size + step):
                            total[0] = total[0] + a[b, k[0] + 1 + i, k[0]] * q[b, k[0] + 1 + i, j]
                        total[0] = total[0] * factors[b, k[0]]
                        q[b, k[0], j] = q[b, k[0], j] - total[0]
                        for i in range(m - size + step):
                            q[b, k[0] + 1 + i, j] = (
                                q[b, k[0] + 1 + i, j] - a[b, k[0] + 1 + i, k[0]] * total[0]
                            )

    return kernel


@fast_tvmscript_parser()
def solve_triangular(
    count: int, n: int, width: int, upper: bool, unit: bool, dtype: str
) -> tvm.tirx.PrimFunc:
    """Solve a x = b for x and b (count, n, width), reading one half of `a` (count, n, n).

    With `unit` the diagonal counts as ones.
    """

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.Buffer((count, n, n), dtype),
        given: T.Buffer((count, n, width), dtype),
        x: T.Buffer((count, n, width), dtype),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("solve_triangular"):
            row = T.sblock_alloc_buffer((1,), "int32")
            other = T.sblock_alloc_buffer((1,), "int32")
            for b in range(count):
                for step in range(n):
                    row[0] = T.if_then_else(upper, n - 1 - step, step)
                    for j in range(width):
                        x[b, row[0], j] = given[b, row[0], j]
                    for k in range(step):
                        other[0] = T.if_then_else(upper, n - 1 - k, k)
                        for j in range(width):
                            x[b, row[0], j] = x[b, row[0], j] - a[b, row[0], other[0]] * x[b, other[0], j]
                    if not unit:
                        for j in range(width):
                            x[b, row[0], j] = x[b, row[0], j] / a[b, row[0], row[0]]

    return kernel
