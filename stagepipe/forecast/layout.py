"""Predicts the items per second of a layout of processes and its bottleneck, and finds the best layout.

In a chain with bounded queues, the process with the most work per item and worker limits the rate (Kleinrock, Queueing
Systems I, 1975). If the CPUs are saturated before that, the CPU time of all processes limits it.

The best layout comes close to the highest predicted rate with the least CPU time, and then with the fewest processes. A
layout reaches a rate if each of its groups does. For a given rate, the cheapest layout is therefore a shortest path
over the places where the chain can be cut (Bellman, Dynamic Programming, 1957). Bisection finds the highest rate that
has a path within the budget. The search is exact and takes milliseconds for tens of stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stagepipe.forecast.cost_values import PipelineCosts, ProcessCost, ResourceBudget
from stagepipe.report import CONSUMER, FULL_MACHINE_CPU_SHARE
from stagepipe.spec import WorkerRange

MACHINE_LIMIT = "machine"
"""`limited_by` of a layout that saturates the CPUs."""

_MAX_MEMORY_FRACTION = 0.9
"""Share of the machine's memory that a plan may use."""

_MIN_COST_NS = 100
"""A lower bound, so that a process without work has a finite rate."""

MAX_BUSY_WORKERS_PER_CPU = 4
"""Maximum workers per CPU for a stage that uses a quarter of one, and for any stage unless the config sets more.

Measured on two CPUs with naps of 2 and 20 ms: 8 workers give 1.5 and 1.9 times the rate of 4, at 12 MB each.
"""

_MAX_WAITING_WORKERS_PER_CPU = 16
"""The same for a stage that only waits (for a network or a disk): naps of 10 ms in 16 workers on two CPUs are 1.9 times
as fast as in 8. More workers are seldom useful, because the awaited resource is then the limit.

"""

_SEVERAL_WORKERS_CPU_NS = 4_000
"""CPU time per item for distributing items to several workers and restoring their order.

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

    `limited_by` is the name of a process, `machine` or `consumer`.
    """

    items_per_s: float
    limited_by: str
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
    """The name of a group, which is the name of its first process."""
    return costs.processes[group.first_process].name


def compute_work_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The work of a group per source item, in ns: its functions, one loop and its sides of the outer hops."""
    members = get_members(group, costs)
    receive_ns = costs.hops[group.first_process - 1].receive_ns if group.first_process else 0.0
    process_ns = sum(member.run_ns + member.call_ns for member in members) + members[0].loop_ns
    return max(process_ns + receive_ns + costs.hops[group.last_process].send_ns, _MIN_COST_NS)


def compute_cpu_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The CPU time of a group per source item: the sum of its members, without their inner hops and with one loop.

    Several workers add the cost of sharing the items.
    """
    members = get_members(group, costs)
    saved_ns = sum(costs.hops[index].total_ns for index in range(group.first_process, group.last_process))
    saved_ns += sum(member.loop_ns for member in members[1:])
    sharing_ns = _SEVERAL_WORKERS_CPU_NS if group.workers > 1 else 0
    return max(sum(member.cpu_ns for member in members) - saved_ns, 0.0) + sharing_ns


def compute_memory_bytes(group: FusedGroup, costs: PipelineCosts) -> int:
    """The memory of a group's workers: each has one Python process and the data that its members load."""
    base_bytes = min(process.memory_bytes for process in costs.processes)
    loaded_bytes = sum(member.memory_bytes - base_bytes for member in get_members(group, costs))
    return group.workers * (base_bytes + loaded_bytes)


def compute_start_ns(group: FusedGroup, costs: PipelineCosts) -> float:
    """The CPU time to start the group's workers: each starts one Python process and builds all its members."""
    base_ns = min(process.start_ns for process in costs.processes)
    built_ns = sum(member.start_ns - base_ns for member in get_members(group, costs))
    return group.workers * (base_ns + built_ns)


def predict_throughput(layout: ProcessLayout, costs: PipelineCosts, cpus: float) -> Throughput:
    """Predict the rate of a layout on `cpus` CPUs, and its limit."""
    times_ns = [compute_work_ns(group, costs) / group.workers for group in layout]
    consumer_ns = compute_consumer_ns(costs)
    total_cpu_ns = sum(compute_cpu_ns(group, costs) for group in layout) + consumer_ns - costs.sink_waiting_ns
    limits = [(time_ns, get_group_name(group, costs)) for time_ns, group in zip(times_ns, layout, strict=True)]
    limits += [(consumer_ns, CONSUMER), (total_cpu_ns / (FULL_MACHINE_CPU_SHARE * cpus), MACHINE_LIMIT)]
    longest_ns, limited_by = max(limits, key=lambda limit: limit[0])
    return Throughput(
        items_per_s=1e9 / longest_ns,
        limited_by=limited_by,
        cpu_ns=total_cpu_ns,
        memory_bytes=sum(compute_memory_bytes(group, costs) for group in layout),
    )


def count_max_workers(group: FusedGroup, costs: PipelineCosts, budget: ResourceBudget) -> int:
    """The maximum number of workers of a group: one if a member requires it, otherwise limited by GPUs or CPUs."""
    members = get_members(group, costs)
    if any(member.is_single_worker for member in members):
        return 1
    limits = [member.max_workers for member in members if member.max_workers is not None]
    limits += [max(budget.gpus // member.gpus_per_worker, 1) for member in members if member.gpus_per_worker]
    is_measured = all(member.is_measured for member in members)
    busy_share = compute_cpu_ns(group, costs) / compute_work_ns(group, costs) if is_measured else 1.0
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
    """Yield each layout that fuses one more pair of neighbours, with the index of the second process."""
    for index, (before, after) in enumerate(pairwise(layout)):
        if not costs.processes[after.first_process].unfusable_reason:
            fused = FusedGroup(before.first_process, after.last_process, before.workers)
            yield after.first_process, (*layout[:index], fused, *layout[index + 2 :])


def with_workers(layout: ProcessLayout, group_index: int, workers: int) -> ProcessLayout:
    """Copy the layout with `workers` workers in the group at `group_index`."""
    return (*layout[:group_index], replace(layout[group_index], workers=workers), *layout[group_index + 1 :])


_MIN_RATE_FRACTION = 0.97
"""A rate with this share of the highest one counts as close. The forecast is not more precise."""

_MAX_PLANNED_UTILIZATION = 0.95
"""Maximum planned utilization of a worker: items take different times, and queues are short."""

_MIN_RUN_NS = 60e9
"""The CPU time of a start must pay within a run of this length, so that a model is not loaded too often."""

_MIN_RUN_STARTS = 10
"""A run is assumed to last at least this many times as long as one start of each process."""

_MIN_CPU_SHARE = 0.1
"""A smaller share of a CPU does not count as one."""

_MAX_WORKERS = 1 << 16
"""An upper bound that no search reaches."""

_MIN_ITEMS_PER_S = 1e-6
_BISECTION_STEPS = 60


@dataclass(frozen=True)
class ProcessChoice:
    """The open choices for a process.

    The search chooses `workers` if it is None, and within it if it is a range. `may_fuse`: the search may put the
    process into the one before it.
    """

    workers: int | WorkerRange | None
    may_fuse: bool = False


@dataclass(frozen=True, kw_only=True, order=True)
class _PathCost:
    """The cost of a path at a rate, the most important part first."""

    primary: float
    secondary: float
    processes: int


def choose_layout(costs: PipelineCosts, choices: Sequence[ProcessChoice], budget: ResourceBudget) -> ProcessLayout:
    """Choose the layout with the highest rate within `budget`. `choices` has an entry for each process of `costs`.

    A fraction of a CPU counts as a whole one: other programs may end, and an extra worker costs less than a missing
    one. If no layout fits the budget, the layout with the least memory is chosen.
    """
    whole_cpus = max(math.ceil(budget.cpus - _MIN_CPU_SHARE), 1)
    search = _Search(costs, choices, replace(budget, cpus=float(whole_cpus)))
    low, high = _MIN_ITEMS_PER_S, 1e9 / compute_consumer_ns(costs)
    if search.find(low) is None:
        return search.find_smallest(low)
    for _ in range(_BISECTION_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if search.find(middle) is not None else (low, middle)
    return search.find(_MIN_RATE_FRACTION * low) or search.find_smallest(_MIN_ITEMS_PER_S)


class _Search:
    """Finds the cheapest layout for a rate."""

    def __init__(self, costs: PipelineCosts, choices: Sequence[ProcessChoice], budget: ResourceBudget) -> None:
        self._costs = costs
        self._choices = choices
        self._budget = budget
        one_start_ns = sum(process.start_ns for process in costs.processes)
        self._run_ns = max(_MIN_RUN_NS, _MIN_RUN_STARTS * one_start_ns)

    def find(self, items_per_s: float) -> ProcessLayout | None:
        """Return the cheapest layout that reaches the rate within the budget; None if there is none."""
        for find_layout in (self._find_cheapest, self.find_smallest):
            layout = find_layout(items_per_s)
            if layout and self._fits(layout, items_per_s):
                return layout
        return None

    def find_smallest(self, items_per_s: float) -> ProcessLayout:
        """Return the layout that reaches the rate with the least memory; an empty one if none reaches it."""
        return self._find_path(items_per_s, lambda group: (self._memory(group), self._load(group, items_per_s)))

    def _find_cheapest(self, items_per_s: float) -> ProcessLayout:
        return self._find_path(items_per_s, lambda group: (self._load(group, items_per_s), self._memory(group)))

    def _find_path(self, items_per_s: float, get_cost: Callable[[FusedGroup], tuple[float, float]]) -> ProcessLayout:
        """Find the shortest path from the first process to the last; its edges are groups that reach the rate."""
        paths: list[tuple[_PathCost, ProcessLayout] | None] = [(_PathCost(primary=0, secondary=0, processes=0), ())]
        for last in range(len(self._costs.processes)):
            candidates = []
            for group in self._iter_groups(last, items_per_s):
                path = paths[group.first_process]
                if path is not None:
                    primary, secondary = get_cost(group)
                    cost = _PathCost(
                        primary=round(path[0].primary + primary, 9),
                        secondary=round(path[0].secondary + secondary, 9),
                        processes=path[0].processes + group.workers,
                    )
                    candidates.append((cost, (*path[1], group)))
            paths.append(min(candidates, key=lambda candidate: candidate[0], default=None))
        best = paths[-1]
        return () if best is None else best[1]

    def _iter_groups(self, last: int, items_per_s: float) -> Iterator[FusedGroup]:
        """Yield each group that ends with process `last` and reaches the rate, the shortest first."""
        for first in range(last, -1, -1):
            workers = self._count_workers(FusedGroup(first, last), items_per_s)
            if workers is not None:
                yield FusedGroup(first, last, workers)
            if not self._choices[first].may_fuse or self._costs.processes[first].unfusable_reason:
                return

    def _count_workers(self, group: FusedGroup, items_per_s: float) -> int | None:
        """The fewest workers with which a group reaches the rate; None if it cannot."""
        needed = compute_work_ns(group, self._costs) * items_per_s / 1e9
        given = self._choices[group.first_process].workers
        least, most = given if isinstance(given, WorkerRange) else (given or 1, given or _MAX_WORKERS)
        if least > 1 and any(member.is_single_worker for member in get_members(group, self._costs)[1:]):
            return None
        if least < most:
            busy_workers = MAX_BUSY_WORKERS_PER_CPU * self._budget.machine_cpus
            reasonable = min(count_max_workers(group, self._costs, self._budget), busy_workers)
            most = max(min(most, reasonable), least)
        workers = max(math.ceil(needed / _MAX_PLANNED_UTILIZATION - 1e-9), least)
        return min(workers, most) if needed <= most else None

    def _load(self, group: FusedGroup, items_per_s: float) -> float:
        """The CPUs that a group uses at the rate, with its start spread over the run."""
        working = compute_cpu_ns(group, self._costs) * items_per_s / 1e9
        return working + compute_start_ns(group, self._costs) / self._run_ns

    def _memory(self, group: FusedGroup) -> float:
        return float(compute_memory_bytes(group, self._costs))

    def _fits(self, layout: ProcessLayout, items_per_s: float) -> bool:
        consumer_load = compute_consumer_ns(self._costs) * items_per_s / 1e9
        load = sum(self._load(group, items_per_s) for group in layout) + consumer_load
        is_within_cpus = load <= FULL_MACHINE_CPU_SHARE * self._budget.cpus or items_per_s <= _MIN_ITEMS_PER_S
        return consumer_load <= 1 and is_within_cpus and fits_in_memory(layout, self._costs, self._budget)
