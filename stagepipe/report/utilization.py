"""How busy each process of a run was: the evidence for the verdict.

A process is a stage together with the stages fused into it; the consumer counts as one more process. Its *utilization*
is the share of its time after start-up in which it waits neither for input nor for room. This covers the work in the
stages' functions and on the hops at both ends. In a chain with bounded queues, the process with the highest utilization
limits the throughput; the processes before it block and those after it starve (Kleinrock, Queueing Systems I, 1975).

A process that ran only for a part of the run counts only for that part: its work is divided by the time of the run.
A sink with only one or two parts writes them after the stages have finished, while in a longer run it writes as the
stages work. This time is called the drain, and such a sink is not evidence for a longer run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stagepipe.core import format_ns, format_percent
from stagepipe.report.record import HopRecord, RunRecord, StageRecord, WorkerChangeRecord

_MAX_COUNT_RATIO = 1.001
"""A stage that sends more messages per item than this makes several items from one."""

CONSUMER = "consumer"
"""The name of the training loop, the sink or `run` in `Verdict.limited_by`."""

FULL_MACHINE_CPU_SHARE = 0.9
"""Share of the CPUs from which the machine is full. The rest is for the consumer and the system."""

MIN_MULTITHREADED_CPU_RATIO = 1.3
"""Ratio of CPU time to working time from which a worker counts as multithreaded."""

_MIN_CPU_BOUND_SHARE = 0.5
"""Share of the working time that a process must compute or wait for a CPU, so that the CPUs count as its limit."""

_MIN_CPU_WAIT_SHARE = 0.2
"""Share of the time that a process must wait for a CPU, so that other programs count as slowing it down."""

MIN_OTHER_CPU_SHARE = 0.25
"""Share of the CPUs that other programs must use, so that they count as slowing a waiting process down."""

MIN_PARTS = 3
"""With fewer parts, a sink with workers has written after the stages had finished, not at the same time."""

_MIN_CALLS = 16
_MIN_SLOW_CALL_RATIO = 20
"""A call is an outlier from this multiple of the median on, if each worker has at most one such call."""

_MIN_SLOW_CALL_NS = 500_000_000
"""A shorter call may only have waited for a CPU."""

_SENDING_PHASES = ("encode_ns", "copy_ns", "send_ns")
"""The phases of a hop in which its sender works."""

_RECEIVING_PHASES = ("receive_ns", "decode_ns")
"""The phases of a hop in which its receiver works."""


@dataclass(frozen=True)
class HopSide:
    """One side of a hop, with the time that its process spent on it: encode to send, or receive and decode."""

    hop: HopRecord
    spent_ns: int


@dataclass(frozen=True, kw_only=True)
class ProcessLoad:
    """One process, summed over its workers, or the consumer, which has no stages. Durations are ns of worker time."""

    name: str
    member_stages: tuple[StageRecord, ...]
    workers: int  # at the end
    active_ns: int  # wall time without start-up
    work_ns: int  # active time without waits
    run_ns: int  # time in the stages' functions
    starved_share: float  # shares of the active time
    blocked_share: float
    hop_sides: tuple[HopSide, ...]
    cpu_ns: int = 0
    cpu_wait_ns: int = 0  # runnable without a CPU
    run_active_ns: int = 0  # the time of the run after its start-up and without its drain, for each worker
    worker_divisor: float = 1.0  # the mean number of workers over the run
    is_evidence: bool = True  # False for a sink of one or two parts

    @property
    def row(self) -> str:
        """The row of the report for this process, named as in the config."""
        return self.member_stages[0].row if self.member_stages else self.name

    @property
    def cpu_wait_share(self) -> float:
        """Share of the active time in which the process was runnable but other processes had the CPUs, 0 to 1."""
        return min(self.cpu_wait_ns / self.active_ns, 1.0) if self.active_ns > 0 else 0.0

    @property
    def utilization(self) -> float:
        """Share of the time of work, 0 to 1: of its active time, or of the run if that is longer."""
        observed_ns = max(self.active_ns, self.run_active_ns)
        return min(self.work_ns / observed_ns, 1.0) if observed_ns > 0 else 0.0

    @property
    def started_cpu_ns(self) -> int:
        """CPU time after start-up. The start-up is taken to have used a whole CPU."""
        starting_ns = max(self.member_stages[0].starting_ns, 0) if self.member_stages else 0
        return max(self.cpu_ns - starting_ns, min(self.cpu_ns, self.work_ns))

    @property
    def scheduled_share(self) -> float:
        """Share of the work in which the process had a CPU. Some of its waits for a CPU lie outside the work."""
        if self.work_ns <= 0:
            return 1.0
        return max(self.work_ns - self.cpu_wait_ns, min(self.work_ns, self.started_cpu_ns)) / self.work_ns

    @property
    def slow_calls_ns(self) -> int:
        """Time of calls that happened once in a worker and took far longer than the others, such as loading a model."""
        return sum(map(_sum_slow_calls_ns, self.member_stages))

    @property
    def costliest_stage(self) -> str:
        """The stage whose function takes the most time."""
        return self.costliest_member.name if self.member_stages else self.name

    @property
    def costliest_row(self) -> str:
        """The row of the report for the costliest stage."""
        return self.costliest_member.row if self.member_stages else self.name

    @property
    def costliest_member(self) -> StageRecord:
        """The record of the costliest stage. The consumer has none."""
        return max(self.member_stages, key=lambda stage: stage.run_histogram.sum_ns)

    @property
    def total_hop_ns(self) -> int:
        """Time spent on all its hops."""
        return sum(side.spent_ns for side in self.hop_sides)

    def sum_hop_ns(self, hop: HopRecord) -> int:
        """Time spent on `hop`; 0 if the process is not at one of its ends."""
        return sum(side.spent_ns for side in self.hop_sides if side.hop is hop)


def compute_startup_ns(record: RunRecord) -> int:
    """Return the time until all workers were built. Waiting for a slow first item counts as work of the stages."""
    if not record.stages:
        return 0
    return min(_compute_launch_ns(record) + _compute_held_ns(find_slowest_start(record), record), record.wall_ns)


def _compute_launch_ns(record: RunRecord) -> int:
    """Return the time before the first worker existed: the run is set up, and Python starts.

    Return 0 if it is unknown: the workers of some engines do not report how long they were blocked.
    """
    processes = [stage for stage in record.stages if stage.fused_into is None]
    if not all(stage.is_blocked_measured for stage in processes):
        return 0
    return max(record.wall_ns - max(int(stage.wall_ns // stage.worker_divisor) for stage in processes), 0)


def find_slowest_start(record: RunRecord) -> StageRecord:
    """Return the stage whose start delayed the run longest."""
    return max(record.stages, key=lambda stage: _compute_held_ns(stage, record))


def _compute_held_ns(stage: StageRecord, record: RunRecord) -> int:
    """Return how long the start of a stage's workers delayed the run.

    The start of a writer of parts delays the run only while the stage before it is blocked: until then, it loads its
    libraries while the other stages work.
    """
    writers = find_writers(record)
    if stage not in writers or stage is record.stages[0]:
        return mean_starting_ns(stage, record)
    before = record.stages[record.stages.index(stage) - 1]
    others_ns = max((mean_starting_ns(each, record) for each in record.stages if each not in writers), default=0)
    return min(mean_starting_ns(stage, record), others_ns + int(before.blocked_ns // before.worker_divisor))


def mean_starting_ns(stage: StageRecord, record: RunRecord) -> int:
    """Return the mean time of a worker's first start, without the time that restarts took."""
    lost_ns = sum(restart.lost_ns for restart in record.restarts if restart.stage == stage.name)
    return max(stage.starting_ns - lost_ns, 0) // count_starts(stage, record)


def count_starts(stage: StageRecord, record: RunRecord) -> int:
    """Return how many workers of a stage have started, without the replacements of workers that died."""
    left = sum(max(-change.delta, 0) for change in record.worker_changes if change.stage == stage.name)
    return max(stage.workers + left, 1)


def compute_lost_ns(record: RunRecord) -> int:
    """Return the time lost to deaths and stalls: from each one to the next delivered item.

    A sink of parts delivers only after many items. For such a sink, the result is at most the time to build the dead
    stages again and to repeat the items since the last part.
    """
    lost_ns = sum(restart.lost_ns for restart in record.restarts)
    if not find_writers(record):
        return lost_ns
    died = {restart.stage for restart in record.restarts}
    built_ns = sum(stage.starting_ns // count_starts(stage, record) for stage in record.stages if stage.row in died)
    again_ns = 0
    for stage in list_one_to_one(record)[1:]:
        items = stage.items + stage.passed_by
        again_ns = max(
            again_ns, int(stage.busy_ns * max(items - record.items_in, 0) // max(items * stage.worker_divisor, 1))
        )
    return min(lost_ns, built_ns + again_ns)


def list_one_to_one(record: RunRecord) -> list[StageRecord]:
    """Return the stages that get one item per source item: all up to the first one that groups, drops or makes items.

    A skipped or dropped item travels on as a tombstone, so a later stage has fewer items, but no different ones.
    """
    sent = {hop.source: hop.messages.total for hop in record.hops}
    stages = []
    for stage in record.stages:
        stages.append(stage)
        is_grouping = stage.name in record.order_point_names
        if is_grouping or sent.get(stage.name, 0) > _MAX_COUNT_RATIO * max(stage.items + stage.passed_by, 1):
            break
    return stages


def get_consumer_row(record: RunRecord) -> str:
    """Return the row of the consumer: its name, or the sink with workers whose parts it turns into files."""
    sinks = [stage.row for stage in record.stages if stage.is_sink]
    is_commit = bool(sinks) and record.consumer.name == "sink"  # a sink without workers would have its name
    return sinks[0] if record.consumer.is_sink and is_commit else record.consumer.name


def find_writers(record: RunRecord) -> list[StageRecord]:
    """Return the stages that write the parts of a sink."""
    return [stage for stage in record.stages if stage.is_sink and stage.name not in record.order_point_names]


def has_few_parts(record: RunRecord) -> bool:
    """Whether the sinks with workers have written only a few parts, and so after the stages had finished."""
    writers = find_writers(record)
    is_whole = record.status == "finished" and bool(writers)
    return is_whole and 0 < max(stage.items for stage in writers) < MIN_PARTS


def compute_drain_ns(record: RunRecord) -> int:
    """Return the time in which sinks wrote their only parts after the stages had finished; 0 if they had more parts.

    The series shows when the stages ended; without a series, the result is the working time of the writers.
    """
    if not has_few_parts(record):
        return 0
    written_ns = max(
        int(stage.busy_ns // max(min(stage.worker_divisor, stage.items), 1)) for stage in find_writers(record)
    )
    drain_ns = written_ns + max(record.consumer.busy_ns, 0)
    sinks = {stage.name for stage in record.stages if stage.is_sink}
    sinks |= {stage.part_of for stage in record.stages if stage.name in sinks}
    lines = [line for line in record.series.stages if line.name not in sinks]
    times_ns = record.series.times_ns
    moving = [ns for i, ns in enumerate(times_ns) if any(line.items_per_s[i : i + 1] > (0.0,) for line in lines)]
    if moving:
        drain_ns = max(drain_ns, record.wall_ns - moving[-1])
    return max(min(drain_ns, record.wall_ns - compute_startup_ns(record)), 0)


def compute_run_active_ns(record: RunRecord) -> int:
    """Return the time of the run without its start-up, its drain and the time outside of iterations."""
    lost_ns = compute_startup_ns(record) + max(record.consumer.outside_loop_ns, 0) + compute_drain_ns(record)
    return max(record.wall_ns - lost_ns, 0)


def compute_process_loads(record: RunRecord) -> tuple[ProcessLoad, ...]:
    """Return one load per process, in pipeline order, the consumer last."""
    first_stages = [stage for stage in record.stages if stage.fused_into is None]
    return (*(_compute_process_load(stage, record) for stage in first_stages), _compute_consumer_load(record))


def compute_process_busy_ns(stage: StageRecord, record: RunRecord) -> int:
    """Return the time in the functions of a process: of `stage` and of the stages fused into it."""
    fused_stages = [other for other in record.stages if other.fused_into == stage.name]
    if not fused_stages:
        return stage.busy_ns
    functions_ns = stage.run_histogram.sum_ns + sum(fused.run_histogram.sum_ns for fused in fused_stages)
    available_ns = stage.wall_ns - stage.starting_ns - stage.starved_ns - stage.blocked_ns
    return max(stage.busy_ns, min(functions_ns, available_ns))


def compute_cpus_used(record: RunRecord) -> float:
    """Return the mean number of CPUs that the stages used, without the time outside of iterations."""
    total_ns = sum(stage.cpu_ns for stage in record.stages if stage.fused_into is None)
    wall_ns = record.wall_ns - record.consumer.outside_loop_ns
    return total_ns / wall_ns if wall_ns > 0 else 0.0


def wants_cpu(load: ProcessLoad) -> bool:
    """Return whether the CPUs limit a process: it computes or waits for a CPU for most of its working time.

    The result is True if the CPU time is unknown.
    """
    if not load.cpu_ns and not load.cpu_wait_ns:
        return True
    return load.cpu_ns + load.cpu_wait_ns >= _MIN_CPU_BOUND_SHARE * load.work_ns


def is_slowed_by_others(record: RunRecord, load: ProcessLoad) -> bool:
    """Return whether other programs use the CPUs that a process needs.

    The process must wait for a CPU while other programs use some; if its wait is unknown, all CPUs must be in use.
    """
    if not wants_cpu(load):
        return False
    if load.cpu_wait_ns:
        return load.cpu_wait_share >= _MIN_CPU_WAIT_SHARE and record.other_cpus >= MIN_OTHER_CPU_SHARE * record.cpus
    return compute_cpus_used(record) + record.other_cpus >= FULL_MACHINE_CPU_SHARE * record.cpus


def _sum_slow_calls_ns(stage: StageRecord) -> int:
    calls = stage.run_histogram
    slow_calls = calls.count_from(calls.max_ns / 2) if calls.count >= _MIN_CALLS else 0
    is_outlier = calls.max_ns >= max(_MIN_SLOW_CALL_RATIO * calls.percentile_ns(50), _MIN_SLOW_CALL_NS)
    return slow_calls * calls.max_ns if is_outlier and slow_calls <= stage.workers else 0


def _compute_hop_side_ns(hop: HopRecord, phases: tuple[str, ...]) -> int:
    if not hop.phase_histograms:
        return hop.cost_histogram.sum_ns // 2  # the phases were not recorded: half for each side
    return sum(hop.phase_histograms[phase].sum_ns for phase in phases if phase in hop.phase_histograms)


def _find_hop_sides(stage_names: set[str], record: RunRecord) -> tuple[HopSide, ...]:
    boundary_hops = [hop for hop in record.hops if (hop.source in stage_names) != (hop.target in stage_names)]
    return tuple(
        HopSide(hop, _compute_hop_side_ns(hop, _SENDING_PHASES if hop.source in stage_names else _RECEIVING_PHASES))
        for hop in boundary_hops
    )


def _compute_process_load(first_stage: StageRecord, record: RunRecord) -> ProcessLoad:
    member_stages = (first_stage, *(stage for stage in record.stages if stage.fused_into == first_stage.name))
    hop_sides = _find_hop_sides({stage.name for stage in member_stages}, record)
    busy_ns = max(compute_process_busy_ns(first_stage, record), 0)
    starved_ns = max(first_stage.starved_ns, 0)
    blocked_ns = max(first_stage.blocked_ns, 0)
    active_ns = max(first_stage.wall_ns - max(first_stage.starting_ns, 0), busy_ns + starved_ns + blocked_ns)
    # Waits outside of iterations (validation, a checkpoint) and for the drain are left out: no setting changes them.
    is_writer = first_stage in find_writers(record)
    outside_ns = record.consumer.outside_loop_ns + (0 if is_writer else compute_drain_ns(record))
    outside_loop_ns = min(int(outside_ns * first_stage.worker_divisor), starved_ns + blocked_ns)
    active_ns -= outside_loop_ns
    blocked_ns -= max(outside_loop_ns - starved_ns, 0)
    starved_ns -= min(outside_loop_ns, starved_ns)
    overhead_ns = active_ns - busy_ns - starved_ns - blocked_ns
    unexplained_overhead_ns = overhead_ns - sum(side.spent_ns for side in hop_sides)
    idle_ns = _compute_idle_after_source_end_ns(first_stage, record, unexplained_overhead_ns)
    return ProcessLoad(
        name=first_stage.name,
        member_stages=member_stages,
        workers=max(first_stage.workers, 1),
        worker_divisor=first_stage.worker_divisor,
        active_ns=active_ns,
        work_ns=busy_ns + overhead_ns - idle_ns,
        run_ns=busy_ns,
        starved_share=starved_ns / max(active_ns, 1),
        blocked_share=blocked_ns / max(active_ns, 1),
        hop_sides=hop_sides,
        cpu_ns=first_stage.cpu_ns,
        cpu_wait_ns=first_stage.cpu_wait_ns,
        run_active_ns=int(compute_run_active_ns(record) * first_stage.worker_divisor),
        is_evidence=not (is_writer and has_few_parts(record)),
    )


def _compute_idle_after_source_end_ns(first_stage: StageRecord, record: RunRecord, unexplained_overhead_ns: int) -> int:
    """Return the idle time of a source that ended before the run: the overhead that its hops do not explain."""
    if first_stage is not record.stages[0] or not 0 < record.source_end_ns < record.wall_ns:
        return 0
    return max(min(record.wall_ns - record.source_end_ns, unexplained_overhead_ns), 0)


def _compute_consumer_load(record: RunRecord) -> ProcessLoad:
    """Return the consumer's load. Its wait for the first item belongs to the start-up and does not count."""
    stage_names = {stage.name for stage in record.stages}
    inbound_hops = [hop for hop in record.hops if hop.target not in stage_names]
    hop_sides = tuple(HopSide(hop, _compute_hop_side_ns(hop, _RECEIVING_PHASES)) for hop in inbound_hops)
    first_wait_ns = record.consumer.first_wait_ns or record.first_item_ns
    wait_ns = max(record.consumer.wait_ns - max(first_wait_ns, 0), 0)
    busy_ns = max(record.consumer.busy_ns, 0)
    receiving_ns = min(sum(side.spent_ns for side in hop_sides), wait_ns)  # receiving an item is work, not waiting
    active_ns = max(busy_ns + wait_ns, record.wall_ns - record.first_item_ns - record.consumer.outside_loop_ns)
    return ProcessLoad(
        name=CONSUMER,
        member_stages=(),
        workers=1,
        active_ns=active_ns,
        work_ns=busy_ns + receiving_ns,
        run_ns=busy_ns,
        starved_share=(wait_ns - receiving_ns) / max(active_ns, 1),
        blocked_share=0.0,
        hop_sides=hop_sides,
        run_active_ns=compute_run_active_ns(record),
        is_evidence=not has_few_parts(record),
    )


# ------------------------------------------------------------------ the evidence for a verdict

MAX_CONFIDENCE = 0.95
"""The highest possible confidence, because one run on one machine proves nothing."""

MIN_LIMITING_UTILIZATION = 0.6
"""A process with a lower utilization is not called the limit: it could do half as much work again."""

_MIN_REPORTED_WAIT_SHARE = 0.05
"""A sentence does not mention smaller shares of waiting."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The process with the highest utilization, and the waits of its neighbours."""

    record: RunRecord
    loads: tuple[ProcessLoad, ...]
    most_used: ProcessLoad
    second_most_used: ProcessLoad | None
    most_blocked_upstream: ProcessLoad | None  # the most blocked process before it
    most_starved_downstream: ProcessLoad | None  # the most starved process after it

    @property
    def has_busy_process(self) -> bool:
        """Whether the utilization of one process is high enough to call it the limit."""
        return self.most_used.utilization >= MIN_LIMITING_UTILIZATION

    @property
    def items(self) -> int:
        """The largest number of items of any stage."""
        return max(stage.items for stage in self.record.stages)


def gather_evidence(record: RunRecord) -> Evidence:
    """Return the evidence of a run with at least one stage."""
    loads = compute_process_loads(record)
    index = max(range(len(loads)), key=lambda i: (loads[i].is_evidence, loads[i].utilization))
    upstream = [load for load in loads[:index] if load.row != loads[index].row]  # not the other parts of the same row
    downstream = [load for load in loads[index + 1 :] if load.row != loads[index].row]
    return Evidence(
        record=record,
        loads=loads,
        most_used=loads[index],
        second_most_used=max(
            (load for load in (*upstream, *downstream) if load.is_evidence),
            key=lambda load: load.utilization,
            default=None,
        ),
        most_blocked_upstream=max(upstream, key=lambda load: load.blocked_share, default=None),
        most_starved_downstream=max(downstream, key=lambda load: load.starved_share, default=None),
    )


def compute_confidence(evidence: Evidence) -> float:
    """Return the confidence in the limit: high utilization, a lead, waiting neighbours and many items raise it."""
    utilization = evidence.most_used.utilization
    second_utilization = evidence.second_most_used.utilization if evidence.second_most_used else 0.0
    utilization_score = scale_to_unit(utilization, 0.4, 0.9)
    lead_score = scale_to_unit(utilization - second_utilization, 0.0, 0.3)
    blocked = evidence.most_blocked_upstream.blocked_share if evidence.most_blocked_upstream else 0.0
    starved = evidence.most_starved_downstream.starved_share if evidence.most_starved_downstream else 0.0
    waiting_score = scale_to_unit(max(blocked, starved), 0.0, 0.3)
    neighbour_factor = 0.5 + 0.3 * lead_score + 0.2 * waiting_score
    return round(MAX_CONFIDENCE * utilization_score * neighbour_factor * compute_sample_factor(evidence), 2)


def compute_sample_factor(evidence: Evidence) -> float:
    """Return a factor for the confidence by the number of items: from 0.6 for none to 1 for 100 and more."""
    return 0.6 + 0.4 * scale_to_unit(evidence.items, 0, 100)


def scale_to_unit(value: float, low: float, high: float) -> float:
    """Map `low` to `high` onto 0 to 1, and clip values outside."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def describe_growth(load: ProcessLoad, record: RunRecord, subject: str = "It") -> str:
    """Return a sentence about the changes of a process's number of workers; "" if there is nothing to report."""
    most = load.member_stages[0].max_workers if load.member_stages else 0
    numbers = list_worker_numbers(record.worker_changes).get(load.name, [])
    is_at_most = 0 < most <= load.workers
    if not numbers:
        return f" The bounds of {load.row} allow no more workers." if is_at_most else ""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f" {subject} has had {min(numbers)} to {max(numbers)} workers."
    end = ", the most its bounds allow" if is_at_most else ""
    return f" {subject} has {'grown' if last > first else 'shrunk'} from {first} to {last} workers{end}."


def describe_waiting_neighbours(evidence: Evidence) -> str:
    """Describe the neighbours that wait: the most blocked process before it and the most starved one after it."""
    upstream = evidence.most_blocked_upstream
    downstream = evidence.most_starved_downstream
    record = evidence.record
    waits = []
    if upstream is not None and upstream.blocked_share >= _MIN_REPORTED_WAIT_SHARE:
        name = name_process(upstream, record)
        waits.append(f"{name} was blocked {format_percent(upstream.blocked_share)} of the time")
    if downstream is not None and downstream.starved_share >= _MIN_REPORTED_WAIT_SHARE:
        name = name_process(downstream, record)
        waits.append(f"{name} waited for input {format_percent(downstream.starved_share)} of the time")
    return f", while {' and '.join(waits)}" if waits else ""


def name_process(load: ProcessLoad, record: RunRecord) -> str:
    """Return the name of a process in a sentence: `decode`, `the source`, `the training step`, `the sink jsonl`."""
    if load.name == CONSUMER:
        return f"the sink {get_consumer_row(record)}" if record.consumer.is_sink else f"the {record.consumer.name}"
    if load.row == get_source_row(record):
        return "the source"
    return f"the sink {load.row}".removesuffix(" sink") if load.member_stages[0].is_sink else load.name


def get_source_row(record: RunRecord) -> str:
    """Return the row of the source."""
    return record.stages[0].row


def capitalize(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def format_utilization(load: ProcessLoad) -> str:
    """Format `98 % of the time after start-up`."""
    return f"{format_percent(load.utilization)} of the time after start-up"


def format_hop(hop: HopRecord, record: RunRecord) -> str:
    """Return `decode -> augment`, with the rows of the report. A hop inside a row is shown as the hop into the row."""
    rows = {stage.name: stage.row for stage in record.stages}
    source, target = rows.get(hop.source, hop.source), rows.get(hop.target, hop.target)
    if source == target:
        before = [stage.row for stage in record.stages[: list(rows.values()).index(target)]]
        source = before[-1] if before else source
    return f"{source} -> {target}"


def format_hop_cost(hop: HopRecord) -> str:
    """Format `13 ms per message, 13 s in total`."""
    return f"{format_ns(hop.cost_histogram.mean_ns)} per message, {format_ns(hop.cost_histogram.sum_ns)} in total"


def format_count(number: int, plural: str) -> str:
    """Format a number with its noun.

    >>> format_count(1, "batches"), format_count(1000, "items")
    ('1 batch', '1,000 items')
    """
    return f"{number:,} {name_count(number, plural)}"


def name_count(number: int, plural: str) -> str:
    """Return the noun for a number: for 1, the singular of `items`, `batches` or `files`."""
    return {"batches": "batch"}.get(plural, plural.removesuffix("s")) if number == 1 else plural


# ------------------------------------------------------------------ changes of the number of workers


def list_worker_numbers(changes: Iterable[WorkerChangeRecord]) -> dict[str, list[int]]:
    """Return the successive numbers of workers of each stage whose number has changed.

    >>> list_worker_numbers([WorkerChangeRecord(at_ns=0, stage="decode", workers=2, delta=1)])
    {'decode': [1, 2]}
    """
    numbers: dict[str, list[int]] = {}
    for change in changes:
        if not change.failure:
            numbers.setdefault(change.stage, [change.workers - change.delta]).append(change.workers)
    return numbers


def format_worker_numbers(numbers: Sequence[int], arrow: str = "→") -> str:
    """Format the first and the last number of workers, and the largest or smallest one if it is outside of these.

    >>> format_worker_numbers([1, 2, 3, 4]), format_worker_numbers([2, 3, 4, 3])
    ('1 → 4', '2 → 3, at most 4')
    """
    first, last = numbers[0], numbers[-1]
    text = f"{first} {arrow} {last}"
    if max(numbers) > max(first, last):
        text += f", at most {max(numbers)}"
    return f"{text}, at least {min(numbers)}" if min(numbers) < min(first, last) else text


def format_worker_change(change: WorkerChangeRecord, arrow: str = "→") -> str:
    """Format a change of the number of workers, and its reason.

    >>> format_worker_change(WorkerChangeRecord(at_ns=0, stage="decode", workers=2, delta=1, reason="it was busy 98 %"))
    'decode 1 → 2 workers: it was busy 98 %'
    """
    if change.failure:
        return f"no additional worker for {change.stage}: {change.failure}"
    text = f"{change.stage} {change.workers - change.delta} {arrow} {format_count(change.workers, 'workers')}"
    return f"{text}: {change.reason}" if change.reason else text
