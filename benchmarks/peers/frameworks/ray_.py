"""Ray Data, in a local cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import ray

from benchmarks.common.turn import ROOT
from benchmarks.peers.jobs import JOBS, Item, Job, Process

_STORE_BYTES = 2 << 30
_BLOCK_ROWS = 512
_WRITER_BLOCK_ROWS = 64
"""Of `thumbnails`: a tenth of a second's work."""
_ACTOR_BLOCK_ROWS = 16
"""A block goes from actor to actor as a whole: 512 rows of `models` would take a minute before the first comes."""


def data(job: Job, workers: int) -> Iterator[Item]:
    """All steps in tasks; in a pool of actors where one of them is a class; an actor for each where all are.

    `iter_batches` collates.
    """
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        num_cpus=workers,
        ignore_reinit_error=True,
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    kinds = {isinstance(step, type) for step in job.steps}
    rows = _BLOCK_ROWS if kinds <= {False} else _ACTOR_BLOCK_ROWS if kinds == {True} else _WRITER_BLOCK_ROWS
    dataset: Any = ray.data.range(job.count, override_num_blocks=max(workers * 8, job.count // rows))
    if kinds == {True}:
        share = workers / (len(job.steps) + 2)  # reading and an actor for each model share the CPUs
        dataset = dataset.map(_Read(job.name), num_cpus=share)
        for number in range(len(job.steps)):
            dataset = dataset.map(_Take, fn_constructor_args=(job.name, number), concurrency=1, num_cpus=share)
    elif True in kinds:
        share = (workers - 1) / workers  # an actor for each CPU; a task that makes the range needs a whole one
        dataset = dataset.map(_Whole, fn_constructor_args=(job.name,), concurrency=workers, num_cpus=share)
    else:
        dataset = dataset.map(_Whole(job.name))
    if not job.batch:
        yield from dataset.iter_rows()
        return
    for batch in dataset.iter_batches(batch_size=job.batch, prefetch_batches=4, batch_format="numpy"):
        yield _pad(job, batch)


def _pad(job: Job, batch: Item) -> Item:
    if not job.has_own_collate:
        return batch
    return job.collate([dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)])


class _Read:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: dict[str, Any]) -> Item:
        return JOBS[self._name].read(int(row["id"]))


class _Whole:
    def __init__(self, name: str) -> None:
        self._process = Process(name)

    def __call__(self, row: dict[str, Any]) -> Item:
        sample = self._process(int(row["id"]))
        return {key: value.numpy() if hasattr(value, "numpy") else value for key, value in sample.items()}


class _Take:
    def __init__(self, name: str, number: int) -> None:
        step = JOBS[name].steps[number]
        self._step = step() if isinstance(step, type) else step

    def __call__(self, row: Item) -> Item:
        taken: Item = self._step(row)
        return taken
