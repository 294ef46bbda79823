"""Hugging Face datasets: `map` to a table on disk, then read; and streaming through a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
from torch.utils.data import DataLoader

from benchmarks.peers.frameworks.torch_data import PREFETCH, make_batch_options, unpack
from benchmarks.peers.jobs import Item, Job, Process


class Transform:
    """All work on the indices that `with_transform` gets."""

    def __init__(self, name: str) -> None:
        """Steps are made in the worker."""
        self._process = Process(name)

    def __call__(self, rows: dict[str, list[int]]) -> dict[str, list[Any]]:
        """Return columns of samples."""
        samples = [self._process(index) for index in rows["number"]]
        return {key: [sample[key] for sample in samples] for key in samples[0]}


def _make_sample(row: dict[str, int], name: str) -> Item:
    return Process(name)(row["number"])


def with_transform(job: Job, workers: int) -> Iterator[Item]:
    """A table of numbers whose transform does all work when a DataLoader's worker reads."""
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"number": range(job.count)}).with_transform(Transform(job.name))
    return _load(table, job, workers)


def streaming(job: Job, workers: int) -> Iterator[Item]:
    """An iterable dataset in as many shards as workers, mapped while a DataLoader reads."""
    table = datasets.Dataset.from_dict({"number": range(job.count)}).to_iterable_dataset(num_shards=workers)
    mapped = table.map(_make_sample, fn_kwargs={"name": job.name}, remove_columns=["number"])
    return _load(mapped, job, workers)


def _load(table: Any, job: Job, workers: int) -> Iterator[Item]:
    job.prepare()
    return unpack(job, DataLoader(table, num_workers=workers, prefetch_factor=PREFETCH, **make_batch_options(job)))
