"""What a plan allows a layout to do with its processes: fuse them, give them workers. Pure."""

from __future__ import annotations

from dataclasses import astuple, replace

from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost
from stagepipe.plan import Plan, ProcessPlan, ProcessRole, StagePlan

_MAX_COST = 1e14
"""ns of an item, a day; bytes, 100 TB. A probe never finds so much."""


def add_layout_rules(costs: PipelineCosts, plan: Plan) -> PipelineCosts:
    """Copy the costs of `plan` with what it allows. That comes from the plan alone, also for costs from a file."""
    processes = []
    for index, (process, cost) in enumerate(zip(plan.processes, costs.processes, strict=True)):
        previous = plan.processes[index - 1] if index else None
        processes.append(
            replace(
                cost,
                is_single_worker=process.role is not ProcessRole.STAGE
                or any(stage.stateful for stage in process.stages),
                unfusable_reason=find_unfusable_reason(process, previous, plan),
                has_own_threads=process.first_stage.threads is not None,
                max_workers=_find_max_workers(process, plan),
                has_all_gpus=process.first_stage.device == "cuda",
                config_path=process.first_stage.config_path,
            )
        )
    return replace(costs, processes=tuple(processes))


def fits_plan(costs: PipelineCosts, plan: Plan) -> bool:
    """Whether costs from a file can be those of `plan`: of the same stages, none below zero, none absurd."""
    stages = [(process.name, process.stages[-1].name) for process in plan.processes]
    parts: list[ProcessCost | HopCost] = [*costs.processes, *costs.hops]
    values = [value for part in parts for value in astuple(part)]
    return (
        [(process.name, process.last_stage) for process in costs.processes] == stages
        and len(costs.hops) == len(costs.processes)
        and all(0 <= value < _MAX_COST for value in (costs.sink_ns, *values) if isinstance(value, int | float))
    )


def _find_max_workers(process: ProcessPlan, plan: Plan) -> int | None:
    """The most workers that a process may have; None without a limit.

    One for each of its CPUs, one for its GPU; for a sink, as many as have memory for their parts.
    """
    first = process.first_stage
    if first.device is not None and first.device.startswith("cuda:"):
        return 1
    limits = [None if first.cpus is None else len(first.cpus), plan.max_writers if first.sink_path else None]
    return min((limit for limit in limits if limit is not None), default=None)


def find_unfusable_reason(process: ProcessPlan, previous: ProcessPlan | None, plan: Plan) -> str:
    """Say why a process cannot be fused into the one before it; empty if it can.

    These are the config's rules for `fuse`, and reasons to keep apart what would not run or yield the same.
    """
    first = process.first_stage
    previous_threads = previous.first_stage.threads if previous else None
    mode = next((hop.mode for hop in plan.hops if hop.target == process.name), "auto")
    reasons = (
        (previous is None, "it is the source"),
        (process.role is ProcessRole.ORDER_POINT, "it restores the order"),
        (bool(first.sink_path), "it writes the shards"),
        (process.sends_chunks, "its items travel in chunks, which costs less than a call for each"),
        (first.batch is not None, "it takes lists (`batch`)"),
        (first.mutable, "it writes to its input (`mutable`)"),
        *_list_process_keys(first, "it"),
        *(_list_process_keys(previous.first_stage, previous.first_stage.name) if previous else ()),
        (first.stateful, "it keeps state (`stateful`)"),
        ((first.threads or 1) != (previous_threads or 1), "it sets `threads`"),
        (mode != "auto", "the mode of the hop before it is forced"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _list_process_keys(stage: StagePlan, subject: str) -> list[tuple[bool, str]]:
    """List the keys that all stages of a process would get from one of them: whether it sets each, and the reason."""
    return [
        (bool(stage.env), f"{subject} sets `env`"),
        (stage.cpus is not None, f"{subject} sets `cpus`"),
        (stage.device is not None, f"{subject} sets `device`"),
    ]
