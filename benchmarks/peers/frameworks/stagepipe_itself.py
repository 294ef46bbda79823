"""stagepipe, through its public API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import stagepipe
from benchmarks.peers.jobs import NUMPY_EMPTY, Item, Job, Samples


def by_hand(job: Job, workers: int) -> Iterator[Item]:
    """Cut the job as `auto` does: one pool of workers for steps of one kind, a process for each model, or a dataset."""
    return _iterate(_build_by_hand(job, workers))


def unchanged(job: Job, workers: int) -> Iterator[Item]:
    """The same with functions that do not use `stagepipe.empty`."""
    os.environ[NUMPY_EMPTY] = "1"  # before the workers' server starts
    return by_hand(job, workers)


def auto(job: Job, workers: int) -> Iterator[Item]:  # noqa: ARG001 - it finds out
    """A stage for each step, `workers: auto` and `fuse: auto`: measured at the first run, kept for the next."""
    if job.is_dataset:
        return _iterate(_build_dataset(job, "auto"))
    builder: Any = stagepipe.from_source(range(job.count)).map(job.read, workers="auto", fuse="auto")
    for step in job.steps:
        builder = builder.map(_defer(step), workers="auto", fuse="auto")
    return _iterate(builder.batch(job.batch) if job.batch else builder)


def inline(job: Job, workers: int) -> Iterator[Item]:
    """All in the caller's process, as the documentation advises for samples of a few microseconds."""
    return _iterate(_build_by_hand(job, workers), inline=True)


def _build_by_hand(job: Job, workers: int) -> Any:
    if job.is_dataset:
        return _build_dataset(job, workers)
    has_models = all(isinstance(step, type) for step in job.steps)
    builder: Any = stagepipe.from_source(range(job.count)).map(job.read, workers=1 if has_models else workers)
    for step in job.steps:
        builder = builder.map(_defer(step), fuse=not has_models)
    return builder.batch(job.batch) if job.batch else builder


def _build_dataset(job: Job, workers: Any) -> Any:
    own: dict[str, Any] = {"batch_size": job.batch, "collate_fn": job.collate} if job.has_own_collate else {}
    builder: Any = stagepipe.from_dataset(Samples(job), workers=workers, **own)
    return builder if own else builder.batch(job.batch)


def _defer(step: Any) -> Any:
    return stagepipe.defer(step) if isinstance(step, type) else step


def _iterate(builder: Any, *, inline: bool = False) -> Iterator[Item]:
    with stagepipe.Pipeline(builder, inline=inline) as pipeline:
        yield from pipeline
