"""SPDL: threads in the caller's process; in a subprocess with its arena; worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

from benchmarks.peers.jobs import Item, Job, Process

_BUFFER = 4
_SEGMENTS = 12
_SEGMENT_BYTES = 48 << 20
"""More than the largest batch."""


def threads(job: Job, workers: int) -> Iterator[Item]:
    """Threads in the caller's process: SPDL's first advice, for work that releases the interpreter."""
    job.prepare()
    pipeline = _describe(job, workers).add_sink(_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def subprocess_arena(job: Job, workers: int) -> Iterator[Item]:
    """The same in a subprocess, whose arrays come back in a pool of shared memory."""
    config = _describe(job, workers).add_sink(_BUFFER).get_config()
    arena = SharedMemorySegmentPool(_SEGMENT_BYTES, _SEGMENTS)
    yield from run_pipeline_in_subprocess(config, num_threads=workers + 1, arena=arena)


def processes(job: Job, workers: int) -> Iterator[Item]:
    """A pool of worker processes for all steps and the batch: `to(ProcessPoolExecutorConfig)`."""
    pool = ProcessPoolExecutorConfig(max_workers=workers, mp_context="spawn")
    builder: Any = PipelineBuilder().add_source(range(job.count)).to(pool, buffer_size=job.batch or 1)
    builder = builder.pipe(Process(job.name))
    if job.batch:
        builder = builder.aggregate(job.batch).pipe(job.collate)
    pipeline = builder.to(MAIN_PROCESS, buffer_size=1).add_sink(_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def _describe(job: Job, workers: int) -> Any:
    builder: Any = PipelineBuilder().add_source(range(job.count)).pipe(Process(job.name), concurrency=workers)
    return builder.aggregate(job.batch).pipe(job.collate) if job.batch else builder
