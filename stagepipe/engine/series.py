"""Records how a run goes over time: a thread of the caller's process that samples the board.

It reads counters that the workers write anyway, every 0.25 s; of a long run it keeps every second, fourth ... sample.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import psutil

from stagepipe.engine.sample_rates import divide_by_covered_time, trace_queued
from stagepipe.plan import Plan
from stagepipe.report import HopSeries, MemoryPoint, Series, StageSeries
from stagepipe.runtime import ProcessSample, RunSample

_INTERVAL_NS = 250_000_000
_MAX_SAMPLES = 240
_RSS_INTERVAL_NS = 1_000_000_000
_PSS_INTERVAL_NS = 10_000_000_000
_MAX_PSS_SHARE = 0.0005
"""The kernel walks all pages of a worker for its PSS, some milliseconds: at most this share of the time."""


class SeriesRecorder:
    """Samples a run until it is stopped. `take_sample` and `list_pids` may be called from its thread.

    >>> recorder = SeriesRecorder(take_sample, list_pids)  # doctest: +SKIP
    >>> recorder.stop()  # doctest: +SKIP
    >>> recorder.to_series(plan, started_ns)  # doctest: +SKIP
    """

    def __init__(self, take_sample: Callable[[], RunSample], list_pids: Callable[[], Sequence[int]]) -> None:
        self._take_sample = take_sample
        self._list_pids = list_pids
        self._lock = threading.Lock()
        self._first_sample = take_sample()
        self._samples: list[RunSample] = []
        now_ns = perf_counter_ns()  # the first after a second or two, not while the workers start
        self._rss = _MemoryCurve(_RSS_INTERVAL_NS, now_ns + _RSS_INTERVAL_NS)
        self._pss = _MemoryCurve(_PSS_INTERVAL_NS, now_ns + 2 * _RSS_INTERVAL_NS)
        self._interval_ns = _INTERVAL_NS
        self._processes: dict[int, psutil.Process] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stagepipe-series", daemon=True)
        self._thread.start()

    def add_sample(self) -> None:
        """Take a sample now, besides those at the intervals."""
        with self._lock:
            if len(self._samples) == _MAX_SAMPLES:
                del self._samples[::2]
                self._interval_ns *= 2
            sample = self._take_sample()
            self._samples.append(sample)
            self._measure_memory(sample.taken_at_ns)

    def stop(self) -> None:
        """End the thread. The samples stay."""
        self._stopping.set()
        self._thread.join()

    def to_series(self, plan: Plan, started_ns: int) -> Series:
        """Return the series so far. `started_ns`: the time of `perf_counter_ns` at which the run began."""
        with self._lock:
            samples = [self._first_sample, *self._samples]
            rss, pss = list(self._rss.points), list(self._pss.points)
        return Series(
            times_ns=tuple(sample.taken_at_ns - started_ns for sample in samples[1:]),
            stages=tuple(
                _make_stage_series(process.name, process.workers, [sample.processes[index] for sample in samples])
                for index, process in enumerate(plan.processes)
            ),
            hops=tuple(
                HopSeries(
                    source=plan.processes[index].stages[-1].name,
                    target=hop.target,
                    queued=trace_queued(samples, index + 1 if index + 1 < len(plan.processes) else None),
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
        """Measure the RSS and the PSS of all workers, where it is time for them."""
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
            with contextlib.suppress(psutil.Error):  # it has just ended
                if pid not in self._processes:
                    self._processes[pid] = psutil.Process(pid)
                total_bytes += measure(self._processes[pid])
        return total_bytes


class _MemoryCurve:
    """At most `_MAX_SAMPLES` points of ns and bytes: when they are full, every second one goes."""

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
        if nbytes:  # 0: the workers have ended
            self.points.append((now_ns, nbytes))


def _make_stage_series(name: str, workers: int, samples: Sequence[ProcessSample]) -> StageSeries:
    def compute_share(count: Callable[[ProcessSample], int]) -> tuple[float, ...]:
        return tuple(min(round(share, 3), 1.0) for share in divide_by_covered_time(samples, count))

    items_per_ns = divide_by_covered_time(samples, lambda sample: sample.items)
    return StageSeries(
        name=name,
        items_per_s=tuple(round(rate * 1e9 * workers, 1) for rate in items_per_ns),
        busy=compute_share(lambda sample: sample.busy_ns),
        starved=compute_share(lambda sample: sample.starved_ns),
        blocked=compute_share(lambda sample: sample.blocked_ns),
    )
