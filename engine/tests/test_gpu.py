"""Builds for GPUs, where there is none: what is compiled, and what it gives with the threads one after another."""

import contextlib
import gc
import itertools
import math
import os
import random
import re
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
import tvm_ffi
from agreement import close, reference
from emulated_gpu import TARGET, emulate, machine_code, run_emulated
from testing import Function
from torch import nn
from tvm import relax, tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

import tvmfast
from tvmfast.compiler import pipeline
from tvmfast.compiler.build import bind, resolve_target
from tvmfast.compiler.context import BuildContext
from tvmfast.compiler.cuda import codegen, gpu
from tvmfast.core import machine
from tvmfast.core.compat import cuda_headers
from tvmfast.core.relax import ceildiv
from tvmfast.core.specs import TensorSpec
from tvmfast.profiling import networks
from tvmfast.runtime import on_gpu
from tvmfast.runtime.compiled import CompiledForGPU

SHARED_FLOATS = 16384  # 64 KiB
without_gpu = pytest.mark.skipif(tvm.cuda().exist, reason="this machine has a GPU")


class Net(nn.Module):
    """Convolutions of all kinds, a pooling, a product and a softmax: float32 (N, 12, 14, 14) to (N, 10)."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(12, 40, 3, 2, 1, bias=False), nn.BatchNorm2d(40)
        self.deep, self.groups = nn.Conv2d(40, 40, 3, padding=1, groups=40), nn.Conv2d(40, 80, 1, groups=2)
        self.point, self.dense = nn.Conv2d(80, 70, 1), nn.Linear(70, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.groups(torch.relu(self.deep(x)) + x))
        x = nn.functional.max_pool2d(torch.sigmoid(self.point(x)), 3, 2, 1)
        return torch.softmax(self.dense(x.mean((2, 3))), -1)


@pytest.fixture(scope="module")
def case():
    net = networks.seeded(Net, 14, calibrate=False)
    x = torch.randn(1, 12, 14, 14, generator=torch.Generator().manual_seed(2))
    return *tvmfast.from_pytorch(net, {"x": tuple(x.shape)}), x.numpy(), reference(net, x)


@pytest.fixture(scope="module")
def lib(case):
    return tvmfast.build(*case[:2], TARGET)


def launched(lib, kernel):
    return lib.kernels.launches[kernel]


# ---------------------------------------------------------------- targets


def test_without_a_gpu_cuda_means_sm_80_and_the_host_is_this_machine():
    for given in ("cuda", {"kind": "cuda"}, {"kind": "cuda", "arch": "sm_90"}, "nvidia/nvidia-a100"):
        target = resolve_target(given, kinds=("cuda",))
        assert str(target.host) == str(machine.host_target())
        named = given["arch"] if isinstance(given, dict) and "arch" in given else on_gpu.WITHOUT_GPU
        assert target.attrs["arch"] == named or tvm.cuda().exist


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"kind": "cuda", "arch": "80"}, "invalid CUDA arch"),
        ({"kind": "cuda", "arch": "sm_50"}, "expected an arch from sm_75 on, such as 'sm_80'; got 'sm_50'"),
        ({"kind": "cuda", "arch": "sm_9"}, "got 'sm_9'"),
        ("opencl", "is of kind 'opencl'; expected kind 'llvm'.* or 'cuda'"),
    ],
)
def test_bad_targets(small, target, message):
    with pytest.raises(ValueError, match=message):
        tvmfast.build(small.mod, small.params, target)


def test_records_are_for_cpus(small):
    with pytest.raises(ValueError, match="those of tn.tune are of CPUs"):
        tvmfast.build(small.mod, small.params, TARGET, records="some.jsonl")


@without_gpu
def test_a_call_without_a_gpu_says_why_after_it_has_checked_its_inputs(lib, case, tmp_path):
    with pytest.raises(
        RuntimeError, match=r"cannot run here: it is built for CUDA \(sm_80\), and TVM finds no CUDA dev"
    ):
        lib(case[2])
    with pytest.raises(ValueError, match="expected the shape"):
        lib(case[2][:, :3])
    with pytest.raises(TypeError, match="expected 1 input"):
        lib()
    with pytest.raises(RuntimeError, match="takes a build on a machine with a CUDA device"):
        lib.save(tmp_path / "net")
    assert not list(tmp_path.iterdir())


class Device:
    """Stands in for a GPU of some kind."""

    exist, device_name = True, "a GPU"
    available_global_memory, total_global_memory = 3_000_000, 80_000_000_000

    def __init__(self, version):
        self.compute_version = version


@without_gpu
@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (None, r"no CUDA device on this machine\. Build it where it can"),
        (13000, r"no CUDA device on this machine\. Build it where it can"),
        (
            12040,
            r"machine: its NVIDIA driver is for CUDA 12\.4, and this TVM needs one for CUDA 13\.0 or later\. Update",
        ),
    ],
)
def test_a_driver_that_is_too_old_is_named(monkeypatch, case, driver, said):
    assert on_gpu._driver() is None or on_gpu._driver() > 1000
    monkeypatch.setattr(on_gpu, "_driver", lambda: driver)
    with pytest.raises(RuntimeError, match=said):
        tvmfast.build(*case[:2], TARGET)(case[2])


def test_a_gpu_whose_memory_is_full_is_told_from_other_errors(monkeypatch, lib, case):
    """With what the network takes, and what is free."""
    monkeypatch.setattr(lib, "device", tvm.cpu(1), raising=False)
    errors = iter(["CUDA: out of memory", "CUDA: an illegal memory access was encountered"])

    def fail(*_):
        raise RuntimeError(next(errors))

    monkeypatch.setattr(lib, "_main", fail)
    params = sum(each.numpy().nbytes for each in lib.params.values())
    takes = rf"takes {params / 1e6:,.0f} MB for parameters and {lib.graph['memory']['peak'] / 1e6:,.0f} MB for"
    with pytest.raises(RuntimeError, match=rf"the GPU is out of memory: the network {takes} .* smaller batch"):
        lib(case[2])
    with pytest.raises(RuntimeError, match="^CUDA: an illegal memory access was encountered$"):
        lib(case[2])


def test_parameters_that_do_not_fit_leave_nothing_behind(monkeypatch, lib):
    class Copy:
        """An array in the GPU's memory."""

    copies = []

    def copied(_array, _device):
        if len(copies) == 3:
            raise RuntimeError("CUDA: out of memory")
        copy = Copy()
        copies.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(tvm, "cuda", lambda: Device("8.0"))
    monkeypatch.setattr(on_gpu, "copied", copied)
    with pytest.raises(RuntimeError, match=r"out of memory: .* and 3 MB of 80,000 MB are free"):
        CompiledForGPU(lib._library, lib.graph, lib.params, lib.target, 3)
    gc.collect()
    assert [each() for each in copies] == [None] * 3


def test_an_input_in_the_gpus_memory_is_copied_if_kernels_cannot_read_it():
    """The GPU is the CPU here."""
    spec, memory = TensorSpec("x", (32,), "float32"), np.zeros(64, "float32")
    first = -memory.ctypes.data // 4 % 16  # the first element at an address that is a multiple of 64
    memory[:] = np.arange(64)
    for offset, same in ((0, True), (1, False), (3, False)):
        given = tvm_ffi.from_dlpack(memory[first + offset : first + offset + 32])
        taken = on_gpu.on_device(given, spec, tvm.cpu(0))
        assert (taken.data_ptr() == given.data_ptr()) == same
        assert taken.data_ptr() % 64 == 0
        np.testing.assert_array_equal(np.from_dlpack(taken), np.from_dlpack(given))
    lazy = torch._neg_view(torch.arange(32.0))
    assert lazy.is_neg()
    got = on_gpu.on_device(lazy, spec, torch.device("cpu"))
    np.testing.assert_array_equal(np.from_dlpack(got), -np.arange(32.0))


def test_a_kernel_that_takes_too_much_shared_memory_is_named():
    @T.prim_func(s_tir=True)
    def large(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for _block in T.thread_binding(1, thread="blockIdx.x"):
            for thread in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("all"):
                    T.reads(x[0:64])
                    T.writes(y[0:64])
                    tile = T.sblock_alloc_buffer((SHARED_FLOATS,), scope="shared")
                    tile[thread * (SHARED_FLOATS // 64)] = x[thread]
                    y[thread] = tile[(SHARED_FLOATS // 64) * (63 - thread)]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.call_tir(builder.add_func(large, "large"), [x], relax.TensorType((64,), "float32"))
            y = builder.emit_output(builder.emit(call))
        builder.emit_func_output(y)
    with pytest.raises(
        ValueError, match=r"kernel large_kernel: expected at most 49,152 bytes .*; its schedule takes 6"
    ):
        tvmfast.build(builder.get(), {}, TARGET)


def test_a_source_is_compiled_once_and_by_this_build_alone(monkeypatch, lib):
    name, compiled = "tvm_callback_cuda_compile", []
    monkeypatch.setattr(codegen, "cuda_headers", contextlib.nullcontext)
    monkeypatch.setattr(codegen, "exact_cuda", contextlib.nullcontext)
    monkeypatch.setattr(codegen, "compile_cuda", lambda source, arch, **_: compiled.append(arch) or arch.encode())
    before = tvm.get_global_func(name)
    source = f"// {random.random()}"
    with codegen.compiler():
        for arch in ("sm_80", "sm_80", "sm_90"):
            with tvm.target.Target({"kind": "cuda", "arch": arch}):
                assert bytes(tvm.get_global_func(name)(source)) == arch.encode()
    assert compiled == ["sm_80", "sm_90"]
    assert tvm.get_global_func(name).same_as(before)


@pytest.mark.parametrize(("here", "runs"), [("8.0", True), ("8.6", True), ("7.5", False), ("9.0", False)])
def test_a_library_runs_on_its_generation_of_gpus(monkeypatch, lib, here, runs):
    monkeypatch.setattr(tvm, "cuda", lambda: Device(here))
    reason = on_gpu.cannot_run(lib.target)
    assert reason is None if runs else f"this machine's GPU (a GPU) is sm_{here.replace('.', '')}" in reason


@without_gpu
def test_a_network_saved_for_cuda_is_not_loaded_where_it_cannot_run(monkeypatch, lib, tmp_path):
    monkeypatch.setattr(lib._library, "is_machine_code", True)  # what is saved is its source, which no loader opens
    lib.save(tmp_path / "net.zip")
    with pytest.raises(RuntimeError, match=r"net.zip cannot run here: it is built for CUDA \(sm_80\), and TVM finds"):
        tvmfast.load(tmp_path / "net.zip")


def test_a_call_of_a_profile_waits_for_the_gpu(monkeypatch, lib):
    """The virtual machine here notes the instrument that it is given."""
    events = []
    device = SimpleNamespace(sync=lambda: events.append("sync"))
    monkeypatch.setattr(lib, "device", device)
    monkeypatch.setattr(lib, "_main", True)
    given = []
    monkeypatch.setattr(lib, "_vm", SimpleNamespace(set_instrument=given.append), raising=False)
    with lib.instrumented(lambda *args: events.append(args)):
        given[0]("kernel", True)
    assert events == ["sync", ("kernel", True)] and given[1] == "tvmfast.no_instrument"
    monkeypatch.setitem(lib.graph, "is_cuda_graph", True)
    with pytest.raises(ValueError, match="a CUDA graph is launched as a whole"), lib.instrumented(print):
        pass


def test_inputs_and_parameters_go_to_the_device(monkeypatch, lib, case):
    """The device is the memory of a second CPU here, and the network gives back what it got."""
    monkeypatch.setattr(lib, "device", tvm.cpu(1), raising=False)
    monkeypatch.setattr(lib, "_main", lambda x, weights: x)
    (got,) = lib.run([case[2]])
    assert got.device == tvm.cpu(1)
    np.testing.assert_array_equal(got.numpy(), case[2])
    np.testing.assert_array_equal(lib(torch.from_numpy(case[2])), case[2])
    with pytest.raises(TypeError, match="expected 1 input"):
        lib.run([])


# ---------------------------------------------------------------- kernels


def test_each_kernel_has_threads_and_its_source_agrees_with_its_grid(lib):
    assert lib.source().count('extern "C" __global__') == 2 * sum(len(launched(lib, k)) for k in lib.kernels.index)
    for kernel in lib.kernels.index:
        source, launches = lib.source(kernel), launched(lib, kernel)
        assert launches and source.count("__global__") == len(launches)
        bounds = [int(n) for n in re.findall(r"__launch_bounds__\((\d+)\)", source)]
        assert bounds == [math.prod(launch["block"]) for launch in launches if math.prod(launch["block"]) > 1]


def test_grids_cover_what_kernels_make(lib):
    shapes = {node["kernel"]: node["makes"][0]["shape"] for node in lib.graph["nodes"]}
    for kernel, family in lib.kernels.family.items():
        last = launched(lib, kernel)[-1]
        if family == "fallback":
            assert math.prod(last["grid"]) == ceildiv(math.prod(shapes[kernel]), 1024)
        elif family == "matmul":
            _, channels, height, width = shapes[kernel]
            assert last == {"grid": [ceildiv(height * width, 8), ceildiv(channels, 32), 1], "block": [8, 16, 1]}


def test_products_with_many_tiles_have_larger_ones():
    for rows, tile, block in ((256, 8, [8, 16, 1]), (1024, 32, [16, 16, 1])):
        lib = tvmfast.build(nn.Linear(300, 256).eval(), {"x": (rows, 300)}, TARGET)
        (launch,) = lib.kernels.launches.iloc[0]
        assert launch == {"grid": [rows // tile, 8, 1], "block": block}


def test_convolutions_are_products_and_few_summands_the_work_of_a_thread(lib):
    rules = list(lib.kernels.family)
    assert rules.count("matmul") == 2, "the first convolution and the one of 1x1"
    assert set(rules) == {"matmul", "reduction", "fallback"}


def test_an_unknown_kernel_is_named(lib):
    with pytest.raises(ValueError, match="unknown kernel 'conv'; there are: "):
        lib.source("conv")


@pytest.mark.parametrize("opt_level", [0, 1, 2])
def test_kernels_have_threads_at_every_opt_level(small, opt_level):
    lib = tvmfast.build(small.mod, small.params, TARGET, opt_level)
    assert all(launched(lib, kernel) for kernel in lib.kernels.index)


def test_what_threads_do_one_after_another_is_what_pytorch_does(case):
    mod, params, x, wanted = case
    close(run_emulated(mod, params, x), wanted)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True), nn.InstanceNorm1d(6)])
def test_norms_of_images_are_sums_by_blocks_and_elements_by_threads(norm):
    shape = (2, 6, 40, 11)[: 3 if isinstance(norm, nn.InstanceNorm1d) else 4]
    x = 1000 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mod, params = tvmfast.from_pytorch(norm.eval(), {"x": shape})
    close(run_emulated(mod, params, x.numpy()), reference(norm, x))
    families = tvmfast.build(mod, params, TARGET).kernels.family
    sums = [family for name, family in families.items() if "mean" in name or "variance" in name]
    assert sums == ["reduction", "reduction"]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.layer_norm(x, x.shape[-1:]), (5, 300)),
        (lambda x: F.layer_norm(x, x.shape[-2:]), (3, 4, 24)),
        (lambda x: F.batch_norm(x, None, None, training=True), (3, 5, 17, 9)),
    ],
)
def test_norms_are_of_two_passes(function, shape):
    x = 1000 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mod, params = tvmfast.from_pytorch(Function(function).eval(), {"x": shape})
    close(run_emulated(mod, params, x.numpy()), reference(function, x))
    assert "one_thread" not in set(tvmfast.build(mod, params, TARGET).kernels.family)


def test_places_and_casts_are_the_cpus():
    """By an index smaller than the data, in rows of the least alone, and out of range."""

    def function(x):
        parts = x.scatter_add(1, (x[:3, :4, :5] > 0).long(), x[:3, :4, :5]), (x > 9).byte().argmax(1), (x * 300).byte()
        return *parts, x.scatter_reduce(0, (x[1:, :2] > 0).long(), x[1:, :2], "amax", include_self=False)

    x = torch.randint(-3, 4, (4, 6, 70), generator=torch.Generator().manual_seed(0)).float()
    mod, params = tvmfast.from_pytorch(Function(function).eval(), {"x": x.shape})
    for got, wanted in zip(run_emulated(mod, params, x.numpy()), function(x), strict=True):
        np.testing.assert_array_equal(got, wanted.numpy())
    families = tvmfast.build(mod, params, TARGET).kernels.family
    assert "one_thread" not in set(families)
    assert [families[name] for name in families.index if "scatter" in name] == ["by_hand"] * 3


def test_integers_divided_by_zero_are_zero():
    class Parts(nn.Module):
        def forward(self, x, y):
            return torch.floor_divide(x, y), torch.remainder(x, y)

    x, y = np.arange(-6, 6), np.array([0, 1, -1, 3] * 3)
    mod, params = tvmfast.from_pytorch(Parts().eval(), {"x": ((12,), "int64"), "y": ((12,), "int64")})
    quotient, rest = run_emulated(mod, params, x, y)
    np.testing.assert_array_equal(quotient, np.where(y == 0, 0, x // np.where(y == 0, 1, y)))
    np.testing.assert_array_equal(rest, np.where(y == 0, 0, x % np.where(y == 0, 1, y)))
    source = tvmfast.build(mod, params, TARGET).source()
    assert len(re.findall(r"== \(int64_t\)0", source)) >= 2


@T.prim_func(s_tir=True)
def runs(x: T.Buffer((500,), "int32"), lengths: T.Buffer((500,), "int32"), longest: T.Buffer((1,), "int32")):
    """How many equal elements have come up to each index, and the most: as one block."""
    T.func_attr({"tirx.noalias": True})
    with T.sblock("runs"):
        last = T.sblock_alloc_buffer((2,), "int32")
        last[0] = 0
        longest[0] = 0
        for at in range(500):
            last[0] = T.if_then_else(at > 0 and x[at] == last[1], last[0] + 1, 1)
            last[1] = x[at]
            lengths[at] = last[0]
            longest[0] = T.max(longest[0], last[0])


@T.prim_func
def plain_runs(x: T.Buffer((500,), "int32"), lengths: T.Buffer((500,), "int32"), longest: T.Buffer((1,), "int32")):
    """The same without blocks, and with memory of its own inside the loops."""
    T.func_attr({"tirx.noalias": True})
    longest[0] = 0
    for at in range(500):
        same = T.alloc_buffer((500,), "int32")
        same[at] = T.Cast("int32", at > 0 and x[at] == x[at - 1])
        lengths[at] = 1
        if same[at] == 1:
            lengths[at] = lengths[at - 1] + 1
        longest[0] = T.max(longest[0], lengths[at])


@pytest.mark.parametrize("kernel", [runs, plain_runs])
def test_loops_that_no_rule_knows_are_the_work_of_one_thread(kernel):
    x = np.random.default_rng(0).integers(0, 2, 500).astype("int32")
    lengths, longest = np.zeros(500, "int32"), np.zeros(1, "int32")
    once = {"grid": [1, 1, 1], "block": [1, 1, 1]}
    assert run_kernel(kernel, x, lengths, longest) == {"family": "one_thread", "launches": [once]}
    wanted = [1]
    for before, now in itertools.pairwise(x):
        wanted.append(wanted[-1] + 1 if before == now else 1)
    np.testing.assert_array_equal(lengths, wanted)
    assert longest[0] == max(wanted)


def run_kernel(func, *arrays):
    """Run a kernel on arrays, which it changes, scheduled for a GPU, and in turn; return its schedule."""
    mod, schedules = gpu.scheduled(tvm.IRModule({"main": func}), resolve_target(TARGET, ("cuda",)))
    func = emulate(mod["main"]).without_attr("tirx.is_scheduled")
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), machine.host_target())(*tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.numpy()
    return schedules["main"]


def test_tvms_sorts_come_with_their_threads():
    class Best(nn.Module):
        def forward(self, x):
            return torch.topk(x, 40)[0]

    lib = tvmfast.build(*tvmfast.from_pytorch(Best().eval(), {"x": (1, 300)}), TARGET)
    (kernel,) = (kernel for kernel in lib.kernels.index if "topk" in kernel)
    assert (lib.kernels.family[kernel], lib.kernels.launches[kernel]) == ("by_hand", [])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.index_add(0, torch.tensor([1, 1, 3]), x[:3]),
        lambda x: torch.sort(x, 0)[0],
        lambda x: x.scatter_add(1, x.long() * 0, x),
        lambda x: x.scatter_add(1, x[:3].long() * 0, x),
    ],
)
def test_the_cpu_runs_no_loop_of_a_kernel_that_tvm_has_bound(function):
    class Network(nn.Module):
        def forward(self, x):
            return function(x)

    lib = tvmfast.build(Network().eval(), {"x": (7, 10)}, TARGET)
    (kernel,) = (func for var, func in lib.functions.items() if lib.kernels.family[var] == "by_hand")
    tvm_ffi.structural_walk(kernel.body, (tirx.For, assert_bound))


@T.prim_func(s_tir=True)
def sum_beside(x: T.Buffer((300,), "float32"), total: T.Buffer((1,), "float32"), y: T.Buffer((300,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in range(300):
        with T.sblock("total"):
            at = T.axis.reduce(300, i)
            with T.init():
                total[0] = T.float32(0)
            total[0] = total[0] + x[at]
    for i in T.thread_binding(300, thread="threadIdx.x"):
        with T.sblock("y"):
            at = T.axis.spatial(300, i)
            y[at] = x[at] * T.float32(2)


def test_a_sum_beside_such_loops_is_the_work_of_one_thread():
    x, total, y = np.arange(300, dtype="float32"), np.zeros(1, "float32"), np.zeros(300, "float32")
    launched = run_kernel(sum_beside, x, total, y)
    assert launched["family"] == "by_hand" and [math.prod(each["block"]) for each in launched["launches"]] == [1, 300]
    assert total == x.sum()
    np.testing.assert_array_equal(y, 2 * x)


def assert_bound(loop):
    """A loop right around a block of computation is over threads."""
    if isinstance(loop.body, SBlockRealize):
        assert loop.kind == tirx.ForKind.THREAD_BINDING


def test_a_database_of_metaschedule_comes_before_dlight():
    mod, params = tvmfast.from_pytorch(nn.Sequential(nn.ReLU()).eval(), {"x": (64, 64)})
    target = resolve_target(TARGET, ("cuda",))
    with target:
        fused = tvm.transform.Sequential(pipeline.passes(BuildContext(target)))(bind(mod, params)[0])
    (func,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    kernel = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    sch = Schedule(kernel)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    outer, inner = sch.split(sch.fuse(*sch.get_loops(block)), [None, 256])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    database = ms.database.MemoryDatabase(module_equality="structural")
    workload, args = database.commit_workload(kernel), ms.arg_info.ArgInfo.from_prim_func(kernel["main"])
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [1e-6], target, args))
    with database:
        found = tvmfast.build(mod, params, TARGET)
    assert list(found.kernels.family) == ["metaschedule"]
    assert list(found.kernels.launches) == [[{"grid": [16, 1, 1], "block": [256, 1, 1]}]]
    assert tvmfast.build(mod, params, TARGET).kernels.family.iloc[0] == "fallback"


# ---------------------------------------------------------------- CUDA's compiler


def test_cudas_compiler_takes_the_source(lib):
    assert machine_code(lib)[:4] == b"\x7fELF"


def test_cudas_compiler_keeps_denormals_and_rounds_divisions():
    class Parts(nn.Module):
        def forward(self, x, y):
            return torch.sqrt(x) / y, torch.sign(x), torch.sin(y), torch.log(x)

    lib = tvmfast.build(Parts().eval(), {"x": (100,), "y": (100,)}, TARGET)
    code = machine_code(lib, "ptx").decode()
    assert "sqrt.rn.f32" in code and "div.rn.f32" in code
    assert not re.findall(r"\b(?:div|sqrt|sin|lg2)\.approx|setp\.\w+\.ftz", code)


def test_headers_that_are_not_there_are_asked_for_and_the_environment_is_left_alone(monkeypatch, tmp_path):
    before = dict(os.environ)
    include = tmp_path / "include"
    (include / "cccl/cuda/std").mkdir(parents=True)
    (include / "cccl/cuda/std/cstdint").touch()
    (include / "cuda_runtime.h").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    with cuda_headers():
        assert os.environ["CUDA_PATH"] == str(tmp_path)
        assert f"-I{include}/cccl" in os.environ["TVM_CUDA_NVRTC_EXTRA_OPTS"]
    monkeypatch.undo()
    assert dict(os.environ) == before
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    with pytest.raises(RuntimeError, match="takes CUDA's headers.*pip install 'nvidia-cuda-cccl"), cuda_headers():
        pass


def test_cuda_graphs_are_captured_where_the_context_asks_for_them(case):
    memory = {}
    for wanted in (False, True):
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": wanted}):
            lib = tvmfast.build(*case[:2], TARGET)
        assert ("cuda_graph.run_or_capture" in lib._library.as_text()) == wanted
        memory[wanted] = lib.graph["memory"]
    assert memory[True]["unshared"] == memory[False]["unshared"]
    assert memory[True]["peak"] >= memory[False]["peak"] > 0
    assert memory[True]["peak"] <= sum(memory[True]["buffers"])


def test_a_cuda_graph_records_no_check_of_indices():
    """A check is a call into this process, and a recording that meets it would fail."""
    table = nn.Embedding(50, 16)
    net = Function(lambda x: torch.softmax(torch.relu(table(x * 2) + 1) @ table.weight.T, -1).sum(-1))
    net.table = table
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        lib = tvmfast.build(*tvmfast.from_pytorch(net.eval(), {"x": ((2, 10), "int64")}), TARGET)
    main, _, recorded = lib._library.as_text().partition("@main_cuda_graph_capture:")
    recorded = recorded.partition("\n\n")[0]
    assert "tvmfast.checked_indices in" in main and "checked_indices" not in recorded and "matmul" in recorded


def test_a_cuda_graph_keeps_its_parameters(monkeypatch, case):
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        lib = tvmfast.build(*case[:2], TARGET)
    monkeypatch.setattr(lib, "device", tvm.cpu(1), raising=False)
    monkeypatch.setattr(lib, "_main", lambda x, weights: x)
    with pytest.raises(ValueError, match="keeps the parameters that it was recorded with"):
        lib.run([case[2]], dict(lib.params))
