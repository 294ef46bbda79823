"""The config change to try for each kind of limit, or the reason why no change will help.

A change is a list of overrides, as `--set` and `Pipeline` take them: `stages.decode.workers=3`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stagepipe.core import format_bytes, format_percent
from stagepipe.report.record import HopRecord, MemoryPressure, RunRecord, StageRecord
from stagepipe.report.utilization import (
    MIN_MULTITHREADED_CPU_RATIO,
    ProcessLoad,
    compute_cpus_used,
    compute_run_active_ns,
    wants_cpu,
)

NO_CHANGE = "No config change will help"
"""The first words of an advice without a change to try."""

MIN_WINDOW_PER_WORKER = 2
"""Items in flight for each worker of the run: one that it works on, and the next."""


@dataclass(frozen=True)
class ConfigAdvice:
    """`fix`: overrides for the command line, separated by spaces, or empty. `text` explains it, or why it is empty."""

    fix: str
    text: str


def is_writer(stage_name: str, record: RunRecord) -> bool:
    """Whether a stage writes the parts of a sink; the order point before it only makes them."""
    path = find_config_path(stage_name, record)
    return path.partition(".")[0] == "sink" and stage_name not in record.order_point_names


def count_workers(record: RunRecord) -> int:
    """Return the number of workers of the run, including the source."""
    return sum(stage.workers for stage in record.stages if stage.fused_into is None)


def find_config_path(stage_name: str, record: RunRecord) -> str:
    """Return the path of a stage for overrides: the stages of a sink are not under `stages`."""
    path = next((stage.config_path for stage in record.stages if stage.name == stage_name), "")
    return path or f"stages.{stage_name}"


# ------------------------------------------------------------------ more workers

_MAX_WORKER_FACTOR = 4
"""Maximum factor for the number of workers in one step: the measurement does not predict larger changes well."""

_MAX_WORKER_FACTOR_ON_FULL_MACHINE = 2
"""The same factor for workers that mostly wait while other processes use the CPUs."""

_MIN_CPUS_PER_WORKER = 0.05
"""Minimum number of CPUs to count for a worker, even if it only waits (for a network, for a disk)."""

_MIN_FREE_CPU_SHARE = 0.75
"""Share of a worker's CPU use (at most one CPU) that must be free to make one more worker worthwhile."""

_MAX_CPU_WAIT_SHARE = 0.2
"""Maximum share of their time that workers may wait for a CPU: beyond it, more workers compete for the same CPUs."""

_MIN_SCALING_NS = 10_000_000_000
"""A shorter run may end before it has given a stage all the workers that the stage could use."""

_MIN_REPORTED_OTHER_CPUS = 0.1
"""The advice does not mention a smaller load of other programs."""


_MIN_PARTS = 8
"""Minimum number of parts of a sink for which more workers are useful."""


def can_have_workers(load: ProcessLoad, record: RunRecord) -> bool:
    """Whether a process may run in several workers: it is not the consumer, the source or an order point.

    It must not keep state either: several workers would have several states and see other items.
    """
    if not load.member_stages or load.member_stages[0] is record.stages[0]:
        return False
    return not any(stage.is_stateful or stage.name in record.order_point_names for stage in load.member_stages)


def advise_on_stage(
    limiting_process: ProcessLoad, second_most_used: ProcessLoad | None, record: RunRecord
) -> ConfigAdvice:
    """Advise on a stage that is the limit while CPUs are free: more workers, unless the stage must run in one."""
    next_utilization = second_most_used.utilization if second_most_used is not None else 0.0
    if can_have_workers(limiting_process, record):
        parts = limiting_process.member_stages[0].items
        if is_writer(limiting_process.name, record) and parts < _MIN_PARTS:
            text = (
                f"{limiting_process.name} wrote {parts} part{'' if parts == 1 else 's'}, and one worker writes each "
                "part. Set a smaller `part_items` for the sink, so that more workers have parts to write."
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
    """Return the fused stage to move to its own process, with later ones: the costliest, else the first one."""
    fused = load.member_stages[1:]
    if not fused or fused[-1].name in record.order_point_names:
        return None
    return load.costliest_member if load.costliest_member in fused else fused[0]


def _advise_own_process(
    stage: StageRecord, load: ProcessLoad, next_utilization: float, record: RunRecord
) -> ConfigAdvice:
    """Advise to run a fused stage in its own process, with several workers if it takes most of the time."""
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
    """Advise enough workers to bring these processes level with the next busiest one, as far as CPUs are free.

    If a stage has bounds, the run chooses the number of workers, so the advice raises only a bound that is reached.
    """
    other_cpus = record.other_cpus - record.yielding_cpus
    free_cpus = max(record.cpus - compute_cpus_used(record) - other_cpus, 0.0)
    free_text = f"{free_cpus:.1f} of {record.cpus} CPUs are free"
    if other_cpus >= _MIN_REPORTED_OTHER_CPUS:
        free_text += f" (other programs use {other_cpus:.1f})"
    fixes, clauses, by_itself = [], [], []
    left_cpus = free_cpus
    added_workers = 0
    for load in loads:
        refusal = _explain_full_machine(load, left_cpus, free_text)
        if refusal:
            return ConfigAdvice("", refusal)
        workers = _choose_workers(load, next_utilization, left_cpus)
        left_cpus -= (workers - load.workers) * _compute_wanted_cpus(load)
        least, most = load.member_stages[0].min_workers, load.member_stages[0].max_workers
        if load.workers < most:
            by_itself.append(_describe_scaling(load, min(workers, most), record))
            continue
        added_workers += workers - load.workers
        path = find_config_path(load.name, record)
        fixes.append(f"{path}.workers={least}-{workers}" if most else f"{path}.workers={workers}")
        clauses.append(f"{_describe_process(load)}{' up to' * bool(most)} {workers} workers instead of {load.workers}")
    if not fixes:
        return ConfigAdvice("", " ".join(by_itself))
    reason = "each waits for most of its time" if not any(map(wants_cpu, loads)) else free_text
    text = " ".join([f"Give {' and '.join(clauses)}: {reason}.", *by_itself])
    window = MIN_WINDOW_PER_WORKER * (count_workers(record) + added_workers)
    if record.is_window_fixed and window > record.window_items:
        fixes.append(f"window={window}")
        text += f" They need a window of {window} items."
    return ConfigAdvice(" ".join(fixes), text)


def _describe_scaling(load: ProcessLoad, workers: int, record: RunRecord) -> str:
    """Return a sentence saying that the run itself adds workers to a process, or would if it were longer."""
    has_changed = any(change.stage == load.name for change in record.worker_changes)
    most = load.member_stages[0].max_workers
    if has_changed or compute_run_active_ns(record) >= _MIN_SCALING_NS:
        return f"The run itself adds workers to {load.name} where that pays, up to {most}."
    return (
        f"A longer run adds workers to {load.name} by itself: {workers} would bring it level with the others, and its "
        f"maximum is {most}."
    )


def _describe_process(load: ProcessLoad) -> str:
    """Return the name of a process, with its costliest stage if that stage is fused into it."""
    costliest = load.costliest_stage
    return load.name if costliest == load.name else f"{load.name}, in whose process {costliest} runs,"


def _sum_run_ns(stages: Sequence[StageRecord]) -> int:
    return sum(stage.run_histogram.sum_ns for stage in stages)


def _explain_full_machine(load: ProcessLoad, free_cpus: float, free_text: str) -> str:
    """Return why more workers of a process will not help, because the CPUs are in use; "" if they may help."""
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
    """Return a number of workers: at least one more, enough to reach the next utilization, limited by the free CPUs."""
    utilization_ratio = load.utilization / max(next_utilization, 1 / _MAX_WORKER_FACTOR)
    balanced_workers = math.ceil(load.workers * min(utilization_ratio, _MAX_WORKER_FACTOR))
    wanted_cpus = _compute_wanted_cpus(load)
    affordable_workers = load.workers + int(free_cpus / wanted_cpus)
    if not wants_cpu(load) and load.cpu_wait_share < _MAX_CPU_WAIT_SHARE:
        affordable_workers = max(affordable_workers, _MAX_WORKER_FACTOR_ON_FULL_MACHINE * load.workers)
    return max(load.workers + 1, min(balanced_workers, affordable_workers))


def _compute_wanted_cpus(load: ProcessLoad) -> float:
    """Return the CPUs that one worker would use if it never waited for a CPU."""
    if not load.cpu_ns:
        return 1.0
    return max((load.cpu_ns + load.cpu_wait_ns) / max(load.active_ns, 1), _MIN_CPUS_PER_WORKER)


# ------------------------------------------------------------------ a hop

_MIN_MODE_COST_RATIO = 1.1
"""Minimum cost ratio for changing a forced mode: the predicted saving must exceed the noise of the calibration."""

_MIN_RATIO_WITHOUT_DECIMALS = 10
"""Cost ratio from which the text has no decimals."""

_MAX_FUSED_TIME_RATIO = 0.95
"""Fusing removes a process, so it must be predicted to save at least a twentieth of the time."""


def advise_on_hop(
    hop: HopRecord, limiting_process: ProcessLoad | None, record: RunRecord, loads: tuple[ProcessLoad, ...]
) -> ConfigAdvice:
    """Advise on a hop that is the limit, at `limiting_process` (None if the machine is full)."""
    is_to_sink = not find_config_path(hop.target, record).startswith("stages.")  # a sink has neither key
    advice = None if is_to_sink else _advise_other_mode(hop) or _advise_fusion(hop, limiting_process, record, loads)
    if advice is not None:
        return advice
    if limiting_process is not None and can_have_workers(limiting_process, record):
        return advise_on_stages([limiting_process], 0.0, record)
    copy_histogram = hop.phase_histograms.get("copy_ns")
    if copy_histogram is not None and copy_histogram.sum_ns > hop.cost_histogram.sum_ns / 2:
        code_change = f"write the result of {hop.source} into `stagepipe.empty(...)` to avoid the copy"
    else:
        code_change = f"send less data from {hop.source}: smaller arrays, uint8 instead of float32"
    return ConfigAdvice("", f"No config change will help: {code_change}.")


def advise_on_spilling(record: RunRecord, loads: tuple[ProcessLoad, ...]) -> ConfigAdvice:
    """Advise on blocks that the object store cannot hold: remove the hop with most of them, or wait less."""
    hop = max(record.hops, key=_get_spilled_bytes, default=None)
    option = f" (`{record.store_option}`)" if record.store_option else ""
    larger_store = (
        f"give the nodes a larger object store{option}, or send less data: smaller arrays, uint8 instead of float32"
    )
    if hop is None or not _get_spilled_bytes(hop):
        return ConfigAdvice("", f"No config change will help: {larger_store}.")
    size = format_bytes(_get_spilled_bytes(hop))
    name = f"{hop.source} -> {hop.target}"
    target = next((load for load in loads if load.member_stages and load.name == hop.target), None)
    if target is not None and hop.target not in record.order_point_names:
        text = f"Run {hop.target} in the process of {hop.source}: {size} of {name} spilled. Or {larger_store}."
        return ConfigAdvice(" ".join(_list_fusion_overrides(hop, target)), text)
    if record.is_ordered:
        text = f"{NO_CHANGE} while the order is kept: {size} of {name} spilled while waiting for their turn. "
        text += f"If the order does not matter, set `order=any`; or {larger_store}."
        return ConfigAdvice("", text)
    return ConfigAdvice("", f"No config change will help: {size} of {name} spilled; {larger_store}.")


def _get_spilled_bytes(hop: HopRecord) -> int:
    return (hop.store.spilled_bytes or 0) if hop.store is not None else 0


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

    The fused stage loses its own workers. Therefore the cost of its functions and of its other hops is added to the
    workers of the stage before it; the hop between them and the loop of the removed process disappear.
    """
    upstream = next((load for load in loads if any(stage.name == hop.source for stage in load.member_stages)), None)
    downstream = next((load for load in loads if load.member_stages and load.name == hop.target), None)
    if upstream is None or downstream is None or hop.target in record.order_point_names:
        return None
    other_hops_ns = downstream.total_hop_ns - downstream.sum_hop_ns(hop)
    fused_ns = upstream.work_ns - upstream.sum_hop_ns(hop) + downstream.run_ns + other_hops_ns
    current_ns = (
        limiting_process.work_ns / limiting_process.worker_divisor if limiting_process is not None else record.wall_ns
    )
    if fused_ns / upstream.worker_divisor > _MAX_FUSED_TIME_RATIO * current_ns:
        return None
    text = f"Run {hop.target} in the process of {hop.source}: the hop becomes a function call."
    return ConfigAdvice(" ".join(_list_fusion_overrides(hop, downstream)), text)


def _list_fusion_overrides(hop: HopRecord, downstream: ProcessLoad) -> list[str]:
    """List the overrides that fuse the target of a hop. A fused stage must not set the keys of a separate process."""
    path = f"stages.{hop.target}"
    has_own_threads = downstream.member_stages[0].threads > 1
    own_keys = {
        "workers": downstream.workers > 1 or downstream.member_stages[0].max_workers > 0,
        "transport": hop.transport.mode in {"pipe", "shared_memory"},
        "threads": has_own_threads,
    }
    return [f"{path}.fuse=true", *(f"{path}.{key}=null" for key, is_set in own_keys.items() if is_set)]


# ------------------------------------------------------------------ the window, `memory`, threads, the code

_MAX_WINDOW = 4096
"""Maximum window that one step suggests."""


def advise_on_source(source_process: ProcessLoad) -> ConfigAdvice:
    """Advise on a source whose own function is the limit: it runs in one process."""
    text = (
        f"No config change will help: {source_process.name} runs in one process. "
        "Yield names or indices and load them in a stage, which can have several workers."
    )
    return ConfigAdvice("", text)


def advise_on_item_sink(record: RunRecord) -> ConfigAdvice:
    """Advise on a sink in the calling process, or on putting the parts of sinks with workers in order there."""
    if any(stage.is_sink for stage in record.stages):
        text = "No config change will help: shards are made durable one after another. Use a faster disk."
    else:
        text = (
            "No config change will help: this sink runs in one process. Use a sink with workers (jsonl, parquet, "
            "webdataset, npz_shards, images, zarr), or move the costly part, such as encoding, into a stage with "
            "several workers."
        )
    return ConfigAdvice("", text)


def advise_on_repeated_attempts(stage_name: str) -> ConfigAdvice:
    """Advise on a stage that spends its time on failing attempts."""
    text = (
        f"No config change will help: find out why {stage_name} fails; `retries: 0` shows the error. Against an "
        "overloaded server, fewer workers may fail less."
    )
    return ConfigAdvice("", text)


def advise_on_window(record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which no stage is busy and the source is blocked."""
    if record.window_items > 0:
        wider_window = max(2 * record.window_items, MIN_WINDOW_PER_WORKER * count_workers(record))
        text = f"Allow {wider_window} items in flight instead of {record.window_items}."
        return ConfigAdvice(f"window={wider_window}", text)
    return ConfigAdvice("", "Set a larger `window`, or set `order` to `any` if the order does not matter.")


def advise_on_order(stage: StageRecord, slow_ns: int, record: RunRecord) -> ConfigAdvice:
    """Advise on a run whose slow items hold up others: enough items in flight to keep the other workers busy."""
    slow_ratio = slow_ns / max(stage.run_histogram.mean_ns, 1)
    window = max(2 * record.window_items, math.ceil(stage.workers * stage.concurrency * slow_ratio))
    window = max(min(window, _MAX_WINDOW), record.window_items + 1)
    text = (
        f"Allow {window} items in flight instead of {record.window_items}, so that the other workers can go on. "
        "If the order does not matter, `order=any` has the same effect without more memory."
    )
    return ConfigAdvice(f"window={window}", text)


def advise_on_memory(pressure: MemoryPressure) -> ConfigAdvice:
    """Advise on a run whose items do not fit into `memory`."""
    mib = pressure.wanted_bytes >> 20
    text = f"Set `memory` to {format_bytes(pressure.wanted_bytes)}, which holds the window; or send smaller items."
    return ConfigAdvice(f"memory={mib}MiB", text)


def advise_on_full_machine(costliest_process: ProcessLoad, record: RunRecord) -> ConfigAdvice:
    """Advise on a run in which all CPUs are in use, most of them by `costliest_process`."""
    threads = _count_competing_threads(costliest_process, record)
    if threads:
        text = f"Limit each worker of {costliest_process.name} to one thread: it runs {threads:.1f} at a time."
        return ConfigAdvice(f"{find_config_path(costliest_process.name, record)}.threads=1", text)
    text = f"No config change will help: make {costliest_process.costliest_row} cheaper, or use more CPUs."
    return ConfigAdvice("", text)


def _count_competing_threads(load: ProcessLoad, record: RunRecord) -> float:
    """Return how many threads each worker runs at once, if the workers run more threads than there are CPUs; else 0."""
    if not load.member_stages or load.member_stages[0] is record.stages[0] or load.work_ns <= 0:
        return 0.0
    if load.member_stages[0].concurrency > 1:
        return 0.0  # the user asked for these threads
    threads = (load.cpu_ns + load.cpu_wait_ns) / load.work_ns
    configured = load.member_stages[0].threads
    if load.cpu_ns > MIN_MULTITHREADED_CPU_RATIO * load.work_ns:
        return threads
    return float(configured) if configured > 1 and configured * load.workers > record.cpus else 0.0
