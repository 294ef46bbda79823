"""Chunks: how many items the source sends together, and how a worker makes chunks of the results. In their processes.

An index chunk goes from the source to a worker of `dataset`, a sample chunk from there to `Batch`. A result that cannot
be a row, a dropped item and one that fails cut a chunk: what came before is sent first, so that the order of what
leaves a worker is that of single items.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import ArenaFullError, Key, count_bytes
from stagepipe.runtime.execution import Box, ChunkInHand, ItemHeader, StageChain, StageError, StageRunner
from stagepipe.runtime.protocol import SampleChunk
from stagepipe.runtime.worker.hop_output import HopOutput
from stagepipe.stages import Rows, make_rows
from stagepipe.timing import ProcessCounter, ProcessRegion

MAX_CHUNK_ITEMS: Final = 384
"""Their indices, 8 bytes each, fit one packet."""
_MAX_CHUNK_BYTES: Final = 1 << 20
_MAX_ROW_BYTES: Final = 1 << 16
"""A larger sample travels alone: what its packet costs is little beside its bytes, and it may be in shared memory."""
CHUNK_NS: Final = 1_000_000
"""What a worker works on a chunk. Longer ones would leave other workers without work, and `Batch` without rows."""
_MAX_BATCH_FACTOR: Final = 8
"""A chunk that is a batch may take so much longer: it saves `Batch` its work."""
_MAX_HELD_NS: Final = 16_000_000
"""After this time a worker sends its rows, because the samples are slower than those before."""


class ChunkSize:
    """How many items the source sends together: as many as take a worker a millisecond, by what the workers publish.

    Where a batch takes a worker half a millisecond to eight, a chunk is a batch, if no skips come before it: `Batch`
    then passes its arrays on.
    """

    def __init__(self, worker_regions: Sequence[ProcessRegion], batch_size: int = 0) -> None:
        """`worker_regions` are those of the workers that read the chunks."""
        self._batch_size = batch_size
        self._worker_regions = worker_regions
        self._count = 1

    @property
    def item_bytes(self) -> int:
        """How many bytes a sample has, as far as the workers know; 0 while they do not."""
        return max(region[ProcessCounter.CHUNK_ITEM_BYTES] for region in self._worker_regions)

    def choose(self, item: int, max_items: int) -> int:
        """Return how many items to send from `item` on, at most `max_items` for all workers together."""
        # A worker that has lost its CPU in a chunk measures too much; one that is not measured yet has 0.
        times_ns = [region[ProcessCounter.CHUNK_ITEM_NS] for region in self._worker_regions]
        item_ns = min(filter(None, times_ns), default=0)
        fitting_items = min(max(CHUNK_NS // item_ns, 1), MAX_CHUNK_ITEMS) if item_ns else 1
        most_items = min(_MAX_BATCH_FACTOR * fitting_items, MAX_CHUNK_ITEMS)
        is_batch = max(fitting_items // 2, 1) <= self._batch_size <= most_items
        if is_batch:
            fitting_items = self._batch_size
        self._count = max(min(2 * self._count, fitting_items), self._count // 2, 1)
        count = max(min(self._count, 2 * max_items // len(self._worker_regions)), 1)
        if is_batch:
            count = min(count, self._batch_size - item % self._batch_size)
        return count


class ChunkOutput:
    """The ChainOutput of a worker that sends chunks: it stacks consecutive samples and sends them together."""

    def __init__(self, output: HopOutput) -> None:
        """`output` sends."""
        self._output = output
        self._end_item = 0
        self._rows: Rows | None = None
        self._first_item = 0
        self._row_count = 0
        self._size = 0
        self.row_bytes = 0
        """About how many bytes the first sample of the last chunk has."""

    def begin(self, end_item: int) -> None:
        """Expect the results of the items before `end_item`. Rows that were not sent are discarded."""
        self._end_item = end_item
        self._rows = None

    def add(self, value: Any, key: Key) -> bool:
        """Copy the next item's sample into the next row. False where it is no row, and `send_item` must take it."""
        if self._rows is None or len(key) > 1:
            return self._add_unlike(value, key)
        try:
            self._rows.put(self._row_count, value)
        except Exception:  # noqa: BLE001 - a sample may raise anything; alone it fails with the error that it has there
            return self._add_unlike(value, key)
        self._row_count += 1
        if self._row_count == self._size:
            self.flush()
        return True

    def _add_unlike(self, value: Any, key: Key) -> bool:
        """Start the next chunk with a sample. A part of an item, and what is no row, goes to the output."""
        self.flush()
        return (len(key) == 1 and self._start(key[0], value)) or self._output.add(value, key)

    def _start(self, item: int, value: Any) -> bool:
        """Start a chunk with a sample. False where it must travel alone."""
        try:
            self.row_bytes = row_bytes = max(count_bytes(value), 1)
            size = min(self._end_item - item, _MAX_CHUNK_BYTES // row_bytes)
            if size <= 1 or row_bytes > _MAX_ROW_BYTES:
                return False
            rows = make_rows(value, size)
            rows.put(0, value)
        except ArenaFullError:
            raise
        except Exception:  # noqa: BLE001 - as in `add`
            return False
        self._rows = rows
        self._first_item = item
        self._row_count = 1
        self._size = size
        return True

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send the chunk, and an item."""
        self.flush()
        self._output.send_item(key, box, samples, meta)

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Send the chunk, and a tombstone."""
        self.flush()
        self._output.send_tombstone(key, samples, meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Send the chunk, and a skip."""
        self.flush()
        self._output.send_skip(stage, key, error, header)

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Send the chunk, and the number of an item's parts."""
        self.flush()
        self._output.send_close(key, part_count, meta)

    def flush(self) -> None:
        """Send the chunk, if there is one."""
        rows = self._rows
        if rows is None:
            return
        self._rows = None
        count = self._row_count
        rows.trim(count)
        box = [SampleChunk(rows, 0, count)]
        del rows
        self._output.send_item((self._first_item,), box, count, b"")
        self._output.flush()  # the next chunk may take a millisecond


class ChunkLoop:
    """Runs the items of chunks through a worker's stages, a chunk over several calls of `run`."""

    def __init__(self, chain: StageChain, region: ProcessRegion, output: ChunkOutput | None) -> None:
        """`output`: where `chain` sends to, if it sends rows."""
        self._chain = chain
        self._region = region
        self._output = output
        self._chunk: ChunkInHand | None = None
        self._count = 0
        self._spent_ns = 0
        self._sent_ns = 0
        """Of the time spent: that until the last rows were sent."""

    @property
    def is_idle(self) -> bool:
        """Whether no chunk is in hand."""
        return self._chunk is None

    def discard(self) -> None:
        """Forget the chunk, because of a seek."""
        self._chunk = None
        if self._output is not None:
            self._output.begin(0)

    def begin(self, key: Key, values: list[Any], header: ItemHeader = (1, b""), *, together: bool = False) -> None:
        """Take a chunk. `header` is that of each item. `together`: the stage may be called once for all of them."""
        self._chunk = chunk = ChunkInHand(key, values, header)
        if self._output is not None:
            self._count = len(values)
            self._output.begin(key[0] + self._count)
            self._spent_ns = self._sent_ns = 0
        if together:
            started_ns = perf_counter_ns()
            self._chain.call_together(chunk, self._region)
            self._spent_ns = perf_counter_ns() - started_ns

    def run(self, max_ns: int) -> None:
        """Run items of the chunk for `max_ns`. Rows are sent at its end, and after some milliseconds."""
        chunk, output = self._chunk, self._output
        if chunk is None:
            return
        if output is None:
            self._chain.push_chunk(chunk, self._region, max_ns)
        else:
            self._make_rows(chunk, output, max_ns)
        if not chunk.values:
            self._chunk = None

    def _make_rows(self, chunk: ChunkInHand, output: ChunkOutput, max_ns: int) -> None:
        started_ns = perf_counter_ns()
        try:
            self._chain.push_chunk(chunk, self._region, max_ns)
        except StageError:
            output.flush()  # what came before it is complete
            raise
        self._spent_ns += perf_counter_ns() - started_ns
        if not chunk.values:
            output.flush()
            self._region[ProcessCounter.CHUNK_ITEM_BYTES] = output.row_bytes
            longest_ns = 0 if chunk.first_stage else chunk.longest_ns
            self._region[ProcessCounter.CHUNK_ITEM_NS] = _estimate_item_ns(self._spent_ns, self._count, longest_ns)
        elif self._spent_ns - self._sent_ns > _MAX_HELD_NS:
            self._sent_ns = self._spent_ns
            output.flush()


def _estimate_item_ns(total_ns: int, count: int, longest_ns: int) -> int:
    """Return the time of an item, without the longest: on a busy machine the process lost its CPU at that one."""
    if not longest_ns:
        return total_ns // count
    return (total_ns - longest_ns) // (count - 1) if count > 1 else longest_ns
