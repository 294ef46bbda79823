"""Three models, of 400 MB each by default, and DataLoader's map-style datasets. They run in workers, and need torch.

stagepipe has one copy of each model, in one, two or three processes. Each DataLoader worker has a copy of all three.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from benchmarks.loader import SAMPLE_COUNT, SEED, prepared
from stagepipe.core import Context, stage_locals
from stagepipe.sources import files

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
        "source": {"uses": "benchmarks.loader.Numbers", "with": {"count": count, "inputs": inputs}},
        "stages": stages,
    }


SampleKey = tuple[int, int]
"""(epoch, position in the order of the epoch). stagepipe's source seeds an item's random draws with the same key."""
Sample = dict[str, Any]


class EpochSampler(Sampler[SampleKey]):
    """Yields the positions 0 ... count - 1 of an epoch. The dataset maps a position to a file."""

    def __init__(self, count: int) -> None:
        """Start with epoch 0; set `epoch` before each epoch."""
        self.epoch, self._count = 0, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SampleKey]:
        epoch = self.epoch
        return ((epoch, position) for position in range(self._count))


class Prepared(Dataset[Sample]):
    """Prepared samples as tensors; a forked worker shares them without a copy."""

    def __init__(self, side: int) -> None:
        self._samples = torch.from_numpy(prepared(side))

    def __getitem__(self, key: SampleKey) -> Sample:
        """Return a view of a sample, with its position as the label."""
        return {"image": self._samples[key[1] % SAMPLE_COUNT], "label": key[1]}


class Images(Dataset[Sample]):
    """The quickstart's own functions, with the same files, order and random draws as in its pipeline."""

    def __init__(self, images: str, side: int) -> None:
        """Find the files. `quickstart_ops` must be on the import path."""
        self._files, self._side = files(f"{images}/**/*.jpg", shuffle=True, read=True, labels="folder"), side

    def __getitem__(self, key: SampleKey) -> Sample:
        epoch, position = key
        ops = importlib.import_module("quickstart_ops")
        self._files.begin(epoch, SEED)
        # The value of `stagepipe.context()` in the pipeline, so that the same item of the same epoch gets the same
        # crop.
        stage_locals.context = Context(stage="augment", worker=0, epoch=epoch, item=(position,), seed=SEED)
        sample: Sample = ops.normalise(ops.augment(ops.decode(self._files[position]), self._side))
        return sample


class ThreeModels(Dataset[Sample]):
    """All three models, created before the workers if `eager`, otherwise in each worker at its first item."""

    def __init__(self, model_bytes: int, *, eager: bool) -> None:
        self._inputs = width(model_bytes)
        self._models: list[Model] = self._create_models() if eager else []

    def _create_models(self) -> list[Model]:
        return [Model(number, self._inputs) for number in range(1, COUNT + 1)]

    def __getitem__(self, key: SampleKey) -> Sample:
        self._models = self._models or self._create_models()
        values = torch.full((1, self._inputs), float(key[1]))
        for model in self._models:
            values = model(values)
        return {"features": values, "label": key[1]}
