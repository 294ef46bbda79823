"""The models of three_models.yaml."""

import torch
from torch import nn

PIXELS = 3 * 32 * 32


def make_model(seed: int, width: int) -> nn.Module:
    """A network with random weights: float32 (images, 3, 32, 32) to scores of shape (images, 10)."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
