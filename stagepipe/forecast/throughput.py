"""Predicts the items per second of a layout of processes on a machine, and the bottleneck.

In a chain with bounded queues, the process with the most work per item and worker limits the rate (Kleinrock, Queueing
Systems I, 1975). If the CPUs are saturated before that, the CPU time of all processes limits it.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from stagepipe.forecast.budget import ResourceBudget
from stagepipe.forecast.cost_values import PipelineCosts, ProcessCost
from stagepipe.report import CONSUMER, FULL_MACHINE_CPU_SHARE

MACHINE_LIMIT = "machine"
"""`limited_by` of a layout that saturates the CPUs."""

_MAX_MEMORY_FRACTION = 0.9
"""Share of the machine's memory that a plan may use."""

_MIN_COST_NS = 100
"""A lower bound, so that a process without work has a finite rate."""


MAX_BUSY_WORKERS_PER_CPU = 4
"""The most workers per CPU for a stage that uses a quarter of one, and in any case where nobody has asked for more.

Measured on two CPUs with naps of 2 and 20 ms: 8 workers give 1.5 and 1.9 times the rate of 4, at 12 MB each.
"""

_MAX_WAITING_WORKERS_PER_CPU = 16
"""The same for a stage that only waits (for a network or a disk): naps of 10 ms in 16 workers on two CPUs are 1.9 times
as fast as in 8. More are seldom useful: whatever it waits for is the limit by then."""

_SEVERAL_WORKERS_CPU_NS = 4_000
"""CPU time per item for dealing items to several workers and restoring their order.

Measured with two workers instead of one, on two CPUs: 1.5 to 4 us for integers, 5 to 7 for samples of a `dataset`.
"""


@dataclass(frozen=True)
class FusedGroup:
    """Neighbouring processes fused into one, by the index of the first and the last, and their number of workers."""

    first_process: int
    last_process: int
    workers: int = 1


ProcessLayout = tuple[FusedGroup, ...]


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The predicted rate of a layout.

    `limited_by` is the name of a process, `machine` or `consumer`. `utilization` is the busy share of each group.
    """

    items_per_s: float
    limited_by: str
    utilization: tuple[float, ...]
    cpu_ns: float  # per source item, of all processes and the consumer
    memory_bytes: int  # of all workers


def make_layout(workers: tuple[int, ...]) -> ProcessLayout:
    """A layout without fusion: one group per process, with these numbers of workers.

    >>> layout = make_layout((1, 2))
    >>> [(group.first_process, group.last_process, group.workers) for group in layout]
    [(0, 0, 1), (1, 1, 2)]
    """
    return tuple(FusedGroup(index, index, count) for index, count in enumerate(workers))


def get_members(group: FusedGroup, costs: PipelineCosts) -> tuple[ProcessCost, ...]:
    """The costs of the processes in a group."""
    return costs.processes[group.first_process : group.last_process + 1]


def get_group_name(group: FusedGroup, costs: PipelineCosts) -> str:
    """The name of a group: that of its first process."""
    return costs.processes[group.first_process].name


def compute_work_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The work of a group per source item, in ns: its functions, one loop and its sides of the hops to others."""
    members = get_members(group, costs)
    receive_ns = costs.hops[group.first_process - 1].receive_ns if group.first_process else 0.0
    process_ns = sum(member.run_ns + member.call_ns for member in members) + members[0].loop_ns
    return max(process_ns + receive_ns + costs.hops[group.last_process].send_ns, _MIN_COST_NS)


def compute_cpu_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The CPU time of a group per source item: that of its members without the hops between them, and with one loop.

    Several workers share the items, which costs a little more.
    """
    members = get_members(group, costs)
    saved_ns = sum(costs.hops[index].total_ns for index in range(group.first_process, group.last_process))
    saved_ns += sum(member.loop_ns for member in members[1:])
    sharing_ns = _SEVERAL_WORKERS_CPU_NS if group.workers > 1 else 0
    return max(sum(member.cpu_ns for member in members) - saved_ns, 0.0) + sharing_ns


def compute_memory_bytes(group: FusedGroup, costs: PipelineCosts) -> int:
    """The memory of a group's workers: each has one Python, and what its members load beside it."""
    base_bytes = min(process.memory_bytes for process in costs.processes)
    loaded_bytes = sum(member.memory_bytes - base_bytes for member in get_members(group, costs))
    return group.workers * (base_bytes + loaded_bytes)


def compute_start_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The CPU time that the group's workers take to start: each starts one Python and builds all its members."""
    base_ns = min(process.start_ns for process in costs.processes)
    built_ns = sum(member.start_ns - base_ns for member in get_members(group, costs))
    return group.workers * (base_ns + built_ns)


def predict_throughput(layout: ProcessLayout, costs: PipelineCosts, cpus: float) -> Throughput:
    """Predict the rate of a layout on `cpus` CPUs and what limits it."""
    times_ns = [compute_work_ns(group, costs) / group.workers for group in layout]
    consumer_ns = compute_consumer_ns(costs)
    total_cpu_ns = sum(compute_cpu_ns(group, costs) for group in layout) + consumer_ns - costs.sink_waiting_ns
    limits = [(time_ns, get_group_name(group, costs)) for time_ns, group in zip(times_ns, layout, strict=True)]
    limits += [(consumer_ns, CONSUMER), (total_cpu_ns / (FULL_MACHINE_CPU_SHARE * cpus), MACHINE_LIMIT)]
    longest_ns, limited_by = max(limits, key=lambda limit: limit[0])
    return Throughput(
        items_per_s=1e9 / longest_ns,
        limited_by=limited_by,
        utilization=tuple(time_ns / longest_ns for time_ns in times_ns),
        cpu_ns=total_cpu_ns,
        memory_bytes=sum(compute_memory_bytes(group, costs) for group in layout),
    )


def count_max_workers(group: FusedGroup, costs: PipelineCosts, budget: ResourceBudget) -> int:
    """The most workers that a group may have: one if a member must run in one process, one per GPU if it uses them."""
    members = get_members(group, costs)
    if any(member.is_single_worker for member in members):
        return 1
    limits = [member.max_workers for member in members if member.max_workers is not None]
    limits += [max(budget.gpus, 1) for member in members if member.has_all_gpus]
    busy_share = compute_cpu_ns(group, costs) / compute_work_ns(group, costs)
    per_cpu = min(max(int(1 / max(busy_share, 0.01)), MAX_BUSY_WORKERS_PER_CPU), _MAX_WAITING_WORKERS_PER_CPU)
    return min(limits, default=per_cpu * budget.machine_cpus)


def compute_consumer_ns(costs: PipelineCosts) -> float:
    """The work of the consumer per source item, in ns: its side of the last hop, and the sink."""
    return max(costs.hops[-1].receive_ns + costs.sink_ns, _MIN_COST_NS)


def fits_in_memory(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> bool:
    """Whether the workers and the shared memory fit the budget."""
    needed = sum(compute_memory_bytes(group, costs) for group in layout) + budget.arena_bytes
    return needed <= _MAX_MEMORY_FRACTION * budget.memory_bytes


def iter_fusions(layout: ProcessLayout, costs: PipelineCosts) -> Iterator[tuple[int, ProcessLayout]]:
    """Yield each layout that fuses one more pair of neighbours, with the index of the process that moves."""
    for index, (before, after) in enumerate(pairwise(layout)):
        if not costs.processes[after.first_process].unfusable_reason:
            fused = FusedGroup(before.first_process, after.last_process, before.workers)
            yield after.first_process, (*layout[:index], fused, *layout[index + 2 :])


def with_workers(layout: ProcessLayout, group_index: int, workers: int) -> ProcessLayout:
    """Copy the layout with `workers` workers in the group at `group_index`."""
    return (*layout[:group_index], replace(layout[group_index], workers=workers), *layout[group_index + 1 :])
