"""Builds for GPUs, where there is none: what is compiled, and what it gives with the threads one after another."""

import json
import math
import os
import re

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax, tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms

import tvmnotes as tn
from tvmnotes.compiler import bind, gpu, pipeline
from tvmnotes.importers.mxnet_detection import Suppression, best_places, suppressed

TARGET = {"kind": "cuda", "arch": "sm_80"}
without_gpu = pytest.mark.skipif(tvm.cuda().exist, reason="this machine has a GPU")


def in_turn(func):
    """A kernel for a GPU as one for a CPU: all memory is the CPU's, and what threads do is done by one after another.

    Right for kernels whose threads exchange data through what all of them have fetched, as dlight's do.
    """
    own = []
    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, lambda alloc: own.append(alloc.buffer)),
                                        (SBlock, lambda block: own.extend(block.alloc_buffers))])  # fmt: skip
    plain = {b: tirx.decl_buffer(b.shape, b.dtype, b.name) for b in own}

    def loop(node):
        if node.kind != tirx.ForKind.THREAD_BINDING:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)

    def launch(node):
        if node.attr_key != "thread_extent":
            return node
        return tirx.For(node.node.var, 0, node.value, tirx.ForKind.SERIAL, node.body)

    changes = [(tirx.Var, lambda var: plain.get(var, var)), (tirx.For, loop), (tirx.AttrStmt, launch)]
    return func.with_body(tvm_ffi.structural_map(func.body, changes))


def run_in_turn(mod, params, *inputs):
    """What a build for a GPU computes, its kernels `in_turn`."""
    target, here = tn.compiler.resolve_target(TARGET, ("cuda",)), tn.env.host_target()
    mod, _ = bind(mod, params)
    with target:
        mod = tvm.transform.Sequential(pipeline.passes(3, target))(mod)
        mod, constants = pipeline.lift_constants(mod, {})
        mod, _ = gpu.scheduled(mod, target)
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                mod.update_func(var, in_turn(func).without_attr("tirx.is_scheduled"))
        mod = pipeline.lowering()(pipeline.bundle(mod))
    machine = relax.VirtualMachine(relax.build(mod, here, relax_pipeline=None), tvm.cpu())
    tensors = [tvm.runtime.tensor(x) for x in inputs]
    return machine["main"](*tensors, tvm_ffi.convert(list(constants.values()))).numpy()


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
    net = tn.models.seeded(Net, 14, calibrate=False)
    x = torch.randn(1, 12, 14, 14, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return *tn.from_pytorch(net, {"x": tuple(x.shape)}), x.numpy(), net(x).numpy()


@pytest.fixture(scope="module")
def lib(case):
    return tn.build(*case[:2], TARGET)


def launched(lib, kernel):
    return json.loads(lib.kernels[kernel].partition(" ")[2])["launches"]


# ---------------------------------------------------------------- targets


def test_without_a_gpu_cuda_means_sm_80_and_the_host_is_this_machine():
    for given in ("cuda", {"kind": "cuda"}, {"kind": "cuda", "arch": "sm_90"}, "nvidia/nvidia-a100"):
        target = tn.compiler.resolve_target(given, kinds=("cuda",))
        assert str(target.host) == str(tn.env.host_target())
        named = given["arch"] if isinstance(given, dict) and "arch" in given else gpu.WITHOUT_GPU
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
        tn.build(small.mod, small.params, target)


def test_records_are_for_cpus(small):
    with pytest.raises(ValueError, match="those of tn.tune are of CPUs"):
        tn.build(small.mod, small.params, TARGET, records="some.jsonl")


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
    with pytest.raises(NotImplementedError, match="CUDA are not saved"):
        lib.save(tmp_path / "net")


class Device:
    """Stands in for a GPU of some kind."""

    exist, device_name = True, "a GPU"

    def __init__(self, version):
        self.compute_version = version


@pytest.mark.parametrize(("here", "runs"), [("8.0", True), ("8.6", True), ("7.5", False), ("9.0", False)])
def test_a_library_runs_on_its_generation_of_gpus(monkeypatch, lib, here, runs):
    monkeypatch.setattr(tvm, "cuda", lambda: Device(here))
    reason = gpu.cannot_run(lib.target)
    assert reason is None if runs else f"this machine's GPU (a GPU) is sm_{here.replace('.', '')}" in reason


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
    assert lib.source().count('extern "C" __global__') == 2 * sum(len(launched(lib, k)) for k in lib.kernels)
    for kernel in lib.kernels:
        source, launches = lib.source(kernel), launched(lib, kernel)
        assert launches and source.count("__global__") == len(launches)
        bounds = [int(n) for n in re.findall(r"__launch_bounds__\((\d+)\)", source)]
        assert bounds == [math.prod(launch["block"]) for launch in launches if math.prod(launch["block"]) > 1]


def test_grids_cover_what_kernels_make(lib):
    shapes = {node["kernel"]: node["makes"][0]["shape"] for node in lib.graph["nodes"]}
    for kernel, schedule in lib.kernels.items():
        last = launched(lib, kernel)[-1]
        if schedule.startswith("fallback"):
            assert math.prod(last["grid"]) == -(-math.prod(shapes[kernel]) // 1024)
        elif schedule.startswith("matmul"):
            _, channels, height, width = shapes[kernel]
            assert last["grid"] == [-(-height * width // 32), -(-channels // 64), 1]


def test_convolutions_are_products_and_few_summands_the_work_of_a_thread(lib):
    rules = [schedule.partition(" ")[0] for schedule in lib.kernels.values()]
    assert rules.count("matmul") == 2, "the first convolution and the one of 1x1"
    assert set(rules) == {"matmul", "reduction", "fallback"}


def test_an_unknown_kernel_is_named(lib):
    with pytest.raises(ValueError, match="unknown kernel 'conv'; there are: "):
        lib.source("conv")


@pytest.mark.parametrize("opt_level", [0, 1, 2])
def test_kernels_have_threads_at_every_opt_level(small, opt_level):
    made = tn.build(small.mod, small.params, TARGET, opt_level)
    assert all(launched(made, kernel) for kernel in made.kernels)


def test_what_threads_do_one_after_another_is_what_pytorch_does(case):
    mod, params, x, wanted = case
    np.testing.assert_allclose(run_in_turn(mod, params, x), wanted, rtol=1e-4, atol=1e-6)


def test_loops_that_no_rule_knows_are_the_work_of_one_thread():
    scores = np.random.default_rng(0).standard_normal((2, 500)).astype("float32")
    places, best = np.zeros((2, 20), "int32"), np.zeros((2, 20), "float32")
    run_kernel(best_places(2, 500, 20), scores, places, best)
    for row in range(2):
        wanted = np.sort(np.argsort(-scores[row], kind="stable")[:20])
        np.testing.assert_array_equal(places[row], wanted)
        np.testing.assert_array_equal(best[row], scores[row, wanted])


def test_suppression_is_the_work_of_one_thread():
    rng = np.random.default_rng(1)
    data = np.concatenate([rng.integers(0, 2, (1, 40, 1)), rng.random((1, 40, 5))], 2).astype("float32")
    order = np.argsort(-data[:, :, 1], 1).astype("int32")
    kernel = suppressed(1, 40, 6, 40, Suppression(overlap_thresh=0.3, id_index=0, center=True))
    shapes = [(1, 40, 6), (1, 40, 1)]
    ours, cpus = ([np.zeros(shape, "float32") for shape in shapes] for _ in range(2))
    run_kernel(kernel, data, order, *ours)
    run_kernel(kernel, data, order, *cpus, scheduled=False)
    for a, b in zip(ours, cpus, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (ours[1] >= 0).sum() < 40


def run_kernel(func, *arrays, scheduled=True):
    """Run a kernel on arrays, which it changes; `scheduled` for a GPU, and in turn."""
    if scheduled:
        mod, schedules = gpu.scheduled(tvm.IRModule({"main": func}), tn.compiler.resolve_target(TARGET, ("cuda",)))
        assert schedules == {"main": 'one_thread {"launches": [{"grid": [1, 1, 1], "block": [1, 1, 1]}]}'}
        func = in_turn(mod["main"]).without_attr("tirx.is_scheduled")
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), tn.env.host_target())(*tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.numpy()


def test_a_detectors_choice_compiles_with_one_thread_and_tvms_sort():
    kernel = best_places(1, 300, 40)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 300), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            types = [relax.TensorType((1, 40), dtype) for dtype in ("int32", "float32")]
            name = builder.add_func(kernel.without_attr("global_symbol"), "best_places")
            best = builder.emit(relax.TupleGetItem(builder.emit(relax.call_tir(name, [x], types)), 1))
            result = builder.emit_output(relax.op.argsort(best, 1, descending=True, dtype="int32"))
        builder.emit_func_output(result)
    made = tn.build(builder.get(), {}, TARGET)
    assert sorted(schedule.partition(" ")[0] for schedule in made.kernels.values()) == ["one_thread", "tvm"]
    assert "best_places_kernel(" in made.source("best_places") and "argsort_kernel" in made.source("argsort")


def test_a_database_of_metaschedule_comes_before_dlight():
    mod, params = tn.from_pytorch(nn.Sequential(nn.ReLU()).eval(), {"x": (64, 64)})
    target = tn.compiler.resolve_target(TARGET, ("cuda",))
    with target:
        fused = tvm.transform.Sequential(pipeline.passes(3, target))(bind(mod, params)[0])
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
        found = tn.build(mod, params, TARGET)
    assert list(found.kernels.values()) == ['metaschedule {"launches": [{"grid": [16, 1, 1], "block": [256, 1, 1]}]}']
    assert next(iter(tn.build(mod, params, TARGET).kernels.values())).startswith("fallback")


# ---------------------------------------------------------------- CUDA's compiler


def test_cudas_compiler_takes_the_source(lib):
    pytest.importorskip("cuda.bindings.nvrtc")
    from tvm.support.nvcc import compile_cuda

    try:
        with gpu.toolkit():
            made = compile_cuda(lib.source(), target_format="cubin", arch="sm_80", compiler="nvrtc")
    except RuntimeError as error:
        if "CUDA's headers" not in str(error):
            raise
        pytest.skip("no CUDA toolkit here")
    assert bytes(made[:4]) == b"\x7fELF"


def test_headers_that_are_not_there_are_asked_for_and_the_environment_is_left_alone(monkeypatch, tmp_path):
    before = dict(os.environ)
    include = tmp_path / "include"
    (include / "cccl/cuda/std").mkdir(parents=True)
    (include / "cccl/cuda/std/cstdint").touch()
    (include / "cuda_runtime.h").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    with gpu.toolkit():
        assert os.environ["CUDA_PATH"] == str(tmp_path)
        assert f"-I{include}/cccl" in os.environ["TVM_CUDA_NVRTC_EXTRA_OPTS"]
    monkeypatch.undo()
    assert dict(os.environ) == before
    monkeypatch.setattr(gpu.Path, "glob", lambda *_: [])
    with pytest.raises(RuntimeError, match="takes CUDA's headers.*pip install 'nvidia-cuda-cccl"), gpu.toolkit():
        pass


def test_cuda_graphs_are_captured_where_the_context_asks_for_them(small):
    target = tn.compiler.resolve_target(TARGET, ("cuda",))
    for wanted in (False, True):
        with target, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": wanted}):
            mod = tvm.transform.Sequential(pipeline.passes(3, target))(bind(small.mod, small.params)[0])
            mod, _ = pipeline.lift_constants(mod, {})
            mod = pipeline.lowering()(pipeline.bundle(mod))
        assert any("cuda_graph" in name.name_hint for name in mod.get_global_vars()) == wanted
