"""The working notes that the course grew from, as scripts: `python -m tvmclassic SCRIPT`, each in a process of its own.

The scripts in classic_scripts/ make every call of the notes, in the spellings of their years; their downloads are found
in the folders where TVM and torch would have put them.
"""

import ast
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from agreement import Reference, close, reference, terms_of
from testing import SEED

from tvmclassic import names
from tvmnotes import data, digits, gluon, models, vision

SCRIPTS = Path(__file__).parent / "classic_scripts"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's home with what old scripts would have downloaded: TVM's test data, and torchvision's weights."""
    home = tmp_path_factory.mktemp("home")
    for folder in ("data", "onnx"):
        (home / ".tvm_test_data" / folder).mkdir(parents=True)
    test_data = home / ".tvm_test_data"
    vision.open_picture().save(test_data / "data" / "cat.png")
    (test_data / "data" / "imagenet_synsets.txt").write_text("\n".join(vision.imagenet_classes()))
    shutil.copy(data.path("digits/digits_resnet20.onnx"), test_data / "onnx" / "digits.onnx")
    np.save(test_data / "data" / "picture.npy", picture())
    checkpoints = home / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(models.load("resnet18").state_dict(), checkpoints / "resnet18-f37072fd.pth")
    return home


def picture() -> np.ndarray:
    return digits.preprocess(digits.load_test_set()[0][:1])


def digits_result(x, *after):
    """What the network of the digits gives in double precision, with layers behind it."""
    return reference(torch.nn.Sequential(models.load("digits"), *after), x)


def test_note_a(script, tmp_path):
    done = script(SCRIPTS / "a_resnet18_2022.py", tmp_path / "out.npz", tmp_path / "log", torch=True, fork=True)
    out = np.load(tmp_path / "out.npz")
    net = models.load("resnet18")
    with torch.no_grad():
        wanted = net(torch.from_numpy(out["img"])).numpy()
    for name in ("tvm", "tuned"):
        close(out[name], wanted, terms_of(net.state_dict()), rounded=True)
    best = vision.imagenet_classes()[wanted.argmax()]
    assert f"Relay top-1 id: {wanted.argmax()}, class name: {best}" in done.stdout
    assert f"Torch top-1 id: {wanted.argmax()}, class name: {best}" in done.stdout
    assert re.search(r"def @main\(%input0: Tensor\[\(1, 3, 224, 224\), float32\]", done.stdout)
    assert re.search(r"nn\.conv2d\(%input0, .*padding=\[3, 3, 3, 3\], channels=64, kernel_size=\[7, 7\]", done.stdout)
    assert re.search(r"mean \(ms\) +median \(ms\)", done.stdout)
    assert done.stdout.count("Time(us)") == 2  # the table of run(), and that of profile()
    assert all(json.loads(line) for line in (tmp_path / "log").read_text().splitlines())


@pytest.mark.alone
@pytest.mark.parametrize("network", ["mobilenet", "custom"])
def test_note_b(script, tmp_path, network):
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype="float32")
    np.save(tmp_path / "picture.npy", x)
    if network == "custom":
        mx = pytest.importorskip("mxnet", reason="the mxnet extra is not installed")
        mx.random.seed(SEED)
        with gluon.quiet_unfused():
            net = mx.gluon.nn.HybridSequential()
            net.add(
                mx.gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
                mx.gluon.nn.Conv2D(32, 3, strides=2),
                mx.gluon.nn.GlobalAvgPool2D(),
                mx.gluon.nn.Flatten(),
                mx.gluon.nn.Dense(10),
            )
            net.initialize(mx.init.Xavier())
            net.hybridize()
            wanted = vision.softmax(net(mx.nd.array(x)).asnumpy())
            net.export(str(tmp_path / "net"))
    done = script(SCRIPTS / "b_tuning_2019.py", network, tmp_path, fork=True)
    out = np.load(tmp_path / "out.npz")
    # Tuned and not: kernels of other schedules. MobileNet has 28 layers of at most 1024 terms.
    close(out["graph"], out["loaded"], 28 * 1024, rounded=True)
    if network == "custom":
        close(out["loaded"], wanted, 3 * 9 + 16 * 9 + 32, rounded=True)
    assert re.search(r"^llvm -keys=cpu .*: device type 1, id 0$", done.stdout, re.M)
    assert len(re.findall(r"\[Task  2/ 2\]  Current/Best: .* \| Progress: \(2/2\) \| .* s Done\.", done.stdout)) == 4
    assert "['deploy_graph.json', 'deploy_lib.tar', 'deploy_param.params']" in done.stdout
    assert re.search(r"Mean inference time \(std dev\): \d+\.\d\d ms", done.stdout)
    lines = [json.loads(line) for line in (tmp_path / f"{network}.log").read_text().splitlines()]
    assert lines and {line["input"][0].split()[0] for line in lines} == {"llvm"}


def test_note_b_as_of_2022_saves_in_one_process_and_loads_in_another(script, tmp_path):
    path = SCRIPTS / "b_overview_2022.py"
    assert script(path, "save", tmp_path, fork=True).stdout == "default\n"
    assert {"compiled_lib.so", "model.params"} <= set(os.listdir(tmp_path))
    script(path, "load", tmp_path, tmp_path / "out.npz", fork=True)
    close(np.load(tmp_path / "out.npz")["tvm"], digits_result(picture(), torch.nn.Softmax(1)))


def test_note_c(script, tmp_path):
    done = script(SCRIPTS / "c_python_interface_2021.py", tmp_path / "out.npz", tmp_path / "log", fork=True)
    out, wanted = np.load(tmp_path / "out.npz"), digits_result(picture())
    for name in ("untuned", "tuned"):
        close(out[name], wanted)
    ranks = [int(rank) for rank in re.findall(r"class='(\d)' with probability=", done.stdout)]
    assert ranks == 2 * list(np.argsort(wanted.values[0][0])[::-1][:5])
    assert re.search(r"\[Task  3/ 3\]  Current/Best: .* \| Progress: \(2/2\) \| .* s Done\.", done.stdout)
    assert sum(1 for line in (tmp_path / "log").read_text().splitlines() if json.loads(line)) >= 3


def test_note_d(script, tmp_path):
    done = script(SCRIPTS / "d_through_onnx_2020.py", tmp_path / "out.npz", torch=True, fork=True)
    out = np.load(tmp_path / "out.npz")
    close(out["tvm"], digits_result(out["x"]))
    close(out["scores"], digits_result(out["x"], torch.nn.Softmax(1)))
    np.testing.assert_array_equal(out["graph"], out["tvm"])
    assert done.stdout.startswith("cpu(0) 1 0 None\n")
    fused, calls = (int(n) for n in re.findall(r"(?:FuseOps|graph): (\d+)", done.stdout))
    assert 21 <= fused <= 40 and calls >= 21  # 19 convolutions in the main way, two in shortcuts, one dense layer


def holds_what_a_detector_gives(out):
    import networks

    wanted = reference(networks.detector(), networks.picture())
    np.testing.assert_array_equal(out["ids"], wanted.values[0])
    close([out["scores"], out["boxes"]], Reference(wanted.values[1:], wanted.moved[1:]))


def test_note_e_as_of_2022(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    script(SCRIPTS / "e_detector_2022.py", tmp_path / "out.npz", torch=True, fork=True)
    holds_what_a_detector_gives(np.load(tmp_path / "out.npz"))


@pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")
def test_note_e_with_gluoncv(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    script(SCRIPTS / "e_gluoncv_2019.py", tmp_path / "out.npz", tmp_path / "log", torch=True, fork=True)
    out = np.load(tmp_path / "out.npz")
    exponents = np.exp(out["mxnet"] - out["mxnet"].max())
    for name in ("tvm", "tuned"):
        close(out[name], exponents / exponents.sum(), 20 * 64 * 9, rounded=True)  # of 20 layers, the largest at most
    holds_what_a_detector_gives(out)


# What the code of each note calls.
TUNING = """autotvm.LocalBuilder autotvm.LocalRunner autotvm.measure_option autotvm.apply_history_best
    autotvm.callback.log_to_file autotvm.callback.progress_bar autotvm.task.extract_from_program
    autotvm.tuner.XGBTuner config_space tune"""
NOTES = {
    "a": f"""{TUNING} tvm.contrib.debugger.debug_executor.create profile set_input run get_output relay.build
        graph_executor.GraphModule relay.frontend.from_pytorch tvm.contrib.download tvm.contrib.debugger tvm.cpu
        tvm.nd.array tvm.target.Target tvm.transform.PassContext""",
    "b": f"""{TUNING} set_input run get_output tvm.nd.array tvm.context tvm.gpu tvm.target.cuda tvm.target.create
        autotvm.RPCRunner autotvm.record.load_from_file autotvm.record.pick_best autotvm.task.create load_history
        autotvm.tuner.GATuner autotvm.tuner.RandomTuner autotvm.tuner.GridSearchTuner graph_runtime.create
        module.time_evaluator export_library load_params mxnet.model.load_checkpoint relay.Function
        relay.Module.from_expr relay.build_config relay.build_module.build relay.frontend.from_mxnet
        relay.nn.softmax relay.op.nn.conv2d
        relay.save_param_dict tvm.contrib.util.tempdir tvm.module.load
        relay.testing.inception_v3.get_workload relay.testing.mobilenet.get_workload
        relay.testing.resnet.get_workload relay.testing.squeezenet.get_workload relay.testing.vgg.get_workload""",
    "c": f"{TUNING} relay.frontend.from_onnx tvm.device tvm.nd.empty tvm.auto_scheduler relay.build",
    "d": """relay.build_module.create_executor evaluate relay.build_config relay.frontend.from_onnx device_type tvm.gpu
        tvm.nd.array asnumpy""",
    "e": """relay.frontend.from_mxnet relay.frontend.from_pytorch relay.build graph_runtime.create tvm.gpu tvm.cpu
        module.time_evaluator autotvm.task.create autotvm.tophub.context autotvm.tuner.XGBTuner tune""",
}


STOPPED = {
    "a": 'debug_executor.create(lib["default"], ctx)',
    "b": "tvm.context(str(target), 0)",
    "c": "tvm.device(str(target), 0)",
    "d": "ctx.device_type",
    "e": "tvm.IRModule({",
}


@pytest.mark.parametrize("note", NOTES)
def test_a_notes_script_makes_every_call_of_the_note(note):
    texts = [path.read_text() for path in SCRIPTS.glob(f"{note}_*.py")]
    assert any(STOPPED[note] in text for text in texts)
    written = set()
    for tree in map(ast.parse, texts):
        imported = {}
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                full = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                imported[alias.asname or alias.name] = full
        written |= {*imported.values()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | ast.Name):
                first, *rest = names._dotted(node)
                written |= {".".join([imported.get(first, first), *rest])}
    missing = [name for name in NOTES[note].split() if not any(f".{name}." in f".{text}." for text in written)]
    assert not missing
