"""Computes the cost of processes, hops and sinks per source item, from the record of a probe or of a whole run.

A probe has one worker per stage and one item in flight, so no other stage slows down the measured one. It ends while
items are still in the pipeline, so the number of items that a process received understates its load. The load in a long
run is therefore extrapolated from the outputs per item of the processes before it. A stage that got nothing at first,
because a filter dropped the first items, gets more in a long run. If no item reached a stage, its rate is unknown.

In a whole run, all stages work at once, so waits for a CPU are subtracted from their measured times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import fmean, median

import msgspec

from stagepipe.core import format_ns, join_names
from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost
from stagepipe.forecast.payload import estimate_payload, share_packets, spread_over_chunks
from stagepipe.plan import SINK_NAME, Plan, ProbeResult, ProcessPlan, ProcessRole, StagePlan
from stagepipe.report import (
    MIN_MULTITHREADED_CPU_RATIO,
    HopRecord,
    ProcessLoad,
    RunRecord,
    StageRecord,
    compute_process_loads,
)
from stagepipe.timing import Histogram
from stagepipe.transport import PIPE


@dataclass(frozen=True, kw_only=True)
class PartSample:
    """A part that a sink wrote in a probe: `rows` in `write_ns`, and only its first `half_rows` in `half_write_ns`.

    The calling process took `collect_ns` to add it to a shard, `copy_ns` of it for the bytes. `item_bytes` is the size
    of all `items` of the part in memory; `rows` of them were for this sink.
    """

    items: int
    rows: int
    write_ns: int
    half_rows: int
    half_write_ns: int
    item_bytes: int
    collect_ns: int = 0
    copy_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class SinkCost:
    """The cost of an item that reaches a sink, with parts as large as those of a run.

    `write_ns` is the work of a writer, `collect_ns` that of the calling process. `rows` is the number of rows per item.
    The probe brought `items` items to the sink.
    """

    items: int
    write_ns: float
    collect_ns: float
    rows: float

    @property
    def row_ns(self) -> float:
        """The work of a writer per row."""
        return self.write_ns / self.rows if self.rows else 0.0


def compute_sink_cost(samples: Sequence[PartSample], max_items: int, max_bytes: int) -> SinkCost:
    """Compute the cost of a sink from the parts of a probe. Parts of a run have at most `max_items` and `max_bytes`.

    The times of a whole and a half part separate the cost of a row from the cost of a part: opening a file, writing a
    footer. A part of a run has more rows.

    >>> part = PartSample(items=8, rows=8, write_ns=1_080, half_rows=4, half_write_ns=1_040, item_bytes=800)
    >>> compute_sink_cost([part], max_items=1000, max_bytes=1_000_000).write_ns
    11.0
    """
    items = sum(sample.items for sample in samples)
    rows = sum(sample.rows for sample in samples)
    if not rows:
        return SinkCost(items=items, write_ns=0.0, collect_ns=0.0, rows=0.0)
    item_bytes = sum(sample.item_bytes for sample in samples) / items
    items_per_part = max(min(float(max_items), max_bytes / max(item_bytes, 1.0)), 1.0)
    written = [sample for sample in samples if sample.rows]
    row_ns = median(map(_estimate_row_ns, written))
    part_ns = max(fmean(s.write_ns for s in written) - row_ns * rows / len(written), 0.0)
    copy_ns = sum(sample.copy_ns for sample in samples) / items
    shard_ns = fmean(max(sample.collect_ns - sample.copy_ns, 0) for sample in written)
    share = rows / items
    return SinkCost(
        items=items,
        write_ns=row_ns * share + part_ns / items_per_part,
        collect_ns=copy_ns + shard_ns / items_per_part,
        rows=share,
    )


def _estimate_row_ns(sample: PartSample) -> float:
    """Return the time of a row. If the part could not be halved, this includes a share of the part's cost."""
    if not sample.half_rows:
        return sample.write_ns / sample.rows
    return max(sample.write_ns - sample.half_write_ns, 0) / (sample.rows - sample.half_rows)


def compute_sink_costs(plan: Plan, samples: Sequence[Sequence[PartSample]]) -> dict[str, SinkCost]:
    """Compute the costs of a plan's sinks with workers, by process name. `samples` are in the order of the sinks."""
    processes = list_sink_processes(plan)
    if not processes:
        return {}
    parts, *writers = processes
    bounds = parts.first_stage.target.arguments
    return {
        writer.name: compute_sink_cost(parts_of_sink, bounds["max_items"], bounds["max_bytes"])
        for writer, parts_of_sink in zip(writers, samples, strict=True)
    }


def list_sink_processes(plan: Plan) -> list[ProcessPlan]:
    """Return the processes of the sinks with workers: the order point that makes parts, then a writer for each sink."""
    return [process for process in plan.processes if process.first_stage.sink_path]


_MIN_PROBED_ITEMS = 4
"""Fewer items allow no forecast: the first is left out, and the others may vary."""

_MIN_STAGE_ITEMS = 2
"""A stage with only one item at the end of the probe's time counts as unseen: its first call may load a model."""


def find_missing_items(record: RunRecord) -> str:
    """Explain why a probe allows no forecast; empty if it does."""
    if record.items_in >= _MIN_PROBED_ITEMS:
        return ""
    if _was_cut_short(record):
        return f"the probe ran out of time after {record.items_in} items, too few for a forecast"
    return "the source yields too few items for a forecast"


def find_unseen_stages(plan: Plan, record: RunRecord) -> tuple[str, ...]:
    """Return the names of the stages to which the probe brought no items; with `sink` if none came out at the end.

    Their cost is unknown. If the source has ended, one item per stage is enough.
    """
    needed = _MIN_STAGE_ITEMS if _was_cut_short(record) else 1
    stages = {stage.name: stage for stage in record.stages}
    unseen = []
    for process in plan.processes[1:]:
        is_grouping = process.role is ProcessRole.ORDER_POINT or process.first_stage.sink_path
        unseen += [stage.name for stage in process.stages if stages[stage.name].items < (1 if is_grouping else needed)]
    return (*unseen, *(() if record.items_out else (SINK_NAME,)))


def drop_stages(record: RunRecord, names: Collection[str]) -> RunRecord:
    """Copy the record as if these stages took no time: its rate is then an upper bound."""
    stages = (
        msgspec.structs.replace(stage, items=0, busy_ns=0, repeated_ns=0, run_histogram=Histogram())
        if stage.name in names
        else stage
        for stage in record.stages
    )
    return msgspec.structs.replace(record, stages=tuple(stages))


def describe_unseen(record: RunRecord, names: tuple[str, ...], probed_s: float) -> str:
    """Describe the stages that saw no item, and the items and time of the probe.

    >>> describe_unseen(record, ("model",), 60.0)  # doctest: +SKIP
    'model saw no item in 60 s and 12,000 source items'
    """
    subject = "nothing came out at the end" if names == (SINK_NAME,) else _describe_stages(record, names)
    items = f"{record.items_in:,} source items"
    time = f"{format_ns(probed_s * 1e9)} and {items}" if _was_cut_short(record) else f"all {items}"
    return f"{subject} in {time}"


def _describe_stages(record: RunRecord, names: tuple[str, ...]) -> str:
    stages = [name for name in names if name != SINK_NAME]
    seen = max(stage.items for stage in record.stages if stage.name in stages)
    return f"{join_names(stages)} saw {'too few items' if seen else 'no item'}"


def _was_cut_short(record: RunRecord) -> bool:
    return record.status != "finished"


@dataclass(frozen=True)
class ItemFlow:
    """Factors that turn counts of a probe into those of a long run: for each process, each hop, and the consumer."""

    processes: tuple[float, ...]
    hops: tuple[float, ...]
    consumer: float

    def scale(self, costs: PipelineCosts) -> PipelineCosts:
        """Scale costs per source item from the probe to a long run."""
        processes = tuple(
            replace(
                process,
                run_ns=process.run_ns * factor,
                call_ns=process.call_ns * factor,
                loop_ns=process.loop_ns * factor,
                cpu_ns=process.cpu_ns * factor,
            )
            for process, factor in zip(costs.processes, self.processes, strict=True)
        )
        hops = tuple(
            HopCost(hop.send_ns * factor, hop.receive_ns * factor)
            for hop, factor in zip(costs.hops, self.hops, strict=True)
        )
        return replace(
            costs,
            processes=processes,
            hops=hops,
            sink_ns=costs.sink_ns * self.consumer,
            sink_waiting_ns=costs.sink_waiting_ns * self.consumer,
        )


def compute_item_flow(
    plan: Plan, record: RunRecord, sinks: Mapping[str, SinkCost], items_before: Mapping[str, int]
) -> ItemFlow:
    """Compute the factors. `items_before`: items that the source had sent when a late stage got its first one."""
    source_items = max(record.items_in, 1)
    stages = {stage.name: stage for stage in record.stages}
    messages = {hop.source: hop.messages.total for hop in record.hops}
    factors: list[float] = []
    hop_factors: list[float] = []
    ratio = parts_ratio = 1.0  # items that reach a process, per source item
    for process in plan.processes:
        stage = stages[process.name]
        received = stage.items + stage.passed_by if factors else source_items
        ratio_before = ratio
        late = items_before.get(process.name, source_items)
        if late < source_items and received > 1:
            ratio = (received - 1) / (source_items - late)
        if factors:
            hop_factors.append(factors[-1] * _divide(ratio, ratio_before))
        sink = sinks.get(process.name)
        if sink is not None:  # its cost is per item in its parts
            factors.append(_divide(parts_ratio * source_items, sink.items))
            continue
        factors.append(_divide(ratio * source_items, received))
        if process.first_stage.sink_path:
            parts_ratio = ratio
        elif len(factors) > 1:
            ratio *= _divide_output(process, received, messages[process.stages[-1].name])
    consumer = factors[-1] if sinks else _divide(ratio * source_items, record.items_out)
    return ItemFlow(tuple(factors), (*hop_factors, factors[-1]), consumer)


def describe_late_stages(record: RunRecord, items_before: Mapping[str, int]) -> tuple[str, ...]:
    """Name the first stage that got its first item late. Stages after it were late for the same reason."""
    return tuple(
        f"{name} got its first item after {items:,} of {record.items_in:,} source items: the forecast begins there"
        for name, items in list(items_before.items())[:1]
    )


def _divide_output(process: ProcessPlan, received: int, sent: int) -> float:
    """Return the number of outputs of a process per item. Items of an unfinished group do not count."""
    if process.sends_chunks:  # one message for many items
        return 1.0
    group_items = process.first_stage.items_per_output
    if process.role is ProcessRole.ORDER_POINT and group_items > 1 and sent == received // group_items:
        return 1 / group_items
    return _divide(sent, received)


def _divide(value: float, count: float) -> float:
    return value / count if count else 1.0


_MAX_COST = 1e14
"""In ns per item, a day; in bytes, 100 TB. No probe finds that much."""


def add_layout_rules(costs: PipelineCosts, plan: Plan) -> PipelineCosts:
    """Copy the costs of `plan` with its restrictions. They come only from the plan, even for costs from a file."""
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
                gpus_per_worker=process.first_stage.group if process.first_stage.device == "cuda" else 0,
                config_path=process.first_stage.config_path,
            )
        )
    return replace(costs, processes=tuple(processes))


def make_unmeasured_costs(plan: Plan) -> PipelineCosts:
    """Return costs that contain only the restrictions of `plan`: no process is measured."""
    processes = tuple(
        ProcessCost(
            name=process.name,
            last_stage=process.stages[-1].name,
            run_ns=0.0,
            call_ns=0.0,
            loop_ns=0.0,
            cpu_ns=0.0,
            memory_bytes=0,
            is_measured=False,
        )
        for process in plan.processes
    )
    return add_layout_rules(PipelineCosts(processes, (HopCost(0.0, 0.0),) * len(processes)), plan)


def fits_plan(costs: PipelineCosts, plan: Plan) -> bool:
    """Whether costs from a file can belong to `plan`: they have the same stages, and no negative or absurd values."""
    stages = [(process.name, process.stages[-1].name) for process in plan.processes]
    parts: list[ProcessCost | HopCost] = [*costs.processes, *costs.hops]
    values = [value for part in parts for value in astuple(part)]
    return (
        [(process.name, process.last_stage) for process in costs.processes] == stages
        and len(costs.hops) == len(costs.processes)
        and all(0 <= value < _MAX_COST for value in (costs.sink_ns, *values) if isinstance(value, int | float))
    )


def _find_max_workers(process: ProcessPlan, plan: Plan) -> int | None:
    """The maximum number of workers of a process; None without a limit.

    One for each of its CPUs, or one for its GPU; for a sink, as many as have memory for their parts.
    """
    first = process.first_stage
    if first.device is not None and first.device.startswith("cuda:"):
        return 1
    limits = [None if first.cpus is None else len(first.cpus), plan.max_writers if first.sink_path else None]
    return min((limit for limit in limits if limit is not None), default=None)


def find_unfusable_reason(process: ProcessPlan, previous: ProcessPlan | None, plan: Plan) -> str:
    """Explain why a process cannot be fused into the one before it; empty if it can.

    These are the config's rules for `fuse`, and cases in which the fused stages would fail or give other results.
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
    """List the keys of one stage that would apply to all stages of its process: whether each is set, and the reason."""
    return [
        (bool(stage.env), f"{subject} sets `env`"),
        (stage.cpus is not None, f"{subject} sets `cpus`"),
        (stage.device is not None, f"{subject} sets `device`"),
        (stage.concurrency > 1, f"{subject} sets `concurrency`"),
        (stage.is_async, f"{subject} is an `async def`"),
        (stage.group > 1, f"{subject} sets `group`"),
    ]


_MIN_TRIMMED_COUNT = 3
"""From this number of durations on, the mean omits the largest: the first item pays for late imports and new pages."""

_SKIPPED_ITEMS_DIVISOR = 3
"""Costs are extrapolated from the items after the first third."""

_WORKER_LOOP_TIMINGS = 1.5
"""Time of a worker's loop per item, which fusing saves, in units of the timing cost of a hop on this machine: both are
Python code of the same kind. Measured as the CPU time of a stage that does nothing, without its hops and its call.
"""

_STAGE_CALL_TIMINGS = 1.0
"""Time of a stage's call outside its function, which fusing keeps, in the same unit."""

_PROBE_WAKE_UP_CPU_NS = 300_000
"""CPU time per item for waking up: in a probe a process sleeps before each item, in a run it rarely does."""

_PROBE_POLLING_CPU_FRACTION = 0.1
"""Maximum CPU time, as a share of the elapsed time, that a process of a probe spends on polling: 8 % were measured for
a source that waits for a stage of 20 ms while other programs use both CPUs.

"""

_MAX_QUICK_CALL_NS = 100_000
"""A call below this did not wait for a CPU, because the scheduler preempts for longer."""

_PROMPT_CALL_PERCENTILE = 10
_MAX_SLEEPING_CPU_FRACTION = 0.25
"""A stage with a larger share of CPU time may be computing on a CPU that it shares with three others."""
_SCHEDULER_SLICE_NS = 3_000_000
"""`base_slice_ns` of the kernel from 8 CPUs on (kernel/sched/fair.c); a shorter call is rarely interrupted."""

_MIN_CPU_BOUND_FRACTION = 0.7
"""From this ratio of CPU time to working time on, a stage counts as CPU-bound. A smaller gap is noise, not waiting."""


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

    `sink_ns` is the time in sinks of the calling process per arriving item; for `sink_waiting_ns` of it they use no
    CPU. `sinks` are those with workers, by process name. A stage that the probe did not reach costs nothing.
    `items_before`: items that the source had sent when a late stage got its first one.
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
    """Return a writer's figures for parts of a run's size, each written once, without waits for a CPU."""
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
        run_ns=work_ns * scheduled_fraction / process.first_stage.concurrency,
        call_ns=call_ns,
        loop_ns=loop_ns,
        cpu_ns=_estimate_cpu_ns(scheduler_times.cpu_ns, total_ns, elapsed_ns),
        memory_bytes=stage_records[0].pss_bytes,
        scheduled_fraction=scheduled_fraction,
    )


def _estimate_start_ns(probe_result: ProbeResult, starting_ns: int) -> float:
    """The CPU time of a worker until its first item, which may load a model; if that is unknown, the elapsed time."""
    return float(probe_result.cpu_ns[0] if probe_result.cpu_ns else max(starting_ns, 0))


def _estimate_cpu_ns(measured_ns: float, work_ns: float, elapsed_ns: float) -> float:
    """The CPU time per item in a run: the measured time if the stage waits or is multithreaded, otherwise its work.

    The measured time of a single-threaded stage includes wake-ups, which are rare in a run.
    """
    probe_overhead_ns = _PROBE_WAKE_UP_CPU_NS + _PROBE_POLLING_CPU_FRACTION * elapsed_ns
    is_multithreaded = measured_ns > MIN_MULTITHREADED_CPU_RATIO * work_ns + probe_overhead_ns
    waits = 0 < measured_ns < _MIN_CPU_BOUND_FRACTION * work_ns
    return measured_ns if waits or is_multithreaded else work_ns


def _sum_prompt_calls_ns(stage: StageRecord, cpu_ns: float) -> float:
    """The time of all calls without waits for a CPU, estimated from the quickest tenth of them; 0 if unknown.

    All calls of a stage that computes for longer than the scheduler's slice may have waited: its CPU time tells more.
    `cpu_ns` is the CPU time of the process.
    """
    prompt_ns = stage.run_histogram.percentile_ns(_PROMPT_CALL_PERCENTILE) * (stage.items + stage.retries)
    is_computing = cpu_ns > _MAX_SLEEPING_CPU_FRACTION * prompt_ns
    median_ns = stage.run_histogram.percentile_ns(50)
    if median_ns < _MAX_QUICK_CALL_NS:
        return median_ns * stage.items
    return 0.0 if is_computing and prompt_ns > _SCHEDULER_SLICE_NS * stage.items else prompt_ns


def _compute_scheduled_fraction(run_ns: float, cpu_delay_ns: float, min_work_ns: float) -> float:
    """The share of `run_ns` that remains without the waits for a CPU.

    Some of these waits happened outside the functions, so at least `min_work_ns` remains.
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
    """The median cost of pickling a message (`send_ns`) and of unpickling it (`receive_ns`).

    The first message that a process unpickles may import a library. If there are hardly any others, as for the batches
    of a probe, unpickling is assumed to cost no more than pickling.
    """
    send_ns, receive_ns = (float(hop.phase_histograms[phase].percentile_ns(50)) for phase in ("encode_ns", "decode_ns"))
    is_known = hop.phase_histograms["decode_ns"].count >= _MIN_TRIMMED_COUNT
    return HopCost(send_ns, receive_ns if is_known else min(receive_ns, send_ns))


def _get_second_largest_ns(durations: Histogram) -> int:
    """The second-largest duration."""
    count = durations.count
    return durations.percentile_ns(100 * (count - 1) / count) if count > 1 else durations.max_ns


def compute_hop_cost(hop: HopRecord, carrying_ns: int, items: int) -> HopCost:
    """The cost of a hop: pickling as measured, carrying as predicted.

    Carrying is not measured, because each message of a probe wakes up its reader; few messages of a run do. The sender
    pays for the copy. The rest is split evenly between the two sides.
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

    For an order point it is all busy time without the first item, because making a group belongs to no single item. It
    includes failed attempts that were repeated.
    """
    if process.role is ProcessRole.ORDER_POINT and stage.name == process.name:
        first_item_ns = stage.run_histogram.max_ns - _get_second_largest_ns(stage.run_histogram)
        return (stage.busy_ns - first_item_ns) / max(stage.items, 1)
    return compute_trimmed_mean_ns(stage.run_histogram) + stage.repeated_ns / max(stage.items, 1)


def _extrapolate_to_all_items_ns(final_ns: int, sampled_ns: Sequence[int], items_sent: int) -> float:
    """Estimate the time of all items from its growth over the later ones; 0 if unknown.

    The growth counts from the last sampled item, or from the one a third into the items if that is earlier, but never
    from the first: the first item of a process pays for late loading.
    """
    if not sampled_ns or items_sent <= 1:
        return 0.0
    index = min(len(sampled_ns) - 1, items_sent - 2, max(items_sent // _SKIPPED_ITEMS_DIVISOR - 1, 1))
    share = (items_sent - index - 1) / items_sent
    return max(final_ns - sampled_ns[index], 0) / share if share > 0 else 0.0


def compute_run_costs(plan: Plan, record: RunRecord) -> PipelineCosts:
    """Compute the costs from the record of a run of `plan`.

    >>> compute_run_costs(plan, record).processes[1].run_ns  # doctest: +SKIP
    3_990_000.0
    """
    items = max(record.items_in, 1)
    *loads, consumer = compute_process_loads(record)
    sides = [_compute_sides(load, items) for load in loads]
    receive_ns = [side.receive_ns for side in sides[1:]]
    receive_ns.append(sum(side.spent_ns for side in consumer.hop_sides) / items)
    costs = PipelineCosts(
        tuple(_compute_process(load, side, items) for load, side in zip(loads, sides, strict=True)),
        tuple(HopCost(side.send_ns, ns) for side, ns in zip(sides, receive_ns, strict=True)),
        consumer.run_ns / items if consumer.is_evidence else 0.0,
    )
    return add_layout_rules(costs, plan)


def _compute_sides(load: ProcessLoad, items: int) -> HopCost:
    """The work of a process on its outgoing and its incoming hop."""
    names = {stage.name for stage in load.member_stages}
    scale = load.scheduled_share / items
    send_ns = sum(side.spent_ns for side in load.hop_sides if side.hop.source in names)
    receive_ns = sum(side.spent_ns for side in load.hop_sides if side.hop.target in names)
    return HopCost(send_ns * scale, receive_ns * scale)


def _compute_process(load: ProcessLoad, sides: HopCost, items: int) -> ProcessCost:
    scheduled = load.scheduled_share if load.is_evidence else 0.0  # one part gives no steady cost
    slow_ns = min(load.slow_calls_ns, load.run_ns)  # once per worker: more workers would not share it
    work_ns = (load.work_ns - slow_ns) * scheduled / items
    run_ns = min((load.run_ns - slow_ns) * scheduled / items, work_ns)
    first = load.member_stages[0]
    return ProcessCost(
        name=load.name,
        last_stage=load.member_stages[-1].name,
        run_ns=run_ns,
        call_ns=0.0,
        loop_ns=max(work_ns - run_ns - sides.total_ns, 0.0),
        cpu_ns=load.started_cpu_ns / items if load.is_evidence else 0.0,
        memory_bytes=first.pss_bytes or first.rss_bytes,
        scheduled_fraction=scheduled,
    )
