"""The deaths of a run's workers: collects what is known of each, asks the policy, and remembers the items they blame.

In the caller's process. The recovery coordinator calls it with its lock held.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns

from stagepipe.core import Cursor, Key
from stagepipe.machine import oom_kill_count
from stagepipe.plan import Plan, ProcessRole
from stagepipe.runtime.protocol import ForcedSkip, UnbatchedRange, format_item
from stagepipe.runtime.supervisor.restart_policy import FailDecision, RestartDecision, RestartPolicy, WorkerDeath
from stagepipe.runtime.supervisor.worker_process import WorkerProcess
from stagepipe.timing import Board, ProcessCounter, ProcessState


class WorkerDeaths:
    """Decides on each death. Knows the items that later seeks skip, and the lists that they take apart."""

    def __init__(self, plan: Plan, board: Board) -> None:
        """`board`: it shows which item a worker was processing."""
        stateful_stage = next(
            (stage.name for process in plan.processes for stage in process.stages if stage.stateful), ""
        )
        self._shard = plan.shard
        self._board = board
        self._restart_policy = RestartPolicy(max_restarts=plan.max_restarts, stateful_stage=stateful_stage)
        self._oom_kill_count = oom_kill_count() or 0
        self._poison_items: dict[tuple[int, str, Key], tuple[str, int]] = {}
        self._unbatched_ranges: set[tuple[int, str, int, int]] = set()

    def decide(self, worker: WorkerProcess, epoch: int) -> tuple[WorkerDeath, RestartDecision | FailDecision]:
        """Decide on the death of `worker`, which has exited."""
        death = self._make_worker_death(worker, epoch)
        decision = self._restart_policy.decide(death)
        if isinstance(decision, RestartDecision):
            self._record_decision(death, decision)
        return death, decision

    def _make_worker_death(self, worker: WorkerProcess, epoch: int) -> WorkerDeath:
        slot = worker.slot
        died_at_ns = perf_counter_ns()
        region = self._board.region(slot.process_index)
        stages = slot.process_plan.stages
        # A worker may still be at an item of an epoch that was left: the item of that number in this one is another.
        key = region.current_key if region[ProcessCounter.CURRENT_EPOCH] == epoch else ()
        stage_index = min(region[ProcessCounter.CURRENT_STAGE], len(stages) - 1) if key else 0
        last_item_plus_one = region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]
        # Its ready event may not have arrived, so the board counts too.
        was_ready = worker.is_ready or region[ProcessCounter.PROCESS_STATE] != ProcessState.STARTING
        return WorkerDeath(
            stage=stages[stage_index],
            is_order_point=slot.process_plan.role is ProcessRole.ORDER_POINT and not stage_index,
            worker=slot.worker,
            process_index=slot.process_index,
            pid=worker.pid,
            cause=worker.describe_exit(has_oom_kill=self._has_new_oom_kill()),
            died_at_ns=died_at_ns,
            epoch=epoch,
            key=key,
            item=format_item(self._shard, key),
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

    def _record_decision(self, death: WorkerDeath, decision: RestartDecision) -> None:
        if decision.poison_kill_count:
            kill_count = decision.poison_kill_count
            subject = "its worker" if kill_count == 1 else f"it killed {kill_count} workers; the last one"
            reason = f"{subject} {death.cause}"
            self._poison_items[death.epoch, death.stage.name, death.key] = reason, kill_count
        if decision.is_unbatching_needed:
            first_item = death.key[0]
            self._unbatched_ranges.add((death.epoch, death.stage.name, first_item, first_item + death.item_count - 1))

    # ------------------------------------------------------------------ what the next seek forces

    def collect_forced_skips(self, epoch: int, cursors: Iterable[Cursor]) -> list[ForcedSkip]:
        """The items that stages skip in this epoch without trying them.

        They are the skips of the cursors, and the items that have killed too many workers.
        """
        cursor_skips = {(stage, key) for cursor in cursors for stage, key in cursor.skips}
        forced_skips = [ForcedSkip(stage, key) for stage, key in sorted(cursor_skips)]
        for (poison_epoch, stage, key), (error, kill_count) in sorted(self._poison_items.items()):
            if poison_epoch == epoch:
                forced_skips.append(ForcedSkip(stage, key, error, kill_count))
        return forced_skips

    def collect_unbatched_ranges(self, epoch: int) -> list[UnbatchedRange]:
        """The items that are processed one by one instead of in batches."""
        return [
            UnbatchedRange(stage, first, last)
            for range_epoch, stage, first, last in sorted(self._unbatched_ranges)
            if range_epoch == epoch
        ]
