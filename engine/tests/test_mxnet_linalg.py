"""from_mxnet: linear algebra, interleaved heads, and what is sampled at grids, against MXNet and float64."""

import numpy as np
import pytest
from agreement import close

import tvmfast
from tvmfast.frontends.mxnet import gluon

if not gluon.installed():
    pytest.skip("the mxnet extra is not installed", allow_module_level=True)

import mxnet as mx
from test_import_mxnet import mxnets

S, X, Y, Z = mx.sym, mx.sym.var("x"), mx.sym.var("y"), mx.sym.var("z")
L, C = S.linalg, S.contrib
N = 5  # of most matrices
BOOLS = (False, True)


def triangle(rng, lower: bool) -> np.ndarray:
    """Triangular matrices that are far from singular, with NaN where nobody may read."""
    a = rng.uniform(-1, 1, (2, N, N)) + 2 * N * np.eye(N)
    unread = np.triu_indices(N, 1) if lower else np.tril_indices(N, -1)
    a[(slice(None), *unread)] = np.nan
    return a


def drawn(*shape: int):
    return lambda rng: rng.uniform(-1, 1, shape)


def definite(lower: bool):
    def of(rng):
        a = rng.uniform(-1, 1, (2, N, N))
        return np.where(np.isnan(triangle(rng, lower)), np.nan, a @ a.transpose(0, 2, 1) + N * np.eye(N))

    return of


def regular(rng):
    return rng.uniform(-1, 1, (2, N, N)) + N * np.eye(N)[::-1]


# Each: a name, a symbol, and what draws its inputs.
CASES = [
    *(
        (
            f"{name}, transposed {turn}, right {right}, lower {lower}",
            getattr(L, name)(X, Y, transpose=turn, rightside=right, lower=lower, alpha=0.5),
            (lambda rng, lower=lower: triangle(rng, lower), drawn(2, *((3, N) if right else (N, 3)))),
        )
        for name in ("trmm", "trsm")
        for turn in BOOLS
        for right in BOOLS
        for lower in BOOLS
    ),
    *((f"potrf, lower {lower}", L.potrf(X, lower=lower), (definite(lower),)) for lower in BOOLS),
    *(
        (f"potri, lower {lower}", L.potri(X, lower=lower), (lambda rng, lower=lower: triangle(rng, lower),))
        for lower in BOOLS
    ),
    *(
        (f"gemm2, axis {axis}", L.gemm2(X, Y, axis=axis, transpose_b=True, alpha=2), (drawn(3, 4, 5), drawn(3, 4, 5)))
        for axis in (-2, 0)
    ),
    ("gemm", L.gemm(X, Y, Z, alpha=0.5, beta=2, transpose_a=True), (drawn(2, 4, 3), drawn(2, 4, 5), drawn(2, 3, 5))),
    ("gemm, axis 0", L.gemm(X, Y, Z, beta=2, axis=0), (drawn(4, 2, 3), drawn(3, 2, 5), drawn(4, 2, 5))),
    ("gemm, beta 0", L.gemm(X, Y, Z, beta=0), (drawn(4, 3), drawn(3, 5), lambda rng: np.full((4, 5), np.nan))),
    ("sumlogdiag", L.sumlogdiag(X), (lambda rng: triangle(rng, True),)),
    ("sumlogdiag of one", L.sumlogdiag(X), (lambda rng: triangle(rng, False)[0],)),
    ("det", L.det(X), (regular,)),
    ("det of a singular one", L.det(X), (lambda rng: np.ones((3, 3)),)),
    ("slogdet", S.Group(list(L.slogdet(X))), (regular,)),
    ("slogdet of one", S.Group(list(L.slogdet(X))), (lambda rng: -regular(rng)[0],)),
    ("inverse", L.inverse(X), (regular,)),
    ("inverse of one number", L.inverse(X), (lambda rng: np.full((1, 1), 1e30),)),
]


@pytest.mark.parametrize("level", [0, 3])
def test_linear_algebra_is_that_of_mxnet_in_float64(level, rng):
    outputs, names, arrays = [], [], {}
    for number, (name, symbol, draws) in enumerate(CASES):
        given = {f"{key}": draw(rng).astype("float32") for key, draw in zip("xyz", draws, strict=False)}
        renamed = {key: S.var(f"case{number}_{key}") for key in given}
        outputs += list(symbol(**renamed))
        names += [name] * len(symbol.list_outputs())
        arrays |= {f"case{number}_{key}": array for key, array in given.items()}
    group = S.Group(outputs)
    wide = mxnets(group, {name: array.astype("float64") for name, array in arrays.items()}, {})
    mod, params = tvmfast.from_mxnet(group, {}, {name: array.shape for name, array in arrays.items()})
    results = tvmfast.build(mod, params, opt_level=level)(**arrays)
    for name, ours, theirs in zip(names, results, wide, strict=True):
        try:
            # Of what is factored, solved and multiplied, each element is a sum of N; conditions are below 4.
            close(ours, theirs, 3 * N, scale=4 * np.abs(theirs).max())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_a_matrix_without_an_inverse_or_factor_is_an_error_of_the_run():
    singular, indefinite = np.ones((2, 2), "float32"), np.float32([[1, 0, 0], [2, 1, 0], [7, 8, 9]])
    zero = np.float32([[1, 0], [3, 0]])
    for symbol, x, message in (
        (L.inverse(X), singular, "linalg_inverse: expected a matrix that has an inverse, .* no pivot for row 2"),
        (L.potrf(X), indefinite, "linalg_potrf: expected a positive-definite matrix, .* as shows in row 2"),
        (L.potri(X), zero, "linalg_potri: expected a factor without zeros on its diagonal, got one in row 2"),
    ):
        lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, {"x": x.shape}))
        with pytest.raises(IndexError, match=message):
            lib(x)
        with pytest.raises(mx.base.MXNetError):
            mxnets(symbol, {"x": x}, {})
    with pytest.raises(NotImplementedError, match=r"_linalg_det 'det': no converter for matrices of float16"):
        tvmfast.from_mxnet(L.det(X, name="det"), {}, {"x": ((2, 2), "float16")})
    with pytest.raises(ValueError, match=r"expected square matrices, got an input of shape \(2, 3\)"):
        tvmfast.from_mxnet(L.inverse(X), {}, {"x": (2, 3)})


def test_a_sampler_at_special_places(rng):
    """What is outside is 0, NaN and infinities in the grid give NaN, as MXNet's."""
    data, grid = rng.uniform(-1, 1, (1, 2, 3, 4)).astype("float32"), np.zeros((1, 2, 1, 9), "float32")
    grid[0, 0, 0] = [-1, 1, np.nan, np.inf, -1.2, 1.2, 3, 0.5, -np.inf]
    grid[0, 1, 0] = [-1, 1, 0, 0, 0, 1.3, 0, np.nan, 0]
    data[0, 0, 0, 0] = np.inf
    symbol, inputs = S.BilinearSampler(X, Y), {"x": data, "y": grid}
    lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, {"x": ("n", 2, 3, 4), "y": ("n", 2, 1, "m")}))
    close(lib(data, grid), mxnets(symbol, inputs, {})[0], 4, rounded=True)
    row = {"x": np.float32([[1, 0, 0.1, 0, 1, 0.2]])}
    symbol = S.GridGenerator(X, transform_type="affine", target_shape=(1, 3))
    ours = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, {"x": (1, 6)}))(row["x"])
    np.testing.assert_array_equal(ours, mxnets(symbol, row, {})[0])  # NaN: a row has no height


def test_heads_of_a_dynamic_batch_and_length(rng):
    """As in GluonNLP's BERT: scores, their softmax, and the values that these weigh."""
    scores = C.interleaved_matmul_selfatt_qk(X, heads=2)
    own = C.interleaved_matmul_selfatt_valatt(X, S.softmax(scores), heads=2)
    weights = S.softmax(C.interleaved_matmul_encdec_qk(own, Y, heads=2))
    symbol = C.interleaved_matmul_encdec_valatt(Y, weights, heads=2)
    shapes = {"x": ("length", "batch", 24), "y": ("other", "batch", 16)}
    lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, shapes))
    for length, batch, other in ((5, 3, 7), (1, 1, 4)):
        x, y = (rng.uniform(-1, 1, (n, batch, width)).astype("float32") for n, width in ((length, 24), (other, 16)))
        close(lib(x=x, y=y), mxnets(symbol, {"x": x, "y": y}, {})[0], 8 * length * other, rounded=True)
