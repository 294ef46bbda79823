"""Prepared samples and inputs, stagepipe's sources and stages of them, and the configs of part collate.

Sources and stages run in stagepipe's workers and do not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stagepipe
from benchmarks.loader.contest import SEED

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
        self._samples, self._count = list(prepared(side)), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return a view of a sample, with its position as the label."""
        return {"image": self._samples[position % SAMPLE_COUNT], "label": position}


class AllSamples:
    """One item per epoch: all prepared samples, so they lie in shared memory before the first one is requested."""

    def __init__(self, side: int) -> None:
        self._samples = list(prepared(side))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> list[NDArray[np.float32]]:
        return self._samples


class Numbers:
    """Inputs of the models: arrays filled with their position."""

    def __init__(self, count: int, inputs: int) -> None:
        """Create `count` inputs per epoch, float32 of shape (1, inputs)."""
        self._count, self._inputs = count, inputs

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return the input at a position, the same as in `models.ThreeModels`."""
        return {"features": np.full((1, self._inputs), position, np.float32), "label": position}


Sample = dict[str, Any]


def unpack(samples: list[NDArray[np.float32]], count: int) -> Iterator[Sample]:
    """Yield `count` samples that already lie in shared memory, as after a stage that uses `stagepipe.empty`."""
    for position in range(count):
        yield {"image": samples[position % SAMPLE_COUNT], "label": position}


class EmptyBatches:
    """Creates batches in the outgoing shared memory, and writes only the first element of each sample.

    To write the rest would be the cost of making the samples, which is not measured.
    """

    def __init__(self, side: int, batch: int) -> None:
        self._shape = (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        image[:, 0, 0, 0] = labels % SAMPLE_COUNT
        return {"image": image, "label": labels}


class FilledBatches:
    """Creates batches in the outgoing shared memory, and copies the prepared samples into them one by one."""

    def __init__(self, side: int, batch: int) -> None:
        self._samples, self._shape = prepared(side), (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        for row, label in zip(image, labels, strict=True):
            np.copyto(row, self._samples[label % SAMPLE_COUNT])
        return {"image": image, "label": labels}


def _labels(number: int, batch: int) -> NDArray[np.int64]:
    return np.arange(number * batch, (number + 1) * batch)


def config(name: str, side: int, batch: int, count: int) -> dict[str, Any]:
    """Return the config of the contestant `name`."""
    module, size = "benchmarks.loader.samples", {"side": side, "batch": batch}
    collate = {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": batch}}
    all_samples = {"uses": "benchmarks.loader.samples.AllSamples", "with": {"side": side}}
    unpacked = {"name": "unpack", "uses": f"{module}.unpack", "with": {"count": count}}
    numbers = {"uses": range(count // batch)}
    return {
        "name": "batches",
        **{
            "stagepipe Batch": {"source": all_samples, "stages": [unpacked, collate]},
            "stagepipe Batch from copies": {
                "source": {"uses": "benchmarks.loader.samples.OwnedSamples", "with": {"side": side, "count": count}},
                "stages": [collate],
            },
            "stagepipe header only": {
                "source": numbers,
                "stages": [{"name": "build", "uses": f"{module}.EmptyBatches", "with": size}],
            },
            "stagepipe filled": {
                "source": numbers,
                "stages": [{"name": "build", "uses": f"{module}.FilledBatches", "with": size}],
            },
        }[name],
    }
