"""The upkeep of a worker: it releases memory, publishes progress and writes the counters to the board.

Runs in the worker's process, at every tick of every wait, and every 100 ms. A successor continues the counters.

MessageLimit limits how many small items share a message. A message goes to one worker as a whole: with twenty slow
items in each, one worker would be busy and the others idle. Also, an item in a message waits for the later ones.

SchedulingPolicy chooses SCHED_OTHER or SCHED_BATCH (sched(7)). Under SCHED_OTHER, a process that wakes up may preempt
the running one. In a full pipeline that is often its own writer, in the middle of a send: on a fully loaded machine
this cost the writer 100 us and its caches. Under SCHED_BATCH a reader does not preempt, which costs nothing while items
queue anyway. If the pipeline is not full, a process waits for the item, and on a busy machine a batch process would run
milliseconds later, so the worker stays SCHED_OTHER.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from time import perf_counter_ns, process_time_ns
from typing import Final, Protocol

from stagepipe.runtime.execution import StageRunner
from stagepipe.runtime.flow import (
    MAX_HELD_FRACTION,
    AdmissionController,
    HeldMemoryLimit,
    ProgressPublisher,
    StaleLeaseReporter,
)
from stagepipe.runtime.protocol import Seek, StaleLeasesEvent, WorkerSpec
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.group import Group
from stagepipe.timing import (
    RECEIVE_PHASES,
    SEND_PHASES,
    Board,
    DurationRecorder,
    ProcessCounter,
    ProcessState,
    StageCounter,
)
from stagepipe.transport import LeaseExtent, Receiver, SendCounts, Sender, SharedMemoryPool

_SWEEP_INTERVAL_NS = 1_000_000_000
_SEND_COUNTERS = {field.name: ProcessCounter[field.name.upper()] for field in fields(SendCounts)}
"""The board's counters that a sender counts, by their names in SendCounts."""


_MAX_READER_WORK_NS: Final = 200_000
"""The limit of the work in a message for a reader that is one of several."""
_MAX_OWN_WORK_NS: Final = 10_000_000
"""The limit of the sender's work for a message: the wait of its first item for its last, as in `write_late`. Next to a
stage of a millisecond the message's code and data are cold in the caches: a message costs both ends some 200 us."""
_TRANSPORT_NS: Final = 5_000
"""The time that a reader spends on an item outside its stages."""
_MIN_MEASURED_ITEMS: Final = 8


class MessageLimit:
    """The limit for one outgoing hop, from the segment's window and the recent costs of items on both sides."""

    def __init__(self, board: Board, segment: int, process: int, reader_processes: tuple[int, ...]) -> None:
        """`process` writes the hop, in `segment`. `reader_processes` is empty if the consumer reads it."""
        self._segment = segment
        self._readers = [board.region(process) for process in reader_processes]
        self._own_work = MeasuredWork(board, (process,))
        self._reader_work = MeasuredWork(board, reader_processes)
        self._window = 1

    def start_generation(self, seek: Seek) -> None:
        """Take the windows of a generation."""
        self._window = max(seek.windows[self._segment], seek.small_item_windows[self._segment])

    def compute_max_items(self) -> int:
        """Return how many items a message may have, from the current counters on the board."""
        item_ns = self._own_work.measure()
        if item_ns is None:
            return 1
        reader_count = sum([region.has_worker for region in self._readers])
        max_items = min(self._window / (2 * max(reader_count, 1)), _MAX_OWN_WORK_NS / (item_ns + _TRANSPORT_NS))
        if reader_count > 1:
            item_ns = self._reader_work.measure()
            if item_ns is None:
                return 1
            max_items = min(max_items, _MAX_READER_WORK_NS / (item_ns + _TRANSPORT_NS))
        return max(int(max_items), 1)


class MeasuredWork:
    """The recently measured time that the stages of some processes spend on an item."""

    def __init__(self, board: Board, processes: Sequence[int]) -> None:
        """`processes` belong to one stage."""
        regions = [board.region(process) for process in processes]
        self._stage_regions = [
            [region.stage_region(index) for index in range(region.stage_count)] for region in regions
        ]
        self._items = 0
        self._busy_ns = 0
        self._item_ns: float | None = None

    def measure(self) -> float | None:
        """Return the ns per item since the last measurement; None before there are enough items."""
        items = sum([regions[0][StageCounter.ITEMS] for regions in self._stage_regions])
        if items - self._items >= _MIN_MEASURED_ITEMS:
            busy_ns = sum([region[StageCounter.BUSY_NS] for regions in self._stage_regions for region in regions])
            self._item_ns = (busy_ns - self._busy_ns) / (items - self._items)
            self._items = items
            self._busy_ns = busy_ns
        return self._item_ns


_BACKPRESSURE_MEMORY_NS = 1_000_000_000
"""A segment that blocked its feeder within this time counts as full."""


class SchedulingPolicy:
    """Switches this process between SCHED_OTHER and SCHED_BATCH."""

    def __init__(self, board: Board) -> None:
        """`board` has the last time at which a feeder was blocked."""
        self._board = board
        self._is_batch = False

    def update(self, now_ns: int) -> None:
        """Use SCHED_BATCH if admission has blocked a feeder in the last second. `now_ns` is `perf_counter_ns()`."""
        is_batch = now_ns - self._board.last_admission_blocked_ns() < _BACKPRESSURE_MEMORY_NS
        if is_batch != self._is_batch:
            self._is_batch = is_batch
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.sched_setscheduler(0, os.SCHED_BATCH if is_batch else os.SCHED_OTHER, os.sched_param(0))


_FLUSH_INTERVAL_NS = 100_000_000
"""The interval at which counters go to the board. The coordinator's `_ARENA_FULL_SETTLE_S` depends on it."""
_FIRST_FLUSH_INTERVAL_NS = 1_000_000
"""The first interval. It doubles with each flush, because the feeder of this worker waits for its measured work."""
_MIN_NEW_LEASES_BEFORE_CHECK = 4
"""New leases before the bytes that they hold are summed up again."""


class ItemThreads(Protocol):
    """The threads of a worker that work on items."""

    def serve(self) -> None:
        """Execute their requests to the main thread."""

    def measure_waits(self, blocked_ns: int) -> tuple[int, int]:
        """Return their mean starved and blocked times. `blocked_ns` is the main thread's blocked time."""


class WorkerUpkeep:
    """The upkeep of a worker. Its loop calls `flush` when `next_flush_ns` or `lease_check_threshold` is exceeded."""

    def __init__(self, spec: WorkerSpec, control: ControlClient, board: Board, memory: SharedMemoryPool) -> None:
        """The counters continue those of the previous worker in the slot."""
        self._spec = spec
        self._control = control
        self._memory = memory
        self._region = board.region(spec.process)
        memory.on_live_bytes = partial(self._publish_counter, ProcessCounter.LIVE_BYTES)
        memory.on_largest_block_bytes = partial(self._publish_counter, ProcessCounter.LARGEST_BLOCK_BYTES)
        region = self._region
        self.send_recorder = DurationRecorder(region.send_histogram_words, len(SEND_PHASES), region.send_ledger)
        self.receive_recorder = DurationRecorder(
            region.receive_histogram_words, len(RECEIVE_PHASES), region.receive_ledger
        )
        self.idle_ns = region[ProcessCounter.STARVED_NS]
        self._previous_cpu_ns = region[ProcessCounter.CPU_NS]
        self._last_sweep_ns = 0
        self.stages: list[StageRunner] = []
        self.receiver: Receiver | None = None
        self.threads: ItemThreads | None = None
        self.group: Group | None = None
        self.admission: AdmissionController | None = None
        self.stale_leases = StaleLeaseReporter(memory, spec.era, self._send_stale_leases)
        self.progress: ProgressPublisher | None = None
        self._scheduling_policy = SchedulingPolicy(board)
        self._held_memory = HeldMemoryLimit(
            memory, spec.memory_bytes * MAX_HELD_FRACTION, partial(self._publish_counter, ProcessCounter.HELD_BYTES)
        )
        self._message_limit = MessageLimit(board, spec.plan.output_segment, spec.process, spec.reader_processes)
        self.next_flush_ns = 0
        self._flush_interval_ns = _FIRST_FLUSH_INTERVAL_NS
        self.lease_check_threshold = _MIN_NEW_LEASES_BEFORE_CHECK

    def attach_sender(self, sender: Sender) -> None:
        """Flush the sender before every wait, limit its messages and continue its counters."""
        self._sender = sender
        sender.blocked_ns = self._region[ProcessCounter.BLOCKED_NS]
        for name, counter in _SEND_COUNTERS.items():
            setattr(sender.counts, name, self._region[counter])

    def on_tick(self) -> None:
        """Send held items, release memory, publish progress, flush counters. Called at every tick of a wait."""
        self._sender.flush()
        self._memory.flush_releases()
        if self.progress is not None:
            self.progress.flush()
        now_ns = self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
        if now_ns > self.next_flush_ns:
            self.flush(now_ns)

    def on_receive_tick(self) -> None:
        """Do `on_tick`, and serve the threads that work on items."""
        self.on_tick()
        if self.threads is not None:
            self.threads.serve()

    def on_admission_tick(self) -> None:
        """Do `on_tick`, and collect released blocks to make room for the next item."""
        self.on_tick()
        self._memory.collect_releases()

    def flush(self, now_ns: int) -> None:
        """Write all counters to the board, and check slow changes: scheduling, stale leases, held memory."""
        self.next_flush_ns = now_ns + self._flush_interval_ns
        self._flush_interval_ns = min(2 * self._flush_interval_ns, _FLUSH_INTERVAL_NS)
        self._sender.flush()
        self._limit_message()
        self._write_counters(now_ns)
        self._write_memory(now_ns)
        self._scheduling_policy.update(now_ns)
        self.stale_leases.report_if_any()
        self._update_held_bytes()

    def start_generation(self, seek: Seek) -> None:
        """Take the windows of a generation."""
        self._message_limit.start_generation(seek)
        self._limit_message()

    def _limit_message(self) -> None:
        self._sender.limit_message(self._message_limit.compute_max_items())

    def _write_counters(self, now_ns: int) -> None:
        self.send_recorder.flush()
        self.receive_recorder.flush()
        for stage in self.stages:
            stage.flush()
        region, receiver, sender = self._region, self.receiver, self._sender
        region[ProcessCounter.FLUSHED_NS] = now_ns
        starved_ns = self.idle_ns + (receiver.starved_ns if receiver is not None else 0)
        blocked_ns = sender.blocked_ns + (0 if self.admission is None else self.admission.blocked_ns)
        if self.threads is not None:
            starved_ns, blocked_ns = self.threads.measure_waits(blocked_ns)
        region[ProcessCounter.STARVED_NS] = starved_ns
        region[ProcessCounter.BLOCKED_NS] = blocked_ns
        group_cpu_ns = 0 if self.group is None else self.group.cpu_ns
        region[ProcessCounter.CPU_NS] = self._previous_cpu_ns + process_time_ns() + group_cpu_ns
        for name, counter in _SEND_COUNTERS.items():
            region[counter] = getattr(sender.counts, name)

    def _write_memory(self, now_ns: int) -> None:
        """Write the peak of this process's arena, and return the pages of idle blocks to the kernel."""
        region, arena = self._region, self._memory.arena
        if arena is None:
            return
        self._memory.collect_releases()
        region[ProcessCounter.PEAK_BYTES] = max(region[ProcessCounter.PEAK_BYTES], arena.allocator.peak_bytes)
        if now_ns - self._last_sweep_ns > _SWEEP_INTERVAL_NS and not self._spec.keep_idle_pages:
            self._last_sweep_ns = now_ns
            arena.punch_idle_blocks()

    def _update_held_bytes(self) -> None:
        """Copy inputs once the stage keeps too much shared memory."""
        lease_count = self._memory.lease_count
        # The sum takes time for each lease, so the next one waits for a quarter more leases.
        self.lease_check_threshold = lease_count + max(lease_count // 4, _MIN_NEW_LEASES_BEFORE_CHECK)
        is_limit_exceeded = self._held_memory.measure()
        if self.receiver is not None:
            self.receiver.copy_all = is_limit_exceeded or self._spec.plan.copies_all_input

    def _publish_counter(self, counter: ProcessCounter, nbytes: int) -> None:
        self._region[counter] = nbytes

    def _send_stale_leases(self, era: int, leases: list[LeaseExtent]) -> None:
        self._control.send(StaleLeasesEvent(process=self._spec.process, era=era, leases=leases))

    def close(self) -> None:
        """Write the last counters and the end state to the board."""
        self.flush(perf_counter_ns())
        self._region[ProcessCounter.PROCESS_STATE] = ProcessState.STOPPED
        self._region[ProcessCounter.STOPPED_NS] = perf_counter_ns()
