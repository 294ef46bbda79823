"""Prepared samples, and the order in which a DataLoader asks for them. In every process of a contestant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from loader_.job import SEED

Place = tuple[int, int]
"""(epoch, position in the epoch's order): what stagepipe's source knows of an item, and its draws follow from."""
KEPT = 64
"""Prepared samples. They come again and again, so that making them is not measured."""


def prepared(side: int) -> NDArray[np.float32]:
    """float32 (KEPT, 3, side, side): random, but each sample's first element is its number."""
    samples = np.random.default_rng(SEED).standard_normal((KEPT, 3, side, side), np.float32)
    samples[:, 0, 0, 0] = np.arange(KEPT)
    return samples


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


class Prepared(Dataset[dict[str, Any]]):
    """Prepared samples as tensors; a fork of the process has them without a copy."""

    def __init__(self, side: int) -> None:
        """Make them."""
        import torch

        self._samples = torch.from_numpy(prepared(side))

    def __getitem__(self, place: Place) -> dict[str, Any]:
        """A view, and the position as label."""
        return {"image": self._samples[place[1] % KEPT], "label": place[1]}
