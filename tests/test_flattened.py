"""Linear layers on one sequence: what follows them is a part of their kernels, and the numbers are PyTorch's."""

import numpy as np
import pytest
import torch
from conftest import Function
from torch import nn
from torch.nn import functional as F

import tvmnotes as tn


class Mlp(nn.Module):
    """Two layers, and the sum with what came in; each product is written for a matrix."""

    def __init__(self, between):
        super().__init__()
        self.up, self.down, self.between = nn.Linear(24, 40), nn.Linear(40, 24), between

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        y = self.between(F.linear(rows, self.up.weight) + self.up.bias)
        return x + F.linear(y, self.down.weight, self.down.bias).reshape(x.shape)


BETWEEN = {
    "relu": F.relu,
    "gelu": F.gelu,
    "its approximation, in steps": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "a gate": lambda x: x * torch.sigmoid(x),
    "with a reshape": lambda x: F.gelu(x.reshape(1, -1, 40)).reshape(-1, 40),
    "a sum of columns": lambda x: x / (1 + x.abs().sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_follows_a_product(name, rng):
    net = Mlp(BETWEEN[name]).eval()
    x = rng.standard_normal((1, 9, 24), "float32")
    lib = tn.build(*tn.from_pytorch(net, {"x": x.shape}), records=False)
    with torch.no_grad():
        wanted = net(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(lib(x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    assert list(lib.kernels.family).count("matmul") == 2
    if name != "a sum of columns":
        assert len(lib.kernels) == 2


@pytest.mark.parametrize("shape", [(2, 9, 24), (9, 24), (1, 1, 24), (1, 1, 9, 24)])
def test_other_batches(shape, rng):
    net = Mlp(F.gelu).eval()
    x = rng.standard_normal(shape, "float32")
    lib = tn.build(*tn.from_pytorch(net, {"x": x.shape}), records=False)
    with torch.no_grad():
        wanted = net(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(lib(x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_special_values_and_operands_of_several_rows(rng):
    weight, rows = (torch.from_numpy(rng.standard_normal(shape, "float32")) for shape in ((24, 24), (9, 1)))

    def function(x):
        y = (x.reshape(9, 24) @ weight + rows) * torch.relu(x.reshape(9, 24) - 0.5)
        return torch.maximum(y, rows).reshape(1, 9, 24) - x

    x = rng.standard_normal((1, 9, 24), "float32")
    x[0, 2, 3], x[0, 4, 5], x[0, 5, 5] = np.nan, np.inf, -np.inf
    lib = tn.build(*tn.from_pytorch(Function(function).eval(), {"x": x.shape}), records=False)
    np.testing.assert_allclose(lib(x), function(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)
