"""torchvision's classification networks, one or more of each family: TVM's result is PyTorch's.

The images are the smallest that a network takes, since almost all of the time goes into compiling.
"""

from functools import partial

import pytest
import torch
import torchvision
from agreement import close, terms_of
from testing import sampled
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.googlenet import Inception
from torchvision.models.mobilenetv3 import _mobilenet_v3_conf

from tvmfast import build, from_pytorch
from tvmfast.profiling import networks

TOLERANCE = 1e-3

# The size of the image.
NETWORKS = {
    "alexnet": 64,
    "vgg11": 32,
    "squeezenet1_1": 32,
    "resnet18": 32,
    "resnet50": 32,
    "resnext50_32x4d": 32,
    "densenet121": 32,
    "googlenet": 32,
    "inception_v3": 75,
    "mobilenet_v2": 32,
    "mobilenet_v3_small": 32,
    "shufflenet_v2_x1_0": 32,
    "mnasnet1_0": 32,
    "efficientnet_b0": 32,
    "efficientnet_v2_s": 32,
    "regnet_y_400mf": 32,
    "convnext_tiny": 32,
    "swin_t": 32,
    "vit_b_16": 32,
    "maxvit_t": 64,
}


class ShortGoogLeNet(torchvision.models.GoogLeNet):
    """With three modules of nine."""

    def __init__(self):
        super().__init__(aux_logits=False, init_weights=False)
        self.inception3b = self.inception4a = self.inception4b = self.inception4c = torch.nn.Identity()
        self.inception4d = self.inception4e = torch.nn.Identity()
        self.inception5a = Inception(256, 256, 160, 320, 32, 128, 128)


mobile_blocks, _ = _mobilenet_v3_conf("mobilenet_v3_small")

# `make test` has these networks, the deep ones with one or two blocks of each kind; `make test-full` has all, whole.
# It leaves out the plain ones, whose layers other tests and the lessons have.
SAMPLE = (
    "googlenet",
    "mobilenet_v3_small",
    "shufflenet_v2_x1_0",
    "convnext_tiny",
    "swin_t",
    "vit_b_16",
)
SHORT = {
    "googlenet": ShortGoogLeNet,
    "mobilenet_v3_small": partial(torchvision.models.MobileNetV3, mobile_blocks[:5], 1024),
    "convnext_tiny": partial(
        torchvision.models.ConvNeXt, [CNBlockConfig(96, 192, 1), CNBlockConfig(192, None, 2)], 0.1
    ),
    "swin_t": partial(
        torchvision.models.SwinTransformer, patch_size=[4, 4], embed_dim=96, depths=[2, 1], num_heads=[3, 6],
        window_size=[7, 7], stochastic_depth_prob=0.2,
    ),
    "shufflenet_v2_x1_0": partial(torchvision.models.ShuffleNetV2, [2, 1, 1], [24, 116, 232, 464, 1024]),
    "vit_b_16": partial(
        torchvision.models.VisionTransformer, image_size=32, patch_size=16, num_layers=2, num_heads=12, hidden_dim=768,
        mlp_dim=3072,
    ),
}  # fmt: skip

# The transformers take one size only, set when they are made. Swin, MaxViT and DenseNet are made with fewer blocks.
CONSTRUCTORS = {
    "densenet121": partial(torchvision.models.DenseNet, block_config=(3, 3, 3, 3)),
    "swin_t": partial(
        torchvision.models.SwinTransformer, patch_size=[4, 4], embed_dim=96, depths=[2, 1, 1, 1],
        num_heads=[3, 6, 12, 24], window_size=[7, 7], stochastic_depth_prob=0.2,
    ),
    "vit_b_16": partial(torchvision.models.vit_b_16, image_size=32),
    "maxvit_t": partial(
        torchvision.models.MaxVit, input_size=(64, 64), partition_size=2, stem_channels=64, head_dim=32,
        block_channels=[64, 128, 256, 512], block_layers=[1, 1, 1, 1], stochastic_depth_prob=0.2,
    ),
}  # fmt: skip


def network(name: str, size: int, short: bool) -> torch.nn.Module:
    """Seeded, and with what starts as all zeros or all ones (biases, scales, some next to 0) made random as well."""
    make = SHORT.get(name) if short else None
    make = make or CONSTRUCTORS.get(name)
    net = networks.load(name) if make is None else networks.seeded(make, size)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in net.named_parameters():
            if weight.numel() > 1 and weight.min() == weight.max():
                noise = 0.1 * torch.randn(weight.shape, generator=generator)
                weight.copy_(noise + (0.5 if "layer_scale" in key else weight))
    return net


@pytest.mark.parametrize("name", sampled(NETWORKS, SAMPLE))
def test_tvm_gives_pytorchs_results(name, quick):
    size = NETWORKS[name]
    net = network(name, size, short=quick)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = net(x).numpy()
    assert wanted.shape == (1, 1000) and wanted.std() > 1e-3
    mod, params = from_pytorch(net, {"data": x})
    close(build(mod, params)(x), wanted, terms_of(params), rounded=True)
