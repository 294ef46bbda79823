"""What an engine counted in one run: the input of the report. Pure. Durations are in ns, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stagepipe.report.series import Series, SizeCount
from stagepipe.report.shared_types import (
    ByteCounts,
    ConsumerReport,
    CostPrediction,
    DeadLetter,
    HopTransport,
    HostReport,
    MessageCounts,
    SharedMemoryReport,
    SlowItem,
    StageFigures,
    StoreHopReport,
    StoreNodeReport,
    TimingOverhead,
    WhatIf,
    WorkerRestartReport,
)
from stagepipe.timing import Histogram

PHASES = ("encode_ns", "copy_ns", "pack_wait_ns", "send_ns", "send_wait_ns", "queue_ns", "receive_ns", "decode_ns")
"""The phases of a hop, in the order in which an item passes through them."""


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did: its items, and the time in its stages' functions."""

    items: int
    busy_ns: int


class MemoryPressure(msgspec.Struct, frozen=True, kw_only=True):
    """That `memory` held back items of a window of `window_items`: `fitting_items` of about `item_bytes` fitted.

    `wanted_bytes` is the `memory` that holds the window.
    """

    item_bytes: int
    fitting_items: int
    window_items: int
    wanted_bytes: int


class StageRecord(StageFigures, frozen=True, kw_only=True):
    """One stage, summed over its workers. The first stage of a run is the source.

    `wall_ns` runs from the start of each worker to the end of the run. It consists of starting, busy, starved (waiting
    for input), blocked (waiting for the next stage) and the rest, which is overhead. The `wall_ns` of a fused stage,
    which shares its process, equals the busy time, and its waits are 0.
    """

    wall_ns: int
    starting_ns: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    run_histogram: Histogram
    cpu_wait_ns: int = 0  # runnable, but other processes had the CPUs
    repeated_ns: int = 0  # in attempts that failed and were repeated: a part of the overhead
    threads: int = 1  # that each worker may use
    is_stateful: bool = False  # `stateful: true`: each worker would have a state of its own
    worker_loads: tuple[WorkerLoad, ...] = ()  # of each worker of the process; () for a fused stage
    config_path: str = ""  # where an override finds it; empty: `stages.NAME`
    part_of: str = ""  # the row of the config that this inner process belongs to; empty: the user wrote it

    @property
    def row(self) -> str:
        """The row of the report that it belongs to: what the user wrote in the config."""
        return self.part_of or self.name

    @property
    def is_sink(self) -> bool:
        """Whether it makes or writes the parts of a sink with workers."""
        return self.config_path.partition(".")[0] == "sink"


class HopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One hop, summed over the workers on both sides. A fused hop has mode `local` and counts only messages."""

    source: str
    target: str
    transport: HopTransport
    messages: MessageCounts
    bytes: ByteCounts
    cost_histogram: Histogram
    phase_histograms: Mapping[str, Histogram]
    predicted: CostPrediction
    saved_ns: int = 0
    sizes: tuple[SizeCount, ...] = ()
    store: StoreHopReport | None = None  # of a hop through an object store


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
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
    consumer: ConsumerReport
    stages: tuple[StageRecord, ...]
    hops: tuple[HopRecord, ...]
    timing_overhead: TimingOverhead
    host: HostReport
    calibration: Mapping[str, Any]
    memory: SharedMemoryReport
    cpus: int = 1
    other_cpus: float = 0.0  # mean number of CPUs that other programs used
    yielding_cpus: float = 0.0  # of these, those of programs with a lower priority, which give way
    cpu_quota: float = 0.0  # CPUs that the control group may use; 0: no limit
    throttled_share: float = 0.0  # share of the quota's periods in which it was used up
    slowest: tuple[SlowItem, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    restarts: tuple[WorkerRestartReport, ...] = ()
    order_point_names: tuple[str, ...] = ()  # stages that run in one worker
    window_items: int = 0  # maximum number of items in flight; 0: unknown
    is_window_fixed: bool = False  # by the config: it does not grow with the workers
    is_ordered: bool = True  # items come out in the order of the source
    is_inline: bool = False  # all stages ran in the calling process, one after the other
    caller_cpu_ns: int = 0  # CPU time of that process during the run; 0: unknown
    memory_pressure: MemoryPressure | None = None
    series: Series = Series()
    what_if: tuple[WhatIf, ...] = ()
    store_nodes: tuple[StoreNodeReport, ...] = ()  # of a cluster with an object store
    scheduler: str = ""  # what schedules the workers instead of stagepipe, by its name in sentences
    store_option: str = ""  # how its users give the nodes a larger object store
