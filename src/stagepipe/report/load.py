"""How loaded each process of a run was: the evidence that the verdict weighs. Pure.

A process is a stage and what is fused into it; the consumer counts as one more. Its *use* is the share of its time,
once started, in which it neither waits for input nor for room: work inside the stages' functions and on the hops at its
ends. In a chain with bounded queues the process of the highest use sets the pace, those before it block and those
after it starve (Kleinrock, Queueing Systems I, 1975, on utilisation).
"""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.report.record import HopRecord, RunRecord, StageRecord

CONSUMER = "consumer"
"""What the verdict calls the training loop, the sink or `run` itself."""

FULL = 0.9
"""Share of the CPUs from which the machine counts as full; the rest goes to the consumer and the system."""

THREADED = 1.3
"""CPU time over working time from which a worker runs several threads at once."""

_SENDING = ("encode_ns", "copy_ns", "send_ns")
_RECEIVING = ("receive_ns", "decode_ns")
"""The phases of a hop in which its two sides work."""


@dataclass(frozen=True)
class Side:
    """A process's side of one hop, and what the process spent on it: encode to send, or receive and decode."""

    hop: HopRecord
    spent_ns: int


@dataclass(frozen=True)
class Load:
    """One process (all its workers added up), or the consumer (no members). Durations are ns of worker time."""

    name: str
    members: tuple[StageRecord, ...]
    workers: int
    active_ns: int  # wall time less starting
    work_ns: int  # active time less waiting
    run_ns: int  # in the stages' own functions
    starved: float  # shares of the active time
    blocked: float
    sides: tuple[Side, ...]
    cpu_ns: int = 0

    @property
    def use(self) -> float:
        """The share of its active time in which it worked, 0 to 1."""
        return min(self.work_ns / self.active_ns, 1.0) if self.active_ns > 0 else 0.0

    @property
    def costliest(self) -> str:
        """The member whose function takes most of the time."""
        return max(self.members, key=lambda m: m.run.sum_ns).name if self.members else self.name

    @property
    def hops_ns(self) -> int:
        """What it spent on all its hops."""
        return sum(side.spent_ns for side in self.sides)

    def side_ns(self, hop: HopRecord) -> int:
        """What it spent on this hop (0 where it is not at one of its ends)."""
        return sum(side.spent_ns for side in self.sides if side.hop is hop)


def loads_of(record: RunRecord) -> tuple[Load, ...]:
    """One load a process, in the order of the pipeline, and last the consumer."""
    heads = [stage for stage in record.stages if stage.fused_into is None]
    return (*(_process(head, record) for head in heads), _consumer(record))


def own_busy_ns(stage: StageRecord, record: RunRecord) -> int:
    """Time in functions of this stage's process: its own and, as they share its wall time, of those fused into it."""
    fused = [s for s in record.stages if s.fused_into == stage.name]
    if not fused:
        return stage.busy_ns
    spent_ns = stage.run.sum_ns + sum(s.run.sum_ns for s in fused)
    room_ns = stage.wall_ns - stage.starting_ns - stage.starved_ns - stage.blocked_ns
    return max(stage.busy_ns, min(spent_ns, room_ns))


def cpus_used(record: RunRecord) -> float:
    """How many CPUs the stages kept running on average over the run, without the time in which nobody iterated."""
    total_ns = sum(s.cpu_ns for s in record.stages if s.fused_into is None)
    wall_ns = record.wall_ns - record.consumer_outside_ns
    return total_ns / wall_ns if wall_ns > 0 else 0.0


def _spent_ns(hop: HopRecord, phases: tuple[str, ...]) -> int:
    if not hop.phases:
        return hop.cost.sum_ns // 2  # phases not recorded: half to each side
    return sum(hop.phases[phase].sum_ns for phase in phases if phase in hop.phases)


def _sides(names: set[str], record: RunRecord) -> tuple[Side, ...]:
    across = [hop for hop in record.hops if (hop.source in names) != (hop.target in names)]
    return tuple(Side(hop, _spent_ns(hop, _SENDING if hop.source in names else _RECEIVING)) for hop in across)


def _process(head: StageRecord, record: RunRecord) -> Load:
    members = (head, *(s for s in record.stages if s.fused_into == head.name))
    sides = _sides({member.name for member in members}, record)
    busy_ns = max(own_busy_ns(head, record), 0)
    starved_ns, blocked_ns = max(head.starved_ns, 0), max(head.blocked_ns, 0)
    active_ns = max(head.wall_ns - max(head.starting_ns, 0), busy_ns + starved_ns + blocked_ns)
    # While nobody iterated, it waited for nothing that a setting could change.
    outside_ns = min(record.consumer_outside_ns * max(head.workers, 1), starved_ns + blocked_ns)
    active_ns -= outside_ns
    blocked_ns -= max(outside_ns - starved_ns, 0)
    starved_ns -= min(outside_ns, starved_ns)
    overhead_ns = active_ns - busy_ns - starved_ns - blocked_ns
    idle_ns = _after_end_ns(head, record, overhead_ns - sum(side.spent_ns for side in sides))
    return Load(
        name=head.name,
        members=members,
        workers=max(head.workers, 1),
        active_ns=active_ns,
        work_ns=busy_ns + overhead_ns - idle_ns,
        run_ns=busy_ns,
        starved=starved_ns / max(active_ns, 1),
        blocked=blocked_ns / max(active_ns, 1),
        sides=sides,
        cpu_ns=head.cpu_ns,
    )


def _after_end_ns(head: StageRecord, record: RunRecord, unexplained_ns: int) -> int:
    """A source that has ended works no more: overhead that no hop explains is idle, as far as the run outlived it."""
    if head is not record.stages[0] or not 0 < record.source_end_ns < record.wall_ns:
        return 0
    return max(min(record.wall_ns - record.source_end_ns, unexplained_ns), 0)


def _consumer(record: RunRecord) -> Load:
    """The consumer; its wait for the very first item is the pipeline's start, no sign of what limits it."""
    stages = {stage.name for stage in record.stages}
    into = [hop for hop in record.hops if hop.target not in stages]
    sides = tuple(Side(hop, _spent_ns(hop, _RECEIVING)) for hop in into)
    first_ns = record.consumer_first_wait_ns or record.first_item_ns
    wait_ns = max(record.consumer_wait_ns - max(first_ns, 0), 0)
    busy_ns = max(record.consumer_busy_ns, 0)
    receiving_ns = min(sum(side.spent_ns for side in sides), wait_ns)  # taking an item in is work, not waiting
    active_ns = max(busy_ns + wait_ns, record.wall_ns - record.first_item_ns - record.consumer_outside_ns)
    return Load(
        name=CONSUMER,
        members=(),
        workers=1,
        active_ns=active_ns,
        work_ns=busy_ns + receiving_ns,
        run_ns=busy_ns,
        starved=(wait_ns - receiving_ns) / max(active_ns, 1),
        blocked=0.0,
        sides=sides,
    )
