"""The supervisor: the product's own `Recovery`, in a shell that turns what happens in the model into its events.

An epoch's start, an abandoned iteration, a resume, a stall and a death are all a seek. Each thing that the product does
in its own time is a step of the shell: an answer, a seek on its way, a start, a ready worker, a report of leases.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stagepipe.core import Cursor, ImposedSkip, split_by_segment
from stagepipe.plan import StagePlan
from stagepipe.runtime.protocol import ForcedSkip, StaleLeasesEvent, UnbatchedRange
from stagepipe.runtime.supervisor.recovery import (
    Action,
    Added,
    Answered,
    AskForCursor,
    BeginEra,
    Delivered,
    Event,
    Fail,
    Failed,
    Interrupt,
    PublishSeek,
    Ready,
    Recovery,
    RestartPolicy,
    Retired,
    SendSeek,
    Stall,
    Start,
    Stopped,
    Ticked,
    Wipe,
    WorkerDeath,
)
from stagepipe.spec import Target
from tests.protocol_model.memory import Block
from tests.protocol_model.order_points import Sink
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.windows import CurrentItem

_LONG_UPTIME_NS = 10**10
"""A worker that lived so long is restarted without delay."""
_NO_STAGE = StagePlan(name="none", target=Target("none"))


_Named = TypeVar("_Named", ForcedSkip, UnbatchedRange)


class OnPoison(NamedTuple):
    """What becomes of an item that kills workers."""

    max_kills: int
    """With so many deaths it is poison."""
    fails: bool
    """Whether poison ends the run. Otherwise it is skipped."""


_NO_POISON = OnPoison(max_kills=10**9, fails=False)


class _BrokenPolicy(RestartPolicy):
    """The product's policy, with one rule broken."""

    def __init__(self, broken: Rule | None) -> None:
        super().__init__(max_restarts=10**9)
        self._broken = broken
        self._named: set[ForcedSkip | UnbatchedRange] = set()

    def decide(self, death: WorkerDeath) -> float | str:
        if self._broken is Rule.RETRY_BEFORE_SKIP:
            death = replace(death, stage=replace(death.stage, retries=0))
        return super().decide(death)

    def find_poison(self, epoch: int) -> list[ForcedSkip]:
        skips = super().find_poison(epoch)
        return self._forget(skips) if self._broken is Rule.KEEP_POISON_SKIPS else skips

    def find_unbatched_ranges(self, epoch: int) -> list[UnbatchedRange]:
        ranges = super().find_unbatched_ranges(epoch)
        return self._forget(ranges) if self._broken is Rule.KEEP_SUSPECTS else ranges

    def _forget(self, named: list[_Named]) -> list[_Named]:
        """What was not named before."""
        named = [each for each in named if each not in self._named]
        self._named.update(named)
        return named


_IGNORED_EVENTS = {
    Rule.SEND_SEEK_WHEN_READY: Ready,
    Rule.FORGET_STALLS: Delivered,
    Rule.COUNT_NEWCOMERS: Added,
    Rule.FORGET_THE_RETIRED: Retired,
}
"""Rules that are broken where an event has no effect."""


class _BrokenRecovery(Recovery):
    """The product's state machine, with one rule broken."""

    def __init__(self, broken: Rule | None, processes: Iterable[int], segments: int) -> None:
        super().__init__(_BrokenPolicy(broken), processes, [1] * segments, [1] * segments)
        self._broken = broken

    def on(self, event: Event) -> list[Action]:
        ignored = None if self._broken is None else _IGNORED_EVENTS.get(self._broken)
        if ignored is not None and isinstance(event, ignored):
            return []
        era = self.era
        actions = super().on(event)
        if isinstance(event, StaleLeasesEvent) and self._broken is Rule.WIPE_AFTER_ENTRY:
            return [Wipe(era, [lease for _, leases in self._entries.values() for lease in leases])]
        if isinstance(event, Retired) and self._broken is Rule.WIPE_AT_RETIREMENT:
            return []
        if self._broken is Rule.BEGIN_ERA_AT_DEATH:
            self.era = era
        return actions

    def _blame(self, death: WorkerDeath) -> WorkerDeath:
        if self._broken is Rule.BLAME_IN_ITS_EPOCH:
            return replace(death, epoch=self.epoch)
        if self._broken is Rule.BLAME_NONE_OF_SEVERAL:
            death = replace(death, suspects=())
        return super()._blame(death)


class Supervisor:
    """Does one thing at a time, in a random order: `act`."""

    def __init__(
        self,
        rnd: random.Random,
        shared: SharedState,
        processes: Sequence[Process],
        sink: Sink,
        on_poison: OnPoison | None,
    ) -> None:
        self._rnd = rnd
        self._shared = shared
        self._processes = processes
        self._sink = sink
        self._on_poison = on_poison
        present = [index for index, process in enumerate(processes) if not process.is_dormant]
        self.machine = _BrokenRecovery(shared.broken, present, sink.segment + 1)
        self._now_ns = 0
        self._cursor: Cursor | None = None
        """The cursor that the latest seek named."""
        self.asking = False
        """Whether the sink must stop and answer."""
        self.seeks: list[tuple[Process, Seek]] = []
        """Those that have not arrived: the process, and the seek of its segment."""
        self._current: list[Seek] = []
        """The latest seek, by segment."""
        self._starting: list[Process] = []
        self._not_ready: set[Process] = {process for process in processes if process.is_dormant}
        self._added: set[Process] = set()
        """Those that were added and have not become ready."""
        self._retiring: set[Process] = set()
        """Those that must retire, or whose successors must."""
        self._told: list[Process] = []
        """To whom the command to retire is on its way."""
        self.changes = 0
        """How many workers have come, when they are ready, or gone."""
        self._reports: deque[StaleLeasesEvent] = deque()
        self._reported: dict[Process, list[Block]] = {}
        self._delivered_before_seek = 0
        self._named_as_poison: dict[CurrentItem, int] = {}
        """Poison items, and from which generation on they are skipped."""
        self.poison_tried_again = False
        """Whether a worker has processed an item that the seek it had entered named as poison."""
        self._named_as_lone: dict[tuple[int, str, int], int] = {}
        """Items to try alone, with epoch and stage, and from which generation on."""
        self.suspect_with_others = False
        """Whether a worker had such an item in progress with others."""
        for process in processes:
            process.on_entry = self._report_leases

    # ------------------------------------------------------------------ what happens

    @property
    def has_failed(self) -> bool:
        """Whether the run has failed."""
        return isinstance(self.machine.interrupt, Failed)

    def start(self, cursor: Cursor | None, epoch: int) -> None:
        """The sink begins an epoch, or goes on from a saved cursor. An iteration that still runs has been stopped."""
        self._cursor = cursor
        self._do(Answered(cursors=split_by_segment(cursor, self._sink.segment + 1), epoch=epoch))

    def handle_death(self, dead: Process) -> None:
        """A process has died. What it sent before has arrived."""
        is_retired = dead in self._retiring and not self._shared.keeps(Rule.RECOVER_FROM_ANY_DEATH)
        if dead in self._added or is_retired:
            self._empty_slot(dead)
            return
        self._forget(dead)
        items = list(self._shared.board.current_items.pop(dead.name, {}).values())
        if dead.timed_out:
            items = [dead.timed_out] if self._shared.keeps(Rule.BLAME_WHAT_TIMED_OUT) else items[:1]
        dead.timed_out = None
        for item in items:
            self.poison_tried_again |= dead.generation >= self._named_as_poison.get(item, dead.generation + 1)
        item = items[0] if items else CurrentItem(self.machine.epoch, "none", ())
        self._do(
            WorkerDeath(
                stage=self._make_stage(item.stage),
                worker=0,
                process_index=self._processes.index(dead),
                pid=0,
                cause="died",
                died_at_ns=self._now_ns,
                epoch=item.epoch,
                key=item.key,
                suspects=[(each.key[0], each.key[0]) for each in items] if len(items) > 1 else [],
                uptime_ns=_LONG_UPTIME_NS,
            )
        )

    def _make_stage(self, name: str) -> StagePlan:
        poison = self._on_poison or _NO_POISON
        on_error = "fail" if poison.fails else "skip"
        return replace(_NO_STAGE, name=name, retries=poison.max_kills - 1, on_error=on_error)

    def has_started(self, process: Process) -> bool:
        """Whether there is a process, though it may not be ready."""
        return process in self._starting or not (process in self._not_ready or process.has_left)

    def recover_from_stall(self) -> None:
        """Nothing moves."""
        self._do(Stall("nothing moves", 0, self._now_ns))

    def observe(self) -> None:
        """Time passes. An item that the sink has delivered since the seek ends a stall."""
        self._now_ns += 1
        sink, machine = self._sink, self.machine
        if (
            machine.awaits_delivery
            and sink.generation == machine.generation
            and sink.delivery_count > self._delivered_before_seek
        ):
            self._do(Delivered(self._now_ns))
        for process in self._processes if self._named_as_lone else ():
            items = self._shared.board.current_items.get(process.name, {}).values()
            since = [self._named_as_lone.get((each.epoch, each.stage, each.key[0])) for each in items]
            self.suspect_with_others |= len(items) > 1 and any(each and each <= process.generation for each in since)

    def _report_leases(self, process: Process) -> None:
        """A process has entered an era, or has dropped leases on older blocks since its last report."""
        leases = [block for block in process.leases if block.era < process.era]
        self._reported[process] = leases
        self._reports.append(
            StaleLeasesEvent(process=self._processes.index(process), era=process.era, leases=leases)  # type: ignore[arg-type]
        )

    # ------------------------------------------------------------------ workers that come and go

    def works(self, process: Process) -> bool:
        """Whether there is a worker, or will be soon, that takes items."""
        return not process.is_dormant and process not in self._retiring

    def add(self, process: Process) -> None:
        """An empty slot gets a worker. Until it is ready, it receives no seek."""
        process.is_dormant = False
        process.first_era = self.machine.era
        self._do(Added(self._processes.index(process)))
        self._added.add(process)
        self._starting.append(process)

    def retire(self, process: Process) -> None:
        """A worker must leave. One that is not ready learns of it when it is."""
        self._retiring.add(process)
        if process not in self._not_ready:
            self._told.append(process)

    def _tell_one(self) -> None:
        process = self._told.pop(self._rnd.randrange(len(self._told)))
        process.is_retiring = True

    def _notice_one_that_left(self) -> None:
        process = self._rnd.choice(self._left)
        self.changes += 1
        self._empty_slot(process)

    @property
    def _left(self) -> list[Process]:
        return [process for process in self._processes if process.has_left]

    def _empty_slot(self, process: Process) -> None:
        """A worker has left by itself, or has never been ready."""
        self._forget(process)
        self._added.discard(process)
        self._retiring.discard(process)
        process.has_left = False
        process.is_dormant = True
        last_era = process.era
        eras = range(last_era, last_era + 1) if self._shared.keeps(Rule.SPARE_OLDER_BLOCKS) else range(last_era + 1)
        self._shared.memory.wipe_slot(process.name, eras)
        self._do(Retired(self._processes.index(process)))

    def _forget(self, process: Process) -> None:
        """A process has ended. What it sent before has arrived; what was sent to it is lost."""
        while self._reports:
            self._do(self._reports.popleft())
        self._reported.pop(process, None)
        self._not_ready.add(process)
        self._starting = [each for each in self._starting if each is not process]
        self._told = [each for each in self._told if each is not process]
        self.seeks = [(each, seek) for each, seek in self.seeks if each is not process]

    # ------------------------------------------------------------------ what the supervisor does next

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to do."""
        pending = (self.seeks, self._starting, self._reports, self._told, self._left)
        return not (self.asking or any(pending)) and self.machine.next_start_ns is None

    def act(self) -> None:
        """Do one of the things that are to be done."""
        choices = [
            *([self.answer] if self.asking else []),
            *([self._notify_one] if self.seeks else []),
            *([self._start_due] if self.machine.next_start_ns is not None else []),
            *([self._make_one_ready] if self._starting else []),
            *([self._take_report] if self._reports else []),
            *([self._tell_one] if self._told else []),
            *([self._notice_one_that_left] if self._left else []),
        ]
        if choices:
            self._rnd.choice(choices)()

    def answer(self) -> None:
        """The sink stops and answers. If it has not entered the last seek, it has delivered nothing since."""
        self.asking = False
        if self._shared.keeps(Rule.STOP_SINK_FIRST):
            self._sink.stop()
        for action in self.machine.on(Stopped(self._sink.delivery_count)):
            if isinstance(action, AskForCursor):
                entered = self._sink.generation == self.machine.generation
                self.start(self._sink.cursor if entered else self._cursor, self.machine.epoch)

    def _notify_one(self) -> None:
        process, seek = self.seeks.pop(self._rnd.randrange(len(self.seeks)))
        if process.has_left or (process.is_retiring and not self._shared.keeps(Rule.ENTER_SEEKS_UNTIL_LEFT)):
            return
        if seek.era >= process.first_era or not self._shared.keeps(Rule.WAIT_FOR_OWN_ERA):
            process.seek(seek)

    def _start_due(self) -> None:
        self._do(Ticked(self._now_ns))

    def _make_one_ready(self) -> None:
        process = self._starting.pop(self._rnd.randrange(len(self._starting)))
        self._not_ready.remove(process)
        if process in self._added:
            self._added.remove(process)
            self.changes += 1
        self._do(Ready(self._processes.index(process)))
        if process in self._retiring:
            self._told.append(process)

    def _take_report(self) -> None:
        self._do(self._reports.popleft())

    def report_dropped_leases(self) -> None:
        """The processes report again: those that have dropped leases on older blocks."""
        for process, reported in list(self._reported.items()):
            if reported and not set(reported) <= set(process.leases):
                self._report_leases(process)

    def take_all_reports(self) -> None:
        """Let all reports arrive."""
        self.report_dropped_leases()
        while self._reports:
            self._take_report()

    # ------------------------------------------------------------------ actions

    def _do(self, event: Event) -> None:
        for action in self.machine.on(event):
            match action:
                case Interrupt():
                    self.asking = True
                case PublishSeek():
                    self._publish(action)
                case SendSeek():
                    process = self._processes[action.process]
                    self.seeks.append((process, self._current[process.segment]))
                case Start():
                    successor = self._processes[action.death.process_index]
                    successor.first_era = action.era
                    self._starting.append(successor)
                case Wipe():
                    self._shared.memory.wipe_before(action.era, {Block(*lease) for lease in action.leases})
                case BeginEra() | Fail():
                    pass
                case _:
                    raise AssertionError(action)

    def _publish(self, action: PublishSeek) -> None:
        """An older seek that has not arrived everywhere is void."""
        seek, cursors = action.seek, action.cursors
        self._delivered_before_seek = self._sink.delivery_count
        for skip in seek.forced_skips:
            if skip.kill_count:
                self._named_as_poison.setdefault(CurrentItem(seek.epoch, skip.stage, skip.key), seek.generation)
        for each in seek.unbatched_ranges:
            for item in range(each.first_item, each.last_item + 1):
                self._named_as_lone.setdefault((seek.epoch, each.stage, item), seek.generation)
        board = self._shared.board
        board.first_numbers = [each.item for each in cursors[1:]] + [0]
        self._current = [
            Seek(
                generation=seek.generation,
                era=seek.era,
                epoch=seek.epoch,
                cursor=cursor,
                first_number=first_number,
                imposed_skips=frozenset(ImposedSkip(skip.stage, skip.key) for skip in seek.forced_skips),
                lone_items=frozenset(
                    (each.stage, item)
                    for each in seek.unbatched_ranges
                    for item in range(each.first_item, each.last_item + 1)
                ),
            )
            for cursor, first_number in zip(cursors, board.first_numbers, strict=True)
        ]
        self.seeks = [
            (process, self._current[process.segment]) for process in self._processes if process not in self._not_ready
        ]

    def delivered_source_item(self) -> int:
        """The source items below this number are delivered for good."""
        if self._sink.generation != self.machine.generation or self._sink.epoch != self.machine.epoch:
            return 0
        return split_by_segment(self._sink.cursor, self._sink.segment + 1)[0].item
