"""The network that the course trains itself, a ResNet-20 for handwritten digits, and its test images.

`data/digits/train.py` trains it; the notebooks and `models.py` load it. This module imports torch, so import
it only when needed.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tvmfast.core import data

# Mean and standard deviation of a pixel (0 to 1) over the 1437 training images.
MEAN, STD = 0.3057, 0.3238


class ResNet20(nn.Module):
    """CIFAR's 20-layer residual network, for grey images.

    Maps float32 (N, 1, 32, 32) to logits float32 (N, 10): one 3x3 convolution, three stages of three blocks
    with 16, 32 and 64 channels, global average pooling and one linear layer; 272,186 parameters. In a block
    that changes the shape, the shortcut is a 1x1 convolution ("option B"). Source: He, Zhang, Ren, Sun, "Deep
    Residual Learning for Image Recognition", CVPR 2016, sections 3.3 and 4.2.
    """

    def __init__(self):
        super().__init__()
        self.stem = _conv_bn(1, 16, 3)
        self.stage1 = nn.Sequential(Block(16, 16), Block(16, 16), Block(16, 16))
        self.stage2 = nn.Sequential(Block(16, 32, stride=2), Block(32, 32), Block(32, 32))
        self.stage3 = nn.Sequential(Block(32, 64, stride=2), Block(64, 64), Block(64, 64))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Compute the logits."""
        x = torch.relu(self.stem(image))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.classify(self.pool(x).flatten(1))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, c_in, H, W) to (N, c_out, H / stride, W / stride)."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1):
        super().__init__()
        self.first = _conv_bn(c_in, c_out, 3, stride)
        self.second = _conv_bn(c_out, c_out, 3)
        self.shortcut = nn.Identity() if c_in == c_out else _conv_bn(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's output."""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def _conv_bn(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))


def preprocess(images: np.ndarray) -> np.ndarray:
    """Convert images to the network's input: each pixel p becomes (p / 255 - MEAN) / STD.

    Args:
        images: uint8 or float (N, 32, 32), 0 black to 255 white.

    Returns:
        float32 (N, 1, 32, 32).

    Raises:
        ValueError: The shape is wrong.
    """
    images = np.asarray(images)
    if images.ndim != 3 or images.shape[1:] != (32, 32):
        raise ValueError(
            f"images: expected shape (N, 32, 32), got {images.shape}; give one picture as image[None]"
        )
    return ((images[:, None].astype("float32") / 255 - MEAN) / STD).astype("float32")


def load_test_set() -> tuple[np.ndarray, np.ndarray]:
    """Load the test images, uint8 (360, 32, 32), 0 to 255, and their labels, int64 (360,)."""
    with np.load(data.path("digits/test.npz")) as arrays:
        return arrays["images"], arrays["labels"]


def scene(images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Compose an image of two to five digits in squares that do not overlap, of 22 to 44 pixels a side.

    Args:
        images: uint8 (N, 32, 32).
        labels: int (N,).
        rng: Source of the random choices.

    Returns:
        The image, uint8 (96, 96), and its boxes, float32 (digits, 5): the label, then left, top, right and
        bottom in pixels.
    """
    image, boxes = np.zeros((96, 96), "uint8"), []
    wanted = rng.integers(2, 6)
    for _ in range(100):
        if len(boxes) == wanted:
            break
        side = int(rng.integers(22, 45))
        left, top = map(int, rng.integers(0, 97 - side, 2))
        if any(left < r and left + side > x and top < b and top + side > y for _, x, y, r, b in boxes):
            continue
        which = rng.integers(len(images))
        drawn = Image.fromarray(images[which]).resize((side, side), Image.Resampling.BILINEAR)
        image[top : top + side, left : left + side] = np.asarray(drawn)
        boxes.append((labels[which], left, top, left + side, top + side))
    return image, np.array(boxes, "float32")


def found(detections: np.ndarray, boxes: np.ndarray, least: float = 0.5) -> int:
    """Count the boxes of a `scene` that were detected: the right label and an overlap (IoU) of at least 0.5.

    Args:
        detections: Rows of class, score and corners as fractions of the image's sides, float (N, 6), best
            score first. Those of class -1 do not count.
        boxes: The boxes of the scene.
        least: Smallest score that counts.
    """
    rows = detections[(detections[:, 0] >= 0) & (detections[:, 1] >= least)]
    corners = rows[:, 2:] * 96
    count = 0
    for label, *box in boxes:
        low, high = np.maximum(corners[:, :2], box[:2]), np.minimum(corners[:, 2:], box[2:])
        shared = (high - low).clip(0).prod(axis=1)
        union = (corners[:, 2:] - corners[:, :2]).prod(axis=1) + (box[2] - box[0]) ** 2 - shared
        count += bool(((shared >= 0.5 * union) & (rows[:, 0] == label)).any())
    return count
