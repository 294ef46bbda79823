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

from stagepipe.report import LiveHop, LiveRun, LiveStage, StageCounts
from stagepipe.runtime import RunDescription, RunTimings
from stagepipe.timing import Histogram, bucket_index

BUCKET_BOUNDS_S: Final = tuple(float(f"{digit}e{exponent}") for exponent in range(-6, 3) for digit in (1, 2.5, 5))[:25]
"""Bounds of all histograms, 1 us to 100 s: fixed, so that the series of all runs and stages can be summed."""

_Value = tuple[Sequence[str], float]
"""The labels of a metric's line, and its value."""

_RUN_METRICS: Final[Sequence[tuple[str, str, Callable[[LiveRun], float]]]] = (
    ("source_items", "Items that the source has sent.", lambda run: run.items_sent),
    ("delivered_items", "Items that were delivered.", lambda run: run.items_out),
    ("delivered_samples", "Samples that were delivered.", lambda run: run.samples_out),
    ("written_files", "Files that sinks have written.", lambda run: run.files_out),
    (
        "consumer_wait_seconds",
        "Time that the consumer waited for an item.",
        lambda run: run.consumer_wait_ns / 1e9,
    ),
    (
        "consumer_busy_seconds",
        "Time that the consumer worked on items.",
        lambda run: run.consumer_busy_ns / 1e9,
    ),
)
_COUNT_METRICS: Final[Sequence[tuple[str, str, Callable[[StageCounts], float]]]] = (
    ("stage_items", "Items that the stage has finished.", lambda stage: stage.items),
    (
        "stage_skipped_items",
        "Items that the stage dropped, or that were skipped after an error.",
        lambda stage: stage.skipped,
    ),
    ("stage_passed_by_items", "Items that the stage's `when` does not match.", lambda stage: stage.passed_by),
    ("stage_failed_attempts", "Calls that raised an error.", lambda stage: stage.errors),
    ("stage_retries", "Calls that were repeated.", lambda stage: stage.retries),
    ("stage_dead_letters", "Items that went to the dead letters.", lambda stage: stage.dead_letters),
)
_ROW_METRICS: Final[Sequence[tuple[str, str, str, Callable[[LiveStage], float]]]] = (
    ("worker_restarts", "stage", "Workers that died and were replaced.", lambda row: row.restarts),
    ("process_starved_seconds", "process", "Time of all workers waiting for input.", lambda row: row.starved_ns / 1e9),
    (
        "process_blocked_seconds",
        "process",
        "Time of all workers waiting for the next process.",
        lambda row: row.blocked_ns / 1e9,
    ),
    ("process_cpu_seconds", "process", "CPU time of all workers.", lambda row: row.cpu_ns / 1e9),
)
_HOP_METRICS: Final[Sequence[tuple[str, str, str, Sequence[tuple[str, Callable[[LiveHop], float]]]]]] = (
    (
        "hop_messages",
        "transport",
        "Messages over the hop.",
        (
            ("pipe", lambda hop: hop.pipe_messages),
            ("shared_memory", lambda hop: hop.shared_memory_messages),
            ("mixed", lambda hop: hop.mixed_messages),
        ),
    ),
    (
        "hop_bytes",
        "kind",
        "Bytes over the hop, by how they travelled.",
        (
            ("inline", lambda hop: hop.inline_bytes),
            ("copied", lambda hop: hop.copied_bytes),
            ("zero_copy", lambda hop: hop.zero_copy_bytes),
        ),
    ),
)
_HOP_PHASES: Final = (
    ("hop_cost_seconds", "cost_ns", "Work of both sides for a message, without queues and waits."),
    ("hop_queue_seconds", "queue_ns", "Time that a message waited to be received."),
)


class RunCollector(Collector):
    """Collects the metrics of one run: of its live figures, and its histograms."""

    def __init__(
        self,
        description: RunDescription,
        read_rows: Callable[[], LiveRun],
        take_timings: Callable[[], RunTimings],
    ) -> None:
        """The functions read the board; they are called at each scrape, on a thread of the server."""
        self._description = description
        self._read_rows = read_rows
        self._take_timings = take_timings

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        run, timings = self._read_rows(), self._take_timings()
        rows = [row for row in run.stages if row.stages]
        for name, text, read in _RUN_METRICS:
            yield self._fill(CounterMetricFamily, name, text, (), [((), read(run))])
        text = "Shared memory in use."
        yield self._fill(GaugeMetricFamily, "shared_memory_bytes", text, (), [((), run.shared_memory_bytes)])
        text = "The most shared memory that the run may use."
        yield self._fill(
            GaugeMetricFamily, "shared_memory_limit_bytes", text, (), [((), run.shared_memory_limit_bytes)]
        )
        for name, text, read_counts in _COUNT_METRICS:
            values = [((each.name,), read_counts(each)) for row in rows for each in row.stages]
            yield self._fill(CounterMetricFamily, name, text, ("stage",), values)
        for name, label, text, read_row in _ROW_METRICS:
            yield self._fill(CounterMetricFamily, name, text, (label,), [((row.name,), read_row(row)) for row in rows])
        ready = [((row.name,), float(row.ready_workers)) for row in rows]
        yield self._fill(GaugeMetricFamily, "workers", "Workers that are ready.", ("process",), ready)
        for name, label, text, kinds in _HOP_METRICS:
            by_kind = [((hop.source, hop.target, kind), read_hop(hop)) for hop in run.hops for kind, read_hop in kinds]
            yield self._fill(CounterMetricFamily, name, text, ("source", "target", label), by_kind)
        yield from self._collect_histograms(timings)

    def _collect_histograms(self, timings: RunTimings) -> Iterator[Metric]:
        histograms: dict[str, Histogram] = {}
        for process in self._description.processes:  # of a row with inner stages, the one that takes longest
            for stage, row in zip(process.stages, process.rows, strict=True):
                histogram = timings.stages[stage].run_histogram
                histograms[row] = max(histograms.get(row, histogram), histogram, key=lambda each: each.sum_ns)
        text = "Time of the stage's function for an item."
        stages = [((stage,), each) for stage, each in histograms.items()]
        yield self._fill_histogram("stage_item_seconds", text, ("stage",), stages)
        ends = self._description.hop_ends
        for name, phase, text in _HOP_PHASES:
            hops = [
                (hop, each.phase_histograms[phase])
                for hop, each in zip(ends, timings.hops, strict=True)
                if hop[0] != hop[1]
            ]
            yield self._fill_histogram(name, text, ("source", "target"), hops)

    def _fill(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        values: Iterable[_Value],
    ) -> Metric:
        metric = family(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for label_values, value in values:
            metric.add_metric((self._description.name, *label_values), value)
        return metric

    def _fill_histogram(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
    ) -> Metric:
        family = HistogramMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for values, histogram in rows:
            buckets = [(_format_bound(bound), count) for bound, count in count_below_bounds(histogram)]
            family.add_metric((self._description.name, *values), buckets, histogram.sum_ns / 1e9)
        return family


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
