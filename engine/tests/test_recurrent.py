"""LSTM, GRU and RNN of PyTorch, ONNX and MXNet: one kernel for all time steps, compared with the framework."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm_ffi
from agreement import close, reference
from emulated_gpu import run_emulated
from onnx import numpy_helper, parser
from testing import QUICK, Function
from torch import nn
from tvm import ir, sym, tirx

import tvmfast
from tvmfast.compiler.graph.pack_recurrent import tile_of
from tvmfast.core.simd import NEON, Simd
from tvmfast.kernels.recurrent import loops
from tvmfast.kernels.recurrent.cell import OF_CUDNN, Cell
from tvmfast.kernels.recurrent.loops import Dims, Tile

LEVELS = (0, 3)


def agree(net, *inputs, levels=LEVELS, dtype="float32"):
    """Compare a network with PyTorch; return the library of the last level."""
    wanted = reference(net, *inputs)
    mod, params = tvmfast.from_pytorch(net, {f"x{n}": (tuple(x.shape), dtype) for n, x in enumerate(inputs)})
    for level in levels:
        lib = tvmfast.build(mod, params, opt_level=level)
        got = lib(*(x.numpy() for x in inputs))
        close(got, wanted)
        assert {str(each.dtype) for each in got} == {dtype}
    return lib


class Layers(nn.Module):
    """One of each kind: layers, directions, projections, states, biases, orders of the axes, no batch."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 19, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
        self.projected = nn.LSTM(38, 33, num_layers=2, proj_size=7)
        self.gru = nn.GRU(5, 16, bidirectional=True)
        self.without_bias = nn.GRU(5, 40, bias=False, batch_first=True)
        self.rnn = nn.RNN(5, 9, bidirectional=True)
        self.relu = nn.RNN(9, 17, nonlinearity="relu", bias=False)
        self.single = nn.LSTM(19, 4)

    def forward(self, x, h, c):
        by_batch, lstm = self.lstm(x)
        return (
            *(by_batch, lstm, self.projected(by_batch, (h, c)), self.gru(x), self.without_bias(x)),
            *(self.rnn(x), self.relu(self.rnn(x)[0][..., :9]), self.single(by_batch[0, :, :19])),
        )


def test_all_layers_of_pytorch(rng):
    shapes = (3, 6, 5), (2, 6, 7), (2, 6, 33)
    inputs = [torch.from_numpy(rng.standard_normal(shape).astype("float32")) for shape in shapes]
    lib = agree(Layers().eval(), *inputs, levels=(3,))
    names = {name.rstrip("0123456789") for name in lib.graph["kernels"]}
    assert {"lstm", "gru", "rnn"} <= names
    assert all(lib.graph["costs"][name]["flops"] for name in lib.graph["kernels"] if name.startswith("lstm"))


def test_special_values_and_the_largest_values():
    """NaN and infinities of one row and time step stay in it and in later ones, as in PyTorch."""
    x = torch.zeros(4, 6, 3)
    for row, value in enumerate((np.nan, np.inf, -np.inf, 3e38, 1e-42)):
        x[1, row, 1] = value
    layers = nn.LSTM(3, 16), nn.GRU(3, 16), nn.RNN(3, 16), nn.RNN(3, 16, nonlinearity="relu")
    net = Function(lambda x: [layer(x) for layer in layers])
    net.layers = nn.ModuleList(layers)
    for level in LEVELS:
        got = tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": x.shape}), opt_level=level)(x)
        for rows in ([0, 1, 2, 4, 5], [3]):  # the largest number has a tolerance of its own
            close([each[:, rows] for each in got], reference(net, x[:, rows]))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(rng, dtype):
    kind = getattr(torch, dtype)
    layers = nn.LSTM(3, 5), nn.GRU(3, 5), nn.RNN(3, 5)
    net = Function(lambda x: [layer(x) for layer in layers])
    net.layers = nn.ModuleList(layers)
    x = torch.from_numpy(rng.standard_normal((4, 2, 3))).to(kind)
    agree(net.to(kind).eval(), x, dtype=dtype, levels=(3,))


@pytest.mark.parametrize("batch", [1, 5])
def test_threads_share_the_units(rng, batch):
    """Of a cell that is large enough, in tiles that the batch does not fill; more time steps are no more kernels."""
    net, kernels = nn.LSTM(8, 200).eval(), []
    for steps in (2, 7):
        x = torch.from_numpy(rng.standard_normal((steps, batch, 8)).astype("float32"))
        kernels.append(len(agree(net, x, levels=(3,)).graph["kernels"]))
    assert kernels[0] == kernels[1]


def test_threads_where_all_units_are_one_chunk(rng):
    """Of the cell, or of its projection, whose time step ends at a barrier too."""
    for net, batch in ((nn.LSTM(8, 16), 64), (nn.GRU(8, 16), 90), (nn.LSTM(8, 200, proj_size=7), 12)):
        x = torch.from_numpy(rng.standard_normal((9, batch, 8)).astype("float32"))
        agree(net.eval(), x, levels=(3,))


@pytest.mark.parametrize("batch", [1, 5])
def test_a_single_step_is_one_kernel(rng, batch):
    """Of each of several layers, which read the same."""
    layers = nn.LSTM(9, 40), nn.LSTM(9, 40, proj_size=7), nn.GRU(9, 150), nn.RNN(9, 40, bias=False)
    net = Function(lambda x: [layer(x) for layer in layers])
    net.layers = nn.ModuleList(layers)
    x = torch.from_numpy(rng.standard_normal((1, batch, 9)).astype("float32"))
    graph = agree(net.eval(), x, levels=(3,)).graph
    assert sum(1 for node in graph["nodes"] if graph["costs"][node["kernel"]]["flops"]) == len(layers)


INT64 = (  # dims with which some tensor has more elements than an int32 reaches
    Dims(steps=(1 << 19) + 1, batch=64, input=64, units=16, outputs=16),  # what the input adds to the gates
    Dims(steps=1, batch=1 << 23, input=1, units=128, outputs=128),  # the state before and after a time step
    Dims(steps=2, batch=1, input=1 << 25, units=16, outputs=16),  # unpacked: the weights
)


@pytest.mark.parametrize("tile", [None, Tile(16, 2, 1, True)], ids=["unpacked", "packed"])
def test_indices_of_large_tensors_are_int64(tile):
    for kind, cell in OF_CUDNN.items():
        for dims in INT64 if kind == "lstm" else INT64[:2]:
            cell = replace(cell, reverse=not cell.reverse)
            names = cell.inputs()
            if tile and dims.steps > 1:
                names = ["from_input", *(name for name in names if name not in ("x", "weight", "bias"))]
            found = []
            body = loops.kernel(cell, names, dims, "float32", tile).body
            tvm_ffi.structural_walk(body, ((ir.TensorLoad, tirx.BufferStore), found.append))
            indices = [index for each in found for index in each.indices if not isinstance(index, tirx.IntImm)]
            assert indices and {str(index.ty.dtype) for index in indices} == {"int64"}


def test_rows_that_complete_a_tile_have_the_length_of_the_last_sequence():
    for cell in OF_CUDNN.values():
        cell = replace(cell, reverse=True)
        names = cell.inputs(lengths=True)
        body = loops.kernel(cell, names, Dims(1, 3, 4, 16, 16), "float32", Tile(16, 2, 1)).body
        found, loads = [], []
        tvm_ffi.structural_walk(body, [(tirx.For, found.append), (ir.TensorLoad, loads.append)])
        analyzer = sym.Analyzer()
        for loop in found:
            analyzer.bind(loop.loop_var, ir.Range(0, loop.extent))
        rows = [load.indices[0] for load in loads if load.source.name == "lengths"]
        assert {analyzer.const_int_bound(row).max_value for row in rows} == {2}


def test_kernels_with_int64_indices_agree(rng, monkeypatch):
    monkeypatch.setattr(loops, "INT32_MAX", 10)
    layers = nn.LSTM(3, 19, num_layers=2, bidirectional=True), nn.GRU(3, 21, bidirectional=True), nn.RNN(3, 5)
    net = Function(lambda x: [layer(x) for layer in layers])
    net.layers = nn.ModuleList(layers)
    for steps, levels in ((1, LEVELS[1:] if QUICK else LEVELS), (4, LEVELS)):
        agree(net.eval(), torch.from_numpy(rng.standard_normal((steps, 6, 3)).astype("float32")), levels=levels)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_many_steps_are_imported_at_once(kind):
    """Unrolled, PyTorch would export these for minutes."""
    net = nn.Sequential(getattr(nn, kind)(2, 3)).eval()
    traced = torch.jit.trace(net, torch.zeros(2, 1, 2))
    for model in (net, traced):
        mod, _ = tvmfast.from_pytorch(model, {"x": (100_000, 1, 2)})
        assert [int(size) for size in mod["main"].ret_ty.fields[0].shape] == [100_000, 1, 3]


def test_tiles_fit_into_the_registers():
    for simd in (Simd(4, 16), NEON, Simd(8, 16), Simd(16, 32)):
        for gates in ("ifgo", "rzn", "n"):
            for batch, units in ((1, 1), (1, 512), (7, 100), (64, 256)):
                cell = Cell("rnn", gates, (("tanh", 0.0, 0.0),), reset_after=gates == "rzn")
                for steps in (1, 3):
                    tile = tile_of(cell, Dims(steps, batch, 4, units, units), simd)
                    single = steps == 1 and batch <= 8 and cell.reset_after
                    assert simd.fits(tile.rows, tile.blocks * (len(gates) + single))


# ---------------------------------------------------------------- ONNX

STEPS, BATCH = 5, 3
WIDTH, UNITS = 4, 6
TERMS = STEPS * (WIDTH + UNITS)  # the sums of all time steps, each of which counts in the last
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def onnx_model(rng, nodes: list[tuple[str, str]], steps: int = STEPS) -> tuple[onnx.ModelProto, dict]:
    """Make a model of nodes, each an operator with attributes and the inputs after R; and its inputs.

    Inputs are named by kind: B and P, the biases and peepholes; h and c, the states; lengths.
    """
    feed = {
        "x": rng.standard_normal((steps, BATCH, WIDTH)),
        "xb": rng.standard_normal((BATCH, steps, WIDTH)),
        **{f"{name}{d}": rng.standard_normal((d, BATCH, UNITS)) for name in "hc" for d in (1, 2)},
        "hb": rng.standard_normal((BATCH, 1, UNITS)),
    }
    feed = {name: value.astype("float32") for name, value in feed.items()}
    feed["lengths"] = np.minimum(np.array([5, 2, 3], "int32"), steps)
    body, outputs = [], []
    weights = {}
    for n, (node, others) in enumerate(nodes):
        op, directions = node.split("<")[0], 2 if "bidirectional" in node else 1
        gates, x = GATES[op] * UNITS, "xb" if "layout" in node else "x"
        own = {"W": (gates, WIDTH), "R": (gates, UNITS), "B": (2 * gates,), "P": (3 * UNITS,)}
        for name, shape in own.items():
            weights[f"{name}{n}"] = rng.standard_normal((directions, *shape)).astype("float32")
        inputs = [f"{each}{n}" if each in ("B", "P") else each for each in others.replace(" ", "").split(",")]
        results = [f"{name}{n}" for name in ("y", "h_", "c_")[: 3 if op == "LSTM" else 2]]
        outputs += [
            f"float[{', '.join(f'{name}_{i}' for i in range(4 - (k > 0)))}] {name}" for k, name in enumerate(results)
        ]
        node = node.replace("<", f"<hidden_size = {UNITS}, ").replace(", >", ">")
        body.append(f"{', '.join(results)} = {node}({x}, W{n}, R{n}, {', '.join(inputs)})")
    kinds = {"float32": "float", "int32": "int32"}
    given = ", ".join(f"{kinds[str(v.dtype)]}{list(v.shape)} {name}" for name, v in feed.items())
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g ({given}) => ({", ".join(outputs)}) {{ {" ".join(body)} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model, feed


ONNX_NODES = [
    ("LSTM<>", "B"),
    ('LSTM<direction = "reverse", clip = 0.5>', "B, lengths, h1, c1, P"),
    ('LSTM<direction = "bidirectional", input_forget = 1>', "B, lengths, h2, c2, P"),
    ('LSTM<activations = ["HardSigmoid", "Softsign", "Affine"], activation_alpha = [0.3, 0.7]>', ","),
    ("GRU<>", "B, , h1"),
    ('GRU<direction = "bidirectional", clip = 0.4>', "B, lengths, h2"),
    ('GRU<direction = "bidirectional", linear_before_reset = 1>', "B, lengths, h2"),
    ('GRU<activations = ["Sigmoid", "Elu"], linear_before_reset = 1>', "B"),
    ("RNN<>", "B, lengths"),
    ('RNN<direction = "bidirectional", activations = ["Relu", "LeakyRelu"]>', ", lengths, h2"),
    ('RNN<activations = ["ScaledTanh"], activation_alpha = [0.5], activation_beta = [0.8]>', "B"),
    ('RNN<activations = ["ThresholdedRelu"], activation_alpha = [0.3]>', "B"),
    ('RNN<activations = ["Softplus"]>', "B"),
]


@pytest.mark.parametrize(
    ("steps", "level"),
    [(STEPS, 0), (1, 3), (STEPS, 3), pytest.param(1, 0, marks=pytest.mark.full)],
)
def test_all_attributes_of_onnx(rng, steps, level):
    model, feed = onnx_model(rng, ONNX_NODES, steps)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feed)
    lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)
    close(lib(*feed.values()), wanted, TERMS, rounded=True)


def test_activations_times_0_keep_nan():
    """Each function of infinities, NaN and -2 where alpha is 0, in the rows of a batch."""
    for function in ("LeakyRelu", "Affine", "Elu"):
        model = parser.parse_model(
            f"""<ir_version: 9, opset_import: ["": 17]> g (float[1, 4, 1] x) => (float[1, 1, 4, 1] y)
            <float[1, 1, 1] w = {{1}}, float[1, 1, 1] r = {{0}}> {{
            y = RNN<hidden_size = 1, activations = ["{function}"], activation_alpha = [0.0]>(x, w, r) }}"""
        )
        x = np.array([-np.inf, np.inf, np.nan, -2], "float32").reshape(1, 4, 1)
        wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
        np.testing.assert_array_equal(tvmfast.build(*tvmfast.from_onnx(model))(x), wanted, err_msg=function)


def test_batches_first_in_onnx(rng):
    """ONNX Runtime refuses this layout, and ONNX's reference has no other direction: held against the other layout."""
    nodes = [("LSTM<layout = 1>", "B, , hb"), ("GRU<layout = 1>", "B, , hb"), ("RNN<layout = 1>", "B")]
    model, feed = onnx_model(rng, nodes)
    got = tvmfast.build(*tvmfast.from_onnx(model), opt_level=0)(*feed.values())
    for node in model.graph.node:
        del node.attribute[[each.name for each in node.attribute].index("layout")]
        node.input[0] = "x"
        node.input[:] = [name.replace("hb", "h1") for name in node.input]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    feed["x"], feed["h1"] = feed["xb"].transpose(1, 0, 2).copy(), feed["hb"].transpose(1, 0, 2).copy()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    orders = {4: (2, 0, 1, 3), 3: (1, 0, 2)}
    wanted = [each.transpose(orders[each.ndim]) for each in session.run(None, feed)]
    close(got, wanted, TERMS, rounded=True)


def test_lengths_beyond_the_steps_raise_in_the_run(rng):
    model, feed = onnx_model(rng, [("LSTM<>", "B, lengths")])
    lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=0)
    feed["lengths"][1] = 6
    with pytest.raises(IndexError, match="LSTM: expected lengths of sequences from 0 to 5, got 6"):
        lib(*feed.values())


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_computed_and_outputs_that_are_left_out(rng, level):
    shapes = {"x": (3, 2, 4), "W": (1, 20, 4), "R": (1, 20, 5)}
    feed = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    given = ", ".join(f"float{list(shape)} {name}" for name, shape in shapes.items())
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g ({given}) => (float[1, 2, 5] h, float[a, b, c, d] y) '
        "{ , h = LSTM<hidden_size = 5>(x, W, R) y = LSTM<hidden_size = 5>(x, W, R) }"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)(*feed.values())
    close(results, session.run(None, feed), TERMS, rounded=True)


# ---------------------------------------------------------------- MXNet


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_layers_of_mxnet(rng, kind):
    """The operator with its vector of parameters, and a layer of Gluon, which makes its states itself."""
    mx = pytest.importorskip("mxnet")
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kind]
    layers = {"lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU, "rnn_tanh": mx.gluon.rnn.RNN}
    inputs = [mx.sym.var(name) for name in ("x", "w", "h", "c")[: 4 if kind == "lstm" else 3]]
    options = {"state_size": 5, "num_layers": 2, "bidirectional": True}
    symbol = mx.sym.RNN(*inputs, mode=kind, state_outputs=True, **options)
    size = 2 * gates * 5 * (4 + 5 + 10 + 5 + 2 * 2)
    shapes = {"x": (6, 3, 4), "w": (size,), "h": (4, 3, 5), "c": (4, 3, 5)}
    feed = {each.name: mx.nd.array(rng.standard_normal(shapes[each.name]) / 2) for each in inputs}
    wanted = [each.asnumpy() for each in symbol.bind(mx.cpu(), feed).forward()]
    mod, params = tvmfast.from_mxnet(
        symbol, {"w": feed["w"]}, {name: value.shape for name, value in feed.items() if name != "w"}
    )
    given = [value.asnumpy() for name, value in feed.items() if name != "w"]
    terms = 6 * 2 * (10 + 5)  # steps, layers, inputs and units
    close(tvmfast.build(mod, params)(*given), wanted, terms, rounded=True)
    layer = layers[kind](5, **({"activation": "tanh"} if gates == 1 else {}))
    layer.initialize(mx.init.Normal(0.5))
    layer.hybridize()
    want = layer(feed["x"]).asnumpy()
    got = tvmfast.build(*tvmfast.from_mxnet(layer, inputs={"data": (6, 3, 4)}))(given[0])
    close(got, want, terms, rounded=True)


@pytest.mark.parametrize("batch", [1, 3, "n"])
def test_unrolled_cells_of_gluon_begin_with_zeros_of_the_batch(rng, batch):
    """Gluon makes them of shape (0, units), and MXNet infers the 0."""
    mx = pytest.importorskip("mxnet")
    cells, steps = mx.gluon.rnn, 4

    class Cells(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.gru = cells.GRUCell(5)
                self.both = cells.BidirectionalCell(cells.LSTMCell(4), cells.ZoneoutCell(cells.RNNCell(3), 0.2, 0.3))

        def hybrid_forward(self, F, x):
            outputs = [cell.unroll(steps, x, layout="NTC", merge_outputs=True) for cell in (self.gru, self.both)]
            return [each for y, states in outputs for each in (y, *states)]

    net = Cells()
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    x = rng.standard_normal((1 if batch == 1 else 3, steps, 6)).astype("float32")
    wanted = [each.asnumpy() for each in net(mx.nd.array(x))]
    results = tvmfast.build(*tvmfast.from_mxnet(net, inputs={"data": (batch, steps, 6)}))(x)
    close(results, wanted, steps * (6 + 5), rounded=True)


def test_sizes_that_mxnet_infers_are_refused_where_they_may_show():
    S = pytest.importorskip("mxnet").sym
    x, zeros = S.var("x"), S.zeros((0, 4))
    for symbol, words in (
        (S.concat(x, zeros, dim=1), "Concat .* of .*, whose size MXNet infers: name the size"),
        (S.sum(S.ones((0, 4)), axis=0) + S.sum(x, axis=0), "sum .* whose size MXNet infers"),
        (S.broadcast_add(S.tanh(zeros + S.ones((2, 0))), x), "tanh .* whose size MXNet infers"),
        (S.Group([x + zeros, zeros]), "an output, .*, whose size MXNet infers"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            tvmfast.from_mxnet(symbol, {}, {"x": (2, 4)})


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ('activations = ["Sigmoid", "Tanh", "Sine"]', "activations: 'Sine' is not a function that ONNX lists"),
        ('activations = ["Sigmoid"]', "activations are Sigmoid; expected 3 for each direction"),
        ('direction = "upwards"', "direction is 'upwards'; expected"),
    ],
)
def test_attributes_that_cannot_be_are_named(rng, attributes, words):
    model, _ = onnx_model(rng, [(f"LSTM<{attributes}>", "B")])
    with pytest.raises(NotImplementedError, match=words):
        tvmfast.from_onnx(model)


def test_packed_sequences_are_refused_by_name():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0]

    class WithLengths(Packed):
        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0]

    with pytest.raises(NotImplementedError, match=r"pack_padded_sequence.*lengths"):
        tvmfast.from_pytorch(Packed().eval(), {"x": (4, 2, 3)})
    for batch in (2, "n"):
        with pytest.raises(NotImplementedError, match=r"pack_padded_sequence.*lengths"):
            tvmfast.from_pytorch(WithLengths().eval(), {"x": (4, batch, 3), "lengths": ((batch,), "int64")})


def test_on_a_gpu_each_step_has_kernels(rng):
    net = Function(lambda x: [layer(x) for layer in layers])
    layers = nn.LSTM(3, 5, bidirectional=True), nn.LSTM(3, 4, proj_size=2), nn.GRU(3, 4), nn.RNN(3, 4)
    net.layers = nn.ModuleList(layers)
    x = torch.from_numpy(rng.standard_normal((2, 2, 3)).astype("float32"))
    results = run_emulated(*tvmfast.from_pytorch(net.eval(), {"x": tuple(x.shape)}), x.numpy())
    close(results, reference(net, x))


GRU_BEFORE = [("GRU<>", "B"), ("GRU<>", "B, lengths")]


def test_on_a_gpu_what_is_not_unrolled_stays_in_one_thread(rng):
    model, feed = onnx_model(rng, GRU_BEFORE)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = run_emulated(*tvmfast.from_onnx(model), *feed.values())
    close(results, session.run(None, feed), TERMS, rounded=True)


def test_the_branch_that_sizes_decide_is_taken(rng):
    """As in Silero's detector of speech, whose branches have names in common."""
    shapes = {"x": (3, 2, 4), "W": (1, 20, 4), "R": (1, 20, 5)}
    feed = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    given = ", ".join(f"float{list(shape)} {name}" for name, shape in shapes.items())
    inner = "a () => (float[s, n, w] v) { v = Add(x, b) }, else_branch = b () => (float[s, n, w] v) { v = Neg(x) }"
    branch = f"""u = If(yes) <then_branch = {inner}> v, h = LSTM<hidden_size = 5>(u, W, R)"""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g ({given}) => (float[s, d, n, o] y, float[d, n, o] z)
        <bool yes = {{1}}, float b = {{0.5}}> {{
            size = Size(x) wanted = Constant<value = int64 {{24}}>() known = Equal(size, wanted)
            y, z = If(known) <
                then_branch = t () => (float[s, d, n, o] v, float[d, n, o] h) {{ {branch} }},
                else_branch = e () => (float[s, d, n, o] v, float[d, n, o] h)
                    {{ v, h = LSTM<hidden_size = 5>(x, W, R) }}
            >
        }}"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = tvmfast.build(*tvmfast.from_onnx(model), opt_level=0)(*feed.values())
    close(results, session.run(None, feed), TERMS, rounded=True)


def test_weights_of_another_shape_are_refused(rng):
    model, _ = onnx_model(rng, [("LSTM<>", "B, , h1, c1")])
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros((1, 24, 5), "float32"), "R0"))
    with pytest.raises(NotImplementedError, match="LSTM: expected h of shape"):
        tvmfast.from_onnx(model)


IF = """<ir_version: 9, opset_import: ["": 17]> g (float[3] x) => (float[3] z) <bool k = {1}> {
    yv = Exp(x)
    y = If(k) <
        then_branch = t () => (float[3] v) {
            b = Constant<value = float {5.0}>()
            w = If(k) <
                then_branch = tt () => (float[3] q) <float b = {0.5}> { q = Add(x, b) },
                else_branch = ee () => (float[3] q) { q = Identity(x) }>
            v = Mul(w, b)
        },
        else_branch = e () => (float[3] v) { v = Identity(x) }>
    z = Add(y, yv) }"""


def test_names_of_branches_meet_no_others(rng):
    model = parser.parse_model(IF)
    for node in model.graph.node:  # the parser takes no such name
        node.input[:] = ["y/v" if name == "yv" else name for name in node.input]
        node.output[:] = ["y/v" if name == "yv" else name for name in node.output]
    x = rng.standard_normal(3).astype("float32")
    output = tvmfast.build(*tvmfast.from_onnx(model), opt_level=0)(x)
    x = x.astype("float64")
    close(output, np.exp(x) + (x + 0.5) * 5, terms=4)


def test_weights_of_other_directions_or_sizes_are_refused(rng):
    def model(attributes, directions):
        text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[3, 2, 4] x) => (float[a, b, c, d] y)
            {{ y = LSTM<{attributes}>(x, W, R) }}"""
        model = parser.parse_model(text)
        shapes = {"W": (directions, 20, 4), "R": (directions, 20, 5)}
        model.graph.initializer.extend(
            numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
            for name, shape in shapes.items()
        )
        return model

    with pytest.raises(NotImplementedError, match="'forward' takes 1 directions, W has the shape"):
        tvmfast.from_onnx(model('hidden_size = 5, direction = "forward"', 2))
    with pytest.raises(NotImplementedError, match="hidden_size is 7, and W has the shape"):
        tvmfast.from_onnx(model("hidden_size = 7", 1))
