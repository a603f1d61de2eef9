"""The course's networks on this machine's GPU; skipped where there is none."""

import numpy as np
import pytest
import torch
from test_on_gpu import assert_close, check

import tvmnotes as tn


def test_the_language_model():
    net = tn.models.load("tiny_lm")
    check(net, torch.randint(0, 255, (1, 64), generator=torch.Generator().manual_seed(0)), tolerance=1e-3)


def test_an_onnx_file():
    same_as_on_the_cpu(*tn.from_onnx(tn.data.path("digits/digits_resnet20.onnx"), {"image": (2, 1, 32, 32)}))


@pytest.mark.parametrize(("name", "shape"), [("digits_resnet20", (2, 1, 32, 32)), ("digits_ssd", (1, 1, 96, 96))])
def test_networks_of_mxnet(name, shape):
    symbol, params = (tn.data.path(f"mxnet/{name}-{file}") for file in ("symbol.json", "0000.params"))
    same_as_on_the_cpu(*tn.from_mxnet(symbol, params, {"data": shape}))


def same_as_on_the_cpu(mod, params):
    cpu, gpu = tn.build(mod, params), tn.build(mod, params, "cuda")
    x = np.random.default_rng(0).standard_normal(cpu.inputs[0].shape, dtype="float32")
    wanted, got = cpu(x), gpu(x)
    several = isinstance(got, tuple)
    assert_close(got if several else [got], wanted if several else [wanted], 1e-4)
