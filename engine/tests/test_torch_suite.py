"""PyTorch's own samples of its operators through `from_pytorch`: each operator is equal, or refused in plain words.

This runs a fixed sample; `make suites` runs all of them, each in a process that may crash.
"""

import pytest
import torch_suite

STEP = 24
# One of each kind that was wrong, unclear or missing once.
MENDED = [
    "_upsample_bilinear2d_aa", "amax", "bitwise_left_shift", "clamp", "cummax", "index_put",
    "linalg.solve_triangular", "native_layer_norm", "nanmedian", "nn.functional.avg_pool3d",
    "nn.functional.embedding_bag", "nn.functional.interpolate.trilinear", "nn.functional.max_pool2d",
    "nn.functional.max_pool3d", "scatter_reduce.amax", "softmax.with_dtype",
]  # fmt: skip


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["a sample", "mended"])
def test_a_sample_of_pytorchs_operators(kind, count):
    """All in one network, the first samples of each operator; fused, fewer kernels wait for LLVM."""
    every = torch_suite.operators()
    names = MENDED if kind == "mended" else [name for name in every if name not in torch_suite.REFUSED][::STEP]
    found = [(every[name], each) for name in names for each in torch_suite.samples(every[name], count)]
    torch_suite.check(found, opt_level=1)


@pytest.mark.parametrize("name", ["linalg.eigvalsh", "matrix_exp", "nn.functional.one_hot"])
def test_operators_that_are_refused(name):
    assert name in torch_suite.REFUSED
    assert torch_suite.outcome(torch_suite.operators()[name]).startswith("refused: NotImplementedError")


def test_each_that_is_refused_is_one_of_them():
    assert torch_suite.REFUSED.keys() <= torch_suite.operators().keys()


def test_a_wrong_result_is_wrong(monkeypatch):
    monkeypatch.setattr(torch_suite.tvmfast, "build", lambda *_, **__: lambda *inputs: inputs[0] * 0)
    assert torch_suite.outcome(torch_suite.operators()["abs"]).startswith("wrong: ")


@pytest.mark.full
def test_what_ends_its_process_is_a_crash():
    """The operator that the child is told of is none, and its end is noticed; the next one gets a child of its own."""
    found = dict(torch_suite.outcomes(["no such operator", "abs"]))
    assert found["no such operator"].startswith("crash: ") and found["abs"] == "equal"
