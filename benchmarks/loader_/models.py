"""Three models, of 400 MB each unless told otherwise: as stages, and as a dataset that holds all three.

stagepipe has one copy of each, in one, two or three processes; a DataLoader's worker has one of all three.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from loader_.samples import Place

COUNT = 3


def width(model_bytes: int) -> int:
    """Inputs and outputs of a layer whose float32 weights take about `model_bytes`: 10,000 for 400 MB."""
    return max(1, math.isqrt(model_bytes // 4))


def features(position: int, inputs: int) -> torch.Tensor:
    """The input at `position`: its number everywhere."""
    return torch.full((1, inputs), float(position))


class Model:
    """A `torch.nn.Linear` with every page of its weights written. It takes the mean of its inputs and adds `number`."""

    def __init__(self, number: int, inputs: int) -> None:
        """Without the default initialisation, whose random draws would be most of the start."""
        layer = torch.nn.utils.skip_init(torch.nn.Linear, inputs, inputs)
        layer.requires_grad_(requires_grad=False)
        layer.weight.fill_(1 / inputs)
        layer.bias.fill_(float(number))
        self._layer = layer

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """float32 (1, inputs) to the same."""
        with torch.inference_mode():
            found: torch.Tensor = self._layer(values)
        return found


class Numbers:
    """stagepipe's source, without torch: `count` inputs an epoch."""

    def __init__(self, count: int, inputs: int) -> None:
        """Of (1, inputs) each."""
        self._count, self._inputs = count, inputs

    def __len__(self) -> int:
        """How many inputs an epoch has."""
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """The same as `features` makes."""
        return {"features": np.full((1, self._inputs), position, np.float32), "label": position}


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
        "source": {"uses": "loader_.models.Numbers", "with": {"count": count, "inputs": inputs}},
        "stages": stages,
    }


class ThreeModels(Dataset[dict[str, Any]]):
    """All three models. `now`: made here, before there are workers; else in each worker, at its first item."""

    def __init__(self, model_bytes: int, *, now: bool) -> None:
        """Make the models, or do not yet."""
        self._inputs = width(model_bytes)
        self._models: list[Model] = self._made() if now else []

    def _made(self) -> list[Model]:
        return [Model(number, self._inputs) for number in range(1, COUNT + 1)]

    def __getitem__(self, place: Place) -> dict[str, Any]:
        """The input at a position, through all three."""
        self._models = self._models or self._made()
        values = features(place[1], self._inputs)
        for model in self._models:
            values = model(values)
        return {"features": values, "label": place[1]}
