"""Exercises of lesson 01: another network, a branch without an `if`, two inputs."""

import contextlib
import io

import numpy as np
import torch

from .. import models
from .exercise import agree, array, exercise, require


@exercise(
    "01.1",
    'tn.models.load("squeezenet1_1") is the network; its input has the shape (1, 3, 224, 224).',
    'tn.build(net, {"input0": (1, 3, 224, 224)}) is a function from pictures to scores: the answer.',
    minutes=10,
    difficulty=1,
)
def squeezenet(answer):
    """Another network, compiled."""
    net = models.load("squeezenet1_1")
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype="float32")
    with torch.inference_mode():
        reference = net(torch.from_numpy(x)).numpy()
    agree(
        answer(x),
        reference,
        "the scores of SqueezeNet",
        "Compare the result with PyTorch's for your picture.",
    )


@exercise(
    "01.2",
    "torch.where(condition, a, b) takes elements of a or b; both are computed.",
    "The condition is a tensor with one element, x.sum() < 0. It need not become a Python bool.",
    minutes=10,
    difficulty=2,
)
def branch_without_if(answer):
    """A branch that torch.export accepts."""
    net = (answer() if isinstance(answer, type) else answer).eval()
    rng = np.random.default_rng(0)
    for x in (np.ones(3), -np.ones(3), np.zeros(3), rng.standard_normal(3), -np.abs(rng.standard_normal(3))):
        wanted = -x if x.sum() < 0 else 2 * x
        got = array(net(torch.from_numpy(x)).detach())
        do = "The module returns -x where the sum is negative, else 2 * x."
        require(
            np.array_equal(got, wanted),
            f"the result for {x.round(2).tolist()}",
            wanted.tolist(),
            got.tolist(),
            do,
        )
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # PyTorch prints the graph up to the error
            torch.export.export(net, (torch.ones(3),))
    except Exception as error:
        do = "Use torch.where in place of the `if`."
        require(False, "torch.export", "a graph", type(error).__name__, do)


@exercise(
    "01.3",
    "A module with two inputs has a forward with two arguments. tn.build takes a shape for each.",
    'tn.build(Blend().eval(), {"left": (2, 2), "right": (2, 2)}) is the answer.',
    minutes=10,
    difficulty=1,
)
def two_inputs(answer):
    """A compiled network with two inputs."""
    rng = np.random.default_rng(0)
    left = rng.standard_normal((2, 2), dtype="float32")
    right = rng.standard_normal((2, 2), dtype="float32")
    wanted = 0.25 * left + 0.75 * right
    agree(answer(left, right), wanted, "the result by position", "The result is 0.25 * left + 0.75 * right.")
    agree(
        answer(right=right, left=left), wanted, "the result by name", "The inputs are called left and right."
    )
    try:
        answer(left, wrong=right)
    except TypeError as error:
        got = str(error)
    else:
        got = "no error"
    do = "Pass what tn.build returns; it knows the names of its inputs."
    require(
        "right" in got and "wrong" in got,
        "the error for an input called wrong",
        "the name right in it",
        got,
        do,
    )
