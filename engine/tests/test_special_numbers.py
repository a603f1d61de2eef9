"""Norms, clips, losses, roundings and indices of numbers that break them: NaN, infinities, halves that overflow."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close

import tvmfast
from tvmfast.backends import torch_compile
from tvmfast.frontends.mxnet import gluon

NAN, INF, MOST = math.nan, math.inf, 3.0e38


OF_MXNET = pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")


LEVELS = pytest.mark.parametrize("level", [0, 3])


X = np.array([-2, -1, 0, 1, 2.5, NAN, INF, -INF], "float32")


@OF_MXNET
@LEVELS
def test_a_variance_of_0_in_mxnet(level):
    import mxnet as mx

    x, names = mx.sym.var("x"), ("gamma", "beta", "mean", "var")
    params = dict(zip(names, np.float32([[-1, 1, 2, 3], [0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 2]]), strict=True))
    for shape, dtype in (((2, 4), "float32"), ((2, 4, 1, 1), "float32"), ((2, 4, 1, 1), "float16")):
        epsilons = (0.0, 1e-8, 1e-3) if dtype == "float32" else (0.0, 1e-3)
        variables = [mx.sym.var(name) for name in names]
        net = mx.sym.Group([mx.sym.BatchNorm(x, *variables, eps=each, fix_gamma=False) for each in epsilons])
        image = X.reshape(shape).astype(dtype)
        lib = tvmfast.build(*tvmfast.from_mxnet(net, params, {"x": (shape, dtype)}), opt_level=level)
        arrays = {name: mx.nd.array(array) for name, array in params.items()}
        given = {"x": mx.nd.array(image, dtype=dtype), "gamma": arrays["gamma"], "beta": arrays["beta"]}
        bound = net.bind(mx.cpu(), given, aux_states={name: arrays[name] for name in ("mean", "var")})
        for got, wanted in zip(lib(image), bound.forward(is_train=False), strict=True):
            close(got, wanted.asnumpy(), 4, rounded=True)


@OF_MXNET
@LEVELS
def test_norms_of_large_halves_in_mxnet(level):
    """MXNet's own squares overflow; the right numbers are those of its float32."""
    import mxnet as mx

    sym, x = mx.sym, (np.random.default_rng(0).standard_normal((2, 4, 5, 3)) * 3000).astype("float16")
    data, norms = sym.var("x"), []
    norms += [sym.L2Normalization(data, mode=mode) for mode in ("instance", "channel", "spatial")]
    weights = {}
    for name, size, norm in (("l", 3, sym.LayerNorm), ("i", 4, sym.InstanceNorm), ("g", 2, sym.GroupNorm)):
        how = {"num_groups": 2} if name == "g" else {}
        norms.append(norm(data, sym.var(f"{name}gamma"), sym.var(f"{name}beta"), **how))
        weights |= {f"{name}gamma": np.ones(size), f"{name}beta": np.zeros(size)}
    net, results = sym.Group(norms), []
    for dtype in ("float16", "float32"):
        params = {name: array.astype(dtype) for name, array in weights.items()}
        lib = tvmfast.build(*tvmfast.from_mxnet(net, params, {"x": (x.shape, dtype)}), opt_level=level)
        results.append(lib(x.astype(dtype)))
    for half, single in zip(*results, strict=True):
        assert half.dtype == "float16" and np.abs(single).max() > 0.1
        np.testing.assert_array_equal(half, single.astype("float16"))


MXNET = {
    "round": lambda s, x: s.round(x),
    "rint": lambda s, x: s.rint(x),
    "fix": lambda s, x: s.fix(x),
    "trunc": lambda s, x: s.trunc(x),
    "clip": lambda s, x: s.clip(x, a_min=-1.0, a_max=2.0),
    "argmax": lambda s, x: s.argmax(x, axis=1),
    "argmax, kept": lambda s, x: s.argmax(x, axis=1, keepdims=True),
    "argmax of all": lambda s, x: s.argmax(x),
    "argmin of all, kept": lambda s, x: s.argmin(x, keepdims=True),
    "argmin of a vector": lambda s, x: s.argmin(s.reshape(x, shape=(-1,)), axis=0),
    "softmax with a temperature": lambda s, x: s.softmax(x, axis=1, temperature=0.7),
    "softmin with a temperature": lambda s, x: s.softmin(x, axis=1, temperature=3.0),
}


@OF_MXNET
@LEVELS
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_functions_of_mxnet(level, dtype):
    import mxnet as mx

    x = np.array([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 0.49999997, -0.2, 1e3 + 1, 7.0], dtype).reshape(3, 4)
    inputs = [x, np.where(np.arange(12).reshape(3, 4) % 5 == 1, np.array([NAN, INF, -INF], dtype)[:, None], x)]
    data = mx.sym.var("x")
    net = mx.sym.Group([make(mx.sym, data) for make in MXNET.values()])
    lib = tvmfast.build(*tvmfast.from_mxnet(net, {}, {"x": (x.shape, dtype)}), opt_level=level)
    for x in inputs:
        wanted = net.eval(x=mx.nd.array(x, dtype=dtype))
        for name, got, each in zip(MXNET, lib(x), wanted, strict=True):
            if name.startswith("arg") and np.isnan(x).any():
                continue
            assert got.dtype == each.asnumpy().dtype, name
            if name.startswith("soft"):
                close(got, each.asnumpy(), 16, rounded=True)
            else:
                np.testing.assert_array_equal(got, each.asnumpy(), name)


BOUNDS = [(NAN, 1), (-1, NAN), (NAN, NAN), (2, -1), (-INF, INF), (-1.5, 1.5), (0.1, 0.3), (-INF, -3e4)]


@OF_MXNET
@LEVELS
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64"])
def test_clips_of_mxnet(level, dtype):
    import mxnet as mx

    is_float = dtype.startswith("float")
    x = X.astype(dtype) if is_float else np.arange(-4, 5).astype(dtype)
    bounds = [*BOUNDS, (-1e5, 1e6)] if is_float else [(-300, 300), (2, 1e30), *BOUNDS[:3], *BOUNDS[4:7]]
    data = mx.sym.var("x")
    net = mx.sym.Group([mx.sym.clip(data, a_min=low, a_max=high) for low, high in bounds])
    lib = tvmfast.build(*tvmfast.from_mxnet(net, {}, {"x": (x.shape, dtype)}), opt_level=level)
    for got, wanted in zip(lib(x), net.eval(x=mx.nd.array(x, dtype=dtype)), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, wanted.asnumpy())


class Clamps(torch.nn.Module):
    def forward(self, x):
        by_tensors = [torch.clamp(x, torch.tensor(low), torch.tensor(high)) for low, high in BOUNDS]
        of_one = x.clamp(min=NAN), x.clamp(max=NAN), torch.clamp_min(x, NAN), torch.clamp_max(x, NAN)
        own = torch.clamp(x, x.flip(0), x * 0.5), torch.clamp(torch.nan_to_num(x, 0, 9, -9).int(), -1, INF)
        return *(torch.clamp(x, low, high) for low, high in BOUNDS), *by_tensors, *of_one, *own


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_clamps_of_pytorch(level, dtype):
    x = torch.tensor(X).to(dtype)
    lib = tvmfast.build(*tvmfast.from_pytorch(Clamps().eval(), {"x": x}), opt_level=level)
    for got, wanted in zip(lib(x), Clamps()(x), strict=True):
        np.testing.assert_array_equal(got, wanted.numpy())


class Losses(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x, label, labels):
        results = []
        for reduction in ("mean", "sum", "none"):
            for p, margin, weight in ((1, 1.0, None), (2, 0.3, None), (1, 0.5, self.weight), (2, 1.0, self.weight)):
                how = {"p": p, "margin": margin, "weight": weight, "reduction": reduction}
                results += [F.multi_margin_loss(x, label, **how), F.multi_margin_loss(x[1], label[1], **how)]
                results.append(F.multi_margin_loss(x[1], label[1:2], **how))
            for one in (0, 1, 2):
                results.append(F.multilabel_margin_loss(x[one], labels[one], reduction=reduction))
            results.append(F.multilabel_margin_loss(x, labels, reduction=reduction))
        return tuple(results)


@LEVELS
def test_margin_losses(level, rng):
    """What is behind the first -1 is no label, NaN exceeds no margin, and one row's loss has no axis."""
    labels = torch.tensor([[1, -1, 3, 0, 2], [0, 3, 2, 1, 4], [-1, 2, 2, 2, 2], [2, 2, 0, -1, -1]])
    label, x = torch.tensor([0, 4, 2, 1]), torch.tensor(rng.standard_normal((4, 5)), dtype=torch.float32)
    net = Losses(torch.tensor(rng.random(5), dtype=torch.float32)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": x, "label": label, "labels": labels}), opt_level=level)
    exact = Losses(net.weight.double())
    broken = x.clone()
    broken[0, 1], broken[3, 2], broken[2, 0] = NAN, INF, -INF
    for given in (x, broken):
        close(lib(given, label, labels), exact(given.double(), label, labels), 60)
    with torch.no_grad():  # PyTorch's own are as they were
        exported = torch.export.export(net, (x, label, labels)).run_decompositions()
        assert exported.module()(x, label, labels)[-1].tolist() != net(x, label, labels)[-1].tolist()


@LEVELS
def test_a_variance_of_0_in_onnx(level):
    """ONNX Runtime multiplies by an infinity, which makes NaN of much that a division by 0 does not."""
    rows = np.float32(
        [[3e38, 3e38, -3e38, 3e38], [1e20, 0, 0, 0], [INF, 1, 2, 3], [NAN, 1, 2, 3], [0, 1, 2, 3], [-1] * 4]
    )
    weights = np.float32([[1, 2, -1, 0.5], [0, 1, 2, 3], [0, 1, 2, 3]])
    for variance in ([1, 0, 2, 1e-40], [0, 0, 0, 0], [1, 2, 3, 4]):
        arrays = dict(zip(("scale", "b", "mean", "var"), [*weights, np.float32(variance)], strict=True))
        initial = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        node = onnx.helper.make_node("BatchNormalization", ["x", *arrays], ["y"], epsilon=0.0)
        values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [6, 4]) for name in "xy"]
        graph = onnx.helper.make_graph([node], "net", values[:1], values[1:], initial)
        model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (wanted,) = session.run(None, {"x": rows})
        got = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)(rows)
        with np.errstate(all="ignore"):
            factor = np.abs(weights[0]) / np.sqrt(arrays["var"])
            summed = (np.abs(rows) + weights[2]) * factor + weights[1]
        close(got, wanted, 4, scale=np.nan_to_num(summed, posinf=0), rounded=True)


@pytest.mark.filterwarnings("error:tvmfast leaves a graph to PyTorch")
def test_margin_losses_in_torch_compile(rng):
    def losses(x, label, labels):
        of_one = [F.multi_margin_loss(x, label, reduction=each) for each in ("mean", "sum", "none")]
        return *of_one, *(F.multilabel_margin_loss(x, labels, reduction=each) for each in ("mean", "sum", "none"))

    labels, label = torch.tensor([[1, -1, 2], [0, 2, 1], [-1, 2, 2]]), torch.tensor([0, 2, 1])
    x = torch.tensor(rng.standard_normal((3, 3)), dtype=torch.float32)
    x[0, 1], x[1, 0] = NAN, INF
    with torch.no_grad():
        got = torch.compile(losses, backend=torch_compile.backend, options={"opt_level": 0})(x, label, labels)
        close(got, losses(x.double(), label, labels), 20)


class Norms(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.of_channels, self.of_rows, self.of_images = weights

    def forward(self, x):
        return (
            *(F.layer_norm(x, x.shape[2:], *self.of_rows), F.layer_norm(x, x.shape[1:], *self.of_images)),
            *(F.layer_norm(x[..., :4], (4,)), F.group_norm(x, 2, *self.of_channels), F.group_norm(x[..., :3], 4)),
            *(F.instance_norm(x, None, None, *self.of_channels), F.instance_norm(x[..., :7])),
        )


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_the_largest_numbers(level, dtype, rng):
    """No sum overflows; where squares do, what is normalized is 0, as in ONNX Runtime."""
    most = torch.finfo(dtype).max
    x = torch.tensor(rng.standard_normal((5, 4, 40)), dtype=dtype)
    x[0], x[1], x[2], x[3, :, 1] = most, -most, torch.tensor([most, -most] * 20), most
    x[4, :, 2], x[4, :, 3] = INF, -INF
    weights = [[torch.tensor(rng.random(shape), dtype=dtype) for _ in range(2)] for shape in (4, 40, (4, 40))]
    net = Norms(weights).eval()
    results = tvmfast.build(*tvmfast.from_pytorch(net, {"x": x}), opt_level=level)(x)
    for got, beta in zip(results, net(torch.zeros_like(x)), strict=True):
        got = torch.from_numpy(np.asarray(got).astype("float32"))
        assert torch.equal(got[:4], beta[:4].float())
        assert got[4].isnan().all()


@LEVELS
def test_rms_norms_of_float64(level, rng):
    """Squares are of float64, too, which ONNX's definition computes in float32."""
    text = """<ir_version: 10, opset_import: ["": 23]> g (double[3, 4] x, double[4] w) => (double[3, 4] y) {
        y = RMSNormalization <axis = 1> (x, w) }"""
    lib = tvmfast.build(*tvmfast.from_onnx(onnx.parser.parse_model(text)), opt_level=level)
    x, w = rng.standard_normal((3, 4)), rng.standard_normal(4)
    x[1] *= 1e150
    x[2] *= 1e-3
    wanted = x / np.sqrt(np.mean(x * x, 1, keepdims=True) + float(np.float32(1e-5))) * w
    close(lib(x, w), wanted, 4)


@pytest.fixture
def large(rng):
    """Rows near the largest number, of one sign and of both, of squares that overflow, and of such that are 0."""
    x = rng.standard_normal((4, 4, 6)).astype("float32")
    x[0], x[1], x[2], x[3] = MOST, [MOST, -MOST] * 3, x[2] * 1e30, x[3] * 1e-30
    return x


def statistics(x, *axes):
    """Return the means and the inverse deviations of a norm, and x over its deviation from the mean, in float64."""
    x = x.astype("float64")
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return mean, 1 / np.sqrt(variance + 1e-5), (x - mean) / (np.sqrt(variance) + 1e-9)


def holds(got, wanted, summed=0):
    """Assert that a result is right, to a share of each of its numbers, or of the largest that its row sums."""
    wanted = wanted.reshape(got.shape)
    summed = np.reshape(summed, (-1, *[1] * (got.ndim - 1)))
    close(got, wanted, 24, scale=np.maximum(np.abs(wanted), summed))


@LEVELS
def test_statistics_of_the_largest_numbers(level, large):
    class Net(torch.nn.Module):
        def forward(self, x):
            groups = torch.native_group_norm(x, None, None, 4, 4, 6, 2, 1e-5)
            return *torch.native_layer_norm(x, (6,), None, None, 1e-5)[1:], *groups[1:]

    given = torch.from_numpy(large)
    results = tvmfast.build(*tvmfast.from_pytorch(Net().eval(), {"x": given}), opt_level=level)(given)
    for place, rows in ((0, large), (2, large.reshape(4, 2, -1))):
        mean, scale, _ = statistics(rows, 2)
        holds(results[place], mean, np.abs(large).max((1, 2)))
        holds(results[place + 1], scale)


@LEVELS
def test_norms_of_the_largest_numbers_in_onnx(level, large):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[4, 4, 6] x, float[6] one) => (
            float[4, 4, 1] mean, float[4, 4, 1] scale, float[4, 4, 6] moved, float[4, 4, 6] l1, float[4, 4, 6] l2
        ) {
            y, mean, scale = LayerNormalization(x, one)
            moved = MeanVarianceNormalization <axes = [1, 2]> (x)
            l1 = LpNormalization <axis = 1, p = 1> (x)
            l2 = LpNormalization <axis = 1> (x)
        }""")
    results = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)(large, np.ones(6, "float32"))
    double = large.astype("float64")
    quotients = [double / np.linalg.norm(double, order, 1, keepdims=True) for order in (1, 2)]
    (mean, scale, _), (*_, moved) = statistics(large, 2), statistics(large, 1, 2)
    holds(results[0], mean, np.abs(large).max((1, 2)))
    for got, wanted in zip(results[1:], (scale, moved, *quotients), strict=True):
        holds(got, wanted)


@OF_MXNET
@LEVELS
def test_norms_of_the_largest_numbers_in_mxnet(level, large):
    """Where the variance overflows, what is normalized is 0."""
    import mxnet as mx

    sym, x, params, norms = mx.sym, mx.sym.var("x"), {}, []
    for size, norm, how in ((6, sym.LayerNorm, {}), (4, sym.LayerNorm, {"axis": 1}), (2, sym.GroupNorm, {}),
                            (4, sym.GroupNorm, {}), (4, sym.InstanceNorm, {})):  # fmt: skip
        names = [f"{name}{len(norms)}" for name in ("gamma", "beta")]
        params |= {name: np.full(size, 2 + len(norms), "float32") for name in names}
        how = how | ({"num_groups": 2} if norm is sym.GroupNorm else {})
        norms.append(norm(x, *map(sym.var, names), **how))
    lengths = [sym.L2Normalization(x, mode=mode, eps=0) for mode in ("instance", "channel", "spatial")]
    net = sym.Group([*norms, *lengths])
    lib = tvmfast.build(*tvmfast.from_mxnet(net, params, {"x": large.shape}), opt_level=level)
    results, double = lib(large), large.astype("float64")
    for number, got in enumerate(results[:5]):
        assert (np.asarray(got)[:3] == 2 + number).all()
    squares = [(double * double).sum(axes, keepdims=True) for axes in ((1, 2), 1, 2)]
    for got, each in zip(results[5:], squares, strict=True):
        holds(got, double / np.sqrt(each))


@OF_MXNET
@LEVELS
def test_lengths_whose_squares_are_0_or_infinite_in_mxnet(level):
    import mxnet as mx

    x = np.array([[3e-38, 4e-38], [3e37, 4e37], [3, 4]], "float32")
    net = mx.sym.norm(mx.sym.var("x"), axis=1)
    lib = tvmfast.build(*tvmfast.from_mxnet(net, {}, {"x": x.shape}), opt_level=level)
    np.testing.assert_allclose(lib(x), [5e-38, 5e37, 5], 2e-7)
