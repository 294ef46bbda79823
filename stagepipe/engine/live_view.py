"""Watches a run from another process: makes a `LiveRun` from the board, which costs the run nothing.

In the process of `stagepipe top`. Each figure is one that the run counts anyway; rates and shares are of the time
between two looks, at least two seconds if it lasts as long.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Literal, NamedTuple

import psutil

from stagepipe.engine.monitor import RunMonitor
from stagepipe.plan import SINK_NAME, ProcessPlan, ProcessRole, StagePlan
from stagepipe.report import LiveHop, LivePercentiles, LiveRun, LiveStage, StageProgress, find_limiting_stage
from stagepipe.runtime import (
    AttachedRun,
    ProcessDescription,
    RunSample,
    RunSampler,
    RunSnapshot,
    RunTimings,
    WorkerSnapshot,
    group_process_indices,
    make_worker_slots,
    read_run_snapshot,
    read_run_timings,
)
from stagepipe.spec import Target
from stagepipe.timing import Histogram, ProcessCounter, StageCounter

_AVERAGING_NS = 2_000_000_000
"""As the figures of a run's own progress display."""
_SENDING_PHASES = ("encode_ns", "copy_ns", "send_ns")
_RECEIVING_PHASES = ("receive_ns", "decode_ns")


class _Look(NamedTuple):
    """What was read at one moment."""

    sample: RunSample
    snapshot: RunSnapshot
    timings: RunTimings


class LiveView:
    """A run of another process. Call `take` now and then, with a second or so between two calls.

    >>> view = LiveView(find_runs().runs[0])  # doctest: +SKIP
    >>> view.take().limited_by  # doctest: +SKIP
    'decode'
    """

    def __init__(self, attached: AttachedRun) -> None:
        """Take the first look, which later ones are compared with."""
        self._attached = attached
        self._plans = _make_process_plans(attached.description.processes)
        self._slots = make_worker_slots(self._plans)
        self._groups = group_process_indices(self._slots)
        self._sampler = RunSampler(attached.board, self._groups)
        self._monitor = RunMonitor()
        self._looks: deque[_Look] = deque()
        self._process = _find_process(attached.pid)
        self._processes: dict[int, psutil.Process] = {}
        self.take()

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, or its process has."""
        return self._attached.board.has_ended or self._process is None or not self._process.is_running()

    def take(self) -> LiveRun:
        """Return the run as it is now."""
        look = _Look(
            self._sampler.take(),
            read_run_snapshot(self._attached.board, self._slots),
            read_run_timings(self._attached.board, self._plans, self._groups),
        )
        self._looks.append(look)
        oldest_ns = look.sample.taken_at_ns - _AVERAGING_NS
        while len(self._looks) > 2 and self._looks[1].sample.taken_at_ns <= oldest_ns:  # noqa: PLR2004 - an interval
            self._looks.popleft()
        progress = self._monitor.progress(look.snapshot, look.sample, is_finished=self.has_ended)
        deliveries = look.snapshot.deliveries
        stages = self._make_stages(progress.stages)
        return LiveRun(
            name=self._attached.description.name,
            run_id=self._attached.run_id,
            pid=self._attached.pid,
            state=self._find_state(look.snapshot),
            elapsed_ns=perf_counter_ns() - deliveries.started_ns if deliveries.started_ns else 0,
            items_done=progress.items_done,
            items_total=progress.items_total,
            items_out=progress.items_out,
            samples_out=progress.samples_out,
            items_per_s=progress.items_per_s,
            samples_per_s=progress.samples_per_s,
            limited_by=find_limiting_stage(stages),
            shared_memory_bytes=look.sample.shared_memory_bytes,
            shared_memory_limit_bytes=self._attached.description.memory_bytes,
            stages=stages,
            hops=self._make_hops(),
        )

    def _find_state(self, snapshot: RunSnapshot) -> Literal["starting", "running", "ended"]:
        if self.has_ended:
            return "ended"
        return "starting" if snapshot.starting_stages else "running"

    # ------------------------------------------------------------------ stages

    def _make_stages(self, progress: Sequence[StageProgress]) -> tuple[LiveStage, ...]:
        groups = self._looks[-1].snapshot.worker_groups
        stages = [
            self._make_stage(index, stage, workers)
            for index, (stage, workers) in enumerate(zip(progress, groups, strict=False))
        ]
        return (*stages, self._make_consumer(progress[-1]))

    def _make_stage(self, index: int, progress: StageProgress, workers: Sequence[WorkerSnapshot]) -> LiveStage:
        counters = [counters for worker in workers for counters in worker.stage_counters]
        first, last = self._looks[0], self._looks[-1]
        covered_ns = last.sample.processes[index].covered_ns - first.sample.processes[index].covered_ns
        hop_ns = self._sum_phases(index, _SENDING_PHASES) + self._sum_phases(index - 1, _RECEIVING_PHASES)
        return LiveStage(
            name=progress.name,
            fused=progress.fused,
            workers=len(workers),
            is_starting=progress.is_starting,
            items=last.sample.processes[index].items,
            items_per_s=progress.items_per_s,
            busy=progress.busy,
            starved=progress.starved,
            blocked=progress.blocked,
            work=min(progress.busy + hop_ns / max(covered_ns, 1), 1.0),
            queued=progress.queued,
            run_ns=_compare(
                first.timings.stages[progress.name].run_histogram, last.timings.stages[progress.name].run_histogram
            ),
            rss_bytes=sum(self._measure_rss_bytes(worker.pid) for worker in workers),
            errors=sum(each[StageCounter.FAILED_ATTEMPTS] for each in counters),
            retries=sum(each[StageCounter.RETRIES] for each in counters),
            skipped=sum(each[StageCounter.SKIPPED] for each in counters),
            restarts=sum(worker.counters[ProcessCounter.INCARNATION] for worker in workers),
        )

    def _make_consumer(self, progress: StageProgress) -> LiveStage:
        first, last = self._looks[0].snapshot.deliveries, self._looks[-1].snapshot.deliveries
        hop_ns = self._sum_phases(len(self._plans) - 1, _RECEIVING_PHASES)
        return LiveStage(
            name=SINK_NAME,
            workers=1,
            items=last.items,
            items_per_s=progress.items_per_s,
            busy=progress.busy,
            starved=progress.starved,
            work=min(progress.busy + hop_ns / max(last.wall_ns - first.wall_ns, 1), 1.0),
            queued=progress.queued,
            rss_bytes=self._measure_rss_bytes(self._attached.pid),
        )

    def _sum_phases(self, hop: int, phases: Sequence[str]) -> int:
        """The time that one side of a hop took since the first look. There is no hop before the source."""
        if hop < 0:
            return 0
        first, last = (self._looks[end].timings.hops[hop].phase_histograms for end in (0, -1))
        return sum(last[phase].sum_ns - first[phase].sum_ns for phase in phases)

    def _measure_rss_bytes(self, pid: int) -> int:
        """The resident memory. Not the proportional: for that the kernel walks all pages, and holds the worker up."""
        with contextlib.suppress(psutil.Error):
            if pid and pid not in self._processes:
                self._processes[pid] = psutil.Process(pid)
            return int(self._processes[pid].memory_info().rss) if pid else 0
        return 0

    # ------------------------------------------------------------------ hops

    def _make_hops(self) -> tuple[LiveHop, ...]:
        ends = pairwise([*self._plans, None])
        before, after = self._looks[0].timings.hops, self._looks[-1].timings.hops
        return tuple(
            LiveHop(
                source=source.stages[-1].name if source is not None else "",
                target=SINK_NAME if target is None else target.name,
                messages=last.phase_histograms["cost_ns"].count,
                cost_ns=_compare(first.phase_histograms["cost_ns"], last.phase_histograms["cost_ns"]),
                queue_ns=_compare(first.phase_histograms["queue_ns"], last.phase_histograms["queue_ns"]),
            )
            for (source, target), first, last in zip(ends, before, after, strict=True)
        )


def _make_process_plans(processes: Sequence[ProcessDescription]) -> tuple[ProcessPlan, ...]:
    """The plan of a run, as far as it is known: what its stages run stays in the run."""
    return tuple(
        ProcessPlan(
            role=ProcessRole.STAGE if index else ProcessRole.SOURCE,
            stages=tuple(StagePlan(name=name, target=Target("")) for name in process.stages),
            workers=process.workers,
            input_segment=0,
            output_segment=0,
        )
        for index, process in enumerate(processes)
    )


def _find_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _compare(first: Histogram, last: Histogram) -> LivePercentiles:
    """The percentiles of what came between two looks; of all if nothing did."""
    recent = last - first
    histogram = recent if recent.count else last
    return LivePercentiles(p50=histogram.percentile_ns(50), p99=histogram.percentile_ns(99))
