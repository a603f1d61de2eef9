"""Networks by name, with seeded weights: torchvision's classifiers, transformers, an LSTM, an MLP, a decoder.

Transformers are made by the package of that name, where it is installed. The decoder is GPT-2 as it writes a
text, a token at a time. Seeded weights are random but fixed, and the statistics of batch norm come from one
fixed batch, so that the activations are as large as a trained network's and folding batch norm has something
to fold.
"""

import difflib
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.specs import parse_inputs

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
# GPT-2, and a small one, a token at a time: layers, width, heads, tokens that it knows, rows of its cache.
DECODERS: dict[str, tuple[int, int, int, int, int]] = {
    "gpt2_step": (12, 768, 12, 50257, 128),
    "tiny_gpt2_step": (4, 192, 6, 1024, 128),
}
LSTM = "lstm_256"  # 32 steps of 256 units
MLP = "mlp_64"  # three layers of 64 units, for a single row
OTHERS = (*TRANSFORMERS, *DECODERS, LSTM, MLP)  # than networks of pictures


@functools.cache
def names() -> tuple[str, ...]:
    """List the networks of pictures: torchvision's classifiers."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


def load(name: str) -> nn.Module:
    """Make a network of `names()` or `OTHERS`, in evaluation mode.

    Returns:
        A module with the attributes `weights_kind`, "seeded", and `input_shape`, the shape of its only input.
        If it reads tokens, int64, their number is the attribute `vocabulary`; else the input is float32.
        Those of `DECODERS` also read a position and caches: see `Decoding`.

    Raises:
        ValueError: The name is unknown; the message offers near ones.
    """
    if name in OTHERS:
        return _other(name)
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
    """Raise ValueError if the package that makes a network of `OTHERS` is not installed."""
    if name in TRANSFORMERS and find_spec("transformers") is None:
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


class Decoding(nn.Module):
    """A step of GPT-2: the logits after a token, from a cache of the keys and values of those before it.

    A. Radford and others, "Language Models are Unsupervised Multitask Learners", 2019.

    Attributes:
        inputs: For `from_pytorch`: the inputs' shapes and dtypes, by name.
        state: For `build`: the inputs that come from an output of the call before.
    """

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, rows: int):
        super().__init__()
        self.heads, self.vocabulary = heads, vocabulary
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(rows, width)
        self.blocks = nn.ModuleList(self._block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("rows", torch.arange(rows), persistent=False)
        cache = layers, 1, heads, rows, width // heads
        indices = {"data": ((1, 1), "int64"), "position": ((1,), "int64")}
        self.inputs = indices | {"keys": (cache, "float32"), "values": (cache, "float32")}
        self.state = {"keys": "output1", "values": "output2"}

    @staticmethod
    def _block(width: int) -> nn.ModuleList:
        hidden = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        qkv = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width))
        return nn.ModuleList([qkv, nn.Linear(width, width), nn.Sequential(nn.LayerNorm(width), *hidden)])

    def forward(self, data: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Compute the logits, (1, 1, V), and both caches with the row of this position written."""
        x, past, added = self.embed(data) + self.places(position), self.rows < position, []
        for (qkv, out, hidden), own_keys, own_values in zip(self.blocks, keys, values, strict=True):
            q, k, v = qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
            scores = (q @ own_keys.transpose(-2, -1)).masked_fill(~past, -math.inf)
            weights = (torch.cat([scores, q @ k.transpose(-2, -1)], -1) / math.sqrt(q.shape[-1])).softmax(-1)
            y = weights[..., :-1] @ own_values + weights[..., -1:] * v
            x = x + out(y.transpose(1, 2).flatten(2))
            x = x + hidden(x)
            added.append((k, v))
        new_keys, new_values = (torch.stack(each) for each in zip(*added, strict=True))
        logits = F.linear(self.norm(x), self.embed.weight)
        return logits, keys.index_copy(3, position, new_keys), values.index_copy(3, position, new_values)


def arguments(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Return what the first call of a network gets: `x`; with `state_of` position 0 and its caches too."""
    known = caches(net)
    return (x, torch.zeros(1, dtype=torch.int64), *known) if known else (x,)


def state_of(net: nn.Module) -> dict[str, str]:
    """Return the `state` of a network that has `inputs` beside it, such as `Decoding`; of others nothing."""
    state = getattr(net, "state", None)
    return state if isinstance(state, dict) and hasattr(net, "inputs") else {}


def caches(net: nn.Module) -> list[Tensor]:
    """Return the state before the first call, zeros, of a network with `state_of`; else nothing."""
    state = state_of(net)
    specs = parse_inputs(net.inputs) if state else []
    return [torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs if spec.name in state]


class _FirstResult(nn.Module):
    """A network of transformers as a function of one tensor that returns one."""

    def __init__(self, net: nn.Module, name: str):
        super().__init__()
        self.net, self.name = net, name

    def forward(self, x: Tensor) -> Tensor:
        """Compute the first result."""
        mask = {} if x.is_floating_point() else {"attention_mask": torch.ones_like(x)}
        return self.net(**{self.name: x}, **mask, return_dict=False)[0]


def _mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())))


def _other(name: str) -> nn.Module:
    own: dict[str, tuple[Callable, tuple[int, ...]]] = {LSTM: (_Lstm, (1, 32, 256)), MLP: (_mlp, (1, 64))}
    own |= {each: (functools.partial(Decoding, *sizes), (1, 1)) for each, sizes in DECODERS.items()}
    if name in own:
        make, shape = own[name]
        net = seeded(make, 0, calibrate=False)
        net.weights_kind, net.input_shape = "seeded", shape
        return net
    import transformers  # for speed: only where one of its networks is measured

    kind, fields, task, part, field, shape = TRANSFORMERS[name]
    config = transformers.AutoConfig.for_model(kind, **fields)

    def part_of() -> nn.Module:
        whole = getattr(transformers, task).from_config(config)
        return _FirstResult(getattr(whole, part) if part else whole, field)

    net = seeded(part_of, 0, calibrate=False)
    net.weights_kind, net.input_shape = "seeded", shape
    if field == "input_ids":
        net.vocabulary = config.vocab_size
    return net


def export_onnx(
    net: nn.Module, file: Path, shape: tuple[int, ...] = (1, 3, 224, 224), dtype: torch.dtype = torch.float32
) -> None:
    """Write `net` to an ONNX file, for `shape` and `dtype`: opset 17, input "data", symbolic batch size N.

    A network with `state_of` has the inputs "data", "position" and those of its state, and for each
    of these an output, with "_next" after the name; all sizes are fixed.
    """
    state = [*state_of(net)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own notices about this exporter
        torch.onnx.export(
            net,
            arguments(net, torch.zeros(shape, dtype=dtype)),
            str(file),
            opset_version=17,
            input_names=["data", "position", *state] if state else ["data"],
            output_names=["logits", *(f"{name}_next" for name in state)],
            dynamic_axes=None if state else {"data": {0: "N"}, "logits": {0: "N"}},
            dynamo=False,  # the other exporter needs onnxscript
        )
