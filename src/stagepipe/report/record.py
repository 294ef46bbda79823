"""What the engine counted in one run, as it stands: the input of this layer. Durations are ns, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stagepipe.timing import Histogram

PHASES = ("encode_ns", "copy_ns", "send_ns", "send_wait_ns", "queue_ns", "receive_ns", "decode_ns")
"""The phases of a hop, in the order in which an item passes them."""


@dataclass(frozen=True)
class StageRecord:
    """One stage, all its workers added up. Its first entry in a pipeline is the source.

    `wall_ns` is the sum over the stage's workers, from their start to the end of the run; starting, busy, starved
    (waiting for input) and blocked (waiting for the next stage) are parts of it; the rest is overhead. A fused stage
    shares its process: its `fused_into` names the process's first stage, its `wall_ns` is its busy time, its waits
    are 0.
    """

    name: str
    workers: int
    items: int
    wall_ns: int
    starting_ns: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    run: Histogram
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    errors: int = 0
    skipped: int = 0
    retries: int = 0
    crashes: int = 0
    fused_into: str | None = None


@dataclass(frozen=True)
class RuleChange:
    """A hop's threshold was moved after so many messages, by what they cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


@dataclass(frozen=True)
class HopRecord:
    """One hop, all workers of both its sides added up. A fused hop has mode `local` and only messages."""

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    messages: Mapping[str, int]
    bytes: Mapping[str, int]
    cost: Histogram
    phases: Mapping[str, Histogram]
    predicted_pipe_ns: int = 0
    predicted_shared_memory_ns: int = 0
    predicted_ns: int = 0  # of the messages as they went, the median
    measured_ns: int = 0  # the same, as paid
    saved_ns: int = 0
    changes: tuple[RuleChange, ...] = ()


@dataclass(frozen=True)
class SlowItem:
    """One of the slowest items of the run."""

    item: str
    stage: str
    run_ns: int
    queue_ns: int


@dataclass(frozen=True)
class RunRecord:
    """One run. `delivered` is a thinned list of (ns since the start, samples delivered so far), oldest first."""

    name: str
    config_sha256: str
    status: str  # "finished" | "failed" | "interrupted"
    error: str | None
    items_in: int
    items_out: int
    samples_out: int
    items_skipped: int
    wall_ns: int
    first_item_ns: int
    source_end_ns: int
    delivered: tuple[tuple[int, int], ...]
    consumer_wait_ns: int  # the consumer (training loop, sink, `run`) waited for an item
    consumer_busy_ns: int  # it worked on one
    stages: tuple[StageRecord, ...]
    hops: tuple[HopRecord, ...]
    timing_ns_per_hop: int
    timing_how: str
    host: Mapping[str, Any]
    calibration: Mapping[str, Any]
    arena_peak_bytes: int = 0
    arena_limit_bytes: int = 0
    copied_out_items: int = 0
    cpus: int = 1
    slowest: tuple[SlowItem, ...] = ()
    dead_letters: tuple[Mapping[str, Any], ...] = ()
    restarts: tuple[Mapping[str, Any], ...] = ()
    order_points: tuple[str, ...] = field(default_factory=tuple)  # stages that can have only one worker
    window: int = 0  # items that may be in flight at once; 0: not known
    consumer_name: str = "consumer"  # what the report calls it: a training loop's is the training step
    consumer_first_wait_ns: int = 0  # of the wait: until the very first item was there
    consumer_outside_ns: int = 0  # nobody iterated: between two epochs, and behind the last one


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for a progress bar or a line of log."""

    elapsed_ns: int
    items_in: int
    items_total: int | None
    items_out: int
    samples_out: int
    samples_per_s: float
    starting: tuple[str, ...]  # stages whose workers are not all ready
    busiest: str  # the stage with the largest share of busy workers, "" while unknown
    finished: bool = False
    items_per_s: float = 0.0  # of the source: what there is to tell until the first sample is out
