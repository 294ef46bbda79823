"""What a worker does besides its items: it releases memory, publishes progress and writes its counters to the board.

At every tick of every wait, and every 100 ms. In the worker's process.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

from stagepipe.runtime.flow import MAX_HELD_FRACTION, HeldMemoryLimit, ProgressPublisher, StaleLeaseReporter
from stagepipe.runtime.protocol import Seek, StaleLeasesEvent, WorkerSpec
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.counters import WorkerCounters
from stagepipe.runtime.worker.packet_limit import PacketLimit
from stagepipe.runtime.worker.scheduling import SchedulingPolicy
from stagepipe.timing import Board, ProcessCounter, ProcessState
from stagepipe.transport import LeaseExtent, Sender, SharedMemoryPool

_FLUSH_INTERVAL_NS = 100_000_000
"""How often counters go to the board; the recovery coordinator's `_ARENA_FULL_SETTLE_S` depends on it."""
_FIRST_FLUSH_INTERVAL_NS = 1_000_000
"""The first interval, which doubles from flush to flush: who feeds this worker waits for its measured work."""
_MIN_NEW_LEASES_BEFORE_CHECK = 4
"""New leases before the bytes that they hold are summed up again."""


class WorkerUpkeep:
    """The upkeep of a worker. Its loop calls `flush` when `next_flush_ns` or `lease_check_threshold` is exceeded."""

    def __init__(self, spec: WorkerSpec, control: ControlClient, board: Board, memory: SharedMemoryPool) -> None:
        """The counters continue those of the worker before this one."""
        self._spec = spec
        self._control = control
        self._memory = memory
        self._region = board.region(spec.process)
        memory.on_live_bytes = partial(self._publish_counter, ProcessCounter.LIVE_BYTES)
        memory.on_largest_block_bytes = partial(self._publish_counter, ProcessCounter.LARGEST_BLOCK_BYTES)
        self.counters = WorkerCounters(self._region, memory, keep_idle_pages=spec.keep_idle_pages)
        self.stale_leases = StaleLeaseReporter(memory, spec.era, self._send_stale_leases)
        self.progress: ProgressPublisher | None = None
        self._scheduling_policy = SchedulingPolicy(board)
        self._held_memory = HeldMemoryLimit(
            memory, spec.memory_bytes * MAX_HELD_FRACTION, partial(self._publish_counter, ProcessCounter.HELD_BYTES)
        )
        self._packet_limit = PacketLimit(board, spec.plan.output_segment, spec.reader_processes)
        self._sender: Sender | None = None
        self.next_flush_ns = 0
        self._flush_interval_ns = _FIRST_FLUSH_INTERVAL_NS
        self.lease_check_threshold = _MIN_NEW_LEASES_BEFORE_CHECK

    def attach_sender(self, sender: Sender) -> None:
        """Write what the sender holds back before every wait, limit its packets and continue its counters."""
        self._sender = sender
        self.counters.attach_sender(sender)

    def on_tick(self) -> None:
        """Send what is held back, release memory, publish progress, flush counters. Called at every tick of a wait."""
        if self._sender is not None:
            self._sender.flush()
        self._memory.flush_releases()
        if self.progress is not None:
            self.progress.flush()
        now_ns = self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        if now_ns > self.next_flush_ns:
            self.flush(now_ns)

    def on_admission_tick(self) -> None:
        """`on_tick`, and make room for the next item in the blocks that were released."""
        self.on_tick()
        self._memory.collect_releases()

    def flush(self, now_ns: int) -> None:
        """Write all counters to the board, and check what changes slowly: scheduling, stale leases, held memory."""
        self.next_flush_ns = now_ns + self._flush_interval_ns
        self._flush_interval_ns = min(2 * self._flush_interval_ns, _FLUSH_INTERVAL_NS)
        if self._sender is not None:
            self._sender.flush()
            self._limit_packet()
        self.counters.flush(now_ns)
        self._scheduling_policy.update(now_ns)
        self.stale_leases.report_if_any()
        self._update_held_bytes()

    def start_generation(self, seek: Seek) -> None:
        """Take the windows of a generation."""
        self._packet_limit.start_generation(seek)
        self._limit_packet()

    def _limit_packet(self) -> None:
        if self._sender is not None:
            self._sender.limit_packet(self._packet_limit.compute_max_entries())

    def _update_held_bytes(self) -> None:
        """Copy inputs once the stage keeps too much shared memory."""
        lease_count = self._memory.lease_count
        # The sum takes time for each lease, so the next one waits for a quarter more leases.
        self.lease_check_threshold = lease_count + max(lease_count // 4, _MIN_NEW_LEASES_BEFORE_CHECK)
        is_limit_exceeded = self._held_memory.measure()
        if self.counters.receiver is not None:
            self.counters.receiver.copy_all = is_limit_exceeded or self._spec.plan.copies_all_input

    def _publish_counter(self, counter: ProcessCounter, nbytes: int) -> None:
        self._region[counter] = nbytes

    def _send_stale_leases(self, era: int, leases: list[LeaseExtent]) -> None:
        self._control.send(StaleLeasesEvent(process=self._spec.process, era=era, leases=leases))

    def close(self) -> None:
        """Write the last counters and the end state to the board."""
        self.flush(perf_counter_ns())
        self._region[ProcessCounter.PROCESS_STATE] = ProcessState.STOPPED
        self._region[ProcessCounter.STOPPED_NS] = perf_counter_ns()
