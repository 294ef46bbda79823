"""Makes the record of a run from its plan, a snapshot and what a monitor has seen.

The monitor follows a run while it goes: its workers' memory and waits, and other programs' load. All else is pure.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs import HopCostEstimate, TransportRuleChange, predict_hop_cost
from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_quota, describe_host, read_throttling
from stagepipe.plan import SINK_NAME, HopPlan, Plan, ProcessPlan, ProcessRole, SegmentPlan, StagePlan
from stagepipe.report import (
    PHASES,
    ByteCounts,
    ConsumerReport,
    CostPrediction,
    DeadLetter,
    HopRecord,
    HopThresholdChange,
    HopTransport,
    HostReport,
    MemoryPressure,
    MessageCounts,
    RunRecord,
    Series,
    SharedMemoryReport,
    SizeCount,
    SlowItem,
    StageRecord,
    TimingOverhead,
    WorkerLoad,
    WorkerRestartReport,
)
from stagepipe.runtime import (
    SMALL_ITEM_BUDGET_BYTES,
    DeliverySnapshot,
    HopTimings,
    RunSnapshot,
    RunTimings,
    WorkerSnapshot,
    compute_wanted_bytes,
)
from stagepipe.timing import Histogram, ProcessCounter, SlowItemRow, StageCounter, StageRegion


@dataclass(frozen=True)
class WorkerUsage:
    """The resident and the proportional memory (RSS, PSS) of a worker, in bytes, and its time waiting for a CPU."""

    rss_bytes: int = 0
    pss_bytes: int = 0
    cpu_wait_ns: int = 0


class RunMonitor:
    """Measures the processes of one run now and then."""

    def __init__(self) -> None:
        self.usage_by_process: dict[int, WorkerUsage] = {}
        """As last measured, by process index."""
        self.other_cpus = 0.0
        """Mean number of CPUs that other programs have used during the run, as last measured."""
        self.yielding_cpus = 0.0
        """Those of them that programs of a lower priority have used."""
        self.cpu_quota = 0.0
        """CPUs that the control group may use; 0: no limit."""
        self.throttled_share = 0.0
        """Share of the quota's periods in which it was used up, as last measured."""
        self._load_meter = CpuLoadMeter()
        self._first_periods = read_throttling()

    def sample_usage(self, workers: Iterable[WorkerSnapshot]) -> None:
        """Measure each worker that runs, the load of other programs, and the use of the CPU quota.

        Call it before the workers end.
        """
        self.other_cpus = self._load_meter.measure_other_cpus()
        self.yielding_cpus = min(self._load_meter.measure_yielding_cpus(), self.other_cpus)
        self.cpu_quota = cpu_quota() or 0.0
        periods, throttled = (now - then for now, then in zip(read_throttling(), self._first_periods, strict=True))
        self.throttled_share = throttled / periods if periods > 0 else 0.0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(worker.pid).memory_full_info()
                self.usage_by_process[worker.slot.process_index] = WorkerUsage(
                    memory.rss, memory.pss, cpu_delay_ns(worker.pid)
                )


MAX_SLOW_ITEMS = 10
"""Slowest items in the record: enough to see whether they share a stage, few enough to read."""


def make_consumer_report(deliveries: DeliverySnapshot) -> ConsumerReport:
    """Return the consumer's times of what was delivered."""
    return ConsumerReport(
        wait_ns=deliveries.wait_ns,
        busy_ns=deliveries.busy_ns,
        first_wait_ns=deliveries.first_wait_ns,
        outside_loop_ns=deliveries.outside_ns,
    )


def make_run_fields(
    plan: Plan,
    deliveries: DeliverySnapshot,
    stages: Sequence[StageRecord],
    status: str,
    error_message: str | None,
) -> dict[str, Any]:
    """Return the fields of a `RunRecord` that are the same on every engine."""
    return {
        "name": plan.name,
        "config_sha256": plan.config_sha256,
        "status": status,
        "error": error_message,
        "items_out": deliveries.items,
        "samples_out": deliveries.samples,
        "items_skipped": sum(stage.skipped for stage in stages),
        "wall_ns": deliveries.wall_ns,
        "first_item_ns": deliveries.first_item_ns,
        "delivery_points": deliveries.points,
        "consumer": make_consumer_report(deliveries),
        "stages": tuple(stages),
        "host": HostReport(**describe_host()),
        "cpus": plan.cpu_count,
        "is_ordered": not plan.any_order,
        "order_point_names": tuple(each.name for each in plan.processes if each.role is ProcessRole.ORDER_POINT),
    }


def make_stage_record(
    stage: StagePlan, counts: Sequence[int], run_histogram: Histogram, *, workers: int, wall_ns: int, **fields: Any
) -> StageRecord:
    """Make the record of a stage from its counters, summed over its workers and indexed by `StageCounter`.

    `fields` are those of `StageRecord` that an engine measures in its own way.
    """
    waits = {"starting_ns": 0, "starved_ns": 0, "blocked_ns": 0}
    return StageRecord(
        name=stage.name,
        config_path=stage.config_path,
        part_of=stage.part_of,
        workers=workers,
        wall_ns=wall_ns,
        run_histogram=run_histogram,
        items=counts[StageCounter.ITEMS],
        busy_ns=counts[StageCounter.BUSY_NS],
        errors=counts[StageCounter.FAILED_ATTEMPTS],
        skipped=counts[StageCounter.SKIPPED],
        passed_by=counts[StageCounter.PASSED_BY],
        retries=counts[StageCounter.RETRIES],
        repeated_ns=counts[StageCounter.REPEATED_NS],
        threads=stage.threads or 1,
        is_stateful=stage.stateful,
        **{**waits, **fields},
    )


def make_run_record(
    plan: Plan,
    snapshot: RunSnapshot,
    timings: RunTimings,
    *,
    status: str,
    error_message: str | None,
    monitor: RunMonitor,
    dead_letters: tuple[DeadLetter, ...],
    series: Series,
) -> RunRecord:
    """Make the record of a run that is under way or has ended. `monitor` has followed it."""
    deliveries = snapshot.deliveries
    source_counters = snapshot.workers[0].counters
    source_end_ns = source_counters[ProcessCounter.EPOCH_END_NS]
    stages = _make_stage_records(plan, snapshot, timings, monitor.usage_by_process)
    hops = make_hop_records(plan, snapshot, timings)
    from stagepipe.calibration import TIMING_OVERHEAD_METHOD  # only here: a run needs it at its end

    return RunRecord(
        **make_run_fields(plan, deliveries, stages, status, error_message),
        dead_letters=dead_letters,
        items_in=source_counters[ProcessCounter.ITEMS_SENT],
        source_end_ns=source_end_ns - deliveries.started_ns if source_end_ns else deliveries.wall_ns,
        hops=hops,
        timing_overhead=TimingOverhead(plan.curves.timing_ns_per_hop, TIMING_OVERHEAD_METHOD),
        calibration=plan.curves.to_dict(),
        memory=SharedMemoryReport(
            arena_peak_bytes=sum_counter(snapshot.workers, ProcessCounter.PEAK_BYTES),
            arena_limit_bytes=plan.memory_bytes,
            copied_out_items=snapshot.copied_out_items,
        ),
        other_cpus=monitor.other_cpus,
        yielding_cpus=monitor.yielding_cpus,
        cpu_quota=monitor.cpu_quota,
        throttled_share=monitor.throttled_share,
        window_items=_compute_window_items(plan.segments[0], hops),
        is_window_fixed=plan.segments[0].window == plan.segments[0].small_item_window,
        slowest=find_slowest_items(plan, {name: stage.slow_items for name, stage in timings.stages.items()}),
        restarts=_make_restart_reports(snapshot),
        series=series,
        memory_pressure=_find_memory_pressure(plan, snapshot),
    )


def make_inline_record(
    plan: Plan,
    regions: Mapping[str, StageRegion],
    deliveries: DeliverySnapshot,
    *,
    cpu_ns: int,
    status: str,
    error_message: str | None,
    dead_letters: tuple[DeadLetter, ...],
) -> RunRecord:
    """Make the record of an inline run. `regions` are those of its stages, by name.

    A stage waits while the others have their turn, so its shares are of the time of the whole loop.
    """
    loop_ns = deliveries.wait_ns + deliveries.busy_ns
    stages = []
    for process in plan.processes:
        for stage in process.stages:
            region = regions[stage.name]
            stages.append(
                make_stage_record(
                    stage,
                    region.read_counters(),
                    Histogram.from_words(region.run_histogram_words),
                    workers=1,
                    wall_ns=loop_ns,
                    starved_ns=max(loop_ns - region[StageCounter.BUSY_NS], 0),
                    is_blocked_measured=False,
                )
            )
    return RunRecord(
        **make_run_fields(plan, deliveries, stages, status, error_message),
        dead_letters=dead_letters,
        is_inline=True,
        caller_cpu_ns=cpu_ns,
        items_in=stages[0].items,
        source_end_ns=deliveries.wall_ns,
        hops=(
            *(
                make_call_record(stage.name, other.name, other.items + other.passed_by, "a function call")
                for stage, other in pairwise(stages)
            ),
            make_call_record(stages[-1].name, SINK_NAME, deliveries.items, "a function call"),
        ),
        timing_overhead=TimingOverhead(),
        calibration={},
        memory=SharedMemoryReport(),
        slowest=find_slowest_items(plan, {name: region.read_slow_items() for name, region in regions.items()}),
    )


def _compute_window_items(segment: SegmentPlan, hops: Sequence[HopRecord]) -> int:
    """The items that may be in flight: more than the window where it is automatic and they take little memory."""
    item_bytes = sum(
        (hop.bytes.copied + hop.bytes.zero_copy) / hop.messages.total for hop in hops if hop.messages.total
    )
    return max(segment.window, min(segment.small_item_window, int(SMALL_ITEM_BUDGET_BYTES / max(item_bytes, 1.0))))


def _find_memory_pressure(plan: Plan, snapshot: RunSnapshot) -> MemoryPressure | None:
    """The first segment whose window did not fit into `memory`."""
    for segment, pressure in zip(plan.segments, snapshot.memory_pressures, strict=True):
        if pressure is not None:
            item_bytes, fitting_items = pressure
            return MemoryPressure(
                item_bytes=item_bytes,
                fitting_items=fitting_items,
                window_items=segment.window,
                wanted_bytes=compute_wanted_bytes(item_bytes, segment.window),
            )
    return None


def _make_restart_reports(snapshot: RunSnapshot) -> tuple[WorkerRestartReport, ...]:
    """The deaths and the stalls that led to a restart, oldest first."""
    reports = [
        (
            restart.death.died_at_ns,
            WorkerRestartReport(
                stage=restart.death.stage.row,
                worker=restart.death.worker,
                cause=restart.death.cause,
                item=restart.death.item,
                lost_ns=restart.lost_ns,
            ),
        )
        for restart in snapshot.restarts
    ]
    reports += [
        (
            restart.began_at_ns + restart.stall.stalled_ns,
            WorkerRestartReport(
                stage="", worker=-1, cause=restart.stall.description, item="", lost_ns=restart.lost_ns, kind="stall"
            ),
        )
        for restart in snapshot.stall_restarts
    ]
    return tuple(report for _, report in sorted(reports, key=lambda entry: entry[0]))


def _make_stage_records(
    plan: Plan, snapshot: RunSnapshot, timings: RunTimings, usage_by_process: Mapping[int, WorkerUsage]
) -> tuple[StageRecord, ...]:
    crashes = Counter(restart.death.stage.name for restart in snapshot.restarts)
    records = []
    for process, workers in zip(plan.processes, snapshot.worker_groups, strict=True):
        process_fields = _make_process_fields(workers, snapshot.taken_at_ns, usage_by_process)
        for stage_index, stage in enumerate(process.stages):
            counts = _sum_stage_counters(workers, stage_index)
            fields = process_fields if stage_index == 0 else make_fused_fields(process, counts)
            records.append(
                make_stage_record(
                    stage,
                    counts,
                    timings.stages[stage.name].run_histogram,
                    workers=len(workers),
                    crashes=crashes[stage.name],
                    **fields,
                )
            )
    return tuple(records)


def _make_process_fields(
    workers: Sequence[WorkerSnapshot], now_ns: int, usage_by_process: Mapping[int, WorkerUsage]
) -> dict[str, Any]:
    """What only the first stage of a process records: the time and the memory of its workers."""
    started = [worker.counters for worker in workers if worker.counters[ProcessCounter.STARTED_NS]]
    usage = [usage_by_process.get(worker.slot.process_index, WorkerUsage()) for worker in workers]
    return {
        "worker_loads": tuple(
            WorkerLoad(items=worker.stage_counters[0][StageCounter.ITEMS], busy_ns=worker.busy_ns) for worker in workers
        ),
        "wall_ns": sum(
            max((counters[ProcessCounter.STOPPED_NS] or now_ns) - counters[ProcessCounter.STARTED_NS], 0)
            for counters in started
        ),
        "starting_ns": sum_counter(workers, ProcessCounter.DOWNTIME_NS)
        + sum(
            (counters[ProcessCounter.READY_NS] or now_ns) - counters[ProcessCounter.STARTED_NS] for counters in started
        ),
        "starved_ns": sum_counter(workers, ProcessCounter.STARVED_NS),
        "blocked_ns": sum_counter(workers, ProcessCounter.BLOCKED_NS),
        "cpu_ns": sum_counter(workers, ProcessCounter.CPU_NS),
        "rss_bytes": sum(each.rss_bytes for each in usage),
        "pss_bytes": sum(each.pss_bytes for each in usage),
        "cpu_wait_ns": sum(each.cpu_wait_ns for each in usage),
    }


def make_fused_fields(process: ProcessPlan, counts: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a record of a fused stage: it shares the process, never waits, and has no memory apart."""
    return {"wall_ns": counts[StageCounter.BUSY_NS], "fused_into": process.name}


def _sum_stage_counters(workers: Sequence[WorkerSnapshot], stage_index: int) -> list[int]:
    """The counters of a stage over all its workers, indexed by `StageCounter`."""
    return [sum(counts) for counts in zip(*(worker.stage_counters[stage_index] for worker in workers), strict=True)]


def find_slowest_items(plan: Plan, rows_by_stage: Mapping[str, Sequence[SlowItemRow]]) -> tuple[SlowItem, ...]:
    """Return the slowest of the items that each stage has kept, the slowest first."""
    slow_items = [
        SlowItem(item=str(row.item), stage=stage.row, run_ns=row.run_ns, queue_ns=row.queue_ns, label=row.label)
        for process in plan.processes
        for stage in process.stages
        for row in rows_by_stage.get(stage.name, ())
    ]
    return tuple(sorted(slow_items, key=lambda item: -item.run_ns)[:MAX_SLOW_ITEMS])


def make_hop_records(plan: Plan, snapshot: RunSnapshot, timings: RunTimings) -> tuple[HopRecord, ...]:
    """Return all hops in pipeline order, including those between fused stages."""
    records = []
    for hop_number, (process, senders) in enumerate(zip(plan.processes, snapshot.worker_groups, strict=True)):
        for stage_index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            message_count = sum(sender.stage_counters[stage_index][StageCounter.ITEMS] for sender in senders)
            records.append(make_call_record(source.name, target.name, message_count, "fused: a function call"))
        records.append(_make_hop_record(plan, hop_number, senders, timings.hops[hop_number]))
    return tuple(records)


def make_call_record(source: str, target: str, message_count: int, reason: str) -> HopRecord:
    """Return the record of a hop between two stages of one process. It has no cost."""
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("local", 0, reason),
        messages=MessageCounts(local=message_count),
        bytes=ByteCounts(),
        cost_histogram=Histogram(),
        phase_histograms={name: Histogram() for name in PHASES},
        predicted=CostPrediction(),
    )


def _make_hop_record(
    plan: Plan, hop_number: int, senders: tuple[WorkerSnapshot, ...], timings: HopTimings
) -> HopRecord:
    hop = plan.hops[hop_number]
    phase_histograms = timings.phase_histograms
    estimate = predict_hop_cost(timings.measured_costs, plan.curves)
    pickling_phases = ("encode_ns", "decode_ns") if timings.measured_costs else ()
    pickling_ns = sum(phase_histograms[phase].percentile_ns(50) for phase in pickling_phases)
    messages = _sum_messages(senders)
    byte_counts = _sum_bytes(senders)
    return HopRecord(
        source=plan.processes[hop_number].stages[-1].name,
        target=SINK_NAME if hop.target == SINK_NAME else hop.target,
        transport=_make_transport(hop, timings.rule_changes, messages, byte_counts, estimate),
        messages=messages,
        bytes=byte_counts,
        cost_histogram=phase_histograms["cost_ns"],
        phase_histograms={phase: phase_histograms[phase] for phase in PHASES},
        predicted=_make_prediction(estimate, pickling_ns),
        saved_ns=(_predict_alternative_ns(estimate, messages) - estimate.as_sent_ns) * messages.total,
        sizes=tuple(
            SizeCount(min_bytes=1 << bits >> 1, max_bytes=1 << bits, messages=count)
            for bits, count in timings.messages_by_size_bits.items()
        ),
    )


def _make_transport(
    hop: HopPlan,
    rule_changes: Sequence[TransportRuleChange],
    messages: MessageCounts,
    byte_counts: ByteCounts,
    estimate: HopCostEstimate,
) -> HopTransport:
    threshold_bytes = rule_changes[-1].after.threshold_bytes if rule_changes else hop.rule.threshold_bytes
    return HopTransport(
        mode=hop.mode,
        threshold_bytes=threshold_bytes if hop.mode == "auto" else 0,
        reason=_format_transport_reason(hop, byte_counts.total // messages.total, estimate)
        if messages.total
        else hop.rule.reason,
        changes=tuple(
            HopThresholdChange(
                change.messages, change.before.threshold_bytes, change.after.threshold_bytes, change.reason
            )
            for change in rule_changes
        ),
    )


def _make_prediction(estimate: HopCostEstimate, pickling_ns: int) -> CostPrediction:
    """Return the predicted and measured costs of a message, with pickling as measured."""
    median_ns = estimate.predicted_median_ns + pickling_ns
    measured_median_ns = estimate.measured_median_ns + pickling_ns
    return CostPrediction(
        pipe_ns=estimate.pipe_ns + pickling_ns,
        shared_memory_ns=estimate.shared_memory_ns + pickling_ns,
        median_ns=median_ns,
        measured_median_ns=measured_median_ns,
        measured_ratio=round(measured_median_ns / median_ns, 3) if median_ns else 0.0,
    )


def _sum_messages(senders: Sequence[WorkerSnapshot]) -> MessageCounts:
    return MessageCounts(
        pipe=sum_counter(senders, ProcessCounter.PIPE_MESSAGES),
        shared_memory=sum_counter(senders, ProcessCounter.SHARED_MEMORY_MESSAGES),
        mixed=sum_counter(senders, ProcessCounter.MIXED_MESSAGES),
    )


def _sum_bytes(senders: Sequence[WorkerSnapshot]) -> ByteCounts:
    return ByteCounts(
        inline=sum_counter(senders, ProcessCounter.INLINE_BYTES),
        copied=sum_counter(senders, ProcessCounter.COPIED_BYTES),
        zero_copy=sum_counter(senders, ProcessCounter.ZERO_COPY_BYTES),
    )


def sum_counter(workers: Sequence[WorkerSnapshot], counter: ProcessCounter) -> int:
    """Return the sum of a counter over the workers."""
    return sum(worker.counters[counter] for worker in workers)


def _predict_alternative_ns(estimate: HopCostEstimate, messages: MessageCounts) -> int:
    """Return the predicted mean cost of the transport that most messages did not use."""
    mostly_pipe = messages.pipe > messages.shared_memory + messages.mixed
    return estimate.shared_memory_ns if mostly_pipe else estimate.pipe_ns


def _format_transport_reason(hop: HopPlan, mean_bytes: int, estimate: HopCostEstimate) -> str:
    """Format `1.2 MB per message: predicted 46 µs by shared memory, 2.1 ms by pipe`."""
    figures = (
        f"{format_bytes(mean_bytes)} per message: predicted {format_ns(estimate.shared_memory_ns)} by shared memory, "
        f"{format_ns(estimate.pipe_ns)} by pipe"
    )
    return figures if hop.mode == "auto" else f"{hop.rule.reason}; {figures}"
