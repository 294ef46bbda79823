"""The process of a contestant, `python -m benchmarks.loader.child JOB`: makes it and prints its answer last."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch

from benchmarks.loader import models, samples
from benchmarks.loader.contest import (
    COLLATE,
    DATALOADERS,
    FORKED_PRELOADED,
    MODELS,
    QUICKSTART,
    REFERENCE,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
    Job,
)
from benchmarks.loader.datasets import Images, Prepared, ThreeModels
from benchmarks.loader.feeds import Feed, InProcess, Stagepipe, TorchLoader
from benchmarks.loader.measuring import digest, measure
from stagepipe.torch import Loader

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"

EDITS: dict[str, tuple[str, ...]] = {
    "stagepipe": (),
    "stagepipe fused x 2": ("stages.augment.fuse=true", "stages.decode.workers=2"),
}
"""What each contestant changes in the quickstart's config: nothing; or all transforms in one process with two workers,
as in DataLoader."""


def overrides(name: str, images: str, side: int, batch: int) -> list[str]:
    """Return the contestant's overrides of the quickstart's config."""
    return [f"vars.images={images}", f"vars.size={side}", f"stages.batch.with.size={batch}", *EDITS[name]]


def make(job: Job) -> Feed:
    """Create the contestant that the job names. Its workers may start with the first epoch only."""
    return _MAKERS[job.part](job)


def _collate(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        return Stagepipe(Loader(samples.config(job.contestant, job.side, job.batch, job.items)))
    return _dataloader(job, Prepared(job.side), job.batch)


def _quickstart(job: Job) -> Feed:
    if job.contestant.startswith("stagepipe"):
        edits = overrides(job.contestant, job.images, job.side, job.batch)
        return Stagepipe(Loader(CONFIG, edits, limit=job.items))
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


def main(text: str) -> None:
    """Run the job and print the answer."""
    torch.set_num_threads(1)  # as DataLoader and stagepipe do in their workers
    job = Job(**json.loads(text))
    if job.contestant == REFERENCE:
        print("\n".join(digest(batch) for batch in islice(make(job).epoch(0), job.checked)))
    else:
        print(json.dumps(asdict(measure(job, make))))


if __name__ == "__main__":
    main(sys.argv[1])
