"""The local engine: runs a plan in worker processes on this machine."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any

import zmq
from msgspec.structs import replace

from stagepipe.core import Cursor, Key, RunError, SourceIdentity, UsageError, check_output_file
from stagepipe.engine.engines import EngineRun, EpochCancelledError, RunOutputs
from stagepipe.engine.live_figures import LiveFigures
from stagepipe.engine.recording import RunMonitor, make_run_record, make_worker_changes
from stagepipe.engine.series import SeriesRecorder
from stagepipe.machine import detect_machine
from stagepipe.plan import Plan, check_plan_limits, find_memory_warnings
from stagepipe.report import (
    ClockReading,
    LiveRun,
    RunRecord,
    Series,
    TraceData,
    TraceDeath,
    TraceTrack,
    WorkerChangeRecord,
    write_trace,
)
from stagepipe.runtime import (
    Consumer,
    DeadLetterStore,
    ItemDigestEvent,
    MemoryHandle,
    OutputCallback,
    ProbeSample,
    Supervisor,
    WorkerRestart,
    describe_run,
    forward_output,
    read_trace_tracks,
    take_run_timings,
)
from stagepipe.timing import ProcessRegion
from stagepipe.transport import Lease

if TYPE_CHECKING:
    from stagepipe.engine.metrics import MetricsServer


_CLOCK_READINGS = 5
_SHORT_EPOCH_NS = 5_000_000_000
"""A DataLoader's workers end with each epoch. In a shorter one, measuring their memory would be a delay that shows."""
_log = logging.getLogger("stagepipe")


class TraceOutput:
    """The trace of one run: reads both clocks at its start, and writes the file at its end."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if no file can be written at `path`. Creates its folder."""
        self._path = path
        self.is_written = False
        check_output_file("trace", path)
        self._first_clock = read_clocks()

    def write(
        self,
        plan: Plan,
        tracks: tuple[TraceTrack, ...],
        restarts: Sequence[WorkerRestart],
        record: RunRecord,
        started_ns: int,
    ) -> None:
        """Write the file. If that fails, for instance on a full disk, only log a warning, because the run is over."""
        data = TraceData(
            name=plan.name,
            pid=os.getpid(),
            stage_names=plan.stage_names,
            tracks=tracks,
            deaths=tuple(
                TraceDeath(
                    track=restart.death.process_index,
                    pid=restart.death.pid,
                    died_ns=restart.death.died_at_ns,
                    cause=restart.death.cause,
                    item=restart.death.item,
                )
                for restart in restarts
            ),
            changes=record.worker_changes,
            series=record.series,
            started_ns=started_ns,
            first_clock=self._first_clock,
            last_clock=read_clocks(),
        )
        try:
            summary = write_trace(data, self._path)
        except OSError as error:
            _log.warning("the trace %s could not be written: %s", self._path, error.strerror or error)
            return
        self.is_written = True
        dropped = f"; {summary.dropped:,} older records did not fit and were dropped" if summary.dropped else ""
        _log.info("trace %s: %d events, %d flows%s", self._path, summary.events, summary.flows, dropped)
        if summary.dropped:
            _log.warning("trace %s holds the end of the run%s; use --limit for a shorter run", self._path, dropped)


def read_clocks() -> ClockReading:
    """Read both clocks at almost the same time."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before_ns = perf_counter_ns()
        wall_ns = time_ns()
        after_ns = perf_counter_ns()
        readings.append((after_ns - before_ns, ClockReading((before_ns + after_ns) // 2, wall_ns)))
    return min(readings, key=lambda reading: reading[0])[1]


_FIXES_BY_ERRNO = {
    errno.EMFILE: "raise the limit of open files (`ulimit -n 4096`) or set fewer `workers`",
    errno.ENFILE: "the machine has no file descriptors left (fs.file-max) or no pages for pipes "
    "(fs.pipe-user-pages-hard): end other processes, or set fewer `workers`",
    errno.ENOMEM: "set a smaller `memory` or fewer `workers`, or raise the limit (`ulimit -v`, or the container's)",
    errno.EAGAIN: "the limit of processes is reached: raise it (`ulimit -u`, `pids.max` of the cgroup or container), "
    "or set fewer `workers`",
    errno.EFBIG: "set a smaller `memory`, or raise the limit of file sizes (`ulimit -f`)",
}
"""The fix for a start that fails with this error."""


def _start_metrics_server(outputs: RunOutputs) -> MetricsServer | None:
    if outputs.prometheus is None:
        return None
    from stagepipe.engine.metrics import MetricsServer  # imported late: it needs the Prometheus client

    return MetricsServer(*outputs.prometheus)


@contextmanager
def _explain_start_errors(plan: Plan) -> Iterator[None]:
    """Raise UsageError if a system limit is too low for the plan, or RunError if the start reaches one anyway."""
    check_plan_limits(plan)
    if not plan.is_probe:
        for warning in find_memory_warnings(plan, detect_machine().memory_bytes):
            _log.warning("%s", warning)
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        errno_code = error.errno or 0
        fix = _FIXES_BY_ERRNO.get(errno_code)
        if fix is None:
            raise
        workers = sum(process.workers for process in plan.processes)
        raise RunError(f"cannot start {workers} workers: {os.strerror(errno_code)}; {fix}") from error


class LocalRun(EngineRun):
    """A run in worker processes. A context manager; call `iter_epoch` once for each epoch."""

    def __init__(
        self, plan: Plan, on_output: OutputCallback = forward_output, outputs: RunOutputs | None = None
    ) -> None:
        """Start the workers. `on_output` gets the text that they print and log.

        Raises UsageError if a system limit is too low for the plan or `outputs` cannot be used, and RunError if the
        workers cannot start.
        """
        self.plan = plan
        outputs = outputs or RunOutputs()
        self._trace_output = None if outputs.trace_path is None else TraceOutput(outputs.trace_path)
        with contextlib.ExitStack() as exit_stack:
            self._metrics_server = _start_metrics_server(outputs)
            if self._metrics_server is not None:
                exit_stack.callback(self._metrics_server.close)
            with _explain_start_errors(plan):
                self._supervisor = Supervisor(plan, on_output, is_traced=self._trace_output is not None)
                exit_stack.callback(self._supervisor.close)
                self._consumer = Consumer(self._supervisor)
                self._figures = LiveFigures(
                    describe_run(plan, self._supervisor.resources.board_layout),
                    self._supervisor.board,
                    self._consumer.statistics.take_snapshot,
                )
                self._series = None if plan.is_probe else self._start_series()
                if plan.can_scale and not plan.is_probe:
                    self._start_scaler()
            self._serve_metrics()
            exit_stack.pop_all()
        self._monitor = RunMonitor()
        self._record: RunRecord | None = None
        self._is_closed = False
        self._last_figures = LiveRun()

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Return an iterator over the items of an epoch after `cursor`, in order. The seek starts immediately.

        Iterating raises RunError if the run fails.
        """
        return self._yield_items(self._consumer.iter_epoch(epoch, cursor))

    def _yield_items(self, items: Iterator[Any]) -> Generator[Any, None, None]:
        with self.noting_failures():
            yield from items
            self._supervisor.dead_letters.enforce_limit()

    def get_epoch_length(self) -> int | None:
        """Return the number of items in an epoch, or None if unknown. Waits until all stages are built."""
        return self._supervisor.wait_for_epoch_length()

    def wait_for_source(self) -> SourceIdentity | None:
        """Wait until the source is built, and return its identity; None if the run has failed before."""
        return self._supervisor.wait_for_source()

    @property
    def committed_cursor(self) -> Cursor:
        """The cursor of the last delivered item."""
        return self._consumer.committed_cursor

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease on the block that holds these bytes of a yielded item, or None if they are in no block."""
        return self._consumer.find_lease(address, nbytes)

    @property
    def dead_letters(self) -> DeadLetterStore:
        """The items that failed and were skipped."""
        return self._supervisor.dead_letters

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the current figures of the run, or its last ones once it has ended."""
        if not self._is_closed:
            self._last_figures = self._figures.take(detailed=detailed)
        return self._last_figures

    def count_files(self, files: int) -> None:
        """Set the number of files that sinks have written in this run, for progress and report."""
        self._consumer.statistics.files = files

    def abort_epoch(self, error: RunError) -> None:
        """End the current epoch from another thread; its iteration raises `error`."""
        self._supervisor.abort_epoch(error)

    def cancel_epoch(self) -> None:
        """End the current epoch from another thread because no more items are needed. The run does not fail."""
        self._supervisor.abort_epoch(EpochCancelledError("the epoch was cancelled: no more items are wanted"))

    @property
    def item_digests(self) -> dict[str, dict[Key, ItemDigestEvent]]:
        """The digests of a determinism check, by process name and item."""
        return self._supervisor.item_digests

    def share_memory(self) -> MemoryHandle:
        """Share the run's memory with other processes. Call it before the first epoch. See `Consumer.share_memory`."""
        return self._consumer.share_memory()

    def read_figures(self) -> LiveRun:
        """Return the current counters of the run, with a row for each process of the plan."""
        return self._figures.read()

    @property
    def regions(self) -> Sequence[Sequence[ProcessRegion]]:
        """The counters on the board, for each worker of each process."""
        return self._figures.regions

    @property
    def probe_samples(self) -> Mapping[int, Sequence[ProbeSample]]:
        """The measurements of a probe, by process index."""
        return self._supervisor.probe_samples

    def make_record(self) -> RunRecord:
        """Return the counts so far; after `close`, those of the whole run.

        Raises UsageError if the close was interrupted before the counters were read.
        """
        if self._record is not None:
            return self._record
        if self._is_closed:
            message = "no report: closing the run was interrupted"
            raise UsageError(message)
        self._monitor.sample_usage(self._list_pids())
        return self._count_record()

    def _list_pids(self) -> dict[int, int]:
        """Return the process ids of the workers, by process index. A restarted worker replaces its predecessor."""
        return {index: worker.pid for index, worker in list(self._supervisor.workers.items())}

    def _count_record(self) -> RunRecord:
        """Make the record from the current counters and the last measurements of the monitor."""
        self._consumer.flush()
        board = self._supervisor.board
        record = make_run_record(
            self.plan,
            self._figures.read(),
            self._consumer.statistics.take_snapshot(),
            take_run_timings(self._supervisor),
            restarts=list(self._supervisor.recovery.restarts),
            stalls=list(self._supervisor.recovery.stalls),
            monitor=self._monitor,
            memory_pressures=[board.read_memory_pressure(segment) for segment in range(len(self.plan.segments))],
            series=self._make_series(),
            worker_changes=self._list_worker_changes(),
            **self.make_run_fields(),
        )
        if self.plan.is_probe:
            return record
        from stagepipe.forecast import estimate_changes  # imported late: a run needs it only at its end

        return replace(record, what_if=estimate_changes(self.plan, record))

    def _serve_metrics(self) -> None:
        if self._metrics_server is not None:
            from stagepipe.engine.metrics import RunCollector

            supervisor = self._supervisor
            self._metrics_server.serve(
                RunCollector(
                    self._figures.description,
                    self._figures.read_rows,
                    lambda: take_run_timings(supervisor),
                    supervisor.worker_changes,
                )
            )

    def _write_trace(self, record: RunRecord) -> None:
        if self._trace_output is not None:
            started_ns = self._consumer.statistics.take_snapshot().started_ns
            tracks, restarts = read_trace_tracks(self._supervisor), self._supervisor.recovery.restarts
            self._trace_output.write(self.plan, tracks, restarts, record, started_ns)
            self.has_written_trace = self._trace_output.is_written

    def _start_scaler(self) -> None:
        from stagepipe.engine.scaling import RunScaler  # imported late: it imports the forecast

        scaler = RunScaler(self._supervisor, self._figures, self._consumer.statistics.take_snapshot)
        self._supervisor.call_regularly(scaler.check)

    def _start_series(self) -> SeriesRecorder:
        workers = self._supervisor.workers  # not `self`: a cycle would keep the board's descriptor open
        return SeriesRecorder(
            self._figures.read,
            lambda: [worker.pid for worker in list(workers.values())],
            self._supervisor.worker_changes,
        )

    def _make_series(self) -> Series:
        if self._series is None:
            return Series()
        self._series.add_sample()
        return self._series.to_series(self.plan, self._consumer.statistics.take_snapshot().started_ns)

    def _list_worker_changes(self) -> tuple[WorkerChangeRecord, ...]:
        if self._series is None:
            return ()
        started_ns = self._consumer.statistics.take_snapshot().started_ns
        return make_worker_changes(self.plan, self._series.list_changes(), started_ns)

    def close(self) -> None:
        """Stop the workers and release all resources. The record stays, unless the close itself was interrupted."""
        if self._is_closed:
            return
        try:
            is_short = self.plan.forks_caller and self._consumer.statistics.take_snapshot().wall_ns < _SHORT_EPOCH_NS
            self._monitor.sample_usage(self._list_pids(), includes_memory=not is_short)
            self._consumer.close()
            try:
                self._supervisor.stop()
            finally:  # also after a Ctrl-C
                self._record = self._count_record()
                self._last_figures = self._figures.take()
                self._write_trace(self._record)
        finally:
            if self._metrics_server is not None:
                self._metrics_server.close()
            try:
                if self._series is not None:
                    self._series.stop()
            finally:  # also after a second Ctrl-C
                self._supervisor.close()
            self._is_closed = True  # even without a record: its counters are released
            self._consumer.release_references()

    def close_unattended(self) -> None:
        """Close the run when its pipeline is garbage-collected, or at interpreter exit.

        Only a daemon thread can still iterate then. It waits for the end of the process.
        """
        self._consumer.is_process_ending = True
        self.close()
