"""Files with bytes changed, put in, cut out: each is read, or refused in one clear error; none ends the process.

What is read is used, of networks every fortieth: it runs, or is refused. test_mxnet_file.py does the same to the bytes
of .params and symbols.
"""

import json
import random
import shutil
import struct
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from agreement import close, terms_of
from onnx import TensorProto, helper, numpy_helper
from testing import QUICK, SEED, STORM

import tvmfast
from tvmfast import tuning
from tvmfast.compiler import records

MUTANTS = 300 if QUICK else 2000 * STORM  # of a kind
USED = 40
INTEGERS = [-1, 2**31, 2**62, 10**9, 0, 1]
TOKENS = ["", "-", "9", "[", "]", '"', "null", ",", "1e9", "{}", "1e999", "NaN", "-1", "true", "[[[", "99999999999999"]


def mutants(good: bytes, text: bool = False):
    """So many changed copies, those of the run's seed."""
    dice = random.Random(SEED)
    for _ in range(MUTANTS):
        content = bytearray(good)
        for _ in range(dice.randint(1, 2 if text else 4)):
            at = dice.randrange(len(content))
            kind = dice.randrange(5 if text else 4)
            if kind == 0:
                content[at] = dice.randrange(256)
            elif kind == 1 and not text:
                content[at : at + 8] = struct.pack("<q", dice.choice(INTEGERS))
            elif kind == 2:
                del content[at : at + dice.randint(1, 40)]
            elif kind == 3:
                content[at:at] = dice.randbytes(dice.randint(1, 20))
            else:
                content[at : at + dice.randint(0, 3)] = dice.choice(TOKENS).encode()
            content = content or bytearray(b"\0")
        yield bytes(content)


# ---------------------------------------------------------------- networks


def network() -> onnx.ModelProto:
    """A small ONNX network of operators that take attributes, sizes and indices: float32 (1, 2, 8, 8) to (1, 3)."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 2, 3, 3)).astype("float32"),
        "b": rng.normal(size=4).astype("float32"),
        "shape": np.array([1, -1], "int64"),
        "dense": rng.normal(size=(64, 5)).astype("float32"),
        "which": np.array([0, 2, -1], "int64"),
        "pads": np.array([0, 1, 0, 0], "int64"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "dense"], ["d"]),
        helper.make_node("Pad", ["d", "pads"], ["e"]),
        helper.make_node("Gather", ["e", "which"], ["g"], axis=1),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, 8, 8]), ("y", [1, 3]))
    ]
    graph = helper.make_graph(
        nodes, "net", ends[:1], ends[1:], [numpy_helper.from_array(array, name) for name, array in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_onnxruntime(content: bytes, x: np.ndarray):
    """ONNX Runtime's first result, or None where it refuses the network."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]
    except Exception:
        return None


@pytest.mark.storm
def test_onnx(tmp_path, rng):
    """What ONNX Runtime runs too has its results."""
    path, read = tmp_path / "net.onnx", 0
    equal = 0
    x = rng.normal(size=(1, 2, 8, 8)).astype("float32")
    for content in mutants(network().SerializeToString()):
        path.write_bytes(content)
        try:
            mod, params = tvmfast.from_onnx(path)
        except (ValueError, IndexError, NotImplementedError, FileNotFoundError) as error:
            assert len(str(error)) > 20, error
            continue
        read += 1
        if read % USED != 1:
            continue
        lib = tvmfast.build(mod, params, opt_level=0)
        if [spec.shape for spec in lib.inputs] == [x.shape] and (wanted := by_onnxruntime(content, x)) is not None:
            close(lib(x), wanted, terms_of(params), rounded=True)
            equal += 1
    assert read > MUTANTS / 20 and equal > read // USED / 4


@pytest.mark.storm
def test_symbols():
    """Those of files, as JSON, on their way to Relax."""
    nodes = [{"op": "null", "name": name, "inputs": []} for name in ("x", "w")]
    nodes += [
        {
            "op": "FullyConnected",
            "name": "dense",
            "attrs": {"num_hidden": "4", "no_bias": "True"},
            "inputs": [[0, 0, 0], [1, 0, 0]],
        },
        {"op": "SliceChannel", "name": "halves", "attrs": {"num_outputs": "2", "axis": "1"}, "inputs": [[2, 0, 0]]},
        {"op": "Activation", "name": "y", "attrs": {"act_type": "relu"}, "inputs": [[3, 1, 0]]},
    ]
    symbol = json.dumps({"nodes": nodes, "arg_nodes": [0, 1], "heads": [[4, 0, 0]]})
    weight, read = np.ones((4, 3), "float32"), 0
    for content in mutants(symbol.encode(), text=True):
        text = "{" + content.decode(errors="replace")[1:]  # else it is the name of a file
        try:
            tvmfast.from_mxnet(text, {"w": weight}, {"x": (1, 3)})
            read += 1
        except (ValueError, NotImplementedError) as error:
            assert len(str(error)) > 20, error
    assert read


# ---------------------------------------------------------------- records and manifests


def check(lib, small):
    close(lib(small.x), small.exact)


@pytest.mark.storm
def test_records(small, tmp_path):
    lines, path = [], tmp_path / "tuning.jsonl"
    for task in tuning.tasks(small.mod, small.params):
        for n, config in enumerate(task.space[:3]):
            lines.append(str(records.new_record(task.workload, task.target, config, (1e-3 / (n + 1),))))
    used = 0
    for n, content in enumerate(mutants("\n".join(lines).encode(), text=True)):
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = records.read(path)
            except ValueError as error:
                assert "line " in str(error)
                continue
            if n % USED == 0:
                check(tvmfast.build(small.mod, small.params, records=found), small)
                used += bool(found)
    assert used


@pytest.mark.storm
def test_manifests(small, lib, tmp_path):
    saved = lib.save(tmp_path / "net")
    path, loaded = saved / "manifest.json", 0
    for content in mutants(path.read_bytes(), text=True):
        path.write_bytes(content)
        try:
            again = tvmfast.load(saved)
        except (ValueError, RuntimeError, FileNotFoundError) as error:
            assert "net" in str(error)
            continue
        loaded += 1
        repr(again)
        try:
            assert again.target.kind.name == "llvm"
        except ValueError as error:
            assert str(error)
        check(again, small)
    assert loaded > 0
    shutil.rmtree(saved)
