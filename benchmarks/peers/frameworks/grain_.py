"""Grain: a MapDataset, read ahead by worker processes (`mp_prefetch`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
from absl import flags

from benchmarks.peers.jobs import Item, Job, Process

_BUFFER = 4
_READ_THREADS = 2


def processes(job: Job, workers: int) -> Iterator[Item]:
    """Worker processes, which also make the batches."""
    if not flags.FLAGS.is_parsed():  # grain's workers read absl's flags, which its documentation leaves to `app.run`
        flags.FLAGS(["peers"])
    job.prepare()
    dataset: Any = grain.MapDataset.source(range(job.count)).map(Process(job.name))
    if job.batch:
        dataset = dataset.batch(job.batch, **({"batch_fn": job.collate} if job.has_own_collate else {}))
    # Its documentation: no threads for data in memory. An element is a batch, of which few are to be read ahead.
    threads = _READ_THREADS if job.reads_files else 0
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_BUFFER if threads else 0)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_BUFFER)
    return iter(dataset.to_iter_dataset(reading).mp_prefetch(options))
