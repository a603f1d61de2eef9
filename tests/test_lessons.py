"""What the notebooks claim, asserted: the lessons show numbers, this file holds them.

Float32 results are held to 1e-5 of the output's largest magnitude, as the lessons say.
"""

import numpy as np
import onnxruntime
import pytest
import torch

import tvmnotes as tn
from tvmnotes import digits


def agree(result, reference, tolerance=1e-5):
    return np.abs(result - reference).max() <= tolerance * np.abs(reference).max()


@pytest.fixture(scope="module")
def pictures():
    images, labels = digits.load_test_set()
    return digits.preprocess(images), labels


def test_00_and_01_every_digit_is_read_as_pytorch_reads_it(pictures):
    batch, labels = pictures
    net = tn.models.load("digits")
    lib = tn.build(*tn.from_pytorch(net, {"image": batch.shape}))
    with torch.inference_mode():
        reference = net(torch.from_numpy(batch)).numpy()
    result = lib(batch)
    assert agree(result, reference)
    assert (result.argmax(axis=1) == reference.argmax(axis=1)).all()
    assert (result.argmax(axis=1) == labels).mean() >= 0.98


@pytest.mark.parametrize("batch_size", [1, 36])
def test_02_digits_are_read_as_onnxruntime_reads_them(pictures, batch_size):
    batch = pictures[0][:batch_size]
    file, kind = tn.models.onnx_file("digits")
    lib = tn.build(*tn.from_onnx(file, {"image": batch.shape}))
    reference = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"image": batch})[0]
    assert kind == "pretrained"
    assert agree(lib(batch), reference)
    assert (lib(batch).argmax(axis=1) == reference.argmax(axis=1)).all()


def test_01_resnet18_gives_pytorch_numbers_and_classes_on_the_picture():
    net = tn.models.load("resnet18")
    x = tn.vision.preprocess(tn.vision.open_picture())
    with torch.inference_mode():
        reference = net(torch.from_numpy(x)).numpy()
    result = tn.build(*tn.from_pytorch(net, {"input0": x.shape}))(input0=x)
    assert agree(result, reference)
    tables = [tn.vision.top_k(y, classes=net.classes)["class"].tolist() for y in (result, reference)]
    assert tables[0] == tables[1]


def test_01_traced_scripted_and_exported_modules_hold_the_same_convolutions():
    net = tn.models.load("resnet18", pretrained=False)
    x = torch.zeros(1, 3, 64, 64)
    roads = [net, torch.jit.trace(net, x), torch.jit.script(net), torch.export.export(net, (x,))]
    imported = [tn.from_pytorch(road, {"input0": tuple(x.shape)}) for road in roads]
    assert {str(mod["main"].script(show_meta=False)).count("R.nn.conv2d(") for mod, _ in imported} == {20}
    assert {frozenset(params) for _, params in imported} == {frozenset(imported[0][1])}


def test_02_resnet50_v2_gives_onnxruntime_numbers_and_classes_on_the_picture():
    resnet50_v2, _ = tn.models.onnx_file("resnet50_v2")
    x = tn.vision.preprocess(tn.vision.open_picture())
    result = tn.build(*tn.from_onnx(resnet50_v2, {"data": x.shape}))(data=x)
    session = onnxruntime.InferenceSession(resnet50_v2, providers=["CPUExecutionProvider"])
    reference = session.run(None, {"data": x})[0]
    assert agree(result, reference)
    assert (np.argsort(result[0])[::-1][:5] == np.argsort(reference[0])[::-1][:5]).all()
