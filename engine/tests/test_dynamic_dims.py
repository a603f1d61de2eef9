"""Networks with a dynamic batch: results at each size, what a call checks, what is saved, what is refused."""

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from agreement import Reference, close, reference
from onnx import parser
from testing import Function, sampled
from torch import nn

import tvmfast
from tvmclassic.relay import frontend
from tvmfast.core.dims import evaluate
from tvmfast.profiling import profiler

SIZES = (1, 2, 3, 8, 17)
SHAPE = (3, 16, 16)


class Convolutions(nn.Module):
    """Convolutions of each kind of schedule, batch norm, pools, a residual, and a dense layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.winograd = nn.Conv2d(24, 24, 3, padding=1)
        self.strided = nn.Conv2d(24, 40, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(40, 40, 3, padding=1, groups=40)
        self.pointwise = nn.Conv2d(40, 32, 1)
        self.grouped = nn.Conv2d(32, 48, 3, padding=1, groups=4)
        self.classify = nn.Linear(48, 10)

    def forward(self, x):
        x = torch.max_pool2d(self.stem(x), 2)
        x = x + torch.sigmoid(self.winograd(x))
        x = nn.functional.relu6(self.depthwise(torch.relu(self.strided(x))))
        x = self.grouped(self.pointwise(x)).mean((2, 3))
        return self.classify(torch.flatten(x, 1)), x


class Attention(nn.Module):
    """A transformer layer: a static number of tokens, products with a dynamic number of rows."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.layer = nn.TransformerEncoderLayer(24, 2, 40, activation="gelu", batch_first=True)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.layer(x)[:, 0]


def hold(lib, net, shape, rng, sizes=SIZES):
    """Compare a compiled network with PyTorch's at each size."""
    for n in sizes:
        x = rng.standard_normal((n, *shape)).astype("float32")
        close(lib(x), reference(net, x))


def compiled(net, inputs, **options):
    return tvmfast.build(*tvmfast.from_pytorch(net.eval(), inputs), records=False, **options)


@pytest.fixture(scope="module")
def convolutions():
    torch.manual_seed(0)
    return Convolutions().eval()


@pytest.fixture(scope="module")
def lib(convolutions):
    return compiled(convolutions, {"x": ("batch", *SHAPE)})


# What works


def test_convolutions_at_every_size(lib, convolutions, rng):
    families = {schedule["family"] for schedule in lib.graph["kernels"].values()}
    assert families >= {"conv2d", "depthwise", "pointwise", "winograd", "matmul"}
    x = rng.standard_normal((17, *SHAPE)).astype("float32")
    wanted = reference(convolutions, x)
    for n in range(1, 18):
        close(lib(x[:n]), Reference([each[:n] for each in wanted.values], wanted.moved))


@pytest.mark.parametrize("opt_level", sampled([0, 1, 2], [0]))
def test_lower_levels(convolutions, rng, opt_level):
    lib = compiled(convolutions, {"x": ("batch", *SHAPE)}, opt_level=opt_level)
    hold(lib, convolutions, SHAPE, rng, sizes=(1, 3))


def test_a_transformers_layer(rng):
    net = Attention()
    lib = compiled(net, {"x": ("batch", 5, 24)})
    hold(lib, net, (5, 24), rng)


def test_dense_layers(rng):
    net = nn.Sequential(nn.Linear(40, 70), nn.ReLU(), nn.Linear(70, 33))
    lib = compiled(net, {"x": (tvmfast.Dim("rows", 1, 20), 40)})
    hold(lib, net, (40,), rng, sizes=range(1, 21))


def test_an_embedding_checks_its_indices(rng):
    net = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(24, 5))
    lib = compiled(net, {"x": (("batch", 4), "int64")})
    for n in SIZES:
        x = rng.integers(0, 9, (n, 4))
        close(lib(x), reference(net, x))
    x[-1, -1] = 9
    with pytest.raises(IndexError, match="got 9"):
        lib(x)


def test_dims_print_and_follow_the_call(lib):
    assert str(lib.inputs[0]) == "x: float32[batch, 3, 16, 16]"
    assert [str(spec) for spec in lib.outputs] == ["output0: float32[batch, 10]", "output1: float32[batch, 48]"]
    assert lib.inputs[0].shape[0] == tvmfast.Dim("batch")
    assert [y.shape for y in lib(np.zeros((5, *SHAPE), "float32"))] == [(5, 10), (5, 48)]


def test_several_inputs_have_one_dim(rng):
    net = Function(lambda x, y: x * 2 + y)
    lib = compiled(net, {"x": ("n", 3), "y": (tvmfast.Dim("n", 2, 6), 3)})
    assert [spec.shape[0] for spec in lib.inputs] == [tvmfast.Dim("n", 2, 6)] * 2
    x, y = rng.standard_normal((2, 4, 3)).astype("float32")
    assert np.array_equal(lib(x, y), x * 2 + y)
    with pytest.raises(
        ValueError, match=r"input 'y': expected the n 4 that input 'x' has, got 3 in the shape \(3, 3\)"
    ):
        lib(x, y[:3])


def test_two_dynamic_dims(rng):
    lib = compiled(Function(lambda x, y: (torch.relu(x), y + 1)), {"x": ("n", 3), "y": ("m", 2)})
    x, y = np.ones((4, 3), "float32"), np.ones((7, 2), "float32")
    assert [each.shape for each in lib(x, y)] == [(4, 3), (7, 2)]


def test_sums_and_multiples_of_a_dim(rng):
    """Shapes of the results that are expressions of the dim."""
    net = Function(lambda x: (torch.cat([x, x, torch.zeros(3, 4)]), x.reshape(-1), x.reshape(-1, 2).sum(1)))
    lib = compiled(net, {"x": ("n", 4)})
    assert [spec.shape for spec in lib.outputs] == [("3 + 2*n", 4), ("4*n",), ("2*n",)]
    hold(lib, net, (4,), rng)


@pytest.mark.parametrize("bounds", sampled([(1, 3), (1, 8), (2, 5)], [(2, 5)]))
def test_products_of_a_dim_of_few_values(rng, bounds):
    net = Function(lambda x: (x @ x.T).reshape(-1) * 2)
    lib = compiled(net, {"x": (tvmfast.Dim("n", *bounds), 3)})
    hold(lib, net, (3,), rng, sizes=range(bounds[0], bounds[1] + 1))


def test_onnx_keeps_the_names_of_the_file(convolutions, rng):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "N"}}}
        torch.onnx.export(convolutions, (torch.zeros(2, *SHAPE),), file, dynamo=False, **names)
    model = file.getvalue()
    lib = tvmfast.build(*tvmfast.from_onnx(model), records=False)
    assert str(lib.inputs[0]) == "x: float32[N, 3, 16, 16]"
    hold(lib, convolutions, SHAPE, rng)
    named = tvmfast.from_onnx(model, {"x": (tvmfast.Dim("batch", 1, 8), *SHAPE)})[0]
    assert str(named["main"].params[0].ty.shape[0].name) == "batch"
    fixed = tvmfast.from_onnx(model, {"x": (2, *SHAPE)})[0]
    assert int(fixed["main"].params[0].ty.shape[0]) == 2


def test_mxnet(rng):
    mx = pytest.importorskip("mxnet")
    data = mx.sym.Variable("data")
    net = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=20, name="c")
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.FullyConnected(mx.sym.Pooling(net, global_pool=True, kernel=(1, 1), pool_type="avg"), num_hidden=7)
    shapes, _, _ = net.infer_shape(data=(1, *SHAPE))
    arrays = {
        name: rng.standard_normal(shape).astype("float32")
        for name, shape in zip(net.list_arguments(), shapes, strict=True)
    }
    del arrays["data"]
    lib = tvmfast.build(*tvmfast.from_mxnet(net, arrays, {"data": ("batch", *SHAPE)}), records=False)

    def run(x):
        given = {name: mx.nd.array(array) for name, array in {**arrays, "data": x}.items()}
        return net.bind(mx.cpu(), given).forward()[0].asnumpy()

    for n in SIZES:
        x = rng.standard_normal((n, *SHAPE)).astype("float32")
        close(lib(x), run(x), terms=2 * 3 * 9, rounded=True)


def test_a_saved_network_keeps_its_dims(convolutions, rng, tmp_path):
    lib = compiled(convolutions, {"x": (tvmfast.Dim("batch", 1, 64), *SHAPE)})
    loaded = tvmfast.load(lib.save(tmp_path / "net"))
    assert loaded.inputs == lib.inputs
    assert loaded.inputs[0].shape[0] == tvmfast.Dim("batch", 1, 64)
    hold(loaded, convolutions, SHAPE, rng, sizes=(1, 5))
    with pytest.raises(ValueError, match=r"expected a batch of 1 to 64, got 65 in the shape \(65, 3, 16, 16\); import"):
        loaded(np.zeros((65, *SHAPE), "float32"))


def test_a_profile_counts_at_the_size_of_its_input(lib, rng):
    small, large = (tvmfast.profile(lib, np.zeros((n, *SHAPE), "float32"), calls=1) for n in (1, 4))
    assert (small.sizes, large.sizes) == ({"batch": 1}, {"batch": 4})
    for name, kernel in small.kernels.items():
        other = large.kernels[name]
        if kernel.flops and "dense" not in name:
            assert other.flops == 4 * kernel.flops
        assert kernel.bytes < other.bytes <= 4 * kernel.bytes
    assert small.kernels.keys() == large.kernels.keys()
    assert any(kernel.makes.startswith("4x") for kernel in large.kernels.values())
    assert "frame" and len(large.frame()) == len(large.kernels)


def test_the_memory_of_a_run(lib, convolutions):
    fixed = compiled(convolutions, {"x": (4, *SHAPE)})
    report = profiler.memory(lib, batch=4)
    assert report["inputs"] == profiler.memory(fixed)["inputs"]
    assert profiler.alive(lib, batch=4)[0] == profiler.alive(fixed)[0]
    with pytest.raises(ValueError, match=r"values of the dynamic dims, batch \(1 or more\); got none"):
        profiler.memory(lib)


# What is refused


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.reshape(2, -1), "n"),
        (lambda x: x * x.shape[0] if x.shape[0] > 4 else x, "n"),
        (lambda x: x.squeeze(), "n"),
    ],
    ids=["even", "branch", "squeeze"],
)
def test_networks_that_depend_on_the_dim(function, message):
    with pytest.raises((NotImplementedError, ValueError), match=message):
        compiled(Function(function), {"x": ("n", 4)})


def test_a_batch_of_1_may_be_another_network():
    net = Function(lambda x: x * 2 if x.shape[0] == 1 else x).eval()
    with pytest.raises(NotImplementedError, match=r"something else where 'n' is 1 .*use Dim\('n', 2\)"):
        tvmfast.from_pytorch(net, {"x": ("n", 4)})


def test_branches_of_an_onnx_file():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[M, 4] y) {
            shape = Shape(x) zero = Constant<value = int64[1] {0}>() one = Constant<value = int64[1] {1}>()
            nine = Constant<value = int64[1] {9}>() n = Slice(shape, zero, one, zero)
            ninth = Div(n, nine) y = Slice(x, ninth, n, zero) }"""
    )
    onnx.checker.check_model(model)
    with pytest.raises(NotImplementedError, match="cannot keep 'N' dynamic"):
        tvmfast.from_onnx(model)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"x": ("2n", 4)}, ValueError, "input 'x': expected a shape of positive integers"),
        ({"x": (tvmfast.Dim("n", 4, 8), 4), "y": (tvmfast.Dim("n", 9), 4)}, ValueError, "bounds that overlap"),
    ],
)
def test_dims_that_cannot_be(inputs, error, message):
    with pytest.raises(error, match=message):
        tvmfast.from_pytorch(Function(lambda x, y=None: torch.relu(x)).eval(), inputs)


@pytest.mark.parametrize(
    ("name", "bounds"), [("2n", (1, 2)), ("n", (0, 2)), ("n", (3, 2)), ("n", (1.0, 2)), (5, (1, 2))]
)
def test_bounds_that_cannot_be(name, bounds):
    with pytest.raises(ValueError, match="expected"):
        tvmfast.Dim(name, *bounds)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3, 16), "float32"), r"input 'x': expected the shape \(batch, 3, 16, 16\), got \(2, 3, 16\)"),
        (np.zeros((2, 3, 9, 9), "float32"), r"expected the shape \(batch, 3, 16, 16\), got \(2, 3, 9, 9\)"),
        (np.zeros((0, *SHAPE), "float32"), "expected a batch of 1 or more, got 0"),
        (np.zeros((2, *SHAPE)), "expected the dtype float32, got float64"),
    ],
)
def test_calls_that_do_not_fit(lib, x, message):
    with pytest.raises(ValueError, match=message):
        lib(x)


def test_what_takes_static_shapes_only(convolutions):
    mod, params = tvmfast.from_pytorch(convolutions, {"x": ("batch", *SHAPE)})
    with pytest.raises(ValueError, match="a build for a GPU needs static dims"):
        tvmfast.build(mod, params, target={"kind": "cuda", "arch": "sm_80"})
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }'
    )
    with pytest.raises(ValueError, match="Relay module has static shapes, and these dims are dynamic: N; give `shape`"):
        frontend.from_onnx(model)


def test_dims_are_evaluated_without_running_code():
    assert evaluate("3 + 2*n", {"n": 5}) == 13
    assert evaluate("n*m + -1*n", {"n": 2, "m": 4}) == 6
    with pytest.raises(ValueError, match="invalid literal"):
        evaluate("__import__('os')", {"n": 2})


def test_an_axis_that_is_dropped_where_it_is_1():
    net = Function(lambda x: x.squeeze(1).softmax(1).amax().reshape(1))
    with pytest.raises(NotImplementedError, match=r"Dim\('n', 2\)|'n' dynamic"):
        tvmfast.from_pytorch(net.eval(), {"x": (2, "n", 3)})


def test_a_constant_of_one_probe_is_refused():
    net = Function(lambda x: x * torch.tensor(1.0 if x.shape[0] == 1 else 3.0))
    with pytest.raises(NotImplementedError, match=r"use Dim\('batch', 2\)"):
        tvmfast.from_pytorch(net.eval(), {"x": ("batch", 2)})


def test_indices_of_extremes(rng):
    def function(x):
        return x.argmax(-1), (x * 2).relu().argmin(0)

    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), {"x": ("n", 48)}))
    for n in (1, 2, 9):
        x = rng.standard_normal((n, 48)).astype("float32")
        x[-1, 5] = np.nan
        for result, wanted in zip(lib(x), function(torch.from_numpy(x)), strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_slices_of_axes_counted_from_the_end(rng):
    net = Function(lambda x: (x.narrow(-1, 1, 2), x.select(-1, -1), x.diff(prepend=x[:, :1], dim=-1)))
    for shape in (("n", 8), (3, tvmfast.Dim("n", 6))):
        lib = compiled(net, {"x": shape})
        x = rng.standard_normal((3, 8)).astype("float32")
        for result, wanted in zip(lib(x), net(torch.from_numpy(x)), strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_indices_beyond_a_byte(rng):
    net = Function(lambda x: torch.eye(x.shape[0]) + x)
    lib = compiled(net, {"x": ("batch", 1)})
    hold(lib, net, (1,), rng, sizes=(1, 3, 257, 300))


@pytest.mark.parametrize("what", ["d = Less(n, many)", "d = Equal(n, many)", "d = Equal(m, many) m = Min(n, many)"])
def test_a_file_that_compares_a_dim_with_a_number_is_refused(what):
    *before, last = what.split(" m = ")
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y)
        <int64[1] many = {{500}}, int64[1] zero = {{0}}, float[1] one = {{1}}, float[1] two = {{2}}> {{
        s = Shape(x) n = Gather(s, zero) {f"m = {last}" if before else ""} {before[0] if before else what}
        f = Where(d, one, two) y = Mul(x, f) }}"""
    with pytest.raises(NotImplementedError, match="cannot keep 'N' dynamic|something else where 'N' is 500"):
        tvmfast.from_onnx(parser.parse_model(text))


@pytest.mark.parametrize(
    "what",
    ["h = Cast<to = 1>(n) d = Less(h, half)", "m = Clip(n, one, most) d = Less(m, n)"],
    ids=["float", "clip"],
)
def test_a_file_that_compares_a_dim_with_a_large_number_is_refused(what):
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y)
        <int64[1] zero = {{0}}, float[1] first = {{1}}, float[1] second = {{2}}> {{
        half = Constant<value = float {{8000.5}}>() one = Constant<value = int64 {{1}}>()
        most = Constant<value = int64 {{8000}}>() s = Shape(x) n = Gather(s, zero) {what}
        f = Where(d, first, second) y = Mul(x, f) }}"""
    with pytest.raises(NotImplementedError, match=r"something else where 'N' is 800\d"):
        tvmfast.from_onnx(parser.parse_model(text))
