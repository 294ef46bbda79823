"""The caller's end of a run: an order point at the end of the last hop, whose outputs are the pipeline's items.

It runs in the caller's process, on the thread that iterates. The Consumer yields the items of an epoch and enters
seeks. A HopReader receives the packets. A GenerationDelivery puts the packets of one generation in order. A position
tracks the cursor after the last delivered item. DeliveryStatistics counts and times deliveries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, repeat
from operator import is_
from time import perf_counter_ns, sleep
from typing import Any, Final, NoReturn, Protocol

from stagepipe.core import SKIP, Cursor, ImposedSkip, Key, RunError, TransportError, UsageError
from stagepipe.plan import SINK_NAME, Plan
from stagepipe.runtime.flow import (
    EXPECTED_LEASES,
    MAX_HELD_FRACTION,
    HeldMemoryLimit,
    ProgressPublisher,
    StaleLeaseReporter,
)
from stagepipe.runtime.protocol import (
    DeliveredLeaves,
    UnorderedLineage,
    attach_root,
    detach_root,
    extract_root,
    format_item,
    format_user_traceback,
    raise_inexact_cursor,
    unpack_lineage,
    unpack_unordered_lineage,
)
from stagepipe.runtime.supervisor import RecoveryCoordinator, RunResources, Supervisor
from stagepipe.timing import RECEIVE_PHASES, DeliveryCounter, DurationRecorder, ProcessCounter, TraceKind
from stagepipe.transport import (
    Arena,
    Lease,
    PacketKind,
    ReceivedPacket,
    ReorderBuffer,
    SharedMemoryPool,
    UnreadableItemError,
    make_receiver,
    open_transports,
    shift_key,
)

_CHUNK: Final = int(PacketKind.CHUNK)
_MAX_DELIVERY_POINTS = 512
"""The points of the delivery curve to keep. At this number, every other point is dropped and the stride doubles."""


@dataclass(frozen=True, kw_only=True)
class DeliverySnapshot:
    """The deliveries of a run at one moment. Each `DeliveryCounter` has a field of its name; two fields are extra.

    `points` are pairs: (ns since the start, samples delivered so far).
    """

    started_ns: int
    wall_ns: int
    items: int
    samples: int
    first_item_ns: int
    wait_ns: int
    busy_ns: int
    outside_ns: int
    files: int
    first_wait_ns: int = 0
    points: tuple[tuple[int, int], ...] = ()


def read_deliveries(words: memoryview) -> DeliverySnapshot:
    """Return the last values of `DeliveryStatistics.publish`. They lack the first wait and the points."""
    fields: dict[str, Any] = {counter.name.lower(): words[counter] for counter in DeliveryCounter}
    return DeliverySnapshot(**fields)


class DeliveryCurve:
    """The samples delivered over time, thinned to a bounded number of points, oldest first."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int]] = []
        self._stride = 1
        """The least number of items between two points."""
        self.next_item = 0
        """The first item that may add the next point."""

    def add(self, elapsed_ns: int, samples: int, item: int) -> None:
        """Add the point for the delivery of `item`; `samples` includes it."""
        self.points.append((elapsed_ns, samples))
        if len(self.points) >= _MAX_DELIVERY_POINTS:
            self.points = self.points[::2]
            self._stride *= 2
        self.next_item = item + self._stride


class OutsideClock:
    """Measures the time outside any iteration since the first one: between epochs, and after the last."""

    def __init__(self) -> None:
        self._elapsed_ns = 0
        self._ended_at_ns = 0
        self._iteration = 0

    def begin_iteration(self) -> int:
        """Record that an iteration begins. Returns its number for `end_iteration`."""
        self._elapsed_ns = self.read(perf_counter_ns())
        self._ended_at_ns = 0
        self._iteration += 1
        return self._iteration

    def end_iteration(self, iteration: int) -> None:
        """Record that an iteration has ended. Ignored if the next one has begun already."""
        if iteration == self._iteration:
            self._ended_at_ns = perf_counter_ns()

    def read(self, now_ns: int) -> int:
        """Return the nanoseconds outside any iteration so far."""
        return self._elapsed_ns + (now_ns - self._ended_at_ns if self._ended_at_ns else 0)


_Slice = tuple[list[Any], int, int, int, int, int, int]
"""Values that the caller takes one after another, their initial number, the samples of each, and the time at the start.
Then the earlier counts: items, samples, busy time. Current counts follow from the number of values left, so nothing is
counted per item. A plain tuple, because one is made for each packet."""


class DeliveryStatistics:
    """Counts deliveries, and times the consumer's waits and its caller's work. Times are in ns."""

    def __init__(self, started_ns: int | None = None) -> None:
        """The run started at `started_ns` (`perf_counter_ns`), or starts now if it is None."""
        self._started_ns = started_ns or perf_counter_ns()
        self._ended_ns = 0
        self.items = 0
        self._samples = 0
        self._first_item_ns = 0
        self._first_wait_ns = 0
        self.wait_ns = 0
        """The time that the consumer waited for items."""
        self.busy_ns = 0
        """The time that the caller worked on items."""
        self.files = 0
        """Files that sinks have written."""
        self._slice: _Slice | None = None
        """The slice that the caller is taking. Replaced as a whole, because another thread takes snapshots."""
        self._curve = DeliveryCurve()
        self.outside_clock = OutsideClock()

    def begin_slice(self, values: list[Any], samples_each: int, now_ns: int) -> None:
        """Record that the caller begins to take `values`, which shrinks, and to work on each; the first at once."""
        self._slice = (values, len(values), samples_each, now_ns, self.items, self._samples, self.busy_ns)
        if self.items >= self._curve.next_item:
            self._note_item(now_ns, samples_each)

    def end_slice(self, now_ns: int) -> None:
        """Count the values that the caller took from the slice, and its work until now."""
        if self._slice is not None:
            self.items, self._samples, self.busy_ns = _count_slice(self._slice, now_ns)
            self._slice = None

    def count_item(self, samples: int) -> None:
        """Count an item that is delivered now."""
        if self.items >= self._curve.next_item:
            self._note_item(perf_counter_ns(), samples)
        self.items += 1
        self._samples += samples

    def _note_item(self, now_ns: int, samples: int) -> None:
        """Note in the curve that the next item is delivered now."""
        elapsed_ns = now_ns - self._started_ns
        if not self.items:
            self._first_item_ns = elapsed_ns
            self._first_wait_ns = self.wait_ns
        self._curve.add(elapsed_ns, self._samples + samples, self.items)

    def end(self) -> None:
        """Stop the clocks, because the run ends now."""
        self._ended_ns = perf_counter_ns()

    def publish(self, words: memoryview) -> None:
        """Write the current counts to the board's words of `DeliveryCounter`."""
        snapshot = self.take_snapshot()
        for counter in DeliveryCounter:
            words[counter] = getattr(snapshot, counter.name.lower())

    def take_snapshot(self) -> DeliverySnapshot:
        """Return the current counts, including the items taken from the current slice."""
        now_ns = self._ended_ns or perf_counter_ns()
        current = self._slice  # read before the counts: `end_slice` updates the counts first and then sets None
        if current is None:
            items, samples, busy_ns = self.items, self._samples, self.busy_ns
        else:
            items, samples, busy_ns = _count_slice(current, now_ns)
        return DeliverySnapshot(
            started_ns=self._started_ns,
            wall_ns=now_ns - self._started_ns,
            items=items,
            samples=samples,
            first_item_ns=self._first_item_ns,
            first_wait_ns=self._first_wait_ns,
            wait_ns=self.wait_ns,
            busy_ns=busy_ns,
            outside_ns=self.outside_clock.read(now_ns),
            files=self.files,
            points=tuple(self._curve.points),
        )


def _count_slice(current: _Slice, now_ns: int) -> tuple[int, int, int]:
    """Return the items, the samples and the busy time, including the part of the slice taken until now."""
    values, length, samples_each, begin_ns, items, samples, busy_ns = current
    taken = length - len(values)
    return items + taken, samples + taken * samples_each, busy_ns + max(now_ns - begin_ns, 0)


class ConsumerPosition(Protocol):
    """Tracks deliveries. `meta` is the packed lineage of the item, from an order point."""

    def mark_delivered(self, key: Key, meta: bytes, count: int = 1) -> None:
        """Record `count` leaves from `key` on as delivered or dropped. Repeating a call changes nothing."""

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a leaf that failed: if its item is repeated, the leaf must be skipped again."""

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Record that all leaves of `item`, and of all items before it, were delivered."""

    @property
    def cursor(self) -> Cursor:
        """The cursor that reproduces everything after the last delivered leaf."""


class OrderedPosition:
    """The position for `order: source`: the cursor of the segment before, the item, and its last delivered leaf."""

    def __init__(self, cursor: Cursor) -> None:
        """Start at `cursor`."""
        self._upstream = cursor.upstream
        self._item = cursor.item
        self._last_key = cursor.last_key
        self._skips = cursor.skips
        self._meta = b""

    def mark_delivered(self, key: Key, meta: bytes, count: int = 1) -> None:
        """Record the next leaves in order. A leaf that is a whole item completes the item."""
        if len(key) == 1:
            self.mark_item_complete(key[0] + count - 1, meta)
        else:
            self._item = key[0]
            self._last_key = shift_key(key, count - 1)
            self._meta = meta

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a skipped part of the current item. A skipped whole item is never repeated, so it is left out."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Move to the next item, unless the item's only leaf has completed it already."""
        if item >= self._item:
            self._upstream = unpack_lineage(meta).resume_cursor if meta else None
            self._item = item + 1
            self._last_key = None
            self._skips = frozenset()
            self._meta = b""

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last delivered leaf."""
        skips = self._skips | unpack_lineage(self._meta).skips
        return Cursor(self._upstream, self._item, self._last_key, skips=skips)


class UnorderedPosition:
    """The position for `order: any` without an order point: the lowest open item, and delivered leaves above it."""

    def __init__(self, cursor: Cursor) -> None:
        """Start at `cursor`."""
        self._delivered_leaves = DeliveredLeaves(cursor)

    def mark_delivered(self, key: Key, meta: bytes, count: int = 1) -> None:
        """Record leaves anywhere above the lowest open item."""
        del meta
        self._delivered_leaves.add([shift_key(key, index) for index in range(count)])

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Do nothing, because a skipped leaf counts as delivered."""

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Raise the lowest open item. Items are completed in order."""
        del meta
        self._delivered_leaves.advance_watermark(item + 1)

    @property
    def cursor(self) -> Cursor:
        """The cursor of the delivered leaves."""
        return self._delivered_leaves.to_cursor()


class DownstreamPosition:
    """The position for `order: any` after an order point. Items arrive in order; their lineage names their leaves."""

    def __init__(self, cursor: Cursor, segment: int) -> None:
        """Start at `cursor`, a cursor of `segment`."""
        root = extract_root(cursor, segment)
        self._delivered_leaves = DeliveredLeaves(root)
        self._open_groups = root.replay_groups
        self._detached_upstream = detach_root(cursor.upstream, segment - 1)
        self._item = cursor.item
        self._last_key = cursor.last_key
        self._skips = cursor.skips
        self._current_lineage: UnorderedLineage | None = None

    def mark_delivered(self, key: Key, meta: bytes, count: int = 1) -> None:
        """Record the next leaves in order. A leaf that is a whole item completes the item."""
        if len(key) == 1:  # never in a chunk, because it has a lineage
            self.mark_item_complete(key[0], meta)
            return
        if self._current_lineage is None:
            self._current_lineage = unpack_unordered_lineage(meta)
            self._skips |= self._current_lineage.skips
        self._item = key[0]
        self._last_key = shift_key(key, count - 1)

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a skipped part of the current item. A skipped whole item is never repeated, so it is left out."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Record the leaves from which the item was made as delivered."""
        if item < self._item:
            return
        lineage = unpack_unordered_lineage(meta)
        for group in lineage.consumed_groups:
            self._delivered_leaves.add(group)
        self._delivered_leaves.advance_watermark(lineage.low_watermark)
        self._open_groups = self._open_groups if lineage.open_groups is None else lineage.open_groups
        self._detached_upstream = lineage.resume_cursor
        self._item = item + 1
        self._last_key = None
        self._current_lineage = None
        self._skips = frozenset()

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last delivered leaf. Raises UsageError inside a group without an exact order."""
        open_groups, lineage = self._open_groups, self._current_lineage
        if lineage is not None and self._last_key is not None:
            if not lineage.has_exact_order:
                raise_inexact_cursor()
            still_open = open_groups if lineage.open_groups is None else lineage.open_groups
            open_groups = (*lineage.consumed_groups, *still_open)
        root = self._delivered_leaves.to_cursor(open_groups)
        return Cursor(attach_root(self._detached_upstream, root), self._item, self._last_key, skips=self._skips)


def make_position(cursor: Cursor, segment: int, *, any_order: bool) -> ConsumerPosition:
    """Return the position of a consumer that reads `segment`."""
    if not any_order:
        return OrderedPosition(cursor)
    return DownstreamPosition(cursor, segment) if segment else UnorderedPosition(cursor)


_ChunkInHand = tuple[list[Any], Key, int, bytes, bool]
"""A chunk that is being delivered: the remaining values, the key of the first, the initial count, the meta, and whether
the order has advanced past the chunk. If so, its items are complete when they are taken."""


class GenerationDelivery:
    """Delivers the items of the last segment in order, from a cursor on."""

    def __init__(self, generation: int, cursor: Cursor, plan: Plan, progress: ProgressPublisher) -> None:
        """Begin at `cursor`. The number of completely delivered items goes to `progress`."""
        segment = len(plan.segments) - 1
        self.generation = generation
        self._stage_names = plan.stage_names
        self._is_any_order = plan.any_order and not segment
        self._position: ConsumerPosition = make_position(cursor, segment, any_order=plan.any_order)
        self._reorder = ReorderBuffer(
            cursor.item,
            cursor.last_key,
            any_order=self._is_any_order,
            emitted_keys=cursor.emitted_keys,
        )
        self._progress = progress
        self._meta_by_item: dict[int, bytes] = {}
        self._segment_items: int | None = None
        self._chunk: _ChunkInHand | None = None
        self._marked_leaves = 0
        """The leaves of the current chunk that the position has recorded."""

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last delivered item. Raises UsageError if there is none (`order: any`)."""
        self._mark_taken()
        return self._position.cursor

    @property
    def next_item(self) -> int:
        """The number below which all items of the segment are delivered."""
        if self._chunk is None:
            return self._reorder.next_item
        values, key, count, _, is_next = self._chunk
        if len(key) > 1 or not (is_next or not self._is_any_order):
            return self._reorder.next_item
        return key[0] + count - len(values)

    @property
    def count_early_items(self) -> Callable[[], int]:
        """A function that counts the items that have arrived before their turn, in whole or in part.

        It holds no reference to the delivery, because the delivery holds the `ProgressPublisher` that calls it.
        """
        return self._reorder.__len__

    @property
    def is_complete(self) -> bool:
        """Whether everything up to the end of the segment was delivered."""
        return self._segment_items is not None and self._reorder.next_item >= self._segment_items

    def add(self, packet: ReceivedPacket) -> Iterable[ReceivedPacket]:
        """Add a packet. Returns packets with the items that are ready, in order. The value of each is a list of values.

        The caller takes values from the end of the list, all of one packet before the next packet. The cursor is behind
        the last value taken. An iterable that is not exhausted loses nothing: the next one continues there.
        """
        reorder = self._reorder
        item = packet.key[0]
        if packet.meta:
            self._meta_by_item[item] = packet.meta
        if not reorder.try_advance(packet):
            if packet.kind == PacketKind.END_OF_SEGMENT:
                self._segment_items = packet.count
            else:
                reorder.add(packet)
            return self._pop_ready()
        if self._chunk is not None:
            self._finish_chunk()
        ready: Iterable[ReceivedPacket] = (packet,)
        if packet.kind == _CHUNK:
            ready = self._open_chunk(packet, b"", is_next=True)
        else:
            self._position.mark_item_complete(item, self._meta_by_item.pop(item, b""))
            packet.value = [packet.value]
        return chain(ready, self._pop_ready()) if reorder.held else ready

    def _pop_ready(self) -> Iterator[ReceivedPacket]:
        position = self._position
        for packet, item in self._reorder.pop_ready():
            self._finish_chunk()
            if packet is None:
                position.mark_item_complete(item, self._meta_by_item.pop(item, b""))
                self._progress.publish(self._reorder.next_item)
                continue
            meta = self._meta_by_item.get(item, b"")
            if packet.kind == _CHUNK:
                yield from self._open_chunk(packet, meta, is_next=False)
            elif packet.kind == PacketKind.ITEM:
                position.mark_delivered(packet.key, meta)
                packet.value = [packet.value]
                yield packet
            elif packet.count <= 1 or packet.kind == PacketKind.ERROR_SKIP:  # not the tombstone of a whole chunk
                position.mark_delivered(packet.key, meta)
                if packet.kind == PacketKind.ERROR_SKIP:
                    position.mark_skipped(ImposedSkip(self._stage_names[packet.count], packet.key))

    def _open_chunk(self, packet: ReceivedPacket, meta: bytes, *, is_next: bool) -> Iterable[ReceivedPacket]:
        """Return the chunk, or its parts between dropped items. With `is_next`, items are complete when taken."""
        if id(SKIP) in map(id, packet.value):
            return self._iter_between_skips(packet, meta, is_next=is_next)
        self._take_in_hand(packet, meta, is_next=is_next)
        return (packet,)

    def _iter_between_skips(self, packet: ReceivedPacket, meta: bytes, *, is_next: bool) -> Iterator[ReceivedPacket]:
        offset = 0
        for is_dropped, group in groupby(packet.value, partial(is_, SKIP)):
            values = list(group)
            part = ReceivedPacket(packet.kind, shift_key(packet.key, offset), 1, len(values), b"", values)
            offset += len(values)
            self._take_in_hand(part, meta, is_next=is_next)
            if is_dropped:
                values.clear()
            else:
                yield part

    def _take_in_hand(self, packet: ReceivedPacket, meta: bytes, *, is_next: bool) -> None:
        self._finish_chunk()
        values: list[Any] = packet.value
        values.reverse()
        self._chunk = (values, packet.key, len(values), meta, is_next)

    def _finish_chunk(self) -> None:
        """Record that the current chunk was taken."""
        if self._chunk is not None:
            self._mark_taken()
            self._chunk = None
            self._marked_leaves = 0

    def _mark_taken(self) -> None:
        """Move the position behind the values taken from the current chunk. Any thread may call this."""
        if self._chunk is None:
            return
        values, key, count, meta, is_next = self._chunk
        marked = self._marked_leaves
        taken = count - len(values)
        if taken > marked:
            if is_next:
                self._position.mark_item_complete(key[0] + taken - 1, meta)
            else:
                self._position.mark_delivered(shift_key(key, marked), meta, taken - marked)
            self._marked_leaves = taken


_FLUSH_INTERVAL_NS = 100_000_000


class HopReader:
    """Receives from the last hop into `memory`."""

    def __init__(
        self,
        memory: SharedMemoryPool,
        resources: RunResources,
        recovery: RecoveryCoordinator,
        progress: ProgressPublisher,
        *,
        is_memory_shared: bool = False,
    ) -> None:
        """`recovery` interrupts waits and receives the reports of old leases; `progress` is flushed before each wait.

        With `is_memory_shared`, the iterating thread also sends from `memory`, so no other thread may flush it.
        """
        process_index = resources.consumer_process_index
        self.memory = memory
        self._shard = resources.plan.shard.for_segment(len(resources.plan.segments) - 1)
        self._progress = progress
        self._region = region = resources.board.region(process_index)
        self._recorder = DurationRecorder(region.receive_histogram_words, len(RECEIVE_PHASES), region.receive_ledger)
        self._receiver = make_receiver(
            resources.consumer_trace,
            resources.pipes[-1].read_fd,
            memory,
            resources.consumer_wake_event,
            recovery.is_interrupted,
            self._recorder,
            self._on_tick,
            readonly=False,
        )
        # A traced consumer records each item.
        self._receive = self._receiver.receive if resources.consumer_trace is None else self._receiver.receive_one
        self._held_memory = HeldMemoryLimit(
            memory,
            resources.plan.memory_bytes * MAX_HELD_FRACTION,
            partial(region.__setitem__, ProcessCounter.HELD_BYTES),
        )
        self._stale_leases = StaleLeaseReporter(memory, 0, partial(recovery.record_era_entry, process_index))
        self._last_flush_ns = 0
        self._is_memory_shared = is_memory_shared
        self._iterating_thread_id = -1

    def receive(self, generation: int) -> ReceivedPacket | None:
        """Return the next packet of `generation`; None if interrupted. Raises RunError for a damaged packet."""
        if self.memory.lease_count > EXPECTED_LEASES or self._held_memory.held_bytes:
            self._receiver.copy_all = self._held_memory.check()
        try:
            return self._receive(generation)
        except UnreadableItemError as error:
            item = format_item(self._shard, error.key)
            raise RunError(
                f"{SINK_NAME}, item {item}: {error}",
                stage=SINK_NAME,
                worker=0,
                item=item,
                trace=format_user_traceback(error),
            ) from error
        except TransportError as error:
            raise RunError(f"{SINK_NAME}: {error}", stage=SINK_NAME, worker=0) from error

    def enter_era(self, era: int) -> None:
        """Enter a seek to `era`. The calling thread becomes the iterating thread."""
        self._iterating_thread_id = threading.get_ident()
        if self._stale_leases.enter_era(era):
            self._stale_leases.report()

    def publish_held_bytes(self) -> None:
        """Write the bytes that the caller holds now to the board."""
        self._receiver.copy_all = self._held_memory.measure()

    # ------------------------------------------------------------------ upkeep

    def _on_tick(self) -> None:
        """Publish that the caller waits for an item, and run the upkeep. Called at every tick of the wait."""
        self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        self.run_upkeep()

    def run_upkeep(self) -> None:
        """Exchange released blocks with the other processes, publish progress, and sometimes the counters."""
        self.memory.flush_releases()
        self.memory.collect_releases()
        self._progress.flush()
        now_ns = perf_counter_ns()
        if now_ns - self._last_flush_ns > _FLUSH_INTERVAL_NS:
            self._last_flush_ns = now_ns
            self.flush()
            self._stale_leases.report_if_any()

    def flush(self) -> None:
        """Write the counters to the board, and report released blocks to their owners."""
        if self._is_memory_shared and self._iterating_thread_id != threading.get_ident():
            return  # the iterating thread does it; two threads must not do it at once
        self.memory.flush_releases()
        self._recorder.flush()
        self._region[ProcessCounter.STARVED_NS] = self._receiver.starved_ns
        self._region[ProcessCounter.COPIED_OUT_ITEMS] = self._receiver.copied_out_items

    def close(self) -> None:
        """Release all blocks that can be released, and stop receiving. Needs a stopped iterating thread."""
        self._is_memory_shared = False
        self._receiver.close()
        self.flush()

    def release_references(self) -> None:
        """Break the reference cycle through the receiver, so that `memory` is freed with its last user."""
        del self._receiver, self._receive


_PROCESS_END_WAIT_S: Final = 1.0
_MAX_SLICE_NS: Final = 1_000_000
"""The clock is read, and the window opened, about this often; at each item if the caller works longer on one."""


def _choose_slice_items(max_items: int, taken: int, elapsed_ns: int) -> int:
    """Return how many items to deliver before reading the clock, after `taken` of `max_items` took `elapsed_ns`.

    >>> _choose_slice_items(8, 8, 100_000), _choose_slice_items(8, 5, 100_000), _choose_slice_items(8, 8, 4_000_000)
    (16, 8, 2)
    """
    if elapsed_ns > _MAX_SLICE_NS:
        return max(taken * _MAX_SLICE_NS // elapsed_ns, 1)
    return 2 * max_items if taken == max_items and 2 * elapsed_ns <= _MAX_SLICE_NS else max_items


@dataclass(frozen=True, kw_only=True)
class MemoryHandle:
    """The shared memory and descriptors with which a caller sends delivered items to other processes, by arena.

    `release_fds` accept the records of released blocks. The caller must call `on_tick` in every wait. `transports` has
    (target, shared) pairs of the run's other transports.
    """

    memory: SharedMemoryPool
    arena_fds: dict[int, int]
    release_fds: dict[int, int]
    memory_bytes: int
    transports: list[tuple[str, str]]
    on_tick: Callable[[], None]


class Consumer:
    """Delivers items in order, one epoch per iteration. Each iteration starts with a seek, even inside an epoch."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Receive from the last hop of the supervisor's run."""
        self._plan = plan = supervisor.plan
        self._resources = resources = supervisor.resources
        self._recovery = supervisor.recovery
        self._progress = ProgressPublisher(resources.board, len(plan.segments) - 1, resources.segment_wake_events[-1])
        memory = SharedMemoryPool(
            None,
            dict(resources.arena_memfds),
            resources.release_write_fds,
            writable=True,
            limit_bytes=plan.memory_bytes,
        )
        memory.attach_transports(open_transports(resources.transports.items(), plan.config_dir))
        self._reader = HopReader(memory, resources, self._recovery, self._progress)
        self._trace = resources.consumer_trace
        self._delivery: GenerationDelivery | None = None
        self._is_epoch_complete = True  # no epoch is in progress
        self._is_recovering = False
        self._is_closed = False
        self.is_process_ending = False
        """Set before a close at the interpreter's exit: a daemon thread that still iterates then waits for the end."""
        self.statistics = DeliveryStatistics(supervisor.started_ns)
        # Not for each item, which would slow down a loop over small dicts by a twentieth.
        supervisor.call_regularly(partial(self.statistics.publish, resources.board.delivery_words))

    def share_memory(self) -> MemoryHandle:
        """Return the memory and descriptors for sending items to other processes. Call it once, before the first epoch.

        The iterating thread can then forward delivered items from the returned `memory`. It has an arena for items that
        must be copied. From then on, only that thread reports released blocks to their owners.
        """
        resources, memory_bytes = self._resources, self._plan.memory_bytes
        process_index = resources.consumer_process_index
        self._recovery.add_consumer_arena()
        release_fds = resources.release_write_fds
        memory = SharedMemoryPool(
            Arena(process_index, resources.arena_memfds[process_index], memory_bytes),
            dict(resources.arena_memfds),
            {**release_fds, process_index: resources.release_pipes[process_index][0]},  # its own releases: the read end
            writable=True,
            limit_bytes=memory_bytes,
        )
        memory.attach_transports(open_transports(resources.transports.items(), self._plan.config_dir))
        region = resources.board.region(process_index)
        memory.on_live_bytes = partial(region.__setitem__, ProcessCounter.LIVE_BYTES)
        self._reader.close()
        self._reader = HopReader(memory, resources, self._recovery, self._progress, is_memory_shared=True)
        return MemoryHandle(
            memory=memory,
            arena_fds=dict(resources.arena_memfds),
            release_fds=release_fds,
            memory_bytes=memory_bytes,
            transports=list(resources.transports.items()),
            on_tick=self._reader.run_upkeep,
        )

    @property
    def committed_cursor(self) -> Cursor:
        """The cursor after the last delivered item. A seek to it reproduces everything that follows."""
        return Cursor() if self._delivery is None else self._recovery.add_stream_state(self._delivery.cursor)

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the live lease that contains these bytes, or None."""
        return self._reader.memory.find_lease(address, nbytes)

    def flush(self) -> None:
        """Write the counters to the board, and report released blocks to their owners."""
        self._reader.flush()

    # ------------------------------------------------------------------ an epoch

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Iterator[Any]:
        """Return an iterator over an epoch from `cursor` on. The workers start at once, not at the first `next`."""
        iteration = self.statistics.outside_clock.begin_iteration()
        delivery = self._enter_generation(epoch, cursor or Cursor(), rebuild_stateful=not self._is_epoch_complete)
        return self._iter_items(epoch, delivery, iteration)

    def _enter_generation(
        self, epoch: int, cursor: Cursor, *, rebuild_stateful: bool = True, is_recovery: bool = False
    ) -> GenerationDelivery:
        """Seek: answer the coordinator with `cursor`, and begin its new generation there."""
        seek = self._recovery.begin_generation(
            cursor, epoch, rebuild_stateful=rebuild_stateful, is_recovery=is_recovery
        )
        self._is_recovering = self._recovery.awaits_delivery
        self._is_epoch_complete = False
        self._delivery = delivery = GenerationDelivery(seek.generation, seek.cursor, self._plan, self._progress)
        self._progress.start_generation(seek.generation, cursor.item, seek.windows[-1], delivery.count_early_items)
        self._reader.enter_era(seek.era)
        return delivery

    def _iter_items(  # noqa: C901 - a nested generator would cost time for each item
        self, epoch: int, delivery: GenerationDelivery, iteration: int
    ) -> Iterator[Any]:
        statistics, receive, trace = self.statistics, self._reader.receive, self._trace
        max_items = 1
        now_ns = perf_counter_ns()
        try:
            while not delivery.is_complete:
                began_ns = now_ns
                packet = receive(delivery.generation)
                now_ns = perf_counter_ns()
                statistics.wait_ns += now_ns - began_ns
                if packet is None:
                    delivery = self._handle_interrupt(epoch, delivery)
                    now_ns = perf_counter_ns()
                    continue
                for ready in delivery.add(packet):
                    if self._is_recovering:
                        self._is_recovering = False
                        self._recovery.record_delivery()
                    values: list[Any] = ready.value
                    while values:
                        began_ns = now_ns
                        statistics.begin_slice(values, ready.samples, began_ns)
                        count = min(max_items, len(values))
                        try:
                            for _ in repeat(None, count):
                                yield values.pop()
                        finally:
                            now_ns = perf_counter_ns()
                            statistics.end_slice(now_ns)
                            if trace is not None:
                                key = shift_key(ready.key, max(ready.count, 1) - len(values) - 1)
                                trace.add(TraceKind.CONSUME, began_ns, now_ns, key)
                        if trace is None and (count > 1 or values):  # a traced consumer records each item
                            max_items = _choose_slice_items(max_items, count, now_ns - began_ns)
                        self._progress.publish(delivery.next_item)
                self._progress.publish(delivery.next_item)  # in case all of a chunk was dropped, or its last items
            self._reader.flush()
            self._progress.flush()
            self._is_epoch_complete = True
        except Exception:
            if not self._is_closed:
                raise
            self._end_closed_iteration()
        finally:
            statistics.outside_clock.end_iteration(iteration)

    def _end_closed_iteration(self) -> NoReturn:
        """End an iteration after another thread closed the run. Raises UsageError."""
        while self.is_process_ending:  # a daemon thread: it would print an error that no one can act on
            sleep(_PROCESS_END_WAIT_S)
        raise UsageError("this pipeline was closed by another thread; make a new one")

    def _handle_interrupt(self, epoch: int, delivery: GenerationDelivery) -> GenerationDelivery:
        """Stop, and ask the coordinator whether to continue or to seek. Raises RunError if the run failed."""
        self._reader.publish_held_bytes()
        if self._recovery.resolve_interrupt(self.statistics.items):
            return self._enter_generation(epoch, delivery.cursor, is_recovery=True)
        return delivery

    def close(self) -> None:
        """Release all blocks that can be released, and stop receiving."""
        self._is_closed = True
        self.statistics.end()
        self._reader.close()

    def release_references(self) -> None:
        """Break the reference cycles through the receiver and the last error, after the last read.

        Each mapping holds a descriptor. Without cycles it is freed with its last user, not at a later garbage
        collection.
        """
        self._reader.release_references()
        self._recovery.forget_failure()
