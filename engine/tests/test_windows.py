"""Windows of convolutions and pools that do not fit into their inputs: refused, or a bound of a dynamic dim."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from onnx import parser
from testing import Function
from torch import nn

import tvmfast
from tvmfast import Dim
from tvmfast.frontends.mxnet import gluon

OPERATORS = {
    "Conv": "Conv (x, w)",
    "dilated Conv": "Conv<dilations = [2, 1], strides = [2, 2], pads = [1, 0, 0, 0]> (x, w)",
    "MaxPool": "MaxPool<kernel_shape = [3, 1]> (x)",
    "AveragePool": "AveragePool<kernel_shape = [3, 1], strides = [2, 1]> (x)",
    "LpPool": "LpPool<kernel_shape = [3, 1]> (x)",
}
LEAST = dict.fromkeys(OPERATORS, 3) | {"dilated Conv": 4}


def model_of(call: str):
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, h, 4] x) => (float[a, b, c, d] y)
            <float[1, 1, 3, 1] w = {{1, 2, 3}}> {{ y = {call} }}"""
    )


@pytest.mark.parametrize("what", OPERATORS)
def test_a_window_larger_than_its_input_in_a_file(what):
    model, least = model_of(OPERATORS[what]), LEAST[what]
    with pytest.raises(ValueError, match="a window of .* would be of|would be of shape"):
        tvmfast.from_onnx(model, {"x": (1, 1, least - 1, 4)})
    mod, _ = tvmfast.from_onnx(model, {"x": (1, 1, least, 4)})
    assert int(mod["main"].ret_ty.shape[2]) == 1


def test_a_result_of_a_transposed_convolution_that_is_cropped_to_nothing():
    model = model_of("ConvTranspose<pads = [2, 0, 2, 0]> (x, w)")
    with pytest.raises(ValueError, match="a window of .* would be of|would be of shape"):
        tvmfast.from_onnx(model, {"x": (1, 1, 2, 4)})


@pytest.mark.parametrize("what", ["Conv", "MaxPool"])
def test_a_dynamic_axis_of_a_file_is_as_long_as_its_window(what):
    lib = tvmfast.build(*tvmfast.from_onnx(model_of(OPERATORS[what])), opt_level=1)
    assert lib.inputs[0].shape[2] == Dim("h", 3)
    assert lib(np.ones((1, 1, 3, 4), "float32")).shape == (1, 1, 1, 4)
    with pytest.raises(ValueError, match="expected a h of 3 or more, got 2"):
        lib(np.ones((1, 1, 2, 4), "float32"))


def test_no_value_within_the_bounds_is_large_enough():
    with pytest.raises(ValueError, match="would be of shape|a window of .* would be of"):
        tvmfast.from_onnx(model_of(OPERATORS["Conv"]), {"x": (1, 1, Dim("h", 1, 2), 4)})


@pytest.mark.parametrize("net", [nn.Conv2d(1, 1, 3, 2), nn.MaxPool2d(3)], ids=["conv", "pool"])
def test_a_dynamic_axis_of_a_module_is_as_long_as_its_window(net):
    with pytest.raises(ValueError, match="does not take x"):
        tvmfast.from_pytorch(net.eval(), {"x": (1, 1, 2, 9)})
    lib = tvmfast.build(net.eval(), {"x": (1, 1, Dim("h", 1, 64), 9)}, opt_level=1)
    assert lib.inputs[0].shape[2] == Dim("h", 3, 64)
    x = torch.ones(1, 1, 5, 9)
    close(lib(x), reference(net, x))


@pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")
def test_a_window_larger_than_its_input_in_a_symbol():
    import mxnet as mx

    symbol = mx.sym.Pooling(mx.sym.Variable("x"), kernel=(3, 3), pool_type="max")
    with pytest.raises(ValueError, match="a window of 3 on 2 pixels"):
        tvmfast.from_mxnet(symbol, {}, {"x": (1, 1, 2, 9)})
    mod, _ = tvmfast.from_mxnet(symbol, {}, {"x": (1, 1, "h", 9)})
    least, _ = mod["main"].attrs["tvmfast.sizes"]["h"]
    assert least == 3


CEILED = {
    "max": lambda x: F.max_pool2d(x, 3, 3, 1, ceil_mode=True),
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 3, 3, 1, ceil_mode=True),
    "average inside": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
}


@pytest.mark.parametrize("what", CEILED)
def test_pools_of_a_dynamic_axis_whose_last_window_is_cut(what, rng):
    """PyTorch leaves out a window that begins behind the input and the padding before it."""
    net = Function(CEILED[what]).eval()
    lib = tvmfast.build(net, {"x": (1, 2, Dim("h", 1, 64), 9)}, opt_level=1)
    for height in (*range(3, 12), 64):
        x = rng.standard_normal((1, 2, height, 9)).astype("float32")
        close(lib(x), net(torch.from_numpy(x).double()), 9, scale=np.abs(x).max())


SIDE = Dim("n", 3, 64)
CEILED_AVERAGES = {
    "line": (F.avg_pool1d, (2, SIDE), {"padding": 1, "count_include_pad": True}),
    "line, inside": (F.avg_pool1d, (2, SIDE), {"padding": 1, "count_include_pad": False}),
    "volume": (F.avg_pool3d, (2, SIDE, SIDE, SIDE), {"padding": 1, "count_include_pad": True}),
    "volume, inside": (F.avg_pool3d, (2, SIDE, SIDE, SIDE), {"padding": 1, "count_include_pad": False}),
}


@pytest.mark.parametrize("what", CEILED_AVERAGES)
def test_averages_of_a_line_and_a_volume_whose_last_window_is_cut(what, rng):
    """TVM's pools of one and of three axes count padding if nothing is said, those of two axes don't."""
    function, shape, options = CEILED_AVERAGES[what]
    net = Function(lambda x: function(x, 3, 2, ceil_mode=True, **options)).eval()
    lib = tvmfast.build(net, {"x": shape}, opt_level=1)
    for size in range(3, 9):
        x = rng.standard_normal((2, *[size] * (len(shape) - 1))).astype("float32")
        close(lib(x), net(torch.from_numpy(x).double()), 27, scale=np.abs(x).max())


AVERAGE = """<ir_version: 9, opset_import: ["" : 22]> m (float[1, 1, {shape}] x) => (float[a, b, {result}] y) {{
    y = AveragePool<ceil_mode = 1, dilations = {twos}, kernel_shape = {twos}, strides = {threes}>(x) }}"""


@pytest.mark.parametrize("rank", [1, 3])
def test_averages_of_files_whose_last_window_is_cut(rank, rng):
    result, numbers = ", ".join("pqr"[:rank]), {"twos": [2] * rank, "threes": [3] * rank}

    def text(size):
        return AVERAGE.format(shape=", ".join([size] * rank), result=result, **numbers)

    lib = tvmfast.build(*tvmfast.from_onnx(parser.parse_model(text("n"))), opt_level=1)
    for size in range(3, 9):
        x = rng.standard_normal((1, 1, *[size] * rank)).astype("float32")
        static = parser.parse_model(text(str(size))).SerializeToString()
        (wanted,) = onnxruntime.InferenceSession(static, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        close(lib(x), wanted.astype("float64"), 8, scale=np.abs(x).max())
