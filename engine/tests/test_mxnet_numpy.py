"""from_mxnet: what Gluon blocks in NumPy mode and functions of `mx.np` become, against MXNet."""

import numpy as np
import pytest
from agreement import close, terms_of

import tvmfast
from tvmfast.frontends.mxnet import gluon

if not gluon.installed():
    pytest.skip("the mxnet extra is not installed", allow_module_level=True)

import mxnet as mx
from mxnet.gluon import nn

# Each: a name, a function of F and x (2, 3, 4) and y (2, 3, 4), both above 0.
CASES = {
    "arithmetic": lambda F, x, y: (x + y) * 2 - y / x + (1 - x) ** 2 + 1 / y - (-x) + 2**x + x**y,
    "remainders": lambda F, x, y: F.np.mod(x - 1, y) + (x - 1) % 0.3 + 1 % y,
    "extremes": lambda F, x, y: F.np.maximum(x, y) - F.np.minimum(x, y) + F.np.maximum(x, 0.5) + F.np.clip(y, 0.2, 0.7),
    "hypot": lambda F, x, y: F.np.hypot(x, y) + F.np.square(x) + F.np.sqrt(y) + F.np.cbrt(x) + F.np.reciprocal(y),
    "exponents": lambda F, x, y: F.np.exp(x) + F.np.expm1(x),
    "logarithms": lambda F, x, y: F.np.log(y) + F.np.log1p(y) + F.np.log2(x) + F.np.log10(x),
    "angles": lambda F, x, y: F.np.sin(x) + F.np.arctan(y) + F.np.arcsin(x / 2) + F.np.cosh(x) + F.np.radians(y),
    "rounding": lambda F, x, y: F.np.floor(x * 5) + F.np.ceil(y * 5) + F.np.trunc(x - 0.5) + F.np.fix(y - 0.5),
    "around": lambda F, x, y: F.np.around(x, 1) + F.np.rint(y * 3) + F.np.sign(x - 0.7) + F.np.abs(y - 0.7),
    "activations": lambda F, x, y: F.npx.relu(x - 0.7) + F.npx.sigmoid(y) + F.np.tanh(x),
    "softmax": lambda F, x, y: F.npx.softmax(x, axis=1) + F.npx.softmax(y, axis=-1),
    "comparisons": lambda F, x, y: F.np.where(x > y, x, y) + F.np.where(x < 0.7, 1.0, 2.0),
    "bools": lambda F, x, y: F.np.logical_not(x >= y),
    "chosen": lambda F, x, y: F.np.where(x > 0.7, x, 0.0) + F.np.where(y == y, 3.0, y),
    "transposed": lambda F, x, y: F.np.transpose(x) + F.np.transpose(y, (2, 1, 0)),
    "reshaped": lambda F, x, y: F.np.reshape(x, (4, -1)),
    "codes": lambda F, x, y: F.npx.reshape(x, (-5, -2)),
    "more codes": lambda F, x, y: F.npx.reshape(x, (-2, -2, -6, 2, -1)),
    "flat": lambda F, x, y: F.np.reshape(x, -1),
    "joined": lambda F, x, y: F.np.concatenate([x, y], axis=1),
    "joined flat": lambda F, x, y: F.np.concatenate([x, y], axis=None),
    "stacked": lambda F, x, y: F.np.squeeze(F.np.expand_dims(F.np.stack([x, y], axis=1), 0)),
    "stacked flat": lambda F, x, y: F.np.hstack([x, y]),
    "stacked tall": lambda F, x, y: F.np.vstack([x, y]),
    "split": lambda F, x, y: F.np.split(x, 2, axis=2)[1] + F.np.split(y, 2, axis=2)[0],
    "swapped": lambda F, x, y: F.np.swapaxes(x, 0, 1) + F.np.moveaxis(y, 0, 1),
    "flipped": lambda F, x, y: F.np.flip(x, 1),
    "padded": lambda F, x, y: F.np.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=3),
    "tiled": lambda F, x, y: F.np.tile(x, (1, 2, 1)) + F.np.repeat(y, 2, axis=1),
    "broadcast": lambda F, x, y: F.np.broadcast_to(F.np.mean(x, axis=0), (5, 3, 4)),
    "sums": lambda F, x, y: F.np.sum(x, axis=1) + F.np.mean(y, axis=1) + F.np.prod(x, axis=1),
    "a sum": lambda F, x, y: F.np.sum(x),
    "kept": lambda F, x, y: F.np.max(x, axis=(0, 2), keepdims=True) - F.np.min(y, axis=(0, 2), keepdims=True),
    "spread": lambda F, x, y: F.np.var(x, axis=1) + F.np.std(y, axis=1),
    "largest": lambda F, x, y: F.np.argmax(x, axis=1) + F.np.argmin(y, axis=1),
    "largest of all": lambda F, x, y: F.np.argmax(x),
    "running sums": lambda F, x, y: F.np.cumsum(x, axis=1),
    "matmul": lambda F, x, y: F.np.matmul(x, F.np.swapaxes(y, 1, 2)),
    "determinants": lambda F, x, y: F.np.linalg.det(F.np.matmul(x, F.np.swapaxes(y, 1, 2))),
    "determinant": lambda F, x, y: F.np.linalg.det(F.np.dot(F.np.reshape(x, (3, 8)), F.np.reshape(y, (8, 3)))),
    "dot": lambda F, x, y: F.np.dot(x, F.np.reshape(y, (4, 6))),
    "batch_dot": lambda F, x, y: F.npx.batch_dot(x, y, transpose_b=True),
    "tensordot": lambda F, x, y: F.np.tensordot(x, y, axes=((0, 2), (0, 2))),
    "tensordot of 1": lambda F, x, y: F.np.tensordot(x, F.np.transpose(y), axes=1),
    "einsum": lambda F, x, y: F.np.einsum("bij, bkj -> bik", x, y),
    "new": lambda F, x, y: x + F.np.ones_like(x) * 2 + F.np.zeros_like(y) + F.np.full_like(y, 3),
    "a range": lambda F, x, y: x + F.np.arange(4) + F.np.ones((3, 1)),
    "cast": lambda F, x, y: x.astype("int32"),
    "taken": lambda F, x, y: F.np.take(x, (y * 2).astype("int32"), axis=1),
    "tril": lambda F, x, y: F.np.tril(x, 1),
    "unequal parts": lambda F, x, y: F.np.array_split(x, 3, axis=2)[0] + F.np.array_split(y, 2, axis=2)[1],
    "the last of unequal parts": lambda F, x, y: F.np.array_split(x, 3, axis=2)[2],
    "halves": lambda F, x, y: F.np.hsplit(F.np.reshape(x, (6, 4)), 2)[1] + F.np.dsplit(y, 2)[0].reshape(6, 2),
    "traces": lambda F, x, y: F.np.trace(x, 1, 1, 2) + F.np.trace(y, 0, 2, 1),
    "diagonals": lambda F, x, y: F.np.diagonal(x, -1, 1, 2) + F.np.diag(F.np.reshape(y, (6, 4)), -2)[:2],
    "of diagonals": lambda F, x, y: F.np.diagflat(x, 2) + F.np.diag(F.np.reshape(y, -1), -2),
    "rolled": lambda F, x, y: F.np.roll(x, 5) + F.np.roll(y, (1, -6), (1, 2)),
    "turned": lambda F, x, y: F.np.rot90(x, 1, (1, 2)) + F.np.rot90(y, 3, (1, 2)),
    "turned over": lambda F, x, y: F.np.rot90(x, 2, (0, 2)) + F.np.rot90(y, 4),
    "at least": lambda F, x, y: F.np.atleast_3d(F.np.reshape(x, (6, 4))) + F.np.atleast_2d(F.np.reshape(y, -1))[0, 0],
    "at least 3": lambda F, x, y: F.np.atleast_3d(F.np.reshape(x, -1)),
    "columns": lambda F, x, y: F.np.column_stack((F.np.reshape(x, -1), F.np.reshape(y, -1))),
    "stacked deep": lambda F, x, y: F.np.dstack((F.np.reshape(x, (6, 4)), F.np.reshape(y, (6, 4)))),
    "deleted": lambda F, x, y: F.np.delete(x, 1, axis=1) + F.np.delete(y, slice(0, 3, 2), axis=1)[:, :1],
    "any and all": lambda F, x, y: F.np.any(x > 1, axis=1) * F.np.all(y > 0.3, axis=1, keepdims=False),
    "any number": lambda F, x, y: F.np.all(F.np.floor(x), axis=(0, 1)),
    "bits": lambda F, x, y: F.np.bitwise_xor(
        F.np.bitwise_or((x * 9).astype("int32"), 2), F.np.bitwise_and(F.np.invert((y * 9).astype("int32")), 6)
    ),
    "bits of bools": lambda F, x, y: F.np.invert(F.np.bitwise_or(x > 0.5, y > 0.5)),
    "sums of integers": lambda F, x, y: (
        F.np.sum((x * 9).astype("int32"), axis=1) + F.np.max((y * 9).astype("int32"), 1)
    ),
    "a product of integers": lambda F, x, y: F.np.prod((x * 3).astype("int64"), axis=2),
    "how many": lambda F, x, y: F.np.sum(x > 0.5, axis=1) + F.np.cumsum(y > 0.5, axis=1)[:, 1],
    "the mean of integers": lambda F, x, y: F.np.mean((x * 9).astype("int32"), axis=(0, 2)),
    "sums in another dtype": lambda F, x, y: F.np.sum(x, axis=1, dtype="float64"),
    "spread of a sample": lambda F, x, y: F.np.var(x, axis=1, ddof=1) + F.np.std(y, axis=1, ddof=2),
    "norms": lambda F, x, y: F.np.linalg.norm(x, axis=1) + F.np.linalg.norm(y, ord=1, axis=1),
    "a norm": lambda F, x, y: F.np.linalg.norm(x) + F.np.linalg.norm(F.np.reshape(y, (6, 4)), ord="fro"),
    "norms of matrices": lambda F, x, y: F.np.linalg.norm(x, axis=(1, 2), keepdims=True),
    "averages": lambda F, x, y: F.np.average(x, axis=1, weights=y) + F.np.average(y, axis=1),
    "an average": lambda F, x, y: F.np.average(x, axis=2, weights=F.np.arange(4)),
    "differences": lambda F, x, y: F.np.diff(x, n=2, axis=2) + F.np.diff(y, axis=2)[:, :, :2],
    "all differences": lambda F, x, y: F.np.ediff1d(x, to_begin=-1, to_end=2),
    "polynomials": lambda F, x, y: F.np.polyval(F.np.arange(4), x),
    "factors": lambda F, x, y: F.np.linalg.cholesky(F.np.eye(4) * 9 + F.np.matmul(F.np.swapaxes(x, 1, 2), x)),
    "solutions": lambda F, x, y: F.np.linalg.solve(
        F.np.eye(3) * 4 + F.np.matmul(x, F.np.swapaxes(y, 1, 2)), F.np.swapaxes(y, 1, 2)[:, :3]
    ),
    "a solution": lambda F, x, y: F.np.linalg.solve(F.np.eye(3) * 4 + x[0][:, :3], y[0, 0][:3]),
    "multiples": lambda F, x, y: (
        F.np.lcm((x * 9).astype("int32"), F.np.negative((y * 9).astype("int32"))) + F.np.lcm((x * 9).astype("int32"), 4)
    ),
    "powers of ten": lambda F, x, y: x + F.np.logspace(0, 1, 4) + F.np.logspace(0, 2, 4, endpoint=False, base=2.0),
    "windows": lambda F, x, y: x + F.np.hanning(4) + F.np.hamming(4) + F.np.blackman(4) + F.np.linspace(0, 1, 4),
    "identities": lambda F, x, y: x[:, :, :3] + F.np.identity(3) + F.np.eye(3, 3, -1) + F.np.eye(3),
    "indices": lambda F, x, y: F.np.indices((2, 3)),
    "angles of two": lambda F, x, y: F.np.arctan2(x - 0.7, y - 0.7) + F.np.arctan2(x, 2) + F.np.arctan2(2, -y),
    "signs of others": lambda F, x, y: F.np.copysign(x, y - 0.7) + F.np.copysign(-3, x - 0.7) + F.np.copysign(y, -1),
    "powers of two": lambda F, x, y: F.np.ldexp(x, F.np.floor(y * 9)) + F.np.ldexp(y, 3),
    "percentiles": lambda F, x, y: F.np.percentile(x, 30, axis=(0, 2)) + F.np.percentile(y, 80, 1).sum(),
    "a quantile": lambda F, x, y: F.np.quantile(x, 0.37, interpolation="midpoint"),
    "kept quantiles": lambda F, x, y: (
        F.np.quantile(x, 0.37, axis=1, interpolation="lower", keepdims=True)
        - F.np.quantile(y, 0.37, axis=1, interpolation="higher", keepdims=True)
    ),
}


class Case(mx.gluon.HybridBlock):
    """A function as a block."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, *inputs):
        return self.function(F, *inputs)


@pytest.fixture(autouse=True)
def numpy_mode():
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def both(block, *arrays):
    """MXNet's outputs, and those of the imported block."""
    block.initialize()
    wanted = block(*map(mx.np.array, arrays))
    names = ["data"] if len(arrays) == 1 else [f"data{n}" for n in range(len(arrays))]
    outputs = block(*(mx.sym.var(name).as_np_ndarray() for name in names))
    symbol = mx.sym.Group(outputs) if isinstance(outputs, tuple | list) else outputs
    params = {name: array.data().asnumpy() for name, array in block.collect_params().items()}
    shapes = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    outputs = tvmfast.build(*tvmfast.from_mxnet(symbol.tojson(), params, shapes), opt_level=0)(*arrays)
    as_list = [each if isinstance(each, tuple | list) else [each] for each in (wanted, outputs)]
    return [each.asnumpy() for each in as_list[0]], list(as_list[1])


def check(wanted, output, terms):
    assert output.dtype == wanted.dtype
    close(output, wanted, terms, rounded=True)


@pytest.fixture(scope="module")
def outputs():
    """Of all cases as one network: MXNet's and ours, by name."""
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.2, 1.2, (2, 3, 4)).astype("float32") for _ in range(2))
    mx.npx.set_np()
    wanted, outputs = both(Case(lambda F, x, y: [case(F, x, y) for case in CASES.values()]), x, y)
    return dict(zip(CASES, zip(wanted, outputs, strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_functions(outputs, name):
    check(*outputs[name], terms=24)  # the numbers of an input


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinities_and_nan(dtype):
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0, 1, -2], dtype)
    functions = [
        lambda F, x: F.np.nan_to_num(x),
        lambda F, x: F.np.nan_to_num(x, nan=7, posinf=8, neginf=9),
        lambda F, x: F.np.nan_to_num(x, nan=np.inf),
        lambda F, x: F.np.isposinf(x),
        lambda F, x: F.np.isneginf(x),
        lambda F, x: F.np.any(x),
        lambda F, x: F.np.all(x[:3]),
    ]
    block = Case(lambda F, x: [function(F, x) for function in functions])
    wanted = [each.asnumpy() for each in block(mx.np.array(x, dtype=dtype))]
    symbol = mx.sym.Group(block(mx.sym.var("x").as_np_ndarray()))
    outputs = tvmfast.build(*tvmfast.from_mxnet(symbol.tojson(), {}, {"x": (x.shape, dtype)}))(x)
    for theirs, ours in zip(wanted, outputs, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_integers_are_finite_and_whole(dtype):
    x, variable = np.array([0, 1, 7], dtype), mx.sym.var("x").as_np_ndarray()
    names = ["isnan", "isinf", "isfinite", "isposinf", "isneginf", *(["around"] if dtype != "bool" else [])]
    symbol = mx.sym.Group([getattr(mx.sym.np, name)(variable) for name in names])
    outputs = tvmfast.build(*tvmfast.from_mxnet(symbol.tojson(), {}, {"x": (x.shape, dtype)}), opt_level=0)(x)
    for name, ours in zip(names, outputs, strict=True):
        theirs = getattr(mx.np, name)(mx.np.array(x, dtype=dtype)).asnumpy()
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "mod", "power", "true_divide"])
def test_arrays_and_numbers_of_two_dtypes(name):
    """All that MXNet's symbols take, as one network."""
    function, symbols, inputs, wanted = getattr(mx.sym.np, name), [], {}, []

    def add(make, *arrays):
        names = [f"x{len(inputs) + n}" for n in range(len(arrays))]
        symbol, given = (
            make(*(mx.sym.var(each).as_np_ndarray() for each in names)),
            dict(zip(names, arrays, strict=True)),
        )
        try:
            bound = symbol.bind(mx.cpu(), {key: mx.np.array(each, dtype=each.dtype) for key, each in given.items()})
            wanted.append(bound.forward()[0].asnumpy())
        except mx.base.MXNetError:
            return
        symbols.append(symbol)
        inputs.update(given)

    for a in DTYPES:
        left, right = np.array([1, 0, 3], a), np.array([1, 2, 3], a)
        for b in DTYPES:
            add(function, left, np.array([2, 3, 1], b))
        for number in (2, 1.5):
            add(lambda x, number=number: function(x, number), left)
        add(lambda x: function(1.5, x), right)
    assert len(symbols) > 50
    shapes = {key: (each.shape, str(each.dtype)) for key, each in inputs.items()}
    lib = tvmfast.build(*tvmfast.from_mxnet(mx.sym.Group(symbols).tojson(), {}, shapes), opt_level=0)
    for theirs, ours in zip(wanted, lib(**inputs), strict=True):
        check(theirs, ours, terms=4)


def test_the_logarithm_of_softmax(rng):
    """In double precision, as MXNet's own is off by twenty units in the last place."""
    y = rng.uniform(0.2, 1.2, (2, 3, 4)).astype("float32")
    _, (output,) = both(Case(lambda F, y: F.npx.log_softmax(y, axis=-1)), y)
    powers = np.exp(y.astype("float64"))
    close(output, np.log(powers / powers.sum(-1, keepdims=True)), terms=8)


def test_a_network(rng):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Conv2DTranspose(4, 3), nn.Swish(),
            nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(6), nn.LayerNorm(), nn.GELU(), nn.PReLU(),
            nn.Dense(3))  # fmt: skip
    x = rng.uniform(size=(2, 3, 12, 12)).astype("float32")
    (wanted,), (output,) = both(net, x)
    terms = terms_of(net.collect_params())
    check(wanted, output, terms)
    check(wanted, tvmfast.build(net, {"data": x.shape})(x), terms)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda F, x: F.np.pad(x, ((1, 1), (0, 0)), mode="edge"), "mode=edge"),
        (lambda F, x: F.np.dot(x, F.np.reshape(x, (1, 2, 3))), r"dot product with an array of shape \(1, 2, 3\)"),
        (lambda F, x: F.np.std(x.astype("int32")), "numbers of int32; cast them to float32"),
        (lambda F, x: F.np.var(x, axis=0, ddof=2), "ddof=2 of 2 numbers"),
    ],
)
def test_what_is_refused(function, message):
    symbol = Case(function)(mx.sym.var("x").as_np_ndarray())
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_mxnet(symbol.tojson(), {}, {"x": (2, 3)})
