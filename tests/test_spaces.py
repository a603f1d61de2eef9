"""The configs that tuning chooses from: whatever one is, its kernel computes what NumPy, and torch, compute."""

import random

import numpy as np
import pytest
import torch
import tvm

from tvmnotes.compiler.build import resolve_target
from tvmnotes.compiler.schedules.convolution import Convolution
from tvmnotes.compiler.schedules.matmul import Dense
from tvmnotes.compiler.schedules.vector import Simd, simd_of
from tvmnotes.tuning import Candidate, trial


def conv(data, weight, stride=1, padding=1, dilation=1, groups=1, blocked=True):
    return Convolution(data, weight, (stride,) * 2, (padding,) * 4, (dilation,) * 2, groups, blocked)


WORKLOADS = {
    "3x3": conv((1, 32, 14, 14), (48, 32, 3, 3)),
    "3x3, batch 2, odd size": conv((2, 32, 9, 11), (40, 32, 3, 3)),
    "3x3 stride 2": conv((1, 64, 14, 14), (64, 64, 3, 3), stride=2),
    "few channels": conv((1, 3, 24, 24), (32, 3, 7, 7), stride=2, padding=3, blocked=False),
    "1x1": conv((1, 128, 7, 7), (96, 128, 1, 1), padding=0),
    "1x1 stride 2": conv((1, 64, 14, 14), (96, 64, 1, 1), stride=2, padding=0),
    "dilated": conv((1, 32, 12, 12), (32, 32, 3, 3), padding=2, dilation=2),
    "depthwise": conv((1, 48, 13, 13), (48, 1, 3, 3), groups=48),
    "groups": conv((1, 64, 10, 10), (96, 32, 3, 3), groups=2),
    "groups with gaps": conv((1, 48, 8, 8), (72, 16, 3, 3), groups=3),
    "dense": Dense(5, 64, 70),
}


def sample(workload, simd, count: int) -> list[dict]:
    """The default config, and for each set of knobs some of the others."""
    default, *others = workload.configs(simd)
    by_knobs: dict = {}
    for config in others:
        by_knobs.setdefault((config.get("family"), config.get("outer"), *sorted(config)), []).append(config)
    return [default, *(c for found in by_knobs.values() for c in random.sample(found, min(count, len(found))))]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_kind_of_config_computes_the_same(name, quick):
    workload, target = WORKLOADS[name], resolve_target(None)
    for config in sample(workload, simd_of(target), 1 if quick else 2):
        candidate = Candidate(workload, config, str(target))
        library = trial.build(candidate.as_module(), target, None)
        ((data, weight, room),) = trial.arguments(candidate, tvm.cpu())
        library["main"](data, weight, room)
        wanted = trial._inputs(workload)[2]
        made = workload.unpack_output(room.numpy(), candidate.lanes)
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max(), err_msg=str(config))


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "dense"])
def test_the_reference_is_torchs(name):
    w = WORKLOADS[name]
    data, weight, made = trial._inputs(w)
    padded = torch.nn.functional.pad(torch.from_numpy(data), (w.padding[1], w.padding[3], w.padding[0], w.padding[2]))
    wanted = torch.nn.functional.conv2d(padded, torch.from_numpy(weight), None, w.strides, 0, w.dilation, w.groups)
    np.testing.assert_allclose(made, wanted.numpy(), rtol=0, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("registers", [Simd(16, 32), Simd(8, 16), Simd(4, 32)], ids=str)
def test_shapes_are_told_without_packing(registers):
    for workload in WORKLOADS.values():
        for config in sample(workload, registers, 3):
            packed = workload.pack(np.zeros(workload.weight, "float32"), config, registers.lanes)
            assert packed.shape == workload.packed_shape(config, registers.lanes), config


def test_a_space_has_every_knob_and_each_config_once():
    space = WORKLOADS["3x3"].configs(Simd(16, 32))
    assert {config["family"] for config in space} == {"conv2d", "winograd"}
    assert {"lines", "chunk", "prefetch", "outer", "group"} <= {knob for config in space for knob in config}
    assert space[0] == WORKLOADS["3x3"].default_config(Simd(16, 32))
    for workload in WORKLOADS.values():
        listed = [tuple(sorted(config.items())) for config in workload.configs(Simd(16, 32))]
        assert len(listed) == len(set(listed))
