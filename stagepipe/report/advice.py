"""The one config change to try for each kind of limit, or the reason why no change will help. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagepipe.core import format_percent
from stagepipe.report.record import HopRecord, RunRecord
from stagepipe.report.utilization import CONSUMER, MIN_MULTITHREADED_CPU_RATIO, ProcessLoad, compute_cpus_used

_MIN_MODE_COST_RATIO = 1.1
"""A forced mode is worth changing if the other is predicted to be cheaper by more than the noise of the calibration."""

_MIN_RATIO_WITHOUT_DECIMALS = 10
"""Cost ratio from which decimals are not printed."""

_MAX_FUSED_TIME_RATIO = 0.95
"""Fusing must be predicted to save at least a twentieth of the time, because it removes a process."""

_MAX_WORKER_FACTOR = 4
"""Maximum factor for the number of workers in one step: the measurement says little about larger changes."""

_MIN_CPUS_PER_WORKER = 0.05
"""CPUs that a worker counts for at least, even if it only waits (for a network, for a disk)."""

_MIN_FREE_CPU_SHARE = 0.75
"""Share of a worker's CPU use (at most one CPU) that must be free to make one more worker worthwhile."""

_MAX_CPU_WAIT_SHARE = 0.2
"""Share of their time that workers may wait for a CPU before more of them only take it from each other."""

_MAX_CPU_SHARE_OF_WAITING = 0.2
"""A worker that uses less of a CPU mostly waits, for a network or a device: more help on a full machine too."""

_MIN_REPORTED_OTHER_CPUS = 0.1
"""A smaller load of other programs is not mentioned."""


@dataclass(frozen=True)
class ConfigAdvice:
    """`fix` is an override for the command line, or empty; `text` explains it, or says why no change will help."""

    fix: str
    text: str


def advise_on_stage(
    limiting_process: ProcessLoad, second_most_used: ProcessLoad | None, record: RunRecord
) -> ConfigAdvice:
    """Advise on a stage that is the limit while CPUs are free: more workers, unless it must run in one."""
    is_source = limiting_process.member_stages[0] is record.stages[0]
    order_point = next(
        (stage.name for stage in limiting_process.member_stages if stage.name in record.order_point_names), None
    )
    if is_source or order_point is not None:
        last_stage = limiting_process.member_stages[-1].name
        if len(limiting_process.member_stages) > 1 and last_stage not in record.order_point_names:
            text = f"Run {last_stage} in its own process: {limiting_process.name} runs in one worker."
            return ConfigAdvice(f"stages.{last_stage}.fuse=false", text)
        text = (
            f"No config change will help: {limiting_process.costliest_stage} keeps the order and runs in one worker. "
            "Move work to the stages before it, or send it less data: smaller arrays, uint8 instead of float32."
        )
        return ConfigAdvice("", text)
    return _advise_more_workers(limiting_process, second_most_used, record)


def advise_on_source(source_process: ProcessLoad) -> ConfigAdvice:
    """Advise on a source whose own function is the limit: it runs in one process."""
    text = (
        f"No config change will help: {source_process.name} runs in one process. "
        "Yield names or indices and load them in a stage, which can have several workers."
    )
    return ConfigAdvice("", text)


def advise_on_window(record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which no stage is busy and the source is blocked."""
    if record.window_items > 0:
        wider_window = 2 * record.window_items
        text = f"Allow {wider_window} items in flight instead of {record.window_items}."
        return ConfigAdvice(f"window={wider_window}", text)
    return ConfigAdvice("", "Set a larger `window`, or set `order` to `any` if the order does not matter.")


def advise_on_full_machine(costliest_process: ProcessLoad, record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which all CPUs are in use, most of them by `costliest_process`."""
    if (
        costliest_process.work_ns > 0
        and costliest_process.cpu_ns > MIN_MULTITHREADED_CPU_RATIO * costliest_process.work_ns
        and costliest_process.member_stages[0] is not record.stages[0]
    ):
        threads = costliest_process.cpu_ns / costliest_process.work_ns
        text = f"Limit each worker of {costliest_process.name} to one thread: it runs {threads:.1f} at a time."
        return ConfigAdvice(f"{_find_config_path(costliest_process.name, record)}.threads=1", text)
    text = f"No config change will help: make {costliest_process.costliest_stage} cheaper, or use more CPUs."
    return ConfigAdvice("", text)


def advise_on_hop(
    hop: HopRecord, limiting_process: ProcessLoad | None, record: RunRecord, loads: tuple[ProcessLoad, ...]
) -> ConfigAdvice:
    """Advise on a hop that is the limit, at `limiting_process` (None if the machine is full)."""
    is_to_sink = not _find_config_path(hop.target, record).startswith("stages.")  # it has neither key
    advice = None if is_to_sink else _advise_other_mode(hop) or _advise_fusion(hop, limiting_process, record, loads)
    if advice is not None:
        return advice
    can_add_workers = (
        limiting_process is not None
        and limiting_process.name != CONSUMER
        and limiting_process.member_stages[0] is not record.stages[0]
    )
    if (
        limiting_process is not None
        and can_add_workers
        and not any(stage.name in record.order_point_names for stage in limiting_process.member_stages)
    ):
        return _advise_more_workers(limiting_process, None, record)
    copy_histogram = hop.phase_histograms.get("copy_ns")
    if copy_histogram is not None and copy_histogram.sum_ns > hop.cost_histogram.sum_ns / 2:
        code_change = f"write the result of {hop.source} into `stagepipe.empty(...)` to avoid the copy"
    else:
        code_change = f"send less data from {hop.source}: smaller arrays, uint8 instead of float32"
    return ConfigAdvice("", f"No config change will help: {code_change}.")


def _advise_other_mode(hop: HopRecord) -> ConfigAdvice | None:
    """Advise the other mode if it is predicted to be cheaper than the one in use."""
    predicted_ns = {"pipe": hop.predicted.pipe_ns, "shared_memory": hop.predicted.shared_memory_ns}
    mode = hop.transport.mode
    if mode not in predicted_ns or not all(predicted_ns.values()):
        return None
    other_mode = "pipe" if mode == "shared_memory" else "shared_memory"
    cost_ratio = predicted_ns[mode] / predicted_ns[other_mode]
    if cost_ratio < _MIN_MODE_COST_RATIO:
        return None
    decimals = 1 if cost_ratio < _MIN_RATIO_WITHOUT_DECIMALS else 0
    ratio_text = f"{cost_ratio:.{decimals}f} times as much"
    text = f"Switch to {other_mode}: by this machine's calibration, {mode} costs {ratio_text}."
    return ConfigAdvice(f"stages.{hop.target}.transport={other_mode}", text.replace("_", " "))


def _advise_fusion(
    hop: HopRecord, limiting_process: ProcessLoad | None, record: RunRecord, loads: tuple[ProcessLoad, ...]
) -> ConfigAdvice | None:
    """Advise to fuse both ends of the hop if the fused process needs less time than the slower one needs now.

    The fused stage loses its own workers. The cost of its functions and of its other hops is therefore added to the
    workers of the stage before it; the hop between them and the loop of its own process fall away.
    """
    upstream = next((load for load in loads if any(stage.name == hop.source for stage in load.member_stages)), None)
    downstream = next((load for load in loads if load.member_stages and load.name == hop.target), None)
    if upstream is None or downstream is None or hop.target in record.order_point_names:
        return None
    other_hops_ns = downstream.total_hop_ns - downstream.sum_hop_ns(hop)
    fused_ns = upstream.work_ns - upstream.sum_hop_ns(hop) + downstream.run_ns + other_hops_ns
    current_ns = limiting_process.work_ns / limiting_process.workers if limiting_process is not None else record.wall_ns
    if fused_ns / upstream.workers > _MAX_FUSED_TIME_RATIO * current_ns:
        return None
    text = f"Run {hop.target} in the process of {hop.source}: the hop becomes a function call."
    return ConfigAdvice(f"stages.{hop.target}.fuse=true", text)


def _advise_more_workers(
    limiting_process: ProcessLoad, second_most_used: ProcessLoad | None, record: RunRecord
) -> ConfigAdvice:
    """Advise enough workers to bring this process level with the next, as far as CPUs are free."""
    utilization_ratio = limiting_process.utilization / max(
        second_most_used.utilization if second_most_used is not None else 0.0, 1 / _MAX_WORKER_FACTOR
    )
    balanced_workers = math.ceil(limiting_process.workers * min(utilization_ratio, _MAX_WORKER_FACTOR))
    cpus_per_worker = (
        max(limiting_process.cpu_ns / max(limiting_process.active_ns, 1), _MIN_CPUS_PER_WORKER)
        if limiting_process.cpu_ns
        else 1.0
    )
    free_cpus = max(record.cpus - compute_cpus_used(record) - record.other_cpus, 0.0)
    free_cpus_text = f"{free_cpus:.1f} of {record.cpus} CPUs are free"
    if record.other_cpus >= _MIN_REPORTED_OTHER_CPUS:
        free_cpus_text += f" (other programs use {record.other_cpus:.1f})"
    mostly_waits = cpus_per_worker < _MAX_CPU_SHARE_OF_WAITING
    if limiting_process.cpu_wait_share >= _MAX_CPU_WAIT_SHARE and not mostly_waits:
        text = (
            f"No config change will help: the workers of {limiting_process.name} waited for a CPU "
            f"{format_percent(limiting_process.cpu_wait_share)} of their time. "
            f"Make {limiting_process.costliest_stage} cheaper, or use more CPUs."
        )
        return ConfigAdvice("", text)
    is_full = free_cpus < _MIN_FREE_CPU_SHARE * min(cpus_per_worker, 1.0)
    if is_full and not mostly_waits:
        text = (
            f"No config change will help: only {free_cpus_text}. "
            f"Make {limiting_process.costliest_stage} cheaper, or use more CPUs."
        )
        return ConfigAdvice("", text)
    affordable_workers = limiting_process.workers + int(free_cpus / cpus_per_worker)
    workers = max(limiting_process.workers + 1, min(balanced_workers, affordable_workers))
    reason = "each waits for most of its time" if is_full else free_cpus_text
    text = f"Give {limiting_process.name} {workers} workers instead of {limiting_process.workers}: {reason}."
    return ConfigAdvice(f"{_find_config_path(limiting_process.name, record)}.workers={workers}", text)


def is_writer(stage_name: str, record: RunRecord) -> bool:
    """Whether a stage writes the parts of a sink; the order point before it makes them."""
    path = _find_config_path(stage_name, record)
    return path.partition(".")[0] == "sink" and stage_name not in record.order_point_names


def _find_config_path(stage_name: str, record: RunRecord) -> str:
    """Return where an override finds a stage: that of a sink is not among `stages`."""
    path = next((stage.config_path for stage in record.stages if stage.name == stage_name), "")
    return path or f"stages.{stage_name}"
