"""What an engine counted in one run: the input of the report. Pure. Durations are in ns, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stagepipe.timing import Histogram

PHASES = ("encode_ns", "copy_ns", "send_ns", "send_wait_ns", "queue_ns", "receive_ns", "decode_ns")
"""The phases of a hop, in the order in which an item passes through them."""


@dataclass(frozen=True)
class StageRecord:
    """One stage, summed over its workers. The first stage of a run is the source.

    `wall_ns` runs from the start of each worker to the end of the run. It consists of starting, busy, starved (waiting
    for input), blocked (waiting for the next stage) and the rest, which is overhead. A fused stage shares its process:
    `fused_into` names the first stage of that process, `wall_ns` equals the busy time, and the waits are 0.
    """

    name: str
    workers: int
    items: int
    wall_ns: int
    starting_ns: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    run_histogram: Histogram
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    errors: int = 0
    skipped: int = 0
    retries: int = 0
    crashes: int = 0
    fused_into: str | None = None


@dataclass(frozen=True)
class HopThresholdChange:
    """A change of a hop's threshold after `messages` messages, based on their measured cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


@dataclass(frozen=True)
class HopRecord:
    """One hop, summed over the workers on both sides. A fused hop has mode `local` and counts only messages."""

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    message_counts: Mapping[str, int]
    byte_counts: Mapping[str, int]
    cost_histogram: Histogram
    phase_histograms: Mapping[str, Histogram]
    predicted_pipe_ns: int = 0
    predicted_shared_memory_ns: int = 0
    predicted_median_ns: int = 0  # median cost, with the transport that each message used
    measured_median_ns: int = 0  # the same, measured
    saved_ns: int = 0
    threshold_changes: tuple[HopThresholdChange, ...] = ()


@dataclass(frozen=True)
class SlowItem:
    """One of the slowest items of the run."""

    item: str
    stage: str
    run_ns: int
    queue_ns: int


@dataclass(frozen=True)
class RunRecord:
    """One run. `delivery_points` is a thinned list of (ns since the start, samples delivered so far), oldest first."""

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
    delivery_points: tuple[tuple[int, int], ...]
    consumer_wait_ns: int  # time in which the consumer (training loop, sink, `run`) waited for items
    consumer_busy_ns: int  # time in which it worked on them
    stages: tuple[StageRecord, ...]
    hops: tuple[HopRecord, ...]
    timing_ns_per_hop: int
    timing_method: str
    host_info: Mapping[str, Any]
    calibration: Mapping[str, Any]
    arena_peak_bytes: int = 0
    arena_limit_bytes: int = 0
    copied_out_items: int = 0
    cpus: int = 1
    slowest_items: tuple[SlowItem, ...] = ()
    dead_letters: tuple[Mapping[str, Any], ...] = ()
    restarts: tuple[Mapping[str, Any], ...] = ()
    order_point_names: tuple[str, ...] = field(default_factory=tuple)  # stages that run in one worker
    window_items: int = 0  # maximum number of items in flight; 0: unknown
    consumer_name: str = "consumer"  # its name in the report: "training step" for a training loop
    consumer_first_wait_ns: int = 0  # the part of the wait before the first item
    consumer_outside_loop_ns: int = 0  # time without iteration: between two epochs and after the last


@dataclass(frozen=True)
class Progress:
    """The progress of a run, for a progress bar or a log line."""

    elapsed_ns: int
    items_in: int
    items_total: int | None
    items_out: int
    samples_out: int
    samples_per_s: float
    starting: tuple[str, ...]  # stages with workers that are not ready yet
    busiest: str  # the stage with the largest share of busy workers; "" while unknown
    finished: bool = False
    items_per_s: float = 0.0  # items per second at the source: a rate to show before the first sample is out
