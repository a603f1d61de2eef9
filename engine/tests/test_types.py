"""Bools, whole numbers and half precision: PyTorch's dtypes and values, at the lowest and the highest opt level."""

import json

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import Function, sampled
from tvm import relax
from tvm.relax import op as R

import tvmfast
from tvmclassic import graph_executor
from tvmclassic.relay import ir

# Of two matrices of one dtype, whose rows LLVM takes as vectors.
OF_TWO = (
    torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.logical_and, torch.logical_xor, torch.bitwise_or,
    torch.bitwise_xor, torch.maximum, torch.minimum, torch.add, torch.mul, lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x + 1.5, lambda x, y: x + (y > 0), lambda x, y: x == 1, lambda x, y: x < 0.5,
    lambda x, y: torch.cat([x, y + 0.5]),
)  # fmt: skip
OF_ONE = (
    torch.sum, torch.prod, torch.any, torch.all, lambda x: x.sum(1), lambda x: x.prod(1), lambda x: x.cumsum(1),
    lambda x: x.cumprod(1), lambda x: x.cumsum(0, dtype=torch.int32), lambda x: x.prod(1, dtype=torch.float64),
    lambda x: x.amax(1), lambda x: x.amin(0), lambda x: x.any(1), lambda x: x.all(1), torch.exp, torch.rsqrt,
    torch.isnan, torch.isfinite, torch.sign, lambda x: torch.softmax(x, 1, dtype=torch.float32),
    lambda x: torch.count_nonzero(x, 0), lambda x: x.clamp(0.5, 1.5),
)  # fmt: skip


def _of_all(*pairs):
    results = [f(x, y) for x, y in zip(pairs[::2], pairs[1::2], strict=True) for f in OF_TWO]
    return *results, *(f(x) for x in pairs[::2] for f in OF_ONE), pairs[0] + pairs[-1], pairs[0] * pairs[-1]


@pytest.mark.parametrize(
    ("level", "dtypes"),
    [pytest.param(0, [torch.bool], marks=pytest.mark.full), (3, [torch.bool, torch.uint8])],
    ids=["0", "3"],
)
def test_bools_and_whole_numbers(rng, level, dtypes):
    pairs = [
        torch.from_numpy(rng.integers(0, 2 if dtype is torch.bool else 6, (3, 16))).to(dtype)
        for dtype in dtypes
        for _ in "xy"
    ]
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(_of_all).eval(), pairs), opt_level=level)
    results, wanted = lib(*pairs), _of_all(*pairs)
    assert [x.dtype for x in results] == [x.numpy().dtype for x in wanted]
    close(results, wanted, terms=16, rounded=True)


def _with_scalars(x):
    return (
        x // 2, x // 2.5, 7 // (x + 10), x % 2, x % 2.5, 2.5 % (x + 10), torch.fmod(x, 2.5), torch.atan2(x, x + 1),
        *(torch.div(x, y, rounding_mode=mode) for y in (2, 2.5) for mode in ("floor", "trunc")),
        x * 2.5, x - 2.5, 2 - x, x / 2, torch.rsub(x, 2.5), torch.add(x, 2, alpha=3), x >= 2.5, x.clamp(-1.5, 2.5),
        x**2, 2.5**x, torch.where(x > 2, x, 2.5), x.masked_fill(x > 2, 7), torch.maximum(x, torch.tensor(1)),
        x.any(), x.all(),
    )  # fmt: skip


def test_scalars_take_the_dtype_that_pytorch_gives_them(rng, quick):
    dtypes = (torch.uint8, torch.int64, torch.float16)
    if not quick:
        dtypes += (torch.int8, torch.float32, torch.float64)
    inputs = [torch.from_numpy(rng.integers(0 if dtype == torch.uint8 else -9, 9, 40)).to(dtype) for dtype in dtypes]
    net = Function(lambda *xs: tuple(part for x in xs for part in _with_scalars(x))).eval()
    outputs = tvmfast.build(*tvmfast.from_pytorch(net, inputs), opt_level=0)(*inputs)
    wanted = net(*inputs)
    assert [x.dtype for x in outputs] == [x.numpy().dtype for x in wanted]
    for ours, theirs in zip(outputs, wanted, strict=True):
        close(ours, theirs, terms=4, scale=np.abs(theirs.numpy()), rounded=True)


def test_orders_of_short_whole_numbers(rng):
    def orders(*xs):
        return tuple(part for x in xs for part in (*x.sort(1), *x.sort(1, True), *x.topk(3, 1), x.argsort(0)))

    bounds = {dtype: np.iinfo(dtype) for dtype in ("int8", "uint8", "int16")}
    xs = [rng.permutation(np.linspace(n.min, n.max, 32).astype(dtype)).reshape(4, 8) for dtype, n in bounds.items()]
    xs = [*map(torch.from_numpy, xs)]
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(orders).eval(), xs))
    for number, (got, want) in enumerate(zip(lib(*xs), orders(*xs), strict=True)):
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(got, want, err_msg=str(number))


WHOLE = ("int8", "uint8", "int16", "int32", "int64")


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_places_of_extremes_in_rows_of_the_least_and_the_greatest(level):
    """The first place counts, also where the dtype has nothing less, or greater."""
    bounds = {getattr(torch, name): (np.iinfo(name).min, np.iinfo(name).max) for name in WHOLE}
    xs = [torch.tensor([[n, n, n], [m, m, m], [n, m, m]], dtype=dtype) for dtype, (n, m) in bounds.items()]
    xs.append(torch.tensor([[False, False], [True, True], [False, True]]))

    def places(*xs):
        for x in xs[:-1]:
            found = x.argmax(1, keepdim=True), x.argmin(1), x.argmax(0), x.argmax(), x.argmin(), x.amin(1).argmax()
            yield from (*found, *x.max(1), *x.min(0), x.gather(1, found[0]))
        yield (x := xs[-1].byte()).argmax(1), x.argmin(1), x.view(-1)[:2].argmax()

    def net(*xs):
        return tuple(part for each in places(*xs) for part in (each if isinstance(each, tuple) else [each]))

    lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), xs), opt_level=level)
    for number, (got, wanted) in enumerate(zip(lib(*xs), net(*xs), strict=True)):
        np.testing.assert_array_equal(got, wanted.numpy(), str(number))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes_in_onnx(op):
    nodes = [f"{op}<axis = {axis}, select_last_index = {last}>(x)" for axis in (0, 1) for last in (0, 1)]
    body = " ".join(f"y{at} = {node}" for at, node in enumerate(nodes))
    outputs = ", ".join(f"int64[a{at}, b{at}] y{at}" for at in range(len(nodes)))
    for dtype in ("int8", "uint8", "int32", "int64"):
        info = np.iinfo(dtype)
        x = np.array([[info.min] * 3, [info.max] * 3, [info.max, info.min, info.min]], dtype)
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 13]> g ({dtype}[3, 3] x) => ({outputs}) {{ {body} }}'
        )
        better = np.max if op == "ArgMax" else np.min
        lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=0)
        for node, got, (axis, last) in zip(nodes, lib(x), ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True):
            best = x == better(x, axis, keepdims=True)
            first, size = np.argmax(np.flip(best, axis) if last else best, axis), x.shape[axis]
            wanted = np.expand_dims(size - 1 - first if last else first, axis)
            np.testing.assert_array_equal(got, wanted, node)


# Also those that int32, and that int64, does not hold; the last ones lie between.
FLOATS = (300.0, -200.0, 256.0, 382.5, -1.5, -0.5, 255.9, -129.0, 32768.0, 65537.0, 1e20, -1e20, np.nan, np.inf,
          -np.inf, 3e9, -3e9, 5e9, 2.0**40 + 2.0**20, 2.0**63)  # fmt: skip


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_floats_out_of_range_of_whole_numbers(level):
    """As PyTorch has them on x86, whatever the number of elements: 20 are vectors and a rest."""
    dtypes = [getattr(torch, name) for name in (*WHOLE, "uint16")]
    inputs = [torch.tensor(FLOATS, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    inputs += [inputs[0][:1].clone(), inputs[0].clamp(-6e4, 6e4).half()]
    net = Function(lambda *xs: tuple((x * 1).to(dtype) for x in xs for dtype in dtypes)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, inputs), opt_level=level)
    for number, (got, wanted) in enumerate(zip(lib(*inputs), net(*inputs), strict=True)):
        np.testing.assert_array_equal(got, wanted.numpy(), str(number))


def test_floats_out_of_range_in_onnx_and_among_constants():
    """PyTorch and ONNX Runtime have two results for uint32, of vectors and of scalars; here it is the latter's."""
    kinds = {"uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "uint32": 12, "uint64": 13}
    body = " ".join(f"y{n} = Cast<to = {n}>(x) z{n} = Cast<to = {n}>(c)" for n in kinds.values())
    outputs = ", ".join(f"{name}[{len(FLOATS)}] {each}{n}" for name, n in kinds.items() for each in "yz")
    x = np.array(FLOATS, "float32")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 19]> g (float[{len(x)}] x) => ({outputs}) '
        f"<float[{len(x)}] c = {{{', '.join(['0'] * len(x))}}}> {{ {body} }}"
    )
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(x, "c"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results, theirs = tvmfast.build(*tvmfast.from_onnx(model))(x), session.run(None, {"x": x})
    for name, got, folded, wanted in zip(kinds, results[::2], results[1::2], theirs[::2], strict=True):
        if name == "uint32":
            wanted = np.array([int(n) % 2**32 if abs(n) < 2**63 else 0 for n in FLOATS], "uint32")
        np.testing.assert_array_equal(got, wanted, name)
        np.testing.assert_array_equal(folded, wanted, name)


OF_RELAX = ("bool", "int32")


def test_sums_of_bools_that_stay_bools(rng):
    """Of a module that no frontend made: one bit would overflow; and the mean of whole numbers is one."""
    builder, x, n = relax.BlockBuilder(), *(relax.Var(dtype, relax.TensorType((3, 16), dtype)) for dtype in OF_RELAX)
    with builder.function("main", [x, n]):
        with builder.dataflow():
            reductions = [R.sum(x, 1), R.prod(x, 1), R.cumsum(x, 1), R.cumprod(x, 1, "int32"), R.add(x, x), R.max(x, 1)]
            out = builder.emit_output(relax.Tuple([*reductions, R.mean(n, 1)]))
        builder.emit_func_output(out)
    x, n = rng.integers(0, 2, (3, 16)).astype(bool), rng.integers(-9, 9, (3, 16), "int32")
    running = np.logical_or.accumulate(x, 1), np.cumprod(x, 1, "int32")
    wanted = [x.any(1), x.all(1), *running, x, x.any(1), np.trunc(n.mean(1)).astype("int32")]
    for ours, theirs in zip(tvmfast.build(builder.get(), {})(x, n), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_sums_of_whole_numbers_in_onnx(rng):
    nodes = ("ReduceSum(x, axis)", "ReduceProd(x, axis)", "ReduceMean(x, axis)", "CumSum(x, axis)", "ReduceL1(x, axis)")
    body = " ".join(f"y{at} = {node}" for at, node in enumerate(nodes))
    outputs = ", ".join(f"int32[a{at}, b{at}] y{at}" for at in range(len(nodes)))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (int32[3, 16] x) => ({outputs}) '
        f"<int64[1] axis = {{1}}> {{ {body} }}"
    )
    x = rng.choice(np.array([-3, -2, -1, 1, 2, 3], "int32"), (3, 16))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for node, ours, theirs in zip(
        nodes, tvmfast.build(*tvmfast.from_onnx(model))(x), session.run(None, {"x": x}), strict=True
    ):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), node
        np.testing.assert_array_equal(ours, theirs, node)


OF_HALVES = {
    "matrix product": lambda x: x @ x.transpose(1, 2),
    "linear": lambda x: F.linear(x, torch.ones(3, 5000, dtype=x.dtype)),
    "convolution": lambda x: F.conv1d(x, torch.ones(2, 4, 1, dtype=x.dtype)).sum(2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "mean": lambda x: x.mean(2),
    "times a number no half holds": lambda x: x * 0.01 * 1e5,
    "through a number no half holds": lambda x: x * 0.001 / torch.tensor(1e-6),
    "atan2": lambda x: torch.atan2(x, x + 1),
    "gelu": lambda x: F.gelu(x * -3),
    "silu": lambda x: F.silu(x * -3),
    "group norm": lambda x: F.group_norm(x.cumsum(1), 2),
    "layer norm": lambda x: F.layer_norm(x.cumsum(1), x.shape[1:]),
}


@pytest.mark.parametrize(
    ("dtype", "level"),
    [pytest.param(torch.float16, 0, marks=pytest.mark.full), (torch.float16, 3), (torch.bfloat16, 3)],
)
def test_sums_of_halves(dtype, level):
    """Of 5,000 ones the sum in halves is 2,048, in bfloat16 256."""
    x = torch.ones(1, 4, 5000, dtype=dtype)
    net = Function(lambda x: tuple(function(x) for function in OF_HALVES.values())).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": x}), opt_level=level)
    close(lib(x), reference(net, x))


def test_masks_are_not_lost():
    net, masked = torch.nn.Linear(2, 2).eval(), np.ma.masked_equal(np.ones((1, 2), "float32"), 1)
    model, params = tvmfast.from_pytorch(net, {"x": (1, 2)})
    symbol = {"nodes": [{"op": "null", "name": "w", "inputs": []}], "arg_nodes": [0], "heads": [[0, 0, 0]]}
    for given in (
        lambda: tvmfast.build(model, params | {"bias": masked[0]}),
        lambda: tvmfast.from_mxnet(json.dumps(symbol), {"w": masked}),
        lambda: graph_executor.params_of({"w": masked}),
        lambda: ir.const(masked),
    ):
        with pytest.raises(TypeError, match="expected an array without a mask.*fill it first"):
            given()


def test_networks_whose_weights_are_no_dense_arrays():
    net = torch.nn.Linear(2, 2).eval()
    net.bias = torch.nn.Parameter(net.bias.detach().to_sparse())
    with pytest.raises(TypeError, match=r"model: 'bias': expected a dense tensor, got one of layout torch\.sparse_coo"):
        tvmfast.from_pytorch(net, {"x": (1, 2)})
    with pytest.raises(TypeError, match="model: 'weight': expected numbers, got a tensor on the device 'meta'"):
        tvmfast.from_pytorch(torch.nn.Linear(2, 2, device="meta").eval(), {"x": (1, 2)})
