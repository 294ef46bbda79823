"""A sample of a run: the few counters of which a series over time is made. In the caller's process, on any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.timing import QUEUE_COUNT_WORDS, QUEUE_SUM_WORD, Board, ProcessCounter, ProcessRegion, StageCounter


@dataclass(frozen=True, kw_only=True)
class ProcessSample:
    """What the workers of one process of the plan have counted since the run began. Durations are in ns.

    Workers write their counters every 0.1 s, and not while they are in a stage's function: `covered_ns` is the time, of
    all its workers, that the counters are about. `queue_ns` is how long its messages waited to be received, in total.
    """

    covered_ns: int
    items: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    received: int
    queue_ns: int


@dataclass(frozen=True, kw_only=True)
class RunSample:
    """A run at one moment. `consumer_queue_ns` is how long `consumer_received` messages waited for the consumer.

    `items_done` are the items of the epoch that are through its first segment: at the first stage that restores the
    order, or delivered. None while the run seeks.
    """

    taken_at_ns: int
    items_done: int | None
    processes: tuple[ProcessSample, ...]
    consumer_received: int
    consumer_queue_ns: int
    shared_memory_bytes: int


class RunSampler:
    """Takes samples of one run. It looks up its words on the board once, because they are read four times a second."""

    def __init__(self, board: Board, process_indices_by_group: Sequence[Sequence[int]]) -> None:
        """`process_indices_by_group`: those of each process of the plan, then that of the consumer."""
        self._board = board
        *groups, (consumer,) = process_indices_by_group
        self._processes = [_ProcessReader([board.region(index) for index in group]) for group in groups]
        self._consumer_receive_words = board.region(consumer).receive_histogram_words

    def take(self) -> RunSample:
        """Return the run as it is now."""
        return RunSample(
            taken_at_ns=perf_counter_ns(),
            items_done=self._board.read_consumed(0, self._board.generation),
            processes=tuple(process.read() for process in self._processes),
            consumer_received=int(self._consumer_receive_words[QUEUE_COUNT_WORDS].sum()),
            consumer_queue_ns=int(self._consumer_receive_words[QUEUE_SUM_WORD]),
            shared_memory_bytes=self._board.live_bytes(),
        )


class _ProcessReader:
    def __init__(self, regions: Sequence[ProcessRegion]) -> None:
        self._regions = regions
        self._stages = [region.stage_region(index) for region in regions for index in range(region.stage_count)]
        self._first_stages = [region.stage_region(0) for region in regions]
        self._last_stages = [region.stage_region(region.stage_count - 1) for region in regions]
        self._receive_words = [region.receive_histogram_words for region in regions]

    def read(self) -> ProcessSample:
        flushed = [region for region in self._regions if region[ProcessCounter.FLUSHED_NS]]
        return ProcessSample(
            covered_ns=sum(
                [region[ProcessCounter.FLUSHED_NS] - region[ProcessCounter.STARTED_NS] for region in flushed]
            ),
            items=sum([stage[StageCounter.ITEMS] for stage in self._last_stages]),
            busy_ns=sum([stage[StageCounter.BUSY_NS] for stage in self._stages]),
            starved_ns=sum([region[ProcessCounter.STARVED_NS] for region in self._regions]),
            blocked_ns=sum([region[ProcessCounter.BLOCKED_NS] for region in self._regions]),
            received=sum([stage[StageCounter.ITEMS] + stage[StageCounter.PASSED_BY] for stage in self._first_stages]),
            queue_ns=sum([int(words[QUEUE_SUM_WORD]) for words in self._receive_words]),
        )
