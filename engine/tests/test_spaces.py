"""The configs that tuning chooses from, and NumPy's convolution, with which a trial compares."""

import pytest
import torch
from agreement import close

from tvmfast.compiler.schedule.rules import RULES
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core.simd import Simd
from tvmfast.tuning import trial

EXAMPLES = [workload for rule in RULES.values() for workload in rule.EXAMPLES]


@pytest.mark.parametrize("w", [w for w in EXAMPLES if isinstance(w, Convolution)], ids=lambda w: w.label)
def test_the_reference_is_torchs(w):
    data, weight, output = trial._inputs(w)
    padded = torch.nn.functional.pad(torch.from_numpy(data), (w.padding[1], w.padding[3], w.padding[0], w.padding[2]))
    padded, weight = padded.double(), torch.from_numpy(weight).double()
    wanted = torch.nn.functional.conv2d(padded, weight, None, w.strides, 0, w.dilation, w.groups)
    close(output, wanted, terms=weight[0].numel())


def test_a_space_has_every_knob_and_begins_with_the_default_config():
    workload = Convolution((1, 32, 14, 14), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True)
    space = workload.configs(Simd(16, 32))
    assert {config["family"] for config in space} == {"conv2d", "winograd"}
    assert {"tile_oh", "tile_ic", "prefetch", "loop_order", "block_oh"} <= {knob for config in space for knob in config}
    assert space[0] == workload.default_config(Simd(16, 32))
