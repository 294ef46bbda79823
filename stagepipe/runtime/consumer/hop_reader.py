"""The reader of the last hop: receives packets, holds their shared memory, and does the upkeep of both.

In the caller's process, on the thread that iterates.
"""

from __future__ import annotations

import threading
from functools import partial
from time import perf_counter_ns

from stagepipe.core import RunError, TransportError
from stagepipe.plan import SINK_NAME
from stagepipe.runtime.flow import (
    EXPECTED_LEASES,
    MAX_HELD_FRACTION,
    HeldMemoryLimit,
    ProgressPublisher,
    StaleLeaseReporter,
)
from stagepipe.runtime.protocol import format_item, format_user_traceback
from stagepipe.runtime.supervisor import RecoveryCoordinator, RunResources
from stagepipe.timing import RECEIVE_PHASES, DurationRecorder, ProcessCounter
from stagepipe.transport import ReceivedPacket, SharedMemoryPool, UnreadableItemError, make_receiver

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
        """`recovery` interrupts waits and takes the reports of old leases; `progress` is flushed before each wait.

        `is_memory_shared`: the iterating thread also sends from `memory`, so no other thread may flush it.
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
        """The next packet of `generation`; None if the wait was interrupted. Raises RunError for a damaged packet."""
        if self.memory.lease_count > EXPECTED_LEASES or self._held_memory.held_bytes:
            self._receiver.copy_all = self._held_memory.check()
        try:
            return self._receiver.receive(generation)
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
        """Enter a seek of `era`, on the thread that iterates from now on."""
        self._iterating_thread_id = threading.get_ident()
        if self._stale_leases.enter_era(era):
            self._stale_leases.report()

    def publish_held_bytes(self) -> None:
        """Write the bytes that the caller holds to the board, as they are now."""
        self._receiver.copy_all = self._held_memory.measure()

    # ------------------------------------------------------------------ upkeep

    def _on_tick(self) -> None:
        """Publish that the caller waits for an item, and run the upkeep. Called at every tick of such a wait."""
        self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        self.run_upkeep()

    def run_upkeep(self) -> None:
        """Exchange released blocks with the other processes, publish progress, and now and then the counters."""
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
            return  # the iterating thread does it, and two threads must not do it at once
        self.memory.flush_releases()
        self._recorder.flush()
        self._region[ProcessCounter.STARVED_NS] = self._receiver.starved_ns
        self._region[ProcessCounter.COPIED_OUT_ITEMS] = self._receiver.copied_out_items

    def close(self) -> None:
        """Release what can be released, and stop receiving. The iterating thread has stopped."""
        self._is_memory_shared = False
        self.flush()
        self._receiver.close()

    def release_references(self) -> None:
        """Break the reference cycle through the receiver, so that `memory` is freed with its last user."""
        del self._receiver
