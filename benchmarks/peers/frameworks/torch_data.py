"""PyTorch: DataLoader and torchdata.nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from benchmarks.peers.jobs import JOBS, Item, Job, Process, Samples, make_steps

PREFETCH = 4


def dataloader(job: Job, workers: int) -> Iterator[Item]:
    """A DataLoader whose workers do everything, the batch included."""
    job.prepare()
    samples: Any = Samples(job)  # needs no base class
    return unpack(job, DataLoader(samples, num_workers=workers, prefetch_factor=PREFETCH, **make_batch_options(job)))


def dataloader_inheriting(job: Job, workers: int) -> Iterator[Item]:
    """The same with steps that the caller makes before its workers are forked, so that they share their pages."""
    make_steps(job.name)
    return dataloader(job, workers)


def make_batch_options(job: Job) -> dict[str, Any]:
    """Return DataLoader's options about batches. Tiny items come in lists, as they are: see `unpack`."""
    if comes_in_lists(job):
        return {"batch_size": job.pool_chunk, "collate_fn": keep}
    if not job.batch:
        return {"batch_size": None}
    own = {"collate_fn": Collate(job.name)} if job.has_own_collate else {}  # torch's own stacks into shared memory
    return {"batch_size": job.batch, **own}


def comes_in_lists(job: Job) -> bool:
    """Return whether a job's items are tiny and not in batches, so that several travel at once, and not as tensors."""
    return not job.batch and job.pool_chunk > 1


def keep(items: Any) -> Any:
    """Return the items: no tensors, no batch."""
    return items


def unpack(job: Job, batches: Iterable[Any]) -> Iterator[Item]:
    """Iterate over what a job delivers: its batches, or the items of its lists."""
    return chain.from_iterable(batches) if comes_in_lists(job) else iter(batches)


def nodes_processes(job: Job, workers: int) -> Iterator[Item]:
    """torchdata.nodes with processes."""
    return _run_nodes(job, workers, "process")


def nodes_threads(job: Job, workers: int) -> Iterator[Item]:
    """torchdata.nodes with threads."""
    return _run_nodes(job, workers, "thread")


def _run_nodes(job: Job, workers: int, method: str) -> Iterator[Item]:
    from torchdata import nodes

    job.prepare()
    node: Any = nodes.IterableWrapper(range(job.count))
    if job.batch:  # a batch of indices to a worker, as torchdata's own migration guide does
        node = nodes.Batcher(node, batch_size=job.batch, drop_last=False)
        work: Any = _MakeBatch(job)
    elif comes_in_lists(job):
        node = nodes.Batcher(node, batch_size=job.pool_chunk, drop_last=False)
        work = _MakeList(job)
    else:
        work = _MakeTensors(job)
    context = "fork" if method == "process" else None
    node = nodes.ParallelMapper(node, map_fn=work, num_workers=workers, method=method, multiprocessing_context=context)
    return unpack(job, nodes.Loader(nodes.Prefetcher(node, prefetch_factor=PREFETCH)))


class _MakeBatch:
    """All work on a batch of indices."""

    def __init__(self, job: Job) -> None:
        self._process, self._name = Process(job.name), job.name

    def __call__(self, indices: list[int]) -> Item:
        """Return the batch."""
        samples = [self._process(index) for index in indices]
        job = JOBS[self._name]
        batch: Item = to_tensors(job.collate(samples)) if job.has_own_collate else default_collate(samples)
        return batch


class _MakeList:
    """All work on a list of indices."""

    def __init__(self, job: Job) -> None:
        self._process = Process(job.name)

    def __call__(self, indices: list[int]) -> list[Item]:
        """Return the items."""
        return [self._process(index) for index in indices]


class _MakeTensors:
    """All work on an index. Tensors travel in shared memory, where arrays would not."""

    def __init__(self, job: Job) -> None:
        self._process = Process(job.name)

    def __call__(self, index: int) -> Item:
        """Return the item."""
        return to_tensors(self._process(index))


class Collate:
    """A job's collate function, small when pickled. Its tensors travel in shared memory, where arrays would not."""

    def __init__(self, name: str) -> None:
        """`name` is that of the job."""
        self._name = name

    def __call__(self, items: list[Item]) -> Item:
        """Return the batch."""
        return to_tensors(JOBS[self._name].collate(items))


def to_tensors(batch: Item) -> Item:
    """Make tensors of arrays, over the same memory."""
    return {key: torch.as_tensor(value) for key, value in batch.items()}
