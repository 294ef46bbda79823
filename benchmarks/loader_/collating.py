"""A batch of prepared samples: stagepipe's stages, named by dotted path, which run in its workers; its configs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stagepipe
from loader_.samples import KEPT, prepared

Sample = dict[str, Any]


def unpack(samples: list[NDArray[np.float32]], count: int) -> Iterator[Sample]:
    """`count` samples that lie in shared memory already, as those of a stage that made them in `stagepipe.empty` do."""
    for position in range(count):
        yield {"image": samples[position % KEPT], "label": position}


class Begin:
    """Batches in the outgoing shared memory, of which only each sample's first element is written.

    What the rest would cost to write is the price of making the samples, which is not measured.
    """

    def __init__(self, side: int, batch: int) -> None:
        """Batches of `batch` samples."""
        self._shape = (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        """Batch `number`."""
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        image[:, 0, 0, 0] = labels % KEPT
        return {"image": image, "label": labels}


class Fill:
    """The same, and the prepared samples are copied into it, one by one, by the stage."""

    def __init__(self, side: int, batch: int) -> None:
        """Batches of `batch` samples."""
        self._samples, self._shape = prepared(side), (batch, 3, side, side)

    def __call__(self, number: int) -> Sample:
        """Batch `number`."""
        labels = _labels(number, self._shape[0])
        image = stagepipe.empty(self._shape, np.float32)
        for row, label in zip(image, labels, strict=True):
            np.copyto(row, self._samples[label % KEPT])
        return {"image": image, "label": labels}


def _labels(number: int, batch: int) -> NDArray[np.int64]:
    return np.arange(number * batch, (number + 1) * batch)


def config(name: str, side: int, batch: int, count: int) -> dict[str, Any]:
    """The pipeline of the contestant `name`."""
    here, size = "loader_.collating", {"side": side, "batch": batch}
    collate = {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": batch}}
    chest = {"uses": "loader_.samples.Chest", "with": {"side": side}}
    unpacked = {"name": "unpack", "uses": f"{here}.unpack", "with": {"count": count}}
    numbers = {"uses": range(count // batch)}
    return {
        "name": "batches",
        **{
            "stagepipe Batch": {"source": chest, "stages": [unpacked, collate]},
            "stagepipe Batch from copies": {
                "source": {"uses": "loader_.samples.Own", "with": {"side": side, "count": count}},
                "stages": [collate],
            },
            "stagepipe in place": {
                "source": numbers,
                "stages": [{"name": "build", "uses": f"{here}.Begin", "with": size}],
            },
            "stagepipe in place filled": {
                "source": numbers,
                "stages": [{"name": "build", "uses": f"{here}.Fill", "with": size}],
            },
        }[name],
    }
