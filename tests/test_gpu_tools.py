"""What measures on a GPU, without one: what it would build, and that it says so where there is none."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from tools import gpu_tiles
from tvmfast.compiler.cuda import tensor_cores, tiles

ROOT = Path(__file__).parents[1]
SHAPES = [("conv", 2, 32, 9, 8, 48, 3, 2, 1), ("conv", 1, 64, 6, 6, 40, 1, 1, 0), ("matmul", 20, 48, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_shape_is_measured_under_the_key_that_the_compiler_asks_with(shape, monkeypatch):
    asked, chosen = [], tiles.tile_for
    monkeypatch.setattr(tensor_cores, "tile_for", lambda key, arch: asked.append((key, arch)) or chosen(key, arch))
    options = {"allow_tf32": True, "experimental": True}
    gpu_tiles.tvmfast.build(*gpu_tiles.module(shape)[:2], gpu_tiles.DRY, **options)
    assert asked == [(gpu_tiles.key_of(shape), "sm_90")]


@pytest.mark.parametrize("shape", [*SHAPES, ("token", "float16", 4, 48, 64), ("token", "float32", 4, 48, 64)], ids=str)
def test_each_candidate_is_built_by_the_rule_that_it_names(shape):
    """And the table is as before afterwards."""
    before, found = copy.deepcopy(tiles.MEASURED), gpu_tiles.candidates(shape)
    named = [tiles.DLIGHT, *["skinny"] * (shape[0] == "token")]
    cores = found[len(named) :]
    assert found[: len(named)] == named and all(isinstance(each, tiles.Tile) for each in cores)
    assert bool(cores) == (shape[1] != "float32")
    for each in found[: len(named) + 1]:
        rule = gpu_tiles.build(shape, each, gpu_tiles.DRY).kernels.family.iloc[0]
        if each == tiles.DLIGHT:
            assert rule not in ("skinny", "tensor_cores")
        else:
            assert rule == ("tensor_cores" if isinstance(each, tiles.Tile) else each)
    assert before == tiles.MEASURED


def test_the_printed_lines_are_a_table():
    """Of what was fastest; where nothing but dlight was right, of that."""
    key, tile = ("float16", 1, 197, 768, 768), tuple(tiles.TILES[0])
    row = {"shape": ("matmul", *key[2:]), "key": key, "gflop": 1.0, "errors": [], "dlight": 0.03, "torch": 0.01}
    cases = {
        tiles.TILES[0]: {"tiles": [(0.02, tile), (0.05, "skinny")]},
        "skinny": {"tiles": [(0.02, "skinny"), (0.021, tile)]},
        "dlight": {"tiles": [(0.04, tile)]},
        None: {"tiles": [], "errors": ["differs by 1.0e-1"]},
    }
    for wanted, found in cases.items():
        line = gpu_tiles._line(row | found)
        table = eval(f"{{{line}\n}}", {"Tile": tiles.Tile})
        assert table == {key: wanted or "dlight"}
    assert gpu_tiles.best({"tiles": []}) is None


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
