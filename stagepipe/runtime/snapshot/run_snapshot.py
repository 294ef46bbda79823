"""The snapshot of a run: what it has counted, as frozen values. Cheap enough for a progress bar."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter_ns

from stagepipe.runtime.consumer import Consumer, DeliverySnapshot
from stagepipe.runtime.protocol import ProbeSample
from stagepipe.runtime.supervisor import StallRestart, Supervisor, WorkerRestart, WorkerSlot
from stagepipe.timing import ProcessCounter, StageCounter


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


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run at one moment. `workers` are in the order of the chain; the first one reads the source."""

    taken_at_ns: int
    workers: tuple[WorkerSnapshot, ...]
    deliveries: DeliverySnapshot
    copied_out_items: int
    """Items of which the consumer copied a part out of shared memory."""
    restarts: tuple[WorkerRestart, ...]
    stall_restarts: tuple[StallRestart, ...]
    memory_pressures: tuple[tuple[int, int] | None, ...]
    """For each segment (bytes of an item, items that fitted), if `memory` ever held less than the window."""

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
        stall_restarts=tuple(replace(restart) for restart in list(supervisor.recovery.restarts.stalls)),
        memory_pressures=tuple(map(board.read_memory_pressure, range(board.layout.segment_count))),
    )


def _take_worker_snapshot(supervisor: Supervisor, slot: WorkerSlot) -> WorkerSnapshot:
    worker = supervisor.workers[slot.process_index]
    region = supervisor.board.region(slot.process_index)
    return WorkerSnapshot(
        slot=slot,
        pid=worker.pid,
        is_ready=worker.is_ready,
        counters=region.read_counters(),
        stage_counters=tuple(region.stage_region(index).read_counters() for index in range(region.stage_count)),
        probe_samples=tuple(supervisor.probe_samples.get(slot.process_index, ())),
    )
