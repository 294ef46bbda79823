"""stagepipe, through its public API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stagepipe
from benchmarks.peers.jobs import Item, Job, Samples


def by_hand(job: Job, workers: int) -> Iterator[Item]:
    """Cut the job as `auto` does: one pool of workers for steps of one kind, a process for each model, or a dataset."""
    builder: Any
    if job.is_dataset:
        own: dict[str, Any] = {"batch_size": job.batch, "collate_fn": job.collate} if job.has_own_collate else {}
        builder = stagepipe.from_dataset(Samples(job), workers=workers, **own)
        return _iterate(builder if own else builder.batch(job.batch))
    has_models = all(isinstance(step, type) for step in job.steps)
    builder = stagepipe.from_source(range(job.count)).map(job.read, workers=1 if has_models else workers)
    for step in job.steps:
        function: Any = stagepipe.defer(step) if isinstance(step, type) else step
        builder = builder.map(function, fuse=not has_models)
    return _iterate(builder.batch(job.batch) if job.batch else builder)


def _iterate(builder: Any) -> Iterator[Item]:
    with stagepipe.Pipeline(builder) as pipeline:
        yield from pipeline
