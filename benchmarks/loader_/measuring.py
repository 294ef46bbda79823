"""A contestant's turn: its first epoch is checked, the next ones are timed, and in the last its memory is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns

from hop_.timing import Processes, descendants
from loader_.digest import digest, spoiled, tensor
from loader_.feeds import Batch, Feed
from loader_.job import Answer, Job
from loader_.tree import pss_bytes

_LOOKS = 4
"""How often the memory is looked at, after as many batches: everything that is made once has been made by then."""


@dataclass(frozen=True)
class _Epoch:
    """Its first batch's wait, the others', and from the steady state on items, wall and CPU time."""

    first_ns: int
    waits_ns: list[int]
    items: int
    wall_ns: int
    cpu_ns: int


def measure(job: Job, make: Callable[[Job], Feed]) -> Answer:
    """Make the feed, run its epochs, end it."""
    bare, begin = pss_bytes(), perf_counter_ns()
    feed = make(job)
    try:
        digests, first_batch_ns = _checked(feed, job, begin)
        processes = Processes(descendants())
        epochs = [_timed(feed, number, job, processes) for number in range(1, job.epochs + 1)]
        pss = _looked_at(feed, job.epochs + 1)
    finally:
        feed.close()
    items = sum(epoch.items for epoch in epochs)
    return Answer(
        first_batch_s=first_batch_ns / 1e9,
        second_first_s=epochs[0].first_ns / 1e9,
        items_per_s=items / sum(epoch.wall_ns for epoch in epochs) * 1e9,
        cpu_s_per_item=sum(epoch.cpu_ns for epoch in epochs) / items / 1e9,
        waits_s=[wait / 1e9 for epoch in epochs for wait in epoch.waits_ns],
        pss_bytes=pss,
        bare_pss_bytes=bare,
        digests=digests,
        told=feed.told(),
    )


def _checked(feed: Feed, job: Job, begin: int) -> tuple[list[str], int]:
    """The first epoch: the digests of its batches, and when the first was there."""
    digests: list[str] = []
    first_ns = 0
    for batch in feed.epoch(0):
        first_ns = first_ns or perf_counter_ns() - begin
        digests.append(digest(spoiled(batch) if job.corrupt else batch))
    return digests, first_ns


def _timed(feed: Feed, number: int, job: Job, processes: Processes) -> _Epoch:
    """An epoch. Each batch is held until the next is there, as in any training loop."""
    waits: list[int] = []
    items, cpu = 0, processes.cpu_ns()
    begin = asked = perf_counter_ns()
    for batch in feed.epoch(number):
        waits.append(perf_counter_ns() - asked)
        items += _step(batch, job)
        if len(waits) == job.steady_from:
            items, cpu, begin = 0, processes.cpu_ns(), perf_counter_ns()
        asked = perf_counter_ns()
    wall, spent = perf_counter_ns() - begin, processes.cpu_ns() - cpu
    assert len(waits) == job.batches, f"{len(waits)} of {job.batches} batches came"
    return _Epoch(waits[0], waits[1:], items, wall, spent)


def _step(batch: Batch, job: Job) -> int:
    """The training process's work on a batch; how many samples it has."""
    rows = tensor(batch)
    if job.step == "sum":
        rows.sum()
    return len(rows)


def _looked_at(feed: Feed, number: int) -> int:
    """The largest of a few looks at the memory of all processes, in the middle of an epoch that is not timed."""
    looks = [pss_bytes() for _ in islice(feed.epoch(number), 2 * _LOOKS)]
    return max(looks[_LOOKS:] or looks)
