"""The Consumer: an order point at the end of the last hop, whose outputs are the pipeline's items.

In the caller's process, on the thread that iterates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns, sleep
from typing import Any, Final, NoReturn

from stagepipe.core import Cursor, UsageError
from stagepipe.runtime.consumer.delivery import GenerationDelivery
from stagepipe.runtime.consumer.hop_reader import HopReader
from stagepipe.runtime.consumer.statistics import DeliveryStatistics
from stagepipe.runtime.flow import ProgressPublisher
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import ProcessCounter
from stagepipe.transport import Arena, Lease, ReceivedPacket, SharedMemoryPool, open_transports

_PROCESS_END_WAIT_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
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
        self._delivery: GenerationDelivery | None = None
        self._is_epoch_complete = True  # no epoch is in progress
        self._is_recovering = False
        self._is_closed = False
        self.is_process_ending = False
        """Set before a close at the interpreter's exit: a daemon thread that still iterates then waits for the end."""
        self.statistics = DeliveryStatistics(supervisor.started_ns)
        # Not at each item, which would cost a loop over small dicts a twentieth.
        supervisor.call_regularly(partial(self.statistics.publish, resources.board.delivery_words))

    def share_memory(self) -> MemoryHandle:
        """Return what a caller needs to send items on to other processes. Call it once, before the first epoch.

        Delivered items can then be forwarded from the returned `memory`, by the iterating thread. It has an arena for
        what must be copied. From then on only that thread reports released blocks to their owners.
        """
        resources, memory_bytes = self._resources, self._plan.memory_bytes
        process_index = resources.consumer_process_index
        self._recovery.add_consumer_arena()
        release_fds = resources.release_write_fds
        memory = SharedMemoryPool(
            Arena(process_index, resources.arena_memfds[process_index], memory_bytes),
            dict(resources.arena_memfds),
            {**release_fds, process_index: resources.release_pipes[process_index][0]},  # it reads its own releases
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
            on_tick=self._reader.run_upkeep,
        )

    @property
    def committed_cursor(self) -> Cursor:
        """The cursor after the last delivered item; a seek to it reproduces everything that follows."""
        return Cursor() if self._delivery is None else self._recovery.add_stream_state(self._delivery.cursor)

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the live lease that contains these bytes, or None."""
        return self._reader.memory.find_lease(address, nbytes)

    def flush(self) -> None:
        """Write the counters to the board, and report released blocks to their owners."""
        self._reader.flush()

    # ------------------------------------------------------------------ an epoch

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Iterator[Any]:
        """Return an iterator over an epoch from `cursor` on. The workers start at once, not with the first `next`."""
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

    def _iter_items(self, epoch: int, delivery: GenerationDelivery, iteration: int) -> Iterator[Any]:
        statistics, receive, publish_progress = self.statistics, self._reader.receive, self._progress.publish
        try:
            while not delivery.is_complete:
                started_ns = perf_counter_ns()
                packet = receive(delivery.generation)
                statistics.wait_ns += perf_counter_ns() - started_ns
                if packet is None:
                    delivery = self._handle_interrupt(epoch, delivery)
                    continue
                for ready in delivery.add(packet):
                    box = self._take_item(ready)
                    started_ns = perf_counter_ns()
                    yield box.pop()
                    statistics.busy_ns += perf_counter_ns() - started_ns
                    publish_progress(delivery.next_item)
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
        """End an iteration whose run another thread has closed. Raises UsageError."""
        while self.is_process_ending:  # a daemon thread: an error that nobody can act on would be printed
            sleep(_PROCESS_END_WAIT_S)
        raise UsageError("this pipeline was closed by another thread; make a new one")

    def _take_item(self, packet: ReceivedPacket) -> list[Any]:
        """Count the item and return it in a box, so that this object keeps no reference to it."""
        box = [packet.value]
        packet.value = None
        if self._is_recovering:
            self._is_recovering = False
            self._recovery.record_delivery()
        self.statistics.count_item(packet.samples)
        return box

    def _handle_interrupt(self, epoch: int, delivery: GenerationDelivery) -> GenerationDelivery:
        """Stop, and ask the coordinator what to do: go on, or seek to the cursor. Raises RunError if the run failed."""
        self._reader.publish_held_bytes()
        if self._recovery.resolve_interrupt(self.statistics.items):
            return self._enter_generation(epoch, delivery.cursor, is_recovery=True)
        return delivery

    def close(self) -> None:
        """Release what can be released, and stop receiving."""
        self._is_closed = True
        self.statistics.end()
        self._reader.close()

    def release_references(self) -> None:
        """Break the reference cycles through the receiver and the last error, once nothing is read any more.

        So each mapping, which holds a descriptor, is freed with its last user and not at a later garbage collection.
        """
        self._reader.release_references()
        self._recovery.forget_failure()
