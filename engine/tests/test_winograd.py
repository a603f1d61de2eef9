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
@pytest.mark.parametrize("sizes", [{}, {2: "height", 3: "width"}], ids=["static", "dynamic"])
def test_what_is_not_finite_reaches_its_own_windows_alone(tile, sizes, monkeypatch):
    """With weights that are 0, a residual and a ReLU after it, at corners, edges and inside."""
    monkeypatch.setattr(winograd, "best_tile", lambda workload: tile)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv = nn.Conv2d(32, 32, 1, stride=2), nn.Conv2d(32, 32, 3, padding=1)
            nn.init.zeros_(self.conv.weight[:3, 5])

        def forward(self, x):
            x = self.stem(x)
            return torch.relu(self.conv(x)) + x

    network, x = Residual().eval(), torch.randn(1, 32, 25, 29)
    shape = tuple(sizes.get(axis, n) for axis, n in enumerate(x.shape))
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": shape}), records=False)
    found = [(each["family"], each.get("m")) for each in lib.graph["kernels"].values()]
    assert ("winograd", tile) in found, lib.kernels
    finite = lib(x)
    close(finite, reference(network, x))
    for value, (row, column) in ((math.inf, (0, 0)), (-math.inf, (6, 7)), (math.nan, (12, 3)), (math.inf, (5, 14))):
        other = x.clone()
        other[0, 5, 2 * row, 2 * column] = value
        ours = lib(other)
        close(ours, reference(network, other))
        far = np.abs(np.arange(13) - row) > 5
        np.testing.assert_array_equal(ours[:, :, far], finite[:, :, far])


@pytest.mark.parametrize("shape", [(1, 32, "height", 30), (1, 32, 19, "width"), ("n", 32, "height", "width")])
def test_sizes_that_are_dims_of_the_input(shape):
    network = nn.Sequential(nn.Conv2d(32, 40, 3, padding=1), nn.ReLU()).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": shape}), records=False)
    assert {"winograd"} == {family for name, family in lib.kernels.family.items() if "conv2d" in name}, lib.kernels
    for sizes in ({"n": 1, "height": 1, "width": 2}, {"n": 2, "height": 33, "width": 17}):
        x = torch.randn([sizes.get(size, size) for size in shape])
        close(lib(x), reference(network, x))
