"""Exercises of lesson 21: features of digits, and a converter."""

import numpy as np
import tvm
from tvm import relax

from .. import digits
from .exercise import agree, array, exercise, require


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
    'node.get("attrs", {}) has text: ast.literal_eval("0.1") is the number 0.1. Use .get("slope", "0.25").',
    "relax.op.nn.leakyrelu(x, slope) is the leaky one. elu is where(x > 0, x, slope * (exp(x) - 1)).",
    minutes=25,
    difficulty=2,
)
def leaky(answer):
    """A converter for LeakyReLU."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4), dtype="float32")
    x[0, 0, 0] = 100  # exp of it is infinite
    default = "MXNet's documentation has the defaults: act_type is leaky, and slope 0.25."
    cases = (
        (
            "act_type leaky and slope 0.1",
            {"act_type": "leaky", "slope": "0.1"},
            "Its slope is for x below 0.",
        ),
        (
            "act_type elu and slope 0.7",
            {"act_type": "elu", "slope": "0.7"},
            "elu is slope * (exp(x) - 1) below 0.",
        ),
        ("slope 0.5 alone", {"slope": "0.5"}, default),
        ("act_type elu alone", {"act_type": "elu"}, default),
        ("no attributes", {}, default),
    )
    for what, attributes, do in cases:
        node = {"op": "LeakyReLU", "name": "act", "inputs": [[0, 0, 0]]}
        if attributes:
            node["attrs"] = attributes
        slope = float(attributes.get("slope", 0.25))
        curved = attributes.get("act_type") == "elu"
        below = slope * (np.expm1(np.minimum(x, 0)) if curved else x)
        builder = relax.BlockBuilder()
        data = relax.Var("data", relax.TensorType(x.shape, "float32"))
        with builder.function("main", [data]):
            with builder.dataflow():
                output = builder.emit_output(answer(builder, node, data))
            builder.emit_func_output(output)
        vm = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
        got = vm["main"](tvm.runtime.tensor(x)).numpy()
        agree(got, np.where(x > 0, x, below), f"the result for {what}", do)
