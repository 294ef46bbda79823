"""Runs a probe: items go through real workers until each stage is measured. In the process of the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from time import monotonic

from stagepipe.core import RunError
from stagepipe.engine.local import LocalRun
from stagepipe.engine.probe_sink import open_probe_sinks
from stagepipe.forecast import ProbeFigures
from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_time_ns
from stagepipe.plan import Plan, ProbeResult, ProcessRole, make_probe_plan
from stagepipe.runtime import RunSnapshot, WorkerSnapshot
from stagepipe.timing import ProcessCounter, StageCounter

_MAX_PROBE_S = 60.0
"""Time after which a probe ends in any case. It starts when all workers are ready, and stands still while a stage is in
its first call, which may load a model. One item is in flight at a time, so 60 s bring a batch of 256 through stages
that take 0.2 s an item. The user waits for it."""

_MAX_LOADING_S = 300.0
"""The most time of first calls that does not count: 15 GB from a network file system at 50 MB/s. It may be a hang."""

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


def run_probe(plan: Plan, length: ProbeLength = ProbeLength.FULL, *, runs_all_sinks: bool = False) -> ProbeFigures:
    """Run the plan's stages on its first items: a few, or, in a full probe, as many as it takes to reach all stages.

    Sinks with workers, and built-in ones, write to a temporary folder. `runs_all_sinks`: the others run as well, and
    what they write stays. Raises RunError if a stage fails, and ReadOnceError (a RunError) if the source can be read
    only once.
    """
    load_meter = CpuLoadMeter()
    with open_probe_sinks(plan, runs_all=runs_all_sinks) as sinks:
        probe_plan = make_probe_plan(plan, sinks.folder)
        enough_items = probe_plan.limit
        if length is ProbeLength.FULL:
            probe_plan = replace(probe_plan, limit=plan.limit)
        with LocalRun(probe_plan) as run, limit_duration(run, length, enough_items) as clock:
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
            sink_waiting_ns=sinks.mean_waiting_ns,
            part_samples=sinks.part_samples,
            other_cpus=other_cpus,
            probed_s=clock.probed_s,
            items_before=clock.items_before,
            usual_items=enough_items or 0,
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


class ProbeClock:
    """Ends a probe that has measured enough, or that takes too long. Its thread calls `tick`."""

    def __init__(self, run: LocalRun, length: ProbeLength, enough_items: int | None) -> None:
        """`enough_items`: the probe need not read more of the source once the pipeline is warm. None: no matter."""
        self.probed_s = 0.0
        """Time since all workers were ready, without first calls."""
        self.items_before: dict[str, int] = {}
        """For each stage that has had items: how many the source had sent before its first."""
        self._run = run
        self._length = length
        self._enough_items = enough_items
        self._ticked_at_s = monotonic()
        self._loading_s = 0.0
        self._warm_s = 0.0

    def tick(self) -> bool:
        """Count the time since the last call. Whether the probe is to end."""
        now_s = monotonic()
        elapsed_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        snapshot = self._run.take_snapshot()
        if snapshot.starting_stages:
            return False
        if self._loading_s < _MAX_LOADING_S and any(map(_is_in_first_call, snapshot.workers)):
            self._loading_s += elapsed_s
        else:
            self.probed_s += elapsed_s
        self._note_first_items(snapshot)
        if self.probed_s > _MAX_PROBE_S:
            return True
        if not _is_warm(snapshot, self._length):
            return False
        self._warm_s += elapsed_s
        has_enough = self._enough_items is not None and _has_enough(snapshot, self._enough_items)
        return has_enough or self._warm_s > self._length.value

    def _note_first_items(self, snapshot: RunSnapshot) -> None:
        """Note stages that have items since the last look. What they have had meanwhile was not before their first."""
        source_items = snapshot.workers[0].counters[ProcessCounter.ITEMS_SENT]
        for worker in snapshot.workers[1:]:
            for stage, counters in zip(worker.slot.process_plan.stages, worker.stage_counters, strict=True):
                if counters[StageCounter.ITEMS]:
                    received = counters[StageCounter.ITEMS] + counters[StageCounter.PASSED_BY]
                    self.items_before.setdefault(stage.name, max(source_items - received, 0))


@contextmanager
def limit_duration(
    run: LocalRun, length: ProbeLength = ProbeLength.FULL, enough_items: int | None = None
) -> Iterator[ProbeClock]:
    """Abort the run when its time is over: its iteration raises RunError."""
    clock = ProbeClock(run, length, enough_items)
    probe_ended = threading.Event()

    def watch() -> None:
        while not probe_ended.wait(_POLL_INTERVAL_S):
            if clock.tick():
                run.abort_epoch(ProbeTimeLimitError("the probe reached its time limit"))
                return

    time_limit_thread = threading.Thread(target=watch, name="stagepipe-probe", daemon=True)
    time_limit_thread.start()
    try:
        yield clock
    finally:
        probe_ended.set()
        time_limit_thread.join()


def _has_enough(snapshot: RunSnapshot, source_items: int) -> bool:
    """Whether each stage has had the items that come of so many source items if none is dropped or passes by."""
    needed = source_items
    if snapshot.workers[0].counters[ProcessCounter.ITEMS_SENT] < needed:
        return False
    for worker in snapshot.workers[1:]:
        if any(counters[StageCounter.ITEMS] < needed - 1 for counters in worker.stage_counters):  # one is in flight
            return False
        needed //= worker.slot.process_plan.first_stage.items_per_output
    return True


def _is_in_first_call(worker: WorkerSnapshot) -> bool:
    """Whether a worker processes an item in a stage that has not finished any: it may be loading a model."""
    if not worker.counters[ProcessCounter.CURRENT_ITEM_PLUS_ONE]:
        return False
    counters = worker.stage_counters[worker.counters[ProcessCounter.CURRENT_STAGE]]
    return not counters[StageCounter.ITEMS] and not counters[StageCounter.PASSED_BY]


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
