"""torchvision's classification networks, one or more of each family: TVM's result is PyTorch's.

It is held to 1e-3 of the largest magnitude in the output. The pictures are the smallest that a network takes, since
almost all of the time goes into compiling.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torchvision

from tvmnotes import build, from_pytorch, models

TOLERANCE = 1e-3

# The size of the picture.
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

# The transformers take one size only, set when they are made. Swin, MaxViT and DenseNet are made with fewer blocks.
MADE = {
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


def network(name: str, size: int) -> torch.nn.Module:
    """Seeded, and with what starts as all zeros or all ones (biases, scales, some next to 0) made random as well."""
    make = MADE.get(name)
    net = models.load(name, pretrained=False) if make is None else models.seeded(make, size)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in net.named_parameters():
            if weight.numel() > 1 and weight.min() == weight.max():
                noise = 0.1 * torch.randn(weight.shape, generator=generator)
                weight.copy_(noise + (0.5 if "layer_scale" in key else weight))
    return net


@pytest.mark.parametrize("name", NETWORKS)
def test_tvm_gives_pytorchs_numbers(name):
    size = NETWORKS[name]
    net = network(name, size)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = net(x).numpy()
    assert wanted.shape == (1, 1000) and wanted.std() > 1e-3
    got = build(*from_pytorch(net, {"data": x}))(x)
    assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()
