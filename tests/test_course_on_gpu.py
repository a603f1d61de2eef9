"""The course's networks on this machine's GPU; skipped where there is none."""

import numpy as np
import torch
from test_on_gpu import assert_close, check

import tvmnotes as tn


def test_the_language_model():
    net = tn.models.load("tiny_lm")
    check(net, torch.randint(0, 255, (1, 64), generator=torch.Generator().manual_seed(0)), tolerance=1e-3)


def test_an_onnx_file():
    mod, params = tn.from_onnx(tn.data.path("digits/digits_resnet20.onnx"), {"image": (2, 1, 32, 32)})
    cpu, gpu = tn.build(mod, params), tn.build(mod, params, "cuda")
    x = np.random.default_rng(0).standard_normal(cpu.inputs[0].shape, dtype="float32")
    assert_close([gpu(x)], [cpu(x)], 1e-4)
