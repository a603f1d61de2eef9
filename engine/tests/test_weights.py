"""Weights of 8 or 4 bits: their rounding, what `quantize_weights` replaces, and the kernels that read them."""

import copy

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from testing import sampled
from torch import nn
from torch.nn import functional as F

import tvmfast
from tvmfast.core import machine, packed_weights
from tvmfast.core.packed_weights import Packed
from tvmfast.quantization.weights_only import quantize_weights

KINDS = ("int8", "int4")


class Model(nn.Module):
    """A tied embedding, a layer with a bias, one as GPT-2 has it, (K, N), and one whose weight has other uses."""

    def __init__(self, vocabulary=37, width=40, hidden=100):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Parameter(torch.randn(hidden, width) / 8)
        self.other = nn.Parameter(torch.randn(width, width) / 8)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + torch.relu(self.up(x)) @ self.down
        x = F.linear(x, self.other) + self.other.sum(0)
        return F.linear(x, self.embed.weight)


def packed(params, name: str, depth: int, group=32) -> np.ndarray:
    """The float32 weight (N, K) that the parameters of a quantized module stand for."""
    arrays = (np.asarray(params[each]) for each in (name, f"{name}.scales"))
    return packed_weights.dequantized(Packed(*arrays, group, depth))


def linear(depth: int, columns: int, rows, **options):
    net = nn.Linear(depth, columns, **options).eval()
    return net, tvmfast.from_pytorch(net, {"x": (*rows, depth)})


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize("group", [8, 32, 48])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_rounded_to_the_nearest_integer_of_its_group(bits, group, rng):
    weight = (rng.standard_normal((5, 70)) * 10.0 ** rng.integers(-3, 4, (5, 1))).astype("float32")
    weight[1, :group] = 0
    found = packed_weights.quantized(weight, bits, group)
    integers, scales = packed_weights.integers_of(found), np.repeat(found.scales.astype("float64"), group, 1)[:, :70]
    limits = (-127, 127) if bits == 8 else (-8, 7)
    assert integers.min() == limits[0] and integers.max() <= limits[1] and integers.shape == weight.shape
    assert found.integers.dtype == ("int8" if bits == 8 else "int32") and not integers[1, :group].any()
    np.testing.assert_array_equal(packed_weights.dequantized(found), (integers * scales).astype("float32"))
    # Half a step; a whole one where 8 would be needed; and what a float16 scale is rounded by.
    steps = np.where(integers == limits[1], 1, 0.5) + limits[1] * 2.0**-11
    assert (np.abs(weight - integers * scales) <= steps * np.abs(scales)).all()


def test_weights_beyond_the_range_of_a_float16_scale_stay_finite():
    weight = np.array([[3e38, -1e38, 1e-30, 1e-7] * 2, [1e-12, -1e-12, 0, 0] * 2], "float32")
    for bits in (8, 4):
        assert np.isfinite(packed_weights.dequantized(packed_weights.quantized(weight, bits, 8))).all()


def test_words_hold_eight_integers():
    given = np.arange(-8, 8, dtype="int8").repeat(3).reshape(4, 12)
    words = packed_weights.in_words(given)
    assert words.shape == (4, 2) and words.dtype == np.int32
    np.testing.assert_array_equal(packed_weights.integers_of(Packed(words, None, 8, 12)), given)
    assert packed_weights.in_words(np.array([[1, -1, 0, 0, 0, 0, 0, 0]], "int8"))[0, 0] == 0xF1


# ---------------------------------------------------------------- the module


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


def meant(net: nn.Module, params: dict, group: int = 32) -> nn.Module:
    """The network with the weights that the parameters of its quantized module stand for."""
    net = copy.deepcopy(net)
    for name, weight in net.named_parameters():
        if f"{name}.scales" in params:
            transposed = name == "down"
            depth = weight.shape[0 if transposed else 1]
            array = packed(params, name, depth, group)
            weight.data = torch.from_numpy(np.ascontiguousarray(array.T if transposed else array))
    return net


TOKENS = {"tokens": ((2, 5), "int64")}


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("weights", KINDS)
def test_a_language_model_computes_with_the_weights_that_it_stores(model, weights, level, rng):
    given = tvmfast.from_pytorch(model, TOKENS)
    mod, params = quantize_weights(*given, weights)
    assert {name for name in params if f"{name}.scales" in params} == {"embed.weight", "up.weight", "down"}
    tokens = rng.integers(0, 37, (2, 5))
    lib = tvmfast.build(mod, params, opt_level=level)
    close(lib(tokens), reference(meant(model, params), torch.from_numpy(tokens)))
    with pytest.raises(IndexError):
        lib(tokens + 37)
    assert set(given[1]) == {name for name, _ in model.named_parameters()}  # what was given is as it was
    close(tvmfast.build(*given, opt_level=level)(tokens), reference(model, torch.from_numpy(tokens)))


def test_what_skip_names_stays_float(model, rng):
    mod, params = quantize_weights(*tvmfast.from_pytorch(model, TOKENS), "int4", 8, skip=["embed.weight", "down"])
    assert [name for name in params if name.endswith(".scales")] == ["up.weight.scales"]
    assert params["up.weight.scales"].shape == (100, 5)
    tokens = rng.integers(0, 37, (2, 5))
    close(tvmfast.build(mod, params)(tokens), reference(meant(model, params, 8), torch.from_numpy(tokens)))


@pytest.mark.parametrize(("weights", "share"), [("int8", 1 / 4 + 1 / 64), ("int4", 1 / 8 + 1 / 64)])
def test_a_saved_network_has_the_bits_alone(weights, share, tmp_path):
    net, given = linear(256, 640, (1,), bias=False)
    lib = tvmfast.build(*quantize_weights(*given, weights))
    lib.save(tmp_path / "net")
    whole = 4 * net.weight.numel()
    assert share * whole <= (tmp_path / "net" / "params.bin").stat().st_size <= 1.1 * share * whole
    x = np.ones((1, 256), "float32")
    np.testing.assert_array_equal(tvmfast.load(tmp_path / "net")(x), lib(x))


# ---------------------------------------------------------------- kernels

CPUS = [None, "x86-64", "core-avx2", "skylake-avx512"]


SHAPES = [(1, 64, 128), (8, 64, 128), (1, 8, 3), (30, 8, 3), (3, 100, 70), (9, 100, 70), (5, 33, 17), (2, 17, 40)]


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
@pytest.mark.parametrize("weights", KINDS)
def test_any_number_of_rows(weights, rows, depth, columns, rng):
    net, given = linear(depth, columns, (rows,))
    mod, params = quantize_weights(*given, weights)
    lib = tvmfast.build(mod, params)
    assert [*lib.kernels.family] == ["few_rows_packed" if rows <= 8 else "unpacked_matmul"]
    x = rng.standard_normal((rows, depth), dtype="float32")
    close(lib(x), reference(meant(net, params), x))


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("rows", [(3,), (12,), (2, 2), (2, 1, 3, 5)])
def test_special_values_go_where_a_float_product_has_them(rows, weights, rng):
    net, given = linear(40, 24, rows)
    mod, params = quantize_weights(*given, weights)
    x = rng.standard_normal((*rows, 40), dtype="float32")
    for place, value in enumerate([np.nan, np.inf, -np.inf]):
        x.reshape(-1, 40)[min(place, len(x) - 1), 39 - 7 * place] = value
    lib = tvmfast.build(mod, params)
    close(lib(x), reference(meant(net, params), x))


@pytest.mark.parametrize("weights", KINDS)
def test_dynamic_rows(weights, rng):
    net, given = linear(72, 50, (tvmfast.Dim("rows"),))
    mod, params = quantize_weights(*given, weights)
    for level in (0, 3):
        lib = tvmfast.build(mod, params, opt_level=level, sizes=[{"rows": 1}])
        for rows in (1, 2, 7, 8, 13, 64):
            x = rng.standard_normal((rows, 72), dtype="float32")
            close(lib(x), reference(meant(net, params), x))


@pytest.mark.parametrize("mcpu", sampled(CPUS, ["x86-64", "core-avx2"]))
@pytest.mark.parametrize("weights", KINDS)
def test_other_cpus_of_this_kind(weights, mcpu, rng):
    target = None if mcpu is None else {"kind": "llvm", "mcpu": mcpu}
    if mcpu and (machine.platform.machine() != "x86_64" or not runs_here(target)):
        pytest.skip(f"this CPU does not run code for {mcpu}")
    for rows in (1, 7, 20):
        net, given = linear(70, 90, (rows,))
        mod, params = quantize_weights(*given, weights)
        x = rng.standard_normal((rows, 70), dtype="float32")
        close(tvmfast.build(mod, params, target)(x), reference(meant(net, params), x))


def runs_here(target) -> bool:
    return set(machine.target_instruction_sets(target)) <= set(machine.instruction_sets())


@pytest.mark.parametrize("weights", KINDS)
def test_both_kernels_compile_for_arm(weights):
    for rows, family in ((4, "few_rows_packed"), (40, "unpacked_matmul")):
        given = linear(64, 64, (rows,))[1]
        target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
        assert [*tvmfast.build(*quantize_weights(*given, weights), target).kernels.family] == [family]


def test_calls_that_no_kernel_has_replaced_are_evaluated(rng):
    weight = packed_weights.quantized(rng.standard_normal((6, 20)).astype("float32"), 4, 8)
    x, at = rng.standard_normal((3, 20), dtype="float32"), np.array([5, 0])
    arrays = [tvm.runtime.tensor(array) for array in (x, at, weight.integers, weight.scales)]
    product, rows = (tvm.get_global_func(name) for name in (packed_weights.MATMUL, packed_weights.TAKE))
    meant = packed_weights.dequantized(weight)
    close(product(arrays[0], *arrays[2:], 8, 20).numpy(), x.astype("float64") @ meant.T, 20)
    np.testing.assert_array_equal(rows(arrays[1], *arrays[2:], 8, 20).numpy(), meant[at])


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "int3"}, 'weights: expected "int8" or "int4", got \'int3\''),
        ({"group": 12}, "group: expected a multiple of 8, input channels of a scale; got 12"),
        ({"group": 0}, "group: .*; got 0"),
        ({"group": 32.0}, "group: .*; got 32.0"),
        ({"skip": ["wight"]}, "skip: expected names of parameters, bias, weight; got 'wight'"),
        ({"skip": ["weight"]}, "expected a matrix product with a float32 weight .*; skip leaves none"),
    ],
)
def test_bad_arguments(given, message):
    module = linear(16, 8, (1,))[1]
    with pytest.raises(ValueError, match=message):
        quantize_weights(*module, **{"weights": "int4", **given})


def test_networks_without_weights_and_weights_without_numbers(rng):
    none = tvmfast.from_pytorch(nn.ReLU().eval(), {"x": (1, 8)})
    with pytest.raises(ValueError, match="there is none, so weights alone cannot be quantized"):
        quantize_weights(*none, "int8")
    mod, params = linear(16, 8, (1,))[1]
    weight = params["weight"].numpy().copy()
    weight[3, 4] = np.nan
    with pytest.raises(ValueError, match="params: 'weight' has NaN or infinities"):
        quantize_weights(mod, params | {"weight": weight}, "int8")
