"""The roles of a worker: SourceRole feeds a segment, StageRole works on items, OrderPointRole restores their order.

Runs in the worker's process. An order point takes a segment's leaves in order and feeds the next segment with their
groups. Each role has `apply_seek`, and `step` for one item or one wait. A step raises SeekInterruptError when a seek or
a stop has made its work obsolete.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final, NamedTuple

from stagepipe.core import ImposedSkip
from stagepipe.runtime.execution import Box, Route, SourceReader, SourceRunner, StageChain, StageRunner, make_grouping
from stagepipe.runtime.flow import AdmissionController, ProgressPublisher
from stagepipe.runtime.protocol import SampleChunk, Seek, StreamStateEvent
from stagepipe.runtime.worker.chunks import MAX_CHUNK_ITEMS, ChunkLoop, ChunkOutput, ChunkSize
from stagepipe.runtime.worker.hop_output import HopOutput, SeekInterruptError, WorkerContext
from stagepipe.spec import BatchSpec
from stagepipe.timing import ProcessCounter
from stagepipe.transport import PacketKind, ReceivedPacket, Receiver, ReorderBuffer, UnreadableItemError

_STATE_INTERVAL_NS: Final = 50_000_000
"""At most 20 states of a stream per second, so a resume repeats at most this much reading."""
_MAX_STEP_NS: Final = 200_000
"""The length of a step with several items. It is short, because a seek or a stop waits for its end."""
_STATE_INTERVAL_COSTS: Final = 20
"""Taking states costs at most a twentieth of the source's time."""


class SourceRole:
    """Reads the source and feeds the first segment."""

    def __init__(
        self,
        reader: SourceReader,
        stages: list[StageRunner],
        output: HopOutput,
        admission: AdmissionController,
        worker_context: WorkerContext,
        *,
        chunk_size: ChunkSize | None = None,
    ) -> None:
        """`reader` reads the target of `stages[0]`, the source; the other stages are fused to it.

        `chunk_size` chooses how many items to send together, if the workers stack them as rows.
        """
        self._chunk_size = chunk_size
        self._reader = reader
        self._output = output
        self._admission = admission
        self._worker_context = worker_context
        self._runner = SourceRunner(reader, stages, output, worker_context.region)
        self.declared_items = reader.declared_items
        self.source_identity = reader.identify()
        self._first_new_item = 0
        """Earlier items have been counted: a recovery reads them again."""
        self._is_exhausted = True
        self._epoch = 0
        self._next_state_ns = 0

    def apply_seek(self, seek: Seek) -> None:
        """Start at the source's item in the cursor."""
        self._output.apply_seek(seek)
        item = seek.segment_cursor(0).item
        self._is_exhausted = False
        self._admission.start_generation(seek.generation, item, seek.windows[0], seek.small_item_windows[0])
        region = self._worker_context.region
        furthest_item = max(self._first_new_item, region[ProcessCounter.ITEMS_IN])  # a predecessor may have read more
        self._first_new_item = furthest_item if seek.is_recovery else 0
        region[ProcessCounter.ITEMS_IN] = item
        self._runner.seek(seek.epoch, item, seek.forced_skips, seek.stream_state, seek.unbatched_ranges)
        self._epoch = seek.epoch
        self._next_state_ns = 0
        epoch_items = self._reader.epoch_items
        region[ProcessCounter.EPOCH_ITEMS_PLUS_ONE] = 0 if epoch_items is None else epoch_items + 1

    def step(self) -> None:
        """Send the items that may enter together, or the end of the segment. After the end, wait for a command."""
        if self._is_exhausted:
            self._worker_context.wait_for_command()
            return
        count = self._wait_until_admitted()
        region, runner = self._worker_context.region, self._runner
        first_item = runner.next_item
        try:
            self._is_exhausted = not runner.run(count)
        finally:
            region[ProcessCounter.ITEMS_IN] = next_item = runner.next_item
            region[ProcessCounter.ITEMS_SENT] += max(next_item - max(first_item, self._first_new_item), 0)
        if self._is_exhausted:
            region[ProcessCounter.EPOCH_ITEMS_PLUS_ONE] = next_item + 1
            region[ProcessCounter.EPOCH_END_NS] = perf_counter_ns()
            self._output.send_end(next_item)
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0
        if self._reader.saves_state:
            self._send_stream_state()

    def _wait_until_admitted(self) -> int:
        """Return how many items from the next one on may enter now."""
        item, admission, chunk_size = self._runner.next_item, self._admission, self._chunk_size
        is_interrupted = self._worker_context.is_interrupted
        if chunk_size is None:
            count = admission.wait_until_admitted(item, is_interrupted, min(self._output.max_items, MAX_CHUNK_ITEMS))
        else:
            admission.known_item_bytes = chunk_size.item_bytes
            admission.has_chunks = True
            wanted = chunk_size.choose(item, admission.max_chunk_items)
            count = admission.wait_until_chunk_admitted(item, wanted, is_interrupted)
        if not count:
            raise SeekInterruptError
        return count

    def _send_stream_state(self) -> None:
        """Send the state of a stream that saves states, so that a resume need not read from the start."""
        started_ns = perf_counter_ns()
        if started_ns < self._next_state_ns:
            return
        state = self._reader.take_state()
        if state is not None and self._worker_context.send_event is not None:
            next_item = self._runner.next_item
            self._worker_context.send_event(StreamStateEvent(epoch=self._epoch, item=next_item, state=state))
        cost_ns = perf_counter_ns() - started_ns
        self._next_state_ns = started_ns + max(_STATE_INTERVAL_NS, _STATE_INTERVAL_COSTS * cost_ns)


class StageRole:
    """Works on one item at a time, or on several if the stage has a `batch`."""

    def __init__(
        self,
        stages: list[StageRunner],
        output: HopOutput,
        receiver: Receiver,
        worker_context: WorkerContext,
        *,
        sends_chunks: bool = False,
        chunk_batch_size: int = 0,
    ) -> None:
        """All of `stages` run on each item, one after the other. For `chunk_batch_size`, see `ChunkSize`."""
        rows = ChunkOutput(output, chunk_batch_size) if sends_chunks else None
        self._chain = StageChain(stages, rows or output, worker_context.region)
        self._chunk_loop = ChunkLoop(self._chain, worker_context.region, rows)
        self._output = output
        self._receiver = receiver
        self._worker_context = worker_context
        self._batch = stages[0].plan.batch
        self._stage_name = stages[0].name
        receiver.on_item = worker_context.region.set_current_item
        takes_chunks = self._batch is None and stages[0].trace is None  # a trace records each item
        self._receive = receiver.receive if takes_chunks else receiver.receive_one
        self._reads_records = hasattr(stages[0].target, "fetch_together")
        """Whether incoming items are indices, of which the stage may take several at once."""
        self._generation = 0

    @property
    def is_idle(self) -> bool:
        """Whether no item is in progress."""
        return self._chunk_loop.is_idle and self._receiver.is_empty

    def apply_seek(self, seek: Seek) -> None:
        """Enter the generation. The rest of a chunk is obsolete."""
        self._generation = seek.generation
        self._chunk_loop.discard()
        self._output.apply_seek(seek)
        self._chain.set_forced_skips(seek.forced_skips, seek.unbatched_ranges)
        self._receiver.unwanted_keys = frozenset(
            skip.key for skip in seek.forced_skips if skip.stage == self._stage_name
        )

    def step(self) -> None:
        """Process items for a short time, or up to `batch.size` items together."""
        if self._chunk_loop.is_idle:
            try:
                packet = self._receive(self._generation)
            except UnreadableItemError as error:
                self._reject(error)
                return
            if packet is None:
                raise SeekInterruptError
            self._take(packet)
        self._chunk_loop.run(_MAX_STEP_NS)

    def _take(self, packet: ReceivedPacket) -> None:
        """Handle a packet, or leave its items to the loop."""
        values = [packet.value]
        packet.value = None
        if packet.kind == PacketKind.CHUNK:
            self._chunk_loop.begin(packet.key, values.pop(), together=self._reads_records)
        elif packet.kind != PacketKind.ITEM:
            self._output.forward(packet)
        elif self._batch is not None:
            packet.value = values.pop()
            if self._joins_batch(packet):
                self._step_batch(packet, self._batch)
        else:
            self._chunk_loop.begin(packet.key, values, (packet.samples, packet.meta))

    def _reject(self, error: UnreadableItemError) -> None:
        """Handle an item that cannot be unpickled like a failure of the first stage."""
        self._chain.reject(error.key, error, (error.samples, error.meta))
        self._worker_context.region.clear_current_item(error.key)

    def _joins_batch(self, packet: ReceivedPacket) -> bool:
        """Return whether an item belongs in the batch. Handles the item here if it does not."""
        route = self._chain.choose_route(packet.key, packet.value, (packet.samples, packet.meta))
        if route is Route.CALL:
            return True
        if route is Route.AROUND:
            box = [packet.value]
            packet.value = None
            self._chain.push(packet.key, box, packet.samples, packet.meta, 1)
        self._worker_context.region.clear_current_item(packet.key)
        return False

    def _step_batch(self, first: ReceivedPacket, batch: BatchSpec) -> None:
        region = self._worker_context.region
        packets = [first]
        deadline_ns = perf_counter_ns() + batch.max_wait_ns
        packet: ReceivedPacket | None = None
        while len(packets) < batch.size:
            region.clear_current_item(packets[-1].key)  # a death during the wait is no item's fault
            remaining_ns = deadline_ns - perf_counter_ns()
            try:
                packet = self._receiver.receive_one(self._generation, max(remaining_ns, 0) / 1e9)
            except UnreadableItemError as error:
                self._reject(error)
                continue
            if packet is None:
                if self._worker_context.is_interrupted():
                    raise SeekInterruptError
                break
            if packet.kind != PacketKind.ITEM:
                self._output.forward(packet)
            elif self._joins_batch(packet):
                packets.append(packet)
            elif remaining_ns <= 0:
                break  # items that go around must not keep the batch waiting
        self._output.flush()
        keys = [packet.key for packet in packets]
        headers = [(packet.samples, packet.meta) for packet in packets]
        values = [packet.value for packet in packets]
        packets.clear()
        first.value = None
        del packet
        if any(self._chain.is_unbatched(key[0], key[0]) for key in keys):
            values.reverse()
            for key, header in zip(keys, headers, strict=True):
                region.set_current_key(key)
                self._chain.push_batch([key], [values.pop()], [header])
        else:
            region.set_current_keys(keys)
            self._chain.push_batch(keys, values, headers)
        region.set_current_key(())


class SegmentBoundary(NamedTuple):
    """Everything that an order point needs to end segment `input_segment` and to feed the next one."""

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
        self._chain = StageChain(stages[1:], output, worker_context.region)
        self._output = output
        self._receiver = boundary.receiver
        self._receiver.on_item = worker_context.region.set_current_item
        # A trace records each item.
        self._take_packet = self._receiver.receive if stages[0].trace is None else self._receiver.receive_one
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
        """Send one pending output, or receive one packet."""
        if self._grouping.pending_outputs:
            self._send_output()
        elif (
            self._segment_items is not None and self._reorder.next_item >= self._segment_items and not self._is_finished
        ):
            self._finish_segment()
        else:
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
            packet = self._take_packet(self._generation)
        except UnreadableItemError as error:
            raise self._stage.record_failure(error.key, error) from error
        if packet is None:
            raise SeekInterruptError
        self._worker_context.region.clear_current_item(packet.key)
        if type(packet.value) is SampleChunk:
            packet.kind = PacketKind.CHUNK
            packet.count = len(packet.value)
        if self._process_next(packet):
            del packet
            if self._reorder.held:
                self._process_ready()
            return
        if packet.kind == PacketKind.END_OF_SEGMENT:
            self._segment_items = packet.count
            return
        if packet.meta:
            self._meta_by_item[packet.key[0]] = packet.meta
        self._reorder.add(packet)
        del packet
        self._process_ready()

    def _process_next(self, packet: ReceivedPacket) -> bool:
        """Process the packet if it is next in order, bypassing the reorder buffer. Returns whether it was."""
        if self._any_order or not self._reorder.try_advance(packet):
            return False
        meta = packet.meta
        self._process_leaf(packet)
        next_item = self._reorder.next_item
        self._grouping.finish_item(next_item - 1, meta)
        self._progress.publish(next_item)
        return True

    def _process_ready(self) -> None:
        completed_items = self._reorder.completed_items
        for packet, item in self._reorder.pop_ready():
            if packet is None:
                self._grouping.finish_item(item, self._meta_by_item.pop(item, b""))
            else:
                self._process_leaf(packet)
        if self._reorder.completed_items != completed_items:
            self._progress.publish(self._reorder.next_item)

    def _process_leaf(self, packet: ReceivedPacket) -> None:
        """Add an item or the items of a chunk to the groups, or drop a leaf."""
        region = self._worker_context.region
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = packet.key[0] + 1
        if packet.kind == PacketKind.CHUNK:
            self._grouping.add_values(
                packet.key, packet.value, region.set_current_item, passes_rows_on=self._passes_rows_on
            )
            region.clear_current_item(packet.key)
        elif packet.kind == PacketKind.ITEM:
            box: Box = [packet.value]
            packet.value = None
            self._grouping.add_item(packet.key, box, packet.samples, packet.meta)
        else:
            self._drop_leaf(packet)
        region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] = 0

    def _drop_leaf(self, packet: ReceivedPacket) -> None:
        is_failure = packet.kind == PacketKind.ERROR_SKIP
        skip = ImposedSkip(self._worker_context.stage_names[packet.count], packet.key) if is_failure else None
        self._grouping.drop_item(packet.key, packet.meta, skip)

    def _finish_segment(self) -> None:
        self._is_finished = True
        self._grouping.finish_segment()
        while self._grouping.pending_outputs:
            self._send_output()
        self._output.send_end(self._grouping.next_number)
