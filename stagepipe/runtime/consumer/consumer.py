"""The Consumer: an order point at the end of the last hop, whose outputs are the pipeline's items.

In the caller's process, on the thread that iterates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Cursor, ImposedSkip, RunError, TransportError
from stagepipe.plan import SINK_NAME
from stagepipe.runtime.consumer.position import ConsumerPosition, OrderedPosition, make_position
from stagepipe.runtime.flow import ProgressPublisher, StaleLeaseReporter
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import RECEIVE_PHASES, DurationRecorder, ProcessCounter
from stagepipe.transport import Arena, Lease, PacketKind, ReceivedPacket, Receiver, ReorderBuffer, SharedMemoryPool

_FLUSH_INTERVAL_NS = 100_000_000
_MAX_DELIVERY_POINTS = 512
"""Points of the delivery curve that are kept; then every other one is dropped, and the stride doubles."""
_LEASE_CHECK_INTERVAL_ITEMS = 4
"""The sum of held bytes takes time for each lease: with many leases it is computed every few items."""
_MANY_LEASES = 64
"""From this number of leases on, held bytes are summed up only every `_LEASE_CHECK_INTERVAL_ITEMS` items."""
_EXPECTED_CALLER_LEASES = 4
"""Leases that any caller holds: the current item, and the last few that are not released yet."""


@dataclass(frozen=True)
class MemoryHandle:
    """What a caller needs to send delivered items on to other processes: their memory and its descriptors, by arena.

    `release_fds` accept the records of released blocks. The caller must call `on_tick` in every wait.
    """

    memory: SharedMemoryPool
    arena_fds: dict[int, int]
    release_fds: dict[int, int]
    memory_bytes: int
    on_tick: Callable[[], None]


class Consumer:
    """Delivers items in order, one epoch per iteration. Each iteration starts with a seek, even inside an epoch."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Receive from the last hop of the supervisor's run."""
        resources = supervisor.resources
        self._supervisor = supervisor
        self._plan = supervisor.plan
        self._region = supervisor.board.region(resources.consumer_process_index)
        release_fds = {owner: pipe[1] for owner, pipe in resources.release_pipes.items()}
        self._memory = SharedMemoryPool(
            None,
            dict(resources.arena_memfds),
            release_fds,
            writable=True,
            limit_bytes=self._plan.memory_bytes,
        )
        self._receive_recorder = DurationRecorder(
            self._region.receive_histogram_words, len(RECEIVE_PHASES), self._region.receive_ledger
        )
        self._receiver = self._make_receiver()
        self._is_memory_shared = False
        self._iterating_thread_id = -1
        self._segment = len(self._plan.segments) - 1
        self._progress = ProgressPublisher(
            supervisor.board, self._segment, resources.segment_wake_events[self._segment]
        )
        self._generation = 0
        self._stale_leases = self._make_stale_leases()
        self._is_epoch_complete = True  # no epoch is in progress
        self._is_recovering = False
        self._last_flush_ns = 0
        self._position: ConsumerPosition = OrderedPosition(Cursor())
        self._segment_items: int | None = None
        self._meta_by_item: dict[int, bytes] = {}
        self.items_yielded = 0
        self.samples_yielded = 0
        self.first_item_ns = 0
        self.wait_ns = 0
        self.busy_ns = 0
        self.first_wait_ns = 0
        self._outside_ns = 0
        self._iteration_ended_ns = 0
        self.delivery_points: list[tuple[int, int]] = []
        self._delivery_point_stride = 1
        self._held_bytes = 0
        self.started_ns = perf_counter_ns()
        self.ended_ns = 0

    def _make_receiver(self) -> Receiver:
        supervisor = self._supervisor
        return Receiver(
            supervisor.resources.pipes[-1].read_fd,
            self._memory,
            supervisor.resources.consumer_wake_event,
            supervisor.recovery.is_interrupted,
            self._receive_recorder,
            self._on_tick,
            readonly=False,
        )

    def _make_stale_leases(self) -> StaleLeaseReporter:
        supervisor = self._supervisor
        process = supervisor.resources.consumer_process_index
        return StaleLeaseReporter(
            self._memory, 0, lambda era, leases: supervisor.recovery.record_era_entry(process, era, leases)
        )

    def share_memory(self) -> MemoryHandle:
        """Return what a caller needs to send items on to other processes. Call it once, before the first epoch.

        Delivered items can then be forwarded from the returned `memory`, by the iterating thread. It has an arena for
        what must be copied. From then on only that thread reports released blocks to their owners.
        """
        resources = self._supervisor.resources
        memory_bytes = self._plan.memory_bytes
        process = resources.consumer_process_index
        self._supervisor.recovery.add_consumer_arena()
        arena = Arena(process, resources.arena_memfds[process], memory_bytes)
        release_fds = {owner: pipe[1] for owner, pipe in resources.release_pipes.items()}
        pool_fds = {**release_fds, process: resources.release_pipes[process][0]}  # it reads its own arena's releases
        self._memory = SharedMemoryPool(
            arena, dict(resources.arena_memfds), pool_fds, writable=True, limit_bytes=memory_bytes
        )
        self._memory.on_live_bytes = self._publish_live_bytes
        self._stale_leases = self._make_stale_leases()
        self._receiver.close()
        self._receiver = self._make_receiver()
        self._is_memory_shared = True
        return MemoryHandle(self._memory, dict(resources.arena_memfds), release_fds, memory_bytes, self._run_upkeep)

    def _publish_live_bytes(self, nbytes: int) -> None:
        self._region[ProcessCounter.LIVE_BYTES] = nbytes

    def _on_tick(self) -> None:
        """Publish that the caller waits for an item, and run the upkeep. Called at every tick of such a wait."""
        self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        self._run_upkeep()

    def _run_upkeep(self) -> None:
        self._memory.flush_releases()
        self._memory.collect_releases()
        self._progress.flush()
        now_ns = perf_counter_ns()
        if now_ns - self._last_flush_ns > _FLUSH_INTERVAL_NS:
            self._last_flush_ns = now_ns
            self.flush()
            self._stale_leases.report_if_any()

    def flush(self) -> None:
        """Write the counters to the board, and report released blocks to their owners."""
        if self._is_memory_shared and self._iterating_thread_id != threading.get_ident():
            return  # the iterating thread does it, and two threads must not do it at once
        self._memory.flush_releases()
        self._receive_recorder.flush()
        self._region[ProcessCounter.STARVED_NS] = self._receiver.starved_ns
        self._region[ProcessCounter.COPIED_OUT_ITEMS] = self._receiver.copied_out_items

    @property
    def committed_cursor(self) -> Cursor:
        """The cursor after the last delivered item; a seek to it reproduces everything that follows."""
        return self._position.cursor

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the live lease that contains these bytes, or None."""
        return self._memory.find_lease(address, nbytes)

    # ------------------------------------------------------------------ an epoch

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Iterator[Any]:
        """Return an iterator over an epoch from `cursor` on. The workers start at once, not with the first `next`."""
        self._outside_ns = self.outside_ns
        self._iteration_ended_ns = 0
        self._seek(epoch, cursor or Cursor(), rebuild_stateful=not self._is_epoch_complete)
        return self._track_iteration_end(self._iter_items(epoch))

    @property
    def outside_ns(self) -> int:
        """Nanoseconds outside any iteration since the first one: between epochs, and after the last."""
        if not self._iteration_ended_ns:
            return self._outside_ns
        return self._outside_ns + (self.ended_ns or perf_counter_ns()) - self._iteration_ended_ns

    def _track_iteration_end(self, items: Iterator[Any]) -> Iterator[Any]:
        generation = self._generation
        try:
            yield from items
        finally:
            if generation == self._generation:  # else the next iteration has started already
                self._iteration_ended_ns = perf_counter_ns()

    def _iter_items(self, epoch: int) -> Iterator[Any]:
        while True:
            started_ns = perf_counter_ns()
            packet = self._receive()
            self.wait_ns += perf_counter_ns() - started_ns
            if packet is None:
                self._handle_interrupt(epoch)
                continue
            if packet.kind == PacketKind.END_OF_SEGMENT:
                self._segment_items = packet.count
            else:
                if packet.meta:
                    self._meta_by_item[packet.key[0]] = packet.meta
                if self._reorder.try_advance(packet):
                    box = self._take_item(packet)
                    self._position.mark_item_complete(packet.key[0], self._meta_by_item.pop(packet.key[0], b""))
                    started_ns = perf_counter_ns()
                    yield box.pop()
                    self.busy_ns += perf_counter_ns() - started_ns
                    self._progress.publish(self._reorder.next_item)
                else:
                    self._reorder.add(packet)
            del packet
            yield from self._iter_ready()
            if self._segment_items is not None and self._reorder.next_item >= self._segment_items:
                self.flush()
                self._is_epoch_complete = True
                return

    def _receive(self) -> ReceivedPacket | None:
        if self._memory.lease_count > _EXPECTED_CALLER_LEASES:
            self._update_held_bytes()
        elif self._held_bytes:
            self._set_held_bytes(0)
        try:
            return self._receiver.receive(self._generation)
        except TransportError as error:
            raise RunError(f"sink: {error}", stage=SINK_NAME, worker=0) from error

    def _update_held_bytes(self) -> None:
        """Copy items once the caller keeps more than a third of the memory, so that enough stays for the pipeline."""
        if self._memory.lease_count < _MANY_LEASES or not self.items_yielded % _LEASE_CHECK_INTERVAL_ITEMS:
            self._set_held_bytes(self._memory.held_bytes())

    def _set_held_bytes(self, nbytes: int) -> None:
        self._held_bytes = self._region[ProcessCounter.HELD_BYTES] = nbytes
        self._receiver.copy_all = nbytes > self._plan.memory_bytes // 3

    def _seek(self, epoch: int, cursor: Cursor, *, rebuild_stateful: bool = True) -> None:
        self._iterating_thread_id = threading.get_ident()
        any_order = self._plan.any_order
        self._position = make_position(cursor, self._segment, any_order=any_order)
        seek = self._supervisor.recovery.begin_generation(cursor, epoch, rebuild_stateful=rebuild_stateful)
        self._is_recovering = self._supervisor.recovery.awaits_delivery
        self._generation = seek.generation
        self._is_epoch_complete = False
        delivers_unordered = any_order and not self._segment
        self._reorder = ReorderBuffer(
            cursor.item, cursor.last_key, any_order=delivers_unordered, emitted_keys=cursor.emitted_keys
        )
        self._meta_by_item = {}
        self._segment_items = None
        self._progress.start_generation(self._generation, cursor.item, seek.windows[self._segment])
        if self._stale_leases.enter_era(seek.era):
            self._stale_leases.report()

    def _iter_ready(self) -> Iterator[Any]:
        for packet, item in self._reorder.pop_ready():
            if packet is None:
                self._position.mark_item_complete(item, self._meta_by_item.pop(item, b""))
                self._progress.publish(self._reorder.next_item)
                continue
            if packet.kind != PacketKind.ITEM:
                self._position.mark_delivered(packet.key, self._meta_by_item.get(item, b""))
                if packet.kind == PacketKind.ERROR_SKIP:
                    self._position.mark_skipped(ImposedSkip(self._plan.stage_names[packet.count], packet.key))
                continue
            box = self._take_item(packet)
            del packet
            started_ns = perf_counter_ns()
            yield box.pop()
            self.busy_ns += perf_counter_ns() - started_ns

    def _take_item(self, packet: ReceivedPacket) -> list[Any]:
        """Return the item to yield in a box, so that this object keeps no reference to it."""
        box = [packet.value]
        packet.value = None
        self._position.mark_delivered(packet.key, self._meta_by_item.get(packet.key[0], b""))
        self._count_item(packet)
        return box

    def _count_item(self, packet: ReceivedPacket) -> None:
        elapsed_ns = perf_counter_ns() - self.started_ns
        if not self.items_yielded:
            self.first_item_ns = elapsed_ns
            self.first_wait_ns = self.wait_ns
        if self._is_recovering:
            self._is_recovering = False
            self._supervisor.recovery.record_delivery()
        self.items_yielded += 1
        self.samples_yielded += packet.samples
        if not self.items_yielded % self._delivery_point_stride or self.items_yielded == 1:
            self.delivery_points.append((elapsed_ns, self.samples_yielded))
            if len(self.delivery_points) >= _MAX_DELIVERY_POINTS:
                self.delivery_points = self.delivery_points[::2]
                self._delivery_point_stride *= 2

    # ------------------------------------------------------------------ interrupted waits

    def _handle_interrupt(self, epoch: int) -> None:
        self._set_held_bytes(self._memory.held_bytes())
        if self._supervisor.recovery.resolve_interrupt(self.items_yielded):
            self._seek(epoch, self.committed_cursor)

    def close(self) -> None:
        """Release what can be released, and close the receiver."""
        self.ended_ns = perf_counter_ns()
        self._is_memory_shared = False  # the iterating thread has stopped
        self.flush()
        self._receiver.close()

    def release_references(self) -> None:
        """Break the reference cycles through the receiver and the last error, once nothing is read any more.

        So each mapping, which holds a descriptor, is freed with its last user and not at a later garbage collection.
        """
        del self._receiver
        self._supervisor.recovery.forget_failure()
