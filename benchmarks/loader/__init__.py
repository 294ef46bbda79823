"""The contestants of each part, the request to a contestant's process and its answer; samples, and configs of collate.

No module here imports torch: neither the process that starts the contestants nor stagepipe's workers need it, which
import the sources and stages by dotted path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import stagepipe

REFERENCE = "reference"
"""Not a contestant: the first epoch made in one process without a transport. All others are compared with it."""
COLLATE, QUICKSTART, MODELS = PARTS = ("collate", "quickstart", "models")

BATCH, COPIED = "stagepipe Batch", "stagepipe Batch from copies"
FILLED, HEADER_ONLY = "stagepipe filled", "stagepipe header only"
PLAIN, FUSED = "stagepipe", "stagepipe fused x 2"
DATALOADER, TWO_WORKERS = "DataLoader", "DataLoader 2 workers"
THREE_PROCESSES = "stagepipe 3 processes"
FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED = (
    "DataLoader 3 forked",
    "DataLoader 3 forked made before",
    "DataLoader 3 spawned handed over",
)
SPAWNED = "DataLoader 3 spawned"


@dataclass(frozen=True)
class Workers:
    """The settings of a DataLoader. Its workers are persistent; everything else keeps its default."""

    count: int
    prefetch: int = 2
    context: Literal["fork", "spawn"] = "fork"


DATALOADERS: dict[str, dict[str, Workers]] = {
    COLLATE: {DATALOADER: Workers(1), TWO_WORKERS: Workers(2)},
    QUICKSTART: {
        "DataLoader 1 worker prefetch 2": Workers(1),
        "DataLoader 2 workers prefetch 2": Workers(2),
        "DataLoader 2 spawned prefetch 2": Workers(2, context="spawn"),
    },
    MODELS: {
        SPAWNED: Workers(3, context="spawn"),
        FORKED: Workers(3),
        FORKED_PRELOADED: Workers(3),
        SPAWNED_PRELOADED: Workers(3, context="spawn"),
    },
}
CONTESTANTS: dict[str, tuple[str, ...]] = {
    COLLATE: (BATCH, COPIED, FILLED, *DATALOADERS[COLLATE], HEADER_ONLY),
    QUICKSTART: (PLAIN, FUSED, *DATALOADERS[QUICKSTART]),
    MODELS: (THREE_PROCESSES, *DATALOADERS[MODELS]),
}


Step = Literal["none", "sum"]
SEED = 17
"""The quickstart's seed, which determines every order and every random draw."""


@dataclass(frozen=True)
class Job:
    """One contestant's turn in one part."""

    part: str
    contestant: str
    items: int
    """Samples in an epoch, counted before they are batched."""
    batch: int
    side: int
    """Side of the images in pixels."""
    steady_from: int
    """The clock starts when this batch arrives; 0: with the request for the epoch."""
    epochs: int
    """The measured epochs, after the first one."""
    checked: int
    """The batches of the first epoch that are taken and checked; it is left after them."""
    step: Step
    """The work of the training process on a batch: nothing, or the sum of its elements, which reads every byte."""
    images: str
    model_bytes: int
    corrupt: bool = False
    """Corrupt one element of the arriving data; the check must notice."""

    @property
    def batches(self) -> int:
        """The number of batches in an epoch; the last may be shorter."""
        return -(-self.items // self.batch)


@dataclass(frozen=True)
class Answer:
    """The measurements of one turn."""

    first_batch_s: float
    """Time to the first batch of the first epoch, from before the loader is created, with everything imported."""
    second_first_s: float
    """Time from the request for the last measured epoch to its first batch."""
    items_per_s: float
    cpu_s_per_item: float
    """Processor time of the whole process tree in the steady state, divided by the items of that time."""
    waits_s: list[float]
    """The training process's wait for each batch of the measured epochs, except the first of an epoch."""
    pss_bytes: int
    """The largest sum over the process tree, in the middle of an epoch."""
    bare_pss_bytes: int
    """Memory of only the training process, with torch and stagepipe imported and nothing created yet."""
    digests: list[str]
    """The digests of the first epoch's checked batches, in order."""
    told: list[str]
    """The lines of stagepipe's own report: its stages, its hops, its verdict."""


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

    Writing the rest would measure the cost of making the samples.
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


def make_collate_config(name: str, side: int, batch: int, count: int) -> dict[str, Any]:
    """Return the config of the contestant `name`."""
    module, size = "benchmarks.loader", {"side": side, "batch": batch}
    collate = {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": batch}}
    all_samples = {"uses": "benchmarks.loader.AllSamples", "with": {"side": side}}
    unpacked = {"name": "unpack", "uses": f"{module}.unpack", "with": {"count": count}}
    numbers = {"uses": range(count // batch)}
    return {
        "name": "batches",
        **{
            "stagepipe Batch": {"source": all_samples, "stages": [unpacked, collate]},
            "stagepipe Batch from copies": {
                "source": {"uses": "benchmarks.loader.OwnedSamples", "with": {"side": side, "count": count}},
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
