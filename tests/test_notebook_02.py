"""What notebook 02 claims, asserted: its graph, its results beside ONNX Runtime's, dynamic dims."""

import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import onnx
import onnxruntime
import pytest
import tvm
from agreement import close, terms_of
from tvm import relax
from tvm.relax.frontend import onnx as tvm_onnx

import tvmnotes as tn
from tvmnotes import digits

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "02_onnx_import.ipynb"


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


@pytest.fixture(scope="module")
def images():
    return digits.preprocess(digits.load_test_set()[0][:4])


@pytest.fixture(scope="module")
def digits_file():
    """The file, what ONNX Runtime computes from a batch, and of how many terms."""
    file, kind = tn.models.onnx_file("digits")
    assert kind == "pretrained"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    _, params = tn.from_onnx(file, {"image": (1, 1, 32, 32)})
    return file, lambda batch: session.run(None, {"image": batch})[0], terms_of(params)


def test_digits_are_read_as_onnxruntime_reads_them(digits_file, images):
    file, onnx_runtime, terms = digits_file
    result, reference = tn.build(file, {"image": images.shape})(images), onnx_runtime(images)
    close(result, reference, terms, rounded=True)
    assert tn.vision.same_top_k(result, reference, k=1)


def test_tvm_keeps_an_open_batch_size_and_compiles_it_once(digits_file, images):
    file, onnx_runtime, terms = digits_file
    mod = tvm_onnx.from_onnx(onnx.load(file))
    assert isinstance(mod["main"].params[0].ty.shape[0], tvm.tirx.Var)
    vm = relax.VirtualMachine(tvm.compile(mod, target=tn.env.host_target()), tvm.cpu())
    for batch in (1, 4):
        result = vm["main"](tvm.runtime.tensor(images[:batch])).numpy()
        close(result, onnx_runtime(images[:batch]), terms, rounded=True)


def test_the_stored_outputs_are_what_the_text_says(cells):
    differences = re.findall(r"ONNX Runtime (\S+)", cells["agreement"].outputs[0].text)
    # Stored, and so the same on every CPU; the text calls them differences of rounding.
    assert len(differences) == 2 and all(float(difference) < 1e-5 for difference in differences)
    (html,) = (output.data["text/html"] for output in cells["top-five"].outputs)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in html.split("<tr>")[1:]]
    rows = [row for row in rows if row]
    assert len(rows) == 5 and all(ours == theirs for ours, _, theirs, _ in rows)
    drawing = ElementTree.fromstring("".join(cells["drawing"].outputs[0].data["image/svg+xml"]))
    operators = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    block = operators[operators.index("MaxPool") + 1 :]
    assert block[0] == "BatchNormalization" and block[-1] == "Add" and block.count("Conv") == 4


@pytest.mark.full
def test_resnet50_v2_gives_onnxruntimes_results_and_classes_on_the_picture():
    file, _ = tn.models.onnx_file("resnet50_v2")
    graph = onnx.load(file).graph
    weights = {array.name for array in graph.initializer}
    assert all(node.input[0] in weights for node in graph.node if node.op_type == "Identity")
    x = tn.vision.preprocess(tn.vision.open_picture())
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    reference = session.run(None, {"data": x})[0]
    mod, params = tn.from_onnx(file, {"data": x.shape})
    for records in (None, False):
        result = tn.build(mod, params, records=records)(data=x)
        close(result, reference, terms_of(params), rounded=True)
        assert tn.vision.same_top_k(result, reference)
