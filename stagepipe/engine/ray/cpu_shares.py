"""Divides the CPUs of a Ray cluster among the workers of a plan, or says which are missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from stagepipe.core import UsageError
from stagepipe.plan import ProcessPlan

_MIN_SHARE: Final = 0.01
"""Ray keeps four digits of an amount of CPUs; below a hundredth, a worker would have no CPU to speak of."""
_MAX_SOURCE_TASKS: Final = 256
"""Read tasks that run at a time: so many places are reserved, and the caller's process takes all they make."""
_EQUAL_PART: Final = 0.2
"""Of the CPUs that workers share by their load, the part that all have alike."""


@dataclass(frozen=True)
class CpuShares:
    """The CPUs that Ray reserves for a worker of each process, and how many read tasks run at a time."""

    by_process: tuple[float, ...]
    source_tasks: int


def divide_cpus(
    processes: Sequence[ProcessPlan],
    total: float,
    free: float,
    nodes: Sequence[float],
    *,
    cpu_costs: Mapping[str, float] | None = None,
    spare: float = 0.0,
    max_source_tasks: int | None = None,
) -> CpuShares:
    """Divide `free` of `total` CPUs; `processes` run on Ray, the source first. `nodes`: the free CPUs of each. Pure.

    A stage with `resources: {cpus: ...}` has what it asks for; the source and all other workers share the rest, each a
    fraction of a CPU where there are fewer CPUs than workers: whole CPUs for actors would leave none to the source. The
    fractions are by `cpu_costs`, the measured CPU time of each process per item, if it is known for all of them. They
    are smaller where a worker would otherwise fit into no node.
    What they share is without the `spare` CPUs, those of the largest node, where that is enough for a share each: a
    node that is lost takes so many along, and the workers must find a place on the others.
    Raises UsageError, with the sums, for a plan that Ray would wait for without end.
    """
    asked = {process.name: _get_cpus(process) for process in processes}
    workers = {process.name: process.workers for process in processes[1:]}
    most_free = max(nodes, default=0.0)
    for name, cpus in asked.items():
        if cpus is not None and cpus > most_free:
            path = next(process.first_stage.config_path for process in processes if process.name == name)
            raise UsageError(
                f"engine: ray: a worker of stage {name} asks for {cpus:g} CPUs, and no node has more than "
                f"{most_free:g} free; set a smaller `{path}.resources.cpus`"
            )
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    source_tasks = max(1, min(int(total) - sum(workers.values()), max(workers.values(), default=int(total))))
    source_tasks = min(source_tasks, max_source_tasks or _MAX_SOURCE_TASKS)
    counts = {processes[0].name: source_tasks, **workers}
    sharers = {name: count for name, count in counts.items() if asked[name] is None or name == processes[0].name}
    for amount, places in ((free - spare, sorted(nodes)[:-1]), (free, nodes)) if spare else ((free, nodes),):
        share = min(1.0, int((amount - demand) / sum(sharers.values()) * 100) / 100)
        while share >= _MIN_SHARE:
            shares = _weigh_shares(share, sharers, cpu_costs or {})
            by_process = tuple(asked[process.name] or shares[process.name] for process in processes)
            if _fit(by_process, list(counts.values()), places):
                return CpuShares(by_process, source_tasks)
            share = int(share * 75) / 100
    raise UsageError(_describe_shortage(asked, workers, f"{free:g} of the cluster's {total:g}", nodes))


def _fit(by_process: Sequence[float], counts: Sequence[int], nodes: Sequence[float]) -> bool:
    """Return whether each worker fits into a node, the largest ones first."""
    used = [-cpus for cpus in nodes]
    heapify(used)  # the node with most left is the first
    for cpus, count in sorted(zip(by_process, counts, strict=True), reverse=True):
        for _ in range(count):
            if not used or used[0] + cpus > _MIN_SHARE / 10:  # of rounding
                return False
            heapreplace(used, used[0] + cpus)
    return True


def _weigh_shares(equal_share: float, counts: Mapping[str, int], cpu_costs: Mapping[str, float]) -> dict[str, float]:
    """Divide the CPUs of `counts` workers with `equal_share` each by their measured load, and none more than one.

    A small part is equal: a worker that is quick on average must start too, and has slow items.
    """
    costs = {name: cpu_costs[name] for name in counts if name in cpu_costs}
    total_cost = sum(costs.values())
    if equal_share >= 1 or len(costs) < len(counts) or total_cost <= 0:
        return dict.fromkeys(counts, equal_share)
    whole = equal_share * sum(counts.values())
    shares = {}
    for name, count in counts.items():
        share = _EQUAL_PART * equal_share + (1 - _EQUAL_PART) * whole * costs[name] / total_cost / count
        shares[name] = max(min(1.0, int(share * 100) / 100), _MIN_SHARE)
    is_too_much = sum(shares[name] * count for name, count in counts.items()) > whole  # the smallest were rounded up
    return dict.fromkeys(counts, equal_share) if is_too_much else shares


def _describe_shortage(
    asked: dict[str, float | None], workers: dict[str, int], amount: str, nodes: Sequence[float]
) -> str:
    parts = [f"{name}: {count} x {asked[name]:g}" for name, count in workers.items() if asked[name] is not None]
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    if not parts:
        fix = "wait until other jobs have ended, close other pipelines, or set fewer `workers`"
        subject = f"{sum(workers.values())} workers and the source need CPUs"
    else:
        names = ", ".join(name for name in workers if asked[name] is not None)
        fix = f"set a smaller `resources: {{cpus: ...}}` (0.5, for example) or fewer `workers` for {names}"
        subject = f"the stages ask for {demand:g} CPUs ({', '.join(parts)}), and the source needs a part of one too"
    places = f", at most {max(nodes):g} on one of {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"engine: ray: {subject}, but {amount} CPUs are free{places}; {fix}"


def check_gpus(processes: Sequence[ProcessPlan], total: float, free: float) -> None:
    """Raise UsageError if the stages ask for more GPUs than are `free`, of the `total` that the cluster has."""
    demand = sum(get_gpus(process) * process.workers for process in processes)
    if demand > free:
        names = ", ".join(process.name for process in processes if get_gpus(process))
        amount = f"{free:g} of its {total:g} are free" if free < total else f"it has {total:g}"
        raise UsageError(
            f"engine: ray: the stages {names} ask for {demand:g} GPUs of the cluster, and {amount}; set a smaller "
            "`resources: {gpus: ...}` or fewer `workers`"
        )


def _get_cpus(process: ProcessPlan) -> float | None:
    resources = process.first_stage.resources
    return None if resources is None else resources.cpus


def get_gpus(process: ProcessPlan) -> float:
    """Return the GPUs that a worker of a process asks for."""
    resources = process.first_stage.resources
    return 0.0 if resources is None or resources.gpus is None else resources.gpus
