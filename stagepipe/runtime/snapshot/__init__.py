"""Snapshots of a run: everything that its engine, its report and a progress bar ask of it, as frozen values.

In the caller's process, on any thread. Taking one reads the board and waits for nobody.

run_snapshot  RunSnapshot: counters, deliveries, restarts
run_timings   RunTimings: the histograms of stages and hops
"""

from stagepipe.runtime.snapshot.run_snapshot import RunSnapshot, WorkerSnapshot, take_run_snapshot
from stagepipe.runtime.snapshot.run_timings import HopTimings, RunTimings, StageTimings, take_run_timings

__all__ = [
    "HopTimings",
    "RunSnapshot",
    "RunTimings",
    "StageTimings",
    "WorkerSnapshot",
    "take_run_snapshot",
    "take_run_timings",
]
