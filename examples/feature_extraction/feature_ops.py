"""The model of feature_extraction.yaml."""

import torch
from torch import nn


class Backbone(nn.Sequential):
    """A small network with random weights: float32 (images, 3, height, width) to (images, size).

    The weights depend only on the seed, so that they are the same in every worker and after a resume.
    """

    def __init__(self, seed: int, size: int = 64) -> None:
        torch.manual_seed(seed)
        super().__init__(
            nn.Conv2d(3, 32, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, size, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
