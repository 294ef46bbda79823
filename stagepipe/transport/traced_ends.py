"""The two ends of a hop in a traced run: they also write their work into the trace of their process.

An untraced run uses `Sender` and `Receiver` themselves, without extra cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any

from stagepipe.core import SKIP, Key
from stagepipe.timing import DurationRecorder, TraceBuffer, TraceKind, pack_durations
from stagepipe.transport.packet import PacketKind
from stagepipe.transport.receiver import ReceivedPacket, Receiver
from stagepipe.transport.sender import Sender

# Plain integers: each use of an enum member as a number takes 0.1 us.
_ITEM = int(PacketKind.ITEM)
_RECEIVE = int(TraceKind.RECEIVE)
_SEND = int(TraceKind.SEND)
_WAIT_FOR_INPUT = int(TraceKind.WAIT_FOR_INPUT)
_WRITE = int(TraceKind.WRITE)


class RowObserver(DurationRecorder):
    """Passes all rows on to another recorder, counts them, and keeps the last one."""

    def __init__(self, recorder: DurationRecorder) -> None:
        self._recorder = recorder
        self.count = 0
        self.last_row_ns: Sequence[int] = ()
        """Empty after rows that share their times."""

    def add(self, row_ns: Iterable[int], ledger_entry: Iterable[int] = ()) -> None:
        """Count a row."""
        self.last_row_ns = row_ns = tuple(row_ns)
        self.count += 1
        self._recorder.add(row_ns, ledger_entry)

    def add_alike(self, row_ns: Sequence[int], ledger_entry: Sequence[int], column: int, values_ns: list[int]) -> None:
        """Count rows that differ in one column."""
        self.last_row_ns = ()
        self.count += len(values_ns)
        self._recorder.add_alike(row_ns, ledger_entry, column, values_ns)


class TracedSender(Sender):
    """A sender that traces each item, and each write of held items."""

    def __init__(self, trace: TraceBuffer, *args: Any) -> None:
        """`args` are the arguments of `Sender`."""
        fd, memory, rule, wake_event, is_interrupted, recorder, *others = args
        self._trace = trace
        self._rows = RowObserver(recorder)
        super().__init__(fd, memory, rule, wake_event, is_interrupted, self._rows, *others)

    def add(self, value: Any, key: Key) -> bool | None:
        """Trace `Sender.add`."""
        count = self._rows.count
        begin_ns = perf_counter_ns()
        is_held = super().add(value, key)
        if is_held is not False and value is not SKIP:
            self._trace_item(begin_ns, key, count, is_failed=is_held is None)
        return is_held

    def send(self, item_box: list[Any], generation: int, key: Key, samples: int, meta: bytes) -> bool:
        """Trace `Sender.send`."""
        if self._trace.generation != generation:
            self._trace.enter_generation(generation)
        count = self._rows.count
        begin_ns = perf_counter_ns()
        is_sent = super().send(item_box, generation, key, samples, meta)
        self._trace_item(begin_ns, key, count, is_failed=not is_sent)
        return is_sent

    def start_generation(self, generation: int) -> None:
        """Enter the generation in the trace too."""
        super().start_generation(generation)
        self._trace.enter_generation(generation)

    def _trace_item(self, begin_ns: int, key: Key, count: int, *, is_failed: bool) -> None:
        """Trace an item that was sent or held. `count` is the number of rows before it."""
        trace, rows, end_ns = self._trace, self._rows, perf_counter_ns()
        written = rows.count - count
        if written == 1 and rows.last_row_ns and not self._count:  # only this item
            encode_ns, copy_ns, _, send_ns, wait_ns = rows.last_row_ns
            first, second = pack_durations(encode_ns, copy_ns), pack_durations(send_ns, wait_ns)
            trace.add(_SEND, begin_ns, end_ns, key, 0, first, second)
        else:
            trace.add(_SEND, begin_ns, end_ns, key, 0, 0, 0, written, is_failed=is_failed)

    def flush(self) -> bool:
        """Trace `Sender.flush` if anything was written."""
        count = self._rows.count
        begin_ns = perf_counter_ns()
        is_written = super().flush()
        written = self._rows.count - count
        if written:
            self._trace.add(_WRITE, begin_ns, perf_counter_ns(), items=written)
        return is_written


class TracedReceiver(Receiver):
    """A receiver that traces each item and each wait."""

    def __init__(self, trace: TraceBuffer, *args: Any, **options: Any) -> None:
        """`args` and `options` are the arguments of `Receiver`."""
        fd, memory, wake_event, is_interrupted, recorder, *tick = args
        self._trace = trace
        self._rows = RowObserver(recorder)
        self._waited_until_ns = 0
        super().__init__(fd, memory, wake_event, is_interrupted, self._rows, *tick, **options)

    def receive_one(self, generation: int, timeout_s: float | None = None) -> ReceivedPacket | None:
        """Trace `Receiver.receive_one`. A traced process takes each item separately."""
        trace, rows = self._trace, self._rows
        if trace.generation != generation:
            trace.enter_generation(generation)
        count, items_in_hand = rows.count, self.items_in_hand
        begin_ns = perf_counter_ns()
        packet = super().receive_one(generation, timeout_s)
        if packet is None or packet.kind != _ITEM:
            return packet
        end_ns = perf_counter_ns()
        begin_ns = max(begin_ns, self._waited_until_ns)
        is_alone = rows.count == count + 1 and bool(rows.last_row_ns)
        decode_ns = rows.last_row_ns[2] if is_alone else 0
        came_together = 1 + self.items_in_hand if self.items_in_hand > items_in_hand else 1
        trace.add(_RECEIVE, begin_ns, end_ns, packet.key, 0, decode_ns, max(self.queue_ns, 0), came_together)
        trace.begin_item(packet.key, begin_ns)
        return packet

    def _wait_and_read(self, timeout_s: float | None = None) -> bytes:
        begin_ns = perf_counter_ns()
        data = super()._wait_and_read(timeout_s)
        self._waited_until_ns = end_ns = perf_counter_ns()
        self._trace.add(_WAIT_FOR_INPUT, begin_ns, end_ns)
        return data


def make_receiver(trace: TraceBuffer | None, *args: Any, **options: Any) -> Receiver:
    """Return a `Receiver` with these arguments; a traced one if there is a trace."""
    return Receiver(*args, **options) if trace is None else TracedReceiver(trace, *args, **options)


def make_sender(trace: TraceBuffer | None, *args: Any) -> Sender:
    """Return a `Sender` with these arguments; a traced one if there is a trace."""
    return Sender(*args) if trace is None else TracedSender(trace, *args)
