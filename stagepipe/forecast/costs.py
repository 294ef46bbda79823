"""The cost of a pipeline's processes and hops per source item, from the record of a probe.

Pure; runs in the caller's process. A probe has one worker per stage and one item in flight, so no other stage slows
down the one that is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost
from stagepipe.forecast.coverage import drop_stages, find_unseen_stages
from stagepipe.forecast.item_flow import compute_item_flow
from stagepipe.forecast.layout_rules import add_layout_rules
from stagepipe.forecast.packets import share_packets, spread_over_chunks
from stagepipe.forecast.payload import estimate_payload
from stagepipe.forecast.sink_costs import SinkCost
from stagepipe.plan import Plan, ProbeResult, ProcessPlan, ProcessRole
from stagepipe.report import MIN_MULTITHREADED_CPU_RATIO, HopRecord, RunRecord, StageRecord
from stagepipe.timing import Histogram
from stagepipe.transport import PIPE

_MIN_TRIMMED_COUNT = 3
"""From this many durations on, the mean leaves out the largest: the first item pays for late loading and new pages."""

_SKIPPED_ITEMS_DIVISOR = 3
"""Costs are extrapolated from the items after the first third."""

_WORKER_LOOP_TIMINGS = 1.5
"""Time of a worker's loop per item, which fusing saves, in units of what timing a hop costs on this machine: both are
Python code of the same kind. Measured as the CPU time of a stage that does nothing, without its hops and its call."""

_STAGE_CALL_TIMINGS = 1.0
"""Time of a stage's call besides its function, which fusing keeps, in the same unit."""

_PROBE_WAKE_UP_CPU_NS = 300_000
"""CPU time per item for waking up: in a probe a process sleeps before each item, in a run it rarely does."""

_PROBE_POLLING_CPU_FRACTION = 0.1
"""CPU time, as a share of the elapsed time, that a process of a probe spends on polling at most: 8 % were measured of a
source that waits for a stage of 20 ms while other programs use both CPUs."""

_MAX_QUICK_CALL_NS = 100_000
"""A call that takes less did not wait for a CPU: the scheduler takes it away for longer."""

_PROMPT_CALL_PERCENTILE = 10
_MAX_SLEEPING_CPU_FRACTION = 0.25
"""A stage with a larger share of CPU time may compute, and wait for a CPU that three others use."""
_SCHEDULER_SLICE_NS = 3_000_000
"""`base_slice_ns` of the kernel from 8 CPUs on (kernel/sched/fair.c); a shorter call is rarely interrupted."""

_MIN_CPU_BOUND_FRACTION = 0.7
"""Ratio of CPU time to working time from which a stage counts as CPU-bound. A smaller gap is noise, not waiting."""


def compute_costs(
    plan: Plan,
    record: RunRecord,
    probe_results: Mapping[str, ProbeResult],
    sink_ns: float = 0.0,
    sinks: Mapping[str, SinkCost] | None = None,
    *,
    sink_waiting_ns: float = 0.0,
    items_before: Mapping[str, int] | None = None,
) -> PipelineCosts:
    """Compute the costs from a probe of `plan`; `probe_results` are by process name.

    `sink_ns` is the time in sinks of the calling process per item that arrives there, `sink_waiting_ns` what of it is
    no CPU time. `sinks` are those with workers, by process name. A stage that the probe did not reach costs nothing.
    `items_before`: what the source had sent when a stage got its first item, if that was late.
    """
    items = max(record.items_in, 1)
    unseen = find_unseen_stages(plan, record)
    record = drop_stages(record, unseen)
    sinks = sinks or {}
    records_by_stage = {stage.name: stage for stage in record.stages}
    collect_ns = sum(sink.collect_ns * sink.items for sink in sinks.values())
    sink_ns_per_item = (sink_ns * record.items_out + collect_ns) / items
    hops_by_source = {hop.source: hop for hop in record.hops}
    outbound_hops = [hops_by_source[process.stages[-1].name] for process in plan.processes]
    payloads = [
        estimate_payload(hop, probe_results.get(process.name, ProbeResult()), plan.curves)
        for process, hop in zip(plan.processes, plan.hops, strict=True)
    ]
    hops = [
        compute_hop_cost(hop, payload.decision.cost_ns if payload else 0, items)
        for hop, payload in zip(outbound_hops, payloads, strict=True)
    ]
    items_by_hop = [hop.messages.total / items for hop in outbound_hops]
    processes = []
    for index, process in enumerate(plan.processes):
        stage_records = [records_by_stage[stage.name] for stage in process.stages]
        items_sent = outbound_hops[index].messages.total
        times = _estimate_scheduler_times(probe_results.get(process.name, ProbeResult()), items_sent, items)
        sides_ns = hops[index].send_ns + (hops[index - 1].receive_ns if index else 0.0)
        sink = sinks.get(process.name)
        if sink is not None:
            times, stage_records = _scale_to_run(sink, times, stage_records)
        cost = _compute_process_cost(index, plan, stage_records, times, items=items, hop_sides_ns=sides_ns)
        start_ns = _estimate_start_ns(probe_results.get(process.name, ProbeResult()), stage_records[0].starting_ns)
        is_measured = not any(stage.name in unseen for stage in process.stages)
        processes.append(replace(cost, start_ns=start_ns, is_measured=is_measured))
    flow = compute_item_flow(plan, record, sinks, items_before or {})
    costs = flow.scale(
        PipelineCosts(
            tuple(processes),
            tuple(hops),
            sink_ns=sink_ns_per_item,
            sink_waiting_ns=sink_waiting_ns * record.items_out / items,
        )
    )
    pipes_only = [index for index, hop in enumerate(plan.hops) if hop.mode == PIPE]
    costs = share_packets(costs, payloads, items_by_hop, pipes_only)
    return add_layout_rules(spread_over_chunks(plan, costs, payloads), plan)


@dataclass(frozen=True)
class _SchedulerTimes:
    """The CPU time of a process and its waits for a CPU, per source item; 0 if unknown."""

    cpu_ns: float
    cpu_delay_ns: float


def _scale_to_run(
    sink: SinkCost, times: _SchedulerTimes, stage_records: Sequence[StageRecord]
) -> tuple[_SchedulerTimes, list[StageRecord]]:
    """Return what a writer would have counted with the parts of a run, each written once; it never waited for a CPU."""
    [stage] = stage_records
    ratio = sink.write_ns * sink.items / max(stage.run_histogram.sum_ns, 1)
    calls = Histogram.from_values_ns([round(sink.write_ns * sink.items / max(stage.items, 1))] * stage.items)
    return _SchedulerTimes(times.cpu_ns * ratio, 0.0), [msgspec.structs.replace(stage, run_histogram=calls)]


def _estimate_scheduler_times(probe_result: ProbeResult, items_sent: int, items: int) -> _SchedulerTimes:
    cpu_ns = _extrapolate_to_all_items_ns(probe_result.final_cpu_ns, probe_result.cpu_ns, items_sent)
    delay_ns = _extrapolate_to_all_items_ns(probe_result.final_cpu_delay_ns, probe_result.cpu_delay_ns, items_sent)
    return _SchedulerTimes(cpu_ns / items, delay_ns / items)


def _compute_process_cost(
    process_index: int,
    plan: Plan,
    stage_records: Sequence[StageRecord],
    scheduler_times: _SchedulerTimes,
    *,
    items: int,
    hop_sides_ns: float,
) -> ProcessCost:
    """Compute the cost of a process from the records of its stages."""
    process = plan.processes[process_index]
    work_ns = sum(compute_run_ns(stage, process) * stage.items for stage in stage_records) / items
    prompt_ns = sum(_sum_prompt_calls_ns(stage, scheduler_times.cpu_ns * items) for stage in stage_records) / items
    min_work_ns = max(scheduler_times.cpu_ns - hop_sides_ns, prompt_ns)
    scheduled_fraction = _compute_scheduled_fraction(work_ns, scheduler_times.cpu_delay_ns, min_work_ns)
    loops = stage_records[0].items + stage_records[0].passed_by
    loop_ns = _WORKER_LOOP_TIMINGS * plan.curves.timing_ns_per_hop * loops / items
    call_ns = _STAGE_CALL_TIMINGS * plan.curves.timing_ns_per_hop * sum(stage.items for stage in stage_records) / items
    total_ns = work_ns * scheduled_fraction + call_ns + loop_ns + hop_sides_ns
    elapsed_ns = max(stage_records[0].wall_ns - stage_records[0].starting_ns, 0) / items
    return ProcessCost(
        name=process.name,
        last_stage=process.stages[-1].name,
        run_ns=work_ns * scheduled_fraction,
        call_ns=call_ns,
        loop_ns=loop_ns,
        cpu_ns=_estimate_cpu_ns(scheduler_times.cpu_ns, total_ns, elapsed_ns),
        memory_bytes=stage_records[0].pss_bytes,
        scheduled_fraction=scheduled_fraction,
    )


def _estimate_start_ns(probe_result: ProbeResult, starting_ns: int) -> float:
    """The CPU time of a worker until its first item, which may load a model; before that, the time that it took."""
    return float(probe_result.cpu_ns[0] if probe_result.cpu_ns else max(starting_ns, 0))


def _estimate_cpu_ns(measured_ns: float, work_ns: float, elapsed_ns: float) -> float:
    """The CPU time per item in a run: the measured time if the stage waits or is multithreaded, else its work.

    The measured time of a single-threaded stage includes waking up, which a run does not.
    """
    probe_overhead_ns = _PROBE_WAKE_UP_CPU_NS + _PROBE_POLLING_CPU_FRACTION * elapsed_ns
    is_multithreaded = measured_ns > MIN_MULTITHREADED_CPU_RATIO * work_ns + probe_overhead_ns
    waits = 0 < measured_ns < _MIN_CPU_BOUND_FRACTION * work_ns
    return measured_ns if waits or is_multithreaded else work_ns


def _sum_prompt_calls_ns(stage: StageRecord, cpu_ns: float) -> float:
    """The time of all calls if none waited for a CPU, by the quickest tenth of them; 0 if it is unknown.

    Those of a stage that computes for longer than the scheduler's slice may all have waited: its CPU time tells more.
    `cpu_ns` is that of the process.
    """
    prompt_ns = stage.run_histogram.percentile_ns(_PROMPT_CALL_PERCENTILE) * (stage.items + stage.retries)
    is_computing = cpu_ns > _MAX_SLEEPING_CPU_FRACTION * prompt_ns
    median_ns = stage.run_histogram.percentile_ns(50)
    if median_ns < _MAX_QUICK_CALL_NS:
        return median_ns * stage.items
    return 0.0 if is_computing and prompt_ns > _SCHEDULER_SLICE_NS * stage.items else prompt_ns


def _compute_scheduled_fraction(run_ns: float, cpu_delay_ns: float, min_work_ns: float) -> float:
    """The share of `run_ns` that remains without the waits for a CPU.

    Some of these waits happened outside the functions, so the rest is at least `min_work_ns`.
    """
    if run_ns <= 0:
        return 1.0
    return max(run_ns - cpu_delay_ns, min(run_ns, min_work_ns)) / run_ns


def compute_trimmed_mean_ns(durations: Histogram) -> float:
    """The mean without the largest duration, which is most often the first.

    >>> compute_trimmed_mean_ns(Histogram.from_values_ns([900, 10, 12, 11]))
    11.0
    """
    count = durations.count
    if count < _MIN_TRIMMED_COUNT:
        return float(durations.mean_ns)
    return (durations.sum_ns - durations.max_ns) / (count - 1)


def get_pickling_cost(hop: HopRecord) -> HopCost:
    """The median cost of pickling a message (`send_ns`) and of unpickling it (`receive_ns`)."""
    return HopCost(*(float(hop.phase_histograms[phase].percentile_ns(50)) for phase in ("encode_ns", "decode_ns")))


def _get_second_largest_ns(durations: Histogram) -> int:
    """The second-largest duration."""
    count = durations.count
    return durations.percentile_ns(100 * (count - 1) / count) if count > 1 else durations.max_ns


def compute_hop_cost(hop: HopRecord, carrying_ns: int, items: int) -> HopCost:
    """The cost of a hop: pickling as measured, carrying as predicted.

    Carrying is not measured, because each message of a probe wakes its reader up, which few messages of a run do. The
    sender pays for the copy. The rest is split evenly between the two sides.
    """
    messages_per_item = hop.messages.total / items
    copy_ns = min(float(hop.phase_histograms["copy_ns"].percentile_ns(50)), float(carrying_ns))
    half_ns = (carrying_ns - copy_ns) / 2
    pickling = get_pickling_cost(hop)
    return HopCost(
        send_ns=(pickling.send_ns + copy_ns + half_ns) * messages_per_item,
        receive_ns=(pickling.receive_ns + half_ns) * messages_per_item,
    )


def compute_run_ns(stage: StageRecord, process: ProcessPlan) -> float:
    """The time in a stage's function per input item.

    For an order point it is all busy time without the first item, because making a group belongs to no single item.
    Attempts that failed and were repeated are part of the time.
    """
    if process.role is ProcessRole.ORDER_POINT and stage.name == process.name:
        first_item_ns = stage.run_histogram.max_ns - _get_second_largest_ns(stage.run_histogram)
        return (stage.busy_ns - first_item_ns) / max(stage.items, 1)
    return compute_trimmed_mean_ns(stage.run_histogram) + stage.repeated_ns / max(stage.items, 1)


def _extrapolate_to_all_items_ns(final_ns: int, sampled_ns: Sequence[int], items_sent: int) -> float:
    """Estimate the time of all items from its growth over the later ones; 0 if nothing is known.

    The growth counts from the last sampled item, or from the one a third into the items if that is earlier, but never
    from the first: the first item of a process pays for late loading.
    """
    if not sampled_ns or items_sent <= 1:
        return 0.0
    index = min(len(sampled_ns) - 1, items_sent - 2, max(items_sent // _SKIPPED_ITEMS_DIVISOR - 1, 1))
    share = (items_sent - index - 1) / items_sent
    return max(final_ns - sampled_ns[index], 0) / share if share > 0 else 0.0
