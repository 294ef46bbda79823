"""How many workers to try where a stage is the limit: as many as CPUs are free, or as its waiting allows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stagepipe.core import format_percent
from stagepipe.report.advice.config_advice import (
    MIN_WINDOW_PER_WORKER,
    ConfigAdvice,
    count_workers,
    find_config_path,
    is_writer,
)
from stagepipe.report.record import RunRecord, StageRecord
from stagepipe.report.utilization import ProcessLoad, compute_cpus_used, wants_cpu

_MAX_WORKER_FACTOR = 4
"""Maximum factor for the number of workers in one step: the measurement says little about larger changes."""

_MAX_WORKER_FACTOR_ON_FULL_MACHINE = 2
"""The same for workers that mostly wait, while other processes use the CPUs."""

_MIN_CPUS_PER_WORKER = 0.05
"""CPUs that a worker counts for at least, even if it only waits (for a network, for a disk)."""

_MIN_FREE_CPU_SHARE = 0.75
"""Share of a worker's CPU use (at most one CPU) that must be free to make one more worker worthwhile."""

_MAX_CPU_WAIT_SHARE = 0.2
"""Share of their time that workers may wait for a CPU before more of them only take it from each other."""

_MIN_REPORTED_OTHER_CPUS = 0.1
"""A smaller load of other programs is not mentioned."""


_MIN_PARTS = 8
"""Parts of a sink from which more workers have something to write."""


def can_have_workers(load: ProcessLoad, record: RunRecord) -> bool:
    """Whether a process may run in several workers: it is not the consumer, the source or an order point.

    Nor does it keep state: several workers would have several states, and other items.
    """
    if not load.member_stages or load.member_stages[0] is record.stages[0]:
        return False
    return not any(stage.is_stateful or stage.name in record.order_point_names for stage in load.member_stages)


def advise_on_stage(
    limiting_process: ProcessLoad, second_most_used: ProcessLoad | None, record: RunRecord
) -> ConfigAdvice:
    """Advise on a stage that is the limit while CPUs are free: more workers, unless it must run in one."""
    next_utilization = second_most_used.utilization if second_most_used is not None else 0.0
    if can_have_workers(limiting_process, record):
        parts = limiting_process.member_stages[0].items
        if is_writer(limiting_process.name, record) and parts < _MIN_PARTS:
            text = (
                f"{limiting_process.name} wrote {parts} part{'' if parts == 1 else 's'}, and a part is written by one "
                "worker. Set `part_items` of the sink to less, so that more workers have parts to write."
            )
            return ConfigAdvice("", text)
        return advise_on_stages([limiting_process], next_utilization, record)
    separable = _find_separable_stage(limiting_process, record)
    if separable is not None:
        return _advise_own_process(separable, limiting_process, next_utilization, record)
    has_state = any(stage.is_stateful for stage in limiting_process.member_stages)
    reason, remedy = (
        ("keeps state", "make it cheaper")
        if has_state
        else ("keeps the order", "send it less data: smaller arrays, uint8 instead of float32")
    )
    text = (
        f"No config change will help: {limiting_process.costliest_stage} {reason} and runs in one worker. "
        f"Move work to the stages before it, or {remedy}."
    )
    return ConfigAdvice("", text)


def _find_separable_stage(load: ProcessLoad, record: RunRecord) -> StageRecord | None:
    """The fused stage to run in a process of its own, with those behind it: the costliest, or else the first one."""
    fused = load.member_stages[1:]
    if not fused or fused[-1].name in record.order_point_names:
        return None
    return load.costliest_member if load.costliest_member in fused else fused[0]


def _advise_own_process(
    stage: StageRecord, load: ProcessLoad, next_utilization: float, record: RunRecord
) -> ConfigAdvice:
    """Advise a process of its own for a fused stage, with several workers if it takes most of the time."""
    path = find_config_path(stage.name, record)
    moved = load.member_stages[load.member_stages.index(stage) :]
    moved_share = _sum_run_ns(moved) / max(_sum_run_ns(load.member_stages), 1)
    moved_load = replace(load, work_ns=int(load.work_ns * moved_share))
    next_utilization = max(next_utilization, load.utilization * (1 - moved_share))
    free_cpus = max(record.cpus - compute_cpus_used(record) - record.other_cpus + record.yielding_cpus, 0.0)
    may_have_workers = not any(each.is_stateful or each.name in record.order_point_names for each in moved)
    workers = 1
    if (
        may_have_workers
        and moved_load.utilization > next_utilization
        and not _explain_full_machine(load, free_cpus, f"{free_cpus:.1f} CPUs are free")
    ):
        workers = _choose_workers(moved_load, next_utilization, free_cpus)
    text = f"Run {stage.name} in its own process: {load.name} runs in one worker."
    if workers == 1:
        return ConfigAdvice(f"{path}.fuse=false", text)
    text += f" Give it {workers} workers."
    return ConfigAdvice(f"{path}.fuse=false {path}.workers={workers}", text)


def advise_on_stages(loads: Sequence[ProcessLoad], next_utilization: float, record: RunRecord) -> ConfigAdvice:
    """Advise enough workers to bring these processes level with the next one, as far as CPUs are free."""
    other_cpus = record.other_cpus - record.yielding_cpus
    free_cpus = max(record.cpus - compute_cpus_used(record) - other_cpus, 0.0)
    free_text = f"{free_cpus:.1f} of {record.cpus} CPUs are free"
    if other_cpus >= _MIN_REPORTED_OTHER_CPUS:
        free_text += f" (other programs use {other_cpus:.1f})"
    fixes, clauses = [], []
    left_cpus = free_cpus
    added_workers = 0
    for load in loads:
        refusal = _explain_full_machine(load, left_cpus, free_text)
        if refusal:
            return ConfigAdvice("", refusal)
        workers = _choose_workers(load, next_utilization, left_cpus)
        added_workers += workers - load.workers
        left_cpus -= (workers - load.workers) * _compute_wanted_cpus(load)
        fixes.append(f"{find_config_path(load.name, record)}.workers={workers}")
        clauses.append(f"{_describe_process(load)} {workers} workers instead of {load.workers}")
    reason = "each waits for most of its time" if not any(map(wants_cpu, loads)) else free_text
    text = f"Give {' and '.join(clauses)}: {reason}."
    window = MIN_WINDOW_PER_WORKER * (count_workers(record) + added_workers)
    if record.is_window_fixed and window > record.window_items:
        fixes.append(f"window={window}")
        text += f" They need a window of {window} items."
    return ConfigAdvice(" ".join(fixes), text)


def _describe_process(load: ProcessLoad) -> str:
    """Return the name of a process; with the stage that takes its time, if that is fused into it."""
    costliest = load.costliest_stage
    return load.name if costliest == load.name else f"{load.name}, in whose process {costliest} runs,"


def _sum_run_ns(stages: Sequence[StageRecord]) -> int:
    return sum(stage.run_histogram.sum_ns for stage in stages)


def _explain_full_machine(load: ProcessLoad, free_cpus: float, free_text: str) -> str:
    """Return why no more workers of a process will help, because the CPUs are in use; "" if they may."""
    if not wants_cpu(load):
        return ""
    change = f"Make {load.costliest_stage} cheaper, or use more CPUs."
    if load.cpu_wait_share >= _MAX_CPU_WAIT_SHARE:
        return (
            f"No config change will help: the workers of {load.name} waited for a CPU "
            f"{format_percent(load.cpu_wait_share)} of their time. {change}"
        )
    if free_cpus < _MIN_FREE_CPU_SHARE * min(_compute_wanted_cpus(load), 1.0):
        return f"No config change will help: only {free_text}. {change}"
    return ""


def _choose_workers(load: ProcessLoad, next_utilization: float, free_cpus: float) -> int:
    """At least one more; enough to bring the process level with the next, as far as the CPUs go."""
    utilization_ratio = load.utilization / max(next_utilization, 1 / _MAX_WORKER_FACTOR)
    balanced_workers = math.ceil(load.workers * min(utilization_ratio, _MAX_WORKER_FACTOR))
    wanted_cpus = _compute_wanted_cpus(load)
    affordable_workers = load.workers + int(free_cpus / wanted_cpus)
    if not wants_cpu(load) and load.cpu_wait_share < _MAX_CPU_WAIT_SHARE:
        affordable_workers = max(affordable_workers, _MAX_WORKER_FACTOR_ON_FULL_MACHINE * load.workers)
    return max(load.workers + 1, min(balanced_workers, affordable_workers))


def _compute_wanted_cpus(load: ProcessLoad) -> float:
    """The CPUs that one worker would use if it never had to wait for one."""
    if not load.cpu_ns:
        return 1.0
    return max((load.cpu_ns + load.cpu_wait_ns) / max(load.active_ns, 1), _MIN_CPUS_PER_WORKER)
