"""What lesson 06 and the capstone claim, asserted on the names that their cells define. No time is asserted."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import tvm
from agreement import close, reference
from tvm import te
from tvm.s_tir import Schedule

import tvmnotes as tn
from tvmfast.compiler.schedule.rules import RULES
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core import rounding
from tvmnotes import lessons

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TIMED = ("tn.compare(", "tn.plots.")
STEPS = ["1 plain loops", "2 all cores", "3 order and vectors", "4 layout", "5 register tile", "6 bias and ReLU inside"]


def run(name: str) -> dict:
    """Run a lesson's cells without those that time or draw, and return the names that they define."""
    names: dict = {}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        timed = any(call in cell.source for call in TIMED) and "def measure" not in cell.source
        if cell.cell_type == "code" and not timed:
            exec(re.sub(r"^measure\(.*\)$", "", cell.source, flags=re.M), names)
    return names


@pytest.fixture(scope="module")
def by_hand():
    names = run("06_conv2d_by_hand")
    names["exact"] = reference(names["net"], names["x"])
    return names


def test_every_step_runs_and_gives_pytorchs_results(by_hand):
    assert list(by_hand["steps"]) == STEPS
    for kernel in ("parallel_kernel", "vector_kernel"):
        hold(by_hand, kernel, by_hand["plain_arguments"], by_hand["exact"])
    for kernel in ("layout_kernel", "tile_kernel", "fused_kernel"):
        hold(by_hand, kernel, by_hand["arguments"], in_blocks(by_hand))


@pytest.mark.parametrize(("pixels", "vectors", "outside"), [(7, 2, "pixels"), (4, 1, "blocks"), (14, 4, "blocks")])
def test_any_tile_gives_pytorchs_results(by_hand, pixels, vectors, outside):
    by_hand["any_kernel"] = compile_tile(by_hand, pixels, vectors, outside)
    hold(by_hand, "any_kernel", by_hand["arguments"], in_blocks(by_hand))


def compile_tile(names, *tile):
    return tvm.compile(names["any_tile"](*tile).mod, target=names["target"])


@pytest.mark.skipif("fma" not in tn.env.instruction_sets(), reason="counts x86's moves to and from the stack")
def test_with_the_blocks_outside_more_of_the_tile_spills(by_hand):
    moves = {}
    for outside in ("blocks", "pixels"):
        loop = tn.asm.inner_loop(compile_tile(by_hand, by_hand["pixels"] // 2, 2, outside)).splitlines()
        moves[outside] = sum("(%rsp)" in line for line in loop)
    assert moves["blocks"] > 2 * moves["pixels"]


def in_blocks(names):
    """What is wanted, in the layout of blocks."""
    exact = names["exact"]
    return exact._replace(values=[names["to_blocks"](exact.values[0])])


def hold(names, kernel, arguments, wanted):
    """A kernel, run into a result full of NaN, computes what is wanted."""
    empty = tvm.runtime.tensor(np.full_like(wanted.values[0], np.nan, "float32"))
    names[kernel](*arguments[:-1], empty)
    close(empty.numpy(), wanted)


def test_a_copied_schedule_leaves_the_first_as_it_was(by_hand):
    text = by_hand["tiled"].mod.script()
    assert not re.search(r"T\.(parallel|vectorized|unroll)\(", text) and "conv_update" not in text


def test_step_6_is_the_schedule_of_the_package(by_hand):
    """With the lesson's tile, instruction for instruction."""
    lanes, side = by_hand["lanes"], (by_hand["size"],) * 2
    shape = (by_hand["channels"],) * 2
    conv = Convolution((1, shape[0], *side), (*shape, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, blocked=True)
    config = {"family": "conv2d", "tile_ow": by_hand["pixels"], "tile_oc": 1, "loop_order": "rows"}
    data = te.placeholder(conv.packed_input_shape(lanes), name="data")
    kernel = te.placeholder(conv.packed_shape(config, lanes), name="kernel")
    shift = te.placeholder((shape[0] // lanes, lanes), name="shift")
    sums = conv.compute(data, kernel, config)
    out = te.compute(sums.shape, lambda n, o, y, x, c: te.max(sums[n, o, y, x, c] + shift[o, c], 0.0), name="relu")
    sch = Schedule(te.create_prim_func([data, kernel, shift, out]))
    RULES["conv2d"].schedule(sch, RULES["conv2d"].config(config))
    package = tvm.compile(sch.mod, target=by_hand["target"])
    mine, its = (compiled.mod.inspect_source("asm") for compiled in (by_hand["fused_kernel"], package))
    assert instructions(mine) == instructions(its)


def instructions(assembly: str) -> list[str]:
    """Names of instructions, in order: what is left if labels, directives and operands are not read."""
    return re.findall(r"^\t([a-z]\w*)", assembly, re.M)


@pytest.mark.skipif("fma" not in tn.env.instruction_sets(), reason="reads x86's names of fused multiply-adds")
def test_the_inner_loop_is_made_of_multiply_adds_on_registers(by_hand):
    scalar, packed = (tn.asm.multiply_adds(by_hand[name]) for name in ("parallel_kernel", "vector_kernel"))
    assert scalar and all(re.match(r"vfmadd\d+ss %xmm", kind) for kind in scalar)
    assert packed and all(re.match(r"vfmadd\d+ps ", kind) for kind in packed)
    loop = tn.asm.inner_loop(by_hand["fused_kernel"]).splitlines()
    accumulators = [line.split()[-1] for line in loop if "vfmadd" in line]
    assert accumulators and len(accumulators) % by_hand["pixels"] == 0
    assert len(set(accumulators)) >= by_hand["pixels"], "a register for each sum"  # LLVM may rename one
    assert not any("(%rsp)" in line for line in loop), "no sum is loaded or stored"


def test_the_capstones_kernels_give_pytorchs_results(capsys):
    names = run("capstone_faster_kernel")
    found = dict(re.findall(r"^(.+): difference to PyTorch (.+)$", capsys.readouterr().out, re.M))
    assert list(found) == list(names["steps"]) == ["plain loops", "mine", "tvmnotes' rule"]
    # As printed, of sums of 9 products and a bias, each relative to the largest; PyTorch rounds as well.
    assert max(map(float, found.values())) <= 2 * rounding.share(10, 2.0**-23)


@pytest.mark.parametrize("name", ["06_conv2d_by_hand", "07_tensor_expressions"])
def test_the_last_line_names_the_next_lessons(name):
    last = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells[-1].source
    assert last.splitlines()[-1] == lessons.after(name.partition("_")[0])


def test_a_step_of_a_route_is_a_number_and_sections():
    assert lessons.split("06") == ("06", "")
    assert lessons.split("09, sections 1 and 2") == ("09", ", sections 1 and 2")
    assert "07_tensor_expressions.ipynb" in lessons.routes()
    assert lessons.after("06").startswith("Next: [07]")
