"""Explains a layout that stagepipe chose: one line for each stage. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stagepipe.core import format_ns, join_names
from stagepipe.forecast.advice import describe_bottleneck
from stagepipe.forecast.budget import ResourceBudget
from stagepipe.forecast.cost_values import PipelineCosts
from stagepipe.forecast.throughput import FusedGroup, ProcessLayout, compute_work_ns, get_group_name, get_members


def explain_layout(
    costs: PipelineCosts, layout: ProcessLayout, names: Collection[str], budget: ResourceBudget
) -> Iterator[str]:
    """Yield a line for each process in `names`, in pipeline order.

    >>> list(explain_layout(costs, layout, {"decode", "crop"}, budget))  # doctest: +SKIP
    ['decode: 2 workers (auto) with crop: 3.1 ms per item; the machine is full: ...',
     'crop: fused into decode (auto): it takes 80 µs per item, and a hop would cost 60 µs']
    """
    bottleneck = describe_bottleneck(costs, layout, budget)
    for group in layout:
        if get_group_name(group, costs) in names:
            yield f"{_describe_group(group, costs)}; {bottleneck}"
        for index in range(group.first_process + 1, group.last_process + 1):
            member = costs.processes[index]
            if member.name in names:
                yield (
                    f"{member.name}: fused into {get_group_name(group, costs)} (auto): it takes "
                    f"{format_ns(member.run_ns)} per item, and a hop would cost "
                    f"{format_ns(costs.hops[index - 1].total_ns + member.loop_ns)}"
                )


def _describe_group(group: FusedGroup, costs: PipelineCosts) -> str:
    first, *others = [member.name for member in get_members(group, costs)]
    workers = f"{group.workers} worker{'' if group.workers == 1 else 's'} (auto)"
    if not costs.processes[group.first_process].is_measured:
        return f"{first}: {workers}: no item reached it in the probe"
    together = f" with {join_names(others)}" if others else ""
    return f"{first}: {workers}{together}: {format_ns(compute_work_ns(group, costs))} per item"
