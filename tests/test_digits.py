"""The digit network in data/digits: its accuracy, its two files held together, where its images come from."""

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from agreement import close, reference, terms_of
from testing import imported

import tvmnotes as tn
from tvmnotes.digits import ResNet20, load_test_set, preprocess

FOLDER = Path(__file__).parents[1] / "data" / "digits"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """data/digits/train.py as a module; importing it trains nothing."""
    return imported(FOLDER / "train.py")


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """What the shipped weights say in PyTorch about the shipped images: float32 (360, 10)."""
    net = ResNet20().eval()
    net.load_state_dict(torch.load(FOLDER / "digits_resnet20.pt", weights_only=True))
    with torch.no_grad():
        return net(torch.from_numpy(preprocess(load_test_set()[0]))).numpy()


def test_parameters():
    assert sum(p.numel() for p in ResNet20().parameters()) == 272_186


def test_the_answers_are_right(logits):
    _, labels = load_test_set()
    assert logits.shape == (360, 10)
    assert (logits.argmax(1) == labels).mean() >= 0.98


def test_the_answers_in_bfloat16_are_the_same(logits):
    x = preprocess(load_test_set()[0])
    mod, params = tn.from_pytorch(tn.models.load("digits"), {"image": (60, 1, 32, 32)})
    lib = tn.build(mod, params, dtype="bfloat16")
    answers = np.concatenate([lib(x[start : start + 60]) for start in range(0, 360, 60)]).argmax(1)
    assert (answers == logits.argmax(1)).sum() >= 359


def test_onnx_agrees_with_torch_on_every_picture(logits):
    path = FOLDER / "digits_resnet20.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version >= 17
    assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in model.graph.initializer)

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (image,), (output,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.shape, image.type) == ("image", ["N", 1, 32, 32], "tensor(float)")
    assert (output.name, output.shape) == ("logits", ["N", 10])

    inputs = preprocess(load_test_set()[0])
    (all_at_once,) = session.run(None, {"image": inputs})
    (one,) = session.run(None, {"image": inputs[:1]})
    terms = terms_of(ResNet20().state_dict())
    close(all_at_once, logits, terms, rounded=True)
    close(one, logits[:1], terms, rounded=True)
    assert (all_at_once.argmax(1) == logits.argmax(1)).all()


def test_test_set():
    images, labels = load_test_set()
    assert (images.shape, images.dtype) == ((360, 32, 32), np.uint8)
    assert (labels.shape, labels.dtype) == ((360,), np.int64)


def test_the_script_makes_the_shipped_test_set(script):
    images, labels = script.load_images()
    training, held_out = script.split(labels)
    assert sorted([*training, *held_out]) == list(range(1797))
    assert abs(np.bincount(labels[held_out]) - np.bincount(labels) / 5).max() < 1

    shipped_images, shipped_labels = load_test_set()
    np.testing.assert_array_equal(images[held_out], shipped_images)
    np.testing.assert_array_equal(labels[held_out], shipped_labels)


def test_training_inputs_are_normalized(script):
    images, labels = script.load_images()
    inputs = preprocess(images[script.split(labels)[0]])
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3


def test_preprocess():
    images, _ = load_test_set()
    inputs = preprocess(images)
    assert (inputs.shape, inputs.dtype) == ((360, 1, 32, 32), np.float32)
    np.testing.assert_array_equal(preprocess(images.astype("float64")), inputs)
    with pytest.raises(ValueError, match=r"expected shape \(N, 32, 32\), got \(32, 32\)"):
        preprocess(images[0])


@pytest.mark.parametrize(
    ("name", "limit"), [("digits_resnet20.pt", 2_000_000), ("digits_resnet20.onnx", 2_000_000), ("test.npz", 500_000)]
)
def test_size(name, limit):
    assert (FOLDER / name).stat().st_size < limit


# ---------------------------------------------------------------- as MXNet saves it

CHECKPOINT = tuple(tn.data.path(f"mxnet/digits_resnet20-{part}") for part in ("symbol.json", "0000.params"))


def test_the_bundled_checkpoint_reads_digits_without_mxnet(python):
    """In a process that cannot import mxnet, torch or onnx."""
    symbol, params = CHECKPOINT
    code = f"""
import sys
for name in ("mxnet", "gluoncv", "torch", "onnx"):
    sys.modules[name] = None
import numpy as np, tvmnotes as tn
mod, params = tn.from_mxnet({str(symbol)!r}, {str(params)!r}, {{"data": (4, 1, 32, 32)}})
x = np.load({str(tn.data.path("digits/test.npz"))!r})
images = ((x["images"][:4, None].astype("float32") / 255 - 0.3057) / 0.3238).astype("float32")
print(tn.build(mod, params)(images).argmax(1).tolist() == x["labels"][:4].tolist())
"""
    assert python(code) == "True"


def test_the_bundled_checkpoint_gives_pytorchs_probabilities():
    images, _ = load_test_set()
    x = preprocess(images[:4])  # of the shape above, for which there is code by now
    output = tn.build(*tn.from_mxnet(*CHECKPOINT, {"data": x.shape}))(x)
    close(output, reference(torch.nn.Sequential(tn.models.load("digits"), torch.nn.Softmax(1)), x))
