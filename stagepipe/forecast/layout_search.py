"""Finds the best layout of a chain: which neighbours share a process, and how many workers each process has.

Of all layouts, those with the highest predicted rate are best. Among those that come close to it, the one that takes
the least CPU time is chosen, and then the one with the fewest processes.

A layout reaches a rate if each of its groups does, so for a given rate the cheapest one is a shortest path over the
places where the chain can be cut (Bellman, Dynamic Programming, 1957). The highest rate that has a path within the
budget is found by bisection. The search is exact and takes milliseconds for tens of stages.

Pure: costs in, a layout out. Runs in the caller's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stagepipe.forecast.budget import ResourceBudget
from stagepipe.forecast.cost_values import PipelineCosts
from stagepipe.forecast.throughput import (
    MAX_BUSY_WORKERS_PER_CPU,
    FusedGroup,
    ProcessLayout,
    compute_consumer_ns,
    compute_cpu_ns,
    compute_memory_bytes,
    compute_start_ns,
    compute_work_ns,
    count_max_workers,
    fits_in_memory,
    get_members,
)
from stagepipe.report import FULL_MACHINE_CPU_SHARE

_MIN_RATE_FRACTION = 0.97
"""Share of the highest rate that is close to it. The forecast is not more precise."""

_MAX_PLANNED_UTILIZATION = 0.95
"""Share of its time that a worker may be planned to work: items take different times, and queues are short."""

_MIN_RUN_NS = 60e9
"""The CPU time of a start must pay within a run of this length, so a model is loaded no more often than it pays."""

_MIN_RUN_STARTS = 10
"""A run is taken to last at least this many times as long as one start of each process."""

_MIN_CPU_SHARE = 0.1
"""A smaller share of a CPU does not count as one."""

_MIN_ITEMS_PER_S = 1e-6
_BISECTION_STEPS = 60


@dataclass(frozen=True)
class ProcessChoice:
    """What is open about a process.

    `workers` is None if the search chooses it. `may_fuse`: the search may put it into the process before it.
    """

    workers: int | None
    may_fuse: bool = False


@dataclass(frozen=True, kw_only=True, order=True)
class _PathCost:
    """The cost of a path at a rate, the most important part first."""

    primary: float
    secondary: float
    processes: int


def choose_layout(costs: PipelineCosts, choices: Sequence[ProcessChoice], budget: ResourceBudget) -> ProcessLayout:
    """Choose the layout with the highest rate within `budget`. `choices` has an entry for each process of `costs`.

    A share of a CPU counts as a whole one: others may end, and a worker too many costs less than one too few. If no
    layout fits the budget, the one that takes the least memory is chosen.
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
        fixed_workers = self._choices[group.first_process].workers
        if fixed_workers is not None:
            is_allowed = fixed_workers == 1 or not any(
                member.is_single_worker for member in get_members(group, self._costs)[1:]
            )
            return fixed_workers if is_allowed and needed <= fixed_workers else None
        most = MAX_BUSY_WORKERS_PER_CPU * self._budget.machine_cpus
        max_workers = min(count_max_workers(group, self._costs, self._budget), most)
        workers = max(math.ceil(needed / _MAX_PLANNED_UTILIZATION - 1e-9), 1)
        return min(workers, max_workers) if needed <= max_workers else None

    def _load(self, group: FusedGroup, items_per_s: float) -> float:
        """The CPUs that a group takes at the rate, its start spread over the run."""
        working = compute_cpu_ns(group, self._costs) * items_per_s / 1e9
        return working + compute_start_ns(group, self._costs) / self._run_ns

    def _memory(self, group: FusedGroup) -> float:
        return float(compute_memory_bytes(group, self._costs))

    def _fits(self, layout: ProcessLayout, items_per_s: float) -> bool:
        consumer_load = compute_consumer_ns(self._costs) * items_per_s / 1e9
        load = sum(self._load(group, items_per_s) for group in layout) + consumer_load
        is_within_cpus = load <= FULL_MACHINE_CPU_SHARE * self._budget.cpus or items_per_s <= _MIN_ITEMS_PER_S
        return consumer_load <= 1 and is_within_cpus and fits_in_memory(layout, self._costs, self._budget)
