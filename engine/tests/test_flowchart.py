"""flowchart: rows by the longest path, edges that pass other rows, and text that XML can hold."""

from types import SimpleNamespace
from xml.etree import ElementTree

from tvmfast.profiling import flowchart

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_an_edge_over_rows_passes_beside_the_boxes_between():
    nodes = {"x": ["x"], 0: ["conv2d"], 1: ["relu"], 2: ["add<1>", "a", "b"]}
    drawing = ElementTree.fromstring(flowchart.svg(nodes, [("x", 0), (0, 1), (1, 2), ("x", 2)]))
    boxes = [
        {side: float(box.get(side)) for side in ("x", "y", "width", "height")}
        for box in drawing.iter(f"{NAMESPACE}rect")
        if box.get("x")
    ]
    assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})  # a row for each
    passing = [path.get("d") for path in drawing.iter(f"{NAMESPACE}path") if "V" in path.get("d")]
    assert len(passing) == 2  # beside conv2d, and beside relu
    for line, box in zip(passing, boxes[1:3], strict=True):
        across = float(line[1:].split()[0])
        assert not box["x"] <= across <= box["x"] + box["width"]
    assert [text.text for text in drawing.iter(f"{NAMESPACE}text")] == ["x", "conv2d", "relu", "add<1>", "a", "b"]


def test_onnx_nodes_are_drawn_by_their_operators():
    nodes = [SimpleNamespace(op_type=op, input=[a], output=[b]) for op, a, b in (("Relu", "x", "y"), ("Exp", "y", "z"))]
    drawing = ElementTree.fromstring(flowchart.of_onnx(nodes)._repr_svg_())
    assert [text.text for text in drawing.iter(f"{NAMESPACE}text")] == ["Relu", "Exp"]


def test_nothing_is_an_empty_drawing():
    assert ElementTree.fromstring(flowchart.svg({}, [])).tag == f"{NAMESPACE}svg"
