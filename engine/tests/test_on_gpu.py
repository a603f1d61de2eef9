"""Networks and operators on this machine's GPU, compared with PyTorch on the CPU; skipped where there is none."""

import gc
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm
from test_cuda_nms import assert_same, best_indices, boxes, by_score, module, scores_of_all_kinds, suppressed
from test_gpu import Net
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten
from tvm import relax

import tvmclassic
import tvmfast
from tvmfast.kernels.detection.spec import NmsSpec
from tvmfast.profiling import networks

if not tvm.cuda().exist:
    pytest.skip("this machine has no GPU", allow_module_level=True)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def build(net, inputs, **options):
    shapes = {f"x{n}": (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for n, x in enumerate(inputs)}
    return tvmfast.build(*tvmfast.from_pytorch(net.eval(), shapes), "cuda", **options)


def check(net, *inputs, tolerance=1e-5, **options):
    """Compare what the GPU computes with what PyTorch computes on the CPU, and return the network on the GPU."""
    lib = build(net, inputs, **options)
    with torch.inference_mode():
        wanted = tree_flatten(net(*inputs))[0]
    got = lib(*inputs)
    assert_close(got if isinstance(got, tuple) else [got], [each.numpy() for each in wanted], tolerance)
    return lib


def assert_close(got, wanted, tolerance):
    """Compare with a tolerance relative to each number and to the largest below 1e6; what is not finite is the same.

    The reference is PyTorch's in float32, as that overflows where float64 does not. `rounding.share` explains 1e-5 by
    1,680 terms, which leaves room for PyTorch's own errors and CUDA's functions, of a few units in the last place, in
    these layers; wider tolerances are of whole networks, of halves and of TF32.
    """
    for a, b in zip(got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        largest = np.abs(b[finite & (np.abs(b) < 1e6)]).max(initial=0.0)
        np.testing.assert_allclose(a[finite], b[finite], rtol=tolerance, atol=tolerance * largest)


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


# ---------------------------------------------------------------- networks

NETWORKS = (
    "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "squeezenet1_1",
    "densenet121", "googlenet", "regnet_x_400mf", "resnext50_32x4d", "convnext_tiny", "swin_t", "vit_b_16",
)  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_torchvisions_networks(name):
    check(networks.load(name), numbers(2, 3, 224, 224), tolerance=1e-4)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_opt_level(level):
    net = networks.seeded(Net, 14, calibrate=False)
    check(net, numbers(1, 12, 14, 14), tolerance=1e-4, opt_level=level)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind):
    layer = kind(24, 32, 2, batch_first=True, bidirectional=True)
    check(layer, numbers(3, 11, 24))


def test_float16_on_tensor_cores():
    layer = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()).eval()
    x = numbers(1, 128, 28, 28)
    mod, params = tvmfast.from_pytorch(layer, {"x": tuple(x.shape)})
    for experimental, instruction in ((False, "mma_sync"), (True, "mma.sync")):
        half = tvmfast.build(relax.transform.ToMixedPrecision()(mod), params, "cuda", experimental=experimental)
        assert instruction in half.source()
        with torch.inference_mode():
            assert_close([half(x)], [layer(x).numpy()], 1e-2)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_products_of_few_rows(rows):
    for width in (96, 1000):
        net, x = nn.Sequential(nn.Linear(768, width), nn.Tanh()).half(), numbers(rows, 768).half()
        lib = check(net, x, tolerance=4e-3, experimental=True)
        assert "skinny" in set(lib.kernels.family)
        check(net, x, tolerance=4e-3)


def test_convolutions_with_tf32():
    """Whole tiles and parts of them, and sums that several blocks share; the same bits each time."""
    for layer, shape in (
        (nn.Conv2d(64, 96, 3, padding=1), (2, 64, 30, 30)), (nn.Conv2d(512, 512, 3), (1, 512, 7, 7)),
        (nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 63, 50)), (nn.Conv2d(256, 130, 1), (3, 256, 9, 9)),
    ):  # fmt: skip
        x = numbers(*shape)
        lib = check(nn.Sequential(layer, nn.ReLU()), x, tolerance=5e-3, allow_tf32=True, experimental=True)
        assert list(lib.kernels.family) == ["tensor_cores"]
        np.testing.assert_array_equal(lib(x), lib(x))


# ---------------------------------------------------------------- operators

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38, -3e38, 0.5, 1.5, 2.5, 88.8])
EACH = {
    "abs": torch.abs, "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "expm1": torch.expm1,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf,
    "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "softplus": F.softplus, "mish": F.mish,
    "hardswish": F.hardswish, "leaky": F.leaky_relu, "elu": F.elu, "round": torch.round, "floor": torch.floor,
    "trunc": torch.trunc, "sign": torch.sign, "isnan": torch.isnan, "isinf": torch.isinf, "neg": torch.neg,
    "reciprocal": torch.reciprocal, "square": torch.square, "cube": lambda x: x**3, "power": lambda x: x**2.5,
    "fmod": lambda x: torch.fmod(x, 1.5), "remainder": lambda x: torch.remainder(x, 1.5),
    "clamp": lambda x: x.clamp(-1, 2), "half": lambda x: x.half().float(), "atan": torch.atan,
    "maximum": lambda x: torch.maximum(x, x.flip(0)), "equal": lambda x: x == x.flip(0),
    "floor_divide": lambda x: torch.floor_divide(x, 0.7),
}  # fmt: skip


@pytest.mark.parametrize("name", EACH)
def test_each_element(name):
    x = torch.cat([SPECIAL, SPECIAL.flip(0) * 0.3, numbers(1000) * 4])
    check(Calls(EACH[name]), x)


ROWS = {
    "softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: torch.log_softmax(x, -1),
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(0), "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0), "prod": lambda x: x.prod(-1), "std": lambda x: x.std(-1),
    "argmax": lambda x: x.argmax(-1), "argmin": lambda x: x.argmin(0), "cumsum": lambda x: x.cumsum(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "sort": lambda x: torch.sort(x, -1)[0],
    "argsort": lambda x: torch.argsort(x, stable=True), "topk": lambda x: torch.topk(x, 5)[0],
    "any": lambda x: (x > 3).any(-1), "logsumexp": lambda x: x.logsumexp(-1), "norm": lambda x: x.norm(dim=-1),
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(3, 1), "tril": torch.tril,
    "concat": lambda x: torch.cat([x, x]),
    "gather": lambda x: x.gather(1, (x.long() * 7).remainder(x.shape[1])), "where": lambda x: torch.where(x > 0, x, -x),
    "matmul": lambda x: x @ x.T, "einsum": lambda x: torch.einsum("ij,kj->ik", x, x), "glu": F.glu,
    "masked": lambda x: x.masked_fill(x > 1, -1e9),
    "one_hot": lambda x: F.one_hot((x.abs() * 3).long().clamp(0, 9), 10),
    "scatter": lambda x: x.scatter(1, (x.long() * 0 + torch.arange(x.shape[1])).flip(1), x),
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 1, 3]), x[:3]),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(7, 10), (33, 130), (5, 3000)], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, shape):
    check(Calls(ROWS[name]), numbers(*shape), tolerance=1e-4 if name in ("prod", "std") else 1e-5)


@pytest.mark.parametrize("name", ["softmax", "amax", "sum", "argmax", "sort", "cumsum", "layer_norm"])
def test_rows_with_nan_and_infinities(name):
    x = numbers(6, 300)
    x[1, 7], x[2, 250], x[3, 0], x[4, 5] = np.nan, np.inf, -np.inf, np.inf
    x[4, 6] = -np.inf
    check(Calls(ROWS[name]), x)


IMAGES = {
    "conv": nn.Conv2d(12, 20, 3, padding=1), "strided": nn.Conv2d(12, 20, 5, 2, 2),
    "dilated": nn.Conv2d(12, 8, 3, dilation=2),
    "grouped": nn.Conv2d(12, 24, 3, groups=4), "depthwise": nn.Conv2d(12, 12, 7, padding=3, groups=12),
    "pointwise": nn.Conv2d(12, 130, 1), "transposed": nn.ConvTranspose2d(12, 10, 4, 2, 1),
    "pool": nn.MaxPool2d(3, 2, 1),
    "average": nn.AvgPool2d(3, 2, 1), "adaptive": nn.AdaptiveAvgPool2d((5, 3)), "batch_norm": nn.BatchNorm2d(12).eval(),
    "group_norm": nn.GroupNorm(4, 12), "instance_norm": nn.InstanceNorm2d(12), "upsample": nn.Upsample(scale_factor=2),
    "bilinear": nn.UpsamplingBilinear2d(scale_factor=2), "shuffle": nn.PixelShuffle(2), "unfold": nn.Unfold(3),
    "reflect": nn.ReflectionPad2d(2), "ceil": nn.MaxPool2d(2, 2, ceil_mode=True),
    "bicubic": Calls(lambda x: F.interpolate(x, (31, 17), mode="bicubic")),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    check(IMAGES[name], numbers(2, 12, 23, 18))


def test_sequences_and_volumes():
    check(nn.Conv1d(12, 16, 5, padding=2), numbers(2, 12, 50))
    check(nn.Conv3d(3, 8, 3, padding=1), numbers(1, 3, 9, 10, 11))
    check(nn.Embedding(50, 16), torch.arange(40).reshape(4, 10))


@pytest.mark.parametrize("length", [1, 17, 200])
def test_attention(length):
    layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
    check(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), numbers(2, length, 64), tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers(dtype):
    x = torch.arange(-128, 127).to(getattr(torch, dtype))
    functions = [lambda x, y: x + y, lambda x, y: x * y] if dtype != "bool" else []
    functions += [lambda x, y: x | y, lambda x, y: x > y, lambda x, y: x.sum()]
    for function in functions:
        check(Calls(function), x, x.flip(0))


def test_integers_divided_by_zero_are_zero():
    x, y = torch.arange(-6, 6), torch.tensor([0, 1, -1, 3] * 3)
    for function in (torch.floor_divide, torch.remainder):
        lib = build(Calls(function), [x, y])
        np.testing.assert_array_equal(lib(x, y), np.where(y == 0, 0, function(x, y.where(y != 0, 1))))


# ---------------------------------------------------------------- detectors


@pytest.mark.parametrize("shape", [(2, 100, 40), (1, 40_000, 400)], ids=str)
def test_the_best_scores_are_those_of_the_loops(shape):
    mod = module(best_indices(*shape))
    loops, gpu = tvmfast.build(mod, {}, opt_level=0), tvmfast.build(mod, {}, "cuda")
    for scores in scores_of_all_kinds(*shape[:2]):
        scores = scores.astype("float32")
        assert_same(gpu(scores), loops(scores))


@pytest.mark.parametrize("rows", [1, 64, 1000])
def test_suppression_leaves_what_the_loops_leave(rows):
    mod = module(suppressed(2, rows, 6, rows, NmsSpec(overlap_thresh=0.3, id_index=0, background_id=2)))
    loops, gpu = tvmfast.build(mod, {}, opt_level=0), tvmfast.build(mod, {}, "cuda")
    for _ in range(5):
        data = boxes(2, rows)
        order = by_score(data, rows)
        assert_same(gpu(data, order), loops(data, order))


# ---------------------------------------------------------------- calls


@pytest.fixture(scope="module")
def small_net():
    return networks.seeded(Net, 14, calibrate=False)


def test_inputs_of_all_kinds_and_outputs_in_the_gpus_memory(small_net):
    x = numbers(1, 12, 14, 14)
    lib = build(small_net, [x])
    wanted = lib(x.numpy())
    strided = torch.empty(1, 14, 14, 12).copy_(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    for each in (x, x.cuda(), strided, strided.cuda(), tvm.runtime.tensor(x.numpy(), tvm.cuda())):
        np.testing.assert_array_equal(lib(each), wanted)
    unaligned = torch.cat([x.new_zeros(1), x.flatten()]).cuda()[1:].view(x.shape)
    assert unaligned.data_ptr() % 16
    for each in (unaligned, torch._neg_view(-x.cuda())):
        np.testing.assert_array_equal(lib(each), wanted)
    (out,) = lib.run([x.cuda()])
    assert str(out.device) == "cuda:0"
    np.testing.assert_array_equal(torch.from_dlpack(out).cpu().numpy(), wanted)
    with pytest.raises(ValueError, match="expected the dtype float32, got float64"):
        lib(x.double().cuda())
    with pytest.raises(ValueError, match="expected the shape"):
        lib(x.cuda()[:, :3])


def test_an_input_that_is_still_being_computed(small_net):
    """PyTorch's stream has a long product before the input; the network has to wait for it."""
    x = numbers(1, 12, 14, 14)
    lib = build(small_net, [x])
    wanted, large = lib(x), numbers(4096, 4096).cuda()
    for _ in range(5):
        busy = large
        for _ in range(20):
            busy = busy @ large * 1e-3
        late = x.cuda() + 0 * busy.nan_to_num(0, 0, 0)[0, 0]
        np.testing.assert_array_equal(lib(late), wanted)


def test_parameters_may_be_passed(small_net):
    x = numbers(1, 12, 14, 14)
    lib = build(small_net, [x])
    (name,) = (n for n, each in lib.params.items() if tuple(each.shape) == (10,))
    other = tvm.runtime.tensor(np.full(10, 3.0, "float32"))
    (changed,) = lib.run([x], {name: other})
    assert np.abs(changed.numpy() - lib(x)).max() > 0
    np.testing.assert_array_equal(lib.run([x])[0].numpy(), lib(x))


def test_cuda_graphs_give_the_same(small_net):
    x, y = numbers(1, 12, 14, 14), numbers(1, 12, 14, 14) * 2
    plain = build(small_net, [x])
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        graphed = build(small_net, [x])
    for each in (x, y, x, y):
        np.testing.assert_array_equal(graphed(each), plain(each))


def test_a_cuda_graph_checks_indices_that_it_has_computed():
    table = nn.Embedding(50, 16)
    net = Calls(lambda x: torch.softmax(torch.relu(table(x * 2) + 1) @ table.weight.T, -1).amax(-1))
    net.table = table
    x = torch.arange(20).reshape(2, 10)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        lib = check(net, x, tolerance=1e-4)
    assert lib.graph["is_cuda_graph"]
    with pytest.raises(IndexError, match="expected an index from -50 to 49, got 50"):
        lib(x + 6)
    check(net, x)


def test_state_stays_on_the_gpu():
    mod, params = tvmfast.from_pytorch(Calls(lambda x, total: (x * 2, total + x)).eval(), {"x": (3,), "total": (3,)})
    lib = tvmfast.build(mod, params, "cuda", state={"total": "output1"})
    other = lib.session()
    for _ in range(3):
        np.testing.assert_array_equal(lib(np.ones(3, "float32")), 2 * np.ones(3))
    assert [each.device for each in lib._held] == [tvm.cuda()]
    np.testing.assert_array_equal(lib._held[0].numpy(), np.full(3, 3.0))
    other(np.ones(3, "float32"))
    np.testing.assert_array_equal(lib._held[0].numpy(), np.full(3, 3.0))
    lib.reset()
    assert not lib._held


def test_a_comparison_waits_for_the_gpu(small_net, monkeypatch):
    x, waits = numbers(1, 12, 14, 14).cuda(), []
    lib = build(small_net, [x])
    monkeypatch.setattr(lib, "device", SimpleNamespace(sync=lambda: waits.append(tvm.cuda().sync())))
    times = tvmfast.compare({"TVM": lib}, x, calls=5)
    assert len(waits) >= len(times["TVM"].seconds) == 5


def test_a_saved_network_gives_the_same_in_this_process_and_in_another(small_net, python, tmp_path):
    x = numbers(1, 12, 14, 14)
    lib = build(small_net, [x])
    np.savez(tmp_path / "x.npz", x=x.numpy(), wanted=lib(x))
    lib.save(tmp_path / "net.zip")
    loaded = tvmfast.load(tmp_path / "net.zip")
    np.testing.assert_array_equal(loaded(x), lib(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(lib))(x), lib(x))
    with pytest.raises(ValueError, match="a network that was loaded has no source"):
        loaded.source()
    code = (
        "import numpy as np, tvmfast; case, lib = np.load('x.npz'), tvmfast.load('net.zip'); "
        "print(np.array_equal(lib(case['x']), case['wanted']), lib.kernels.launches.map(len).min())"
    )
    assert python(code, cwd=tmp_path) == "True 1"


@pytest.mark.alone
def test_nothing_is_left_in_the_gpus_memory_after_an_error(small_net):
    x, large_x = numbers(1, 12, 14, 14), numbers(16384, 8192)
    lib, large = build(small_net, [x]), build(Calls(lambda x: (x * 2).cumsum(0)), [large_x])
    lib(x)

    def free():
        gc.collect()
        tvm.cuda().sync()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    before = free()
    for _ in range(3):
        with pytest.raises(ValueError, match="expected the shape"):
            lib(numbers(1, 12, 15, 14))
        with pytest.raises(ValueError, match="expected the dtype"):
            lib(x.double().cuda())
    assert free() >= before
    taken = torch.empty(before - (900 << 20), dtype=torch.uint8, device="cuda")
    with pytest.raises(
        RuntimeError, match="the GPU is out of memory: the network takes"
    ):  # it needs 0.5 GB three times
        large(large_x)
    del taken
    assert free() >= before
    assert_close([large(large_x)], [(large_x * 2).cumsum(0).numpy()], 1e-4)


# ---------------------------------------------------------------- the old API


def test_the_old_api(tmp_path):
    tvmclassic.enable()
    try:
        old_scripts(tmp_path)
    finally:
        tvmclassic.disable()


def old_scripts(tmp_path):
    from tvm import relay
    from tvm.contrib import graph_executor

    x, w = relay.var("data", shape=(2, 8, 12, 12)), relay.var("w", shape=(16, 8, 3, 3))
    body = relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1)))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.softmax(relay.nn.batch_flatten(body))))
    data, weight = numbers(2, 8, 12, 12), numbers(16, 8, 3, 3) / 8
    wanted = torch.softmax(F.conv2d(data, weight, padding=1).relu().flatten(1), -1).numpy()
    dev = tvm.cuda(0)
    for level in (0, 3):
        with tvm.transform.PassContext(opt_level=level):
            graph, lib, params = relay.build(mod, "cuda", params={"w": weight.numpy()})
        for each in (graph_executor.GraphModule(lib["default"](dev)), graph_executor.create(graph, lib, dev)):
            each.set_input("data", tvm.nd.array(data.numpy(), dev))
            each.set_input(**params)
            each.run()
            assert each.get_output(0).device == dev and each.get_input("data").device == dev
            assert_close([each.get_output(0).numpy()], [wanted], 1e-5)
    out = tvm.nd.array(np.zeros_like(wanted), dev)
    np.testing.assert_array_equal(each.get_output(0, out).numpy(), each.get_output(0).numpy())
    timed = each.module.time_evaluator("run", dev, number=3, repeat=2)()
    assert len(timed.results) == 2 and timed.mean > 0
    assert each.benchmark(dev, repeat=2, number=2, end_to_end=True).mean > 0
    there = tvm.nd.array(data.numpy() * 2, dev)
    each.set_input_zero_copy("data", there)
    with pytest.raises(ValueError, match=r"expected a tensor of tvm.nd on cuda\(0\)"):
        each.set_input_zero_copy("data", tvm.nd.array(data.numpy()))
    for file in ("lib.so", "lib.tar"):
        lib.export_library(tmp_path / file)
        loaded = graph_executor.GraphModule(tvm.runtime.load_module(str(tmp_path / file))["default"](dev))
        loaded.run(data=data.numpy())
        assert_close([loaded.get_output(0).numpy()], [wanted], 1e-5)
    run = relay.build_module.create_executor("graph", mod, tvm.gpu(0), "cuda").evaluate()
    assert_close([run(tvm.nd.array(data.numpy(), dev), w=weight.numpy()).asnumpy()], [wanted], 1e-5)
    debugger = tvm.contrib.debugger.debug_executor.create(graph, lib, dev)
    debugger.set_input("data", data.numpy())
    table = debugger.profile().table
    assert len(table) >= 2 and {*table["Node Name"]} <= {*lib.compiled.kernels.index} and table["Time(us)"].min() > 0
