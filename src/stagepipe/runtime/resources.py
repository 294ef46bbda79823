"""What the supervisor makes before any worker starts: pipes, arenas, the board, bells. Nothing of it has a name."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from stagepipe.plan import Plan, ProcessPlan, Role
from stagepipe.timing import Board, Layout, make_board
from stagepipe.transport import Bell, PipeEnds, make_arena, make_byte_pipe, make_pipe, rule_word


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's number, its process plan, and which of its workers it is."""

    number: int
    group: int
    worker: int
    plan: ProcessPlan


@dataclass
class Resources:
    """All descriptors of a run, each closed once, by `close`. Processes are numbered; the sink is the last."""

    plan: Plan
    places: tuple[WorkerPlace, ...] = ()
    pipes: list[PipeEnds] = field(default_factory=list)
    arenas: dict[int, int] = field(default_factory=dict)
    returns: dict[int, tuple[int, int]] = field(default_factory=dict)
    bells: list[Bell] = field(default_factory=list)
    ears: dict[int, Bell] = field(default_factory=dict)
    board_fd: int = -1
    layout: Layout = field(default_factory=lambda: Layout(0, ()))

    def __post_init__(self) -> None:
        """Make everything; on a failure what was made is closed."""
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        plan = self.plan
        places = [(group, worker) for group, process in enumerate(plan.processes) for worker in range(process.workers)]
        self.places = tuple(
            WorkerPlace(number, group, worker, plan.processes[group]) for number, (group, worker) in enumerate(places)
        )
        stages = (*(len(place.plan.stages) for place in self.places), 0)
        self.layout = Layout(len(plan.stretches), stages, len(plan.hops))
        self.board_fd = make_board(self.layout)
        self.pipes = [make_pipe(hop.packets) for hop in plan.hops]
        for place in self.places:
            self.arenas[place.number] = make_arena(plan.memory_bytes)
            self.returns[place.number] = make_byte_pipe()
            self.ears[place.number] = Bell()
        self.bells = [Bell() for _ in plan.stretches]

    @property
    def sink_number(self) -> int:
        """The number of the caller's process."""
        return len(self.places)

    @property
    def groups(self) -> list[list[int]]:
        """The processes' numbers by the place of their stage in the chain, the sink's last."""
        count = len(self.plan.processes)
        groups = [[place.number for place in self.places if place.group == group] for group in range(count)]
        return [*groups, [self.sink_number]]

    def board(self) -> Board:
        """The board, mapped; the hops' rules are on it."""
        board = Board(self.board_fd, self.layout)
        for number, hop in enumerate(self.plan.hops):
            board.rule(number)[0] = rule_word(hop.threshold_bytes, hop.large_in_pipe)
        return board

    def arena_fds(self, place: WorkerPlace) -> dict[int, int]:
        """The arenas that a worker may see: its own and those before it."""
        return {p.number: self.arenas[p.number] for p in self.places if p.group < place.group or p == place}

    def return_fds(self, place: WorkerPlace) -> dict[int, int]:
        """The read end of its own records, the write ends of those before it."""
        fds = {p.number: self.returns[p.number][1] for p in self.places if p.group < place.group}
        return {**fds, place.number: self.returns[place.number][0]}

    def fed_by(self, place: WorkerPlace) -> tuple[tuple[int, ...], ...]:
        """Whose arenas hold items of the stretch that a worker feeds: its own, then by stage those of the others."""
        stretch = place.plan.feeds
        inside = [p for p in self.places if p.plan.role is Role.STAGE and p.plan.reads == stretch]
        groups = dict.fromkeys(p.group for p in inside)
        return (place.number,), *(tuple(p.number for p in inside if p.group == group) for group in groups)

    def bell_fds(self, place: WorkerPlace) -> dict[int, int]:
        """The bells of the stretches that it feeds or consumes."""
        return {stretch: self.bells[stretch].fd for stretch in {place.plan.reads, place.plan.feeds}}

    def close(self) -> None:
        """Close every descriptor."""
        for pipe in self.pipes:
            pipe.close()
        for bell in (*self.bells, *self.ears.values()):
            bell.close()
        fds = [self.board_fd, *self.arenas.values(), *(fd for ends in self.returns.values() for fd in ends)]
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.pipes, self.bells, self.ears, self.arenas, self.returns, self.board_fd = [], [], {}, {}, {}, -1
