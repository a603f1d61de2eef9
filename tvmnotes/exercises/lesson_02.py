"""Exercises of lesson 02: a network through ONNX, its largest convolutions, errors of the import."""

import numpy as np
import torch

from .. import models, vision
from .exercise import agree, array, exercise, require


@exercise(
    "02.1",
    "torch.onnx.export(net, (example,), file, dynamo=False) writes the file; tn.build takes its path.",
    "Preprocess as the network was trained: tn.vision.preprocess(picture, **net.preprocessing).",
    minutes=15,
    difficulty=2,
)
def through_onnx(answer):
    """A network exported to ONNX, and compiled from there."""
    net = models.load("efficientnet_lite0")
    x = vision.preprocess(vision.open_picture(vision.sample_picture("coffee")), **net.preprocessing)
    with torch.inference_mode():
        reference = net(torch.from_numpy(x)).numpy()
    scores = array(answer(x))
    agree(
        scores,
        reference,
        "the scores for the picture coffee",
        "Export in eval mode, and compare with PyTorch.",
    )
    first = vision.top_k(scores, 1, net.classes)["class"].iloc[0]
    require(first == "espresso", "the first class", "espresso", first, "Use the network's own preprocessing.")


@exercise(
    "02.2",
    "A node of op_type Conv names its weight in input[1]; an initializer has a name and dims.",
    "Make a dictionary from names to shapes, and sort the shapes of all Conv nodes by np.prod.",
    minutes=10,
    difficulty=1,
)
def largest_convolutions(answer):
    """The shapes of the five convolutions with the most weights."""
    shapes = [tuple(map(int, shape)) for shape in answer]
    do = "A shape is (outputs, inputs, height, width)."
    require(len(shapes) == 5, "the number of shapes", 5, len(shapes), "Take the first five.")
    require(
        all(len(shape) == 4 for shape in shapes), "the axes of each shape", 4, [len(s) for s in shapes], do
    )
    sizes = [int(np.prod(shape)) for shape in shapes]
    do = "Sort by the number of weights, the most first."
    require(
        sizes == sorted(sizes, reverse=True),
        "the numbers of weights",
        "none larger than the one before",
        sizes,
        do,
    )
    wide = sum(shape[2:] == (3, 3) and size == 2_359_296 for shape, size in zip(shapes, sizes, strict=True))
    do = "Look at all Conv nodes of the graph, not at the first ones."
    require(wide == 3, "the 3 × 3 kernels with 2,359,296 weights", 3, wide, do)
    require(
        sizes[3:] == [2_097_152, 1_048_576],
        "the sizes of the last two",
        "1 × 1 kernels of the last stages",
        sizes[3:],
        do,
    )


@exercise(
    "02.3",
    "tn.from_onnx raises a ValueError. Its text is str(error).",
    "try: tn.from_onnx(file, shapes); except ValueError as error: return str(error). Else return None.",
    minutes=10,
    difficulty=1,
)
def import_errors(answer):
    """The error of an import, or None."""
    from onnx import TensorProto, helper  # for speed: one exercise of many needs it

    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, ["N", 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["data"], ["out"])], "relu", [data], [out])
    opset = helper.make_opsetid("", 17)
    file = helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    do = "Return None where the import succeeds, and the text of the ValueError where it does not."
    got = answer(file, {"data": (1, 3)})
    require(got is None, "the result for a right file", None, repr(got), do)
    cases = {
        "an input name that does not exist": (file, {"wrong": (1, 3)}, "data"),
        "another number of channels": (file, {"data": (1, 4)}, "3"),
        "half a file": (file[: len(file) // 2], {"data": (1, 3)}, "ONNX"),
    }
    for what, (content, shapes, named) in cases.items():
        got = answer(content, shapes)
        holds = isinstance(got, str) and named in got
        require(holds, f"the result for {what}", f"a text that names {named}", repr(got), do)
