"""Three models, of 400 MB each by default: one stage each, which runs in stagepipe's workers.

stagepipe has one copy of each model, in one, two or three processes. Each DataLoader worker has a copy of all three.
"""

from __future__ import annotations

import math
from typing import Any

import torch

COUNT = 3


def width(model_bytes: int) -> int:
    """Return the inputs and outputs of a layer whose float32 weights take about `model_bytes`: 10,000 for 400 MB."""
    return max(1, math.isqrt(model_bytes // 4))


class Model:
    """A `torch.nn.Linear` that returns the mean of its inputs plus `number`. Every page of its weights is written."""

    def __init__(self, number: int, inputs: int) -> None:
        """Skip the default initialisation, whose random draws would dominate the start."""
        layer = torch.nn.Linear(inputs, inputs, device="meta").to_empty(device="cpu")
        layer.requires_grad_(requires_grad=False)
        layer.weight.fill_(1 / inputs)
        layer.bias.fill_(float(number))
        self._layer = layer

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Map float32 of shape (1, inputs) to the same shape."""
        with torch.inference_mode():
            outputs: torch.Tensor = self._layer(values)
        return outputs


def config(count: int, model_bytes: int) -> dict[str, Any]:
    """Return a config of three stages, each in its own process."""
    inputs = width(model_bytes)
    stages = [
        {
            "name": f"model_{number}",
            "uses": "benchmarks.loader.models.Model",
            "with": {"number": number, "inputs": inputs},
            "field": "features",
            "as": "tensor",
        }
        for number in range(1, COUNT + 1)
    ]
    return {
        "name": "three-models",
        "source": {"uses": "benchmarks.loader.samples.Numbers", "with": {"count": count, "inputs": inputs}},
        "stages": stages,
    }
