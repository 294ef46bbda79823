"""WebDataset: tar shards of the photographs, read by a WebLoader's workers. Only for jobs that read files."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.peers.frameworks.torch_data import keep, unpack
from benchmarks.peers.jobs import Item, Job, list_images, make_steps

_SHARDS = 8


def shards(job: Job, workers: int) -> Iterator[Item]:
    """Tar shards, one reader a worker; the batch is made in the worker."""
    folder = _write_shards(job.count)
    urls = str(folder / f"{{0..{_SHARDS - 1}}}.tar")
    own: dict[str, Any]
    dataset: Any = webdataset.WebDataset(urls, shardshuffle=False).map(_Steps(job.name))
    if job.batch:
        dataset, own = dataset.batched(job.batch, collation_fn=job.collate), {}
    else:
        dataset, own = dataset.batched(job.pool_chunk, collation_fn=keep), {"collate_fn": keep}  # no tiny tensors
    return unpack(job, webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4, **own))


class _Steps:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, sample: dict[str, Any]) -> Item:
        item: Item = {"index": int(sample["__key__"]), "data": sample["jpg"]}
        for step in make_steps(self._name):
            item = step(item)
        return item


def _write_shards(count: int) -> Path:
    """Write the shards beside the photographs, where the next turns find them: that is done before any training."""
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
