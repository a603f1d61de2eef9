"""Exercises of lesson 02: a network through ONNX, its largest convolutions, an inner value as an output."""

import numpy as np
import torch

from tvmfast.runtime.compiled import Compiled

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
    do = "Return what tn.build returns for the file."
    require(isinstance(answer, Compiled), "the answer", "a compiled network", type(answer).__name__, do)
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
    "Make a dictionary from the initializers' names to their shapes, look up the weight of each Conv node, "
    "and sort by np.prod, the largest first.",
    minutes=15,
    difficulty=1,
)
def largest_convolutions(answer):
    """The convolutions with the most weights."""
    from onnx import TensorProto, helper, numpy_helper  # for speed: few exercises need it

    shapes = {
        "unused": (64, 64, 3, 3),
        "a_bias": (256,),
        "b": (8, 4, 3, 3),  # 288
        "dense": (512, 512),
        "c": (16, 8, 1, 1),  # 128
        "a": (4, 3, 5, 5),  # 300
        "d": (16, 1, 3, 3),  # 144, a depthwise convolution
    }
    arrays = [numpy_helper.from_array(np.zeros(shape, "float32"), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "a", "a_bias"], ["1"]),
        helper.make_node("Conv", ["1", "b"], ["2"]),
        helper.make_node("Conv", ["2", "c"], ["3"]),
        helper.make_node("Conv", ["3", "d"], ["4"], group=16),
        helper.make_node("Conv", ["4", "d"], ["5"], group=16),
        helper.make_node("MatMul", ["5", "dense"], ["out"]),
    ]
    x, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "out"))
    model = helper.make_model(helper.make_graph(nodes, "made up", [x], [out], arrays))
    a, b, c, d = (shapes[name] for name in "abcd")
    for count, wanted in ((3, [a, b, d]), (9, [a, b, d, d, c])):
        got = [tuple(map(int, shape)) for shape in answer(model, count)]
        do = "Sort the weights' shapes by the product of their axes, and take the first ones."
        if any(shape in got for shape in (shapes["unused"], shapes["dense"])):
            do = "Ask the nodes: not each initializer is the weight of a convolution."
        elif shapes["a_bias"] in got:
            do = "input[1] is the weight. A convolution's third input is its bias."
        elif count == 9 and got.count(d) == 1:
            do = "Two convolutions may share one weight, and both count."
        elif sorted(got) == sorted(wanted):
            do = "The largest comes first. The size is the product of all axes, not the first axis."
        require(got == wanted, f"the {count} largest of five convolutions", wanted, got, do)


def _cut_model():
    """Return a small ONNX model: relu(x @ w) + x, with an inner value of each operator."""
    from onnx import TensorProto, helper, numpy_helper  # for speed: few exercises need it

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 4])
    weight = np.random.default_rng(0).standard_normal((4, 4), dtype="float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["positive"]),
        helper.make_node("Add", ["positive", "x"], ["out"]),
    ]
    graph = helper.make_graph(nodes, "small", [x], [out], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weight


@exercise(
    "02.3",
    "model.graph.output is a list. onnx.helper.make_empty_tensor_value_info(name) makes an entry whose type "
    "is left open.",
    "Copy first: result = onnx.ModelProto(); result.CopyFrom(model). Then append to result.graph.output.",
    minutes=15,
    difficulty=2,
)
def inner_value(answer):
    """An inner value as an output."""
    import onnxruntime  # for speed: few exercises need it

    x = np.random.default_rng(1).standard_normal((3, 4), dtype="float32")
    model, weight = _cut_model()
    before = model.SerializeToString()
    product = x @ weight
    wanted = {"product": product, "positive": np.maximum(product, 0)}
    for name, value in wanted.items():
        changed = answer(model, name)
        kind = type(changed).__name__
        require(isinstance(changed, type(model)), "the result", "a ModelProto", kind, "Return the new model.")
        do = "Copy the model before you change it: the caller still needs the one that was passed."
        require(model.SerializeToString() == before, "the model that was passed", "unchanged", "changed", do)
        outputs = [output.name for output in changed.graph.output]
        do = "Append to the outputs. Whoever reads the first one must still find it there."
        require(outputs == ["out", name], "the outputs", ["out", name], outputs, do)
        do = "An output is named after the value that a node makes: node.output, not node.name."
        try:
            session = onnxruntime.InferenceSession(
                changed.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            out, inner = session.run(None, {"x": x})
        except Exception as error:
            told = str(error).splitlines()[0]
            require(False, f"a run with the output {name}", "two results", told, do)
        agree(out, np.maximum(product, 0) + x, "the first output", "Leave the nodes as they are.")
        agree(inner, value, f"the output {name}", do)
