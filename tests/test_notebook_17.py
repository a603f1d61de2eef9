"""What lesson 17 claims, asserted on the names that its cells define; see test_notebook_00.py. No times."""

import linecache
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax, te, tirx
from tvm.relax.backend.cuda.pipeline import legalize_passes
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

import tvmnotes as tn
from tvmnotes.loops import trace

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "17_gpu.ipynb"
CODE = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"}
CELLS = ("imports", "product", "by-threads", "ptx", "check", "pieces", "shared", "shared-count", "registers", "limits",
         "fragments", "tensorize", "dlight")  # fmt: skip


def run(name, source, names):
    """Run a cell, where TVMScript's parser finds its text."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)


@pytest.fixture(scope="module")
def lesson():
    """The cells' names, without what the cells show."""
    names: dict = {}
    for name in CELLS:
        shown = r"^(?:.*\bshow\(\)|print\(max.*|count\(.*)$"
        run(name, re.sub(shown, "", CODE[name], flags=re.M), names)
    return SimpleNamespace(**names)


def counted(lesson, sch):
    """The kinds of instructions in each part of the PTX, without the parts that have none."""
    if tn.asm.ptx(lesson.cuda(sch)) is None:
        pytest.skip("no NVRTC, or no headers of CUDA's")
    kinds = [re.findall(r"^\s+(ld\.\w+|st\.\w+|bar\.sync|fma|wmma\.\w+)", part, re.M) for part in lesson.parts(sch)]
    found = [{kind: part.count(kind) for kind in part if "param" not in kind} for part in kinds]
    return [part for part in found if part]


def source(lesson, sch):
    return lesson.cuda(sch).mod.imports[0].inspect_source("cuda")


def launched(kernel, lesson):
    return tuple(lesson.launch(kernel).values())


# ---------------------------------------------------------------- 1 to 4: the product by hand


@pytest.mark.parametrize("along", ["i", "j"])
def test_two_loads_for_each_multiply_add_in_both_directions(lesson, along):
    (loop,) = (part for part in counted(lesson, lesson.by_threads(lesson.product(1024), along)) if "fma" in part)
    assert loop == {"ld.global": 2 * loop["fma"], "fma": loop["fma"]}


def test_a_tile_in_shared_memory_needs_two_loads_for_32_multiply_adds_and_two_barriers(lesson):
    loop, last = counted(lesson, lesson.shared(lesson.product(1024)))
    assert (loop["ld.global"], loop["st.shared"], loop["bar.sync"], loop["fma"]) == (2, 2, 2, 32)
    assert loop["ld.shared"] < 64 and last == {"st.global": 1}


def test_a_tile_of_registers_needs_16_elements_for_64_multiply_adds(lesson):
    fetched, loop, last = counted(lesson, lesson.registers(lesson.product(1024)))
    assert (fetched["ld.global"], fetched["st.shared"], fetched["bar.sync"]) == (32, 32, 2)
    assert loop == {"ld.shared": 10, "fma": 64} and last == {"st.global": 64}


def test_both_tiles_take_8_kib_of_shared_memory(lesson):
    for make in (lesson.shared, lesson.registers):
        sizes = re.findall(r"__shared__.* float \w+\[(\d+)\]", source(lesson, make(lesson.product(1024))))
        assert sum(map(int, sizes)) * 4 == 8192


def test_every_step_computes_the_product_with_its_threads_one_after_another(lesson):
    for schedule in (lesson.shared, lesson.registers, lesson.by_rule):
        lesson.check(schedule, size=64)
    lesson.check(lesson.fragments, "float16", size=64)


def test_the_check_finds_an_element_that_no_thread_computes(lesson):
    def short(kernel):
        func = lesson.by_threads(kernel, "j").mod["main"]

        def one_row_of_blocks(loop):
            binding = loop.thread_binding
            if binding is None or binding.thread_tag != "blockIdx.y":
                return loop
            return tirx.For(loop.loop_var, loop.min, 1, loop.kind, loop.body, binding)

        return Schedule(func.with_body(tvm_ffi.structural_map(func.body, [(tirx.For, one_row_of_blocks)])))

    with pytest.raises(AssertionError):
        lesson.check(short, size=64)


# ---------------------------------------------------------------- 2 and 5: what a warp touches, and the limits


def touched(kernel, limit=200_000):
    """The pieces of 32 bytes of each input that a warp reads at a step."""
    found = trace(kernel, limit=limit)
    pieces = defaultdict(set)
    for step, core, lane, buffer, element, write, _ in found.accesses:
        if not write and buffer in "ab":
            pieces[step, core, lane // 32, buffer].add(4 * element // 32)
    return {buffer: {len(p) for (*_, name), p in pieces.items() if name == buffer} for buffer in "ab"}


def test_the_pieces_of_a_step_are_those_that_the_schedule_touches(lesson):
    kernel = lesson.product(32)
    assert touched(lesson.by_threads(kernel, "i").mod["main"]) == {"a": {32}, "b": {1}}
    assert touched(lesson.by_threads(kernel, "j").mod["main"]) == {"a": {1}, "b": {4}}
    assert lesson.moved == {"i": 33, "j": 5}


def test_a_block_fetches_with_coalesced_reads(lesson):
    for sch in (lesson.shared(lesson.product(32)), lesson.registers(lesson.product(32), each=2)):
        assert touched(sch.mod["main"]) == {"a": {4}, "b": {4}}


def test_the_warps_of_the_players(lesson):
    names = vars(lesson) | {"te": tvm.te, "Schedule": Schedule}
    run("warps-played", CODE["warps-played"].split("\n\n\n")[0], names)
    assert [trace(names["sums"](of_rows)).fetched(8, 32) for of_rows in (True, False)] == [1028, 132]


def test_what_limits_each_step(lesson):
    def lowest(gpu):
        return [min(limits, key=limits.get) for limits in (lesson.limits(gpu, step) for step in lesson.COSTS)]

    a100, h100, rtx = map(lowest, lesson.GPUS)
    assert a100 == ["memory", "memory", "shared memory", "arithmetic"]
    assert h100 == ["memory", "memory", "shared memory", "memory"]
    assert rtx == ["memory"] * 4


# ---------------------------------------------------------------- 6 and 7: tensor cores, dlight


def test_tensor_cores_in_the_source_and_in_ptx(lesson):
    assert source(lesson, lesson.halves).count("mma_sync(") == 1
    loop, last = counted(lesson, lesson.halves)
    assert loop["ld.global"] == 32 and loop["wmma.mma"] == 8 and last == {"wmma.store": 4}


def test_tensorize_refuses_loops_that_do_something_else(lesson):
    with pytest.raises(ScheduleError):
        lesson.tensor_cores(lesson.product(64))


def test_dlight_has_twice_as_many_blocks_with_twice_as_many_threads(lesson):
    ours, rule, cores, _ = (launched(sch.mod["main"], lesson) for sch in lesson.table.values())
    assert (ours, rule) == ((256, 64), (512, 128)) and cores == (256, 128)
    assert "mma_sync(" in source(lesson, lesson.table["dl.gpu.Matmul, float16"])
    assert "mma_sync(" not in source(lesson, lesson.table["dl.gpu.Matmul"])


# ---------------------------------------------------------------- 8 to 10: networks


def scheduled(lesson, layer, shape, *passes):
    exported = torch.export.export(layer.eval(), (torch.zeros(shape),))
    mod = from_exported_program(exported, unwrap_unit_return_tuple=True)
    with lesson.target:
        return tvm.transform.Sequential([*passes, *legalize_passes(lesson.target)])(mod)


def kernels(mod):
    return [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]


def test_the_last_convolutions_of_resnet_have_16_blocks(lesson):
    (kernel,) = kernels(scheduled(lesson, nn.Conv2d(512, 512, 3, padding=1, bias=False), (1, 512, 7, 7)))
    assert launched(kernel, lesson) == (16, 128)


def test_float16_gets_to_the_tensor_cores_if_the_product_is_large_enough(lesson):
    for channels, cores in ((128, True), (64, False)):
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        mod = scheduled(lesson, layer, (1, channels, 28, 28), relax.transform.ToMixedPrecision())
        found = ["wmma" in kernel.script() for kernel in kernels(mod)]
        assert any(found) == cores


def test_tvm_alone_has_at_most_20_lines_and_uses_section_4s_schedule(lesson, capsys):
    lines = [line for line in CODE["alone"].splitlines() if line.strip()]
    assert len(lines) <= 20 and not re.search(r"\btn\b", CODE["alone"])
    run("alone", CODE["alone"], vars(lesson))
    assert "'matmul': {'blocks': 16, 'threads': 64}" in capsys.readouterr().out


def test_its_rule_takes_products_of_whole_tiles_and_leaves_all_else(lesson):
    names = dict(vars(lesson))
    run("alone", CODE["alone"].partition("\nbb = ")[0], names)
    k, rows = te.reduce_axis((0, 64), name="k"), tirx.Var("rows", "int64")
    a, b, short, open_, cube = map(te.placeholder, ((64, 64), (64, 64), (96, 64), (rows, 64), (64, 64, 64)))

    def times(x):
        return [x, b, te.compute((x.shape[0], 64), lambda i, j: te.sum(x[i, k] * b[k, j], axis=k))]

    total = [cube, te.compute((64, 64), lambda i, j: te.sum(cube[i, j, k], axis=k))]
    double = [cube, te.compute((64, 64, 64), lambda i, j, m: cube[i, j, m] + cube[j, i, m])]
    taken = [
        names["registers_rule"].apply(te.create_prim_func(each), lesson.target, False) is not None
        for each in (times(a), times(short), times(open_), total, double)
    ]
    assert taken == [True, False, False, False, False]


def test_llvms_ptx_fails_on_barriers(lesson):
    from tvm.target.codegen import llvm_get_targets

    if "nvptx64" not in llvm_get_targets():
        pytest.skip("this wheel's LLVM has no NVPTX")
    name = "tvm_callback_libdevice_path"
    before = tvm.get_global_func(name)
    tvm.register_global_func(name, lambda arch: "", override=True)
    try:
        with pytest.raises(tvm.error.InternalError, match="barrier"):
            tvm.compile(lesson.shared(lesson.product(64)).mod, target={"kind": "nvptx", "mcpu": "sm_80"})
    finally:
        tvm.register_global_func(name, before, override=True)
