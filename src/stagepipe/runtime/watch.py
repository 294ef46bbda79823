"""The supervisor's watch: items that take too long, workers that do not start, a run in which nothing moves.

It reads what the workers wrote to the board, so an item pays nothing for it. An item ages while its worker is in the
stage's code: not while it waits (then it ticks), not while it is stopped, and not while the machine sleeps or this
process is stopped itself, because of one look to the next only so much counts as may have passed between them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic_ns, perf_counter_ns

from stagepipe.core import Key
from stagepipe.core.units import format_ns
from stagepipe.plan import Plan, StagePlan
from stagepipe.runtime.crowding import Crowding
from stagepipe.runtime.process import WorkerProcess
from stagepipe.runtime.stage import item_text
from stagepipe.runtime.stalls import Doing, diagnosis, nobody_works
from stagepipe.timing import Board, Region, StageWord, State, Word

_LOOK_NS = 500_000_000
_SOONEST_NS = 10_000_000
_WAITING_NS = 1_000_000_000
"""The consumer has ticked within that time: it waits for an item."""
_QUIET_NS = 2_000_000_000
"""A worker that waits ticks four times a second. One that has not for so long is at work, if not on an item."""
_LEAST_NS = 500_000_000
"""Of a `timeout`: a worker that waits for room behind it says so every quarter of a second."""
_MEMORY_EVERY_NS = 1_000_000_000
_STALL_NS = 10_000_000_000
"""Nothing has moved for so long, although the consumer waits: it is told, and again after twice the time."""
_STUCK_NS = 30_000_000_000
"""Nothing has moved for so long, and nobody is at work: what is under way is made again."""
_log = logging.getLogger("stagepipe")


@dataclass(frozen=True)
class _Age:
    """What a process was at when it was looked at last, and how long it had been at it."""

    key: Key = ()
    stage: int = 0
    tick: int = 0
    ns: int = 0
    starting_ns: int = 0


class Watch:
    """Looks at all workers now and then. On the supervisor's thread."""

    def __init__(self, plan: Plan, board: Board, workers: Mapping[int, WorkerProcess]) -> None:
        """`workers` is the crew's own mapping: a successor takes the place of the one before it."""
        self._plan, self._board, self._workers = plan, board, workers
        timeouts = [stage.timeout_ns for process in plan.processes for stage in process.stages if stage.timeout_ns]
        self._every_ns = max(min([_LOOK_NS, *(timeout // 8 for timeout in timeouts)]), _SOONEST_NS)
        self._crowding = Crowding(plan, board)
        self._looked_ns = monotonic_ns()
        self._memory_ns = self._still_ns = 0
        self._moved = -1
        self._told_ns = _STALL_NS
        self._stuck_ns = _STUCK_NS
        self._ages: dict[int, _Age] = {}

    @property
    def wait_s(self) -> float:
        """How long until the next look."""
        return max(self._every_ns - (monotonic_ns() - self._looked_ns), 0) / 1e9

    def look(self) -> str:
        """Look, if it is time to. The diagnosis, when nobody works and nothing has moved for long; else nothing."""
        now = monotonic_ns()
        passed_ns = now - self._looked_ns
        if passed_ns < self._every_ns:
            return ""
        self._looked_ns = now
        counted_ns = min(passed_ns, 2 * self._every_ns)
        for number, worker in self._workers.items():
            if worker.poll() is None and not worker.hung:
                self._look_at(number, worker, counted_ns)
        self._ages = {worker.pid: self._ages.get(worker.pid, _Age()) for worker in self._workers.values()}
        if now - self._memory_ns > _MEMORY_EVERY_NS:
            self._memory_ns = now
            for worker in self._workers.values():
                worker.sample_memory()
            self._crowding.look()
        return self._look_for_a_stall(counted_ns)

    # ------------------------------------------------------------------ one worker

    def _look_at(self, number: int, worker: WorkerProcess, passed_ns: int) -> None:
        before = self._ages.get(worker.pid, _Age())
        # What it said may not have arrived: a stage that holds the interpreter's lock lets no other thread say it.
        region = self._board.region(number)
        if not worker.ready and region[Word.STATE] == State.STARTING:
            age = replace(_Age(), starting_ns=before.starting_ns + passed_ns)
            limit_ns = max(stage.start_timeout_ns for stage in worker.place.plan.stages)
            if age.starting_ns > limit_ns and not worker.stopped:
                limit = format_ns(limit_ns)
                worker.kill_hung(f"was not ready {limit} after its start (`start_timeout`), and was killed")
        else:
            age = self._age(region, worker, before, passed_ns)
            stage = _stage_of(worker, age)
            if stage.timeout_ns and age.ns > max(stage.timeout_ns, _LEAST_NS):
                limit = format_ns(stage.timeout_ns)
                worker.kill_hung(f"took longer for it than its `timeout` of {limit}, and was killed")
        self._ages[worker.pid] = age

    def _age(self, region: Region, worker: WorkerProcess, before: _Age, passed_ns: int) -> _Age:
        now = _Age(region.key, region[Word.AT_STAGE], region[Word.TICK_NS])
        if not now.key or (now.key, now.stage, now.tick) != (before.key, before.stage, before.tick):
            return now
        return replace(now, ns=before.ns if worker.stopped else before.ns + passed_ns)

    # ------------------------------------------------------------------ all of them

    def _look_for_a_stall(self, passed_ns: int) -> str:
        moved, sink = self._movement(), self._board.region(len(self._workers))
        if moved != self._moved or perf_counter_ns() - sink[Word.TICK_NS] > _WAITING_NS:
            self._moved, self._still_ns, self._told_ns, self._stuck_ns = moved, 0, _STALL_NS, _STUCK_NS
            return ""
        self._still_ns += passed_ns
        if self._still_ns < min(self._told_ns, self._stuck_ns):
            return ""
        doing = [self._doing(number, worker) for number, worker in sorted(self._workers.items())]
        if self._still_ns >= self._told_ns:
            self._told_ns *= 2
            _log.warning("%s", diagnosis(doing, self._still_ns))
        if self._still_ns >= self._stuck_ns and nobody_works(doing):
            self._stuck_ns += _STUCK_NS
            return diagnosis(doing, self._still_ns)
        return ""

    def _movement(self) -> int:
        """A number that changes whenever an item moves."""
        board = self._board
        moved = [board.generation, board.consumed(len(self._plan.stretches) - 1, board.generation) or 0]
        for number in self._workers:
            region = board.region(number)
            moved += [region[Word.SENT], *(region.stage(at)[StageWord.ITEMS] for at in range(region.stages))]
            moved += [region[Word.RESTARTING_NS], region[Word.READY_NS]]
        return hash(tuple(moved))

    def _doing(self, number: int, worker: WorkerProcess) -> Doing:
        age = self._ages.get(worker.pid, _Age())
        quiet_ns = perf_counter_ns() - self._board.region(number)[Word.TICK_NS]
        return Doing(
            name=worker.name,
            stopped=worker.stopped,
            starting_ns=0 if worker.ready else max(age.starting_ns, 1),
            item=item_text(self._plan.shard, age.key),
            at_ns=age.ns,
            quiet_ns=quiet_ns if quiet_ns > _QUIET_NS else 0,
        )


def _stage_of(worker: WorkerProcess, age: _Age) -> StagePlan:
    stages = worker.place.plan.stages
    return stages[min(age.stage, len(stages) - 1)]
