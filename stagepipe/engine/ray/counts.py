"""What a worker of Ray has counted in a block. It travels with the block's items, so that a repeated block counts once.

In the workers of Ray and in the caller's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stagepipe.runtime import StageRunner
from stagepipe.timing import Histogram, SlowItemRow, StageRegion


@dataclass(frozen=True, kw_only=True)
class StageCounts:
    """What a stage has counted in a block. `counters` are indexed by `StageCounter`."""

    counters: tuple[int, ...]
    run_histogram: Histogram
    slow_items: tuple[SlowItemRow, ...]


@dataclass(frozen=True, kw_only=True)
class ReceivedCounts:
    """How long the items of a block took to decode, and what their hop has cost: encoding and decoding. In ns."""

    decode_ns: tuple[int, ...] = ()
    cost_ns: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BlockCounts:
    """What a worker has counted in a block: its stages, and both hops beside it. Durations are in ns.

    `worker` names the process on its node; clocks of different nodes are not compared. `began_ns` and `ended_ns` are
    of the worker's clock, `setup_ns` is the time in which it built its stages.
    """

    process_index: int
    worker: str
    stages: tuple[StageCounts, ...]
    received: ReceivedCounts
    encode_ns: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    began_ns: int
    ended_ns: int
    cpu_ns: int
    setup_ns: int = 0


@dataclass
class HopClock:
    """Collects the durations and sizes of a block's items, on both sides of a worker."""

    decode_ns: list[int] = field(default_factory=list)
    cost_ns: list[int] = field(default_factory=list)
    encode_ns: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)

    def add_received(self, sender_ns: int, decode_ns: int) -> None:
        """Count an item that has been decoded."""
        self.decode_ns.append(decode_ns)
        self.cost_ns.append(sender_ns + decode_ns)

    def take_received(self) -> ReceivedCounts:
        """Return what was counted of the items received."""
        return ReceivedCounts(decode_ns=tuple(self.decode_ns), cost_ns=tuple(self.cost_ns))


class CountReader:
    """Reads what the stages of a process have counted since the last block."""

    def __init__(self, stages: Sequence[StageRunner], regions: Sequence[StageRegion]) -> None:
        """`regions` are those that the stages write to."""
        self._stages = stages
        self._regions = regions
        self._previous = [region.read_counters() for region in regions]

    def take(self) -> tuple[StageCounts, ...]:
        """Return the counts since the last call."""
        counts = []
        for index, (stage, region) in enumerate(zip(self._stages, self._regions, strict=True)):
            stage.flush()
            counters = region.read_counters()
            counts.append(
                StageCounts(
                    counters=tuple(new - old for new, old in zip(counters, self._previous[index], strict=True)),
                    run_histogram=Histogram.from_words(region.run_histogram_words),
                    slow_items=region.read_slow_items(),
                )
            )
            self._previous[index] = counters
            region.run_histogram_words[...] = np.uint64(0)
            region.slow_items[...] = np.uint64(0)
        return tuple(counts)
