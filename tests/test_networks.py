"""torchvision's classification networks, one or more of each family: TVM's result is PyTorch's.

It is held to 1e-3 of the largest magnitude in the output. The pictures are the smallest that a network takes, since
almost all of the time goes into compiling. Level 3 folds batch norm at compile time, by kernels that are compiled one
by one for it; deep networks, where that takes the longest, are built at level 1.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torchvision

from tvmnotes import build, from_pytorch, models

TOLERANCE = 1e-3

# The size of the picture, and the opt level.
NETWORKS = {
    "alexnet": (64, 3),
    "vgg11": (32, 3),
    "squeezenet1_1": (32, 3),
    "resnet18": (32, 3),
    "resnet50": (32, 1),
    "resnext50_32x4d": (32, 1),
    "wide_resnet50_2": (32, 1),
    "densenet121": (32, 1),
    "googlenet": (32, 1),
    "inception_v3": (75, 1),
    "mobilenet_v2": (32, 1),
    "mobilenet_v3_small": (32, 3),
    "shufflenet_v2_x1_0": (32, 1),
    "mnasnet1_0": (32, 1),
    "efficientnet_b0": (32, 1),
    "efficientnet_v2_s": (32, 1),
    "regnet_x_400mf": (32, 1),
    "regnet_y_400mf": (32, 1),
    "convnext_tiny": (32, 1),
    "swin_t": (32, 1),
    "swin_v2_t": (32, 1),
    "vit_b_16": (32, 1),
    "maxvit_t": (64, 1),
}

# These take one size only, set when they are made.
FIXED_SIZE = {
    "vit_b_16": partial(torchvision.models.vit_b_16, image_size=32),
    "maxvit_t": partial(
        torchvision.models.MaxVit, input_size=(64, 64), partition_size=2, stem_channels=64, head_dim=32,
        block_channels=[64, 128, 256, 512], block_layers=[2, 2, 5, 2], stochastic_depth_prob=0.2,
    ),
}  # fmt: skip


def network(name: str, size: int) -> torch.nn.Module:
    """Seeded, and with what starts as all zeros or all ones (biases, scales, some next to 0) made random as well."""
    make = FIXED_SIZE.get(name)
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
    size, level = NETWORKS[name]
    net = network(name, size)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = net(x).numpy()
    assert wanted.shape == (1, 1000) and wanted.std() > 1e-3
    got = build(*from_pytorch(net, {"data": x}), opt_level=level)(x)
    assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()
