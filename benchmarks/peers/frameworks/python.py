"""A plain loop, and pools of processes from the standard library and joblib."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from itertools import islice

from benchmarks.peers.jobs import Item, Job, Process

_CHUNK = 16


def loop(job: Job, workers: int) -> Iterator[Item]:  # noqa: ARG001 - there is one process
    """Do everything in the caller's process."""
    return batch_up(job, map(Process(job.name), range(job.count)))


def pool(job: Job, workers: int) -> Iterator[Item]:
    """`Pool.imap` with a chunk size, forked: the default of Linux below Python 3.14."""
    job.prepare()
    with multiprocessing.get_context("fork").Pool(workers) as processes:
        chunk = _CHUNK if job.batch else 1
        yield from batch_up(job, processes.imap(Process(job.name), range(job.count), chunk))


def joblib(job: Job, workers: int) -> Iterator[Item]:
    """`Parallel(return_as="generator")` on loky."""
    from joblib import Parallel, delayed

    process = delayed(Process(job.name))
    items = Parallel(n_jobs=workers, return_as="generator")(process(index) for index in range(job.count))
    yield from batch_up(job, items)


def batch_up(job: Job, items: Iterable[Item]) -> Iterator[Item]:
    """Collate the items to batches in the caller's process, or yield them as they are."""
    remaining = iter(items)
    if not job.batch:
        yield from remaining
        return
    while samples := list(islice(remaining, job.batch)):
        yield job.collate(samples)
