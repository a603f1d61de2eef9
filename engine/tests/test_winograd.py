"""Winograd's convolution beyond what all rules share: what it makes of NaN and of infinities."""

import math

import numpy as np
import pytest
import torch
from agreement import close, reference
from torch import nn

import tvmfast
from tvmfast.compiler.schedule.rules import winograd


@pytest.mark.parametrize("tile", [2, 4])
def test_what_is_not_finite_stays_within_the_tiles_that_read_it(tile, monkeypatch):
    """Its windows are not finite either, and no other tile changes."""
    monkeypatch.setattr(winograd, "best_tile", lambda workload: tile)
    network, x = nn.Conv2d(32, 32, 3, padding=1).eval(), torch.randn(1, 32, 13, 14)
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": x.shape}), records=False)
    assert ("winograd", tile) in [(k["family"], k.get("m")) for k in lib.graph["kernels"].values()], lib.kernels
    finite = lib(x)
    close(finite, reference(network, x))
    for value, (row, column) in ((math.inf, (0, 0)), (-math.inf, (6, 7)), (math.nan, (12, 3)), (math.inf, (5, 13))):
        other = x.clone()
        other[0, 5, row, column] = value
        with torch.no_grad():
            windows = ~np.isfinite(network(other).numpy())
        tiles = np.outer(*([_reads(tile, at, size) for at, size in ((row, 13), (column, 14))]))
        ours = lib(other)
        found = ~np.isfinite(ours)
        assert (found | ~windows).all() and not (found & ~tiles).any()
        np.testing.assert_array_equal(np.where(tiles, 0, ours), np.where(tiles, 0, finite))


def _reads(tile: int, at: int, size: int) -> np.ndarray:
    """Which of the outputs along an axis are in a tile that reads an input, with one row of padding."""
    first = np.arange(size) // tile * tile
    return (first - 1 <= at) & (at <= first + tile)
