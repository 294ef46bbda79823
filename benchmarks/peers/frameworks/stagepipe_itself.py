"""stagepipe, through its public API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stagepipe
from benchmarks.peers.jobs import Item, Job, Process


class Samples:
    """What the source reads: the items of a job, or its samples with all steps taken."""

    def __init__(self, job: Job, *, is_whole: bool) -> None:
        """Read nothing yet."""
        self._read, self._count = Process(job.name) if is_whole else job.read, job.count

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def __getitem__(self, index: int) -> Item:
        """Read an item."""
        return self._read(index)


def by_hand(job: Job, workers: int) -> Iterator[Item]:
    """Run the job's layout: stages in processes of their own, or a dataset like DataLoader's."""
    builder: Any
    if job.is_dataset:
        own: dict[str, Any] = {"batch_size": job.batch, "collate_fn": job.collate} if job.has_own_collate else {}
        builder = stagepipe.from_dataset(Samples(job, is_whole=True), workers=workers, **own)
        return _iterate(builder if own else builder.batch(job.batch))
    builder = stagepipe.from_source(Samples(job, is_whole=False))
    for step, keys in zip(job.steps, job.layout, strict=True):
        builder = builder.map(stagepipe.defer(step) if isinstance(step, type) else step, **keys)
    return _iterate(builder.batch(job.batch) if job.batch else builder)


def _iterate(builder: Any) -> Iterator[Item]:
    with stagepipe.Pipeline(builder) as pipeline:
        yield from pipeline
