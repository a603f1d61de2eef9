"""AMX: integers and bfloat16 by tiles, emulated; the assembly; permission, refusal and fallback."""

import copy
import json

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from emulated_amx import SETS, functions, target, tiles  # noqa: F401 (a fixture)
from test_dot import Network, convolved, residual
from test_half import families, rounded
from testing import inner_loops, unlimited
from torch import nn

import tvmfast
from tvmfast.compiler.schedule.amx import INSTRUCTIONS
from tvmfast.core import machine
from tvmfast.core.simd import Simd, simd_of
from tvmfast.profiling import peak

HAS_TILES = "amx-tile" in machine.instruction_sets()
SERVER = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids", "num-cores": 2}

# ---------------------------------------------------------------- the emulation


def configuration(**changes) -> np.ndarray:
    """Tiles of 5 rows of 8 channels times 16 columns, one that fits neither, and one that is not configured."""
    content = np.zeros(64, "uint8")
    content[0] = 1
    content[16:24].view("uint16")[:] = 64, 8, 64, 60
    content[48:52] = 5, 5, 2, 5
    for at, value in changes.items():
        content[int(at[1:])] = value
    return content


MISUSE = {
    "another palette than 1": lambda f: f.emulated_ldtilecfg(configuration(_0=2).ctypes),
    "reserved bytes": lambda f: f.emulated_ldtilecfg(configuration(_40=1).ctypes),
    "an impossible shape": lambda f: f.emulated_ldtilecfg(configuration(_48=17).ctypes),
    "tilezero of a tile that is not configured": lambda f: f.emulated_tilezero(4),
    "tilezero of a tile that does not exist": lambda f: f.emulated_tilezero(8),
    "tdpbusd of the same tile twice": lambda f: f.emulated_tdpbusd(0, 1, 0),
    "tdpbusd of tiles whose shapes do not fit": lambda f: f.emulated_tdpbusd(3, 1, 2),
    "tdpbf16ps of tiles whose shapes do not fit": lambda f: f.emulated_tdpbf16ps(0, 2, 1),
    "does not release": lambda f: None,
    "without a configuration": lambda f: (f.emulated_tilerelease(), f.emulated_tilezero(0)),
}


@pytest.mark.parametrize("message", MISUSE)
def test_the_emulation_refuses_what_the_hardware_refuses(message):
    f = functions()
    f.emulated_ldtilecfg(configuration().ctypes)
    MISUSE[message](f)
    assert message in f.emulated_error().decode()
    f.emulated_tilerelease()
    f.emulated_error()


# ---------------------------------------------------------------- integers


PRODUCTS = {  # the left matrix, the columns, and the dtype of the data
    "whole tiles": ((32, 128), 64, "uint8"),
    "an odd depth": ((20, 67), 33, "uint8"),
    "few rows": ((4, 64), 16, "int8"),
    "one tile of rows": ((13, 192), 70, "uint8"),
    "a batch": ((2, 17, 64), 48, "int8"),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_sums_of_a_product_are_exact(rng, tiles, case):  # noqa: F811
    shape, columns, dtype = PRODUCTS[case]
    net = Network(shape, rng)
    x, weight = net.integers(shape, dtype), net.integers((shape[-1], columns))
    lib = net(
        lambda net, x: net.matmul(net.qdq(x, 1.0, 3, dtype), net.weight(weight, np.full(columns, 0.5), axis=1)),
        target=target(),
    )
    wanted = (x.astype("int64") - 3) @ weight.astype("int64") * 0.5
    np.testing.assert_array_equal(lib(x.astype("float32") - 3), wanted)
    assert "amx_matmul" in families(lib) and tiles.products()


CONVOLUTIONS = {  # the image, the output channels, window, strides, padding, dilation, zero point and dtype
    "3x3": ((1, 64, 28, 28), 64, 3, 1, 1, 1, 7, "uint8"),
    "3x3 of one tile": ((2, 64, 9, 14), 32, 3, 1, 1, 1, 130, "uint8"),
    "3x3 of few pixels": ((1, 128, 7, 7), 16, 3, 1, 1, 1, 3, "int8"),
    "3x3 of strides": ((1, 64, 28, 15), 48, 3, 2, 1, 1, 9, "uint8"),
    "dilated": ((1, 64, 13, 40), 32, 3, 1, 2, 2, 5, "uint8"),
    "of odd channels": ((1, 40, 8, 17), 24, 3, 1, 1, 1, 1, "uint8"),
    "of six blocks": ((1, 96, 6, 6), 40, 3, 1, 0, 1, 0, "int8"),
    "padded by more than the window": ((1, 64, 5, 5), 16, 1, 1, 1, 1, 200, "uint8"),
    "pointwise": ((2, 64, 7, 7), 96, 1, 1, 0, 1, 200, "uint8"),
    "pointwise of strides": ((1, 64, 9, 11), 32, 1, 2, 0, 1, 1, "uint8"),
    "of two pixels by two": ((1, 64, 2, 2), 33, 1, 1, 0, 1, 1, "int8"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_sums_of_a_convolution_are_exact(rng, tiles, case):  # noqa: F811
    shape, outs, window, strides, padding, dilation, zero, dtype = CONVOLUTIONS[case]
    net = Network(shape, rng)
    x, weight = net.integers(shape, dtype), net.integers((outs, shape[1], window, window))
    scale = 2.0 ** np.arange(-3, outs - 3).clip(-3, 3)

    def body(net, x):
        return net.nn("conv2d", net.qdq(x, 1.0, zero, dtype), net.weight(weight, scale), strides, padding, dilation)

    lib = net(body, target=target())
    wanted = convolved(x.astype("int64") - zero, weight, strides, padding, dilation) * scale.reshape(-1, 1, 1)
    np.testing.assert_array_equal(lib(x.astype("float32") - zero), wanted)
    assert "amx_conv" in families(lib) and tiles.products()


def wide(net, x):
    """A network like a ResNet whose layers have channels enough for tiles."""
    x = net.qdq(net.conv(net.qdq(x, 0.02, 128), 64), 0.03)
    y = net.qdq(net.conv(x, 72), 0.03)
    x = net.qdq(net.nn("relu", net.add(net.conv(y, 64, relu=False), x)), 0.04, 3)
    x = net.qdq(net.clip(net.conv(x, 80, 1, 1, 0), 0, 6), 0.03, -120, "int8")
    return net.conv(x, 24, 3, 2, relu=False)


@pytest.mark.parametrize("network", [wide, residual])
def test_a_network_computes_what_vectors_compute(rng, tiles, network):  # noqa: F811
    shape, seed = (2, 3, 20, 20), rng.integers(1 << 30)
    x = rng.normal(size=shape).astype("float32")
    by_vectors, by_tiles = (
        Network(shape, np.random.default_rng(seed))(network, target=target(*without)) for without in (SETS, ())
    )
    np.testing.assert_array_equal(by_tiles(x), by_vectors(x))
    assert tiles.products() and tiles.configurations()
    assert not families(by_vectors) & {"amx_conv", "amx_matmul"}
    assert by_vectors.graph["costs"].keys() == by_tiles.graph["costs"].keys()


def test_a_task_loads_the_configuration_once(rng, tiles):  # noqa: F811
    """A loop is shared in chunks, 4 for each thread at most, whatever the number of its iterations."""
    net = Network((1, 64, 40, 16), rng)
    lib = net(lambda net, x: net.conv(net.qdq(x, 0.1), 64), target=target())
    tiles.configurations()
    lib(np.zeros((1, 64, 40, 16), "float32"))
    assert 1 <= tiles.configurations() <= 4 * max(machine.usable_cores(), machine.threads())


# ---------------------------------------------------------------- bfloat16

LAYERS = {
    "3x3": (nn.Conv2d(32, 40, 3, 1, 1), (1, 32, 14, 13)),
    "3x3 of strides": (nn.Conv2d(48, 40, 3, 2, 1), (1, 48, 15, 37)),  # an odd number of blocks
    "pointwise": (nn.Conv2d(40, 70, 1), (2, 40, 7, 9)),
    "of lines": (nn.Conv1d(32, 32, 3, 2), (1, 32, 40)),
    "product": (nn.Linear(64, 40), (5, 64)),
    "product of an odd depth": (nn.Linear(67, 40), (2, 17, 67)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_pairs_are_multiplied_by_tiles(tiles, case):  # noqa: F811
    net, shape = LAYERS[case]
    if "avx512bf16" not in machine.instruction_sets():
        pytest.skip("the CPU has no AVX512_BF16")
    x = torch.randn(shape)
    mod, params = tvmfast.from_pytorch(net.eval(), (x,))
    lib, by_vectors = (tvmfast.build(mod, params, target(*without), dtype="bfloat16") for without in ((), SETS))
    close(lib(x), reference(rounded(net, "bfloat16"), x.bfloat16().float()))
    assert tiles.products() and families(lib) & {"amx_conv", "amx_matmul"}
    assert not families(by_vectors) & {"amx_conv", "amx_matmul"}
    multiplied = net.weight.numel() * (net(x).numel() // len(net.weight))
    assert sum(each["flops"] for each in lib.graph["costs"].values()) >= 2 * multiplied


def test_special_values_and_an_epilogue_in_pairs(tiles):  # noqa: F811
    if "avx512bf16" not in machine.instruction_sets():
        pytest.skip("the CPU has no AVX512_BF16")
    net, x = nn.Sequential(nn.Linear(64, 40), nn.Sigmoid()).eval(), torch.randn(6, 64)
    x[0, 0], x[1, 33], x[2, 5] = float("nan"), float("inf"), -float("inf")
    lib = tvmfast.build(*tvmfast.from_pytorch(net, (x,)), target(), dtype="bfloat16")
    close(lib(x), reference(rounded(net, "bfloat16"), x.bfloat16().float()))
    assert tiles.products()


def test_dynamic_rows_are_multiplied_by_vectors(tiles):  # noqa: F811
    if "avx512bf16" not in machine.instruction_sets():
        pytest.skip("the CPU has no AVX512_BF16")
    net, x = nn.Linear(64, 40).eval(), torch.randn(40, 64)
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": ("rows", 64)}), target(), dtype="bfloat16")
    close(lib(x), reference(copy.deepcopy(net).bfloat16(), x.bfloat16()))
    assert families(lib) == {"matmul_bf16"}


# ---------------------------------------------------------------- assembly


def assembly(instruction: str, rng, layer) -> str:
    """The code of the kernel of a layer for a CPU that has AMX."""
    if instruction == "tdpbusd":
        shape, outs, window = layer

        def body(net, x):
            x = net.qdq(x, 0.1, 3)
            if window:
                return net.qdq(net.conv(x, outs, window, 1, window // 2), 0.1)
            return net.qdq(net.matmul(x, net.weight(net.integers((shape[-1], outs)), 0.01)), 0.1)

        lib = Network(shape, rng)(body, target=SERVER)
    else:
        shape, outs, window = layer
        net = nn.Conv2d(shape[1], outs, window, padding=window // 2) if window else nn.Linear(shape[-1], outs)
        lib = tvmfast.build(*tvmfast.from_pytorch(net.eval(), (torch.randn(shape),)), SERVER, dtype="bfloat16")
    kernels = lib.kernels[lib.kernels.family.str.startswith("amx_")]
    assert len(kernels) == 1 and kernels.config.iloc[0]["instruction"] == instruction
    return lib.source(kernels.index[0], "asm")


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
@pytest.mark.parametrize(
    "layer", [((1, 512, 14, 14), 32, 3), ((1, 2048, 7, 14), 32, 1), ((64, 2048), 64, 0)], ids=["3x3", "1x1", "product"]
)
def test_the_inner_loop_multiplies_four_tiles_and_loads_four(rng, instruction, layer):
    text = assembly(instruction, rng, layer)
    loop = min(inner_loops(text, instruction), key=len)
    count = {name: sum(name in line.split() for line in loop) for name in (instruction, "tileloadd", "ldtilecfg")}
    assert count[instruction] == count["tileloadd"] > 0 == count["ldtilecfg"]
    assert count[instruction] % 4 == 0
    assert not any(word in line for line in loop for word in ("tilestored", "tilezero", "zmm", "call"))
    lines = [line.split()[0] for line in text.splitlines() if line.split()]
    assert (lines.count("ldtilecfg"), lines.count("tilerelease")) == (1, 1)


# ---------------------------------------------------------------- permission, refusal, fallback


def test_a_target_names_its_instructions():
    assert simd_of(machine.checked_target(SERVER)).tiles == tuple(INSTRUCTIONS)
    for without, left in (("amx-tile", ()), ("amx-int8", ("tdpbf16ps",)), ("amx-bf16", ("tdpbusd",))):
        assert simd_of(machine.checked_target(SERVER | {"mattr": [f"-{without}"]})).tiles == left
    for other in ("znver4", "cascadelake", "haswell"):
        assert simd_of(machine.checked_target(SERVER | {"mcpu": other})).tiles == ()
    assert simd_of(machine.checked_target(SERVER | {"mtriple": "x86_64-pc-windows-msvc"})).tiles == ()


@pytest.fixture
def forget():
    machine.instruction_sets.cache_clear()
    yield
    machine.instruction_sets.cache_clear()


@unlimited
@pytest.mark.parametrize("allowed", [True, False])
def test_the_cpu_has_tiles_if_linux_allows_them(forget, monkeypatch, allowed):
    monkeypatch.setattr(machine, "_read", lambda path: "flags\t: avx512f amx_bf16 avx512_bf16 amx_tile amx_int8\n")
    monkeypatch.setattr(machine, "_tiles_are_allowed", lambda: allowed)
    assert machine.instruction_sets() == ("avx512f", "avx512bf16", *(SETS if allowed else ()))


def layer(rng, spec):
    weight = rng.integers(-128, 128, (64, 32)).astype("int8")
    return Network((8, 64), rng)(lambda net, x: net.matmul(net.qdq(x), net.weight(weight, 1.0)), target=spec)


def test_without_permission_vectors_multiply(rng):
    assert families(layer(rng, target("amx-int8"))) >= {"dot_matmul"}
    assert families(layer(rng, target())) >= {"amx_matmul"}


@pytest.mark.skipif(HAS_TILES, reason="the CPU has AMX")
def test_a_saved_network_for_amx_is_refused_where_there_is_none(rng, tmp_path):
    folder = layer(rng, target()).save(tmp_path / "net")
    used = json.loads((folder / "manifest.json").read_text())["instruction_sets"]
    assert {"amx-tile", "amx-int8"} <= set(used)
    with pytest.raises(RuntimeError, match="cannot run here: it uses .*amx-int8.*, which this CPU .* lacks"):
        tvmfast.load(folder)


@pytest.mark.skipif(HAS_TILES, reason="the CPU has AMX")
def test_a_kernel_raises_by_itself_where_there_is_no_amx(rng, monkeypatch):
    sets = (*machine.instruction_sets(), *SETS)
    spec = target()
    monkeypatch.setattr(machine, "instruction_sets", lambda: sets)
    lib = layer(rng, spec)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="compiled for a CPU with AMX, which this one lacks"):
            lib(np.zeros((8, 64), "float32"))


@pytest.mark.skipif(not HAS_TILES, reason="the CPU has no AMX")
def test_tiles_compute_what_vectors_compute(rng, tmp_path):
    shape, seed = (2, 3, 20, 20), rng.integers(1 << 30)
    x = rng.normal(size=shape).astype("float32")
    by_vectors, by_tiles = (
        Network(shape, np.random.default_rng(seed))(wide, target=target(*without)) for without in (SETS, ())
    )
    wanted = by_vectors(x)
    np.testing.assert_array_equal(by_tiles(x), wanted)
    np.testing.assert_array_equal(tvmfast.load(by_tiles.save(tmp_path / "net"))(x), wanted)


# ---------------------------------------------------------------- the peak


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_the_peak_is_measured_by_six_products_without_loads(instruction):
    library = peak.tile_recurrence(instruction, machine.checked_target(SERVER))
    loop = min(inner_loops(library.inspect_source("asm"), instruction), key=len)  # which LLVM may unroll
    words = [line.split()[0] for line in loop if line.split()]
    assert words.count(instruction) % 6 == 0
    assert not {"tileloadd", "tilestored", "tilezero", "ldtilecfg"} & {*words}


def test_the_peaks_kernel_adds_a_product_in_each_step(rng, tiles):  # noqa: F811
    kernel = peak.tile_recurrence("tdpbusd", machine.checked_target(target()))["main"]
    a, b = rng.integers(0, 256, (16, 64)).astype("uint8"), rng.integers(-128, 128, (16, 64)).astype("int8")
    sums = np.ones((6, 16, 16), "int32")
    arrays = [tvm.runtime.tensor(each) for each in (a.view("int32"), b.view("int32"), sums)]
    kernel(*arrays, 3)
    wanted = 3 * a.astype("int64") @ b.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype("int64")
    np.testing.assert_array_equal(arrays[2].numpy(), np.broadcast_to(wanted, sums.shape))
    assert tiles.products() == 6 * 3


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_a_machine_without_amx_has_the_peak_of_vectors(instruction, monkeypatch):
    peak.tile_ops.cache_clear()
    for name, found in (("int8_ops", 4e11), ("bf16_flops", 2e11)):
        monkeypatch.setattr(peak, name, lambda seconds, found=found: found)
    monkeypatch.setattr(peak, "simd_of", lambda target: Simd(16, 32))
    assert peak.tile_ops(instruction) == {"tdpbusd": 4e11, "tdpbf16ps": 2e11}[instruction]
    peak.tile_ops.cache_clear()
