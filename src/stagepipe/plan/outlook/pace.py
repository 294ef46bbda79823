"""How many items a second a layout of processes will give on a machine. Pure.

In a chain with bounded queues the process that works longest an item, over its workers, sets the pace (Kleinrock,
Queueing Systems I, 1975), unless the machine is full before: then it is the CPU time of all together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from stagepipe.plan.make import Machine
from stagepipe.plan.outlook.costs import Costs, ProcessCost
from stagepipe.report.load import CONSUMER, FULL

MACHINE = "machine"
"""What limits a layout whose CPU time fills the CPUs."""

_MEMORY_SHARE = 0.9
"""Share of the machine's memory that a run may plan to fill."""

_LEAST_NS = 100
"""So that what costs nothing has a rate."""


@dataclass(frozen=True)
class Group:
    """Neighbours that share a process: the numbers of the first and the last, and the workers that run them."""

    first: int
    last: int
    workers: int = 1


Layout = tuple[Group, ...]


@dataclass(frozen=True)
class Pace:
    """`limited_by` names a process, or is `machine` or `consumer`; `use`: the share of its time each process works."""

    items_per_s: float
    limited_by: str
    use: tuple[float, ...]
    cpu_ns: float  # an item, of all processes and the consumer
    memory_bytes: int  # of all workers


def layout_of(workers: tuple[int, ...]) -> Layout:
    """Each process by itself, with so many workers.

    >>> layout_of((1, 2))
    (Group(first=0, last=0, workers=1), Group(first=1, last=1, workers=2))
    """
    return tuple(Group(number, number, count) for number, count in enumerate(workers))


def members(group: Group, costs: Costs) -> tuple[ProcessCost, ...]:
    """The processes that a group brings together."""
    return costs.processes[group.first : group.last + 1]


def name_of(group: Group, costs: Costs) -> str:
    """A group goes by its first process's name."""
    return costs.processes[group.first].name


def work_ns(group: Group, costs: Costs) -> float:
    """What a group's process works for an item: its functions, its one loop, its sides of the hops to others."""
    inside = members(group, costs)
    receive_ns = costs.hops[group.first - 1].receive_ns if group.first else 0.0
    own_ns = sum(each.run_ns + each.call_ns for each in inside) + inside[0].loop_ns
    return max(own_ns + receive_ns + costs.hops[group.last].send_ns, _LEAST_NS)


def cpu_ns(group: Group, costs: Costs) -> float:
    """The CPU time of a group for an item: what its members take, less the hops between them and all loops but one."""
    inside = members(group, costs)
    saved_ns = sum(costs.hops[number].ns for number in range(group.first, group.last))
    saved_ns += sum(each.loop_ns for each in inside[1:])
    return max(sum(each.cpu_ns for each in inside) - saved_ns, 0.0)


def memory_bytes(group: Group, costs: Costs) -> int:
    """The memory of a group's workers: of each, the largest of its members, as what Python takes is had once."""
    return group.workers * max(each.memory_bytes for each in members(group, costs))


def pace(layout: Layout, costs: Costs, machine: Machine) -> Pace:
    """The rate of a layout, and what limits it."""
    times = [work_ns(group, costs) / group.workers for group in layout]
    receiving_ns = max(costs.hops[-1].receive_ns, _LEAST_NS)
    all_cpu_ns = sum(cpu_ns(group, costs) for group in layout) + receiving_ns
    limits = [(time, name_of(group, costs)) for time, group in zip(times, layout, strict=True)]
    limits += [(receiving_ns, CONSUMER), (all_cpu_ns / (FULL * machine.cpus), MACHINE)]
    longest_ns, limited_by = max(limits, key=lambda limit: limit[0])
    return Pace(
        items_per_s=1e9 / longest_ns,
        limited_by=limited_by,
        use=tuple(time / longest_ns for time in times),
        cpu_ns=all_cpu_ns,
        memory_bytes=sum(memory_bytes(group, costs) for group in layout),
    )


def fits(layout: Layout, costs: Costs, machine: Machine, arena_bytes: int) -> bool:
    """Whether the workers and the shared memory that the run may take go into the machine's memory."""
    needed = sum(memory_bytes(group, costs) for group in layout) + arena_bytes
    return needed <= _MEMORY_SHARE * machine.memory_bytes


def fusions(layout: Layout, costs: Costs) -> Iterator[tuple[int, Layout]]:
    """Each layout with one pair of neighbours more in one process, and the number of the process that moves."""
    for at, (before, after) in enumerate(pairwise(layout)):
        if not costs.processes[after.first].unfusable:
            together = Group(before.first, after.last, before.workers)
            yield after.first, (*layout[:at], together, *layout[at + 2 :])


def with_workers(layout: Layout, at: int, workers: int) -> Layout:
    """The same with another number of workers of group number `at`."""
    return (*layout[:at], replace(layout[at], workers=workers), *layout[at + 1 :])
