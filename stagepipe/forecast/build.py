"""Builds the forecast from a plan and its probe: stages, hops with their pieces, memory and advice.

Pure; runs in the caller's process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from stagepipe.forecast import model
from stagepipe.forecast.advice import advise, advise_modes, describe_bottleneck, describe_forced_modes, estimate_fusions
from stagepipe.forecast.cost_values import PipelineCosts, ResourceBudget
from stagepipe.forecast.costs import (
    ItemFlow,
    PartSample,
    SinkCost,
    compute_costs,
    compute_item_flow,
    compute_run_ns,
    compute_sink_costs,
    describe_late_stages,
    describe_unseen,
    drop_stages,
    find_missing_items,
    find_unseen_stages,
    get_pickling_cost,
)
from stagepipe.forecast.layout import ProcessChoice, choose_layout, make_layout, predict_throughput
from stagepipe.forecast.payload import estimate_payload
from stagepipe.machine import Machine
from stagepipe.plan import SINK_NAME, HopPlan, Plan, ProbeResult, name_sink
from stagepipe.report import CONSUMER, HopRecord, RunRecord
from stagepipe.spec import format_condition

_NO_ITEM_REASON = "the probe sent no item over this hop"
_NO_SINK_REASON = "the sink did not run, because its output would remain; `plan --run-sink` runs it"


@dataclass(frozen=True, kw_only=True)
class ProbeFigures:
    """The measurements of a probe.

    `results_by_process` describes the items that each process sent. `sink_ns` is the time in sinks of the calling
    process per arriving item: None if they did not run, 0 if there are none. For `sink_waiting_ns` of it they use no
    CPU. `part_samples` are the parts of each sink with workers. Other processes used `other_cpus` CPUs meanwhile. The
    probe took `probed_s` after the start, without first calls. `items_before` has, by stage name, the number of items
    that the source had sent when the stage got its first one. It exceeds `usual_items` if earlier items were dropped or
    passed by.
    """

    record: RunRecord
    results_by_process: Mapping[str, ProbeResult]
    sink_ns: float | None = 0.0
    sink_waiting_ns: float = 0.0
    part_samples: tuple[tuple[PartSample, ...], ...] = ()
    other_cpus: float = 0.0
    probed_s: float = 0.0
    items_before: Mapping[str, int] = field(default_factory=dict)
    usual_items: int = 0


def build_forecast(
    plan: Plan, probe: ProbeFigures, machine: Machine, budget: ResourceBudget, auto_workers: tuple[str, ...] = ()
) -> model.Forecast:
    """Build the forecast of `plan` from its probe. `budget` is the part of `machine` that its workers may use."""
    unseen = find_unseen_stages(plan, probe.record)
    record = drop_stages(probe.record, unseen)
    sinks = compute_sink_costs(plan, probe.part_samples)
    late = {name: items for name, items in probe.items_before.items() if items > probe.usual_items}
    flow = compute_item_flow(plan, record, sinks, late)
    costs = compute_costs(
        plan,
        probe.record,
        probe.results_by_process,
        probe.sink_ns or 0.0,
        sinks,
        sink_waiting_ns=probe.sink_waiting_ns,
        items_before=late,
    )
    workers = tuple(process.workers for process in plan.processes)
    current = predict_throughput(make_layout(workers), costs, budget.cpus)
    missing_items = find_missing_items(record)
    gap = describe_unseen(probe.record, unseen, probe.probed_s) if unseen else ""
    if not gap and probe.sink_ns is None:
        gap, unseen = _NO_SINK_REASON, (SINK_NAME,)
    bottleneck = describe_bottleneck(costs, make_layout(workers), budget)
    modes = advise_modes(plan, record, probe.results_by_process, costs=costs, budget=budget)
    may_advise = not missing_items and unseen in ((), (SINK_NAME,))
    hops = _build_hops(plan, record, probe.results_by_process, flow)
    forecast = model.Forecast(
        name=plan.name,
        config_sha256=plan.config_sha256,
        machine=model.MachineSummary(
            machine.cpus, machine.memory_bytes, round(max(machine.cpus - probe.other_cpus, 0.0), 2), budget.memory_bytes
        ),
        items_probed=record.items_in,
        stages=_build_stages(plan, record, costs, budget, sinks=sinks, flow=flow),
        hops=hops,
        memory=model.MemoryForecast(current.memory_bytes, plan.memory_bytes),
        items_per_s=0.0 if missing_items or gap else current.items_per_s,
        max_items_per_s=current.items_per_s if gap and not missing_items else 0.0,
        unseen=unseen,
        limited_by="" if missing_items or gap else _name_limit(plan, current.limited_by),
        bottleneck=missing_items or (f"{gap}; in the measured part, {bottleneck}" if gap else bottleneck),
        fusions=estimate_fusions(costs, workers, budget) if may_advise else (),
        advice=modes.steps + advise(modes.costs, workers, budget) if may_advise else (),
        auto_workers=auto_workers,
        notes=describe_forced_modes(hops) + describe_late_stages(record, late),
    )
    return _fold_rows(forecast, {stage.name: stage.row for process in plan.processes for stage in process.stages})


def _fold_rows(forecast: model.Forecast, rows: Mapping[str, str]) -> model.Forecast:
    """Return the forecast with the rows of the config: an inner process counts in its row."""
    stages: dict[str, model.StageForecast] = {}
    for stage in forecast.stages:
        row = rows[stage.name]
        other = stages.get(row)
        main = stage if other is None or stage.name == row else other
        stages[row] = msgspec.structs.replace(
            main,
            name=row,
            process=rows[stage.process],
            **{
                key: getattr(stage, key) + (getattr(other, key) if other is not None else 0)
                for key in ("run_ns", "cpu_ns", "memory_bytes")
            },
        )
    hops = [
        msgspec.structs.replace(hop, source=rows[hop.source], target=rows.get(hop.target, hop.target))
        for hop in forecast.hops
        if rows[hop.source] != rows.get(hop.target, hop.target)
    ]
    fusions = [
        msgspec.structs.replace(
            fusion,
            stage=rows[fusion.stage],
            into="one process" if rows[fusion.stage] == rows[fusion.into] else rows[fusion.into],
        )
        for fusion in forecast.fusions
    ]
    inner = {name: row for name, row in rows.items() if name != row}
    return msgspec.structs.replace(
        forecast,
        stages=tuple(stages.values()),
        hops=tuple(hops),
        limited_by=rows.get(forecast.limited_by, forecast.limited_by),
        bottleneck=_name_rows(forecast.bottleneck, inner),
        fusions=tuple(fusions),
        advice=tuple(
            msgspec.structs.replace(advice, text=_name_rows(advice.text, inner)) for advice in forecast.advice
        ),
        auto_workers=tuple(_name_rows(line, inner) for line in forecast.auto_workers),
        notes=tuple(_name_rows(note, inner) for note in forecast.notes),
    )


def _name_rows(text: str, inner: Mapping[str, str]) -> str:
    """Replace the names of inner processes in a text by the rows of the config."""
    for name, row in inner.items():
        text = text.replace(name, row)
    text = re.sub(r"Fuse (\S+) into \1\b", r"Read \1 in one process", text)
    return re.sub(r"Fuse (\S+)(?:,| and) (.+?) into \1\b", r"Fuse \2 into \1", text)


def _name_limit(plan: Plan, limited_by: str) -> str:
    """Name the sink instead of the consumer, if one sink is the only work of the calling process."""
    item_sinks = [sink for sink in plan.sinks if not sink.writes_parts]
    return name_sink(item_sinks[0].target) if limited_by == CONSUMER and len(item_sinks) == 1 else limited_by


def _build_stages(
    plan: Plan,
    record: RunRecord,
    costs: PipelineCosts,
    budget: ResourceBudget,
    *,
    sinks: Mapping[str, SinkCost],
    flow: ItemFlow,
) -> tuple[model.StageForecast, ...]:
    choices = [ProcessChoice(workers=None, may_fuse=True)] * len(plan.processes)
    suggested = {group.first_process: group.workers for group in choose_layout(costs, choices, budget)}
    records = {stage.name: stage for stage in record.stages}
    items = max(record.items_in, 1)
    stages = []
    for index, (process, cost) in enumerate(zip(plan.processes, costs.processes, strict=True)):
        for stage in process.stages:
            is_first = stage is process.stages[0]
            stage_record = records[stage.name]
            sink = sinks.get(stage.name)  # counted in rows, not in parts
            run_ns = compute_run_ns(stage_record, process) if sink is None else sink.row_ns
            count = sink.rows * sink.items if sink else stage_record.items
            stages.append(
                model.StageForecast(
                    name=stage.name,
                    uses=stage.target.label,
                    process=process.name,
                    when="" if stage.when is None else format_condition(stage.when),
                    workers=process.workers,
                    suggested_workers=suggested.get(index, 0),
                    run_ns=int(run_ns * cost.scheduled_fraction),
                    items_per_source_item=round(count / items * flow.processes[index], 4),
                    cpu_ns=int(cost.cpu_ns) if is_first else 0,
                    memory_bytes=cost.memory_bytes if is_first else 0,
                )
            )
    return tuple(stages)


def _build_hops(
    plan: Plan, record: RunRecord, probe_results: Mapping[str, ProbeResult], flow: ItemFlow
) -> tuple[model.HopForecast, ...]:
    records = {hop.source: hop for hop in record.hops}
    hops = []
    for process, hop, factor in zip(plan.processes, plan.hops, flow.hops, strict=True):
        for before, after in zip(process.stages, process.stages[1:], strict=False):
            hops.append(
                model.HopForecast(
                    source=before.name, target=after.name, mode="local", threshold_bytes=0, reason="fused: a call"
                )
            )
        last = process.stages[-1].name
        messages_per_item = records[last].messages.total / max(record.items_in, 1) * factor
        hop_forecast = _build_hop(plan, hop, records[last], probe_results.get(process.name, ProbeResult()))
        hops.append(msgspec.structs.replace(hop_forecast, messages_per_source_item=round(messages_per_item, 4)))
    return tuple(hops)


def _build_hop(plan: Plan, hop: HopPlan, record: HopRecord, probe_result: ProbeResult) -> model.HopForecast:
    threshold = hop.rule.threshold_bytes if hop.mode == "auto" else 0
    payload = estimate_payload(hop, probe_result, plan.curves)
    if payload is None:
        return model.HopForecast(
            source=record.source,
            target=hop.target,
            mode=hop.mode,
            threshold_bytes=threshold,
            reason=f"{hop.rule.reason}; {_NO_ITEM_REASON}",
        )
    pickling_ns = int(get_pickling_cost(record).total_ns)
    decision = payload.decision
    return model.HopForecast(
        source=record.source,
        target=hop.target,
        mode=hop.mode,
        threshold_bytes=threshold,
        reason=decision.reason,
        pickle_bytes=payload.pickle_bytes,
        pickle_mode=decision.pickle_mode,
        pieces=payload.pieces,
        cost=model.MessageCost(
            as_sent_ns=pickling_ns + decision.cost_ns,
            pipe_ns=pickling_ns + decision.pipe_ns,
            shared_memory_ns=pickling_ns + decision.shared_memory_ns,
            pickling_ns=pickling_ns,
        ),
    )
