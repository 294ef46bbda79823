"""A batch of prepared samples: stagepipe's configs, and the stages that they name. The stages run in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stagepipe
from benchmarks.loader.samples import SAMPLE_COUNT, prepared

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
        """Create batches of `batch` samples with images of `side` x `side` pixels."""
        self._shape = (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        """Return batch `number`."""
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        image[:, 0, 0, 0] = labels % SAMPLE_COUNT
        return {"image": image, "label": labels}


class FilledBatches:
    """Creates batches in the outgoing shared memory, and copies the prepared samples into them one by one."""

    def __init__(self, side: int, batch: int) -> None:
        """Create batches of `batch` samples with images of `side` x `side` pixels."""
        self._samples, self._shape = prepared(side), (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        """Return batch `number`."""
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        for row, label in zip(image, labels, strict=True):
            np.copyto(row, self._samples[label % SAMPLE_COUNT])
        return {"image": image, "label": labels}


def _labels(number: int, batch: int) -> NDArray[np.int64]:
    return np.arange(number * batch, (number + 1) * batch)


def config(name: str, side: int, batch: int, count: int) -> dict[str, Any]:
    """Return the config of the contestant `name`."""
    module, size = "benchmarks.loader.collating", {"side": side, "batch": batch}
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
