"""State: inputs that alias outputs, caches updated in place, recurrent networks called once per time step."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from agreement import close, reference
from emulated_gpu import run_emulated
from testing import Function
from torch import nn

import tvmfast
from tvmfast.profiling import profiler

LAYERS, HEADS, LENGTH, DIM = 2, 2, 8, 4
CACHE = (LAYERS, 1, HEADS, LENGTH, DIM)


def random(rng, *shape):
    return rng.standard_normal(shape).astype("float32")


def build(function, shapes, state, **options):
    mod, params = tvmfast.from_pytorch(Function(function).eval(), shapes)
    return tvmfast.build(mod, params, state=state, **options)


@pytest.fixture(scope="module")
def summing():
    """Returns twice its input, and the sum of the inputs so far."""
    shapes = {"x": (2, 3), "total": (2, 3)}
    return build(lambda x, total: (2 * x, total + x), shapes, {"total": "output1"})


def with_sum():
    shapes = {"x": (2, 3), "total": (2, 3)}
    return build(lambda x, total: (total + x, total + x + 0), shapes, {"total": "output1"})


def test_state_is_neither_passed_nor_returned(summing, rng):
    assert [str(spec) for spec in summing.inputs] == ["x: float32[2, 3]"]
    assert [str(spec) for spec in summing.outputs] == ["output0: float32[2, 3]"]
    assert [str(spec) for spec in summing.state] == ["total: float32[2, 3]"]
    assert "state total: float32[2, 3]" in repr(summing)
    x = random(rng, 2, 3)
    np.testing.assert_array_equal(summing(x), 2 * x)
    with pytest.raises(TypeError, match="expected 1 input .*; no such input: total"):
        summing(x, total=x)


def test_sessions_reset_and_what_is_loaded_start_from_zeros(rng, tmp_path):
    lib, xs = with_sum(), random(rng, 4, 2, 3)
    sums = xs.astype("float64").cumsum(0)
    for n, x in enumerate(xs):
        close(lib(x), sums[n], terms=n + 1, scale=np.abs(sums).max())
    first, second = lib.session(), lib.session()
    np.testing.assert_array_equal(first(xs[0]), xs[0])
    np.testing.assert_array_equal(second(x=xs[1]), xs[1])
    np.testing.assert_array_equal(first(xs[2]), xs[0] + xs[2])
    first.reset()
    np.testing.assert_array_equal(first(xs[3]), xs[3])
    close(lib(xs[0]), sums[-1] + xs[0], terms=5, scale=np.abs(sums).max())
    loaded = tvmfast.load(lib.save(tmp_path / "net.zip"))
    assert loaded.state == lib.state and loaded.inputs == lib.inputs
    np.testing.assert_array_equal(loaded(xs[0]), xs[0])
    lib.reset()
    np.testing.assert_array_equal(lib(xs[0]), xs[0])


@pytest.mark.parametrize("shape", [(2, 3), (6,)])
def test_an_input_that_is_kept_may_change_after_the_call(shape):
    shapes = {"x": (2, 3), "last": shape}
    lib = build(lambda x, last: (x - last.reshape(2, 3), x.reshape(shape)), shapes, {"last": "output1"}, opt_level=0)
    x = torch.ones(2, 3)
    lib(x)
    x += 2
    np.testing.assert_array_equal(lib(x), np.full((2, 3), 2))


def test_an_output_that_is_the_state_too_is_a_copy():
    lib = build(lambda x, total: (total + x, total + x), {"x": (4,), "total": (4,)}, {"total": "output1"})
    (result,) = lib.run([torch.ones(4)])
    torch.from_dlpack(result).mul_(100)
    np.testing.assert_array_equal(lib(torch.ones(4)), np.full(4, 2))


def test_measuring_leaves_the_state_as_it_is(rng):
    lib, x = with_sum(), random(rng, 2, 3)
    session = lib.session()
    for call in (lib, session):
        call(x)
        tvmfast.compare({"network": call}, x, calls=2)
    tvmfast.profile(lib, x, calls=2)
    lib.timed(x)
    assert profiler.memory(lib)["state"]
    for call in (lib, session):
        np.testing.assert_array_equal(call(x), 2 * x)


def test_each_thread_may_have_a_session(rng):
    lib, xs = with_sum(), random(rng, 30, 2, 3)
    sums = xs.astype("float64").cumsum(0)

    def run(scale):
        session = lib.session()
        return [session(x * scale) for x in xs]

    with ThreadPoolExecutor(4) as pool:
        for scale, results in enumerate(pool.map(run, range(4))):
            close(results[-1], sums[-1] * scale, terms=len(xs), scale=np.abs(sums * scale).max())


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (["total"], TypeError, "expected a dictionary from input name to output name"),
        ({"total": 1}, TypeError, "expected a dictionary from input name to output name"),
        ({"sum": "output1"}, ValueError, "expected an input, one of x, total, small, half; got 'sum'"),
        ({"total": "total"}, ValueError, "expected an output, one of output0, output1, output2; got 'total'"),
        ({"total": "output1", "x": "output1"}, ValueError, "'output1' is given for 'total' and 'x'"),
        ({"small": "output1"}, ValueError, r"of the input 'small', float32\[3\]; 'output1' is float32\[2, 3\]"),
        ({"half": "output1"}, ValueError, r"of the input 'half', float16\[2, 3\]; 'output1' is float32\[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_told(state, error, text):
    shapes = {"x": (2, 3), "total": (2, 3), "small": (3,), "half": ((2, 3), "float16")}
    mod, params = tvmfast.from_pytorch(
        Function(lambda x, total, small, half: (x, total + small, half + 1)).eval(), shapes
    )
    with pytest.raises(error, match="state: .*" + text):
        tvmfast.build(mod, params, state=state)


def test_the_first_call_fixes_a_dynamic_dim(rng, tmp_path):
    shapes = {"x": (tvmfast.Dim("rows", 1, 9), 3), "total": (tvmfast.Dim("rows"), 3), "count": (1,)}
    state = {"total": "output1", "count": "output2"}
    lib = build(lambda x, total, count: (2 * x, total + x, count + x.mean()), shapes, state)
    assert [str(spec) for spec in lib.state] == ["total: float32[rows, 3]", "count: float32[1]"]
    for network in (lib, tvmfast.load(lib.save(tmp_path / "lib"))):
        sessions = {rows: network.session() for rows in (1, 4)}
        sums = {rows: np.zeros((rows, 3), "float32") for rows in sessions}
        for _ in range(3):
            for rows, session in sessions.items():
                x = random(rng, rows, 3)
                sums[rows] += x
                np.testing.assert_array_equal(session(x), 2 * x)
                np.testing.assert_array_equal(session._held[0].numpy(), sums[rows])  # exact: the same sums, in order
    with pytest.raises(ValueError, match=r"state 'total': it is of shape \(4, 3\) .* this one need \(2, 3\); reset"):
        sessions[4](x[:2])
    sessions[4].reset()
    np.testing.assert_array_equal(sessions[4](x[:2]), 2 * x[:2])


def test_a_cache_of_dynamic_length_is_updated_in_place(rng):
    """The mask, which is passed, has its length."""

    def step(mask, position, k, cache):
        cache = cache.index_copy(1, position, k)
        return (cache * mask[None, :, None]).sum(1), cache

    length = tvmfast.Dim("length", 2, 64)
    shapes = {"mask": (length,), "position": ((1,), "int64"), "k": (2, 1, 4), "cache": (2, length, 4)}
    lib = build(step, shapes, {"cache": "output1"})
    assert any(node.get("in_place") for node in lib.graph["nodes"])
    for size in (5, 16):
        session, cache = lib.session(), torch.zeros(2, size, 4)
        for position in (3, 0, -1 % size):
            mask, k = random(rng, size), random(rng, 2, 1, 4)
            want = reference(lambda *xs: step(*xs)[0], mask, np.array([position]), k, cache)
            cache = step(*map(torch.from_numpy, (mask, np.array([position]), k)), cache)[1]
            close(session(mask, np.array([position]), k), want)
            np.testing.assert_array_equal(session._held[0].numpy(), cache)


def test_a_dynamic_dim_that_no_input_has_gives_no_zeros():
    shapes = {"x": (1, 3), "total": (tvmfast.Dim("batch", 1, 9), 3)}
    with pytest.raises(ValueError, match=r"state: input 'total' is float32\[batch, 3\], .* number for 'batch'"):
        build(lambda x, total: (total + x, x), shapes, {"total": "output0"}, opt_level=0)


# ---------------------------------------------------------------- writes


def put_flat(cache, position, k):
    cache = cache.clone()
    cache[:, :, :, position.reshape(())] = k
    return cache


def put_into_layers(cache, position, k):
    cache = cache.clone()
    for layer in range(LAYERS):
        cache[layer, 0, :, position.reshape(())] = k[layer, 0] + cache[layer].sum()
    return cache


def copy_into_layers(cache, position, k):
    layers = []
    for layer in range(LAYERS):
        layers.append(cache[layer].index_copy(2, position, k[layer].unsqueeze(2)))
        k = k + layers[-1].mean()
    return torch.stack(layers)


def overwrite_rows(cache, position, k):
    cache = cache.clone()
    cache[1, :, :, 2:4] = k[0].unsqueeze(2) + position
    cache[0, 0, 1, 3] = k[0, 0, 0]
    return cache.index_copy(3, position, k.unsqueeze(3))


WRITES = [put_flat, put_into_layers, copy_into_layers, overwrite_rows]
SHAPES = {"position": ((1,), "int64"), "k": CACHE[:3] + CACHE[4:], "cache": CACHE}


@pytest.mark.parametrize(("write", "level"), [(copy_into_layers, 0), *((write, 3) for write in WRITES)])
def test_a_partial_update_of_a_cache_happens_in_place(write, level, rng):
    def step(position, k, cache):
        cache = write(cache, position, k)
        return cache.sum((0, 1, 2)), cache

    lib = build(step, SHAPES, {"cache": "output1"}, opt_level=level)
    size = 4 * np.prod(CACHE)
    updating = {node["kernel"] for node in lib.graph["nodes"] if node.get("in_place")}
    assert updating
    assert all(costs["writes"] < size for costs in lib.graph["costs"].values())
    assert all(lib.graph["costs"][name]["reads"] < size / 2 for name in updating)
    cache, addresses = np.zeros(CACHE, "float32"), set()
    for position in (5, 0, 7, 5):
        k = random(rng, *SHAPES["k"])
        wanted = reference(step, np.array([position]), k, cache)
        close([lib(np.array([position]), k), lib._held[0].numpy()], wanted)
        cache = lib._held[0].numpy().copy()
        addresses.add(lib._held[0].data_ptr())
    assert len(addresses) == 1


def returns_the_old(cache, position, k):
    return cache.sum(), cache.index_copy(3, position, k.unsqueeze(3)), cache


def returns_it_twice(cache, position, k):
    new = cache.index_copy(3, position, k.unsqueeze(3))
    return new.reshape(-1), new


def reads_the_old_later(cache, position, k):
    new = cache.index_copy(3, position, k.unsqueeze(3))
    return (cache * new.sum()).sum((0, 1)), new


def writes_what_it_reads(cache, position, k):
    return k, cache.index_copy(3, position, cache[:, :, :, 1:2] + k.unsqueeze(3))


def returns_a_view_of_the_old(cache, position, k):
    return cache.transpose(0, 1), cache.index_copy(3, position, k.unsqueeze(3))


NEEDED = [returns_the_old, returns_it_twice, reads_the_old_later, writes_what_it_reads, returns_a_view_of_the_old]


@pytest.mark.parametrize(("write", "level"), [(returns_it_twice, 0), *((write, 3) for write in NEEDED)])
def test_a_cache_that_is_still_needed_is_right(write, level, rng):
    lib = build(lambda position, k, cache: write(cache, position, k), SHAPES, {"cache": "output1"}, opt_level=level)
    cache, last = np.zeros(CACHE, "float32"), []
    for position in (5, 0, 7, 5):
        k = random(rng, *SHAPES["k"])
        wanted = reference(write, cache, np.array([position]), k)
        got = lib.run([np.array([position]), k])
        first, *more = (each.numpy() for each in got)
        close([first, lib._held[0].numpy(), *more], wanted)
        cache = lib._held[0].numpy().copy()
        for tensor, value in last:  # an earlier result is the caller's own
            np.testing.assert_array_equal(tensor.numpy(), value)
        last += [(tensor, tensor.numpy().copy()) for tensor in got]


def test_caches_of_dynamic_length_that_are_still_needed_are_right(rng):
    def step(mask, position, k, *caches):
        several = [write(cache, position, k) for write, cache in zip(NEEDED, caches, strict=True)]
        others = [each for before, _, *after in several for each in (before, *after)]
        return *(new for _, new, *_ in several), mask * 2, *others

    length = tvmfast.Dim("length", 2, 64)
    caches = dict.fromkeys("abcde", (*CACHE[:3], length, DIM))
    shapes = {"mask": (length,), "position": ((1,), "int64"), "k": SHAPES["k"], **caches}
    lib = build(step, shapes, {name: f"output{n}" for n, name in enumerate(caches)})
    for size in (5, 16):
        session, caches, last = lib.session(), [np.zeros((*CACHE[:3], size, DIM), "float32")] * len(NEEDED), []
        for position in (3, 0, 3):
            mask, k, position = random(rng, size), random(rng, *SHAPES["k"]), np.array([position])
            wanted = reference(step, mask, position, k, *caches)
            got = session.run([mask, position, k])
            caches = [each.numpy().copy() for each in session._held]
            close([*caches, *(each.numpy() for each in got)], wanted)
            for tensor, value in last:  # an earlier result is the caller's own
                np.testing.assert_array_equal(tensor.numpy(), value)
            last += [(tensor, tensor.numpy().copy()) for tensor in got]


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_writes_of_other_dtypes_and_several_positions(dtype, rng):
    """Without state, too: the input that is passed stays as it is."""
    shapes = {"x": ((3, 6, 2), dtype), "y": ((3, 2, 2), dtype), "index": ((2,), "int64")}
    net = Function(lambda x, y, index: (x.index_copy(1, index, y), torch.ops.aten.index_put(x, [None, index - 6], y)))
    mod, params = tvmfast.from_pytorch(net.eval(), shapes)
    x, y = (torch.from_numpy(rng.integers(0, 9, shapes[name][0])).to(getattr(torch, dtype)) for name in "xy")
    before, index = x.clone(), torch.tensor([4, 1])
    for got, want in zip(tvmfast.build(mod, params)(x, y, index), net(x, y, index), strict=True):
        np.testing.assert_array_equal(got.astype("float32"), want.float().numpy())
    assert torch.equal(x, before)


def test_an_index_out_of_range_changes_nothing(rng):
    lib = build(lambda position, k, cache: (k, put_into_layers(cache, position, k)), SHAPES, {"cache": "output1"})
    k = random(rng, *SHAPES["k"])
    lib(np.array([1]), k)
    before = lib._held[0].numpy().copy()
    with pytest.raises(IndexError, match="expected an index from -8 to 7, got 8"):
        lib(np.array([8]), k)
    np.testing.assert_array_equal(lib._held[0].numpy(), before)


def test_of_equal_indices_the_last_one_counts(rng):
    shapes = {"x": (6, 64), "index": ((900,), "int64"), "y": (900, 64)}
    lib = build(lambda x, index, y: x.index_copy(0, index, y), shapes, None)
    x, index, y = random(rng, 6, 64), rng.integers(0, 6, 900), random(rng, 900, 64)
    got = lib(x, index, y)
    x[index] = y
    np.testing.assert_array_equal(got, x)


def test_a_value_of_another_dtype_at_a_position_without_axes(rng):
    def write(cache, position, k):
        cache = cache.clone()
        cache[:, position.reshape(())] = k
        return cache

    shapes = {"cache": (3, 4), "position": ((1,), "int64"), "k": ((3,), "float64")}
    cache, position, k = random(rng, 3, 4), np.array([2]), rng.standard_normal(3)
    got = build(write, shapes, None)(cache, position, k)
    np.testing.assert_array_equal(got, write(*map(torch.from_numpy, (cache, position, k))))


def test_slices_of_a_dynamic_dim(rng):
    def write(x, y):
        x = x.clone()
        x[-1] = y
        x[1:, 0] = x[:-1, 1]
        return x

    lib = build(write, {"x": (tvmfast.Dim("rows", 3), 4), "y": (4,)}, None, opt_level=0)
    for rows in (3, 8):
        x, y = random(rng, rows, 4), random(rng, 4)
        np.testing.assert_array_equal(lib(x, y), write(torch.from_numpy(x), torch.from_numpy(y)))


def test_writes_for_a_gpu(rng):
    net = Function(lambda position, k, cache: (k, put_into_layers(cache, position, k)))
    mod, params = tvmfast.from_pytorch(net.eval(), SHAPES)
    position, k, cache = np.array([3]), random(rng, *SHAPES["k"]), random(rng, *CACHE)
    close(run_emulated(mod, params, position, k, cache), reference(net, position, k, cache))


# ---------------------------------------------------------------- networks


def test_an_lstm_fed_step_by_step(rng):
    lstm = nn.LSTM(5, 7, num_layers=2).eval()
    net = Function(lambda x, h, c: lstm(x, (h, c)))
    net.lstm = lstm
    shapes = {"x": (1, 3, 5), "h": (2, 3, 7), "c": (2, 3, 7)}
    mod, params = tvmfast.from_pytorch(net.eval(), shapes)
    lib = tvmfast.build(mod, params, state={"h": "output1", "c": "output2"})
    x = random(rng, 50, 3, 5)
    results = np.concatenate([lib(step[None])[0][None] for step in x])
    close(results, lstm.double()(torch.from_numpy(x).double())[0], terms=2 * (7 + 7))


class Decoder(nn.Module):
    """Two layers of attention with a cache: all tokens at once, or one after the other."""

    def __init__(self, tokens=13, width=HEADS * DIM):
        super().__init__()
        self.embed, self.positions = nn.Embedding(tokens, width), nn.Embedding(LENGTH, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(LAYERS))
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.score = nn.Linear(width, tokens)

    def heads(self, layer, x):
        parts = self.qkv[layer](x).unflatten(-1, (3, HEADS, DIM))
        return parts.permute(2, 0, 3, 1, 4)

    def attend(self, layer, x, q, k, v, mask):
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.mix[layer](mixed.transpose(1, 2).flatten(2))

    def forward(self, tokens):
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        x = self.embed(tokens) + self.positions.weight
        for layer in range(LAYERS):
            x = self.attend(layer, x, *self.heads(layer, x), mask)
        return self.score(x)


class Step(nn.Module):
    """One token of a `Decoder`."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, token, position, keys, values):
        decoder, keys, values = self.decoder, keys.clone(), values.clone()
        mask = (torch.arange(LENGTH) <= position)[None]
        x = decoder.embed(token) + decoder.positions(position)
        for layer in range(LAYERS):
            q, k, v = decoder.heads(layer, x)
            keys[layer, :, :, position] = k
            values[layer] = values[layer].index_copy(2, position, v)
            x = decoder.attend(layer, x, q, keys[layer], values[layer], mask)
        return decoder.score(x), keys, values


def test_a_decoder_with_a_cache_equals_all_tokens_at_once(rng):
    decoder = Decoder().eval()
    shapes = {"token": ((1, 1), "int64"), "position": ((1,), "int64"), "keys": CACHE, "values": CACHE}
    mod, params = tvmfast.from_pytorch(Step(decoder).eval(), shapes)
    lib = tvmfast.build(mod, params, state={"keys": "output1", "values": "output2"})
    size = 4 * np.prod(CACHE)
    assert sum(bool(node.get("in_place")) for node in lib.graph["nodes"]) == 2 * LAYERS
    for session in (lib.session(), lib):
        tokens = rng.integers(0, 13, (1, LENGTH))
        results = [session(tokens[:, n : n + 1], np.array([n])) for n in range(LENGTH)]
        close(np.concatenate(results, 1), reference(decoder, tokens))
    frame = tvmfast.profile(lib, tokens[:, :1], np.array([0]), calls=1).frame()
    rows = frame[frame.index.str.startswith("write_in_place")]
    assert len(rows) and (rows["MB"] * 1e6 / rows["calls"] < size / 4).all()
