"""The role of an order point: it restores the order of a segment's leaves and feeds the next segment with their groups.

In the order point's own worker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stagepipe.core import ImposedSkip, Key
from stagepipe.runtime.execution import Box, StageRunner, make_chain, make_grouping
from stagepipe.runtime.flow import AdmissionController, ProgressPublisher
from stagepipe.runtime.protocol import SampleChunk, Seek
from stagepipe.runtime.worker.hop_output import HopOutput, SeekInterruptError, WorkerContext
from stagepipe.timing import ProcessCounter
from stagepipe.transport import PacketKind, ReceivedPacket, Receiver, ReorderBuffer, UnreadableItemError

_MAX_STEP_NS: Final = 200_000
"""A step with several items ends after so long: a seek or a stop waits for it."""


class SegmentBoundary(NamedTuple):
    """What an order point needs to end segment `input_segment` and to feed the next one."""

    receiver: Receiver
    progress: ProgressPublisher
    admission: AdmissionController
    input_segment: int
    any_order: bool


class OrderPointRole:
    """Takes leaves in order, groups them, and sends the groups as items of the next segment."""

    def __init__(
        self, stages: list[StageRunner], output: HopOutput, boundary: SegmentBoundary, worker_context: WorkerContext
    ) -> None:
        """The target of `stages[0]` does the grouping; the other stages are fused to it."""
        self._stage = stages[0]
        self._chain = make_chain(stages[1:], output, worker_context.region)
        self._output = output
        self._receiver = boundary.receiver
        self._receiver.on_item = worker_context.region.set_current_item
        self._progress = boundary.progress
        self._admission = boundary.admission
        self._input_segment = boundary.input_segment
        self._worker_context = worker_context
        self._reorder = ReorderBuffer(0, None)
        self._grouping = make_grouping(
            stages[0], boundary.input_segment, lambda: self._reorder.next_item, any_order=boundary.any_order
        )
        self._passes_rows_on = len(stages) == 1  # a fused stage may write to its input
        self._meta_by_item: dict[int, bytes] = {}
        self._any_order = boundary.any_order
        self._emitted_key: Key | None = None
        """The leaf that was the last to be emitted before the seek."""
        self._generation = 0
        self._segment_items: int | None = None
        self._is_finished = True

    def apply_seek(self, seek: Seek) -> None:
        """Start at this order point's part of the cursor."""
        output_segment = self._input_segment + 1
        cursor = seek.segment_cursor(self._input_segment)
        first_number = seek.segment_cursor(output_segment).item
        self._generation = seek.generation
        self._output.apply_seek(seek)
        self._chain.set_forced_skips(seek.forced_skips)
        self._grouping.seek(cursor, first_number)
        self._reorder = ReorderBuffer(
            cursor.item,
            cursor.last_key,
            any_order=self._grouping.takes_any_order,
            emitted_keys=cursor.emitted_keys,
        )
        self._emitted_key = cursor.last_key
        self._meta_by_item = {}
        self._segment_items = None
        self._is_finished = False
        self._admission.start_generation(
            seek.generation, first_number, seek.windows[output_segment], seek.small_item_windows[output_segment]
        )
        self._progress.start_generation(
            seek.generation, cursor.item, seek.windows[self._input_segment], self._reorder.__len__
        )

    def step(self) -> None:
        """Send one pending output, or receive one packet, or for a short time the items that came together."""
        if self._grouping.pending_outputs:
            self._send_output()
        elif (
            self._segment_items is not None and self._reorder.next_item >= self._segment_items and not self._is_finished
        ):
            self._finish_segment()
        else:
            self._receive()
            receiver, pending_outputs = self._receiver, self._grouping.pending_outputs
            latest_queue_ns = receiver.queue_ns + _MAX_STEP_NS  # in one packet, each waits for those before it
            while receiver.items_in_hand and not pending_outputs and receiver.queue_ns < latest_queue_ns:
                self._receive()

    def _send_output(self) -> None:
        pending_outputs = self._grouping.pending_outputs
        if not self._admission.wait_until_admitted(pending_outputs[0].number, self._worker_context.is_interrupted):
            raise SeekInterruptError
        number, box, samples, meta = pending_outputs.popleft()
        region = self._worker_context.region
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = number + 1
        self._chain.push((number,), box, samples, meta)
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0

    def _receive(self) -> None:
        try:
            packet = self._receiver.receive(self._generation)
        except UnreadableItemError as error:
            raise self._stage.record_failure(error.key, error) from error
        if packet is None:
            raise SeekInterruptError
        if packet.kind == PacketKind.ITEM:
            self._worker_context.region.clear_current_item(packet.key)
            if self._process_next(packet):
                del packet
                if self._reorder:
                    self._process_ready()
                return
        if packet.kind == PacketKind.END_OF_SEGMENT:
            self._segment_items = packet.count
            return
        if packet.meta:
            self._meta_by_item[packet.key[0]] = packet.meta
        if packet.kind == PacketKind.ITEM and type(packet.value) is SampleChunk:
            self._add_chunk(packet, packet.value)
        else:
            self._reorder.add(packet)
        del packet
        self._process_ready()

    def _add_chunk(self, packet: ReceivedPacket, chunk: SampleChunk) -> None:
        """Add a chunk to the order: as single items with `order: any`, else without what was emitted before a seek."""
        item = packet.key[0]
        packet.count = chunk.stop
        if self._any_order:
            for row in range(chunk.stop):
                value = chunk.rows.get(row)
                self._reorder.add(ReceivedPacket(PacketKind.ITEM, (item + row,), 1, 0, b"", value))
            return
        if packet.key == self._emitted_key:
            self._reorder.add(ReceivedPacket(PacketKind.TOMBSTONE, packet.key, 1, 0, b"", None))
            packet.key = (item + 1,)
            packet.count = chunk.stop - 1
            chunk.start = 1
        if packet.count:
            self._reorder.add(packet)

    def _process_next(self, packet: ReceivedPacket) -> bool:
        """Process an item if it is the next one, without a detour through the reorder buffer; return whether it is."""
        if self._any_order or type(packet.value) is SampleChunk or not self._reorder.try_advance(packet):
            return False
        item, meta = packet.key[0], packet.meta
        region = self._worker_context.region
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = item + 1
        self._process_leaf(packet)
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0
        self._grouping.finish_item(item, meta)
        self._progress.publish(self._reorder.next_item)
        return True

    def _process_ready(self) -> None:
        completed_items = self._reorder.completed_items
        region = self._worker_context.region
        for packet, item in self._reorder.pop_ready():
            if packet is None:
                self._grouping.finish_item(item, self._meta_by_item.pop(item, b""))
                continue
            region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = item + 1
            self._process_leaf(packet)
            region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0
        if self._reorder.completed_items != completed_items:
            self._progress.publish(self._reorder.next_item)

    def _process_leaf(self, packet: ReceivedPacket) -> None:
        if packet.kind == PacketKind.ITEM and type(packet.value) is SampleChunk:
            chunk: SampleChunk = packet.value
            packet.value = None
            self._grouping.add_rows(packet.key[0], chunk, passes_on=self._passes_rows_on)
            return
        if packet.kind == PacketKind.ITEM:
            box: Box = [packet.value]
            packet.value = None
            self._grouping.add_item(packet.key, box, packet.samples, packet.meta)
            return
        is_failure = packet.kind == PacketKind.ERROR_SKIP
        skip = ImposedSkip(self._worker_context.stage_names[packet.count], packet.key) if is_failure else None
        self._grouping.drop_item(packet.key, packet.meta, skip)

    def _finish_segment(self) -> None:
        self._is_finished = True
        self._grouping.finish_segment()
        while self._grouping.pending_outputs:
            self._send_output()
        self._output.send_end(self._grouping.next_number)
