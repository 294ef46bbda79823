"""The watchdog: kills workers that exceed `timeout` or `start_timeout`, and detects a stalled run.

Runs on the supervisor's thread, in the caller's process. It only reads the board, so items pay nothing for it.

An item ages while its worker runs the stage's code. It does not age while the worker waits (a waiting worker updates
its heartbeat) or is stopped. Nor does it age while the machine sleeps or this process is stopped: one check counts at
most two check intervals, however long the previous check is ago.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic_ns, perf_counter_ns

from stagepipe.core import Key, format_ns
from stagepipe.plan import Plan, StagePlan
from stagepipe.runtime.protocol import format_item
from stagepipe.runtime.supervisor.memory_pressure import MemoryPressureMonitor
from stagepipe.runtime.supervisor.stalls import Stall, WorkerStatus, describe_stall, is_deadlocked
from stagepipe.runtime.supervisor.worker_process import WorkerProcess
from stagepipe.timing import Board, ProcessCounter, ProcessRegion, ProcessState, StageCounter

_MAX_CHECK_INTERVAL_NS = 500_000_000
_MIN_CHECK_INTERVAL_NS = 10_000_000
_CONSUMER_HEARTBEAT_MAX_AGE_NS = 1_000_000_000
"""The consumer updates its heartbeat while it waits for an item. An older heartbeat means that the caller is busy."""
_IDLE_HEARTBEAT_MAX_AGE_NS = 2_000_000_000
"""A waiting worker updates its heartbeat four times a second. With an older heartbeat it works, if not on an item."""
_MIN_TIMEOUT_NS = 500_000_000
"""Lower bound of `timeout`: a worker that waits for room downstream updates its heartbeat every 0.25 s."""
_MEMORY_SAMPLE_INTERVAL_NS = 1_000_000_000
_STALL_WARNING_AFTER_NS = 10_000_000_000
"""Log a warning when nothing has moved for so long while the consumer waits; the next one after twice the time."""
_START_WARNING_AFTER_NS = 20_000_000_000
"""While a worker starts: imports and models take long on a busy machine."""
_STALL_RECOVERY_AFTER_NS = 30_000_000_000
"""Seek to the last delivered item when nothing has moved for so long and no worker is busy."""
_log = logging.getLogger("stagepipe")


@dataclass(frozen=True, kw_only=True)
class _WorkerObservation:
    """What a process was doing at the last check, and for how long."""

    key: Key = ()
    stage_index: int = 0
    heartbeat_ns: int = 0
    item_age_ns: int = 0
    starting_ns: int = 0


class Watchdog:
    """Checks all workers at intervals. Used on the supervisor's thread only."""

    def __init__(self, plan: Plan, board: Board, workers: Mapping[int, WorkerProcess]) -> None:
        """`workers` is the live mapping of the worker pool: a restarted worker replaces its predecessor in it."""
        self._plan = plan
        self._board = board
        self._workers = workers
        timeouts = [stage.timeout_ns for process in plan.processes for stage in process.stages if stage.timeout_ns]
        self._check_interval_ns = max(
            min([_MAX_CHECK_INTERVAL_NS, *(timeout // 8 for timeout in timeouts)]), _MIN_CHECK_INTERVAL_NS
        )
        self._memory_pressure_monitor = MemoryPressureMonitor(plan, board)
        self._checked_at_ns = monotonic_ns()
        self._memory_sampled_at_ns = 0
        self._stalled_ns = 0
        self._progress_hash = -1
        self._next_warning_ns = _STALL_WARNING_AFTER_NS
        self._next_recovery_ns = _STALL_RECOVERY_AFTER_NS
        self._observations_by_pid: dict[int, _WorkerObservation] = {}

    @property
    def time_to_next_check_s(self) -> float:
        """Seconds until the next check is due."""
        return max(self._check_interval_ns - (monotonic_ns() - self._checked_at_ns), 0) / 1e9

    def check(self) -> Stall | None:
        """Check all workers, if a check is due. Returns the stall if the run needs a seek to end it."""
        now_ns = monotonic_ns()
        elapsed_ns = now_ns - self._checked_at_ns
        if elapsed_ns < self._check_interval_ns:
            return None
        self._checked_at_ns = now_ns
        counted_ns = min(elapsed_ns, 2 * self._check_interval_ns)
        for process_index, worker in self._workers.items():
            if worker.poll() is None and not worker.timeout_reason:
                self._check_worker(process_index, worker, counted_ns)
        self._observations_by_pid = {
            worker.pid: self._observations_by_pid.get(worker.pid, _WorkerObservation())
            for worker in self._workers.values()
        }
        if now_ns - self._memory_sampled_at_ns > _MEMORY_SAMPLE_INTERVAL_NS:
            self._memory_sampled_at_ns = now_ns
            for worker in self._workers.values():
                worker.sample_memory()
            self._memory_pressure_monitor.check()
        return self._check_for_stall(counted_ns)

    # ------------------------------------------------------------------ one worker

    def _check_worker(self, process_index: int, worker: WorkerProcess, elapsed_ns: int) -> None:
        previous = self._observations_by_pid.get(worker.pid, _WorkerObservation())
        # Its ready event may not have arrived: a stage that holds the GIL keeps the control thread from sending it.
        region = self._board.region(process_index)
        if not worker.is_ready and region[ProcessCounter.PROCESS_STATE] == ProcessState.STARTING:
            observation = _WorkerObservation(starting_ns=previous.starting_ns + elapsed_ns)
            limit_ns = max(stage.start_timeout_ns for stage in worker.slot.process_plan.stages)
            if observation.starting_ns > limit_ns and not worker.is_stopped:
                limit = format_ns(limit_ns)
                worker.kill_after_timeout(f"was not ready within its `start_timeout` of {limit} and was killed")
        else:
            observation = self._observe_item(region, worker, previous, elapsed_ns)
            stage = _get_current_stage(worker, observation)
            if stage.timeout_ns and observation.item_age_ns > max(stage.timeout_ns, _MIN_TIMEOUT_NS):
                limit = format_ns(stage.timeout_ns)
                worker.kill_after_timeout(f"exceeded its `timeout` of {limit} and was killed")
        self._observations_by_pid[worker.pid] = observation

    def _observe_item(
        self, region: ProcessRegion, worker: WorkerProcess, previous: _WorkerObservation, elapsed_ns: int
    ) -> _WorkerObservation:
        current = _WorkerObservation(
            key=region.current_key,
            stage_index=region[ProcessCounter.CURRENT_STAGE],
            heartbeat_ns=region[ProcessCounter.HEARTBEAT_NS],
        )
        if not current.key or (current.key, current.stage_index, current.heartbeat_ns) != (
            previous.key,
            previous.stage_index,
            previous.heartbeat_ns,
        ):
            return current
        return replace(
            current, item_age_ns=previous.item_age_ns if worker.is_stopped else previous.item_age_ns + elapsed_ns
        )

    # ------------------------------------------------------------------ all workers

    def _check_for_stall(self, elapsed_ns: int) -> Stall | None:
        progress_hash = self._compute_progress_hash()
        consumer = self._board.region(len(self._workers))
        if (
            progress_hash != self._progress_hash
            or perf_counter_ns() - consumer[ProcessCounter.HEARTBEAT_NS] > _CONSUMER_HEARTBEAT_MAX_AGE_NS
        ):
            self._progress_hash = progress_hash
            self._stalled_ns = 0
            self._next_warning_ns = _STALL_WARNING_AFTER_NS
            self._next_recovery_ns = _STALL_RECOVERY_AFTER_NS
            return None
        self._stalled_ns += elapsed_ns
        if self._stalled_ns < min(self._next_warning_ns, self._next_recovery_ns):
            return None
        statuses = [self._make_worker_status(index, worker) for index, worker in sorted(self._workers.items())]
        if self._stalled_ns < _START_WARNING_AFTER_NS and any(status.starting_ns for status in statuses):
            return None
        if self._stalled_ns >= self._next_warning_ns:
            self._next_warning_ns *= 2
            _log.warning("%s", describe_stall(statuses, self._stalled_ns))
        if self._stalled_ns >= self._next_recovery_ns and is_deadlocked(statuses):
            self._next_recovery_ns += _STALL_RECOVERY_AFTER_NS
            return Stall(describe_stall(statuses, self._stalled_ns), self._stalled_ns)
        return None

    def _compute_progress_hash(self) -> int:
        """A number that changes whenever an item moves."""
        board = self._board
        counters = [board.generation, board.read_consumed(len(self._plan.segments) - 1, board.generation) or 0]
        for process_index in self._workers:
            region = board.region(process_index)
            counters += [
                region[ProcessCounter.ITEMS_SENT],
                *(region.stage_region(index)[StageCounter.ITEMS] for index in range(region.stage_count)),
            ]
            counters += [region[ProcessCounter.DOWNTIME_NS], region[ProcessCounter.READY_NS]]
        return hash(tuple(counters))

    def _make_worker_status(self, process_index: int, worker: WorkerProcess) -> WorkerStatus:
        observation = self._observations_by_pid.get(worker.pid, _WorkerObservation())
        heartbeat_age_ns = perf_counter_ns() - self._board.region(process_index)[ProcessCounter.HEARTBEAT_NS]
        return WorkerStatus(
            name=f"{worker.slot.process_plan.first_stage.row}/{worker.slot.worker}",
            is_stopped=worker.is_stopped,
            starting_ns=0 if worker.is_ready else max(observation.starting_ns, 1),
            item=format_item(self._plan.shard, observation.key),
            item_age_ns=observation.item_age_ns,
            other_work_ns=heartbeat_age_ns if heartbeat_age_ns > _IDLE_HEARTBEAT_MAX_AGE_NS else 0,
        )


def _get_current_stage(worker: WorkerProcess, observation: _WorkerObservation) -> StagePlan:
    stages = worker.slot.process_plan.stages
    return stages[min(observation.stage_index, len(stages) - 1)]
