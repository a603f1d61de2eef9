"""Operators that TVM's importer of PyTorch lacks, said with others: all in one network, held against PyTorch."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import Function, sampled

import tvmfast
from tvmfast.core import specs


def build(function, *inputs, level=0):
    names = dict(zip("xy", inputs, strict=False))
    return tvmfast.build(*tvmfast.from_pytorch(function.eval(), names), opt_level=level)


def of_two(x, y):
    """What is defined by each element, for any values."""
    return (
        *(each(x, y) for each in (torch.hypot, torch.fmax, torch.fmin, torch.copysign)),
        *(torch.fmax(x, y[0]), 1 / torch.copysign(x * 0, y), torch.exp2(x), torch.clamp_max(x, 0.5)),
        *torch.min(x, 2, keepdim=True),
        *torch.sort(x.round(), stable=True, dim=1, descending=True),
    )


def of_order(x, y):
    """What goes by the order or the index of elements, for any values."""
    rows, bounds = x.reshape(-1, 8), torch.tensor([-1.0, 0.0, 0.5, 2.0, math.inf])
    return (
        *(torch.clamp(x, y, y + 1), torch.clamp_min(x, y), torch.clamp_max(x, y), x.round().int().clamp(min=0)),
        *(torch.angle(x), torch.signbit(x.nan_to_num()), torch.isin(x.round(), y[0].round())),
        *(*torch.cummax(x, 1), *torch.cummin(x, 2), torch.nanmedian(x), torch.median(rows, 1)[0]),
        *(torch.kthvalue(rows, 3, 1)[0], *torch.aminmax(rows, dim=1)),
        *(torch.bucketize(x, bounds), torch.searchsorted(bounds, x[0, 0], right=True)),
        *(*F.max_pool2d(x[0], 3, 2, 1, return_indices=True), F.max_pool3d(x, 2, return_indices=True)[0]),
        *(torch.scatter_reduce(rows, 1, (rows > 0).long(), rows, how) for how in ("amax", "sum")),
        *(torch.erfc(x), torch.special.erfcx(x.clamp(0, 1e4)), torch.full((2,), -math.inf) + x[..., :2]),
        *(torch.full_like(x, math.nan), torch.topk(x, 2, sorted=False)[0].sort()[0]),
        *(*torch.topk(rows, 0), *torch.topk(x.amax(), 1, sorted=False), *torch.topk(x.amax(), 0)),
        *torch.sort(x.amax()),
    )


def of_order_too(x, _):
    """More ways to call what `of_order` has."""
    rows = x.reshape(-1, 8)
    return (
        *(*torch.cummin(x, -1), torch.nanmedian(rows, 0)[0], torch.searchsorted(torch.tensor([-1.0, 0.5]), x)),
        torch.scatter_reduce(rows, 1, (rows > 0).long(), rows, "amin"),
    )


def of_many(x, y, view=torch.Tensor.view):
    rows, row = x[0, 0], y[0, 0, 0]
    return (
        torch.cdist(x[0], y[0]),
        *(torch.addmv(row, rows, row, alpha=2), torch.addbmm(y[0, 0], x[0], y[0], beta=0.5)),
        *(x.masked_scatter(x[:, :1] > 0, y), torch.argsort(x.round(), dim=2, stable=True)),
        *(F.avg_pool2d(x, (3, 2), divisor_override=7), F.avg_pool3d(x, 2, padding=1, divisor_override=5)),
        *F.adaptive_max_pool2d(x, (3, 5), return_indices=True),
        *(each(x.sum(), 0) for each in (torch.softmax, torch.log_softmax, torch.cumsum)),
        *(x.mean(()), x.sum().mean(())),
        *(F.interpolate(x, scale_factor=1.5), F.interpolate(x, scale_factor=0.37, mode="bilinear")),
        F.interpolate(x, (5, 9), mode="bicubic", antialias=True, align_corners=False),
        F.interpolate(x, (1, 9), mode="bilinear", align_corners=True),
        *(
            F.interpolate(x[None], (4, 5, 6), mode="trilinear"),
            F.interpolate(x[0], 11, mode="linear", align_corners=True),
        ),
        *(torch.logcumsumexp(x[..., :3], 3), F.instance_norm(x), torch.linalg.vector_norm(x, 0)),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=3),
        *(torch.histc(x, 5, -1, 1), torch.cat([torch.zeros(0), x])),
        # of which PyTorch's own kernel returns other strides than the steps it stands for
        view(F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 8, -1), (-1, 24)),
    )


def of_many_too(x, y):
    """More ways to call what `of_many` and `of_order` have."""
    return (
        *(torch.cdist(x[0], y[0], p) for p in (1.0, math.inf)),
        F.interpolate(x, (5, 9), mode="bilinear", antialias=True, align_corners=False),
        torch.logcumsumexp(x, 3),
        *F.max_pool2d(x[:, 0], 3, 2, 1, dilation=2, ceil_mode=True, return_indices=True),
    )


@pytest.mark.parametrize(
    ("function", "special"),
    [
        *((of_two, True), (of_order, True), (of_many, False)),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((of_order_too, True), (of_many_too, False))),
    ],
)
def test_operators_that_tvm_lacks(function, special, rng):
    x, y = torch.from_numpy(rng.normal(size=(2, 2, 3, 8, 8)).astype("float32"))
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), {"x": x, "y": y}), opt_level=1)
    if special:
        values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 3e38, 1.0]
        x.view(-1)[:64], y.view(-1)[:64] = (
            n.reshape(-1) for n in torch.meshgrid(*[torch.tensor(values)] * 2, indexing="ij")
        )
    steps = partial(of_many, view=torch.reshape) if function is of_many else function
    wanted = reference(steps, x, y)
    if not special:
        return close(lib(x.numpy(), y.numpy()), wanted)
    for got, theirs in zip(lib(x.numpy(), y.numpy()), wanted.values, strict=True):
        # Each by itself, as they are of all sizes; but for the special ones the inputs are up to 4.
        close(got, theirs, terms=8, scale=np.maximum(np.abs(theirs), 4))


def test_scaled_error_functions_of_negative_numbers(compile_function):
    """They are nearly 2 exp(x²), so the rounding of the square is magnified by it."""
    x = torch.linspace(-9, 0, 300)
    wanted = torch.special.erfcx(x.double()).numpy()
    close(compile_function(torch.special.erfcx, [x])(x), wanted, terms=8, scale=wanted * (1 + x.double().numpy() ** 2))


# Of data, an index and the axis: smaller than the data along others, before it, after it, and on both sides.
SCATTERED = [((2, 2, 2), (2, 1, 1), 2), ((3, 4, 5), (2, 3, 2), 1), ((3, 2, 4), (5, 1, 3), 0), ((4, 3), (4, 2), 1),
             ((2, 3, 4, 3), (1, 3, 2, 2), 2), ((2, 3, 4), (2, 3, 2), -1)]  # fmt: skip


def scatters(*inputs):
    for (*_, axis), x, index, source in zip(SCATTERED, inputs[::3], inputs[1::3], inputs[2::3], strict=True):
        yield from (x.scatter_add(axis, index, source), x.scatter(axis, index, 7.0), x.gather(axis, index[..., :1]))
        for reduce in ("sum", "mean", "prod", "amax", "amin"):
            yield from (x.scatter_reduce(axis, index, source, reduce, include_self=own) for own in (True, False))
        yield from (x.scatter_add(axis, index[:0], source), x.long().scatter_reduce(axis, index, source.long(), "amax"))
        # Which of several is written is open: each row's are the same.
        yield x.scatter(axis, index, source.select(axis, 0).unsqueeze(axis).expand_as(source).contiguous())


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_scatters_by_an_index_smaller_than_the_data(level, rng):
    """The source is larger than the index, too; whole numbers, of which sums and products are exact."""
    inputs = []
    for shape, sizes, axis in SCATTERED:
        source = tuple(size + 1 for size in sizes)
        inputs += [rng.integers(-3, 4, shape).astype("float32"), rng.integers(0, shape[axis], sizes)]
        inputs += [rng.integers(-3, 4, source).astype("float32")]
    inputs = [*map(torch.from_numpy, inputs)]
    net = Function(lambda *xs: tuple(scatters(*xs))).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, inputs), opt_level=level)
    for number, (got, wanted) in enumerate(zip(lib(*inputs), scatters(*inputs), strict=True)):
        np.testing.assert_array_equal(got, wanted.numpy(), str(number))


def test_scatters_of_constants_are_folded_rightly():
    index, source = torch.tensor([[[1]], [[0]]]), torch.tensor([[[1.0]], [[2.0]]])
    function = Function(lambda x: x + torch.zeros(2, 2, 2).scatter(2, index, source))
    for level in (2, 3):
        lib = tvmfast.build(*tvmfast.from_pytorch(function.eval(), {"x": (2, 2, 2)}), opt_level=level)
        assert len(lib.kernels) == 1
        np.testing.assert_array_equal(lib(np.zeros((2, 2, 2), "float32")), function(torch.zeros(2, 2, 2)).numpy())


def test_spreads_of_huge_and_tiny_numbers(compile_function):
    x = torch.tensor([[1e20, -1e20, 3e20], [1e-24, -2e-24, 5e-24], [3e38, 3e38, -3e38], [1e4, 10001, 10003]])

    def spreads(x):
        return (
            *(x.std(1), x.std(1, correction=0), x.var(1, keepdim=True), x.var(), x.var(1, correction=4)),
            *(
                *torch.std_mean(x, (0, 1)),
                *torch.var_mean(x, 0, keepdim=True),
                x[:3].bfloat16().std(1),
                x.double().var(0),
            ),
        )

    results = compile_function(spreads, [x])(x)
    assert [str(got.dtype) for got in results] == [specs.dtype_of(wanted) for wanted in spreads(x)]
    for got, wanted in zip(results, reference(spreads, x).values, strict=True):
        close(got, wanted, terms=x.numel(), scale=np.abs(wanted))


def test_means_and_variances_beside_an_infinity(compile_function):
    x = torch.tensor([[1.0, math.inf, 2.0], [1.0, 2.0, 4.0], [-math.inf, 1.0, 1.0]])

    def function(x):
        return *torch.var_mean(x, 1), *torch.std_mean(x, (0, 1)), torch.std_mean(x[:, 1:2], 1, correction=0)[1]

    close(compile_function(function, [x])(x), [each.double() for each in function(x)], terms=3)


def test_running_sums_and_products_in_float64(compile_function):
    x = torch.full((70_000,), 0.1).half().float()
    x[:6] = torch.tensor([1e30, 1e30, 1e-30, 1e-30, 1e-30, 1e30])

    def running(x):
        return x.cumprod(0)[:40], x[6:].cumsum(0), x[6:].half().cumsum(0)[:100], (x[:7] > 1).cumsum(0)

    for got, wanted in zip(compile_function(running, [x])(x), reference(running, x).values, strict=True):
        close(got, wanted, terms=len(x), scale=np.abs(wanted), dtype="float64")


def test_shifts_of_bytes(compile_function):
    args = torch.tensor([255, 1, 7], dtype=torch.uint8), torch.tensor([8, 9, 1], dtype=torch.uint8)

    def shifted(x, by):
        return x >> by, x << by, x << 1, x >> 1, x >> 8

    for got, wanted in zip(compile_function(shifted, args)(*args), shifted(*args), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_resizing_float64(compile_function, rng):
    x = torch.from_numpy(rng.standard_normal((2, 3, 5, 4)))

    def resized(x):
        return (
            *(F.interpolate(x, (9, 7), mode=mode) for mode in ("bilinear", "bicubic", "nearest")),
            *(F.interpolate(x, scale_factor=2, mode=mode, align_corners=True) for mode in ("bilinear", "bicubic")),
        )

    close(compile_function(resized, [x])(x), reference(resized, x))


def test_reductions_of_nothing(compile_function):
    def reduced(x):
        none = x[:, :0]
        return (
            *(each(of, *dims) for each in (torch.any, torch.all) for of in (none, none > 0, none.byte()) for dims in
              ((), (1,), (-1, True))),
            *(none.mean(), none.mean(1), none.mean((0, 1), keepdim=True), none.sum(1), none.prod()),
        )  # fmt: skip

    x = torch.ones(3, 2)
    close(compile_function(reduced, [x])(x), reference(reduced, x))


def test_powers(compile_function, rng, capfd):
    """Powers agree, and TVM does not warn of them."""

    def powers(x):
        return x**2, x**3, x**4, x**7, x.abs() ** 3.5, x**-3, (10 * x).int() ** 3, x.bfloat16() ** 5, x.half() ** x

    x = torch.from_numpy(rng.normal(size=40)).bfloat16().float()  # numbers that each of the types has
    results = compile_function(powers, [x], opt_level=0)(x)
    assert [str(got.dtype) for got in results] == [specs.dtype_of(wanted) for wanted in powers(x)]
    for got, wanted in zip(results, reference(powers, x).values, strict=True):
        close(got, wanted, terms=8, scale=np.abs(wanted))
    assert capfd.readouterr().err == ""


def test_roots_of_halves(compile_function):
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -1.0, 4.0, 3.0, 6e-8]).half()

    def roots(x):
        return x**0.5, x**-0.5

    for got, wanted in zip(compile_function(roots, [x])(x), roots(x), strict=True):  # in float64 -inf has another root
        close(got, wanted, scale=np.abs(wanted.numpy()), rounded=True)
        np.testing.assert_array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


def test_bfloat16(compile_function, rng):
    """Orders, which go by a float's bits, and bools, whose vectors TVM does not lower beside it."""

    def of_bfloat16(x):
        between = (x > -20) & (x < 30)
        return (
            *(x.argmax(), x.argmin(1), *x.sort(1), *x.topk(3, 1), *x.max(0), *x.cummax(1), x.median()),
            *(between, between.all(1), torch.where(between, x, 0), torch.fmod(x, 2.5), torch.isnan(x)),
        )

    x = torch.from_numpy(rng.permutation(np.arange(-128, 128)).reshape(8, 32)).bfloat16()
    for number, (got, wanted) in enumerate(zip(compile_function(of_bfloat16, [x])(x), of_bfloat16(x), strict=True)):
        assert str(got.dtype) == specs.dtype_of(wanted), number
        np.testing.assert_array_equal(np.asarray(got).astype("float32"), wanted.float().numpy(), str(number))


def test_a_mask_with_more_than_there_is_to_scatter():
    network = Function(lambda x, y: x.masked_scatter(x > 0, y)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": (4,), "y": (2,)}), opt_level=0)
    with pytest.raises(IndexError, match="expected an index from -2 to 1, got 2"):
        lib(np.ones(4, "float32"), np.ones(2, "float32"))


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator, whose weight is complex."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4, 6, 5, dtype=torch.cfloat))

    def forward(self, x):
        low = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[:, :, :6, :5], self.weight)
        spectrum = torch.zeros(x.shape[0], 4, x.shape[2], x.shape[3] // 2 + 1, dtype=torch.cfloat)
        spectrum[:, :, :6, :5] = low
        return (
            torch.fft.irfft2(spectrum, s=x.shape[-2:]),
            (low * low.conj() / (2 + 1j)).abs(),
            low.angle(),
            torch.where(x[0, 0, 0, 0] < 9, low, x[0, 0, 0, 0]).imag,
        )


def of_sound(x):
    spectrum = torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True)
    return spectrum.abs(), torch.view_as_real(torch.fft.fft(x)), torch.fft.ifft(torch.polar(x, x)).imag


@pytest.mark.parametrize(("make", "shape"), [(Spectral, (2, 3, 18, 130)), (lambda: Function(of_sound), (2, 331))])
def test_fourier_transforms(make, shape):
    network, x = make(), torch.randn(*shape)
    lib = tvmfast.build(*tvmfast.from_pytorch(network.eval(), {"x": x}), opt_level=3)
    close(lib(x.numpy()), reference(network, x))


def test_what_is_real_in_a_spectrum_stays_so_beside_nan():
    """Its first number and the middle one of a real signal's; irfft does not read their imaginary parts."""
    x, spectrum = torch.randn(2, 64), torch.randn(2, 9, 2)
    x[0, 5], spectrum[:, [0, 8], 1] = math.nan, math.nan

    def function(x, y):
        spectra = torch.view_as_real(torch.fft.rfft(x)), torch.view_as_real(torch.fft.fft(x))
        return *spectra, torch.fft.irfft(torch.view_as_complex(y))

    half, whole, signal = build(Function(function), x, spectrum)(x.numpy(), spectrum.numpy())
    for each in (half, whole):
        is_nan = np.ones(each.shape[1:], bool)
        is_nan[[0, 32], 1] = False
        np.testing.assert_array_equal(np.isnan(each), np.stack([is_nan, 0 * is_nan]))
        assert not each[:, [0, 32], 1].any()
    close(signal, torch.fft.irfft(torch.view_as_complex(spectrum.nan_to_num(0).double())), terms=16)


def test_a_transform_that_pads_some_sizes_of_a_dynamic_dim_and_cuts_others():
    network = Function(lambda x: torch.view_as_real(torch.fft.rfft(x, n=6))).eval()
    for dim in ("n", tvmfast.Dim("n", 3)):
        with pytest.raises(NotImplementedError, match=r"where 'n' is [13] .*; use Dim\('n', 7\), or give"):
            tvmfast.from_pytorch(network, {"x": (2, dim)})
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"x": (2, tvmfast.Dim("n", 7))}))
    x = torch.randn(2, 9)
    close(lib(x.numpy()), network(x.double()), terms=16)


def test_norms_of_halves_whose_powers_are_none():
    x = torch.tensor([-2e-4], dtype=torch.float16)
    assert build(Function(lambda x: torch.linalg.vector_norm(x, 3)), x)(x.numpy()) == -x.numpy()[0]


# Reflected positions take 7 seconds to compile; test_pytorch_edges.py has them in space.
@pytest.mark.parametrize("padding", sampled(["zeros", "border", "reflection"], ["zeros", "border"]))
def test_a_grid_of_positions_that_are_far_or_not_finite(padding):
    far = [math.nan, math.inf, -math.inf, 3e9, -3e9, 1.5, -0.3]
    grid = torch.cartesian_prod(torch.tensor(far), torch.tensor(far)).reshape(1, 7, 7, 2)
    x = torch.randn(1, 2, 3, 4)
    methods = ["nearest", "bilinear", "bicubic"]

    def function(x, grid):
        how = {"padding_mode": padding, "align_corners": False}
        return tuple(F.grid_sample(x, grid, method, **how) for method in methods)

    for got, wanted in zip(
        build(Function(function), x, grid)(x.numpy(), grid.numpy()), function(x.double(), grid.double()), strict=True
    ):
        close(got, wanted, terms=64)


def test_a_grid_of_bfloat16():
    specs = {"x": ((1, 1, 2, 2), "bfloat16"), "grid": ((1, 1, 2, 2), "bfloat16")}
    network = Function(lambda x, grid: F.grid_sample(x, grid, align_corners=False)).eval()
    x, grid = np.ones((1, 1, 2, 2), "bfloat16"), np.zeros((1, 1, 2, 2), "bfloat16")
    got = tvmfast.build(*tvmfast.from_pytorch(network, specs))(x, grid)
    assert str(got.dtype) == "bfloat16" and (got == 1).all()


def test_transforms_of_several_axes_keep_real_sums_real():
    """The sums of all, and of each second, overflow to -inf; no NaN comes of infinity times a sine of 0."""
    x = np.full((2, 3, 4), -3e38, "float32")
    network = Function(lambda x: torch.view_as_real(torch.fft.fftn(x)))
    got = build(network, torch.from_numpy(x))(x)
    assert got[0, 0, 0].tolist() == [-math.inf, 0.0]
    assert not got[:, 0, ::2, 1].any()


@pytest.mark.parametrize("shape", [(2, 5), (3, 4)])
def test_transforms_of_real_numbers_that_pytorch_makes_complex(shape):
    def function(x):
        complexes = torch.fft.fft2(x), torch.fft.ifftn(x), torch.fft.ifft(x, dim=0)
        pairs = (torch.view_as_real(each.resolve_conj()) for each in complexes)
        return torch.fft.irfft(x), torch.fft.irfft2(x), torch.fft.hfft(x), *pairs

    x = torch.randn(shape)
    for got, wanted in zip(build(Function(function), x)(x.numpy()), function(x.double()), strict=True):
        close(got, wanted, terms=16)


def test_complex_numbers_are_refused_where_tvm_would_meet_them():
    with pytest.raises(ValueError, match=r"it returns complex numbers, which TVM lacks; return torch\.view_as_real"):
        tvmfast.from_pytorch(Function(torch.fft.rfft).eval(), {"x": (4,)})
    with pytest.raises(NotImplementedError, match=r"complex numbers: tvmfast lacks aten\.tanh\.default of them"):
        tvmfast.from_pytorch(Function(lambda x: torch.fft.rfft(x).tanh().real).eval(), {"x": (4,)})
    with pytest.raises(NotImplementedError, match=r"complex numbers: tvmfast lacks aten\.var\.correction of them"):
        tvmfast.from_pytorch(Function(lambda x: torch.fft.rfft(x).var().abs()).eval(), {"x": (4,)})


def of_matrices(x, y):
    square = x @ x.mT + torch.eye(x.shape[-1])
    return (
        *(torch.linalg.inv(x), torch.linalg.det(x), torch.logdet(square), *torch.linalg.slogdet(x)),
        *(torch.linalg.solve(x, y.mT, left=False), torch.linalg.cholesky(square)),
        torch.linalg.solve_triangular(x.triu(), y, upper=True, unitriangular=False),
    )


def of_matrices_too(x, y):
    """More ways to call what `of_matrices` has."""
    square = x @ x.mT + torch.eye(x.shape[-1])
    return (
        *(torch.linalg.solve(x, y), torch.linalg.solve(x[0], y[0, :, 0])),
        torch.linalg.cholesky(square, upper=True),
    )


@pytest.mark.parametrize("function", [of_matrices, pytest.param(of_matrices_too, marks=pytest.mark.full)])
def test_linear_algebra(function):
    x = torch.randn(3, 7, 7, dtype=torch.float64) + 3 * torch.eye(7)
    y, network = torch.randn(3, 7, 2, dtype=torch.float64), Function(function)
    lib = tvmfast.build(*tvmfast.from_pytorch(network.eval(), {"x": x, "y": y}), opt_level=0)
    condition = np.linalg.cond(x @ x.mT + torch.eye(7)).max()
    for got, wanted in zip(lib(x.numpy(), y.numpy()), network(x, y), strict=True):
        close(got, wanted, terms=7, scale=condition * np.abs(wanted.numpy()).max())


def test_a_factor_of_cholesky_as_far_as_it_goes():
    """Of the half that is asked for; from the first pivot on that is not positive, what is given."""
    x = torch.tensor([[4.0, 2, 6, 1], [8, -5, 3, 9], [2, 3, 7, 5], [6, 9, 1, 3]])
    network = Function(lambda x: (*torch.linalg.cholesky_ex(x), *torch.linalg.cholesky_ex(x, upper=True)))
    for got, wanted in zip(build(network, x)(x.numpy()), network(x), strict=True):
        np.testing.assert_array_equal(got, wanted.numpy())
    x = torch.tensor([[4.0, 2], [0, 5]])
    upper = Function(lambda x: torch.linalg.cholesky(x, upper=True))
    np.testing.assert_array_equal(build(upper, x)(x.numpy()), [[2, 1], [0, 2]])


@pytest.mark.parametrize(
    ("function", "bad", "message"),
    [
        (torch.linalg.inv, np.ones((2, 2)), "linalg.inv: expected a matrix that has an inverse, got a singular one"),
        (torch.linalg.cholesky, -np.eye(2), "linalg.cholesky: expected a positive-definite matrix"),
        (
            lambda x: torch.index_put(x, [x > 0], torch.arange(2.0)),
            np.ones((2, 2)),
            "index_put: expected a mask that picks 2, one for each value; the difference is 2",
        ),
    ],
)
def test_what_pytorch_refuses_at_a_run_is_refused_at_a_run(function, bad, message):
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), {"x": (2, 2)}), opt_level=0)
    lib(np.eye(2, dtype="float32"))
    with pytest.raises(IndexError, match=message):
        lib(bad.astype("float32"))


def test_a_bag_of_embeddings():
    bags = [torch.nn.EmbeddingBag(10, 4, mode=mode, padding_idx=3).eval() for mode in ("sum", "mean", "max")]
    rows, offsets = torch.tensor([1, 2, 3, 3, 4, 9]), torch.tensor([0, 2, 4, 4])
    network = Function(lambda rows, offsets: tuple(bag(rows, offsets) for bag in bags)).eval()
    network.bags = torch.nn.ModuleList(bags).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(network, {"rows": rows, "offsets": offsets}), opt_level=0)
    close(lib(rows.numpy(), offsets.numpy()), reference(network, rows, offsets))
    with pytest.raises(IndexError, match="expected an index from -10 to 9, got 10"):
        lib(np.full(6, 10), offsets.numpy())


def test_resizing_float64_to_dynamic_dims_is_refused():
    net = Function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")).eval()
    with pytest.raises(NotImplementedError, match="float64 with dynamic dims, which TVM computes in float32"):
        tvmfast.from_pytorch(net, {"x": (("n", 3, "h", 4), "float64")})


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_quotients_that_round_up_to_an_integer(rng, dtype, level):
    """1 / 0.1 is 10, and 1 // 0.1 is 9; of large ones the next number below may be another integer."""
    spread = 8 if dtype == torch.float16 else 24
    x, y = (torch.from_numpy(rng.normal(size=4000) * 2.0 ** rng.integers(0, spread, 4000)).to(dtype) for _ in "xy")
    x[:8], y[:8] = 1.0, torch.tensor([0.1, -0.1, 0.3, 0.7, math.inf, -math.inf, 0.0, -0.0])
    function = Function(lambda x, y: (torch.floor_divide(x, y), x // 0.1, torch.div(x, y, rounding_mode="floor")))
    wanted = function(x, y)
    if dtype == torch.float16:  # PyTorch rounds x - x % y to a half, and so may be 1 off
        exact = torch.floor(x.double() / y.double()).half()
        exact[:8] = wanted[0][:8]
        wanted = exact, wanted[1], exact
    for got, theirs in zip(build(function, x, y, level=level)(x.numpy(), y.numpy()), wanted, strict=True):
        np.testing.assert_array_equal(got, theirs)


def test_bfloat16_by_a_scalar():
    """The remainder of the scalar as a bfloat16, and the quotient by the exact one."""
    x = torch.linspace(-300, 300, 601)
    function = Function(lambda x: (torch.fmod(x.bfloat16(), 0.1).float(), (x.bfloat16() // 0.1).float()))
    for got, theirs in zip(build(function, x)(x.numpy()), function(x), strict=True):
        np.testing.assert_array_equal(got, theirs)


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pixels_without_weight_are_not_read(rng, mode, level):
    """Of an image with a NaN and an infinity those pixels are special whose neighbours hold one."""
    x = torch.from_numpy(rng.normal(size=(1, 2, 6, 10)).astype("float32"))
    x[0, 0, 2, 4], x[0, 1, 5, 9] = math.nan, math.inf
    sizes = (3, 5), (4, 7), (9, 13), (2, 3)
    function = Function(lambda x: tuple(F.interpolate(x, size, mode=mode, antialias=True) for size in sizes))
    close(build(function, x, level=level)(x.numpy()), reference(function, x))


def test_factors_of_determinants(rng):
    """PyTorch factors the transpose of a contiguous matrix; its pivots are LAPACK's."""
    x = torch.from_numpy(rng.normal(size=(3, 5, 5)))
    aten = torch.ops.aten
    function = Function(lambda x: (*aten._linalg_det(x), *aten._linalg_slogdet(x), *aten._linalg_det(x.mT)))
    for got, theirs in zip(build(function, x)(x.numpy()), function(x), strict=True):
        assert got.dtype == theirs.numpy().dtype
        close(got, theirs, terms=25, scale=abs(theirs.double()).max().item())
