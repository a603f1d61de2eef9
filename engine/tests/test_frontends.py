"""What every frontend keeps to (frontends/__init__.py), on one small network in each framework's form."""

import inspect
import json
import logging
import re
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close
from onnx import numpy_helper
from torch import nn

import tvmfast

SHAPES = {"in/picture": (2, 3, 4, 4), "shift": (2, 5)}
RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.standard_normal((5, 48), "float32"), RANDOM.standard_normal(5, "float32")


TERMS = 50  # 48 products, the bias and the shift


def expected(picture, shift, outputs: int):
    total = picture.reshape(len(picture), -1).astype("float64") @ WEIGHT.T + BIAS + shift
    return [total, total.clip(0)][:outputs]


class Network(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.fc, self.unused = nn.Linear(48, 5), nn.Linear(2, 2)
        self.outputs = outputs
        self.fc.load_state_dict({"weight": torch.from_numpy(WEIGHT), "bias": torch.from_numpy(BIAS)})

    def forward(self, picture, shift):
        total = self.fc(picture.flatten(1)) + shift
        return total if self.outputs == 1 else (total, total.relu())


def in_onnx(outputs: int):
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3, 4, 4] "in/picture", float[2, 5] shift) => (float[2, 5] y{", float[2, 5] z" * (outputs - 1)})
        {{ a = Flatten ("in/picture") b = Gemm <transB = 1> (a, "fc.weight", "fc.bias") y = Add (b, shift)
        z = Relu (y) c = Relu (unused) }}"""
    model = onnx.parser.parse_model(text)
    arrays = {"fc.weight": WEIGHT, "fc.bias": BIAS, "unused": BIAS}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return (model,)


def in_mxnet(outputs: int):
    """What the loss at its end reads beside the sums is not read in inference."""
    names = ("in/picture", "fc.weight", "fc.bias", "shift", "unused")
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    for op, inputs, attrs in (
        ("FullyConnected", (0, 1, 2), {"num_hidden": "5"}),
        ("broadcast_add", (5, 3), {}),
        ("LinearRegressionOutput", (6, 4), {}),
        ("relu", (7,), {}),
    ):
        nodes.append({"op": op, "name": op.lower(), "inputs": [[n, 0] for n in inputs], "attrs": attrs})
    arrays = {"arg:fc.weight": WEIGHT, "aux:fc.bias": BIAS, "unused": BIAS}
    return json.dumps({"nodes": nodes, "heads": [[7, 0], [8, 0]][:outputs]}), arrays


class Importer(NamedTuple):
    function: object
    model: object  # the arguments before `inputs`, for a network of one output or two


IMPORTERS = {
    "pytorch": Importer(tvmfast.from_pytorch, lambda outputs: (Network(outputs).eval(),)),
    "onnx": Importer(tvmfast.from_onnx, in_onnx),
    "mxnet": Importer(tvmfast.from_mxnet, in_mxnet),
}


@pytest.fixture(params=IMPORTERS)
def importer(request) -> Importer:
    return IMPORTERS[request.param]


def test_main_takes_the_inputs_by_name_then_a_parameter_for_each_weight_that_it_reads(importer):
    mod, params = importer.function(*importer.model(2), SHAPES)
    main = mod["main"]
    assert [var.name for var in main.params] == [*SHAPES, "fc.weight", "fc.bias"]
    assert main.attrs["num_input"] == 2 and "params" not in main.attrs
    assert list(params) == ["fc.weight", "fc.bias"]
    for var, wanted in zip(main.params[2:], (WEIGHT, BIAS), strict=True):
        array = params[var.name]
        assert isinstance(array, tvm.runtime.Tensor) and str(array.dtype) == str(var.ty.dtype)
        assert tuple(map(int, var.ty.shape)) == array.shape
        np.testing.assert_array_equal(array.numpy(), wanted)
    assert [tuple(map(int, var.ty.shape)) for var in main.params[:2]] == list(SHAPES.values())


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_output_is_a_tensor_and_several_are_a_tuple(importer, outputs):
    mod, params = importer.function(*importer.model(outputs), SHAPES)
    arrays = [RANDOM.standard_normal(shape, "float32") for shape in SHAPES.values()]
    results = tvmfast.build(mod, params, opt_level=0)(*arrays)
    assert isinstance(results, np.ndarray if outputs == 1 else tuple)
    close(results, expected(*arrays, outputs), TERMS)


def test_the_inputs_argument_has_one_name_and_takes_each_form(importer):
    parameters = inspect.signature(importer.function).parameters.values()
    *_, last = (each for each in parameters if each.kind is not each.KEYWORD_ONLY)
    assert last.name == "inputs" and last.default is None
    wanted, _ = importer.function(*importer.model(1), inputs=SHAPES)
    for inputs in (
        list(SHAPES.items()),
        {name: (shape, "float32") for name, shape in SHAPES.items()},
        {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()},
        {name: torch.zeros(shape) for name, shape in SHAPES.items()},
    ):
        mod, _ = importer.function(*importer.model(1), inputs=inputs)
        assert tvm_ffi.structural_equal(mod, wanted)


def test_any_name_survives_printing_and_parsing(importer):
    mod, _ = importer.function(*importer.model(2), SHAPES)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_each_logs_which_converter_serves_an_operator(importer, caplog):
    with caplog.at_level(logging.DEBUG, "tvmfast"):
        importer.function(*importer.model(2), SHAPES)
    assert re.search(r"(?i)relu\S*: converted by \S+ of \S+", caplog.text)


def test_the_same_mistakes_are_errors_of_the_same_kind(importer):
    with pytest.raises(TypeError, match=r"^(model|symbol): expected .* got int"):
        importer.function(5, inputs=SHAPES)
    model = importer.model(1)
    for inputs, error in [
        ("picture", TypeError),
        ({}, ValueError),
        ({**SHAPES, "another": (1,)}, ValueError),
        ({**SHAPES, "shift": (2, 0)}, ValueError),
        ({**SHAPES, "shift": (2, 7)}, ValueError),
        ([*SHAPES.items(), ("shift", (2, 5))], ValueError),
    ]:
        with pytest.raises(error):
            importer.function(*model, inputs=inputs)


# ---------------------------------------------------------------- build imports by itself


def test_build_imports_what_an_importer_takes(tmp_path):
    picture, shift = (RANDOM.standard_normal(shape, "float32") for shape in SHAPES.values())
    (model,) = in_onnx(1)
    onnx.save(model, tmp_path / "net.onnx")
    exported = torch.export.export(Network(1).eval(), (torch.from_numpy(picture), torch.from_numpy(shift)))
    for case in (Network(1).eval(), model, model.SerializeToString(), tmp_path / "net.onnx"):
        lib = tvmfast.build(case, SHAPES, opt_level=0)
        close(lib(picture, shift), expected(picture, shift, 1), TERMS)
    lib = tvmfast.build(exported, opt_level=0)
    close(lib(picture, shift), expected(picture, shift, 1), TERMS)


def test_build_imports_a_gluon_network():
    mx = pytest.importorskip("mxnet")
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(5, in_units=48))
    net.initialize(mx.init.Normal(1))
    picture = RANDOM.standard_normal((2, 48), "float32")
    lib = tvmfast.build(net, {"data": picture.shape}, opt_level=0)
    close(lib(picture), picture.astype("float64") @ net[0].weight.data().asnumpy().T, 48)  # its bias is 0


@pytest.mark.parametrize("model", [None, 3, np.zeros(3), nn.Linear])
def test_build_names_what_it_takes(model):
    with pytest.raises(TypeError, match=r"^mod: expected a tvm.IRModule.*or a PyTorch module, an ONNX file.*; got "):
        tvmfast.build(model, SHAPES)
