"""Snapshots of a run: everything that its engine, its report and a progress bar ask of it, as frozen values.

In the caller's process, on any thread. Taking one reads the board and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from time import perf_counter_ns

from stagepipe.costs import CostMeasurement, TransportRuleChange, summarize_ledgers
from stagepipe.runtime.consumer import Consumer, DeliverySnapshot
from stagepipe.runtime.protocol import ProbeSample
from stagepipe.runtime.supervisor import Supervisor, WorkerRestart, WorkerSlot
from stagepipe.timing import (
    RECEIVE_PHASES,
    SEND_PHASES,
    Histogram,
    ProcessCounter,
    ProcessRegion,
    SlowItemRow,
    StageCounter,
    StageRegion,
)


@dataclass(frozen=True, kw_only=True)
class WorkerSnapshot:
    """A worker slot and its present worker. Counters go on over restarts."""

    slot: WorkerSlot
    pid: int
    is_ready: bool
    counters: tuple[int, ...]
    """Indexed by `ProcessCounter`."""
    stage_counters: tuple[tuple[int, ...], ...]
    """For each stage of the process, indexed by `StageCounter`."""
    probe_samples: tuple[ProbeSample, ...]
    """What a probe run has measured here."""

    @property
    def busy_ns(self) -> int:
        """The time in its stages' code."""
        return sum(counters[StageCounter.BUSY_NS] for counters in self.stage_counters)


@dataclass(frozen=True)
class StageTimings:
    """How long a stage took for its items, over all its workers; `slow_items` are the slowest of each worker."""

    run_histogram: Histogram
    slow_items: tuple[SlowItemRow, ...]


@dataclass(frozen=True)
class HopTimings:
    """What a hop cost, over all workers of both sides."""

    phase_histograms: dict[str, Histogram]
    measured_costs: tuple[CostMeasurement, ...]
    rule_changes: tuple[TransportRuleChange, ...]


@dataclass(frozen=True)
class RunTimings:
    """The histograms of a run: of its stages by name, and of its hops in the order of the chain."""

    stages: dict[str, StageTimings]
    hops: tuple[HopTimings, ...]


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run at one moment. `workers` are in the order of the chain; the first one reads the source."""

    taken_at_ns: int
    workers: tuple[WorkerSnapshot, ...]
    deliveries: DeliverySnapshot
    copied_out_items: int
    """Items of which the consumer copied a part out of shared memory."""
    restarts: tuple[WorkerRestart, ...]

    @property
    def worker_groups(self) -> tuple[tuple[WorkerSnapshot, ...], ...]:
        """The workers of each process of the plan."""
        groups: dict[int, list[WorkerSnapshot]] = {}
        for worker in self.workers:
            groups.setdefault(worker.slot.worker_group, []).append(worker)
        return tuple(map(tuple, groups.values()))

    @property
    def starting_stages(self) -> tuple[str, ...]:
        """The names of the processes that have a worker that is not ready yet."""
        return tuple(dict.fromkeys(worker.slot.process_plan.name for worker in self.workers if not worker.is_ready))


def take_run_snapshot(supervisor: Supervisor, consumer: Consumer) -> RunSnapshot:
    """Return the run as it is now. Takes some microseconds per worker."""
    board = supervisor.board
    consumer_region = board.region(supervisor.resources.consumer_process_index)
    return RunSnapshot(
        taken_at_ns=perf_counter_ns(),
        workers=tuple(_take_worker_snapshot(supervisor, slot) for slot in supervisor.resources.slots),
        deliveries=consumer.statistics.take_snapshot(),
        copied_out_items=consumer_region[ProcessCounter.COPIED_OUT_ITEMS],
        restarts=tuple(replace(restart) for restart in list(supervisor.recovery.restarts.history)),
    )


def _take_worker_snapshot(supervisor: Supervisor, slot: WorkerSlot) -> WorkerSnapshot:
    region = supervisor.board.region(slot.process_index)
    worker = supervisor.workers[slot.process_index]
    return WorkerSnapshot(
        slot=slot,
        pid=worker.pid,
        is_ready=worker.is_ready,
        counters=region.read_counters(),
        stage_counters=tuple(region.stage_region(index).read_counters() for index in range(region.stage_count)),
        probe_samples=tuple(supervisor.probe_samples.get(slot.process_index, ())),
    )


def take_run_timings(supervisor: Supervisor) -> RunTimings:
    """Return the histograms of the run as they are now. Takes a millisecond or more: they are large."""
    regions_by_group = [
        [supervisor.board.region(process_index) for process_index in process_indices]
        for process_indices in supervisor.resources.process_indices_by_group
    ]
    stages = {
        stage.name: _take_stage_timings([region.stage_region(stage_index) for region in regions])
        for process, regions in zip(supervisor.plan.processes, regions_by_group, strict=False)  # the consumer has none
        for stage_index, stage in enumerate(process.stages)
    }
    hops = tuple(
        _take_hop_timings(
            regions_by_group[hop], regions_by_group[hop + 1], supervisor.adaptive_transport.get_rule_changes(hop)
        )
        for hop in range(len(supervisor.plan.hops))
    )
    return RunTimings(stages, hops)


def _take_stage_timings(regions: list[StageRegion]) -> StageTimings:
    return StageTimings(
        _sum_histograms(Histogram.from_words(region.run_histogram_words) for region in regions),
        tuple(row for region in regions for row in region.read_slow_items()),
    )


def _take_hop_timings(
    senders: list[ProcessRegion], receivers: list[ProcessRegion], rule_changes: tuple[TransportRuleChange, ...]
) -> HopTimings:
    sender_histograms = [region.phase_histograms() for region in senders]
    receiver_histograms = [region.phase_histograms() for region in receivers]
    sides = ((SEND_PHASES, sender_histograms), (RECEIVE_PHASES, receiver_histograms))
    return HopTimings(
        {
            phase: _sum_histograms(histograms[phase] for histograms in side)
            for phases, side in sides
            for phase in phases
        },
        tuple(
            summarize_ledgers(
                [region.send_ledger for region in senders], [region.receive_ledger for region in receivers]
            )
        ),
        rule_changes,
    )


def _sum_histograms(histograms: Iterable[Histogram]) -> Histogram:
    return reduce(add, histograms)
