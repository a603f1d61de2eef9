"""Kernels for 64-bit ARM, compiled here and read as assembly: tiles of sums in registers, multiplied by element."""

import re

import pytest
import torch
from testing import inner_loops, sampled
from torch.nn import functional as F

from tvmfast.core.simd import NEON, Simd
from tvmfast.kernels.attention import Dims, Tile

CPUS = ["neoverse-n1", "apple-a14", "cortex-a72"]
KERNELS = {  # by family: the function, and the shape of its input
    "conv2d": (lambda x: F.conv2d(x, torch.ones(128, 64, 3, 3), None, 2, 1), (1, 64, 56, 56)),
    "pointwise": (lambda x: F.conv2d(x, torch.ones(256, 128, 1, 1)), (1, 128, 28, 28)),
    "winograd": (lambda x: F.conv2d(x, torch.ones(64, 64, 3, 3), None, 1, 1), (1, 64, 56, 56)),
}


@pytest.mark.parametrize("family", KERNELS)
@pytest.mark.parametrize("cpu", sampled(CPUS, CPUS[:2]))
def test_a_tile_of_sums_stays_in_registers_and_is_multiplied_by_element(compile_function, family, cpu):
    function, shape = KERNELS[family]
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu, "num-cores": 4}
    lib = compile_function(function, {"x": shape}, target=target, records=False)
    (kernel,) = lib.kernels.index[lib.kernels.family == family]
    loops = inner_loops(lib.source(kernel, "asm"), "fmla")
    tiles = [loop for loop in loops if sum("fmla" in line for line in loop) >= 40]
    inner = min(tiles, key=len)
    multiplied = [line for line in inner if re.search(r"\bfmla\b|\bfmul\b", line)]
    assert all(re.search(r"\bv\d+\.4s", line) for line in multiplied), "vectors of 128 bits"
    by_element = sum(bool(re.search(r"v\d+\.s\[[0-3]\]", line)) for line in multiplied)
    assert by_element >= 0.9 * len(multiplied)
    assert not [line for line in inner if re.search(r"\b(st|ld)[rpu]+\s+[qds]\d+.*\[sp", line)], "the stack"


def test_neon_leaves_registers_for_inputs_and_others_leave_one():
    assert NEON.fits(7, 2) and NEON.fits(8, 2) and not NEON.fits(14, 2) and not NEON.fits(7, 3)
    assert Simd(16, 32).fits(14, 2) and Simd(8, 16).fits(6, 2)


def test_attention_has_the_tile_that_fits():
    sizes = {simd: Tile.of(Dims((1, 8), 96, 96, 64, 96), simd) for simd in (Simd(16, 32), Simd(8, 16), NEON)}
    assert all(simd.fits(6, tile.keys) and simd.fits(6, tile.values) for simd, tile in sizes.items())
