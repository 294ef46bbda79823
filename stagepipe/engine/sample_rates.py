"""What samples of the board say about the time between them: shares, rates and queues. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from stagepipe.plan import SINK_NAME, ProcessPlan
from stagepipe.report import StageProgress
from stagepipe.runtime import DeliverySnapshot, ProcessSample, RunSample, RunSnapshot

_AVERAGING_NS: Final = 2_000_000_000
"""Figures of a stage on the terminal are means of 2 s: steady enough to read, and soon those of a change."""


class StageRates:
    """The rate, the busy share and the queue of each process over the last 2 s.

    >>> rates = StageRates()  # doctest: +SKIP
    >>> rates.update(snapshot, sampler.take())[1].busy  # doctest: +SKIP
    0.93
    """

    def __init__(self) -> None:
        self._points: deque[tuple[RunSample, DeliverySnapshot]] = deque()
        self._last_rates: tuple[StageProgress, ...] = ()

    def update(self, snapshot: RunSnapshot, sample: RunSample) -> tuple[StageProgress, ...]:
        """Return the processes in the order of the chain, the consumer last. Call it now and then."""
        points = self._points
        points.append((sample, snapshot.deliveries))
        oldest_ns = sample.taken_at_ns - _AVERAGING_NS
        while len(points) > 2 and points[1][0].taken_at_ns <= oldest_ns:  # noqa: PLR2004 - two make an interval
            points.popleft()
        plans = [workers[0].slot.process_plan for workers in snapshot.worker_groups]
        stages = [self._compute_stage(index, plans, snapshot.starting_stages) for index in range(len(plans))]
        self._last_rates = (*stages, self._compute_consumer(plans))
        return self._last_rates

    def _compute_stage(self, index: int, plans: Sequence[ProcessPlan], starting: Sequence[str]) -> StageProgress:
        plan = plans[index]
        samples = [self._points[end][0] for end in (0, -1)]
        own = [sample.processes[index] for sample in samples]
        if self._last_rates and own[1].covered_ns == own[0].covered_ns:  # all its workers have been in a function
            return replace(self._last_rates[index], is_starting=plan.name in starting)
        [items_per_ns] = divide_by_covered_time(own, lambda sample: sample.items)
        [busy] = divide_by_covered_time(own, lambda sample: sample.busy_ns)
        [starved] = divide_by_covered_time(own, lambda sample: sample.starved_ns)
        [blocked] = divide_by_covered_time(own, lambda sample: sample.blocked_ns)
        [queued] = compute_queued(samples, index, plans)
        return StageProgress(
            name=plan.name,
            fused=tuple(stage.name for stage in plan.stages[1:]),
            items_per_s=items_per_ns * 1e9 * plan.workers,
            busy=min(busy, 1.0),
            queued=queued if index else 0.0,  # nothing is sent to the source
            starved=min(starved, 1.0),
            blocked=min(blocked, 1.0),
            is_starting=plan.name in starting,
        )

    def _compute_consumer(self, plans: Sequence[ProcessPlan]) -> StageProgress:
        (before, delivered_before), (after, delivered) = self._points[0], self._points[-1]
        elapsed_ns = max(delivered.wall_ns - delivered_before.wall_ns, 1)
        [queued] = compute_queued([before, after], len(plans), plans)
        return StageProgress(
            name=SINK_NAME,
            items_per_s=(delivered.items - delivered_before.items) * 1e9 / elapsed_ns,
            busy=min(max(delivered.busy_ns - delivered_before.busy_ns, 0) / elapsed_ns, 1.0),
            queued=queued,
            starved=min(max(delivered.wait_ns - delivered_before.wait_ns, 0) / elapsed_ns, 1.0),
        )


def divide_by_covered_time(samples: Sequence[ProcessSample], count: Callable[[ProcessSample], int]) -> list[float]:
    """Return for each interval what was counted in it, divided by the time of all workers that this is about.

    An interval at whose end nothing new was written, because the workers were in a function, has the value of the next.
    """
    values: list[float] = []
    last_written, waiting_intervals = samples[0], 0
    for sample in samples[1:]:
        waiting_intervals += 1
        covered_ns = sample.covered_ns - last_written.covered_ns
        if covered_ns > 0:
            values += [max(count(sample) - count(last_written), 0) / covered_ns] * waiting_intervals
            last_written, waiting_intervals = sample, 0
    return values + [0.0] * waiting_intervals


def trace_queued(samples: Sequence[RunSample], index: int | None) -> tuple[float, ...]:
    """Return the mean number of messages that waited for process `index`, or for the consumer (None), in each interval.

    A message is counted when it is received, but it waited before: the waits of those of an interval are spread over
    the time from their mean wait before it to its end. What has not been received yet is not known to wait.
    """
    edges_ns = np.array([sample.taken_at_ns for sample in samples], np.float64)
    queued_ns = np.zeros(len(samples) - 1)
    for before, sample in pairwise(samples):
        (old_received, old_waited_ns), (received, waited_ns) = (_read_waits(each, index) for each in (before, sample))
        total_ns = max(waited_ns - old_waited_ns, 0)
        wait_ns = total_ns / max(received - old_received, 1)
        first_ns = max(before.taken_at_ns - wait_ns, edges_ns[0])
        ends_ns = np.clip(edges_ns, first_ns, sample.taken_at_ns)
        queued_ns += total_ns * np.diff(ends_ns) / max(sample.taken_at_ns - first_ns, 1)
    return tuple(round(float(queued), 2) for queued in queued_ns / np.maximum(np.diff(edges_ns), 1))


def _read_waits(sample: RunSample, index: int | None) -> tuple[int, int]:
    """The messages that a process, or the consumer (None), has received, and how long they waited before."""
    if index is None:
        return sample.consumer_received, sample.consumer_queue_ns
    return sample.processes[index].received, sample.processes[index].queue_ns


def compute_queued(samples: Sequence[RunSample], index: int, processes: Sequence[ProcessPlan]) -> tuple[float, ...]:
    """Return the mean number of messages that waited for process `index`, by Little's law. The last is the consumer."""
    if index < len(processes):
        waits = divide_by_covered_time([sample.processes[index] for sample in samples], lambda sample: sample.queue_ns)
        return tuple(round(wait * processes[index].workers, 2) for wait in waits)
    return tuple(
        round(
            max(after.consumer_queue_ns - before.consumer_queue_ns, 0) / max(after.taken_at_ns - before.taken_at_ns, 1),
            2,
        )
        for before, after in pairwise(samples)
    )
