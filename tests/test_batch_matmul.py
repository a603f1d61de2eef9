"""The family `batch_matmul`: products of attention, right with any config, found by tuning, built as recorded."""

import random

import numpy as np
import pytest
import torch
import tvm
from fake_runner import TARGET, FakeRunner
from torch import nn

import tvmnotes as tn
from tvmnotes import env, records
from tvmnotes.compiler.schedules.batch_matmul import BatchMatmul
from tvmnotes.compiler.schedules.vector import simd_of
from tvmnotes.tuning import Candidate, Task, tasks, trial
from tvmnotes.tuning.features import features

VECTORS = simd_of(env.host_target())

PRODUCTS = {
    "heads": BatchMatmul((3, 5, 12), (3, 12, 21)),
    "one batch": BatchMatmul((1, 9, 8), (1, 8, 40)),
    "no batch": BatchMatmul((6, 7), (7, 2 * VECTORS.lanes)),
    "matrices for all batches": BatchMatmul((2, 3, 4, 6), (6, 17)),
    "broadcast both ways": BatchMatmul((2, 1, 4, 6), (3, 6, 10)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_config_makes_numpys_product(name, quick):
    product, target = PRODUCTS[name], env.host_target()
    space = product.configs(VECTORS)
    for config in [space[0], *random.Random(0).sample(space, 1 if quick else 4)]:
        candidate = Candidate(product, config, TARGET)
        library = trial.build(candidate.as_module(), target, None)
        ((data, weight, made),) = trial.arguments(candidate, tvm.cpu())
        library["main"](data, weight, made)
        wanted = np.matmul(data.numpy(), weight.numpy())
        assert made.numpy().shape == wanted.shape == product.shape
        np.testing.assert_allclose(made.numpy(), wanted, atol=1e-4 * np.abs(wanted).max(), err_msg=str(config))


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_space_has_each_config_once_and_a_record_knows_it(name):
    product = PRODUCTS[name]
    space = product.configs(VECTORS)
    assert space[0] == product.default_config(VECTORS)
    assert len({records.key(config) for config in space}) == len(space) > 4
    assert {config["outer"] for config in space} == {"rows", "columns"}
    made = records.new_record(product, TARGET, space[-1], (1e-3,))
    assert records.parse(str(made)) == made
    assert np.isfinite([features(product, config, VECTORS, 2) for config in space]).all()


def test_it_counts_its_multiplications_and_names_itself():
    assert PRODUCTS["heads"].macs == 3 * 5 * 12 * 21
    assert PRODUCTS["broadcast both ways"].macs == 2 * 3 * 4 * 6 * 10
    assert PRODUCTS["heads"].label == "matmul 3x5x12 by 3x12x21"


class Attention(nn.Module):
    def forward(self, query, key, value):
        return torch.softmax(query @ key.transpose(1, 2), -1) @ value


SHAPE = (2, 10, 16)  # heads, tokens, numbers


@pytest.fixture(scope="module")
def attention():
    return tn.from_pytorch(Attention().eval(), dict.fromkeys(("query", "key", "value"), SHAPE))


def test_tuning_finds_the_products_of_attention_and_a_build_takes_what_it_found(attention, tmp_path):
    scores, mixed = BatchMatmul(SHAPE, (2, 16, 10)), BatchMatmul((2, 10, 10), SHAPE)
    found = tasks(*attention)
    assert found == [Task(scores, 1, TARGET), Task(mixed, 1, TARGET)]
    path = tmp_path / "attention.jsonl"
    tuned = tn.tune(*attention, records=path, trials=24, tuner="xgb", seed=0, runner=FakeRunner())
    trials = [trials for _, trials, _, _ in tuned.rows]
    assert sum(trials) == 24 and min(trials) > 0
    lib = tn.build(*attention, records=path)
    assert lib.tuned == f"{path}: 2 of this target"
    best = [record.config for record in records.best(records.read(path)).values()]
    tuned = lib.kernels[lib.kernels.family == "batch_matmul"]
    assert sorted(config["rows"] for config in tuned.config) == sorted(config["rows"] for config in best)
    assert len(tuned) == 2

    arrays = [np.random.default_rng(n).standard_normal(SHAPE, dtype="float32") for n in range(3)]
    wanted = Attention()(*map(torch.from_numpy, arrays)).numpy()
    np.testing.assert_allclose(lib(*arrays), wanted, atol=1e-5 * np.abs(wanted).max())
