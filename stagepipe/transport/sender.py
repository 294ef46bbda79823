"""The sending end of a hop, with every phase timed. A process has at most one `Sender`."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import Key
from stagepipe.timing import DurationRecorder
from stagepipe.transport.codec import Encoder
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.packet import (
    PICKLE_BUFFER,
    PacketHeader,
    PacketKind,
    check_entry_fits,
    encode_body,
    pack,
    pack_entry,
    split_into_fragments,
    write_sent_at,
    write_timestamps,
)
from stagepipe.transport.packing import CarriedBlocks, Packer, SendCounts
from stagepipe.transport.pipe import PipeWaiter, WakeEvent
from stagepipe.transport.rule import SHARED_MEMORY, TransportRule
from stagepipe.transport.small_items import (
    MAX_PACKET_ITEM_BYTES,
    PLAIN_ROOM_BYTES,
    Outbox,
    RunBlocks,
    hold_arrays,
    measure_plain,
)

LEASED_TICK_INTERVAL_S = 0.01
"""The tick interval of a wait while this process holds leases: the longest that a released block stays in use."""
IDLE_TICK_INTERVAL_S = 0.25
"""The tick interval of a wait without leases."""

_CHANGEABLE: Final = frozenset({dict, list})
"""The plain containers that their owner may change."""

InterruptCheck = Callable[[], bool]
"""Called at every tick of a wait. True ends the wait: a seek or the end of the run comes first."""


class Sender:
    """The sending end of a hop."""

    def __init__(  # noqa: PLR0917 - the resources of the process, in the order in which it creates them
        self,
        fd: int,
        memory: SharedMemoryPool,
        rule: TransportRule,
        wake_event: WakeEvent,
        is_interrupted: InterruptCheck,
        recorder: DurationRecorder,
        tick: Callable[[], None] | None = None,
        rule_word: Sequence[int] = (),
    ) -> None:
        """`recorder` takes rows of (encode, copy, pack_wait, send, send_wait) in ns; `tick` runs while waiting.

        `rule_word`: where the supervisor may change the rule while the hop runs, see `TransportRule.word`. `wake_event`
        ends the current wait, so that `is_interrupted` is checked again.
        """
        self._fd = fd
        self._memory = memory
        self._is_interrupted = is_interrupted
        self._tick = tick or memory.flush_releases
        self._waiter = PipeWaiter(fd, select.EPOLLOUT, wake_event)
        self.counts = SendCounts()
        self._min_out_of_band_bytes = rule.min_out_of_band_bytes
        self._encoder = Encoder(memory, rule.min_out_of_band_bytes)
        self._packer = Packer(self._encoder, memory, rule, rule_word or (rule.word,), self.counts)
        self._may_pickle_later = False
        self._forces_shared_memory = rule.mode == SHARED_MEMORY
        self._recorder = recorder
        has_blocks = rule.uses_blocks and memory.arena is not None
        run_blocks = RunBlocks(CarriedBlocks(self._encoder, memory)) if has_blocks else None
        self._max_plain_bytes = PLAIN_ROOM_BYTES if has_blocks else MAX_PACKET_ITEM_BYTES
        self._outbox = Outbox(self._write_packet, self._try_write, recorder, self.counts, run_blocks)

    @property
    def blocked_ns(self) -> int:
        """How long this process has waited for room in the pipe."""
        return self._outbox.blocked_ns

    @blocked_ns.setter
    def blocked_ns(self, value: int) -> None:
        self._outbox.blocked_ns = value

    def limit_packet(self, max_entries: int) -> None:
        """Hold small items back so that up to `max_entries` share a packet; 1: none. `flush` before every wait."""
        self._outbox.max_entries = max_entries
        self._may_pickle_later = max_entries > 1 and not self._forces_shared_memory

    def flush(self) -> bool:
        """Write what is held back. False if interrupted; it is then dropped."""
        return self._outbox.flush()

    def discard(self) -> None:
        """Drop what is held back: it is of an older generation."""
        self._outbox.discard()

    def send(self, item_box: list[Any], generation: int, key: Key, samples: int, meta: bytes) -> bool:
        """Send the item in `item_box`, or hold it back, and empty the box. False if interrupted; it is then dropped.

        The box releases the item before it is sent, so that buffers which nobody else holds are handed over without a
        copy. Raises what pickling the item raises, ArenaFullError, or TransportError; then no part of the item is kept.
        """
        begin_ns = perf_counter_ns()
        outbox = self._outbox
        if begin_ns <= outbox.hold_until_ns and samples == 1 and not meta and self._may_pickle_later:
            item = item_box[0]
            nbytes = measure_plain(item, key, self._min_out_of_band_bytes, self._max_plain_bytes)
            if nbytes:
                item_box.clear()
                if nbytes < 0:
                    value, nbytes = hold_arrays(item), -nbytes
                    outbox.has_arrays = True
                else:
                    value = item.copy() if type(item) in _CHANGEABLE else item  # the stage may change its own
                return outbox.add_plain(value, generation, key, nbytes, begin_ns)
        self._encoder.encode(item_box[0])
        item_box.clear()
        encoded_at_ns = perf_counter_ns()
        header = (generation, key, samples, meta)
        encode_ns = encoded_at_ns - begin_ns
        entry = self._packer.pack_entry(header, encode_ns + self._outbox.last_send_ns)
        if entry is None:
            return self._send_alone(header, encode_ns)
        made_ns = perf_counter_ns()
        return self._outbox.add(entry, made_ns, (encode_ns, made_ns - encoded_at_ns, made_ns, len(entry)))

    def _send_alone(self, header: PacketHeader, encode_ns: int) -> bool:
        """Send the encoded item in a packet of its own, after what is held back."""
        encoder = self._encoder
        packer = self._packer
        try:
            if not self._outbox.flush():
                encoder.clear()
                return False
            begin_ns = perf_counter_ns()
            packet = packer.pack(header)
            body = None
            if packet is None:
                packet, body = self._pack_announcement(header)
            encoder.clear()
            copied_at_ns = perf_counter_ns()
            copy_ns = copied_at_ns - begin_ns
            write_timestamps(packet, encode_ns + copy_ns + self._outbox.last_send_ns, copied_at_ns)
            waited_ns = self._write_packet(packet, copied_at_ns)
            if body is not None and waited_ns >= 0:
                waited_ns = self._write_fragments(body, header[0], waited_ns)
        except BaseException:
            encoder.clear()
            packer.carried.release()
            raise
        if waited_ns < 0:
            packer.carried.release()
            return False
        self._outbox.last_send_ns = send_ns = perf_counter_ns() - copied_at_ns - waited_ns
        nbytes = len(packet) + (packer.bytes_in_blocks if body is None else len(body))
        self._recorder.add(
            (encode_ns, copy_ns, 0, send_ns, waited_ns), (packer.transfer_kind, nbytes, copy_ns + send_ns)
        )
        self._outbox.blocked_ns += waited_ns
        return True

    def send_marker(
        self, kind: PacketKind, generation: int, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b""
    ) -> bool:
        """Send an entry without an item, or hold it back; False if interrupted. A segment's end is sent at once."""
        header = (generation, key, samples, meta)
        entry = pack_entry(kind, header, 0, count_or_bytes=count)
        check_entry_fits(entry, header)
        return self._outbox.add(entry, perf_counter_ns(), is_last=kind == PacketKind.END_OF_SEGMENT)

    # ------------------------------------------------------------------ a large item through the pipe

    def _pack_announcement(self, header: PacketHeader) -> tuple[bytearray, bytearray]:
        """The packet that announces a large item, and the item's body."""
        encoder = self._encoder
        counts = self.counts
        body = encode_body(
            (
                (encoder.raw_bytes(buffer), PICKLE_BUFFER if buffer.is_pickle_buffer else 0)
                for buffer in encoder.buffers
            ),
            encoder.pickle_data,
        )
        counts.pipe_messages += 1
        counts.inline_bytes += len(body)
        return pack(PacketKind.FRAGMENTED, header, count_or_bytes=len(body)), body

    def _write_fragments(self, body: bytearray, generation: int, waited_ns: int) -> int:
        """Write a body in fragments. Returns `waited_ns` plus its own waits; -1 if interrupted."""
        for fragment in split_into_fragments(body, generation):
            try:
                os.writev(self._fd, fragment)
            except BlockingIOError:
                wait_ns = self._write_when_ready(fragment, perf_counter_ns())
                if wait_ns < 0:
                    return -1
                waited_ns += wait_ns
        return waited_ns

    # ------------------------------------------------------------------ the writes

    def _write_packet(self, packet: bytearray, begin_ns: int) -> int:
        """Write a packet. Returns how many ns since `begin_ns` it waited for room in the pipe; -1 if interrupted."""
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return self._write_when_ready((packet,), begin_ns)
        return 0

    def _try_write(self, packet: bytearray) -> bool:
        """Write a packet if there is room for it. Returns whether there was."""
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return False
        return True

    def _write_when_ready(self, buffers: Sequence[bytearray | bytes | memoryview], begin_ns: int) -> int:
        packet = buffers[0]
        while not self._is_interrupted():
            self._tick()
            self._waiter.wait(LEASED_TICK_INTERVAL_S if self._memory.lease_count else IDLE_TICK_INTERVAL_S)
            now_ns = perf_counter_ns()
            if isinstance(packet, bytearray):  # a whole packet; fragments have no timestamps
                write_sent_at(packet, now_ns)
            try:
                os.writev(self._fd, buffers)
            except BlockingIOError:
                continue
            return now_ns - begin_ns
        return -1

    def close(self) -> None:
        """Close the waiter. The pipe stays open."""
        self._waiter.close()
