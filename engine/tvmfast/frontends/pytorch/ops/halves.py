"""Halves in steps, rounded where PyTorch rounds them on a CPU: its tables are a part of DECOMPOSITIONS.

Most of PyTorch's kernels compute halves in float32 and round the result once; compiler/legalize/accumulate.py
does so for single operators. ROUNDED_ONCE names others, which a decomposition, ours or PyTorch's, makes of
several. A few kernels round each step, but PyTorch's decompositions of them do not; those are STEPWISE.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

aten = torch.ops.aten
HALVES = torch.float16, torch.bfloat16

ROUNDED_ONCE = (
    *(aten.elu.default, aten.expm1.default, aten.log1p.default, aten.hypot.default),
    *(aten.logcumsumexp.default, aten.addbmm.default),
    *(aten._embedding_bag.default, aten._embedding_bag_forward_only.default),
)


def wide(x: Tensor) -> Tensor:
    """Return half-precision tensors in float32, in which PyTorch computes on a CPU; others unchanged."""
    return x.float() if x.dtype in HALVES else x


def as_half(number: float, dtype: torch.dtype) -> Tensor:
    """Return a scalar of float32 that was rounded to a half first."""
    return torch.full((), number, dtype=dtype).float()


def _dtype(args: Any) -> torch.dtype | None:
    """Return the dtype to which the floats among the arguments promote."""
    dtypes = {each.dtype for each in pytree.tree_leaves(args) if isinstance(each, Tensor)}
    floats = [dtype for dtype in dtypes if dtype.is_floating_point]
    return functools.reduce(torch.promote_types, floats) if floats else None


def rounded_once(operator: Any, decomposition: Callable) -> Callable:
    """Apply an operator to halves in float32, of which it has this decomposition."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if (dtype := _dtype((args, kwargs))) not in HALVES:
            return decomposition(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(Tensor, wide, (args, kwargs))
        results = operator(*args, **kwargs)
        return pytree.tree_map_only(
            Tensor, lambda each: each.to(dtype) if each.is_floating_point() else each, results
        )

    return decomposed


def _stepwise(operator: Any) -> Callable:
    """Decompose as PyTorch does, but for halves without its conversion to float32, a decorator."""
    decomposition = decomposition_table[operator]
    steps = inspect.unwrap(decomposition)

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return (steps if _dtype((args, kwargs)) in HALVES else decomposition)(*args, **kwargs)

    return decomposed


STEPWISE = {
    each: _stepwise(each)
    for each in (
        *(aten.logit.default, aten.xlogy.Tensor, aten.special_xlog1py.default, aten.special_entr.default),
        *(aten.mse_loss.default, aten.soft_margin_loss.default, aten.binary_cross_entropy.default),
        *(aten.logsumexp.default, aten.linalg_cross.default),
    )
}
