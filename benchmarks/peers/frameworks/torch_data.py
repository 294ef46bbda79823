"""PyTorch: DataLoader and torchdata.nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from benchmarks.peers.jobs import JOBS, Item, Job, Process, Samples

PREFETCH = 4


def dataloader(job: Job, workers: int) -> Iterator[Item]:
    """A DataLoader whose workers do everything, the batch included."""
    job.prepare()
    samples: Any = Samples(job)  # needs no base class
    return iter(DataLoader(samples, num_workers=workers, prefetch_factor=PREFETCH, **make_batch_options(job)))


def make_batch_options(job: Job) -> dict[str, Any]:
    """Return DataLoader's options about batches."""
    if not job.batch:
        return {"batch_size": None}
    own = {"collate_fn": Collate(job.name)} if job.has_own_collate else {}  # torch's own stacks into shared memory
    return {"batch_size": job.batch, **own}


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
    else:
        work = _MakeTensors(job)
    context = "fork" if method == "process" else None
    node = nodes.ParallelMapper(node, map_fn=work, num_workers=workers, method=method, multiprocessing_context=context)
    return iter(nodes.Loader(nodes.Prefetcher(node, prefetch_factor=PREFETCH)))


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
