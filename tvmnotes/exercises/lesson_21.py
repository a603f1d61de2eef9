"""Exercises of lesson 21: features of digits, and errors of the import."""

import tempfile
from pathlib import Path

import numpy as np

from tvmfast.core import data

from .. import digits
from .exercise import array, exercise, require


@exercise(
    "21.1",
    "In the symbol's JSON, set heads to [[number of the node pool, 0, 0]], and drop the nodes after it.",
    "Remove classify_weight and classify_bias from the arrays: from_mxnet refuses what nothing reads.",
    minutes=25,
    difficulty=3,
)
def features(answer):
    """The features of the test set: 64 numbers for each picture."""
    _, labels = digits.load_test_set()
    got = array(answer)
    do = "The output of pool has the shape (360, 64, 1, 1); drop the last two axes."
    require(got.shape == (len(labels), 64), "the shape of the features", (len(labels), 64), got.shape, do)
    lengths = np.linalg.norm(got, axis=1, keepdims=True)
    require(
        lengths.min() > 0,
        "the shortest vector of features",
        "longer than 0",
        lengths.min(),
        "Use trained weights.",
    )
    directions = got / lengths
    cosines = directions @ directions.T
    np.fill_diagonal(cosines, -1)
    share = (labels[cosines.argmax(axis=1)] == labels).mean()
    do = "Preprocess the pictures, and keep them in the order of the test set."
    what = "the share of pictures whose nearest other picture shows the same digit"
    require(share >= 0.95, what, "95 % or more", f"{share:.0%}", do)


@exercise(
    "21.2",
    "tn.from_mxnet(symbol, params, shapes) raises a ValueError. Its text is str(error).",
    'The symbol is tn.data.path("mxnet/digits_resnet20-symbol.json"), the shapes {"data": (1, 1, 32, 32)}.',
    minutes=10,
    difficulty=1,
)
def import_errors(answer):
    """The error of an import from MXNet's files, or None."""
    file = data.path("mxnet/digits_resnet20-0000.params")
    do = "Return the text of the ValueError, and None where there is none."
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder) / "short.params"
        short.write_bytes(file.read_bytes()[:100_000])
        for what, params, named in (("a short file", short, "cut short"), ("no arrays", {}, "missing")):
            got = answer(params)
            holds = isinstance(got, str) and named in got
            require(holds, f"the result for {what}", f"a text with the words {named!r}", repr(got), do)
    got = answer(file)
    require(got is None, "the result for the right file", None, repr(got), do)
