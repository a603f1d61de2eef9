"""PyTorch's linear algebra: matrix factorizations, and solvers built on them.

LINALG decomposes the operators into a few, two of them defined here, which CONVERTERS turns into kernels.
Singular values and eigenvalues are not supported.
"""

import math
from typing import Any

import torch
import tvm
from torch import Tensor, fx
from tvm import relax

from ....core.bounds_check import checked
from ....kernels import linalg

aten = torch.ops.aten

# ---------------------------------------------------------------- custom operators, and their fake kernels

_library = torch.library.Library("tvmfast", "DEF")
_library.define("lu(Tensor a) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define("required(Tensor info, str wanted) -> Tensor")


@torch.library.register_fake("tvmfast::lu")
def _lu_shapes(a: Tensor) -> tuple[Tensor, ...]:
    """Return L and U in one matrix, the row permutation, its sign (1 or -1), and a zero pivot's index."""
    rows = torch.empty(a.shape[:-1], dtype=torch.int64)
    return torch.empty_like(a), rows, a.new_empty(a.shape[:-2]), torch.empty(a.shape[:-2], dtype=torch.int32)


@torch.library.register_fake("tvmfast::required")
def _required_shape(info: Tensor, wanted: str) -> Tensor:
    """Return zeros; a run raises if an element of `info` is not 0."""
    return torch.empty_like(info)


def _det(a: Tensor) -> tuple[Tensor, ...]:
    lu, rows, sign, _ = torch.ops.tvmfast.lu(a)
    return sign * lu.diagonal(dim1=-2, dim2=-1).prod(-1), lu, rows


def _slogdet(a: Tensor) -> tuple[Tensor, ...]:
    lu, rows, sign, _ = torch.ops.tvmfast.lu(a)
    pivots = lu.diagonal(dim1=-2, dim2=-1)
    return sign * torch.sign(pivots).prod(-1), torch.log(pivots.abs()).sum(-1), lu, rows


def _solved(a: Tensor, b: Tensor, left: bool, checks: str = "") -> tuple[Tensor, Tensor]:
    """Solve a x = b, or x a = b; if `checks` names an operator, a run with a singular matrix raises."""
    if not left:
        solution, info = _solved(a.mT, b.mT, True, checks)
        return solution.mT, info
    lu, rows, _, info = torch.ops.tvmfast.lu(a)
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
    factor, info = aten.linalg_cholesky_ex.default(a)
    wanted = "linalg.cholesky: expected a positive-definite matrix, got one that is not, as shows in row "
    factor = factor + torch.ops.tvmfast.required(info, wanted).to(a.dtype).unsqueeze(-1).unsqueeze(-1)
    return factor.mT if upper else factor


def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    if not upper:
        return NotImplemented
    factor, info = aten.linalg_cholesky_ex.default(a)
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


def _solve_ex_with_factors(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple:
    solution = _solve(a, b, left=left, check=False)[0]
    return solution, a, a, _solve(a, b, left=left, check=False)[1]


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


def _called(
    importer: Any, kernel: tvm.tirx.PrimFunc, inputs: list[relax.Expr], shapes: list[tuple], node: fx.Node
):
    """Emit the call of a kernel on tensors of 3 axes, and reshape its results to PyTorch's shapes."""
    bb, wanted = importer.block_builder, node.meta["val"]
    wanted = [wanted] if isinstance(wanted, Tensor) else wanted
    dtypes = [importer._convert_data_type(each.dtype) for each in wanted]
    types = [relax.TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    gvar = bb.add_func(kernel.without_attr("global_symbol"), node.target.__name__.partition(".")[0])
    result = bb.emit(relax.call_tir(gvar, inputs, types if len(types) > 1 else types[0]))
    parts = [result[i] for i in range(len(types))] if len(types) > 1 else [result]
    pairs = zip(parts, wanted, strict=True)
    parts = [bb.emit(relax.op.reshape(part, list(each.shape))) for part, each in pairs]
    return bb.emit(relax.Tuple(parts)) if len(types) > 1 else parts[0]


def _matrices(node: fx.Node, importer: Any) -> tuple[int, int, str, relax.Expr]:
    """Return the number of an operator's matrices, their size and dtype, and the matrices with three axes."""
    x = importer.env[node.args[0]]
    *batch, n = node.args[0].meta["val"].shape[:-1]
    count = math.prod(batch)
    return count, n, x.ty.dtype.dtype, importer.block_builder.emit(relax.op.reshape(x, [count, n, n]))


def _lu(node: fx.Node, importer: Any) -> relax.Expr:
    count, n, dtype, x = _matrices(node, importer)
    shapes = [(count, n, n), (count, n), (count,), (count,)]
    return _called(importer, linalg.lu(count, n, dtype), [x], shapes, node)


def _cholesky_factor(node: fx.Node, importer: Any) -> relax.Expr:
    count, n, dtype, x = _matrices(node, importer)
    return _called(importer, linalg.cholesky(count, n, dtype), [x], [(count, n, n), (count,)], node)


def _triangular(node: fx.Node, importer: Any) -> relax.Expr:
    count, n, dtype, x = _matrices(node, importer)
    shape = (count, n, node.meta["val"].shape[-1])
    b = importer.block_builder.emit(relax.op.reshape(importer.env[node.args[1]], shape))
    upper, unit = node.kwargs["upper"], node.kwargs.get("unitriangular", False)
    kernel = linalg.solve_triangular(*shape, upper, unit, dtype)
    return _called(importer, kernel, [x, b], [shape], node)


def _required(node: fx.Node, importer: Any) -> relax.Expr:
    info, wanted = node.args
    return checked(importer.env[info], [1], wanted, False, importer.block_builder)


CONVERTERS = {
    "lu.default": _lu,
    "required.default": _required,
    "linalg_cholesky_ex.default": _cholesky_factor,
    "linalg_solve_triangular.default": _triangular,
}
