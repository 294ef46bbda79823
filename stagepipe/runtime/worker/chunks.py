"""Chunks: the number of items that the source sends together, and the chunks that a worker makes of its results.

An index chunk goes from the source to a worker of `dataset`, a sample chunk from there to `Batch`. A result that cannot
be a row, a dropped item and a failed item cut a chunk: earlier items are sent first, so that the output order of a
worker is the order of single items.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import ArenaFullError, Key, count_bytes
from stagepipe.machine import cpu_delay_ns
from stagepipe.runtime.execution import Box, ChunkInHand, ItemHeader, StageChain, StageError, StageRunner
from stagepipe.runtime.protocol import SampleChunk
from stagepipe.runtime.worker.hop_output import HopOutput
from stagepipe.stages import Rows, make_rows
from stagepipe.timing import ProcessCounter, ProcessRegion

MAX_CHUNK_ITEMS: Final = 384
"""Their indices, 8 bytes each, fit one packet."""
_MAX_CHUNK_BYTES: Final = 1 << 20
_MAX_BATCH_BYTES: Final = 16 << 20
"""The limit for a chunk that is a batch. The batch needs the bytes anyway, and `Batch` does not copy them."""
_MAX_ROW_BYTES: Final = 1 << 16
"""A larger sample travels singly: the cost of its packet is small for its size, and it may be in shared memory."""
CHUNK_NS: Final = 1_000_000
"""A worker's time for a chunk. Longer ones would leave other workers without work, and `Batch` without rows."""
_MAX_BATCH_FACTOR: Final = 16
"""The factor by which a chunk that is a batch may take longer, because it saves work of `Batch`."""
_MAX_HELD_NS: Final = 16_000_000
"""After this time a worker sends its rows, because the samples are slower than earlier ones."""


class ChunkSize:
    """Chooses how many items the source sends together: a worker's work for a millisecond, measured by the workers.

    If a worker needs half a millisecond to sixteen for a batch, a chunk is a batch, unless skips come before it:
    `Batch` then passes its arrays on.
    """

    def __init__(self, worker_regions: Sequence[ProcessRegion], batch_size: int = 0) -> None:
        """`worker_regions` belong to the workers that read the chunks."""
        self._batch_size = batch_size
        self._worker_regions = worker_regions
        self._count = 1

    @property
    def item_bytes(self) -> int:
        """The bytes of a sample, as far as the workers know; 0 before they do."""
        return max(region[ProcessCounter.CHUNK_ITEM_BYTES] for region in self._worker_regions)

    def choose(self, item: int, max_items: int) -> int:
        """Return how many items to send from `item` on. `max_items` limits the items of all workers together."""
        # An unmeasured worker has 0. A worker whose first chunk imports a library measures too much.
        times_ns = [region[ProcessCounter.CHUNK_ITEM_NS] for region in self._worker_regions]
        item_ns = min(filter(None, times_ns), default=0)
        fitting_items = min(max(CHUNK_NS // item_ns, 1), MAX_CHUNK_ITEMS) if item_ns else 1
        most_items = min(_MAX_BATCH_FACTOR * fitting_items, MAX_CHUNK_ITEMS)
        is_batch = max(fitting_items // 2, 1) <= self._batch_size <= most_items
        if is_batch:
            fitting_items = self._batch_size
        self._count = max(min(2 * self._count, fitting_items), self._count // 2, 1)
        workers = sum([region.has_worker for region in self._worker_regions])
        count = max(min(self._count, 2 * max_items // max(workers, 1)), 1)
        if is_batch:
            count = min(count, self._batch_size - item % self._batch_size)
        return count


class ChunkOutput:
    """The ChainOutput of a worker that sends chunks: it stacks consecutive samples and sends them together."""

    def __init__(self, output: HopOutput, batch_size: int = 0) -> None:
        """`output` sends the chunks. For `batch_size`, see `ChunkSize`."""
        self._output = output
        self._batch_size = batch_size
        self._end_item = 0
        self._max_bytes = _MAX_CHUNK_BYTES
        self._rows: Rows | None = None
        self._first_item = 0
        self._row_count = 0
        self._size = 0
        self.row_bytes = 0
        """The approximate size in bytes of the first sample of the last chunk."""

    def begin(self, first_item: int, count: int) -> None:
        """Expect the results of `count` items. Discards unsent rows."""
        self._end_item = first_item + count
        self._max_bytes = _MAX_BATCH_BYTES if count == self._batch_size else _MAX_CHUNK_BYTES
        self._rows = None

    def add(self, value: Any, key: Key) -> bool:
        """Copy the next item's sample into the next row. False if it is not a row: then `send_item` must take it."""
        if self._rows is None or len(key) > 1:
            return self._add_unlike(value, key)
        try:
            self._rows.put(self._row_count, value)
        except Exception:  # noqa: BLE001 - a sample may raise anything; singly it fails with its own error
            return self._add_unlike(value, key)
        self._row_count += 1
        if self._row_count == self._size:
            self.flush()
        return True

    def _add_unlike(self, value: Any, key: Key) -> bool:
        """Start the next chunk with a sample. Parts of items, and samples that are not rows, go to the output."""
        self.flush()
        return (len(key) == 1 and self._start(key[0], value)) or self._output.add(value, key)

    def _start(self, item: int, value: Any) -> bool:
        """Start a chunk with a sample. Returns False if the sample must travel singly."""
        try:
            self.row_bytes = row_bytes = max(count_bytes(value), 1)
            size = min(self._end_item - item, self._max_bytes // row_bytes)
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
        """Send the chunk, then an item."""
        self.flush()
        self._output.send_item(key, box, samples, meta)

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Send the chunk, then a tombstone."""
        self.flush()
        self._output.send_tombstone(key, samples, meta)

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Send the chunk, then a skip."""
        self.flush()
        self._output.send_skip(stage, key, error, header)

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Send the chunk, then the number of an item's parts."""
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
        box = [SampleChunk(rows, count)]
        del rows
        self._output.send_item((self._first_item,), box, count, b"")
        self._output.flush()  # the next chunk may take a millisecond


class ChunkLoop:
    """Runs the items of chunks through a worker's stages. A chunk may take several calls of `run`."""

    def __init__(self, chain: StageChain, region: ProcessRegion, output: ChunkOutput | None) -> None:
        """`output` is the output of `chain`, if it sends rows."""
        self._chain = chain
        self._region = region
        self._output = output
        self._chunk: ChunkInHand | None = None
        self._count = 0
        self._began_ns = 0
        self._sent_ns = 0
        """The time at which the last rows of the chunk were sent."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no current chunk."""
        return self._chunk is None

    def discard(self) -> None:
        """Forget the chunk, because of a seek."""
        self._chunk = None
        if self._output is not None:
            self._output.begin(0, 0)

    def begin(self, key: Key, values: list[Any], header: ItemHeader = (1, b""), *, together: bool = False) -> None:
        """Take a chunk. Each item has `header`. With `together`, the stage may be called once for all items."""
        self._chunk = chunk = ChunkInHand(key, values, header)
        if self._output is not None:
            self._count = len(values)
            self._output.begin(key[0], self._count)
            self._sent_ns = perf_counter_ns()
            self._began_ns = self._sent_ns - cpu_delay_ns(os.getpid())
        if together:
            self._chain.call_together(chunk, self._region)

    def run(self, max_ns: int) -> None:
        """Run items of the chunk for `max_ns`. Sends rows at its end, and after some milliseconds."""
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
        try:
            self._chain.push_chunk(chunk, self._region, max_ns)
        except StageError:
            output.flush()  # the rows before it are complete
            raise
        now_ns = perf_counter_ns()
        if not chunk.values:
            output.flush()
            self._region[ProcessCounter.CHUNK_ITEM_BYTES] = output.row_bytes
            work_ns = now_ns - cpu_delay_ns(os.getpid()) - self._began_ns  # file waits count, CPU waits do not
            self._region[ProcessCounter.CHUNK_ITEM_NS] = max(work_ns // self._count, 1)
        elif now_ns - self._sent_ns > _MAX_HELD_NS:
            self._sent_ns = now_ns
            output.flush()
