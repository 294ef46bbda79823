"""Builds the forecast from a plan and its probe: stages, hops with their pieces, memory and advice.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagepipe.forecast import model
from stagepipe.forecast.advice import ResourceBudget, advise, choose_workers, describe_bottleneck, estimate_fusions
from stagepipe.forecast.costs import PipelineCosts, compute_costs, compute_run_ns, get_pickling_cost
from stagepipe.forecast.payload import estimate_payload
from stagepipe.forecast.throughput import make_layout, predict_throughput
from stagepipe.machine import Machine
from stagepipe.plan import HopPlan, Plan, ProbeResult
from stagepipe.report import HopRecord, RunRecord

MIN_PROBED_ITEMS = 4
"""Fewer items predict nothing: the first is left out, and the others may vary."""

TOO_FEW_ITEMS_REASON = "the source yields too few items for a forecast"

_NO_ITEM_REASON = "the probe sent no item over this hop"


def build_forecast(
    plan: Plan,
    record: RunRecord,
    probe_results: Mapping[str, ProbeResult],
    machine: Machine,
    auto_workers: tuple[str, ...] = (),
) -> model.Forecast:
    """Build the forecast of `plan` from the `record` of its probe and the probe's samples, by process name."""
    costs = compute_costs(plan, record, probe_results)
    workers = tuple(process.workers for process in plan.processes)
    budget = ResourceBudget(machine, plan.memory_bytes)
    current = predict_throughput(make_layout(workers), costs, machine)
    is_probed = record.items_in >= MIN_PROBED_ITEMS
    return model.Forecast(
        name=plan.name,
        config_sha256=plan.config_sha256,
        machine=model.MachineSummary(machine.cpus, machine.memory_bytes),
        items_probed=record.items_in,
        stages=_build_stages(plan, record, costs, budget),
        hops=_build_hops(plan, record, probe_results),
        memory=model.MemoryForecast(current.memory_bytes, plan.memory_bytes),
        items_per_s=current.items_per_s if is_probed else 0.0,
        limited_by=current.limited_by if is_probed else "",
        bottleneck=describe_bottleneck(costs, workers, budget) if is_probed else TOO_FEW_ITEMS_REASON,
        fusions=estimate_fusions(costs, workers, budget) if is_probed else (),
        advice=advise(costs, workers, budget) if is_probed else (),
        auto_workers=auto_workers,
    )


def _build_stages(
    plan: Plan, record: RunRecord, costs: PipelineCosts, budget: ResourceBudget
) -> tuple[model.StageForecast, ...]:
    indices = range(len(plan.processes))
    suggested = choose_workers(costs, tuple(1 for _ in indices), indices, budget)
    records = {stage.name: stage for stage in record.stages}
    items = max(record.items_in, 1)
    stages = []
    for process, cost, suggested_workers in zip(plan.processes, costs.processes, suggested, strict=True):
        for stage in process.stages:
            is_first = stage is process.stages[0]
            stage_record = records[stage.name]
            stages.append(
                model.StageForecast(
                    name=stage.name,
                    uses=stage.target.label,
                    process=process.name,
                    workers=process.workers,
                    suggested_workers=suggested_workers,
                    run_ns=int(compute_run_ns(stage_record, process) * cost.scheduled_fraction),
                    items_per_source_item=round(stage_record.items / items, 4),
                    cpu_ns=int(cost.cpu_ns) if is_first else 0,
                    memory_bytes=cost.memory_bytes if is_first else 0,
                )
            )
    return tuple(stages)


def _build_hops(
    plan: Plan, record: RunRecord, probe_results: Mapping[str, ProbeResult]
) -> tuple[model.HopForecast, ...]:
    records = {hop.source: hop for hop in record.hops}
    items = max(record.items_in, 1)
    hops = []
    for process, hop in zip(plan.processes, plan.hops, strict=True):
        for before, after in zip(process.stages, process.stages[1:], strict=False):
            hops.append(
                model.HopForecast(
                    source=before.name, target=after.name, mode="local", threshold_bytes=0, reason="fused: a call"
                )
            )
        last = process.stages[-1].name
        hops.append(_build_hop(plan, hop, records[last], probe_results.get(process.name, ProbeResult()), items))
    return tuple(hops)


def _build_hop(plan: Plan, hop: HopPlan, record: HopRecord, probe_result: ProbeResult, items: int) -> model.HopForecast:
    threshold = hop.threshold_bytes if hop.mode == "auto" else 0
    payload = estimate_payload(hop, probe_result, plan.curves)
    if payload is None:
        return model.HopForecast(
            source=record.source,
            target=hop.target,
            mode=hop.mode,
            threshold_bytes=threshold,
            reason=f"{hop.reason}; {_NO_ITEM_REASON}",
        )
    pickling_ns = int(get_pickling_cost(record).total_ns)
    decision = payload.decision
    return model.HopForecast(
        source=record.source,
        target=hop.target,
        mode=hop.mode,
        threshold_bytes=threshold,
        reason=decision.reason,
        messages_per_source_item=round(record.messages.total / items, 4),
        pickle_bytes=payload.pickle_bytes,
        pickle_mode=payload.pickle_mode,
        pieces=payload.pieces,
        cost=model.MessageCost(
            as_sent_ns=pickling_ns + decision.cost_ns,
            pipe_ns=pickling_ns + decision.pipe_ns,
            shared_memory_ns=pickling_ns + decision.shared_memory_ns,
            pickling_ns=pickling_ns,
        ),
    )
