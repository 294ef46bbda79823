"""The config change to try where a hop is the limit: its other mode, fusing its ends, or more workers. Pure."""

from __future__ import annotations

from stagepipe.core import format_bytes
from stagepipe.report.advice.config_advice import NO_CHANGE, ConfigAdvice, find_config_path
from stagepipe.report.advice.more_workers import advise_on_stages, can_have_workers
from stagepipe.report.record import HopRecord, RunRecord
from stagepipe.report.utilization import ProcessLoad

_MIN_MODE_COST_RATIO = 1.1
"""A forced mode is worth changing if the other is predicted to be cheaper by more than the noise of the calibration."""

_MIN_RATIO_WITHOUT_DECIMALS = 10
"""Cost ratio from which decimals are not printed."""

_MAX_FUSED_TIME_RATIO = 0.95
"""Fusing must be predicted to save at least a twentieth of the time, because it removes a process."""


def advise_on_hop(
    hop: HopRecord, limiting_process: ProcessLoad | None, record: RunRecord, loads: tuple[ProcessLoad, ...]
) -> ConfigAdvice:
    """Advise on a hop that is the limit, at `limiting_process` (None if the machine is full)."""
    is_to_sink = not find_config_path(hop.target, record).startswith("stages.")  # it has neither key
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
    """Advise on blocks that the object store cannot hold: do without the hop that has most of them, or wait less."""
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
        text = f"Run {hop.target} in the process of {hop.source}: {size} of {name} were spilled. Or {larger_store}."
        return ConfigAdvice(" ".join(_list_fusion_overrides(hop, target)), text)
    if record.is_ordered:
        text = f"{NO_CHANGE} that keeps the order: {size} of {name} were spilled while they waited for their turn. "
        text += f"If the order does not matter, set `order=any`; or {larger_store}."
        return ConfigAdvice("", text)
    return ConfigAdvice("", f"No config change will help: {size} of {name} were spilled; {larger_store}.")


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
    return ConfigAdvice(" ".join(_list_fusion_overrides(hop, downstream)), text)


def _list_fusion_overrides(hop: HopRecord, downstream: ProcessLoad) -> list[str]:
    """List the overrides that fuse the target of a hop: keys of a process of its own are no keys of a fused stage."""
    path = f"stages.{hop.target}"
    has_own_threads = downstream.member_stages[0].threads > 1
    own_keys = {
        "workers": downstream.workers > 1,
        "transport": hop.transport.mode in {"pipe", "shared_memory"},
        "threads": has_own_threads,
    }
    return [f"{path}.fuse=true", *(f"{path}.{key}=null" for key, is_set in own_keys.items() if is_set)]
