"""Scripts for the TVM of old, run whole: `python -m tvmclassic SCRIPT` in a process of its own; and tvmc."""

import importlib
import json
import os
import platform
import re
import struct
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from rpc_cluster import Cluster
from testing import SEED, sampled

import tvmclassic
import tvmfast
from tvmclassic import blas
from tvmfast import tuning
from tvmfast.core import data, machine
from tvmfast.runtime import saved


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's empty home."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def enabled():
    """The old API in this process, for the length of a test."""
    tvmclassic.enable()
    yield tvmclassic
    tvmclassic.disable()


def picture() -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal((1, 1, 32, 32), "float32")


@pytest.fixture(scope="module")
def small_onnx(tmp_path_factory) -> Path:
    """A file of a convolution and a classifier, for a `picture`."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        small (float[1, 1, 32, 32] image) => (float[1, 10] scores) {
            a = Conv<kernel_shape = [3, 3], strides = [2, 2]>(image, w) b = Relu(a) c = GlobalAveragePool(b)
            d = Flatten(c) scores = Gemm<transB = 1>(d, v) }""")
    rng = np.random.default_rng(SEED)
    for name, shape in (("w", (16, 1, 3, 3)), ("v", (10, 16))):
        weight = rng.standard_normal(shape, "float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(model, path)
    return path


def close_to_onnxruntime(output, x, path):
    """With the sums of `small_onnx`: of a window, of 16 * 16 pixels, of 16 channels."""
    wanted = onnxruntime.InferenceSession(path).run(None, {"image": x})
    close(output, wanted, 3 * 3 + 16 * 16 + 16, rounded=True)
    return wanted[0]


# ---------------------------------------------------------------- running a script as python would


def write(folder, text, name="script.py"):
    (folder / name).write_text(text)
    return folder / name


def test_a_script_sees_itself_as_python_would_show_it(script, tmp_path):
    write(tmp_path, "value = 'a neighbour'", "neighbour.py")
    path = write(
        tmp_path,
        "import json, sys, neighbour\n"
        "from tvm import relay\n"
        "print(json.dumps([sys.argv, __name__, __file__, neighbour.value, relay.__name__]))\n"
        "print(sys.modules['__main__'].__dict__ is globals())\n"
        "sys.exit(7)",
    )
    done = script(path, "--target", "llvm", "-m", "x", code=7)
    seen, main = done.stdout.splitlines()
    assert json.loads(seen) == [
        [str(path), "--target", "llvm", "-m", "x"],
        "__main__",
        str(path),
        "a neighbour",
        "tvm.relay",
    ]
    assert main == "True" and done.stderr == ""


def test_exit_codes_and_tracebacks(script, tmp_path):
    path = write(
        tmp_path,
        "import sys\nfrom tvm import relay\n\ndef f():\n    relay.nn.conv3(1)\n\n"
        "if sys.argv[1:]:\n    sys.exit(sys.argv[1])\nf()\n",
    )
    done = script(path, code=1, fork=True)
    assert done.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 9, in <module>',
    ]
    assert "runner.py" not in done.stderr and "near names: conv3d, " in done.stderr
    done = script(path, "it is over", code=1, fork=True)
    assert done.stderr == "it is over\n" and done.stdout == ""


@pytest.mark.parametrize(
    "name, code, words", [("missing.py", 2, "missing.py: no such script"), ("wrong.py", 1, "SyntaxError")]
)
def test_a_script_that_cannot_start(script, tmp_path, name, code, words):
    write(tmp_path, "x = = 1\n", "wrong.py")
    done = script(tmp_path / name, code=code, fork=True)
    assert words in done.stderr and "Traceback" not in done.stderr and "runner.py" not in done.stderr


def test_a_module_is_run_as_python_m_does(script, tmp_path):
    write(tmp_path, "import sys\nfrom tvm import relay\nprint(__name__, sys.argv[1:], relay.var('x'))", "old_module.py")
    done = script("-m", "old_module", "a", "-b", fork=True)
    assert done.stdout == "__main__ ['a', '-b'] free_var %x;\n%x\n"
    write(tmp_path, "import lost_module", "lost_package.py")
    for name, code, words in (
        ("nowhere", 2, "nowhere: no such module"),
        ("no.where", 2, "no.where: no such module"),
        ("lost_package", 1, "No module named 'lost_module'"),
    ):
        done = script("-m", name, code=code, fork=True)
        assert words in " ".join(done.stderr.split()) and ("Traceback" in done.stderr) == (code == 1)


def test_a_script_may_mix_old_and_new(script, tmp_path):
    path = write(
        tmp_path,
        """
import sys
import numpy as np
import tvm
from tvm import relax, relay, te
from tvm.contrib import graph_executor
from tvm.contrib.download import download
from tvm.script import relax as R

x = np.arange(12, dtype="float32").reshape(3, 4)
builder = relax.BlockBuilder()
v = relax.Var("x", relax.TensorType((3, 4), "float32"))
with builder.function("main", [v]):
    with builder.dataflow():
        y = builder.emit_output(builder.emit(relax.op.exp(v)))
    builder.emit_func_output(y)
vm = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
new = vm["main"](tvm.runtime.tensor(x)).numpy()

a = relay.var("x", shape=(3, 4))
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(tvm.IRModule.from_expr(relay.exp(a)), "llvm")
m = graph_executor.GraphModule(lib["default"](tvm.cpu()))
m.run(x=x)
np.savez(sys.argv[1], x=x, new=new, old=m.get_output(0).numpy())
with tvm.transform.PassContext(opt_level=3):
    mod = tvm.transform.Sequential([relax.transform.LegalizeOps(), relax.transform.FuseOps()])(builder.get())
assert isinstance(mod["main"], relax.Function), type(mod["main"])
print(tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2"}).attrs["mcpu"], callable(download))
""",
    )
    assert script(path, tmp_path / "out.npz", fork=True).stdout == "core-avx2 True\n"
    out = np.load(tmp_path / "out.npz")
    for name in ("new", "old"):
        close(out[name], np.exp(out["x"].astype("float64")), 4, scale=np.exp(out["x"]))


# ---------------------------------------------------------------- enable and disable


def state_of_tvm():
    """What enable may touch: the attributes of TVM's modules and classes, and the modules that can be imported."""
    touched = [tvm, tvm.IRModule, tvm.target, tvm.target.Target, tvm.transform, tvm.transform.PassContext, tvm.runtime,
               tvm.runtime.Tensor, tvm.contrib, tvm.driver]  # fmt: skip
    attributes = {str(owner): dict(vars(owner)) for owner in touched}
    return attributes, {name: module for name, module in sys.modules.items() if name.startswith("tvm.")}


def test_disable_takes_back_all_that_enable_did():
    tvmclassic.enable()
    tvmclassic.disable()  # what it imports by the way is there from now on
    before = state_of_tvm()
    tvmclassic.enable()
    assert tvm.relay.__name__ == "tvm.relay" and state_of_tvm() != before
    enabled = state_of_tvm()
    product = "tvm.contrib.cblas.matmul"
    ours = product in blas._registered
    assert tvm.get_global_func(product)
    tvmclassic.enable()
    assert state_of_tvm() == enabled
    tvmclassic.disable()
    assert state_of_tvm() == before
    tvmclassic.disable()
    assert (tvm.get_global_func(product, allow_missing=True) is None) == ours
    assert state_of_tvm() == before and not hasattr(tvm, "relay")
    with pytest.raises(ImportError):
        from tvm import relay  # noqa: F401
    assert tvm.target.Target("llvm").kind.name == "llvm"


@pytest.mark.parametrize(
    "order",
    sampled(
        ["import tvm; tvmclassic.enable()", "tvmclassic.enable(); import tvm"], ["tvmclassic.enable(); import tvm"]
    ),
)
def test_enable_before_and_after_importing_tvm(python, order, without_torch):
    code = f"import tvmclassic, sys; print('tvm' in sys.modules); {order}; "
    code += "from tvm import relay; print(relay.const(1.0))"
    assert python(code, PYTHONPATH=str(without_torch)) == "False\n1f"


def test_a_tvm_that_has_relay_is_left_alone(python, tmp_path):
    (tmp_path / "tvm" / "relay").mkdir(parents=True)
    (tmp_path / "tvm" / "__init__.py").write_text("__version__ = '0.12.0'\n")
    (tmp_path / "tvm" / "relay" / "__init__.py").write_text("own = True\n")
    code = (
        "import sys; sys.stderr = sys.stdout; import tvmclassic; tvmclassic.enable(); "
        "from tvm import relay; print(relay.own); tvmclassic.disable()"
    )
    printed = python(code, PYTHONPATH=str(tmp_path)).splitlines()
    assert printed == ["TVM 0.12.0 has Relay itself: tvmclassic leaves it alone", "True"]


@pytest.mark.parametrize(
    "path, words",
    [
        ("relay.nn.conv2dd", "tvmclassic serves no tvm.relay.nn.conv2dd; near names: conv2d"),
        ("relay.frontend.from_onx", "near names: from_onnx"),
        ("contrib.graph_executor.GraphModul", "near names: GraphModule"),
        ("autoscheduler", "no tvm.autoscheduler"),
        ("auto_scheduler.SearchTsk", "near names: SearchTask"),
        ("target.datatype", r"tvm\.target\.datatype: custom datatypes are no longer in TVM"),
        ("micro", r"microTVM was dropped in TVM 0\.\d+"),
        ("te.hybrid", r"tvm\.te\.hybrid: hybrid script was dropped"),
        ("te.SpecializedCondition", "TensorIR has no schedules under a condition"),
        ("te.schedule.InferBound", r"tvm\.te\.schedule\.InferBound: bounds are inferred when"),
        ("auto_scheduler.LayoutRewriteOption", r"tvm\.auto_scheduler\.LayoutRewriteOption: weights of a task stay"),
        ("target.mali", r"no tvm\.target\.mali"),
        ("contrib.pipeline_executor", r"tvm\.contrib\.pipeline_executor: the pipeline executor was dropped"),
        ("contrib.graph_exectuor", "near names: graph_executor"),
        ("relay.analysis._ffi_api", r"tvmclassic serves no tvm\.relay\.analysis\._ffi_api"),
    ],
)
def test_unknown_attributes(enabled, path, words):
    *owners, name = path.split(".")
    owner = tvm
    for part in owners:
        owner = getattr(owner, part)
    with pytest.raises(AttributeError, match=words):
        getattr(owner, name)


@pytest.mark.parametrize(
    "module, words",
    [
        ("tvm.relay.op.contrib.cutlass", "FuseOpsByPattern"),
        ("tvm.relay.backend.contrib.uma.backend", "UMA and Relay's external code generators were dropped"),
        ("tvm.contrib.pipeline_executor_build", "the pipeline executor was dropped"),
        ("tvm.contrib.torch", r"tvm\.contrib\.torch: as_torch and optimize_torch were dropped"),
        ("tvm.auto_scheduler._ffi_api", "PyScheduleRule"),
        ("tvm.topi.sparse.utils", "TOPI has no sparse operators now"),
        ("tvm.relay.data_dep_optimization.bsr_conv2d", "convolutions by sparse weights were dropped"),
    ],
)
def test_imports_of_what_is_gone(enabled, module, words):
    with pytest.raises(ImportError, match=words):
        importlib.import_module(module)


@pytest.mark.parametrize(
    "code, words",
    [
        ("from tvm.relay.nn import conv2dd", "no tvm.relay.nn.conv2dd; near names: conv2d"),
        ("import tvm.contrib.graph_executer", "no tvm.contrib.graph_executer; near names: graph_executor"),
        ("from tvm import micro", r"tvm.micro: microTVM was dropped in TVM 0.19"),
    ],
)
def test_imports_of_what_is_not_there(enabled, code, words):
    with pytest.raises(ImportError, match=words):
        exec(code)


# ---------------------------------------------------------------- files


def ndarray(array: np.ndarray) -> bytes:
    """An array in the byte format of TVM's NDArray: magic, reserved, device, dimensions, type, shape, size, data."""
    code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
    head = struct.pack("<QQii", 0xDD5E40F096B4A13F, 0, 1, 0)
    kind = struct.pack("<iBBH", array.ndim, code, 8 * array.dtype.itemsize, 1)
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return head + kind + shape + struct.pack("<q", array.nbytes) + array.tobytes()


def param_dict(arrays: dict) -> bytes:
    """Named arrays as relay.save_param_dict wrote them: magic, reserved, the names, the arrays."""
    names = b"".join(struct.pack("<Q", len(name)) + name.encode() for name in arrays)
    return b"".join(
        [
            struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, len(arrays)),
            names,
            struct.pack("<Q", len(arrays)),
            *map(ndarray, arrays.values()),
        ]
    )


def test_param_dict_has_the_old_byte_format(enabled):
    from tvm import relay

    generator = np.random.default_rng(0)
    arrays = {
        "conv.weight": generator.random((2, 3, 1, 1)).astype("float32"),
        "steps": np.arange(5, dtype="int64"),
        "p0": np.array([-1, 127], dtype="int8"),
    }
    old = param_dict(arrays)
    for given in (old, bytearray(old)):
        loaded = relay.load_param_dict(given)
        assert set(loaded) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name].asnumpy(), array)
            assert loaded[name].dtype == str(array.dtype)
    one = {"w": arrays["conv.weight"]}
    assert bytes(relay.save_param_dict(one)) == param_dict(one)


def test_an_old_params_file_sets_the_weights_of_a_built_network(enabled):
    from tvm import relay
    from tvm.contrib import graph_runtime

    x, w = relay.var("x", shape=(1, 4)), relay.var("w", shape=(3, 4))
    with tvm.transform.PassContext(opt_level=0):
        graph, lib, _ = relay.build(relay.Function([x, w], relay.nn.dense(x, w)), "llvm")
    m = graph_runtime.create(graph, lib, tvm.cpu())
    generator = np.random.default_rng(0)
    weight, value = (generator.random(shape).astype("float32") for shape in ((3, 4), (1, 4)))
    m.load_params(param_dict({"w": weight}))
    m.run(x=value)
    close(m.get_output(0).numpy(), value.astype("float64") @ weight.T, 4)


def test_download_testdata_looks_here_first_and_fetches_nothing(enabled, tmp_path, monkeypatch):
    from tvm.contrib.download import download_testdata

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "BUNDLED", [tmp_path / "bundled"])
    (tmp_path / "bundled" / "digits").mkdir(parents=True)
    (tmp_path / "bundled" / "digits" / "test.npz").touch()
    assert download_testdata("https://example.org/t.npz", "test.npz", module="digits") == str(
        tmp_path / "bundled" / "digits" / "test.npz"
    )
    with pytest.raises(FileNotFoundError, match=r"Fetch it from https://example\.org/cat\.png, and put it at"):
        download_testdata("https://example.org/cat.png", "cat.png", module="data")
    cached = tmp_path / "cache" / "data" / "cat.png"
    old = tmp_path / ".tvm_test_data" / "data" / "cat.png"
    for file in (cached, old):  # the folder of old goes first
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
        assert download_testdata("https://example.org/cat.png", "cat.png", module="data") == str(file)


# ---------------------------------------------------------------- targets and contexts


@pytest.mark.parametrize(
    "text, attrs",
    [
        ("llvm -mcpu=core-avx2 -num-cores 4", {"mcpu": "core-avx2", "num-cores": 4}),
        (
            "llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+sve",
            {"mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+sve"]},
        ),
        ("llvm -device=arm_cpu -target=aarch64-linux-gnu", {"device": "arm_cpu", "mtriple": "aarch64-linux-gnu"}),
        ("cuda -arch=sm_70", {"arch": "sm_70"}),
    ],
)
def test_target_strings_with_options(enabled, text, attrs):
    for target in (tvm.target.Target(text), tvm.target.create(text), tvm.target.Target(text, host="llvm -mcpu=znver3")):
        assert target.kind.name == text.split()[0]
        for name, value in attrs.items():
            given = target.attrs[name]
            assert (list(given) if isinstance(value, list) else given) == value
    assert target.host.attrs["mcpu"] == "znver3"


TARGETS = [
    ({"kind": "llvm", "mcpu": "core-avx2", "mattr": ["+avx2", "-fma"], "num-cores": 2},
     "llvm -keys=cpu -mattr=+avx2,-fma -mcpu=core-avx2 -num-cores=2"),
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "device": "arm_cpu", "fast-math": True, "model": "a b"},
     "llvm -keys=arm_cpu,cpu -device=arm_cpu -fast-math=1 -model='a b' -mtriple=aarch64-linux-gnu"),
    ({"kind": "cuda", "arch": "sm_80", "libs": ["cudnn", "cublas"]},
     "cuda -keys=cuda,gpu -arch=sm_80 -libs=cudnn,cublas -max_num_threads=1024 -thread_warp_size=32"),
    ({"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm", "mcpu": "znver3"}},
     "cuda -keys=cuda,gpu -arch=sm_80 -host='llvm -keys=cpu -mcpu=znver3' -max_num_threads=1024 -thread_warp_size=32"),
    ({"kind": "c"}, "c -keys=cpu"),
]  # fmt: skip


@pytest.mark.parametrize("config, text", TARGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_target_prints_as_of_old_and_is_read_back(enabled, config, text, recwarn):
    target = tvm.target.Target(config)
    as_json = machine.target_json(target)
    assert str(target) == text and f"{[target]}" == f"[{text}]"
    for written in (text, as_json, json.dumps(json.loads(as_json))):
        assert machine.target_json(tvm.target.Target(written)) == as_json
        assert tvm_ffi.structural_equal(tvm.target.Target(written), target)
        for make in (tvm.device, tvm.context, tvm.nd.context):
            device = make(written, 1)
            assert (device.device_type, device.device_id) == (2 if config["kind"] == "cuda" else 1, 1)
    assert not [w for w in recwarn if "no longer exists" in str(w.message)]
    tvmclassic.disable()
    assert str(target) == as_json


def test_records_and_saved_networks_hold_a_target_as_json(enabled, small, tmp_path):
    target = tvm.target.Target("llvm -mcpu=x86-64-v2 -num-cores=2")
    lib = tvmfast.build(small.mod, small.params, target)
    lib.save(tmp_path / "net")
    written = json.loads((tmp_path / "net" / "manifest.json").read_text())["target"]
    assert written == json.loads(machine.target_json(target))
    assert str(tvmfast.load(tmp_path / "net").target) == str(target)
    assert {task.target for task in tuning.tasks(small.mod, small.params, target)} == {machine.target_json(target)}
    assert json.loads(machine.report()["target"])["kind"] == "llvm"


def test_devices_answer_as_of_old(enabled):
    cases = [(tvm.cpu(0), 1, 0), (tvm.gpu(1), 2, 1), (tvm.device("gpu"), 2, 0), (tvm.context("nvptx", 1), 2, 1),
             (tvm.cl(0), 4, 0), (tvm.device("cl", 2), 4, 2), (tvm.mtl(0), 8, 0), (tvm.device(1, 3), 1, 3),
             (tvm.nd.array(np.zeros(2)).ctx, 1, 0)]  # fmt: skip
    for device, kind, number in cases:
        assert (device.device_type, device.device_id) == (kind, number) and type(device.device_type) is int
    assert str(tvm.cpu(0)) == repr(tvm.cpu(0)) == "cpu(0)" and f"{tvm.gpu(1)}" == "cuda(1)"
    assert tvm.cpu(0).exist
    for name in (
        "device_name",
        "max_threads_per_block",
        "max_clock_rate",
        "compute_version",
        "multi_processor_count",
        "warp_size",
    ):
        assert getattr(tvm.cpu(0), name) is None
    with pytest.raises(ValueError, match="abacus"):
        tvm.device("abacus", 0)
    tvmclassic.disable()
    assert str(tvm.cpu(0)) == "cpu:0" and not hasattr(tvm.cpu(0), "device_type")


def test_a_module_of_today_takes_functions_of_relay(enabled, small):
    from tvm import relay

    x = relay.var("x", shape=(1, 4))
    function = relay.Function([x], relay.nn.relu(x))
    main = relay.GlobalVar("main")
    wanted = tvm.IRModule.from_expr(function).astext()
    filled, by_variable = tvm.IRModule(), tvm.ir.IRModule()
    updated = tvm.IRModule()
    filled["main"] = function
    by_variable[main] = function
    updated.update(relay.Module({"main": function}))
    for mod in (tvm.IRModule({main: function}), tvm.IRModule({"main": function}), filled, by_variable, updated):
        assert isinstance(mod, tvm.IRModule) and isinstance(mod, relay.Module)
        assert mod["main"] is function and "main" in mod and list(mod.functions.values()) == [function]
        assert str(mod) == repr(mod) == mod.astext() == wanted
        assert [v.name_hint for v in mod.get_global_vars()] == ["main"]
    value = np.array([[-1, 0, 1, 2]], "float32")
    result = relay.create_executor("graph", mod=filled, target="llvm").evaluate()(value)
    np.testing.assert_array_equal(result.numpy(), np.maximum(value, 0))
    filled["main"] = relay.Function([x], relay.exp(x))
    assert "exp" in str(relay.transform.InferType()(filled))
    with pytest.raises(TypeError, match="holds functions of today; put those of Relay into another"):
        small.mod["other"] = function
    assert len(tvm.IRModule().functions) == 0 and not hasattr(tvm.IRModule(), "astext")
    copy = tvm.IRModule(dict(small.mod.functions.items()))
    copy["other"] = copy["main"]
    assert {v.name_hint for v in copy.get_global_vars()} == {"main", "other"} and "R.func" in copy.script()


def test_tvm_testing(enabled, python, without_torch):
    from tvm import testing

    testing.utils.install_request_hook(depth=3)
    tvm.testing.assert_allclose(np.ones(3), np.ones(3) + 1e-9)
    with pytest.raises(AssertionError):
        tvm.testing.assert_allclose(np.ones(3), np.zeros(3), rtol=1e-5)
    (without_torch / "pytest.py").write_text("raise ImportError('hidden by a test')\n")
    code = (
        "import tvmclassic; tvmclassic.enable(); import tvm.testing; from tvm.testing import utils; "
        "utils.install_request_hook(depth=3); tvm.testing.assert_allclose([1.0], [1.0], 1e-5); "
        "tvmclassic.disable(); print(hasattr(tvm, 'testing'))"
    )
    assert python(code, PYTHONPATH=os.pathsep.join([str(without_torch), os.environ.get("PYTHONPATH", "")])) == "False"


def test_what_a_build_takes_for_a_target(enabled):
    from tvm import relay

    mod = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))
    here = relay.build(mod, "llvm").compiled.target.attrs["mcpu"]
    for target in (None, "llvm", tvm.target.Target("llvm"), tvm.target.create("llvm -num-cores=2"), {"cpu": "llvm"}):
        assert relay.build(mod, target, target_host="llvm").compiled.target.attrs["mcpu"] == here
    assert relay.build(mod, "llvm -mcpu=x86-64-v2").compiled.target.attrs["mcpu"] == "x86-64-v2"
    with tvm.target.Target("llvm -mcpu=x86-64-v2"):
        assert relay.build(mod).compiled.target.attrs["mcpu"] == "x86-64-v2"
    with pytest.raises(NotImplementedError, match=r"relay\.build for target 'opencl'.*tvm\.s_tir\.dlight"):
        relay.build(mod, "opencl")
    with pytest.raises(ValueError, match="unknown target 'nonsense'"):
        relay.build(mod, "nonsense")
    with pytest.warns(UserWarning, match="-libs is left out"):
        relay.build(mod, "llvm -libs=cblas")


def test_a_build_for_cuda(enabled, tmp_path):
    from tvm import autotvm, relay
    from tvm.contrib import graph_executor

    x, w = relay.var("x", shape=(2, 8, 6, 6)), relay.var("w", shape=(8, 8, 3, 3))
    net = relay.nn.softmax(relay.nn.batch_flatten(relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1)))))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], net))
    weight = np.ones((8, 8, 3, 3), "float32")
    with pytest.warns(UserWarning, match="-libs is left out"):
        graph, lib, params = relay.build(mod, "cuda -arch=sm_80 -libs=cudnn", params={"w": weight})
    assert lib.compiled.target.attrs["arch"] == "sm_80" and "__global__" in lib.get_source()
    assert set(json.loads(graph)["attrs"]["device_index"][1]) == {2} and list(params) == ["w"]
    x = relay.var("x", shape=(4,))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    here = tvm.cuda(0).compute_version.replace(".", "") if tvm.cuda(0).exist else "80"
    for target in ("cuda", tvm.target.cuda(), tvm.target.Target("cuda"), {"gpu": "cuda"}):
        assert relay.build(mod, target).compiled.target.attrs["arch"] == f"sm_{here}"
    assert relay.build(mod, "nvidia/nvidia-a100").compiled.target.attrs["arch"] == "sm_80"
    assert relay.build(mod, tvm.target.cuda(arch="sm_90")).compiled.target.attrs["arch"] == "sm_90"
    with pytest.raises(ValueError, match="expected an arch from sm_75 on, such as 'sm_80'; got 'sm_70'"):
        relay.build(mod, "cuda -arch=sm_70")
    for target, device in (("cuda", tvm.cpu(0)), ("cuda", tvm.cuda(1)), ("llvm", tvm.cuda(0))):
        with pytest.raises(ValueError, match=rf"the library is for .*; got {re.escape(str(device))}"):
            relay.build(mod, target)["default"](device)
        with pytest.raises(ValueError, match=rf"the library is for .*; got {re.escape(str(device))}"):
            relay.create_executor("graph", mod, device, target).evaluate()(np.ones(4, "float32"))
    assert autotvm.task.extract_from_program(mod["main"], {}, "cuda") == [], "nothing in it has tiles"
    with autotvm.tophub.context("cuda"), pytest.warns(UserWarning, match="a build for a GPU takes none"):
        relay.build(mod, "cuda")
    if not tvm.cuda(0).exist:
        for make in (lambda: lib["default"](tvm.cuda(0)), lambda: graph_executor.create(graph, lib, tvm.gpu(0))):
            with pytest.raises(RuntimeError, match=r"^cuda\(0\): TVM finds no CUDA device on this machine"):
                make()
        with pytest.raises(RuntimeError, match="saving a network for CUDA takes a build on a machine with"):
            lib.export_library(tmp_path / "lib.so")


def test_pass_contexts(enabled, recwarn):
    from tvm import relay

    def levels(**options):
        with tvm.transform.PassContext(**options):
            return relay.build(mod, "llvm", params={"w": w}).compiled

    x, v = relay.var("x", shape=(1, 16, 8, 8)), relay.var("w", shape=(16, 16, 3, 3))
    w = np.ones((16, 16, 3, 3), "float32")
    mod = tvm.IRModule.from_expr(relay.Function([x, v], relay.nn.relu(relay.nn.conv2d(x, v, padding=(1, 1)))))
    assert [levels(opt_level=n).opt_level for n in (0, 1, 2, 3, 4)] == [0, 1, 2, 3, 3]
    blocked, unblocked = levels(opt_level=3), levels(opt_level=3, disabled_pass=["AlterOpLayout"])
    assert tuple(unblocked.params["w"].shape) == (16, 16, 3, 3)
    assert [tuple(p.shape) for p in blocked.params.values()] != [(16, 16, 3, 3)]
    with tvm.transform.PassContext(3, config={"relay.FuseOps.max_depth": 8, "tir.disable_vectorize": True}):
        assert tvm.transform.PassContext.current().opt_level == 3
        with relay.build_config(opt_level=1):
            assert relay.build(mod, "llvm").compiled.opt_level == 1
        assert relay.build(mod, "llvm").compiled.opt_level == 3
    assert relay.build(mod, "llvm").compiled.opt_level == 3
    with relay.build_config(opt_level=1, config={"relay.FuseOps.max_depth": 4}):
        pass
    told = [str(w.message) for w in recwarn if "no longer exists" in str(w.message)]
    assert told == ["PassContext: the option 'relay.FuseOps.max_depth' no longer exists and is left out"]


# ---------------------------------------------------------------- the graph executor and its debugger


@pytest.fixture(scope="module")
def small_lib(small):
    """`small`, as relay.build gives it, with its input and PyTorch's exact result."""
    tvmclassic.enable()
    from tvm import relay

    from tvmclassic.relay.lift import from_relax

    lib = relay.build(from_relax(small.mod), "llvm", params=small.params)
    tvmclassic.disable()
    return lib, small.x, small.exact


def test_a_library_unpacks_and_indexes(enabled, small_lib):
    from tvm.contrib import graph_executor, graph_runtime

    lib, x, wanted = small_lib
    graph, library, params = lib
    modules = [graph_runtime.create(graph, library, tvm.cpu()), graph_executor.GraphModule(lib["default"](tvm.cpu()))]
    for m in modules:
        m.set_input(**params)
        m.set_input("image", tvm.nd.array(x))
        m.run()
        close(m.get_output(0).asnumpy(), wanted)
        out = tvm.nd.empty((1, 5))
        m.get_output(0, out)
        np.testing.assert_array_equal(out.numpy(), m.get_output(0).numpy())
        m.run(image=np.zeros_like(x))
        assert abs(m.get_output(0).numpy() - wanted.values[0]).max() > 1e-3
        assert m.get_num_outputs() == 1 and m.get_input_info()[0] == {"image": (1, 3, 8, 8)}
    shared = tvm.nd.array(x)
    m.set_input_zero_copy("image", shared)
    for values in (2 * x, x):  # what is written to it later is read too
        shared.copyfrom(values)
        m.run()
        differs = abs(m.get_output(0).numpy() - wanted.values[0]).max() > 1e-3
        assert differs == (values is not x)
    close(m.get_output(0).numpy(), wanted)
    assert isinstance(shared, tvm.runtime.NDArray) and isinstance(shared, tvm.nd.NDArray)
    run, set_input, get_output = (lib["default"](tvm.cpu())[name] for name in ("run", "set_input", "get_output"))
    assert run and set_input and get_output
    raw = lib["default"](tvm.cpu())
    raw["set_input"]("image", tvm.nd.array(x))
    raw["run"]()
    close(raw["get_output"](0).numpy(), wanted)
    assert {n["op"] for n in json.loads(graph)["nodes"]} == {"null", "tvm_op"}
    with pytest.raises(ValueError, match="no input is named 'picture'; the inputs are image"):
        m.set_input("picture", x)
    with pytest.raises(ValueError, match=r"input 'image': expected the shape \(1, 3, 8, 8\), got \(3, 8, 8\)"):
        m.set_input("image", x[0])


def test_a_build_has_the_kernels_of_todays_api(small_lib, lib):
    """So it is as fast: the same operators fused, with the same schedules."""
    assert small_lib[0].compiled.kernels.sort_index().equals(lib.kernels.sort_index())


def test_timing(enabled, small_lib):
    from tvm.contrib import graph_executor

    lib, x, _ = small_lib
    m = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    times = m.module.time_evaluator("run", tvm.cpu(), number=2, repeat=4)()
    assert len(times.results) == 4 and 0 < times.min <= times.median <= times.max
    assert min(times.results) <= times.mean <= max(times.results)
    for end_to_end in (False, True):
        times = m.benchmark(tvm.cpu(), number=2, repeat=3, end_to_end=end_to_end, image=x)
        assert len(times.results) == 3 and times.min > 0 and "mean (ms)" in str(times)


def test_the_debugger_times_each_kernel(enabled, small_lib, tmp_path, capsys):
    from tvm import relay
    from tvm.contrib.debugger import debug_executor
    from tvm.contrib.debugger.debug_executor import GraphModuleDebug

    lib, x, wanted = small_lib
    dev = tvm.cpu(0)
    m = GraphModuleDebug(lib["debug_create"]("default", dev), [dev], lib.graph_json, dump_root=str(tmp_path / "dump"))
    m.set_input("image", x)
    m.run()
    head, *rows, total = capsys.readouterr().out.strip().splitlines()
    calls = [n["attrs"]["func_name"] for n in json.loads(lib.graph_json)["nodes"] if n["op"] == "tvm_op"]
    assert head.split() == ["Node", "Name", "Time(us)", "Time(%)", "Shape", "Inputs", "Outputs"]
    names = [row.split()[0] for row in rows]
    assert set(names) <= set(calls) and sum("conv2d" in name for name in names) == 2 and total.startswith("Total: ")
    close(m.get_output(0).numpy(), wanted)
    dumped = relay.load_param_dict((tmp_path / "dump" / "output_tensors.params").read_bytes())
    graph = json.loads((tmp_path / "dump" / "_tvmdbg_graph_dump.json").read_text())
    assert set(dumped) <= {node["name"] for node in graph["nodes"]}
    assert any(np.array_equal(array.numpy(), m.get_output(0).numpy()) for array in dumped.values())
    assert len(dumped) == len(names)
    one = next(iter(dumped))
    np.testing.assert_array_equal(m.debug_get_output(one).numpy(), dumped[one].numpy())
    with pytest.raises(ValueError, match="no node 'nonsense'; the nodes that kernels make are"):
        m.debug_get_output("nonsense")

    m = debug_executor.create(lib.get_graph_json(), lib.get_lib(), dev)
    report = m.profile(image=x)
    table = report.table
    assert len(table) == len(names) and (table["Time(us)"] >= 0).all()
    assert table["Time(%)"].sum() == pytest.approx(100)
    assert len(m.run_individual(number=2)) == len(names)
    assert len(m.module.time_evaluator("run", dev, number=1, repeat=2)().results) == 2
    assert capsys.readouterr().out == ""


def test_a_local_session_loads_what_was_uploaded(enabled, small_lib, tmp_path):
    from tvm import rpc
    from tvm.contrib import graph_executor, utils

    lib, x, wanted = small_lib
    temp = utils.tempdir()
    lib.export_library(temp.relpath("net.tar"))
    remote = rpc.LocalSession()
    remote.upload(temp.relpath("net.tar"))
    m = graph_executor.GraphModule(remote.load_module("net.tar")["default"](remote.cpu(0)))
    m.set_input("image", tvm.nd.array(x, remote.cpu(0)))
    m.run()
    close(m.get_output(0).numpy(), wanted)


@pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="needs a target that is not this machine")
def test_a_library_for_another_machine_needs_a_cross_compiler(enabled, small_lib, tmp_path, monkeypatch):
    from tvm import relay

    mod = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))
    lib = relay.build(mod, tvm.target.arm_cpu("rk3399"))
    with (
        monkeypatch.context() as bare,
        pytest.raises(RuntimeError, match="takes a cross compiler, aarch64-linux-gnu-g"),
    ):
        bare.setenv("PATH", "")
        lib.export_library(tmp_path / "net.tar")
    assert os.listdir(tmp_path) == []


def test_a_scripted_loop_over_values_is_refused_with_the_way_round(enabled):
    from tvm import relay

    class Loops(torch.nn.Module):
        def forward(self, x):
            while bool(x.sum() < 10):
                x = x + 1
            return x

    with pytest.raises(NotImplementedError, match="with other operators, or export it with torch.onnx.export"):
        relay.frontend.from_pytorch(torch.jit.script(Loops().eval()), [("x", (2, 3))])


@pytest.mark.alone
def test_a_graph_executor_runs_on_a_remote_device(enabled, small_lib, tmp_path, capfd):
    from tvm import autotvm, relay
    from tvm.contrib import graph_executor

    lib, x, wanted = small_lib
    with Cluster(tmp_path, tvms_own=True) as cluster:
        cluster.serve("one", key="shelf", module="tvm.exec.rpc_server")
        assert autotvm.measure.check_remote("llvm", "shelf", "127.0.0.1", cluster.port)
        assert not autotvm.measure.check_remote("llvm", "attic", "127.0.0.1", cluster.port)
        remote = autotvm.measure.request_remote("shelf", "127.0.0.1", cluster.port, timeout=300)
        dev = remote.cpu(0)
        for name in ("net.tar", "net.so"):
            lib.export_library(tmp_path / name)
            remote.upload(str(tmp_path / name))
            loaded = remote.load_module(name)
            module = graph_executor.GraphModule(loaded["default"](dev))
            for sign in (1, -1):
                module.set_input("image", tvm.nd.array(sign * x, dev))
                module.run()
                here = graph_executor.GraphModule(lib["default"](tvm.cpu()))
                here.run(image=sign * x)
                np.testing.assert_array_equal(module.get_output(0).numpy(), here.get_output(0).numpy())
        assert module.get_output(0).device == dev
        times = module.module.time_evaluator("run", dev, number=2, repeat=3)()
        assert len(times.results) == 3 and min(times.results) > 0
        again = graph_executor.create(lib.get_graph_json(), loaded, dev)
        again.set_input("image", x)
        again.set_input(**lib.get_params())
        again.run()
        close(again.get_output(0).numpy(), wanted)
        name, bias = next((name, array) for name, array in lib.get_params().items() if array.shape[-1] == 5)
        again.set_input(name, 2 * bias.numpy())
        again.run()
        assert not np.array_equal(again.get_output(0).numpy(), module.get_output(0).numpy())

        a = relay.var("a", shape=(4, 6))
        two = relay.build(tvm.IRModule.from_expr(relay.split(a, 2).astuple()), "llvm")
        two.export_library(tmp_path / "two.so")
        remote.upload(str(tmp_path / "two.so"), "halves.so")
        module = graph_executor.GraphModule(remote.load_module("halves.so")["default"](dev))
        rows = np.arange(24, dtype="float32").reshape(4, 6)
        module.run(a=rows)
        for n in range(2):
            np.testing.assert_array_equal(module.get_output(n).numpy(), rows[2 * n : 2 * n + 2])
        with pytest.raises(NotImplementedError, match="debug executor on a remote device"):
            tvm.contrib.debugger.debug_executor.create(two.get_graph_json(), remote.load_module("halves.so"), dev).run()
        any_rows = relay.var("rows", shape=(relay.Any(), 2))
        relay.vm.compile(relay.Function([any_rows], any_rows * 2.0), "llvm").lib.save(str(tmp_path / "parts.so"))
        with pytest.raises(NotImplementedError, match="remote.upload: a program with branches"):
            remote.upload(str(tmp_path / "parts.so"))
    assert "saving param" not in capfd.readouterr().out


@pytest.mark.alone
def test_devices_kernels_and_packages_on_another_machine(enabled, small_onnx, tmp_path, capsys):
    from tvm import auto_scheduler, te
    from tvm.driver import tvmc
    from tvm.driver.tvmc.main import main

    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: a[i] + 1.0, name="B")
    tvm.build(te.create_schedule(b.op), [a, b], "llvm", name="add_one").export_library(str(tmp_path / "one.tar"))
    x = picture()
    np.savez(tmp_path / "x.npz", image=x)
    model = tvmc.load(str(small_onnx), shape_dict={"image": [1, 1, 32, 32]})
    package = tvmc.compile(model, target="llvm", package_path=str(tmp_path / "net.tar"))
    with Cluster(tmp_path, tvms_own=True) as cluster:
        cluster.serve("one", key="shelf", module="tvm.exec.rpc_server")
        remote = auto_scheduler.utils.request_remote("shelf", "127.0.0.1", cluster.port, timeout=300)
        dev = remote.cpu(0)
        assert remote.device("llvm -keys=cpu -mtriple=aarch64-linux-gnu", 0) == dev
        assert remote.context(str(tvm.target.Target("llvm")), 0) == dev == remote.device("cpu")
        remote.upload(str(tmp_path / "one.tar"))
        add_one = remote.load_module("one.tar")
        given, out = tvm.nd.array(np.arange(64, dtype="float32"), dev), tvm.nd.array(np.zeros(64, "float32"), dev)
        add_one(given, out)
        np.testing.assert_array_equal(out.numpy(), np.arange(1, 65))
        assert add_one.time_evaluator(add_one.entry_name, dev, number=2)(given, out).mean > 0
        del add_one, given, out, remote, dev
        options = {"hostname": "127.0.0.1", "port": str(cluster.port), "rpc_key": "shelf", "inputs": {"image": x}}
        result = tvmc.run(package, "cpu", **options)
        close_to_onnxruntime(result.outputs["output_0"], x, small_onnx)
        del result
        command = ["run", "--inputs", str(tmp_path / "x.npz"), "--outputs", str(tmp_path / "y.npz"), "--print-time"]
        where = ["--device", "cpu", "--rpc-key", "shelf", "--rpc-tracker", cluster.tracker]
        assert main([*command, *where, package.package_path]) == 0
        assert "mean (ms)" in capsys.readouterr().out
        close_to_onnxruntime(np.load(tmp_path / "y.npz")["output_0"], x, small_onnx)
        assert main([*command, *where, "--profile", package.package_path]) == 1
        assert "kernels are timed where they run" in capsys.readouterr().err
    assert main([*command, *where, package.package_path]) == 1 and "Error: " in capsys.readouterr().err
    with pytest.raises(tvmc.TVMCException, match="--rpc-key needs its tracker"):
        tvmc.run(package, rpc_key="shelf")
    with pytest.raises(ConnectionError, match="no RPC server answers"):
        tvmc.run(package, hostname="127.0.0.1", port=cluster.port)


def test_relay_backends(enabled):
    from tvm import relay
    from tvm.relay.backend import Executor, Runtime

    mod = tvm.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(4,))))
    assert relay.build(mod, "llvm", executor=Executor("graph"), runtime=Runtime("cpp")).libmod_name == "default"
    with pytest.raises(NotImplementedError, match=r"Executor\('aot'\): only 'graph' is served"):
        Executor("aot")


@pytest.mark.parametrize("name", ["lib.so", "lib.tar"])
def test_an_exported_library_is_one_file(enabled, small_lib, tmp_path, name):
    from tvm.contrib import graph_executor

    lib, x, wanted = small_lib
    lib.export_library(str(tmp_path / name))
    assert os.listdir(tmp_path) == [name]
    loaded = tvm.runtime.load_module(str(tmp_path / name))
    m = graph_executor.GraphModule(loaded["default"](tvm.cpu()))
    m.run(image=x)
    close(m.get_output(0).numpy(), wanted)
    assert (tarfile.is_tarfile(tmp_path / name)) == (name == "lib.tar")
    with pytest.raises(ValueError, match="does not exist"):
        tvm.runtime.load_module(str(tmp_path / "nowhere.so"))


# ---------------------------------------------------------------- relay_viz


def branches():
    from tvm import relay

    x, w = relay.var("x", shape=(1, 3, 8, 8)), relay.var("w", shape=(4, 3, 3, 3))
    y = relay.nn.conv2d(x, w, kernel_size=(3, 3), channels=4)
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.concatenate([relay.nn.relu(y), y], axis=1)))


def test_relay_viz_draws_a_tree(enabled, capsys):
    from tvm.contrib import relay_viz

    viz = relay_viz.RelayVisualizer(branches(), {"w": None}, relay_viz.TermPlotter(), relay_viz.TermVizParser())
    viz.render()
    lines = capsys.readouterr().out.splitlines()
    words = [re.sub(r"^[ |`-]*(\[\d+\] )?|\W*\(.*", "", line) for line in lines]
    assert words == ["@main", "Func", "Var", "Var", "Call concatenate", "Tuple", "Call nn.relu", "Call nn.conv2d",
                     "Var", "Var", "Call nn.conv2d as above"]  # fmt: skip
    assert "Var(Input) (name_hint: x, shape: (1, 3, 8, 8), dtype: float32)" in lines[2]
    assert "Var(Param) (name_hint: w" in lines[3]
    assert "kernel_size: [3, 3]" in lines[7]


def test_relay_viz_draws_what_has_no_types(enabled, capsys):
    from tvm import relay
    from tvm.contrib import relay_viz

    x, y = relay.var("x"), relay.var("y", shape=(relay.Any(), 3))
    flag = relay.var("flag", shape=(), dtype="bool")
    mod = tvm.IRModule.from_expr(relay.If(flag, x + y, y))
    relay_viz.RelayVisualizer(mod, plotter=relay_viz.TermPlotter()).render()
    printed = capsys.readouterr().out
    assert "Var(Input) (name_hint: x, type: unknown)" in printed and "shape: (?, 3)" in printed
    assert "If" in printed and "Call add" in printed


def test_relay_viz_writes_dot(enabled, tmp_path):
    from tvm.contrib import relay_viz

    plotter = relay_viz.DotPlotter(
        node_attr={"color": "blue"},
        get_node_attr=lambda node: {"fillcolor": "green"} if "conv2d" in node.type_name else {},
    )
    relay_viz.RelayVisualizer(branches(), plotter=plotter, parser=relay_viz.DotVizParser()).render(tmp_path / "net")
    text = (tmp_path / "net.gv").read_text()
    assert text.startswith("digraph {") and text.count("{") == text.count("}")
    assert text.count(" -> ") == 9 and text.count('fillcolor="green"') == 1 and 'color="blue"' in text


def test_relay_viz_takes_parsers_and_plotters_of_a_script(enabled):
    from tvm import relay
    from tvm.contrib import relay_viz
    from tvm.contrib.relay_viz.interface import Plotter, VizEdge, VizGraph, VizNode, VizParser

    class Parser(VizParser):
        def __init__(self):
            self._delegate = relay_viz.TermVizParser()

        def get_node_edges(self, node, relay_param, node_to_id):
            if isinstance(node, relay.Call) and node.op == relay.op.get("nn.relu"):
                edges = [VizEdge(node_to_id[arg], node_to_id[node]) for arg in node.args]
                return VizNode(node_to_id[node], "AwesomeRelu", "mine"), edges
            return self._delegate.get_node_edges(node, relay_param, node_to_id)

    class Graph(VizGraph):
        def __init__(self):
            self.nodes, self.edges = {}, []

        def node(self, viz_node):
            self.nodes[viz_node.identity] = viz_node

        def edge(self, viz_edge):
            self.edges.append((viz_edge.start, viz_edge.end))

    class MyPlotter(Plotter):
        def __init__(self):
            self.graphs, self.rendered = {}, None

        def create_graph(self, name):
            return self.graphs.setdefault(name, Graph())

        def render(self, filename):
            self.rendered = filename

    plotter = MyPlotter()
    relay_viz.RelayVisualizer(branches(), plotter=plotter, parser=Parser()).render("name")
    assert plotter.rendered == "name" and list(plotter.graphs) == ["main"]
    graph = plotter.graphs["main"]
    assert [n.detail for n in graph.nodes.values() if n.type_name == "AwesomeRelu"] == ["mine"]
    assert all(start in graph.nodes and end in graph.nodes for start, end in graph.edges)


def test_a_plotter_that_makes_other_trees(enabled, capsys):
    from tvm.contrib import relay_viz
    from tvm.contrib.relay_viz.interface import VizEdge, VizNode
    from tvm.contrib.relay_viz.terminal import TermGraph, TermPlotter

    class Doubled(TermGraph):
        def node(self, viz_node):
            super().node(viz_node)
            if viz_node.type_name.startswith("Var"):
                super().node(VizNode(f"twin_{viz_node.identity}", "Twin", ""))
                super().edge(VizEdge(f"twin_{viz_node.identity}", viz_node.identity))

    class MyPlotter(TermPlotter):
        def create_graph(self, name):
            self._name_to_graph[name] = Doubled(name)
            return self._name_to_graph[name]

    relay_viz.RelayVisualizer(branches(), {}, MyPlotter(), relay_viz.TermVizParser()).render()
    printed = capsys.readouterr().out
    assert printed.startswith("@main") and printed.count("Twin") == printed.count("name_hint") == 2


# ---------------------------------------------------------------- tvmc


def test_tvmc_from_python(enabled, small_onnx, tmp_path):
    from tvm.driver import tvmc
    from tvm.driver.tvmc.model import TVMCModel, TVMCPackage

    x = picture()
    model = tvmc.load(str(small_onnx), shape_dict={"image": [1, 1, 32, 32]})
    assert isinstance(model, TVMCModel) and "nn.conv2d" in str(model.mod)
    package = tvmc.compile(model, target="llvm", package_path=str(tmp_path / "digits.tar"), dump_code="asm")
    with tarfile.open(tmp_path / "digits.tar") as archive:
        assert sorted(archive.getnames()) == ["mod.json", "mod.params", "mod.so"]
    assert re.search(r"\sv?(fmadd|fmla|mul[sp]s)", (tmp_path / "digits.tar.asm").read_text())
    for loaded in (package, TVMCPackage(package_path=str(tmp_path / "digits.tar"))):
        result = tvmc.run(loaded, device="cpu", inputs={"image": x}, repeat=3, number=2)
        close_to_onnxruntime(result.outputs["output_0"], x, small_onnx)
    assert len(result.times.results) == 3 and "mean (ms)" in result.format_times()
    assert str(result).endswith("Output Names:\n ['output_0']")
    result = tvmc.run(package, device="cpu", fill_mode="zeros", repeat=1, number=1)
    close_to_onnxruntime(result.get_output("output_0"), 0 * x, small_onnx)
    model.save(tmp_path / "model")
    again = TVMCModel(model_path=tmp_path / "model")
    assert str(again.mod["main"].ret_type) == str(model.mod["main"].ret_type)


def test_tvmc_reads_a_model_that_names_the_engine_as_until_0_1(enabled, tmp_path):
    from tvm import relay
    from tvm.driver import tvmc

    x, indices = np.arange(12, dtype="float32").reshape(4, 3), np.array([3, 0], "int32")
    params = relay.var("x", shape=(4, 3)), relay.var("indices", shape=(2,), dtype="int32")
    rows = relay.take(*params, axis=0, mode="fast")
    tvmc.TVMCModel(tvm.IRModule.from_expr(rows), {}).save(tmp_path / "model")
    with tarfile.open(tmp_path / "model") as archive:
        text, arrays = (archive.extractfile(name).read() for name in ("model.json", "model.params"))
    assert b'"tvmfast.checked_indices"' in text
    former = text.replace(b'"tvmfast.', b'"tvmnotes.')
    saved.pack(tmp_path / "former", [("model.json", former), ("model.params", arrays)], tar=True)
    again = tvmc.TVMCModel(model_path=tmp_path / "former")
    package = tvmc.compile(again, target="llvm", package_path=str(tmp_path / "rows.tar"))
    result = tvmc.run(package, inputs={"x": x, "indices": indices}, repeat=1, number=1)
    np.testing.assert_array_equal(result.outputs["output_0"], x[indices])


def test_tvmc_tunes(enabled, tmp_path):
    from tvm.driver import tvmc

    net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU()).eval()
    x = np.random.default_rng(0).random((1, 8, 10, 10)).astype("float32")
    torch.jit.trace(net, torch.from_numpy(x)).save(str(tmp_path / "net.pt"))
    model = tvmc.load(tmp_path / "net.pt", shape_dict={"data": x.shape})
    records = tvmc.tune(model, "llvm", tuning_records=tmp_path / "log.json", trials=2, number=1, tuner="random")
    lines = Path(records).read_text().splitlines()
    assert len(lines) == 2 and all(json.loads(line) for line in lines)
    package = tvmc.compile(model, "llvm", tuning_records=records, package_path=tmp_path / "net.tar")
    result = tvmc.run(package, inputs={"data": x}, number=1, repeat=1)
    close(result.outputs["output_0"], reference(net, x))
    with pytest.raises(tvmc.TVMCException, match="expected a tuner of ga, gridsearch, random, xgb"):
        tvmc.tune(model, "llvm", tuner="best")


def test_tvmc_hands_a_model_to_the_auto_scheduler(enabled, small_onnx, tmp_path, monkeypatch):
    from tvm.driver import tvmc

    model = tvmc.load(str(small_onnx), shape_dict={"image": [1, 1, 32, 32]})
    log = str(tmp_path / "log.json")
    served, calls = SimpleNamespace(), {}
    monkeypatch.setitem(sys.modules, "tvm.auto_scheduler", served)
    with pytest.raises(tvmc.TVMCException, match="Ansor .* was dropped in TVM 0.20; tune without it"):
        tvmc.tune(model, "llvm", tuning_records=log, enable_autoscheduler=True)

    def told(name, result=None):
        return lambda *args, **kwargs: calls.update({name: (args, kwargs)}) or result

    served.extract_tasks = told("extract_tasks", (["task"], [3]))
    served.LocalRunner, served.RPCRunner = told("LocalRunner", "here"), told("RPCRunner", "there")
    served.RecordToFile, served.TuningOptions = told("RecordToFile", "file"), told("TuningOptions", "options")
    served.TaskScheduler = told("TaskScheduler", SimpleNamespace(tune=told("tune")))
    options = {"trials": 20, "early_stopping": 5, "prior_records": "old.json", "number": 2, "repeat": 3, "timeout": 4}
    assert tvmc.tune(model, "llvm", log, enable_autoscheduler=True, **options) == log
    assert calls["extract_tasks"] == ((model.mod["main"], model.params, "llvm"), {})
    assert calls["LocalRunner"] == ((), {"timeout": 4, "number": 2, "repeat": 3, "min_repeat_ms": 0})
    assert calls["TuningOptions"][1] == {
        "num_measure_trials": 20, "early_stopping": 5, "runner": "here", "measure_callbacks": ["file"]
    }  # fmt: skip
    assert calls["TaskScheduler"] == ((["task"], [3]), {"load_log_file": "old.json"})
    assert calls["tune"] == (("options",), {}) and calls["RecordToFile"] == ((log,), {})
    tvmc.tune(model, "llvm", log, enable_autoscheduler=True, hostname="127.0.0.1", port=9190, rpc_key="shelf")
    assert calls["RPCRunner"][0] == ("shelf", "127.0.0.1", 9190)


def test_tvmc_refuses_with_a_sentence(enabled, tmp_path):
    from tvm.driver import tvmc

    with pytest.raises(NotImplementedError, match=r"from_keras: .*tf2onnx"):
        tvmc.load("model.h5")
    with pytest.raises(tvmc.TVMCException, match="expected a model_format of onnx or pytorch for model.xyz"):
        tvmc.load("model.xyz")
    with pytest.raises(tvmc.TVMCException, match="no file .*nowhere.onnx"):
        tvmc.load("nowhere.onnx")
    with pytest.raises(tvmc.TVMCException, match="is no package that tvmc compile wrote"):
        tvmc.run(tvmc.TVMCPackage(__file__), device="cpu")


def test_tvmc_on_the_command_line(script, small_onnx, tmp_path):
    tool, package = ("-m", "tvm.driver.tvmc"), tmp_path / "net.tar"
    np.savez(tmp_path / "x.npz", image=picture())
    script(*tool, "compile", "--target", "llvm", "--input-shapes", "image:[1,1,32,32]", "--opt-level", "2",
           "--pass-config", "tir.disable_vectorize=true", "--output", package, small_onnx, fork=True)  # fmt: skip
    done = script(*tool, "run", "--inputs", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--print-time",
                  "--print-top", "3", "--repeat", "2", "--number", "1", package, fork=True)  # fmt: skip
    wanted = close_to_onnxruntime(np.load(tmp_path / "y.npz")["output_0"], picture(), small_onnx)
    assert "mean (ms)" in done.stdout
    assert re.search(rf"output_0\n\[\[ *{wanted.argmax()}\. ", done.stdout)


def test_tvmc_on_the_command_line_refuses_with_a_sentence(enabled, tmp_path, capsys):
    from tvm.driver.tvmc.main import main

    for words, code, told in [
        (["compile", str(tmp_path / "net.onnx")], 1, f"Error: tvmc.load: no file {tmp_path / 'net.onnx'}\n"),
        (["compile", "--input-shapes", "data=1,3", "net.onnx"], 1, 'expected "name:[1,3,224,224] name2:[1,8]", got'),
        (["run", __file__], 1, "is no package that tvmc compile wrote"),
        (["run", "--rpc-tracker", ":9190", __file__], 1, "--rpc-tracker: expected HOST:PORT, got ':9190'"),
        (["run"], 2, "usage: tvmc run"),
        (["tune", "net.onnx"], 2, "--output"),
    ]:
        try:
            ended = main(words)
        except SystemExit as error:  # argparse's own
            ended = error.code
        assert ended == code and told in capsys.readouterr().err
    (tmp_path / "net.pt").write_bytes(b"")
    assert main(["compile", str(tmp_path / "net.pt")]) == 1
    assert "give shape_dict (--input-shapes)" in capsys.readouterr().err
    assert main([]) == 0 and "Compile, run and tune models" in capsys.readouterr().out
