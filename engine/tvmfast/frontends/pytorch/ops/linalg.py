"""PyTorch's linear algebra: matrix factorizations, and solvers built on them.

LINALG decomposes the operators into a few, two of them defined here, which CONVERTERS turns into kernels.
Singular values and eigenvalues are not supported.
"""

import math
from typing import Any

import torch
import tvm
from torch import Tensor
from tvm import relax

from ....core.bounds_check import checked
from ....kernels import linalg
from .call import Call

aten = torch.ops.aten

# ---------------------------------------------------------------- custom operators, and their fake kernels

_library = torch.library.Library("tvmfast", "DEF")
_library.define("lu(Tensor a) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_library.define("required(Tensor info, str wanted) -> Tensor")


@torch.library.register_fake("tvmfast::lu")
def _lu_shapes(a: Tensor) -> tuple[Tensor, ...]:
    """Return L and U in one matrix, the row permutation, its sign, a zero pivot's index, and the pivots."""
    rows, sign = torch.empty(a.shape[:-1], dtype=torch.int64), a.new_empty(a.shape[:-2])
    return torch.empty_like(a), rows, sign, torch.empty_like(sign, dtype=torch.int32), rows.int()


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
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    rows = rows.unsqueeze(-1).expand(*batch, *b.shape[-2:])
    b = torch.gather(b.expand(*batch, *b.shape[-2:]), -2, rows)
    lu = lu.expand(*batch, *lu.shape[-2:])
    y = aten.linalg_solve_triangular.default(lu, b, upper=False, unitriangular=True)
    return aten.linalg_solve_triangular.default(lu, y, upper=True), info


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check: bool = True) -> tuple:
    row = b.ndim == 1 or (b.ndim + 1 == a.ndim and b.shape == a.shape[:-1])
    solution, info = _solved(a, b.unsqueeze(-1) if row else b, left, "linalg.solve" if check else "")
    return solution.squeeze(-1) if row else solution, info


def _inverse(a: Tensor, checks: str = "") -> tuple[Tensor, Tensor]:
    return _solved(a, torch.eye(a.shape[-1], dtype=a.dtype), True, checks)


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


LINALG = {
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.linalg_solve.default: lambda a, b, *, left=True: _solve(a, b, left=left)[0],
    aten.linalg_solve_ex.default: _solve_ex,
    aten._linalg_solve_ex.default: _solve_ex_with_factors,
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


def _lu(c: Call) -> relax.Expr:
    count, n, dtype, x = _matrices(c)
    shapes = (count, n, n), (count, n), (count,), (count,), (count, n)
    return _called(c, linalg.lu(count, n, dtype), [x], shapes)


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
    "lu.default": _lu,
    "required.default": lambda c: checked(c.x, [1], c.inputs[1], False, c.builder),
    "linalg_cholesky_ex.default": _cholesky_factor,
    "linalg_solve_triangular.default": _triangular,
}
