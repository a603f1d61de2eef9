"""No kernel reads or writes outside of its buffers: networks under `guarded.py`, and faults that it has to see."""

from collections.abc import Callable
from typing import NamedTuple

import adversarial
import numpy as np
import pytest
import test_quantization
import torch
import torch.nn.functional as F
import tvm
from guarded import guarded
from onnx import numpy_helper, parser
from testing import Function, by_level, sampled
from torch import nn
from tvm.script import tirx as T

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.core import machine

SIZE = 32  # of the planted kernels' arrays

# ---------------------------------------------------------------- what the net sees


@T.prim_func(private=True, s_tir=True)
def reads_behind(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in range(SIZE):
        y[i] = x[i + 1]


@T.prim_func(private=True, s_tir=True)
def reads_before(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in T.parallel(SIZE):
        y[i] = x[i - 1]


@T.prim_func(private=True, s_tir=True)
def writes_behind(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in range(SIZE):
        y[i + 1] = x[i]


@T.prim_func(private=True, s_tir=True)
def reads_lanes(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in T.vectorized(SIZE):
        y[i] = T.Select(i < SIZE - 1, x[i + 1], T.float32(0))


@T.prim_func(private=True, s_tir=True)
def gathers(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in T.vectorized(SIZE):
        y[i] = x[at[i]]


@T.prim_func(private=True, s_tir=True)
def scatters(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in range(SIZE):
        y[at[i]] = x[i]


@T.prim_func(private=True, s_tir=True)
def writes_inside(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    own = T.alloc_buffer((4,), "float32")
    for i in range(8):
        own[i] = x[i]
    for i in range(SIZE):
        y[i] = own[i % 4]


@T.prim_func(private=True, s_tir=True)
def asks_first(x: T.Buffer((SIZE,), "float32"), at: T.Buffer((SIZE,), "int32"), y: T.Buffer((SIZE,), "float32")):
    for i in T.vectorized(SIZE):
        y[i] = T.if_then_else(i < SIZE - 1, x[i + 1], T.float32(0))
    for i in range(SIZE):
        if at[i] >= 0 and at[i] < SIZE:
            y[at[i]] = x[i]


PLANTED = {
    reads_behind: ["kernel reads x 32 of 32"],
    reads_before: ["kernel reads x -1 of 32"],
    writes_behind: ["kernel writes y 32 of 32"],
    reads_lanes: ["kernel reads x 1 to 32 of 32"],
    gathers: ["kernel reads x 40 of 32"],
    scatters: ["kernel writes y 40 of 32"],
    writes_inside: ["kernel writes own 4 of 4"],
    asks_first: [],
}


def compiled(func):
    """A function of arrays that runs the kernel, guarded."""
    kernel = tvm.ir.GlobalVar("kernel")
    with guarded() as guard:
        lib = codegen.compile_kernels({kernel: func.with_attr("global_symbol", "kernel")}, machine.host_target(), True)
    return lib["kernel"], guard


@pytest.mark.parametrize("func", PLANTED, ids=lambda func: func.__name__ if hasattr(func, "__name__") else None)
def test_a_planted_fault_is_seen_and_what_a_condition_keeps_from_running_is_none(func):
    kernel, guard = compiled(func)
    at = np.arange(SIZE, dtype="int32")
    at[7] = 40
    x, y = np.ones(SIZE, "float32"), tvm.runtime.tensor(np.zeros(SIZE + 1, "float32")[:SIZE])
    kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(at), y)
    assert guard.faults() == PLANTED[func]
    assert guard.checks()


def test_an_array_that_is_smaller_than_a_kernel_takes_is_refused():
    kernel, _ = compiled(asks_first)
    x, at = np.ones(SIZE, "float32"), np.zeros(SIZE, "int32")
    with pytest.raises(ValueError, match=r"x.shape\[0\]"):
        kernel(*map(tvm.runtime.tensor, (x[:-1].copy(), at, x)))


# ---------------------------------------------------------------- networks


class Convolutions(nn.Module):
    """Odd channels, windows that leave rest, a residual sum, a depthwise, a grouped and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.same = nn.Conv2d(3, 13, 3, 2, 1), nn.Conv2d(13, 13, 3, padding=1)
        self.depthwise = nn.Conv2d(13, 13, (5, 3), padding=(4, 1), dilation=(2, 1), groups=13)
        self.wide, self.grouped = nn.Conv2d(13, 36, 1), nn.Conv2d(36, 12, 3, groups=3, padding=2)
        self.up, self.last = nn.ConvTranspose2d(12, 5, 3, 2, 1, 1), nn.Linear(5 * 6, 7)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.first(x)), 3, 2, 1, ceil_mode=True)
        x = torch.relu(self.depthwise(torch.relu(self.same(x) + x)))
        x = F.avg_pool2d(self.grouped(self.wide(x)), 3, 2, 1, ceil_mode=True, count_include_pad=False)
        return self.last(F.adaptive_avg_pool2d(self.up(x), (2, 3)).flatten(1))


class Attention(nn.Module):
    """A causal layer of attention between a norm and two linear layers."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.last = nn.LayerNorm(18), nn.Linear(18, 54), nn.Linear(18, 18)

    def forward(self, x):
        q, k, v = (each.unflatten(2, (3, 6)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.last(y.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True), nn.GRU(14, 9, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])


def resizes(x, grid):
    return (
        *(F.interpolate(x, (5, 14), mode=mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")),
        *(F.interpolate(x, (5, 14), mode=mode, align_corners=True) for mode in ("bilinear", "bicubic")),
        F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
        *(F.grid_sample(x, grid, padding_mode=mode, align_corners=False) for mode in ("zeros", "border", "reflection")),
        *(F.pad(x, (3, 2, 1, 4), mode) for mode in ("constant", "reflect", "replicate", "circular")),
    )


def scans(x):
    y = x[:, 1:]
    sums = y.cumsum(1), y.cumsum(0), y.int().cumsum(1), y.half().cumsum(1), (y > 2).cumsum(0)
    return *sums, y.cumprod(1), x.sort(1), x.topk(1, 1), x.flip(1), x.roll(1, 1), y.flip(1)


def sums(x):
    return x.sum(), x.softmax(1), x.var(0), x.argmax(1), x.amax(0), x @ x.T, x.log_softmax(0), torch.cat([x, x[:1]])


class Case(NamedTuple):
    """A network, its inputs' shapes, and with dynamic dims the sizes of each run."""

    network: Callable[[], nn.Module]
    shapes: dict
    sizes: tuple[dict[str, int], ...] = ({},)


NETWORKS = {
    "convolutions": Case(Convolutions, {"x": (1, 3, 35, 37)}),
    "convolutions, dynamic": Case(
        Convolutions,
        {"x": (2, 3, tvmfast.Dim("h", 9, 32), 19)},
        ({"h": 9}, {"h": 32}),
    ),
    "attention": Case(Attention, {"x": (2, 7, 18)}),
    "attention, dynamic": Case(Attention, {"x": (1, "n", 18)}, ({"n": 1}, {"n": 2}, {"n": 67})),
    "recurrent": Case(Recurrent, {"x": (3, 4, 5)}),
    "recurrent, dynamic": Case(Recurrent, {"x": (3, "n", 5)}, ({"n": 1}, {"n": 6})),
    "resizes": Case(lambda: Function(resizes), {"x": (2, 3, 7, 9), "grid": (2, 5, 3, 2)}),
    "scans, dynamic": Case(lambda: Function(scans), {"x": ("n", "m")}, ({"n": 1, "m": 1}, {"n": 300, "m": 2})),
    "sums, dynamic": Case(lambda: Function(sums), {"x": ("n", "m")}, ({"n": 1, "m": 1}, {"n": 33, "m": 65})),
}


def hold(guard):
    """Kernels have run, and none was out of bounds."""
    assert guard.checks()
    assert not guard.faults()


@pytest.mark.parametrize(("name", "level"), by_level(NETWORKS, ["convolutions, dynamic", "scans, dynamic"]))
def test_a_network_stays_inside(name, level, rng):
    case = NETWORKS[name]
    with guarded() as guard:
        lib = tvmfast.build(*tvmfast.from_pytorch(case.network().eval(), case.shapes), opt_level=level)
    for sizes in case.sizes:
        shapes = [[sizes.get(getattr(n, "name", n), n) for n in shape] for shape in case.shapes.values()]
        lib(*(4 * rng.standard_normal(shape).astype("float32") for shape in shapes))
        hold(guard)


def picks(x, i, j):
    at = i.unsqueeze(1).expand(-1, x.shape[1])
    return (
        *(x[i], x[i, :2], x.gather(0, at % 3), F.embedding(j, x), x.index_select(0, j)),
        *(
            x.scatter(0, at % 3, 2.0),
            x.index_add(0, j, x[:1].expand(2, -1)),
            x.index_put((i,), x[0]),
            x.index_fill(0, j, 1.0),
        ),
    )


@pytest.mark.parametrize("level", [0, 3])
def test_indices_that_are_too_large_or_negative_raise_before_anything_is_read(level):
    shapes = {"x": ("n", 5), "i": ((2,), "int64"), "j": ((2,), "int64")}
    with guarded() as guard:
        lib = tvmfast.build(*tvmfast.from_pytorch(Function(picks).eval(), shapes), opt_level=level)
    for n in (3, 7):
        x, inside = np.ones((n, 5), "float32"), np.array([0, n - 1])
        lib(x, inside - n, inside)
        hold(guard)
        for place, wrong in ((0, n), (0, -n - 1), (1, -1), (1, n), (1, 1 << 40)):
            indices = [inside, inside.copy()]
            indices[place] = np.array([0, wrong])
            with pytest.raises(IndexError, match=f"got {wrong}$"):
                lib(x, *indices)
            hold(guard)


@pytest.mark.parametrize("level", [0, 3])
def test_quantized_networks_stay_inside(level, rng):
    mod, params = tvmfast.from_pytorch(test_quantization.Small().eval(), {"x": (1, 3, 13, 11)})
    samples = [rng.standard_normal((1, 3, 13, 11)).astype("float32") for _ in range(2)]
    with guarded() as guard:
        lib = tvmfast.build(*tvmfast.quantize(mod, params, samples), opt_level=level)
    lib(samples[0])
    hold(guard)


@pytest.mark.parametrize(
    "how", sampled([{"dtype": "bfloat16"}, {"dtype": "float16"}, {"weights": "int4"}], []), ids=str
)
def test_narrow_weights_stay_inside(how, rng):
    model = tvmfast.from_pytorch(nn.Sequential(nn.Linear(70, 33), nn.ReLU(), nn.Linear(33, 5)).eval(), {"x": ("n", 70)})
    if "weights" in how:
        model, how = tvmfast.quantize(*model, **how), {}
    with guarded() as guard:
        lib = tvmfast.build(*model, **how)
    for n in (1, 3, 17):
        lib(rng.standard_normal((n, 70)).astype("float32"))
        hold(guard)


ONNX = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[1, 3, 8, 13] x, uint8[1, 3, 9, 7] q) => (float[1, 3, a, b] y, float[1, 3, c, d] z, uint8[1, 2, e, f] p)
    <float[4] scales = {1.0, 1.0, 1.5, 0.7}, int64[8] pads = {0, 0, -1, 2, 0, 0, 1, -1}, float one = {0.1},
     uint8 zero = {3}, int8 w0 = {0}> {
        m = MaxPool<kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1, auto_pad = "SAME_UPPER">(x)
        l = LRN<size = 2>(m)
        y = Resize<mode = "linear">(l, , scales)
        z = Pad<mode = "constant">(x, pads)
        p = QLinearConv<pads = [1, 1, 1, 1], strides = [2, 1]>(q, one, zero, w, one, w0, one, zero) }"""


@pytest.mark.parametrize("level", [0, 3])
def test_a_model_of_onnx_stays_inside(level, rng):
    model = parser.parse_model(ONNX)
    weights = rng.integers(-128, 128, (2, 3, 3, 3)).astype("int8")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    with guarded() as guard:
        lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)
    lib(rng.random((1, 3, 8, 13), "float32"), rng.integers(0, 256, (1, 3, 9, 7)).astype("uint8"))
    hold(guard)


@pytest.mark.parametrize("level", [0, 3])
def test_a_symbol_of_mxnet_stays_inside(level, rng):
    test_import_mxnet = pytest.importorskip("test_import_mxnet")
    S, x = test_import_mxnet.S, rng.random((1, 3, 11, 9), "float32")
    y = S.Convolution(S.var("x"), kernel=(3, 3), num_filter=6, stride=(2, 2), pad=(1, 1), name="convolution")
    y = S.Pooling(y, kernel=(3, 3), stride=(2, 2), pooling_convention="full", pool_type="max")
    y = S.Group([S.FullyConnected(y, num_hidden=5, name="dense"), S.take(S.flatten(y), S.var("i"), axis=1)])
    params = test_import_mxnet.params_of(y, x=x, i=np.zeros(4, "int64"))
    shapes = {"x": x.shape, "i": ((4,), "int64")}
    with guarded() as guard:
        lib = tvmfast.build(*tvmfast.from_mxnet(y, params, shapes), opt_level=level)
    lib(x, np.array([-9, 1 << 40, 3, 53]))  # MXNet's mode "clip"
    hold(guard)


# ---------------------------------------------------------------- what the net of draws draws

DRAWS = {"torch": range(4, 338, 42), "onnx": range(7, 1200, 150), "mxnet": range(5, 240, 30)}


@pytest.mark.parametrize(("kind", "level"), by_level(DRAWS, DRAWS))
def test_a_sample_of_draws_stays_inside(kind, level, monkeypatch):
    if kind == "mxnet":
        pytest.importorskip("mxnet")
    monkeypatch.setitem(adversarial.LLVM, 3, adversarial.LLVM[0])  # not what LLVM makes of it
    with guarded() as guard:
        lines = [line for _, line in adversarial.outcomes(adversarial.FRONTENDS[kind](), kind, (level,), DRAWS[kind])]
    assert any(line["outcome"] == "equal" for line in lines)
    hold(guard)
