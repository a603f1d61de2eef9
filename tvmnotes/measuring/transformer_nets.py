"""Networks of sequences for the benchmark, with seeded weights: an LSTM, and transformers.

Those are made by the package transformers, where it is installed.
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ..course import models

_WHISPER_TINY = {
    **{"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536},
    **{"decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536},
}
# The kind of the configuration and its fields, the class that makes the network, the part of it that is used,
# the name of the input, and the shape of that.
NETWORKS = {
    "bert_base": ("bert", {}, "AutoModel", "", "input_ids", (1, 128)),
    "bert_base_512": ("bert", {}, "AutoModel", "", "input_ids", (1, 512)),
    "gpt2": ("gpt2", {"use_cache": False}, "AutoModelForCausalLM", "", "input_ids", (1, 128)),
    "whisper_tiny_encoder": (
        *("whisper", _WHISPER_TINY, "AutoModel", "encoder"),
        *("input_features", (1, 80, 3000)),
    ),
}
LSTM = "lstm_256"  # 32 steps of 256 units


class _Lstm(nn.Module):
    def __init__(self):
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


def require(name: str) -> None:
    """Raise ValueError if the package that makes the network is not installed."""
    if name != LSTM and find_spec("transformers") is None:
        raise ValueError(
            f"{name} is made by the package transformers, which is not installed: pip install transformers"
        )


def load(name: str) -> nn.Module:
    """Make a network of NETWORKS, or the LSTM, in evaluation mode.

    Returns:
        A module with the attributes `weights_kind`, "seeded", and `input_shape`, the shape of its only input.
        If it reads tokens, int64, their number is the attribute `vocabulary`; else the input is float32.
    """
    if name == LSTM:
        net = models.seeded(_Lstm, 0, calibrate=False)
        net.weights_kind, net.input_shape = "seeded", (1, 32, 256)
        return net
    import transformers  # for speed: only where one of its networks is measured

    kind, fields, task, part, field, shape = NETWORKS[name]
    config = transformers.AutoConfig.for_model(kind, **fields)

    def make():
        whole = getattr(transformers, task).from_config(config)
        return _FirstResult(getattr(whole, part) if part else whole, field)

    net = models.seeded(make, 0, calibrate=False)
    net.weights_kind, net.input_shape = "seeded", shape
    if field == "input_ids":
        net.vocabulary = config.vocab_size
    return net
