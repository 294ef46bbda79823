"""Records a run over time: a thread of the caller's process samples the board every 0.25 s.

The workers write these counters anyway. In a long run, the recorder keeps every second, fourth, ... sample.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter_ns

import numpy as np
import psutil

from stagepipe.plan import Plan
from stagepipe.report import HopSeries, LiveRun, LiveStage, MemoryPoint, Series, StageSeries
from stagepipe.runtime import WorkerChange

_INTERVAL_NS = 250_000_000
_MAX_SAMPLES = 240
_RSS_INTERVAL_NS = 1_000_000_000
_PSS_INTERVAL_NS = 10_000_000_000
_GAIN_WINDOW_NS = 5_000_000_000
_MIN_GAIN_TIME_NS = 1_000_000_000
_MIN_GAIN_ITEMS = 8
"""The gain of a change compares rates over these times. With less time or fewer items, no gain is reported."""
_MAX_PSS_SHARE = 0.0005
"""Maximum fraction of the time for measuring PSS: the kernel takes some milliseconds to walk a worker's pages."""


class SeriesRecorder:
    """Samples a run until it is stopped. Its thread calls `take_sample` and `list_pids`.

    >>> recorder = SeriesRecorder(take_sample, list_pids)  # doctest: +SKIP
    >>> recorder.stop()  # doctest: +SKIP
    >>> recorder.to_series(plan, started_ns)  # doctest: +SKIP
    """

    def __init__(
        self,
        take_sample: Callable[[], LiveRun],
        list_pids: Callable[[], Sequence[int]],
        changes: Sequence[WorkerChange] = (),
    ) -> None:
        self._take_sample = take_sample
        self._list_pids = list_pids
        self._changes = changes  # the run's own list, which grows
        self._gains: dict[int, float] = {}
        """Measured gains of changes, by the time of their request."""
        self._lock = threading.Lock()
        self._first_sample = take_sample()
        self._samples: list[LiveRun] = []
        now_ns = perf_counter_ns()  # measure memory after a second or two, not while the workers start
        self._rss = _MemoryCurve(_RSS_INTERVAL_NS, now_ns + _RSS_INTERVAL_NS)
        self._pss = _MemoryCurve(_PSS_INTERVAL_NS, now_ns + 2 * _RSS_INTERVAL_NS)
        self._interval_ns = _INTERVAL_NS
        self._processes: dict[int, psutil.Process] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stagepipe-series", daemon=True)
        self._thread.start()

    def add_sample(self) -> None:
        """Take a sample now, in addition to the regular ones."""
        with self._lock:
            if len(self._samples) == _MAX_SAMPLES:
                del self._samples[::2]
                self._interval_ns *= 2
            sample = self._take_sample()
            self._samples.append(sample)
            self._measure_gains(sample.taken_at_ns)
            self._measure_memory(sample.taken_at_ns)

    def stop(self) -> None:
        """End the thread. The samples stay."""
        self._stopping.set()
        self._thread.join()

    def list_changes(self) -> list[tuple[WorkerChange, float]]:
        """Return the changes of workers so far, and the gain of each; changes by one decision are merged.

        The gain is 0 if it is unknown.
        """
        with self._lock:
            changes = merge_changes(self._changes)
            return [
                (change, self._gains.get(change.asked_ns) or self._measure_gain(changes, number))
                for number, change in enumerate(changes)
            ]

    def _measure_gains(self, now_ns: int) -> None:
        """Measure the gain of each change at the end of its window, before its samples are thinned out."""
        if not self._changes:
            return
        changes = merge_changes(self._changes)
        for number, change in enumerate(changes):
            is_over = change.done_ns and now_ns >= change.done_ns + self._gain_window_ns
            if is_over and change.asked_ns not in self._gains:
                self._gains[change.asked_ns] = self._measure_gain(changes, number)

    def _measure_gain(self, changes: Sequence[WorkerChange], number: int) -> float:
        return measure_gain([self._first_sample, *self._samples], changes, number, self._gain_window_ns)

    @property
    def _gain_window_ns(self) -> int:
        return max(_GAIN_WINDOW_NS, 2 * self._interval_ns)

    def to_series(self, plan: Plan, started_ns: int) -> Series:
        """Return the series so far. `started_ns` is the start of the run, as a value of `perf_counter_ns`."""
        with self._lock:
            samples = [self._first_sample, *self._samples]
            rss, pss = list(self._rss.points), list(self._pss.points)
        return Series(
            times_ns=tuple(sample.taken_at_ns - started_ns for sample in samples[1:]),
            stages=tuple(
                _make_stage_series(process.name, [sample.stages[index] for sample in samples])
                for index, process in enumerate(plan.processes)
            ),
            hops=tuple(
                HopSeries(
                    source=plan.processes[index].stages[-1].name,
                    target=hop.target,
                    queued=trace_queued(samples, index + 1),
                )
                for index, hop in enumerate(plan.hops)
            ),
            shared_memory_bytes=tuple(sample.shared_memory_bytes for sample in samples[1:]),
            rss_bytes=tuple(MemoryPoint(time_ns=time_ns - started_ns, bytes=nbytes) for time_ns, nbytes in rss),
            pss_bytes=tuple(MemoryPoint(time_ns=time_ns - started_ns, bytes=nbytes) for time_ns, nbytes in pss),
        )

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_ns / 1e9):
            self.add_sample()

    def _measure_memory(self, now_ns: int) -> None:
        """Measure the RSS and the PSS of all workers if they are due."""
        if self._rss.is_due(now_ns):
            self._rss.add(now_ns, self._sum_memory(lambda process: process.memory_info().rss))
        if self._pss.is_due(now_ns):
            began_ns = perf_counter_ns()
            self._pss.add(now_ns, self._sum_memory(lambda process: process.memory_full_info().pss))
            cost_ns = perf_counter_ns() - began_ns
            self._pss.interval_ns = max(self._pss.interval_ns, int(cost_ns / _MAX_PSS_SHARE))

    def _sum_memory(self, measure: Callable[[psutil.Process], int]) -> int:
        total_bytes = 0
        for pid in self._list_pids():
            with contextlib.suppress(psutil.Error):  # the worker has just ended
                if pid not in self._processes:
                    self._processes[pid] = psutil.Process(pid)
                total_bytes += measure(self._processes[pid])
        return total_bytes


class _MemoryCurve:
    """At most `_MAX_SAMPLES` points of (ns, bytes). When full, it drops every second point."""

    def __init__(self, interval_ns: int, first_ns: int) -> None:
        self.interval_ns = interval_ns
        self.points: list[tuple[int, int]] = []
        self._last_ns = first_ns - interval_ns

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._last_ns + self.interval_ns

    def add(self, now_ns: int, nbytes: int) -> None:
        self._last_ns = now_ns
        if len(self.points) == _MAX_SAMPLES:
            del self.points[::2]
            self.interval_ns *= 2
        if nbytes:  # 0 means that the workers have ended
            self.points.append((now_ns, nbytes))


def _make_stage_series(name: str, samples: Sequence[LiveStage]) -> StageSeries:
    def compute_share(count: Callable[[LiveStage], int]) -> tuple[float, ...]:
        return tuple(min(round(share, 3), 1.0) for share in divide_by_covered_time(samples, count))

    items_per_ns = divide_by_covered_time(samples, lambda sample: sample.items)
    workers = [sample.workers for sample in samples]
    means = [(before + after) / 2 for before, after in pairwise(workers)]
    return StageSeries(
        name=name,
        items_per_s=tuple(round(rate * 1e9 * mean, 1) for rate, mean in zip(items_per_ns, means, strict=True)),
        busy=compute_share(lambda sample: sample.busy_ns),
        starved=compute_share(lambda sample: sample.starved_ns),
        blocked=compute_share(lambda sample: sample.blocked_ns),
        workers=tuple(workers[1:]) if len(set(workers)) > 1 else (),
    )


def merge_changes(changes: Sequence[WorkerChange]) -> list[WorkerChange]:
    """Merge consecutive changes that one decision has made."""
    merged: list[WorkerChange] = []
    for change in list(changes):  # the supervisor's thread appends to the list
        last = merged[-1] if merged else None
        if last is not None and change.cause is last.cause and not last.failure and not change.failure:
            merged[-1] = replace(last, workers=change.workers, delta=last.delta + change.delta, done_ns=change.done_ns)
        else:
            merged.append(change)
    return merged


def measure_gain(samples: Sequence[LiveRun], changes: Sequence[WorkerChange], number: int, window_ns: int) -> float:
    """Return the relative increase in a stage's rate after a change of its workers; 0.5 means 50% faster.

    The rate before comes from the shortest time of at least a second with enough items, because the change may answer a
    shift of load that began shortly before. The rate after covers `window_ns`. Both times end at other changes of the
    run. Returns 0 if too little time is left.
    """
    change, group = changes[number], changes[number].group
    if change.failure or not change.done_ns:
        return 0.0
    others = [each for each in changes if each is not change and not each.failure]
    first_ns = max([each.done_ns for each in others if each.asked_ns <= change.asked_ns], default=0)
    last_ns = min(
        [each.asked_ns for each in others if each.asked_ns > change.asked_ns], default=change.done_ns + window_ns
    )
    starts_ns = [sample.taken_at_ns for sample in reversed(samples) if sample.taken_at_ns < change.asked_ns]
    earliest_ns = max(change.asked_ns - window_ns, first_ns)
    rates = (_measure_rate(samples, group, ns, change.asked_ns) for ns in starts_ns if ns >= earliest_ns)
    before = next(filter(None, rates), 0.0)
    after = _measure_rate(samples, group, change.done_ns, min(change.done_ns + window_ns, last_ns))
    return after / before - 1 if before and after else 0.0


def _measure_rate(samples: Sequence[LiveRun], group: int, begin_ns: int, end_ns: int) -> float:
    """Return a process's items per ns between two times, from its first item on; 0 if there are too few samples."""
    inside = [sample for sample in samples if begin_ns <= sample.taken_at_ns <= end_ns and sample.stages[group].items]
    if not inside or inside[-1].taken_at_ns - inside[0].taken_at_ns < _MIN_GAIN_TIME_NS:
        return 0.0
    items = inside[-1].stages[group].items - inside[0].stages[group].items
    return items / (inside[-1].taken_at_ns - inside[0].taken_at_ns) if items >= _MIN_GAIN_ITEMS else 0.0


def divide_by_covered_time(samples: Sequence[LiveStage], count: Callable[[LiveStage], int]) -> list[float]:
    """Return the increase of a count in each interval, divided by the time of all workers that it covers.

    Workers write nothing while they are in a function. An interval without new counts gets the value of the next one.
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


def trace_queued(samples: Sequence[LiveRun], index: int) -> tuple[float, ...]:
    """Return the mean number of messages that waited for process `index` in each interval; the consumer is the last.

    A message counts when it is received, but it waited before. The waits in an interval are spread evenly over the time
    from one mean wait before the interval to its end. Messages that are still waiting do not count.
    """
    edges_ns = np.array([sample.taken_at_ns for sample in samples], np.float64)
    queued_ns = np.zeros(len(samples) - 1)
    for before, sample in pairwise(samples):
        old, new = before.stages[index], sample.stages[index]
        total_ns = max(new.queue_ns - old.queue_ns, 0)
        wait_ns = total_ns / max(new.received - old.received, 1)
        first_ns = max(before.taken_at_ns - wait_ns, edges_ns[0])
        ends_ns = np.clip(edges_ns, first_ns, sample.taken_at_ns)
        queued_ns += total_ns * np.diff(ends_ns) / max(sample.taken_at_ns - first_ns, 1)
    return tuple(round(float(queued), 2) for queued in queued_ns / np.maximum(np.diff(edges_ns), 1))
