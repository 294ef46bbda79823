"""A worker's counters on their way to the board, where a successor counts on from them. In its process."""

from __future__ import annotations

from time import process_time_ns

from stagepipe.runtime.gate import Gate
from stagepipe.runtime.stage import Stage
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, Recorder, Region, Word
from stagepipe.transport import Memory, Receiver, Sender

_SWEEP_NS = 1_000_000_000


class Tally:
    """What a worker counts: its own words of the board, and the histograms of its hops."""

    def __init__(self, region: Region, memory: Memory, *, keep_pages: bool) -> None:
        """Begin where the worker before it was. `keep_pages`: idle blocks are not punched out."""
        self._region, self._memory, self._keep_pages = region, memory, keep_pages
        self.sent = Recorder(region.sending, len(SEND_PHASES), region.sending_ledger)
        self.received = Recorder(region.receiving, len(RECEIVE_PHASES), region.receiving_ledger)
        self.idle_ns, self._cpu_before_ns = region[Word.STARVED_NS], region[Word.CPU_NS]
        self._swept_ns = 0
        self.stages: list[Stage] = []
        self.receiver: Receiver | None = None
        self.gate: Gate | None = None

    def go_on(self, sender: Sender) -> None:
        """Let the sender count on as well."""
        region, counts = self._region, sender.counts
        self._sender = sender
        sender.blocked_ns = region[Word.BLOCKED_NS]
        counts.pipe, counts.shared_memory = region[Word.PIPE], region[Word.SHARED_MEMORY]
        counts.mixed, counts.inline_bytes = region[Word.MIXED], region[Word.INLINE_BYTES]
        counts.copied_bytes, counts.zero_copy_bytes = region[Word.COPIED_BYTES], region[Word.ZERO_COPY_BYTES]

    def flush(self, now: int) -> None:
        """Bring everything to the board. `now` in ns."""
        self.sent.flush()
        self.received.flush()
        for stage in self.stages:
            stage.flush()
        region, counts, receiver = self._region, self._sender.counts, self.receiver
        region[Word.STARVED_NS] = self.idle_ns + (receiver.starved_ns if receiver is not None else 0)
        gate_ns = 0 if self.gate is None else self.gate.blocked_ns
        region[Word.BLOCKED_NS] = self._sender.blocked_ns + gate_ns
        region[Word.CPU_NS] = self._cpu_before_ns + process_time_ns()
        region[Word.PIPE], region[Word.SHARED_MEMORY] = counts.pipe, counts.shared_memory
        region[Word.MIXED], region[Word.INLINE_BYTES] = counts.mixed, counts.inline_bytes
        region[Word.COPIED_BYTES], region[Word.ZERO_COPY_BYTES] = counts.copied_bytes, counts.zero_copy_bytes
        self._look_at_memory(now)

    def _look_at_memory(self, now: int) -> None:
        region, memory = self._region, self._memory
        if memory.arena is not None:
            memory.collect()
            region[Word.PEAK_BYTES] = max(region[Word.PEAK_BYTES], memory.arena.allocator.peak)
            if now - self._swept_ns > _SWEEP_NS and not self._keep_pages:
                self._swept_ns = now
                memory.arena.punch_idle()
