"""Exercises of lesson 20: a converter, a vote, and the first part that differs."""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from .exercise import agree, array, exercise, require


class _Distances(torch.nn.Module):
    """The distances of all pairs of rows."""

    def forward(self, a, b):
        """Call the operator that TVM's importer lacks."""
        return torch.cdist(a, b)


@exercise(
    "20.1",
    "The message names _cdist_forward.default. node.args[0] and node.args[1] are a and b.",
    "relax.op.expand_dims gives a the shape (…, n, 1, d) and b (…, 1, m, d); their difference is "
    "(…, n, m, d). Then multiply it by itself, sum over the last axis, and take the root.",
    minutes=25,
    difficulty=2,
)
def distances(answer):
    """A converter for the distances of all pairs."""
    rng = np.random.default_rng(0)
    for what, shapes in {
        "5 and 4 rows of 3": ((5, 3), (4, 3)),
        "6 and 6 rows of 6": ((6, 6), (6, 6)),
        "a batch of 2 with 3 and 7 rows": ((2, 3, 5), (2, 7, 5)),
    }.items():
        a, b = (rng.standard_normal(shape, dtype="float32") for shape in shapes)
        result = _converted(answer, a, b)
        wanted = np.sqrt(((a[..., :, None, :] - b[..., None, :, :]) ** 2).sum(-1))
        do = "It has a row for each row of a, and a column for each row of b."
        require(result.shape == wanted.shape, f"the shape for {what}", wanted.shape, result.shape, do)
        do = "The distance is the root of the sum of squares."
        squared = np.allclose(result, wanted**2, rtol=1e-3)
        require(not squared, f"the result for {what}", "distances", "their squares", do)
        agree(result, wanted, f"the result for {what}", "Subtract each row of b from each row of a.")
    a = 100 + rng.standard_normal((4, 8), dtype="float32")
    near = a + np.float32(1e-2)
    wanted = np.sqrt(((a[:, None].astype("float64") - near[None]) ** 2).sum(-1))
    do = "Subtract first. |a|² + |b|² - 2ab is a small difference of large numbers, and may even be negative."
    agree(_converted(answer, a, near), wanted, "the result for rows near each other and far from 0", do)


def _converted(answer, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Import a network with the answer as its converter, compile it and run it."""
    program = torch.export.export(_Distances(), (torch.from_numpy(a), torch.from_numpy(b)))
    converters = {"_cdist_forward.default": answer}
    mod = from_exported_program(program, custom_convert_map=converters, unwrap_unit_return_tuple=True)
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()


class _Votes(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, labels):
        """Call the function."""
        return self.function(labels)


@exercise(
    "20.2",
    "A vote is a count: compare each label with each of the ten classes, and add up the matches.",
    "(labels[:, :, None] == torch.arange(10)).sum(1) counts each class; argmax(1) picks the first largest.",
    minutes=20,
    difficulty=2,
)
def votes(answer):
    """The vote of five classifiers without torch.mode."""
    generator = torch.Generator().manual_seed(0)
    for high in (10, 3):
        labels = torch.randint(0, high, (64, 5), generator=generator)
        wanted = torch.mode(labels, dim=1).values.numpy()
        got = array(answer(labels))
        do = "Return one label for each row; of labels with equally many votes, the smallest."
        require(got.shape == wanted.shape, "the shape of the votes", wanted.shape, got.shape, do)
        equal = int((got == wanted).sum())
        require(equal == 64, "the votes that equal torch.mode's", 64, equal, do)
    program = torch.export.export(_Votes(answer), (labels,))
    do = "Write it with operators that the importer has."
    try:
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    except (AssertionError, NotImplementedError, ValueError) as error:
        told = str(error).strip().partition("\n")[0]
        require(False, "the import of the exported function", "a module", told, do)
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    equal = int((vm["main"](tvm.runtime.tensor(labels.numpy())).numpy() == wanted).sum())
    require(equal == 64, "the votes of the compiled function that equal torch.mode's", 64, equal, do)


@exercise(
    "20.3",
    "Rounding is relative: divide a part's largest difference by the largest magnitude expected of it.",
    "Return the number of the first part whose relative difference is above 1e-4, and None if there is none.",
    minutes=25,
    difficulty=3,
)
def first_part_that_differs(answer):
    """The first part of a network that differs by more than rounding."""
    rng = np.random.default_rng(0)
    scales = (1.0, 1e3, 1e-3, 1e5, 1.0, 1e-2)
    expected = [scale * rng.standard_normal((2, 8)) for scale in scales]
    rounded = [value * (1 + 1e-7 * rng.standard_normal(value.shape)) for value in expected]
    do = "Divide by the largest magnitude of the expected value before you compare with 1e-4."
    got = answer(rounded, expected)
    require(got is None, "the first part where all differ by rounding", None, got, do)
    for first in (2, 0, 5):
        results = [value * 1.01 if number >= first else value for number, value in enumerate(rounded)]
        got = answer(results, expected)
        require(got == first, f"the first part where {first} and those after it are spoiled", first, got, do)
