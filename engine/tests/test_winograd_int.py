"""Winograd's convolution of 8-bit integers is exact: it equals the direct sums, bit by bit, whatever is summed."""

import numpy as np
import pytest
import torch
import tvm
from testing import without
from torch import nn
from tvm import te

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.compiler.schedule.apply import schedule_kernels
from tvmfast.compiler.schedule.dot import DOTS
from tvmfast.compiler.schedule.rules import RULES, winograd_int
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core import annotations, machine
from tvmfast.core.simd import Simd, simd_of
from tvmfast.runtime import narrow

RULE = RULES["winograd_int"]
AVX2 = Simd(8, 16, dot="vpmaddwd 256")
TILES = pytest.mark.parametrize("m", [2, 3, 4])


def conv(ins, outs, size, padding=1, zero=0) -> Convolution:
    return Convolution((1, ins, *size), (outs, ins, 3, 3), (1, 1), (padding,) * 4, (1, 1), 1, True, "uint8", zero=zero)


def run(workload, config, data, weight, spec) -> np.ndarray:
    """The sums of a kernel by a config, on these inputs, compiled for a target."""
    target = tvm.target.Target(spec)
    simd = simd_of(target)
    rule = RULE if isinstance(config, RULE.Config) else RULES["dot_conv"]
    packed = rule.pack(workload, weight, config, simd.lanes)
    x = te.placeholder(workload.packed_input_shape(simd.lanes), "uint8", "data")
    w = te.placeholder(packed.shape, str(packed.dtype), "weight")
    func = te.create_prim_func([x, w, rule.compute(x, w, workload, config)])
    mod = schedule_kernels(simd)(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert annotations.of_function(mod["main"])["schedule"] == rule.as_dict(config)
    library = codegen.compile_kernels(dict(mod.functions_items()), target, runs_here=False)
    out = tvm.runtime.empty(workload.output_shape(rule.as_dict(config), simd.lanes), "int32")
    library["main"](tvm.runtime.tensor(workload.pack_input(data, simd.lanes)), tvm.runtime.tensor(packed), out)
    return workload.unpack_output(out.numpy(), simd.lanes)


def summed(workload, data, weight) -> np.ndarray:
    """The sums in int64, with the padding's value."""
    padded = np.pad(data, [(0, 0), (0, 0), *[workload.padding[:2]] * 2], constant_values=workload.zero)
    windows = np.lib.stride_tricks.sliding_window_view(padded.astype("int64"), (3, 3), (2, 3))
    return np.tensordot(windows, weight.astype("int64"), ([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)


@TILES
def test_transforms_are_those_of_the_convolution_and_fit_into_16_bits(m, rng):
    by = winograd_int.transforms(m)
    data, weight = rng.integers(0, 256, (m + 2, m + 2)), rng.integers(-128, 128, (3, 3))
    wanted = np.tensordot(np.lib.stride_tricks.sliding_window_view(data, (3, 3)), weight, 2)
    product = (by.of_weight @ weight @ by.of_weight.T) * (by.of_input @ data @ by.of_input.T)
    np.testing.assert_array_equal(by.of_output @ product @ by.of_output.T, wanted * (by.odd << by.shift))
    each = np.kron(by.of_input, by.of_input)
    inputs = 255 * max(each.clip(0).sum(1).max(), -each.clip(None, 0).sum(1).min())
    weights = 128 * np.abs(np.kron(by.of_weight, by.of_weight)).sum(1).max()
    assert max(inputs, weights) < 1 << 15 and 2 * inputs * weights < 1 << 31  # as does a sum of two products


@TILES
def test_sums_are_exact_at_the_bound_and_whatever_wraps_around(m):
    """Rows of extremes, and tiles and weights that have one sign where an element of their transforms is largest."""
    by = winograd_int.transforms(m)
    most = (1 << (31 - by.shift)) // (9 * 255 * 128) // 8 * 8 - 8
    ins = min(most, 512)
    workload = conv(ins, 16, (m + 2, m + 2), 0)
    rows = np.sign(np.kron(by.of_input, by.of_input)).reshape(-1, m + 2, m + 2)
    taps = np.sign(np.kron(by.of_weight, by.of_weight)).reshape(-1, 3, 3)
    simd = simd_of(machine.host_target())
    config = winograd_int.default_of_tile(workload, m, simd)
    wraps = False
    for at in (0, 1, m + 3, (m + 2) ** 2 - 1):
        data = np.broadcast_to(np.where(rows[at] > 0, 255, 0), (1, ins, m + 2, m + 2)).astype("uint8")
        weight = np.broadcast_to(np.where(taps[at] > 0, 127, -128), (16, ins, 3, 3)).astype("int8")
        weight = np.concatenate([weight[:8], np.full_like(weight[:8], -128)])
        products = ins * (by.of_weight @ weight[0, 0] @ by.of_weight.T) * (by.of_input @ data[0, 0] @ by.of_input.T)
        wraps |= np.abs(products).max() >= 1 << 31
        got = run(workload, config, data, weight, machine.target_json(machine.host_target()))
        np.testing.assert_array_equal(got, summed(workload, data, weight))
    assert wraps or m == 2


@TILES
def test_weights_are_saved_in_int8_and_transformed_again_bit_by_bit(m, rng):
    workload = conv(33, 70, (8, 8))
    config = winograd_int.default_of_tile(workload, m, AVX2)
    weight = rng.choice(np.array([-128, -127, -1, 0, 1, 127], "int8"), workload.weight)
    packed = RULE.pack(workload, weight, config, 8)
    how = {"dtype": "int16", "transform": winograd_int.transforms(m).of_weight.tolist()}
    saved = narrow.narrowed(packed, how)
    assert saved.dtype == "int8" and saved.nbytes * 2 * (m + 2) ** 2 == packed.nbytes * 9
    assert sorted(saved[saved != 0].tolist()) == sorted(weight[weight != 0].tolist())
    assert narrow.widened(saved, how).tobytes() == packed.tobytes()


@TILES
@pytest.mark.parametrize("spec", ["this CPU", "haswell", "x86-64"])
def test_it_equals_the_direct_rule(m, spec, rng):
    if spec != "this CPU" and (machine.architecture() != "x86_64" or "avx2" not in machine.instruction_sets()):
        pytest.skip("a CPU with AVX2 runs this target")
    spec = machine.target_json(machine.host_target()) if spec == "this CPU" else {"kind": "llvm", "mcpu": spec}
    simd = simd_of(tvm.target.Target(spec))
    for workload in (conv(40, 24, (11, 8), zero=131), conv(64, 32, (1, 7), zero=255)):
        data = rng.integers(0, 256, workload.data, "uint8")
        weight = rng.integers(-128, 128, workload.weight, "int8")
        config = winograd_int.default_of_tile(workload, m, simd)
        wanted = summed(workload, data, weight)
        np.testing.assert_array_equal(run(workload, config, data, weight, spec), wanted)
        direct = RULES["dot_conv"].default(workload, simd)
        np.testing.assert_array_equal(run(workload, direct, data, weight, spec), wanted)


def test_it_is_chosen_where_fewer_products_pay_and_where_it_is_exact():
    def chosen(simd, *sizes, **others):
        config = conv(*sizes, **others).config(None, simd)
        return config["m"] if config["family"] == "winograd_int" else config["family"]

    vnni, plain = (Simd(16, 32, dot=dot) for dot in ("vpdpbusd 512", "usdot 128"))
    sizes = (64, 56, 4, 4), (128, 28, 3, 3), (256, 14, 3, "dot_conv"), (512, 7, 2, "dot_conv")
    for channels, size, by_pairs, by_bytes in sizes:
        assert chosen(AVX2, channels, channels, (size, size)) == by_pairs
        assert chosen(vnni, channels, channels, (size, size)) == by_bytes
        assert chosen(plain, channels, channels, (size, size)) == "dot_conv"
    config = conv(64, 64, (56, 56)).config(None, vnni)
    assert 14 // (config["tile_oh"] * config["block_oh"]) >= 8, "the threads share at least 8 tasks"
    assert chosen(AVX2, 112, 64, (28, 28)) == 4 and chosen(AVX2, 120, 64, (28, 28)) == 3
    assert chosen(AVX2, 1824, 64, (28, 28)) == 3 and chosen(AVX2, 1832, 64, (28, 28)) == "dot_conv"
    assert chosen(AVX2, 64, 64, (1, 1), padding=1) == "dot_conv"


@pytest.mark.parametrize("sizes", [{}, {0: "n"}], ids=["static", "dynamic"])
def test_a_network_computes_the_same_by_either_rule(sizes, monkeypatch):
    """With a residual, ReLUs, zero points, odd channels, and sizes that are no multiples of tiles."""
    target = without("avx512vnni", "avxvnni", "amx-int8", "i8mm")
    if DOTS[simd_of(tvm.target.Target(target)).dot].data != "int16":
        pytest.skip("this CPU multiplies no pairs of 16 bits")

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(24, 40, 3, padding=1), nn.Conv2d(40, 40, 3, padding=1)
            self.last = nn.Conv2d(40, 128, 3)

        def forward(self, x):
            x = torch.relu(self.first(x))
            return self.last(torch.relu(self.second(x) + x))

    x = torch.randn(1, 24, 17, 20)
    shape = tuple(sizes.get(axis, n) for axis, n in enumerate(x.shape))
    mod, params = tvmfast.from_pytorch(Residual().eval(), {"x": shape})
    quantized = tvmfast.quantize(mod, params, [x.numpy()])
    ours = tvmfast.build(*quantized, target=target)
    assert [*ours.kernels.family].count("winograd_int") == 3
    monkeypatch.setattr(winograd_int, "best_tile", lambda *_: None)
    direct = tvmfast.build(*quantized, target=target)
    assert "winograd_int" not in [*direct.kernels.family]
    np.testing.assert_array_equal(ours(x), direct(x))
    if sizes:
        other = torch.randn(3, 24, 17, 20)
        np.testing.assert_array_equal(ours(other), direct(other))
