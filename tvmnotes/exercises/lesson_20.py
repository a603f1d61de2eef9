"""Exercises of lesson 20: an ONNX file all the way, a vote, and the first part that differs."""

import numpy as np
import torch

from .exercise import agree, array, exercise, require, require_keys


@exercise(
    "20.1",
    'An onnxruntime.InferenceSession answers with session.run(None, {"data": x})[0]: this is the reference.',
    "The answer has the results of the file, the compiled network and the loaded one, under these names.",
    minutes=25,
    difficulty=2,
)
def whole_way(answer):
    """An ONNX file, compiled, saved and loaded."""
    require_keys(answer, ("original", "compiled", "loaded"), "Return a dictionary with these three results.")
    original, compiled, loaded = (array(answer[name]) for name in ("original", "compiled", "loaded"))
    require(
        bool(np.any(original)),
        "the result of ONNX Runtime",
        "numbers other than 0",
        "only zeros",
        "Run a picture.",
    )
    agree(compiled, original, "the result of the compiled network", "Give both the same input.")
    differ = int((loaded != compiled).sum())
    require(differ == 0, "the results that differ after loading", 0, differ, "Save and load the same build.")


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
    code = torch.export.export(_Votes(answer), (labels,)).graph_module.code
    do = "Write it with operators that the importer has."
    require(
        "aten.mode" not in code, "the operators of the exported function", "no aten.mode", "aten.mode", do
    )


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
