"""What lesson 08 claims, asserted on the names that its cells define, with a small network for ResNet-18. No times."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
import torchvision
import tvm
import tvm_ffi
from agreement import close, reference
from torch import nn
from tvm import relax, te, tirx
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import SBlock
from tvm.target.codegen import llvm_get_vector_width, target_has_features

import tvmnotes as tn
from tvmfast.core.simd import simd_of

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "08_fast_in_plain_tvm.ipynb"
CODE = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"}
FUNCTIONS = ("spread", "layout", "legalize", "conv", "pass")  # the cells whose functions section 9 needs


class Block(nn.Module):
    """One of ResNet's: two convolutions, and a shortcut with one of its own where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(*shortcut) if inputs != outputs else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Small(nn.Sequential):
    """ResNet-18's kinds of layers: 6 convolutions, of which the two of the first block and of its end share shapes."""

    input_shape = (1, 3, 32, 32)

    def __init__(self):
        head = nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        tail = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        super().__init__(*head, Block(32, 32, 1), Block(32, 64, 2), *tail)


KINDS = [  # lanes and registers; the lesson itself runs with those of this CPU
    pytest.param((8, 16), id="avx"),
    pytest.param((16, 32), id="avx512", marks=pytest.mark.full),
    pytest.param((4, 32), id="neon", marks=pytest.mark.full),
]


@pytest.fixture(scope="module", params=KINDS)
def lesson(request):
    """The cells' names after a run with a small network, and with the vector registers of each kind of CPU."""
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tn.models, "load", lambda *_, **__: tn.models.seeded(Small, 32))
        exec(CODE["setup"], names)
    names["LANES"], names["REGISTERS"] = request.param
    for name in ("plain", "fused", "dlight", *FUNCTIONS, "kernel", "rest", "alone"):
        source = re.sub(r"^measure\(.*\)$|^finish\(.*\)$", "", CODE[name], flags=re.M)
        exec(source, names)
    return SimpleNamespace(**names)


def blocks(kernel):
    found = []
    tvm_ffi.structural_walk(kernel.body, (SBlock, found.append))
    return {block.name_hint for block in found} - {"root"}


def loops(kernel, kind):
    found = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, found.append))
    return [loop for loop in found if loop.kind == kind]


def convolutions(names):
    return [name for name in names if "conv2d" in name]


def run(lesson, mod, x):
    vm = relax.VirtualMachine(tvm.compile(mod, target=lesson.target), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def fast(lesson, net, x):
    """A network's result by the list of section 9, and the module."""
    imported = from_exported_program(torch.export.export(net, (x,)), unwrap_unit_return_tuple=True)
    with lesson.target:
        mod = tvm.transform.Sequential(lesson.fold + lesson.lower + lesson.schedule)(imported)
    return run(lesson, mod, x.numpy()), mod


# ---------------------------------------------------------------- the steps


def test_every_step_gives_pytorchs_results(lesson):
    wanted = reference(lesson.net, lesson.x)
    for mod in (
        lesson.by_dlight, lesson.by_spread, lesson.apply_rules(lesson.lowered, lesson.spread),
        lesson.apply_rules(lesson.with_tiles, lesson.spread), lesson.apply_rules(lesson.first_dlight, lesson.spread),
    ):  # fmt: skip
        close(run(lesson, mod, lesson.x), wanted)


def test_dlights_reduction_takes_convolutions_and_moves_all_blocks_into_one_parallel_loop(lesson):
    taken = convolutions(lesson.scheduled(lesson.by_dlight))
    assert taken == convolutions(lesson.kernels(lesson.fused))
    for kernel in (lesson.kernels(lesson.by_dlight)[name] for name in taken):
        (loop,) = loops(kernel, tirx.ForKind.PARALLEL)
        assert blocks(loop) == blocks(kernel)
        assert not loops(kernel, tirx.ForKind.VECTORIZED) or "pad_temp" in blocks(kernel)


@tvm.instrument.pass_instrument
class Names:
    def __init__(self):
        self.names = set()

    def run_before_pass(self, mod, info):
        self.names.add(info.name)


def test_no_default_pipeline_applies_dlight_on_a_cpu(lesson):
    applied, instrument = "ApplyDefaultSchedule", Names()
    with tvm.transform.PassContext(instruments=[instrument]):
        for pipeline in (relax.get_pipeline("default"), relax.get_default_pipeline(lesson.target)):
            pipeline(lesson.imported)
        assert applied not in instrument.names and "LegalizeOps" in instrument.names
        lesson.apply_rules(lesson.fused)
    assert applied in instrument.names


def test_our_rule_takes_every_kernel(lesson):
    assert set(lesson.scheduled(lesson.by_spread)) == set(lesson.kernels(lesson.fused))


def test_the_layout_converts_twice_while_the_network_runs(lesson):
    converted = [
        binding.value.op.name
        for block in lesson.blocked["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call) and "layout_transform" in binding.value.op.name
    ]
    assert len(converted) == 2


def test_every_convolution_gets_lesson_06s_schedule_with_sums_in_registers(lesson):
    taken = lesson.scheduled(lesson.with_tiles)
    assert convolutions(taken) == taken == convolutions(lesson.kernels(lesson.lowered))
    for name in taken:
        kernel = lesson.kernels(lesson.with_tiles)[name]
        held = [buffer.scope() for block in all_blocks(kernel) for buffer in block.alloc_buffers]
        assert "local" in held
        assert lesson.LANES in {int(loop.extent) for loop in loops(kernel, tirx.ForKind.VECTORIZED)}
        assert not [block for block in all_blocks(kernel) if block.init is not None]


def all_blocks(kernel):
    found = []
    tvm_ffi.structural_walk(kernel.body, (SBlock, found.append))
    return found


def test_the_schedule_of_a_convolution_without_anything_after_it(lesson):
    lanes = lesson.LANES
    data, weight = te.placeholder((1, 2, 9, 9, lanes)), te.placeholder((4, 2, 3, 3, lanes, lanes))
    with lesson.target:
        sums = lesson.topi.nn.conv2d_NCHWc(
            data, weight, [1, 1], [1] * 4, [1, 1], f"NCHW{lanes}c", f"NCHW{lanes}c"
        )  # fmt: skip
    kernel = te.create_prim_func([data, weight, sums])
    x, w = (
        np.random.default_rng(0).standard_normal([int(n) for n in t.shape], dtype="float32") for t in (data, weight)
    )
    out = tvm.runtime.tensor(np.zeros((1, 4, 9, 9, lanes), "float32"))
    compiled = tvm.compile(lesson.schedule_convolution(kernel).mod, target=lesson.target)
    compiled(*map(tvm.runtime.tensor, (x, w)), out)
    flat_x = x.transpose(0, 1, 4, 2, 3).reshape(1, 2 * lanes, 9, 9)
    flat_w = w.transpose(0, 5, 1, 4, 2, 3).reshape(4 * lanes, 2 * lanes, 3, 3)
    wanted = nn.functional.conv2d(*map(torch.from_numpy, (flat_x.astype("f8"), flat_w.astype("f8"))), padding=1)
    wanted = wanted.numpy().reshape(1, 4, lanes, 9, 9).transpose(0, 1, 3, 4, 2)
    close(out.numpy(), wanted, 2 * lanes * 9, scale=np.sqrt(2 * lanes * 9) * 3)


def test_a_tile_fits_into_the_registers(lesson):
    for width in (7, 14, 28, 56, 112):
        for count in (1, 2, 4, 32):
            pixels, vectors = lesson.tile(width, count)
            assert width % pixels == count % vectors == 0
            assert pixels * vectors + vectors + 1 <= lesson.REGISTERS


def test_the_answer_on_tiles(lesson):
    if lesson.REGISTERS == 16:
        assert lesson.tile(56, 8) == (4, 2)


# ---------------------------------------------------------------- the list of section 9


class Biased(nn.Sequential):
    """A batch norm behind a convolution with a bias, a grouped convolution, and channels that no vector divides."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4), nn.ReLU6(),
            nn.Conv2d(16, 6, (1, 3), dilation=2), nn.AvgPool2d(2), nn.Conv2d(6, 32, 1), nn.Sigmoid(),
        )  # fmt: skip


def test_the_list_compiles_other_networks(lesson):
    net = tn.models.seeded(Biased, 17)
    x = torch.randn(2, 3, 17, 15, generator=torch.Generator().manual_seed(0))
    result, mod = fast(lesson, net, x)
    close(result, reference(net, x))
    assert set(lesson.scheduled(mod)) == set(lesson.kernels(mod))


@pytest.mark.full
def test_the_list_compiles_squeezenet(lesson):
    net = tn.models.seeded(torchvision.models.squeezenet1_1, 224)
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    close(fast(lesson, net, x)[0], reference(net, x))


def test_all_of_it_is_at_most_120_lines_without_any_module_of_ours():
    lines = [line for line in CODE["setup"].splitlines() if re.match(r"cpu|target|VECTORS|LANES|#", line)]
    lines += CODE["alone"].splitlines()
    for name in FUNCTIONS:
        for node in ast.parse(CODE[name]).body:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines += CODE[name].splitlines()[first - 1 : node.end_lineno]
    assert len([line for line in lines if line.strip()]) <= 120
    assert not [line for line in lines if re.search(r"\btn\.(?!env\.threads)", line)]


# ---------------------------------------------------------------- the vector registers


@pytest.mark.parametrize(
    ("target", "size"),
    [
        ({"mcpu": "znver2"}, (8, 16)),
        ({"mcpu": "core-avx2"}, (8, 16)),
        ({"mcpu": "znver5"}, (16, 32)),
        ({"mcpu": "skylake-avx512"}, (16, 32)),
        ({"mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}, (4, 32)),
    ],
)
def test_the_features_of_a_target_say_its_vector_registers(target, size):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"} | target)
    names = {"target": target, "target_has_features": target_has_features}
    exec("\n".join(line for line in CODE["setup"].splitlines() if re.match("VECTORS|LANES", line)), names)
    assert (names["LANES"], names["REGISTERS"]) == size == (simd_of(target).lanes, simd_of(target).registers)


def test_tvms_vector_width_does_not_say_them():
    assert (
        llvm_get_vector_width(tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver2"}))
        == 512
    )
