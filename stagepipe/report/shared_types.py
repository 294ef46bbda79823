"""What an engine counts in the very form that the report prints: in records (`record`) and reports (`model`). Pure.

The types are a part of the schema `stagepipe.report/2`. Durations are integer ns, sizes are bytes.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec


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


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage counts that its record and its row in the report have alike. Counts and times are sums over workers.

    `items` are those that the stage ran on; `passed_by` are those that its `when` does not match. `errors` are failed
    attempts, `skipped` the items that are given up, `crashes` the deaths of its workers. `fused_into` names the first
    stage of the process that a fused stage shares. Without `is_blocked_measured`, `starved` is all waiting: a
    worker of some engines cannot tell a full next stage from missing input.
    """

    name: str
    workers: int
    items: int
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    errors: int = 0
    skipped: int = 0
    passed_by: int = 0
    retries: int = 0
    crashes: int = 0
    fused_into: str | None = None
    is_blocked_measured: bool = True


SUMMED_FIGURES: Final = ("cpu_ns", "rss_bytes", "pss_bytes", "errors", "skipped", "retries", "crashes")
"""The figures that a row of several processes sums over them."""


class HopThresholdChange(msgspec.Struct, frozen=True):
    """A change of a hop's threshold during the run, after `messages` messages, based on their measured cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


class HopTransport(msgspec.Struct, frozen=True):
    """How the messages of a hop travel, and why. `mode` is `local`, `pipe`, `shared_memory`, `auto` or `object_store`.

    Buffers of `threshold_bytes` and more go to shared memory. This is the value at the end of the run; `changes` lists
    how it got there.
    """

    mode: str
    threshold_bytes: int
    reason: str
    changes: tuple[HopThresholdChange, ...] = ()


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a hop by transport. A `mixed` message had buffers in the pipe and in shared memory.

    Those in the `object_store` went through that of the engine's cluster.
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
    """What an object store tells of a hop through it: sums over the run. None: it does not tell.

    Each duration is of one clock, or the difference of two durations: clocks of two nodes are never compared. `put_ns`
    is the time to serialize blocks and to put them into the store, by the workers that sent them; `get_ns` is the time
    in which the calling process got them (the last hop alone). `wait_ns` is the time of all tasks from their request to
    their start: in the scheduler's queues, and to fetch the block. `held_ns` is how long finished blocks were not
    taken, because what comes after was full. `moved_bytes` were made on another node, `spilled_bytes` had been written
    to disk.
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
    """The object store of one node of a cluster, during the run: all programs that use it are in its figures.

    `node` is the beginning of the node's id, as the cluster's own tools show it. Blocks are spilled to disk where the
    store of `store_bytes` is full, and restored when they are needed.
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
        """The time that the node wrote blocks to disk, or read them from there."""
        return self.spill_ns + self.restore_ns


class CostPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a message costs by this machine's calibration, in ns (0: unknown), next to what it did cost.

    `pipe_ns` and `shared_memory_ns` are means, as if all messages had used that transport. `median_ns` is the median
    for the transport that each message used, and `measured_median_ns` is its measured counterpart. Pickling costs the
    same in both modes; all four include it as measured. `measured_ratio` is `measured_median_ns / median_ns`.
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

    `label` is what errors call the item, such as the path of its file; empty if it has none, and for quick items.
    """

    item: str
    stage: str
    run_ns: int
    queue_ns: int
    label: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An item that failed and was skipped (`on_error: skip`).

    `source_items` are the numbers of the source items that it was made from. They are valid for the source with the
    fingerprint `source_sha256` (of its config and seed). `trace` is the original traceback.

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

    `kind` is `death` (a worker died and another took its place) or `stall` (no item moved, and no worker died: then
    `stage` and `item` are empty and `worker` is -1). `cause` says why.
    """

    stage: str
    worker: int
    cause: str
    item: str
    lost_ns: int
    kind: Literal["death", "stall"] = "death"


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of what one change alone would have given. `items_per_s` is in the unit of `RunReport.items_per_s`.

    `kind` is `workers`, `fuse`, `mode` or `without`. `change` says it in words, `overrides` are for the command
    line; a stage cannot be left out by an override. `gain` is a share: 0.5 is half as much again. That of `mode`, a
    forced transport given up, is the least to expect. `gain_low` is the lower bound of the gain. `ineligible_reason`
    says why the verdict does not offer the change although it would gain: empty if it may.
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
        """`+50 %`; the sign tells a gain from a loss."""
        return f"{round(self.gain * 100):+d} %"


class ConsumerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The training loop, the sink or `run`: how long it waited for items and how long it worked on them.

    `first_wait_ns` is the part of the wait before the first item. `outside_loop_ns` is the time without iteration,
    between two epochs and after the last; it counts as neither waiting nor work. `is_sink`: it is a sink
    without workers, or what puts the parts of sinks with workers in their order: of these, `items` and `files` are what
    was written.
    """

    wait_ns: int = 0
    busy_ns: int = 0
    name: str = "consumer"
    first_wait_ns: int = 0
    outside_loop_ns: int = 0
    is_sink: bool = False
    items: int = 0
    files: int = 0
