"""from_onnx: what goes in comes out with the same results as from ONNX Runtime, and what cannot go in is told so."""

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, terms_of
from onnx import TensorProto, helper, numpy_helper, parser
from testing import SEED, sampled
from torch import nn
from tvm import relax

import tvmfast
from tvmfast.frontends.onnx.importer import from_onnx


def model_of(graph: str, opset: int = 17, ir: int = 8, domains: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{domains}]> {graph}')


def exported(net: nn.Module, *examples: torch.Tensor, opset: int = 17, fold: bool = True, **options) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated; the other one needs onnxscript
        torch.onnx.export(
            net.eval(), examples, file, dynamo=False, opset_version=opset, do_constant_folding=fold, **options
        )
    return file.getvalue()


def hold_against_onnxruntime(model, inputs=None, seed: int = 0):
    """Import, compile, run both on the same random inputs, compare; returns what from_onnx gave."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a notebook cell stays clean
        mod, params = from_onnx(model, inputs)
    main = mod["main"]
    count = int(main.attrs["num_input"])
    assert [var.name for var in main.params[count:]] == list(params)
    random = np.random.default_rng(seed)
    feed = {}
    for var in main.params[:count]:
        shape, dtype = [int(n) for n in var.ty.shape], str(var.ty.dtype)
        integer = dtype.startswith("int")
        feed[var.name] = (random.integers(0, 3, shape) if integer else random.standard_normal(shape)).astype(dtype)

    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data if isinstance(data, bytes) else str(data), options)
    expected = session.run(None, feed)

    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, feed.values()), *params.values())
    results = [each.numpy() for each in ([result] if len(expected) == 1 else result)]
    assert [got.dtype for got in results] == [want.dtype for want in expected]
    # What an output sums is at most a whole input, or what its weights read.
    close(results, expected, max(map(np.size, feed.values()), default=1) + terms_of(params), rounded=True)
    return mod, params


class Digits(nn.Module):
    """A convolution, batch norm, pooling, and the line that makes the exporter write Shape, Gather, Concat, Reshape."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.classify = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.classify(x.view(x.size(0), -1))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


DYNAMIC = {"input_names": ["image"], "output_names": ["logits"], "dynamic_axes": {"image": {0: "batch"}}}
PICTURE = torch.zeros(1, 1, 8, 8)
OPEN = "g (float[N, 3, H] x, float[N] b) => (float[N, 3, H] y) { y = Relu(x) }"
RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


@pytest.fixture(scope="module")
def digits() -> bytes:
    torch.manual_seed(SEED)
    return exported(Digits(), PICTURE, **DYNAMIC)


# What works


@pytest.mark.parametrize("fold", [True, False])
def test_torch_network_with_symbolic_batch(fold):
    model = exported(Digits(), PICTURE, fold=fold, **DYNAMIC)
    mod, params = hold_against_onnxruntime(model, {"image": (3, 1, 8, 8)})
    assert mod["main"].params[0].name == "image"
    names = {tensor.name for tensor in onnx.load_from_string(model).graph.initializer}
    assert set(params) <= names and {"classify.weight", "classify.bias"} <= set(params)
    assert all(isinstance(value, tvm.runtime.Tensor) for value in params.values())


@pytest.mark.parametrize("opset", sampled([11, 17], [17]))
@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.pad(x, (1, 2, 0, 1)),
        lambda x: nn.functional.interpolate(x, size=(13, 9), mode="bilinear", align_corners=False),
        lambda x: nn.functional.interpolate(x, scale_factor=2),
        lambda x: x + torch.arange(x.size(3)) / x.size(3),
        lambda x: torch.cat([torch.zeros(x.size(0), 1, x.size(2), x.size(3)), *x.chunk(2, 1)[::-1]], 1),
        lambda x: x.view(x.size(0), 2, 2, x.size(2), x.size(3)).transpose(1, 2).reshape(x.shape),
        lambda x: x[:, 1:, ::2, :-1].expand(x.size(0), 3, 4, 7),
    ],
    ids=["pad", "sizes", "scales", "positions", "concat", "shuffle", "slice"],
)
def test_sizes_computed_in_the_graph(function, opset):
    model = exported(
        Function(function), torch.zeros(1, 4, 8, 8), opset=opset, input_names=["x"], dynamic_axes={"x": {0: "n"}}
    )
    hold_against_onnxruntime(model, {"x": (2, 4, 8, 8)})


def test_path_bytes_and_proto_are_the_same(digits, tmp_path):
    path = tmp_path / "digits.onnx"
    path.write_bytes(digits)
    proto = onnx.load_from_string(digits)
    before = proto.SerializeToString(deterministic=True)
    models = [from_onnx(model, {"image": (1, 1, 8, 8)}) for model in (path, str(path), digits, proto)]
    assert proto.SerializeToString(deterministic=True) == before
    for mod, params in models[1:]:
        assert tvm_ffi.structural_equal(mod, models[0][0])
        assert list(params) == list(models[0][1])
    hold_against_onnxruntime(path, [("image", (2, 1, 8, 8))])


def test_weights_that_are_inputs_too():
    graph = "g (float[2, 3] x, float[3] w) => (float[2, 3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"
    mod, params = hold_against_onnxruntime(model_of(graph, opset=8, ir=3))
    assert [var.name for var in mod["main"].params] == ["x", "w"] and list(params) == ["w"]


def test_several_inputs_and_outputs_in_the_order_of_the_graph():
    graph = """g (float[N, 4] x, int64[N] index, float s) => (float[N, 4] sum, float[N, 2] rows)
        <float[3, 2] table = {1, 2, 3, 4, 5, 6}> { rows = Gather(table, index) sum = Mul(x, s) }"""
    mod, _ = hold_against_onnxruntime(model_of(graph), {"index": (5,)})  # says what N is, and no dtype
    assert [var.name for var in mod["main"].params] == ["x", "index", "s", "table"]
    assert [str(var.ty.dtype) for var in mod["main"].params[:3]] == ["float32", "int64", "float32"]
    assert list(mod["main"].params[0].ty.shape) == [5, 4]


def test_examples_as_inputs():
    mod, _ = from_onnx(model_of(OPEN), [np.zeros((2, 3, 4), "float32"), torch.zeros(2)])
    assert list(mod["main"].params[0].ty.shape) == [2, 3, 4]


def test_input_of_any_rank():
    model = model_of(RELU)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    mod, _ = from_onnx(model, {"x": (2,)})
    assert list(mod["main"].params[0].ty.shape) == [2]
    with pytest.raises(ValueError, match="float32 of any rank"):
        from_onnx(model)


def test_names_stay_as_they_are():
    graph = """g (float[2] "in/put:0") => (float[2] y) <float[2] "a.b" = {1, 2}, float[2] a_b = {3, 4},
        float[2] "onnx::a_b" = {5, 6}, float[2] "/l.0/w:0" = {7, 8}>
        { p = Add("in/put:0", a_b) q = Mul(p, "a.b") r = Sub(q, "onnx::a_b") y = Add(r, "/l.0/w:0") }"""
    mod, _ = hold_against_onnxruntime(model_of(graph))
    assert [var.name for var in mod["main"].params] == ["in/put:0", "a.b", "a_b", "onnx::a_b", "/l.0/w:0"]
    tvm.script.from_source(mod.script())  # prints as valid TVMScript


def test_outputs_without_a_computation():
    graph = """g (float[2, 3] x) => (int64[2] shape, float[3] w, float[2, 3] x) <float[3] w = {1, 2, 3}>
        { shape = Shape(x) }"""
    hold_against_onnxruntime(model_of(graph))


def test_model_without_inputs():
    hold_against_onnxruntime(
        model_of("g () => (float[2] y) { a = Constant<value_floats = [1.0, -2.0]>() y = Relu(a) }")
    )


def test_constants_do_not_blow_the_model_up():
    graph = """g (float[N] x) => (float[N, 400, 400] y) {
        axes = Constant<value_ints = [1, 2]>() size = Constant<value_ints = [400, 400]>()
        n = Shape(x) shape = Concat<axis = 0>(n, size) filled = ConstantOfShape<value = float[1] {2.0}>(shape)
        column = Unsqueeze(x, axes) y = Add(filled, column) }"""
    mod, params = hold_against_onnxruntime(model_of(graph), {"x": (2,)})
    assert not params and len(tvm.ir.save_json(mod)) < 100_000


def test_functions_of_the_model_are_inlined():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) { y = my.twice(x) }
        <domain: "my", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""
    )
    mod, _ = from_onnx(model)
    result = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"](
        tvm.runtime.tensor(np.array([1, 2], "float32"))
    )
    assert result.numpy().tolist() == [2, 4]


_OLD_RESIZE = "e = Constant<value = float[0] {}>() s = Constant<value = float[4] {1.0, 1.0, 0.7, 1.7}>()"


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (7, "y = Dropout<ratio = 0.3>(x)"),
        (7, "y = Softmax(x)"),
        (7, 'y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>(x)'),
        (9, "y = Slice<starts = [0, 1], ends = [2, 3]>(x)"),
        (10, 's = Constant<value = float[4] {1.0, 1.0, 1.5, 2.0}>() y = Resize<mode = "nearest">(x, s)'),
        (10, 's = Constant<value = float[4] {1.0, 1.0, 0.7, 1.7}>() y = Resize<mode = "nearest">(x, s)'),
        (10, 's = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() y = Resize<mode = "nearest">(x, s)'),
        (11, f'{_OLD_RESIZE} y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn">(x, e, s)'),
        (11, "a = ReduceMean<axes = [2, 3]>(x) y = Squeeze<axes = [2, 3]>(a)"),
    ],
)
def test_old_opsets(opset, node):
    hold_against_onnxruntime(model_of(f"g (float[2, 4, 6, 6] x) => (float y) {{ {node} }}", opset=opset, ir=4))


@pytest.mark.parametrize(
    "node",
    [
        "LpNormalization(x)",
        "LpNormalization<axis = 1>(x)",
        "LpNormalization<axis = 0, p = 1>(x)",
        "LpNormalization<axis = -1, p = 2>(x)",
    ],
)
def test_operators_that_tvms_frontend_lacks(node):
    """Of a tensor with positive and negative values, and rows of zeros."""
    signs = "s = Constant<value = float[3, 1] {1.0, 0.0, -2.0}>()"
    hold_against_onnxruntime(
        model_of(f"g (float[2, 3, 5] given) => (float y) {{ {signs} x = Mul(given, s) y = {node} }}")
    )


def test_external_data(tmp_path):
    weight = np.random.default_rng(1).standard_normal((300, 300)).astype("float32")
    model = model_of("g (float[N, 300] x) => (float[N, 300] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "big.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="big.data", size_threshold=0)
    _, params = hold_against_onnxruntime(path, {"x": (2, 300)})
    assert np.array_equal(params["w"].numpy(), weight)

    with pytest.raises(ValueError, match=r"in other files \(big.data\): pass its path"):
        from_onnx(path.read_bytes(), {"x": (2, 300)})
    whole = (tmp_path / "big.data").read_bytes()
    (tmp_path / "big.data").write_bytes(whole[:1000])
    with pytest.raises(ValueError, match=r"big\.data.*cannot be read"):
        from_onnx(path, {"x": (2, 300)})
    (tmp_path / "big.data").unlink()
    with pytest.raises(FileNotFoundError, match=r"big\.data is missing"):
        from_onnx(path, {"x": (2, 300)})


# Files that are no models


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match=r"expected a path, bytes or an onnx\.ModelProto, got int"):
        from_onnx(5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"PK\x03\x04archive", "an archive"),
        (b"hello, world", "damaged"),
        (bytes(range(256)) * 8, "damaged"),
    ],
    ids=["empty", "lfs", "html", "zip", "text", "bytes"],
)
def test_no_model(content, message, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        from_onnx(path)
    with pytest.raises(ValueError, match=message):
        from_onnx(content)


def test_cut_files(digits):
    for length in [*np.linspace(1, len(digits) - 1, 20, dtype=int), len(digits) - 2, len(digits) - 5, len(digits) - 12]:
        with pytest.raises(ValueError, match=r"expected an ONNX model|onnx\.checker refuses"):
            from_onnx(digits[:length], {"image": (1, 1, 8, 8)})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu(z) }", "topologically"),
        ("g (float[2] x) => (float[2] y) { y = Nope(x) }", "No Op registered for Nope"),
        ("g (float[2] x) => (float[2] y) { y = Relu<wrong = 1>(x) }", "Unrecognized attribute: wrong"),
    ],
)
def test_checker_refuses(graph, message):
    with pytest.raises(ValueError, match=f"onnx.checker refuses this model: .*{message}"):
        from_onnx(model_of(graph))


# Inputs that do not fit


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": (1, 3, 4), "b": (2,)}, "input 'b': N is 2 here, but 1 in input 'x'"),
        ({"z": (2,)}, r"no input 'z'; its inputs are x: float32\[N, 3, H\], b: float32\[N\]"),
        ({"x": (2, 3)}, r"the model takes float32\[N, 3, H\], got shape \(2, 3\)"),
        ({"x": (2, 4, 4)}, r"the model takes float32\[N, 3, H\], got shape \(2, 4, 4\)"),
        ({"x": ((2, 3, 4), "float16")}, "input 'x': the model takes float32, got float16"),
        ({"x": np.zeros((2, 3, 4))}, "input 'x': the model takes float32, got float64"),
        ({"x": (2, 3, -1)}, "integers from 0 on"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(ValueError, match=message):
        from_onnx(model_of(OPEN), inputs)


def test_a_size_without_a_name_has_to_be_given():
    with pytest.raises(ValueError, match=r"x: float32\[N, 3, \?\]; pass inputs=\{'x': \('N', 3, 1\)\}"):
        from_onnx(model_of("g (float[N, 3, ?] x) => (float[N, 3, ?] y) { y = Relu(x) }"))


def test_sizes_that_do_not_fit_the_weights():
    model = model_of("g (float[N, K] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }")
    hold_against_onnxruntime(model, {"x": (4, 3)})
    with pytest.raises(ValueError, match=r"does not work with inputs of these shapes: .*MatMul"):
        from_onnx(model, {"x": (4, 4)})


@pytest.mark.parametrize("shapes", [{"x": (4, 3), "c": (3, 1)}, {"x": ("N", 3), "c": ("M", 1)}])
def test_a_bias_that_does_not_broadcast_to_its_product(shapes):
    weight = "<float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
    model = model_of(f"g (float[N, 3] x, float[M, 1] c) => (float[N, 2] y) {weight} {{ y = Gemm(x, w, c) }}")
    hold_against_onnxruntime(model, {"x": (4, 3), "c": (1, 1)})
    with pytest.raises(ValueError, match=r"Gemm .*its C is of shape \(\d+, 1\), which does not broadcast"):
        from_onnx(model, shapes)


@pytest.mark.parametrize(
    ("node", "opset", "message"),
    [
        (
            "Conv<kernel_shape=[5, 5]>(x, w)",
            17,
            r"Conv .*kernel_shape is \[5, 5\], .* of shape \(4, 4, 3, 3\)",
        ),
        ("ConvTranspose<kernel_shape=[2, 2]>(x, w)", 17, "ConvTranspose .*kernel_shape is"),
        ("MaxPool<kernel_shape=[2, 2], pads=[2, 2, 2, 2]>(x)", 17, "pads .* are not smaller than its kernel_shape"),
        ("PRelu(x, five)", 17, r"slope is of shape \(5,\), which does not broadcast"),
        ("Relu(x)", 99, "of opset 99, and onnx .* knows opsets up to"),
    ],
)
def test_contradictions_that_onnxruntime_refuses(node, opset, message):
    weights = "<float[5] five = {1, 2, 3, 4, 5}>"
    graph = f"g (float[1, 4, 8, 8] x, float[4, 4, 3, 3] w) => (float[a, b, c, d] y) {weights} {{ y = {node} }}"
    model = model_of(graph, opset=opset)
    with pytest.raises(Exception, match="(?i)fail|invalid|support|exception"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": np.zeros((1, 4, 8, 8), "float32"), "w": np.zeros((4, 4, 3, 3), "float32")}
        )
    with pytest.raises(ValueError, match=message):
        from_onnx(model)


# What TVM lacks


def test_missing_operators_are_all_named():
    nodes = "a = my.Conv(x) b = RandomNormalLike(a) c = Bernoulli(b) y = RandomNormalLike(c)"
    graph = f"g (float[2, 3] x) => (float[2, 3] y) {{ {nodes} }}"
    with pytest.raises(NotImplementedError) as caught:
        from_onnx(model_of(graph, domains=', "my": 3'))
    message = str(caught.value)
    assert "3 operator(s)" in message
    for name in ("RandomNormalLike (ai.onnx, opset 17)", "Bernoulli (ai.onnx, opset 17)", "Conv (my, opset 3)"):
        assert name in message


def test_missing_operator_in_a_subgraph():
    branch = "{} () => (float[2] {}) {{ {} = RandomNormalLike(x) }}"
    graph = f"""g (float[2] x, bool c) => (float[2] y)
        {{ y = If(c) <then_branch = {branch.format("t", "p", "p")}, else_branch = {branch.format("e", "q", "q")}> }}"""
    with pytest.raises(NotImplementedError, match=r"1 operator.*RandomNormalLike"):
        from_onnx(model_of(graph))


def test_inputs_that_are_no_tensors_of_numbers():
    with pytest.raises(NotImplementedError, match="input 'x' is no tensor of numbers"):
        from_onnx(model_of("g (string[2] x) => (string[2] y) { y = Identity(x) }"))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_scales_that_give_no_whole_sizes(mode):
    graph = f"""g (float[1, 1, 6, 6] x) => (float[1, 1, 7, 7] y) <float[4] s = {{1.0, 1.0, 1.3, 1.3}}>
        {{ y = Resize<mode = "{mode}">(x, , s) }}"""
    hold_against_onnxruntime(model_of(graph))
    whole = helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, 1.5, 2])
    model = model_of(graph.replace("7, 7", "9, 12"))
    model.graph.initializer[0].CopyFrom(whole)
    hold_against_onnxruntime(model)


def test_tensors_without_a_number():
    graph = """g (float[N, 3] x, float[2, 3] y) => (float[M, 3] both, float[1, 3] most)
        { both = Concat<axis = 0>(x, y) most = ReduceMax<axes = [0]>(x) }"""
    mod, params = from_onnx(model_of(graph, opset=13), {"x": (0, 3)})
    y = np.random.default_rng(0).random((2, 3), "float32")
    lib = tvmfast.build(mod, params, opt_level=0)
    memory = tvm.runtime.tensor(y).numpy()  # aligned
    without = np.lib.stride_tricks.as_strided(memory, (0, 3), (0, 0))  # as NumPy 2 has it
    for x in (np.zeros((0, 3), "float32"), without, torch.zeros(3, 0).t(), tvm.runtime.tensor(without)):
        assert lib(x, y)[0].shape == (2, 3)
    both, most = lib(without, y)
    np.testing.assert_array_equal(both, y)
    np.testing.assert_array_equal(most, np.full((1, 3), -np.inf, "float32"))


def test_what_tvm_trips_over_is_named():
    graph = "g (float[2, 3] x, int64[4] pads) => (float[M, N] y) { y = Pad(x, pads) }"
    with pytest.raises(NotImplementedError, match="Pad 'y': its input 'pads' has to be known before the run"):
        from_onnx(model_of(graph))
