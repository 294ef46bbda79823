"""Chunks: how many items the source sends together, and how a worker makes chunks of the results. In their processes.

An index chunk goes from the source to a worker of `dataset`, a sample chunk from there to `Batch`. A result that cannot
be a row, a dropped item and one that fails cut a chunk: what came before is sent first, so that the order of what
leaves a worker is that of single items.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import ArenaFullError, Key, count_bytes
from stagepipe.runtime.execution import Box, ItemHeader, StageChain, StageError, StageRunner
from stagepipe.runtime.protocol import ForcedSkip, SampleChunk
from stagepipe.runtime.worker.hop_output import HopOutput, SeekInterruptError, WorkerContext
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
        self._single_items: list[int] = []

    def seek(self, forced_skips: Iterable[ForcedSkip]) -> None:
        """Send the items of `forced_skips` alone: a worker must not even unpickle them."""
        self._single_items = sorted({skip.key[0] for skip in forced_skips})

    @property
    def item_bytes(self) -> int:
        """How many bytes a sample has, as far as the workers know; 0 while they do not."""
        return max(region[ProcessCounter.CHUNK_ITEM_BYTES] for region in self._worker_regions)

    def choose(self, item: int, max_items: int) -> int:
        """Return how many items to send from `item` on, at most `max_items` for all workers together."""
        item_ns = max(region[ProcessCounter.CHUNK_ITEM_NS] for region in self._worker_regions)
        fitting_items = min(max(CHUNK_NS // item_ns, 1), MAX_CHUNK_ITEMS) if item_ns else 1
        most_items = min(_MAX_BATCH_FACTOR * fitting_items, MAX_CHUNK_ITEMS)
        is_batch = max(fitting_items // 2, 1) <= self._batch_size <= most_items
        if is_batch:
            fitting_items = self._batch_size
        self._count = max(min(2 * self._count, fitting_items), 1)
        count = max(min(self._count, 2 * max_items // len(self._worker_regions)), 1)
        if is_batch:
            count = min(count, self._batch_size - item % self._batch_size)
        if self._single_items:
            index = bisect_left(self._single_items, item)
            if index < len(self._single_items):
                count = max(min(count, self._single_items[index] - item), 1)
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

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add a sample to the chunk, or send it alone."""
        if len(key) == 1 and (self.add(box[0]) or self._start(key[0], box[0])):
            box.clear()
            return
        self.flush()
        self._output.send_item(key, box, samples, meta)

    def add(self, value: Any) -> bool:
        """Copy the next item's sample into the next row. False where `send_item` must take it.

        That is so where there is no row, and where the sample is not like the others.
        """
        if self._rows is None:
            return False
        try:
            self._rows.put(self._row_count, value)
        except Exception:  # noqa: BLE001 - a sample may raise anything; alone it fails with the error that it has there
            return False
        self._row_count += 1
        if self._row_count == self._size:
            self.flush()
        return True

    def _start(self, item: int, value: Any) -> bool:
        """Start a chunk with a sample. False where it must travel alone."""
        self.flush()
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
    """Runs the items of index chunks through a worker's stages."""

    def __init__(self, chain: StageChain, output: ChunkOutput, worker_context: WorkerContext) -> None:
        """`chain` sends to `output`."""
        self._chain = chain
        self._output = output
        self._worker_context = worker_context

    def run(self, first_item: int, indices: list[Any], header: ItemHeader, *, together: bool = False) -> None:
        """Run the items of a chunk, from `first_item` on, and send the results before the return.

        `header` is that of each item. `together`: the stage may be called once for all of them.

        Every few milliseconds the results so far are sent, and a seek or a stop ends the chunk.
        """
        region, output, chain = self._worker_context.region, self._output, self._chain
        set_current_item, add = region.set_current_item, output.add
        output.begin(first_item + len(indices))
        started_ns = perf_counter_ns()
        results = self._call_together(first_item, indices) if together else []
        is_together = bool(results)
        results.reverse()
        invoke = (lambda _keys, _values: [results.pop()]) if is_together else chain.only_call
        sent_ns = last_ns = perf_counter_ns()
        longest_ns = 0
        key = (first_item,)
        try:
            for item, index in enumerate(indices, first_item):
                key = (item,)
                set_current_item(key)
                if invoke is None:
                    chain.push(key, [index], *header)
                else:  # the shortest way, where an item is one call
                    try:
                        box = invoke((key,), [index])
                    except StageError as error:
                        chain.skip_failed(key, error, header)
                    else:
                        if not add(box[0]):
                            chain.push_result(key, box, *header)
                now_ns = perf_counter_ns()
                if (item_ns := now_ns - last_ns) > longest_ns:
                    longest_ns = item_ns
                last_ns = now_ns
                if now_ns - sent_ns > _MAX_HELD_NS:
                    output.flush()
                    if self._worker_context.is_interrupted():
                        raise SeekInterruptError
                    sent_ns = perf_counter_ns()
        except StageError:
            output.flush()  # what came before it is complete
            raise
        output.flush()
        region.clear_current_item(key)
        region[ProcessCounter.CHUNK_ITEM_BYTES] = output.row_bytes
        region[ProcessCounter.CHUNK_ITEM_NS] = _estimate_item_ns(
            last_ns - started_ns, len(indices), 0 if is_together else longest_ns
        )

    def _call_together(self, first_item: int, indices: list[Any]) -> list[Any]:
        """Return the results of one call for all items; none where each item has its own."""
        invoke = self._chain.only_call
        if invoke is None or len(indices) == 1:
            return []
        keys: list[Key] = [(item,) for item in range(first_item, first_item + len(indices))]
        region = self._worker_context.region
        region.set_current_keys(keys)
        results = invoke(keys, indices)
        region.set_current_key(())
        return results


def _estimate_item_ns(total_ns: int, count: int, longest_ns: int) -> int:
    """Return the time of an item, without the longest: on a busy machine the process lost its CPU at that one."""
    if not longest_ns:
        return total_ns // count
    return (total_ns - longest_ns) // (count - 1) if count > 1 else longest_ns
