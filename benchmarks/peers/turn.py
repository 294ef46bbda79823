"""A turn of one framework with one job: `python -m benchmarks.peers.turn JOB RESULT`, in a process of its own.

A timed turn takes batches until the budget is spent or the data ends. An inspected one is not timed: it takes a few
batches to compare them with those of the plain loop, then measures memory in the middle of the job.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.common.usage import CpuMeter, measure_pss_bytes
from benchmarks.peers.jobs import JOBS, Item, Job

_WARM_UP_S = 1.0
_MIN_WARM_UP_BATCHES = 4
_PSS_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a turn measures. `started_s`: the clock (`time.monotonic`) when its process was started."""

    job: str
    framework: str
    workers: int
    budget_s: float
    started_s: float
    inspected: int = 0
    """Samples to inspect; 0: the turn is timed."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a turn measured."""

    first_s: float = 0.0
    """From the start of the process to the first batch: Python's start and all imports included."""
    items_per_s: float = 0.0
    cpu_s_per_item: float = 0.0
    """Processor time of all processes in the steady state, for an item."""
    p99_wait_s: float = 0.0
    items: int = 0
    pss_bytes: int = 0
    inspected: int = 0
    digest: int = 0
    """CRC-32 over the inspected samples, whatever their order."""


Run = Callable[[Job, int], Iterator[Item]]


def main(request_text: str, result: str) -> None:
    """Take the turn and write its figures. Whatever the framework has started ends with this process."""
    request = Request(**json.loads(request_text))
    module, _, name = request.framework.partition(":")
    run: Run = getattr(import_module(f"benchmarks.peers.frameworks.{module}"), name)
    figures = _inspect(run, request) if request.inspected else _time(run, request)
    Path(result).write_text(json.dumps(asdict(figures)))
    sys.stdout.flush()
    os._exit(0)  # a framework that is left in mid-job may wait for its workers for ever


def _time(run: Run, request: Request) -> Figures:
    batches = run(JOBS[request.job], request.workers)
    next(batches)
    first_s = time.monotonic() - request.started_s
    _warm_up(batches)
    items, waits_s = 0, []
    cpu, begin_s = CpuMeter(), time.perf_counter()
    now_s = begin_s
    for batch in batches:
        before_s, now_s = now_s, time.perf_counter()
        waits_s.append(now_s - before_s)
        items += count_samples(batch)
        if now_s - begin_s > request.budget_s:
            break
    cpu_s = cpu.measure_s()
    elapsed_s = now_s - begin_s
    return Figures(
        first_s=first_s,
        items_per_s=items / elapsed_s,
        cpu_s_per_item=cpu_s / items,
        p99_wait_s=float(np.percentile(waits_s, 99)),
        items=items,
    )


def _warm_up(batches: Iterator[Item]) -> None:
    begin_s = time.perf_counter()
    for number, _ in enumerate(batches):
        if number >= _MIN_WARM_UP_BATCHES and time.perf_counter() - begin_s > _WARM_UP_S:
            return


def _inspect(run: Run, request: Request) -> Figures:
    job = JOBS[request.job]
    few = replace(job, count=request.inspected)
    digests = sorted(digest for batch in run(few, request.workers) for digest in _digest_samples(batch))
    batches = run(job, request.workers)
    _warm_up(batches)
    samples = [measure_pss_bytes() for _ in itertools.islice(batches, _PSS_SAMPLES)]
    digest = zlib.crc32(np.array(digests).tobytes())
    return Figures(inspected=len(digests), digest=digest, pss_bytes=max(samples))


def count_samples(batch: Item) -> int:
    """Return the samples of a batch, or 1 for a single item."""
    index = batch["index"]
    return len(index) if getattr(index, "ndim", 0) else 1


def _digest_samples(batch: Item) -> Iterator[int]:
    """Yield a digest of each sample. Padding does not count: tokens are never 0 at the end of a sample."""
    arrays = {key: np.asarray(value) for key, value in batch.items() if not key.startswith("_")}
    if not arrays["index"].ndim:
        arrays = {key: value[np.newaxis] for key, value in arrays.items()}
    for row in zip(*(arrays[key] for key in sorted(arrays)), strict=True):
        parts = (np.trim_zeros(part, "b") if part.ndim == 1 else part for part in row)
        yield zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
