"""The configs that tuning chooses from, and NumPy's convolution, with which a trial compares."""

import numpy as np
import pytest
import torch

from tvmnotes.compiler.schedules import FAMILIES, Simd
from tvmnotes.compiler.schedules.convolution import Convolution
from tvmnotes.tuning import trial

EXAMPLES = [workload for family in FAMILIES.values() for workload in family.examples]


@pytest.mark.parametrize("w", [w for w in EXAMPLES if isinstance(w, Convolution)], ids=lambda w: w.label)
def test_the_reference_is_torchs(w):
    data, weight, made = trial._inputs(w)
    padded = torch.nn.functional.pad(torch.from_numpy(data), (w.padding[1], w.padding[3], w.padding[0], w.padding[2]))
    wanted = torch.nn.functional.conv2d(padded, torch.from_numpy(weight), None, w.strides, 0, w.dilation, w.groups)
    np.testing.assert_allclose(made, wanted.numpy(), rtol=0, atol=1e-5 * wanted.abs().max().item())


def test_a_space_has_every_knob_and_begins_with_the_default_config():
    workload = Convolution((1, 32, 14, 14), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True)
    space = workload.configs(Simd(16, 32))
    assert {config["family"] for config in space} == {"conv2d", "winograd"}
    assert {"lines", "chunk", "prefetch", "outer", "group"} <= {knob for config in space for knob in config}
    assert space[0] == workload.default_config(Simd(16, 32))
