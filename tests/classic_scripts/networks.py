"""Stand-ins for what the scripts took from torchvision and GluonCV: a picture, a classifier and a detector."""

import numpy as np
import torch
from torch import nn


class Detector(nn.Module):
    """A small single-shot detector: float32 (1, 3, 32, 32) to ids (1, 64), scores (1, 64) and boxes (1, 64, 4)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.classes, self.boxes = nn.Conv2d(32, 5, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x):
        features = self.body(x)
        probabilities = torch.softmax(self.classes(features).flatten(2), dim=1)
        boxes = torch.sigmoid(self.boxes(features)).flatten(2).permute(0, 2, 1)
        return torch.argmax(probabilities, dim=1).to(torch.float32), probabilities.amax(dim=1), boxes


def classifier() -> nn.Module:
    """Float32 (1, 3, 32, 32) to (1, 10)."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()


def detector() -> nn.Module:
    torch.manual_seed(0)
    return Detector().eval()


def picture() -> np.ndarray:
    return np.random.RandomState(7).rand(1, 3, 32, 32).astype("float32")
