"""Long sums: their error grows with the logarithm of their length, in every kernel, at every opt level."""

import functools
import math

import numpy as np
import onnx.parser
import pytest
import torch
import torch.nn.functional as F
import tvm
import tvm_ffi
from agreement import close
from emulated_gpu import TARGET, run_emulated
from testing import Function, sampled
from tvm import te, tirx
from tvm.script import tirx as T

import tvmfast
from tvmfast.compiler.legalize import long_sums
from tvmfast.core import machine

LONG = 1 << 18
LEVELS = pytest.mark.parametrize("level", sampled((0, 1, 2, 3), (0, 3)))


def _blocks(length: int, block: int = long_sums._BLOCK) -> int:
    """How many additions an addend takes part in, one block after another."""
    return block * math.ceil(math.log(length, block))


def _of_products(length: int) -> int:
    return _blocks(length, long_sums._BLOCK_OF_PRODUCTS)


def _uniform(*shape, seed=0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _pixels(*shape) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float()


WEIGHT, KERNEL = _uniform(3, LONG), _uniform(4, 512, 7, 7)
HALVES = torch.ones(2, 5000, dtype=torch.float16)
LINE, WINDOW = _uniform(4, 4096, 5), _uniform(3, 1, 90, 91)
POINT, SQUARE = _uniform(20, 8192, 1, 1), _uniform(4, 2048, 3, 3)


def _like(x, weight):
    return weight.to(x.dtype)


# function, inputs, addends of a result that are added one after another
CASES = {
    "pixels of a channel": (lambda x: x.mean((0, 2, 3)), [_pixels(1, 3, 1024, 1024)], _blocks(1 << 20)),
    "norm": (torch.linalg.vector_norm, [_uniform(3_000_000)], _blocks(3_000_000)),
    "first axis": (lambda x: x.sum(0), [_uniform(LONG, 3)], _blocks(LONG)),
    "first axis, vectors": (lambda x: x.sum(0), [_uniform(1 << 15, 64)], _blocks(1 << 15)),
    "first axis, long rows": (lambda x: x.sum(0), [_uniform(600, 2051)], _blocks(600)),
    "middle axis": (lambda x: x.mean(1, keepdim=True), [_uniform(3, 1 << 16, 5)], _blocks(1 << 16)),
    "outer axes": (lambda x: x.sum((0, 2)), [_uniform(300, 4, 301)], _blocks(300 * 301)),
    "outer axes, vectors": (lambda x: x.sum((0, 2)), [_uniform(300, 4, 64)], _blocks(300 * 64)),
    "all axes": (lambda x: x.sum(), [_uniform(7, 61, 53, 11)], _blocks(7 * 61 * 53 * 11)),
    "all axes, kept": (lambda x: x.mean((0, 1, 2), True), [torch.full((15, 16, 16), 0.1)], _blocks(15 * 256)),
    "every second column": (lambda x: x.transpose(0, 1)[::2].sum(1), [_uniform(1 << 16, 6)], _blocks(1 << 16)),
    "one value": (lambda x: x.sum(1), [torch.full((2, LONG + 7), 0.1)], _blocks(LONG)),
    "distance": (lambda x, y: F.l1_loss(x, y), [_uniform(LONG), _uniform(LONG, seed=1)], _blocks(LONG)),
    "softmax": (lambda x: torch.softmax(x, -1), [_uniform(2, 1 << 20)], _blocks(1 << 20)),
    "softmax, first axis": (lambda x: torch.softmax(x, 0), [_uniform(LONG, 3)], _blocks(LONG)),
    "log softmax": (lambda x: torch.log_softmax(x, -1), [_uniform(2, LONG + 1)], _blocks(LONG)),
    "layer norm": (lambda x: F.layer_norm(x, (LONG,)), [_uniform(2, LONG)], _blocks(LONG)),
    "pool of a picture": (lambda x: F.adaptive_avg_pool2d(x, 1), [_pixels(1, 3, 300, 301)], _blocks(300 * 301)),
    "pool of large windows": (lambda x: F.avg_pool2d(x, 75), [_pixels(1, 3, 300, 301)], _blocks(75 * 75)),
    "product": (torch.matmul, [_uniform(5, LONG), _uniform(LONG, 3)], _of_products(LONG)),
    "product of vectors": (torch.matmul, [_uniform(LONG + 9), _uniform(LONG + 9, seed=1)], _blocks(LONG)),
    "products": (torch.matmul, [_uniform(2, 3, 1 << 15), _uniform(2, 1 << 15, 33)], _of_products(1 << 15)),
    "einsum": (
        lambda x, y: torch.einsum("ik,jk->ij", x, y),
        [_uniform(3, 1 << 15), _uniform(4, 1 << 15)],
        _of_products(1 << 15),
    ),
    "linear": (lambda x: F.linear(x, _like(x, WEIGHT)), [_uniform(2, LONG)], _of_products(LONG)),
    "convolution": (lambda x: F.conv2d(x, _like(x, KERNEL)), [_uniform(1, 512, 9, 9)], _of_products(512 * 49)),
    "convolution of a line": (lambda x: F.conv1d(x, _like(x, LINE)), [_uniform(1, 4096, 20)], _of_products(4096 * 5)),
    "pointwise": (lambda x: F.conv2d(x, _like(x, POINT)), [_uniform(1, 8192, 5, 5)], _of_products(8192)),
    "depthwise": (
        lambda x: F.conv2d(x, _like(x, WINDOW), groups=3),
        [_uniform(1, 3, 92, 93)],
        _of_products(90 * 91),
    ),
    "winograd": (
        lambda x: F.conv2d(x, _like(x, SQUARE), padding=1),
        [_uniform(1, 2048, 9, 9)],
        _of_products(2048 * 9) * 4,
    ),
}


def _all_cases(*tensors):
    tensors = iter(tensors)
    return tuple(function(*(next(tensors) for _ in inputs)) for function, inputs, _ in CASES.values())


@pytest.fixture(scope="module")
def long():
    """By opt level what one network of all cases computes, by case: built and run once."""
    inputs = [x for _, tensors, _ in CASES.values() for x in tensors]
    mod, params = tvmfast.from_pytorch(Function(_all_cases).eval(), {f"x{i}": x for i, x in enumerate(inputs)})

    @functools.cache
    def results(level):
        lib = tvmfast.build(mod, params, opt_level=level)
        return dict(zip(CASES, lib(*(x.numpy() for x in inputs)), strict=True))

    return results


@LEVELS
@pytest.mark.parametrize("case", CASES)
def test_long_sums(long, case, level):
    function, inputs, terms = CASES[case]
    with torch.no_grad():
        close(long(level)[case], function(*(x.double() for x in inputs)), terms)


@LEVELS
def test_ones(compile_function, level):
    lib = compile_function(torch.sum, {"x": (20_000_000,)}, opt_level=level)
    assert lib(np.ones(20_000_000, "float32")) == 20_000_000


def test_running_sums(compile_function):
    """Each is the one before plus an element; PyTorch keeps the sum in float64, too."""
    x = _uniform(LONG)
    close(compile_function(lambda x: x.cumsum(0), {"x": (LONG,)})(x.numpy()), x.double().cumsum(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(compile_function, dtype):
    x = torch.full((2, LONG), 0.1, dtype=dtype)
    lib = compile_function(lambda x: x.mean(1), {"x": x})
    close(lib(x), x.double().mean(1), _blocks(LONG))


@LEVELS
@pytest.mark.parametrize("length", [1, 7, 64, 256, 257, 4096, 4097, 5001, 70_001])
def test_a_dynamic_length(dynamic, level, length):
    x, y = _uniform(3, length), _uniform(length, 5)
    with torch.no_grad():
        wanted = [each.numpy() for each in DYNAMIC(x.double(), y.double())]
    close(dynamic(level)(x.numpy(), y.numpy()), wanted, _of_products(70_001))


def DYNAMIC(x, y):
    return x.sum(1), (x * x).mean(), y.sum(0), torch.softmax(x, -1), x @ y, (x.T[:, None] * y[:, :, None]).sum((0, 2))


@pytest.fixture(scope="module")
def dynamic():
    mod, params = tvmfast.from_pytorch(Function(DYNAMIC).eval(), {"x": (3, "n"), "y": ("n", 5)})
    return functools.cache(lambda level: tvmfast.build(mod, params, opt_level=level))


NODES = {
    "ReduceSum(x, axis)": (lambda x: x.sum(1, keepdims=True), _blocks(LONG)),
    "ReduceMean(x, axis)": (lambda x: x.mean(1, keepdims=True), _blocks(LONG)),
    "ReduceL1(x, axis)": (lambda x: np.abs(x).sum(1, keepdims=True), _blocks(LONG)),
    "ReduceL2(x, axis)": (lambda x: np.sqrt((x * x).sum(1, keepdims=True)), _blocks(LONG)),
    "ReduceSumSquare(x, axis)": (lambda x: (x * x).sum(1, keepdims=True), _blocks(LONG)),
    "ReduceLogSum(x, axis)": (lambda x: np.log(x.sum(1, keepdims=True)), _blocks(LONG)),
    "ReduceLogSumExp(x, axis)": (lambda x: np.log(np.exp(x).sum(1, keepdims=True)), _blocks(LONG)),
    "Softmax(x)": (lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), _blocks(LONG)),
    "MatMul(x, y)": (lambda x: x @ x.T, _of_products(LONG)),
    "Gemm<transB = 1>(x, x)": (lambda x: x @ x.T, _of_products(LONG)),
}


@LEVELS
def test_onnx(level):
    body = " ".join(f"r{at} = {node}" for at, node in enumerate(NODES))
    outputs = ", ".join(f"float[a{at}, b{at}] r{at}" for at in range(len(NODES)))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[2, {LONG}] x) => ({outputs}) '
        f"<int64[1] axis = {{1}}> {{ y = Transpose(x) {body} }}"
    )
    x = _uniform(2, LONG).numpy()
    results = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)(x)
    for result, (function, terms) in zip(results, NODES.values(), strict=True):
        close(result, function(x.astype("float64")), terms)


# ---------------------------------------------------------------- GPUs


def test_gpu():
    """The threads of a block have parts of a sum, which are long themselves; a product has one thread."""

    def function(x, y):
        return x.sum(1), torch.softmax(x, 1), y.mean(0), x[:1, : 1 << 15] @ y[: 1 << 15]

    mod, params = tvmfast.from_pytorch(Function(function).eval(), {"x": (2, LONG), "y": (LONG, 3)})
    # Equal addends would round in one direction, and not cancel.
    x, y = _uniform(2, LONG, seed=1), _uniform(LONG, 3)
    close(run_emulated(mod, params, x.numpy(), y.numpy()), function(x.double(), y.double()), _of_products(LONG))
    assert "_block" in tvmfast.build(mod, params, TARGET).source()


def test_gpu_sums_halves_in_float32():
    mod, params = tvmfast.from_pytorch(Function(lambda x: (x.sum(1), torch.softmax(x, 1))).eval(), {"x": HALVES})
    sums, shares = run_emulated(mod, params, HALVES.numpy())
    np.testing.assert_array_equal(sums, [5000, 5000])
    close(shares, np.full((2, 5000), 1 / 5000), 4)


# ---------------------------------------------------------------- kernels


def is_changed(func) -> bool:
    host = machine.host_target()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(host.with_host(host))(mod)
    return not tvm_ffi.structural_equal(long_sums.add_in_blocks()(mod), mod)


def summed(length: int, product: bool = False, rows: int = 5) -> tvm.tirx.PrimFunc:
    x, y = te.placeholder((rows, length), name="x"), te.placeholder((rows, length), name="y")
    k = te.reduce_axis((0, length), "k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k] * y[i, k] if product else x[i, k], axis=k), name="total")
    return te.create_prim_func([x, y, total])


@pytest.mark.parametrize("product", [False, True])
def test_short_sums_stay_as_they_are(product):
    longest = long_sums._LONGEST_OF_PRODUCTS if product else long_sums._LONGEST
    for length in (1, 2, longest, longest + 1):
        assert is_changed(summed(length, product)) == (length > longest), length
    assert not is_changed(summed(long_sums._ENDLESS, product))


def threaded(func) -> int:
    """How many loops of a kernel are shared by threads once its sums are added in blocks."""
    host = machine.host_target()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    func = long_sums.add_in_blocks()(tirx.transform.BindTarget(host.with_host(host))(mod))["main"]
    return sum(loop.kind == tirx.ForKind.PARALLEL for loop in long_sums._all(func.body, tirx.For))


def test_threads_share_a_sum_that_is_alone():
    def whole(*shape):
        x, axes = te.placeholder(shape, name="x"), [te.reduce_axis((0, size)) for size in shape]
        return te.create_prim_func([x, te.compute((1,), lambda _: te.sum(x[tuple(axes)], axis=axes))])

    long, n = long_sums._SHARED, te.var("n", "int64")
    assert [threaded(whole(*each)) for each in ((long,), (long // 64, 64), (3, long), (n,))] == [1] * 4
    assert [threaded(whole(*each)) for each in ((long - 1,), (3, long - 1), (long // 64 - 1, 64))] == [0] * 3
    assert [threaded(summed(long, rows=rows)) for rows in (5, 64)] == [1, 0]  # each of a few rows

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((1 << 18,), "float32"), kept: T.Buffer((1,), "float32"), total: T.Buffer((1,), "float32")):
        for k in range(1 << 18):
            with T.sblock("kept"):
                v = T.axis.spatial(1 << 18, k)
                kept[0] = x[v] * x[v]
            with T.sblock("total"):
                v = T.axis.reduce(1 << 18, k)
                total[0] = total[0] + kept[0]

    assert not threaded(kernel)


PARTS = {  # functions, and shapes beside the bounds: of vectors, of parts, and of what threads share
    "all": (lambda x: (x.sum(), x.mean(), torch.linalg.vector_norm(x), x.abs().sum() / 3), [
        (1 << 17,), ((1 << 17) - 1,), ((1 << 17) + 65,), (3, 1 << 17), (64, 2049), (65, 2050), (63, 4099),
    ]),
    "by rows": (lambda x: (x.sum(0), x.var(), torch.softmax(x.reshape(-1), 0).max()), [(1 << 17, 1), (70_001, 2)]),
}  # fmt: skip


@LEVELS
@pytest.mark.parametrize("case", PARTS)
def test_parts_of_a_sum(compile_function, case, level):
    """All shapes in one network."""
    function, shapes = PARTS[case]
    xs = [_uniform(*shape) for shape in shapes]

    def parts(*xs):
        return tuple(part for x in xs for part in function(x))

    results = iter(compile_function(parts, {f"x{n}": x for n, x in enumerate(xs)}, opt_level=level)(*xs))
    for x in xs:
        wanted = function(x.double())
        close([next(results) for _ in wanted], wanted, _blocks(x.numel()))


def test_a_variance_is_two_sums_that_threads_share(compile_function):
    lib = compile_function(lambda x: x.var(), {"x": (3, long_sums._SHARED)}, opt_level=3)
    made = [each["shape"] for node in lib.graph["nodes"] for each in node["makes"]]
    assert {math.prod(shape) for shape in made} == {1}  # no element is stored on the way
    assert sum(map(threaded, lib.functions.values())) == 2


@LEVELS
@pytest.mark.parametrize("shape", [("n",), (3, "n"), ("n", 70)])
def test_parts_of_a_dynamic_sum(compile_function, shape, level):
    def function(x):
        return x.sum(), torch.linalg.vector_norm(x)

    lib = compile_function(function, {"x": shape}, opt_level=level)
    for n in (1, 63, 64, 65, 4099, (1 << 17) - 1, 1 << 17, (1 << 17) + 63):
        x = _uniform(*(n if size == "n" else size for size in shape))
        close(lib(x.numpy()), function(x.double()), _blocks(x.numel()))


def test_what_is_not_a_sum_stays_as_it_is():
    """An extreme; a sum that is read while it grows; one whose element depends on data; loops without blocks."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((9999,), "float32"),
        at: T.Buffer((9999,), "int32"),
        largest: T.Buffer((1,), "float32"),
        running: T.Buffer((1,), "float32"),
        each: T.Buffer((9999,), "float32"),
        counts: T.Buffer((9,), "float32"),
        by_hand: T.Buffer((1,), "float32"),
    ):
        for k in range(9999):
            with T.sblock("largest"):
                v = T.axis.reduce(9999, k)
                largest[0] = T.max(largest[0], x[v])
        for k in range(9999):
            with T.sblock("running"):
                v = T.axis.reduce(9999, k)
                running[0] = running[0] + x[v]
            with T.sblock("each"):
                v = T.axis.spatial(9999, k)
                each[v] = running[0]
        for k in range(9999):
            with T.sblock("counts"):
                v = T.axis.reduce(9999, k)
                counts[at[v]] = counts[at[v]] + x[v]
        for k in range(9999):
            by_hand[0] = by_hand[0] + x[k]

    assert not is_changed(kernel)


def test_tvms_pipeline_begins_as_ours():
    """Kernels of long sums go through these passes before they are rewritten, and through all afterwards."""
    lower, *_ = tirx.get_tir_pipeline("s_tir")
    seen = []

    @tvm.instrument.pass_instrument
    class Names:
        def run_before_pass(self, _mod, info):
            seen.append(info.name)

    func = summed(4).with_attr("global_symbol", "main")
    host = machine.host_target()
    mod = tirx.transform.BindTarget(host.with_host(host))(tvm.IRModule({"main": func}))
    with tvm.transform.PassContext(instruments=[Names()]):
        lower(mod)
    names = [each().info.name for each in long_sums._OF_BLOCKS]
    assert [name for name in seen if name in names][: len(names)] == names
