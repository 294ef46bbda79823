"""Writes the trace of a run when it ends. In the process that uses the pipeline."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from time import perf_counter_ns, time_ns

from stagepipe.core import check_output_file
from stagepipe.plan import Plan
from stagepipe.report import ClockReading, Series, TraceData, TraceDeath, TraceTrack, write_trace
from stagepipe.runtime import RunTrace

_CLOCK_READINGS = 5
_log = logging.getLogger("stagepipe")


class TraceOutput:
    """The trace of one run: notes both clocks at its start, and at its end writes the file."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if no file can be written at `path`; its folder is made."""
        self._path = path
        self.is_written = False
        check_output_file("trace", path)
        self._first_clock = read_clocks()

    def write(self, plan: Plan, trace: RunTrace, series: Series, started_ns: int) -> None:
        """Write the file. One that cannot be written, because the disk is full, is a warning: the run is over."""
        data = TraceData(
            name=plan.name,
            pid=os.getpid(),
            stage_names=plan.stage_names,
            tracks=tuple(TraceTrack(each.name, each.group, each.ring) for each in trace.processes),
            deaths=tuple(
                TraceDeath(
                    track=restart.death.process_index,
                    pid=restart.death.pid,
                    died_ns=restart.death.died_at_ns,
                    cause=restart.death.cause,
                    item=restart.death.item,
                )
                for restart in trace.restarts
            ),
            series=series,
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
    """Read both clocks at the same time, as nearly as one can."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before_ns = perf_counter_ns()
        wall_ns = time_ns()
        after_ns = perf_counter_ns()
        readings.append((after_ns - before_ns, ClockReading((before_ns + after_ns) // 2, wall_ns)))
    return min(readings, key=lambda reading: reading[0])[1]
