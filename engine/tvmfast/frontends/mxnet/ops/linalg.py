"""Converters of MXNet's linear algebra (see call.py): products, triangles, factorizations, inverses.

Source: https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/symbol/linalg/index.html
"""

import functools
import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ....core.bounds_check import checked
from ....kernels import linalg
from ...context import shape_of
from ...ops.common import product
from .call import CONVERTERS, Call, converts


def _of_matrices(*names: str):
    """Decorate the converter of an operator on matrices of float32 or float64, of the two names it has."""

    def register(function):
        def converted(c: Call):
            c.refuse_if(c.dtype not in ("float32", "float64"), f"matrices of {c.dtype}; cast them before")
            if c.rank < 2:
                raise ValueError(f"expected matrices, got an input of shape {c.shape}")
            return function(c)

        converts(*(f"{first}{name}" for name in names for first in ("_linalg_", "linalg_")))(converted)
        return function

    return register


def _square(c: Call) -> int:
    """Return the size of square matrices."""
    if c.shape[-1] != c.shape[-2]:
        raise ValueError(f"expected square matrices, got an input of shape {c.shape}")
    return c.shape[-1]


def _scaled(c: Call, x: relax.Expr, name: str = "alpha") -> relax.Expr:
    factor = float(c.get(name, 1.0))
    return x if factor == 1 else c.emit(x * c.const(factor))


def _turned(c: Call, x: relax.Expr) -> relax.Expr:
    """Return transposed matrices."""
    rank = len(shape_of(x))
    return c.emit(op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


# ---------------------------------------------------------------- products


@_of_matrices("gemm", "gemm2")
def _gemm(c: Call):
    """Multiply matrices whose rows lie along `axis` and whose columns along the last."""
    axis, last = int(c.get("axis", -2)) % c.rank, c.rank - 1
    c.refuse_if(axis == last, f"axis={axis}, that of the columns")
    order = [*(n for n in range(last) if n != axis), axis, last]
    a, b, *added = (
        x if axis == last - 1 else c.emit(op.permute_dims(x, order))
        for x in c.inputs  # the rows to the place before the last
    )
    result = _scaled(c, c.emit(product(a, b, c.get("transpose_a", False), c.get("transpose_b", False))))
    if added and c.get("beta", 1.0) != 0:  # with 0 it is not read, as it may be NaN
        result = c.emit(result + _scaled(c, added[0], "beta"))
    return result if axis == last - 1 else op.permute_dims(result, [int(n) for n in np.argsort(order)])


@_of_matrices("syrk")
def _syrk(c: Call):
    turn = bool(c.get("transpose", False))
    return _scaled(c, c.emit(product(c.x, c.x, turn, not turn)))


@_of_matrices("trmm")
def _trmm(c: Call):
    _square(c)
    triangle = c.emit(op.tril(c.x) if c.get("lower", True) else op.triu(c.x))
    turn, b = bool(c.get("transpose", False)), c.inputs[1]
    right = c.get("rightside", False)
    return _scaled(
        c, c.emit(product(b, triangle, False, turn) if right else product(triangle, b, turn, False))
    )


@converts("khatri_rao")
def _khatri_rao(c: Call):
    """Return the products of each row of one matrix with each of the next, column by column."""

    def products(a, b):
        (rows, columns), (others, _) = shape_of(a), shape_of(b)
        both = op.reshape(a, (rows, 1, columns)) * op.reshape(b, (1, others, columns))
        return c.emit(op.reshape(both, (rows * others, columns)))

    return functools.reduce(products, c.inputs)


# ---------------------------------------------------------------- diagonals and triangles


def _positions(c: Call, size: int, is_triangle: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of a diagonal, or of the triangle that it bounds, in MXNet's order."""
    offset = int(c.get("offset", 0))
    lower = offset < 0 or (offset == 0 and bool(c.get("lower", True)))
    if not is_triangle:
        rows = np.arange(size - abs(offset))
        return rows + max(0, -offset), rows + max(0, offset)
    if lower:
        return np.tril_indices(size, offset)
    columns, rows = np.tril_indices(size, -offset)  # of an upper triangle, a column after another
    return rows, columns


def _taken(c: Call, is_triangle: bool = False) -> relax.Expr:
    """Return elements of square matrices, along the last axis."""
    *batch, size, _ = c.shape
    rows, columns = _positions(c, size, is_triangle)
    flat = c.emit(op.reshape(c.x, [*batch, size * size]))
    return c.emit(op.take(flat, c.const(rows * size + columns), len(batch), mode="clip"))


def _placed(c: Call, size: int, is_triangle: bool) -> relax.Expr:
    """Return square matrices of 0 with the elements of the last axis of the first input."""
    index = np.full((size, size), -1)
    index[_positions(c, size, is_triangle)] = np.arange(c.shape[-1])
    taken = c.emit(op.take(c.x, c.const(index.clip(0).reshape(-1)), c.rank - 1, mode="clip"))
    taken = c.emit(op.reshape(taken, [*c.shape[:-1], size, size]))
    return op.where(c.const(index >= 0, "bool"), taken, c.const(0))


@converts("_linalg_makediag", "linalg_makediag")
def _makediag(c: Call):
    return _placed(c, c.shape[-1] + abs(int(c.get("offset", 0))), False)


@converts("_linalg_maketrian", "linalg_maketrian")
def _maketrian(c: Call):
    size = (math.isqrt(8 * c.shape[-1] + 1) - 1) // 2
    if size * (size + 1) // 2 != c.shape[-1]:
        raise ValueError(f"expected 1, 3, 6, 10 … elements of a triangle, got {c.shape[-1]}")
    return _placed(c, size + abs(int(c.get("offset", 0))), True)


@_of_matrices("extractdiag", "extracttrian")
def _extract(c: Call):
    _square(c)
    return _taken(c, c.op.endswith("trian"))


@_of_matrices("sumlogdiag")
def _sumlogdiag(c: Call):
    _square(c)
    return _as_array(c, op.sum(op.log(_taken(c)), -1))


def _as_array(c: Call, x: relax.Expr) -> relax.Expr:
    """Return a number of each matrix; that of a single one gets an axis, as MXNet's arrays have."""
    return op.reshape(x, list(c.shape[:-2]) or ([] if c.node.numpy_mode else [1]))


# ---------------------------------------------------------------- factorizations


def _called(c: Call, kernel: tvm.tirx.PrimFunc, inputs: list[relax.Expr], *types: tuple) -> list[relax.Expr]:
    """Call a kernel on stacks of matrices."""
    return c.call(c.op.strip("_"), kernel, inputs, *types)


def _stack(c: Call, x: relax.Expr) -> relax.Expr:
    """Return matrices with three axes."""
    *batch, rows, columns = shape_of(x)
    return c.emit(op.reshape(x, [math.prod(batch), rows, columns]))


def _required(c: Call, info: relax.Expr, expected: str) -> relax.Expr:
    """Return 0 for each matrix, (count, 1, 1); a run raises if an element of `info` (count,) is not 0."""
    zeros = checked(info, [1], f"{c.op.strip('_')}: expected {expected} ", False, c.builder)
    return c.emit(op.astype(op.reshape(zeros, [-1, 1, 1]), c.dtype))


def _solved(c: Call, a: relax.Expr, b: relax.Expr, upper: bool, unit: bool = False) -> relax.Expr:
    """Solve a x = b for stacks, reading a triangle of `a`."""
    count, n, width = shape_of(b)
    kernel = linalg.solve_triangular(count, n, width, upper, unit, c.dtype)
    return _called(c, kernel, [a, b], (shape_of(b), c.dtype))[0]


@_of_matrices("trsm")
def _trsm(c: Call):
    """Solve op(A) X = alpha B, or transposed X op(A) = alpha B."""
    _square(c)
    right, b = bool(c.get("rightside", False)), _scaled(c, c.inputs[1])
    turn = bool(c.get("transpose", False)) != right
    upper = (not c.get("lower", True)) != turn
    a = _stack(c, _turned(c, c.x) if turn else c.x)
    x = _solved(c, a, _stack(c, _turned(c, b) if right else b), upper)
    return op.reshape(_turned(c, x) if right else x, list(shape_of(c.inputs[1])))


@_of_matrices("potrf")
def _potrf(c: Call):
    n, lower = _square(c), c.get("lower", True)
    x = _stack(c, c.x if lower else _turned(c, c.x))  # the kernel reads the lower half
    count = shape_of(x)[0]
    types = (shape_of(x), c.dtype), ((count,), "int32")
    factor, info = _called(c, linalg.cholesky(count, n, c.dtype), [x], *types)
    wanted = "a positive-definite matrix, got one that is not, as shows in row"
    factor = c.emit(factor + _required(c, info, wanted))
    return op.reshape(factor if lower else _turned(c, factor), list(c.shape))


converts("_npi_cholesky")(CONVERTERS["_linalg_potrf"])


@_of_matrices("potri")
def _potri(c: Call):
    """Return the inverse of the matrix that has this factor: (A Aᵀ)⁻¹, or (Aᵀ A)⁻¹ of an upper one."""
    n, lower = _square(c), bool(c.get("lower", True))
    a = _stack(c, c.x)
    ones = c.const(np.broadcast_to(np.eye(n), shape_of(a)), c.dtype)
    inverse = _solved(c, a, ones, not lower)
    numbers = c.const(np.arange(1, n + 1, dtype="int32"))
    zeros = op.where(op.equal(_diagonal(c, a), c.const(0)), numbers, c.const(0, "int32"))
    wanted = "a factor without zeros on its diagonal, got one in row"
    inverse = c.emit(inverse + _required(c, c.emit(op.max(zeros, -1)), wanted))
    return op.reshape(product(inverse, inverse, lower, not lower), list(c.shape))


def _diagonal(c: Call, x: relax.Expr) -> relax.Expr:
    count, n, _ = shape_of(x)
    flat = c.emit(op.reshape(x, [count, n * n]))
    return c.emit(op.take(flat, c.const(np.arange(n) * (n + 1)), 1, mode="clip"))


def _factored(c: Call) -> list[relax.Expr]:
    """Return L and U in one matrix, the row permutation, its sign, and the row of a zero pivot, or 0."""
    n, x = _square(c), _stack(c, c.x)
    count = shape_of(x)[0]
    types = (shape_of(x), c.dtype), ((count, n), "int64"), ((count,), c.dtype), ((count,), "int32")
    return _called(c, linalg.lu(count, n, c.dtype), [x], *types, ((count, n), "int32"))[:4]


@_of_matrices("det")
def _det(c: Call):
    lu, _, sign, _ = _factored(c)
    return _as_array(c, sign * op.prod(_diagonal(c, lu), -1))


@_of_matrices("slogdet")
def _slogdet(c: Call):
    lu, _, sign, _ = _factored(c)
    diagonal = _diagonal(c, lu)
    signs, sizes = op.prod(op.sign(diagonal), -1), op.sum(op.log(op.abs(diagonal)), -1)
    return [_as_array(c, sign * signs), _as_array(c, sizes)]


_REGULAR = "a matrix that has an inverse, got a singular one, which has no pivot for row"


@_of_matrices("inverse")
def _inverse(c: Call):
    lu, rows, _, info = _factored(c)
    permuted = c.emit(op.take(c.const(np.eye(c.shape[-1]), c.dtype), rows, 0, mode="clip"))
    return op.reshape(_of_factors(c, lu, info, permuted), list(c.shape))


def _of_factors(c: Call, lu: relax.Expr, info: relax.Expr, permuted: relax.Expr) -> relax.Expr:
    """Solve L U x = b, whose rows are permuted; a run raises where U has a zero pivot."""
    return _solved(c, lu, _solved(c, lu, permuted, False, unit=True), True) + _required(c, info, _REGULAR)


@converts("_npi_solve")
def _solve(c: Call):
    """Solve A x = b, for a vector b of one matrix or for matrices."""
    c.refuse_if(c.dtype not in ("float32", "float64"), f"matrices of {c.dtype}; cast them before")
    lu, rows, _, info = _factored(c)
    shape, (count, n, _) = shape_of(c.inputs[1]), shape_of(lu)
    b = c.emit(op.reshape(c.inputs[1], (count, n, math.prod(shape) // (count * n))))
    rows = c.emit(op.broadcast_to(c.emit(op.expand_dims(rows, 2)), shape_of(b)))
    return op.reshape(_of_factors(c, lu, info, c.emit(op.gather_elements(b, rows, 1))), list(shape))
