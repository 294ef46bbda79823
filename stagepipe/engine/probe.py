"""Runs a probe: the first few items through real workers, within seconds. In the process of the caller."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from time import monotonic

from stagepipe.core import RunError
from stagepipe.engine.local import LocalRun
from stagepipe.engine.probe_sink import open_probe_sinks
from stagepipe.forecast import ProbeFigures
from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_time_ns
from stagepipe.plan import Plan, ProbeResult, ProcessRole, make_probe_plan
from stagepipe.runtime import RunSnapshot
from stagepipe.timing import ProcessCounter, StageCounter

_MAX_PROBE_S = 60.0
"""Time after all workers are ready at which a probe ends in any case. Stages without items by then have no figures."""

_MIN_WARM_SOURCE_ITEMS = 5
_MIN_WARM_ITEMS = 2
"""The pipeline is warm once each stage has had this many items: the first may load libraries or a model on its way.
A sink writes its first part several times."""

_POLL_INTERVAL_S = 0.02


class ProbeTimeLimitError(RunError):
    """The probe reached its time limit."""


class ProbeLength(Enum):
    """How long a probe goes on once the pipeline is warm, in seconds: it has then measured enough."""

    BRIEF = 0.5  # before a run: items of its own come soon, so it does not wait for the first batch either
    FULL = 5.0


def run_probe(plan: Plan, length: ProbeLength = ProbeLength.FULL) -> ProbeFigures:
    """Run the plan's stages on its first few items.

    Sinks with workers, and built-in ones, write to a temporary folder. No other sink runs: what it writes would stay.
    Raises RunError if a stage fails, and ReadOnceError (a RunError) if the source can be read only once.
    """
    load_meter = CpuLoadMeter()
    with (
        open_probe_sinks(plan) as sinks,
        LocalRun(make_probe_plan(plan, sinks.folder)) as run,
        limit_duration(run, length),
    ):
        try:
            for item in run.iter_epoch(0):
                sinks.write(item)
                del item
        except ProbeTimeLimitError:
            pass
        probe_results = _collect_results(
            run.take_snapshot()
        )  # before the workers end: the kernel forgets their CPU times
        other_cpus = load_meter.measure_other_cpus()
    return ProbeFigures(
        record=run.make_record(),
        results_by_process=probe_results,
        sink_ns=sinks.mean_ns,
        part_samples=sinks.part_samples,
        other_cpus=other_cpus,
    )


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
def limit_duration(run: LocalRun, length: ProbeLength = ProbeLength.FULL) -> Iterator[None]:
    """Abort the run at its time limit: its iteration raises RunError."""
    probe_ended = threading.Event()
    time_limit_thread = threading.Thread(
        target=_watch_duration, args=(run, length, probe_ended), name="stagepipe-probe", daemon=True
    )
    time_limit_thread.start()
    try:
        yield
    finally:
        probe_ended.set()
        time_limit_thread.join()


def _watch_duration(run: LocalRun, length: ProbeLength, probe_ended: threading.Event) -> None:
    """Abort the run some time after it is warm, or long after all workers are ready."""
    ready_at_s = math.inf
    warm_at_s = math.inf
    while not probe_ended.wait(_POLL_INTERVAL_S):
        now_s = monotonic()
        snapshot = run.take_snapshot()
        if not snapshot.starting_stages:
            ready_at_s = min(ready_at_s, now_s)
        if _is_warm(snapshot, length):
            warm_at_s = min(warm_at_s, now_s)
        if now_s - warm_at_s > length.value or now_s - ready_at_s > _MAX_PROBE_S:
            run.abort_epoch(ProbeTimeLimitError("the probe reached its time limit"))
            return


def _is_warm(snapshot: RunSnapshot, length: ProbeLength) -> bool:
    """Whether every stage has had items. A full probe also waits for the first item that comes out at the end."""
    if length is ProbeLength.FULL and not snapshot.deliveries.items:
        return False
    if snapshot.workers[0].counters[ProcessCounter.ITEMS_SENT] < _MIN_WARM_SOURCE_ITEMS:
        return False
    roles = [worker.slot.process_plan.role for worker in snapshot.workers]
    last_stage = max((index for index, role in enumerate(roles) if role is ProcessRole.STAGE), default=0)
    return all(
        counters[StageCounter.ITEMS] >= (1 if worker.slot.process_plan.first_stage.sink_path else _MIN_WARM_ITEMS)
        for worker in snapshot.workers[1 : last_stage + 1]
        for counters in worker.stage_counters
    )
