"""What an order point does with `order: source`: it groups leaves in order. In the order point's worker and inline.

A group's outputs wait in `pending_outputs` until they are sent. Each has its lineage, with the cursor that reproduces
everything after it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip, Key
from stagepipe.runtime.execution.chain import Box
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.protocol import OutputLineage, SampleChunk, pack_lineage, unpack_lineage


class PendingOutput(NamedTuple):
    """An output of an order point that is not sent yet. `meta` is its packed lineage."""

    number: int
    box: Box
    samples: int
    meta: bytes


class OrderedGrouping:
    """Takes leaves in order and groups them.

    A template: the groupings for `order: any` override `seek`, `add_item`, `drop_item`, `finish_item`,
    `finish_segment`, `_collect`, `_emit_group` and `_pack_output_lineage`.
    """

    takes_any_order = False
    """Whether leaves come in the order of arrival."""

    def __init__(self, stage: StageRunner, input_segment: int) -> None:
        """The target of `stage` does the grouping."""
        self._stage = stage
        self._input_segment = input_segment
        self.pending_outputs: deque[PendingOutput] = deque()
        self.next_number = 0
        """The number of the next output, among the items of the next segment."""

    def seek(self, cursor: Cursor, first_number: int) -> None:
        """Start at `cursor`, with output `first_number`."""
        self._target: Any = self._stage.order_point  # a stateful stage has been built again
        self._target.clear()
        self.pending_outputs.clear()
        self.next_number = first_number
        self._emitted_outputs = cursor.emitted_count
        self._cursor = self._group_start = replace(cursor, emitted_count=0)
        self._group_skips = set(cursor.skips)
        self._source_begin: int | None = None  # first source item of the group; `_source_end` is after its last
        self._source_end = 0
        self._lineage = OutputLineage()
        self._lineage_item = -1

    def add_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add the next leaf to its group. `meta` is the lineage of its item, from the order point before."""
        self._advance(key, meta, frozenset())
        source_begin, self._source_end = key[0], key[0] + 1
        if self._input_segment:
            source_begin, self._source_end = self._lineage.source_begin, self._lineage.source_end
        self._source_begin = source_begin if self._source_begin is None else self._source_begin
        if self._collect(key, box, samples):
            self._emit_group(is_last=False)

    def add_rows(self, item: int, chunk: SampleChunk, *, passes_on: bool = False) -> None:
        """Add the samples of a chunk, which begins at `item`: as `add_item` does, with `finish_item` between two.

        Only where the target is `Batch`, and no order point comes before it. `passes_on`: see `Batch.add_rows`.
        """
        start = chunk.start
        add_rows = partial(self._target.add_rows, chunk.rows, stop=chunk.stop, passes_on=passes_on)
        while True:
            self._advance((item,), b"", frozenset())
            self._source_begin = item if self._source_begin is None else self._source_begin
            count = self._stage.run_timed((item,), partial(add_rows, start=start))
            self._stage.count_items(item, count)
            item += count
            start += count
            self._source_end = item
            if count > 1:
                self._cursor = Cursor(self._cursor.upstream, item - 1, (item - 1,))
            if self._target.is_full:
                self._emit_group(is_last=False)
            if start == chunk.stop:
                return
            self.finish_item(item - 1, b"")

    def drop_item(self, key: Key, meta: bytes, skip: ImposedSkip | None) -> None:
        """Move past a leaf without an item. One that failed is a skip, which must recur if the group is rebuilt."""
        self._advance(key, meta, self._record_skip(skip))

    def finish_item(self, item: int, meta: bytes) -> None:
        """Move past an item, all leaves of which have come."""
        upstream = self._read_lineage(item, meta).resume_cursor if self._input_segment else None
        self._cursor = Cursor(upstream, item + 1)

    def finish_segment(self) -> None:
        """Emit the last group."""
        self._emit_group(is_last=True)

    def _advance(self, key: Key, meta: bytes, new_skips: frozenset[ImposedSkip]) -> None:
        skips = self._cursor.skips | new_skips
        if self._input_segment and self._lineage_item != key[0]:
            skips |= self._read_lineage(key[0], meta).skips
        self._cursor = Cursor(self._cursor.upstream, key[0], key, 0, skips)

    def _read_lineage(self, item: int, meta: bytes) -> OutputLineage:
        """Return an item's lineage from the order point before. Skips that shaped it shape the group too."""
        if self._lineage_item != item:
            self._lineage = unpack_lineage(meta)
            self._lineage_item = item
            self._group_skips |= self._lineage.skips
        return self._lineage

    def _record_skip(self, skip: ImposedSkip | None) -> frozenset[ImposedSkip]:
        skips = frozenset[ImposedSkip]() if skip is None else frozenset((skip,))
        self._group_skips |= skips
        return skips

    def _collect(self, key: Key, box: Box, samples: int) -> bool:
        """Add a leaf to the group; return whether the group is complete."""
        is_complete: bool = self._stage.run_timed(key, lambda: self._add(key, box, samples))
        self._stage.count_item(key)
        return is_complete

    def _add(self, key: Key, box: Box, samples: int) -> bool:
        if self._stage.seeds_grouping:
            self._stage.seed_item(key)
        return self._target.add(box.pop(), samples)  # type: ignore[no-any-return]

    def _flush_group(self, *, is_last: bool) -> list[tuple[Any, int]]:
        """Return the group's outputs, the last one first."""
        start = self._group_start
        rng = self._stage.seed_group(start.item, start.last_key)
        flush = self._target.finish if is_last else self._target.flush
        outputs: list[tuple[Any, int]] = self._stage.run_timed((start.item,), partial(flush, rng))
        outputs.reverse()
        return outputs

    def _queue_output(self, box: Box, samples: int, meta: bytes) -> None:
        self.pending_outputs.append(PendingOutput(self.next_number, box, samples, meta))
        self.next_number += 1

    def _emit_group(self, *, is_last: bool) -> None:
        """Queue the outputs of a complete group, each with the cursor that reproduces everything after it."""
        outputs = self._flush_group(is_last=is_last)
        skips = frozenset(self._group_skips)
        group_outputs = len(outputs)
        for index in range(group_outputs):
            value, samples = outputs.pop()
            if index >= self._emitted_outputs:
                self._queue_output([value], samples, self._pack_output_lineage(index, group_outputs, skips))
            del value
        self._group_start = self._cursor
        self._emitted_outputs = 0
        self._group_skips = set(self._cursor.skips)
        self._source_begin = None

    def _pack_output_lineage(self, index: int, group_outputs: int, skips: frozenset[ImposedSkip]) -> bytes:
        """Return the packed lineage of output `index` of a group of `group_outputs`."""
        is_last = index == group_outputs - 1
        resume_cursor = self._cursor if is_last else replace(self._group_start, emitted_count=index + 1, skips=skips)
        return pack_lineage(OutputLineage(resume_cursor, self._source_begin or 0, self._source_end, skips))
