"""PyTorch's linear algebra: matrix factorizations, and solvers built on them.

LINALG decomposes the operators into a few, two of them defined here, which CONVERTERS turns into kernels.
Singular values and eigenvalues are not supported.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
import tvm
from torch import Tensor
from tvm import relax

from ....core.bounds_check import checked
from ....kernels import linalg
from ...context import shape_of
from .call import Call

aten = torch.ops.aten

# ---------------------------------------------------------------- custom operators, and their fake kernels

_library = torch.library.Library("tvmfast", "DEF")
_library.define("lu(Tensor a) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_library.define("permutation(Tensor pivots, int size) -> Tensor")
_library.define("required(Tensor info, str wanted) -> Tensor")


@torch.library.register_fake("tvmfast::lu")
def _lu_shapes(a: Tensor) -> tuple[Tensor, ...]:
    """Return L and U in one matrix, the row permutation, its sign, a zero pivot's index, and the pivots."""
    rows, sign = torch.empty(a.shape[:-1], dtype=torch.int64), a.new_empty(a.shape[:-2])
    return torch.empty_like(a), rows, sign, torch.empty_like(sign, dtype=torch.int32), rows.int()


@torch.library.register_fake("tvmfast::permutation")
def _permutation_shape(pivots: Tensor, size: int) -> Tensor:
    """Return the permutation of `size` rows that `pivots` stand for."""
    return pivots.new_empty((*pivots.shape[:-1], size), dtype=torch.int64)


@torch.library.register_fake("tvmfast::required")
def _required_shape(info: Tensor, wanted: str) -> Tensor:
    """Return zeros; a run raises if an element of `info` is not 0."""
    return torch.empty_like(info)


def _det(a: Tensor) -> tuple[Tensor, ...]:
    lu, pivots, sign = _determining(a)
    return sign * lu.diagonal(dim1=-2, dim2=-1).prod(-1), lu, pivots


def _slogdet(a: Tensor) -> tuple[Tensor, ...]:
    lu, pivots, sign = _determining(a)
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    return sign * torch.sign(diagonal).prod(-1), torch.log(diagonal.abs()).sum(-1), lu, pivots


def _determining(a: Tensor) -> tuple[Tensor, ...]:
    """Return L and U, the pivots, and the sign: as in PyTorch, of a contiguous matrix's transpose."""
    lu, _, sign, _, pivots = torch.ops.tvmfast.lu(a.mT if a.is_contiguous() else a)
    return lu, pivots, sign


def _solved(a: Tensor, b: Tensor, left: bool, checks: str = "") -> tuple[Tensor, Tensor]:
    """Solve a x = b, or x a = b; if `checks` names an operator, a run with a singular matrix raises."""
    if not left:
        solution, info = _solved(a.mT, b.mT, True, checks)
        return solution.mT, info
    lu, rows, _, info, _ = torch.ops.tvmfast.lu(a)
    if checks:
        wanted = f"{checks}: expected a matrix that has an inverse, got a singular one, "
        wanted += "which has no pivot for row "
        rows = rows + torch.ops.tvmfast.required(info, wanted).to(torch.int64).unsqueeze(-1)
    return _substituted(lu, rows, b), info


def _substituted(lu: Tensor, rows: Tensor, b: Tensor) -> Tensor:
    """Solve by L and U, in one matrix, and the row permutation."""
    y = aten.linalg_solve_triangular.default(lu, _permuted(b, rows), upper=False, unitriangular=True)
    return aten.linalg_solve_triangular.default(lu, y, upper=True)


def _permuted(b: Tensor, rows: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(rows.shape[:-1], b.shape[:-2])
    shape = (*batch, *b.shape[-2:])
    return torch.gather(b.expand(shape), -2, rows.unsqueeze(-1).expand(shape))


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check: bool = True) -> tuple:
    row = b.ndim == 1 or (b.ndim + 1 == a.ndim and b.shape == a.shape[:-1])
    solution, info = _solved(a, b.unsqueeze(-1) if row else b, left, "linalg.solve" if check else "")
    return solution.squeeze(-1) if row else solution, info


def _inverse(a: Tensor, checks: str = "") -> tuple[Tensor, Tensor]:
    return _solved(a, torch.eye(a.shape[-1], dtype=a.dtype), True, checks)


def _lu(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Factor a matrix, made square by zeros, among which no pivot is that stands for another one."""
    if not pivot:
        return NotImplemented
    (m, n), least = a.shape[-2:], min(a.shape[-2:])
    square = F.pad(a, (0, max(m - n, 0), 0, max(n - m, 0))) if m != n else a
    lu, _, _, info, pivots = torch.ops.tvmfast.lu(square)
    lu, info, pivots = lu[..., :m, :n], torch.where(info > least, 0, info), pivots[..., :least]
    if check_errors:
        wanted = "linalg.lu_factor: expected a matrix whose pivots are not 0, got one that has none for row "
        zero = torch.ops.tvmfast.required(info, wanted).unsqueeze(-1)
        lu, pivots = lu + zero.unsqueeze(-1).to(lu.dtype), pivots + zero
    return lu, pivots, info


def _lu_factor(a: Tensor, *, pivot: bool = True) -> Any:
    factors = _lu(a, pivot=pivot, check_errors=True)
    return factors if factors is NotImplemented else factors[:2]


def _lu_parts(a: Tensor, *, pivot: bool = True) -> Any:
    factors = _lu(a, pivot=pivot)
    return factors if factors is NotImplemented else _lu_unpacked(*factors[:2])


def _lu_unpacked(
    lu: Tensor, pivots: Tensor, data: bool = True, unpacks_pivots: bool = True
) -> tuple[Tensor, ...]:
    """Return P, L and U; what is not asked for is empty."""
    m, least = lu.shape[-2], min(lu.shape[-2:])
    none = lu.new_empty((0,))
    rows = torch.ops.tvmfast.permutation(pivots[..., :least], m).unsqueeze(-2) if unpacks_pivots else none
    permutation = (rows == torch.arange(m).unsqueeze(-1)).to(lu.dtype) if unpacks_pivots else none
    if not data:
        return permutation, none, none
    diagonal = torch.eye(m, least, dtype=lu.dtype)
    return permutation, lu[..., :least].tril(-1) + diagonal, lu[..., :least, :].triu()


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    rows = torch.ops.tvmfast.permutation(pivots, lu.shape[-1])
    if not adjoint:
        return _substituted(lu, rows, b)
    y = aten.linalg_solve_triangular.default(lu.mT, b, upper=False)
    y = aten.linalg_solve_triangular.default(lu.mT, y, upper=True, unitriangular=True)
    return _permuted(y, torch.argsort(rows, -1))


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    y = aten.linalg_solve_triangular.default(lower, b, upper=False)
    return aten.linalg_solve_triangular.default(lower.mT, y, upper=True)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


def _old_solve_triangular(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    how = {"upper": upper != transpose, "unitriangular": unitriangular}
    return aten.linalg_solve_triangular.default(a.mT if transpose else a, b, **how), a.clone()


def _cholesky(a: Tensor, upper: bool = False) -> Tensor:
    factor, info = aten.linalg_cholesky_ex.default(a.mT if upper else a)  # which reads the lower half
    wanted = "linalg.cholesky: expected a positive-definite matrix, got one that is not, as shows in row "
    factor = factor + torch.ops.tvmfast.required(info, wanted).to(a.dtype).unsqueeze(-1).unsqueeze(-1)
    return factor.mT if upper else factor


def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    if not upper:
        return NotImplemented
    factor, info = aten.linalg_cholesky_ex.default(a.mT)
    return factor.mT, info


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False):
    """Broadcast, and move the unknown to the right: the kernel needs matrices of one batch."""
    how = {"unitriangular": unitriangular}
    if not left:
        return aten.linalg_solve_triangular.default(a.mT, b.mT, upper=not upper, **how).mT
    if a.shape[:-2] == b.shape[:-2]:
        return NotImplemented
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    return aten.linalg_solve_triangular.default(a, b, upper=upper, **how)


def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple:
    return _solve(a, b, left=left, check=False)


def _solve_ex_with_factors(a: Tensor, b: Tensor, **how: bool) -> tuple:
    solution, info = _solve_ex(a, b, **how)
    return solution, a, a, info


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    vectors, factors = aten.geqrf.default(a)
    triangle = (vectors if mode == "complete" else vectors[..., : min(m, n), :]).triu()
    if mode == "r":
        return a.new_empty((0,)), triangle
    return _reflected(vectors[..., : min(m, n)], factors, m if mode == "complete" else min(m, n)), triangle


def _reflected(vectors: Tensor, factors: Tensor, columns: int) -> Tensor:
    """Return the first columns of a product of reflections."""
    return aten.linalg_householder_product.default(F.pad(vectors, (0, columns - vectors.shape[-1])), factors)


def _times_reflections(
    vectors: Tensor, factors: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    q = _reflected(vectors, factors, vectors.shape[-2])
    q = q.mT if transpose else q
    return q @ other if left else other @ q


def _cov(
    x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Estimate the covariances of rows, without a check whether weights are positive."""
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    x = torch.atleast_2d(x)
    given = [each.to(x.dtype) for each in (fweights, aweights) if each is not None]
    weights = math.prod(given[1:], start=given[0]) if given else torch.ones(x.shape[1], dtype=x.dtype)
    total = weights.sum()
    centred = x - (x * weights).sum(1, keepdim=True) / total
    lost = correction if aweights is None else correction * (weights * aweights).sum() / total
    return (centred @ (centred * weights).mT / torch.clamp(total - lost, min=0)).squeeze()


def _corrcoef(x: Tensor) -> Tensor:
    covariances = _cov(x)
    if covariances.ndim == 0:
        return covariances / covariances
    deviations = torch.sqrt(covariances.diagonal())
    return (covariances / deviations.unsqueeze(1) / deviations).clamp(-1, 1)


# PyTorch's own read values, and cannot be captured.
STATISTICS = {
    **dict.fromkeys((torch.cov, Tensor.cov, aten.cov.default), _cov),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef, aten.corrcoef.default), _corrcoef),
}

LINALG = {
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.linalg_solve.default: lambda a, b, *, left=True: _solve(a, b, left=left)[0],
    aten.linalg_solve_ex.default: _solve_ex,
    aten._linalg_solve_ex.default: _solve_ex_with_factors,
    aten.linalg_lu_factor.default: _lu_factor,
    aten.linalg_lu_factor_ex.default: _lu,
    aten.linalg_lu.default: _lu_parts,
    aten.lu_unpack.default: _lu_unpacked,
    aten.linalg_lu_solve.default: _lu_solve,
    aten.linalg_qr.default: _qr,
    aten.ormqr.default: _times_reflections,
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: _cholesky_inverse,
    aten.triangular_solve.default: _old_solve_triangular,
    aten.linalg_inv.default: lambda a: _inverse(a, "linalg.inv")[0],
    aten.linalg_inv_ex.default: lambda a, *, check_errors=False: _inverse(a),
    aten.linalg_cholesky.default: lambda a, *, upper=False: _cholesky(a, upper),
    aten.cholesky.default: _cholesky,
    aten.linalg_cholesky_ex.default: _cholesky_ex,
    aten.linalg_solve_triangular.default: _solve_triangular,
}

# ---------------------------------------------------------------- kernels


def _called(c: Call, kernel: tvm.tirx.PrimFunc, inputs: list[relax.Expr], shapes: list[tuple]) -> relax.Expr:
    """Call a kernel on tensors of 3 axes, and reshape its results to PyTorch's shapes."""
    results = [c.result] if isinstance(c.result, Tensor) else c.result
    types = [(shape, c.dtype_in_tvm(each.dtype)) for shape, each in zip(shapes, results, strict=True)]
    pairs = zip(c.call(c.op, kernel, inputs, *types), results, strict=True)
    parts = [c.emit(relax.op.reshape(part, list(each.shape))) for part, each in pairs]
    return c.emit(relax.Tuple(parts)) if len(parts) > 1 else parts[0]


def _matrices(c: Call) -> tuple[int, int, str, relax.Expr]:
    """Return the number of an operator's matrices, their size and dtype, and the matrices with three axes."""
    *batch, n = c.shape[:-1]
    count = math.prod(batch)
    return count, n, c.dtype, c.emit(relax.op.reshape(c.x, [count, n, n]))


def _factors(c: Call) -> relax.Expr:
    count, n, dtype, x = _matrices(c)
    shapes = (count, n, n), (count, n), (count,), (count,), (count, n)
    return _called(c, linalg.lu(count, n, dtype), [x], shapes)


def _permutation(c: Call) -> relax.Expr:
    *batch, n = c.shape
    count, size = math.prod(batch), c.inputs[1]
    pivots = c.emit(relax.op.reshape(c.x, [count, n]))
    return _called(c, linalg.permutation(count, n, size), [pivots], [(count, size)])


def _reflections(c: Call) -> relax.Expr:
    *batch, m, n = c.shape
    count = math.prod(batch)
    x = c.emit(relax.op.reshape(c.x, [count, m, n]))
    return _called(c, linalg.reflections(count, m, n, c.dtype), [x], [(count, m, n), (count, min(m, n))])


def _product_of_reflections(c: Call) -> relax.Expr:
    *batch, m, n = c.shape
    count, size = math.prod(batch), shape_of(c.inputs[1])[-1]
    kernel = linalg.product_of_reflections(count, m, n, size, c.dtype)
    inputs = [
        c.emit(relax.op.reshape(x, shape))
        for x, shape in zip(c.inputs, ([count, m, n], [count, size]), strict=True)
    ]
    return _called(c, kernel, inputs, [(count, m, n)])


def _cholesky_factor(c: Call) -> relax.Expr:
    count, n, dtype, x = _matrices(c)
    return _called(c, linalg.cholesky(count, n, dtype), [x], [(count, n, n), (count,)])


def _triangular(c: Call) -> relax.Expr:
    count, n, dtype, x = _matrices(c)
    shape = (count, n, c.result_shape[-1])
    b = c.emit(relax.op.reshape(c.inputs[1], shape))
    upper, unit = c.node.kwargs["upper"], c.node.kwargs.get("unitriangular", False)
    return _called(c, linalg.solve_triangular(*shape, upper, unit, dtype), [x, b], [shape])


CONVERTERS = {
    "lu.default": _factors,
    "permutation.default": _permutation,
    "required.default": lambda c: checked(c.x, [1], c.inputs[1], False, c.builder),
    "geqrf.default": _reflections,
    "linalg_householder_product.default": _product_of_reflections,
    "linalg_cholesky_ex.default": _cholesky_factor,
    "linalg_solve_triangular.default": _triangular,
}
