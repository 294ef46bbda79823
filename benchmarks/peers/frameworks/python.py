"""A plain loop, and pools of processes from the standard library and joblib."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from benchmarks.peers.jobs import Item, Job, MakeBatch, Process, make_steps


def loop(job: Job, workers: int) -> Iterator[Item]:  # noqa: ARG001 - there is one process
    """Do everything in the caller's process."""
    items = map(Process(job.name), range(job.count))
    if not job.batch:
        yield from items
    while samples := list(islice(items, job.batch)):
        yield job.collate(samples)


def pool(job: Job, workers: int) -> Iterator[Item]:
    """`Pool.imap` of batches or items, in chunks, forked: the default of Linux below Python 3.14."""
    job.prepare()
    work, inputs = _divide(job)
    with multiprocessing.get_context("fork").Pool(workers) as processes:
        yield from processes.imap(work, inputs, job.pool_chunk)


def pool_inheriting(job: Job, workers: int) -> Iterator[Item]:
    """The same with steps that the caller makes before the fork, so that the workers share their pages."""
    make_steps(job.name)
    return pool(job, workers)


def joblib(job: Job, workers: int) -> Iterator[Item]:
    """`Parallel(return_as="generator")` of batches or items on loky, which chooses the chunks (`batch_size="auto"`)."""
    from joblib import Parallel, delayed

    work, inputs = _divide(job)
    process = delayed(work)
    yield from Parallel(n_jobs=workers, return_as="generator")(process(entry) for entry in inputs)


def _divide(job: Job) -> tuple[Callable[[Any], Item], Iterable[Any]]:
    """Return what a worker calls, and its inputs: ranges of indices where the job has batches."""
    if not job.batch:
        return Process(job.name), range(job.count)
    return MakeBatch(job.name), job.ranges
