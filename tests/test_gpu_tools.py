"""What measures on a GPU, without one: what it would build, and that it says so where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from tools import gpu_tiles
from tvmfast.compiler.cuda import operands, tensor_cores, tiles

ROOT = Path(__file__).parents[1]
SHAPES = [("conv", 2, 32, 9, 8, 48, 3, 2, 1), ("conv", 1, 64, 6, 6, 40, 1, 1, 0), ("matmul", 20, 48, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_shape_is_measured_under_the_key_that_the_compiler_asks_with(shape, monkeypatch):
    asked, chosen = [], tiles.tile_for
    monkeypatch.setattr(tensor_cores, "tile_for", lambda key, arch: asked.append((key, arch)) or chosen(key, arch))
    gpu_tiles.tvmfast.build(*gpu_tiles.module(shape)[:2], gpu_tiles.DRY, allow_tf32=True)
    assert asked == [(gpu_tiles.key_of(shape), "sm_90")]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_measured_for_a_token(dtype):
    """Each candidate is built by the rule that it names, and the rules are as before afterwards."""
    shape = ("token", dtype, 4, 48, 64)
    families = {each: gpu_tiles.build(shape, each, gpu_tiles.DRY).kernels.family.iloc[0] for each in (None, "skinny")}
    assert families["skinny"] == "skinny"
    assert families[None] not in ("skinny", "tensor_cores")
    cores = [each for each in gpu_tiles.candidates(shape) if isinstance(each, tiles.Tile)]
    assert bool(cores) == (dtype == "float16")
    for tile in cores[:1]:
        assert gpu_tiles.build(shape, tile, gpu_tiles.DRY).kernels.family.iloc[0] == "tensor_cores"
    assert operands.SERVED == ("float16",)


def test_the_shapes_are_those_of_the_networks():
    shapes = gpu_tiles.shapes()
    assert len(shapes) == len(set(shapes)) > 60
    assert ("conv", 16, 3, 224, 224, 64, 7, 2, 3) in shapes
    assert ("token", "float32", 1, 50257, 768) in shapes


@pytest.mark.skipif(tvm.cuda().exist, reason="this machine has a GPU")
def test_without_a_gpu_the_check_says_that_nothing_runs(tmp_path):
    command = [sys.executable, "tests/gpu_check.py", "--out", str(tmp_path), "--parts", "none"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "no GPU here: networks are built and compiled for sm_90, and kernels emulated; no time is" in ran.stdout
    assert json.loads((tmp_path / "gpu.json").read_text())["cases"] == {}
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpu_tiles"])
        gpu_tiles.main()
