"""Three models, of 400 MB each unless told otherwise: a stage each.

stagepipe has one copy of each, in one, two or three processes; a DataLoader's worker has one of all three.
"""

from __future__ import annotations

import math
from typing import Any

import torch

COUNT = 3


def width(model_bytes: int) -> int:
    """Inputs and outputs of a layer whose float32 weights take about `model_bytes`: 10,000 for 400 MB."""
    return max(1, math.isqrt(model_bytes // 4))


class Model:
    """A `torch.nn.Linear` with every page of its weights written. It takes the mean of its inputs and adds `number`."""

    def __init__(self, number: int, inputs: int) -> None:
        """Without the default initialisation, whose random draws would be most of the start."""
        layer = torch.nn.Linear(inputs, inputs, device="meta").to_empty(device="cpu")
        layer.requires_grad_(requires_grad=False)
        layer.weight.fill_(1 / inputs)
        layer.bias.fill_(float(number))
        self._layer = layer

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """float32 (1, inputs) to the same."""
        with torch.inference_mode():
            found: torch.Tensor = self._layer(values)
        return found


def config(ways: int, count: int, model_bytes: int) -> dict[str, Any]:
    """Three stages in `ways` processes: the models that find no process of their own are fused into the one before."""
    inputs = width(model_bytes)
    stages: list[dict[str, Any]] = []
    for number in range(1, COUNT + 1):
        stage = {
            "name": f"model_{number}",
            "uses": "loader_.models.Model",
            "with": {"number": number, "inputs": inputs},
            "field": "features",
            "as": "tensor",
        }
        fused = number > ways
        stages.append({**stage, "fuse": True} if fused else stage)
    return {
        "name": "three-models",
        "source": {"uses": "loader_.samples.Numbers", "with": {"count": count, "inputs": inputs}},
        "stages": stages,
    }
