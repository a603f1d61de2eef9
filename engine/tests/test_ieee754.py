"""NaN, infinities, signed zeros and denormals: a built network has PyTorch's, at each opt level.

One network has an output for each operator, so that one build tests them all. Two things are not compared: the sign of
a zero where PyTorch's depends on the address (the maximum of 0 and -0), and PyTorch's own NaN where C has a
number (the remainder of 1e20 and 1e-42).
"""

import functools

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close
from testing import Function

import tvmfast

NAN, INF = float("nan"), float("inf")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1e-42, -1e-42)
VALUES = (*SPECIAL, 1e20, -1e20, 1e-38, -1.5, 2.5, 0.5, -95.0, 7.0, 3.0, 1.0, -1.0)
X, Y = (torch.tensor(VALUES).repeat_interleave(len(VALUES)), torch.tensor(VALUES).repeat(len(VALUES)))  # all pairs


def _rows() -> torch.Tensor:
    """Random rows with special values at several indices, also after the last whole vector; and rows of one value."""
    rows = torch.randn(len(SPECIAL) ** 2, 37, generator=torch.Generator().manual_seed(0))
    rows[:, 5] = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
    rows[:, 35] = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    return torch.cat([rows, torch.tensor(SPECIAL)[:5, None].expand(5, 37)])


def _images(channels: int) -> torch.Tensor:
    images = torch.randn(6, channels, 9, 9, generator=torch.Generator().manual_seed(0))
    for image, value in zip(images, (NAN, INF, -INF), strict=False):
        image[-1, 2, 3] = image[0, 8, 8] = value
    images[3:] = torch.tensor([NAN, INF, -INF])[:, None, None, None]
    return images


def _not_tiny(y):
    return torch.where((y != 0) & (y.abs() < 1e-30), 0.75, y)


def _conv(x, out, size, groups=1, **options):
    weight = np.random.default_rng(out).normal(size=(out, x.shape[1] // groups, size, size)).astype("float32")
    return F.conv2d(x, torch.tensor(weight), torch.linspace(-1, 1, out), groups=groups, **options)


def _norm(x):
    start, end = torch.linspace(-1, 1, x.shape[1]), torch.linspace(0.1, 2, x.shape[1])
    return F.batch_norm(x, start, end, start, end)


OF_PAIRS = {
    **{name: lambda x, y, name=name: getattr(torch, name)(x) for name in (
        "abs", "neg", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "tanh", "atanh", "erf", "sigmoid",
        "sign", "round", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "nan_to_num", "relu",
        "frac",
    )},
    **{name: lambda x, y, name=name: getattr(F, name)(x) for name in (
        "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid",
        "softplus", "softsign",
    )},
    **{name: lambda x, y, name=name: getattr(torch, name)(x, y) for name in (
        "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "logaddexp", "eq", "ne", "lt", "le", "gt",
        "ge",
    )},
    "remainder": lambda x, y: torch.remainder(x, _not_tiny(y)),
    "floor_divide": lambda x, y: torch.floor_divide(x, _not_tiny(y)),
    "prelu": lambda x, y: F.prelu(x, torch.tensor([0.25])),
    "threshold": lambda x, y: F.threshold(x, 0.5, -2.0),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clamp above": lambda x, y: x.clamp(min=0.5),
    "clamp by tensors": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp by NaN": lambda x, y: x.clamp(NAN, 1.0),
    "times 0": lambda x, y: x * 0.0,
    "times -0": lambda x, y: -0.0 * x,
    "plus 0": lambda x, y: x + 0.0,
    "through 0": lambda x, y: x / 0.0,
    "0 through": lambda x, y: 0.0 / x,
    "times infinity": lambda x, y: x * INF,
    "x == x": lambda x, y: x == x,
    "x != x": lambda x, y: x != x,
    "x - x": lambda x, y: x - x,
    "x + y - y": lambda x, y: (x + y) - y,
    "equal expressions": lambda x, y: torch.exp(x) == torch.exp(x),
    "not less": lambda x, y: torch.logical_not(x < y),
    "more or not": lambda x, y: torch.logical_or(x > y, x <= y),
    "where": lambda x, y: torch.where(x != x, 0.0, torch.where(x > y, x, y)),
    "root": lambda x, y: x**0.5,
    "affine": lambda x, y: (((x + 1) / 1e-40) * 2 + 1) * 0.0,
    "nested": lambda x, y: torch.maximum(torch.minimum(x, y), torch.maximum(y * 2, x + 1)),
}  # fmt: skip
OF_ROWS = {
    **{name: lambda r, name=name: getattr(torch, name)(r, dim=1) for name in (
        "sum", "mean", "amax", "amin", "argmax", "argmin", "logsumexp", "softmax", "log_softmax",
    )},
    "max": lambda r: r.max(),
    "argmax of columns": lambda r: r.argmax(0),
    "argmax of columns in vectors": lambda r: r[:, :32].argmax(0),
    "largest and where": lambda r: r.max(1),
    "sort": lambda r: torch.sort(r, 1)[0],
    "sort down": lambda r: torch.sort(r, 1, descending=True)[0],
    "top": lambda r: torch.topk(r, 5)[0],
    "running sum": lambda r: torch.cumsum(torch.where(r == r, -0.0, r), 1),
    "least": lambda r: torch.topk(r, 5, largest=False)[0],
    "median": lambda r: torch.median(r, 1)[0],
    "any": lambda r: (r != r).any(1),
    "all": lambda r: (r == r).all(1),
    "softmax of columns": lambda r: F.softmax(r, 0),
    "layer norm": lambda r: F.layer_norm(r, r.shape[1:]),
    "rms norm": lambda r: F.rms_norm(r, r.shape[1:], eps=1e-6),
    "linear": lambda r: F.relu(F.linear(r, torch.eye(37)[:20])),
    "product": lambda r: r @ r.T,
}  # fmt: skip
OF_CONVOLUTIONS = {  # level 3 fills up 5 and 20 channels to whole registers, and joins groups in one
    "a narrow one after it": lambda p, q: _conv(F.relu6(_conv(p, 20, 3, stride=2, padding=1)), 6, 1),
    "one value for all channels": lambda p, q: _conv((y := _conv(p, 20, 1)) * y.mean(1, True) + y.amax(1, True), 6, 1),
    "infinite factor": lambda p, q: _conv(torch.clamp(_conv(p, 5, 1), max=1.0) * INF, 6, 1),
    "pooled": lambda p, q: F.max_pool2d(F.relu(_norm(_conv(p, 5, 3, padding=1))), 3, 2, 1),
    "depthwise": lambda p, q: _conv(F.hardswish(_conv(p, 5, 3, groups=5)), 6, 1),
    "padded depthwise": lambda p, q: _conv(q, 16, 3, padding=1, groups=16),
    "4 groups": lambda p, q: _conv(q, 16, 3, padding=1, groups=4),
    "4 groups of 1x1": lambda p, q: _conv(q, 32, 1, groups=4),
}
OF_IMAGES = {
    "max pool": lambda p: F.max_pool2d(p, 3, 2, 1),
    "max pool, more": lambda p: F.max_pool2d(p, 3, 2, ceil_mode=True),
    "average pool": lambda p: F.avg_pool2d(p, 3, 2, 1),
    "adaptive pool": lambda p: F.adaptive_avg_pool2d(p, (4, 3)),
    "batch norm": _norm,
    "group norm": lambda p: F.group_norm(p, 1),
    "pad": lambda p: F.pad(p, (1, 1, 1, 1), value=-INF),
    "resize": lambda p: F.interpolate(p, scale_factor=2),
}


OF_FUNCTIONS = 16  # terms: a function that is several others rounds as often
OF_SUMS = 180  # terms: of 3x3 windows of 20 channels; the rows are of 37, the columns of 54
_ANY_ZERO = {"maximum", "minimum", "nested", "clamp by tensors", "sort", "sort down", "top", "least", "sum", "median"}


def sizes(numbers: np.ndarray) -> np.ndarray:
    """Of which each number has an error of its own, down to denormals, which have fewer digits."""
    return np.maximum(np.abs(numbers), np.finfo("float32").tiny)


def assert_same(name: str, ours: np.ndarray, theirs: np.ndarray):
    """The reference is PyTorch's in float32, as it overflows where float64 does not."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    if theirs.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs, name)
        return
    if name in OF_PAIRS:
        close(ours, theirs, OF_FUNCTIONS, scale=sizes(theirs), rounded=True)
    else:
        close(ours, theirs, OF_SUMS, rounded=True)
        small = np.abs(theirs) < 1e-30  # which the tolerance does not see
        close(ours[small], theirs[small], OF_FUNCTIONS, scale=sizes(theirs[small]), rounded=True)
    zeros = (theirs == 0) & (name not in _ANY_ZERO)
    np.testing.assert_array_equal(np.signbit(ours[zeros]), np.signbit(theirs[zeros]), f"{name}, signs of zeros")


FUNCTIONS = OF_PAIRS | OF_ROWS | OF_IMAGES | {f"{name}, wide": f for name, f in OF_IMAGES.items()} | OF_CONVOLUTIONS
FEW = ("relu", "clamp", "maximum", "isfinite", "times 0", "x == x", "x - x", "amax", "argmin", "largest and where",
       "argmax of columns in vectors", "sort", "median", "max pool", "4 groups", "infinite factor", "atanh",
       "remainder", "floor_divide", "frac")  # fmt: skip
FEWER = ("relu", "maximum", "x - x", "amax", "sort", "max pool")


def results(names, x, y, rows, narrow, wide):
    """Yield name and result of each function."""
    for name in names:
        if name in OF_PAIRS:
            own = x, y
        elif name in OF_CONVOLUTIONS:
            own = narrow, wide
        else:
            own = (rows if name in OF_ROWS else wide if name.endswith("wide") else narrow,)
        outputs = FUNCTIONS[name](*own)
        yield from ((name, part) for part in (outputs if isinstance(outputs, tuple) else [outputs]))


@functools.cache
def network(names):
    """A network of these functions, imported; its inputs; and what PyTorch has, (name, array) each."""
    inputs = (X, Y, _rows(), _images(5), _images(16))
    used = Function(lambda *xs: tuple(part for _, part in results(names, *xs))).eval()
    imported = tvmfast.from_pytorch(used, [(f"input{n}", x) for n, x in enumerate(inputs)])
    return imported, inputs, [(name, part.numpy()) for name, part in results(names, *inputs)]


@pytest.mark.parametrize(("level", "names"), [(0, FEWER), (3, FEW)], ids=["0", "3"])
def test_operators_have_pytorchs_results(level, names):
    assert_pytorchs(level, names)


@pytest.mark.full
@pytest.mark.parametrize("level", range(4))
def test_every_operator_has_pytorchs_results(level):
    assert_pytorchs(level, tuple(FUNCTIONS))


def assert_pytorchs(level, names):
    imported, inputs, wanted = network(names)
    for ours, (name, theirs) in zip(tvmfast.build(*imported, opt_level=level)(*inputs), wanted, strict=True):
        assert_same(name, ours, theirs)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_integers_divided_by_0_and_the_least_one_by_minus_1(dtype):
    """Numbers as NumPy has them; PyTorch raises errors, and the processor stops the process."""
    info = np.iinfo(dtype)
    x = np.array([7, info.max, info.min, info.min, 0, 5, 9, info.max - 2], dtype)
    y = np.array([0, 0, 0, -1 if info.min else 1, 0, 2, -4 if info.min else 4, 3], dtype)
    function = Function(lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)))
    lib = tvmfast.build(*tvmfast.from_pytorch(function.eval(), {"x": (x.shape, dtype), "y": (y.shape, dtype)}))
    with np.errstate(all="ignore"):
        remainders = np.fmod(x, y)
        quotients = np.where(y == 0, 0, (x - remainders) // np.where(y == 0, 1, y)).astype(dtype)
        for got, want in zip(lib(x, y), (x // y, x % y, quotients, remainders), strict=True):
            np.testing.assert_array_equal(got, want)


def test_denormals_are_kept_where_a_thread_flushes_them():
    x = torch.full((64, 1024), 1e-42)
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(lambda x: x * 0.5).eval(), {"x": x.shape}))
    try:
        assert torch.set_flush_denormal(True)
        got, after = lib(x.numpy()).view("int32"), (x[0] * 0.5).numpy().view("int32")
    finally:
        torch.set_flush_denormal(False)
    assert (got == (x * 0.5).numpy().view("int32")).all()
    assert not after.any()  # the thread still flushes them


def test_onnx_networks_go_through_the_same_passes():
    """ONNX Runtime's results; its maxima, pooling and sorting ignore NaN, so they are not asked for here."""
    nodes = ("Relu(x)", "Clip(x, least, most)", "Mul(x, zero)", "Div(x, zero)", "Sub(x, x)", "Equal(x, x)",
             "Less(x, y)", "IsNaN(x)", "Exp(x)", "Tanh(x)")  # fmt: skip
    of_bools = {"Equal(x, x)", "Less(x, y)", "IsNaN(x)"}
    outputs = ", ".join(f"{'bool' if node in of_bools else 'float'}[{len(X)}] y{at}" for at, node in enumerate(nodes))
    body = " ".join(f"y{at} = {node}" for at, node in enumerate(nodes))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{len(X)}] x, float[{len(X)}] y) => ({outputs}) '
        f"<float least = {{-1}}, float most = {{2}}, float zero = {{0}}> {{ {body} }}"
    )
    inputs = {"x": X.numpy(), "y": Y.numpy()}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lib = tvmfast.build(*tvmfast.from_onnx(model))
    functions = {"Exp(x)": np.exp, "Tanh(x)": np.tanh}  # ONNX Runtime's are not exact for denormals
    for node, ours, theirs in zip(nodes, lib(*inputs.values()), session.run(None, inputs), strict=True):
        assert ours.dtype == theirs.dtype, node
        if node in functions:
            with np.errstate(over="ignore"):
                theirs = functions[node](X.double().numpy())
            close(ours, theirs, OF_FUNCTIONS, scale=sizes(theirs))
        else:
            np.testing.assert_array_equal(ours, theirs, node)


def test_a_maximum_that_repeats_is_one_kernel(rng):
    def function(x):
        for _ in range(3):
            x = F.max_pool2d(x * 0.5 + x.amax(-1, keepdim=True), 3, 1, 1)
        return x

    x = rng.standard_normal((1, 2, 8, 8), "float32")
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), {"x": x.shape}))
    np.testing.assert_array_equal(lib(x), function(torch.from_numpy(x)).numpy())
    assert len(lib.kernels) == 3
