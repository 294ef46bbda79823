"""The models of three_models.yaml."""

import torch
from torch import nn

PIXELS = 3 * 32 * 32


class Scores(nn.Sequential):
    """A network with random weights, which depend on the seed: float32 (images, 3, 32, 32) to (images, 10)."""

    def __init__(self, seed: int, width: int) -> None:
        torch.manual_seed(seed)
        super().__init__(
            nn.Flatten(), nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
