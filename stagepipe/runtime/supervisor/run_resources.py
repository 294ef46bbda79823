"""The resources of a run: pipes, arenas, the board and wake events, made before any worker starts.

Owned by the supervisor, in the caller's process. They are anonymous descriptors: nothing appears in the file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.timing import Board, BoardLayout, TraceBuffer, make_board_fd, make_trace_fd
from stagepipe.transport import PipeEnds, WakeEvent, load_transport, make_arena_fd, make_byte_pipe, make_packet_pipe


@dataclass(frozen=True)
class WorkerSlot:
    """A place in the run for one worker at a time; a restarted worker takes over its predecessor's slot."""

    process_index: int  # counts all workers of the run
    worker_group: int  # index of `process_plan` in `Plan.processes`
    worker: int  # counts the workers of the group
    process_plan: ProcessPlan

    @property
    def name(self) -> str:
        """Stage and worker number, as in `decode/1`."""
        return f"{self.process_plan.name}/{self.worker}"


def make_worker_slots(processes: Sequence[ProcessPlan]) -> tuple[WorkerSlot, ...]:
    """Return a slot for each worker of a run, in the order of the chain."""
    group_workers = [(group, worker) for group, process in enumerate(processes) for worker in range(process.workers)]
    return tuple(
        WorkerSlot(index, group, worker, processes[group]) for index, (group, worker) in enumerate(group_workers)
    )


def group_process_indices(slots: Sequence[WorkerSlot]) -> list[list[int]]:
    """Return the process indices of each worker group, in the order of the chain; the consumer's come last."""
    groups: dict[int, list[int]] = {}
    for slot in slots:
        groups.setdefault(slot.worker_group, []).append(slot.process_index)
    return [*groups.values(), [len(slots)]]


@dataclass
class RunResources:
    """All descriptors of a run, each closed once, by `close`.

    Processes are numbered: the workers in the order of `slots`, then the consumer.
    """

    plan: Plan
    is_traced: bool = False
    slots: tuple[WorkerSlot, ...] = ()
    pipes: list[PipeEnds] = field(default_factory=list)
    arena_memfds: dict[int, int] = field(default_factory=dict)
    release_pipes: dict[int, tuple[int, int]] = field(default_factory=dict)
    segment_wake_events: list[WakeEvent] = field(default_factory=list)
    worker_wake_events: dict[int, WakeEvent] = field(default_factory=dict)
    supervisor_pidfd: int = -1
    """Of this process: workers exit when it has."""
    board_fd: int = -1
    board_layout: BoardLayout = field(default_factory=lambda: BoardLayout(0, ()))
    board: Board = field(init=False)
    """`board_fd`, mapped into this process. It stays readable after `close`."""
    transports: dict[str, str] = field(default_factory=dict)
    """What the processes share of each transport that is not built in, by its import path."""
    trace_fds: dict[int, int] = field(default_factory=dict)
    """The rings of a run that is traced, by process; the consumer has one too."""
    consumer_trace: TraceBuffer | None = None
    consumer_wake_event: WakeEvent = field(default_factory=WakeEvent)
    """Ends the consumer's wait for an item."""

    def __post_init__(self) -> None:
        """Create everything. If that fails, close what was created."""
        try:
            self._create_all()
        except BaseException:
            self.close()
            raise

    def _create_all(self) -> None:
        plan = self.plan
        self.slots = make_worker_slots(plan.processes)
        stages_per_process = (*(len(slot.process_plan.stages) for slot in self.slots), 0)
        self.board_layout = BoardLayout(len(plan.segments), stages_per_process, len(plan.hops))
        self.supervisor_pidfd = os.pidfd_open(os.getpid())
        self.board_fd = make_board_fd(self.board_layout)
        for target in dict.fromkeys(hop.transport for hop in plan.hops if hop.transport):
            self.transports[target] = load_transport(target, plan.config_dir).prepare()
        self.pipes = [make_packet_pipe(hop.capacity_packets) for hop in plan.hops]
        for slot in self.slots:
            self.arena_memfds[slot.process_index] = make_arena_fd(plan.memory_bytes)
            self.release_pipes[slot.process_index] = make_byte_pipe()
            self.worker_wake_events[slot.process_index] = WakeEvent()
        self.segment_wake_events = [WakeEvent() for _ in plan.segments]
        if self.is_traced:
            self.trace_fds = {index: make_trace_fd() for index in self.process_indices}
            self.consumer_trace = TraceBuffer(self.trace_fds[self.consumer_process_index])
        self.board = Board(self.board_fd, self.board_layout)
        for hop_index, hop in enumerate(plan.hops):
            self.board.rule_word(hop_index)[0] = hop.rule.word

    def add_consumer_arena(self, era: int) -> None:
        """Make an arena, now in `era`, and a release pipe for the consumer, which has none otherwise."""
        self.arena_memfds[self.consumer_process_index] = make_arena_fd(self.plan.memory_bytes, era)
        self.release_pipes[self.consumer_process_index] = make_byte_pipe()

    @property
    def consumer_process_index(self) -> int:
        """The process index of the consumer, which is the caller's process."""
        return len(self.slots)

    @property
    def release_write_fds(self) -> dict[int, int]:
        """The write ends of the release pipes, by the process that reads them."""
        return {owner: write_fd for owner, (_, write_fd) in self.release_pipes.items()}

    @property
    def process_indices(self) -> range:
        """The process indices of all workers and of the consumer."""
        return range(len(self.slots) + 1)

    @property
    def process_indices_by_group(self) -> list[list[int]]:
        """The process indices of each worker group, in the order of the chain; the consumer's come last."""
        return group_process_indices(self.slots)

    def get_visible_arena_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """The arenas that a worker maps, by process index: its own and those of the groups before it."""
        return {
            other.process_index: self.arena_memfds[other.process_index]
            for other in self.slots
            if other.worker_group < slot.worker_group or other == slot
        }

    def get_release_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """The release pipes of a worker, by process index: its own read end, the write ends of the groups before it."""
        write_fds = {
            other.process_index: self.release_pipes[other.process_index][1]
            for other in self.slots
            if other.worker_group < slot.worker_group
        }
        return {**write_fds, slot.process_index: self.release_pipes[slot.process_index][0]}

    def get_segment_processes_by_stage(self, slot: WorkerSlot) -> tuple[tuple[int, ...], ...]:
        """The processes whose arenas hold items of the segment that a worker feeds: it, then those of each stage."""
        segment = slot.process_plan.output_segment
        stage_slots = [
            other
            for other in self.slots
            if other.process_plan.role is ProcessRole.STAGE and other.process_plan.input_segment == segment
        ]
        groups = dict.fromkeys(other.worker_group for other in stage_slots)
        return (slot.process_index,), *(
            tuple(other.process_index for other in stage_slots if other.worker_group == group) for group in groups
        )

    def get_reader_processes(self, slot: WorkerSlot) -> tuple[int, ...]:
        """The workers that read from the hop that a worker feeds; none if the consumer does."""
        return tuple(other.process_index for other in self.slots if other.worker_group == slot.worker_group + 1)

    def get_wake_event_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """The wake events of the segments that a worker feeds or consumes, by segment."""
        return {
            segment: self.segment_wake_events[segment].fd
            for segment in {slot.process_plan.input_segment, slot.process_plan.output_segment}
        }

    def reclaim_buffers(self) -> None:
        """Free what dead workers held in transports: all processes have dropped the packets of before their death."""
        for target, shared in self.transports.items():
            load_transport(target, self.plan.config_dir).reclaim(shared)

    def close(self) -> None:
        """Close every descriptor, and remove what transports have made."""
        for target, shared in self.transports.items():
            load_transport(target, self.plan.config_dir).remove(shared)
        for pipe in self.pipes:
            pipe.close()
        for wake_event in (
            *self.segment_wake_events,
            *self.worker_wake_events.values(),
            self.consumer_wake_event,
        ):
            wake_event.close()
        fds = [
            self.supervisor_pidfd,
            self.board_fd,
            *self.arena_memfds.values(),
            *self.trace_fds.values(),
            *(fd for pair in self.release_pipes.values() for fd in pair),
        ]
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.pipes = []
        self.transports = {}
        self.segment_wake_events = []
        self.worker_wake_events = {}
        self.arena_memfds = {}
        self.release_pipes = {}
        self.trace_fds = {}
        self.supervisor_pidfd = -1
        self.board_fd = -1
