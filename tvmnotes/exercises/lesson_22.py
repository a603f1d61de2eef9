"""Exercises of lesson 22: an operator of Relay in Relax, a script in Relay, a script for TVM alone."""

import numpy as np
import torch

from .. import digits, models
from .exercise import agree, exercise, require, require_keys


@exercise(
    "22.1",
    'names.table("operators") has a column new; more than one call is written with commas.',
    "Relay's weight has a row for each output. A product of matrices needs it the other way round.",
    minutes=10,
    difficulty=1,
)
def dense_in_relax(answer):
    """What relay.nn.dense becomes in Relax."""
    got = [str(name).rpartition(".")[2] for name in answer]
    do = "Name the calls in their order, as in the program that relax_of returns."
    require(len(got) == 2, "the number of calls", 2, len(got), do)
    require(got[-1] == "matmul", "the last call", "a product of matrices", got[-1], do)
    require(got[0] == "permute_dims", "the first call", "what turns the weight round", got[0], do)


@exercise(
    "22.2",
    'relay.create_executor("graph", mod=mod, device=tvm.cpu(), target="llvm").evaluate() returns a function.',
    "Let the script call np.savez with data, weight, bias and out, and pass np.load of that file.",
    minutes=25,
    difficulty=2,
)
def relay_layer(answer):
    """A layer in Relay: dense, bias and ReLU."""
    require_keys(
        answer, ("data", "weight", "bias", "out"), "Save the three inputs and the result under these names."
    )
    data, weight, bias = (np.asarray(answer[name]) for name in ("data", "weight", "bias"))
    sums = data @ weight.T + bias
    do = "Take random inputs, so that the bias and the ReLU make a difference."
    require(
        sums.min() < 0 < sums.max(), "the sums before the ReLU", "of both signs", (sums.min(), sums.max()), do
    )
    require(bool(np.any(bias)), "the bias", "numbers other than 0", bias, do)
    agree(answer["out"], np.maximum(sums, 0), "the result", "Compute relu(dense(data, weight) + bias).")


@exercise(
    "22.3",
    "from_exported_program imports what torch.export.export returns; tvm.compile makes an executable.",
    'relax.VirtualMachine(executable, tvm.cpu())["main"] takes TVM tensors and returns a tuple of one.',
    minutes=20,
    difficulty=2,
)
def with_tvm_alone(answer):
    """The digits network with TVM alone."""
    images, _ = digits.load_test_set()
    x = digits.preprocess(images[:36])
    with torch.inference_mode():
        reference = models.load("digits")(torch.from_numpy(x)).numpy()
    agree(
        answer(x),
        reference,
        "the scores of 36 pictures",
        'Export tn.models.load("digits") with the shape of x.',
    )
