"""build: the results of PyTorch at every opt level and for every CPU of this kind, and errors at the door."""

import os
from collections import Counter

import forked
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from testing import Case, Function, sampled
from torch import nn
from tvm import relax

import tvmfast
from tvmfast import build, from_pytorch
from tvmfast.compiler.build import resolve_target
from tvmfast.core import machine
from tvmfast.profiling import networks


def kernels(lib) -> int:
    """How many calls of kernels the graph has."""
    return sum(not node["kernel"].startswith("relax.") for node in lib.graph["nodes"])


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def linear(shape=(1, 3), attrs=None) -> tvm.IRModule:
    """x · wᵀ with an input x of `shape` and a weight w of shape (2, 3)."""
    builder, x = relax.BlockBuilder(), tensor("x", shape)
    w = tensor("w", (2, 3))
    with builder.function("main", [x, w], attrs=attrs):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.op.permute_dims(w)))
        builder.emit_func_output(y)
    return builder.get()


W = np.arange(6, dtype="float32").reshape(2, 3)
X = np.array([[1, -1, 2]], "float32")


# ---------------------------------------------------------------- opt levels


@pytest.fixture(scope="module")
def levels(small: Case):
    """`small` at each opt level."""
    return [build(small.mod, small.params, opt_level=level) for level in range(4)]


@pytest.mark.parametrize("level", range(4))
def test_every_opt_level_gives_pytorchs_results(small, levels, level):
    assert levels[level].opt_level == level
    close(levels[level](small.x), small.exact)


def test_higher_levels_call_fewer_kernels(levels):
    count = [kernels(lib) for lib in levels[:3]]  # level 3 adds kernels that change the layout
    assert count[0] > count[1] >= count[2]


def test_level_3_schedules_every_kernel(levels):
    for lib in levels:
        called = Counter(n["kernel"] for n in lib.graph["nodes"] if not n["kernel"].startswith("relax."))
        assert lib.kernels.calls.to_dict() == called
        assert all((family == "none") == (lib.opt_level < 3) for family in lib.kernels.family)


def test_levels_without_folding_keep_the_parameters(small, levels):
    for lib in levels[:2]:
        assert lib.params.keys() == small.params.keys()
        for name, array in small.params.items():
            np.testing.assert_array_equal(lib.params[name].numpy(), array.numpy())


def test_level_3_folds_batch_norm_into_the_weights(small, levels):
    lib = levels[3]
    assert not [name for name in lib.params if name.startswith("bn") or "running" in name]
    values = [array.numpy() for array in lib.params.values()]
    assert not any(
        a.size == 8 * 3 * 3 * 3 and np.allclose(a.ravel(), small.params["conv1.weight"].numpy().ravel()) for a in values
    )


def test_building_leaves_its_arguments_alone(small):
    module, names = small.mod.script(), list(small.params)
    first = build(small.mod, small.params)(small.x)
    assert (small.mod.script(), list(small.params)) == (module, names)
    np.testing.assert_array_equal(build(small.mod, small.params)(small.x), first)


def test_the_graph_names_what_it_reads(levels):
    for lib in levels:
        known = {"image", *lib.graph["params"]}
        for node in lib.graph["nodes"]:
            assert node["makes"] and all(tensor["dtype"] for tensor in node["makes"])
            known.add(node["name"])
        read = {name for node in lib.graph["nodes"] for name in node["reads"]}
        assert read <= known and read >= {"image", *lib.graph["params"]}
        assert lib.graph["params"] == list(lib.params)
        assert str(lib).startswith("Compiled(image: float32[1, 3, 8, 8] -> output0: float32[1, 5]; ")


@pytest.mark.parametrize("level", [-1, 4, "3", None, 1.5])
def test_unknown_opt_levels(small, level):
    with pytest.raises(ValueError, match=f"opt_level: expected one of 0, 1, 2, 3; got {level!r}"):
        build(small.mod, small.params, opt_level=level)


# ---------------------------------------------------------------- targets


@pytest.mark.full
@pytest.mark.parametrize("mcpu", ["x86-64", "core-avx2", "haswell"])
def test_other_cpus_of_this_kind(small, mcpu):
    target = {"kind": "llvm", "mcpu": mcpu}
    if machine.platform.machine() != "x86_64" or not runs_here(target):
        pytest.skip(f"this CPU does not run code for {mcpu}")
    lib = build(small.mod, small.params, target)
    assert lib.target.attrs["mcpu"] == mcpu
    close(lib(small.x), small.exact)


class EveryFamily(nn.Module):
    """A kernel of each family of schedules: float32 (2, 3, 19, 19) to (2, 10)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 5, stride=1, padding=2)
        self.winograd, self.pointwise = nn.Conv2d(20, 24, 3, padding=1), nn.Conv2d(24, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.grouped = nn.Conv2d(24, 36, 3, stride=2, groups=3)
        self.norm, self.classify = nn.LayerNorm(36), nn.Linear(36, 10)

    def forward(self, x):
        x = self.pointwise(torch.sigmoid(self.winograd(torch.relu(self.stem(x)))))
        x = self.grouped(nn.functional.gelu(self.depthwise(x)) + x).flatten(2)
        x = self.norm((torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x).mean(2))
        return self.classify(x)


FAMILIES = {"conv2d", "pointwise", "winograd", "depthwise", "matmul", "batch_matmul", "row_reduction", "default"}


@pytest.fixture(scope="module")
def every_family():
    """`EveryFamily`, imported, with an input and PyTorch's result for it in double precision."""
    net, x = networks.seeded(EveryFamily, 19), torch.randn(2, 3, 19, 19, generator=torch.Generator().manual_seed(1))
    return Case(*from_pytorch(net, {"x": x}), x.numpy(), exact=reference(net, x))


CPUS = [None, "x86-64", "sandybridge", "core-avx2", "skylake-avx512"]


@pytest.mark.parametrize("mcpu", sampled(CPUS, [None, "x86-64"]))
def test_every_schedule_on_other_cpus_of_this_kind(every_family, mcpu):
    target = None if mcpu is None else {"kind": "llvm", "mcpu": mcpu}
    if mcpu and (machine.platform.machine() != "x86_64" or not runs_here(target)):
        pytest.skip(f"this CPU does not run code for {mcpu}")
    lib = build(every_family.mod, every_family.params, target)
    assert mcpu in (None, lib.target.attrs["mcpu"])
    assert set(lib.kernels.family) == FAMILIES
    close(lib(every_family.x), every_family.exact)


def test_every_schedule_compiles_for_arm(every_family):
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    lib = build(every_family.mod, every_family.params, target)
    assert set(lib.kernels.family) == FAMILIES


def runs_here(target) -> bool:
    return set(machine.target_instruction_sets(target)) <= set(machine.instruction_sets())


def test_a_target_object_and_a_kind_alone():
    for target in (tvm.target.Target("llvm"), "llvm"):
        np.testing.assert_array_equal(build(linear(), {"w": W}, target, opt_level=1)(X), X @ W.T)


def test_code_for_another_architecture_is_built_but_not_run():
    here = machine.platform.machine()
    other = "aarch64" if here == "x86_64" else "x86_64"
    lib = build(linear(), {"w": W}, {"kind": "llvm", "mtriple": f"{other}-linux-gnu"}, opt_level=1)
    with pytest.raises(RuntimeError, match=f"cannot run here: it is built for {other}, this machine is {here}"):
        lib(X)


def test_code_with_instructions_that_this_cpu_lacks_is_built_but_not_run(compile_function, monkeypatch):
    had = machine.instruction_sets()
    lib = compile_function(lambda x: x + 1, {"x": (3,)})
    used = machine.target_instruction_sets(lib.target)
    assert used, "the target of this machine names no instruction set"
    monkeypatch.setattr(machine, "instruction_sets", lambda: tuple(isa for isa in had if isa != used[-1]))
    lib = compile_function(lambda x: x + 1, {"x": (3,)}, target=lib.target)
    with pytest.raises(RuntimeError, match=f"cannot run here: it uses {used[-1]}, which this CPU .* lacks"):
        lib(np.ones(3, "float32"))


def test_no_target_is_this_machine():
    assert resolve_target() is machine.host_target()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llvm -mcpu=skylake", "no longer reads options in a string; give a dictionary such as"),
        ("opencl", "is of kind 'opencl'; expected kind 'llvm' .CPUs. or 'cuda' .GPUs."),
        ({"kind": "cuda", "arch": "sm_35"}, "expected an arch from sm_75 on"),
        ({"kind": "llvm", "mcpu": "skylak"}, "knows no CPU 'skylak'; near names: .*skylake"),
        ({"kind": "llvm", "mcpu": "?"}, r"expected words and numbers for the option 'mcpu'; got '\?'"),
        ("gpu", "unknown target 'gpu'.*expected None for this machine, 'llvm', or a dictionary"),
        ({"kind": "llvm", "cores": 2}, "unknown target.*'cores'"),
        ({"mcpu": "haswell"}, "unknown target"),
        (3, "unknown target 3"),
        ("", "unknown target ''"),
    ],
)
def test_bad_targets(small, target, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        build(small.mod, small.params, target)


# ---------------------------------------------------------------- modules and parameters


@pytest.mark.parametrize("attrs", [None, {"num_input": 1}])
def test_a_module_by_hand_with_numpy_parameters(attrs):
    for w in (W, tvm.runtime.tensor(W), np.asfortranarray(W)):
        np.testing.assert_array_equal(build(linear(attrs=attrs), {"w": w})(X), X @ W.T)


def test_parameters_that_kernels_cannot_read_are_copied():
    weights = torch.arange(25, dtype=torch.float32)
    for given in (weights[1:7].view(2, 3), weights.view(5, 5).T[:2, :3]):  # unaligned; by columns
        tensor = tvm_ffi.from_dlpack(given, require_contiguous=False)
        lib = build(linear(), {"w": tensor}, opt_level=0)
        np.testing.assert_array_equal(lib(X), X @ given.numpy().T)  # of small integers


def test_parameters_may_share_memory_or_come_in_any_order():
    builder, x = relax.BlockBuilder(), tensor("x", (3,))
    a, b = tensor("a", (3,)), tensor("b", (3,))
    with builder.function("main", [x, a, b]):
        builder.emit_func_output(builder.emit(relax.op.add(relax.op.multiply(x, a), b)))
    shared = tvm.runtime.tensor(np.full(3, 2, "float32"))
    ones = np.ones(3, "float32")
    for level in (1, 3):
        np.testing.assert_array_equal(build(builder.get(), {"b": shared, "a": shared}, opt_level=level)(ones), [4] * 3)
        np.testing.assert_array_equal(build(builder.get(), {"b": ones, "a": shared}, opt_level=level)(ones), [3] * 3)


@pytest.mark.parametrize("function", [lambda x: x, lambda x: x.reshape(1, 3), lambda x: x * 0 + 1, lambda x: x.T])
def test_networks_without_parameters(compile_function, function):
    lib = compile_function(function, {"x": (3, 1)})
    np.testing.assert_array_equal(lib(X.T), function(torch.from_numpy(X.T)).numpy())


def test_names_of_inputs_and_parameters_do_not_meet_those_of_folded_ones():
    """Folded parameters are called const0, const1, … by the pipeline; so are an input and a weight here."""
    builder, x = relax.BlockBuilder(), tensor("const0", (1, 3))
    w, b = tensor("w", (2, 3)), tensor("const1", (1, 2))
    with builder.function("main", [x, w, b], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.op.permute_dims(relax.op.add(w, w))))
            y = builder.emit_output(relax.op.add(y, b))
        builder.emit_func_output(y)
    for level in (2, 3):
        lib = build(builder.get(), {"w": W, "const1": np.ones((1, 2), "float32")}, opt_level=level)
        assert [spec.name for spec in lib.inputs] == ["const0"]
        np.testing.assert_array_equal(lib(X), 2 * X @ W.T + 1)


def test_several_inputs_and_outputs(compile_function):
    lib = compile_function(lambda x, y: (x + y, x, x * y), {"x": (2, 3), "y": (2, 3)})
    x, y = np.arange(12, dtype="float32").reshape(2, 2, 3)
    outputs = lib(x, y)
    assert type(outputs) is tuple and len(outputs) == len(lib.outputs) == 3
    for got, wanted in zip(outputs, (x + y, x, x * y), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"])
def test_dtypes(compile_function, dtype):
    if dtype == "bool":
        lib = compile_function(lambda x: ~x, {"x": ((2, 32), dtype)})
    else:
        lib = compile_function(lambda x: x + x, {"x": ((2, 32), dtype)})
    x = (torch.arange(64).reshape(2, 32) % 3).to(getattr(torch, dtype))
    y = lib(x)
    assert str(y.dtype) == dtype == lib.outputs[0].dtype
    wanted = (~x if dtype == "bool" else x + x).float().numpy()
    np.testing.assert_array_equal(y.astype("float32"), wanted)
    buffer = np.zeros(1024, "uint8")
    for shift in (0, 8):  # a NumPy array at an address that kernels take as it is, and at another
        start = -buffer.ctypes.data % 64 + shift
        same = buffer[start : start + y.nbytes].view(y.dtype).reshape(2, 32)
        same[:] = x.float().numpy().astype(y.dtype)
        np.testing.assert_array_equal(lib(same).astype("float32"), wanted)


def test_a_build_leaves_the_module_as_it_is():
    """Also a kernel that it holds itself, as frontends make some: TVM's Schedule may write into what it is given."""
    builder, x = relax.BlockBuilder(), tensor("x", (4, 64))
    with builder.function("main", [x]):
        with builder.dataflow():
            pairs = builder.call_te(lambda x: tvm.te.compute((4, 32), lambda i, j: x[i, 2 * j] + x[i, 2 * j + 1]), x)
            result = builder.emit_output(pairs)
        builder.emit_func_output(result)
    mod, data = builder.get(), np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    before = mod.script()
    for _ in range(2):
        np.testing.assert_array_equal(build(mod, {})(data), data[:, ::2] + data[:, 1::2])
        assert mod.script() == before


# ---------------------------------------------------------------- at the door

ELSE = tvm.IRModule({"other": linear()["main"]})
TIR = tvm.IRModule({"main": tvm.te.create_prim_func([tvm.te.placeholder((3,))])})


@pytest.mark.parametrize(
    ("mod", "params", "error", "message"),
    [
        (torch.nn.Linear, {}, TypeError, r"expected a tvm\.IRModule.*got type"),
        ((linear(), {"w": W}), {}, TypeError, "got tuple"),
        (linear(), [W], TypeError, "params: expected a dictionary.*got list"),
        (linear(), None, TypeError, "params: expected a dictionary.*got NoneType"),
        (ELSE, {"w": W}, ValueError, "expected a Relax function named 'main'; its functions: other"),
        (TIR, {}, ValueError, "expected a Relax function named 'main'"),
        (tvm.IRModule(), {}, ValueError, "its functions: none"),
        (linear(attrs={"num_input": 1}), {}, ValueError, "missing: w; not in the module: none"),
        (linear(), {"v": W}, ValueError, "missing: w; not in the module: v"),
        (linear(), {"w": W, "v": W, "x": X}, ValueError, "not in the module: "),
        (linear(), {"w": W[:, :2]}, ValueError, r"'w' must be of shape \(2, 3\) and float32; got \(2, 2\), float32"),
        (linear(), {"w": W.astype("float64")}, ValueError, r"'w' must be .*; got \(2, 3\), float64"),
        (linear((2 * tvm.tirx.Var("n", "int64"), 3)), {"w": W}, ValueError, "input 'x' is .* not known"),
        (linear(None), {"w": W}, ValueError, "input 'x' is .* not known"),
    ],
)
def test_bad_modules_and_parameters(mod, params, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        build(mod, params)


def test_nested_outputs():
    builder, x = relax.BlockBuilder(), tensor("x", (3,))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Tuple([x, relax.Tuple([x, x])])))
    with pytest.raises(ValueError, match="expected main to return a tensor or a tuple of tensors"):
        build(builder.get(), {})


def test_a_shape_that_depends_on_data_is_refused():
    builder = relax.BlockBuilder()
    x = tensor("x", (4,))
    with builder.function("main", [x]):
        with builder.dataflow():
            indices = builder.emit_output(relax.op.nonzero(x))
        builder.emit_func_output(indices)
    with pytest.raises(ValueError, match="known only when it runs.*needs static shapes"):
        build(builder.get(), {})


FEW_ROWS = """
import torch, tvmfast
net = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU()).eval()
target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver2", "num-cores": 1}
print(len(tvmfast.build(net, {"x": ("batch", 1, 32, 32)}, target, records=False).kernels))
"""


def test_a_remainder_of_a_number_that_llvm_knows(tmp_path):
    """It ended the process, saying that a scalable size cannot be converted to a fixed one."""
    done = forked.run("-W", "ignore", "-c", FEW_ROWS, env={**os.environ, "TVMNOTES_CACHE": str(tmp_path)})
    assert done.returncode == 0 and int(done.stdout), done.stderr


@pytest.mark.parametrize("shape, times", [((2, 3, 4, 5), (7, 6, 4, 2)), ((2, 4, 8, 2), (2, 2, 2, 2))], ids=str)
@pytest.mark.parametrize("opt_level", [0, 3])
def test_rows_that_repeat(compile_function, opt_level, shape, times):
    """LLVM 22's loop vectorizer read past the end of the array at level 0."""
    lib = compile_function(lambda x: x.repeat(*times), {"x": shape}, opt_level=opt_level)
    x = np.random.default_rng(0).random(shape, "float32")
    np.testing.assert_array_equal(lib(x), np.tile(x, times))


RESHAPED = {
    "of a product": (lambda x, w: (x @ w).reshape(5, 4), True),
    "twice": (lambda x, w: (x @ w).reshape(5, 4).reshape(2, 2, 5), True),
    "of an input": (lambda x, w: x.reshape(3, 4), False),
    "of what may be an input": (lambda x, w: x.reshape(12).reshape(3, 4), False),
    "of a product as large as the input": (lambda x, w: (x @ w[:, :3]).reshape(12), False),
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", RESHAPED)
def test_a_reshaped_result_is_a_view_unless_it_may_be_one_of_an_input(name, level, rng):
    function, is_view = RESHAPED[name]
    w = torch.from_numpy(rng.standard_normal((3, 5), "float32"))
    mod, params = from_pytorch(Function(lambda x: function(x, w)).eval(), {"x": (4, 3)})
    lib = build(mod, params, opt_level=level)
    x = torch.from_numpy(rng.standard_normal((4, 3), "float32"))
    last = lib.graph["nodes"][-1]["kernel"]
    assert (last not in tvmfast.profile(lib, x, calls=1).kernels) == is_view, last
    (first,), (second,) = (map(torch.from_dlpack, lib.run([x])) for _ in range(2))
    wanted = reference(function, x, w)
    assert len({first.data_ptr(), second.data_ptr(), x.data_ptr()}) == 3
    x += 1
    for result in (first, second):
        close(result, wanted)
