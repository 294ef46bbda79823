"""Prepared samples and inputs, and stagepipe's sources of them. In its workers, where torch is not wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_.job import SEED

KEPT = 64
"""Prepared samples. They come again and again, so that making them is not measured."""


def prepared(side: int) -> NDArray[np.float32]:
    """float32 (KEPT, 3, side, side): random, but each sample's first element is its number."""
    samples = np.random.default_rng(SEED).standard_normal((KEPT, 3, side, side), np.float32)
    samples[:, 0, 0, 0] = np.arange(KEPT)
    return samples


class Own:
    """Prepared samples in the source's own memory: the transport copies each into shared memory, Batch copies again."""

    def __init__(self, side: int, count: int) -> None:
        """`count` samples an epoch."""
        self._samples, self._count = list(prepared(side)), count

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """A view, and the position as label."""
        return {"image": self._samples[position % KEPT], "label": position}


class Chest:
    """One item an epoch: all prepared samples, so that they lie in shared memory before the first is asked for."""

    def __init__(self, side: int) -> None:
        """Make them."""
        self._samples = list(prepared(side))

    def __len__(self) -> int:
        """One."""
        return 1

    def __getitem__(self, position: int) -> list[NDArray[np.float32]]:
        """All of them."""
        return self._samples


class Numbers:
    """Inputs of the models: the position, everywhere."""

    def __init__(self, count: int, inputs: int) -> None:
        """`count` an epoch, float32 (1, inputs) each."""
        self._count, self._inputs = count, inputs

    def __len__(self) -> int:
        """How many inputs an epoch has."""
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """What `datasets.ThreeModels` begins with."""
        return {"features": np.full((1, self._inputs), position, np.float32), "label": position}
