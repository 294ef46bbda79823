"""SPDL: threads in the caller's process; in a subprocess with its arena; worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

from benchmarks.peers.jobs import Item, Job, MakeBatch, Process

_BUFFER = 4
_SEGMENTS = 12
_SEGMENT_BYTES = 48 << 20
"""More than the largest batch."""


def threads(job: Job, workers: int, *, per_batch: bool = False) -> Iterator[Item]:
    """Threads in the caller's process: SPDL's first advice, for work that releases the interpreter."""
    job.prepare()
    pipeline = _describe(job, workers, per_batch=per_batch).add_sink(_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def threads_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """The same, whose source yields the indices of a batch: one call makes a batch."""
    return threads(job, workers, per_batch=True)


def subprocess_arena(job: Job, workers: int, *, per_batch: bool = False) -> Iterator[Item]:
    """The threads in a subprocess, whose arrays come back in a pool of shared memory."""
    config = _describe(job, workers, per_batch=per_batch).add_sink(_BUFFER).get_config()
    arena = SharedMemorySegmentPool(_SEGMENT_BYTES, _SEGMENTS)
    yield from run_pipeline_in_subprocess(config, num_threads=workers + 1, arena=arena)


def subprocess_arena_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """The same, whose source yields the indices of a batch."""
    return subprocess_arena(job, workers, per_batch=True)


def processes(job: Job, workers: int) -> Iterator[Item]:
    """A pool of worker processes for all steps and the batch: `to(ProcessPoolExecutorConfig)`."""
    pool = ProcessPoolExecutorConfig(max_workers=workers, mp_context="spawn")
    builder: Any = PipelineBuilder().add_source(range(job.count)).to(pool, buffer_size=job.batch or 1)
    builder = builder.pipe(Process(job.name))
    if job.batch:
        builder = builder.aggregate(job.batch).pipe(job.collate)
    return _run_to_main(builder, workers)


def processes_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """Worker processes, each of which makes a whole batch in one call."""
    pool = ProcessPoolExecutorConfig(max_workers=workers, mp_context="spawn")
    builder: Any = PipelineBuilder().add_source(job.ranges).to(pool, buffer_size=1)
    return _run_to_main(builder.pipe(MakeBatch(job.name), concurrency=workers), workers)


def _run_to_main(builder: Any, workers: int) -> Iterator[Item]:
    pipeline = builder.to(MAIN_PROCESS, buffer_size=1).add_sink(_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def _describe(job: Job, workers: int, *, per_batch: bool) -> Any:
    builder: Any = PipelineBuilder()
    if per_batch:
        return builder.add_source(job.ranges).pipe(MakeBatch(job.name), concurrency=workers)
    builder = builder.add_source(range(job.count)).pipe(Process(job.name), concurrency=workers)
    return builder.aggregate(job.batch).pipe(job.collate) if job.batch else builder
