"""A pipeline of the model: it builds the processes, schedules them at random, kills them, and wipes memory."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stagepipe.core import Cursor
from tests.protocol_model.order_points import Grouping, GroupingPoint, Sink
from tests.protocol_model.packets import Hop, count_blocks
from tests.protocol_model.processes import Process, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.sources import Source
from tests.protocol_model.stage_functions import DeadlyValues, Function
from tests.protocol_model.supervisor import OnPoison, Supervisor
from tests.protocol_model.windows import Board
from tests.protocol_model.workers import Worker

MAX_STEPS = 400_000
_MAX_IDLE_STEPS = 3000
"""More steps in which no process had anything to do mean that none ever will."""
_SUPERVISOR_CHANCE = 0.2
_KILL_CHANCE = 0.004
_REPORT_CHANCE = 0.05
_LOSS_CHANCE = 0.02
_CHANGE_CHANCE = 0.02
_MAX_CHANGES = 30
"""Of workers, in an epoch. While they go on, it does not show that nothing moves."""
_MAX_DEATHS = 1000
"""More mean that the item that kills is not found."""


@dataclass(frozen=True)
class StageStep:
    """A stage and its number of workers."""

    function: Function
    workers: int
    deadly: DeadlyValues | None = None
    threads: int = 1
    """How many items may be in progress in a worker."""
    spare_slots: int = 0
    """How many more workers the stage may have."""

    def __str__(self) -> str:
        most = f"..{self.workers + self.spare_slots}" if self.spare_slots else ""
        return f"stage * {self.workers}{most}" + (f" of {self.threads} threads" if self.threads > 1 else "")


@dataclass(frozen=True)
class GroupingStep:
    """Batch or Shuffle."""

    grouping: Grouping
    size: int

    def __str__(self) -> str:
        return f"{self.grouping.value}({self.size})"


Step = StageStep | GroupingStep


class Outcome(enum.Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed: an item is poison, or seeks do not end a stall"
    STUCK = "stuck: no process can do anything"
    ENDLESS = "endless: too many steps or deaths"


@dataclass
class Troubles:
    """What may still happen in a run."""

    kills: int
    losses: int
    delivered: int = 0
    """How many values had been delivered when the last packet was lost."""


class Pipeline:
    """A source, the steps and a sink, driven by one random scheduler, so that every interleaving is cheap to try."""

    def __init__(
        self,
        rnd: random.Random,
        steps: Sequence[Step],
        *,
        items: int,
        window: int = 3,
        hop_capacity: int = 3,
        stream: bool = False,
        max_entries: int = 1,
        max_rows: int = 1,
        sends_ranges: bool = False,
        any_order: bool = False,
        on_poison: OnPoison | None = None,
        broken: Rule | None = None,
    ) -> None:
        self._rnd = rnd
        self._window = window
        self._hop_capacity = hop_capacity
        groupings = sum(isinstance(step, GroupingStep) for step in steps)
        board = Board(segments=groupings + 1)
        self.shared = SharedState(rnd, board, broken, max_entries=max_entries, max_rows=max_rows, any_order=any_order)
        self.hops = [Hop(hop_capacity) for _ in range(len(steps) + 1)]
        source = Source(self.shared, self.hops[0], items=items, window=window, stream=stream, sends_ranges=sends_ranges)
        self.processes: list[Process] = [source]
        self._changing: list[list[Process]] = []
        """The slots of each stage whose workers come and go."""
        segment = 0
        for stage, step in enumerate(steps):
            processes = self._processes_of(step, stage, segment)
            self.processes += processes
            if isinstance(step, StageStep) and step.spare_slots:
                self._changing.append(processes)
                for process in processes[step.workers :]:
                    process.is_dormant = True
            segment += isinstance(step, GroupingStep)
        self.sink = Sink(segment, self.shared, incoming=self.hops[-1])
        self.processes.append(self.sink)
        self.supervisor = Supervisor(rnd, self.shared, self.processes, self.sink, on_poison)
        source.delivered_item = self.supervisor.delivered_source_item
        self.start(epoch=0)

    def start(self, *, epoch: int, cursor: Cursor | None = None) -> None:
        """Begin an epoch, at its start or at a cursor. An iteration that still runs must be stopped first."""
        self.sink.delivered = []
        self._changes_left = self._rnd.randint(0, _MAX_CHANGES) if self._changing else 0
        self.supervisor.start(cursor, epoch)

    def run(self, kills: int, losses: int = 0) -> Outcome:
        """Run to the end of the epoch.

        Up to `kills` processes die on the way, and up to `losses` packets vanish, each after another delivery. Where
        stages have spare slots, workers come and go.
        """
        idle = 0
        troubles = Troubles(kills, losses)
        for _ in range(MAX_STEPS):
            if self.supervisor.machine.era > _MAX_DEATHS:
                return Outcome.ENDLESS
            chance = self._rnd.random()
            self.supervisor.observe()
            if self._let_supervisor_act(chance):
                continue
            self._make_trouble(troubles, chance)
            outcome = self._outcome(idle)
            if outcome is not None:
                return outcome
            idle = 0 if self._step_one(self._rnd) else idle + 1
            is_stalled = idle > _MAX_IDLE_STEPS and self.supervisor.is_settled
            if is_stalled and self.shared.keeps(Rule.SEEK_WHEN_STALLED):
                idle = 0
                self.supervisor.recover_from_stall()
        return Outcome.ENDLESS

    def _let_supervisor_act(self, chance: float) -> bool:
        """At times let the supervisor do a step, if it has something to do."""
        if self.supervisor.is_settled or chance > _SUPERVISOR_CHANCE:
            return False
        self.supervisor.act()
        return True

    def _make_trouble(self, troubles: Troubles, chance: float) -> None:
        """At times kill a process, lose a packet, or let processes report their leases."""
        delivered = len(self.sink.delivered)
        if troubles.kills and chance > 1 - _KILL_CHANCE:
            troubles.kills -= 1
            self._kill_one()
        if troubles.losses and chance < _LOSS_CHANCE and delivered > troubles.delivered and self._lose_one():
            troubles.losses -= 1
            troubles.delivered = delivered
        if chance > 1 - _REPORT_CHANCE:
            self.supervisor.report_dropped_leases()
        self._change_workers()

    def _outcome(self, idle: int) -> Outcome | None:
        if self.supervisor.has_failed:
            return Outcome.FAILED
        if self.sink.finished and self._is_current():
            self.supervisor.take_all_reports()
            return Outcome.FINISHED
        return Outcome.STUCK if idle > _MAX_IDLE_STEPS and self.supervisor.is_settled else None

    def advance(self, rnd: random.Random) -> None:
        """Let the supervisor or a process do a step."""
        self.supervisor.observe()
        self._change_workers()
        if self.supervisor.asking:
            self.supervisor.answer()
        elif not self.supervisor.is_settled and rnd.random() < 0.3:
            self.supervisor.act()
        else:
            self._step_one(rnd)

    def _step_one(self, rnd: random.Random) -> bool:
        """Let one process do a step, which may be its last."""
        process = rnd.choice(self.processes)
        was_dead = process.dead
        moved = process.step()
        if process.dead and not was_dead and not process.has_left:
            self.supervisor.handle_death(process)
            return True
        return moved

    def leaked_blocks(self) -> int:
        """After a run: blocks that no entry in flight accounts for. 0 while a process is late or leases blocks."""
        present = [process for process in self.processes if not (process.is_dormant or process.has_left)]
        late = any(process.generation != self.supervisor.machine.generation for process in present)
        if late or any(process.leases for process in self.processes):
            return 0
        in_hops = sum(count_blocks(packet) for hop in self.hops for packet in hop.queue)
        in_processes = sum(process.blocks_held() for process in self.processes)
        return max(0, len(self.shared.memory.values) - in_hops - in_processes)

    def _processes_of(self, step: Step, stage: int, segment: int) -> list[Process]:
        hops: dict[str, Any] = {"incoming": self.hops[stage], "outgoing": self.hops[stage + 1]}
        if isinstance(step, StageStep):
            return [
                Worker(
                    f"stage {stage}/{worker}",
                    segment,
                    self.shared,
                    stage=str(stage),
                    function=step.function,
                    deadly=step.deadly,
                    threads=step.threads,
                    **hops,
                )
                for worker in range(step.workers + step.spare_slots)
            ]
        name = f"{step.grouping.value} {stage}"
        return [
            GroupingPoint(
                name, segment, self.shared, grouping=step.grouping, size=step.size, window=self._window, **hops
            )
        ]

    def _is_current(self) -> bool:
        return self.sink.generation == self.supervisor.machine.generation and not self.supervisor.asking

    def _change_workers(self) -> None:
        """At times add a worker to a stage, or tell one to retire, but never the last."""
        if not self._changes_left or self._rnd.random() > _CHANGE_CHANCE:
            return
        self._changes_left -= 1
        slots = self._rnd.choice(self._changing)
        working = [process for process in slots if self.supervisor.works(process)]
        process = self._rnd.choice(slots)
        if process.is_dormant:
            self.supervisor.add(process)
        elif process in working and len(working) > 1:
            self.supervisor.retire(process)

    def _kill_one(self) -> None:
        process = self._rnd.choice(self.processes)
        # A single item in progress would be blamed, rightly; but then no output would be the right one.
        if self.supervisor.has_started(process) and sum(not call.has_ended for call in process.calls) != 1:
            process.die()
            self.supervisor.handle_death(process)

    def _lose_one(self) -> bool:
        """Let a packet of this generation vanish, as a defect would."""
        generation = self.supervisor.machine.generation
        hops = [hop for hop in self.hops if hop.queue and hop.queue[0][0].generation == generation]
        if not hops:
            return False
        for entry in self._rnd.choice(hops).queue.popleft():
            if entry.block:
                self.shared.memory.release(entry.block)
        return True
