"""Snapshots of a run: everything that its engine, its report and a progress bar ask of it, as frozen values.

In the caller's process, on any thread. Taking one reads the board and waits for nobody.

run_snapshot  RunSnapshot: counters, deliveries, restarts
run_timings   RunTimings: the histograms of stages and hops
run_sample    RunSample: the few counters that are sampled several times a second
run_trace     RunTrace: what each process did when, in a run that is traced
"""

from stagepipe.runtime.snapshot.run_sample import ProcessSample, RunSample, RunSampler
from stagepipe.runtime.snapshot.run_snapshot import RunSnapshot, WorkerSnapshot, read_run_snapshot, take_run_snapshot
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
    "ProcessSample",
    "RunSample",
    "RunSampler",
    "RunSnapshot",
    "RunTimings",
    "RunTrace",
    "StageTimings",
    "WorkerSnapshot",
    "read_run_snapshot",
    "read_run_timings",
    "take_run_snapshot",
    "take_run_timings",
    "take_run_trace",
]
