"""Suggests which neighbours to fuse and which stages to give more workers, step by step.

Each change is tried on the predicted throughput and suggested only if that grows by more than a tenth. Fusing saves a
hop, but the two stages no longer work at the same time. It pays if their process is not the bottleneck, or if the
machine is full.

Pure: costs in, advice out. Runs in the caller's process.
"""

from __future__ import annotations

from itertools import pairwise

from stagepipe.core import format_ns, format_percent, join_names
from stagepipe.forecast.budget import ResourceBudget
from stagepipe.forecast.cost_values import PipelineCosts
from stagepipe.forecast.model import FusionForecast, PlanAdvice
from stagepipe.forecast.throughput import (
    MACHINE_LIMIT,
    ProcessLayout,
    compute_cpu_ns,
    compute_work_ns,
    count_max_workers,
    fits_in_memory,
    get_group_name,
    get_members,
    iter_fusions,
    make_layout,
    predict_throughput,
    with_workers,
)

MIN_GAIN_RATIO = 1.1
"""The predicted gain from which a change is suggested. The noise of a run hides a smaller one."""

_MIN_FUSION_GAIN_RATIO = 1.01
"""The predicted gain that each fused pair must add to a step."""

_MIN_TRIMMED_RATE_FRACTION = 0.97
"""Workers are removed while the rate stays above this share of the best one."""


def advise(costs: PipelineCosts, workers: tuple[int, ...], budget: ResourceBudget) -> tuple[PlanAdvice, ...]:
    """Suggest changes, each on top of those before it; none if no change is predicted to gain a tenth.

    `workers` holds the number of workers of each process of the plan.
    """
    layout = make_layout(workers)
    steps: list[PlanAdvice] = []
    while True:
        current = predict_throughput(layout, costs, budget.cpus)
        best = find_best_layout(layout, costs, budget)
        improved = predict_throughput(best, costs, budget.cpus)
        if improved.items_per_s < MIN_GAIN_RATIO * current.items_per_s:
            return tuple(steps)
        overrides, text = list_overrides(layout, best, costs), _describe_changes(layout, best, costs)
        steps.append(PlanAdvice(overrides, text, current.items_per_s, improved.items_per_s))
        layout = best


def estimate_fusions(
    costs: PipelineCosts, workers: tuple[int, ...], budget: ResourceBudget
) -> tuple[FusionForecast, ...]:
    """Estimate each pair of neighbours as if only that pair were fused. It keeps the workers of its first process.

    The processes of sinks are left out: `fuse` is no key of a sink.
    """
    layout = make_layout(workers)
    fused = dict(iter_fusions(layout, costs))
    return tuple(
        FusionForecast(
            stage=after.name,
            into=before.last_stage,
            saved_ns=int(costs.hops[index - 1].total_ns + after.loop_ns),
            items_per_s=_predict_rate(fused[index], costs, budget) if index in fused else 0.0,
            unfusable_reason=after.unfusable_reason,
        )
        for index, (before, after) in enumerate(pairwise(costs.processes), 1)
        if not after.is_sink
    )


def _add_workers(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> ProcessLayout:
    """Add workers to the bottleneck, one at a time, as long as possible. Then remove those that hardly help."""
    best, candidate = layout, layout
    while True:
        index = _find_bottleneck(candidate, costs, budget)
        if index is None or candidate[index].workers >= count_max_workers(candidate[index], costs, budget):
            break
        candidate = with_workers(candidate, index, candidate[index].workers + 1)
        if not fits_in_memory(candidate, costs, budget):
            break
        if _predict_rate(candidate, costs, budget) > _predict_rate(best, costs, budget):
            best = candidate
    return _remove_idle_workers(layout, best, costs, budget)


def describe_bottleneck(costs: PipelineCosts, layout: ProcessLayout, budget: ResourceBudget) -> str:
    """Name the bottleneck of a layout.

    >>> describe_bottleneck(costs, make_layout((1, 1)), budget)  # doctest: +SKIP
    'decode is the bottleneck: 2.5 ms per item'
    """
    throughput = predict_throughput(layout, costs, budget.cpus)
    if throughput.limited_by == MACHINE_LIMIT:
        costliest = max(layout, key=lambda group: compute_cpu_ns(group, costs))
        share = compute_cpu_ns(costliest, costs) / throughput.cpu_ns
        return (
            f"the machine is full: an item takes {format_ns(throughput.cpu_ns)} of CPU time, "
            f"{format_percent(share)} of it in {get_group_name(costliest, costs)}"
        )
    index = _find_bottleneck(layout, costs, budget)
    if index is None:
        if costs.sink_ns > costs.hops[-1].receive_ns:
            return f"the sink is the bottleneck: {format_ns(costs.sink_ns)} per item, in the calling process"
        return "the consumer is the bottleneck"
    group = layout[index]
    first = costs.processes[group.first_process]
    subject = f"the sink {first.name}" if first.is_sink and not first.is_single_worker else first.name
    sentence = f"{subject} is the bottleneck: {format_ns(compute_work_ns(group, costs))} per item"
    if any(member.is_single_worker for member in get_members(group, costs)):
        return f"{sentence}, and it can have only one worker"
    return f"{sentence}, with {group.workers} workers" if group.workers > 1 else sentence


def _predict_rate(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> float:
    return predict_throughput(layout, costs, budget.cpus).items_per_s


def _find_bottleneck(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> int | None:
    """The index of the group that limits the rate; None if that is the machine or the consumer."""
    limited_by = predict_throughput(layout, costs, budget.cpus).limited_by
    names = [get_group_name(group, costs) for group in layout]
    return names.index(limited_by) if limited_by in names else None


def _remove_idle_workers(
    minimum: ProcessLayout, layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget
) -> ProcessLayout:
    """Remove the workers that hardly help. No group gets fewer workers than it has in `minimum`."""
    min_items_per_s = _MIN_TRIMMED_RATE_FRACTION * _predict_rate(layout, costs, budget)
    for index, group in enumerate(minimum):
        while layout[index].workers > group.workers:
            fewer = with_workers(layout, index, layout[index].workers - 1)
            if _predict_rate(fewer, costs, budget) < min_items_per_s:
                break
            layout = fewer
    return layout


def find_best_layout(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> ProcessLayout:
    """Fuse or add workers, whichever is better. Do both only if that gains a tenth over the better of the two."""

    def rate(option: ProcessLayout) -> float:
        return _predict_rate(option, costs, budget)

    single_change = max(_add_workers(layout, costs, budget), fuse_neighbours(layout, costs, budget), key=rate)
    options = [_add_workers(option, costs, budget) for _, option in iter_fusions(layout, costs)]
    both_changes = max(options, key=rate, default=single_change)
    return both_changes if rate(both_changes) >= MIN_GAIN_RATIO * rate(single_change) else single_change


def fuse_neighbours(layout: ProcessLayout, costs: PipelineCosts, budget: ResourceBudget) -> ProcessLayout:
    """Fuse neighbours, the best pair first, as long as each fusion helps."""
    while True:
        options = [fused for _, fused in iter_fusions(layout, costs) if fits_in_memory(fused, costs, budget)]
        best = max(options, key=lambda option: _predict_rate(option, costs, budget), default=layout)
        if _predict_rate(best, costs, budget) < _MIN_FUSION_GAIN_RATIO * _predict_rate(layout, costs, budget):
            return layout
        layout = best


def _describe_changes(before: ProcessLayout, after: ProcessLayout, costs: PipelineCosts) -> str:
    sentences = (_describe_fusions(before, after, costs), _describe_worker_changes(before, after, costs))
    return " ".join(filter(None, sentences))


def _describe_fusions(before: ProcessLayout, after: ProcessLayout, costs: PipelineCosts) -> str:
    """Name the stages to fuse and the cost of the hops that this saves."""
    fused_processes = {group.first_process for group in before} - {group.first_process for group in after}
    if not fused_processes:
        return ""
    clauses = []
    for group in after:
        fused_names = [
            costs.processes[index].name
            for index in range(group.first_process + 1, group.last_process + 1)
            if index in fused_processes
        ]
        if fused_names:
            clauses.append(f"{join_names(fused_names)} into {get_group_name(group, costs)}")
    saved_ns = sum(costs.hops[index - 1].total_ns for index in fused_processes)
    hops = "the hop between them costs" if len(fused_processes) == 1 else "the hops between them cost"
    return f"Fuse {' and '.join(clauses)}: {hops} {format_ns(saved_ns)} per item."


def _describe_worker_changes(before: ProcessLayout, after: ProcessLayout, costs: PipelineCosts) -> str:
    previous_workers = {group.first_process: group.workers for group in before}
    clauses = [
        f"{get_group_name(group, costs)} {group.workers} workers instead of {previous_workers[group.first_process]} "
        f"({format_ns(compute_work_ns(group, costs))} per item)"
        for group in after
        if group.workers != previous_workers[group.first_process]
    ]
    return f"Give {join_names(clauses)}." if clauses else ""


def list_overrides(before: ProcessLayout, after: ProcessLayout, costs: PipelineCosts) -> tuple[str, ...]:
    """List the overrides that turn one layout into the other."""
    groups_after = {group.first_process: group for group in after}
    overrides = []
    for group in before:
        process = costs.processes[group.first_process]
        path = process.config_path or f"stages.{process.name}"
        if group.first_process not in groups_after:
            overrides.append(f"{path}.fuse=true")
            if group.workers != 1:
                overrides.append(f"{path}.workers=null")
            if process.has_own_threads:
                overrides.append(f"{path}.threads=null")
        elif groups_after[group.first_process].workers != group.workers:
            overrides.append(f"{path}.workers={groups_after[group.first_process].workers}")
    return tuple(overrides)
