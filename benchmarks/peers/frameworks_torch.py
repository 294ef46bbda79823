"""Frameworks around torch: DataLoader and torchdata.nodes, Hugging Face datasets, WebDataset. See `frameworks`.

Hugging Face's `map` is used in its streaming form: the other form writes its table to the disk before the first item.
WebDataset reads tar shards of the photographs in a WebLoader's workers.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from benchmarks.peers.jobs import JOBS, Item, Job, Process, Samples, list_images, make_steps

PREFETCH = 4


def dataloader(job: Job, workers: int) -> Iterator[Item]:
    """A DataLoader whose workers do everything, including the batch."""
    job.prepare()
    samples: Any = Samples(job)  # needs no base class
    return unpack(job, DataLoader(samples, num_workers=workers, prefetch_factor=PREFETCH, **make_batch_options(job)))


def dataloader_inheriting(job: Job, workers: int) -> Iterator[Item]:
    """The same with steps that the caller makes before its workers are forked, so that they share their pages."""
    make_steps(job.name)
    return dataloader(job, workers)


def make_batch_options(job: Job) -> dict[str, Any]:
    """Return DataLoader's options about batches. Tiny items are sent unchanged in lists: see `unpack`."""
    if comes_in_lists(job):
        return {"batch_size": job.pool_chunk, "collate_fn": keep}
    if not job.batch:
        return {"batch_size": None}
    own = (
        {"collate_fn": partial(collate, job.name)} if job.has_own_collate else {}
    )  # torch's own stacks into shared memory
    return {"batch_size": job.batch, **own}


def comes_in_lists(job: Job) -> bool:
    """Return whether a job's items are tiny and not batched, so that several are sent at once, and not as tensors."""
    return not job.batch and job.pool_chunk > 1


def keep(items: Any) -> Any:
    """Return the items unchanged: no tensors, no batch."""
    return items


def unpack(job: Job, batches: Iterable[Any]) -> Iterator[Item]:
    """Iterate over the results of a job: its batches, or the items of its lists."""
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
    work: Callable[..., Any]
    node: Any = nodes.IterableWrapper(range(job.count))
    if job.batch:  # a batch of indices to a worker, as torchdata's own migration guide does
        node = nodes.Batcher(node, batch_size=job.batch, drop_last=False)
        work = _make_batch
    elif comes_in_lists(job):
        node = nodes.Batcher(node, batch_size=job.pool_chunk, drop_last=False)
        work = _make_list
    else:
        work = _make_tensors
    context = "fork" if method == "process" else None
    node = nodes.ParallelMapper(
        node,
        map_fn=partial(work, job.name),
        num_workers=workers,
        method=method,
        multiprocessing_context=context,
    )
    return unpack(job, nodes.Loader(nodes.Prefetcher(node, prefetch_factor=PREFETCH)))


def _make_list(name: str, indices: list[int]) -> list[Item]:
    """Do all work on a list of indices."""
    return list(map(Process(name), indices))


def _make_batch(name: str, indices: list[int]) -> Item:
    """Do all work on a batch of indices."""
    job, samples = JOBS[name], _make_list(name, indices)
    batch: Item = collate(name, samples) if job.has_own_collate else default_collate(samples)
    return batch


def _make_tensors(name: str, index: int) -> Item:
    """Do all work on an index. Tensors travel in shared memory, where arrays would not."""
    return to_tensors(Process(name)(index))


def collate(name: str, items: list[Item]) -> Item:
    """Make a batch with a job's own function. Tensors travel in shared memory, where arrays would not."""
    return to_tensors(JOBS[name].collate(items))


def to_tensors(batch: Item) -> Item:
    """Make tensors of arrays, over the same memory."""
    return {key: torch.as_tensor(value) for key, value in batch.items()}


def _transform(name: str, rows: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Do all work on the indices that `with_transform` gets, and return columns of samples."""
    samples = _make_list(name, rows["number"])
    return {key: [sample[key] for sample in samples] for key in samples[0]}


def _make_sample(row: dict[str, int], name: str) -> Item:
    return Process(name)(row["number"])


def with_transform(job: Job, workers: int) -> Iterator[Item]:
    """A table of numbers whose transform does all work when a DataLoader's worker reads it."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"number": range(job.count)}).with_transform(partial(_transform, job.name))
    return _load_table(table, job, workers)


def streaming(job: Job, workers: int) -> Iterator[Item]:
    """An iterable dataset in as many shards as workers, mapped while a DataLoader reads."""
    import datasets

    table = datasets.Dataset.from_dict({"number": range(job.count)}).to_iterable_dataset(num_shards=workers)
    mapped = table.map(_make_sample, fn_kwargs={"name": job.name}, remove_columns=["number"])
    return _load_table(mapped, job, workers)


def _load_table(table: Any, job: Job, workers: int) -> Iterator[Item]:
    job.prepare()
    return unpack(job, DataLoader(table, num_workers=workers, prefetch_factor=PREFETCH, **make_batch_options(job)))


_SHARDS = 8


def shards(job: Job, workers: int) -> Iterator[Item]:
    """Tar shards, one reader per worker; the worker makes the batch."""
    import webdataset

    folder = _write_shards(job.count)
    urls = str(folder / f"{{0..{_SHARDS - 1}}}.tar")
    own: dict[str, Any]
    dataset: Any = webdataset.WebDataset(urls, shardshuffle=False).map(partial(_take_steps, job.name))
    if job.batch:
        dataset, own = dataset.batched(job.batch, collation_fn=job.collate), {}
    else:
        dataset, own = dataset.batched(job.pool_chunk, collation_fn=keep), {"collate_fn": keep}  # no tiny tensors
    return unpack(job, webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4, **own))


def _take_steps(name: str, sample: dict[str, Any]) -> Item:
    item: Item = {"index": int(sample["__key__"]), "data": sample["jpg"]}
    for step in make_steps(name):
        item = step(item)
    return item


def _write_shards(count: int) -> Path:
    """Write the shards next to the photographs, for later turns too: a user would do it before any training."""
    paths = list_images()
    folder = paths[0].parents[2] / f"shards-{count}"
    if folder.exists():
        return folder
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    for shard in range(_SHARDS):
        with tarfile.open(unfinished / f"{shard}.tar", "w") as tar:
            for index in range(shard, min(count, 6 * len(paths)), _SHARDS):
                content = paths[index % len(paths)].read_bytes()
                member = tarfile.TarInfo(f"{index:08d}.jpg")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    unfinished.rename(folder)
    return folder
