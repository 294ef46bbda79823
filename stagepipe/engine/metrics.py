"""The metrics of a run, read from its board when Prometheus asks. Pure but for the clock.

Names and units follow https://prometheus.io/docs/practices/naming: seconds, bytes, and `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stagepipe.engine.hop_records import sum_counter
from stagepipe.plan import HopPlan, Plan, ProcessPlan
from stagepipe.runtime import RunSample, RunSnapshot, RunTimings
from stagepipe.timing import Histogram, ProcessCounter, StageCounter, bucket_index

BUCKET_BOUNDS_S: Final = tuple(float(f"{digit}e{exponent}") for exponent in range(-6, 3) for digit in (1, 2.5, 5))[:25]
"""Bounds of all histograms, 1 us to 100 s: fixed, so that the series of all runs and stages can be summed."""

_STAGE_COUNTERS: Final = (
    ("stage_items", StageCounter.ITEMS, "Items that the stage has finished."),
    ("stage_skipped_items", StageCounter.SKIPPED, "Items that the stage dropped, or that were skipped after an error."),
    ("stage_passed_by_items", StageCounter.PASSED_BY, "Items that the stage's `when` does not match."),
    ("stage_failed_attempts", StageCounter.FAILED_ATTEMPTS, "Calls that raised an error."),
    ("stage_retries", StageCounter.RETRIES, "Calls that were repeated."),
    ("stage_dead_letters", StageCounter.DEAD_LETTERS, "Items that went to the dead letters."),
)
_TIME_COUNTERS: Final = (
    ("process_starved_seconds", ProcessCounter.STARVED_NS, "Time of all workers waiting for input."),
    ("process_blocked_seconds", ProcessCounter.BLOCKED_NS, "Time of all workers waiting for the next process."),
    ("process_cpu_seconds", ProcessCounter.CPU_NS, "CPU time of all workers."),
)
_MESSAGE_COUNTERS: Final = (
    ("pipe", ProcessCounter.PIPE_MESSAGES),
    ("shared_memory", ProcessCounter.SHARED_MEMORY_MESSAGES),
    ("mixed", ProcessCounter.MIXED_MESSAGES),
)
_BYTE_COUNTERS: Final = (
    ("inline", ProcessCounter.INLINE_BYTES),
    ("copied", ProcessCounter.COPIED_BYTES),
    ("zero_copy", ProcessCounter.ZERO_COPY_BYTES),
)
_HOP_PHASES: Final = (
    ("hop_cost_seconds", "cost_ns", "Work of both sides for a message, without queues and waits."),
    ("hop_queue_seconds", "queue_ns", "Time that a message waited to be received."),
)


class RunCollector(Collector):
    """Collects the metrics of one run."""

    def __init__(
        self,
        plan: Plan,
        take_snapshot: Callable[[], RunSnapshot],
        take_timings: Callable[[], RunTimings],
        take_sample: Callable[[], RunSample],
    ) -> None:
        """The functions read the board; they are called at each scrape, on a thread of the server."""
        self._plan = plan
        self._take_snapshot = take_snapshot
        self._take_timings = take_timings
        self._take_sample = take_sample

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        snapshot, timings = self._take_snapshot(), self._take_timings()
        yield from self._collect_run(snapshot)
        yield from self._collect_stages(snapshot, timings)
        yield from self._collect_processes(snapshot)
        yield from self._collect_hops(snapshot, timings)

    # ------------------------------------------------------------------ the parts

    def _counter(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
    ) -> Metric:
        family = CounterMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for values, value in rows:
            family.add_metric((self._plan.name, *values), value)
        return family

    def _gauge(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
    ) -> Metric:
        family = GaugeMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for values, value in rows:
            family.add_metric((self._plan.name, *values), value)
        return family

    def _histogram(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
    ) -> Metric:
        family = HistogramMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for values, histogram in rows:
            buckets = [(_format_bound(bound), count) for bound, count in count_below_bounds(histogram)]
            family.add_metric((self._plan.name, *values), buckets, histogram.sum_ns / 1e9)
        return family

    def _collect_run(self, snapshot: RunSnapshot) -> Iterator[Metric]:
        deliveries = snapshot.deliveries
        sent = snapshot.workers[0].counters[ProcessCounter.ITEMS_SENT]
        yield self._counter("source_items", "Items that the source has sent.", (), [((), sent)])
        yield self._counter("delivered_items", "Items that were delivered.", (), [((), deliveries.items)])
        yield self._counter("delivered_samples", "Samples that were delivered.", (), [((), deliveries.samples)])
        text = "Time that the consumer waited for an item."
        yield self._counter("consumer_wait_seconds", text, (), [((), deliveries.wait_ns / 1e9)])
        text = "Time that the consumer worked on items."
        yield self._counter("consumer_busy_seconds", text, (), [((), deliveries.busy_ns / 1e9)])
        text = "Shared memory in use."
        yield self._gauge("shared_memory_bytes", text, (), [((), self._take_sample().shared_memory_bytes)])
        text = "The most shared memory that the run may use."
        yield self._gauge("shared_memory_limit_bytes", text, (), [((), self._plan.memory_bytes)])

    def _collect_stages(self, snapshot: RunSnapshot, timings: RunTimings) -> Iterator[Metric]:
        counters = {
            stage.name: [worker.stage_counters[index] for worker in workers]
            for process, workers in zip(self._plan.processes, snapshot.worker_groups, strict=True)
            for index, stage in enumerate(process.stages)
        }
        for name, counter, text in _STAGE_COUNTERS:
            rows = [((stage,), sum(row[counter] for row in of_workers)) for stage, of_workers in counters.items()]
            yield self._counter(name, text, ("stage",), rows)
        durations = [((stage,), timings.stages[stage].run_histogram) for stage in counters]
        yield self._histogram("stage_item_seconds", "Time of the stage's function for an item.", ("stage",), durations)
        restarts = [
            ((stage,), sum(restart.death.stage.name == stage for restart in snapshot.restarts)) for stage in counters
        ]
        yield self._counter("worker_restarts", "Workers that died and were replaced.", ("stage",), restarts)

    def _collect_processes(self, snapshot: RunSnapshot) -> Iterator[Metric]:
        groups = {workers[0].slot.process_plan.name: workers for workers in snapshot.worker_groups}
        for name, counter, text in _TIME_COUNTERS:
            rows = [((process,), sum_counter(workers, counter) / 1e9) for process, workers in groups.items()]
            yield self._counter(name, text, ("process",), rows)
        ready = [((process,), sum(worker.is_ready for worker in workers)) for process, workers in groups.items()]
        yield self._gauge("workers", "Workers that are ready.", ("process",), ready)

    def _collect_hops(self, snapshot: RunSnapshot, timings: RunTimings) -> Iterator[Metric]:
        ends = [(process.stages[-1].name, hop.target) for process, hop in self._hops()]
        labels = ("source", "target")
        for name, counters, label in (
            ("hop_messages", _MESSAGE_COUNTERS, "transport"),
            ("hop_bytes", _BYTE_COUNTERS, "kind"),
        ):
            rows = [
                ((*hop, kind), sum_counter(workers, counter))
                for hop, workers in zip(ends, snapshot.worker_groups, strict=True)
                for kind, counter in counters
            ]
            text = "Messages over the hop." if label == "transport" else "Bytes over the hop, by how they travelled."
            yield self._counter(name, text, (*labels, label), rows)
        for name, phase, text in _HOP_PHASES:
            histograms = [(hop, each.phase_histograms[phase]) for hop, each in zip(ends, timings.hops, strict=True)]
            yield self._histogram(name, text, labels, histograms)

    def _hops(self) -> Iterator[tuple[ProcessPlan, HopPlan]]:
        return zip(self._plan.processes, self._plan.hops, strict=True)


def count_below_bounds(histogram: Histogram) -> list[tuple[float, int]]:
    """Return for each bound, in seconds, how many durations are below it, to 2 %; the last bound is infinite.

    >>> count_below_bounds(Histogram.from_values_ns([500, 3_000_000]))[0]
    (1e-06, 1)
    """
    cumulative = np.concatenate(([0], np.cumsum(histogram.counts))).astype(int)
    bounds_ns = np.array([round(bound * 1e9) for bound in BUCKET_BOUNDS_S])
    counts = cumulative[bucket_index(bounds_ns)].tolist()
    return [*zip(BUCKET_BOUNDS_S, counts, strict=True), (float("inf"), histogram.count)]


def _format_bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else str(bound_s)
