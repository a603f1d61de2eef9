"""PyTorch's special functions, bits of numbers, divisors, factorizations and covariances through `from_pytorch`."""

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import Function, sampled

import tvmfast
from tvmfast.core import rounding


def tensor(array) -> torch.Tensor:
    """A result, also of bfloat16, which NumPy lacks."""
    array = np.asarray(array)
    is_bfloat16 = array.dtype == "bfloat16"
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1e-310, 3e38, 1e300, -1.0, -2.0, 1.0]


def log_gamma(x):
    return mpmath.re(mpmath.loggamma(x))


def erfcx(x):
    return mpmath.exp(x * x) * mpmath.erfc(x)


def log_ndtr(x):
    return mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2) if x > -1 else mpmath.log(mpmath.ncdf(x))


def ndtri(p):
    return -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * p)


def polygamma(order):
    """Of the terms that cancel below 0, each raised to a power, the sizes are those of the one above 0."""

    def size(x, wanted):
        return (order + 1) * (abs(wanted) + 2 * abs(mpmath.polygamma(order, 1 - min(x, 0))))

    return functools.partial(torch.polygamma, order), functools.partial(mpmath.polygamma, order), size


def bessel(name, order, scaled):
    """The power series is one of x**2, whose rounding it magnifies by x / 2."""
    return (
        getattr(torch.special, name),
        lambda x: mpmath.besseli(order, x) * (mpmath.exp(-abs(x)) if scaled else 1),
        lambda x, wanted: abs(wanted) * (1 + min(abs(x), 20) / 2),
    )


# PyTorch's function, mpmath's, and the size of what was rounded where this is more than the result.
FUNCTIONS = {
    "lgamma": (torch.lgamma, log_gamma, lambda x, wanted: max(abs(wanted), 1)),
    "digamma": (torch.digamma, mpmath.digamma, lambda x, wanted: abs(wanted) + abs(mpmath.digamma(1 - min(x, 0))) + 1),
    **{f"polygamma {n}": polygamma(n) for n in (1, 2, 5, 20)},
    "erfinv": (torch.erfinv, mpmath.erfinv, lambda x, wanted: abs(wanted)),
    "ndtri": (torch.special.ndtri, ndtri, lambda x, wanted: abs(wanted)),
    "erfc": (torch.erfc, mpmath.erfc, lambda x, wanted: abs(wanted)),
    "erfcx": (torch.special.erfcx, erfcx, lambda x, wanted: abs(wanted)),
    "log_ndtr": (torch.special.log_ndtr, log_ndtr, lambda x, wanted: abs(wanted) * (1 + x * x)),
    "i0": bessel("i0", 0, False),
    "i0e": bessel("i0e", 0, True),
    "i1": bessel("i1", 1, False),
    "i1e": bessel("i1e", 1, True),
}
# Where PyTorch's values are not those of its own other dtype or order, or of the function: poles, and infinity.
OTHERWISE = {
    "erfcx": {-math.inf: math.inf},
    **{f"i{n}": {math.inf: math.inf, -math.inf: (1 - 2 * n) * math.inf} for n in (0, 1)},
    **{
        f"polygamma {n}": {
            **dict.fromkeys((-math.inf, math.nan), math.nan),
            **{math.inf: 0.0, **dict.fromkeys((0.0, -0.0, -1.0, -2.0), math.inf if n % 2 else -math.inf)},
        }
        for n in (1, 2, 5, 20)
    },
}


def points(rng) -> np.ndarray:
    wide = [rng.normal(size=40) * 4, rng.uniform(-1, 1, 40), rng.uniform(0, 1, 20), rng.uniform(0, 40, 20)]
    return np.concatenate([*wide, 10.0 ** rng.uniform(-30, 2, 20), -(10.0 ** rng.uniform(-20, 1, 20))])


@pytest.mark.parametrize(
    "case",
    sampled([(kind, level) for kind in ("float32", "float64") for level in (0, 3)], [("float32", 3), ("float64", 0)]),
)
def test_functions(case, compile_function, rng):
    """To half a unit in the last place of float32, and of float64 what some tens of roundings explain."""
    dtype, level = case
    x = torch.from_numpy(np.concatenate([SPECIAL, points(rng)])).to(getattr(torch, dtype))
    functions = [function for function, *_ in FUNCTIONS.values()]
    results = compile_function(lambda x: tuple(each(x) for each in functions), [x], opt_level=level)(x)
    info, double = np.finfo(dtype), rounding.share(16, np.finfo("float64").eps)
    for (name, (function, exact, size)), got in zip(FUNCTIONS.items(), results, strict=True):
        got, theirs = np.asarray(got), function(x).numpy().copy()
        for place, wanted in OTHERWISE.get(name, {}).items():
            theirs[x.isnan() if math.isnan(place) else x == place] = wanted
        special = ~np.isfinite(theirs) | (theirs == 0) | (np.abs(x.numpy()) > 1e6)
        close(got[special], theirs[special].astype("float64"), 64, scale=np.abs(theirs[special]).astype("float64"))
        checked = 0
        for place, ours in zip(x.numpy()[~special], got[~special], strict=True):
            with mpmath.workdps(60):
                place = mpmath.mpf(float(place))
                wanted = exact(place)
                if not info.smallest_normal < abs(wanted) < info.max:
                    continue
                half = info.eps / 2 * abs(wanted) if dtype == "float32" else 0
                error = abs(mpmath.mpf(float(ours)) - wanted)
                assert error <= half + double * size(place, wanted), f"{name} of {place}: {ours}, wanted {wanted}"
                checked += 1
        assert checked > 15, name


def test_dtypes_of_functions(compile_function):
    """Halves and integers by way of float32, as PyTorch."""
    x = torch.tensor([0.25, 0.5, 0.75])
    given = {"a": x.half(), "b": x.bfloat16(), "c": torch.tensor([1, 2, 7]), "d": torch.tensor(0.5)}
    functions = torch.lgamma, torch.special.i0e, torch.erfc
    results = iter(compile_function(lambda *xs: tuple(f(x) for x in xs for f in functions), given)(*given.values()))
    for each in given.values():
        for function in functions:
            got, wanted = tensor(next(results)), function(each)
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            exact = function(each.double())
            assert ((got.double() - exact).abs() <= torch.finfo(wanted.dtype).eps * exact.abs()).all()


def test_orders_of_polygamma_that_are_refused(compile_function):
    with pytest.raises(NotImplementedError, match="polygamma of the order 21"):
        compile_function(lambda x: torch.polygamma(21, x), {"x": (2,)})


def test_terms_of_special_functions(compile_function, rng):
    """What PyTorch says with them."""
    x, y = torch.from_numpy(rng.uniform(1.5, 9, (2, 3, 5)).astype("float32"))

    def function(x, y):
        windows = x[0] * torch.kaiser_window(5, dtype=x.dtype), torch.kaiser_window(1) + x[:1, :1]
        values = torch.special.xlog1py(x, y), torch.special.entr(x / 9), torch.mvlgamma(x, 2)
        return *values, torch.polygamma(0, x), *windows

    close(compile_function(function, [x, y])(x, y), reference(function, x, y, runs=50), 4)


def test_log1p_of_a_scaled_number(compile_function):
    """The rounding of 1 + x is a part of the method, also where a chain of constants becomes one."""
    x = torch.logspace(-10, -1, 64)
    for function in (lambda x: torch.log1p(x / -2), lambda x: torch.log1p(x * 0.3 + x), lambda x: torch.log1p(x * 3)):
        wanted = function(x.double()).numpy()
        close(compile_function(function, [x], opt_level=3)(x), wanted, 8, scale=np.abs(wanted))


# ---------------------------------------------------------------- bits


KINDS = torch.float32, torch.float64, torch.float16, torch.bfloat16


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_signs_exponents_and_neighbours(level, compile_function, rng):
    random = np.concatenate([rng.normal(size=9), 10.0 ** rng.uniform(-320, 300, 9)])
    pairs = np.stack(np.meshgrid([*SPECIAL, *random], [*SPECIAL, *random[::4]])).reshape(2, -1)
    inputs = [torch.from_numpy(each).to(kind) for kind in KINDS for each in pairs]

    def function(*xs):
        results = []
        for x, y in zip(xs[::2], xs[1::2], strict=True):
            results += [torch.signbit(x), torch.copysign(x, y), torch.copysign(x, -2.0)]
            results += torch.frexp(x) if x.dtype in KINDS[:2] else []
            results += [torch.nextafter(x, y)] if x.dtype != torch.float16 else []
        return tuple(results)

    lib = compile_function(function, inputs, opt_level=level)
    for number, (got, wanted) in enumerate(zip(lib(*inputs), function(*inputs), strict=True)):
        got = tensor(got)
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True, msg=f"result {number}")
        if got.is_floating_point():
            assert torch.equal(torch.signbit(got)[~got.isnan()], torch.signbit(wanted)[~wanted.isnan()])


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_views_of_other_dtypes(level, compile_function, rng):
    """Of the same width, of a smaller one and of a larger one; of a tensor of rank 0, and of bools."""
    x, scalar = torch.from_numpy(rng.normal(size=(3, 8)).astype("float32")), torch.tensor(-math.pi)
    whole = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, (2, 4)))

    def function(x, whole, scalar):
        half = x.half()
        words = x.view(torch.int32), x.view(torch.uint8), x.view(torch.int64), half.view(torch.int16)
        floats = whole.view(torch.float64).view(torch.int32), half.view(torch.bfloat16).view(torch.int8)
        bools = (x > 0).view(torch.uint8), (x > 0).view(torch.int8), (x > 0).to(torch.uint8).view(torch.bool)
        numbers = (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32), x.view(torch.uint8).view(torch.float32)
        return (*words, *floats, *bools, *numbers, scalar.view(torch.int32), whole.view(torch.int16))

    lib = compile_function(function, [x, whole, scalar], opt_level=level)
    for number, (got, wanted) in enumerate(zip(lib(x, whole, scalar), function(x, whole, scalar), strict=True)):
        got = tensor(got)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), number


def test_views_as_complex_numbers_are_refused(compile_function):
    with pytest.raises(NotImplementedError, match="complex"):
        compile_function(lambda x: torch.view_as_real(x.view(torch.complex64)), {"x": (2, 4)})


# ---------------------------------------------------------------- integers


def test_divisors_and_multiples(compile_function, rng):
    inputs = []
    for kind in (torch.int64, torch.int32, torch.int8, torch.uint8):
        inputs += [torch.from_numpy(rng.integers(0 if kind is torch.uint8 else -100, 100, (5, 7))).to(kind)]
    large = torch.tensor([7540113804746346429, 4660046610375530309, -(2**62), 0, 6])

    def function(large, *xs):
        pairs = [(x, x[:1] - x[:, :1]) for x in xs]
        results = [torch.gcd(x, y) for x, y in pairs] + [torch.lcm(x, y) for x, y in pairs[:2]]
        return *results, torch.gcd(large, large.flip(0)), torch.gcd(xs[0], xs[1]), torch.gcd(large[0], large[1])

    results = compile_function(function, [large, *inputs])(large, *inputs)
    for number, (got, wanted) in enumerate(zip(results, function(large, *inputs), strict=True)):
        got = tensor(got)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), number


# ---------------------------------------------------------------- matrices


@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 6, 4), (3, 4, 7)])
def test_lu(shape, compile_function, rng):
    x = torch.from_numpy(rng.normal(size=shape))

    def function(x):
        lu, pivots = torch.linalg.lu_factor(x)
        more = torch.cat([pivots, pivots[..., :1]], -1)  # one more than is read
        parts = *torch.lu_unpack(lu, pivots), torch.lu_unpack(lu, more, unpack_data=False)[0]
        return (lu, pivots, *torch.linalg.lu_factor_ex(x), *torch.linalg.lu(x), *parts, *torch.linalg.lu(x * 0))

    close(compile_function(function, [x])(x), [each.numpy() for each in function(x)], 64)


def test_a_matrix_without_a_pivot(compile_function):
    x = torch.tensor([[2.0, 4.0, 8.0], [4.0, 8.0, 16.0]]).double()
    for given in (x, x.mT.contiguous()):
        close(
            compile_function(torch.linalg.lu_factor_ex, [given])(given),
            [each.numpy() for each in torch.linalg.lu_factor_ex(given)],
            8,
        )


@pytest.mark.parametrize("part", [0, 1])
def test_factors_without_a_pivot_are_refused_at_a_run(part, compile_function):
    lib = compile_function(lambda x: torch.linalg.lu_factor(x)[part], {"x": (2, 2)})
    lib(np.eye(2, dtype="float32"))
    with pytest.raises(
        IndexError, match="linalg.lu_factor: expected a matrix whose pivots are not 0, got .* for row 2"
    ):
        lib(np.ones((2, 2), "float32"))


def solutions(a, b, right):
    """By factors of a positive definite matrix: by LU from both sides, by Cholesky's and by halves."""
    lu, pivots = torch.linalg.lu_factor(a)
    lower = torch.linalg.cholesky(a)
    upper = lower.mT.contiguous()
    for adjoint in (False, True):
        yield torch.linalg.lu_solve(lu, pivots, b, adjoint=adjoint)
        yield torch.linalg.lu_solve(lu, pivots, right, left=False, adjoint=adjoint)
    yield from (torch.cholesky_solve(b, lower), torch.cholesky_solve(b, upper, upper=True))
    yield from (torch.cholesky_inverse(lower), torch.cholesky_inverse(upper, upper=True))
    for each, how in ((upper, True), (lower, False)):
        yield torch.triangular_solve(b, each, upper=how)[0]
        yield torch.triangular_solve(b, each, upper=how, transpose=True)[0]
    yield torch.triangular_solve(b, lower, upper=False, unitriangular=True)[0]


def test_solutions_by_factors(compile_function, rng):
    root = torch.from_numpy(rng.normal(size=(2, 5, 5)))
    a, b = root @ root.mT + 5 * torch.eye(5), torch.from_numpy(rng.normal(size=(2, 5, 3)))
    inputs = a, b, b.mT.contiguous()
    results = compile_function(lambda *xs: tuple(solutions(*xs)), inputs)(*inputs)
    close(results, [each.numpy() for each in solutions(*inputs)], 64 * float(torch.linalg.cond(a).max()))


@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 6, 4), (3, 4, 7), (3, 1), (1, 3)])
def test_reflections(shape, compile_function, rng):
    x = torch.from_numpy(rng.normal(size=shape))
    other = torch.from_numpy(rng.normal(size=(*shape[:-1], 3)))

    def function(x, other):
        vectors, factors = torch.geqrf(x)
        for mode in ("reduced", "complete", "r"):
            yield from torch.linalg.qr(x, mode)[mode == "r" :]
        yield from (vectors, factors, torch.linalg.qr(x * 0)[1])
        if shape[-1] <= shape[-2]:
            yield from (torch.linalg.householder_product(vectors, factors), torch.ormqr(vectors, factors, other))
            yield torch.ormqr(vectors, factors, other.mT, left=False, transpose=True)

    results = compile_function(lambda *xs: tuple(function(*xs)), [x, other])(x, other)
    close(results, [each.numpy() for each in function(x, other)], 64 * shape[-1])


def test_reflections_of_large_and_special_numbers(compile_function):
    for given in (torch.tensor([[3e30, 1.0], [4e30, 2.0]]), torch.tensor([[1.0, 2.0], [math.nan, 1.0]])):
        got, wanted = compile_function(torch.linalg.qr, [given])(given), torch.linalg.qr(given.double())
        close(got, [each.numpy() for each in wanted], 8)


def test_pairs(compile_function, rng):
    """Of rows, and of the indices of halves of a matrix, as networks of interactions between features have them."""
    x = torch.from_numpy(rng.normal(size=(5, 4)).astype("float32"))

    def function(x):
        lower, upper = torch.tril_indices(5, 4, -1), torch.triu_indices(5, 4)
        distances = (F.pdist(x, p) for p in (0.0, 1.0, 2.0, 3.5, math.inf))
        return *distances, x[lower[0], lower[1]], x[tuple(upper)], F.pdist(x[:1])

    close(compile_function(function, [x])(x), reference(function, x), 4)


def test_covariances(compile_function, rng):
    x, weights = torch.from_numpy(rng.normal(size=(4, 9))), torch.from_numpy(rng.uniform(0.5, 2, 9))
    counts = torch.from_numpy(rng.integers(0, 4, 9) + 1)

    def function(x, weights, counts):
        yield from (torch.cov(x), x.cov(correction=0), x[0].cov(), torch.cov(x.float()), torch.cov(counts))
        yield from (torch.cov(x, aweights=weights), torch.cov(x, correction=2, fweights=counts, aweights=weights))
        yield from (torch.cov(x, fweights=counts), torch.corrcoef(x), x[0].corrcoef(), torch.corrcoef(counts.double()))

    inputs = x, weights, counts
    results = compile_function(lambda *xs: tuple(function(*xs)), inputs)(*inputs)
    close(results, reference(lambda *xs: tuple(function(*xs)), *inputs, runs=50), 36)


def test_traced_and_scripted_covariances(rng):
    x = torch.from_numpy(rng.normal(size=(3, 9)))
    net = Function(lambda x: (torch.cov(x), torch.corrcoef(x)))

    class Scripted(torch.nn.Module):
        def forward(self, x):
            return torch.cov(x, correction=0)

    for model in (torch.jit.trace(net, x), torch.jit.script(Scripted())):
        model = model.eval()
        close(tvmfast.build(*tvmfast.from_pytorch(model, [("x", x)]))(x), reference(model, x), 9)


@pytest.mark.filterwarnings("error:tvmfast leaves a graph to PyTorch")
def test_torch_compile(rng):
    x = torch.from_numpy(rng.uniform(1.5, 4, (3, 4)).astype("float32"))

    def values(x):
        return (
            torch.lgamma(x),
            torch.digamma(x),
            torch.erfinv(x / 5),
            torch.i0(x),
            torch.special.log_ndtr(x),
            torch.cov(x),
        )

    def bits(x):
        return (x + 1).view(torch.int32), *torch.frexp(x), torch.signbit(x), torch.gcd(x.long(), x.long() + 2)

    with torch.no_grad():
        close(torch.compile(values, backend="tvmfast")(x), reference(values, x), 8)
        assert all(map(torch.equal, torch.compile(bits, backend="tvmfast")(x), bits(x)))


def test_dynamic_dims(compile_function, rng):
    def function(x):
        bits = x.view(torch.int32), x.view(torch.int16), torch.signbit(x - 2), torch.nextafter(x, 5 - x)
        return *bits, torch.erfc(x), torch.special.erfcx(x), torch.lgamma(x.T * 2)

    lib = compile_function(function, {"x": ("n", 4)}, opt_level=3)
    for size in (1, 5):
        x = torch.from_numpy(rng.uniform(1, 4, (size, 4)).astype("float32"))
        close(lib(x)[4:], [each.numpy() for each in function(x.double())[4:]])
        assert all(torch.equal(tensor(got), wanted) for got, wanted in zip(lib(x)[:4], function(x)[:4], strict=True))


def test_kernels_for_static_dims_say_so(compile_function):
    with pytest.raises(NotImplementedError, match="the kernel 'gcd', .* is for static dims"):
        compile_function(torch.gcd, {"x": (("n", 4), "int64"), "y": (("n", 4), "int64")})
