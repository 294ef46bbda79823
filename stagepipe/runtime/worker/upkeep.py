"""What a worker does besides its items: it releases memory, publishes progress and writes its counters to the board.

At every tick of every wait, and every 100 ms. In the worker's process.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

from stagepipe.runtime.flow import MAX_HELD_FRACTION, HeldMemoryLimit, ProgressPublisher, StaleLeaseReporter
from stagepipe.runtime.protocol import StaleLeasesEvent, WorkerSpec
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.counters import WorkerCounters
from stagepipe.runtime.worker.scheduling import SchedulingPolicy
from stagepipe.timing import Board, ProcessCounter, ProcessState
from stagepipe.transport import LeaseExtent, SharedMemoryPool

FLUSH_INTERVAL_NS = 100_000_000
"""How often counters go to the board; the recovery coordinator's `_ARENA_FULL_SETTLE_S` depends on it."""
_MIN_NEW_LEASES_BEFORE_CHECK = 4
"""New leases before the bytes that they hold are summed up again."""


class WorkerUpkeep:
    """The upkeep of a worker. Its loop calls `flush` when `last_flush_ns` or `lease_check_threshold` is exceeded."""

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
        self.last_flush_ns = 0
        self.lease_check_threshold = _MIN_NEW_LEASES_BEFORE_CHECK

    def on_tick(self) -> None:
        """Release memory, publish progress and flush counters. Called at every tick of every wait."""
        self._memory.flush_releases()
        if self.progress is not None:
            self.progress.flush()
        now_ns = self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        if now_ns - self.last_flush_ns > FLUSH_INTERVAL_NS:
            self.flush(now_ns)

    def on_admission_tick(self) -> None:
        """`on_tick`, and make room for the next item in the blocks that were released."""
        self.on_tick()
        self._memory.collect_releases()

    def flush(self, now_ns: int) -> None:
        """Write all counters to the board, and check what changes slowly: scheduling, stale leases, held memory."""
        self.last_flush_ns = now_ns
        self.counters.flush(now_ns)
        self._scheduling_policy.update(now_ns)
        self.stale_leases.report_if_any()
        self._update_held_bytes()

    def _update_held_bytes(self) -> None:
        """Copy inputs once the stage keeps too much shared memory."""
        lease_count = self._memory.lease_count
        # The sum takes time for each lease, so the next one waits for a quarter more leases.
        self.lease_check_threshold = lease_count + max(lease_count // 4, _MIN_NEW_LEASES_BEFORE_CHECK)
        is_limit_exceeded = self._held_memory.measure()
        if self.counters.receiver is not None:
            self.counters.receiver.copy_all = is_limit_exceeded or self._spec.plan.stages[0].mutable

    def _publish_counter(self, counter: ProcessCounter, nbytes: int) -> None:
        self._region[counter] = nbytes

    def _send_stale_leases(self, era: int, leases: list[LeaseExtent]) -> None:
        self._control.send(StaleLeasesEvent(process=self._spec.process, era=era, leases=leases))

    def close(self) -> None:
        """Write the last counters and the end state to the board."""
        self.flush(perf_counter_ns())
        self._region[ProcessCounter.PROCESS_STATE] = ProcessState.STOPPED
        self._region[ProcessCounter.STOPPED_NS] = perf_counter_ns()
