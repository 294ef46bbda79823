"""What DataLoader loads: map-style datasets of places, and the sampler that gives the places. In its workers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from loader_.job import SEED
from loader_.models import COUNT, Model, width
from loader_.samples import KEPT, prepared
from stagepipe.core.context import Context, current
from stagepipe.sources import files

Place = tuple[int, int]
"""(epoch, position in the epoch's order): what stagepipe's source knows of an item, and its draws follow from."""
Sample = dict[str, Any]


class Places(Sampler[Place]):
    """The positions 0 ... count - 1 of an epoch. The dataset knows which file stands at which position."""

    def __init__(self, count: int) -> None:
        """Of the first epoch; set `epoch` before each."""
        self.epoch, self._count = 0, count

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def __iter__(self) -> Iterator[Place]:
        """Of `epoch`."""
        epoch = self.epoch
        return ((epoch, position) for position in range(self._count))


class Prepared(Dataset[Sample]):
    """Prepared samples as tensors; a fork of the process has them without a copy."""

    def __init__(self, side: int) -> None:
        """Make them."""
        self._samples = torch.from_numpy(prepared(side))

    def __getitem__(self, place: Place) -> Sample:
        """A view, and the position as label."""
        return {"image": self._samples[place[1] % KEPT], "label": place[1]}


class Images(Dataset[Sample]):
    """File to sample by the quickstart's own functions, with the same files, order and draws as its pipeline has."""

    def __init__(self, images: str, side: int) -> None:
        """Find the files; `quickstart_ops` is on the import path."""
        self._files, self._side = files(f"{images}/**/*.jpg", shuffle=True, read=True, labels="folder"), side

    def __getitem__(self, place: Place) -> Sample:
        """The sample at a position of an epoch."""
        epoch, position = place
        ops = importlib.import_module("quickstart_ops")
        self._files.begin(epoch, SEED)
        # What `stagepipe.context()` answers inside the pipeline: the same crop for the same item of the same epoch.
        current.context = Context(stage="augment", worker=0, epoch=epoch, item=(position,), seed=SEED)
        sample: Sample = ops.normalise(ops.augment(ops.decode(self._files[position]), self._side))
        return sample


class ThreeModels(Dataset[Sample]):
    """All three models. `now`: made here, before there are workers; else in each worker, at its first item."""

    def __init__(self, model_bytes: int, *, now: bool) -> None:
        """Make the models, or do not yet."""
        self._inputs = width(model_bytes)
        self._models: list[Model] = self._made() if now else []

    def _made(self) -> list[Model]:
        return [Model(number, self._inputs) for number in range(1, COUNT + 1)]

    def __getitem__(self, place: Place) -> Sample:
        """The input at a position, through all three."""
        self._models = self._models or self._made()
        values = torch.full((1, self._inputs), float(place[1]))
        for model in self._models:
            values = model(values)
        return {"features": values, "label": place[1]}
