"""Chooses `workers: auto` from a probe, and forecasts a pipeline for `stagepipe plan`. In the process of the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stagepipe.core import ReadOnceError, format_ns
from stagepipe.engine.probe import ProbeRecord, run_probe
from stagepipe.forecast import (
    MIN_PROBED_ITEMS,
    TOO_FEW_ITEMS_REASON,
    Forecast,
    PipelineCosts,
    ResourceBudget,
    build_forecast,
    choose_workers,
    compute_costs,
    compute_work_ns,
    describe_bottleneck,
    make_layout,
)
from stagepipe.machine import detect_machine
from stagepipe.plan import Plan
from stagepipe.spec import PipelineSpec

PlanFactory = Callable[[PipelineSpec], Plan]
"""Makes the plan of a spec for this machine."""


@dataclass(frozen=True)
class AutoWorkersResult:
    """A spec in which every `workers` is a number, one line for each choice, and the probe (None if none was run)."""

    spec: PipelineSpec
    auto_workers: tuple[str, ...] = ()
    probe_record: ProbeRecord | None = None


def resolve_auto_workers(spec: PipelineSpec, make_plan: PlanFactory, *, is_inline: bool) -> AutoWorkersResult:
    """Choose the workers of stages with `workers: auto` from a probe, within the machine's CPUs and memory.

    Inline it is 1, because there is one process. It is also 1 if the source can be read only once: a probe would take
    its first items from the run. Raises RunError, like the run, if a stage fails in the probe.
    """
    auto_stage_names = [stage.name for stage in spec.stages if stage.workers == "auto"]
    if not auto_stage_names:
        return AutoWorkersResult(spec)
    if is_inline:
        return AutoWorkersResult(_replace_workers(spec, dict.fromkeys(auto_stage_names, 1)))
    plan = make_plan(spec)
    try:
        probe_record = run_probe(plan)
    except ReadOnceError:
        return _use_one_worker(spec, auto_stage_names, "the source can be read only once, so it cannot be probed")
    if probe_record.run_record.items_in < MIN_PROBED_ITEMS:
        return _use_one_worker(spec, auto_stage_names, TOO_FEW_ITEMS_REASON)
    costs = compute_costs(plan, probe_record.run_record, probe_record.results_by_process)
    budget = ResourceBudget(detect_machine(), plan.memory_bytes)
    process_names = [process.name for process in plan.processes]
    planned_workers = tuple(process.workers for process in plan.processes)
    auto_indices = {process_names.index(name) for name in auto_stage_names}
    worker_counts = choose_workers(costs, planned_workers, auto_indices, budget)
    workers_by_name = dict(zip(process_names, worker_counts, strict=True))
    return AutoWorkersResult(
        _replace_workers(spec, {name: workers_by_name[name] for name in auto_stage_names}),
        tuple(_format_choice(process_names.index(name), costs, worker_counts, budget) for name in auto_stage_names),
        probe_record,
    )


def forecast_pipeline(auto_workers_result: AutoWorkersResult, make_plan: PlanFactory) -> Forecast:
    """Forecast a pipeline from a probe.

    Raises RunError if a stage fails in the probe, and ReadOnceError if the source can be read only once.
    """
    plan = make_plan(auto_workers_result.spec)
    probe_record = auto_workers_result.probe_record or run_probe(plan)
    return build_forecast(
        plan,
        probe_record.run_record,
        probe_record.results_by_process,
        detect_machine(),
        auto_workers_result.auto_workers,
    )


def _use_one_worker(spec: PipelineSpec, stage_names: list[str], reason: str) -> AutoWorkersResult:
    choices = tuple(f"{name}: 1 worker (auto): {reason}" for name in stage_names)
    return AutoWorkersResult(_replace_workers(spec, dict.fromkeys(stage_names, 1)), choices)


def _replace_workers(spec: PipelineSpec, workers_by_stage: dict[str, int]) -> PipelineSpec:
    stages = tuple(replace(stage, workers=workers_by_stage.get(stage.name, stage.workers)) for stage in spec.stages)
    return replace(spec, stages=stages)


def _format_choice(
    process_index: int, costs: PipelineCosts, worker_counts: tuple[int, ...], budget: ResourceBudget
) -> str:
    """Format one choice: `decode: 2 workers (auto): 3.9 ms per item; ` and what limits the pipeline then."""
    count = worker_counts[process_index]
    work_text = format_ns(compute_work_ns(make_layout(worker_counts)[process_index], costs))
    name = costs.processes[process_index].name
    bottleneck = describe_bottleneck(costs, worker_counts, budget)
    return f"{name}: {count} worker{'' if count == 1 else 's'} (auto): {work_text} per item; {bottleneck}"
