"""Writes a worker's counters to the board, where its successor continues them. In the worker's process."""

from __future__ import annotations

from dataclasses import fields
from time import process_time_ns

from stagepipe.runtime.execution import StageRunner
from stagepipe.runtime.flow import AdmissionController
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, DurationRecorder, ProcessCounter, ProcessRegion
from stagepipe.transport import Receiver, SendCounts, Sender, SharedMemoryPool

_SWEEP_INTERVAL_NS = 1_000_000_000
_SEND_COUNTERS = {field.name: ProcessCounter[field.name.upper()] for field in fields(SendCounts)}
"""The counters of the board that a sender counts, by their names in SendCounts."""


class WorkerCounters:
    """The worker's region of the board, and the histograms of its two hops."""

    def __init__(self, region: ProcessRegion, memory: SharedMemoryPool, *, keep_idle_pages: bool) -> None:
        """Continue the counters in `region`. `keep_idle_pages`: do not give pages of idle blocks back to the kernel."""
        self._region = region
        self._memory = memory
        self._keep_idle_pages = keep_idle_pages
        self.send_recorder = DurationRecorder(region.send_histogram_words, len(SEND_PHASES), region.send_ledger)
        self.receive_recorder = DurationRecorder(
            region.receive_histogram_words, len(RECEIVE_PHASES), region.receive_ledger
        )
        self.idle_ns = region[ProcessCounter.STARVED_NS]
        self._previous_cpu_ns = region[ProcessCounter.CPU_NS]
        self._last_sweep_ns = 0
        self.stages: list[StageRunner] = []
        self.receiver: Receiver | None = None
        self.admission: AdmissionController | None = None

    def attach_sender(self, sender: Sender) -> None:
        """Continue the sender's counters too."""
        region = self._region
        self._sender = sender
        sender.blocked_ns = region[ProcessCounter.BLOCKED_NS]
        for name, counter in _SEND_COUNTERS.items():
            setattr(sender.counts, name, region[counter])

    def flush(self, now_ns: int) -> None:
        """Write all counters to the board. `now_ns` is the time of `perf_counter_ns`."""
        self.send_recorder.flush()
        self.receive_recorder.flush()
        for stage in self.stages:
            stage.flush()
        region, receiver = self._region, self.receiver
        region[ProcessCounter.FLUSHED_NS] = now_ns
        region[ProcessCounter.STARVED_NS] = self.idle_ns + (receiver.starved_ns if receiver is not None else 0)
        admission_ns = 0 if self.admission is None else self.admission.blocked_ns
        region[ProcessCounter.BLOCKED_NS] = self._sender.blocked_ns + admission_ns
        region[ProcessCounter.CPU_NS] = self._previous_cpu_ns + process_time_ns()
        for name, counter in _SEND_COUNTERS.items():
            region[counter] = getattr(self._sender.counts, name)
        self._flush_memory(now_ns)

    def _flush_memory(self, now_ns: int) -> None:
        region, memory = self._region, self._memory
        if memory.arena is not None:
            memory.collect_releases()
            region[ProcessCounter.PEAK_BYTES] = max(
                region[ProcessCounter.PEAK_BYTES], memory.arena.allocator.peak_bytes
            )
            if now_ns - self._last_sweep_ns > _SWEEP_INTERVAL_NS and not self._keep_idle_pages:
                self._last_sweep_ns = now_ns
                memory.arena.punch_idle_blocks()
