"""LSTM, GRU and RNN with a dynamic batch, a dynamic number of time steps, or both: one kernel for all."""

from copy import deepcopy

import onnxruntime
import pytest
import torch
from agreement import close, reference
from onnx import numpy_helper, parser
from torch import nn

import tvmfast

BATCHES = (1, 3, 16, 21)
STEPS = (1, 2, 7, 32)
TERMS = (5 + 19) + (38 + 7) + (38 + 16) + (32 + 9)  # of the sums of `Layers`: inputs and states


class Layers(nn.Module):
    """Layers with directions, projections, states that are passed, and units that fill no vector."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 19, bidirectional=True, batch_first=True)
        self.projected = nn.LSTM(38, 33, proj_size=7)
        self.gru = nn.GRU(38, 16, bidirectional=True)
        self.rnn = nn.RNN(32, 9, nonlinearity="relu")

    def forward(self, x, h, c):
        y, lstm = self.lstm(x)
        y = y.transpose(0, 1)
        gru = self.gru(y)
        return (y, *lstm, *self.projected(y, (h, c))[1], *gru, *self.rnn(gru[0]))


@pytest.mark.parametrize(
    ("batch", "steps", "levels"),
    [
        ("batch", 4, (3,)),
        pytest.param(3, "steps", (0,), marks=pytest.mark.full),
        (tvmfast.Dim("batch", 1, 21), tvmfast.Dim("steps", 1, 32), (0, 3)),
    ],
    ids=["batch", "steps", "both"],
)
def test_layers_of_pytorch(rng, batch, steps, levels):
    net = Layers().eval()
    double = deepcopy(net).double()
    mod, params = tvmfast.from_pytorch(net, {"x": (batch, steps, 5), "h": (1, batch, 7), "c": (1, batch, 33)})
    sizes = [*zip(BATCHES, STEPS, strict=True), (21, 1), (1, 32)]
    libs = [tvmfast.build(mod, params, opt_level=level, records=False) for level in levels]
    for n, m in sizes:
        n = n if batch != 3 else 3
        m = m if steps != 4 else 4
        xs = [rng.standard_normal(shape).astype("float32") for shape in ((n, m, 5), (1, n, 7), (1, n, 33))]
        wanted = [*double(*(torch.from_numpy(x).double() for x in xs))]
        for lib in libs:
            close(lib(*xs), wanted, TERMS)


NODES = {
    "LSTM": """zeros = ConstantOfShape(states) first = Expand(one, states)
        y, h, c = LSTM<hidden_size = 6, direction = "bidirectional">(x, W, R, B, lengths, zeros, first)""",
    "GRU": """y, h = GRU<hidden_size = 6, direction = "bidirectional">(x, W, R, B, lengths)
        z = Identity(h) c = Mul(z, one)""",
    "RNN": """y, h = RNN<hidden_size = 6, direction = "bidirectional">(x, W, R, B, lengths) c = Mul(h, one)""",
}


@pytest.mark.parametrize(("kind", "gates", "steps"), [("LSTM", 4, 7), ("GRU", 3, 7), ("RNN", 1, "T")])
def test_layers_of_onnx(rng, kind, gates, steps):
    """With lengths of sequences, and states that the file fills; ONNX Runtime is the reference."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[{steps}, N, 4] x, int32[N] lengths)
        => (float[{steps}, 2, N, 6] y, float[2, N, 6] h, float[2, N, 6] c) {{
        shape = Shape<start = 1, end = 2>(x) two = Constant<value = int64[1] {{2}}>()
        six = Constant<value = int64[1] {{6}}>() one = Constant<value = float {{1.0}}>()
        states = Concat<axis = 0>(two, shape, six) {NODES[kind]} }}"""
    )
    for name, shape in {"W": (gates * 6, 4), "R": (gates * 6, 6), "B": (gates * 12,)}.items():
        weight = rng.standard_normal((2, *shape)).astype("float32") / 2
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mod, params = tvmfast.from_onnx(model)
    for level in (0, 3):
        lib = tvmfast.build(mod, params, opt_level=level, records=False)
        assert str(lib.inputs[0]) == f"x: float32[{steps}, N, 4]"
        for n, count in zip(BATCHES, STEPS if steps == "T" else [7] * len(BATCHES), strict=True):
            x = rng.standard_normal((count, n, 4)).astype("float32")
            feed = {"x": x, "lengths": rng.integers(0, count + 1, n).astype("int32")}
            close(lib(*feed.values()), session.run(None, feed), terms=4 + 6, rounded=True)
    feed["lengths"][-1] = count + 1
    with pytest.raises(IndexError, match=f"{kind}: expected lengths of sequences from 0 to {steps}, got {count + 1}"):
        lib(*feed.values())


def test_threads_share_the_units_of_a_dynamic_batch(rng):
    net = nn.LSTM(8, 200).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": (3, "batch", 8)}), records=False)
    for n in BATCHES:
        x = rng.standard_normal((3, n, 8)).astype("float32")
        close(lib(x), reference(net, x))


def test_a_dynamic_batch_among_shape_variants(rng):
    """One build has a kernel for a static batch and one for all."""
    net = nn.GRU(5, 16).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": (3, "batch", 5)}), records=False, sizes=[{"batch": 4}])
    for n in (4, 5):
        x = rng.standard_normal((3, n, 5)).astype("float32")
        close(lib(x), reference(net, x))
