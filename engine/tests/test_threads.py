"""Threads, forks and Ctrl-C: many import and build at once, children run what their parent ran, an interrupt is one."""

import importlib
import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from agreement import close
from testing import SEED, STORM
from torch import nn
from tvm.relax.frontend.onnx import onnx_frontend

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.core import machine
from tvmfast.core.compat import without_modules

V = np.array([-1, 0, 2], "float32")


def onnx_model(op: str, dtype: int = onnx.TensorProto.FLOAT, **attributes) -> onnx.ModelProto:
    """y = op(x) for an x of shape (3,)."""
    x, y = (onnx.helper.make_tensor_value_info(name, kind, (3,)) for name, kind in (("x", 1), ("y", dtype)))
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], **attributes)], op, [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


# ---------------------------------------------------------------- threads


def at_once(functions) -> list:
    """What functions return that begin at once, each in a thread of its own."""
    ready = threading.Barrier(len(functions))

    def run(function):
        ready.wait(600)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


@pytest.mark.alone
def test_threads_import_and_build_at_once():
    model = onnx_model("Relu")
    nodes = [{"op": "null", "name": "x", "inputs": []}, {"op": "relu", "name": "y", "inputs": [[0, 0, 0]]}]
    symbol = json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]]})
    ways = [
        lambda: tvmfast.from_onnx(model),
        lambda: tvmfast.from_pytorch(nn.ReLU().eval(), {"x": (3,)}),
        lambda: tvmfast.from_mxnet(symbol, {}, {"x": (3,)}),
    ]
    out = sys.stdout
    imported = at_once(ways * 4)
    assert sys.stdout is out
    hook = sys.unraisablehook
    for lib in at_once([lambda each=each: tvmfast.build(*each) for each in imported[:6]]):
        np.testing.assert_array_equal(lib(V), np.maximum(V, 0))
    assert sys.unraisablehook is hook


def test_an_import_that_fails_tells_the_node_and_takes_nobodys_output(monkeypatch, capsys):
    convert = onnx_frontend.ONNXGraphImporter.from_onnx

    def while_another_thread_prints(*args, **options):
        print("of another thread")
        return convert(*args, **options)

    monkeypatch.setattr(onnx_frontend.ONNXGraphImporter, "from_onnx", while_another_thread_prints)
    with pytest.raises(NotImplementedError, match="cannot import operator Cast"):
        tvmfast.from_onnx(onnx_model("Cast", onnx.TensorProto.STRING, to=onnx.TensorProto.STRING))
    assert capsys.readouterr().out == "of another thread\n"


def test_what_one_thread_leaves_out_another_imports(monkeypatch):
    name = "colorsys"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with without_modules(name):
        with pytest.raises(ImportError):
            importlib.import_module(name)
        assert at_once([lambda: importlib.import_module(name)])[0].__name__ == name
    assert name in sys.modules
    with without_modules(name), pytest.raises(ImportError):  # one that is here is left out for all
        importlib.import_module(name)
    assert importlib.import_module(name)


FIRST_USES = """
import threading, tvmfast as package
names = ["from_onnx", "from_pytorch", "build", "load", "compare"]
ready, found = threading.Barrier(len(names)), []
def use(name):
    ready.wait()
    found.append(getattr(package, name).__name__)
threads = [threading.Thread(target=use, args=[name]) for name in names]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(sorted(found) == sorted(names), found)
"""


@pytest.mark.full
def test_threads_may_be_the_first_to_use_the_package(python):
    assert python(FIRST_USES).startswith("True")


# ---------------------------------------------------------------- forks

FORKS = """
import multiprocessing, os, signal, sys, threading
import numpy as np, tvmfast
path, written = sys.argv[1:]
lib, x = tvmfast.load(path), np.random.default_rng(SEED).random((64, 4096), "float32")
wanted = lib(x)

def right(_=None):
    assert np.array_equal(lib(x), wanted)
    return True

def in_threads():
    threads = [threading.Thread(target=right) for _ in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]

def write():
    global file
    file = open(written, "w")
    file.write("all of it")  # which Python flushes at its end

def in_child(work, code=0):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(300)  # ends one that hangs
    work()
    sys.exit(code)

busy = True
def others():
    while busy:
        right()
another = threading.Thread(target=others)
another.start()
codes = [in_child(right), in_child(in_threads, 3), in_child(lambda: (right(), sys.exit(in_child(right, 5))))]
codes += [in_child(lambda: 1 / 0)]
with multiprocessing.get_context("fork").Pool(2) as pool:
    pooled = pool.map(right, range(2))
busy = False
another.join()
codes += [in_child(write, "a message")]
right()
print(codes, pooled, open(written).read())
"""


@pytest.mark.alone
def test_a_child_of_a_fork_runs_what_the_parent_has_run(compile_function, tmp_path, python):
    """The parent has more of TVM's threads than there are cores; it ends nevertheless, and so do its children."""
    path = compile_function(lambda x: x.exp() + 1, {"x": (64, 4096)}).save(tmp_path / "net")
    code = FORKS.replace("sys.argv[1:]", repr([str(path), str(tmp_path / "file")])).replace("SEED", str(SEED))
    threads = str(machine.usable_cores() + 3)
    came = python(code, TVM_NUM_THREADS=threads, TVM_THREAD_POOL_SPIN_COUNT=None)
    assert came == "[0, 3, 5, 1, 1] [True, True] all of it"


# ---------------------------------------------------------------- Ctrl-C


@tvm.instrument.pass_instrument
class Interrupt:
    """Ctrl-C comes as the pass of this number begins, which TVM's C++ calls."""

    def __init__(self, number):
        self.number, self.passes = number, 0

    def run_before_pass(self, _mod, _info):
        self.passes += 1
        if self.passes == self.number:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_pass_is_a_keyboard_interrupt(compile_function):
    def compiled(number):
        counter = Interrupt(number)
        with tvm.transform.PassContext(opt_level=3, instruments=[counter]):
            lib = compile_function(lambda x: x + 2, {"x": (3,)})
        return lib, counter.passes

    _, passes = compiled(0)
    for number in np.linspace(1, passes, 5).astype(int):  # the first is the importer's, the last those of LLVM's code
        with pytest.raises(KeyboardInterrupt):
            compiled(number)
    (lib,) = at_once([lambda: compiled(0)[0]])  # no lock is held
    np.testing.assert_array_equal(lib(V), V + 2)


def test_ctrl_c_while_other_threads_make_code_is_a_keyboard_interrupt(small, monkeypatch, tmp_path):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    make, first = codegen.compile_kernels, iter([True])

    def interrupted(*args, **options):
        if next(first, False):  # once, as another would come when nobody waits for it any more
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return make(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(codegen, "compile_kernels", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tvmfast.build(small.mod, small.params)
    close(tvmfast.build(small.mod, small.params)(small.x), small.exact)


def test_ctrl_c_in_a_finalizer_is_a_keyboard_interrupt(small, monkeypatch):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    make = codegen.executable

    def executable(*args, **options):
        Finalized()
        return make(*args, **options)

    monkeypatch.setattr(codegen, "executable", executable)
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        tvmfast.build(small.mod, small.params)
    assert sys.unraisablehook is hook


def test_ctrl_c_while_a_network_is_captured_or_converted_is_a_keyboard_interrupt(monkeypatch):
    class Net(nn.Module):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            return x + 1

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)  # Python only prints what a finalizer raises

    class Losing(nn.Module):
        def forward(self, x):
            Finalized()
            return x + 1

    class Twice(nn.Module):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("a second Ctrl-C is raised at once")

    for net in (Net(), Losing(), Twice()):
        with pytest.raises(KeyboardInterrupt):
            tvmfast.from_pytorch(net.eval(), {"x": (3,)})
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def interrupted(*_args, **_options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(onnx_frontend.relax.op.nn, "relu", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tvmfast.from_onnx(onnx_model("Relu"))


INTERRUPTED = """
import os, random, signal, tempfile, time, traceback
import testing
import tvmfast
from tvmfast.profiling import networks
shape, moments = {"image": (1, 3, 8, 8)}, random.Random(SEED)
net = networks.seeded(testing.SmallNet, 8)
mod, params = tvmfast.from_pytorch(net, shape)
tvmfast.build(mod, params, opt_level=0)  # everything is imported
signal.signal(signal.SIGINT, signal.default_int_handler)

def work(fresh):
    while True:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TVMNOTES_CACHE"] = cache  # every kernel is compiled
            tvmfast.build(*(tvmfast.from_pytorch(net, shape) if fresh else (mod, params))).save(cache + "/net")

for number in range(20):
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(300)  # ends one that has missed it
        try:
            os.write(tell, b"1")
            work(number % 2)
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.read(ready, 1)
    os.close(ready), os.close(tell)
    time.sleep(moments.uniform(0, 2))
    os.kill(child, signal.SIGINT)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.storm
@pytest.mark.parametrize("seed", range(SEED, SEED + STORM))
def test_ctrl_c_at_any_moment_of_imports_builds_and_saves_is_a_keyboard_interrupt(python, seed):
    assert python(INTERRUPTED.replace("SEED", str(seed)), cwd=Path(__file__).parent).split() == ["130"] * 20
