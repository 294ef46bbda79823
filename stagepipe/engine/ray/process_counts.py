"""What all workers of a process have counted, added up block by block. Pure; in the caller's process."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add

from stagepipe.engine.ray.counts import BlockCounts, HopClock, StageCounts
from stagepipe.engine.ray.store_statistics import StoreStatistics
from stagepipe.engine.recording import MAX_SLOW_ITEMS
from stagepipe.plan import Plan
from stagepipe.timing import Histogram, StageCounter


@dataclass(kw_only=True)
class WorkerClock:
    """The time of one worker, by its own clock, in ns: from its first block to its last, and within blocks."""

    began_ns: int
    ended_ns: int = 0
    in_blocks_ns: int = 0
    setup_ns: int = 0
    cpu_ns: int = 0
    items: int = 0
    busy_ns: int = 0


@dataclass(kw_only=True)
class ProcessCounts:
    """What the workers of a process have counted, added up."""

    stages: list[StageCounts] = field(default_factory=list)
    workers: dict[str, WorkerClock] = field(default_factory=dict)
    encode_ns: Histogram = field(default_factory=Histogram)
    decode_ns: Histogram = field(default_factory=Histogram)
    cost_ns: Histogram = field(default_factory=Histogram)
    messages: int = 0
    sent_bytes: int = 0

    def add(self, counts: BlockCounts) -> None:
        """Add those of a block."""
        if not self.stages:
            self.stages = list(counts.stages)
        else:
            self.stages = [_add_stages(old, new) for old, new in zip(self.stages, counts.stages, strict=True)]
        clock = self.workers.setdefault(counts.worker, WorkerClock(began_ns=counts.began_ns))
        clock.ended_ns = max(clock.ended_ns, counts.ended_ns)
        clock.began_ns = min(clock.began_ns, counts.began_ns)
        clock.in_blocks_ns += counts.ended_ns - counts.began_ns
        clock.setup_ns += counts.setup_ns
        clock.cpu_ns += counts.cpu_ns
        clock.items += counts.stages[0].counters[StageCounter.ITEMS]
        clock.busy_ns += sum(stage.counters[StageCounter.BUSY_NS] for stage in counts.stages)
        self.encode_ns += Histogram.from_values_ns(list(counts.encode_ns))
        self.decode_ns += Histogram.from_values_ns(list(counts.received.decode_ns))
        self.cost_ns += Histogram.from_values_ns(list(counts.received.cost_ns))
        self.messages += len(counts.sent_bytes)
        self.sent_bytes += sum(counts.sent_bytes)


class RayCounts:
    """The counts of a run so far."""

    def __init__(self, plan: Plan) -> None:
        """Start with nothing."""
        self.processes = [ProcessCounts() for _ in plan.processes]
        self.own_clocks = [HopClock() for _ in plan.processes]
        """What this process has received of the items of each process, and what it has sent as this process itself."""
        self.store: StoreStatistics | None = None
        """What Ray itself has counted; None before a cluster is there."""

    def add(self, counts: BlockCounts) -> None:
        """Add those of a block."""
        self.processes[counts.process_index].add(counts)

    @property
    def source_items(self) -> int:
        """The items that the source has read."""
        source = self.processes[0].stages
        return source[0].counters[StageCounter.ITEMS] if source else 0


def _add_stages(old: StageCounts, new: StageCounts) -> StageCounts:
    slow_items = sorted((*old.slow_items, *new.slow_items), key=lambda row: -row.run_ns)
    return StageCounts(
        counters=tuple(map(add, old.counters, new.counters)),
        run_histogram=old.run_histogram + new.run_histogram,
        slow_items=tuple(slow_items[:MAX_SLOW_ITEMS]),
    )
