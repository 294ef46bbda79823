"""Recovery from worker deaths and stalls: records them, asks the policy, and prepares the next seek.

In the caller's process. The supervisor calls it with its lock held.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.core import Cursor, Key, RunError
from stagepipe.machine import oom_kill_count
from stagepipe.plan import Plan
from stagepipe.runtime.protocol import format_item
from stagepipe.runtime.supervisor.arena_eras import ArenaEras
from stagepipe.runtime.supervisor.restart_policy import FailDecision, RestartDecision, RestartPolicy, WorkerDeath
from stagepipe.runtime.supervisor.run_resources import RunResources, WorkerSlot
from stagepipe.runtime.supervisor.worker_process import WorkerProcess
from stagepipe.timing import Board, ProcessCounter, ProcessState

_MAX_STALL_RECOVERIES = 2
"""How many times in a row a stalled run is restarted from the last delivered item before it fails."""


@dataclass
class WorkerRestart:
    """A death that leads to a restart. `lost_ns`: from the death to the next delivered item; 0 until there is one."""

    death: WorkerDeath
    lost_ns: int = 0


class RecoveryCoordinator:
    """The deaths of a run and what follows from them. With `is_seek_needed` set, the consumer has to seek."""

    def __init__(self, plan: Plan, resources: RunResources, board: Board) -> None:
        stateful_stage = next(
            (stage.name for process in plan.processes for stage in process.stages if stage.stateful), ""
        )
        self._plan = plan
        self._board = board
        self._restart_policy = RestartPolicy(plan.max_restarts, stateful_stage)
        self._process_indices = [*(slot.process_index for slot in resources.slots), resources.consumer_process_index]
        self.arena_eras = ArenaEras(plan.memory_bytes, resources.arena_memfds, board)
        self.is_seek_needed = False
        self._stall_recovery_count = 0
        self._oom_kill_count = oom_kill_count() or 0
        self.restarts: list[WorkerRestart] = []
        self._pending_restarts: list[tuple[int, WorkerSlot, int]] = []
        self._poison_items: dict[tuple[int, str, Key], tuple[str, int]] = {}
        self._unbatched_ranges: set[tuple[int, str, int, int]] = set()

    def handle_death(self, worker: WorkerProcess, epoch: int) -> RunError | None:
        """Decide on a death. Returns the error that ends the run, or None after scheduling a restart."""
        now_ns = perf_counter_ns()
        death = self._make_worker_death(worker, epoch, now_ns)
        decision = self._restart_policy.decide(death)
        if isinstance(decision, FailDecision):
            return RunError(
                decision.message, stage=death.stage.name, worker=death.worker, item=death.item, trace=death.trace
            )
        self._clear_worker_state(worker.slot.process_index)
        self._record_decision(death, decision)
        self.is_seek_needed = True
        self.restarts.append(WorkerRestart(death))
        self._pending_restarts.append((now_ns + int(decision.delay_s * 1e9), worker.slot, now_ns))
        return None

    def _make_worker_death(self, worker: WorkerProcess, epoch: int, died_at_ns: int) -> WorkerDeath:
        slot = worker.slot
        region = self._board.region(slot.process_index)
        stages = slot.process_plan.stages
        key = region.current_key
        last_item_plus_one = region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]
        # Its ready event may not have arrived, so the board counts too.
        was_ready = worker.is_ready or region[ProcessCounter.PROCESS_STATE] != ProcessState.STARTING
        return WorkerDeath(
            stage=stages[min(region[ProcessCounter.CURRENT_STAGE], len(stages) - 1) if key else 0],
            worker=slot.worker,
            process_index=slot.process_index,
            pid=worker.pid,
            cause=worker.describe_exit(has_oom_kill=self._has_new_oom_kill()),
            died_at_ns=died_at_ns,
            epoch=epoch,
            key=key,
            item=format_item(self._plan.shard, key),
            item_count=max(last_item_plus_one - key[0], 2) if key and last_item_plus_one else 1,
            uptime_ns=died_at_ns - (worker.ready_at_ns or died_at_ns) if was_ready else None,
            is_memory_fault=worker.has_memory_fault,
            was_killed_externally=worker.was_killed_externally,
            trace=worker.read_crash_log(),
        )

    def _has_new_oom_kill(self) -> bool:
        """Whether the kernel's out-of-memory killer has killed a process since the last call."""
        previous_count = self._oom_kill_count
        self._oom_kill_count = oom_kill_count() or 0
        return self._oom_kill_count > previous_count

    def _clear_worker_state(self, process_index: int) -> None:
        region = self._board.region(process_index)
        self.arena_eras.begin_era(self._board.live_bytes() - self._board.stale_bytes)
        self.arena_eras.forget_process(process_index)
        region.set_current_key(())
        region[ProcessCounter.LIVE_BYTES] = 0
        region[ProcessCounter.PROCESS_STATE] = ProcessState.STARTING

    def _record_decision(self, death: WorkerDeath, decision: RestartDecision) -> None:
        if decision.poison_kill_count:
            kill_count = decision.poison_kill_count
            subject = "its worker" if kill_count == 1 else f"it killed {kill_count} workers; the last one"
            reason = f"{subject} {death.cause}"
            self._poison_items[death.epoch, death.stage.name, death.key] = reason, kill_count
        if decision.is_unbatching_needed:
            first_item = death.key[0]
            self._unbatched_ranges.add((death.epoch, death.stage.name, first_item, first_item + death.item_count - 1))

    def handle_stall(self, diagnosis: str) -> RunError | None:
        """Ask for a seek, which may end the stall. Returns the error that ends the run if earlier ones did not help."""
        self._stall_recovery_count += 1
        if self._stall_recovery_count > _MAX_STALL_RECOVERIES:
            return RunError(
                f"{diagnosis}; no progress after {_MAX_STALL_RECOVERIES} restarts from the last delivered item"
            )
        self.is_seek_needed = True
        return None

    # ------------------------------------------------------------------ what the next seek forces

    def collect_forced_skips(self, epoch: int, cursors: Iterable[Cursor]) -> list[list[object]]:
        """The items that stages skip in this epoch without trying them, as `Seek.forced_skips` has them.

        They are the skips of the cursors, and the items that have killed too many workers.
        """
        cursor_skips = {(stage, key) for cursor in cursors for stage, key in cursor.skips}
        forced_skips: list[list[object]] = [[stage, list(key)] for stage, key in sorted(cursor_skips)]
        for (poison_epoch, stage, key), reason_and_count in sorted(self._poison_items.items()):
            if poison_epoch == epoch:
                forced_skips.append([stage, list(key), *reason_and_count])
        return forced_skips

    def collect_unbatched_ranges(self, epoch: int) -> list[tuple[str, int, int]]:
        """The items that are processed one by one instead of in batches: (stage, first item, last item)."""
        return sorted(
            (stage, first, last) for range_epoch, stage, first, last in self._unbatched_ranges if range_epoch == epoch
        )

    # ------------------------------------------------------------------ restarts and their progress

    def take_due_restarts(self) -> list[tuple[WorkerSlot, int]]:
        """Remove and return the restarts that are due: the slot, and when its worker died."""
        now_ns = perf_counter_ns()
        due_restarts = [
            (slot, died_at_ns) for restart_at_ns, slot, died_at_ns in self._pending_restarts if restart_at_ns <= now_ns
        ]
        self._pending_restarts = [restart for restart in self._pending_restarts if restart[0] > now_ns]
        return due_restarts

    def limit_wait_s(self, max_wait_s: float) -> float:
        """`max_wait_s`, or less if a restart is due before."""
        waits_s = [(restart_at_ns - perf_counter_ns()) / 1e9 for restart_at_ns, _, _ in self._pending_restarts]
        return max(min([max_wait_s, *waits_s]), 0.0)

    def record_era_entry(self, process_index: int, era: int, leases: list[tuple[int, int, int]]) -> None:
        """A process has entered an era; see `ArenaEras.record_era_entry`."""
        self.arena_eras.record_era_entry(process_index, era, leases, self._process_indices)

    def record_delivery(self) -> None:
        """An item was delivered: the restarts so far have recovered, and the run is not stalled."""
        now_ns = perf_counter_ns()
        self._stall_recovery_count = 0
        for restart in self.restarts:
            restart.lost_ns = restart.lost_ns or now_ns - restart.death.died_at_ns
