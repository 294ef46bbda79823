"""Snapshots of a run: everything that its engine, its report and a progress bar ask of it, as frozen values.

In the caller's process, on any thread. Taking one reads the board and waits for nobody.

run_snapshot  RunSnapshot: counters, deliveries, restarts
run_timings   RunTimings: the histograms of stages and hops
run_trace     RunTrace: what each process did when, in a run that is traced
"""

from stagepipe.runtime.snapshot.run_snapshot import RunSnapshot, WorkerSnapshot, take_run_snapshot
from stagepipe.runtime.snapshot.run_timings import (
    HopTimings,
    RunTimings,
    StageTimings,
    read_run_timings,
    take_run_timings,
)
from stagepipe.runtime.snapshot.run_trace import RunTrace, take_run_trace

__all__ = [
    "HopTimings",
    "RunSnapshot",
    "RunTimings",
    "RunTrace",
    "StageTimings",
    "WorkerSnapshot",
    "read_run_timings",
    "take_run_snapshot",
    "take_run_timings",
    "take_run_trace",
]
