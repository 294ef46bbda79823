"""Order points with `order: source`: their stages group leaves in order, and they feed the next segment.

In the order point's own worker.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip, Key
from stagepipe.runtime.execution import Box, StageChain, StageRunner
from stagepipe.runtime.flow import AdmissionController, ProgressPublisher
from stagepipe.runtime.protocol import OutputLineage, Seek, pack_lineage, unpack_lineage
from stagepipe.runtime.worker.hop_output import HopOutput, SeekInterruptError, WorkerContext
from stagepipe.timing import ProcessCounter
from stagepipe.transport import PacketKind, ReceivedPacket, Receiver, ReorderBuffer


class SegmentBoundary(NamedTuple):
    """What an order point needs to end segment `input_segment` and to feed the next one."""

    receiver: Receiver
    progress: ProgressPublisher
    admission: AdmissionController
    input_segment: int


class PendingOutput(NamedTuple):
    """An output of an order point that is not sent yet."""

    number: int
    box: Box
    samples: int
    meta: bytes


class OrderPointRole:
    """Takes leaves in order, groups them, and sends the groups as items of the next segment.

    A template: the roles for `order: any` override `_reset`, `_finish_item`, `_process_leaf`, `_add_to_group`,
    `_emit_group`, `_pack_output_lineage` and `_finish_segment`.
    """

    def __init__(
        self, stages: list[StageRunner], output: HopOutput, boundary: SegmentBoundary, worker_context: WorkerContext
    ) -> None:
        """The target of `stages[0]` does the grouping; the other stages are fused to it."""
        self._stage = stages[0]
        self._chain = StageChain(stages[1:], output, worker_context.region)
        self._output = output
        self._receiver = boundary.receiver
        self._progress = boundary.progress
        self._admission = boundary.admission
        self._input_segment = boundary.input_segment
        self._worker_context = worker_context
        self._grouping = stages[0].order_point
        self._pending_outputs: deque[PendingOutput] = deque()
        self._generation = 0
        self._next_number = 0
        self._segment_items: int | None = None
        self._is_finished = True
        self._reset(Cursor(), 0)

    def apply_seek(self, seek: Seek) -> None:
        """Start at this order point's part of the cursor."""
        output_segment = self._input_segment + 1
        cursor = seek.segment_cursor(self._input_segment)
        output_cursor = seek.segment_cursor(output_segment)
        self._generation = seek.generation
        self._output.apply_seek(seek)
        self._chain.set_forced_skips(seek.forced_skips)
        self._reset(cursor, output_cursor.item)
        self._admission.start_generation(
            seek.generation, output_cursor.item, seek.windows[output_segment], seek.small_item_windows[output_segment]
        )
        self._progress.start_generation(seek.generation, cursor.item, seek.windows[self._input_segment])

    def _reset(self, cursor: Cursor, first_number: int) -> None:
        self._grouping.clear()
        self._pending_outputs.clear()
        self._reorder = ReorderBuffer(cursor.item, cursor.last_key)
        self._cursor = self._group_start = replace(cursor, emitted_count=0)
        self._group_skips = set(cursor.skips)
        self._source_begin: int | None = None  # first source item of the group; `_source_end` is after its last
        self._source_end = 0
        self._emitted_outputs = cursor.emitted_count
        self._next_number = first_number
        self._segment_items = None
        self._is_finished = False
        self._meta_by_item: dict[int, bytes] = {}
        self._lineage: OutputLineage | None = None

    def step(self) -> None:
        """Send one pending output, or receive one packet."""
        if self._pending_outputs:
            if not self._admission.wait_until_admitted(
                self._pending_outputs[0].number, self._worker_context.is_interrupted
            ):
                raise SeekInterruptError
            number, box, samples, meta = self._pending_outputs.popleft()
            region = self._worker_context.region
            region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = number + 1
            self._chain.push((number,), box, samples, meta)
            region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0
            return
        if self._segment_items is not None and self._reorder.next_item >= self._segment_items and not self._is_finished:
            self._finish_segment()
            return
        packet = self._receiver.receive(self._generation)
        if packet is None:
            raise SeekInterruptError
        if packet.kind == PacketKind.END_OF_SEGMENT:
            self._segment_items = packet.count
            return
        if packet.meta:
            self._meta_by_item[packet.key[0]] = packet.meta
        self._reorder.add(packet)
        del packet
        self._process_ready()

    def _process_ready(self) -> None:
        completed_items = self._reorder.completed_items
        for packet, item in self._reorder.pop_ready():
            if packet is None:
                self._finish_item(item, self._meta_by_item.pop(item, b""))
                continue
            box = [packet.value]
            packet.value = None
            self._worker_context.region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = item + 1
            self._process_leaf(packet, box)
            self._worker_context.region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0
        if self._reorder.completed_items != completed_items:
            self._progress.publish(self._reorder.next_item)

    def _finish_item(self, item: int, meta: bytes) -> None:
        upstream = self._read_lineage(meta).resume_cursor if self._input_segment else None
        self._cursor = Cursor(upstream, item + 1)
        self._lineage = None

    def _process_leaf(self, packet: ReceivedPacket, box: Box) -> None:
        skips = self._cursor.skips
        if self._input_segment and self._lineage is None:
            skips |= self._read_lineage(packet.meta).skips
        if packet.kind == PacketKind.ERROR_SKIP:
            skips |= {self._record_skip(packet)}
        item = packet.key[0]
        self._cursor = Cursor(self._cursor.upstream, item, packet.key, 0, skips)
        if packet.kind != PacketKind.ITEM:
            return
        lineage = self._lineage
        source_begin = item if lineage is None else lineage.source_begin
        self._source_end = item + 1 if lineage is None else lineage.source_end
        self._source_begin = source_begin if self._source_begin is None else self._source_begin
        if self._add_to_group(packet.key, box, packet.samples):
            self._emit_group(is_last=False)

    def _read_lineage(self, meta: bytes) -> OutputLineage:
        """Return the current item's lineage from the order point before. Skips that shaped it shape the group too."""
        if self._lineage is None:
            self._lineage = unpack_lineage(meta)
            self._group_skips |= self._lineage.skips
        return self._lineage

    def _record_skip(self, packet: ReceivedPacket) -> ImposedSkip:
        """Return the skip that a packet reports, and add it to the skips that must recur if the group is rebuilt."""
        skip = ImposedSkip(self._worker_context.stage_names[packet.count], packet.key)
        self._group_skips.add(skip)
        return skip

    def _add_to_group(self, key: Key, box: Box, samples: int) -> bool:
        """Add a leaf to the group; return whether the group is complete."""
        is_complete: bool = self._stage.run_timed(key, lambda: self._grouping.add(box.pop(), samples))
        self._stage.count_item(key)
        return is_complete

    def _flush_group(self, *, is_last: bool) -> list[tuple[Any, int]]:
        """Return the group's outputs, the last one first."""
        key = (self._group_start.item,)
        rng = self._stage.make_random(self._group_start.item, self._group_start.last_key)
        outputs: list[tuple[Any, int]]
        outputs = self._stage.run_timed(key, partial(self._grouping.finish if is_last else self._grouping.flush, rng))
        outputs.reverse()
        return outputs

    def _queue_output(self, box: Box, samples: int, meta: bytes) -> None:
        self._pending_outputs.append(PendingOutput(self._next_number, box, samples, meta))
        self._next_number += 1

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
        self._start_group()

    def _start_group(self) -> None:
        cursor = self._cursor
        self._group_start = cursor
        self._emitted_outputs = 0
        self._group_skips = set(cursor.skips)
        self._source_begin = None

    def _pack_output_lineage(self, index: int, group_outputs: int, skips: frozenset[ImposedSkip]) -> bytes:
        """Return the packed lineage of output `index` of a group of `group_outputs`."""
        is_last = index == group_outputs - 1
        resume_cursor = self._cursor if is_last else replace(self._group_start, emitted_count=index + 1, skips=skips)
        return pack_lineage(OutputLineage(resume_cursor, self._source_begin or 0, self._source_end, skips))

    def _finish_segment(self) -> None:
        self._is_finished = True
        self._emit_group(is_last=True)
        while self._pending_outputs:
            self.step()
        self._output.send_end(self._next_number)
