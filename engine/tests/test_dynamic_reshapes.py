"""Dynamic dims between kernels: reshapes that fuse, short loops on one thread, shape CSE."""

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from torch import nn
from tvm import tirx

import tvmfast
from tvmfast.compiler.legalize import ieee754
from tvmfast.compiler.legalize.dynamic_reshape import _groups
from tvmfast.core import machine

LENGTHS = (*range(1, 10), 15, 16, 17, 63, 64, 65, 511)
B, N = (tirx.Var(name, "int64") for name in "bn")


def compiled(net, target=None, **shapes):
    return tvmfast.build(*tvmfast.from_pytorch(net.eval(), shapes), target=target, records=False)


def hold(lib, net, *inputs):
    """Compare with PyTorch, NaN and infinities included."""
    close(lib(*inputs), reference(net, *inputs))


class Heads(nn.Module):
    """What attention does to its queries: split into heads, turned, and turned back."""

    def forward(self, x):
        heads = x.reshape(-1, 4, 12).transpose(0, 1)
        return torch.relu(heads.reshape(1, 4, -1, 12) - 0.5).transpose(1, 2).reshape(1, -1, 48)


class Flat(nn.Module):
    """Two dynamic axes made one."""

    def forward(self, x):
        return torch.relu(x.reshape(-1, 6, 8).transpose(1, 2)) + 1


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((1, N, 768), (N, 12, 64), [([1], [0]), ([2], [1, 2])]),
        ((N * 12, 64), (N, 12, 64), [([0], [0, 1]), ([1], [2])]),
        ((N, 1, 3, 8), (N, 24), [([0], [0]), ([2, 3], [1])]),
        ((12, N, 64), (1, 12, N, 64), [([0], [1]), ([1], [2]), ([2], [3])]),
        ((B, N, 6), (B * N, 6), None),
        ((2, N, 6), (2 * N, 6), None),
        ((0, N), (N, 0), None),
    ],
    ids=str,
)
def test_axes_with_the_same_elements(before, after, groups):
    assert _groups(before, after) == groups


@pytest.mark.parametrize("target", [None, {"kind": "llvm", "mcpu": "haswell"}], ids=["this CPU", "AVX2"])
def test_reshapes_are_fused(rng, target):
    if target and (
        machine.platform.machine() != "x86_64"
        or not set(machine.target_instruction_sets(target)) <= set(machine.instruction_sets())
    ):
        pytest.skip("this CPU does not run code with AVX2")
    net = Heads()
    lib = compiled(net, target, x=(1, tvmfast.Dim("n", 1, 600), 48))
    assert len(lib.graph["nodes"]) == 1
    for n in LENGTHS:
        x = rng.standard_normal((1, n, 48)).astype("float32")
        x[0, rng.integers(n), :2] = np.nan, -np.inf
        hold(lib, net, x)


def test_two_dynamic_dims(rng):
    net = Flat()
    lib = compiled(net, x=("batch", "n", 48))
    for b, n in ((1, 1), (1, 5), (3, 1), (2, 17), (5, 64)):
        hold(lib, net, rng.standard_normal((b, n, 48)).astype("float32"))


def test_an_encoder_has_as_many_kernels_as_one_of_a_static_length(rng):
    net = nn.TransformerEncoderLayer(32, 2, 64, activation="gelu", batch_first=True)
    lib = compiled(net, src=(1, tvmfast.Dim("n", 1, 600), 32))
    fixed = compiled(net, src=(1, 64, 32))
    assert len(lib.graph["nodes"]) <= len(fixed.graph["nodes"])
    for n in LENGTHS:
        hold(lib, net, rng.standard_normal((1, n, 32)).astype("float32"))
    made = [line for line in lib._library.as_text().splitlines() if "make_shape in" in line]
    assert len({line.partition(" dst")[0] for line in made}) == len(made)


def loops(lib):
    """The kinds of the loops over a dynamic dim in the lowered kernels of a library, by kernel."""
    lower, *_ = tirx.get_tir_pipeline(ieee754.LOWERING)
    target = lib._library.target
    kernels = tvm.IRModule(lib._library.kernels)
    found = {}
    for var, func in lower(tirx.transform.BindTarget(target.with_host(target))(kernels)).functions_items():
        kinds = found.setdefault(var.name_hint, [])
        visit = (tirx.For, lambda loop, kinds=kinds: kinds.append((loop.kind, isinstance(loop.extent, tirx.IntImm))))
        tvm_ffi.structural_walk(func.body, visit)
    return {name: [kind for kind, is_static in kinds if not is_static] for name, kinds in found.items()}


@pytest.mark.parametrize("width", [1, 7, 64, 1000])
def test_few_iterations_are_left_to_one_thread(rng, width):
    net = nn.Sequential(nn.LayerNorm(width), nn.GELU())
    lib = compiled(net, input=("n", width))
    norm, *_ = (kinds for name, kinds in loops(lib).items() if "layer_norm" in name)
    assert norm == [tirx.ForKind.SERIAL] * 2  # for few rows, and for those of a chunk of the parallel loop
    for n in (1, 2, 3, 8, 9, 100, 1000):
        hold(lib, net, rng.standard_normal((n, width)).astype("float32"))


def test_long_iterations_are_always_shared():
    """The columns of a product, of a static number, are shared; its dynamic loop over rows is inside."""
    lib = compiled(nn.Linear(512, 512), input=("n", 512))
    (kinds,) = (kinds for name, kinds in loops(lib).items() if "dense" in name)
    assert tirx.ForKind.PARALLEL not in kinds
