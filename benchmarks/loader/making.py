"""Creates each contestant, in the contestant's own process."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.loader import collating, images, models
from benchmarks.loader.contest import (
    COLLATE,
    DATALOADERS,
    FORKED_PRELOADED,
    MODELS,
    QUICKSTART,
    REFERENCE,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
)
from benchmarks.loader.datasets import Images, Prepared, ThreeModels
from benchmarks.loader.feeds import Feed, InProcess, Stagepipe, TorchLoader
from benchmarks.loader.job import Job
from stagepipe.torch import Loader


def make(job: Job) -> Feed:
    """Create the contestant that the job names. Its workers may start with the first epoch only."""
    return _MAKERS[job.part](job)


def _collate(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        return Stagepipe(Loader(collating.config(job.contestant, job.side, job.batch, job.items)))
    return _dataloader(job, Prepared(job.side), job.batch)


def _quickstart(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        edits = images.overrides(job.contestant, job.images, job.side, job.batch)
        return Stagepipe(Loader(images.CONFIG, edits, limit=job.items))
    return _dataloader(job, Images(job.images, job.side), job.batch)


def _models(job: Job) -> Feed:
    if job.contestant == THREE_PROCESSES:
        return Stagepipe(Loader(models.config(job.items, job.model_bytes)))
    made_before = job.contestant in {FORKED_PRELOADED, SPAWNED_PRELOADED, REFERENCE}
    return _dataloader(job, ThreeModels(job.model_bytes, eager=made_before), None)


def _dataloader(job: Job, dataset: Images | Prepared | ThreeModels, batch: int | None) -> Feed:
    if job.contestant == REFERENCE:
        return InProcess(dataset, job.items, batch)
    return TorchLoader(dataset, job.items, batch, DATALOADERS[job.part][job.contestant])


_MAKERS: dict[str, Callable[[Job], Feed]] = {COLLATE: _collate, QUICKSTART: _quickstart, MODELS: _models}
