"""Attention as one kernel: PyTorch's numbers for all masks and shapes, NaN and infinities, and what is left alone."""

import math

import numpy as np
import pytest
import torch
from agreement import close, reference
from testing import Function, sampled
from torch.nn import functional as F
from tvm import relax

import tvmfast
from tvmfast.compiler.graph import fuse_attention


def built(function, shapes):
    mod, params = tvmfast.from_pytorch(Function(function).eval(), {f"x{n}": shape for n, shape in enumerate(shapes)})
    return tvmfast.build(mod, params)


def is_fused(lib) -> bool:
    return any(kernel.startswith("attention") for kernel in lib.kernels.index)


def held(function, *shapes, rng, change=lambda *xs: None, fused=True):
    """A function of tensors as `tvmfast.build` makes it, after its result for random inputs was PyTorch's."""
    lib = built(function, shapes)
    xs = [rng.standard_normal(shape, "float32") for shape in shapes]
    change(*xs)
    close(lib(*xs), reference(function, *xs))
    assert is_fused(lib) == fused
    return lib


def single(query, key, value):
    """Attention as single operators."""
    return (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1) @ value


SIZES = (17, 129, 8, 16), (100, 300, 20, 48), (24, 130, 16, 80), (49, 49, 32, 32), (9, 17, 300, 16)


@pytest.mark.parametrize("sizes", sampled(SIZES, (SIZES[1], SIZES[4])), ids=str)
def test_ragged_sizes(sizes, rng):
    queries, keys, depth, width = sizes
    shapes = (2, 3, queries, depth), (2, 3, keys, depth), (2, 3, keys, width)
    held(single, *shapes, rng=rng)


def test_values_that_all_of_a_batch_share(rng):
    held(lambda q, k: single(q, k, k[:1]), (2, 20, 16), (2, 140, 16), rng=rng)


SHAPE = 2, 2, 140, 16
MASKS = {
    "none": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ()),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ()),
    "added": (F.scaled_dot_product_attention, [(2, 1, 140, 140)]),
    "added to all": (F.scaled_dot_product_attention, [(140, 140)]),
    "of keys": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m[:, None, None] > 0), [(2, 140)]),
    "filled": (
        lambda q, k, v, m: (q @ k.mT / math.sqrt(20)).masked_fill(m > 0.5, -1e9).softmax(-1) @ v,
        [(2, 1, 1, 140)],
    ),
    "subtracted, and flipped": (lambda q, k, v, m: (m - 0.3 * (q @ k.mT)).softmax(-1) @ v, [(140, 1)]),
}


@pytest.mark.parametrize("name", sampled(MASKS, ("causal", "added", "of keys", "filled", "subtracted, and flipped")))
def test_masks_and_scales(name, rng):
    function, more = MASKS[name]
    held(function, *[SHAPE] * 3, *more, rng=rng)


def test_a_query_whose_keys_are_all_masked_is_what_pytorch_makes_of_it(rng):
    def mask(_q, _k, _v, m):
        m[:] = 0
        m[0, 0, 3] = m[1, 0, :, :60] = -np.inf

    more = (2, 1, 140, 140)
    held(F.scaled_dot_product_attention, *[SHAPE] * 3, more, rng=rng, change=mask)
    held(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *[SHAPE] * 3, more, rng=rng, change=mask)


def test_nan_and_infinity_reach_the_outputs_that_they_reach_in_pytorch(rng):
    def spoil(q, k, v):
        q[0, 0, 5, 2], q[0, 1, 6, 2] = np.nan, np.inf
        k[1, 0, 40, 3] = np.nan
        v[1, 1, 20, 7], v[0, 0, 139, 1] = np.inf, np.nan

    held(single, *[SHAPE] * 3, rng=rng, change=spoil)


def test_large_scores_and_those_that_grow_along_the_keys(rng):
    def grow(q, k, v):
        q *= 30
        k *= np.linspace(0, 4, 600, dtype="float32")[:, None]

    held(single, (1, 2, 20, 16), (1, 2, 600, 16), (1, 2, 600, 16), rng=rng, change=grow)


def test_what_is_left_to_single_kernels(rng):
    held(single, (2, 1, 16), (2, 99, 16), (2, 99, 16), rng=rng, fused=False)
    held(single, (2, 20, 16), (2, 140, 16), (2, 140, 15), rng=rng, fused=False)

    def weights_too(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return torch.cat([weights @ v, weights], -1)

    held(weights_too, *[(2, 140, 16)] * 3, rng=rng, fused=False)


def test_half_floats(rng):
    xs = [rng.standard_normal((1, 2, 140, 16)).astype("float16") for _ in range(3)]
    net = Function(F.scaled_dot_product_attention).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, tuple(map(torch.from_numpy, xs))))
    close(lib(*xs), reference(net, *(x.astype("float32") for x in xs)))


def test_bfloat16_is_rounded_once():
    """Scores, weights and sums are of float32."""
    net = Function(F.scaled_dot_product_attention).eval()
    xs = [(4 * torch.randn(1, 2, 140, 16)).bfloat16() for _ in range(3)]
    close(tvmfast.build(*tvmfast.from_pytorch(net, tuple(xs)))(*xs), reference(net, *(x.float() for x in xs)))


def test_tensors_that_an_int32_does_not_index_are_left_to_single_kernels(rng, monkeypatch):
    """In whole tiles of 64 keys: the values, and a mask that is larger."""
    shapes = (2, 20, 16), (2, 140, 16), (2, 140, 16)
    for function, more, most in (
        (single, (), 2 * 140 * 64),
        (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, [(160, 140)], 160 * 192),
    ):
        shapes = (2, 160 if more else 20, 16), *shapes[1:]
        for largest, fused in ((most, True), (most - 1, False)):
            monkeypatch.setattr(fuse_attention, "INT32_MAX", largest)
            held(function, *shapes, *more, rng=rng, fused=fused)


@pytest.mark.parametrize("halves", [False, True])
def test_products_that_are_not_of_matrices_of_float32(halves, rng):
    shapes = ((1, 1, 140, 64), (1, 1, 64, 256)) if halves else ((64,), (1, 1, 64, 256))
    dtypes = ("float16", "float16", "float32") if halves else ("float32",) * 3
    shapes = (*shapes, (1, 256, 16))
    xs = [rng.standard_normal(shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    builder = relax.BlockBuilder()
    q, k, v = (relax.Var(f"x{n}", relax.TensorType(x.shape, str(x.dtype))) for n, x in enumerate(xs))
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            scores = builder.emit(relax.op.matmul(q, k, "float32"))
            weights = builder.emit(relax.op.nn.softmax(scores))
            output = builder.emit_output(relax.op.matmul(weights, v))
        builder.emit_func_output(output)
    lib = tvmfast.build(builder.get(), {})
    close(lib(*xs), reference(lambda q, k, v: (q @ k).softmax(-1) @ v, *(x.astype("float32") for x in xs)))
    assert not is_fused(lib)


def test_scores_times_zero_keep_their_nan(rng):
    def spoil(q, k, v):
        k[0, 1, 9] = np.inf

    held(lambda q, k, v: (q @ k.mT * 0.0).softmax(-1) @ v, *[SHAPE] * 3, rng=rng, change=spoil, fused=False)


def test_masks_of_many_steps_take_no_time_to_follow(rng):
    def masked(q, k, v, mask):
        for _ in range(16):
            mask = mask * 0.4 + (mask * 0.5 + mask * 0.1)
        return (mask + q @ k.mT).softmax(-1) @ v

    held(masked, *[SHAPE] * 3, (140, 140), rng=rng)


DYNAMIC = {
    "causal": (MASKS["causal"][0], [("b", 3, "l", 16), ("b", 3, "l", 16), ("b", 3, "l", 32)]),
    "other queries": (F.scaled_dot_product_attention, [(1, 3, "m", 16), *[(1, 3, "l", 16)] * 2, ("m", "l")]),
    "of keys": (MASKS["of keys"][0], [*[("b", 2, "l", 16)] * 3, ("b", "l")]),
}


@pytest.mark.parametrize("name", sampled(DYNAMIC, ("causal", "other queries")))
def test_dynamic_lengths(name, rng):
    function, shapes = DYNAMIC[name]
    lib = built(function, shapes)
    assert is_fused(lib)
    for length, queries in ((1, 1), (2, 7), (63, 1), (64, 6), (65, 5), (255, 13), (257, 2)):
        sizes = {"l": length, "m": queries, "b": 1 + length % 2}
        xs = [rng.standard_normal([sizes.get(n, n) for n in shape], "float32") for shape in shapes]
        if name == "other queries":
            xs[-1][rng.random(xs[-1].shape) < 0.3] = -np.inf
            xs[-1][0] = -np.inf
        close(lib(*xs), reference(function, *xs))


def test_a_few_dynamic_keys_are_left_to_single_kernels(rng):
    assert not is_fused(built(single, [(2, tvmfast.Dim("l", 1, 16), 16)] * 3))


def rotated(x):
    """A tensor (…, tokens, dim) with rotary positions."""
    tokens, dim = x.shape[-2:]
    angles = torch.arange(tokens)[:, None] * 100 ** -(torch.arange(0, dim, 2) / dim)
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


@pytest.mark.parametrize("length", [70, "l"])
def test_rotated_keys_are_stored_before_they_are_transposed(length, rng):
    def function(query, key, value):
        key, value = (each.repeat_interleave(2, dim=1) for each in (rotated(key), value))
        return F.scaled_dot_product_attention(rotated(query), key, value, is_causal=True)

    shapes = [(1, heads, length, 32) for heads in (4, 2, 2)]
    lib = built(function, shapes)
    assert is_fused(lib)
    for tokens in (70,) if length == 70 else (1, 6, 70):
        xs = [rng.standard_normal([1, shape[1], tokens, 32], "float32") for shape in shapes]
        close(lib(*xs), reference(function, *xs))
    if length == 70:
        (packed,) = (func for name, func in lib.functions.items() if name.endswith("panels"))
        assert packed.script().count("sblock_alloc_buffer") == 1
