"""Finds hops whose mode the config forces although `auto` would carry their items at less cost.

Pure: costs in, advice and the costs with it out. Runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stagepipe.core import format_ns, join_names
from stagepipe.costs import negotiate
from stagepipe.forecast.advice import MIN_GAIN_RATIO
from stagepipe.forecast.budget import ResourceBudget
from stagepipe.forecast.cost_values import HopCost, PipelineCosts
from stagepipe.forecast.costs import compute_hop_cost
from stagepipe.forecast.layout_rules import find_unfusable_reason
from stagepipe.forecast.model import HopForecast, MessageCost, PlanAdvice
from stagepipe.forecast.payload import estimate_payload
from stagepipe.forecast.throughput import make_layout, predict_throughput
from stagepipe.plan import HopPlan, Plan, ProbeResult
from stagepipe.report import RunRecord
from stagepipe.transport import PIPE, SHARED_MEMORY

_MIN_RATIO_WITHOUT_DECIMALS = 10


@dataclass(frozen=True)
class ModeAdvice:
    """The step to take, if one pays, and the costs after it, from which further advice starts."""

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
    """Advise `auto` for the forced modes that cost more, if that is predicted to gain a tenth."""
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
    """Say for each hop with a forced mode what that costs, and what the other would cost."""
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
    """The hop as it would be if the config did not force its mode."""
    hop = plan.hops[index]
    receivers = plan.processes[index + 1].workers if index + 1 < len(plan.processes) else 1
    return replace(hop, rule=negotiate("auto", None, (plan.processes[index].workers, receivers), plan.curves))


def _replace_hops(plan: Plan, costs: PipelineCosts, costs_by_hop: Mapping[int, HopCost]) -> PipelineCosts:
    """The costs with these hops, whose stages may then be fused."""
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
    """The override that frees a hop: in the stage after it, or else in the whole config."""
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
