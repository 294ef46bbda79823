"""Suggests config changes, step by step, and gives a reason for each choice of a layout.

Each change is tried on the predicted throughput and suggested only if that grows by more than a tenth. Fusing saves a
hop, but the two stages no longer work at the same time. It pays if their process is not the bottleneck, or if the
machine is full. Hops with a forced mode are compared with `auto`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stagepipe.core import format_ns, format_percent, join_names
from stagepipe.costs import negotiate
from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ResourceBudget
from stagepipe.forecast.costs import compute_hop_cost, find_unfusable_reason
from stagepipe.forecast.layout import (
    MACHINE_LIMIT,
    FusedGroup,
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
from stagepipe.forecast.model import FusionForecast, HopForecast, MessageCost, PlanAdvice
from stagepipe.forecast.payload import estimate_payload
from stagepipe.plan import HopPlan, Plan, ProbeResult
from stagepipe.report import RunRecord
from stagepipe.spec import WorkerRange
from stagepipe.transport import PIPE, SHARED_MEMORY

MIN_GAIN_RATIO = 1.1
"""The minimum predicted gain of a suggested change. The noise of a run hides a smaller one."""

_MIN_FUSION_GAIN_RATIO = 1.01
"""The minimum predicted gain of each fused pair in a step."""

_MIN_TRIMMED_RATE_FRACTION = 0.97
"""Workers are removed while the rate stays above this share of the best one."""


def advise(costs: PipelineCosts, workers: tuple[int, ...], budget: ResourceBudget) -> tuple[PlanAdvice, ...]:
    """Suggest changes, each on top of the previous ones; none if no change is predicted to gain a tenth.

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

    The processes of sinks are left out, because a sink has no key `fuse`.
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
    """Add workers to the bottleneck, one at a time, as long as possible. Then remove workers that hardly help."""
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
    """The index of the group that limits the rate; None if the machine or the consumer limits it."""
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
    """Name the stages to fuse and the cost of the saved hops."""
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


_MIN_RATIO_WITHOUT_DECIMALS = 10


@dataclass(frozen=True)
class ModeAdvice:
    """The suggested step, if one pays, and the costs after it, on which further advice is based."""

    steps: tuple[PlanAdvice, ...]
    costs: PipelineCosts


def advise_modes(
    plan: Plan,
    record: RunRecord,
    probe_results: Mapping[str, ProbeResult],
    *,
    costs: PipelineCosts,
    budget: ResourceBudget,
) -> ModeAdvice:
    """Advise `auto` for forced modes that cost more, if that is predicted to gain a tenth."""
    costs_by_hop = {}
    for index, (process, hop) in enumerate(zip(plan.processes, plan.hops, strict=True)):
        payload = estimate_payload(
            _negotiate_freely(plan, index), probe_results.get(process.name, ProbeResult()), plan.curves
        )
        if hop.mode != "auto" and payload is not None:
            hop_record = next(each for each in record.hops if each.source == process.stages[-1].name)
            cost = compute_hop_cost(hop_record, payload.decision.cost_ns, max(record.items_in, 1))
            if cost.total_ns < costs.hops[index].total_ns:
                costs_by_hop[index] = cost
    improved = _replace_hops(plan, costs, costs_by_hop)
    layout = make_layout(tuple(process.workers for process in plan.processes))
    before, after = (predict_throughput(layout, each, budget.cpus).items_per_s for each in (costs, improved))
    if after < MIN_GAIN_RATIO * before:
        return ModeAdvice((), costs)
    overrides = tuple(dict.fromkeys(_get_override(plan, index) for index in costs_by_hop))
    return ModeAdvice((PlanAdvice(overrides, _describe(plan, costs, costs_by_hop), before, after),), improved)


def describe_forced_modes(hops: Sequence[HopForecast]) -> tuple[str, ...]:
    """Describe, for each hop with a forced mode, its cost and the cost of the other mode."""
    return tuple(
        _describe_forced_mode(hop, hop.cost)
        for hop in hops
        if hop.cost is not None and hop.mode in (PIPE, SHARED_MEMORY)
    )


def _describe_forced_mode(hop: HopForecast, cost: MessageCost) -> str:
    """Describe a forced mode.

    >>> _describe_forced_mode(HopForecast(source="a", target="b", mode="pipe", threshold_bytes=0, reason=""),
    ...                       MessageCost(41_000_000, 41_000_000, 1_000_000, 0))
    'a -> b: the forced pipe costs 41 ms per message, 41 times as much as shared memory would (1.0 ms)'
    """
    costs_ns = {PIPE: cost.pipe_ns, SHARED_MEMORY: cost.shared_memory_ns}
    forced_ns = costs_ns.pop(hop.mode)
    [(other, other_ns)] = costs_ns.items()
    ratio = forced_ns / max(other_ns, 1)
    if ratio >= 1:
        times = f"{ratio:.{0 if ratio >= _MIN_RATIO_WITHOUT_DECIMALS else 1}f} times as much as"
        comparison = f"{times} {_name_mode(other)} would ({format_ns(other_ns)})"
    else:
        comparison = f"{_name_mode(other)} would cost {format_ns(other_ns)}"
    forced = f"the forced {_name_mode(hop.mode)} costs {format_ns(forced_ns)} per message"
    return f"{hop.source} -> {hop.target}: {forced}, {comparison}"


def _name_mode(mode: str) -> str:
    return mode.replace("_", " ")


def _negotiate_freely(plan: Plan, index: int) -> HopPlan:
    """The hop as it would be without a forced mode."""
    hop = plan.hops[index]
    receivers = plan.processes[index + 1].slot_count if index + 1 < len(plan.processes) else 1
    return replace(hop, rule=negotiate("auto", None, (plan.processes[index].slot_count, receivers), plan.curves))


def _replace_hops(plan: Plan, costs: PipelineCosts, costs_by_hop: Mapping[int, HopCost]) -> PipelineCosts:
    """Copy the costs with these hops. Their stages may then become fusable."""
    free_hops = [
        _negotiate_freely(plan, index) if index in costs_by_hop else hop for index, hop in enumerate(plan.hops)
    ]
    free_plan = replace(plan, hops=tuple(free_hops))
    improved = costs.with_hops(tuple(costs_by_hop.get(index, hop) for index, hop in enumerate(costs.hops)))
    reasons = [
        find_unfusable_reason(process, plan.processes[index - 1] if index else None, free_plan)
        for index, process in enumerate(plan.processes)
    ]
    processes = [
        replace(process, unfusable_reason=reason) for process, reason in zip(improved.processes, reasons, strict=True)
    ]
    return replace(improved, processes=tuple(processes))


def _get_override(plan: Plan, index: int) -> str:
    """The override that frees a hop: in the stage after it, or otherwise in the whole config."""
    target = plan.processes[index + 1].first_stage if index + 1 < len(plan.processes) else None
    if target is None or target.transport == "auto":
        return "transport.mode=auto"
    return f"stages.{target.name}.transport=auto"


def _describe(plan: Plan, costs: PipelineCosts, costs_by_hop: Mapping[int, HopCost]) -> str:
    clauses = [
        f"into {plan.hops[index].target} ({format_ns(int(cost.total_ns))} per item instead of "
        f"{format_ns(int(costs.hops[index].total_ns))})"
        for index, cost in costs_by_hop.items()
    ]
    return f"Do not force the transport {join_names(clauses)}."


def explain_layout(
    costs: PipelineCosts,
    layout: ProcessLayout,
    names: Collection[str],
    budget: ResourceBudget,
    bounds: Mapping[str, WorkerRange],
) -> Iterator[str]:
    """Yield a line for each process in `names`, in pipeline order. Their workers move within `bounds`.

    >>> bounds = {"decode": WorkerRange(1, 8)}
    >>> list(explain_layout(costs, layout, {"decode", "crop"}, budget, bounds))  # doctest: +SKIP
    ['decode: 2 workers (auto, 1-8) with crop: 3.1 ms per item; the machine is full: ...',
     'crop: fused into decode (auto): it takes 80 µs per item, and a hop would cost 60 µs']
    """
    bottleneck = describe_bottleneck(costs, layout, budget)
    for group in layout:
        if get_group_name(group, costs) in names:
            yield f"{_describe_group(group, costs, bounds.get(get_group_name(group, costs)))}; {bottleneck}"
        for index in range(group.first_process + 1, group.last_process + 1):
            member = costs.processes[index]
            if member.name in names:
                yield (
                    f"{member.name}: fused into {get_group_name(group, costs)} (auto): it takes "
                    f"{format_ns(member.run_ns)} per item, and a hop would cost "
                    f"{format_ns(costs.hops[index - 1].total_ns + member.loop_ns)}"
                )


def describe_auto_workers(workers: int, bounds: WorkerRange | None) -> str:
    """Describe the resolved `workers: auto`.

    >>> describe_auto_workers(1, None), describe_auto_workers(2, WorkerRange(1, 8))
    ('1 worker (auto)', '2 workers (auto, 1-8)')
    """
    return f"{workers} worker{'' if workers == 1 else 's'} (auto{'' if bounds is None else f', {bounds}'})"


def _describe_group(group: FusedGroup, costs: PipelineCosts, bounds: WorkerRange | None) -> str:
    first, *others = [member.name for member in get_members(group, costs)]
    workers = describe_auto_workers(group.workers, bounds)
    if not costs.processes[group.first_process].is_measured:
        return f"{first}: {workers}: no item reached it in the probe"
    together = f" with {join_names(others)}" if others else ""
    return f"{first}: {workers}{together}: {format_ns(compute_work_ns(group, costs))} per item"
