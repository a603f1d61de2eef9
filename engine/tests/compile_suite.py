"""Networks through `torch.compile(net, backend="tvmfast")`, called as users call them: eager PyTorch's results.

`python engine/tests/compile_suite.py [names]` prints a line for each: whether all is well, how many graphs each call
compiled, the seconds, and the largest difference, relative to the largest magnitude in a tensor. All is well if
rounding explains that, no graph is left to PyTorch, the first call compiles some, and a call compiles some if and only
if its sizes are new. The results are compared whole: their classes, numbers, and tensors with their strides, caches
included.
"""

import contextlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import test_networks
import torch
import torchvision
import transformers
from agreement import close, terms_of
from test_transformers import network
from torch import nn
from torch.utils import _pytree as pytree

from tvmfast.backends.torch_compile import backend
from tvmfast.profiling import networks

NOTICE, LEFT = "tvmfast: compiled a graph", "tvmfast leaves a graph to PyTorch"


class Case(NamedTuple):
    """A network, the calls of it, and what `torch.compile` is given."""

    net: nn.Module
    calls: list[tuple[tuple, dict]]  # the arguments by position and by keyword
    dynamic: bool | None = None


def of_torchvision(name: str) -> Case:
    size = test_networks.NETWORKS[name]
    net = test_networks.network(name, size, short=False)
    return Case(net, [((torch.randn(1, 3, size, size),), {}) for _ in range(2)])


def of_segmentation() -> Case:
    make = partial(torchvision.models.segmentation.lraspp_mobilenet_v3_large, weights=None, weights_backbone=None)
    return Case(networks.seeded(make, 64), [((torch.randn(1, 3, 64, 64),), {}) for _ in range(2)])


def of_detection() -> Case:
    make = partial(torchvision.models.detection.ssdlite320_mobilenet_v3_large, weights=None, weights_backbone=None)
    net = networks.seeded(make, 320, calibrate=False)
    return Case(net, [(([torch.rand(3, 96, 128)],), {}) for _ in range(2)])


def of_transformers(name: str) -> Case:
    """With keywords in and the whole result out, the cache included."""
    wrapped, inputs = network(name, "sdpa")
    wrapped.net.config.use_cache = True
    first = dict(zip(wrapped.names, inputs, strict=True))
    return Case(wrapped.net, [((), first), ((), {key: value.flip(0) for key, value in first.items()})])


def of_lstm() -> Case:
    net = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True).eval()
    state = torch.randn(4, 3, 8), torch.randn(4, 3, 8)
    calls = [((torch.randn(3, 5, 6),), {}), ((torch.randn(3, 5, 6), state), {})]
    return Case(net, [*calls, *calls])


class Breaks(nn.Module):
    """A network that prints, and whose path depends on its values."""

    def __init__(self):
        super().__init__()
        self.first, self.small, self.large = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        print("rows:", len(x), file=sys.stderr)
        self.path = "large" if x.sum() > 100 else "small"
        if self.path == "large":
            return self.large(x).softmax(-1)
        return self.small(x).tanh()


def of_breaks() -> Case:
    x = torch.rand(5, 6)
    return Case(networks.seeded(Breaks, 6), [((scale * x,), {}) for scale in (1, 1000, 1, 1000)])


class Mixer(nn.Module):
    """A convolution, attention and a mean, for any batch."""

    def __init__(self):
        super().__init__()
        self.stem, self.attention = nn.Conv2d(3, 16, 4, 4), nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(x).mean(1)), x.shape[0] * x.shape[1]


def of_open_batch() -> Case:
    calls = [((torch.randn(n, 3, 16, 16),), {}) for n in (2, 3, 5, 3)]
    return Case(networks.seeded(Mixer, 16), calls, dynamic=True)


NETWORKS: dict[str, Callable[[], Case]] = {
    **{
        name: partial(of_torchvision, name)
        for name in (
            "resnet18", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0",
            "regnet_y_400mf", "swin_t", "vit_b_16", "convnext_tiny", "googlenet",
        )
    },
    "lraspp_mobilenet_v3_large": of_segmentation,
    "ssdlite320_mobilenet_v3_large": of_detection,
    **{
        name: partial(of_transformers, name)
        for name in ("bert", "gpt2", "llama", "qwen2", "whisper", "t5", "modernbert")
    },
    "LSTM": of_lstm,
    "graph breaks": of_breaks,
    "open batch": of_open_batch,
}  # fmt: skip


def leaves(value) -> list:
    """Return the tensors and numbers in a result, whose classes come before their fields."""
    if isinstance(value, torch.Tensor | int | float | bool | str | type(None)):
        return [value]
    if isinstance(value, Mapping):
        return [type(value), *value, *(leaf for each in value.values() for leaf in leaves(each))]
    if isinstance(value, list | tuple):
        return [type(value), *(leaf for each in value for leaf in leaves(each))]
    return [type(value), *(leaves(vars(value)) if hasattr(value, "__dict__") else [])]


def difference(got, want, terms: int) -> float:
    """Hold two results together; return their largest difference, relative to the largest magnitude of a tensor."""
    largest = 0.0
    for a, b in zip(leaves(got), leaves(want), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b, f"expected {b!r}, got {a!r}"
            continue
        form, wanted = [(each.dtype, each.shape, each.stride()) for each in (a, b)]
        assert form == wanted, f"expected {wanted}, got {form}"
        close(a, b, terms, rounded=True)
        if b.numel():
            a, b = a.double(), b.double()
            largest = max(largest, ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item())
    return largest


def outcome(case: Case) -> tuple[float, list[int]]:
    """Call a network with and without tvmfast: return the largest difference, and the graphs that calls compiled."""
    torch._dynamo.reset()
    fast = torch.compile(case.net, backend=backend, dynamic=case.dynamic)
    largest, compiled, known, terms = 0.0, [], [], terms_of(case.net.state_dict())
    for args, given in case.calls:
        shown = io.StringIO()
        with torch.no_grad(), contextlib.redirect_stderr(shown), warnings.catch_warnings():
            warnings.filterwarnings("error", LEFT)
            got = fast(*args, **given)
            largest = max(largest, difference(got, case.net(*args, **given), terms))
        compiled.append(shown.getvalue().count(NOTICE))
        sizes = [leaf.shape for leaf in pytree.tree_leaves((args, given))]
        path = getattr(case.net, "path", None)  # of a network that has several
        assert (compiled[-1] > 0) == ((sizes, path) not in known), f"graphs compiled by the calls: {compiled}"
        known.append((sizes, path))
    return largest, compiled


def main(names: list[str]) -> None:
    failed = 0
    torch._dynamo.config.allow_rnn = True  # else Dynamo leaves an LSTM to PyTorch, and calls no backend
    transformers.logging.set_verbosity_error()
    print(f"{'network':30} {'well':5} {'compiled':12} {'seconds':>7} largest relative difference")
    for name in names or NETWORKS:
        torch.manual_seed(0)
        begin = time.perf_counter()
        counts = ""
        try:
            largest, compiled = outcome(NETWORKS[name]())
            verdict, told = "yes", f"{largest:.1e}"
            counts = ", ".join(map(str, compiled))
        except Exception as error:
            verdict, told = "no", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        failed += verdict == "no"
        print(f"{name:30} {verdict:5} {counts:12} {time.perf_counter() - begin:7.1f} {told}", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
