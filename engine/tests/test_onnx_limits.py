"""ONNX files with shapes that no memory holds, other dtypes than there are, functions without end: all refused."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import tvmfast

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
HUGE = "would be of shape .*GiB, and this machine has"
GRAPHS = {
    "ConstantOfShape 'huge'.*" + HUGE: """g (float[2] x) => (float[2] y) <int64[1] size = {1099511627776}>
        { [huge] c = ConstantOfShape (size) r = ReduceSum (c) y = Add (x, r) }""",
    "Range 'huge'.*" + HUGE: """g (float[2] x) => (float[2] y)
        <float start = {0}, float end = {1000000000000}, float step = {1}>
        { [huge] c = Range (start, end, step) r = ReduceMax (c) y = Add (x, r) }""",
    "Pad 'huge'.*" + HUGE: """g (float[2] x) => (float[N] y) <int64[2] pads = {0, 1099511627776}>
        { [huge] y = Pad (x, pads) }""",
    "Tile 'huge'.*" + HUGE: """g (float[2] x) => (float[N] y) <int64[1] times = {1099511627776}>
        { [huge] y = Tile (x, times) }""",
    "Expand 'huge'.*" + HUGE: """g (float[2] x) => (float[M, N] y) <int64[2] shape = {549755813888, 2}>
        { [huge] y = Expand (x, shape) }""",
    "Mul 'huge'.*" + HUGE: """g (float[4194304, 1] x, float[4194304] y) => (float[M, N] z)
        { [huge] z = Mul (x, y) }""",
    "Range 'huge'.* GiB": """g (float[2] x) => (float[2] y)
        <int64 start = {0}, int64 end = {1000000000000}, int64 step = {1}, int64[2] first = {0, 1}>
        { [huge] c = Range (start, end, step) i = Gather (c, first) r = Cast<to = 1> (i) y = Add (x, r) }""",
    "ConstantOfShape 'huge'.* GiB": """g (float[2] x) => (float[2] y)
        <int64[1] size = {1099511627776}, int64[1] begin = {0}, int64[1] end = {2}>
        { [huge] c = ConstantOfShape (size) s = Slice (c, begin, end) y = Add (x, s) }""",
    "HannWindow.* GiB": """g (float[2] x) => (float[2] y) <int64 size = {1099511627776}>
        { [huge] c = HannWindow (size) r = ReduceSum<keepdims = 0> (c) y = Add (x, r) }""",
    "Range 'long'.* GiB, and a constant may have 1": """g (float[2] x) => (float[2] y)
        <float start = {0}, float end = {300000000}, float step = {1}>
        { [long] c = Range (start, end, step) r = ReduceMax (c) y = Add (x, r) }""",
    r"Pad 'short': its output 'y' would be of shape \(-3,\)": """g (float[2] x) => (float[N] y)
        <int64[2] pads = {0, -5}> { [short] y = Pad (x, pads) }""",
}


@pytest.mark.parametrize("message", GRAPHS)
def test_sizes_that_no_memory_holds(message):
    with pytest.raises(ValueError, match=message):
        tvmfast.from_onnx(parser.parse_model(f"{HEAD} {GRAPHS[message]}"))


def with_functions(*calls: str, own: int) -> onnx.ModelProto:
    """A model of `own` functions f0, f1, …, of which each, but f0, calls `calls` one after another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def function(number):
        called = [name.format(number - 1) for name in calls] if number else ["Relu"]
        values = [*"abc"[: len(called)], "end"]
        nodes = [
            helper.make_node(name, [before], [after], domain="own" if number else "")
            for name, (before, after) in zip(called, itertools.pairwise(values), strict=True)
        ]
        return helper.make_function("own", f"f{number}", ["a"], ["end"], nodes, opsets)

    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    node = helper.make_node(f"f{own - 1}", ["x"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    functions = [function(number) for number in range(own)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def test_functions_that_expand_without_end():
    with pytest.raises(ValueError, match="functions expand to 1,073,741,824 nodes"):
        tvmfast.from_onnx(with_functions("f{}", "f{}", own=31))
    with pytest.raises(ValueError, match="functions call one another without end"):
        tvmfast.from_onnx(with_functions("f1", own=2))
    mod, _ = tvmfast.from_onnx(with_functions("f{}", "f{}", own=3))
    assert str(mod).count("R.nn.relu") == 4


@pytest.mark.parametrize("what", ["input", "output", "weight"])
def test_a_dtype_that_there_is_not(what):
    model = parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Add (x, w) }}")
    if what == "weight":
        model.graph.initializer[0].data_type = 99
    else:
        getattr(model.graph, what)[0].type.tensor_type.elem_type = 99
    with pytest.raises(ValueError, match="is of dtype 99, which onnx .* does not have"):
        tvmfast.from_onnx(model)


@pytest.mark.parametrize("with_dtype", [False, True])
def test_an_output_without_a_shape_is_let_run(with_dtype):
    model = parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Relu (x) }}")
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model.graph.output[0].CopyFrom(output if with_dtype else helper.make_empty_tensor_value_info("y"))
    lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=1)
    np.testing.assert_array_equal(lib(np.array([-1, 2], "float32")), [0, 2])


def test_large_weights_are_no_reason_to_refuse():
    weight = numpy_helper.from_array(np.ones((1 << 20, 2), "float32"), "w")
    model = parser.parse_model(f"{HEAD} g (float[2] x) => (float[N, 2] y) {{ y = Add (x, w) }}")
    model.graph.initializer.append(weight)
    assert tuple(tvmfast.from_onnx(model)[0]["main"].ret_ty.shape) == (1 << 20, 2)
