"""A turn of one framework with one job, in a separate process: `run_turn("benchmarks.peers.turn", ...)`.

A timed turn takes batches for some seconds, or until the data ends. An inspected turn is not timed: it takes a few
batches to compare them with the plain loop's, then runs the job while its parent samples its memory.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.figures import count_waits
from benchmarks.common.turn import CpuMeter, answer_turn
from benchmarks.peers.jobs import JOBS, Item, Job

PADDED = "tokens"
"""The field that a batch pads with 0. The padding depends on the batch's other samples, so it is cut from a sample."""


def digest_batches(batches: Iterable[Item]) -> dict[str, int]:
    """Return the number of samples, and three CRC-32 values.

    `forms` covers the names, dtypes and shapes of each sample, `samples` also their bytes. Both sort the samples, so
    their order does not matter. `batches` covers whole batches (names, dtypes, shapes, bytes) in order.
    """
    forms, samples, in_order = [], [], 0
    for batch in batches:
        arrays = {key: np.asarray(value) for key, value in sorted(batch.items()) if not key.startswith("_")}
        in_order = _digest(arrays, in_order)
        for sample in split_batch(arrays):
            forms.append(zlib.crc32(_describe(sample)))
            samples.append(_digest(sample))
    return {
        "inspected": len(samples),
        "forms": zlib.crc32(np.array(sorted(forms), np.int64).tobytes()),
        "samples": zlib.crc32(np.array(sorted(samples), np.int64).tobytes()),
        "batches": in_order,
    }


def find_difference(own: dict[str, int], reference: dict[str, int], *, is_ordered: bool, own_pixels: bool) -> str:
    """Return the differences from the plain loop, or ""."""
    meanings = {"inspected": "another number of samples", "forms": "other names, dtypes or shapes"}
    if not own_pixels:
        meanings["samples"] = "other samples"
        if is_ordered:
            meanings["batches"] = "another order, or other batches"
    return next((meaning for key, meaning in meanings.items() if own[key] != reference[key]), "")


def split_batch(arrays: dict[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the samples of a batch, or a single item unchanged. Padding is cut."""
    if not arrays["index"].ndim:
        yield arrays
        return
    for row in zip(*arrays.values(), strict=True):
        sample = {key: np.asarray(value) for key, value in zip(arrays, row, strict=True)}
        if PADDED in sample:
            sample[PADDED] = np.trim_zeros(sample[PADDED], "b")
        yield sample


def _digest(arrays: dict[str, NDArray[Any]], begin: int = 0) -> int:
    digest = zlib.crc32(_describe(arrays), begin)
    for array in arrays.values():
        digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return digest


def _describe(arrays: dict[str, NDArray[Any]]) -> bytes:
    return repr([(key, array.dtype.str, array.shape) for key, array in arrays.items()]).encode()


_WARM_UP_S = 0.5
_MIN_WARM_UP_BATCHES = 4
_MEMORY_S = 1.5
_ENOUGH_BATCHES = 34
"""204 in six rounds, enough for a 99th percentile."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The settings of a turn. `started_s`: the clock (`time.monotonic`) when its process was started.

    A timed turn measures for `min_s`, and up to `max_s` if that is not enough for a percentile of its waits.
    """

    job: str
    framework: str
    workers: int
    min_s: float
    max_s: float
    started_s: float
    inspected: int = 0
    """Samples to inspect; 0: the turn is timed."""


Run = Callable[[Job, int], Iterator[Item]]
_unfinished: list[Iterator[Item]] = []
"""Kept until the process ends, so that it does not wait for an orderly end of the job."""


def take_turn(**keys: Any) -> dict[str, Any]:
    """Take the turn and return its figures."""
    request = Request(**keys)
    module, _, name = request.framework.partition(":")
    run: Run = getattr(import_module(f"benchmarks.peers.{module}"), name)
    return _inspect(run, request) if request.inspected else _time(run, request)


def _time(run: Run, request: Request) -> dict[str, Any]:
    """Return the time to the first item, from the start of the process with all imports, and then the rates."""
    batches = run(JOBS[request.job], request.workers)
    _unfinished.append(batches)
    next(batches)
    first_s = time.monotonic() - request.started_s
    _warm_up(batches, _WARM_UP_S)
    items, waits_s = 0, []
    cpu, begin_s = CpuMeter(), time.perf_counter()
    now_s = begin_s
    for batch in batches:
        before_s, now_s = now_s, time.perf_counter()
        waits_s.append(now_s - before_s)
        items += count_samples(batch)
        needed_s = request.min_s if len(waits_s) >= _ENOUGH_BATCHES else request.max_s
        if now_s - begin_s > needed_s:
            break
    cpu_s = cpu.measure_s()
    return {
        "first_s": first_s,
        "items_per_s": items / (now_s - begin_s),
        "cpu_s_per_item": cpu_s / items,
        "waits": count_waits(waits_s),
        "items": items,
    }


def _warm_up(batches: Iterator[Item], seconds: float) -> None:
    begin_s = time.perf_counter()
    for number, _ in enumerate(batches):
        if number >= _MIN_WARM_UP_BATCHES and time.perf_counter() - begin_s > seconds:
            return


def _inspect(run: Run, request: Request) -> dict[str, Any]:
    """Return the digests of a few samples, and the time from which the memory is the memory of the whole job."""
    job = JOBS[request.job]
    digests = digest_batches(run(replace(job, count=request.inspected), request.workers))
    gc.collect()  # a framework may end its workers only with its last object
    memory_from_s = time.monotonic()
    _unfinished.append(run(job, request.workers))
    _warm_up(_unfinished[0], _MEMORY_S)
    return {**digests, "memory_from_s": memory_from_s}


def count_samples(batch: Item) -> int:
    """Return the samples of a batch, or 1 for a single item."""
    index = batch["index"]
    return len(index) if getattr(index, "ndim", 0) else 1


if __name__ == "__main__":
    answer_turn(sys.argv[1:], take_turn)
    sys.stdout.flush()
    os._exit(0)  # a framework that is left in mid-job may wait for its workers for ever
