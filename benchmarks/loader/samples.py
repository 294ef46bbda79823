"""Prepared samples and inputs, and stagepipe's sources of them. They run in its workers and do not import torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.loader.job import SEED

SAMPLE_COUNT = 64
"""The number of prepared samples. They repeat, so the cost of making them is not measured."""


def prepared(side: int) -> NDArray[np.float32]:
    """Return float32 (SAMPLE_COUNT, 3, side, side): random, but the first element of each sample is its number."""
    samples = np.random.default_rng(SEED).standard_normal((SAMPLE_COUNT, 3, side, side), np.float32)
    samples[:, 0, 0, 0] = np.arange(SAMPLE_COUNT)
    return samples


class OwnedSamples:
    """Prepared samples in the source's own memory. The transport copies each into shared memory; Batch copies again."""

    def __init__(self, side: int, count: int) -> None:
        """Prepare the samples; an epoch has `count` of them."""
        self._samples, self._count = list(prepared(side)), count

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return a view of a sample, with its position as the label."""
        return {"image": self._samples[position % SAMPLE_COUNT], "label": position}


class AllSamples:
    """One item per epoch: all prepared samples, so they lie in shared memory before the first one is requested."""

    def __init__(self, side: int) -> None:
        """Prepare the samples."""
        self._samples = list(prepared(side))

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def __getitem__(self, position: int) -> list[NDArray[np.float32]]:
        """Return all samples."""
        return self._samples


class Numbers:
    """Inputs of the models: arrays filled with their position."""

    def __init__(self, count: int, inputs: int) -> None:
        """Create `count` inputs per epoch, float32 of shape (1, inputs)."""
        self._count, self._inputs = count, inputs

    def __len__(self) -> int:
        """Return the number of inputs in an epoch."""
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return the input at a position, the same as in `datasets.ThreeModels`."""
        return {"features": np.full((1, self._inputs), position, np.float32), "label": position}
