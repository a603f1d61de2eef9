"""Networks by name, with seeded weights: torchvision's classifiers, an LSTM, and transformers.

Those are made by the package transformers, where it is installed. Seeded weights are random but fixed, and
the statistics of batch norm come from one fixed batch, so that the activations are as large as a trained
network's and folding batch norm has something to fold.
"""

import difflib
import functools
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

SEED = 20170812
_WHISPER_TINY = {
    **{"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536},
    **{"decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536},
}
# The kind of the configuration and its fields, the class that makes the network, the part of it that is used,
# the name of the input, and the shape of that.
TRANSFORMERS: dict[str, tuple[str, dict, str, str, str, tuple[int, ...]]] = {
    "bert_base": ("bert", {}, "AutoModel", "", "input_ids", (1, 128)),
    "bert_base_512": ("bert", {}, "AutoModel", "", "input_ids", (1, 512)),
    "gpt2": ("gpt2", {"use_cache": False}, "AutoModelForCausalLM", "", "input_ids", (1, 128)),
    "whisper_tiny_encoder": (
        *("whisper", _WHISPER_TINY, "AutoModel", "encoder"),
        *("input_features", (1, 80, 3000)),
    ),
}
LSTM = "lstm_256"  # 32 steps of 256 units
SEQUENCES = (*TRANSFORMERS, LSTM)


@functools.cache
def names() -> tuple[str, ...]:
    """List the networks of pictures: torchvision's classifiers."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


def load(name: str) -> nn.Module:
    """Make a network of `names()` or `SEQUENCES`, in evaluation mode.

    Returns:
        A module with the attributes `weights_kind`, "seeded", and `input_shape`, the shape of its only input.
        If it reads tokens, int64, their number is the attribute `vocabulary`; else the input is float32.

    Raises:
        ValueError: The name is unknown; the message offers near ones.
    """
    if name in SEQUENCES:
        return _sequence(name)
    require_pictures(name)
    return classifier(name)


def require_pictures(name: str) -> None:
    """Raise ValueError unless `load` knows the name, and the network's input is pictures."""
    require_known(name, names(), "networks.names()")


def require_known(name: str, known: Sequence[str], listing: str) -> None:
    """Raise ValueError, with near names and what lists all, unless a name is known."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        raise ValueError(f"unknown model {name!r}; near names: {', '.join(near)}. {listing} lists all.")


def require_installed(name: str) -> None:
    """Raise ValueError if the package that makes a network of `SEQUENCES` is not installed."""
    if name != LSTM and find_spec("transformers") is None:
        raise ValueError(
            f"{name} is made by the package transformers, which is not installed: pip install transformers"
        )


def seeded(make: Callable, size: int, calibrate: bool = True) -> nn.Module:
    """Return the network of `make()` with fixed random weights, in evaluation mode.

    No weight matrix is all zeros. With `calibrate`, each batch norm's mean and variance are those of a fixed
    random batch (2, 3, size, size). The caller's random state is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        net = make()
        net.eval()
        for weight in net.parameters():
            if weight.ndim > 1 and not weight.any():  # a head that starts at zero, as in vision transformers
                nn.init.trunc_normal_(weight, std=0.02)
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)] if calibrate else []
        momentum = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative average, here of one batch
            norm.train()
        if norms:
            with torch.no_grad():
                net(torch.randn(2, 3, size, size))
        for norm, m in zip(norms, momentum, strict=True):
            norm.momentum = m
    return net.eval()


def classifier(name: str, calibrate: bool = True) -> nn.Module:
    """Make a classifier of torchvision's as `load` does; without `calibrate`, for weights that come after."""
    size = torchvision.models.get_model_weights(name).DEFAULT.transforms.keywords["crop_size"]
    with warnings.catch_warnings():
        # From googlenet and inception_v3, whose initialization takes a while.
        warnings.filterwarnings("ignore", message=".*initialization.*")
        # Vision transformers learn the positions of an image of one size.
        options = {"image_size": size} if name.startswith("vit_") else {}
        net = seeded(lambda: torchvision.models.get_model(name, weights=None, **options), size, calibrate)
    net.weights_kind, net.input_shape = "seeded", (1, 3, size, size)
    return net


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the results of all steps."""
        return self.lstm(x)[0]


class _FirstResult(nn.Module):
    """A network of transformers as a function of one tensor that returns one."""

    def __init__(self, net: nn.Module, name: str):
        super().__init__()
        self.net, self.name = net, name

    def forward(self, x: Tensor) -> Tensor:
        """Compute the first result."""
        mask = {} if x.is_floating_point() else {"attention_mask": torch.ones_like(x)}
        return self.net(**{self.name: x}, **mask, return_dict=False)[0]


def _sequence(name: str) -> nn.Module:
    if name == LSTM:
        net = seeded(_Lstm, 0, calibrate=False)
        net.weights_kind, net.input_shape = "seeded", (1, 32, 256)
        return net
    import transformers  # for speed: only where one of its networks is measured

    kind, fields, task, part, field, shape = TRANSFORMERS[name]
    config = transformers.AutoConfig.for_model(kind, **fields)

    def make() -> nn.Module:
        whole = getattr(transformers, task).from_config(config)
        return _FirstResult(getattr(whole, part) if part else whole, field)

    net = seeded(make, 0, calibrate=False)
    net.weights_kind, net.input_shape = "seeded", shape
    if field == "input_ids":
        net.vocabulary = config.vocab_size
    return net


def export_onnx(
    net: nn.Module, file: Path, shape: tuple[int, ...] = (1, 3, 224, 224), dtype: torch.dtype = torch.float32
) -> None:
    """Write `net` to an ONNX file, for `shape` and `dtype`: opset 17, input "data", symbolic batch size N."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own notices about this exporter
        torch.onnx.export(
            net,
            (torch.zeros(shape, dtype=dtype),),
            str(file),
            opset_version=17,
            input_names=["data"],
            output_names=["logits"],
            dynamic_axes={"data": {0: "N"}, "logits": {0: "N"}},
            dynamo=False,  # the other exporter needs onnxscript
        )
