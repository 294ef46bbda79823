"""Chooses `workers: auto` and `fuse: auto` from a probe, and forecasts a pipeline for `stagepipe plan`.

The cache folder keeps the measured costs for later runs of the same config and code.

Runs in the caller's process. It imports code that only a run with `auto` needs where it uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from stagepipe import forecast
from stagepipe.core import ReadOnceError
from stagepipe.machine import CpuLoadMeter, compute_free_cpus, detect_machine, read_free_memory_bytes
from stagepipe.plan import Plan, WorkerStart, count_slots_that_fit, lower_sinks, set_sink_workers, split_source
from stagepipe.runtime import launch_fork_server
from stagepipe.spec import PipelineSpec, SourceSpec, StageSpec, WorkerRange, get_capabilities

if TYPE_CHECKING:
    from stagepipe.engine.cost_cache import KeptCosts

PlanFactory = Callable[[PipelineSpec], Plan]
"""Makes the plan of a spec for this machine."""

StageT = TypeVar("StageT", StageSpec, SourceSpec)

_LOAD_SAMPLE_S = 0.1
"""Time to measure the load of other programs without a probe: ten ticks of the kernel's counters."""


@dataclass(frozen=True)
class AutoWorkersResult:
    """A spec without `auto`, and one line for each stage that had it.

    `is_from_cache` means that an earlier run measured the costs; the last line says when.
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

    The costs come from a run or `stagepipe plan` of the last day, or else from a probe. With `feeds_sinks`, the sinks
    with workers run, share the CPUs, and may be `auto` too. With `must_measure`, a probe always runs. Without hops,
    nothing is chosen. If the source can be read only once, each stage starts with one worker in its own process: a
    probe would take the run's first items. Raises RunError, like the run, if a stage fails in the probe.
    """
    choice = _LayoutChoice(spec, make_plan, feeds_sinks=feeds_sinks)
    if not choice.auto_stages or not has_hops:
        return AutoWorkersResult(_start_auto(spec, {}, {}))
    if not must_measure and all(_is_left_to_engine(spec, stage) for stage in choice.auto_stages):
        return choice.start_with_least()
    from stagepipe.engine.cost_cache import CostCache

    plan = choice.plan
    cache = CostCache(choice.lowered, plan)
    kept = None if must_measure else cache.load()
    if kept is not None:
        return _use_kept_costs(choice, kept)
    from stagepipe.engine.probe import ProbeLength, run_probe

    try:
        probe = run_probe(plan, ProbeLength.BRIEF)
    except ReadOnceError:
        return choice.start_with_least("the source can be read only once, so it cannot be probed")
    missing_items = forecast.find_missing_items(probe.record)
    if missing_items:
        return choice.start_with_least(missing_items)
    sinks = forecast.compute_sink_costs(plan, probe.part_samples)
    costs = forecast.compute_costs(plan, probe.record, probe.results_by_process, probe.sink_ns or 0.0, sinks)
    cache.save(costs)
    return choice.choose(costs, probe.other_cpus)


def _is_left_to_engine(spec: PipelineSpec, stage: StageSpec) -> bool:
    """Return whether the engine takes the stage's range of workers itself, so no costs are needed."""
    is_range = stage.worker_bounds is not None and stage.fuse != "auto"
    return is_range and get_capabilities(spec.engine).takes_worker_ranges


def _use_kept_costs(choice: _LayoutChoice, kept: KeptCosts) -> AutoWorkersResult:
    """Choose the layout again from kept costs, because the load of other programs may have changed."""
    launch_fork_server(choice.spec)  # it imports modules during the sleep
    meter = CpuLoadMeter()
    time.sleep(_LOAD_SAMPLE_S)
    result = choice.choose(forecast.add_layout_rules(kept.costs, choice.plan), meter.measure_other_cpus())
    measured_at = time.strftime("%H:%M", time.localtime(kept.measured_at_s))
    note = f"auto: from the costs measured at {measured_at}; `stagepipe plan` measures them again"
    return replace(result, auto_workers=(*result.auto_workers, note), is_from_cache=True)


class _LayoutChoice:
    """The `auto` settings of a spec, and their choice. `lowered` and `plan` include the stages of source and sinks."""

    def __init__(self, spec: PipelineSpec, make_plan: PlanFactory, *, feeds_sinks: bool) -> None:
        self.spec: Final = spec
        self.lowered: Final = split_source(lower_sinks(spec) if feeds_sinks else spec)
        self.auto_stages: Final = [stage for stage in self.lowered.stages if _is_auto(stage)]
        self._make_plan = make_plan
        self._feeds_sinks = feeds_sinks

    @cached_property
    def plan(self) -> Plan:
        """The plan before the choice: the fewest workers, and no fusion for `fuse: auto`."""
        return self._make_plan(self.lowered)

    def choose(self, costs: forecast.PipelineCosts, other_cpus: float) -> AutoWorkersResult:
        """Choose by measured costs, within the CPUs that other programs leave free; they use `other_cpus` CPUs."""
        budget = make_budget(self.plan, other_cpus)
        layout = forecast.choose_layout(costs, _make_choices(self.lowered, self.plan, costs), budget)
        spec, bounds = self._apply(layout, costs, budget)
        names = {stage.name for stage in self.auto_stages}
        return AutoWorkersResult(spec, tuple(forecast.explain_layout(costs, layout, names, budget, bounds)))

    def start_with_least(self, reason: str = "") -> AutoWorkersResult:
        """Start with the fewest workers, without measurement. `reason` explains it; without one there are no lines."""
        costs = forecast.make_unmeasured_costs(self.plan)
        layout = forecast.make_layout(tuple(process.workers for process in self.plan.processes))
        spec, bounds = self._apply(layout, costs, make_budget(self.plan, other_cpus=0.0))
        workers = {process.name: process.workers for process in self.plan.processes}
        lines = (
            f"{stage.name}: {forecast.describe_auto_workers(workers[stage.name], bounds.get(stage.name))}: {reason}"
            for stage in self.auto_stages
        )
        return AutoWorkersResult(spec, tuple(lines) if reason else ())

    def _apply(
        self, layout: forecast.ProcessLayout, costs: forecast.PipelineCosts, budget: forecast.ResourceBudget
    ) -> tuple[PipelineSpec, dict[str, WorkerRange]]:
        """Write the layout into the spec. Return it, and the bounds of processes with a variable number of workers."""
        bounds = {name: most for name, most in self._find_bounds(layout, costs, budget) if most.minimum < most.maximum}
        spec = _apply_layout(self.spec, layout, costs, bounds)
        if bounds and not get_capabilities(spec.engine).takes_worker_ranges:
            most_slots = count_slots_that_fit(self._make_plan(lower_sinks(spec) if self._feeds_sinks else spec))
            starts = {costs.processes[group.first_process].name: group.workers for group in layout}
            bounds = {
                name: WorkerRange(each.minimum, max(min(each.maximum, most_slots), starts[name]))
                for name, each in bounds.items()
            }
            bounds = {name: each for name, each in bounds.items() if each.minimum < each.maximum}
            spec = _apply_layout(self.spec, layout, costs, bounds)
        return spec, bounds

    def _find_bounds(
        self, layout: forecast.ProcessLayout, costs: forecast.PipelineCosts, budget: forecast.ResourceBudget
    ) -> Iterator[tuple[str, WorkerRange]]:
        """Yield the bounds for the workers of each process: the range in the config, or else the machine's capacity.

        An engine that takes ranges itself gets a fixed number for a plain `auto`, chosen by the costs of this machine.
        """
        stages = {stage.name: stage for stage in self.auto_stages if stage.workers == "auto"}
        for group in layout:
            name = costs.processes[group.first_process].name
            if name not in stages:
                continue
            if (given := stages[name].worker_bounds) is not None:
                yield name, given
            elif not get_capabilities(self.spec.engine).takes_worker_ranges:
                yield name, WorkerRange(1, forecast.count_max_workers(group, costs, budget))


def forecast_pipeline(
    auto_workers_result: AutoWorkersResult, make_plan: PlanFactory, *, run_sink: bool = False
) -> forecast.Forecast:
    """Forecast a pipeline, with its sinks, from a probe. `run_sink` also runs sinks that have no temporary folder.

    Raises RunError if a stage fails in the probe, and ReadOnceError if the source can be read only once.
    """
    from stagepipe.engine.probe import run_probe

    plan = make_plan(lower_sinks(auto_workers_result.spec))
    probe = run_probe(plan, runs_all_sinks=run_sink)
    budget = make_budget(plan, probe.other_cpus)
    return forecast.build_forecast(plan, probe, detect_machine(), budget, auto_workers_result.auto_workers)


def make_budget(plan: Plan, other_cpus: float) -> forecast.ResourceBudget:
    """Return the CPUs and memory that the run may use, if other programs use `other_cpus` CPUs."""
    budget = forecast.ResourceBudget.of_machine(detect_machine(), plan.memory_bytes)
    return replace(
        budget,
        cpus=forecast.compute_expected_cpus(compute_free_cpus(other_cpus), budget.machine_cpus),
        memory_bytes=min(budget.memory_bytes, read_free_memory_bytes()),
    )


def _is_auto(stage: StageSpec) -> bool:
    return stage.workers == "auto" or stage.fuse == "auto"


def _make_choices(spec: PipelineSpec, plan: Plan, costs: forecast.PipelineCosts) -> list[forecast.ProcessChoice]:
    """Return the open choices. A process that the probe did not reach keeps its number of workers and is not fused."""
    stages = {stage.name: stage for stage in spec.stages}
    choices = [forecast.ProcessChoice(workers=1)]
    for process, (previous, cost) in zip(plan.processes[1:], pairwise(costs.processes), strict=True):
        stage = stages[process.name]
        is_open = stage.workers == "auto" and cost.is_measured
        may_fuse = stage.fuse == "auto" and cost.is_measured and previous.is_measured
        choices.append(forecast.ProcessChoice(stage.worker_bounds if is_open else process.workers, may_fuse))
    return choices


def _apply_layout(
    spec: PipelineSpec,
    layout: forecast.ProcessLayout,
    costs: forecast.PipelineCosts,
    bounds: Mapping[str, WorkerRange],
) -> PipelineSpec:
    """Write the layout into the spec. `bounds` are the bounds of workers, by process name."""
    firsts = [(costs.processes[group.first_process], group.workers) for group in layout]
    starts = {first.name: WorkerStart(workers, bounds.get(first.name)) for first, workers in firsts}
    return _start_auto(spec, starts, {first.config_path: starts[first.name] for first, _ in firsts})


def _start_auto(
    spec: PipelineSpec, starts: Mapping[str, WorkerStart], starts_by_path: Mapping[str, WorkerStart]
) -> PipelineSpec:
    """Replace each `auto`. A stage that is not the first in a process is fused, without own `workers` and `threads`.

    Without `starts`, each stage has one worker. `starts_by_path` has the workers of sinks, by config path.
    """

    def apply(stage: StageT) -> StageT:
        if not _is_auto(stage):
            return stage
        if starts and stage.name not in starts:
            return replace(stage, workers=1, worker_bounds=None, threads=None, fuse=True)
        return replace(starts.get(stage.name, WorkerStart()).apply(stage), fuse=stage.fuse is True)

    stages = tuple(map(apply, spec.stages))
    return set_sink_workers(replace(spec, source=apply(spec.source), stages=stages), starts_by_path)
