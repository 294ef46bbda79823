"""The figures that an engine counts in one run: the input of the report. Durations are in ns, sizes in bytes.

The types of the first two sections also belong to the schema `stagepipe.report/2`: the report (`model`) prints them as
the engine counts them. The types of the last section are used only in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec

from stagepipe.timing import Histogram, StageCounter

# ------------------------------------------------------------------ figures of a record and of its report


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of the run. `versions` maps package names to versions."""

    cpus: int = 0
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)


class TimingOverhead(msgspec.Struct, frozen=True):
    """The cost of the timing itself, in ns per hop, and how it was determined."""

    ns_per_hop: int = 0
    how: str = ""


class StageTally(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a stage, summed over its workers: one field for each `StageCounter` of the board, by its name.

    Live figures, record and report have these fields, so a new counter is one line here and one in `COUNT_COLUMNS`.

    `items` are the items that the stage ran on; `passed_by` are items that its `when` does not match. `errors` are
    failed attempts, including repeated ones; `skipped` are items that were dropped or given up, `dead_letters` items
    that were given up after an error. `repeated_ns` is the time of repeated attempts and is not part of `busy_ns`.
    """

    name: str
    items: int = 0
    skipped: int = 0
    passed_by: int = 0
    errors: int = 0
    retries: int = 0
    dead_letters: int = 0
    busy_ns: int = 0
    repeated_ns: int = 0

    @classmethod
    def from_counters(cls, name: str, counters: Sequence[int]) -> Self:
        """Return the tally of a stage from its counters, indexed by `StageCounter`."""
        return cls(name=name, **{field: counters[counter] for field, counter in _COUNTERS.items()})


_COUNTERS: Final = {
    field: StageCounter["FAILED_ATTEMPTS" if field == "errors" else field.upper()]
    for field in StageTally.__struct_fields__
    if field != "name"
}


class CountColumn(NamedTuple):
    """How to show a count: as a column of the report under `heading` if any stage has a value, and for Prometheus.

    With `is_failure`, the count is in the table of failures. An empty `heading` means no column, an empty `metric` no
    metric.
    """

    field: str
    heading: str
    metric: str = ""
    text: str = ""
    is_failure: bool = False


COUNT_COLUMNS: Final = (
    CountColumn("errors", "errors", "stage_failed_attempts", "Calls that raised an error.", is_failure=True),
    CountColumn(
        "skipped",
        "skipped",
        "stage_skipped_items",
        "Items that the stage dropped, or that were skipped after an error.",
        is_failure=True,
    ),
    CountColumn("retries", "retries", "stage_retries", "Calls that were repeated.", is_failure=True),
    CountColumn("crashes", "crashes", is_failure=True),
    CountColumn("passed_by", "passed by", "stage_passed_by_items", "Items that the stage's `when` does not match."),
    CountColumn("items", "", "stage_items", "Items that the stage has finished."),
    CountColumn("dead_letters", "", "stage_dead_letters", "Items that went to the dead letters."),
)
"""The counts of a stage, from left to right. To add one, add a field to `StageTally` and a line here."""


class StageFigures(StageTally, frozen=True, kw_only=True):
    """The figures that the record of a stage and its row in the report share. Counts and times are sums over workers.

    `workers` is their number at the end of the run. `min_workers` and `max_workers` are the bounds of a number that
    follows the work; 0: it is fixed. If the number has changed, `mean_workers` is its mean over the run; else it is 0.
    `crashes` counts the deaths of its workers. `fused_into` names the first stage of the process that a fused stage
    shares. Without `is_blocked_measured`, `starved` is all waiting: the workers of some engines cannot distinguish a
    full next stage from missing input.
    """

    workers: int
    mean_workers: float = 0.0
    min_workers: int = 0
    max_workers: int = 0
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    crashes: int = 0
    fused_into: str | None = None
    is_blocked_measured: bool = True

    @property
    def worker_divisor(self) -> float:
        """Divisor that turns a sum over the workers into the value of one worker: their mean number over the run."""
        return self.mean_workers or max(self.workers, 1)


SUMMED_FIGURES: Final = (
    *(field for field in _COUNTERS if field not in {"items", "passed_by"}),
    *("cpu_ns", "rss_bytes", "pss_bytes", "crashes"),
)
"""The figures that a row with several processes adds up."""


class HopThresholdChange(msgspec.Struct, frozen=True):
    """A change of a hop's threshold during the run, after `messages` messages, based on their measured cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


class HopTransport(msgspec.Struct, frozen=True):
    """How the messages of a hop travel, and why.

    `mode` is `local`, `pipe`, `shared_memory`, `auto`, `object_store`, or the name of a registered transport.
    Buffers of `threshold_bytes` or more go to shared memory. It is the value at the end of the run; `changes` lists the
    earlier changes.
    """

    mode: str
    threshold_bytes: int
    reason: str
    changes: tuple[HopThresholdChange, ...] = ()

    @property
    def carrier(self) -> str:
        """The carrier of buffers outside of packets: shared memory, or the transport that the config names."""
        is_built_in = self.mode in {"local", "pipe", "shared_memory", "auto", "object_store"}
        return "shared_memory" if is_built_in else self.mode


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a hop by transport. A `mixed` message had buffers in the pipe and in shared memory.

    `object_store` counts messages through the object store of the engine's cluster.
    """

    local: int = 0
    pipe: int = 0
    shared_memory: int = 0
    mixed: int = 0
    object_store: int = 0

    @property
    def total(self) -> int:
        """The messages of all transports."""
        return self.local + self.pipe + self.shared_memory + self.mixed + self.object_store


class ByteCounts(msgspec.Struct, frozen=True):
    """Bytes of a hop: sent in the pipe, copied into shared memory, or already there and passed by reference."""

    inline: int = 0
    copied: int = 0
    zero_copy: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.inline + self.copied + self.zero_copy


class StoreHopReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an object store for a hop through it, summed over the run. None: the store does not report it.

    Each duration comes from one clock, or is a difference of two durations: clocks of two nodes are never compared.
    `put_ns` is the time in which the sending workers serialized blocks and put them into the store; `get_ns` is the
    time in which the calling process got them (only for the last hop). `wait_ns` is the time of all tasks from request
    to start: in the scheduler's queues, and to fetch the block. `held_ns` is how long finished blocks waited because
    the next stage was full. `moved_bytes` were made on another node, `spilled_bytes` had been written to disk.
    """

    blocks: int | None = None
    block_bytes: int | None = None
    put_ns: int | None = None
    wait_ns: int | None = None
    held_ns: int | None = None
    get_ns: int | None = None
    moved_bytes: int | None = None
    spilled_bytes: int | None = None


class StoreNodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The object store of one node of a cluster during the run. The figures cover all programs that use the store.

    `node` is the beginning of the node's id, as the cluster's own tools show it. A full store (`store_bytes`) spills
    blocks to disk and restores them when they are needed.
    """

    node: str
    cpus: float = 0.0
    store_bytes: int = 0
    spilled_bytes: int = 0
    spill_ns: int = 0
    restored_bytes: int = 0
    restore_ns: int = 0

    @property
    def disk_ns(self) -> int:
        """The time in which the node wrote blocks to disk or read them back."""
        return self.spill_ns + self.restore_ns


class CostPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted cost of a message by this machine's calibration, in ns (0: unknown), next to the measured cost.

    `pipe_ns` and `shared_memory_ns` are means, as if all messages had used that transport. `median_ns` is the median
    for the transport that each message used, and `measured_median_ns` is its measured counterpart. Pickling costs the
    same in both modes; all four include the measured time of it. `measured_ratio` is `measured_median_ns / median_ns`.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    median_ns: int = 0
    measured_median_ns: int = 0
    measured_ratio: float = 0.0


class SharedMemoryReport(msgspec.Struct, frozen=True):
    """The shared memory of the run.

    `copied_out_items` reached the consumer as copies, because other processes still held them.
    """

    arena_peak_bytes: int = 0
    arena_limit_bytes: int = 0
    copied_out_items: int = 0


class SlowItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the slowest items: the time in the stage's function, and in the queue before it.

    `label` is the name of the item in errors, such as its file path; it is empty for quick items and unnamed ones.
    """

    item: str
    stage: str
    run_ns: int
    queue_ns: int
    label: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An item that failed and was skipped (`on_error: skip`).

    `source_items` are the numbers of the source items from which it was made, valid for the source with the fingerprint
    `source_sha256` (of its config and seed). `trace` is the original traceback.

    >>> letter = DeadLetter(item="3", stage="decode", error="ValueError: bad header", attempts=3, source_items=(3,))
    >>> letter.source_items
    (3,)
    """

    item: str
    stage: str
    error: str
    attempts: int
    epoch: int = 0
    source_items: tuple[int, ...] = ()
    source_sha256: str = ""
    trace: str = ""


class WorkerRestartReport(msgspec.Struct, frozen=True, kw_only=True):
    """A restart from the last delivered item. `lost_ns` is the time until the next item was delivered, in ns.

    `kind` is `death` (a worker died and another one replaced it) or `stall` (no item moved although no worker died:
    then `stage` and `item` are empty and `worker` is -1). `cause` is the reason.
    """

    stage: str
    worker: int
    cause: str
    item: str
    lost_ns: int
    kind: Literal["death", "stall"] = "death"


class WorkerChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a stage's number of workers during the run: `workers` after it, `delta` more; negative: fewer.

    The run decided it `at_ns` after its start, for `reason`. It took effect `took_ns` later: the worker was ready, or
    took no more items; 0: the run ended before. Gains are shares of the stage's rate, 0 while unknown: `expected_gain`
    was predicted by the decision, `measured_gain` compares some seconds before and after. `failure` says why no worker
    could start; then nothing has changed.
    """

    at_ns: int
    stage: str
    workers: int
    delta: int
    reason: str = ""
    expected_gain: float = 0.0
    measured_gain: float = 0.0
    took_ns: int = 0
    failure: str = ""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated effect of a single change; `items_per_s` has the unit of `RunReport.items_per_s`.

    `kind` names the change, such as `workers`, `concurrency`, `fuse`, `mode` or `without`, and `change` describes it.
    `overrides` are for the command line; `without` has none. `gain` is a share: 0.5 is 50 % faster. For `mode`, giving
    up a forced transport, it is a minimum. `gain_low` is the lower bound of the gain. `ineligible_reason` says why the
    verdict does not offer the change; it is empty if it may.
    """

    kind: str
    change: str
    items_per_s: float
    gain: float
    overrides: tuple[str, ...] = ()
    gain_low: float = 0.0
    ineligible_reason: str = ""

    @property
    def is_eligible(self) -> bool:
        """Whether the verdict may offer the change."""
        return bool(self.overrides) and not self.ineligible_reason and self.gain_low > 0

    def format_gain(self) -> str:
        """Return the gain as text, such as `+50 %`, with its sign."""
        return format_gain(self.gain)


def format_gain(share: float) -> str:
    """Format a gain, or a loss.

    >>> format_gain(0.5)
    '+50 %'
    """
    return f"{round(share * 100):+d} %"


class ConsumerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The training loop, the sink or `run`: how long it waited for items and how long it worked on them.

    `first_wait_ns` is the part of the wait before the first item. `outside_loop_ns` is the time without iteration,
    between two epochs and after the last; it counts as neither waiting nor work. With `is_sink`, the consumer is a sink
    without workers, or the step that puts the parts of sinks with workers in order; for the parts, `items` and `files`
    count the written items and files.
    """

    wait_ns: int = 0
    busy_ns: int = 0
    name: str = "consumer"
    first_wait_ns: int = 0
    outside_loop_ns: int = 0
    is_sink: bool = False
    items: int = 0
    files: int = 0


# ------------------------------------------------------------------ the run over time, and the sizes of messages


class StageSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One process over time, named after its first stage: a value for each interval of `Series.times_ns`.

    `items_per_s` is the rate of items that its workers finished. `busy`, `starved` and `blocked` are shares of the time
    of its workers, 0 to 1; the rest is overhead and start-up. `workers` is their number at the end of each interval; it
    is empty if the number never changed.
    """

    name: str
    items_per_s: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    starved: tuple[float, ...] = ()
    blocked: tuple[float, ...] = ()
    workers: tuple[int, ...] = ()


class HopSeries(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One hop between processes over time: the mean number of messages that waited to be received, in each interval.

    By Little's law (Operations Research 9, 1961) it is the total wait of the received messages, divided by the time.
    """

    source: str
    target: str
    queued: tuple[float, ...] = ()


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of all workers together at one time, in ns after the start of the run."""

    time_ns: int
    bytes: int


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The run over time. `times_ns` are the ends of the intervals, in ns after the start; at most 240, evenly spaced.

    `shared_memory_bytes` is the shared memory in use at the end of each interval. `rss_bytes` (resident) and
    `pss_bytes` (proportional) are the memory of the workers, sampled about every second and every ten seconds.
    """

    times_ns: tuple[int, ...] = ()
    stages: tuple[StageSeries, ...] = ()
    hops: tuple[HopSeries, ...] = ()
    shared_memory_bytes: tuple[int, ...] = ()
    rss_bytes: tuple[MemoryPoint, ...] = ()
    pss_bytes: tuple[MemoryPoint, ...] = ()


class SizeCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages of a hop with a payload from `min_bytes` to below `max_bytes`."""

    min_bytes: int
    max_bytes: int
    messages: int


# ------------------------------------------------------------------ the record

PHASES = ("encode_ns", "copy_ns", "pack_wait_ns", "send_ns", "send_wait_ns", "queue_ns", "receive_ns", "decode_ns")
"""The phases of a hop, in the order in which a message passes through them."""


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one worker: its items, and the time in its stages' functions."""

    items: int
    busy_ns: int


class MemoryPressure(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of `memory` on the window: only `fitting_items` of `window_items` fitted, at about `item_bytes` each.

    A `memory` of `wanted_bytes` holds the whole window.
    """

    item_bytes: int
    fitting_items: int
    window_items: int
    wanted_bytes: int


class StageRecord(StageFigures, frozen=True, kw_only=True):
    """One stage, summed over its workers. The first stage of a run is the source.

    `wall_ns` runs from the start of each worker to the end of the run. It consists of starting, busy, starved (waiting
    for input), blocked (waiting for the next stage) and the rest, which is overhead. For a fused stage, which shares
    its process, `wall_ns` equals the busy time, and the waits are 0.
    """

    wall_ns: int
    starting_ns: int
    starved_ns: int
    blocked_ns: int
    run_histogram: Histogram
    cpu_wait_ns: int = 0  # runnable, but other processes had the CPUs
    threads: int = 1  # threads that each worker may use
    concurrency: int = 1  # items in progress in each worker; its busy time is the time of all of them, divided by it
    is_stateful: bool = False  # `stateful: true`: each worker would have its own state
    worker_loads: tuple[WorkerLoad, ...] = ()  # one per worker of the process; () for a fused stage
    config_path: str = ""  # path for overrides; empty: `stages.NAME`
    part_of: str = ""  # the config row of this inner process; empty: the user wrote the stage

    @property
    def row(self) -> str:
        """The row of the report for this stage, named as in the config."""
        return self.part_of or self.name

    @property
    def is_sink(self) -> bool:
        """Whether it makes or writes the parts of a sink with workers."""
        return self.config_path.partition(".")[0] == "sink"


class HopFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that the record of a hop and its row in the report share.

    `saved_ns` is the time saved in the whole run against the mode not chosen, by this machine's calibration. `sizes`
    counts its messages by size, smallest first, without empty ranges. `store` is set only for a hop through the object
    store of the engine's cluster.
    """

    transport: HopTransport
    messages: MessageCounts
    bytes: ByteCounts
    predicted: CostPrediction
    saved_ns: int = 0
    sizes: tuple[SizeCount, ...] = ()
    store: StoreHopReport | None = None


class HopRecord(HopFigures, frozen=True, kw_only=True):
    """One hop, summed over the workers on both sides. A fused hop has mode `local` and counts only messages."""

    source: str
    target: str
    cost_histogram: Histogram
    phase_histograms: Mapping[str, Histogram]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the record of a run and its report share. `store_nodes` are the nodes with an object store."""

    name: str
    config_sha256: str
    host: HostReport
    calibration: Mapping[str, Any]
    memory: SharedMemoryReport
    consumer: ConsumerReport = ConsumerReport()
    slowest: tuple[SlowItem, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    restarts: tuple[WorkerRestartReport, ...] = ()
    series: Series = Series()
    what_if: tuple[WhatIf, ...] = ()
    worker_changes: tuple[WorkerChangeRecord, ...] = ()
    store_nodes: tuple[StoreNodeReport, ...] = ()


class RunRecord(RunFacts, frozen=True, kw_only=True):
    """One run. `delivery_points` is a thinned list of (ns since the start, samples delivered so far), oldest first."""

    status: str  # "finished" | "failed" | "interrupted"
    error: str | None
    items_in: int
    items_out: int
    samples_out: int
    items_skipped: int
    wall_ns: int
    first_item_ns: int
    source_end_ns: int
    delivery_points: tuple[tuple[int, int], ...]
    stages: tuple[StageRecord, ...]
    hops: tuple[HopRecord, ...]
    timing_overhead: TimingOverhead
    cpus: int = 1
    other_cpus: float = 0.0  # mean number of CPUs that other programs used
    yielding_cpus: float = 0.0  # the part of `other_cpus` with a lower priority, which gives way
    cpu_quota: float = 0.0  # CPUs that the control group may use; 0: no limit
    throttled_share: float = 0.0  # share of the quota's periods in which the quota was used up
    order_point_names: tuple[str, ...] = ()  # stages that run in one worker
    window_items: int = 0  # maximum number of items in flight; 0: unknown
    is_window_fixed: bool = False  # the config fixes the window: it does not grow with the workers
    is_ordered: bool = True  # items come out in the order of the source
    is_inline: bool = False  # all stages ran in the calling process, one after the other
    caller_cpu_ns: int = 0  # CPU time of that process during the run; 0: unknown
    memory_pressure: MemoryPressure | None = None
    scheduler: str = ""  # name of the scheduler that starts the workers instead of stagepipe, for sentences
    store_option: str = ""  # the scheduler's option for a larger object store
