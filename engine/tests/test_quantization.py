"""`tn.quantize`: what becomes int8, the numbers, the ranges, the report, and what it refuses."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, terms_of
from torch import nn
from tvm import relax

import tvmfast as tn
from tvmfast.compiler.schedule.rules import winograd_int
from tvmfast.core.relax import op_name
from tvmfast.core.table import drawers
from tvmfast.quantization.calibrate import Range, Values, quantized_weight, scale_of
from tvmfast.quantization.layers import Graph
from tvmfast.quantization.switched import decibels
from tvmfast.runtime.tensors import function


class Small(nn.Module):
    """A residual block, a depthwise convolution, pools and a classifier."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 8, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.classify = nn.Linear(8, 5)
        norm = self.first[1]
        for tensor, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.5, 2), (norm.weight.data, 0.5, 2)):
            tensor.uniform_(low, high)

    def forward(self, x):
        x = self.pool(torch.relu(self.first(x)))
        x = torch.relu(self.second(x) + self.shortcut(x))
        x = F.hardtanh(self.depthwise(x), 0, 6)
        return self.classify(x.mean((2, 3)))


def samples(rng, count=4, shape=(2, 3, 8, 8)):
    return [rng.standard_normal(shape).astype("float32") for _ in range(count)]


def model(net, shape=(2, 3, 8, 8)):
    return tn.from_pytorch(net.eval(), {"x": shape})


@pytest.fixture(scope="module")
def made():
    """The network, its module and parameters, its samples, and all that in int8."""
    torch.manual_seed(0)
    net = Small()
    mod, params = model(net)
    calibration = samples(np.random.default_rng(0))
    return net, mod, params, calibration, tn.quantize(mod, params, calibration)


def calls(mod):
    """The operators of a module, in order."""
    return [op_name(each.value) for block in mod["main"].body.blocks for each in block.bindings]


def in_float64(mod, params, *inputs):
    """What a module of quantize, dequantize and the operators of `Small` means, in float64."""
    main, known = mod["main"], {}
    arrays = [*inputs, *(params[p.name].numpy() for p in main.params[len(inputs) :])]
    known = {p: torch.from_numpy(np.asarray(a)) for p, a in zip(main.params, arrays, strict=True)}

    def value(arg):
        return torch.from_numpy(arg.value.numpy()) if hasattr(arg, "value") else known[arg]

    def along(x, ndim, axis):
        return x.double().reshape([-1 if n == axis % ndim else 1 for n in range(ndim)]) if x.ndim else x.double()

    def run(call):
        name, attrs = op_name(call), call.attrs
        x, *others = (value(arg) for arg in call.args if isinstance(arg.ty, relax.TensorType))
        if name == "quantize":
            assert attrs.out_dtype == "uint8"
            return torch.clamp(torch.round(x.double() / others[0].double()) + others[1], 0, 255).to(torch.uint8)
        if name == "dequantize":
            scale, zero = (along(each, x.ndim, attrs.axis) for each in others)
            return (x.double() - zero) * scale
        if name == "nn.conv2d":
            (top, left, *_), stride = map(int, attrs.padding), [*map(int, attrs.strides)]
            return F.conv2d(x, others[0], None, stride, [top, left], 1, int(attrs.groups))
        of = {
            "add": lambda: x.double() + others[0].double(),
            "nn.relu": lambda: torch.relu(x),
            "clip": lambda: x.clamp(0, 6),
            "nn.max_pool2d": lambda: F.max_pool2d(x, 2),
            "mean": lambda: x.mean((2, 3)),
            "matmul": lambda: x @ others[0],
        }
        return of[name]()

    for block in main.body.blocks:
        for each in block.bindings:
            is_call = hasattr(each.value, "op")
            known[each.var] = run(each.value) if is_call else value(each.value)
    return known[main.body.body].numpy()


# ---------------------------------------------------------------- the numbers


def test_it_is_a_model(made):
    _, _, _, calibration, quantized = made
    mod, params = quantized
    assert len(quantized) == 2 and quantized == (mod, params)
    assert copy.copy(quantized).report is quantized.report
    assert [p.name for p in mod["main"].params] == ["x", *params]
    dtypes = {name: str(array.dtype) for name, array in params.items()}
    layers = ("first.0", "second", "shortcut", "depthwise", "classify")
    assert {name for name, dtype in dtypes.items() if dtype == "int8"} == {f"{name}.weight" for name in layers}
    assert {f"{name}.{part}" for name in layers for part in ("weight_scale", "bias")} <= {*params}
    assert tn.build(*quantized)(calibration[0]).shape == (2, 5)


@pytest.mark.parametrize("opt_level", [0, 3])
def test_a_build_computes_what_the_module_says(made, opt_level, rng):
    _, _, _, _, (mod, params) = made
    x = samples(rng, 1)[0]
    got, wanted = tn.build(mod, params, opt_level=opt_level)(x), in_float64(mod, params, x)
    # Where a number is next to the middle of two steps, float32 may take the other one.
    scale = next(each for each in reversed(calls_of(mod, "quantize"))).args[1].value.numpy()
    weight = params["classify.weight"].numpy() * params["classify.weight_scale"].numpy()
    assert np.abs(got - wanted).max() <= 1.01 * scale * np.abs(weight).sum(0).max()


def calls_of(mod, name):
    bindings = [each for block in mod["main"].body.blocks for each in block.bindings]
    return [each.value for each in bindings if op_name(each.value) == name]


def test_the_output_is_near_the_float_networks(made, rng):
    net, _, _, _, quantized = made
    x = samples(rng, 1)[0]
    with torch.no_grad():
        wanted = net.double()(torch.from_numpy(x).double()).numpy()
    net.float()
    error = in_float64(*quantized, x) - wanted
    assert decibels((error**2).sum() / (wanted**2).sum()) > 25


def test_the_report_measures_the_output_that_a_build_gives(made):
    _, mod, params, calibration, quantized = made
    wanted = np.concatenate([tn.build(mod, params)(x) for x in calibration]).astype("float64")
    got = np.concatenate([in_float64(*quantized, x) for x in calibration])
    ratio = decibels(np.square(got - wanted).sum() / np.square(wanted).sum())
    assert abs(quantized.report.output - ratio) < 1, "the two differ by single steps of uint8"


def test_what_is_stored_is_quantized_once(made):
    _, _, _, _, (mod, _) = made
    names = calls(mod)
    # x; the ReLU's result, which the pool reads; the pool's; the shortcut's; the sum's; the clip's; the mean's
    assert names.count("quantize") == 7 and names.count("dequantize") == 7 + 5
    pooled = calls_of(mod, "nn.max_pool2d")[0].args[0]
    before, after = calls_of(mod, "quantize")[1:3]
    bound = relax.analysis.get_var2val(mod["main"])
    assert op_name(bound[pooled]) == "dequantize", "the pool reads uint8"
    assert [each.value.numpy() for each in before.args[1:]] == [each.value.numpy() for each in after.args[1:]]


def test_weights_are_rounded_to_the_nearest(rng):
    weight = rng.standard_normal((4, 3, 3, 3)).astype("float32")
    weight[1], weight[2] = 0, 1e-42
    q, scale = quantized_weight(weight, 0)
    assert (q.dtype, scale.dtype, scale.shape) == ("int8", "float32", (4,))
    wide = scale.astype("float64").reshape(-1, 1, 1, 1)
    assert (np.abs(q * wide - weight) <= wide * 0.5000001).all() and q.min() >= -127 and (q[0] != 0).any()
    assert np.abs(q[[0, 3]]).max((1, 2, 3)).tolist() == [127, 127] and not q[1].any()
    transposed, _ = quantized_weight(weight.reshape(4, 27).T, 1)
    np.testing.assert_array_equal(transposed, q.reshape(4, 27).T)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 6), (2, 3), (-3, -1), (-0.1, 12.5), (0, 1e-30), (-1e30, 1e30)])
def test_zero_is_exact_and_the_range_is_covered(low, high):
    scale, zero = scale_of(low, high)
    assert isinstance(zero, int) and 0 <= zero <= 255
    reach = [(n - zero) * float(scale) for n in (0, 255)]
    assert reach[0] <= min(low, 0) + 0.51 * scale and reach[1] >= max(high, 0) - 0.51 * scale


def test_a_layers_rounded_weights_do_not_shift_its_mean(rng):
    """A convolution of numbers whose mean is far from 0 shows it; see `calibrate.correction`."""
    net = nn.Conv2d(16, 4, 1, bias=False)
    mod, params = model(net, (1, 16, 8, 8))
    calibration = [x + 3 for x in samples(rng, 4, (1, 16, 8, 8))]
    quantized, lib = tn.build(*tn.quantize(mod, params, calibration)), tn.build(mod, params)
    errors = np.concatenate([quantized(x) - lib(x) for x in calibration]).astype("float64")
    assert (np.abs(errors.mean((0, 2, 3))) < 0.1 * errors.std((0, 2, 3))).all()


# ---------------------------------------------------------------- networks of other kinds


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.after = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        both = torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x)) * 1], 1)
        return self.after(both)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 4, -1) @ v)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv1d(4, 8, 3, padding=1), nn.AvgPool1d(2)
        self.up = nn.ConvTranspose1d(8, 4, 2, stride=2)

    def forward(self, x):
        return self.up(self.pool(torch.relu(self.conv(x))))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x))), x


NETWORKS = {
    "branches": (Branches, (2, 3, 6, 6), ["a", "b", "after"], []),
    "attention": (Attention, (2, 5, 16), ["qkv", "out"], ["it multiplies two computed tensors"] * 2),
    "line": (Line, (2, 4, 12), ["conv", "avg_pool2d1"], ["an operator that has no int8 form here"]),
    "shared": (Shared, (3, 6), ["layer", "layer 2"], []),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, rng):
    made, shape, quantized, floats = NETWORKS[name]
    mod, params = model(made(), shape)
    calibration = samples(rng, 3, shape)
    result = tn.quantize(mod, params, calibration)
    rows = result.report.rows
    assert [row.layer for row in rows if not row.reason] == quantized
    assert [row.reason for row in rows if row.reason] == floats
    lib, exact = tn.build(*result), tn.build(mod, params)
    for got, wanted in zip(map(lib, calibration), map(exact, calibration), strict=True):
        first = [np.float64(each[0] if isinstance(each, tuple) else each) for each in (got, wanted)]
        assert decibels(np.square(first[0] - first[1]).sum() / np.square(first[1]).sum()) > 25
        if isinstance(got, tuple):
            np.testing.assert_array_equal(got[1], wanted[1])
    if name == "branches":  # what is concatenated, and the whole, has one scale
        scales = {each.args[1].value.numpy().item() for each in calls_of(result[0], "quantize")[1:]}
        assert len(scales) == 1 and len(calls_of(result[0], "quantize")) == 4


def test_dims_may_be_dynamic(rng):
    mod, params = model(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), ("batch", 4))
    different = [each for n in (1, 3) for each in samples(rng, 1, (n, 4))]
    whole = tn.quantize(mod, params, [np.concatenate(different)])
    for calibration in (different, [different[0], *different[1][:, None]]):
        parts = tn.quantize(mod, params, calibration)
        assert [row.scale for row in parts.report.rows] == pytest.approx([row.scale for row in whole.report.rows])
    lib = tn.build(*whole)
    assert [str(n) for n in lib.inputs[0].shape] == ["batch", "4"]
    assert lib(different[0]).shape == (1, 2) and lib(different[1]).shape == (3, 2)


def test_images_of_dynamic_size_are_computed_in_integers(rng):
    torch.manual_seed(0)
    mod, params = model(Small(), (1, 3, "height", "width"))
    images = [each for size in ((8, 8), (12, 10)) for each in samples(rng, 2, (1, 3, *size))]
    quantized, exact = tn.build(*tn.quantize(mod, params, images)), tn.build(mod, params)
    names = [name for name in quantized.kernels.index if "conv2d" in name]
    assert len(names) == 4 and all("of_integers" in name for name in names)
    for x in images:
        wanted = np.float64(exact(x))
        assert decibels(np.square(quantized(x) - wanted).sum() / np.square(wanted).sum()) > 20


def test_several_inputs_by_name_and_position(rng):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, a, b):
            return self.layer(a) + self.layer(b)

    mod, params = tn.from_pytorch(Two().eval(), {"a": (2, 4), "b": (2, 4)})
    pairs = [tuple(samples(rng, 2, (2, 4))) for _ in range(2)]
    by_name = tn.quantize(mod, params, [{"b": b, "a": a} for a, b in pairs])
    assert str(by_name.report) == str(tn.quantize(mod, params, iter(pairs)).report)
    with pytest.raises(ValueError, match=r"calibration\[0\]: expected the inputs a, b; missing: b; unknown: c"):
        tn.quantize(mod, params, [{"a": pairs[0][0], "c": 1}])
    with pytest.raises(ValueError, match=r"calibration\[0\]: expected 2 inputs \(a, b\), got 1"):
        tn.quantize(mod, params, [pairs[0][0]])


def test_values_in_parts(made):
    """With a limit of memory the network is built several times; the values are the same."""
    _, mod, params, calibration, _ = made
    graph = Graph(mod, params)
    tensors, arrays = [*graph.quantized], [[x] for x in calibration]
    whole, parts = Values(graph, tensors, arrays), Values(graph, tensors, arrays, limit=2500)
    assert (len(whole), len(whole.parts)) == (4, 1) and len(parts.parts) > 2
    found = {}
    for n, run in enumerate(parts):
        found |= {(n % len(calibration), var): array for var, array in run.items()}
    for n, run in enumerate(whole):
        for var, array in run.items():
            # Another build in float32 of the same sums.
            close(found[n, var], array, terms_of(params), rounded=True)


# ---------------------------------------------------------------- ranges


def of_method(method, arrays):
    found = Range(method)
    for array in arrays:
        found.add(np.asarray(array, "float32"))
    return found.chosen()


def test_minmax_is_the_range():
    assert of_method("minmax", [[1, 2], [-3, 0.5]]) == (-3, 2)


def test_a_histogram_grows(rng):
    arrays = [rng.standard_normal(1000).astype("float32") * factor for factor in (0, 1e-3, 1, 30, 5)]
    found = Range("entropy")
    for array in arrays:
        found.add(array)
    wanted = np.histogram(np.concatenate(arrays[1:]), len(found.counts), (-found.limit, found.limit))[0]
    np.testing.assert_array_equal(found.counts, wanted)
    assert found.zeros == 1000 and found.limit in 2.0 ** np.arange(5, 9)


def test_percentile_leaves_out_the_ends(rng):
    x = rng.uniform(-1, 2, 100_000)
    low, high = of_method("percentile", [x, [-50, 80]])
    step = 128 / 4096  # a bin
    assert abs(low + 1) < 2 * step and abs(high - 2) < 2 * step


def test_entropy_cuts_off_rare_large_numbers(rng):
    x = np.abs(rng.standard_normal(200_000))
    low, high = of_method("entropy", [x, [40]])
    assert low == x.min().astype("float32") and 2.5 < high < 20
    low, high = of_method("entropy", [rng.uniform(-1, 1, 200_000)])
    assert low < -0.9 and high > 0.9, "and nothing that is frequent"


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_methods(made, method):
    _, mod, params, calibration, quantized = made
    result = tn.quantize(mod, params, calibration, method=method)
    pairs = [*zip(result.report.rows, quantized.report.rows, strict=True)]
    assert all(row.scale <= other.scale for row, other in pairs)
    assert result.report.output > 15


# ---------------------------------------------------------------- what stays float


def test_skip_by_name_and_by_operator(made):
    _, mod, params, calibration, _ = made
    result = tn.quantize(mod, params, calibration, skip=["second", "matmul"])
    floats = {row.layer: row.reason for row in result.report.rows if row.reason}
    assert floats == {"second": "skip names it", "classify": "skip names it"}
    weights = {name: str(array.dtype) for name, array in result[1].items() if name.endswith("weight")}
    assert weights == {
        **{f"{name}.weight": "int8" for name in ("first.0", "shortcut", "depthwise")},
        "second.weight": "float32",
        **{name: "float32" for name in weights if name.startswith("const")},
    }
    assert tn.quantize(mod, params, calibration, skip="conv2d").report.rows[0].reason


def test_a_budget_leaves_out_what_hurts_most(made):
    _, mod, params, calibration, quantized = made
    budget = quantized.report.output + 6
    result = tn.quantize(mod, params, calibration, budget=budget)
    floats = [row for row in result.report.rows if row.reason]
    assert result.report.output >= budget and 0 < len(floats) < len(result.report.rows)
    assert {row.reason for row in floats} == {f"the budget of {budget:g} dB"}
    rest = [row.output for row in result.report.rows if not row.reason]
    assert max(row.output for row in floats) <= min(rest)
    all_float = tn.quantize(mod, params, calibration, budget=1000)
    assert all_float.report.output == math.inf and "quantize" not in calls(all_float[0])


def test_a_budget_that_is_met_changes_nothing(made):
    _, mod, params, calibration, quantized = made
    assert str(tn.quantize(mod, params, calibration, budget=5).report) == str(quantized.report)


def test_what_gives_no_range_stays_float(rng):
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(torch.relu(-torch.abs(self.a(x)))) + self.c(1 / torch.relu(x))

    mod, params = model(Dead(), (3, 4))
    rows = tn.quantize(mod, params, samples(rng, 2, (3, 4))).report.rows
    assert [row.reason for row in rows] == [
        *("", "its input is 0 on all samples", "its input has NaN or infinities on a sample")
    ]
    net = nn.Linear(4, 4)
    net.weight.data[0, 0] = math.inf
    result = tn.quantize(*model(net, (3, 4)), samples(rng, 1, (3, 4)))
    assert [row.reason for row in result.report.rows] == ["its weights have NaN or infinities"]
    assert result.report.summary.startswith("0 of 1 layers compute in int8")


# ---------------------------------------------------------------- the report


def test_the_report(made):
    report = made[-1].report
    frame = report.frame()
    assert [*frame] == [
        *("layer", "operator", "low", "high", "scale", "zero point"),
        *("weight (dB)", "input (dB)", "output (dB)", "stays float32"),
    ]
    assert frame["layer"].tolist() == ["first.0", "second", "shortcut", "add1", "depthwise", "mean1", "classify"]
    assert frame["operator"].tolist() == ["conv2d"] * 3 + ["add", "conv2d", "mean", "matmul"]
    known = frame.dropna()
    assert len(known) == 5 and ((known["weight (dB)"] > 35) & (known["input (dB)"] > 35)).all()
    assert report.output < known["output (dB)"].min() + 1
    assert report.summary.startswith("7 of 7 layers compute in int8. Signal-to-noise ratio of the output:")
    assert "depthwise" in str(report) and "<table" in report._repr_html_()


def test_the_report_draws_itself(made, monkeypatch):
    report = made[-1].report
    monkeypatch.setitem(drawers, "quantization", lambda *args: args)
    assert report.plot() == (report.rows, report.output)


# ---------------------------------------------------------------- what it refuses

X = np.ones((2, 3, 8, 8), "float32") * np.arange(8, dtype="float32")
REFUSED = {
    "an array": (X, TypeError, "a list of samples, .* got ndarray; put it in a list"),
    "no list": (3, TypeError, "calibration: expected a list of samples; got int"),
    "none": ([], ValueError, "expected at least one sample of the network's inputs; got none"),
    "no array": ([X, "x"], TypeError, r"calibration\[1\]: input 'x': expected a NumPy array, .* got str"),
    "shape": ([X, X[:1]], ValueError, r"calibration\[1\]: input 'x': expected the shape \(2, 3, 8, 8\), got \(1, 3"),
    "dtype": ([np.float64(X)], ValueError, r"calibration\[0\]: input 'x': expected the dtype float32, got float64"),
    "inputs": ([(X, X)], ValueError, r"calibration\[0\]: expected 1 input \(x\), got 2"),
    "NaN": (
        [X, np.where(X > 5, np.float32(np.nan), X)],
        ValueError,
        r"calibration\[1\]: input 'x' has NaN or infinities",
    ),
    "infinity": (
        [np.where(X > 5, np.float32(np.inf), X)],
        ValueError,
        r"calibration\[0\]: input 'x' has NaN or infinities",
    ),
    "constant": ([X * 0 + 2] * 2, ValueError, "input 'x' is 2.0 everywhere in all samples, from which no range"),
}
OPTIONS = {
    "method": ({"method": "mse"}, "method: expected one of minmax, percentile, entropy; got 'mse'"),
    "budget": ({"budget": -1}, "budget: expected a signal-to-noise ratio in dB, a number above 0; got -1"),
    "name": ({"skip": ["secnd"]}, "skip: the network has no layer or operator 'secnd'; did you mean 'second'?"),
    "kind": ({"skip": "zzz"}, "no layer or operator 'zzz'; its operators are add, conv2d, matmul, mean"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_samples_that_it_refuses(made, name):
    _, mod, params, _, _ = made
    calibration, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        tn.quantize(mod, params, calibration)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_it_refuses(made, name):
    _, mod, params, calibration, _ = made
    options, text = OPTIONS[name]
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        tn.quantize(mod, params, calibration, **options)


def test_a_model_that_is_none(made):
    _, _, params, calibration, _ = made
    with pytest.raises(TypeError, match=r"mod: expected a tvm\.IRModule"):
        tn.quantize(3, params, calibration)


@pytest.mark.parametrize(("mcpu", "share"), [("cascadelake", 1 / 4), ("haswell", 1 / 2)], ids=["VNNI", "AVX2"])
def test_the_bytes_of_a_saved_network(rng, mcpu, share, tmp_path, monkeypatch):
    """Those that the instruction reads, int8 or int16, if Winograd's transforms do not take their place."""
    monkeypatch.setattr(winograd_int, "best_tile", lambda *_: None)
    sizes = (32, 64, 3, 1, 1), (64, 64, 3, 1, 1), (64, 128, 3, 2, 1), (128, 96, 1)
    net = nn.Sequential(*(layer for each in sizes for layer in (nn.Conv2d(*each), nn.ReLU())))
    mod, params = model(net, (1, 32, 12, 12))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu}
    quantized = tn.quantize(mod, params, samples(rng, shape=(1, 32, 12, 12)))
    lib = tn.build(*quantized, target=target, records=False)
    assert {family for family in lib.kernels.family if "conv" in family or "winograd" in family} == {"dot_conv"}
    function("SaveParamsToFile")(lib.arrays_of_all, str(tmp_path / "params.bin"))  # as `save` does
    stored, whole = (tmp_path / "params.bin").stat().st_size, sum(each.numpy().nbytes for each in params.values())
    assert share * 0.9 < stored / whole < share * 1.1
