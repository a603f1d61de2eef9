"""GEMM with a dynamic number of rows: results, and remainder tiles, which compute few rows where few are left."""

import ctypes
import mmap

import numpy as np
import pytest
import tvm
from agreement import close, reference
from torch import nn

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.compiler.costs import count
from tvmfast.core import machine

COUNTS = (*range(1, 10), 15, 16, 17, 63, 64, 65, 511)
PAGE = mmap.PAGESIZE


class Block(nn.Module):
    """Two products with a bias, GELU and a residual, whose columns are no whole tiles."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(48, 200), nn.Linear(200, 48, bias=False)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


class Sum(nn.Module):
    """A product to which an input is added."""

    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, x, y):
        return self.product(x) + y


def compiled(net, shape, **options):
    return tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": shape}), records=False, **options)


def hold(lib, net, x):
    """Compare with PyTorch, in whose result a row that is not finite has no effect on the others."""
    close(lib(x), reference(net, x))


@pytest.mark.parametrize("target", [None, {"kind": "llvm", "mcpu": "haswell"}], ids=["this CPU", "AVX2"])
def test_every_number_of_rows(rng, target):
    if target and (
        machine.platform.machine() != "x86_64"
        or not set(machine.target_instruction_sets(target)) <= set(machine.instruction_sets())
    ):
        pytest.skip("this CPU does not run code with AVX2")
    net = Block()
    lib = compiled(net, (tvmfast.Dim("n", 1, 600), 48), target=target)
    assert {schedule["family"] for schedule in lib.graph["kernels"].values()} >= {"matmul"}
    for rows in COUNTS:
        x = rng.standard_normal((rows, 48)).astype("float32")
        hold(lib, net, x)
        x[rng.integers(rows)] = np.nan
        x[rng.integers(rows), 3] = np.inf
        hold(lib, net, x)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (40, 1)], ids=str)
def test_matrices_of_one_row_or_column(rng, sizes):
    net = nn.Sequential(nn.Linear(*sizes), nn.ReLU())
    lib = compiled(net, (tvmfast.Dim("n", 1, 20), sizes[0]))
    assert {schedule["family"] for schedule in lib.graph["kernels"].values()} == {"matmul"}
    for rows in range(1, 18):
        hold(lib, net, rng.standard_normal((rows, sizes[0])).astype("float32"))


def test_several_texts_of_every_length(rng):
    net = Block()
    lib = compiled(net, ("batch", "length", 48))
    for rows in (1, 2, 3, 5, 8, 9, 17):
        hold(lib, net, rng.standard_normal((3, rows, 48)).astype("float32"))


def products(lib):
    """The kernels of a library that multiply, by name."""
    kernels = {var.name_hint: func for var, func in lib._library.kernels.items()}
    return {name: kernels[name] for name, each in lib.graph["kernels"].items() if each["family"] == "matmul"}


def test_few_rows_are_not_computed_as_a_tile():
    lib = compiled(nn.Linear(64, 96, bias=False), (tvmfast.Dim("n", 1, 600), 64))
    (kernel,) = products(lib).values()
    for rows, computed in {1: 1, 2: 2, 3: 4, 4: 4, 9: 9, 10: 10}.items():
        assert count(kernel, {"n": rows})["flops"] == 2 * computed * 64 * 96


def test_an_epilogue_may_have_a_dynamic_axis_of_its_own(rng):
    net = Sum(nn.Linear(48, 96)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": ("n", 48), "y": ("m", "n", 96)}), records=False)
    assert [schedule["family"] for schedule in lib.graph["kernels"].values()] == ["matmul"]
    for n, m in ((1, 1), (3, 2), (9, 5)):
        x, y = (rng.standard_normal(shape).astype("float32") for shape in ((n, 48), (m, n, 96)))
        close(lib(x, y), reference(net, x, y))


def guarded(array: np.ndarray) -> np.ndarray:
    """Copy an array to the end of memory behind which nothing can be read or written."""
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    behind = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(behind), ctypes.c_size_t(PAGE), 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes).reshape(array.shape)
    copy[:] = array
    return copy


def test_nothing_outside_of_the_rows_is_read_or_written(rng):
    net = nn.Linear(64, 96, bias=False)
    lib = compiled(net, (tvmfast.Dim("n", 1, 600), 64))
    ((name, kernel),) = products(lib).items()
    library = codegen.compile_kernels({tvm.ir.GlobalVar(name): kernel}, lib._library.target, runs_here=True)
    (weight,) = lib.params.values()
    weight = guarded(weight.numpy())
    for rows in COUNTS:
        x = guarded(rng.standard_normal((rows, 64)).astype("float32"))
        result = guarded(np.full((rows, 96), np.nan, "float32"))
        library[name](*map(tvm.runtime.from_dlpack, (x, weight, result)))
        close(result, reference(net, x))
