"""Runs a probe: the first few items through real workers, within seconds. In the process of the caller."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from stagepipe.core import RunError
from stagepipe.engine.local import LocalRun
from stagepipe.machine import cpu_delay_ns, cpu_time_ns
from stagepipe.plan import Plan, ProbeResult, make_probe_plan
from stagepipe.report import RunRecord
from stagepipe.runtime import RunSnapshot

_MAX_WARM_PROBE_S = 5.0
"""Time after warm-up at which a probe ends: it has measured enough."""

_MAX_PROBE_S = 60.0
"""Time after all workers are ready at which a probe ends in any case. Stages without items by then have no figures."""

_MIN_WARM_ITEMS = 3
"""The pipeline is warm once the source has produced this many items: then the second has gone through. The first may
load libraries on its way."""

_POLL_INTERVAL_S = 0.1


class ProbeTimeLimitError(RunError):
    """The probe reached its time limit."""


@dataclass(frozen=True)
class ProbeRecord:
    """What a probe measured: the record of its run, and for each process what its items consist of."""

    run_record: RunRecord
    results_by_process: Mapping[str, ProbeResult]


def run_probe(plan: Plan) -> ProbeRecord:
    """Run the plan's stages on its first few items. The sink does not run: what it writes would stay.

    Raises RunError if a stage fails, and ReadOnceError (a RunError) if the source can be read only once.
    """
    run = LocalRun(make_probe_plan(plan))
    with run, limit_duration(run):
        try:
            for item in run.iter_epoch(0):
                del item
        except ProbeTimeLimitError:
            pass
        probe_results = _collect_results(
            run.take_snapshot()
        )  # before the workers end: the kernel forgets their CPU times
    return ProbeRecord(run.make_record(), probe_results)


def _collect_results(snapshot: RunSnapshot) -> dict[str, ProbeResult]:
    """Return what the processes have measured so far, by process name."""
    return {
        worker.slot.process_plan.name: ProbeResult(
            items=tuple(sample.item for sample in worker.probe_samples),
            cpu_ns=tuple(sample.cpu_ns for sample in worker.probe_samples),
            cpu_delay_ns=tuple(sample.cpu_delay_ns for sample in worker.probe_samples),
            final_cpu_ns=cpu_time_ns(worker.pid),
            final_cpu_delay_ns=cpu_delay_ns(worker.pid),
        )
        for worker in snapshot.workers
        if worker.probe_samples
    }


@contextmanager
def limit_duration(run: LocalRun) -> Iterator[None]:
    """Abort the run at its time limit: its iteration raises RunError."""
    probe_ended = threading.Event()
    time_limit_thread = threading.Thread(
        target=_watch_duration, args=(run, probe_ended), name="stagepipe-probe", daemon=True
    )
    time_limit_thread.start()
    try:
        yield
    finally:
        probe_ended.set()
        time_limit_thread.join()


def _watch_duration(run: LocalRun, probe_ended: threading.Event) -> None:
    """Abort the run some seconds after it is warm, or long after all workers are ready."""
    ready_at_s = math.inf
    warm_at_s = math.inf
    while not probe_ended.wait(_POLL_INTERVAL_S):
        now_s = monotonic()
        snapshot = run.take_snapshot()
        if not snapshot.starting_stages:
            ready_at_s = min(ready_at_s, now_s)
        if len(snapshot.workers[0].probe_samples) >= _MIN_WARM_ITEMS:
            warm_at_s = min(warm_at_s, now_s)
        if now_s - warm_at_s > _MAX_WARM_PROBE_S or now_s - ready_at_s > _MAX_PROBE_S:
            run.abort_epoch(ProbeTimeLimitError("the probe reached its time limit"))
            return
