"""Skinny GEMM with a strided view: PyTorch's numbers for all views, and what is left alone."""

import numpy as np
import pytest
import torch
from agreement import close, reference
from testing import Function

import tvmfast


def held(function, *shapes, rng, fused=True, change=lambda *xs: None):
    """A function of tensors gives PyTorch's result for random inputs, and is one kernel of the rule, or not."""
    mod, params = tvmfast.from_pytorch(Function(function).eval(), {f"x{n}": shape for n, shape in enumerate(shapes)})
    lib = tvmfast.build(mod, params, records=False)
    xs = [rng.standard_normal(shape, "float32") for shape in shapes]
    change(*xs)
    close(lib(*xs), reference(function, *xs))
    assert ("few_rows" in set(lib.kernels.family)) == fused
    return lib


VIEWS = {
    "rows": (lambda q, m: q @ m, (2, 3, 1, 80), (2, 3, 80, 64)),
    "several rows": (lambda q, m: q @ m, (2, 7, 50), (2, 50, 96)),
    "columns": (lambda q, m: q @ m.mT, (2, 3, 1, 64), (2, 3, 70, 64)),
    "columns, several rows": (lambda q, m: q @ m.mT, (3, 5, 32), (3, 130, 32)),
    "one matrix for all": (lambda q, m: q @ m.mT, (4, 2, 64), (67, 64)),
    "a layer of a cache": (lambda q, m: q @ m[1].mT, (1, 3, 1, 64), (2, 1, 3, 70, 64)),
    "part of a cache": (lambda q, m: q @ m[:, 2:66, 1], (3, 1, 64), (3, 70, 2, 64)),
    "heads that share keys": (lambda q, m: q.reshape(2, 4, 64) @ m[0].mT, (1, 8, 64), (1, 2, 70, 64)),
    "heads behind tokens": (lambda q, m: q @ m.reshape(70, 3, 64).permute(1, 2, 0), (3, 1, 64), (1, 70, 192)),
    "what follows": (lambda q, m: torch.tanh(q @ m.mT * 0.3 + 1), (3, 1, 64), (3, 70, 64)),
    "what follows rows": (lambda q, m: torch.relu(q @ m) - 1, (3, 2, 70), (3, 70, 64)),
    "one column": (lambda q, m: q @ m.mT, (16, 1, 4096), (16, 1, 4096)),
    "one column of several": (lambda q, m: q @ m[:, :1], (8, 4096), (4096, 16)),
    "of one vector": (lambda q, m: q @ m.mT, (1, 16), (300, 16)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_matrix_that_is_a_view(name, rng):
    function, *shapes = VIEWS[name]
    held(function, *shapes, rng=rng)


def test_repeated_heads_are_copied(rng):
    held(lambda q, m: q @ m.repeat_interleave(2, dim=0).mT, (4, 1, 64), (2, 70, 64), rng=rng)


def test_nan_and_infinity_reach_what_they_reach_in_pytorch(rng):
    def spoil(q, m):
        m[0, 3, 5], m[1, 60, 7], q[2, 0, 1] = np.nan, np.inf, -np.inf

    for name in ("rows", "columns"):
        function = VIEWS[name][0]
        held(function, (3, 1, 64), (3, 64, 64), rng=rng, change=spoil)


def test_what_is_left_to_other_kernels(rng):
    held(lambda q, m: q @ m, (2, 9, 64), (2, 64, 64), rng=rng, fused=False)  # many rows
    held(lambda q, m: q @ m, (2, 1, 16), (2, 16, 32), rng=rng, fused=False)  # a small matrix
    held(lambda q, m: q @ m, (2, 1, 70), (2, 70, 67), rng=rng, fused=False)  # no whole vectors
    held(lambda q, m: q @ m[..., ::2], (2, 1, 64), (2, 64, 128), rng=rng, fused=True)  # copied
