"""Chooses `workers: auto` and `fuse: auto` from a probe, and forecasts a pipeline for `stagepipe plan`.

The cache folder keeps what a probe has measured, for later runs of the same config and code.

In the process of the caller. What a run without `auto` does not need is imported where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from stagepipe import forecast
from stagepipe.core import ReadOnceError
from stagepipe.machine import CpuLoadMeter, compute_free_cpus, detect_machine, read_free_memory_bytes
from stagepipe.plan import Plan, lower_sinks, set_sink_workers, split_source
from stagepipe.runtime import launch_fork_server
from stagepipe.spec import PipelineSpec, StageSpec

if TYPE_CHECKING:
    from stagepipe.engine.cost_cache import KeptCosts

PlanFactory = Callable[[PipelineSpec], Plan]
"""Makes the plan of a spec for this machine."""

StageT = TypeVar("StageT", bound=StageSpec)

_LOAD_SAMPLE_S = 0.1
"""Time over which the load of other programs is measured where no probe does: ten ticks of the kernel's counters."""


@dataclass(frozen=True)
class AutoWorkersResult:
    """A spec in which nothing is `auto`, and one line for each stage that was.

    `is_from_cache`: an earlier run has measured the costs; the last line says when.
    """

    spec: PipelineSpec
    auto_workers: tuple[str, ...] = ()
    is_from_cache: bool = False


def resolve_auto_workers(
    spec: PipelineSpec,
    make_plan: PlanFactory,
    *,
    has_hops: bool,
    feeds_sinks: bool = False,
    must_measure: bool = False,
) -> AutoWorkersResult:
    """Choose the layout of stages with `workers: auto` or `fuse: auto` by their costs, within the free CPUs and memory.

    The costs are those of an earlier run or `stagepipe plan` of the last day, or else from a probe. `feeds_sinks`: the
    sinks with workers run, share the CPUs, and may be `auto` too. `must_measure`: there is a probe in any case. Without
    hops, nothing is chosen. Each stage has one worker of its own if the source can be read only
    once: a probe would take its first items from the run. Raises RunError, like the run, if a stage fails in the probe.
    """
    lowered = split_source(lower_sinks(spec) if feeds_sinks else spec)
    auto_stages = [stage for stage in lowered.stages if _is_auto(stage)]
    if not auto_stages or not has_hops:
        return AutoWorkersResult(_set_one_worker(spec))
    from stagepipe.engine.cost_cache import CostCache

    plan = make_plan(lowered)
    cache = CostCache(lowered, plan)
    kept = None if must_measure else cache.load()
    if kept is not None:
        return _use_kept_costs(spec, lowered, plan, kept)
    from stagepipe.engine.probe import ProbeLength, run_probe

    try:
        probe = run_probe(plan, ProbeLength.BRIEF)
    except ReadOnceError:
        return _use_one_worker(spec, auto_stages, "the source can be read only once, so it cannot be probed")
    missing_items = forecast.find_missing_items(probe.record)
    if missing_items:
        return _use_one_worker(spec, auto_stages, missing_items)
    sinks = forecast.compute_sink_costs(plan, probe.part_samples)
    costs = forecast.compute_costs(plan, probe.record, probe.results_by_process, probe.sink_ns or 0.0, sinks)
    cache.save(costs)
    return _choose_layout(spec, lowered, plan, costs, probe.other_cpus)


def _use_kept_costs(spec: PipelineSpec, lowered: PipelineSpec, plan: Plan, kept: KeptCosts) -> AutoWorkersResult:
    """Choose the layout again, from kept costs: other programs may leave more or less of the machine now."""
    launch_fork_server(spec)  # it imports meanwhile
    meter = CpuLoadMeter()
    time.sleep(_LOAD_SAMPLE_S)
    costs = forecast.add_layout_rules(kept.costs, plan)
    result = _choose_layout(spec, lowered, plan, costs, meter.measure_other_cpus())
    measured_at = time.strftime("%H:%M", time.localtime(kept.measured_at_s))
    note = f"auto: by the costs that were measured at {measured_at}; `stagepipe plan` measures them again"
    return replace(result, auto_workers=(*result.auto_workers, note), is_from_cache=True)


def _choose_layout(
    spec: PipelineSpec, lowered: PipelineSpec, plan: Plan, costs: forecast.PipelineCosts, other_cpus: float
) -> AutoWorkersResult:
    """Choose the layout of `spec`; `lowered` has the stages of its source and sinks too, as `plan` has."""
    budget = make_budget(plan, other_cpus)
    layout = forecast.choose_layout(costs, _make_choices(lowered, plan, costs), budget)
    names = {stage.name for stage in lowered.stages if _is_auto(stage)}
    lines = forecast.explain_layout(costs, layout, names, budget)
    return AutoWorkersResult(_apply_layout(spec, layout, costs), tuple(lines))


def forecast_pipeline(
    auto_workers_result: AutoWorkersResult, make_plan: PlanFactory, *, run_sink: bool = False
) -> forecast.Forecast:
    """Forecast a pipeline, with its sinks, from a probe. `run_sink`: also with one that writes where the config says.

    Raises RunError if a stage fails in the probe, and ReadOnceError if the source can be read only once.
    """
    from stagepipe.engine.probe import run_probe

    plan = make_plan(lower_sinks(auto_workers_result.spec))
    probe = run_probe(plan, runs_all_sinks=run_sink)
    budget = make_budget(plan, probe.other_cpus)
    return forecast.build_forecast(plan, probe, detect_machine(), budget, auto_workers_result.auto_workers)


def make_budget(plan: Plan, other_cpus: float) -> forecast.ResourceBudget:
    """The CPUs and the memory that the run may use, beside the other processes, which use `other_cpus` CPUs."""
    machine = detect_machine()
    return forecast.ResourceBudget(
        cpus=forecast.compute_expected_cpus(compute_free_cpus(other_cpus), machine.cpus),
        machine_cpus=machine.cpus,
        memory_bytes=min(machine.memory_bytes, read_free_memory_bytes()),
        arena_bytes=plan.memory_bytes,
        gpus=len(machine.cuda_devices),
    )


def _is_auto(stage: StageSpec) -> bool:
    return stage.workers == "auto" or stage.fuse == "auto"


def _make_choices(spec: PipelineSpec, plan: Plan, costs: forecast.PipelineCosts) -> list[forecast.ProcessChoice]:
    """Return what is open; nothing is about a process that the probe did not reach: it keeps a process of its own."""
    stages = {stage.name: stage for stage in spec.stages}
    choices = [forecast.ProcessChoice(workers=1)]
    for process, (previous, cost) in zip(plan.processes[1:], pairwise(costs.processes), strict=True):
        stage = stages[process.name]
        workers = None if stage.workers == "auto" and cost.is_measured else process.workers
        may_fuse = stage.fuse == "auto" and cost.is_measured and previous.is_measured
        choices.append(forecast.ProcessChoice(workers, may_fuse))
    return choices


def _apply_layout(spec: PipelineSpec, layout: forecast.ProcessLayout, costs: forecast.PipelineCosts) -> PipelineSpec:
    """Write the layout into the spec. A fused stage has no `workers` and no `threads` of its own."""
    workers_by_name = {costs.processes[group.first_process].name: group.workers for group in layout}
    workers_by_path = {costs.processes[group.first_process].config_path: group.workers for group in layout}

    def apply(stage: StageT) -> StageT:
        if stage.fuse is True:
            return stage
        if stage.name in workers_by_name:
            return replace(stage, workers=workers_by_name[stage.name], fuse=False)
        return replace(stage, workers=1, threads=None, fuse=True)

    source = apply(spec.source) if spec.source.reading else spec.source
    return set_sink_workers(replace(spec, source=source, stages=tuple(map(apply, spec.stages))), workers_by_path)


def _use_one_worker(spec: PipelineSpec, stages: list[StageSpec], reason: str) -> AutoWorkersResult:
    lines = []
    for stage in stages:
        workers = 1 if stage.workers == "auto" else stage.workers
        lines.append(f"{stage.name}: {workers} worker{'' if workers == 1 else 's'} (auto): {reason}")
    return AutoWorkersResult(_set_one_worker(spec), tuple(lines))


def _set_one_worker(spec: PipelineSpec) -> PipelineSpec:
    """Replace each `auto`: one worker, not fused."""

    def apply(stage: StageT) -> StageT:
        return replace(stage, workers=1 if stage.workers == "auto" else stage.workers, fuse=stage.fuse is True)

    stages = tuple(apply(stage) if _is_auto(stage) else stage for stage in spec.stages)
    source = apply(spec.source) if _is_auto(spec.source) else spec.source
    return set_sink_workers(replace(spec, source=source, stages=stages), {})
