"""Losses whose decompositions in PyTorch differ from its kernels: NaN and labels behind the end count there.

PyTorch's dispatcher holds these decompositions, and asks no table; `own_losses` replaces them, and that of
softshrink, which rounds halves twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table

from .halves import rounded_once

aten = torch.ops.aten
_SOFTSHRINK = aten.softshrink.default
_MEAN = 1  # a reduction; 0 is none


def _reduced(losses: Tensor, has_rows: bool, reduction: int) -> Tensor:
    if has_rows and not reduction:
        return losses
    return losses.mean() if reduction == _MEAN else losses.sum()


def _multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    rows, label = torch.atleast_2d(x), target.reshape(-1, 1)
    excess = margin - rows.gather(1, label) + rows
    counts = (excess > 0) & (torch.arange(rows.shape[1]) != label)
    losses = excess if p == 1 else excess * excess
    losses = losses if weight is None else losses * weight[label]
    return _reduced(torch.where(counts, losses, 0).mean(1), target.ndim > 0, reduction)


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Compare the labels before the first negative one, of which one may occur twice, with other classes."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    counted = (labels < 0).to(torch.int64).cumsum(1) == 0
    labels = torch.where(counted, labels, 0)
    counted = counted.unsqueeze(2)
    is_target = ((labels.unsqueeze(2) == torch.arange(rows.shape[1])) & counted).any(1)
    excess = 1 - rows.gather(1, labels).unsqueeze(2) + rows.unsqueeze(1)  # (rows, labels, classes)
    counts = counted & ~is_target.unsqueeze(1) & (excess > 0)
    losses = torch.where(counts, excess, 0).sum((1, 2)) / rows.shape[1]
    return _reduced(losses, target.ndim > 1, reduction), is_target.to(x.dtype).reshape(target.shape)


_LOSSES: dict[Any, Callable] = {
    aten.multi_margin_loss.default: _multi_margin_loss,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    _SOFTSHRINK: rounded_once(_SOFTSHRINK, decomposition_table[_SOFTSHRINK]),
}


@contextmanager
def own_losses() -> Iterator[None]:
    """Have PyTorch's dispatcher decompose losses by ours, while a program is decomposed."""
    before = {op: op.py_kernels[DispatchKey.Autograd] for op in _LOSSES}
    try:
        _set(_LOSSES)
        yield
    finally:
        _set(before)


def _set(kernels: dict[Any, Callable]) -> None:
    for op, kernel in kernels.items():
        op.py_kernels[DispatchKey.Autograd] = kernel
        op._dispatch_cache.clear()
