"""Scripts like those of the old tutorials of TVM, run whole: `python -m tvmclassic SCRIPT` in a process of its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from agreement import close, reference

SCRIPTS = Path(__file__).parent / "classic_scripts"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's empty home."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run(script, tmp_path):
    """Run a script, which writes arrays; return the lines that it prints, and the arrays."""

    def run(name, *args):
        done = script(SCRIPTS / f"{name}.py", *args, tmp_path / "out.npz", fork=True)
        return done.stdout.splitlines(), dict(np.load(tmp_path / "out.npz"))

    return run


def softmax(x: np.ndarray) -> np.ndarray:
    exact = np.exp(x - x.max(-1, keepdims=True))
    return exact / exact.sum(-1, keepdims=True)


def test_batches_of_any_size_in_the_virtual_machine(run):
    lines, out = run("vm_dynamic_batch")
    assert lines[0].startswith("def @classify(%x: Tensor[(?, 16), float32], %out: Tensor[(4, 16), float32]")
    hidden, classify = out["hidden"].astype("float64"), out["out"].astype("float64")
    for line, (batch, count) in zip(lines[1:5], ((1, 0), (3, 2), (1, 3), (3, 0)), strict=True):
        state = out[f"x_{batch}_{count}"].astype("float64")
        for _ in range(count):
            state = np.tanh(state @ hidden.T)
        wanted = softmax((state if count else state / 2) @ classify.T)
        close(out[f"y_{batch}_{count}"], wanted, (count + 1) * 24 + 8, scale=8)
        assert line == f"batch {batch} steps {count} scores {wanted.shape}"
    assert lines[5] == "refused: input 'data': expected Tensor[(?, 16), float32], got Tensor[(2, 8), float32]"


def test_a_network_that_pytorch_has_quantized(run):
    lines, out = run("prequantized_pytorch")
    assert lines[0] == "weights of int8: 4"
    steps = np.abs(out["tvm"].astype("float64") - out["pytorch"]) / out["scale"]
    assert len(np.unique(out["pytorch"])) > 10, "the results say something"
    assert steps.max() <= 1.001 and (steps < 0.01).mean() >= 0.8
    assert lines[1].endswith(" in 40 raw floats correct.")


def test_passes_and_what_instruments_hear_of_them(run):
    lines, out = run("pass_infrastructure")
    assert lines == [
        "as written: nn.conv2d nn.batch_norm add multiply add add add nn.relu",
        "2 additions: 6",
        "3 additions: 5",
        "3 ['EliminateCommonSubexpr'] additions: 6",
        "constants multiplied: 2",
        "heard: FoldConstant 9->6",
        "timed FoldConstant: True and a build: True",
    ]
    arrays = {name: torch.from_numpy(array).double() for name, array in out.items()}
    x = torch.nn.functional.conv2d(arrays["x"], arrays["weight"])
    norm = [arrays[name] for name in ("mean", "var", "gamma", "beta")]
    normed = torch.nn.functional.batch_norm(x, *norm)
    wanted = torch.relu(2 * (normed + 6.0 * (6 + 6))).numpy()
    close(out["result"], wanted, 27 + 8)


def test_pruned_layers_as_sparse_matrices(run):
    lines, out = run("sparse_layers")
    assert lines[-1] == "result (5, 10)" and [line.split(",")[1] for line in lines[:3]] == [
        " blocks of (4", " blocks of (8", " blocks of (1"
    ]  # fmt: skip
    wanted = out["x"].astype("float64")
    for n in range(3):
        matrix = out[f"matrix{n}"].astype("float64")
        assert 0.1 < (matrix != 0).mean() < 0.6
        wanted = np.maximum(wanted @ matrix.T, 0) if n < 2 else wanted @ matrix.T
    close(out["y"], wanted, 32 + 24 + 16)


def test_the_driver_in_python(run, tmp_path):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    ).eval()
    options = {"input_names": ["image"], "dynamo": False}
    torch.onnx.export(net, torch.zeros(1, 1, 32, 32), str(tmp_path / "net.onnx"), **options)
    lines, out = run("tvmc_in_python", tmp_path / "net.onnx")
    assert lines[0].startswith("def @main(%image: Tensor[(1, 1, 32, 32), float32]")
    assert lines[1:] == ["Execution time summary:", "outputs: output_0"]
    close(out["scores"], reference(net, out["x"]))
