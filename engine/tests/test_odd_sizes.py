"""Networks of torchvision, timm and transformers at sizes that nobody tests, at every level, with and without dims.

Images that are 224 x 225, one pixel high or smaller than a window; batches of 3; sentences of one token; 1,000
channels. Each network is small, its weights are random. With dims, one build serves two sizes.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import test_transformers
import torch
from agreement import close, reference
from testing import sampled
from torch import nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.mobilenetv3 import _mobilenet_v3_conf

import tvmfast


class Odd(NamedTuple):
    """A network and two lists of its inputs' sizes; with dims, the axes that `open` names are dynamic."""

    make: Callable[[], nn.Module]
    sizes: tuple
    again: tuple
    open: dict[int, str]


PICTURE = {0: "batch", 2: "height", 3: "width"}
BATCH, TOKENS = {0: "batch"}, {0: "batch", 1: "length"}


def of_images(make, *size, again=(2, 3, 40, 39), open=PICTURE) -> Odd:
    return Odd(make, size, again, open)


class Wide(nn.Module):
    """1,000 channels, in groups, depthwise and all together."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 1000, 3, padding=1), nn.GroupNorm(8, 1000)
        self.depthwise = nn.Conv2d(1000, 1000, (5, 3), padding=(2, 1), groups=1000)
        self.grouped, self.last = nn.Conv2d(1000, 1000, 3, padding=1, groups=40), nn.Conv2d(1000, 11, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.last(torch.sigmoid(self.grouped(x + self.depthwise(x))))


mobile_blocks, _ = _mobilenet_v3_conf("mobilenet_v3_small")
of_timm = partial(partial, test_transformers.model_of_timm, num_classes=7)
NETWORKS = {
    "resnet": of_images(partial(models.ResNet, models.resnet.BasicBlock, [1, 1, 1, 1], 11), 1, 3, 224, 225),
    "squeezenet": of_images(partial(models.squeezenet1_1, num_classes=11), 3, 3, 65, 33),
    "mobilenet_v2, one pixel high": of_images(
        partial(models.mobilenet_v2, num_classes=11, width_mult=0.25), 1, 3, 1, 225, again=(2, 3, 2, 17)
    ),
    "mobilenet_v3": of_images(partial(models.MobileNetV3, mobile_blocks[:5], 64, 11), 3, 3, 33, 1),
    "densenet": of_images(partial(models.DenseNet, 8, (2, 2, 2, 2), 16, num_classes=11), 1, 3, 224, 225),
    "shufflenet": of_images(partial(models.ShuffleNetV2, [2, 1, 1], [24, 48, 96, 192, 64], 11), 3, 3, 47, 31),
    "mnasnet, one pixel": of_images(partial(models.mnasnet0_5, num_classes=11), 2, 3, 1, 1, again=(1, 3, 3, 1)),
    "regnet": of_images(partial(models.regnet_y_400mf, num_classes=11), 3, 3, 33, 65),
    "convnext": of_images(
        partial(models.ConvNeXt, [CNBlockConfig(24, 48, 1), CNBlockConfig(48, None, 1)], 0.1, num_classes=11),
        *(3, 3, 37, 225),
    ),
    "swin": of_images(
        partial(models.SwinTransformer, [4, 4], 24, [2, 1], [3, 6], [7, 7], num_classes=11),
        *(3, 3, 36, 60),
        again=(2, 3, 36, 60),
        open=BATCH,
    ),
    "1,000 channels": of_images(Wide, 3, 3, 7, 13, again=(1, 3, 8, 1)),
    "test_resnet": of_images(of_timm("test_resnet"), 3, 3, 97, 33),
    "test_convnext": of_images(of_timm("test_convnext"), 3, 3, 33, 225),
    "test_efficientnet": of_images(of_timm("test_efficientnet"), 1, 3, 224, 225),
    "test_efficientnet_gn": of_images(of_timm("test_efficientnet_gn"), 3, 3, 33, 1),
    "test_nfnet": of_images(of_timm("test_nfnet"), 3, 3, 65, 31),
    "test_byobnet": of_images(of_timm("test_byobnet"), 3, 3, 33, 47),
    "test_vit": of_images(of_timm("test_vit", img_size=(16, 80)), 3, 3, 16, 80, again=(1, 3, 16, 80), open=BATCH),
    "lcnet_035, one pixel high": of_images(of_timm("lcnet_035"), 3, 3, 1, 47),
    "tf_mobilenetv3_small_minimal_100": of_images(of_timm("tf_mobilenetv3_small_minimal_100"), 1, 3, 31, 225),
    "ghostnet_050": of_images(of_timm("ghostnet_050"), 3, 3, 33, 35),
    **{
        f"{kind}, {length} tokens": Odd(
            partial(test_transformers.network, kind, "sdpa"), (batch, length), (2, again), TOKENS
        )
        for kind, batch, length, again in (
            *(("bert", 3, 1, 9), ("modernbert", 1, 17, 1), ("gpt2", 3, 1, 5), ("llama", 1, 1, 13)),
            *(("qwen3", 3, 1, 2), ("mistral", 1, 31, 3), ("phi3", 3, 7, 1), ("gpt_neox", 1, 1, 4)),
            *(("roberta", 1, 3, 11), ("mixtral", 3, 1, 3)),
        )
    },
}
SAMPLE = ("mobilenet_v2, one pixel high", "test_resnet", "llama, 1 tokens")


def inputs_of(net: nn.Module, size: tuple) -> tuple:
    """Pictures, or sentences the last of which is shorter, as its mask says."""
    generator = torch.Generator().manual_seed(3)
    if len(size) == 4:
        return (torch.randn(size, generator=generator),)
    mask = torch.ones(size, dtype=torch.int64)
    mask[-1, size[1] // 2 + 1 :] = 0
    return torch.randint(3, 1000, size, generator=generator), mask


def made(name: str) -> nn.Module:
    net = NETWORKS[name].make()
    return (net[0] if isinstance(net, tuple) else net).eval()


@pytest.mark.parametrize("name", sampled(NETWORKS, SAMPLE))
def test_an_odd_size(name, quick):
    net = made(name)
    inputs = inputs_of(net, NETWORKS[name].sizes)
    wanted = reference(net, *inputs)
    mod, params = tvmfast.from_pytorch(net, [(f"in{place}", x) for place, x in enumerate(inputs)])
    for level in (3,) if quick else (0, 1, 2, 3):
        close(tvmfast.build(mod, params, opt_level=level)(*inputs), wanted)


@pytest.mark.parametrize("name", sampled(NETWORKS, ()))
def test_odd_sizes_of_open_dims(name):
    net, odd = made(name), NETWORKS[name]
    calls = [inputs_of(net, size) for size in (odd.sizes, odd.again)]
    specs = [
        (f"in{place}", (tuple(odd.open.get(axis, n) for axis, n in enumerate(x.shape)), str(x.dtype)[6:]))
        for place, x in enumerate(calls[0])
    ]
    mod, params = tvmfast.from_pytorch(net, specs)
    for level in (0, 3):
        lib = tvmfast.build(mod, params, opt_level=level)
        for inputs in calls:
            close(lib(*inputs), reference(net, *inputs))
