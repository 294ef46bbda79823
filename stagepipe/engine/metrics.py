"""The metrics of a run, read from its board at each Prometheus scrape, and the HTTP server for them.

Names and units follow https://prometheus.io/docs/practices/naming: seconds, bytes, and `_total` for counters.
Runs in the process that uses the pipeline.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import numpy as np
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stagepipe.core import UsageError, fork_lock, register_owner
from stagepipe.report import COUNT_COLUMNS, LiveRun, LiveStage
from stagepipe.runtime import RunDescription, RunTimings, WorkerChange
from stagepipe.timing import Histogram, bucket_index

BUCKET_BOUNDS_S: Final = tuple(float(f"{digit}e{exponent}") for exponent in range(-6, 3) for digit in (1, 2.5, 5))[:25]
"""Bucket bounds of all histograms, 1 us to 100 s. They are fixed, so series of all runs and stages can be summed."""

_RUN_METRICS: Final = (
    ("source_items", "items_sent", "Items that the source has sent."),
    ("delivered_items", "items_out", "Items that were delivered."),
    ("delivered_samples", "samples_out", "Samples that were delivered."),
    ("written_files", "files_out", "Files that sinks have written."),
    ("consumer_wait_seconds", "consumer_wait_ns", "Time that the consumer waited for an item."),
    ("consumer_busy_seconds", "consumer_busy_ns", "Time that the consumer worked on items."),
)
"""Name, field of `LiveRun`, and text. Fields in ns become metrics in seconds."""
_STAGE_METRICS: Final = tuple((each.metric, each.field, each.text) for each in COUNT_COLUMNS if each.metric)
"""Metrics from `StageTally`."""
_PROCESS_METRICS: Final = (
    ("process_starved_seconds", "starved_ns", "Time of all workers waiting for input."),
    ("process_blocked_seconds", "blocked_ns", "Time of all workers waiting for the next process."),
    ("process_cpu_seconds", "cpu_ns", "CPU time of all workers."),
)
"""Metrics from `LiveStage`."""
_HOP_METRICS: Final = (
    ("hop_messages", "transport", ("pipe", "shared_memory", "mixed"), "Messages over the hop."),
    ("hop_bytes", "kind", ("inline", "copied", "zero_copy"), "Bytes over the hop, by transfer mode."),
)
"""Metrics from the fields `pipe_messages` to `zero_copy_bytes` of `LiveHop`."""
_GAUGES: Final = (
    ("shared_memory_bytes", "shared_memory_bytes", "Shared memory in use."),
    ("shared_memory_limit_bytes", "shared_memory_limit_bytes", "The most shared memory that the run may use."),
)
_HOP_PHASES: Final = (
    ("hop_cost_seconds", "cost_ns", "Work of both sides for a message, without queues and waits."),
    ("hop_queue_seconds", "queue_ns", "Time that a message waited to be received."),
)


class RunCollector(Collector):
    """Collects the metrics of one run from its live figures and histograms."""

    def __init__(
        self,
        description: RunDescription,
        read_rows: Callable[[], LiveRun],
        take_timings: Callable[[], RunTimings],
        worker_changes: Sequence[WorkerChange] = (),
    ) -> None:
        """The functions read the board. Each scrape calls them, on a thread of the server.

        `worker_changes` is the run's own list, which grows.
        """
        self._description = description
        self._read_rows = read_rows
        self._take_timings = take_timings
        self._worker_changes = worker_changes

    def collect(self) -> Iterator[Metric]:
        """Yield the current values of all metrics."""
        run, timings = self._read_rows(), self._take_timings()
        rows = [row for row in run.stages if row.stages]  # without a consumer, which is not a stage
        stages = [((stage.name,), stage) for row in rows for stage in row.stages]
        yield from self._fill(CounterMetricFamily, _RUN_METRICS, (), [((), run)])
        yield from self._fill(GaugeMetricFamily, _GAUGES, (), [((), run)])
        yield from self._fill(CounterMetricFamily, _STAGE_METRICS, ("stage",), stages)
        by_row = [((each.name,), each) for each in rows]
        restarts = (("worker_restarts", "restarts", "Workers that died and were replaced."),)
        yield from self._fill(CounterMetricFamily, restarts, ("stage",), by_row)
        yield from self._fill(CounterMetricFamily, _PROCESS_METRICS, ("process",), by_row)
        workers = (("workers", "ready_workers", "Workers that are ready."),)
        yield from self._fill(GaugeMetricFamily, workers, ("process",), by_row)
        yield self._count_worker_changes(rows)
        for name, label, kinds, text in _HOP_METRICS:
            family = CounterMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", "source", "target", label))
            for hop in run.hops:
                for kind in kinds:
                    labels = (self._description.name, hop.source, hop.target, kind)
                    family.add_metric(labels, getattr(hop, f"{kind}_{name.removeprefix('hop_')}"))
            yield family
        yield from self._collect_histograms(timings)

    def _count_worker_changes(self, rows: Sequence[LiveStage]) -> Metric:
        """Return the worker changes of the rows with a variable number of workers."""
        text = "Workers added to a stage (up) or removed from it (down) during the run."
        family = CounterMetricFamily("stagepipe_worker_changes", text, labels=("pipeline", "stage", "direction"))
        done = Counter((change.stage, change.delta) for change in self._worker_changes if change.done_ns)
        for row in rows:
            if row.max_workers:
                for direction, delta in (("up", 1), ("down", -1)):
                    family.add_metric((self._description.name, row.name, direction), done[row.name, delta])
        return family

    def _collect_histograms(self, timings: RunTimings) -> Iterator[Metric]:
        histograms: dict[str, Histogram] = {}
        for process in self._description.processes:  # a row with several inner stages shows the slowest one
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
        metrics: Sequence[tuple[str, str, str]],
        labels: Sequence[str],
        rows: Sequence[tuple[Sequence[str], object]],
    ) -> Iterator[Metric]:
        for name, field, text in metrics:
            metric = family(f"stagepipe_{name}", text, labels=("pipeline", *labels))
            for label_values, row in rows:
                value = getattr(row, field)
                metric.add_metric(
                    (self._description.name, *label_values), value / 1e9 if field.endswith("_ns") else value
                )
            yield metric

    def _fill_histogram(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
    ) -> Metric:
        family = HistogramMetricFamily(f"stagepipe_{name}", text, labels=("pipeline", *labels))
        for values, histogram in rows:
            buckets = [(_format_bound(bound), count) for bound, count in count_below_bounds(histogram)]
            family.add_metric((self._description.name, *values), buckets, histogram.sum_ns / 1e9)
        return family


def count_below_bounds(histogram: Histogram) -> list[tuple[float, int]]:
    """Return the number of durations below each bound in seconds, within 2 %; the last bound is infinite.

    >>> count_below_bounds(Histogram.from_values_ns([500, 3_000_000]))[0]
    (1e-06, 1)
    """
    cumulative = np.concatenate(([0], np.cumsum(histogram.counts))).astype(int)
    bounds_ns = np.array([round(bound * 1e9) for bound in BUCKET_BOUNDS_S])
    counts = cumulative[bucket_index(bounds_ns)].tolist()
    return [*zip(BUCKET_BOUNDS_S, counts, strict=True), (float("inf"), histogram.count)]


def _format_bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else str(bound_s)


_POLL_INTERVAL_S: Final = 0.1
"""Maximum time that the end of a run waits for the server."""
_REQUEST_TIMEOUT_S: Final = 10
_log = logging.getLogger("stagepipe")


class MetricsServer:
    """An HTTP server for one collector, on its own threads. `close` ends it."""

    def __init__(self, host: str, port: int) -> None:
        """Listen, without metrics. Port 0 picks a free port and logs it. Raises UsageError if listening fails."""
        self._registry = CollectorRegistry()
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server_class = type("_Server", (_ThreadingServer,), {"address_family": family})
            with fork_lock:  # a forked child must know the socket that it inherits
                self._server: WSGIServer = make_server(
                    host, port, make_wsgi_app(self._registry), server_class, _Handler
                )
                register_owner(self)
        except OSError as error:
            fix = "name another port, or 0 for a free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                fix = "name an address of this machine, such as 127.0.0.1"
            raise UsageError(
                f"report.prometheus: cannot listen on {host}:{port}: {error.strerror or error}; {fix}"
            ) from None
        self.port: int = self._server.server_port
        shown_host = f"[{host}]" if ":" in host else host
        log = _log.info if port else _log.warning  # users must see an automatic port
        log("metrics for Prometheus: http://%s:%d/metrics", shown_host, self.port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="stagepipe-metrics", daemon=True
        )
        self._thread.start()

    def serve(self, collector: Collector) -> None:
        """Serve the metrics of `collector` from now on."""
        self._registry.register(collector)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def abandon_in_child(self) -> None:
        """Close the socket in a forked child, which would otherwise keep the port open."""
        self._server.socket.close()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a stalled client must not keep the run alive


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        """Log nothing, because Prometheus scrapes every few seconds."""
