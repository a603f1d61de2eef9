"""The rule `batch_matmul`: products of attention, found by tuning, built as recorded."""

import numpy as np
import pytest
import torch
from agreement import close, reference
from fake_runner import TARGET, FakeRunner
from torch import nn

import tvmfast
from tvmfast.compiler import records
from tvmfast.compiler.schedule.workloads.batch_matmul import BatchMatmul
from tvmfast.core import machine
from tvmfast.core.simd import simd_of
from tvmfast.tuning import Task, tasks

HEADS = BatchMatmul((3, 5, 12), (3, 12, 21))


def test_its_space_has_both_orders_of_the_outer_loop():
    assert {config["loop_order"] for config in HEADS.space(simd_of(machine.host_target()))} == {"rows", "columns"}


def test_it_counts_its_multiplications_and_names_itself():
    assert HEADS.macs == 3 * 5 * 12 * 21
    assert BatchMatmul((2, 1, 4, 6), (3, 6, 10)).macs == 2 * 3 * 4 * 6 * 10
    assert HEADS.label == "matmul 3x5x12 by 3x12x21"


class Attention(nn.Module):
    def forward(self, query, key, value):
        return torch.softmax(query @ key.transpose(1, 2), -1) @ value


SHAPE = (2, 10, 16)  # heads, tokens, features


@pytest.fixture(scope="module")
def attention():
    return tvmfast.from_pytorch(Attention().eval(), dict.fromkeys(("query", "key", "value"), SHAPE))


def test_tuning_finds_the_products_of_attention_and_a_build_takes_what_it_found(attention, tmp_path):
    scores, mixed = BatchMatmul(SHAPE, (2, 16, 10)), BatchMatmul((2, 10, 10), SHAPE)
    found = tasks(*attention)
    assert found == [Task(scores, 1, TARGET), Task(mixed, 1, TARGET)]
    path = tmp_path / "attention.jsonl"
    tuned = tvmfast.tune(*attention, records=path, trials=24, tuner="xgb", seed=0, runner=FakeRunner())
    trials = [trials for _, trials, _, _ in tuned.rows]
    assert sum(trials) == 24 and min(trials) > 0
    lib = tvmfast.build(*attention, records=path)
    assert lib.tuned == f"{path}: 2 of this target"
    best = [record.config for record in records.best(records.read(path)).values()]
    tuned = lib.kernels[lib.kernels.family == "batch_matmul"]
    assert sorted(config["tile_m"] for config in tuned.config) == sorted(config["tile_m"] for config in best)
    assert len(tuned) == 2

    arrays = [np.random.default_rng(n).standard_normal(SHAPE, dtype="float32") for n in range(3)]
    close(lib(*arrays), reference(Attention(), *arrays))
