"""ONNX's If, Loop and Scan, and inputs that are fixed to a value, held against ONNX Runtime."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from agreement import close
from onnx import numpy_helper, parser

import tvmfast
from tvmfast.frontends.onnx import control_flow


def parse(text: str, weights: dict | None = None, opset: int = 17) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    tensors = (numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items())
    model.graph.initializer.extend(tensors)
    return model


def session_of(model: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def agree(model: onnx.ModelProto, feed: dict, values: dict | None = None, level: int = 0, terms: int = 1):
    """Compare a model, whose results are sums of so many terms, with ONNX Runtime; return the network."""
    wanted = session_of(model).run(None, feed)
    mod, params = tvmfast.from_onnx(model, values=values)
    lib = tvmfast.build(mod, params, opt_level=level)
    results = lib(*(value for name, value in feed.items() if name not in (values or {})))
    results = results if isinstance(results, tuple) else (results,)
    assert [each.dtype for each in results] == [each.dtype for each in wanted]
    close(results, wanted, terms, rounded=True)
    return lib


# ---------------------------------------------------------------- Scan

SCAN = """g (float[2, 5, 3] x, float[5, 2, 3] y, float[2, 4] h0, int64 n0) => (float[2, 4] h, int64 n, float[a, b, c] s,
    float[d, e, f] t) <float[4, 4] R, float[3, 4] W> {
    h, n, s, t = Scan<
        num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
        scan_output_axes = [-1, 0], scan_output_directions = [1, 0],
        body = b (float[2, 4] before, int64 count, float[2, 3] e, float[2, 3] f) =>
            (float[2, 4] after, int64 more, float[2, 4] result, float[2, 3] both) <int64 one = {1}> {
            k = MatMul(before, R) both = Sub(e, f) i = MatMul(both, W) total = Add(k, i)
            after = Tanh(total) more = Add(count, one) result = Neg(after)
        }
    >(h0, n0, x, y) }"""


def test_a_scan_with_axes_and_directions(rng):
    weights = {"R": rng.standard_normal((4, 4)).astype("float32"), "W": rng.standard_normal((3, 4)).astype("float32")}
    feed = {"x": rng.standard_normal((2, 5, 3)), "y": rng.standard_normal((5, 2, 3)), "h0": rng.standard_normal((2, 4))}
    feed = {name: value.astype("float32") for name, value in feed.items()} | {"n0": np.array(7)}
    for opset in (11, 17):
        agree(parse(SCAN, weights, opset), feed, level=0 if opset == 11 else 3, terms=4 + 3)


RNN = """g (float[{steps}, 2, 8] x, float[2, 8] h0) => (float[2, 8] h, float[a, b, c] s) {{
    h, s = Scan<num_scan_inputs = 1, body = b (float[2, 8] before, float[2, 8] e) => (float[2, 8] t, float[2, 8] o) {{
        k = MatMul(before, R) i = MatMul(e, W) total = Add(k, i) t = Tanh(total) o = Identity(t) }}>(h0, x) }}"""


def test_more_iterations_are_few_more_kernels(rng):
    weights = {name: (rng.standard_normal((8, 8)) / 3).astype("float32") for name in "RW"}
    kernels = []
    for steps in (5, 15):
        feed = {"x": rng.standard_normal((steps, 2, 8)).astype("float32"), "h0": np.ones((2, 8), "float32")}
        lib = agree(parse(RNN.format(steps=steps), weights), feed, level=3, terms=8 + 8)
        kernels.append(len(lib.graph["kernels"]))
    assert kernels[0] == kernels[1]


def test_a_scan_over_a_dynamic_axis_is_refused_before_it_is_unrolled_thousands_of_times(monkeypatch):
    steps, unroll = [], control_flow._unroll_scan
    monkeypatch.setattr(
        control_flow,
        "_unroll_scan",
        lambda node, copies, shapes: steps.append(shapes["x"]) or unroll(node, copies, shapes),
    )
    weights = {name: np.ones((8, 8), "float32") for name in "RW"}
    with pytest.raises(NotImplementedError, match="cannot keep 'steps' dynamic: the graph depends on it"):
        tvmfast.from_onnx(parse(RNN.format(steps="steps"), weights))
    assert max(each[0] for each in steps) < 300


# ---------------------------------------------------------------- Loop

LOOP = """g (float[3] x, int64 most) => (float[3] y, float[a, b] s, int64[c] k) <bool yes = {1}, int64 zero = {0}> {
    y, count, s, k = Loop(most, yes, x, zero) <
        body = b (int64 step, bool before, float[3] v, int64 n) =>
            (bool on, float[3] w, int64 m, float[3] part, int64 place) <int64 two = {2}, int64 end = {9}> {
            m = Add(n, two) on = Less(m, end) f = Cast<to = 1>(step) w = Mul(v, f) z = Exp(v) part = Add(z, f)
            place = Add(step, n)
        }
    > }"""


@pytest.mark.parametrize("most", [3, 20])
def test_a_loop_ends_at_its_trip_count_or_its_condition(rng, most):
    """Twenty iterations are not unrolled: the condition ends it after five."""
    feed = {"x": rng.standard_normal(3).astype("float32"), "most": np.array(most)}
    agree(parse(LOOP), feed, {"most": most})


ROW = """g (float[3] x) => (float[3] y, float[a, b] s) <int64[1] most = {3}, bool[1] yes = {1}, int64[1] end = {2}> {
    y, s = Loop(most, yes, x) <
        body = b (int64[1] step, bool[1] before, float[3] v) => (bool[1] on, float[3] w, float[1] part)
            { less = Less(step, end) on = And(less, before) w = Add(v, v) part = Gather(v, step) }> }"""


def test_a_loop_whose_iteration_number_has_an_axis(rng):
    agree(parse(ROW), {"x": rng.standard_normal(3).astype("float32")})


NESTED = """g (float[3] x) => (float[3] y) <int64 two = {2}, int64 three = {3}, bool yes = {1}> {
    y = Loop(three, yes, x) <body = b (int64 i, bool c, float[3] v) => (bool on, float[3] w) {
        on = Identity(c)
        even = Equal(i, two)
        u = If(even) <
            then_branch = t () => (float[3] q) { q = Sin(v) },
            else_branch = e () => (float[3] r) { r = Loop(two, yes, v) <
                body = d (int64 j, bool d_, float[3] p) => (bool go, float[3] o) {
                    go = Identity(d_) n = Add(i, j) f = Cast<to = 1>(n) o = Add(p, f) }
            > }
        >
        w = Add(u, x)
    }> }"""


def test_loops_and_branches_inside_one_another(rng):
    agree(parse(NESTED), {"x": rng.standard_normal(3).astype("float32")})


ENDLESS = """g (float[3] x) => (float[3] y) { y = Loop(, , x) <
    body = b (int64 i, bool c, float[3] v) => (bool on, float[3] w) { on = Identity(c) w = Add(v, v) }> }"""
BY_DATA = """g (float[3] x, int64 most) => (float[3] y) <bool yes = {1}, float end = {5}> { y = Loop(most, yes, x) <
    body = b (int64 i, bool c, float[3] v) => (bool on, float[3] w)
        { w = Add(v, v) t = ReduceSum<keepdims = 0>(w) on = Less(t, end) }> }"""
NEVER = """g (float[3] x) => (float[3] y, float[a, b] s) <int64 most = {0}> { y, s = Loop(most, , x) <
    body = b (int64 i, bool c, float[3] v) => (bool on, float[3] w, float[3] o)
        { on = Identity(c) w = Add(v, v) o = Neg(v) }> }"""


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        (ENDLESS, None, "Loop 'y': it unrolls to more than 100,000 nodes"),
        (
            BY_DATA,
            None,
            "Loop 'y': its input 'most' has to be known .* passed as 'most'; give that in `values`",
        ),
        (BY_DATA, {"most": 3}, "Loop 'y': its trip count depends on the data"),
        (NEVER, None, "Loop 'y,s': its trip count is 0, so 's' has no shape"),
    ],
)
def test_loops_without_a_static_trip_count_are_refused(text, values, words):
    with pytest.raises(NotImplementedError, match=words):
        tvmfast.from_onnx(parse(text), values=values)


# ---------------------------------------------------------------- inputs that are fixed


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"most": 2.5}, ValueError, r"values: the model takes most as int64\[\]; got float64 of shape \(\)"),
        ({"most": np.int32(2)}, ValueError, r"values: the model takes most as int64\[\]; got int32"),
        ({"x": [1, 2]}, ValueError, r"values: the model takes x as float32\[3\]; got float32 of shape \(2,\)"),
        ({"z": 2}, ValueError, "values: the model has no input 'z'; its inputs are x, most"),
        ([2], TypeError, "values: expected a dictionary from input name to array, got list"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, error, words):
    with pytest.raises(error, match=words):
        tvmfast.from_onnx(parse(LOOP), values=values)


def test_a_value_is_no_input(rng):
    model = parse("g (float[a, 3] x, float[3] y) => (float[a, 3] z) { z = Add(x, y) }")
    lib = tvmfast.build(*tvmfast.from_onnx(model, {"x": ("rows", 3)}, values={"y": [1, 2.5, 0.1]}), opt_level=0)
    assert [spec.name for spec in lib.inputs] == ["x"]
    x = rng.standard_normal((4, 3)).astype("float32")
    np.testing.assert_array_equal(lib(x), x + np.array([1, 2.5, 0.1], "float32"))


# ---------------------------------------------------------------- a detector of speech, fed piece by piece

# As Silero's: the rate chooses a network, which pads, filters, and keeps the states of an LSTM in one tensor.
DETECTOR = """g (float[1, n] input, float[2, b, 8] state, int64 sr) => (float[o, p] output, float[2, b, 8] stateN)
    <int64 wide = {16000}> {
    yes = Equal(sr, wide)
    output, stateN = If(yes) <then_branch = t () => (float[q, r] y, float[2, b, 8] s) { BODY16 },
        else_branch = e () => (float[q, r] y, float[2, b, 8] s) { BODY8 }> }"""
BODY = """
    shape = Shape(input) axis = Constant<value_ints = [1]>() length = Gather(shape, axis)
    amount = Constant<value_ints = [STEP]>() rest = Mod(length, amount)
    none = Constant<value_ints = [0, 0, 0]>() pads = Concat<axis = 0>(none, rest)
    padded = Pad<mode = "reflect">(input, pads) one = Constant<value_ints = [1]>() wave = Unsqueeze(padded, one)
    filtered = Conv<strides = [STEP]>(wave, FRATE) positive = Relu(filtered)
    steps = Transpose<perm = [2, 0, 1]>(positive)
    h0, c0 = Split<axis = 0>(state)
    all, h, c = LSTM<hidden_size = 8>(steps, WRATE, RRATE, , , h0, c0) s = Concat<axis = 0>(h, c)
    zero = Constant<value_ints = [0]>() last = Squeeze(h, zero) mean = ReduceMean<axes = [1]>(last) y = Sigmoid(mean)
"""


def detector(rng) -> onnx.ModelProto:
    text, weights = DETECTOR, {}
    for rate, step in (("16", 16), ("8", 8)):
        text = text.replace(f"BODY{rate}", BODY.replace("STEP", str(step)).replace("RATE", rate))
        shapes = {"F": (6, 1, 2 * step), "W": (1, 32, 6), "R": (1, 32, 8)}
        weights |= {f"{name}{rate}": rng.standard_normal(shape) / 3 for name, shape in shapes.items()}
    return parse(text, {name: value.astype("float32") for name, value in weights.items()})


def stream(model: onnx.ModelProto | str, rate: int, length: int, width: int, rng, terms: int, pieces: int = 200):
    """Feed a detector with pieces of sound, each from the state that the one before has left.

    Its result is a probability, of a sum of so many `terms`.
    """
    session = session_of(model)
    takes_rate = "sr" in [each.name for each in session.get_inputs()]
    shapes = {"input": (1, length), "state": (2, 1, width)}
    mod, params = tvmfast.from_onnx(model, shapes, values={"sr": rate} if takes_rate else None)
    lib = tvmfast.build(mod, params, state={"state": "output1"})
    state, results = np.zeros(shapes["state"], "float32"), []
    for number in range(pieces):
        x = (rng.standard_normal((1, length)) * abs(np.sin(number / 10))).astype("float32")
        feed = {"input": x, "state": state} | ({"sr": np.array(rate)} if takes_rate else {})
        want, state = session.run(None, feed)
        results.append(float(want.ravel()[0]))
        close(lib(x), want, terms, scale=1, rounded=True)
    assert len({round(result, 3) for result in results}) > 5


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_detector_whose_rate_is_a_value(rng, rate):
    stream(detector(rng), rate, 100, 8, rng, terms=32 + 6 + 8)  # of the convolution, then of the LSTM


TERMS = 6 * 3 * 129  # six layers, the longest sum of which is of a window of 3 of 129 channels
SILERO = importlib.util.find_spec("silero_vad")
FILES = [
    *[("silero_vad.onnx", 16000), ("silero_vad.onnx", 8000), ("silero_vad_op18_ifless.onnx", 8000)],
    *[("silero_vad_16k_op15.onnx", 16000), ("silero_vad_half.onnx", 16000)],
]


@pytest.mark.skipif(SILERO is None, reason="silero_vad is not installed")
@pytest.mark.parametrize(("name", "rate"), FILES)
def test_the_files_of_silero(rng, name, rate):
    file = Path(SILERO.submodule_search_locations[0]) / "data" / name
    stream(str(file), rate, 576 if rate == 16000 else 288, 128, rng, TERMS)


@pytest.mark.skipif(SILERO is None, reason="silero_vad is not installed")
def test_a_file_of_silero_with_a_dynamic_length(rng):
    file = Path(SILERO.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"
    session, lib = session_of(str(file)), tvmfast.build(*tvmfast.from_onnx(file))
    h, c = rng.standard_normal((2, 1, 1, 128)).astype("float32")
    for length in (1, 2, 7, 50):
        x = (rng.standard_normal((length, 576)) / 3).astype("float32")
        close(lib(x, h, c), session.run(None, {"input": x, "h": h, "c": c}), TERMS, rounded=True)
