"""from_mxnet: sequences of several lengths, softmax of a part of an axis, roots of pooled powers, masks of the best."""

import json

import numpy as np
import pytest
from agreement import close
from test_import_mxnet import S, X, hold, mx, mxnets

import tvmfast
from tvmfast import Dim

LENGTHS, OTHERS = S.var("lengths"), S.var("others")
LEVELS = pytest.mark.parametrize("level", [0, 3])


def compiled(symbol, inputs: dict, level: int, shapes: dict | None = None):
    """The imported symbol; `shapes` may have dynamic dims."""
    given = {name: ((shapes or {}).get(name, each.shape), str(each.dtype)) for name, each in inputs.items()}
    return tvmfast.build(*tvmfast.from_mxnet(symbol, {}, given), opt_level=level)


def agree(lib, symbol, inputs: dict, terms: int = 0) -> None:
    """Compare results with MXNet's, exactly where they are sums of no terms."""
    outputs = lib(*inputs.values())
    hold(list(outputs) if isinstance(outputs, tuple | list) else [outputs], mxnets(symbol, inputs, {}), terms)


# ---------------------------------------------------------------- sequences

WITH = {"use_sequence_length": True}
SEQUENCES = S.Group(
    [
        S.SequenceMask(X, LENGTHS, value=-2.5, **WITH),
        S.SequenceMask(X, OTHERS, axis=1, **WITH),
        S.SequenceMask(X),
        S.SequenceLast(X),
        S.SequenceLast(X, axis=1),
        S.SequenceReverse(X),
        S.SequenceReverse(X, LENGTHS, **WITH),
    ]
)
LAST = S.Group([S.SequenceLast(X, LENGTHS, **WITH), S.SequenceLast(X, OTHERS, axis=1, **WITH)])


def sequences(rng, steps: int, batch: int, dtype: str, of_lengths: str, least: int) -> dict:
    x = rng.integers(-9, 9, (steps, batch, 3)).astype(dtype)
    if dtype.startswith("float"):
        x[-1, -1, 0], x[0, 0, 1] = np.nan, np.inf
    lengths, others = (rng.integers(least, n + 1, m) for n, m in ((steps, batch), (batch, steps)))
    lengths[0], others[-1] = steps, least
    return {"x": x, "lengths": lengths.astype(of_lengths), "others": others.astype(of_lengths)}


@pytest.mark.parametrize(
    ("dtype", "of_lengths", "level", "sizes"),
    [
        ("float32", "float32", 0, [(1, 1), (1, 5), (17, 4)]),
        ("float32", "float32", 3, [(1, 1), (1, 5), (17, 4)]),
        ("float16", "float32", 3, [(5, 2)]),
        ("float64", "int32", 0, [(5, 2)]),
        ("int32", "int32", 0, [(5, 2)]),
    ],
)
def test_sequences(rng, dtype, of_lengths, level, sizes):
    shapes = {"x": ("steps", "batch", 3), "lengths": ("batch",), "others": ("steps",)} if len(sizes) > 1 else {}
    for symbol, least in ((SEQUENCES, 0), (LAST, 1)):
        several = [sequences(rng, *each, dtype, of_lengths, least) for each in sizes]
        lib = compiled(symbol, several[0], level, shapes)
        for inputs in several:
            agree(lib, symbol, inputs)


def test_lengths_outside(rng):
    inputs = sequences(rng, 4, 2, "float32", "float32", 1)
    inputs["lengths"] = np.array([1.9, 7], "float32")  # rounded to 0, and all
    masks = S.SequenceMask(X, LENGTHS, **WITH)
    inputs = {"x": inputs["x"], "lengths": inputs["lengths"]}
    agree(compiled(masks, inputs, 0), masks, inputs)
    cases = [
        (S.SequenceLast(X, LENGTHS, **WITH), [0, 1], "SequenceLast: expected an index from 0 to 3, got -1"),
        (S.SequenceReverse(X, LENGTHS, **WITH), [4, 5], "SequenceReverse: expected an index from 0 to 4, got 5"),
    ]
    for symbol, lengths, message in cases:
        with pytest.raises(IndexError, match=message):
            compiled(symbol, inputs, 0)(inputs["x"], np.array(lengths, "float32"))
    with pytest.raises(ValueError, match=r"SequenceMask .*: 'lengths' must be of shape \(2,\); got \(3,\)"):
        tvmfast.from_mxnet(masks, {}, {"x": (4, 2, 3), "lengths": (3,)})
    with pytest.raises(NotImplementedError, match="SequenceReverse .* axis=1"):
        tvmfast.from_mxnet(S.SequenceReverse(X, axis=1), {}, {"x": (4, 2, 3)})


# ---------------------------------------------------------------- softmax


def softmax(x, lengths, axis, temperature):
    """The softmax of as many elements as lengths say, and 0 for the others."""
    inside = np.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    inside = inside < np.expand_dims(lengths, axis)
    powers = np.exp(np.where(inside, x.astype("float64") / temperature, -np.inf))
    with np.errstate(invalid="ignore"):
        return np.where(inside, powers / powers.sum(axis, keepdims=True), 0)


@pytest.mark.parametrize(("axis", "temperature", "level"), [(1, 2.0, 0), (1, 2.0, 3), (-1, None, 0), (0, 0.5, 0)])
def test_softmax_of_a_part_of_an_axis(rng, axis, temperature, level):
    symbol = S.softmax(X, LENGTHS, axis=axis, temperature=temperature, use_length=True)
    names = np.array(["n", "m", 7], object)
    shapes, lib = {"x": tuple(names), "lengths": tuple(np.delete(names, axis))}, None
    for shape in ((2, 5, 7), (1, 1, 7), (3, 33, 7)):
        inputs = partly(rng, shape, axis)
        lib = lib or compiled(symbol, inputs, level, shapes)
        agree(lib, symbol, inputs, terms=shape[axis])
        close(lib(*inputs.values()), softmax(*inputs.values(), axis, temperature or 1), terms=4 * shape[axis])


def partly(rng, shape: tuple, axis: int) -> dict:
    lengths = rng.integers(0, shape[axis] + 1, np.delete(shape, axis))
    return {"x": rng.standard_normal(shape, "float32"), "lengths": lengths.astype("int32")}


@LEVELS
def test_logarithms_and_softmin_of_a_part_of_an_axis(rng, level):
    inputs = partly(rng, (3, 9, 4), 1)
    (x, lengths), how = inputs.values(), {"axis": 1, "temperature": 2.0}
    with np.errstate(divide="ignore"):
        wanted = softmax(x, lengths, 1, 2)
        logarithms = np.where(wanted > 0, np.log(wanted), 0)
    for symbol, wanted in ((S.log_softmax(X, **how), logarithms), (S.softmin(X, **how), softmax(-x, lengths, 1, 2))):
        close(compiled(with_length(symbol), inputs, level)(x, lengths), wanted, terms=4 * 9)


def with_length(symbol) -> str:
    """A symbol's text with a second input; MXNet 1.9.1 has this one of softmax alone."""
    graph = json.loads(symbol.tojson())
    (node,) = (each for each in graph["nodes"] if each["op"] != "null")
    node["inputs"].append([len(graph["nodes"]), 0, 0])
    node["attrs"]["use_length"] = "True"
    graph["nodes"].insert(1, {"op": "null", "name": "lengths", "inputs": []})
    node["inputs"][1][0] = 1
    graph["heads"] = [[2, 0, 0]]
    return json.dumps(graph)


def test_special_values_and_dtypes_of_softmax(rng):
    x = np.array([[np.inf, 1, 2], [1, 2, np.nan], [-np.inf, 1, np.inf], [-np.inf, -np.inf, 3]], "float32")
    inputs = {"x": x, "lengths": np.array([3, 2, 2, 2])}
    symbol = S.softmax(X, LENGTHS, use_length=True)
    lib = compiled(symbol, inputs, 3)
    agree(lib, symbol, inputs, terms=3)
    with pytest.raises(IndexError, match="softmax: expected an index from 0 to 3, got 4"):
        lib(x, np.array([1, 4, 0, 0]))
    for dtype in ("float32", "float64"):
        symbol = S.Group([S.softmax(X, dtype=dtype), S.log_softmax(X, dtype=dtype)])
        inputs = {"x": rng.standard_normal((3, 9)).astype("float16" if dtype == "float32" else "float32")}
        outputs, theirs = compiled(symbol, inputs, 0)(inputs["x"]), mxnets(symbol, inputs, {})
        assert [each.dtype for each in outputs] == [each.dtype for each in theirs] == [dtype] * 2
        powers, kind = softmax(inputs["x"], np.full(3, 9), 1, 1), inputs["x"].dtype
        # Computed in the dtype of x, and then cast; MXNet sums in it, too.
        for results, summed in ((outputs, "float32"), (theirs, kind)):
            close([each.astype(kind) for each in results], [powers, np.log(powers)], 4 * 9, dtype=summed)


# ---------------------------------------------------------------- pooling and masks


LP = [{"pool_type": "lp", "p_value": power} for power in (1, 2, 3)]


@LEVELS
def test_roots_of_pooled_powers(rng, level):
    symbols, inputs = [], {}
    for rank, dtype in ((1, "float32"), (1, "float16"), (2, "float32"), (3, "float64")):
        x = S.var(f"x{len(inputs)}")
        # below 0 the root of a sum near 0 has no small error
        inputs[x.name] = rng.uniform(0.25, 2, (2, 3, 11, 6, 5)[: 2 + rank]).astype(dtype)
        window = {"kernel": (3, 2, 3)[:rank], "stride": (2, 1, 2)[:rank], "pad": (1,) * rank}
        for lp in LP:
            symbols += [S.Pooling(x, **window, **lp), S.Pooling(x, kernel=(1,) * rank, global_pool=True, **lp)]
        symbols.append(S.Pooling(x, **window, **LP[1], pooling_convention="full"))
    symbol = S.Group(symbols)
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=11 * 6 * 5)


@LEVELS
def test_roots_of_negative_numbers(rng, level):
    exact = {"x": np.array([[[-3, 4, 0, -2, np.inf, 1, np.nan, 2]]], "float32")}
    symbol = S.Group([S.Pooling(X, kernel=(1,), **lp) for lp in LP])
    close(compiled(symbol, exact, level)(exact["x"]), mxnets(symbol, exact, {}), terms=4, rounded=True)
    with pytest.raises(NotImplementedError, match="p_value=4"):
        tvmfast.from_mxnet(S.Pooling(X, kernel=(1,), pool_type="lp", p_value=4), {}, {"x": (1, 1, 3)})


@LEVELS
def test_pooling_of_as_many_windows_as_strides(rng, level):
    """MKLDNN, which MXNet asks for maxima and means, cannot compute them."""
    symbols, means, inputs, wanted = [], [], {}, []
    for kernel, stride, size in ((3, 2, 7), (3, 2, 8), (2, 3, 7), (5, 1, 6), (1, 4, 6)):
        x = S.var(f"x{len(inputs)}")
        inputs[x.name] = rng.standard_normal((2, 3, size), "float32")
        how = {"kernel": (kernel,), "stride": (stride,), "pad": (0, 0, 0), "pooling_convention": "same"}
        symbols += [S.Pooling(x, **kind, **how) for kind in ({"pool_type": "sum"}, LP[1])]
        means += [S.Pooling(x, pool_type=kind, **how) for kind in ("max", "avg")]
        parts = [inputs[x.name][..., begin : begin + kernel].astype("float64") for begin in range(0, size, stride)]
        wanted += [np.stack([function(part, -1) for part in parts], -1) for function in (np.max, np.mean)]
    symbol = S.Group(symbols)
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=5)
    close(compiled(S.Group(means), inputs, level)(*inputs.values()), wanted, terms=5)
    plane = S.Pooling(X, kernel=(2, 2), pooling_convention="same")
    with pytest.raises(NotImplementedError, match="pooling_convention=same"):
        tvmfast.from_mxnet(plane, {}, {"x": (1, 1, 3, 3)})


@LEVELS
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_of_padding_alone(rng, rank, level):
    """Maxima are the least finite number of the dtype, means and sums 0, or 0 by 0 where MXNet divides."""
    for dtype in ("float16", "float32", "float64"):
        maxima, sums, inputs = [], [], {}
        valid = [(2, 3, 2, 4), (1, 4, 1, 3)] if dtype != "float32" else []  # MKLDNN refuses as much padding
        full = [(2, 3, 1, 4), (2, 4, 1, 5), (1, 3, 0, 5), (3, 2, 1, 6)]
        for kernel, stride, pad, size in (*valid, *full):
            x = S.var(f"x{len(inputs)}")
            inputs[x.name] = rng.uniform(-4, -2, (1, 2, *[size] * rank)).astype(dtype)
            how = {name: (n,) * rank for name, n in (("kernel", kernel), ("stride", stride), ("pad", pad))}
            how["pooling_convention"] = "valid" if (kernel, stride, pad, size) in valid else "full"
            maxima.append(S.Pooling(x, pool_type="max", **how))
            kinds = [{"pool_type": kind} for kind in ("sum", "avg")]
            kinds.append({"pool_type": "avg", "count_include_pad": False})
            sums += [S.Pooling(x, **how, **kind) for kind in kinds]
        for symbol, terms in ((S.Group(maxima), 0), (S.Group(sums), 27)):
            agree(compiled(symbol, inputs, level), symbol, inputs, terms)


def test_windows_of_padding_alone_along_dynamic_dims(rng):
    how = {"kernel": (2, 2), "stride": (3, 3), "pad": (1, 1), "pooling_convention": "full"}
    symbol = S.Pooling(X, pool_type="max", **how)
    several = [{"x": rng.standard_normal((1, 2, n, 4), "float32")} for n in (4, 5, 7, 9)]
    lib = compiled(symbol, several[0], 0, {"x": (1, 2, "n", 4)})
    for inputs in several:
        agree(lib, symbol, inputs)


@LEVELS
def test_norms_of_halves_whose_squares_overflow(rng, level):
    """MXNet adds them up as halves, one after another."""
    inputs = {"x": rng.uniform(100, 200, (3, 40)).astype("float16")}
    symbol = S.Group([S.norm(X, axis=1), S.norm(X, ord=1, axis=1), S.norm(X, axis=0, keepdims=True)])
    wide = mxnets(symbol, {"x": inputs["x"].astype("float64")}, {})
    close(compiled(symbol, inputs, level)(inputs["x"]), wide, terms=4, rounded=True)


@LEVELS
def test_masks_of_the_best(rng, level):
    names = {"x": ("n", Dim("m", 3), 4)}
    symbol = S.Group(
        [S.topk(X, k=k, axis=axis, ret_typ="mask", is_ascend=up) for k, axis, up in
         ((1, 0, False), (3, 1, True), (2, -1, False))]
    )  # fmt: skip
    for dtype in ("float32", "int32"):
        several = [rng.integers(-3, 3, shape).astype(dtype) for shape in ((2, 3, 4), (1, 7, 4))]
        # among many equal ones MXNet, whose sort is not stable, takes any
        several = [*several, rng.standard_normal((5, 33, 4), "float32")] if dtype == "float32" else several[:1]
        lib = compiled(symbol, {"x": several[0]}, level, names if dtype == "float32" else {})
        for x in several:
            agree(lib, symbol, {"x": x})
    flat = S.topk(X, k=0 if level else 3, axis=None, ret_typ="mask")
    agree(compiled(flat, {"x": several[0]}, level), flat, {"x": several[0]})


def test_a_mask_in_numpy_mode(rng):
    mx.npx.set_np()
    try:
        x, lengths = mx.sym.var("x").as_np_ndarray(), mx.sym.var("lengths").as_np_ndarray()
        symbol = mx.sym.npx.sequence_mask(x, lengths, use_sequence_length=True, axis=1)
        inputs = {"x": rng.standard_normal((3, 5), "float32"), "lengths": np.array([1, 5, 0], "float32")}
        result = compiled(symbol.tojson(), inputs, 0)(*inputs.values())
    finally:
        mx.npx.reset_np()
    np.testing.assert_array_equal(result, np.where(np.arange(5) < inputs["lengths"][:, None], inputs["x"], 0))
