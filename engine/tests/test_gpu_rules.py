"""Updates of a part of a tensor on a GPU: a copy, in which each element looks for its index."""

import numpy as np
import pytest
import torch
from emulated_gpu import TARGET, run_emulated
from testing import Function

import tvmfast

CACHE = (2, 3, 40, 4)


def rows(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def sliced(cache, new):
    cache = cache.clone()
    cache[:, 1:2, 2:5] = new
    return cache


UPDATES = {  # a function of the cache and of others
    "one row": (lambda cache, at, new: cache.index_copy(2, at, new), torch.tensor([5]), rows(2, 3, 1, 4)),
    "the last of equal indices": (
        lambda cache, at, new: cache.index_copy(2, at, new), torch.tensor([5, 39, 0, 5]), rows(2, 3, 4, 4),
    ),
    "a box": (sliced, rows(2, 1, 3, 4)),
    "more than a few": (lambda cache, at, new: cache.index_copy(2, at, new), torch.arange(39), rows(2, 3, 39, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", UPDATES)
def test_partial_updates(name):
    function, *others = UPDATES[name]
    inputs = [rows(*CACHE), *others]
    shapes = {f"x{n}": (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for n, x in enumerate(inputs)}
    mod, params = tvmfast.from_pytorch(Function(function).eval(), shapes)
    lib = tvmfast.build(mod, params, TARGET)
    assert ("scatter_nd" in lib.source()) == (name == "more than a few")
    got = run_emulated(mod, params, *(x.numpy() for x in inputs))
    np.testing.assert_array_equal(got, function(*inputs).numpy())
