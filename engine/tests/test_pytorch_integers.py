"""Integers and float64 where TVM's importer of PyTorch's programs knows float32: products, powers, images of uint8."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import Function, sampled

from tvmfast import Dim, build, from_pytorch

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Of what each dtype does at either level: one of each in `make test`.
QUICK_PAIRS = (torch.uint8, 0), (torch.int64, 3), (torch.float64, 0)
DTYPES = pytest.mark.parametrize(
    ("dtype", "level"),
    [
        pytest.param(*pair, marks=() if pair in QUICK_PAIRS else pytest.mark.full)
        for pair in itertools.product((*INTEGERS, torch.float64), (0, 3))
    ],
)


def numbers(rng, dtype, *shape):
    """Random numbers over the whole range of a dtype, its least and its greatest among those of integers."""
    if dtype.is_floating_point:
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)
    info = torch.iinfo(dtype)
    kind = str(dtype).removeprefix("torch.")
    made = rng.integers(info.min, info.max, shape, kind, endpoint=True)
    made.reshape(-1)[:2] = info.min, info.max
    return torch.from_numpy(made)


def check(function, shapes, *calls, **options):
    """Build a function for inputs of these shapes, and compare what it computes with PyTorch: integers exactly."""
    specs = {f"x{n}": (shape, x.dtype) for n, (shape, x) in enumerate(zip(shapes, calls[0], strict=True))}
    lib = build(*from_pytorch(Function(function).eval(), specs), **options)
    for args in calls:
        got, wanted = lib(*args), function(*args)
        got = got if isinstance(got, tuple) else (got,)
        exact = reference(function, *args).values if wanted[0].is_floating_point() else wanted
        for ours, theirs, number in zip(got, wanted, exact, strict=True):
            assert (str(ours.dtype), ours.shape) == (str(theirs.dtype).removeprefix("torch."), tuple(theirs.shape))
            close(ours, number, terms=64)


@DTYPES
def test_products(dtype, level, rng):
    def products(x, weight, bias, a, b, c):
        return (
            *(F.linear(x, weight, bias), F.linear(a, weight), x @ weight.t(), weight.mv(weight[0]), a @ b[0]),
            *(torch.addmm(c[0], x, weight.t(), beta=2, alpha=3), torch.addmm(c[0], x, weight.t(), beta=0)),
            *(torch.bmm(a, b), torch.baddbmm(c, a, b, beta=3, alpha=2), torch.einsum("bij,bjk->ik", a, b)),
        )

    def args(rows):
        shapes = ((rows, 7), (4, 7), (4,), (2, rows, 7), (2, 7, 4), (2, rows, 4))
        return [numbers(rng, dtype, *shape) for shape in shapes]

    check(products, [x.shape for x in args(5)], args(5), opt_level=level)
    if level:
        dynamic = [("rows", 7), (4, 7), (4,), (2, "rows", 7), (2, 7, 4), (2, "rows", 4)]
        check(products, dynamic, args(1), args(33), opt_level=level)


@DTYPES
def test_convolutions(dtype, level, rng):
    def convolutions(x, weight, bias):
        spread = weight.transpose(0, 1)
        plain = (
            *(
                F.conv2d(x, weight, bias),
                F.conv2d(x, weight, stride=2, padding=(1, 2)),
                F.conv2d(x, weight[:16, :1], groups=16),
            ),
            *(F.conv1d(x.flatten(2), weight[:, :, 0], bias), F.conv3d(x[:, :, None], weight[:, :, None])),
        )
        if dtype not in (torch.int64, torch.float64):  # PyTorch has the others for these alone
            return plain
        return *plain, F.conv2d(x, weight, dilation=2), F.conv_transpose2d(x, spread.contiguous(), stride=2, padding=1)

    def args(height, width):
        return [numbers(rng, dtype, *shape) for shape in ((2, 16, height, width), (32, 16, 3, 3), (32,))]

    check(convolutions, [x.shape for x in args(7, 9)], args(7, 9), opt_level=level)
    if level and dtype in (torch.int64, torch.float64):
        dynamic = [(2, 16, Dim("h", 5), Dim("w", 5)), (32, 16, 3, 3), (32,)]
        check(lambda *xs: convolutions(*xs)[:3], dynamic, args(5, 6), args(11, 8), opt_level=level)


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
@pytest.mark.parametrize("dtype", sampled(INTEGERS, [torch.int8]))
def test_powers_of_integers(dtype, level, rng):
    """PyTorch's: they overflow, and negative exponents leave 0, but of 1 and -1."""
    info = torch.iinfo(dtype)
    bases = [0, 1, 2, 3, 7, 10, info.max, info.min, info.max - 1, *([-1, -2, -3] if info.min else [])]
    exponents = [0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 127, info.max, *([-1, -2, -3, info.min] if info.min else [])]
    x, y = (torch.tensor(each).to(dtype) for each in (bases, exponents))

    def powers(x, y, short):
        return x[:, None] ** y, x[:, None] ** short, torch.pow(2, y), torch.pow(-3, y.abs()), torch.pow(x, y.amax())

    args = x, y, torch.tensor([1, 0, 3, -1, 5, 4, 100], dtype=torch.int8)
    check(powers, [each.shape for each in args], args, opt_level=level)
    if level:
        more = numbers(rng, dtype, 5), numbers(rng, dtype, 9), numbers(rng, torch.int8, 3)
        check(powers, [("bases",), ("exponents",), ("more",)], args, more, opt_level=level)


def test_powers_of_long_integers():
    x, y = torch.tensor([2, 3, -3, 10, -1]), torch.tensor([0, 63, 39, -1, -(2**63), 2**62 + 1])
    check(lambda x, y: [x[:, None] ** y, x**19, x**64], [x.shape, y.shape], [x, y], opt_level=0)


# PyTorch's own results of a height or width of 1 depend on the CPU.
RESIZED = {
    "larger": lambda x, mode: F.interpolate(x, (17, 23), mode=mode),
    "smaller": lambda x, mode: F.interpolate(x, (4, 5), mode=mode),
    "corners": lambda x, mode: F.interpolate(x, (13, 4), mode=mode, align_corners=True),
    "twice": lambda x, mode: F.interpolate(x, scale_factor=2, mode=mode),
    "one axis": lambda x, mode: F.interpolate(x, scale_factor=(1.05, 1.7), mode=mode),
}
ANTIALIASED = {
    "antialiased": lambda x, mode: F.interpolate(x, (3, 5), mode=mode, antialias=True),
    "antialiased corners": lambda x, mode: F.interpolate(x, (4, 16), mode=mode, align_corners=True, antialias=True),
    "antialiased factor": lambda x, mode: F.interpolate(x, scale_factor=(0.4, 0.77), mode=mode, antialias=True),
}


def images(rng, *shape):
    """Random pixels, and black and white ones, of which a cubic overshoots."""
    x = torch.from_numpy(rng.integers(0, 256, shape, "uint8"))
    x[..., ::2] = (x[..., ::2] > 127) * 255
    return x


@pytest.mark.parametrize(
    ("mode", "level"),
    [
        *(("bilinear", 0), ("bicubic", 3)),
        *(pytest.param(*pair, marks=pytest.mark.full) for pair in (("bilinear", 3), ("bicubic", 0))),
    ],
)
def test_images_of_uint8(mode, level, rng):
    several = {**RESIZED, **ANTIALIASED}

    def resized(x):
        return [resize(x, mode) for resize in several.values()]

    for shape in ((2, 3, 11, 9), (1, 5, 6, 15)):
        x = images(rng, *shape)
        check(resized, [shape], [x], opt_level=level)


SIZES = [(name, mode) for name in ("larger", "corners", "twice") for mode in ("bilinear", "bicubic")]


@pytest.mark.parametrize("case", sampled(SIZES, [("larger", "bilinear")]), ids=" ".join)
def test_images_of_uint8_of_dynamic_sizes(case, rng):
    name, mode = case
    shapes = ((1, 3, 11, 9), (3, 3, 30, 41), (2, 3, 2, 17), (1, 3, 17, 23))
    calls = [[images(rng, *shape)] for shape in shapes]
    check(lambda x: [RESIZED[name](x, mode)], [("n", 3, "h", "w")], *calls)


def test_antialiased_images_of_uint8_of_dynamic_numbers(rng):
    calls = [[images(rng, n, 3, 9, 14)] for n in (1, 4)]
    check(lambda x: [ANTIALIASED["antialiased"](x, "bilinear")], [("n", 3, 9, 14)], *calls)
    net = Function(lambda x: ANTIALIASED["antialiased"](x, "bilinear")).eval()
    with pytest.raises(NotImplementedError, match="cannot keep 'h' dynamic"):
        from_pytorch(net, {"x": ((1, 3, "h", 9), "uint8")})


def test_images_of_uint8_as_a_network_reads_them(rng):
    x = images(rng, 2, 3, 20, 30)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x):
            x = F.interpolate(x, (16, 16), mode="bilinear", antialias=True)
            return self.conv(x.to(self.conv.weight.dtype) / 255)

    net = Network().eval()
    lib = build(*from_pytorch(net, {"x": (x.shape, torch.uint8)}))
    close(lib(x), reference(net, x), terms=27)


WRAPPING = {  # expressions that TVM or LLVM simplifies as if none of them left its dtype
    "0 - x": lambda x, y: 0 - x,
    "less 1": lambda x, y: (x & 1) - 1,
    "mask": lambda x, y: x & ((y & 1) - 1),
    "half": lambda x, y: (0 - x) // 2,
    "larger": lambda x, y: x + 1 > x,
    "larger sum": lambda x, y: x + y > x,
    "smaller": lambda x, y: x - 1 < y,
    "sums": lambda x, y: x + 37 < y + 37,
    "products": lambda x, y: x * 2 == y * 2,
    "quotient": lambda x, y: x * 3 // 3,
    "remainder": lambda x, y: x * 7 % 7,
    "remainder of 4": lambda x, y: x % 4 < 4,
    "negative": lambda x, y: -x < 0,
    "square": lambda x, y: x * x >= 0,
    "least": lambda x, y: x - torch.where(x < y, x, y),
    "greatest": lambda x, y: torch.where(x + y > x, x + y, x) - x,
    "narrower": lambda x, y: (0 - x).to(torch.int8),
    "wider": lambda x, y: (x.to(torch.int32) + y.to(torch.int32)).to(torch.int64),
    "narrow sign": lambda x, y: (x % 100 + 100).to(torch.int8) < 0,
    "minimum": lambda x, y: torch.minimum(x, y) - x,
    "maximum": lambda x, y: torch.maximum(x + y, x) - x,
    "moved": lambda x, y: (x % 3) - 3 >= y,
    "shifted": lambda x, y: ((x & 7) << 5) < y,
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"])
def test_integers_wrap_around(dtype, level):
    """NumPy's numbers: PyTorch has no kernels of uint32 and uint64 for some of these."""
    info = np.iinfo(dtype)
    least, greatest = int(info.min), int(info.max)
    near = {least + n for n in range(3)} | {greatest - n for n in range(3)} | {0, 1, 2, 5, 100}
    near |= {greatest // n + m for n in (2, 3, 7) for m in (0, 1)}
    values = np.array(sorted(near), dtype)
    x, y = np.repeat(values, len(values)), np.tile(values, len(values))
    extremes = {"x == least": lambda x, y: x == least, "x <= least": lambda x, y: x <= least,
                "x >= greatest": lambda x, y: x >= greatest, "x - greatest": lambda x, y: x - greatest < y,
                "x // greatest": lambda x, y: x // greatest}  # fmt: skip
    functions = WRAPPING | extremes
    net = Function(lambda x, y: tuple(function(x, y) for function in functions.values())).eval()
    lib = build(*from_pytorch(net, {"x": (x.shape, dtype), "y": (y.shape, dtype)}), opt_level=level)
    for (name, function), ours in zip(functions.items(), lib(x, y), strict=True):
        wanted = wrapped(function, x, y)
        assert ours.dtype == wanted.dtype, name
        np.testing.assert_array_equal(ours, wanted, name)


class Wrapping(np.ndarray):
    """An array with the method of a tensor that the expressions need."""

    def to(self, dtype):
        return self.astype(str(dtype).removeprefix("torch."))


def wrapped(function, *arrays):
    """Compute an expression of tensors with NumPy."""
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        for name in ("where", "minimum", "maximum"):
            patch.setattr(torch, name, getattr(np, name))
        return np.asarray(function(*(array.view(Wrapping) for array in arrays)))
